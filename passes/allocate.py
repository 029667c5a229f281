"""core-allocation: divide each kernel's iteration space over the cores, uneven tails included."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import ClassVar

import numpy as np

from spyrec.ir.core import Attr, Module, Op, Value
from spyrec.ir.layout import split_points
from spyrec.ir.tiles import FACTORS, tile_shape
from spyrec.sim.device import DeviceSpec

from .contract_price import least_costs
from .draws import draw
from .exchange_price import ring_cycles
from .homes import align
from .kernel import GROUP, Box, Map, Nest, clip, padded, rank1, spans, window
from .manager import Target
from .pieces import pieces, source_boxes
from .pins import Counts, pinned, pinned_core_order, pinned_cuts
from .runs import STICK, buffer_sticks, sticks_and_run
from .signature import signature
from .span import reaches

Boxes = tuple[Box, ...]

FULL = 0.95  # of the cores a matrix kernel must occupy when it has a tile for each
INDEX_LANES = 32  # 32-bit indices of a stick
WIN = 0.9  # of the time of the best cut without, in the matrix unit and in all: most of a K-split
STARVED = 4  # times its work, a matrix kernel takes that waits for memory and may be K-split
RESIDENT = 0.9  # of a scratchpad: an operand of a matrix kernel that takes less counts as on chip
SHORTLIST = 48  # cuts priced in full, those with the least compute on the fullest core
MOVE_SHORTLIST = 12  # a move's sources are found piece by piece, which takes longer
RUNNERS_UP = 3  # cuts not taken whose prices are kept
MANY_PIECES = 16  # a move of more is cut by compute alone


@dataclass(frozen=True)
class CoreAllocation:
    """Choose how many parts each dimension is cut into; parts differ by at most one row or group of
    lanes.

    All factorisations into at most ``cores`` parts are priced: time of the fullest core (a matrix
    kernel's with the tiles that suit the cut best), bytes over the memory bus (an operand several
    cores need is fetched once per multicast group), and bytes that change core because the producer
    was cut differently. ``why_parts`` records the prices in cycles: (that of the cut, ((parts,
    price) of each runner-up, cheapest first)).

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> from spyrec.sim.device import load_device
    >>> from spyrec.passes.fuse import Fuse
    >>> from spyrec.passes.stick_layout import StickLayout
    >>> target = Target(load_device())
    >>> before = StickLayout().run(Fuse().run(parse_module('''module "m" {
    ...   input %x: tensor<256x128xdl16>
    ...   input %w: tensor<128x64xdl16>
    ...   input %b: tensor<64xdl16>
    ...   %y = matmul(%x, %w) : tensor<256x64xdl16>
    ...   %z = add(%y, %b) : tensor<256x64xdl16>
    ...   output "z" = %z
    ... }'''), target), target)
    >>> print(print_module(CoreAllocation().run(before, target)))
    ... # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
    module "m" {stage = "device", laid_out = true, cores = 32} {
      ...
      %z... = kernel(%x, %w, %b) {..., parts = (32, 1, 1), core_order = (0,),
        grains = (1, 64, 64), ...} : ...
      ...
    """

    name: ClassVar[str] = "core-allocation"
    summary: ClassVar[str] = "Divides each kernel over the cores."
    cores: int = 0  # 0: all the device has

    def run(self, module: Module, target: Target) -> Module:
        budget = min(self.cores or target.device.cores.count, target.device.cores.count)
        owners: dict[Value, Boxes] = {}
        outputs = frozenset(module.body.results)
        memo: dict[Hashable, tuple[Mapping[str, Attr], tuple[Boxes, ...]]] = {}
        ops = []
        for op in module.body.ops:
            if op.name == "kernel":
                leaves = tuple(r in outputs for r in op.results)
                key = signature(op), tuple(owners.get(v) for v in op.operands), leaves
                if key not in memo:
                    memo[key] = self._decide(op, budget, target, owners, outputs)
                decisions, owned = memo[key]
                op = op.with_attrs(**decisions)
                owners.update(zip(op.results, owned, strict=True))
            ops.append(op)
        divided = replace(module, body=replace(module.body, ops=tuple(ops)))
        return divided.with_attrs(cores=target.device.cores.count)

    def _decide(
        self, op: Op, budget: int, target: Target, owners: Mapping[Value, Boxes],
        outputs: frozenset[Value],
    ) -> tuple[Mapping[str, Attr], tuple[Boxes, ...]]:
        """The attributes of the cut, none if it has one, and what each core makes of each
        result."""
        cut = {} if "parts" in op.attrs else self._divide(op, budget, target, owners, outputs)
        nest = Nest(op.with_attrs(**cut))
        made = zip(op.results, nest.out_maps, strict=True)
        return cut, tuple(owned_boxes(nest, m, rank1(r.type)) for r, m in made)

    def _divide(
        self, op: Op, budget: int, target: Target, owners: Mapping[Value, Boxes],
        outputs: frozenset[Value],
    ) -> dict[str, Attr]:
        nest = Nest(op)
        units, grains = divisions(nest)
        span = target.device.hbm.span_bytes
        busy = busy_cycles(nest, grains, target.device)

        def priced(cuts: Sequence[Counts]) -> list[tuple[tuple[float, ...], int, Counts]]:
            nests = [replace_parts(nest, c, grains) for c in cuts]
            works = [busy(c) for c in cuts]
            if nest.kind == "contract":
                here = [self._on_chip(cut, owners, outputs, target.device) for cut in nests]
                works = [*map(max, works, least_costs(nests, target.device, here))]
            costs = (self._cost(*cut, target, owners) for cut in zip(nests, works, strict=True))
            return sorted((cost, i, c) for i, (cost, c) in enumerate(zip(costs, cuts, strict=True)))

        whole = tuple(1 if d in nest.summed else u for d, u in enumerate(units))
        cuts = sorted(pinned_cuts(nest, whole, budget, factorisations), key=busy)
        legal = cuts = within_span(nest, cuts, grains, span)
        if nest.kind == "contract" and output_tiles(nest, target) >= budget:
            cuts = [c for c in cuts if prod(c) >= FULL * budget] or cuts
        most = MOVE_SHORTLIST if nest.kind == "move" else SHORTLIST
        found = priced([c for c in cuts if busy(c) <= 1.5 * busy(cuts[0])][:most])
        cost, _, chosen = found[0]
        slow = max(STARVED * busy(chosen), target.device.launch.start_cycles)
        free = len(nest.summed) == 1 and not any(pinned(nest, "parts"))
        split: list[tuple[tuple[float, ...], int, Counts]] = []
        starved = free and prod(chosen) < budget and cost[0] > slow
        worth = WIN * (cost[0] if starved else min(busy(chosen), cost[0]))
        if whole != units and least_split_cycles(nest, budget, target.device) < worth:
            near = within_span(nest, split_cuts(nest, units, budget, busy, worth), grains, span)
            better = [p for p in priced(near) if p[0][0] < WIN * cost[0]]
            if starved:  # of those that are as good, the one with the fewest to add up
                better = [p for p in better if p[0][0] <= better[0][0][0] / FULL]
                better.sort(key=lambda p: prod(p[2][d] for d in nest.summed))
            split = better
        ranked = [*split[:1], *sorted([*split[1:], *found])]
        (cost, _, chosen), others = ranked[0], ranked[1:]
        seen = {c for _, _, c in [*split, *found]}
        beyond = [c for c in legal if c not in seen][: max(0, RUNNERS_UP - len(others))]
        others = sorted([*others, *priced(beyond)])[:RUNNERS_UP]
        rejected = tuple((c, float(other[0])) for other, _, c in others)
        return {
            "parts": chosen, "core_order": core_order(nest, chosen), "grains": grains,
            "why_parts": (float(cost[0]), rejected),
        }  # fmt: skip

    def _cost(
        self, cut: Nest, busy: float, target: Target, owners: Mapping[Value, Boxes]
    ) -> tuple[float, ...]:
        """What ranks a cut whose fullest core works for ``busy`` cycles."""
        device, parts = target.device, cut.parts
        hbm = device.hbm
        bus = link = ring = 0.0
        for i, (v, m) in enumerate(zip(cut.op.operands, cut.maps, strict=True)):
            if cut.kind == "move":
                if len(pieces(cut.op)) <= MANY_PIECES:
                    boxes = source_boxes(cut.op, i, cut.core_ranges)
                    if v in owners:
                        ring += exchanged(v, boxes, owners[v], device)
                    else:
                        bus += box_bytes(v, boxes) / hbm.bytes_per_cycle
                continue
            if not m:
                continue
            readers = prod(parts) if i < FACTORS else prod(parts) // cut.terms
            distinct = prod(p for d, p in enumerate(parts) if p > 1 and spans(m, d))
            copies = readers // distinct
            if v not in owners:
                drawn = draw(cut, i, hbm, device.cores.count)
                one = bus_cycles(v, m, cut.local, device) * (1 + drawn.lost)
                bus += one * distinct * drawn.bus * -(-copies // hbm.takers_max)
                link += one * hbm.bytes_per_cycle / hbm.core_bytes_per_cycle
            else:
                shape = rank1(v.type)
                boxes = tuple(clip(window(m, r), shape) for r in cut.reading(i))
                ring += exchanged(v, boxes, owners[v], device)
        side = bus * hbm.bytes_per_cycle / hbm.side_bytes_per_cycle
        side *= min(1.0, device.cores.count // 2 / prod(parts))  # what the first half reads
        return max(busy, bus, side, link) + ring + 0.01 * (busy + bus), -prod(parts)

    def _on_chip(
        self, cut: Nest, owners: Mapping[Value, Boxes], outputs: frozenset[Value],
        device: DeviceSpec,
    ) -> frozenset[int]:
        """Operands that kernels made, and results that kernels may read, counted after them, of
        which a core's part may stay in its scratchpad."""
        most = RESIDENT * device.lx.usable_bytes
        op = cut.op
        ends = [(v, m, v in owners) for v, m in zip(op.operands, cut.maps, strict=True)]
        ends += [(r, m, r not in outputs) for r, m in zip(op.results, cut.out_maps, strict=True)]
        return frozenset(
            i for i, (v, m, may) in enumerate(ends)
            if may and v.type.layout is not None
            and buffer_sticks(tile_shape(m, cut.local), v.type.layout) * STICK <= most
        )


def bus_cycles(v: Value, m: Map, local: Sequence[int], device: DeviceSpec) -> float:
    """Cycles the memory bus needs for one core's part of an operand: its sticks, padding included,
    in contiguous runs as long as the part covers the innermost memory dimensions.
    """
    layout = v.type.layout
    assert layout is not None
    box = clip(window(m, [(0, n) for n in local]), rank1(v.type))
    sticks, run = sticks_and_run(layout, [n for _, n in box])
    ticks = device.hbm.bus_ticks(sticks * STICK, run * STICK)
    return ticks / device.hbm.bytes_per_cycle


def exchanged(v: Value, needed: Boxes, owned: Boxes, device: DeviceSpec) -> float:
    """Cycles of the exchange that gives each core its needed box, 0 if none is needed."""
    assert v.type.layout is not None
    stick, shape = v.type.layout.stick_dim, rank1(v.type)
    return ring_cycles(v.type.layout, owned, [align(b, stick, shape) for b in needed], device)


def box_bytes(v: Value, boxes: tuple[Box, ...]) -> float:
    """Bytes of all the boxes, padding included."""
    assert v.type.layout is not None
    sizes = np.array(boxes, dtype=np.int64)[:, :, 1]
    stick = v.type.layout.stick_dim
    sizes[:, stick] = -(-sizes[:, stick] // GROUP) * GROUP
    return float(sizes.prod(axis=1).sum()) * v.type.dtype.bits / 8


def replace_parts(nest: Nest, parts: tuple[int, ...], grains: tuple[int, ...]) -> Nest:
    return Nest(nest.op.with_attrs(parts=parts, core_order=core_order(nest, parts), grains=grains))


def core_order(nest: Nest, parts: tuple[int, ...]) -> tuple[int, ...]:
    """Slowest digit first. Divided dimensions in their order, so neighbours share what varies
    slowest.
    """
    return pinned_core_order(nest, [d for d, p in enumerate(parts) if p > 1])


def within_span(
    nest: Nest,
    cuts: list[tuple[int, ...]],
    grains: tuple[int, ...],
    limit: int,
) -> list[tuple[int, ...]]:
    """The cuts under which no core reaches over more than ``limit`` bytes of a tensor; all when
    there is none.
    """
    if not any(True for _ in reaches(nest.op, limit)):
        return cuts
    legal = [
        c
        for c in cuts
        if all(r.nbytes <= limit for r in reaches(replace_parts(nest, c, grains).op, limit))
    ]
    return legal or cuts


def largest_parts(nest: Nest, parts: Counts, grains: Counts) -> Counts:
    """Extents of the largest part along each dimension."""
    cut = zip(nest.extents, parts, grains, strict=True)
    return tuple(largest_part(e, p, g) for e, p, g in cut)


@lru_cache(maxsize=4096)
def largest_part(extent: int, parts: int, grain: int) -> int:
    return max(size for _, size in split_points(extent, parts, grain))


def owned_boxes(nest: Nest, m: Map, shape: tuple[int, ...]) -> tuple[Box, ...]:
    """What each core produces of a result with map ``m``; a core that only repeats another's work
    owns nothing, nor does one that computes terms of what another finishes.
    """
    seen: set[Box] = set()
    out = []
    for ranges in nest.finishing:
        box = clip(window(m, ranges), shape)
        if any(s == 0 for _, s in box) or box in seen:
            box = tuple((0, 0) for _ in shape)
        seen.add(box)
        out.append(box)
    return tuple(out)


def factorisations(units: tuple[int, ...], budget: int) -> Iterator[tuple[int, ...]]:
    """All ways to cut each dimension into 1..units parts with at most ``budget`` parts in all that
    are not needlessly small: no single count can grow within the budget.
    """

    def extend(i: int, left: int) -> Iterator[tuple[int, ...]]:
        if i == len(units):
            yield ()
            return
        for p in range(1, min(units[i], left) + 1):
            for rest in extend(i + 1, left // p):
                yield (p, *rest)

    for parts in extend(0, budget):
        total = prod(parts)
        if all(p == u or total // p * (p + 1) > budget for p, u in zip(parts, units, strict=True)):
            yield parts


def split_cuts(
    nest: Nest, units: Counts, budget: int, busy: Callable[[Counts], float], most: float
) -> list[Counts]:
    """K-splits in which the fullest core works less than ``most`` cycles, the shortest ones
    first."""
    cuts = pinned_cuts(nest, units, budget, factorisations)
    split = [c for c in cuts if any(c[d] > 1 for d in nest.summed) and busy(c) < most]
    return sorted(split, key=busy)[:SHORTLIST]


def output_tiles(nest: Nest, target: Target) -> int:
    """Tiles of work of a matrix kernel: passes of rows times groups of columns."""
    rows = prod(e for d, e in enumerate(nest.extents) if d in nest.parallel and d != nest.stick)
    return -(-rows // target.device.pt.rows) * -(-nest.extents[nest.stick] // GROUP)


def busy_cycles(
    nest: Nest, grains: Counts, device: DeviceSpec
) -> Callable[[Counts], float]:
    """Busy cycles of the fullest core as a function of the parts; in a K-split with the cycles in
    which its group adds up."""
    if nest.kind != "contract":
        steps = max(2, len(nest.op.regions[0].ops))

        def vector(parts: Counts) -> float:
            local = largest_parts(nest, parts, grains)
            groups = prod(-(-n // GROUP) if d == nest.stick else n for d, n in enumerate(local))
            return groups * steps / device.sfp.groups_per_cycle

        return vector
    free = nest.parallel - {nest.stick}
    shared = {d for d in free if spans(nest.maps[1], d)}  # each has weights of its own to fill in
    pt = device.pt
    a, b = (v.type.dtype.name for v in nest.op.operands[:2])

    def contract(parts: Counts) -> float:
        local = largest_parts(nest, parts, grains)
        m, own = (prod(local[d] for d in dims) for dims in (free - shared, shared))
        groups = -(-local[nest.stick] // GROUP)
        terms = prod(parts[d] for d in nest.summed)
        taps = prod(local[d] for d in nest.summed if d != nest.k)
        work = own * pt.mm_cycles(m, taps, local[nest.k], groups, a, b, terms > 1)
        nbytes = own * m * groups * device.lx.group_bytes("f32")
        return work + (terms - 1) * device.ring.psum_cycles(nbytes, device.clock_mhz)

    return contract


def inner_steps(nest: Nest, local: Sequence[int], k_step: int) -> int:
    """Multiply-accumulates for one element of a result: taps times inner elements, rounded up."""
    return prod(padded(local[d], k_step if d == nest.k else 1) for d in nest.summed)


def least_split_cycles(nest: Nest, cores: int, device: DeviceSpec) -> float:
    """What no K-split of a matrix kernel is faster than."""
    inner = inner_steps(nest, nest.extents, 1)
    outputs = prod(nest.extents[d] for d in nest.parallel)
    return outputs * inner / (cores * device.pt.ksplit_macs_per_cycle)


def divisions(nest: Nest) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(units, grains): into how many parts each dimension may be cut at most, and on multiples of
    what.
    """
    if nest.kind == "move":
        return move_units(nest.op)
    if nest.kind == "gather":
        return gather_units(nest)
    free = nest.parallel - nest.whole
    if nest.kind == "contract":
        free |= {nest.k}
    grains = tuple(nest.grain(d) for d in range(len(nest.extents)))
    units = (
        -(-e // g) if d in free else 1
        for d, (e, g) in enumerate(zip(nest.extents, grains, strict=True))
    )
    return tuple(units), grains


def move_units(op: Op) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(units, grains) of a move kernel: cuts of the result fall where no source run is broken in
    two ways.
    """
    shape = rank1(op.results[0].type)
    stick = int(op.attrs["stick"])  # type: ignore[arg-type]
    grains = []
    for d in range(len(shape)):
        grain = 1
        for piece in pieces(op):
            coefs = [
                (abs(c), piece.counts[i])
                for i, c in enumerate(piece.dst.rows[d][1])
                if c and piece.counts[i] > 1
            ]
            if len(coefs) > 1:
                grain = int(np.lcm(grain, max(c for c, _ in coefs)))
        if d == stick:
            grain = int(np.lcm(grain, GROUP))
        grains.append(grain)
    units = tuple(max(1, -(-e // g)) for e, g in zip(shape, grains, strict=True))
    return units, tuple(grains)


def gather_units(nest: Nest) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(units, grains): rows are cut in whole sticks of 32 indices, the data dimension in groups.
    Between the groups of 64 of one line of indices lie those of the other lines."""
    last = len(nest.extents) - 1
    grain = INDEX_LANES if prod(nest.extents[: last - 1]) == 1 else GROUP
    grains = tuple(GROUP if d == last else grain if d == last - 1 else 1 for d in range(last + 1))
    return tuple(-(-e // g) for e, g in zip(nest.extents, grains, strict=True)), grains
