"""What a tile shape costs a matrix kernel, for cutting it into tiles and over cores alike."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from math import prod

from spyrec.ir.tiles import tile_shape
from spyrec.sim.device import DeviceSpec

from .kernel import GROUP, Nest, spans
from .pins import pinned, pinned_loops
from .runs import buffer_sticks


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
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Tile shapes of a matrix kernel whose output fits the accumulators, each with the orders of
    its loops. ``coarse``: only the smallest steps along the inner dimension."""
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
                for tk in cuts(k, nest.step(k))[-1 if coarse else 0 :]:
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


def _filled(nest: Nest, d: int, tile: int) -> float:
    """Share of whole tiles along a dimension that a core's part fills."""
    unit = GROUP if d == nest.stick else nest.step(d) if d == nest.k else 1
    local, units = -(-nest.local[d] // unit), -(-tile // unit)
    return local / (units * -(-local // units))


def contract_cost(
    nest: Nest, tile: tuple[int, ...], loops: tuple[int, ...], device: DeviceSpec,
    resident: Collection[int] = (),
) -> float:
    """Cycles of the fullest core: matrix work against bytes loaded, those that come again at their
    own rate, plus what the first load and last drain add. Tiles of more than half the accumulators
    are drained before the next begins. ``resident``: operands that are on chip whatever their types
    say.
    """
    trips = {d: -(-nest.local[d] // tile[d]) for d in loops}
    rows = prod(tile[d] for d in nest.parallel if d != nest.stick)
    taps = prod(e for d, e in enumerate(nest.extents) if d not in nest.parallel and d != nest.k)
    groups = -(-tile[nest.stick] // GROUP)
    a, b = (v.type.dtype.name for v in nest.op.operands[:2])
    one = device.mm_total_cycles(rows, taps, tile[nest.k], groups, a, b, nest.terms > 1)
    filled = {d: _filled(nest, d, tile[d]) for d in loops}  # the last tile may be smaller
    compute = one * prod(trips.values()) * prod(filled.values())
    moved = first = 0.0
    share = device.hbm.bytes_per_cycle / max(1, nest.cores)
    for i, (v, m) in enumerate(zip(nest.op.operands, nest.maps, strict=True)):
        if v.type.space == "lx" or v.type.size <= 1 or i in resident:
            continue
        depth = max((j for j, d in enumerate(loops) if spans(m, d)), default=-1)
        around = loops[: depth + 1]
        other = prod(trips[d] for d in around if spans(m, d))
        again = prod(trips[d] for d in around) // other - 1
        loads = other * prod(filled[d] for d in around if spans(m, d))
        assert v.type.layout is not None
        size = buffer_sticks(tile_shape(m, tile), v.type.layout) * 128
        copies = min(
            device.hbm.takers_max, prod(p for d, p in enumerate(nest.parts) if not spans(m, d))
        )
        slower = device.hbm.bytes_per_cycle / device.hbm.again_bytes_per_cycle
        moved += size * loads * (1 + again * slower) / copies / share
        if i < 2 and i not in nest.weights:  # weights come while the kernel before still runs
            first += size / copies / share
    drain = rows * groups * (2 + len(nest.op.regions[0].ops)) / device.sfp.groups_per_cycle
    if nest.terms > 1:
        tile_of_sums = rows * groups * device.lx.group_bytes("f32")
        drain += (nest.terms - 1) * device.ring.psum_cycles(tile_of_sums, device.clock_mhz)
    inner = prod(t * filled[d] for d, t in trips.items() if d != nest.k)
    if rows * groups * 2 > device.pt.acc_groups:
        compute += drain * (inner - 1)
    return (
        max(compute, moved, drain * inner)
        + 0.5 * min(compute, moved)
        + first
        + drain
        + 40 * prod(trips.values())
    )


def least_cost(nest: Nest, device: DeviceSpec, resident: Collection[int] = ()) -> float:
    """Cycles that the best of all tile shapes takes, inner steps as small as they can be;
    infinitely many when none fits the accumulators."""
    found = contract_candidates(nest, device, coarse=True)
    return min(
        (contract_cost(nest, tile, loops, device, resident) for tile, loops in found),
        default=math.inf,
    )
