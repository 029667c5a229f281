"""What each instruction is meant to do, as coordinates of values: from affine maps, layouts and the
cores' ranges, never from an address, so that it tells a wrong address from a right one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from spyrec.ir.arrange import resized
from spyrec.ir.core import Value
from spyrec.ir.digits import Axis
from spyrec.ir.layout import Layout
from spyrec.passes.kernel import Map, Nest
from spyrec.sim.isa import Affine, Claim, Extent, Num, Tensor

from .address import Frame, num

Point = tuple[int, ...]


@dataclass
class Ledger:
    """The values that the claims of one kernel name: ``bound`` by each launch, or ``tiles``."""

    bound: list[Value] = field(default_factory=list)
    tiles: list[Tensor] = field(default_factory=list)

    def tensor(self, v: Value) -> int:
        """The number of an operand or a result of a kernel."""
        if v not in self.bound:
            self.bound.append(v)
        return self.bound.index(v)

    def tile(self, layout: Layout, m: Map, extents: Sequence[int]) -> int:
        """The number of a new value that only this kernel knows: all that tiles of ``layout`` hold
        in the course of it, ``m`` being its coordinates."""
        shape = [
            1 + offset + sum(abs(c) * (n - 1) for c, n in zip(coefs, extents, strict=True))
            for offset, coefs in m
        ]
        self.tiles.append(tensor_of("", resized(layout, shape)))
        return -len(self.tiles)


def tensor_of(name: str, layout: Layout) -> Tensor:
    """A value as claims see it."""
    whole = layout.whole()
    return Tensor(name, whole.shape, whole.stick_dim, _digits(whole, "mem"), _digits(whole, "lane"))


def _digits(layout: Layout, axis: Axis) -> tuple[tuple[int, int, int, int], ...]:
    found: list[tuple[int, int, int, int]] = []
    weight = 1
    for digit in reversed([g for g in layout.digits if g.axis == axis]):
        found.append((digit.dim, digit.size, digit.stride, weight))
        weight *= digit.size
    return tuple(reversed(found))


def second_stick(layout: Layout) -> Point:
    """From the first to the second stick of a group of wide elements."""
    digit = [g for g in layout.digits if g.axis == "mem"][-1]
    return tuple(digit.stride if t == digit.dim else 0 for t in range(len(layout.shape)))


@dataclass(frozen=True)
class Turns:
    """How often a tile is made: anew in each trip of the loops ``path``, whose trip counts are
    ``trips``, in ``steps`` steps of adding up."""

    path: tuple[int, ...] = ()
    trips: tuple[int, ...] = ()
    steps: int = 1

    def at(self, path: Sequence[int], start: Num, inner: Sequence[int] = ()) -> Affine:
        """After ``start`` steps, and one more with each trip of the loops ``path`` beyond ours, of
        which ``inner`` are the trip counts."""
        loops, weight = [0] * len(path), 1
        for i in reversed(range(len(inner))):
            loops[len(self.path) + i] = weight
            weight *= inner[i]
        weight = self.steps + 2  # none, each of the steps, and sums passed on
        for i in reversed(range(len(self.path))):
            loops[i] = weight
            weight *= self.trips[i]
        return Affine(start, (), _short(loops))


def place_of(
    m: Map, frame: Frame, dims: Sequence[tuple[int, int]], path: Sequence[int]
) -> tuple[Affine, ...]:
    """The coordinates ``m`` at each core's first iteration point, and how they move: ``dims`` are
    (kernel dimension, elements per step), the loops ``path`` move by whole tiles."""
    pace = frame.nest.pace
    found = []
    for offset, coefs in m:
        start = num([
            offset + sum(c * first for c, (first, _) in zip(coefs, box, strict=True))
            for box in frame.ranges
        ])  # fmt: skip
        loops = [coefs[d] * pace[d] for d in path]
        found.append(Affine(start, tuple(coefs[d] * n for d, n in dims), _short(loops)))
    return tuple(found)


def window_of(
    m: Map, frame: Frame, steps: Sequence[Point], path: Sequence[int]
) -> tuple[Affine, ...]:
    """``place_of`` for an iteration over the tensor's own dimensions; ``steps``: what a step along
    each dimension of the instruction adds to the coordinates."""
    return tuple(
        Affine(a.start, tuple(step[t] for step in steps), a.loops)
        for t, a in enumerate(place_of(m, frame, (), path))
    )


def extents_of(
    frame: Frame, dims: Sequence[tuple[int, int]], path: Sequence[int]
) -> tuple[Extent, ...]:
    """How far an iteration over (kernel dimension, elements per step) goes: to the end of the tile
    and of the core's part."""
    nest: Nest = frame.nest
    return tuple(
        Extent(
            num([box[d][1] for box in frame.ranges]), n, max(nest.tile[d], 1),
            _short([nest.pace[d] if e == d else 0 for e in path]),
        )
        for d, n in dims
    )  # fmt: skip


ONCE = Extent(1, 1, 1)
"""A dimension that is not there."""


@dataclass(frozen=True)
class Course:
    """Coordinates of an unrolled transfer: each core's ``start`` and what a ``step`` along each
    iteration dimension adds."""

    tensor: int
    start: tuple[Point, ...]
    steps: tuple[Point, ...]

    def claim(self) -> Claim:
        return Claim(self.tensor, tuple(
            Affine(num([point[t] for point in self.start]), tuple(step[t] for step in self.steps))
            for t in range(len(self.start[0]))
        ))  # fmt: skip

    def moved(self, steps: Sequence[int], dropped: int) -> Course:
        """From ``steps`` along dimensions ``dropped``, ``dropped + 1``, ... on, without these."""
        gone = self.steps[dropped : dropped + len(steps)]
        kept = self.steps[:dropped] + self.steps[dropped + len(steps) :]
        by = [
            sum(n * step[t] for n, step in zip(steps, gone, strict=True))
            for t in range(len(self.start[0]))
        ]
        start = (tuple(a + b for a, b in zip(point, by, strict=True)) for point in self.start)
        return Course(self.tensor, tuple(start), kept)


def counted(counts: Sequence[Num]) -> tuple[Extent, ...]:
    """Extents of an unrolled transfer."""
    return tuple(Extent(n, 1, max(1, n if isinstance(n, int) else max(n))) for n in counts)


def _short(loops: Sequence[int]) -> tuple[int, ...]:
    return tuple(loops) if any(loops) else ()
