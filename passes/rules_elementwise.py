"""Decompositions of activations and other one-operand functions into what the vector unit does."""

from __future__ import annotations

import math

import numpy as np

from spyrec.ir.core import Op, Value
from spyrec.ir.ops.elementwise import SELU_ALPHA, SELU_GAMMA
from spyrec.ir.rounding import int_range
from spyrec.ir.types import DType

from .emit import Emit
from .rule import Rule

_GELU_TANH_SQUARE_MAX = 100.0  # by then the gate is 0 or 1 to 1e-37
_INVERTED = (1e-30, 1e30)  # divisors whose reciprocal is an ordinary number of 8 exponent bits
_INVERTED_F16 = (2.0**-15, 2.0**14)  # and of f16, where 1e-6 has none


def polynomial(e: Emit, x: Value, coefficients: tuple[float, ...]) -> Value:
    """c0 + c1 x + c2 x^2 + ... by Horner's scheme."""
    total = e.mul(x, coefficients[-1])
    for c in reversed(coefficients[1:-1]):
        total = e.mul(e.add(total, c), x)
    return e.add(total, coefficients[0])


def number(op: Op, key: str) -> float:
    """A float attribute."""
    value = op.attrs[key]
    assert isinstance(value, int | float)
    return float(value)


def _square(op: Op, e: Emit) -> Value:
    return e.mul(op.operands[0], op.operands[0])


def _gelu_none(op: Op, e: Emit) -> Value | None:
    if op.attrs["approximate"] != "none":
        return None
    (x,) = op.operands
    gate = e.add(e.op("erf", e.mul(x, math.sqrt(0.5))), 1.0)
    return e.mul(e.mul(x, 0.5), gate)


def _gelu_tanh(op: Op, e: Emit) -> Value | None:
    if op.attrs["approximate"] != "tanh":
        return None
    (x,) = op.operands
    twice = 2.0 * math.sqrt(2.0 / math.pi)
    square = e.min(e.mul(x, x), _GELU_TANH_SQUARE_MAX)
    inner = polynomial(e, square, (twice, twice * 0.044715))
    return e.mul(x, e.op("sigmoid", e.mul(x, inner)))


def _relu(op: Op, e: Emit) -> Value:
    return e.max(op.operands[0], 0.0)


def _clip(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    for side, apply in (("min", e.max), ("max", e.min)):
        if op.attrs[side] is not None:
            x = apply(x, _bound(x.type.dtype, number(op, side), side))
    return x


def _bound(dtype: DType, bound: float, side: str) -> float:
    """Integers: the nearest whole number inside the bound, within the type's range."""
    if dtype.kind == "float":
        return bound
    low, high = int_range(dtype)
    inside = max(min(bound, high), low)
    return math.ceil(inside) if side == "min" else math.floor(inside)


def _softplus(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    tail = e.op("log", e.add(e.op("exp", e.op("neg", e.op("abs", x))), 1.0))
    return e.add(e.max(x, 0.0), tail)


def _softsign(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    return e.op("div", x, e.add(e.op("abs", x), 1.0))


def _silu(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    return e.mul(x, e.op("sigmoid", x))


def _mish(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    t = e.op("exp", e.op("neg", e.op("abs", x)))
    tt, positive = e.mul(t, t), e.test("ge", x, 0.0)
    top = e.add(e.where(positive, 1.0, tt), e.add(t, t))
    bottom = e.add(top, e.where(positive, e.add(tt, tt), 2.0))
    return e.mul(x, e.op("div", top, bottom))


def _hard_sigmoid(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    line = e.add(e.mul(x, number(op, "alpha")), number(op, "beta"))
    return e.min(e.max(line, 0.0), 1.0)


def _hard_swish(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    gate = e.min(e.max(e.add(e.mul(x, 1.0 / 6.0), 0.5), 0.0), 1.0)
    return e.mul(x, gate)


def _leaky_relu(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    alpha = number(op, "alpha")
    if 0.0 < alpha <= 1.0:
        return e.max(x, e.mul(x, alpha))
    return e.where(e.test("lt", x, 0.0), e.mul(x, alpha), x)


def _prelu(op: Op, e: Emit) -> Value:
    x, slope = op.operands
    return e.where(e.test("lt", x, 0.0), e.op("mul", x, slope), x)


def _exponential_tail(e: Emit, x: Value, alpha: float, inner: float) -> Value:
    """alpha * (exp(min(x, 0) / inner) - 1): the negative side of elu, celu and selu."""
    low = e.min(x, 0.0)
    low = low if inner == 1.0 else e.mul(low, 1.0 / inner)
    tail = e.sub(e.op("exp", low), 1.0)
    return tail if alpha == 1.0 else e.mul(tail, alpha)


def _elu(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    tail = _exponential_tail(e, x, number(op, "alpha"), 1.0)
    return e.where(e.test("gt", x, 0.0), x, tail)


def _celu(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    alpha = number(op, "alpha")
    tail = _exponential_tail(e, x, alpha, alpha)
    return e.where(e.test("gt", x, 0.0), x, tail)


def _selu(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    tail = _exponential_tail(e, x, SELU_ALPHA * SELU_GAMMA, 1.0)
    return e.where(e.test("gt", x, 0.0), e.mul(x, SELU_GAMMA), tail)


def _thresholded_relu(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    return e.where(e.test("gt", x, number(op, "alpha")), x, 0.0)


def _fmod(op: Op, e: Emit) -> Value | None:
    x, y = op.operands
    if not op.attrs["fmod"]:
        return None
    if x.type.dtype.kind == "int" and int_range(x.type.dtype)[0] == 0:
        return e.op("mod", x, y, fmod=False)
    rest = e.op("mod", e.op("abs", x), e.op("abs", y), fmod=False)
    return e.where(e.test("lt", x, 0), e.op("neg", rest), rest)


def _div_by_constant(op: Op, e: Emit) -> Value | None:
    x, y = op.operands
    known = e.known(y)
    if known is None or y.type.dtype.kind != "float" or e.known(x) is not None:
        return None
    if e.rounded(op.result) and not (np.abs(np.frexp(known)[0]) == 0.5).all():
        return None
    low, high = _INVERTED_F16 if y.type.dtype.name == "f16" else _INVERTED
    size = np.abs(known.astype(np.float64))  # the limits are no numbers of 16 bits
    if not ((size >= low) & (size <= high)).all():
        return None
    return e.op("mul", x, e.op("reciprocal", y))


def _div_by_smaller(op: Op, e: Emit) -> Value | None:
    x, y = op.operands
    if y.type.dtype.kind != "float" or y.type.size >= op.result.type.size:
        return None
    if e.known(y) is not None or e.rounded(op.result):
        return None
    root = e.made_by(y, "sqrt")
    if root is None:
        return e.op("mul", x, e.op("reciprocal", y))
    e.absorb(root)
    return e.op("mul", x, e.op("rsqrt", root.operands[0]))


def _one_over_sqrt(op: Op, e: Emit) -> Value | None:
    (x,) = op.operands
    root = e.made_by(x, "sqrt")
    if root is None:
        return None
    e.absorb(root)
    return e.op("rsqrt", root.operands[0])


ELEMENTWISE_RULES = (
    Rule("square", "square", _square, "exact", "x^2 = x * x."),
    Rule("gelu-none", "gelu", _gelu_none, "rounding", "x/2 (1 + erf(x/sqrt2))."),
    Rule("gelu-tanh", "gelu", _gelu_tanh, "rounding", "x/2 (1 + tanh(z)) = x sigmoid(2 z)."),
    Rule("relu", "relu", _relu, "exact", "relu(x) = max(x, 0)."),
    Rule("clip", "clip", _clip, "exact", "clip(x) = min(max(x, lo), hi)."),
    Rule("softplus", "softplus", _softplus, "rounding",
         "log(1 + e^x) = max(x, 0) + log(1 + e^-|x|): no overflow."),
    Rule("softsign", "softsign", _softsign, "rounding", "x / (1 + |x|)."),
    Rule("silu", "silu", _silu, "rounding", "x sigmoid(x)."),
    Rule("mish", "mish", _mish, "rounding",
         "tanh(log(1 + e^x)) as a fraction in t = e^-|x|: one exp instead of exp, log, tanh."),
    Rule("hard-sigmoid", "hard_sigmoid", _hard_sigmoid, "rounding", "clip(a x + b, 0, 1)."),
    Rule("hard-swish", "hard_swish", _hard_swish, "rounding", "x clip(x/6 + 1/2, 0, 1)."),
    Rule("leaky-relu", "leaky_relu", _leaky_relu, "exact", "max(x, a x) when 0 < a <= 1."),
    Rule("prelu", "prelu", _prelu, "exact", "x < 0 ? slope x : x."),
    Rule("elu", "elu", _elu, "rounding", "x > 0 ? x : a (e^min(x,0) - 1): no overflow."),
    Rule("celu", "celu", _celu, "rounding", "x > 0 ? x : a (e^(min(x,0)/a) - 1)."),
    Rule("selu", "selu", _selu, "rounding", "g (x > 0 ? x : a (e^min(x,0) - 1))."),
    Rule("thresholded-relu", "thresholded_relu", _thresholded_relu, "exact", "x > a ? x : 0."),
    Rule("fmod", "mod", _fmod, "exact", "The sign of x: x < 0 ? -(|x| mod |y|) : |x| mod |y|."),
    Rule("reciprocal-of-sqrt", "reciprocal", _one_over_sqrt, "rounding", "1 / sqrt(x) = rsqrt(x)."),
    Rule("div-by-constant", "div", _div_by_constant, "rounding",
         "x / c = x * (1/c) for 1e-30 <= |c| <= 1e30, of f16 2^-15 <= |c| <= 2^14: a product costs "
         "a fifth of a quotient; not before a round, where ties could fall the other way."),
    Rule("div-by-smaller", "div", _div_by_smaller, "rounding",
         "x / y = x * (1/y) where y is broadcast: one reciprocal a row instead of one an element."),
)  # fmt: skip
