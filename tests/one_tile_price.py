"""The price of one way to tile a matrix kernel, and the ways to end its tiles, worked out with
single numbers: what ``contract_price`` works out for all ways at once, to the bit."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import numpy as np

from spyrec.ir.core import Value
from spyrec.ir.tiles import FACTORS, again, around, tile_shape
from spyrec.passes.contract_price import AHEAD, BUNCHED, FAR, HINDERED, PIECES, TURN
from spyrec.passes.finish import piece_slots
from spyrec.passes.kernel import GROUP, Map, Nest, clip, padded, spans, window
from spyrec.passes.pins import Counts, pinned_ahead, pinned_finish
from spyrec.passes.runs import STICK, buffer_sticks, sticks_and_run
from spyrec.passes.tile_ways import Floats
from spyrec.passes.tiling import tile_bytes
from spyrec.sim.device import SPREAD_STEPS, DeviceSpec


def _filled(nest: Nest, d: int, tile: int, device: DeviceSpec | None = None) -> float:
    """Share of whole tiles along a dimension that a core's part fills; of the matrix unit's time on
    them with its ``device``, which takes rows a pass at a time."""
    unit = GROUP if d == nest.stick else nest.step(d) if d == nest.k else 1
    local, units = -(-nest.local[d] // unit), -(-tile // unit)
    whole, last = divmod(local, units)
    if device is not None and unit == 1 and d in nest.parallel:
        units, last = padded(units, device.pt.rows), padded(last, device.pt.rows)
        local = whole * units + last
    return local / (units * (whole + (last > 0)))


def passes(alike: int, device: DeviceSpec) -> int:
    """How often what ``alike`` cores need goes over the bus: one load delivers to so many cores at
    most, of which so many take it at once."""
    loads = -(-alike // device.hbm.multicast_max)
    return loads * int(device.hbm.turns(-(-alike // loads)))


@dataclass(frozen=True)
class Flow:
    """Cycles in which an operand comes, over the bus and through the memory unit of a core that
    loads for its group: the longer. ``fresh``: when its tiles come the first time; ``again``: once
    more; both over the bus and over the link to a half of the ring; ``one``: of one tile on all
    cores, over the bus."""

    fresh: Floats
    again: Floats
    one: float
    lag: float


def flow(
    nest: Nest,
    operand: int,
    tile: Counts,
    loops: Counts,
    device: DeviceSpec,
    keep: Collection[int],
) -> Flow:
    """How an operand that lies in card memory comes. Later trips of loops that it does not vary
    with bring whole tiles again."""
    v, m, hbm = nest.op.operands[operand], nest.maps[operand], device.hbm
    size, run = _sizes(v, m, tile)
    alike = prod(p for d, p in enumerate(nest.parts) if not spans(m, d))
    times = passes(alike, device)
    groups = nest.cores / alike
    bus, link, lost = drawn(nest, operand, device)
    ticks, more = hbm.bus_ticks(size, run) + lost * size, hbm.again_ticks(size, run)
    one = ticks * times * groups / hbm.bytes_per_cycle
    alone = ticks * times / hbm.bytes_per_cycle + hbm.held_cycles(size)
    if alike > 1:
        alone = max(alone, hbm.shared_cycles(size, run, min(alike, hbm.multicast_max)))
    trips = {d: -(-nest.local[d] // tile[d]) for d in around(m, loops)}
    outer = again(m, loops)
    fresh = prod(n * _filled(nest, d, tile[d]) for d, n in trips.items() if d not in outer)
    repeats = 0 if operand in keep else prod(trips[d] for d in outer) - 1
    slower = one + more * times * groups / hbm.bytes_per_cycle
    first, later = ([max(p * n, alone) * fresh for p in (bus, link)] for n in (one, slower))
    behind = BUNCHED * max(0.0, hbm.bytes_per_cycle / hbm.side_bytes_per_cycle - 1)
    return Flow(
        np.array(first),
        np.array(later) * repeats,
        one,
        behind * one if link and nest.terms == 1 else 0.0,
    )


def drawn(nest: Nest, operand: int, device: DeviceSpec) -> tuple[float, float, float]:
    """``bus``, ``link`` and ``lost`` of ``spyrec.passes.draws.Draw``."""
    m, hbm, half = nest.maps[operand], device.hbm, device.cores.count // 2
    layout = nest.op.operands[operand].type.layout
    assert layout is not None
    boxes = {
        core: clip(window(m, ranges), layout.shape)
        for core, ranges in enumerate(nest.reading(operand))
        if all(n for _, n in ranges)
    }
    rows = prod(nest.extents[d] for d in nest.parallel if d != nest.stick)
    if operand != 1 or nest.summed != {nest.k} or rows > 8 or len({*boxes.values()}) < len(boxes):
        return 1.0, 0.0, 0.0
    cut = [d for d, p in enumerate(nest.parts) if p > 1 and spans(m, d)]
    left = {
        core: prod(-(-nest.core_ranges[core][d][1] // nest.grain(d)) for d in cut) for core in boxes
    }
    every, narrow = len(left) * max(left.values()), hbm.bytes_per_cycle / hbm.side_bytes_per_cycle
    bus, link = sum(left.values()) / every, 0.0
    while left:
        here, step = sum(core < half for core in left), min(left.values())
        link += step * max(len(left), narrow * max(here, len(left) - here))
        left = {core: n - step for core, n in left.items() if n > step}
    sizes = [n for _, n in clip(window(m, [(0, n) for n in nest.local]), layout.shape)]
    sticks, run = sticks_and_run(layout, sizes)
    first = np.array([[start for start, _ in box] for box in boxes.values()])
    places = sorted({*(layout.locate(first)[2]).tolist()})
    if sticks == run or len(places) == 1:
        return bus, link / every, 0.0
    apart = min(b - a for a, b in pairwise(places)) * STICK
    share = hbm.far_cycles * hbm.bytes_per_cycle / hbm.burst_bytes * len(places)
    return bus, link / every, share / device.cores.count * hbm.spread(apart) / SPREAD_STEPS


@dataclass(frozen=True)
class Course:
    """As ``contract_price.Course``, of one tile."""

    one: float
    tiles: float
    inner: float
    first: float
    rest: float
    out: float
    late: float
    stored: int
    wait: float
    work: float
    drain: float
    full: bool
    pace: float
    trips: float
    lag: float


def price(
    nest: Nest,
    tile: Counts,
    loops: Counts,
    device: DeviceSpec,
    keep: Collection[int] = (),
    finish: Counts = (),
    ahead: int = 0,
) -> float:
    """Cycles of the fullest core, as ``contract_costs`` has it."""
    return took(nest, tile, course_of(nest, tile, loops, device, keep), device, finish, ahead)


def course_of(
    nest: Nest, tile: Counts, loops: Counts, device: DeviceSpec, keep: Collection[int] = ()
) -> Course:
    """What a price is made of."""
    trips = {d: -(-nest.local[d] // tile[d]) * _filled(nest, d, tile[d]) for d in loops}
    one = _work(nest, tile, device)
    outer = [d for d in loops if d in nest.parallel]
    inner = trips[outer[-1]] if outer else 1.0
    first, rest, wait, late, lag = np.zeros(2), np.zeros(2), 0.0, 0.0, 0.0
    streams = False
    for i, (v, m) in enumerate(zip(nest.op.operands, nest.maps, strict=True)):
        if v.type.space == "lx" or v.type.size <= 1:
            continue
        came = flow(nest, i, tile, loops, device, keep)
        if i in nest.weights:  # the first tiles come while the kernel before runs
            came = replace(came, fresh=np.maximum(0.0, came.fresh - nest.buffers * came.one))
        if outer and spans(m, outer[-1]):
            first += (came.fresh + came.again) / inner
            rest += (came.fresh + came.again) * (1 - 1 / inner)
        else:
            first += came.fresh
            rest += came.again
        if i < FACTORS and i not in nest.weights:
            wait += came.one
        flows = i < FACTORS and i not in keep and around(m, loops) == tuple(loops)
        streams |= flows
        lag += came.lag if flows and loops else 0.0
        if i >= FACTORS and i not in nest.weights:
            late += came.one
    out, stored = _stored(nest, tile, device)
    steps = prod(trips[d] for d in outer)
    rows = prod(tile[d] for d in nest.parallel if d != nest.stick)
    groups = rows * -(-tile[nest.stick] // GROUP)
    drain = groups * _epilogue(nest, device) / device.sfp.groups_per_cycle
    if nest.terms > 1:
        tile_of_sums = groups * device.lx.group_bytes("f32")
        drain += (nest.terms - 1) * device.ring.psum_cycles(tile_of_sums, device.clock_mhz)
    parts = (-(-nest.local[d] // tile[d]) * _filled(nest, d, tile[d], device) for d in loops)
    # a slot is loaded, used and only then loaded again
    pace = (device.hbm.latency_cycles + one) / nest.buffers if streams else 0.0
    return Course(
        one, steps, inner, float(max(first)), float(max(rest)), out, late, stored, wait,
        one * prod(parts), drain,
        groups * 2 > device.pt.acc_groups, pace, prod(trips.values()), lag,
    )  # fmt: skip


def took(
    nest: Nest,
    tile: Counts,
    course: Course,
    device: DeviceSpec,
    finish: Counts = (),
    ahead: int = 0,
) -> float:
    """Cycles of a ``course`` whose tiles are ended in pieces of ``finish`` and whose factors stream
    through ``ahead`` slots, or as many as any buffer has."""
    rate, inner, steps, one = device.hbm.bytes_per_cycle, course.inner, course.tiles, course.one
    out, piece, work, drain = course.out, course.stored, course.work, course.drain
    window = one * max(1, (ahead or nest.buffers) - 1)  # of work for which tiles are there
    pieces, last = 1, 0.0
    if finish:  # stores and what sums are finished with come while other pieces are multiplied
        pieces = -(-tile[nest.stick] // finish[nest.stick])
        narrow = [*tile]
        narrow[nest.stick] = finish[nest.stick]
        out, piece = _stored(nest, tuple(narrow), device)
        out *= pieces
        last = finish[nest.k] / tile[nest.k] * (1 - 1 / pieces)
        switches = len(nest.op.results)
        drain += device.sfp.switch_cycles * pieces * switches * (switches > 1)
    stored = out * (steps - 1)  # beside the last tile
    turned = min(stored, course.first + course.rest) * rate
    stored += device.hbm.turnaround_ticks(int(turned), piece) / rate
    first, rest = course.first + stored / inner, course.rest + stored * (1 - 1 / inner)
    if course.full:
        work += drain / pieces * (steps - 1)
    left = out * rate
    left += device.hbm.turnaround_ticks(int(left), piece)
    # at the end of a tile all cores store it and load what the next one's sums are finished with
    burst = left / rate + course.late
    work += max(0.0, course.late - window) + max(0.0, burst - window) * (steps - 1)
    pace = course.pace * nest.buffers / (ahead or nest.buffers)
    work = max(work, pace * course.trips, drain * steps)
    now, then = (0.0, course.lag) if inner > 1 else (course.lag, 0.0)
    busy = max(work / inner + course.wait, first + one + now)
    busy += max(work * (1 - 1 / inner), rest + then)
    over = HINDERED * min(work, first + rest)
    if last:  # the first piece waits for the last tiles, as far as loads are not ahead of work
        begun, later = course.first * inner / course.trips, 0.0
        short = max(0.0, last * begun - max(0.0, work / inner - first)) * steps / inner
        if inner > 1:
            later = course.rest / course.trips / (1 - 1 / inner)
            slack = max(0.0, work * (1 - 1 / inner) - rest) / (inner - 1)
            short += max(0.0, last * later - slack) * steps * (1 - 1 / inner)
        over += short
    end = max(0.0, out * (1 - 1 / pieces) - last * one)
    return busy + over + (drain + out) / pieces + end + TURN * course.trips


def ends(
    nest: Nest, tile: Counts, loops: Counts, course: Course, most: int
) -> Iterator[tuple[Counts, int]]:
    """The tiles in which such tiles may be ended, () for as they are, with the slots that factors
    stream through, ``most`` at most, 0 for those of all buffers."""
    pins, slots = pinned_finish(nest), pinned_ahead(nest)
    yield (), slots
    k, stick = nest.k, nest.stick
    trips = -(-nest.local[k] // tile[k])
    if pins == () or nest.terms > 1 or k not in loops or nest.buffers < 2 or nest.overlap != "all":
        return
    choice = (slots,) if slots else tuple(n for n in AHEAD if n <= most)
    busy = max(course.out + course.late, course.drain) / course.one
    least = min(r[stick][1] for r in nest.core_ranges if all(n for _, n in r))
    widths, steps_left = [*PIECES], {2, math.ceil(busy)}
    if pins:
        left, width = pins
        widths = [width or PIECES[0]]
        steps_left = {-(-left // tile[k])} if left else steps_left
    for width in widths:
        last = (tile[stick] - 1) // width * width
        even = tile[stick] % width == 0 or tile[stick] >= nest.local[stick]
        if width < tile[stick] and width % nest.grain(stick) == 0 and last < least and even:
            for ahead in (n for n in choice if trips % n == 0):
                for steps in sorted({min(n, ahead, trips - 2) for n in steps_left}):
                    if steps > 1:
                        end = list(tile)
                        end[k], end[stick] = nest.local[k] - (trips - steps) * tile[k], width
                        yield tuple(end), ahead


Option = tuple[float, Counts, Counts, Counts, Counts, int]
"""Price, tile, loops, kept factors, the tile in which a tile is ended, slots of the factors."""


def all_options(
    nest: Nest, ways: Iterable[tuple[Counts, Counts, Counts]], device: DeviceSpec, most: int
) -> Iterator[Option]:
    """What ``contract_price.options`` makes of these tiles, loops and kept factors, one after the
    other."""
    least = math.inf
    for tile, loops, keep in ways:
        course = course_of(nest, tile, loops, device, keep)
        bound = max(course.work, course.first + course.rest)
        deep = most if bound <= FAR * least or pinned_finish(nest) else 0
        for finish, ahead in ends(nest, tile, loops, course, deep):
            cost = took(nest, tile, course, device, finish, ahead)
            least = min(least, cost)
            yield cost, tile, loops, keep, finish, ahead


def streamed_bytes(nest: Nest, option: Option, lean: bool) -> int:
    """Scratchpad bytes of what streams through a matrix kernel, as ``contract_bytes`` counts."""
    _, tile, loops, keep, finish, ahead = option
    ends = [*zip(nest.op.operands, nest.maps, strict=True)]
    away = [v.type.space != "lx" and v.type.size > 1 for v in nest.op.operands]
    factors = sum(_sizes(*ends[i], tile)[0] for i in range(FACTORS) if i not in keep and away[i])
    if not finish:
        return tile_bytes(nest, tile, lean, keep) + max(0, ahead - nest.buffers) * factors
    ended = Nest(nest.op.with_attrs(tile=tile, loops=loops, keep=keep, finish=finish, ahead=ahead))
    piece = ended.pieces[0]
    total = tile_bytes(piece, piece.tile, True, range(len(ends)), results=False)
    late = [end for i, end in enumerate(ends) if i >= FACTORS and away[i]]
    made = zip(nest.op.results, nest.out_maps, strict=True)
    late += [(v, m) for v, m in made if v.type.space != "lx"]
    return (
        total
        + ahead * factors
        + sum(_sizes(v, m, piece.tile)[0] * piece_slots(ended, m) for v, m in late)
    )


def _work(nest: Nest, tile: Counts, device: DeviceSpec) -> float:
    """Cycles of the matrix unit on one tile."""
    rows = prod(tile[d] for d in nest.parallel if d != nest.stick)
    taps = prod(e for d, e in enumerate(nest.extents) if d not in nest.parallel and d != nest.k)
    groups = -(-tile[nest.stick] // GROUP)
    a, b = (v.type.dtype.name for v in nest.op.operands[:2])
    return device.mm_total_cycles(rows, taps, tile[nest.k], groups, a, b, nest.terms > 1)


def _epilogue(nest: Nest, device: DeviceSpec) -> int:
    """Cycles of the vector unit for a group of sums: what follows the product, or rounding."""
    after = nest.op.regions[0].ops[1:]
    return device.sfp.group_cycles(op.name for op in after)


def _stored(nest: Nest, tile: Counts, device: DeviceSpec) -> tuple[float, int]:
    """Bus cycles in which all cores store a tile of the results, and bytes of a core's largest."""
    total, largest = 0.0, 0
    for v, m in zip(nest.op.results, nest.out_maps, strict=True):
        if v.type.space != "lx":
            size, run = _sizes(v, m, tile)
            ticks = device.hbm.bus_ticks(size, run, True)
            total += ticks * nest.cores / nest.terms / device.hbm.bytes_per_cycle
            largest = max(largest, size)
    return total, largest


def _sizes(v: Value, m: Map, tile: Counts) -> tuple[int, int]:
    """Bytes of a tile of a tensor, and of its contiguous runs."""
    assert v.type.layout is not None
    shape = tile_shape(m, tile)
    run = sticks_and_run(v.type.layout, shape)[1]
    return buffer_sticks(shape, v.type.layout) * STICK, run * STICK
