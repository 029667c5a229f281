"""tiling: cut each core's part into tiles that fit the scratchpad and the accumulators, and order
the loops.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from spyrec.ir.core import Block, Module, Op, Value
from spyrec.ir.digits import Ints, Whole
from spyrec.ir.errors import CapacityError
from spyrec.ir.layout import Layout
from spyrec.ir.tiles import FACTORS, tile_shape
from spyrec.sim.device import DeviceSpec

from .contract_price import AHEAD, contract_costs, options
from .finish import slots_of
from .held import Kept, Offer, found_there, held, offered
from .homes import held_bytes, resident_bytes
from .kernel import GROUP, Map, Nest, spans
from .manager import Target
from .pieces import is_direct, source_window
from .pins import Counts, pinned, pinned_finish, pinned_loops
from .rooms import taken_rooms
from .runs import STICK, buffer_sticks, bursts
from .signature import signature
from .stages import reused, stages
from .tile_ways import Floats, Tilings, tilings

RANK = 6  # iteration dimensions of an instruction

RUNNERS_UP = 3  # tiles not taken that are kept, with their prices

UNREAD = ("resident", "in_place", "why_away", "why_parts")
"""Attributes of a kernel that its tile does not depend on."""

Tiled = tuple[Counts, Counts, Counts, Counts, int, tuple[object, ...]]
"""Tile, loops, keep, finish, ahead, why: see Tiling."""


@dataclass(frozen=True)
class Tiling:
    """Set ``tile`` and ``loops`` of every kernel. Of matrix kernels also ``keep``, the factors
    whose tiles stay in the scratchpad once they are there, ``finish``, the tile in which each tile
    of results is ended, ``ahead``, the slots its factors stream through, and ``held``, the factors
    that stay and are there already, as the kernel before has left them.

    Matrix kernels: all tile shapes whose output tile fits the accumulators (half of them, when the
    other half is to drain meanwhile) and whose operands fit the budget are priced by matrix cycles
    and bytes loaded. Vector
    kernels: the largest tile that fits, in a few trips when operands stream from card memory; what
    shrinks is what keeps the runs of the transfers as long as a burst.

    ``why_tile`` records the numbers: (bytes of the tile's buffers, bytes allowed, cost in cycles,
    ((tile, loops, cost) of each runner-up, cheapest first)); cost is None where tiles are not
    priced, and the runners-up are then the last larger tile that fits and the next smaller ones.

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> from spyrec.sim.device import load_device
    >>> from spyrec.passes.allocate import CoreAllocation
    >>> from spyrec.passes.fuse import Fuse
    >>> from spyrec.passes.stick_layout import StickLayout
    >>> target = Target(load_device())
    >>> before = CoreAllocation().run(StickLayout().run(Fuse().run(parse_module('''module "m" {
    ...   input %x: tensor<64x2048xdl16>
    ...   input %v: tensor<2048x256xdl16>
    ...   input %w: tensor<256x2048xdl16>
    ...   %y = matmul(%x, %v) : tensor<64x256xdl16>
    ...   %z = matmul(%y, %w) : tensor<64x2048xdl16>
    ...   output "z" = %z
    ... }'''), target), target), target)
    >>> print(print_module(Tiling().run(before, target)))
    ... # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
    module "m" {stage = "device", laid_out = true, cores = 32} {
      ...
      %y... = kernel(%x, %v) {name = "k0_matmul", ..., tile = (...), loops = (...), ...} : ...
      ...
      %z... = kernel(%y..., %w) {name = "k1_matmul", ..., tile = (...), loops = (...), ...} : ...
      ...
    """

    name: ClassVar[str] = "tiling"
    summary: ClassVar[str] = "Cuts each core's work into tiles that fit the scratchpad."
    share: float = 0.42  # of the scratchpad for one kernel's tiles, where tensors leave as much
    kept: float = 0.85  # of the scratchpad when factors of a matrix kernel stay there meanwhile
    ahead: int = AHEAD[-1]  # slots that factors of a matrix kernel may stream through
    stream_bytes: int = 32768  # a streamed operand is cut into pieces of about this size

    def run(self, module: Module, target: Target) -> Module:
        usable = target.device.lx.usable_bytes
        live, reserved = resident_bytes(module), held_bytes(module)
        memo: dict[Hashable, Tiled] = {}
        ops = []
        there: tuple[Kept, ...] = ()
        for op in module.body.ops:
            if op.name == "kernel" and "tile" not in op.attrs:
                left = usable - live.get(op, 0) - reserved.get(str(op.attrs["name"]), 0)
                budget, room = (min(int(usable * n), left) for n in (self.share, self.kept))
                factors = op.operands[:FACTORS]
                offer = tuple((factors.index(v), lie) for v, lie in there if v in factors)
                key = signature(op, without=UNREAD), budget, room, offer
                if key not in memo:
                    memo[key] = self._fitted(Nest(op), budget, room, left, target.device, offer)
                tile, loops, keep, finish, ahead, why = memo[key]
                op = op.with_attrs(tile=tile, loops=loops, why_tile=why)
                op = op.with_attrs(keep=keep) if keep else op
                op = op.with_attrs(finish=finish) if finish else op
                op = op.with_attrs(ahead=ahead) if ahead else op
            if op.name == "kernel":
                found = held(op, there)
                if found or "held" in op.attrs:
                    op = op.with_attrs(held=found)
                there = offered(op)
            ops.append(op)
        attrs = {key: value for key, value in module.attrs.items() if key != "held"}
        body = replace(module.body, ops=tuple(ops))
        return replace(module, body=body, attrs=MappingProxyType(attrs))

    def _fitted(
        self, nest: Nest, budget: int, room: int, left: int, device: DeviceSpec,
        offer: Sequence[Offer],
    ) -> Tiled:
        """As ``tiled``; all that is ``left``, when the smallest tile takes more than the usual
        share."""
        try:
            return self.tiled(nest, budget, room, device, offer)
        except CapacityError as error:
            try:
                return self.tiled(nest, max(budget, left), max(room, left), device, offer)
            except CapacityError:
                raise CapacityError(str(error), (nest.name,)) from None

    def tiled(
        self, nest: Nest, budget: int, room: int, device: DeviceSpec,
        offer: Sequence[Offer] = (),
    ) -> Tiled:
        """Tile, loops, kept factors, the tile it ends with, slots of its factors and why, of a
        kernel whose tiles may take ``budget`` bytes, with factors that stay ``room`` bytes;
        CapacityError when not even the smallest fit. ``offer``: as in ``tile_contract``."""
        match nest.kind:
            case "contract":
                return tile_contract(nest, budget, room, device, offer, self.ahead)
            case "move":
                tile = self._tile_move(nest, budget, device)
                smaller = _smaller(nest, tile, _free(nest, tile, ()), device)[:RUNNERS_UP]
                why = move_bytes(nest, tile), budget, None, tuple((t, (), None) for t in smaller)
                return tile, (), (), (), 0, why
            case "gather":
                last = len(nest.extents) - 1
                most = (
                    nest.local[d]
                    if d == last
                    else min(nest.local[d], GROUP)
                    if d == last - 1
                    else 1
                    for d in range(last + 1)
                )
                return (
                    tuple(p or t for p, t in zip(pinned(nest, "tile"), most, strict=True)),
                    (),
                    (),
                    (),
                    0,
                    (None, budget, None, ()),
                )
        tile, passed = self._tile_vector(nest, budget, device)
        smaller = _smaller(nest, tile, _free(nest, tile, nest.whole | _windows(nest)), device)
        others = tuple((t, _looped(nest, t), None) for t in (*passed, *smaller)[:RUNNERS_UP])
        numbers = tile_bytes(nest, tile), budget, None, others
        return tile, _looped(nest, tile), (), (), 0, numbers

    def _tile_vector(
        self, nest: Nest, budget: int, device: DeviceSpec
    ) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        """Halve dimensions that can shrink until the tile fits and streams in pieces. Also the last
        larger tile, if it fits and is only too large to stream."""
        pins = pinned(nest, "tile")
        tile = [p or n for p, n in zip(pins, nest.local, strict=True)]
        for d in beyond_rank(nest):
            tile[d] = 1
        fixed = nest.whole | _windows(nest)
        streamed = any(v.type.space != "lx" for v in nest.op.operands if v.type.size > 1)
        passed: list[tuple[int, ...]] = []
        while True:
            size = tile_bytes(nest, tuple(tile))
            small = not streamed or size <= self.stream_bytes * 4
            if size <= budget and small:
                break
            free = _free(nest, tile, fixed)
            if not free:
                if size <= budget:
                    break
                raise CapacityError(
                    f"tiling: {nest.name} needs {size / 2**20:.2f} MiB of scratchpad for its "
                    f"smallest tile, the budget is {budget / 2**20:.2f} MiB (from {nest.op.loc})"
                )
            passed = [tuple(tile)] if size <= budget else []
            tile = _halved(nest, tile, free, device)
        return tuple(tile), passed

    def _tile_move(self, nest: Nest, budget: int, device: DeviceSpec) -> tuple[int, ...]:
        pins = pinned(nest, "tile")
        tile = [p or n for p, n in zip(pins, nest.local, strict=True)]
        while move_bytes(nest, tuple(tile)) > budget:
            free = _free(nest, tile, ())
            if not free:
                raise CapacityError(
                    f"tiling: {nest.name} needs {move_bytes(nest, tuple(tile)) / 2**20:.2f} MiB of "
                    f"scratchpad for its smallest tile, the budget is {budget / 2**20:.2f} MiB "
                    f"(from {nest.op.loc})"
                )
            tile = _halved(nest, tile, free, device)
        return tuple(tile)


def _halved(nest: Nest, tile: list[int], free: Sequence[int], device: DeviceSpec) -> list[int]:
    """The first of the ``_smaller`` tiles."""
    return list(_smaller(nest, tile, free, device)[0])


def _smaller(
    nest: Nest, tile: Sequence[int], free: Sequence[int], device: DeviceSpec
) -> list[tuple[int, ...]]:
    """The tiles with one of the ``free`` dimensions halved: first those that leave the runs in card
    memory long, folded dimensions last, then the one of most steps, the outermost of equals."""

    def half(d: int) -> list[int]:
        grain = nest.grain(d)
        return [*tile[:d], max(grain, -(-tile[d] // (2 * grain)) * grain), *tile[d + 1 :]]

    def worse(d: int) -> tuple[float, bool, int]:
        requests = bursts(nest, half(d), device.hbm.burst_bytes)
        return requests, d in nest.summed, -(tile[d] // nest.grain(d))

    return [tuple(half(d)) for d in sorted(free, key=worse)]


def _free(nest: Nest, tile: Sequence[int], fixed: Collection[int]) -> list[int]:
    """Dimensions along which the tile can be smaller, pinned ones left out."""
    pins = pinned(nest, "tile")
    sizes = enumerate(tile)
    return [d for d, n in sizes if n > nest.grain(d) and d not in fixed and not pins[d]]


def _looped(nest: Nest, tile: Sequence[int]) -> tuple[int, ...]:
    """The dimensions of a vector kernel that such tiles leave a loop over, in order."""
    loops = [d for d in range(len(tile)) if -(-nest.local[d] // tile[d]) > 1]
    return pinned_loops(nest, loops)


def _windows(nest: Nest) -> frozenset[int]:
    """Taps of a pooling or depthwise window: never tiled."""
    if nest.kind != "fold" or not nest.op.regions[0].ops[0].attrs.get("strides"):
        return frozenset()
    return nest.summed


def beyond_rank(nest: Nest) -> list[int]:
    """An instruction has six dimensions: outer ones beyond that are looped one by one."""
    tile = list(nest.local)
    still = nest.whole | _windows(nest) | {nest.stick}
    free = [d for d in range(len(tile)) if tile[d] > 1 and d not in still]
    looped = []
    while free and _rank(nest, tile) > RANK:
        looped.append(free.pop(0))
        tile[looped[-1]] = 1
    return looped


def _rank(nest: Nest, tile: Sequence[int]) -> int:
    """Most dimensions that an instruction on such a tile iterates: the vector unit those of the
    kernel, a transfer those of its tensor, and the sticks of a group of wide elements."""
    most = sum(n > 1 or d == nest.stick for d, n in enumerate(tile))
    tensors = (
        *zip(nest.op.operands, nest.maps, strict=True),
        *zip(nest.op.results, nest.out_maps, strict=True),
    )
    for v, m in tensors:
        if m and v.type.space != "lx":
            assert v.type.layout is not None
            shape = tile_shape(m, tile)
            steps = (n > v.type.layout.unit(t) for t, n in enumerate(shape))
            most = max(most, sum(steps) + (v.type.dtype.bits > 16))
    return most


def tile_bytes(
    nest: Nest, tile: Sequence[Whole], lean: bool = False, but: Collection[int] = (),
    results: bool = True,
) -> Whole:
    """Scratchpad bytes of one kernel's tile buffers: streamed operands and, with ``results``, what
    is stored in all their slots, temporaries once; operands ``but`` not counted. ``lean``: what no
    loop changes once only, as the buffers really are; the usual count leaves room for the next
    kernel's weights.
    """
    block: Block = nest.op.regions[0]
    parts = stages(block, [a for a in block.args if a.type.size == 1])
    taken: dict[Value, Value] = taken_rooms(nest, parts)
    ends = [
        end for i, end in enumerate(zip(nest.op.operands, nest.maps, strict=True)) if i not in but
    ]
    made = zip(block.results, nest.op.results, nest.out_maps, strict=True)
    ends += ((r, m) for v, r, m in made if results and v not in taken)
    total = 0 * tile[0]
    for v, m in ends:
        if v.type.space != "lx" and (v.type.size > 1 or v in nest.op.results):
            total = total + streamed_bytes(nest, v, m, tile, lean)
    made_here = {*block.results, *taken}
    lanes = prod(
        -(-n // GROUP) * 128 if d == nest.stick else n
        for d, n in enumerate(tile)
        if d in nest.parallel | nest.whole
    )
    for stage in parts:
        kept = stage.result not in made_here or (stage.head is not None and reused(stage, parts))
        if kept and not (nest.kind == "contract" and stage.head is not None):
            share = stage.result.type.size / max(
                1, prod(nest.extents[d] for d in nest.parallel | nest.whole)
            )
            total = total + _whole(lanes * 2 * min(1.0, share)) + 256
    if nest.kind == "vec" and any(nest.local[d] > tile[d] for d in nest.summed):
        sums = tuple(1 if d in nest.summed else int(n) for d, n in enumerate(tile))
        total += Layout.stick(sums, 32, nest.stick).sticks * 128 * nest.buffers
    return total


def streamed_bytes(nest: Nest, v: Value, m: Map, tile: Sequence[Whole], lean: bool) -> Whole:
    """Scratchpad bytes of the buffers of one operand or result. ``lean`` as in ``tile_bytes``."""
    assert v.type.layout is not None
    size = buffer_sticks(tile_shape(m, tile), v.type.layout) * STICK * nest.buffers
    if not lean:
        return size
    still = prod(n >= nest.local[d] for d, n in enumerate(tile) if spans(m, d))
    return size // nest.buffers * (nest.buffers - (nest.buffers - 1) * still)


def _whole(x: Any) -> Any:
    """A float, or each of an array, rounded down."""
    return int(x) if isinstance(x, float) else x.astype(np.int64)


def move_bytes(nest: Nest, tile: tuple[int, ...]) -> int:
    """Scratchpad bytes of a move's buffers, all slots: source windows that stream and the result
    tile.
    """
    return sum(size * nest.buffers for _, size in move_buffers(nest.op, tile))


def move_buffers(op: Op, tile: tuple[int, ...]) -> list[tuple[str, int]]:
    """(role, bytes of a slot): ``src<i>`` for operands that stream and are repacked, ``dst`` for a
    result tile.
    """
    r = op.results[0]
    assert r.type.layout is not None
    out, direct = [], is_direct(op)
    streamed = [i for i, v in enumerate(op.operands) if v.type.space != "lx"]
    for i in streamed:
        layout = op.operands[i].type.layout
        assert layout is not None
        shape = None if direct else source_window(op, i, tile)
        if shape is not None:
            out.append((f"src{i}", buffer_sticks(shape, layout) * 128))
    if r.type.space != "lx" and (not direct or streamed):
        out.append(("dst", buffer_sticks(tile, r.type.layout) * 128))
    return out


def tile_contract(
    nest: Nest, budget: int, room: int, device: DeviceSpec, offer: Sequence[Offer] = (),
    most: int = AHEAD[-1],
) -> Tiled:
    """(tile, loops, keep, finish, ahead, why) of a matrix kernel that costs least; CapacityError
    when nothing fits. ``room``: bytes for its buffers when some of its factors stay. ``offer``:
    factors that the kernel before has left in the scratchpads, with how their tiles lie; ``most``:
    slots that factors may stream through."""
    ways, costs = options(tilings(nest, device).with_kept(room), device, most)
    if pinned_finish(nest) and ways.ended.any():  # where some tile can be ended so
        ways, costs = ways.take(ways.ended), costs[ways.ended]
    costs = _with_held(ways, costs, offer, device)
    for lean in (False, True):
        streamed, total = contract_bytes(ways, lean)
        fits = np.flatnonzero((streamed <= budget) & (total <= max(budget, room)))
        if len(fits):
            break
    else:
        part = dict(zip(nest.dim_names, nest.local, strict=True))
        raise CapacityError(
            f"tiling: no tile of {nest.name} {part} fits {budget / 2**20:.2f} MiB of scratchpad "
            f"(from {nest.op.loc})"
        )
    best = fits[np.argsort(costs[fits], kind="stable")]
    first = best[0]
    tile, loops, keep = ways.tiles(first), ways.loops(first), ways.kept(first)
    rejected: dict[tuple[Counts, Counts], float] = {}
    for i in best[1:]:
        if len(rejected) == RUNNERS_UP:
            break
        other = ways.tiles(i), ways.loops(i)
        if other != (tile, loops):  # two sizes to try may come to one tile
            rejected.setdefault(other, float(costs[i]))
    others = tuple((t, o, c) for (t, o), c in rejected.items())
    why = int(total[first]), room if keep else budget, float(costs[first]), others
    return tile, loops, keep, ways.finish(first), int(ways.ahead[first]), why


def _with_held(
    ways: Tilings, costs: Floats, offer: Sequence[Offer], device: DeviceSpec
) -> Floats:
    """[way]: the ``costs`` when what the kernel before has left in the right places does not come
    again."""
    away = ways.away.copy()
    for factor, lie in offer:
        away[factor] &= ~found_there(ways, factor, lie)
    spared = np.flatnonzero((away != ways.away).any(axis=0))
    if not len(spared):
        return costs
    costs = costs.copy()
    costs[spared] = contract_costs(replace(ways, away=away).take(spared), device)
    return costs


def contract_bytes(ways: Tilings, lean: bool) -> tuple[Ints, Ints]:
    """[way]: scratchpad bytes of what streams through the tiles of one matrix kernel, counted as
    ``tile_bytes`` does where they are not ended in pieces, and with the factors that stay."""
    nest, factors, ended = ways.nest, range(FACTORS), ways.ended
    tile = [*ways.tile]
    total: Ints = tile_bytes(nest, tile, lean, factors)
    if ended.any():
        total = total.copy()
        total[ended] = _pieces_bytes(ways.take(ended))
    streamed = total
    for i in factors:
        v, m, keep = nest.op.operands[i], nest.maps[i], ways.keep[i]
        assert v.type.layout is not None
        one = buffer_sticks(tile_shape(m, tile), v.type.layout) * STICK
        more = np.maximum(0, ways.ahead - nest.buffers) * one
        through = np.where(
            ended, ways.ahead * one, streamed_bytes(nest, v, m, tile, lean) + more
        ) * ways.away[i]
        streamed = streamed + np.where(keep, 0, through)
        total = total + np.where(keep, ways.kept_bytes(i), through)
    return streamed, total


def _pieces_bytes(ways: Tilings) -> Ints:
    """[way]: scratchpad bytes of what is there for a piece of a tile, beside the factors."""
    nest, tile, pieces = ways.nest, [*ways.pieces_tile], ways.pieces
    total: Ints = tile_bytes(nest, tile, True, range(len(nest.op.operands)), results=False)
    once = prod(np.where(ways.own, ways.counts, 1)) == 1
    slots = np.zeros(len(ways), np.int64)
    for number in np.unique(pieces).tolist():
        for one in (False, True):
            slots[(pieces == number) & (once == one)] = slots_of(nest.buffers, number, one)
    ends = [*zip(nest.op.operands, nest.maps, strict=True)][FACTORS:]
    ends = [(v, m) for v, m in ends if v.type.size > 1]
    for v, m in (*ends, *zip(nest.op.results, nest.out_maps, strict=True)):
        if v.type.space != "lx":
            assert v.type.layout is not None
            size = buffer_sticks(tile_shape(m, tile), v.type.layout) * STICK
            total = total + size * (slots if spans(m, nest.stick) else 1)
    return total
