"""PyTorch calls with what they give, computed with numpy: (operator, arguments, results).

tests/test_torch_ops.py imports and runs each without torch; with torch it also asks torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from pt2_files import Kind

Array = np.ndarray[Any, Any]
F32, I64, BOOL = np.float32, np.int64, np.bool_
INF, NAN = math.inf, math.nan


@dataclass(frozen=True)
class Fixed:
    """An operand that must be known on import."""

    array: Any


@dataclass(frozen=True)
class Case:
    target: str
    args: dict[str, Any]
    results: tuple[Array, ...]
    listed: bool = False
    tolerance: float = 1e-5

    @property
    def packet(self) -> str:
        return ".".join(self.operator.split(".")[:2])

    @property
    def operator(self) -> str:
        """With its namespace, which is torch's own when none is named."""
        return self.target if self.target.startswith("transformers.") else f"aten.{self.target}"

    def __str__(self) -> str:
        plain = [f"{k}={v}" for k, v in self.args.items() if isinstance(v, int | float | str)]
        return f"{self.target}({','.join(plain)})"


def case(target: str, want: Any, tol: float = 1e-5, listed: bool = False, **args: Any) -> Case:
    """``want``: an array, or a tuple of them (of a call that gives a list: a list)."""
    results = tuple(want) if isinstance(want, tuple | list) else (want,)
    return Case(target, args, tuple(map(np.asarray, results)), isinstance(want, list), tol)


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape) + len(shape)).standard_normal(shape).astype(F32)


def floats(*values: float) -> Array:
    return np.array(values, F32)


def ints(*values: int) -> Array:
    return np.array(values, I64)


def erf(x: Array) -> Array:
    return np.vectorize(math.erf)(x).astype(F32)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


X, Y, P = normal(2, 3), normal(3), np.abs(normal(2, 3)) + F32(0.1)
R = floats(-2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.4)
W = floats(-INF, -1.0, NAN, 0.0, INF)
I6, J6 = ints(-7, -3, 0, 2, 5, 9), ints(2, -2, 5, -3, 1, 4)
B4, C4 = np.array([1, 1, 0, 0], BOOL), np.array([1, 0, 1, 0], BOOL)

UNARY = [
    case("neg", -X, self=X), case("neg", -I6, self=I6), case("abs", abs(X), self=X),
    case("exp", np.exp(X), self=X), case("log", np.log(P), self=P),
    case("sqrt", np.sqrt(P), self=P), case("rsqrt", 1 / np.sqrt(P), self=P),
    case("reciprocal", 1 / P, self=P), case("sin", np.sin(X), self=X),
    case("sin", np.sin(ints(1, 2).astype(F32)), self=ints(1, 2)), case("cos", np.cos(X), self=X),
    case("tan", np.tan(X), self=X, tol=1e-4), case("tanh", np.tanh(X), self=X),
    case("sinh", np.sinh(X), self=X), case("cosh", np.cosh(X), self=X),
    case("sigmoid", sigmoid(X), self=X), case("erf", erf(X), self=X),
    case("relu", np.maximum(X, 0), self=X), case("relu", np.maximum(I6, 0), self=I6),
    case("floor", np.floor(R), self=R), case("floor", I6, self=I6),
    case("ceil", np.ceil(R), self=R), case("round", np.round(R), self=R),
    case("round.decimals", floats(1.23, -0.57), self=floats(1.234, -0.567), decimals=2),
    case("round.decimals", floats(1200, -0.0), self=floats(1234, -12), decimals=-2),
    case("trunc", np.trunc(R), self=R), case("fix", np.trunc(R), self=R),
    case("frac", R - np.trunc(R), self=R), case("sign", np.sign(R), self=R),
    case("sgn", np.sign(R), self=R), case("sign", B4, self=B4), case("square", X * X, self=X),
    case("silu", X * sigmoid(X), self=X), case("mish", X * np.tanh(np.log1p(np.exp(X))), self=X),
    case("hardswish", X * np.clip(X + 3, 0, 6) / 6, self=X),
    case("hardsigmoid", np.clip(X / 6 + F32(0.5), 0, 1), self=X),
    case("selu",
         F32(1.0507009873554805) * np.where(X > 0, X, F32(1.6732632423543772) * np.expm1(X)),
         self=X),
    case("log2", np.log2(P), self=P), case("log10", np.log10(P), self=P),
    case("log1p", np.log1p(P), self=P), case("expm1", np.expm1(X), self=X),
    case("exp2", np.exp2(X), self=X), case("isnan", np.isnan(W), self=W),
    case("isnan", np.zeros(6, BOOL), self=I6), case("isinf", np.isinf(W), self=W),
    case("isfinite", np.isfinite(W), self=W), case("isfinite", np.ones(6, BOOL), self=I6),
    case("logical_not", ~B4, self=B4), case("logical_not", I6 == 0, self=I6),
    case("bitwise_not", ~B4, self=B4), case("positive", X, self=X),
    case("resolve_conj", X, self=X), case("resolve_neg", X, self=X), case("clone", X, self=X),
    case("contiguous", X, self=X), case("alias", X, self=X), case("detach", X, self=X),
    case("lift_fresh", X, self=X), case("lift_fresh_copy", X, self=X),
    case("relu6", np.clip(8 * X, 0, 6), self=8 * X), case("hardtanh", np.clip(X, -1, 1), self=X),
    case("hardtanh", np.clip(X, -0.5, 0.2), self=X, min_val=-0.5, max_val=0.2),
    case("leaky_relu", np.where(X > 0, X, X * F32(0.01)), self=X),
    case("leaky_relu", np.where(X > 0, X, X * F32(0.3)), self=X, negative_slope=0.3),
    case("elu", np.where(X > 0, X, np.expm1(X)), self=X),
    case("elu", F32(2) * np.where(X > 0, X, F32(0.5) * np.expm1(X)), self=X, alpha=0.5, scale=2),
    case("celu", np.where(X > 0, X, F32(2) * np.expm1(X / 2)), self=X, alpha=2.0),
    case("gelu", X / 2 * (1 + erf(X / F32(2**0.5))), self=X),
    case("gelu", (X / 2 * (1 + np.tanh(F32(0.7978845608) * (X + F32(0.044715) * X**3)))), self=X,
         approximate="tanh"),
    case("softplus", np.log1p(np.exp(X)), self=X),
    case("softplus", np.log1p(np.exp(2 * X)) / 2, self=X, beta=2),
    case("softplus", np.where(F32(0.1) < X, X, np.log1p(np.exp(X))), self=X, threshold=0.1),
    case("threshold", np.where(F32(0.1) < X, X, F32(7)), self=X, threshold=0.1, value=7),
    case("logit", np.log(floats(0.2, 0.9) / floats(0.8, 0.1)), self=floats(0.2, 0.9)),
    case("logit", np.log(floats(0.1, 0.9) / floats(0.9, 0.1)), self=floats(-5, 5), eps=0.1),
    case("glu", X[:1] * sigmoid(X[1:]), self=X, dim=0),
    case("dropout", X, input=X, p=0.5, train=False),
    case("feature_dropout", X, input=X, p=0.5, train=False),
    case("alpha_dropout", X, input=X, p=0.5, train=False),
    case("feature_alpha_dropout", X, input=X, p=0.5, train=False),
    case("to.dtype", R.astype(I64), self=R, dtype=Kind("int64")),
    case("to.dtype", R != 0, self=R, dtype=Kind("bool")),
    case("to.dtype", X.astype(np.float16), self=X, dtype=Kind("float16")),
    case("_to_copy", B4.astype(F32), self=B4, dtype=Kind("float32")),
    case("type_as", R.astype(I64), self=R, other=I6),
]  # fmt: skip

BINARY = [
    case("add.Tensor", X + Y, self=X, other=Y),
    case("add.Tensor", X + 2 * Y, self=X, other=Y, alpha=2),
    case("add.Tensor", X + 3, self=X, other=3), case("add.Tensor", I6 + J6, self=I6, other=J6),
    case("add.Tensor", (I6 + 0.5).astype(F32), self=I6, other=0.5),
    case("add.Tensor", B4 | C4, self=B4, other=C4),
    case("add.Tensor", X + F32(4), self=X, other=np.array(4, I64)),
    case("sub.Tensor", X - Y, self=X, other=Y),
    case("sub.Tensor", X - 3 * Y, self=X, other=Y, alpha=3),
    case("subtract.Tensor", X - Y, self=X, other=Y), case("rsub.Scalar", 1 - X, self=X, other=1),
    case("rsub.Tensor", Y - 2 * X, self=X, other=Y, alpha=2),
    case("mul.Tensor", X * Y, self=X, other=Y), case("mul.Tensor", B4 & C4, self=B4, other=C4),
    case("multiply.Tensor", X * Y, self=X, other=Y), case("div.Tensor", X / P, self=X, other=P),
    case("divide.Tensor", X / P, self=X, other=P),
    case("true_divide.Tensor", (I6 / J6).astype(F32), self=I6, other=J6),
    case("div.Tensor_mode", np.floor(X / P), self=X, other=P, rounding_mode="floor"),
    case("div.Tensor_mode", np.trunc(X / P), self=X, other=P, rounding_mode="trunc"),
    case("div.Tensor_mode", I6 // J6, self=I6, other=J6, rounding_mode="floor"),
    case("div.Tensor_mode", np.trunc(I6 / J6).astype(I64), self=I6, other=J6,
         rounding_mode="trunc"),
    case("floor_divide", I6 // J6, self=I6, other=J6),
    case("floor_divide", X // P, self=X, other=P),
    case("remainder.Tensor", I6 % J6, self=I6, other=J6),
    case("remainder.Tensor", X % P, self=X, other=P),
    case("fmod.Tensor", np.fmod(I6, J6), self=I6, other=J6),
    case("fmod.Scalar", np.fmod(X, F32(0.3)), self=X, other=0.3),
    case("pow.Tensor_Scalar", X**2, self=X, exponent=2),
    case("pow.Tensor_Scalar", P**F32(0.3), self=P, exponent=0.3),
    case("pow.Tensor_Scalar", I6**3, self=I6, exponent=3),
    case("pow.Scalar", F32(2) ** X, self=2, exponent=X),
    case("pow.Tensor_Tensor", P**X, self=P, exponent=X),
    case("maximum", np.maximum(X, Y), self=X, other=Y),
    case("minimum", np.minimum(X, Y), self=X, other=Y),
    case("maximum", np.maximum(W, floats(0, NAN, 1, NAN, 2)), self=W,
         other=floats(0, NAN, 1, NAN, 2)),
    case("maximum", B4 | C4, self=B4, other=C4), case("minimum", B4 & C4, self=B4, other=C4),
    case("fmax", np.fmax(W, floats(0, NAN, 1, NAN, 2)), self=W, other=floats(0, NAN, 1, NAN, 2)),
    case("fmin", np.fmin(W, floats(0, NAN, 1, NAN, 2)), self=W, other=floats(0, NAN, 1, NAN, 2)),
    case("fmin", np.fmin(I6, J6), self=I6, other=J6), case("fmax", B4 | C4, self=B4, other=C4),
    *(case(f"{name}.Tensor", fn(I6, J6), self=I6, other=J6) for name, fn in ( ("eq", np.equal),
           ("ne", np.not_equal), ("lt", np.less), ("le", np.less_equal), ("gt", np.greater),
           ("ge", np.greater_equal), ("less", np.less), ("greater", np.greater),
           ("less_equal", np.less_equal), ("greater_equal", np.greater_equal),
           ("not_equal", np.not_equal), )),
    case("lt.Scalar", I6 < 2.5, self=I6, other=2.5),
    case("eq.Tensor", ints(1, 2) == floats(1, 2.5), self=ints(1, 2), other=floats(1, 2.5)),
    case("gt.Tensor", B4 > C4, self=B4, other=C4), case("eq.Tensor", B4 == C4, self=B4, other=C4),
    *(case(name, fn(B4, C4), self=B4, other=C4) for name, fn in ( ("logical_and", np.logical_and),
           ("logical_or", np.logical_or), ("logical_xor", np.logical_xor),
           ("bitwise_and.Tensor", np.bitwise_and), ("bitwise_or.Tensor", np.bitwise_or),
           ("bitwise_xor.Tensor", np.bitwise_xor), ("__and__.Tensor", np.bitwise_and),
           ("__or__.Tensor", np.bitwise_or), ("__xor__.Tensor", np.bitwise_xor), )),
    case("logical_and", (I6 != 0) & (J6 != 0), self=I6, other=J6),
    case("bitwise_and.Tensor", I6 & J6, self=Fixed(I6), other=Fixed(J6)),
    case("bitwise_or.Scalar", I6 | 4, self=Fixed(I6), other=4),
    case("bitwise_xor.Tensor", I6 ^ J6, self=Fixed(I6), other=Fixed(J6)),
    case("clamp", np.clip(X, -0.5, 0.5), self=X, min=-0.5, max=0.5),
    case("clamp", np.maximum(X, F32(-0.5)), self=X, min=-0.5),
    case("clip", np.minimum(X, F32(0.2)), self=X, max=0.2),
    case("clamp", np.clip(I6, -3, 4), self=I6, min=-3, max=4),
    case("clamp.Tensor", np.minimum(np.maximum(X, Y), P), self=X, min=Y, max=P),
    case("clamp_min", np.maximum(X, 0), self=X, min=0),
    case("clamp_max", np.minimum(X, 0), self=X, max=0),
    case("where.self", np.where(B4, I6[:4], J6[:4]), condition=B4, self=I6[:4], other=J6[:4]),
    case("where.ScalarOther", np.where(X > 0, X, -INF).astype(F32), condition=X > 0, self=X,
         other=-INF),
    case("masked_fill.Scalar", np.where(X > 0, F32(-1), X), self=X, mask=X > 0, value=-1),
    case("masked_fill.Tensor", np.where(X > 0, F32(2), X), self=X, mask=X > 0,
         value=np.array(2, F32)),
    case("copy", np.broadcast_to(Y, (2, 3)), self=X, src=Y),
    case("copy", R.astype(I64)[:6], self=I6, src=R[:6]),
    case("fill.Scalar", np.full((2, 3), 7, F32), self=X, value=7),
    case("fill.Tensor", np.full((2, 3), 7, F32), self=X, value=np.array(7, F32)),
    case("zero", np.zeros((2, 3), F32), self=X),
    case("prelu", np.where(X > 0, X, X * Y), self=X, weight=Y),
    case("prelu", np.where(normal(2, 3, 4) > 0, 1, Y[:, None]) * normal(2, 3, 4),
         self=normal(2, 3, 4), weight=Y),
    case("_prelu_kernel", np.where(X > 0, X, X * Y), self=X, weight=Y[None]),
    case("lerp.Scalar", X + F32(0.25) * (Y - X), self=X, end=np.broadcast_to(Y, (2, 3)).copy(),
         weight=0.25),
    case("lerp.Tensor", X + P * (X * 2 - X), self=X, end=X * 2, weight=P),
    case("addcmul", X + F32(0.5) * P * Y, self=X, tensor1=P, tensor2=Y, value=0.5),
    case("addcdiv", X + F32(0.5) * X / P, self=X, tensor1=X, tensor2=P, value=0.5),
]  # fmt: skip
