"""What tile shapes cost a matrix kernel, for cutting it into tiles and over cores alike. Each
array has an entry for every way to tile it, so that all are priced by a few operations."""

from __future__ import annotations

import math
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

from .kernel import GROUP, Map, Nest, padded, spans
from .pins import Counts, pinned, pinned_keep, pinned_loops
from .runs import STICK, buffer_sticks, sticks_and_run

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

KEPT = 0.7  # of a scratchpad that factors may take which stay there
HINDERED = 0.03  # of the shorter of work and transfers is not hidden behind the longer
LONG = 1024  # inner elements of a tile, with which stores of other tiles hold up no loads
TURN = 2  # cycles a trip of the innermost loop loses
KEEPS: tuple[Counts, ...] = ((), (0,), (0, 1), (1,))  # factors that may stay in the scratchpad


@dataclass(frozen=True, eq=False)
class Tilings:
    """Ways to tile kernels that differ in nothing but how they are cut over cores: tiles, orders
    of their loops, and factors that stay in the scratchpad. ``nest`` is any of the kernels.

    ``parts``, ``local``, ``tile`` [dimension, way]: into how many parts the cores cut it, elements
    of the largest part, and of a tile; ``order`` [place, way]: dimensions that may have a loop,
    outermost first; ``keep`` [factor, way]: whether it stays; ``away`` [end, way]: whether an
    operand, or a result, counted after them, lies in card memory; ``number`` [way]: grows, and is
    equal for ways that differ in what they keep only (or that are of one of several kernels).
    Either all kernels divide what they sum over, or none does.
    """

    nest: Nest
    parts: Ints
    local: Ints
    tile: Ints
    order: Ints
    keep: Bools
    away: Bools
    number: Ints

    def __len__(self) -> int:
        return len(self.number)

    def take(self, which: npt.NDArray[Any]) -> Tilings:
        """The ways of these numbers, or for which this is true."""
        return replace(self, **{name: getattr(self, name)[..., which] for name in ARRAYS})

    @cached_property
    def counts(self) -> Ints:
        """[place, way]: trips of each loop; 1 where there is none."""
        return np.take_along_axis(-(-self.local // self.tile), self.order, axis=0)

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

    def varies(self, m: Map) -> Bools:
        """[place, way]: is there a loop that a tensor varies along?"""
        return (self.counts > 1) & _spanned(m, self.nest)[self.order]

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
        return _sizes(self.nest.op.operands[factor], m, self.tile)[0] * self.kept_trips(m)

    def with_kept(self, room: int) -> Tilings:
        """Each way with whatever factors may stay within ``room`` bytes, none at first."""
        sizes = [self.kept_bytes(i) for i in range(FACTORS)]
        pins = pinned_keep(self.nest)
        if pins is not None:
            stay = [(size > 0) & (i in pins) for i, size in enumerate(sizes)]
            return replace(self, keep=np.array(stay))
        if self.nest.buffers == 1 or self.nest.overlap != "all":
            return self
        may = [away & (n > 0) & (n <= room) for n, away in zip(sizes, self.away, strict=False)]
        every = np.ones(len(self), np.bool_)
        both = may[0] & may[1] & (sizes[0] + sizes[1] <= room)
        choices = np.array([every, may[0], both, may[1]])
        way, choice = np.nonzero(choices.T)
        table = np.array([[i in keep for keep in KEEPS] for i in range(FACTORS)])
        return replace(self.take(way), keep=table[:, choice])


ARRAYS = ("parts", "local", "tile", "order", "keep", "away", "number")


def _spanned(m: Map, nest: Nest) -> Bools:
    """[dimension]: does a tensor vary along it?"""
    return np.array([spans(m, d) for d in range(len(nest.extents))], np.bool_)


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
    number = np.repeat(np.arange(ways), 1 + both)
    second = np.diff(number, prepend=-1) == 0
    lead = sorted(shared + outer)
    orders = (
        pinned_loops(nest, dims) for dims in ((*lead, n, *inner, k), (*lead, *inner, n, k))
    )
    columns, rest = (np.array(order)[:, None] for order in orders)
    count = len(number)
    ends = [v.type.space != "lx" and v.type.size > 1 for v in nest.op.operands]
    ends += [v.type.space != "lx" for v in nest.op.results]
    away = [end and i not in resident for i, end in enumerate(ends)]
    parts, largest, there = (
        np.repeat(np.array(x)[:, None], count, axis=1) for x in (nest.parts, local, away)
    )
    keep = np.zeros((FACTORS, count), np.bool_)
    order = np.where(second, rest, columns)
    return Tilings(nest, parts, largest, tile[:, number], order, keep, there, np.arange(count))


def _filled(ways: Tilings, d: int, device: DeviceSpec | None = None) -> Floats:
    """[way]: share of whole tiles along a dimension that a core's part fills; of the matrix unit's
    time on them with its ``device``, which takes rows a pass at a time."""
    nest = ways.nest
    unit = GROUP if d == nest.stick else nest.step(d) if d == nest.k else 1
    local, units = -(-ways.local[d] // unit), -(-ways.tile[d] // unit)
    whole, last = local // units, local % units
    if device is not None and unit == 1 and d in nest.parallel:
        units, last = padded(units, device.pt.rows), padded(last, device.pt.rows)
        local = whole * units + last
    filled: Floats = local / (units * (whole + (last > 0)))
    return filled


def _trips(ways: Tilings, device: DeviceSpec | None = None) -> Floats:
    """[place, way]: trips of each loop, the last for what it holds; 1 where there is none."""
    filled = np.ones(ways.tile.shape)
    for d in set(ways.order[:, 0].tolist()) if len(ways) else ():
        filled[d] = _filled(ways, d, device)
    trips = ways.counts * np.take_along_axis(filled, ways.order, axis=0)
    return np.where(ways.counts > 1, trips, 1.0)


def passes(alike: Ints, device: DeviceSpec) -> Ints:
    """How often what ``alike`` cores need goes over the bus: one load delivers to so many cores at
    most, of which so many take it at once."""
    loads = -(-alike // device.hbm.multicast_max)
    return loads * device.hbm.turns(-(-alike // loads))


@dataclass(frozen=True)
class Flow:
    """Cycles in which an operand comes, over the bus and through the memory unit of a core that
    loads for its group: the longer. ``fresh``: when its tiles come the first time; ``again``: once
    more; ``one``: of one tile on all cores, over the bus. All [way]."""

    fresh: Floats
    again: Floats
    one: Floats


def flow(ways: Tilings, operand: int, trips: Floats, device: DeviceSpec) -> Flow:
    """How an operand that lies in card memory comes, with so many ``trips`` [place, way]. Later
    trips of loops that it does not vary with bring whole tiles again."""
    nest, hbm = ways.nest, device.hbm
    v, m = nest.op.operands[operand], nest.maps[operand]
    size, run = _sizes(v, m, ways.tile)
    alike = np.prod(ways.parts[~_spanned(m, nest)], axis=0)
    times = passes(alike, device)
    groups = prod(ways.parts) / alike
    ticks, more = hbm.bus_ticks(size, run), hbm.again_ticks(size, run)
    one = ticks * times * groups / hbm.bytes_per_cycle
    alone = ticks * times / hbm.bytes_per_cycle + hbm.held_cycles(size)
    shared = hbm.shared_cycles(size, run, np.minimum(alike, hbm.multicast_max))
    alone = np.where(alike > 1, np.maximum(alone, shared), alone)
    varies = ways.varies(m)
    fresh = prod(np.where(varies, trips, 1.0))
    repeats = prod(np.where(ways.again(varies), ways.counts, 1)) - 1
    if operand < FACTORS:
        repeats = repeats * ~ways.keep[operand]
    slower = one + more * times * groups / hbm.bytes_per_cycle
    return Flow(np.maximum(one, alone) * fresh, np.maximum(slower, alone) * fresh * repeats, one)


def contract_costs(ways: Tilings, device: DeviceSpec) -> Floats:
    """[way]: cycles of the fullest core. Its matrix unit waits for the first tiles, then for what
    comes slower than it works: on the first trip of the innermost loop that is not summed over
    operands come that do not vary with it, later those only that come again. Tiles of more than
    half the accumulators are drained before the next begins; the last one is drained and stored at
    the end."""
    nest, hbm = ways.nest, device.hbm
    tile, trips, looped = ways.tile, _trips(ways), ways.counts > 1
    one = _work(ways, device)
    own = np.array([d in nest.parallel for d in range(len(nest.extents))], np.bool_)
    outer = looped & own[ways.order]  # the loops that are not summed over
    any_outer, turning = _innermost(ways, outer)
    any_loop, fastest = _innermost(ways, looped)
    inner = np.ones(len(ways))
    for mine, count in zip(outer, trips, strict=True):
        inner = np.where(mine, count, inner)
    first, rest, wait, late = np.zeros((4, len(ways)))
    streams = np.zeros(len(ways), np.bool_)
    for i, m in enumerate(nest.maps):
        there = ways.away[i]
        if not there.any():
            continue
        came, spanned = flow(ways, i, trips, device), _spanned(m, nest)
        fresh, once = came.fresh * there, came.one * there
        repeated = came.again * there
        if i in nest.weights:  # the first tiles come while the kernel before runs
            fresh = np.maximum(0.0, fresh - nest.buffers * once)
        spread = any_outer & spanned[turning]
        first += np.where(spread, (fresh + repeated) / inner, fresh)
        rest += np.where(spread, (fresh + repeated) * (1 - 1 / inner), repeated)
        if i < FACTORS:
            streams |= there & ~ways.keep[i] & (spanned[fastest] | ~any_loop)
        if i not in nest.weights:
            into = wait if i < FACTORS else late
            into += once
    out, piece = _stored(ways, device)
    steps = prod(np.where(outer, trips, 1.0))
    stored = out * (steps - 1)  # beside the last tile
    turned = np.minimum(stored, first + rest) * hbm.bytes_per_cycle
    stored = stored + hbm.turnaround_ticks(turned.astype(np.int64), piece) / hbm.bytes_per_cycle
    first, rest = first + stored / inner, rest + stored * (1 - 1 / inner)
    rows = prod(tile[d] for d in nest.parallel if d != nest.stick)
    groups = rows * -(-tile[nest.stick] // GROUP)
    drain = groups * _epilogue(nest, device) / device.sfp.groups_per_cycle
    tile_of_sums = groups * device.lx.group_bytes("f32")
    drain = drain + (_terms(ways) - 1) * device.ring.psum_cycles(tile_of_sums, device.clock_mhz)
    work = one * prod(_trips(ways, device))
    full = groups * 2 > device.pt.acc_groups
    work = np.where(full, work + drain * (steps - 1), work)
    left = out * hbm.bytes_per_cycle
    left = left + hbm.turnaround_ticks(left.astype(np.int64), piece)
    # at the end of a tile all cores store it and load what the next one's sums are finished with
    burst = left / hbm.bytes_per_cycle + late
    work = work + (np.maximum(0.0, late - one) + np.maximum(0.0, burst - one) * (steps - 1))
    pace = (hbm.latency_cycles + one) / nest.buffers  # a slot is loaded, used, only then loaded
    work = np.where(streams, np.maximum(work, pace * prod(trips)), work)
    work = np.maximum(work, drain * steps)
    took: Floats = np.maximum(work / inner + wait, first + one)
    took = took + np.maximum(work * (1 - 1 / inner), rest)
    took = took + HINDERED * np.minimum(work, first + rest) + drain + out
    took += TURN * prod(trips)
    return took


def _innermost(ways: Tilings, loops: Bools) -> tuple[Bools, Ints]:
    """[way]: is there any of these ``loops`` [place, way], and the dimension of the innermost."""
    last = len(loops) - 1 - np.argmax(loops[::-1], axis=0)
    return np.any(loops, axis=0), np.take_along_axis(ways.order, last[None], axis=0)[0]


def _work(ways: Tilings, device: DeviceSpec) -> Ints:
    """[way]: cycles of the matrix unit on one tile."""
    nest, tile = ways.nest, ways.tile
    rows = prod(tile[d] for d in nest.parallel if d != nest.stick)
    taps: Any = prod(nest.extents[d] for d in nest.summed - {nest.k})
    groups = -(-tile[nest.stick] // GROUP)
    a, b = (v.type.dtype.name for v in nest.op.operands[:2])
    cycles: Ints = device.mm_total_cycles(rows, taps, tile[nest.k], groups, a, b, nest.terms > 1)
    return cycles


def _epilogue(nest: Nest, device: DeviceSpec) -> int:
    """Cycles of the vector unit for a group of sums: what follows the product, or rounding."""
    after = nest.op.regions[0].ops[1:]
    return device.sfp.group_cycles(op.name for op in after)


def _stored(ways: Tilings, device: DeviceSpec) -> tuple[Floats, Ints]:
    """[way]: bus cycles in which all cores store a tile of the results, and bytes of a core's
    largest."""
    nest = ways.nest
    total, largest = np.zeros(len(ways)), np.zeros(len(ways), np.int64)
    cores, terms = prod(ways.parts), _terms(ways)
    ends = zip(nest.op.results, nest.out_maps, strict=True)
    for i, (v, m) in enumerate(ends, start=len(nest.op.operands)):
        there = ways.away[i]
        if there.any():
            size, run = _sizes(v, m, ways.tile)
            ticks = device.hbm.bus_ticks(size, run, True)
            total += ticks * cores / terms / device.hbm.bytes_per_cycle * there
            largest = np.maximum(largest, size * there)
    return total, largest


def _terms(ways: Tilings) -> Ints:
    """[way]: cores that hold a term of each result."""
    terms: Ints = np.prod(ways.parts[sorted(ways.nest.summed)], axis=0)
    return terms


def _sizes(v: Value, m: Map, tile: Ints) -> tuple[Ints, Ints]:
    """[way]: bytes of a tile of a tensor, and of its contiguous runs."""
    assert v.type.layout is not None
    shape = tile_shape(m, [*tile])
    return (
        buffer_sticks(shape, v.type.layout) * STICK,
        sticks_and_run(v.type.layout, shape)[1] * STICK,
    )


def least_costs(
    nests: Sequence[Nest], device: DeviceSpec, residents: Sequence[Collection[int]]
) -> list[float]:
    """Cycles that the best of all tile shapes takes, inner steps as small as they can be, of
    kernels that differ in nothing but how they are cut over cores, with these tensors on chip
    whatever their types say; infinitely many when none fits the accumulators."""
    room = int(KEPT * device.lx.usable_bytes)
    found = [math.inf] * len(nests)
    for partial in (False, True):  # the matrix unit has another pace for terms of sums
        cut = [i for i, nest in enumerate(nests) if (nest.terms > 1) is partial]
        each = [tilings(nests[i], device, True, residents[i]) for i in cut]
        if not any(map(len, each)):
            continue
        ways = _together(each).with_kept(room)
        least = np.full(len(cut), math.inf)
        np.minimum.at(least, ways.number, contract_costs(ways, device))
        for i, cost in zip(cut, least.tolist(), strict=True):
            found[i] = cost
    return found


def _together(each: Sequence[Tilings]) -> Tilings:
    """The ways of several kernels, with the kernel's number for their own."""
    numbered = [replace(w, number=np.full(len(w), i)) for i, w in enumerate(each)]
    joined: Any = {n: np.concatenate([getattr(w, n) for w in numbered], axis=-1) for n in ARRAYS}
    return replace(numbered[0], **joined)
