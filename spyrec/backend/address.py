"""Addresses of tiles: from affine maps, layouts and per-core ranges to strides, bases, limits and guards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spyrec.ir.errors import PassError
from spyrec.ir.layout import Layout
from spyrec.passes.kernel import GROUP, Box, Map, Nest
from spyrec.sim.isa import Guard, Limit, Num


def num(values: Sequence[int]) -> Num:
    """One number when all cores agree, else one for each."""
    first = values[0]
    return int(first) if all(v == first for v in values) else tuple(int(v) for v in values)


@dataclass(frozen=True)
class Frame:
    """A kernel on the machine: its nest, the cores that run it and each core's ranges (sizes 0 when idle)."""

    nest: Nest
    cores: int

    @property
    def ranges(self) -> tuple[Box, ...]:
        mine = self.nest.core_ranges
        return mine + (tuple((0, 0) for _ in self.nest.extents),) * (self.cores - len(mine))

    @property
    def active(self) -> int:
        """Mask of the cores that have work; 0 when all have."""
        mask = sum(1 << c for c, r in enumerate(self.ranges) if all(n for _, n in r))
        return 0 if mask == (1 << self.cores) - 1 else mask

    def level(self, dim: int, path: Sequence[int]) -> int:
        return list(path).index(dim)


def unit_of(layout: Layout, dim: int) -> int:
    """Elements in one address step along a tensor dimension."""
    return GROUP if dim == layout.stick_dim else 1


def strides_along(layout: Layout) -> tuple[int, ...]:
    """Sticks per step of each dimension; 0 where the dimension has one step only."""
    out = []
    for d, extent in enumerate(layout.shape):
        steps = -(-extent // unit_of(layout, d))
        out.append(layout.dim_stride(d) if steps > 1 else 0)
    return tuple(out)


def step_units(m: Map, layout: Layout, tensor_dim: int, amount: int, dim: int) -> int:
    """Address steps along ``tensor_dim`` when kernel dimension ``dim`` advances by ``amount`` elements."""
    coef = m[tensor_dim][1][dim]
    return coef * amount // unit_of(layout, tensor_dim) if coef else 0


def kernel_strides(m: Map, layout: Layout, dims: Sequence[tuple[int, int]], strides: Sequence[int]) -> tuple[int, ...]:
    """Sticks per iteration step for each ``(kernel dim, elements per step)``."""
    return tuple(
        sum(step_units(m, layout, t, amount, d) * strides[t] for t in range(len(m))) for d, amount in dims
    )


def loop_strides(m: Map, layout: Layout, nest: Nest, path: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Sticks per trip of each loop on the path."""
    return kernel_strides(m, layout, [(d, nest.tile[d]) for d in path], strides)


def origins(m: Map, frame: Frame, tensor_dim: int) -> list[int]:
    """First coordinate along a tensor dimension that each core's first trip touches (may be negative)."""
    offset, coefs = m[tensor_dim]
    return [offset + sum(c * r[d][0] for d, c in enumerate(coefs)) for r in frame.ranges]


def base(m: Map, layout: Layout, frame: Frame, strides: Sequence[int], start: int, boxes: Sequence[Box] | None) -> Num:
    """Address of each core's first tile: within the whole tensor, or within the core's box of it."""
    total = [start] * frame.cores
    for t in range(len(m)):
        unit = unit_of(layout, t)
        for c, o in enumerate(origins(m, frame, t)):
            at = o - (boxes[c][t][0] if boxes is not None else 0)
            total[c] += at // unit * strides[t]
    return num(total)


def limit(frame: Frame, dim: int, count: int, unit: int, path: Sequence[int]) -> Limit | None:
    """The tail of a kernel dimension counted in ``unit`` elements; None when every trip is full on every core.

    A looped dimension that is folded over lanes and ends inside a group keeps its limit: the machine counts
    the elements of ``k_valid`` and ``lane_valid`` through the limit's loops.
    """
    nest = frame.nest
    sizes = [-(-r[dim][1] // unit) for r in frame.ranges]
    looped = dim in path
    step = nest.tile[dim] // unit if looped else 0
    trips = nest.trips(dim) if looped else 1
    live = [s for s in sizes if s]
    counted = unit > 1 and trips > 1 and dim not in nest.parallel and nest.extents[dim] % unit
    if not counted and all(s - step * (trips - 1) >= count for s in live):
        return None
    loops = tuple(step if d == dim else 0 for d in path)
    return Limit(num([s or min(live, default=0) for s in sizes]), loops if any(loops) else ())


def with_tails(
    frame: Frame, dims: Sequence[int], counts: Sequence[Num], limits: Sequence[Limit | None], path: Sequence[int],
    free: Sequence[int],
) -> list[Limit | None]:
    """The limits of an instruction, so that it also does nothing on trips beyond a core's part of ``dims``: looped
    dimensions that it does not iterate.

    For each one of the positions ``free`` that has no limit takes its count times the trips left. PassError when
    none is left.
    """
    out = list(limits)
    for d in dims:
        tail = limit(frame, d, 1, frame.nest.tile[d], path)
        if tail is None:
            continue
        at = next((i for i in free if out[i] is None and isinstance(counts[i], int)), None)
        if at is None:
            raise PassError(
                f"codegen: {frame.nest.name} has no dimension left to end the loop over {frame.nest.dim_names[d]} with; "
                f"divide it evenly over the cores (from {frame.nest.op.loc})"
            )
        count = counts[at]
        assert isinstance(count, int)
        sizes = tail.start if isinstance(tail.start, tuple) else (tail.start,)
        out[at] = Limit(num([n * count for n in sizes]), tuple(n * count for n in tail.loops))
    return out


def border(
    m: Map, frame: Frame, tensor_dim: int, extent: int, dims: Sequence[int], path: Sequence[int], window: bool = False,
) -> Guard | None:
    """Bounds test along a tensor dimension; None when no trip on any core leaves the tensor.

    ``dims``: the instruction's iteration dimensions as kernel dimensions; with ``window`` it iterates the tensor
    dimension itself, whose place in the iteration is given by ``dims == [-1, tensor_dim, ...]`` entries.
    """
    nest = frame.nest
    offset, coefs = m[tensor_dim]
    lowest = min(origins(m, frame, tensor_dim))
    highest = max(
        offset + sum(c * (r[d][0] + max(0, r[d][1] - 1)) for d, c in enumerate(coefs)) for r in frame.ranges
    )
    if lowest >= 0 and highest < extent:
        return None
    loops = tuple(coefs[d] * nest.tile[d] for d in path)
    strides = tuple(int(d == tensor_dim) for d in dims) if window else tuple(coefs[d] if d >= 0 else 0 for d in dims)
    return Guard(num(origins(m, frame, tensor_dim)), extent, strides, loops if any(loops) else ())
