"""Tails, guards and runs against counting point by point; unrolling against walking the loops."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from itertools import product as points

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from small_machine import SMALL, hbm, kernel, lx, op, padded

from spyrec.sim.cost import cost_of
from spyrec.sim.expand import expand
from spyrec.sim.extent import (
    core_value,
    effective_counts,
    inside,
    product,
    run_length,
    trip_numbers,
)
from spyrec.sim.isa import Guard, Instr, Limit, Loop, Stream
from spyrec.sim.view import Moment, counts_of, grid

CORES = 3
loop_counts = st.lists(st.integers(1, 3), max_size=2)


def nums(low: int, high: int) -> st.SearchStrategy[int | tuple[int, ...]]:
    one = st.integers(low, high)
    return st.one_of(one, st.tuples(one, one, one))


def steps(size: int, low: int = -3, high: int = 3) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(low, high), min_size=size, max_size=size).map(tuple)


@st.composite
def loads(draw: st.DrawFn) -> tuple[Instr, tuple[int, ...]]:
    loops = tuple(draw(loop_counts))
    dims = draw(st.integers(0, 3))
    counts = tuple(draw(nums(0, 4)) for _ in range(dims))
    limit = st.builds(Limit, nums(-2, 6), steps(len(loops)))
    limits = tuple(draw(st.one_of(st.none(), limit)) for _ in range(dims))
    guard = st.builds(Guard, nums(-4, 4), nums(0, 8), steps(dims), steps(len(loops)))
    guards = tuple(draw(st.lists(guard, max_size=3)))
    source = replace(hbm("x", 0), strides=draw(steps(dims)), guards=guards[:2])
    target = replace(lx(0), strides=(0,) * dims, guards=guards[2:])
    return Instr("load", counts, limits, (target, source)), loops


@given(loads())
@settings(max_examples=80, deadline=None)
def test_counts_and_guards_match_counting(case: tuple[Instr, tuple[int, ...]]) -> None:
    instr, loops = case
    trips = trip_numbers(loops)
    effective = effective_counts(instr, trips, CORES)
    guards = [g for o in instr.operands for g in o.guards]
    own, factor, _ = inside(effective, guards, trips, CORES)
    shape = (trips.shape[1], CORES)
    total = np.broadcast_to(product(own) * factor, shape)
    priced = cost_of(instr, kernel(CORES), SMALL, trips)
    for number, trip in enumerate(points(*map(range, loops))):
        for core in range(CORES):
            counts = []
            for count, limit in zip(instr.counts, instr.limits, strict=True):
                value = core_value(count, core)
                if limit is not None:
                    left = core_value(limit.start, core)
                    left -= sum(s * t for s, t in zip(limit.loops, trip, strict=True))
                    value = min(max(left, 0), value)
                counts.append(value)
            moment = Moment(core, trip)
            assert counts_of(instr, moment) == tuple(counts)
            found = sum(
                all(_passes(guard, index, trip, core) for guard in guards)
                for index in points(*map(range, counts))
            )
            assert total[number, core] == found
            assert np.broadcast_to(priced.work, shape)[number, core] == found * 128
            if all(counts):
                sides = [grid(o, tuple(counts), moment).inside() for o in instr.operands]
                assert np.count_nonzero(sides[0] & sides[1]) == found


def _passes(guard: Guard, index: tuple[int, ...], trip: tuple[int, ...], core: int) -> bool:
    at = core_value(guard.origin, core)
    at += sum(s * i for s, i in zip(guard.strides, index, strict=True))
    at += sum(s * t for s, t in zip(guard.loops, trip, strict=True))
    return 0 <= at < core_value(guard.extent, core)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-2, 8)), max_size=4))
@settings(deadline=None)
def test_runs_are_contiguous_and_maximal(dims: list[tuple[int, int]]) -> None:
    counts, strides = [c for c, _ in dims], [s for _, s in dims]
    run = int(run_length([np.array([[c]]) for c in counts], [strides])[0, 0])
    order = [
        sum(s * i for s, i in zip(strides, index, strict=True))
        for index in points(*map(range, counts))
    ]
    assert len(order) % run == 0
    runs = [order[i : i + run] for i in range(0, len(order), run)]
    assert all(b == a + 1 for part in runs for a, b in pairwise(part))
    if len(runs) > 1:  # the next dimension out does not go on where a run ends
        assert runs[1][0] != runs[0][-1] + 1


def test_runs_merge_over_dimensions() -> None:
    def run(counts: list[int], *strides: list[int]) -> int:
        return int(run_length([np.array([[c]]) for c in counts], strides)[0, 0])

    assert run([2, 3, 4], [12, 4, 1]) == 24
    assert run([2, 3, 4], [16, 4, 1]) == 12
    assert run([2, 1, 4], [4, 99, 1]) == 8
    assert run([2, 4], [1, 2]) == 1
    assert run([2, 4], [4, 1], [8, 1]) == 4
    assert run([], []) == 1


def walk(stream: Stream, trip: tuple[int, ...] = ()) -> list[tuple[Instr, tuple[int, ...]]]:
    found = []
    for item in stream:
        if isinstance(item, Loop):
            for t in range(item.count):
                found += walk(item.body, (*trip, t))
        else:
            found.append((item, trip))
    return found


streams = st.recursive(
    st.builds(
        lambda size, where, waits: padded(
            op("load", (size,), (lx(0, 1), hbm("x", 0, 1)), waits, where=where)
        ),
        st.integers(0, 9), st.integers(0, 7), st.lists(st.integers(1, 3), max_size=2),
    ),
    lambda inner: st.builds(
        lambda count, body: Loop(count, tuple(body)),
        st.integers(1, 3), st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


@given(st.lists(streams, min_size=1, max_size=3))
@settings(deadline=None)
def test_unrolling_is_walking(items: list[Instr | Loop]) -> None:
    stream = tuple(items)
    plan = expand(kernel(CORES, ml=stream), SMALL).units[0]
    for core in range(CORES):
        expected = [
            (i, t) for i, t in walk(stream) if not i.where or i.where >> core & 1
        ]
        assert len(plan.steps[core]) == len(expected)
        for number, (instr, trip) in enumerate(expected):
            site, execution = plan.at(core, number)
            assert site.instr is instr and site.trip(execution) == trip
            waits, _, work, *_ = plan.steps[core][number]
            assert work == int(str(instr.counts[0])) * 128
            assert {t: take for t, _, take in waits} == {
                w.token: sum(v.n for v in instr.waits if v.token == w.token) for w in instr.waits
            }


def test_equal_cores_share_their_steps() -> None:
    load = op("load", ((2, 2, 5),), (lx(0, 1), hbm("x", 0, 1)))  # type: ignore[arg-type]
    steps = expand(kernel(CORES, ml=(Loop(10, (load,)),)), SMALL).units[0].steps
    assert steps[0] is steps[1] and steps[0] is not steps[2]
