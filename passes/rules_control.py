"""Decompositions of control flow: branches are chosen or selected from, loops are unrolled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spyrec.ir.core import Block, Op, Value
from spyrec.ir.types import DTYPES

from .emit import Emit
from .rule import Rule

UNROLL_MAX = 4096
"""Most ops a loop may become."""


def inline(e: Emit, block: Block, args: Sequence[Value]) -> list[Value]:
    """Emit the block's ops here; what the block yields."""
    mapped = dict(zip(block.args, args, strict=True))
    for op in block.ops:
        operands = [mapped.get(v, v) for v in op.operands]
        if op.regions:
            copies = tuple(_clone(e, region, mapped) for region in op.regions)
            attrs: dict[str, Any] = dict(op.attrs)
            made = e.builder.op(op.name, operands, loc=e.loc, regions=copies, **attrs)
            e.facts.note(made)
            results = made.results
        elif op.name == "constant":
            value = op.attrs["value"]
            assert isinstance(value, np.ndarray)
            results = (e.constant(value, op.result.type.dtype),)
        else:
            results = e.ops(op.name, *operands, **op.attrs)
        mapped.update(zip(op.results, results, strict=True))
    return [mapped.get(v, v) for v in block.results]


def _clone(e: Emit, block: Block, outer: dict[Value, Value]) -> Block:
    """A copy of a nested block under fresh names, as its own straight-line block."""
    mapped = dict(outer)
    args = tuple(e.builder.value(v.name, v.type) for v in block.args)
    mapped.update(zip(block.args, args, strict=True))
    ops = []
    for op in block.ops:
        results = tuple(e.builder.value(v.name, v.type) for v in op.results)
        regions = tuple(_clone(e, r, mapped) for r in op.regions)
        operands = tuple(mapped.get(v, v) for v in op.operands)
        ops.append(Op(op.name, operands, results, op.attrs, regions, op.loc))
        mapped.update(zip(op.results, results, strict=True))
    return Block(args, tuple(ops), tuple(mapped.get(v, v) for v in block.results))


def _if(op: Op, e: Emit) -> list[Value]:
    (cond,) = op.operands
    known = e.known(cond)
    if known is not None:
        return inline(e, op.regions[0 if bool(known) else 1], ())
    both = zip(inline(e, op.regions[0], ()), inline(e, op.regions[1], ()), strict=True)
    return [e.op("where", cond, yes, no) for yes, no in both]


def _loop(op: Op, e: Emit) -> list[Value] | None:
    trip, alive, *carried = op.operands
    known = e.known(trip)
    body = op.regions[0]
    if known is None or int(known) * max(len(body.ops), 1) > UNROLL_MAX:
        return None
    for i in range(int(known)):
        live = e.known(alive)
        if live is not None and not bool(live):
            break
        number = e.constant(np.array(i), DTYPES["i64"])
        again, *after = inline(e, body, (number, alive, *carried))
        if live is not None:
            carried, alive = after, again
            continue
        carried = [e.op("where", alive, new, old) for new, old in zip(after, carried, strict=True)]
        alive = e.op("and", alive, again)
    return carried


CONTROL_RULES = (
    Rule("if", "if", _if, "exact",
         "A known condition chooses a branch; else both are computed and one is selected."),
    Rule("loop", "loop", _loop, "exact",
         "A known trip count is unrolled; once the condition fails, values stay what they are."),
)  # fmt: skip
