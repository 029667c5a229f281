"""Whatever the program: equal runs, conservation, slices that do not overlap, monotone time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from small_machine import SMALL, Recorder, acc, hbm, kernel, lx, op, program

from spyrec.sim.engine import Engine
from spyrec.sim.isa import JOINTS, Joint, Kernel, Launch, Limit, Loop, Program, Rotate, Signal
from spyrec.sim.run import run


@st.composite
def pipelines(draw: st.DrawFn, trips_max: int = 4) -> Kernel:
    """load -> mm -> vec -> send / store with credits for double buffering, on one to four cores."""
    cores = draw(st.integers(1, 4))
    sizes = st.tuples(*[st.integers(0, 12)] * cores)
    trips = draw(st.integers(1, trips_max))
    go = draw(st.lists(st.just(0), max_size=1))
    size, out = draw(sizes), draw(sizes)
    load = op("load", (size,), (lx(0, 1), hbm("x", 0, draw(st.integers(1, 2)))), [*go, 1], [2])  # type: ignore[arg-type]
    rows, n = draw(st.integers(1, 20)), draw(st.integers(1, 3))
    mm = op("mm", (rows, 1, 1, 1, 1, n), (acc(0, 1), lx(0, 1), lx(0)), [2, 4], [1, 3])
    vec = op("vec", (rows,), (lx(99, 1), acc(0, 1)), [3, 6], [4, 5])
    store = op("store", (out,), (hbm("y", 0, 1), lx(0, 1)), [5], [6])  # type: ignore[arg-type]
    mask = draw(st.integers(0, (1 << cores) - 1))
    send = op("send", (out,), (lx(0, 1), lx(9, 1)), imm={"cores": mask})  # type: ignore[arg-type]
    credit = replace(op("sync"), signals=(Signal(1, 2), Signal(4), Signal(6)))
    return kernel(
        cores, ml=(Loop(trips, (load,)),), rr=(credit,), pt=(Loop(trips, (mm,)),),
        sfp=(Loop(trips, (vec,)),), ms=(Loop(trips, (store,)),), rs=(Loop(trips, (send,)),),
    )


@st.composite
def programs(draw: st.DrawFn) -> Program:
    kernels = draw(st.lists(pipelines(), min_size=1, max_size=3))
    p = program(*kernels)
    launches = []
    for index in range(draw(st.integers(1, 5))):
        number = draw(st.integers(0, len(kernels) - 1))
        after = draw(st.sets(st.integers(0, index - 1), max_size=2)) if index else set()
        joint: Joint = draw(st.sampled_from(JOINTS)) if after == {index - 1} else ""
        args = tuple((s, 0) for s in p.kernels[number].params)
        early = draw(st.booleans())
        launches.append(Launch(number, args, tuple(sorted(after)), early, joint=joint))
    return replace(p, launches=tuple(launches))


@given(programs())
@settings(max_examples=60, deadline=None)
def test_runs_are_equal_and_consistent(p: Program) -> None:
    seen = Recorder()
    result = run(p, SMALL, timing_only=True, observer=seen)
    assert run(p, SMALL, timing_only=True) == result
    engine = Engine(p, SMALL)
    engine.run()
    assert engine.bus.read_bytes == sum(s.hbm_read_bytes for s in result.launches)
    assert engine.bus.write_bytes == sum(s.hbm_write_bytes for s in result.launches)
    assert set(engine._load) == {0}
    _check_slices(seen)
    for launch, stats in zip(p.launches, result.launches, strict=True):
        after = [result.launches[i].end_cycle for i in launch.after]
        assert stats.go_cycle >= max(after, default=0)
        if not launch.early and stats.index:
            assert stats.start_cycle >= result.launches[stats.index - 1].end_cycle
        if stats.index >= 2:
            assert stats.start_cycle >= result.launches[stats.index - 2].end_cycle
    assert result.total_cycles == max(s.end_cycle for s in result.launches)


def _check_slices(seen: Recorder) -> None:
    lanes: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    total: dict[str, int] = defaultdict(int)
    for core, unit, _, start, end in seen.slices:
        assert start < end
        lanes[core, unit].append((start, end))
        total[unit] += end - start
    for spans in lanes.values():
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    for unit, cycles in total.items():
        assert cycles == sum(s.busy_cycles[unit] for s in seen.done)


@given(st.integers(0, 20), st.integers(1, 6), st.integers(0, 3), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_buffered_copy_is_right_however_many_trips_are_empty(
    sticks: int, chunk: int, idle: int, slots: int
) -> None:
    """A full signal of an empty load must not overtake the loads ahead of it."""
    trips = -(-sticks // chunk) + idle
    inner = lx(0, 1, rotate=Rotate((1,), slots, chunk))
    load = op("load", (chunk,), (inner, hbm("x", 0, 1, loops=(chunk,))), [1], [2],
              limits=(Limit(sticks, (chunk,)),))
    taken = lx(0, 1, rotate=Rotate((1,), slots, 64 * chunk))
    copy = op("shuf", (64 * chunk,), (lx(100 * 64, 1, loops=(64 * chunk,)), taken), [2], [1],
              limits=(Limit(64 * sticks, (64 * chunk,)),), imm={"bits": 16})
    credit = replace(op("sync"), signals=(Signal(1, slots),))
    done = op("sync", signals=[3])
    zero = op("fill", (32 * 64,), (lx(100 * 64, 1),), imm={"bits": 16, "value": 0})
    store = op("store", (32,), (hbm("y", 0, 1), lx(100, 1)), [3])
    loads, copies = ((Loop(trips, (i,)),) if trips else () for i in (load, copy))
    k = kernel(ml=(credit, *loads), sfp=(zero, *copies, done), ms=(store,))
    data = bytes(range(256)) * 16
    outputs = run(program(k, size=32 * 128), SMALL, {"x": data}, poison=True).outputs
    assert outputs["y"] == data[: sticks * 128] + bytes((32 - sticks) * 128)


@given(
    st.integers(0, 60), st.integers(0, 60), st.integers(1, 40), st.integers(0, 40),
    st.integers(1, 6), st.integers(0, 4),
)
@settings(deadline=None)
def test_more_work_takes_no_less_time(
    sticks: int, more_sticks: int, rows: int, more_rows: int, trips: int, more_trips: int
) -> None:
    def cycles(size: int, height: int, count: int) -> int:
        load = op("load", (size,), (lx(0, 1), hbm("x", 0, 1)), [1], [2])
        mm = op("mm", (height, 1, 1, 1, 1, 1), (acc(0, 1), lx(0, 1), lx(0)), [2], [1])
        credit = replace(op("sync"), signals=(Signal(1, 2),))
        k = kernel(4, ml=(credit, Loop(count, (load,))), pt=(Loop(count, (mm,)),))
        return run(program(k), SMALL, timing_only=True).total_cycles

    base = cycles(sticks, rows, trips)
    assert cycles(sticks, rows, trips + more_trips) >= base
    assert cycles(sticks, rows + more_rows, trips) >= base
    # Filling a burst saves its request, so only whole bursts compare.
    assert cycles(8 * (sticks + more_sticks), rows, trips) >= cycles(8 * sticks, rows, trips)
