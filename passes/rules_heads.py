"""Rules for the heads of attention: keys and values that are repeated for each query head are read
where they stand once, and heads are split into groups where that costs no move."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spyrec.ir.affine import MOVES, MoveSpec, as_move, compose
from spyrec.ir.core import Op, Value

from .emit import Emit
from .primitives import ELEMENTWISE
from .rule import Rule
from .rules_reduce import int_attr, ints

DEPTH_MAX = 8
"""Ops that a split of heads is carried up through."""
SMALL_SHARE = 8
"""An operand this much smaller than the result may be reshaped for it."""


@dataclass(frozen=True)
class Repeat:
    """A tensor whose blocks of ``block`` neighbouring elements are those of ``source``, each
    ``times`` times in a row."""

    source: Value
    block: int
    times: int
    ops: tuple[Op, ...]


def repeat_of(e: Emit, x: Value) -> Repeat | None:
    """What ``x`` repeats, when reshapes and a broadcast make it so; None when it does not."""
    spec: MoveSpec | None = None
    v, ops = x, []
    while v.type.size == x.type.size:
        op = e.made_by(v, "reshape", "broadcast_to", "tile", "identity")
        step = None if op is None else as_move(op)
        spec = step if spec is None or step is None else compose(step, spec, 0)
        if op is None or spec is None:
            return None
        v = op.operands[0]
        ops.append(op)
    if spec is None or len(spec.pieces) != 1 or spec.filled or v.type.size < 1:
        return None
    piece = spec.pieces[0]
    reads, writes = piece.src.flat(v.type.static_shape)[1], piece.dst.flat(spec.shape)[1]
    steps = [t for t in zip(piece.counts, reads, writes, strict=True) if t[0] > 1]
    times = x.type.size // v.type.size
    still = [t for t in steps if t[1] == 0]
    if [t[0] for t in still] != [times]:
        return None
    block = still[0][2]
    # Within a block elements follow each other; from block to block the result is `times` as far.
    factors = [(1 if w < block else times, r, w) for _, r, w in steps if r]
    return Repeat(v, block, times, tuple(ops)) if all(w == f * r for f, r, w in factors) else None


def _shared_heads(op: Op, e: Emit) -> Value | None:
    """K and V that repeat heads are read where the heads stand once."""
    q, k, v, *mask = op.operands
    if not all(isinstance(n, int) for t in (k, v) for n in t.type.shape):
        return None
    batch, heads, rows, _ = k.type.static_shape
    sources = []
    for x in (k, v):
        found = repeat_of(e, x)
        block = rows * x.type.static_shape[3]
        if found is None or found.block != block or heads % found.times:
            return None
        sources.append(found)
    times = sources[0].times
    passed = [op for s in sources for op in s.ops]
    if sources[1].times != times:
        return None
    e.absorb(*passed)
    once = [
        e.reshape(s.source, (batch, heads // times, rows, x.type.static_shape[3]))
        for s, x in zip(sources, (k, v), strict=True)
    ]
    return e.op("attention", q, *once, *mask, **op.attrs)


@dataclass(frozen=True)
class _Split:
    """Dimension ``axis`` of ``rank``, ``parts`` of which become dimensions of their own."""

    axis: int
    parts: tuple[int, ...]
    rank: int

    def axis_of(self, x: Value) -> int:
        """Where it stands in an operand that broadcasts into the result; negative: nowhere."""
        return self.axis - self.rank + x.type.rank

    def shape_of(self, x: Value) -> tuple[int, ...]:
        shape, at = x.type.static_shape, self.axis_of(x)
        if at < 0:
            return shape
        parts = self.parts if shape[at] != 1 else (1,) * len(self.parts)
        return (*shape[:at], *parts, *shape[at + 1 :])


def _split_of(source: tuple[int, ...], target: tuple[int, ...]) -> _Split | None:
    """The one dimension that a reshape splits; None when it does anything else."""
    more = len(target) - len(source)
    if more < 1 or not source:
        return None
    axis = next((d for d, n in enumerate(source) if target[d] != n), len(source) - 1)
    parts = target[axis : axis + more + 1]
    if source[axis + 1 :] != target[axis + more + 1 :] or math.prod(parts) != source[axis]:
        return None
    return _Split(axis, parts, len(source))


def _split_early(op: Op, e: Emit) -> Value | None:
    """reshape(f(x)) = f(reshape(x)) for a split of a dimension that f treats element by element."""
    (x,) = op.operands
    split = _split_of(x.type.static_shape, op.result.type.static_shape)
    made = e.facts.producers.get(x)
    if split is None or made is None or not e.read_once(x) or made.name in MOVES:
        return None
    if not _carries(made, split) or not all(_free(e, o, x, split) for o in made.operands):
        return None
    e.absorb(made)
    return _with_split(e, made, split)


def _with_split(e: Emit, op: Op, split: _Split) -> Value:
    """The op on operands whose dimension is split."""
    operands = [_operand(e, o, split) for o in op.operands]
    attrs = dict(op.attrs)
    match op.name:
        case "concat":
            attrs["axis"] = _moved(int_attr(op, "axis"), split)
        case "slice":
            for key, fill in (("starts", (0,) * len(split.parts)), ("sizes", split.parts),
                              ("steps", (1,) * len(split.parts))):  # fmt: skip
                old = ints(op, key)
                attrs[key] = (*old[: split.axis], *fill, *old[split.axis + 1 :])
    return e.op(op.name, *operands, **attrs)


def _operand(e: Emit, x: Value, split: _Split) -> Value:
    made = e.made_by(x, "concat", "slice")
    if made is not None and _carries(made, split):
        e.absorb(made)
        return _with_split(e, made, split)
    return e.reshape(x, split.shape_of(x))


def _moved(axis: int, split: _Split) -> int:
    return axis if axis < split.axis else axis + len(split.parts) - 1


def _carries(op: Op, split: _Split) -> bool:
    """Does the op leave the dimension as it is?"""
    if len(op.results) != 1 or op.result.type.rank != split.rank:
        return False
    match op.name:
        case "concat":
            return int_attr(op, "axis") != split.axis
        case "slice":
            sizes = ints(op, "sizes")[split.axis], op.operands[0].type.static_shape[split.axis]
            return sizes[0] == sizes[1] and ints(op, "steps")[split.axis] == 1
        case _:
            return op.name in ELEMENTWISE


def _free(e: Emit, x: Value, whole: Value, split: _Split, depth: int = DEPTH_MAX) -> bool:
    """Does reshaping this operand of ``whole`` cost no move of its own? It does not when the
    reshape joins a move, or nearly so when the operand is small."""
    small = x.type.size * SMALL_SHARE <= whole.type.size
    if small or e.known(x) is not None or split.axis_of(x) < 0:
        return True
    made = e.facts.producers.get(x)
    if made is None or not depth or x.type.rank != split.rank:
        return False
    if made.name in ("concat", "slice") and _carries(made, split):
        return all(_free(e, o, whole, split, depth - 1) for o in made.operands)
    if made.name in MOVES:
        return True
    single = e.read_once(x) and _carries(made, split)
    return single and all(_free(e, o, whole, split, depth - 1) for o in made.operands)


SHARED_HEADS = Rule(
    "attention-shared-heads", "attention", _shared_heads, "exact",
    "attention(q, repeat k, repeat v) = attention(q, k, v), whose query heads share key heads: "
    "keys and values are not copied.",
)  # fmt: skip

HEADS_RULES = (
    SHARED_HEADS,
    Rule("split-early", "reshape", _split_early, "exact",
         "split(f(x)) = f(split(x)) where the split of x joins the move that makes x: one launch "
         "less."),
)  # fmt: skip
