"""What tile shapes cost a matrix kernel, for cutting it into tiles and over cores alike. Each
array has an entry for every way to tile it, so that all are priced by a few operations."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from spyrec.ir.digits import Ints
from spyrec.ir.tiles import FACTORS
from spyrec.sim.device import DeviceSpec

from .kernel import GROUP, Nest, padded
from .pins import pinned_ahead, pinned_finish
from .tile_ways import Bools, Floats, Tilings, numbered, spanned, tile_sizes, tilings, together

KEPT = 0.7  # of a scratchpad that factors may take which stay there
HINDERED = 0.03  # of the shorter of work and transfers is not hidden behind the longer
TURN = 2  # cycles a trip of the innermost loop loses
PIECES = (64, 128)  # columns of a piece that are tried
FAR = 1.1  # times the least price so far, what tiles at least take that are not ended in pieces
BUNCHED = 0.25  # of the tiles that all cores load at once, those that wait for one link at the end
AHEAD = (4, 8, 16)  # slots that factors may stream through, beside those that all buffers have


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
    """Cycles in which an operand comes. ``fresh``: when its tiles come the first time; ``again``:
    once more; both [2, way]: of the bus, and of the link to a half of the ring; of the memory
    unit of a core that loads for its group, if that takes longer. ``one``: of one tile on all
    cores, over the bus; ``lag``: until the last tiles have come through the link of their half,
    where they wait for one another when the bus is done [way]."""

    fresh: Floats
    again: Floats
    one: Floats
    lag: Floats


def flow(ways: Tilings, operand: int, trips: Floats, device: DeviceSpec) -> Flow:
    """How an operand that lies in card memory comes, with so many ``trips`` [place, way]. Later
    trips of loops that it does not vary with bring whole tiles again."""
    nest, hbm = ways.nest, device.hbm
    v, m = nest.op.operands[operand], nest.maps[operand]
    size, run = tile_sizes(v, m, ways.tile)
    alike = np.prod(ways.parts[~spanned(m, nest)], axis=0)
    times = passes(alike, device)
    groups = prod(ways.parts) / alike
    bus, link, lost = ways.draws[:, operand]
    ticks, more = hbm.bus_ticks(size, run) + lost * size, hbm.again_ticks(size, run)
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
    paces = np.array([bus, link])
    first, later = (np.maximum(paces * n, alone) * fresh for n in (one, slower))
    waits = (link > 0) & (_terms(ways) == 1)  # terms of sums wait for their neighbours anyway
    behind = BUNCHED * max(0.0, hbm.bytes_per_cycle / hbm.side_bytes_per_cycle - 1)
    return Flow(first, later * repeats, one, np.where(waits, behind * one, 0.0))


@dataclass(frozen=True, eq=False)
class Course:
    """How kernels go, in cycles of the fullest core: ``one`` step of the matrix unit, of which
    there are ``trips``; ``tiles`` of results, ``inner`` of them in a trip of the loops outside the
    innermost that is not summed over.

    On the first of these operands come for ``first``, on the others for ``rest``;
    ``out``: with storing a tile, ``stored`` bytes at a time; ``late``: with what its sums are
    finished with. ``wait``: for the first tiles; ``work``: of the matrix unit alone; ``drain``: of
    a tile; ``full``: it takes more than half the accumulators. ``pace``: what the loads of a step
    take at least in the slots that all buffers have, each in turn; ``lag`` as in ``Flow``, of all
    factors that stream. All [way].
    """

    one: Ints
    tiles: Floats
    inner: Floats
    first: Floats
    rest: Floats
    out: Floats
    late: Floats
    stored: Ints
    wait: Floats
    work: Floats
    drain: Floats
    full: Bools
    pace: Floats
    trips: Floats
    lag: Floats

    def take(self, which: npt.NDArray[Any]) -> Course:
        """That of the ways of these numbers."""
        return Course(*(getattr(self, field.name)[which] for field in fields(self)))


def contract_costs(ways: Tilings, device: DeviceSpec) -> Floats:
    """[way]: cycles of the fullest core. Its matrix unit waits for the first tiles, then for what
    comes slower than it works: on the first trip of the innermost loop that is not summed over
    operands come that do not vary with it, later those only that come again. Tiles of more than
    half the accumulators are drained before the next begins; the last one is drained and stored at
    the end, or what is left of it when tiles are ended in pieces."""
    return took(ways, course_of(ways, device), device)


def course_of(ways: Tilings, device: DeviceSpec) -> Course:
    """What prices are made of, however tiles are ended."""
    nest, hbm = ways.nest, device.hbm
    tile, trips, looped = ways.tile, _trips(ways), ways.counts > 1
    one = _work(ways, device)
    outer = looped & ways.own  # the loops that are not summed over
    any_outer, turning = _innermost(ways, outer)
    any_loop, fastest = _innermost(ways, looped)
    inner = np.ones(len(ways))
    for mine, count in zip(outer, trips, strict=True):
        inner = np.where(mine, count, inner)
    first, rest = np.zeros((2, 2, len(ways)))
    wait, late, lag = np.zeros((3, len(ways)))
    streams = np.zeros(len(ways), np.bool_)
    for i, m in enumerate(nest.maps):
        there = ways.away[i]
        if not there.any():
            continue
        came, along = flow(ways, i, trips, device), spanned(m, nest)
        fresh, once = came.fresh * there, came.one * there
        repeated = came.again * there
        if i in nest.weights:  # the first tiles come while the kernel before runs
            fresh = np.maximum(0.0, fresh - nest.buffers * once)
        spread = any_outer & along[turning]
        first += np.where(spread, (fresh + repeated) / inner, fresh)
        rest += np.where(spread, (fresh + repeated) * (1 - 1 / inner), repeated)
        if i < FACTORS:
            flows = there & ~ways.keep[i] & (along[fastest] | ~any_loop)
            streams |= flows
            lag += came.lag * (flows & any_loop)
        if i not in nest.weights:
            into = wait if i < FACTORS else late
            into += once
    out, stored = _stored(ways, tile, device)
    rows = prod(tile[d] for d in nest.parallel if d != nest.stick)
    groups = rows * -(-tile[nest.stick] // GROUP)
    drain = groups * _epilogue(nest, device) / device.sfp.groups_per_cycle
    tile_of_sums = groups * device.lx.group_bytes("f32")
    drain = drain + (_terms(ways) - 1) * device.ring.psum_cycles(tile_of_sums, device.clock_mhz)
    # a slot is loaded, used and only then loaded again
    pace = np.where(streams, (hbm.latency_cycles + one) / nest.buffers, 0.0)
    work: Floats = one * _product(_trips(ways, device))
    first, rest = first.max(axis=0), rest.max(axis=0)
    return Course(
        one, _product(np.where(outer, trips, 1.0)), inner, first, rest, out, late, stored, wait,
        work, drain, groups * 2 > device.pt.acc_groups, pace, _product(trips), lag,
    )  # fmt: skip


def took(ways: Tilings, course: Course, device: DeviceSpec) -> Floats:
    """[way]: cycles of a ``course`` whose tiles are ended, and whose factors stream, as ``ways``
    say."""
    nest, hbm, rate = ways.nest, device.hbm, device.hbm.bytes_per_cycle
    inner, steps, one = course.inner, course.tiles, course.one
    slots = np.where(ways.ahead > 0, ways.ahead, nest.buffers)
    window = one * np.maximum(1, slots - 1)  # of work for which tiles are there
    out, batch, drain, pieces = course.out, course.stored, course.drain, ways.pieces
    some = bool(ways.ended.any())
    if some:  # stores and what sums are finished with come while other pieces are multiplied
        out, batch = _stored(ways, ways.pieces_tile, device)
        out, switches = out * pieces, len(nest.op.results)
        switched = device.sfp.switch_cycles * pieces * switches * (switches > 1)
        drain = drain + switched * ways.ended
    stored = out * (steps - 1)  # beside the last tile
    turned = np.minimum(stored, course.first + course.rest) * rate
    stored = stored + hbm.turnaround_ticks(turned.astype(np.int64), batch) / rate
    first, rest = course.first + stored / inner, course.rest + stored * (1 - 1 / inner)
    work = np.where(course.full, course.work + drain / pieces * (steps - 1), course.work)
    left = out * rate
    left = left + hbm.turnaround_ticks(left.astype(np.int64), batch)
    # at the end of a tile all cores store it and load what the next one's sums are finished with
    burst = left / rate + course.late
    work = work + (
        np.maximum(0.0, course.late - window) + np.maximum(0.0, burst - window) * (steps - 1)
    )
    pace = course.pace * nest.buffers / slots
    work = np.maximum(np.maximum(work, pace * course.trips), drain * steps)
    begin, later = work / inner, work * (1 - 1 / inner)
    comes = first + one + np.where(inner > 1, 0.0, course.lag)
    follows = rest + np.where(inner > 1, course.lag, 0.0)
    cycles = np.maximum(begin + course.wait, comes) + np.maximum(later, follows)
    over = HINDERED * np.minimum(work, first + rest)
    last = ways.piece[0] / ways.tile[nest.k] * (1 - 1 / pieces)
    if some:  # the first piece waits for the last tiles, as far as loads are not ahead of work
        loads = course.first * inner / course.trips
        short = np.maximum(0.0, last * loads - np.maximum(0.0, begin - first)) * steps / inner
        turns = np.where(inner > 1, inner, 2.0)  # where there is one, nothing comes later
        loads = course.rest / course.trips / (1 - 1 / turns)
        slack = np.maximum(0.0, later - rest) / (turns - 1)
        missed = np.maximum(0.0, last * loads - slack) * steps * (1 - 1 / inner)
        over = over + (short + missed)
    end = np.maximum(0.0, out * (1 - 1 / pieces) - last * one)
    total: Floats = cycles + over + (drain + out) / pieces + end + TURN * course.trips
    return total


def options(ways: Tilings, device: DeviceSpec, most: int = AHEAD[-1]) -> tuple[Tilings, Floats]:
    """Each way, and after it the same with its tiles ended in pieces and factors that stream
    through up to ``most`` slots; and what they cost. Tiles that would cost far more than those
    before them, whatever their end, have no other."""
    course = course_of(ways, device)
    costs = took(ways, course, device)
    asked = pinned_finish(ways.nest) or pinned_ahead(ways.nest)
    bound = np.maximum(course.work, course.first + course.rest)
    near = np.ones(len(ways), np.bool_) if asked else bound <= FAR * _before(costs, ways.number)
    way, ends = _ends(ways, np.flatnonzero(near), course, most)
    if not len(way):
        return ways, costs
    prices = took(ends, course.take(way), device)
    if not asked:  # none costs less than its bound, so those that are far change no other's
        least = costs.copy()
        np.minimum.at(least, way, prices)
        near = bound <= FAR * _before(least, ways.number)
        way, ends, prices = way[near[way]], ends.take(near[way]), prices[near[way]]
    order = np.argsort(np.concatenate([np.arange(len(ways)), way]), kind="stable")
    return together([ways, ends]).take(order), np.concatenate([costs, prices])[order]


def _before(costs: Floats, number: Ints) -> Floats:
    """[way]: the least of the ways of its kernel that come before it."""
    least = np.full(len(costs), math.inf)
    for start, end in pairwise([*np.flatnonzero(np.diff(number, prepend=-1)), len(costs)]):
        least[start + 1 : end] = np.minimum.accumulate(costs[start : end - 1])
    return least


def _ends(ways: Tilings, which: Ints, course: Course, most: int) -> tuple[Ints, Tilings]:
    """Of these ways the numbers, and the ways to end their tiles in pieces. They leave at most as
    many steps of the inner dimension as it takes to store a tile and to load what it is finished
    with."""
    nest, pins, slots = ways.nest, pinned_finish(ways.nest), pinned_ahead(ways.nest)
    k, stick = nest.k, nest.stick
    depths = np.array([slots] if slots else [n for n in AHEAD if n <= most], np.int64)
    whole = nest.terms == 1 and nest.buffers > 1 and nest.overlap == "all" and pins != ()
    which = which[(ways.local[k] > ways.tile[k])[which]] if whole and len(depths) else which[:0]
    tile, local = ways.tile[:, which], ways.local[:, which]
    widths, trips = np.array(PIECES), -(-local[k] // tile[k])
    busy = np.maximum(course.out + course.late, course.drain)[which] / course.one[which]
    ends = np.array([np.full(len(which), 2), np.ceil(busy).astype(np.int64)])
    if pins:
        widths = np.array([pins[1] or PIECES[0]])
        ends = -(-pins[0] // tile[k])[None] if pins[0] else ends
    columns = tile[stick][:, None]
    even = (columns % widths == 0) | (columns >= local[stick][:, None])
    there = (columns - 1) // widths * widths < ways.narrow[which][:, None]  # a last piece
    fit = even & there & (widths < columns) & (widths % nest.grain(stick) == 0)
    steps = np.minimum(np.minimum(ends.T[:, None], depths[:, None]), (trips - 2)[:, None, None])
    steps = np.sort(steps, axis=-1)
    good = (steps > 1) & (np.diff(steps, prepend=0) > 0) & (trips[:, None] % depths == 0)[..., None]
    at, width, depth, end = np.nonzero(fit[:, :, None, None] & good[:, None])
    left = local[k][at] - (trips[at] - steps[at, depth, end]) * tile[k][at]
    piece = np.array([left, widths[width]])
    return which[at], replace(ways.take(which[at]), piece=piece, ahead=depths[depth])


def _product(counts: Floats) -> Floats:
    """[way]: of the ``counts`` [place, way], in the order of the places."""
    product: Floats = prod(counts)  # type: ignore[assignment]
    return product


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


def _stored(ways: Tilings, tile: Ints, device: DeviceSpec) -> tuple[Floats, Ints]:
    """[way]: bus cycles in which all cores store such a ``tile`` [dimension, way] of the results,
    and bytes of a core's largest."""
    nest = ways.nest
    total, largest = np.zeros(len(ways)), np.zeros(len(ways), np.int64)
    cores, terms = prod(ways.parts), _terms(ways)
    ends = zip(nest.op.results, nest.out_maps, strict=True)
    for i, (v, m) in enumerate(ends, start=len(nest.op.operands)):
        there = ways.away[i]
        if there.any():
            size, run = tile_sizes(v, m, tile)
            ticks = device.hbm.bus_ticks(size, run, True)
            total += ticks * cores / terms / device.hbm.bytes_per_cycle * there
            largest = np.maximum(largest, size * there)
    return total, largest


def _terms(ways: Tilings) -> Ints:
    """[way]: cores that hold a term of each result."""
    terms: Ints = np.prod(ways.parts[sorted(ways.nest.summed)], axis=0)
    return terms


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
        each = [
            numbered(tilings(nests[i], device, True, residents[i]), n) for n, i in enumerate(cut)
        ]
        if not any(map(len, each)):
            continue
        ways, costs = options(together(each).with_kept(room), device)
        least = np.full(len(cut), math.inf)
        np.minimum.at(least, ways.number, costs)
        for i, cost in zip(cut, least.tolist(), strict=True):
            found[i] = cost
    return found
