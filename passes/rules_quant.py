"""Decompositions of quantisation; constant weights fold to floats while the rule runs."""

from __future__ import annotations

from spyrec.ir.core import Op, Value
from spyrec.ir.rounding import int_range

from .emit import Emit
from .rule import Rule
from .rules_reduce import int_attr

F8_LARGEST = 448.0


def _along(e: Emit, v: Value, axis: int, rank: int) -> Value:
    """A scalar stays; a vector is laid along ``axis``."""
    if v.type.rank == 0:
        return v
    return e.reshape(v, tuple(v.type.size if d == axis else 1 for d in range(rank)))


def _params(op: Op, e: Emit) -> tuple[Value, Value]:
    """Scale and zero point, shaped to broadcast against the first operand."""
    x, scale, zero = op.operands
    axis = int_attr(op, "axis")
    return _along(e, scale, axis, x.type.rank), _along(e, zero, axis, x.type.rank)


def _dequantize(op: Op, e: Emit) -> Value:
    scale, zero = _params(op, e)
    to = op.result.type.dtype
    x = e.cast(op.operands[0], to)
    if e.splat(zero) != 0:
        x = e.sub(x, e.cast(zero, to))
    return e.mul(x, scale)


def _quantize(op: Op, e: Emit) -> Value:
    x, to = op.operands[0], op.result.type.dtype
    scale, zero = _params(op, e)
    y = e.div(x, e.cast(scale, x.type.dtype))
    whole = to.kind == "int"
    y = e.op("round", y) if whole else y
    if e.splat(zero) != 0:
        y = e.add(y, e.cast(zero, x.type.dtype))
    lo, hi = int_range(to) if whole else (-F8_LARGEST, F8_LARGEST)
    return e.cast(e.min(e.max(y, float(lo)), float(hi)), to)


QUANT_RULES = (
    Rule("dequantize", "dequantize_linear", _dequantize, "rounding", "(x - zero) scale."),
    Rule("quantize", "quantize_linear", _quantize, "rounding",
         "clip(round(x / scale) + zero) to the integer's range."),
)  # fmt: skip
