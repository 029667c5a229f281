"""Elementwise operators, logic, casts and the activations."""

from __future__ import annotations

from functools import reduce

import numpy as np

from spyrec.ir.types import DType

from .emit import BOOL, Handle, Known, Unsupported, shape_of
from .onnx_load import ELEMENT_TYPES, type_name
from .onnx_node import Converter, Node, Table

# ONNX name -> op of one operand without attributes.
_UNARY = {
    "Neg": "neg", "Abs": "abs", "Sign": "sign", "Exp": "exp", "Log": "log", "Sqrt": "sqrt",
    "Reciprocal": "reciprocal", "Sin": "sin", "Cos": "cos", "Tanh": "tanh", "Sigmoid": "sigmoid",
    "Erf": "erf", "Relu": "relu", "Softplus": "softplus", "Softsign": "softsign", "Floor": "floor",
    "Ceil": "ceil", "Round": "round", "Not": "not", "IsNaN": "isnan", "Mish": "mish",
    "HardSwish": "hard_swish",
}  # fmt: skip

_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "And": "and", "Or": "or", "Xor": "xor",
    "Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge",
}  # fmt: skip

_VARIADIC = {"Sum": "add", "Max": "max", "Min": "min"}

# ONNX name -> op and the attributes it takes, with ONNX's defaults.
_WITH_FLOATS: dict[str, tuple[str, dict[str, float]]] = {
    "LeakyRelu": ("leaky_relu", {"alpha": 0.01}),
    "Elu": ("elu", {"alpha": 1.0}),
    "Celu": ("celu", {"alpha": 1.0}),
    "ThresholdedRelu": ("thresholded_relu", {"alpha": 1.0}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
}

_SELU_ALPHA, _SELU_GAMMA = 1.6732632423543772, 1.0507009873554805


def _unary(op: str) -> Converter:
    return lambda n: n.emit(op, n.arg(0))


def _binary(op: str) -> Converter:
    return lambda n: n.emit(op, n.arg(0), n.arg(1))


def _variadic(op: str) -> Converter:
    return lambda n: reduce(lambda a, b: n.emit(op, a, b), n.args())


def _with_floats(op: str, defaults: dict[str, float]) -> Converter:
    return lambda n: n.emit(op, n.arg(0), **{k: n.float_(k, v) for k, v in defaults.items()})


def _identity(n: Node) -> Handle:
    return n.arg(0)


def _dropout(n: Node) -> list[Handle]:
    """Inference only: the input itself, and a mask that keeps everything."""
    training = n.known(2, "training_mode")
    if training is not None and training.any():
        raise Unsupported("its training_mode is set")
    x = n.arg(0)
    return [x, Known(n.hint, np.broadcast_to(np.True_, shape_of(x)), BOOL, n.loc)]


def _mean(n: Node) -> Handle:
    total = reduce(lambda a, b: n.emit("add", a, b), n.args())
    return n.emit("div", total, n.const(len(n.args()), total.type.dtype))


def element_type(number: int) -> DType:
    """The element type an attribute asks for."""
    if number not in ELEMENT_TYPES:
        raise Unsupported(f"it makes elements of type {type_name(number)}")
    return ELEMENT_TYPES[number]


def _cast(n: Node) -> Handle:
    n.need("to")
    return n.cast(n.arg(0), element_type(n.int_("to", 1)))


def _cast_like(n: Node) -> Handle:
    return n.cast(n.arg(0), n.arg(1).type.dtype)


def _pow(n: Node) -> Handle:
    """The result has the base's type; where the types differ the wider kind computes."""
    base, exponent = n.arg(0), n.arg(1)
    if base.type.dtype.kind == "int" and exponent.type.dtype.kind == "float":
        wide = n.emit("pow", n.cast(base, exponent.type.dtype), exponent)
        return n.cast(wide, base.type.dtype)
    return n.emit("pow", base, n.cast(exponent, base.type.dtype))


def _mod(n: Node) -> Handle:
    return n.emit("mod", n.arg(0), n.arg(1), fmod=bool(n.int_("fmod", 0)))


def _where(n: Node) -> Handle:
    return n.emit("where", n.arg(0), n.arg(1), n.arg(2))


def _clip(n: Node) -> Handle:
    """Bounds are attributes before opset 11, inputs since. Known ones stay attributes of ours."""
    x = n.arg(0)
    if n.opset < 11:
        bounds = {k: n.float_(k, 0.0) for k in ("min", "max") if k in n.attrs}
        return n.emit("clip", x, min=bounds.get("min"), max=bounds.get("max"))
    lo, hi = n.opt(1), n.opt(2)
    if x.type.dtype.kind == "float" and all(h is None or isinstance(h, Known) for h in (lo, hi)):
        return n.emit("clip", x, min=_bound(lo), max=_bound(hi))
    x = x if lo is None else n.emit("max", x, lo)
    return x if hi is None else n.emit("min", x, hi)


def _bound(x: Handle | None) -> float | None:
    if not isinstance(x, Known):
        return None
    if x.array.size != 1:
        raise Unsupported(f"its bound has {x.array.size} elements instead of one")
    return float(x.array.reshape(()))


def _prelu(n: Node) -> Handle:
    return n.emit("prelu", n.arg(0), n.arg(1))


def _selu(n: Node) -> Handle:
    alpha, gamma = n.float_("alpha", _SELU_ALPHA), n.float_("gamma", _SELU_GAMMA)
    if np.float32(alpha) == np.float32(_SELU_ALPHA) and np.float32(gamma) == np.float32(
        _SELU_GAMMA
    ):
        return n.emit("selu", n.arg(0))
    return n.scale(n.emit("elu", n.arg(0), alpha=alpha), gamma)


def _gelu(n: Node) -> Handle:
    return n.emit("gelu", n.arg(0), approximate=n.str_("approximate", "none"))


def _swish(n: Node) -> Handle:
    """x * sigmoid(alpha x)"""
    x, alpha = n.arg(0), n.float_("alpha", 1.0)
    if alpha == 1.0:
        return n.emit("silu", x)
    return n.emit("mul", x, n.emit("sigmoid", n.scale(x, alpha)))


def _swiglu(n: Node) -> Handle:
    return n.emit("mul", _swish(n), n.arg(1))


def _shrink(n: Node) -> Handle:
    """x + bias below -lambd, x - bias above lambd, 0 between"""
    x, bias, edge = n.arg(0), n.float_("bias", 0.0), n.float_("lambd", 0.5)
    dt = x.type.dtype
    below = n.emit("lt", x, n.const(-edge, dt))
    above = n.emit("gt", x, n.const(edge, dt))
    shifted = n.emit("where", above, n.emit("sub", x, n.const(bias, dt)), n.const(0, dt))
    return n.emit("where", below, n.emit("add", x, n.const(bias, dt)), shifted)


def _is_inf(n: Node) -> Handle:
    x, found = n.arg(0), n.emit("isinf", n.arg(0))
    zero = n.const(0, x.type.dtype)
    if not n.int_("detect_negative", 1):
        found = n.emit("and", found, n.emit("gt", x, zero))
    if not n.int_("detect_positive", 1):
        found = n.emit("and", found, n.emit("lt", x, zero))
    return found


def _tan(n: Node) -> Handle:
    return n.emit("div", n.emit("sin", n.arg(0)), n.emit("cos", n.arg(0)))


def _hyperbolic(op: str) -> Converter:
    """sinh, cosh = (exp(x) -+ exp(-x)) / 2"""

    def convert(n: Node) -> Handle:
        up, down = n.emit("exp", n.arg(0)), n.emit("exp", n.emit("neg", n.arg(0)))
        return n.scale(n.emit(op, up, down), 0.5)

    return convert


def _arc_hyperbolic(op: str) -> Converter:
    """asinh, acosh = log(|x| + sqrt(x^2 +- 1)), asinh with the sign of x put back"""

    def convert(n: Node) -> Handle:
        x, one = n.arg(0), n.const(1, n.arg(0).type.dtype)
        size = n.emit("abs", x)
        root = n.emit("sqrt", n.emit(op, n.emit("square", x), one))
        found = n.emit("log", n.emit("add", size, root))
        return n.emit("mul", n.emit("sign", x), found) if op == "add" else found

    return convert


def _atanh(n: Node) -> Handle:
    """log((1 + x) / (1 - x)) / 2"""
    x, one = n.arg(0), n.const(1, n.arg(0).type.dtype)
    ratio = n.emit("div", n.emit("add", one, x), n.emit("sub", one, x))
    return n.scale(n.emit("log", ratio), 0.5)


ELEMENTWISE: Table = {
    **{name: _unary(op) for name, op in _UNARY.items()},
    **{name: _binary(op) for name, op in _BINARY.items()},
    **{name: _variadic(op) for name, op in _VARIADIC.items()},
    **{name: _with_floats(op, defaults) for name, (op, defaults) in _WITH_FLOATS.items()},
    "Identity": _identity,
    "Dropout": _dropout,
    "Mean": _mean,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Pow": _pow,
    "Mod": _mod,
    "Where": _where,
    "Clip": _clip,
    "PRelu": _prelu,
    "Selu": _selu,
    "Gelu": _gelu,
    "Swish": _swish,
    "SwiGLU": _swiglu,
    "Shrink": _shrink,
    "IsInf": _is_inf,
    "Tan": _tan,
    "Sinh": _hyperbolic("sub"),
    "Cosh": _hyperbolic("add"),
    "Asinh": _arc_hyperbolic("add"),
    "Acosh": _arc_hyperbolic("sub"),
    "Atanh": _atanh,
}
