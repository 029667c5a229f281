"""Elementwise ops: one operand, or two and three that broadcast as numpy does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spyrec.ir.rounding import round_to
from spyrec.ir.types import DTYPES, DType, TensorType

from .shapes import broadcast, need_kind, need_same_dtype
from .spec import NO_ATTRS, TENSOR, Array, Arrays, Attrs, AttrSpec, OpDef, Site, Types, operands

BOOL = DTYPES["bool"]
NUMBERS = ("float", "int")
ANY = ("float", "int", "bool")
FLOAT = ("float",)

SELU_ALPHA = 1.67326319217681884765625  # ONNX Selu-22
SELU_GAMMA = 1.05070102214813232421875


def erf(x: Array) -> Array:
    """The error function to double precision: a table of ``math.erf`` every 1/64 and a Taylor
    step from the nearest entry, using erf'(x) = 2/sqrt(pi) exp(-x^2) and its derivatives."""
    table = np.array([math.erf(i / 64) for i in range(6 * 64 + 1)])
    magnitude = np.minimum(np.abs(x.astype(np.float64)), 6.0)  # erf(6) is 1 in double
    index = np.rint(np.nan_to_num(magnitude) * 64).astype(np.intp)
    a = index / 64
    h = magnitude - a
    slope = 2 / math.sqrt(math.pi) * np.exp(-a * a)
    # Derivatives of exp(-x^2) over it: 1, -2a, 4a^2-2, -8a^3+12a, 16a^4-48a^2+12, ...
    d = [np.ones_like(a), -2 * a]
    while len(d) < 6:
        d.append(-2 * a * d[-1] - 2 * (len(d) - 1) * d[-2])
    step = np.zeros_like(h)
    for n in reversed(range(6)):
        step = (step + d[n] / math.factorial(n + 1)) * h
    result: Array = np.copysign(table[index] + slope * step, x)
    return result.astype(x.dtype)


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def softplus(x: Array) -> Array:
    result: Array = np.logaddexp(x, np.zeros_like(x))
    return result


def gelu(x: Array, approximate: str) -> Array:
    if approximate == "tanh":
        curve: Array = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
    else:
        curve = erf(x / math.sqrt(2))
    result: Array = 0.5 * x * (1 + curve)
    return result


def clip(x: Array, low: float | None, high: float | None) -> Array:
    if x.dtype.kind == "f":
        above = x if low is None else np.maximum(x, low)
        return above if high is None else np.minimum(above, high)
    info = np.iinfo(x.dtype)
    bottom = info.min if low is None or low <= info.min else math.ceil(low)
    top = info.max if high is None or high >= info.max else math.floor(high)
    result: Array = np.minimum(np.maximum(x, min(bottom, info.max)), max(top, info.min))
    return result


def cast(x: Array, to: DType) -> Array:
    """Float to int truncates toward zero, saturates, and makes NaN 0; float to f8e4m3 saturates;
    int to a narrower int wraps; anything to bool asks whether it is not 0."""
    if to.kind == "bool":
        return np.not_equal(x, 0)
    if to.kind == "float":
        return round_to(x.astype(np.float64).clip(-448, 448) if to.name == "f8e4m3" else x, to)
    if x.dtype.kind == "f":
        return round_to(np.trunc(x), to)
    if to.name == "i4":
        return wrap_i4(x)
    return x.astype(to.np_dtype)


def wrap_i4(x: Array) -> Array:
    """The low four bits of integers, as -8..7."""
    low = np.bitwise_and(x, 15).astype(np.int8)
    return np.where(low < 8, low, low - 16).astype(np.int8)


def truncating_div(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.divide(a, b)
    if np.any(b == 0):
        raise ZeroDivisionError("an integer is divided by zero")
    q: Array = np.floor_divide(a, b)
    inexact_negative = (q * b != a) & ((a < 0) != (b < 0))
    result: Array = q + inexact_negative.astype(q.dtype)
    return result


def modulo(a: Array, b: Array, fmod: bool) -> Array:
    if a.dtype.kind != "f" and np.any(b == 0):
        raise ZeroDivisionError("an integer is divided by zero")
    result: Array = np.fmod(a, b) if fmod else np.mod(a, b)
    return result


Unary = Callable[[Array, Attrs], Any]
Binary = Callable[[Array, Array, Attrs], Any]


def _float(name: str, default: float) -> dict[str, AttrSpec]:
    return {name: AttrSpec("float", default)}


# name: (operand kinds, attributes, meaning, summary). The result has the operand's type.
_UNARY: dict[str, tuple[tuple[str, ...], Mapping[str, AttrSpec], Unary, str]] = {
    "neg": (NUMBERS, NO_ATTRS, lambda x, a: np.negative(x), "-x."),
    "abs": (NUMBERS, NO_ATTRS, lambda x, a: np.abs(x), "|x|."),
    "sign": (NUMBERS, NO_ATTRS, lambda x, a: np.sign(x), "-1, 0 or 1."),
    "square": (NUMBERS, NO_ATTRS, lambda x, a: x * x, "x * x."),
    "identity": (ANY, NO_ATTRS, lambda x, a: x, "x."),
    "not": (("bool",), NO_ATTRS, lambda x, a: np.logical_not(x), "Logical negation."),
    "relu": (NUMBERS, NO_ATTRS, lambda x, a: np.maximum(x, 0), "max(x, 0)."),
    "clip": (
        NUMBERS,
        {"min": AttrSpec("float", None), "max": AttrSpec("float", None)},
        lambda x, a: clip(x, a["min"], a["max"]),
        "x limited to min..max; None leaves a side open.",
    ),
    "exp": (FLOAT, NO_ATTRS, lambda x, a: np.exp(x), "e to the x."),
    "log": (FLOAT, NO_ATTRS, lambda x, a: np.log(x), "Natural logarithm."),
    "sqrt": (FLOAT, NO_ATTRS, lambda x, a: np.sqrt(x), "Square root."),
    "rsqrt": (FLOAT, NO_ATTRS, lambda x, a: 1 / np.sqrt(x), "1 / sqrt(x)."),
    "reciprocal": (FLOAT, NO_ATTRS, lambda x, a: 1 / x, "1 / x."),
    "sin": (FLOAT, NO_ATTRS, lambda x, a: np.sin(x), "Sine of radians."),
    "cos": (FLOAT, NO_ATTRS, lambda x, a: np.cos(x), "Cosine of radians."),
    "tanh": (FLOAT, NO_ATTRS, lambda x, a: np.tanh(x), "Hyperbolic tangent."),
    "sigmoid": (FLOAT, NO_ATTRS, lambda x, a: sigmoid(x), "1 / (1 + exp(-x))."),
    "erf": (FLOAT, NO_ATTRS, lambda x, a: erf(x), "Error function."),
    "floor": (FLOAT, NO_ATTRS, lambda x, a: np.floor(x), "Largest integer not above x."),
    "ceil": (FLOAT, NO_ATTRS, lambda x, a: np.ceil(x), "Smallest integer not below x."),
    "round": (FLOAT, NO_ATTRS, lambda x, a: np.rint(x), "Nearest integer, ties to even."),
    "softplus": (FLOAT, NO_ATTRS, lambda x, a: softplus(x), "log(1 + exp(x))."),
    "softsign": (FLOAT, NO_ATTRS, lambda x, a: x / (1 + np.abs(x)), "x / (1 + |x|)."),
    "silu": (FLOAT, NO_ATTRS, lambda x, a: x * sigmoid(x), "x * sigmoid(x)."),
    "mish": (FLOAT, NO_ATTRS, lambda x, a: x * np.tanh(softplus(x)), "x * tanh(softplus(x))."),
    "hard_swish": (
        FLOAT, NO_ATTRS, lambda x, a: x * np.clip(x / 6 + 0.5, 0, 1), "x * clip(x/6 + 1/2, 0, 1)."
    ),
    "selu": (
        FLOAT,
        NO_ATTRS,
        lambda x, a: SELU_GAMMA * np.where(x > 0, x, SELU_ALPHA * np.expm1(np.minimum(x, 0))),
        "gamma * (x above 0, alpha * (exp(x) - 1) below), with the constants of SELU.",
    ),
    "gelu": (
        FLOAT,
        {"approximate": AttrSpec("str", "none", "how erf is computed", ("none", "tanh"))},
        lambda x, a: gelu(x, a["approximate"]),
        "x times the normal distribution function of x.",
    ),
    "leaky_relu": (
        FLOAT, _float("alpha", 0.01), lambda x, a: np.where(x >= 0, x, a["alpha"] * x),
        "x above 0, alpha * x below.",
    ),
    "elu": (
        FLOAT,
        _float("alpha", 1.0),
        lambda x, a: np.where(x > 0, x, a["alpha"] * np.expm1(np.minimum(x, 0))),
        "x above 0, alpha * (exp(x) - 1) below.",
    ),
    "celu": (
        FLOAT,
        _float("alpha", 1.0),
        lambda x, a: np.where(
            x > 0, x, a["alpha"] * np.expm1(np.minimum(x, 0) / a["alpha"])
        ),
        "x above 0, alpha * (exp(x / alpha) - 1) below.",
    ),
    "hard_sigmoid": (
        FLOAT,
        _float("alpha", 0.2) | _float("beta", 0.5),
        lambda x, a: np.clip(a["alpha"] * x + a["beta"], 0, 1),
        "clip(alpha * x + beta, 0, 1).",
    ),
    "thresholded_relu": (
        FLOAT, _float("alpha", 1.0), lambda x, a: np.where(x > a["alpha"], x, 0 * x),
        "x above alpha, 0 elsewhere.",
    ),
}  # fmt: skip

# name: (operand kinds, attributes, meaning, summary). The result has the operands' element type.
_BINARY: dict[str, tuple[tuple[str, ...], Mapping[str, AttrSpec], Binary, str]] = {
    "add": (NUMBERS, NO_ATTRS, lambda x, y, a: x + y, "x + y."),
    "sub": (NUMBERS, NO_ATTRS, lambda x, y, a: x - y, "x - y."),
    "mul": (NUMBERS, NO_ATTRS, lambda x, y, a: x * y, "x * y."),
    "div": (
        NUMBERS, NO_ATTRS, lambda x, y, a: truncating_div(x, y),
        "x / y; of integers the quotient truncated toward zero.",
    ),
    "pow": (NUMBERS, NO_ATTRS, lambda x, y, a: np.power(x, y), "x to the y."),
    "mod": (
        NUMBERS,
        {"fmod": AttrSpec("bool", False, "sign of x instead of sign of y")},
        lambda x, y, a: modulo(x, y, a["fmod"]),
        "Remainder of x / y.",
    ),
    "min": (NUMBERS, NO_ATTRS, lambda x, y, a: np.minimum(x, y), "The smaller; NaN if any is."),
    "max": (NUMBERS, NO_ATTRS, lambda x, y, a: np.maximum(x, y), "The larger; NaN if any is."),
    "prelu": (
        NUMBERS, NO_ATTRS, lambda x, s, a: np.where(x >= 0, x, s * x),
        "x above 0, slope * x below.",
    ),
    "and": (("bool",), NO_ATTRS, lambda x, y, a: x & y, "Logical and."),
    "or": (("bool",), NO_ATTRS, lambda x, y, a: x | y, "Logical or."),
    "xor": (("bool",), NO_ATTRS, lambda x, y, a: x ^ y, "Logical exclusive or."),
}  # fmt: skip

# name: (operand kinds, meaning, summary). The result is bool.
_COMPARE: dict[str, tuple[tuple[str, ...], Callable[[Array, Array], Any], str]] = {
    "eq": (ANY, lambda x, y: x == y, "x equals y."),
    "ne": (ANY, lambda x, y: x != y, "x differs from y."),
    "lt": (NUMBERS, lambda x, y: x < y, "x is less than y."),
    "le": (NUMBERS, lambda x, y: x <= y, "x is at most y."),
    "gt": (NUMBERS, lambda x, y: x > y, "x is greater than y."),
    "ge": (NUMBERS, lambda x, y: x >= y, "x is at least y."),
}

_TEST: dict[str, tuple[Callable[[Array], Any], str]] = {
    "isnan": (np.isnan, "x is not a number."),
    "isinf": (np.isinf, "x is infinite."),
}


def _unary(
    name: str, kinds: tuple[str, ...], attrs: Mapping[str, AttrSpec], fn: Unary, summary: str
) -> OpDef:
    def infer(types: Types, attrs: Attrs, site: Site) -> Types:
        need_kind(types[0], kinds, "an operand", site)
        return (TensorType(types[0].shape, types[0].dtype),)

    def evaluate(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
        return (fn(arrays[0], attrs),)

    return OpDef(name, "elementwise", operands("x"), attrs, TENSOR, summary, infer, evaluate)


def _binary(
    name: str, kinds: tuple[str, ...], attrs: Mapping[str, AttrSpec], fn: Binary, summary: str
) -> OpDef:
    def infer(types: Types, attrs: Attrs, site: Site) -> Types:
        need_kind(types[0], kinds, "operands", site)
        need_same_dtype(types, site)
        return (TensorType(broadcast([t.shape for t in types], site), types[0].dtype),)

    def evaluate(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
        return (fn(arrays[0], arrays[1], attrs),)

    names = operands("x slope" if name == "prelu" else "x y")
    return OpDef(name, "elementwise", names, attrs, TENSOR, summary, infer, evaluate)


def _compare(
    name: str, kinds: tuple[str, ...], fn: Callable[[Array, Array], Any], summary: str
) -> OpDef:
    def infer(types: Types, attrs: Attrs, site: Site) -> Types:
        need_kind(types[0], kinds, "operands", site)
        need_same_dtype(types, site)
        return (TensorType(broadcast([t.shape for t in types], site), BOOL),)

    def evaluate(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
        return (fn(arrays[0], arrays[1]),)

    text = f"Whether {summary}"
    return OpDef(name, "elementwise", operands("x y"), NO_ATTRS, TENSOR, text, infer, evaluate)


def _test(name: str, fn: Callable[[Array], Any], summary: str) -> OpDef:
    def infer(types: Types, attrs: Attrs, site: Site) -> Types:
        need_kind(types[0], FLOAT, "an operand", site)
        return (TensorType(types[0].shape, BOOL),)

    def evaluate(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
        return (fn(arrays[0]),)

    text = f"Whether {summary}"
    return OpDef(name, "elementwise", operands("x"), NO_ATTRS, TENSOR, text, infer, evaluate)


def _infer_cast(types: Types, attrs: Attrs, site: Site) -> Types:
    return (TensorType(types[0].shape, attrs["to"]),)


def _eval_cast(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (cast(arrays[0], attrs["to"]),)


def _infer_where(types: Types, attrs: Attrs, site: Site) -> Types:
    need_kind(types[0], ("bool",), "a condition", site)
    need_same_dtype(types[1:], site)
    return (TensorType(broadcast([t.shape for t in types], site), types[1].dtype),)


def _eval_where(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (np.where(arrays[0], arrays[1], arrays[2]),)


DEFS: tuple[OpDef, ...] = (
    *(_unary(name, *row) for name, row in _UNARY.items()),
    *(_binary(name, *row) for name, row in _BINARY.items()),
    *(_compare(name, *row) for name, row in _COMPARE.items()),
    *(_test(name, *row) for name, row in _TEST.items()),
    OpDef(
        "cast", "elementwise", operands("x"), {"to": AttrSpec("dtype")}, TENSOR,
        "x in another element type: float to int truncates and saturates, int to int wraps.",
        _infer_cast, _eval_cast,
    ),
    OpDef(
        "where", "elementwise", operands("cond x y"), NO_ATTRS, TENSOR,
        "x where cond holds, y elsewhere.", _infer_where, _eval_where,
    ),
)  # fmt: skip
