"""Which values of a kernel body get a buffer of their own, and what one instruction computes.

The vector unit runs a straight-line program per lane, so elementwise ops melt into their readers. A
value is written to the scratchpad only if it must be: a reduction's result, a result of the kernel,
or something costly that several instructions need.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from spyrec.ir.core import Block, Op, Value

from .groups import WINDOWS
from .kernel import GROUP
from .primitives import REDUCTIONS

COSTLY = frozenset(
    (
        "exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "sqrt", "rsqrt", "reciprocal", "div",
        "mod",
    )
)
HEADS = WINDOWS | {"matmul", "conv"}
MAX_SOURCES = 7  # of a vector instruction


@dataclass(frozen=True, eq=False)
class Stage:
    """One instruction's worth: ``ops`` in order, the last gives ``result``; ``inputs`` are block
    arguments or results of earlier stages. ``head``: the matmul, conv, pooling or reduction in it,
    if any.
    """

    ops: tuple[Op, ...]
    result: Value
    inputs: tuple[Value, ...]
    head: Op | None


def stages(block: Block, immediates: Collection[Value] = ()) -> tuple[Stage, ...]:
    """The stages of a kernel body in an order in which they can run. ``immediates``: arguments that
    are part of the instruction; of others a stage reads MAX_SOURCES at most.
    """
    made_by = {r: op for op in block.ops for r in op.results}
    kept = {r for r in block.results if r in made_by}
    kept |= {op.result for op in block.ops if op.name in REDUCTIONS or op.name in HEADS}
    kept |= _spread(block)
    kept |= _shared(block, made_by, kept)
    while True:
        out = [_stage(op, made_by, kept) for op in block.ops if op.result in kept]
        cut = next(filter(None, (_cut(stage, immediates) for stage in out)), None)
        if cut is None:
            return tuple(out)
        kept.add(cut)


def reused(stage: Stage, among: Sequence[Stage]) -> bool:
    """Does another stage read the result?"""
    return any(stage.result in other.inputs for other in among)


def _cut(stage: Stage, immediates: Collection[Value]) -> Value | None:
    """None when the stage reads few enough sources; else the value within it that is made of the
    most of them one instruction may read."""
    behind = {v: frozenset([v]) for v in stage.inputs if v not in immediates}
    if len(behind) <= MAX_SOURCES:
        return None
    best: Value | None = None
    for op in stage.ops:
        read = frozenset[Value]().union(*(behind.get(v, frozenset()) for v in op.operands))
        behind[op.result] = read
        if len(read) <= MAX_SOURCES and (best is None or len(read) > len(behind[best])):
            best = op.result
    return best


def _stage(op: Op, made_by: dict[Value, Op], kept: set[Value]) -> Stage:
    found: dict[Op, None] = {}
    inputs: dict[Value, None] = {}

    waiting = [(op, iter(op.operands))]  # a chain may be longer than Python's stack is deep
    while waiting:
        o, left = waiting[-1]
        for v in left:
            if v in kept or v not in made_by:
                inputs[v] = None
            elif made_by[v] not in found:
                waiting.append((made_by[v], iter(made_by[v].operands)))
                break
        else:
            waiting.pop()
            found[o] = None
    head = op if op.name in REDUCTIONS or op.name in HEADS else None
    return Stage(tuple(found), op.result, tuple(inputs), head)


def _spread(block: Block) -> set[Value]:
    """Numbers spread over the lanes of one group that several groups use: spreading costs each
    time."""
    found = {
        op.result for op in block.ops
        if op.name == "broadcast_to" and _one_to_lanes(op.operands[0], op.result)
    }
    readers = [(v, op.result.type.size) for op in block.ops for v in op.operands if v in found]
    return {v for v in found if all(n > v.type.size for w, n in readers if w is v)}


def _one_to_lanes(x: Value, y: Value) -> bool:
    """Do the shapes differ in one dimension only, of 1 and of a group's lanes?"""
    pairs = zip(x.type.shape, y.type.shape, strict=False)
    return x.type.rank == y.type.rank and [p for p in pairs if p[0] != p[1]] == [(1, GROUP)]


def _shared(block: Block, made_by: dict[Value, Op], kept: set[Value]) -> set[Value]:
    """Costly values that more than one stage would compute."""
    readers: dict[Value, set[Value]] = {}
    costly: dict[Value, bool] = {}
    for op in block.ops:
        if op.result in kept:
            for inner in _stage(op, made_by, kept).ops:
                readers.setdefault(inner.result, set()).add(op.result)
    for op in block.ops:
        costly[op.result] = op.result not in kept and (
            op.name in COSTLY or any(costly.get(v, False) for v in op.operands)
        )
    heavy = {v for v, who in readers.items() if len(who) > 1 and costly[v]}
    # of a chain of shared values only the last needs a buffer
    return {v for v in heavy if not _feeds_one(v, heavy, block)}


def _feeds_one(v: Value, others: set[Value], block: Block) -> bool:
    """Is one of ``others`` all that a value is needed for?"""
    readers = [op for op in block.ops if v in op.operands]
    return len(readers) == 1 and readers[0].result in others
