"""The arithmetic of `kernel` ops: an affine nest of dimensions, cut over cores and into tiles.

A kernel's attributes: ``name``, ``kind``, ``dims`` ((name, extent), ...), ``maps`` (one affine map
per operand), ``out_maps`` (one per result); later ``parts``, ``core_order``, ``grains``,
``buffers``, ``tile``, ``loops``, ``keep``, ``finish``,
``ahead``. An affine map is a tuple with one ``(offset, coefs)`` per tensor
dimension, ``coefs`` having one entry per kernel dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any

from .core import Op
from .digits import Whole
from .layout import split_points

Row = tuple[int, tuple[int, ...]]
Map = tuple[Row, ...]
Range = tuple[int, int]  # start, size
Box = tuple[Range, ...]

FACTORS = 2  # operands of a contract kernel that are multiplied; the others come in at the end
GROUP = 64  # elements the vector unit and the matrix unit's columns handle together


@dataclass(frozen=True)
class Nest:
    """A kernel op seen as an affine nest.

    ``stick`` is the kernel dimension that runs along the lanes of the results; ``k`` the one along
    the lanes of the matrix unit's first operand (contract only, else -1).
    """

    op: Op

    @cached_property
    def name(self) -> str:
        return str(self.op.attrs["name"])

    @cached_property
    def kind(self) -> str:
        return str(self.op.attrs["kind"])

    @cached_property
    def dim_names(self) -> tuple[str, ...]:
        return tuple(str(d[0]) for d in self._dims)

    @cached_property
    def extents(self) -> tuple[int, ...]:
        return tuple(int(d[1]) for d in self._dims)

    @cached_property
    def _dims(self) -> tuple[tuple[str, int], ...]:
        return self.op.attrs["dims"]  # type: ignore[return-value]

    @cached_property
    def maps(self) -> tuple[Map, ...]:
        return self.op.attrs["maps"]  # type: ignore[return-value]

    @cached_property
    def out_maps(self) -> tuple[Map, ...]:
        return self.op.attrs["out_maps"]  # type: ignore[return-value]

    @cached_property
    def parallel(self) -> frozenset[int]:
        """Dimensions that index a result: they may be divided among cores."""
        rows = [coefs for m in self.out_maps for _, coefs in m]
        return frozenset(d for coefs in rows for d, c in enumerate(coefs) if c)

    @cached_property
    def rank(self) -> int:
        """With how many dimensions the shapes inside are aligned at their ends: all of a vector
        kernel, of others those of the results."""
        if self.kind == "vec":
            return len(self.extents)
        return max(len(m) for m in self.out_maps)

    @cached_property
    def weights(self) -> frozenset[int]:
        """Operands that are constants: they can be loaded before the kernel's turn comes."""
        return frozenset(self.op.attrs.get("weights", ()))  # type: ignore[arg-type]

    @cached_property
    def whole(self) -> frozenset[int]:
        """Dimensions neither divided nor tiled: a vec kernel reduces over them and reuses the
        result."""
        return frozenset(self.op.attrs.get("whole", ()))  # type: ignore[arg-type]

    @cached_property
    def stick(self) -> int:
        return int(self.op.attrs.get("stick", -1))  # type: ignore[arg-type]

    @cached_property
    def k(self) -> int:
        return int(self.op.attrs.get("k", -1))  # type: ignore[arg-type]

    @cached_property
    def parts(self) -> tuple[int, ...]:
        return self.op.attrs.get("parts", tuple(1 for _ in self.extents))  # type: ignore[return-value]

    @cached_property
    def core_order(self) -> tuple[int, ...]:
        """Divided dimensions, slowest core digit first."""
        return self.op.attrs.get("core_order", tuple(range(len(self.extents))))  # type: ignore[return-value]

    @cached_property
    def tile(self) -> tuple[int, ...]:
        return self.op.attrs.get("tile", self.extents)  # type: ignore[return-value]

    @cached_property
    def loops(self) -> tuple[int, ...]:
        """Dimensions with a loop, outermost first."""
        return self.op.attrs.get("loops", ())  # type: ignore[return-value]

    @cached_property
    def buffers(self) -> int:
        """Slots of the buffers that tiles stream through: with two one is filled while the other is
        in use; with one the trips of a core do not overlap."""
        return int(self.op.attrs.get("buffers", 2))  # type: ignore[arg-type]

    @cached_property
    def keep(self) -> frozenset[int]:
        """Factors of a contract kernel whose tiles stay in the scratchpad once they are there: each
        is loaded on the first trip only of the loops along which it does not vary."""
        return frozenset(self.op.attrs.get("keep", ()))  # type: ignore[arg-type]

    @cached_property
    def held(self) -> frozenset[int]:
        """Factors that stay, and that the kernel before has left in the very same places."""
        return frozenset(self.op.attrs.get("held", ()))  # type: ignore[arg-type]

    def kept(self, operand: int) -> tuple[int, tuple[int, ...]]:
        """How many tiles of an operand stay in the scratchpad, and the loops on whose first trip
        alone it is loaded; (0, ()) when its tiles stream through."""
        loops, m = self.loops, self.maps[operand]
        tiles = kept_trips(m, loops, [self.trips(d) for d in loops]) if operand in self.keep else 0
        return tiles, again(m, loops) if tiles else ()

    @cached_property
    def overlap(self) -> str:
        """What trips of a core do while another one works: "all" there is, or only "loads": a
        trip's arithmetic waits until the results of the trip before have left."""
        return str(self.op.attrs.get("overlap", "all"))

    @cached_property
    def cores(self) -> int:
        n = 1
        for p in self.parts:
            n *= p
        return n

    def grain(self, dim: int) -> int:
        """A division of ``dim`` falls on multiples of this many elements."""
        grains = self.op.attrs.get("grains")
        if grains:
            return int(grains[dim])  # type: ignore[index]
        groups = [r.type.layout.group for r in self.op.results if r.type.layout]
        return max(self.step(dim), *groups) if dim == self.stick and groups else self.step(dim)

    def step(self, dim: int) -> int:
        """Elements of ``dim`` that an instruction takes at a time: groups of lanes of the results,
        and of the matrix unit's first operand."""
        layout = self.op.operands[0].type.layout if dim == self.k else None
        return layout.group if layout else GROUP if dim in (self.stick, self.k) else 1

    @cached_property
    def finish(self) -> tuple[int, ...]:
        """The tile in which a core ends each tile of a contract kernel's results: the last elements
        of the inner dimension are multiplied a piece of the columns at a time, so that one piece is
        drained and stored while the next is multiplied; () when all go through the loop."""
        return self.op.attrs.get("finish", ())  # type: ignore[return-value]

    @cached_property
    def ahead(self) -> int:
        """Slots of the buffers that the factors of a contract kernel stream through: how many tiles
        are there, the one that is multiplied among them."""
        return int(self.op.attrs.get("ahead", self.buffers))  # type: ignore[arg-type]

    @cached_property
    def ending(self) -> int:
        """Tiles along the inner dimension that are multiplied piece by piece."""
        return -(-self.finish[self.k] // self.tile[self.k]) if self.finish else 0

    @cached_property
    def pieces(self) -> tuple[Nest, ...]:
        """The nests that end a tile, piece by piece: their ``tile`` has fewer columns, their ranges
        begin where the piece does and trips move by our tiles (``pace``)."""
        width, most = self.finish[self.stick], self.tile[self.stick]
        return tuple(self.piece(at, width) for at in range(0, most, width))

    def piece(self, at: int, width: int) -> Nest:
        """One of the ``pieces``: so many columns from column ``at`` of a tile on."""
        tile, first = list(self.tile), [0] * len(self.extents)
        tile[self.stick], first[self.stick] = width, at
        first[self.k] = self.local[self.k] - self.finish[self.k]
        return Nest(self.op.with_attrs(
            tile=tuple(tile), pace=self.tile, first=tuple(first), finish=()
        ))  # fmt: skip

    @cached_property
    def pace(self) -> tuple[int, ...]:
        """By how many elements a trip moves on: a tile, but for a piece of one."""
        return self.op.attrs.get("pace", self.tile)  # type: ignore[return-value]

    @cached_property
    def core_ranges(self) -> tuple[Box, ...]:
        """For each core the (start, size) of every dimension."""
        first: tuple[int, ...] = self.op.attrs.get("first", ())  # type: ignore[assignment]
        if not first:
            return self._parts
        return tuple(
            tuple((s + f, max(0, n - f)) for (s, n), f in zip(box, first, strict=True))
            for box in self._parts
        )

    @cached_property
    def _parts(self) -> tuple[Box, ...]:
        grains = tuple(self.grain(d) for d in range(len(self.extents)))
        return _core_ranges(self.extents, self.parts, grains, self.core_order)

    @property
    def summed(self) -> frozenset[int]:
        """Dimensions folded into an accumulator: their loops lie inside all others."""
        if self.kind in ("move", "gather"):
            return frozenset()
        return frozenset(range(len(self.extents))) - self.parallel - self.whole

    @cached_property
    def terms(self) -> int:
        """Neighbouring cores that hold a term of each result, the last of which gets the sum and
        finishes it; 1 when no summed dimension is divided. Their digits are the fastest."""
        return prod(self.parts[d] for d in self.summed)

    @cached_property
    def finishing(self) -> tuple[Box, ...]:
        """``core_ranges`` of the cores that finish a result; empty on the others."""
        idle = tuple((0, 0) for _ in self.extents)
        last = self.terms - 1
        return tuple(
            ranges if core % self.terms == last else idle
            for core, ranges in enumerate(self.core_ranges)
        )

    def reading(self, operand: int) -> tuple[Box, ...]:
        """The ranges over which each core reads an operand: all multiply, some finish."""
        return self.core_ranges if operand < FACTORS else self.finishing

    @cached_property
    def local(self) -> tuple[int, ...]:
        """The largest part of each dimension on any core."""
        return tuple(max(r[d][1] for r in self._parts) for d in range(len(self.extents)))

    def least(self, dim: int) -> int:
        """The smallest part of a dimension on any core that has one."""
        return min(r[dim][1] for r in self._parts if r[dim][1])

    def trips(self, dim: int) -> int:
        """Trips of the loop over ``dim``: equal on all cores; the last may be short or empty."""
        first: tuple[int, ...] = self.op.attrs.get("first", ())  # type: ignore[assignment]
        before = first[dim] if first and dim == self.k else 0
        return max(1, -(-(self.local[dim] - before) // self.pace[dim]))


@lru_cache(maxsize=4096)
def _core_ranges(
    extents: tuple[int, ...], parts: tuple[int, ...], grains: tuple[int, ...],
    order: tuple[int, ...],
) -> tuple[Box, ...]:
    points = [split_points(e, p, g) for e, p, g in zip(extents, parts, grains, strict=True)]
    cores = 1
    for p in parts:
        cores *= p
    out = []
    for core in range(cores):
        rest, index = core, [0] * len(parts)
        for d in reversed(order):
            rest, index[d] = divmod(rest, parts[d])
        out.append(tuple(points[d][i] for d, i in enumerate(index)))
    return tuple(out)


def window(m: Map, ranges: Sequence[Range]) -> Box:
    """Bounding (start, size) per tensor dimension of an affine map over a box of kernel ranges.

    May stick out of the tensor (borders). A dimension is empty when a range it depends on is.
    """
    out = []
    for offset, coefs in m:
        lo = hi = offset
        empty = False
        for c, (start, size) in zip(coefs, ranges, strict=True):
            if c == 0:
                continue
            empty = empty or size == 0
            a, b = c * start, c * (start + size - 1)
            lo, hi = lo + min(a, b), hi + max(a, b)
        out.append((lo, 0 if empty else hi - lo + 1))
    return tuple(out)


def clip(box: Box, shape: Sequence[int]) -> Box:
    """The part of a box that lies inside a tensor."""
    out = []
    for (start, size), extent in zip(box, shape, strict=True):
        lo, hi = max(0, start), min(extent, start + size)
        out.append((lo, max(0, hi - lo)))
    return tuple(out)


def tile_shape(m: Map, tile: Sequence[Whole]) -> tuple[Whole, ...]:
    """Shape of the window a full tile touches, borders included."""
    shape: list[Any] = [1] * len(m)
    for t, (_, coefs) in enumerate(m):
        for c, n in zip(coefs, tile, strict=True):
            if c:
                shape[t] = shape[t] + abs(c) * (n - 1)
    return tuple(shape)


def spans(m: Map, dim: int) -> bool:
    """Does the tensor vary along kernel dimension ``dim``?"""
    return any(coefs[dim] for _, coefs in m)


def around(m: Map, loops: Sequence[int]) -> tuple[int, ...]:
    """Of ``loops``, outermost first, those around a tile of a tensor with map ``m``: it is loaded
    in the innermost one that it varies with."""
    depth = max((i + 1 for i, d in enumerate(loops) if spans(m, d)), default=0)
    return tuple(loops[:depth])


def again(m: Map, loops: Sequence[int]) -> tuple[int, ...]:
    """Loops around a tile in whose later trips it would be loaded once more."""
    return tuple(d for d in around(m, loops) if not spans(m, d))


def kept_trips(m: Map, loops: Sequence[int], trips: Sequence[int]) -> int:
    """Tiles that have to stay for none to be loaded twice: those of the loops inside those of
    ``again``; 0 when there are none, or others between them. ``trips``: of each loop."""
    inside = around(m, loops)
    outer = [i for i, d in enumerate(inside) if not spans(m, d)]
    if not outer or outer[-1] - outer[0] >= len(outer):
        return 0
    return prod(trips[outer[-1] + 1 : len(inside)])
