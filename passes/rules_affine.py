"""Rules that carry constant scales and shifts behind a convolution or matmul into its weights."""

from __future__ import annotations

import numpy as np

from spyrec.ir.core import Op, Value

from .emit import Array, Emit
from .narrow import exact_format
from .rule import Rule


def _with_constant(op: Op, e: Emit) -> tuple[Value, Value] | None:
    """(other operand, constant operand) where the constant does not widen the other one."""
    for x, c in (op.operands, op.operands[::-1]):
        floats = c.type.dtype.kind == "float"
        if floats and e.known(c) is not None and e.known(x) is None and x.type == op.result.type:
            return x, c
    return None


def _contraction(x: Value, e: Emit) -> Op | None:
    """The conv or matmul with constant weights that makes ``x`` for this reader only; not a matmul
    whose weights fit 8 bits, which scaled they would not."""
    op = e.made_by(x, "conv", "matmul")
    if op is None or not e.read_once(x) or len(op.operands) != 2:
        return None
    weights = e.known(op.operands[1])
    if weights is None or (op.name == "matmul" and exact_format(weights) is not None):
        return None
    return op


def _per_output(c: Array, op: Op) -> Array | None:
    """The scale shaped like the op's weights: one number, or one for each output channel (conv) or
    column (matmul); None if it is anything else."""
    if c.size == 1:
        return c.reshape(())
    axis = 1 - op.result.type.rank if op.name == "conv" else -1
    n = op.result.type.static_shape[axis]
    if c.ndim < -axis or c.size != n or c.shape[axis] != n:
        return None
    return c.reshape(-1, *(1,) * (op.operands[1].type.rank - 1)) if op.name == "conv" else c.ravel()


def _scale_into_weights(op: Op, e: Emit) -> Value | None:
    pair = _with_constant(op, e)
    source = None if pair is None else _contraction(pair[0], e)
    if pair is None or source is None:
        return None
    weights, known = e.known(source.operands[1]), e.known(pair[1])
    scale = None if known is None else _per_output(known, source)
    if weights is None or scale is None:
        return None
    e.absorb(source)
    wide = weights.astype(np.float64) * scale.astype(np.float64)
    scaled = e.constant(wide, source.operands[1].type.dtype)
    return e.op(source.name, source.operands[0], scaled, **source.attrs)


def _scale_through_shift(op: Op, e: Emit) -> Value | None:
    pair = _with_constant(op, e)
    inner = None if pair is None else e.made_by(pair[0], "add")
    if pair is None or inner is None or not e.read_once(pair[0]):
        return None
    shifted = _with_constant(inner, e)
    source = None if shifted is None else _contraction(shifted[0], e)
    known = e.known(pair[1])
    if shifted is None or source is None or known is None or _per_output(known, source) is None:
        return None
    scaled = e.mul(shifted[0], pair[1])
    e.absorb(inner)
    return e.add(scaled, e.mul(shifted[1], pair[1]))


def _shift_of_shift(op: Op, e: Emit) -> Value | None:
    pair = _with_constant(op, e)
    inner = None if pair is None else e.made_by(pair[0], "add")
    if pair is None or inner is None or not e.read_once(pair[0]):
        return None
    shifted = _with_constant(inner, e)
    if shifted is None or _contraction(shifted[0], e) is None:
        return None
    e.absorb(inner)
    return e.add(shifted[0], e.add(shifted[1], pair[1]))


AFFINE_RULES = (
    Rule("scale-into-weights", "mul", _scale_into_weights, "rounding",
         "(x W) c = x (W c), c one number or one an output channel: free at run time."),
    Rule("scale-through-shift", "mul", _scale_through_shift, "rounding",
         "(x W + b) c = x W c + b c, so that the scale can join the weights."),
    Rule("shift-of-shift", "add", _shift_of_shift, "rounding", "(x W + a) + b = x W + (a + b)."),
)  # fmt: skip
