"""Addresses, tails and borders of tiles against a walk over every core, trip and step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spyrec.backend.address import (
    Frame,
    base,
    border,
    kernel_strides,
    limit,
    loop_strides,
    mask_of,
    num,
    strides_along,
    with_tails,
)
from spyrec.ir.core import Attr, Op
from spyrec.ir.errors import PassError
from spyrec.ir.layout import Layout
from spyrec.passes.kernel import GROUP, Map, Nest
from spyrec.sim.extent import core_value
from spyrec.sim.isa import Guard, Limit


def nest_of(
    extents: Sequence[int], parts: Sequence[int], tile: Sequence[int], loops: Sequence[int],
    maps: Sequence[Map], stick: int = -1,
) -> Nest:
    attrs: dict[str, Attr] = {
        "name": "k0", "kind": "vec", "dims": tuple((f"d{i}", e) for i, e in enumerate(extents)),
        "maps": tuple(maps), "out_maps": tuple(maps[:1]), "parts": tuple(parts),
        "core_order": tuple(range(len(extents))), "tile": tuple(tile), "loops": tuple(loops),
        "stick": stick,
    }  # fmt: skip
    return Nest(Op("kernel", (), (), MappingProxyType(attrs)))


@dataclass(frozen=True)
class Case:
    """A nest whose last dimension runs along lanes, a tensor that is indexed by it, and more cores
    than it has parts."""

    frame: Frame
    map: Map
    shape: tuple[int, ...]
    stick: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Rows with steps, dilated windows and borders; lanes straight."""
    n = draw(st.integers(1, 3))
    extents = [draw(st.integers(1, 9)) for _ in range(n)] + [draw(st.integers(1, 300))]
    stick = n
    parts = [draw(st.integers(1, min(3, e))) for e in extents[:-1]]
    parts.append(draw(st.integers(1, min(3, -(-extents[-1] // GROUP)))))
    first = nest_of(extents, parts, extents, (), [((0, (1,) * (n + 1)),)], stick)
    tile = [draw(st.integers(1, size)) for size in first.local]
    tile[-1] = min(first.local[-1], -(-tile[-1] // GROUP) * GROUP)
    loops = [d for d in range(n + 1) if -(-first.local[d] // tile[d]) > 1]
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        coefs = [draw(st.sampled_from([0, 0, 1, 2, 3, -1])) for _ in range(n)]
        rows.append((draw(st.integers(-2, 3)), (*coefs, 0)))
    place = draw(st.integers(0, len(rows)))
    rows.insert(place, (0, (*(0,) * n, 1)))
    shape = [draw(st.integers(1, 12)) for _ in rows]
    shape[place] = extents[-1]
    nest = nest_of(extents, parts, tile, draw(st.permutations(loops)), [tuple(rows)], stick)
    return Case(Frame(nest, nest.cores + draw(st.integers(0, 2))), tuple(rows), tuple(shape), place)


def walk(frame: Frame) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """(core, trip of each loop, first kernel coordinate of the tile) of every tile that is not
    empty."""
    nest = frame.nest
    for core, ranges in enumerate(frame.ranges):
        if not all(n for _, n in ranges):
            continue
        for trip in np.ndindex(*[nest.trips(d) for d in nest.loops]):
            done = dict(zip(nest.loops, trip, strict=True))
            at = [done.get(d, 0) * nest.tile[d] for d in range(len(ranges))]
            if all(a < n for a, (_, n) in zip(at, ranges, strict=True)):
                start = tuple(s + a for a, (s, _) in zip(at, ranges, strict=True))
                yield core, tuple(map(int, trip)), start


def left(limited: Limit | None, count: int, core: int, trip: tuple[int, ...]) -> int:
    """The machine's effective count."""
    if limited is None:
        return count
    done = sum(a * b for a, b in zip(limited.loops, trip, strict=False))
    return min(max(core_value(limited.start, core) - done, 0), count)


def passes(guard: Guard, core: int, trip: tuple[int, ...], step: tuple[int, ...]) -> bool:
    at = core_value(guard.origin, core)
    at += sum(a * b for a, b in zip(guard.loops, trip, strict=False))
    at += sum(a * b for a, b in zip(guard.strides, step, strict=True))
    return 0 <= at < core_value(guard.extent, core)


@given(cases())
@settings(max_examples=200, deadline=None)
def test_limits_end_each_tile_where_the_part_of_the_core_ends(case: Case) -> None:
    nest = case.frame.nest
    for dim in range(len(nest.extents)):
        unit = GROUP if dim == nest.stick else 1
        count = -(-nest.tile[dim] // unit)
        tail = limit(case.frame, dim, count, unit, nest.loops)
        for core, trip, start in walk(case.frame):
            begin, size = case.frame.ranges[core][dim]
            rest = min(nest.tile[dim], begin + size - start[dim])
            assert left(tail, count, core, trip) == -(-rest // unit)


@given(cases())
@settings(max_examples=200, deadline=None)
def test_a_limit_beyond_the_part_of_a_core_leaves_nothing(case: Case) -> None:
    """Also for loops over dimensions that the instruction does not iterate."""
    nest, frame = case.frame.nest, case.frame
    alone = [d for d in nest.loops if d != nest.stick]
    counts = tuple(3 for _ in alone)
    limits = with_tails(frame, alone, counts, [None] * len(alone), nest.loops, range(len(alone)))
    for core, ranges in enumerate(frame.ranges):
        if not all(n for _, n in ranges):
            continue
        for trip in np.ndindex(*[nest.trips(d) for d in nest.loops]):
            done = dict(zip(nest.loops, trip, strict=True))
            alive = all(done[d] * nest.tile[d] < ranges[d][1] for d in alone)
            steps = [left(t, 3, core, tuple(trip)) for t in limits]
            assert np.prod(steps) == (3 ** len(alone) if alive else 0)


@given(cases())
@settings(max_examples=60, deadline=None)
def test_borders_let_pass_what_lies_inside_the_tensor(case: Case) -> None:
    nest = case.frame.nest
    for row, extent in zip(case.map, case.shape, strict=True):
        offset, coefs = row
        if coefs[nest.stick]:
            continue
        dims = [d for d in range(len(coefs)) if coefs[d] or d % 2]
        guard = border(row, case.frame, extent, [coefs[d] for d in dims], nest.loops)
        for core, trip, start in walk(case.frame):
            ends = [s + n for s, n in case.frame.ranges[core]]
            sizes = [min(nest.tile[d], ends[d] - start[d]) for d in dims]
            for step in np.ndindex(*sizes):
                moved = sum(coefs[d] * i for d, i in zip(dims, step, strict=True))
                at = offset + sum(c * s for c, s in zip(coefs, start, strict=True)) + moved
                ok = guard is None or passes(guard, core, trip, tuple(step))
                assert ok == (0 <= at < extent)


@given(cases(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_addresses_are_where_the_layout_says(case: Case, resident: bool) -> None:
    """Base, loop and iteration strides together give the stick of every element, in the whole
    tensor or in each core's box of it."""
    frame, nest = case.frame, case.frame.nest
    corner = [10**9] * len(case.map)
    far = [0] * len(case.map)
    for _, _, start in walk(frame):
        last = [s + t - 1 for s, t in zip(start, nest.tile, strict=True)]
        for t, (offset, coefs) in enumerate(case.map):
            ends = [
                offset + sum(c * (s if (c > 0) == (which == 0) else e)
                             for c, s, e in zip(coefs, start, last, strict=True))
                for which in (0, 1)
            ]  # fmt: skip
            corner[t], far[t] = min(corner[t], *ends), max(far[t], *ends)
    unit = [GROUP if t == case.stick else 1 for t in range(len(far))]
    corner = [c // u * u for c, u in zip(corner, unit, strict=True)]
    shape = tuple(f - c + 1 for f, c in zip(far, corner, strict=True))
    layout = Layout.stick(shape, 16, case.stick)
    box = tuple((c, n) for c, n in zip(corner, shape, strict=True))
    along = strides_along(layout)
    boxes = [box] * frame.cores
    m = case.map
    if not resident:  # the tensor itself begins at coordinate 0
        m = tuple((o - c, k) for (o, k), c in zip(m, corner, strict=True))
    start_at = base(m, layout, frame, along, 40, boxes if resident else None)
    dims = [(d, GROUP if d == nest.stick else 1) for d in range(len(nest.extents))]
    steps = kernel_strides(m, layout, dims, along)
    per_trip = loop_strides(m, layout, nest, nest.loops, along)
    for core, trip, start in walk(frame):
        sizes = [-(-t // u) for t, (_, u) in zip(nest.tile, dims, strict=True)]
        for i in [(0,) * len(sizes), tuple(n - 1 for n in sizes)]:
            kernel = [s + k * u for s, k, (_, u) in zip(start, i, dims, strict=True)]
            point = [
                o + sum(c * x for c, x in zip(coefs, kernel, strict=True)) - first
                for (o, coefs), first in zip(case.map, corner, strict=True)
            ]
            _, _, (stick,), _ = layout.locate([point])
            got = core_value(start_at, core) + sum(a * b for a, b in zip(i, steps, strict=True))
            got += sum(a * b for a, b in zip(trip, per_trip, strict=False))
            assert got == 40 + stick


def test_a_loop_that_nothing_can_end_is_refused() -> None:
    nest = nest_of((5,), (2,), (1,), (0,), [((0, (1,)),)])
    with pytest.raises(PassError) as caught:
        with_tails(Frame(nest, 2), [0], (1,), [Limit(3)], (0,), [0])
    assert str(caught.value) == (
        "codegen: k0 has no dimension left to end the loop over d0 with; divide it evenly over the "
        "cores (from unknown)"
    )


def test_numbers_and_masks_that_all_cores_share() -> None:
    assert num([4, 4, 4]) == 4
    assert num([4, 5, 4]) == (4, 5, 4)
    assert mask_of([0, 2], 3) == 0b101
    assert mask_of([0, 1, 2], 3) == 0
