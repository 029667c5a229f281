"""Arithmetic, comparisons, logic, casts and the activations."""

from __future__ import annotations

import math

import numpy as np

from spyrec.ir.types import DTYPES, DType

from .emit import BOOL, F32, I64, Handle, Known, Unsupported
from .torch_site import Converter, Site, Table, scalar_dtype

_UNARY = {
    "neg": "neg", "abs": "abs", "exp": "exp", "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt",
    "reciprocal": "reciprocal", "sin": "sin", "cos": "cos", "tanh": "tanh", "sigmoid": "sigmoid",
    "erf": "erf", "relu": "relu", "square": "square", "silu": "silu", "mish": "mish",
    "hardswish": "hard_swish", "selu": "selu",
}  # fmt: skip
"""Name -> op of one operand, computed in the type of the result."""

_COMPARE = {
    "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "less": "lt",
    "greater": "gt", "less_equal": "le", "greater_equal": "ge", "not_equal": "ne",
}  # fmt: skip

_LOGIC = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
_BITWISE = {
    "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "__and__": "and",
    "__or__": "or", "__xor__": "xor",
}  # fmt: skip

_ON_BITS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}

_RANK = {"bool": 0, "int": 1, "float": 2}
LN2 = math.log(2.0)


def promoted(a: DType, b: DType) -> DType:
    """torch's common type of two tensors: the higher kind, then the wider; two 16-bit floats meet
    in 32 bits."""
    if a == b:
        return a
    if _RANK[a.kind] != _RANK[b.kind]:
        return a if _RANK[a.kind] > _RANK[b.kind] else b
    if a.bits == b.bits:
        return F32 if a.kind == "float" else DTYPES["i16" if a.bits == 8 else "i64"]
    return a if a.bits > b.bits else b


def common(s: Site, *names: str) -> DType:
    """The type in which two or more arguments meet; a number only counts when its kind is higher
    than that of every tensor."""
    tensors = [t.type.dtype for n in names if not isinstance(t := s.get(n), bool | int | float)]
    numbers = [scalar_dtype(v) for n in names if isinstance(v := s.get(n), bool | int | float)]
    found = tensors[0] if tensors else numbers[0]
    for dtype in tensors[1:]:
        found = promoted(found, dtype)
    for dtype in numbers:
        found = dtype if _RANK[dtype.kind] > _RANK[found.kind] else found
    return found


def _unary(op: str) -> Converter:
    return lambda s: s.emit(op, s.operand(first(s), s.dtype))


def _whole(op: str) -> Converter:
    """Rounding, of which whole numbers need none."""

    def convert(s: Site) -> Handle:
        x = s.operand(first(s), s.dtype)
        if s.dtype.kind != "float":
            return x
        tenths = 10.0 ** s.int_("decimals", 0)
        return s.scale(s.emit(op, s.scale(x, tenths)), 1 / tenths)

    return convert


def _sign(s: Site) -> Handle:
    x = s.operand("self", s.dtype)
    return x if s.dtype == BOOL else s.emit("sign", x)


def first(s: Site) -> str:
    """The name of the first argument: self, or input."""
    return next(iter(s.args), "self")


def extreme(s: Site, op: str, a: Handle, b: Handle) -> Handle:
    """The larger or smaller of two tensors; true counts as larger."""
    if s.dtype == BOOL:
        op = "or" if op == "max" else "and"
    return s.emit(op, a, b)


def _extreme(op: str) -> Converter:
    return lambda s: extreme(s, op, s.operand("self", s.dtype), s.operand("other", s.dtype))


def _number_of_two(op: str) -> Converter:
    """As maximum or minimum, but a number wins over a NaN."""

    def convert(s: Site) -> Handle:
        a, b = s.operand("self", s.dtype), s.operand("other", s.dtype)
        found = extreme(s, op, a, b)
        if s.dtype.kind != "float":
            return found
        found = s.emit("where", s.emit("isnan", b), a, found)
        return s.emit("where", s.emit("isnan", a), b, found)

    return convert


def _compare(op: str) -> Converter:
    def convert(s: Site) -> Handle:
        dtype = common(s, "self", "other")
        if dtype == BOOL and op not in ("eq", "ne"):
            dtype = DTYPES["i32"]
        return s.emit(op, s.operand("self", dtype), s.operand("other", dtype))

    return convert


def truth(s: Site, x: Handle) -> Handle:
    """Whether each element is not zero."""
    return x if x.type.dtype == BOOL else s.emit("ne", x, s.const(0, x.type.dtype))


def _logic(op: str) -> Converter:
    return lambda s: s.emit(op, truth(s, s.tensor("self")), truth(s, s.tensor("other")))


def _bitwise(op: str) -> Converter:
    def convert(s: Site) -> Handle:
        a, b = s.operand("self", s.dtype), s.operand("other", s.dtype)
        if s.dtype == BOOL:
            return s.emit(op, a, b)
        if not isinstance(a, Known) or not isinstance(b, Known):
            raise Unsupported(f"it works on the bits of {s.dtype} numbers")
        return s.const(_ON_BITS[op](a.array, b.array), s.dtype)

    return convert


def _not(s: Site) -> Handle:
    return s.emit("not", truth(s, s.tensor("self")))


def _bitwise_not(s: Site) -> Handle:
    if s.dtype != BOOL:
        raise Unsupported(f"it works on the bits of {s.dtype} numbers")
    return _not(s)


def _add(op: str) -> Converter:
    """self + alpha * other, or minus."""

    def convert(s: Site) -> Handle:
        if s.dtype == BOOL:
            return s.emit("or", s.operand("self", BOOL), s.operand("other", BOOL))
        other = s.scale(s.operand("other", s.dtype), s.get("alpha", 1))
        return s.emit(op, s.operand("self", s.dtype), other)

    return convert


def _rsub(s: Site) -> Handle:
    mine = s.scale(s.operand("self", s.dtype), s.get("alpha", 1))
    return s.emit("sub", s.operand("other", s.dtype), mine)


def _mul(s: Site) -> Handle:
    op = "and" if s.dtype == BOOL else "mul"
    return s.emit(op, s.operand("self", s.dtype), s.operand("other", s.dtype))


def _div(s: Site) -> Handle:
    a, b = s.operand("self", s.dtype), s.operand("other", s.dtype)
    mode = s.str_("rounding_mode", "")
    if s.dtype.kind == "int" and mode == "floor":
        return s.emit("div", s.emit("sub", a, s.emit("mod", a, b)), b)
    found = s.emit("div", a, b)
    if not mode or s.dtype.kind == "int":
        return found
    return s.emit("floor", found) if mode == "floor" else truncated(s, found)


def _floor_divide(s: Site) -> Handle:
    a, b = s.operand("self", s.dtype), s.operand("other", s.dtype)
    if s.dtype.kind == "int":
        return s.emit("div", s.emit("sub", a, s.emit("mod", a, b)), b)
    return s.emit("floor", s.emit("div", a, b))


def truncated(s: Site, x: Handle) -> Handle:
    up = s.emit("lt", x, s.const(0, x.type.dtype))
    return s.emit("where", up, s.emit("ceil", x), s.emit("floor", x))


def _pow(s: Site) -> Handle:
    exponent = s.get("exponent")
    if exponent == 2 and isinstance(exponent, int | float):
        return s.emit("square", s.operand("self", s.dtype))
    return s.emit("pow", s.operand("self", s.dtype), s.operand("exponent", s.dtype))


def _mod(fmod: bool) -> Converter:
    return lambda s: s.emit(
        "mod", s.operand("self", s.dtype), s.operand("other", s.dtype), fmod=fmod
    )


def _clamp(s: Site) -> Handle:
    x = s.operand("self", s.dtype)
    low, high = (s.args.get(n) for n in ("min", "max"))
    numbers = all(b is None or isinstance(b, bool | int | float) for b in (low, high))
    if numbers and s.dtype.kind == "float":
        bounds = [None if b is None else float(b) for b in (low, high)]  # type: ignore[arg-type]
        return s.emit("clip", x, min=bounds[0], max=bounds[1])
    x = x if low is None else extreme(s, "max", x, s.operand("min", s.dtype))
    return x if high is None else extreme(s, "min", x, s.operand("max", s.dtype))


def _bounded(low: float, high: float) -> Converter:
    def convert(s: Site) -> Handle:
        bounds = s.float_("min_val", low), s.float_("max_val", high)
        return s.emit("clip", s.operand("self", s.dtype), min=bounds[0], max=bounds[1])

    return convert


def _where(s: Site) -> Handle:
    return s.emit(
        "where", truth(s, s.tensor("condition")), s.operand("self", s.dtype),
        s.operand("other", s.dtype),
    )  # fmt: skip


def _masked_fill(s: Site) -> Handle:
    x = s.operand("self", s.dtype)
    return s.emit("where", truth(s, s.tensor("mask")), s.operand("value", s.dtype), x)


def _same(s: Site) -> Handle:
    return s.rounded(s.tensor(first(s)))


def _dropout(s: Site) -> Handle:
    if s.bool_("train"):
        raise Unsupported("it is in training mode; call model.eval() before the export")
    return s.tensor(first(s))


def _copy(s: Site) -> Handle:
    """The elements of another tensor in the type and shape of this one."""
    x = s.tensor("self").type
    return s.broadcast(s.operand("src", x.dtype), x.static_shape)


def _fill(s: Site) -> Handle:
    x = s.tensor("self").type
    return s.broadcast(s.operand("value", x.dtype), x.static_shape)


def _zero(s: Site) -> Handle:
    x = s.tensor("self").type
    return s.broadcast(s.const(0, x.dtype), x.static_shape)


def _leaky_relu(s: Site) -> Handle:
    return s.emit("leaky_relu", s.operand("self", s.dtype), alpha=s.float_("negative_slope", 0.01))


def _elu(s: Site) -> Handle:
    if s.float_("input_scale", 1.0) != 1.0:
        raise Unsupported("its input_scale is set")
    found = s.emit("elu", s.operand("self", s.dtype), alpha=s.float_("alpha", 1.0))
    return s.scale(found, s.float_("scale", 1.0))


def _celu(s: Site) -> Handle:
    return s.emit("celu", s.operand("self", s.dtype), alpha=s.float_("alpha", 1.0))


def _gelu(s: Site) -> Handle:
    return s.emit(
        "gelu", s.operand("self", s.dtype), approximate=s.str_("approximate", "none")
    )


def _softplus(s: Site) -> Handle:
    """log(1 + exp(beta x)) / beta, and x itself where beta x is above the threshold."""
    x = s.operand("self", s.dtype)
    beta, threshold = s.float_("beta", 1.0), s.float_("threshold", 20.0)
    scaled = s.scale(x, beta)
    found = s.scale(s.emit("softplus", scaled), 1 / beta)
    if threshold >= 20:  # where both are equal in 32 bits
        return found
    return s.emit("where", s.emit("gt", scaled, s.const(threshold, s.dtype)), x, found)


def _hard_sigmoid(s: Site) -> Handle:
    return s.emit("hard_sigmoid", s.operand("self", s.dtype), alpha=1 / 6, beta=0.5)


def _threshold(s: Site) -> Handle:
    x = s.operand("self", s.dtype)
    above = s.emit("gt", x, s.operand("threshold", s.dtype))
    return s.emit("where", above, x, s.operand("value", s.dtype))


def _prelu(s: Site) -> Handle:
    x, slope = s.operand("self", s.dtype), s.operand("weight", s.dtype)
    if x.type.rank > 1 and slope.type.size > 1:
        slope = s.reshape(slope, (slope.type.size, *(1,) * (x.type.rank - 2)))
    return s.emit("prelu", x, slope)


def _glu(s: Site) -> Handle:
    x = s.operand("self", s.dtype)
    dim = s.dim("dim", x.type.rank, -1)
    half = x.type.static_shape[dim] // 2
    a, b = (s.slice(x, dim, start, half) for start in (0, half))
    return s.emit("mul", a, s.emit("sigmoid", b))


def _log_base(base: float) -> Converter:
    return lambda s: s.scale(s.emit("log", s.operand("self", s.dtype)), 1 / math.log(base))


def _log1p(s: Site) -> Handle:
    return s.emit("log", s.emit("add", s.operand("self", s.dtype), s.const(1, s.dtype)))


def _expm1(s: Site) -> Handle:
    return s.emit("sub", s.emit("exp", s.operand("self", s.dtype)), s.const(1, s.dtype))


def _exp2(s: Site) -> Handle:
    return s.emit("exp", s.scale(s.operand("self", s.dtype), LN2))


def _tan(s: Site) -> Handle:
    x = s.operand("self", s.dtype)
    return s.emit("div", s.emit("sin", x), s.emit("cos", x))


def _hyperbolic(op: str) -> Converter:
    """sinh, cosh = (exp(x) -+ exp(-x)) / 2"""

    def convert(s: Site) -> Handle:
        x = s.operand("self", s.dtype)
        return s.scale(s.emit(op, s.emit("exp", x), s.emit("exp", s.emit("neg", x))), 0.5)

    return convert


def _is(op: str) -> Converter:
    def convert(s: Site) -> Handle:
        x = s.tensor("self")
        if x.type.dtype.kind == "float":
            return s.emit(op, x)
        return s.broadcast(s.const(False, BOOL), x.type.static_shape)

    return convert


def _is_finite(s: Site) -> Handle:
    x = s.tensor("self")
    if x.type.dtype.kind != "float":
        return s.broadcast(s.const(True, BOOL), x.type.static_shape)
    return s.emit("not", s.emit("or", s.emit("isnan", x), s.emit("isinf", x)))


def _trunc(s: Site) -> Handle:
    x = s.operand("self", s.dtype)
    return x if s.dtype.kind == "int" else truncated(s, x)


def _frac(s: Site) -> Handle:
    x = s.operand("self", s.dtype)
    return s.emit("sub", x, truncated(s, x))


def _lerp(s: Site) -> Handle:
    a, b = s.operand("self", s.dtype), s.operand("end", s.dtype)
    return s.emit("add", a, s.emit("mul", s.operand("weight", s.dtype), s.emit("sub", b, a)))


def _addc(op: str) -> Converter:
    """self + value * (tensor1 op tensor2)"""

    def convert(s: Site) -> Handle:
        both = s.emit(op, s.operand("tensor1", s.dtype), s.operand("tensor2", s.dtype))
        return s.emit("add", s.operand("self", s.dtype), s.scale(both, s.get("value", 1)))

    return convert


def _item(s: Site) -> bool | int | float:
    x = s.tensor("self")
    if not isinstance(x, Known):
        raise Unsupported("a number that steers the model is computed at run time")
    found: bool | int | float = x.array.reshape(()).item()
    return found


def _logit(s: Site) -> Handle:
    x = s.operand("self", s.dtype)
    if s.has("eps"):
        eps = s.float_("eps")
        x = s.emit("clip", x, min=eps, max=1 - eps)
    return s.emit("log", s.emit("div", x, s.emit("sub", s.const(1, s.dtype), x)))


ELEMENTWISE: Table = {
    **{name: _unary(op) for name, op in _UNARY.items()},
    **{name: _compare(op) for name, op in _COMPARE.items()},
    **{name: _logic(op) for name, op in _LOGIC.items()},
    **{name: _bitwise(op) for name, op in _BITWISE.items()},
    **dict.fromkeys((
        "to", "_to_copy", "clone", "contiguous", "alias", "detach", "lift_fresh",
        "lift_fresh_copy", "type_as", "positive", "resolve_conj", "resolve_neg", "float",
        "half",
    ), _same),
    **dict.fromkeys((
        "dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout",
    ), _dropout),
    "logical_not": _not, "bitwise_not": _bitwise_not,
    "add": _add("add"), "sub": _add("sub"), "subtract": _add("sub"), "rsub": _rsub,
    "mul": _mul, "multiply": _mul, "div": _div, "divide": _div, "true_divide": _div,
    "floor_divide": _floor_divide, "remainder": _mod(False), "fmod": _mod(True), "pow": _pow,
    "maximum": _extreme("max"), "minimum": _extreme("min"), "fmax": _number_of_two("max"),
    "fmin": _number_of_two("min"), "floor": _whole("floor"), "ceil": _whole("ceil"),
    "round": _whole("round"), "sign": _sign, "sgn": _sign, "clamp": _clamp, "clip": _clamp,
    "clamp_min": _clamp, "clamp_max": _clamp, "hardtanh": _bounded(-1.0, 1.0), "where": _where,
    "relu6": lambda s: s.emit("clip", s.operand("self", s.dtype), min=0.0, max=6.0),
    "masked_fill": _masked_fill, "copy": _copy, "fill": _fill, "zero": _zero,
    "leaky_relu": _leaky_relu, "elu": _elu, "celu": _celu, "gelu": _gelu, "softplus": _softplus,
    "hardsigmoid": _hard_sigmoid, "threshold": _threshold, "prelu": _prelu,
    "_prelu_kernel": _prelu, "glu": _glu, "log2": _log_base(2.0), "log10": _log_base(10.0),
    "log1p": _log1p, "expm1": _expm1, "exp2": _exp2, "tan": _tan, "sinh": _hyperbolic("sub"),
    "cosh": _hyperbolic("add"), "isnan": _is("isnan"), "isinf": _is("isinf"),
    "isfinite": _is_finite, "trunc": _trunc, "fix": _trunc, "frac": _frac, "lerp": _lerp,
    "addcmul": _addc("mul"), "addcdiv": _addc("div"), "item": _item,
    "_local_scalar_dense": _item, "logit": _logit,
}  # fmt: skip

__all__ = ["ELEMENTWISE", "I64", "common", "first", "promoted", "truth"]
