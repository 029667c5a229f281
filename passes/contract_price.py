"""What a tile shape costs a matrix kernel, for cutting it into tiles and over cores alike."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from spyrec.ir.core import Value
from spyrec.ir.layout import Layout
from spyrec.ir.tiles import FACTORS, again, around, kept_trips, tile_shape
from spyrec.sim.device import DeviceSpec

from .kernel import GROUP, Map, Nest, padded, spans
from .pins import Counts, pinned, pinned_keep, pinned_loops
from .runs import STICK, buffer_sticks, sticks_and_run

KEPT = 0.7  # of a scratchpad that factors may take which stay there
HINDERED = 0.03  # of the shorter of work and transfers is not hidden behind the longer
LONG = 1024  # inner elements of a tile, with which stores of other tiles hold up no loads
TURN = 2  # cycles a trip of the innermost loop loses


def _cuts(n: int, grain: int = 1) -> list[int]:
    """Sizes worth trying: n cut into 1, 2, 3, 4, 6, 8, ... equal parts, in multiples of the grain.
    """
    units = -(-n // grain)
    sizes = {-(-units // p) for p in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512)} | {
        min(units, 8)
    }
    return [min(n, s * grain) for s in sorted(sizes, reverse=True)]


def contract_candidates(
    nest: Nest, device: DeviceSpec, coarse: bool = False
) -> Iterator[tuple[Counts, Counts]]:
    """Tile shapes of a matrix kernel whose output fits the accumulators, each with the orders of
    its loops. ``coarse``: only two steps along the inner dimension, a long and the shortest."""
    n, k, local = nest.stick, nest.k, nest.local
    shared = [d for d in nest.parallel if spans(nest.maps[1], d) and d != n]
    rows = [d for d in sorted(nest.parallel) if d != n and d not in shared]
    outer, inner = rows[:-2], rows[-2:]
    pins = pinned(nest, "tile")
    base = list(local)
    for d in shared + outer:
        base[d] = 1

    def cuts(d: int, grain: int = 1) -> list[int]:
        return [pins[d]] if pins[d] else _cuts(local[d], grain)

    def few(sizes: list[int]) -> list[int]:
        """A long one that leaves room for others, and the least."""
        return sorted({max((s for s in sizes if s <= LONG), default=sizes[-1]), sizes[-1]})

    most = device.pt.acc_groups
    r1 = inner[-1] if inner else -1
    r0 = inner[0] if len(inner) == 2 else -1
    for tn in cuts(n, nest.grain(n)):
        groups = -(-tn // GROUP)
        for t1 in cuts(r1) if r1 >= 0 else [1]:
            if groups * t1 > most:
                continue
            for t0 in cuts(r0) if r0 >= 0 else [1]:
                if groups * t1 * t0 > most:
                    continue
                for tk in few(cuts(k, nest.step(k))) if coarse else cuts(k, nest.step(k)):
                    tile = list(base)
                    tile[n], tile[k] = tn, tk
                    if r1 >= 0:
                        tile[r1] = t1
                    if r0 >= 0:
                        tile[r0] = t0
                    looped = [d for d in range(len(tile)) if -(-local[d] // tile[d]) > 1]
                    lead = [d for d in looped if d in shared or d in outer]
                    mid = [d for d in looped if d in inner]
                    last = [k] if k in looped else []
                    cols = [n] if n in looped else []
                    for loops in ((*lead, *cols, *mid, *last), (*lead, *mid, *cols, *last)):
                        yield tuple(tile), pinned_loops(nest, loops)
                        if not (cols and mid):
                            break


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
    more; ``one``: of one tile on all cores, over the bus."""

    fresh: float
    again: float
    one: float


def flow(
    nest: Nest, operand: int, tile: Counts, loops: Counts, device: DeviceSpec,
    keep: Collection[int],
) -> Flow:
    """How an operand that lies in card memory comes. Later trips of loops that it does not vary
    with bring whole tiles again."""
    v, m, hbm = nest.op.operands[operand], nest.maps[operand], device.hbm
    size, run = _sizes(v, m, tile)
    alike = prod(p for d, p in enumerate(nest.parts) if not spans(m, d))
    times = passes(alike, device)
    groups = nest.cores / alike
    ticks, more = hbm.bus_ticks(size, run), hbm.again_ticks(size, run)
    one = ticks * times * groups / hbm.bytes_per_cycle
    alone = ticks * times / hbm.bytes_per_cycle + hbm.held_cycles(size)
    if alike > 1:
        alone = max(alone, hbm.shared_cycles(size, run, min(alike, hbm.multicast_max)))
    trips = {d: -(-nest.local[d] // tile[d]) for d in around(m, loops)}
    outer = again(m, loops)
    fresh = prod(n * _filled(nest, d, tile[d]) for d, n in trips.items() if d not in outer)
    repeats = 0 if operand in keep else prod(trips[d] for d in outer) - 1
    slower = one + more * times * groups / hbm.bytes_per_cycle
    return Flow(max(one, alone) * fresh, max(slower, alone) * fresh * repeats, one)


def contract_cost(
    nest: Nest, tile: Counts, loops: Counts, device: DeviceSpec,
    resident: Collection[int] = (), keep: Collection[int] = (),
) -> float:
    """Cycles of the fullest core. Its matrix unit waits for the first tiles, then for what comes
    slower than it works: on the first trip of the innermost loop that is not summed over operands
    come that do not vary with it, later those only that come again. Tiles of more than half the
    accumulators are drained before the next begins; the last one is drained and stored at the end.

    ``resident``: operands, and results counted after them, that are on chip whatever their types
    say; ``keep``: factors whose tiles stay in the scratchpad.
    """
    trips = {d: -(-nest.local[d] // tile[d]) * _filled(nest, d, tile[d]) for d in loops}
    one = _work(nest, tile, device)
    outer = [d for d in loops if d in nest.parallel]
    inner = trips[outer[-1]] if outer else 1.0
    first = rest = wait = late = 0.0
    streams = False
    for i, (v, m) in enumerate(zip(nest.op.operands, nest.maps, strict=True)):
        if v.type.space == "lx" or v.type.size <= 1 or i in resident:
            continue
        came = flow(nest, i, tile, loops, device, keep)
        if i in nest.weights:  # the first tiles come while the kernel before runs
            came = replace(came, fresh=max(0.0, came.fresh - nest.buffers * came.one))
        if outer and spans(m, outer[-1]):
            first += (came.fresh + came.again) / inner
            rest += (came.fresh + came.again) * (1 - 1 / inner)
        else:
            first += came.fresh
            rest += came.again
        if i < FACTORS and i not in nest.weights:
            wait += came.one
        streams |= i < FACTORS and i not in keep and around(m, loops) == tuple(loops)
        if i >= FACTORS and i not in nest.weights:
            late += came.one
    out, piece = _stored(nest, tile, device, resident)
    steps = prod(trips[d] for d in outer)
    stored = out * (steps - 1)  # beside the last tile
    turned = min(stored, first + rest) * device.hbm.bytes_per_cycle
    stored += device.hbm.turnaround_ticks(int(turned), piece) / device.hbm.bytes_per_cycle
    first, rest = first + stored / inner, rest + stored * (1 - 1 / inner)
    rows = prod(tile[d] for d in nest.parallel if d != nest.stick)
    groups = rows * -(-tile[nest.stick] // GROUP)
    drain = groups * _epilogue(nest, device) / device.sfp.groups_per_cycle
    if nest.terms > 1:
        tile_of_sums = groups * device.lx.group_bytes("f32")
        drain += (nest.terms - 1) * device.ring.psum_cycles(tile_of_sums, device.clock_mhz)
    parts = (-(-nest.local[d] // tile[d]) * _filled(nest, d, tile[d], device) for d in loops)
    work = one * prod(parts)
    if groups * 2 > device.pt.acc_groups:
        work += drain * (steps - 1)
    left = out * device.hbm.bytes_per_cycle
    left += device.hbm.turnaround_ticks(int(left), piece)
    # at the end of a tile all cores store it and load what the next one's sums are finished with
    burst = left / device.hbm.bytes_per_cycle + late
    work += max(0.0, late - one) + max(0.0, burst - one) * (steps - 1)
    if streams:  # a slot is loaded, used and only then loaded again
        pace = (device.hbm.latency_cycles + one) / nest.buffers
        work = max(work, pace * prod(trips.values()))
    work = max(work, drain * steps)
    took = max(work / inner + wait, first + one) + max(work * (1 - 1 / inner), rest)
    moved = first + rest
    return took + HINDERED * min(work, moved) + drain + out + TURN * prod(trips.values())


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


def _stored(
    nest: Nest, tile: Counts, device: DeviceSpec, resident: Collection[int]
) -> tuple[float, int]:
    """Bus cycles in which all cores store a tile of the results, and bytes of a core's largest."""
    total, largest = 0.0, 0
    ends = zip(nest.op.results, nest.out_maps, strict=True)
    for i, (v, m) in enumerate(ends, start=len(nest.op.operands)):
        if v.type.space != "lx" and i not in resident:
            size, run = _sizes(v, m, tile)
            ticks = device.hbm.bus_ticks(size, run, True)
            total += ticks * nest.cores / nest.terms / device.hbm.bytes_per_cycle
            largest = max(largest, size)
    return total, largest


def _sizes(v: Value, m: Map, tile: Counts) -> tuple[int, int]:
    """Bytes of a tile of a tensor, and of its contiguous runs."""
    assert v.type.layout is not None
    return _bytes_and_run(v.type.layout, tile_shape(m, tile))


@lru_cache(maxsize=1 << 16)
def _bytes_and_run(layout: Layout, shape: Counts) -> tuple[int, int]:
    return buffer_sticks(shape, layout) * STICK, sticks_and_run(layout, shape)[1] * STICK


def kept_bytes(nest: Nest, tile: Counts, loops: Counts, operand: int) -> int:
    """Scratchpad bytes of all tiles of a factor that have to stay for none to be loaded twice; 0
    when none would be."""
    m = nest.maps[operand]
    trips = [-(-nest.local[d] // tile[d]) for d in loops]
    return _sizes(nest.op.operands[operand], m, tile)[0] * kept_trips(m, loops, trips)


def keepable(
    nest: Nest, tile: Counts, loops: Counts, room: int, resident: Collection[int] = ()
) -> Iterator[Counts]:
    """Which factors may stay in the scratchpad, none at first, within ``room`` bytes."""
    pins = pinned_keep(nest)
    if pins is not None:
        yield tuple(i for i in pins if kept_bytes(nest, tile, loops, i))
        return
    yield ()
    if nest.buffers == 1 or nest.overlap != "all":
        return
    sizes = {
        i: size for i in range(FACTORS)
        if nest.op.operands[i].type.space != "lx" and i not in resident
        and 0 < (size := kept_bytes(nest, tile, loops, i)) <= room
    }  # fmt: skip
    yield from ((i,) for i in sizes)
    if len(sizes) == FACTORS and sum(sizes.values()) <= room:
        yield tuple(sizes)


def least_cost(nest: Nest, device: DeviceSpec, resident: Collection[int] = ()) -> float:
    """Cycles that the best of all tile shapes takes, inner steps as small as they can be;
    infinitely many when none fits the accumulators."""
    room = int(KEPT * device.lx.usable_bytes)
    return min(
        (
            contract_cost(nest, tile, loops, device, resident, keep)
            for tile, loops in contract_candidates(nest, device, coarse=True)
            for keep in keepable(nest, tile, loops, room, resident)
        ),
        default=math.inf,
    )
