"""Rules that make equal modules look equal: ops that change nothing go, chains of one kind merge.

All are exact; what would change a NaN, an infinity or the sign of a zero is left alone.
"""

from __future__ import annotations

import math

import numpy as np

from spyrec.ir.core import Op, Value
from spyrec.ir.rounding import int_range
from spyrec.ir.types import DType

from .emit import Emit
from .rule import Build, Rule
from .rules_heads import SHARED_HEADS
from .rules_reduce import drop_keepdims, int_attr, ints

BROADCASTING = (
    "add", "sub", "mul", "div", "pow", "mod", "min", "max", "and", "or", "xor", "eq", "ne", "lt",
    "le", "gt", "ge", "where",
)  # fmt: skip

_FLOATS_INSIDE = {
    "f8e4m3": ("f16", "bf16", "dl16", "f32", "f64"),
    "f16": ("f32", "f64"),
    "bf16": ("f32", "f64"),
    "dl16": ("f32", "f64"),
    "f32": ("f64",),
}
_SIGNIFICANT_BITS = {"f8e4m3": 4, "bf16": 8, "dl16": 10, "f16": 11, "f32": 24, "f64": 53}


def widens(a: DType, b: DType) -> bool:
    """Whether ``b`` has every value of ``a``."""
    if a == b or a.kind == "bool":
        return True
    if a.kind == "float":
        return b.name in _FLOATS_INSIDE.get(a.name, ())
    if b.kind == "float":
        low, high = int_range(a)
        return max(-low, high + 1) <= 2 ** _SIGNIFICANT_BITS[b.name] and b.name != "f8e4m3"
    if b.kind == "int":
        (a_low, a_high), (b_low, b_high) = int_range(a), int_range(b)
        return b_low <= a_low and a_high <= b_high
    return False


def _first(op: Op, e: Emit) -> Value:
    return op.operands[0]


def _cast(op: Op, e: Emit) -> Value | None:
    (x,) = op.operands
    to = op.result.type.dtype
    if x.type.dtype == to:
        return x
    inner = e.made_by(x, "cast")
    if inner is None:
        return None
    source = inner.operands[0]
    a, b = source.type.dtype, x.type.dtype
    # A float saturates where an integer wraps, so int -> float -> int must not lose anything.
    saturates = a.kind == to.kind == "int" and b.kind == "float" and not widens(a, to)
    if not widens(a, b) or saturates:
        return None
    e.absorb(inner)
    return e.cast(source, to)


def _transpose(op: Op, e: Emit) -> Value | None:
    (x,) = op.operands
    perm = ints(op, "perm")
    inner = e.made_by(x, "transpose")
    if inner is not None:
        e.absorb(inner)
        first = ints(inner, "perm")
        return e.transpose(inner.operands[0], [first[p] for p in perm])
    moved = [p for p in perm if x.type.shape[p] != 1]
    if moved != sorted(moved):
        return None
    return x if perm == tuple(range(x.type.rank)) else _reshaped(e, x, op)


def _reshaped(e: Emit, x: Value, op: Op) -> Value:
    """``x`` in the shape of the op's result."""
    shape = op.result.type.shape
    return x if x.type.shape == shape else e.op("reshape", x, shape=shape)


def _reshape(op: Op, e: Emit) -> Value | None:
    (x,) = op.operands
    if x.type.shape == op.result.type.shape:
        return x
    inner = e.made_by(x, "reshape")
    if inner is None:
        return None
    e.absorb(inner)
    return _reshaped(e, inner.operands[0], op)


def _broadcast_to(op: Op, e: Emit) -> Value | None:
    (x,) = op.operands
    if x.type.shape == op.result.type.shape:
        return x
    inner = e.made_by(x, "broadcast_to")
    if inner is None:
        return None
    e.absorb(inner)
    return e.op("broadcast_to", inner.operands[0], shape=op.result.type.shape)


def _drop_broadcasts(op: Op, e: Emit) -> Value | None:
    """An operand need not be broadcast when the op does it again."""
    operands = list(op.operands)
    for i, x in enumerate(operands):
        inner = e.made_by(x, "broadcast_to")
        if inner is None:
            continue
        trial = [*operands[:i], inner.operands[0], *operands[i + 1 :]]
        if _broadcast_shape(trial) == op.result.type.shape:
            operands = trial
            e.absorb(inner)
    return None if operands == list(op.operands) else e.op(op.name, *operands, **op.attrs)


def _drop_leading_ones(op: Op, e: Emit) -> Value | None:
    """Operands broadcast from the right, so a reshape that only sets ones before says nothing."""
    operands = list(op.operands)
    for i, x in enumerate(operands):
        inner = e.made_by(x, "reshape")
        source = None if inner is None else inner.operands[0]
        if inner is None or source is None or not source.type.rank:
            continue
        if x.type.shape != (*(1,) * (x.type.rank - source.type.rank), *source.type.shape):
            continue
        trial = [*operands[:i], source, *operands[i + 1 :]]
        if _broadcast_shape(trial) == op.result.type.shape:
            operands = trial
            e.absorb(inner)
    return None if operands == list(op.operands) else e.op(op.name, *operands, **op.attrs)


def _broadcast_shape(values: list[Value]) -> tuple[int, ...] | None:
    if not all(isinstance(d, int) for v in values for d in v.type.shape):
        return None
    return np.broadcast_shapes(*(v.type.static_shape for v in values))


def _slice(op: Op, e: Emit) -> Value | None:
    (x,) = op.operands
    starts, steps = ints(op, "starts"), ints(op, "steps")
    if x.type.shape == op.result.type.shape and not any(starts) and set(steps) <= {1}:
        return x
    inner = e.made_by(x, "slice")
    if inner is None:
        return None
    e.absorb(inner)
    first, pace = ints(inner, "starts"), ints(inner, "steps")
    return e.op(
        "slice", inner.operands[0],
        starts=tuple(f + s * p for f, s, p in zip(first, starts, pace, strict=True)),
        sizes=op.result.type.shape,
        steps=tuple(a * b for a, b in zip(steps, pace, strict=True)),
    )  # fmt: skip


def _pad(op: Op, e: Emit) -> Value | None:
    return None if any(ints(op, "lo") + ints(op, "hi") + ints(op, "interior")) else op.operands[0]


def _concat(op: Op, e: Emit) -> Value | None:
    return op.operands[0] if len(op.operands) == 1 else None


def _concat_same(op: Op, e: Emit) -> Value | None:
    x = op.operands[0]
    if len(set(op.operands)) > 1 or x.type.shape[int_attr(op, "axis")] != 1:
        return None
    return e.op("broadcast_to", x, shape=op.result.type.shape)


def _same_type(op: Op, e: Emit) -> Value | None:
    """The operand, when the op's attributes say that nothing changes."""
    (x,) = op.operands
    match op.name:
        case "tile":
            idle = set(ints(op, "repeats")) <= {1}
        case "reverse":
            idle = all(x.type.shape[a] == 1 for a in ints(op, "axes"))
        case "clip":
            idle = op.attrs["min"] is None and op.attrs["max"] is None
        case _:
            scales = op.attrs["scales"]
            assert isinstance(scales, tuple)
            idle = x.type == op.result.type and set(scales) <= {1.0}
    return x if idle else None


def _split(op: Op, e: Emit) -> Value | None:
    return op.operands[0] if len(op.results) == 1 else None


def _undo(op: Op, e: Emit) -> Value | None:
    """neg(neg(x)) = x and not(not(x)) = x."""
    inner = e.made_by(op.operands[0], op.name)
    return None if inner is None else inner.operands[0]


def _again(op: Op, e: Emit) -> Value | None:
    """Doing it twice is doing it once."""
    return op.operands[0] if e.made_by(op.operands[0], op.name) is not None else None


def _abs_of_neg(op: Op, e: Emit) -> Value | None:
    inner = e.made_by(op.operands[0], "neg")
    if inner is None:
        return None
    e.absorb(inner)
    return e.op("abs", inner.operands[0])


def _neutral(left: float | bool | None, right: float | bool | None) -> Build:
    """The other operand, when one is filled with its neutral element: ``left`` as first operand,
    ``right`` as second; None where there is none. Zeros must also agree in sign."""

    def build(op: Op, e: Emit) -> Value | None:
        x, y = op.operands
        for this, other, neutral in ((y, x, right), (x, y, left)):
            number = e.splat(this)
            if number is None or neutral is None or other.type != op.result.type:
                continue
            signed = this.type.dtype.kind == "float"
            if number == neutral and (
                not signed or math.copysign(1, number) == math.copysign(1, neutral)
            ):
                return other
        return None

    return build


def _where(op: Op, e: Emit) -> Value | None:
    cond, x, y = op.operands
    chosen = e.splat(cond)
    if chosen is None:
        return x if x is y and x.type == op.result.type else None
    return e.broadcast(x if chosen else y, op.result.type.static_shape)


def _reduce_ones(op: Op, e: Emit) -> Value | None:
    """A reduction over dimensions of size 1."""
    (x,) = op.operands
    idle = all(x.type.shape[a] == 1 for a in ints(op, "axes"))
    return _reshaped(e, x, op) if idle else None


_FOLDING = ("sum", "mean", "max", "min", "prod")
_REDUCTIONS = (*_FOLDING, "l1", "l2", "sum_square", "log_sum_exp")


def _exact(name: str, op: str, build: Build, reason: str) -> Rule:
    return Rule(name, op, build, "exact", reason)


CANONICAL_RULES: tuple[Rule, ...] = (
    _exact("identity", "identity", _first, "identity(x) = x."),
    _exact("cast", "cast", _cast, "A cast to the own type, or after one that lost nothing."),
    _exact("transpose", "transpose", _transpose,
           "Chains merge; moving only dimensions of size 1 is a reshape."),
    _exact("reshape", "reshape", _reshape, "Chains merge; a reshape to the own shape goes."),
    _exact("broadcast", "broadcast_to", _broadcast_to, "Chains merge."),
    *(_exact(f"broadcast-into-{n}", n, _drop_broadcasts, "Elementwise ops broadcast themselves.")
      for n in BROADCASTING),
    *(_exact(f"leading-ones-{n}", n, _drop_leading_ones, "Elementwise ops set ones before shapes.")
      for n in BROADCASTING),
    _exact("slice", "slice", _slice, "Chains merge; taking everything goes."),
    _exact("pad-nothing", "pad", _pad, "Padding by nothing."),
    _exact("concat-one", "concat", _concat, "One operand alone."),
    _exact("concat-same", "concat", _concat_same, "One element again and again is a broadcast."),
    _exact("split-one", "split", _split, "One part alone."),
    *(_exact(f"idle-{n}", n, _same_type, "Attributes that change nothing.")
      for n in ("tile", "reverse", "clip", "resize")),
    _exact("neg-neg", "neg", _undo, "-(-x) = x."),
    _exact("not-not", "not", _undo, "not not x = x."),
    *(_exact(f"{n}-{n}", n, _again, "Twice is once.")
      for n in ("abs", "relu", "floor", "ceil", "round", "sign")),
    _exact("abs-neg", "abs", _abs_of_neg, "|-x| = |x|."),
    _exact("add-zero", "add", _neutral(-0.0, -0.0), "x + -0 = x (x + 0 turns -0 into 0)."),
    _exact("sub-zero", "sub", _neutral(None, 0.0), "x - 0 = x."),
    _exact("mul-one", "mul", _neutral(1, 1), "x * 1 = x."),
    _exact("div-one", "div", _neutral(None, 1), "x / 1 = x."),
    _exact("pow-one", "pow", _neutral(None, 1), "x^1 = x."),
    _exact("and-true", "and", _neutral(True, True), "x and true = x."),
    _exact("or-false", "or", _neutral(False, False), "x or false = x."),
    _exact("xor-false", "xor", _neutral(False, False), "x xor false = x."),
    _exact("where-known", "where", _where, "A known condition, or equal alternatives."),
    SHARED_HEADS,
    *(_exact(f"reduce-ones-{n}", f"reduce_{n}", _reduce_ones, "Folding single elements.")
      for n in _FOLDING),
    *(_exact(f"keepdims-{n}", f"reduce_{n}", drop_keepdims, "Keep dimensions, then reshape.")
      for n in _REDUCTIONS),
    *(_exact(f"keepdims-{n}", n, drop_keepdims, "Keep dimensions, then reshape.")
      for n in ("arg_max", "arg_min")),
)  # fmt: skip
