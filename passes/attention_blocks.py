"""attention-blocks: how many rows of an attention are computed at a time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from spyrec.ir.core import Builder, Module, Op, Value, rewrite
from spyrec.ir.ops import attributes
from spyrec.sim.device import DeviceSpec

from .emit import Array
from .kernel import GROUP
from .manager import Target
from .rules_attention import Block, blocks_of, seen_by
from .rules_reduce import int_attr

RESIDENT_SHARE = 0.9
"""Of all scratchpads, for the scores and what softmax makes of them, as `ring-relayout` has it."""
WIN = 0.95
"""Of the time of one block: what several must promise, as this is an estimate."""
KIND = "dl16"


@dataclass(frozen=True)
class AttentionBlocks:
    """Set ``rows`` of attention ops: queries in blocks, each with the keys its rows see.

    What a constant mask (causal, sliding window) hides from a whole block is not computed, and the
    scores of a block fit the scratchpads where those of all rows do not. Against that stand more
    launches and the cutting of queries, keys and values. Heights of 64 rows, 128, 256 and so on are
    priced with the device's formulas; ``rows`` sets one height for all attentions of more rows.

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.sim.device import load_device
    >>> before = parse_module('''module "m" {
    ...   input %q: tensor<1x64x512x128xf16>
    ...   input %k: tensor<1x8x512x128xf16>
    ...   input %v: tensor<1x8x512x128xf16>
    ...   %y = attention(%q, %k, %v) {causal = true} : tensor<1x64x512x128xf16>
    ...   output "y" = %y
    ... }''')
    >>> after = AttentionBlocks().run(before, Target(load_device()))
    >>> [op.attrs["rows"] for op in after.body.ops]
    [128]
    """

    name: ClassVar[str] = "attention-blocks"
    summary: ClassVar[str] = (
        "Cuts attention into blocks of rows where that leaves out hidden keys or saves memory."
    )
    rows: int = 0

    def run(self, module: Module, target: Target) -> Module:
        known = {
            op.result: np.asarray(op.attrs["value"])
            for op in module.body.ops if op.name == "constant"
        }  # fmt: skip

        heights: dict[Hashable, int] = {}  # layers are alike

        def cut(op: Op, builder: Builder) -> Sequence[Value] | None:
            if op.name != "attention" or int_attr(_full(op), "rows"):
                return None
            key = (tuple(v.type for v in op.operands[:3]), op.operands[3:], op.attrs.get("causal"))
            if key not in heights:
                heights[key] = self.rows or best_height(
                    op, [known.get(m) for m in op.operands[3:]], target.device
                )
            height = heights[key]
            if not 0 < height < op.operands[0].type.static_shape[2]:
                return None
            builder.add(op.with_attrs(rows=height))
            return op.results

        return rewrite(module, cut)


def _full(op: Op) -> Op:
    return replace(op, attrs=MappingProxyType(attributes(op)))


def best_height(op: Op, masks: Sequence[Array | None], device: DeviceSpec) -> int:
    """The height of blocks that takes the least time, 0 for all rows at once. ``masks``: the arrays
    of the op's mask operands, None for what is not known when compiled."""
    rows, columns = op.operands[0].type.static_shape[2], op.operands[1].type.static_shape[2]
    seen = seen_by(_full(op), masks)
    once = cycles(op, blocks_of(rows, columns, 0, seen), device)
    best, least = 0, WIN * once
    height = GROUP
    while height < rows:
        took = cycles(op, blocks_of(rows, columns, height, seen), device)
        if took < least:
            best, least = height, took
        height *= 2
    return best


def cycles(op: Op, blocks: Sequence[Block], device: DeviceSpec) -> float:
    """About what attention takes in these blocks, all cores busy, from queries, keys and values on
    chip to a result on chip."""
    return sum(_block_cycles(op, b, len(blocks) > 1, device) for b in blocks)


def _block_cycles(op: Op, b: Block, cut: bool, device: DeviceSpec) -> float:
    batch, heads, _, depth = op.operands[0].type.static_shape
    groups, width = op.operands[1].type.static_shape[1], b.stop - b.start
    n = op.result.type.static_shape[3]
    cores, lx, sfp, hbm = device.cores.count, device.lx, device.sfp, device.hbm
    rows = -(-batch * heads * (b.last - b.first) // cores)  # of a core
    wide = -(-width // GROUP)
    points = rows * wide
    port = 2 * points * lx.group_bytes(KIND)
    scores = float(device.mm_total_cycles(rows, 1, depth, wide))
    softmax = float(
        device.vec_total_cycles(points, sfp.group_cycles(("max",)), port, True)
        + device.vec_total_cycles(points, sfp.group_cycles(("sub", "exp", "add")), port, True, 1)
        + device.vec_total_cycles(points, sfp.group_cycles(("mul",)), port, False, 1)
    )
    weighted = float(device.mm_total_cycles(rows, 1, width, -(-n // GROUP)))
    nbytes = points * lx.group_bytes(KIND)  # of the scores of a core
    if 2 * nbytes > RESIDENT_SHARE * lx.usable_bytes:  # they go to card memory and come back
        every = nbytes * cores
        scores = max(scores, hbm.bus_ticks(every, every, writes=True) / hbm.bytes_per_cycle)
        softmax = max(softmax, hbm.bus_ticks(every, every) / hbm.bytes_per_cycle)
    total = 3 * device.launch.start_cycles + scores + softmax + weighted
    if cut:  # each stick of queries, keys and values is sent to another core
        taken = rows * -(-depth // GROUP)
        taken += batch * groups * (depth * wide + width * -(-n // GROUP)) // cores
        total += 3 * device.launch.start_cycles + taken * device.ring.start_cycles
    return total
