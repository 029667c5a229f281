"""The ways to tile a matrix kernel, for cutting it into tiles and over cores alike. Each array has
an entry for every way, so that all are counted and priced by a few operations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from spyrec.ir.core import Value
from spyrec.ir.digits import Ints
from spyrec.ir.tiles import FACTORS, tile_shape
from spyrec.sim.device import DeviceSpec

from .draws import draw
from .kernel import GROUP, Map, Nest, spans
from .pins import Counts, pinned, pinned_ahead, pinned_keep, pinned_loops
from .runs import STICK, buffer_sticks, sticks_and_run

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

LONG = 1024  # inner elements of a tile, with which stores of other tiles hold up no loads
KEEPS: tuple[Counts, ...] = ((), (0,), (1,), (0, 1))  # factors that may stay in the scratchpad


@dataclass(frozen=True, eq=False)
class Tilings:
    """Ways to tile kernels that differ in nothing but how they are cut over cores: tiles, orders
    of their loops, factors that stay in the scratchpad, and how tiles are ended. ``nest`` is any of
    the kernels.

    ``parts``, ``local``, ``tile`` [dimension, way]: into how many parts the cores cut it, elements
    of the largest part, and of a tile; ``order`` [place, way]: dimensions that may have a loop,
    outermost first; ``keep`` [factor, way]: whether it stays; ``away`` [end, way]: whether an
    operand, or a result, counted after them, lies in card memory; ``piece`` [2, way]: elements of
    the inner dimension and columns of the pieces in which a tile is ended, 0 when it is not so;
    ``ahead`` [way]: slots that factors stream through, 0 for as many as any buffer has;
    ``narrow`` [way]: columns of the core that has the fewest; ``number`` [way]: of the kernel, ways
    of one are neighbours; ``draws`` [3, operand, way]: how the cores draw each operand, as
    ``draws.Draw`` has it. Either all kernels divide what they sum over, or none does.
    """

    nest: Nest
    parts: Ints
    local: Ints
    tile: Ints
    order: Ints
    keep: Bools
    away: Bools
    piece: Ints
    ahead: Ints
    narrow: Ints
    number: Ints
    draws: Floats

    def __len__(self) -> int:
        return len(self.number)

    def take(self, which: npt.NDArray[Any]) -> Tilings:
        """The ways of these numbers, or for which this is true."""
        return replace(self, **{name: getattr(self, name)[..., which] for name in ARRAYS})

    @cached_property
    def counts(self) -> Ints:
        """[place, way]: trips of each loop; 1 where there is none."""
        return np.take_along_axis(-(-self.local // self.tile), self.order, axis=0)

    @property
    def own(self) -> Bools:
        """[place, way]: is it a dimension that is not summed over?"""
        nest = self.nest
        parallel = np.array([d in nest.parallel for d in range(len(nest.extents))], np.bool_)
        own: Bools = parallel[self.order]
        return own

    @property
    def ended(self) -> Bools:
        """[way]: are its tiles ended in pieces?"""
        ended: Bools = self.piece[1] > 0
        return ended

    @property
    def pieces(self) -> Ints:
        """[way]: in which a tile is ended."""
        return np.where(self.ended, -(-self.tile[self.nest.stick] // self._columns), 1)

    @property
    def pieces_tile(self) -> Ints:
        """[dimension, way]: as ``tile``, with the columns of a piece."""
        mine = np.arange(len(self.tile)) == self.nest.stick
        tile: Ints = np.where(mine[:, None], self._columns, self.tile)
        return tile

    @property
    def _columns(self) -> Ints:
        columns: Ints = np.where(self.ended, self.piece[1], self.tile[self.nest.stick])
        return columns

    def loops(self, way: int) -> Counts:
        """The dimensions with a loop, outermost first."""
        places = zip(self.order[:, way].tolist(), self.counts[:, way].tolist(), strict=True)
        return tuple(d for d, n in places if n > 1)

    def kept(self, way: int) -> Counts:
        """The factors that stay."""
        return tuple(np.flatnonzero(self.keep[:, way]).tolist())

    def tiles(self, way: int) -> Counts:
        """Elements of a tile along each dimension."""
        return tuple(self.tile[:, way].tolist())

    def finish(self, way: int) -> Counts:
        """The tile in which a tile is ended; () when it is not."""
        inner, columns = self.piece[:, way].tolist()
        tile = [*self.tiles(way)]
        tile[self.nest.k], tile[self.nest.stick] = inner, columns
        return tuple(tile) if columns else ()

    def varies(self, m: Map) -> Bools:
        """[place, way]: is there a loop that a tensor varies along?"""
        return (self.counts > 1) & spanned(m, self.nest)[self.order]

    def again(self, varies: Bools) -> Bools:
        """[place, way]: loops around a tile in whose later trips it would be loaded once more. See
        ``spyrec.ir.tiles.again``."""
        around = np.logical_or.accumulate(varies[::-1], axis=0)[::-1]
        return (self.counts > 1) & around & ~varies

    def kept_trips(self, m: Map) -> Ints:
        """Tiles that have to stay for none to be loaded twice. See
        ``spyrec.ir.tiles.kept_trips``."""
        varies = self.varies(m)
        again = self.again(varies)
        tiles = np.ones(len(self), np.int64)
        seen, between, torn = np.zeros((3, len(self)), np.bool_)
        for mine, other, count in zip(varies[::-1], again[::-1], self.counts[::-1], strict=True):
            tiles *= np.where(mine & ~seen, count, 1)
            between |= mine & seen
            torn |= other & between
            seen |= other
        return tiles * (seen & ~torn)

    def kept_bytes(self, factor: int) -> Ints:
        """Scratchpad bytes of all tiles of a factor that have to stay for none to be loaded twice;
        0 when none would be."""
        m = self.nest.maps[factor]
        return tile_sizes(self.nest.op.operands[factor], m, self.tile)[0] * self.kept_trips(m)

    def with_kept(self, room: int) -> Tilings:
        """Each way with whatever factors may stay within ``room`` bytes, none at first."""
        size = [self.kept_bytes(i) for i in range(FACTORS)]
        pins = pinned_keep(self.nest)
        if pins is not None:
            stay = [(n > 0) & (i in pins) for i, n in enumerate(size)]
            return replace(self, keep=np.array(stay))
        if self.nest.buffers == 1 or self.nest.overlap != "all":
            return self
        may = [away & (n > 0) & (n <= room) for n, away in zip(size, self.away, strict=False)]
        every = np.ones(len(self), np.bool_)
        both = may[0] & may[1] & (size[0] + size[1] <= room)
        choices = np.array([every, may[0], may[1], both])
        way, choice = np.nonzero(choices.T)
        table = np.array([[i in keep for keep in KEEPS] for i in range(FACTORS)])
        return replace(self.take(way), keep=table[:, choice])


ARRAYS = (
    "parts", "local", "tile", "order", "keep", "away", "piece", "ahead", "narrow", "number",
    "draws",
)  # fmt: skip


def spanned(m: Map, nest: Nest) -> Bools:
    """[dimension]: does a tensor vary along it?"""
    return np.array([spans(m, d) for d in range(len(nest.extents))], np.bool_)


def tile_sizes(v: Value, m: Map, tile: Ints) -> tuple[Ints, Ints]:
    """[way]: bytes of a tile of a tensor, and of its contiguous runs."""
    assert v.type.layout is not None
    shape = tile_shape(m, [*tile])
    return (
        buffer_sticks(shape, v.type.layout) * STICK,
        sticks_and_run(v.type.layout, shape)[1] * STICK,
    )


def _cuts(n: int, grain: int = 1) -> list[int]:
    """Sizes worth trying: n cut into 1, 2, 3, 4, 6, 8, ... equal parts, in multiples of the grain.
    """
    units = -(-n // grain)
    sizes = {-(-units // p) for p in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512)} | {
        min(units, 8)
    }
    return [min(n, s * grain) for s in sorted(sizes, reverse=True)]


def tilings(
    nest: Nest, device: DeviceSpec, coarse: bool = False, resident: Collection[int] = ()
) -> Tilings:
    """Tile shapes of a matrix kernel whose output fits the accumulators, each with the orders of
    its loops; no factor stays. ``coarse``: only two steps along the inner dimension, a long and
    the shortest. ``resident``: operands, and results counted after them, that are on chip whatever
    their types say."""
    n, k, local = nest.stick, nest.k, nest.local
    shared = [d for d in nest.parallel if spans(nest.maps[1], d) and d != n]
    rows = [d for d in sorted(nest.parallel) if d != n and d not in shared]
    outer, inner = rows[:-2], rows[-2:]
    pins = pinned(nest, "tile")

    def cuts(d: int, grain: int = 1) -> list[int]:
        return [pins[d]] if pins[d] else _cuts(local[d], grain)

    def few(sizes: list[int]) -> list[int]:
        """A long one that leaves room for others, and the least."""
        return sorted({max((s for s in sizes if s <= LONG), default=sizes[-1]), sizes[-1]})

    sizes = {n: cuts(n, nest.grain(n)), **{d: cuts(d) for d in reversed(inner)}}
    steps = cuts(k, nest.step(k))
    sizes[k] = few(steps) if coarse else steps
    grid = dict(zip(sizes, np.meshgrid(*sizes.values(), indexing="ij"), strict=True))
    fits = -(-grid[n] // GROUP) * prod(grid[d] for d in inner) <= device.pt.acc_groups
    ways = np.count_nonzero(fits)
    tile = np.repeat(np.array(local, np.int64)[:, None], ways, axis=1)
    tile[shared + outer] = 1
    for d, values in grid.items():
        tile[d] = values[fits]
    looped = np.array(local)[:, None] > tile
    both = looped[n] & looped[inner].any(axis=0)
    shape = np.repeat(np.arange(ways), 1 + both)
    second = np.diff(shape, prepend=-1) == 0
    lead = sorted(shared + outer)
    orders = (
        pinned_loops(nest, dims) for dims in ((*lead, n, *inner, k), (*lead, *inner, n, k))
    )
    columns, rest = (np.array(order)[:, None] for order in orders)
    count = len(shape)
    ends = [v.type.space != "lx" and v.type.size > 1 for v in nest.op.operands]
    ends += [v.type.space != "lx" for v in nest.op.results]
    away = [end and i not in resident for i, end in enumerate(ends)]
    parts, largest, there = (
        np.repeat(np.array(x)[:, None], count, axis=1) for x in (nest.parts, local, away)
    )
    drawn = [draw(nest, i, device.hbm, device.cores.count) for i in range(len(nest.maps))]
    draws = np.array([(d.bus, d.link, d.lost) for d in drawn]).T
    return Tilings(
        nest, parts, largest, tile[:, shape], np.where(second, rest, columns),
        keep=np.zeros((FACTORS, count), np.bool_), away=there,
        piece=np.zeros((2, count), np.int64), ahead=np.full(count, pinned_ahead(nest)),
        narrow=np.full(count, nest.least(n)), number=np.zeros(count, np.int64),
        draws=np.repeat(draws[..., None], count, axis=-1),
    )  # fmt: skip


def numbered(ways: Tilings, number: int) -> Tilings:
    """The ways of one of several kernels, with its number."""
    return replace(ways, number=np.full(len(ways), number))


def together(each: Sequence[Tilings]) -> Tilings:
    """The ways of each of them, one after the other."""
    joined: Any = {n: np.concatenate([getattr(w, n) for w in each], axis=-1) for n in ARRAYS}
    return replace(each[0], **joined)
