"""The price of one way to tile a matrix kernel, worked out with single numbers: what
``contract_costs`` works out for all ways at once, to the bit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import prod

from spyrec.ir.core import Value
from spyrec.ir.tiles import FACTORS, again, around, tile_shape
from spyrec.passes.contract_price import HINDERED, TURN
from spyrec.passes.kernel import GROUP, Map, Nest, padded, spans
from spyrec.passes.pins import Counts
from spyrec.passes.runs import STICK, buffer_sticks, sticks_and_run
from spyrec.sim.device import DeviceSpec


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


def price(
    nest: Nest, tile: Counts, loops: Counts, device: DeviceSpec, keep: Collection[int] = ()
) -> float:
    """Cycles of the fullest core, as ``contract_costs`` has it."""
    trips = {d: -(-nest.local[d] // tile[d]) * _filled(nest, d, tile[d]) for d in loops}
    one = _work(nest, tile, device)
    outer = [d for d in loops if d in nest.parallel]
    inner = trips[outer[-1]] if outer else 1.0
    first = rest = wait = late = 0.0
    streams = False
    for i, (v, m) in enumerate(zip(nest.op.operands, nest.maps, strict=True)):
        if v.type.space == "lx" or v.type.size <= 1:
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
    out, piece = _stored(nest, tile, device)
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
