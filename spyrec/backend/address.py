"""Addresses of tiles: from affine maps, layouts and per-core ranges to strides, bases, limits and
guards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from spyrec.ir.errors import PassError
from spyrec.ir.layout import Layout
from spyrec.passes.kernel import Box, Map, Nest, Row
from spyrec.sim.isa import Guard, Limit, Num


def num(values: Sequence[int]) -> Num:
    """One number when all cores agree, else one for each."""
    first = values[0]
    return int(first) if all(v == first for v in values) else tuple(int(v) for v in values)


def mask_of(chosen: Iterable[int], cores: int) -> int:
    """An instruction's predicate: a bit for each core that executes it, 0 when all ``cores`` do."""
    mask = sum(1 << c for c in chosen)
    return 0 if mask == (1 << cores) - 1 else mask


def padded_ranges(nest: Nest, cores: int, finishing: bool = False) -> tuple[Box, ...]:
    """The part of each of ``cores`` cores; of size 0 on those beyond the kernel's own and, when
    ``finishing``, on those that only compute terms."""
    idle = tuple((0, 0) for _ in nest.extents)
    own = nest.finishing if finishing else nest.core_ranges
    return own + (idle,) * (cores - len(own))


@dataclass(frozen=True)
class Frame:
    """A kernel on the machine: its nest, the cores that run it and each core's ranges.
    ``finishing``: as far as its results are finished, once the terms of a K-split are added up."""

    nest: Nest
    cores: int
    finishing: bool = False

    @cached_property
    def ranges(self) -> tuple[Box, ...]:
        """Per core the (start, size) of every kernel dimension; size 0 when idle."""
        return padded_ranges(self.nest, self.cores, self.finishing)

    @cached_property
    def active(self) -> int:
        """Mask of the cores that have work; 0 when all have."""
        return mask_of((c for c, r in enumerate(self.ranges) if all(n for _, n in r)), self.cores)


def unit_of(layout: Layout, dim: int) -> int:
    """Elements in one address step along a tensor dimension."""
    return layout.unit(dim)


def strides_along(layout: Layout, parts: int = 1) -> tuple[int, ...]:
    """Sticks per step of each dimension; 0 where the dimension has one step only, also if a step
    counts ``parts`` addresses."""
    out = []
    for d, extent in enumerate(layout.shape):
        steps = -(-extent * parts // unit_of(layout, d))
        out.append(layout.dim_stride(d) if steps > 1 else 0)
    return tuple(out)


def kernel_strides(
    m: Map, layout: Layout, dims: Sequence[tuple[int, int]], strides: Sequence[int], parts: int = 1
) -> tuple[int, ...]:
    """Address units per iteration step for each ``(kernel dim, elements per step)``; ``strides``
    are those of one address step along each tensor dimension, which counts ``parts`` units."""
    units = [unit_of(layout, t) for t in range(len(m))]
    return tuple(
        sum(
            coefs[d] * amount * parts // unit * stride
            for (_, coefs), unit, stride in zip(m, units, strides, strict=True)
            if coefs[d]
        )
        for d, amount in dims
    )


def loop_strides(
    m: Map, layout: Layout, nest: Nest, path: Sequence[int], strides: Sequence[int]
) -> tuple[int, ...]:
    """Address units per trip of each loop on the path; () when none moves the address."""
    found = kernel_strides(m, layout, [(d, nest.pace[d]) for d in path], strides)
    return found if any(found) else ()


def origins(row: Row, frame: Frame) -> list[int]:
    """First coordinate that each core's first trip touches (may be negative)."""
    offset, coefs = row
    used = [(d, c) for d, c in enumerate(coefs) if c]
    return [offset + sum(c * r[d][0] for d, c in used) for r in frame.ranges]


def base(
    m: Map, layout: Layout, frame: Frame, strides: Sequence[int], start: int,
    boxes: Sequence[Box] | None,
) -> Num:
    """Address of each core's first tile: within the whole tensor, or within the core's box of it
    when it has ``boxes``, which begin at address ``start``. A core whose box is empty may compute
    what another owns, for its own use: it has the same room for it."""
    total = [start] * frame.cores
    for t, row in enumerate(m):
        unit = unit_of(layout, t)
        for c, o in enumerate(origins(row, frame)):
            begin = 0 if boxes is None else boxes[c][t][0] if boxes[c][t][1] else o
            at = o - begin
            total[c] += at // unit * strides[t]
    return num(total)


def limit(frame: Frame, dim: int, count: int, unit: int, path: Sequence[int]) -> Limit | None:
    """The tail of a kernel dimension counted in ``unit`` elements; None when every trip has all
    ``count`` on every core.

    A looped dimension that is folded over lanes and ends inside a group keeps its limit: the
    machine counts the elements of ``k_valid`` and ``lane_valid`` through the limit's loops.
    """
    nest = frame.nest
    sizes = [-(-r[dim][1] // unit) for r in frame.ranges]
    step = nest.pace[dim] // unit if dim in path else 0
    trips = nest.trips(dim) if dim in path else 1
    counted = unit > 1 and trips > 1 and dim not in nest.parallel and nest.extents[dim] % unit
    if not counted and _full(sizes, count, step, trips):
        return None
    return shrinking(sizes, step, dim, path)


def tail(
    sizes: Sequence[int], count: int, step: int, trips: int, dim: int, path: Sequence[int]
) -> Limit | None:
    """``sizes[core]`` steps in all, ``step`` fewer with each trip of the loop over ``dim``; None
    when ``count`` are there in all of the ``trips``."""
    return None if _full(sizes, count, step, trips) else shrinking(sizes, step, dim, path)


def _full(sizes: Sequence[int], count: int, step: int, trips: int) -> bool:
    return all(s - step * (trips - 1) >= count for s in sizes if s)


def shrinking(sizes: Sequence[int], step: int, dim: int, path: Sequence[int]) -> Limit:
    """``sizes[core]`` steps in the first trip, ``step`` fewer with each of the loop over
    ``dim``."""
    live = [s for s in sizes if s]
    loops = tuple(step if d == dim else 0 for d in path)
    return Limit(num([s or min(live, default=0) for s in sizes]), loops if any(loops) else ())


def with_tails(
    frame: Frame, dims: Sequence[int], counts: Sequence[Num], limits: Sequence[Limit | None],
    path: Sequence[int], free: Sequence[int],
) -> tuple[Limit | None, ...]:
    """The limits of an instruction, so that it also does nothing on trips beyond a core's part of
    ``dims``: looped dimensions that it does not iterate.

    For each one of the positions ``free`` that has no limit takes its count times the trips left.
    PassError when none is left.
    """
    out = list(limits)
    for d in dims:
        end = limit(frame, d, 1, frame.nest.tile[d], path)
        if end is None:
            continue
        at = next((i for i in free if out[i] is None and isinstance(counts[i], int)), None)
        if at is None:
            raise PassError(
                f"codegen: {frame.nest.name} has no dimension left to end the loop over "
                f"{frame.nest.dim_names[d]} with; divide it evenly over the cores (from "
                f"{frame.nest.op.loc})"
            )
        count = counts[at]
        assert isinstance(count, int)
        sizes = end.start if isinstance(end.start, tuple) else (end.start,)
        out[at] = Limit(num([n * count for n in sizes]), tuple(n * count for n in end.loops))
    return tuple(out)


def border(
    row: Row, frame: Frame, extent: int, strides: Sequence[int], path: Sequence[int]
) -> Guard | None:
    """Bounds test along a tensor dimension of ``extent`` elements whose coordinate is ``row``; None
    when no trip on any core leaves the tensor. ``strides``: what a step of each iteration
    dimension of the instruction adds to the coordinate."""
    _, coefs = row
    starts = origins(row, frame)
    reach = [
        [c * max(0, r[d][1] - 1) for d, c in enumerate(coefs) if c] for r in frame.ranges
    ]
    lowest = min(o + sum(n for n in far if n < 0) for o, far in zip(starts, reach, strict=True))
    highest = max(o + sum(n for n in far if n > 0) for o, far in zip(starts, reach, strict=True))
    if lowest >= 0 and highest < extent:
        return None
    loops = tuple(coefs[d] * frame.nest.pace[d] for d in path)
    return Guard(num(starts), extent, tuple(strides), loops if any(loops) else ())
