"""What several instructions of a vector kernel need is computed by each of them where that is
sooner done than writing it to the scratchpad and reading it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from spyrec.ir.core import Block, Builder, Op, Value
from spyrec.sim.device import DeviceSpec

from .groups import MELTS
from .kernel import Nest
from .stages import Stage, stages
from .vector_price import VectorPrice


def recomputed(op: Op, builder: Builder, device: DeviceSpec) -> Op:
    """The vector kernel in which each reader has a copy of what is cheaper computed again."""
    while True:
        block = op.regions[0]
        steps = stages(block)
        for stage in steps:
            readers = [s for s in steps if stage.result in s.inputs]
            melts = all(o.name in MELTS or o.name == "reshape" for o in stage.ops)
            inner = melts and stage.result not in block.results and len(readers) > 1
            full = stage.result.type.size == prod(Nest(op).extents)
            if inner and full and _cheaper(stage, readers, VectorPrice(op, device)):
                op = replace(op, regions=(_copied(block, stage, readers, builder),))
                break
        else:
            return op


def _cheaper(stage: Stage, readers: Sequence[Stage], price: VectorPrice) -> bool:
    """Do the readers, each with the stage's ops in it, take less than they and the stage do?"""
    apart = price.instruction(stage.ops, stage.inputs, stage.result)
    again = 0
    for r in readers:
        apart += price.instruction(r.ops, r.inputs, r.result)
        inputs = (*stage.inputs, *(v for v in r.inputs if v is not stage.result))
        again += price.instruction((*stage.ops, *r.ops), inputs, r.result)
    return again < apart


def _copied(block: Block, stage: Stage, readers: Sequence[Stage], builder: Builder) -> Block:
    """The block with the stage's ops once more for each reader but the first."""
    ops: list[Op] = []
    mine: dict[Op, Value] = {}  # reading op -> its own copy of the stage's result
    for reader in readers[1:]:
        copies: dict[Value, Value] = {}
        for o in stage.ops:
            made = builder.value(o.result.name, o.result.type)
            ops.append(
                replace(o, operands=tuple(copies.get(v, v) for v in o.operands), results=(made,))
            )
            copies[o.result] = made
        mine |= {o: copies[stage.result] for o in reader.ops if stage.result in o.operands}
    body: list[Op] = []
    for o in block.ops:
        if o in mine:
            o = replace(
                o, operands=tuple(mine[o] if v is stage.result else v for v in o.operands)
            )
        body.append(o)
        if o.results[0] is stage.result:
            body += ops
    return replace(block, ops=tuple(body))
