"""Elementwise ops against ``math`` one element at a time, onnxruntime and numpy broadcasting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from ops_reference import close, noise, one, onnx_run, patient, same

from spyrec.ir.core import Loc
from spyrec.ir.errors import SpyrecError, VerifyError
from spyrec.ir.ops import OPS, infer
from spyrec.ir.ops.elementwise import erf
from spyrec.ir.types import DTYPES, Sym, tensor

SCALARS = {
    "neg": lambda x: -x,
    "abs": abs,
    "sign": lambda x: (x > 0) - (x < 0),
    "square": lambda x: x**2,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
    "rsqrt": lambda x: x**-0.5,
    "reciprocal": lambda x: 1 / x,
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "relu": lambda x: max(x, 0),
    "softplus": lambda x: math.log1p(math.exp(x)),
    "softsign": lambda x: x / (1 + abs(x)),
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
    "identity": lambda x: x,
    "mish": lambda x: x * math.tanh(math.log1p(math.exp(x))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "hard_swish": lambda x: x * max(0, min(1, x / 6 + 0.5)),
}


@pytest.mark.parametrize("name", SCALARS)
def test_one_operand_against_math(name: str) -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -2.5, 0.3, -1.7, 4.9, -6.1, 1e-3])
    x = np.abs(x) if name in ("log", "sqrt", "rsqrt") else x
    want = np.array([SCALARS[name](float(v)) for v in x], np.float64)
    close(one(name, x), want, 1e-12)
    close(one(name, x.astype(np.float32)), want.astype(np.float32), 1e-5)


ONNX_TWINS = [
    ("gelu", "Gelu", {}),
    ("gelu", "Gelu", {"approximate": "tanh"}),
    ("leaky_relu", "LeakyRelu", {"alpha": 0.2}),
    ("elu", "Elu", {"alpha": 1.5}),
    ("celu", "Celu", {"alpha": 2.0}),
    ("selu", "Selu", {}),
    ("hard_sigmoid", "HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
    ("thresholded_relu", "ThresholdedRelu", {"alpha": 0.7}),
    ("hard_swish", "HardSwish", {}),
    ("mish", "Mish", {}),
    ("softplus", "Softplus", {}),
    ("round", "Round", {}),
    ("erf", "Erf", {}),
    ("isnan", "IsNaN", {}),
    ("isinf", "IsInf", {}),
]


@pytest.mark.parametrize(("ours", "theirs", "attrs"), ONNX_TWINS)
def test_one_operand_against_onnxruntime(ours: str, theirs: str, attrs: dict[str, object]) -> None:
    x = np.concatenate([noise(300) * 3, np.float32([0, 0.5, 1.5, -2.5])])
    if ours.startswith("is"):
        x[:3] = np.nan, np.inf, -np.inf
    close(one(ours, x, **attrs), onnx_run(theirs, x, **attrs)[0], 2e-6)


@patient
@given(st.floats(-30, 30) | st.sampled_from([math.inf, -math.inf, 0.0, -0.0, 5.9999, 1e-300]))
def test_erf_is_good_to_double_precision(x: float) -> None:
    assert float(erf(np.array([x]))[0]) == pytest.approx(math.erf(x), rel=1e-14, abs=0)


def test_erf_of_nan_is_nan() -> None:
    assert np.isnan(erf(np.array([np.nan], np.float32)))[0]


def test_sigmoid_and_softplus_do_not_overflow() -> None:
    x = np.array([-1e4, 1e4, -80.0], np.float32)
    close(one("sigmoid", x), np.array([0, 1, np.exp(np.float32(-80))], np.float32), 1e-6)
    assert one("sigmoid", x)[2] > 0
    same(one("softplus", x)[:2], np.array([0, 1e4], np.float32))


BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip


@patient
@given(
    name=st.sampled_from(sorted(BINARY)),
    shapes=hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4),
)
def test_two_operands_broadcast_as_numpy_does(
    name: str, shapes: hnp.BroadcastableShapes
) -> None:
    a, b = (
        np.random.default_rng(i).integers(-3, 4, s).astype(np.float32)
        for i, s in enumerate(shapes.input_shapes)
    )
    got = one(name, a, b)
    assert got.shape == shapes.result_shape
    same(got, BINARY[name](a, b))


@pytest.mark.parametrize("name", ["add", "where", "lt"])
def test_shapes_that_do_not_broadcast(name: str) -> None:
    types = [tensor((2, 3), "f32"), tensor((2, 4), "f32")]
    if name == "where":
        types = [tensor((), "bool"), *types]
    with pytest.raises(VerifyError, match=rf"^{name}: expected shapes that broadcast, got .*n1\)$"):
        infer(name, types, {}, Loc(("n1",)))


def test_symbolic_dimensions_pass_through_exactly() -> None:
    n = Sym("N", 1, 8)
    types = [tensor((n, 1, 3), "f16"), tensor((4, 1), "f16")]
    assert infer("mul", types, {}, Loc()) == (tensor((n, 4, 3), "f16"),)
    assert infer("gelu", types[:1], {}, Loc()) == (types[0],)
    with pytest.raises(VerifyError, match=r"\[N\[1\.\.8\]\] and \[4\]; bind the symbolic"):
        infer("add", [tensor((n,), "f32"), tensor((4,), "f32")], {}, Loc())


def test_element_types_must_agree() -> None:
    with pytest.raises(VerifyError) as error:
        infer("add", [tensor((2,), "f32"), tensor((2,), "f16")], {}, Loc(("Add_3",)))
    assert str(error.value) == (
        "add: expected operands of one element type, got f32 and f16; cast them first (from Add_3)"
    )
    with pytest.raises(VerifyError, match=r"^exp: expected an operand of float type, got"):
        infer("exp", [tensor((2,), "i32")], {}, Loc())


@patient
@given(st.integers(-(2**31), 2**31 - 1), st.integers(-50, 50).filter(bool))
def test_integer_division_truncates_toward_zero(a: int, b: int) -> None:
    x, y = np.array([a], np.int64), np.array([b], np.int64)
    assert int(one("div", x, y)[0]) == (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
    assert int(one("mod", x, y)[0]) == a % b
    assert int(one("mod", x, y, fmod=True)[0]) == int(math.fmod(a, b))


def test_pow_mod_prelu_where_and_logic() -> None:
    x, y = noise(40), noise(40, seed=1)
    close(one("pow", np.abs(x), y), onnx_run("Pow", np.abs(x), y)[0])
    close(one("mod", x, y, fmod=True), onnx_run("Mod", x, y, fmod=1)[0])
    slope = noise(5, 1)
    close(one("prelu", noise(3, 5, 8), slope), onnx_run("PRelu", noise(3, 5, 8), slope)[0])
    same(one("where", x > 0, x, y), onnx_run("Where", x > 0, x, y)[0])
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for ours, theirs in (("and", "And"), ("or", "Or"), ("xor", "Xor")):
        same(one(ours, a, b), onnx_run(theirs, a, b)[0])
    same(one("not", a), ~a)


def test_clip() -> None:
    x = noise(50) * 3
    same(one("clip", x, min=-1.0, max=0.5), np.clip(x, -1, 0.5).astype(np.float32))
    same(one("clip", x, max=0.5), np.minimum(x, np.float32(0.5)))
    same(one("clip", x), x)
    bytes_ = np.arange(256, dtype=np.uint8)
    same(one("clip", bytes_, min=-5.0, max=6.5), np.minimum(bytes_, 6))
    same(one("clip", bytes_, min=250, max=1000), np.maximum(bytes_, 250))


def test_casts() -> None:
    x = np.array([1.9, -1.9, 300.0, -300.0, np.nan, np.inf, -np.inf, 0.5], np.float32)
    small = [1, -1, 127, -128, 0, 127, -128, 0]
    same(one("cast", x, to=DTYPES["i8"]), np.array(small, np.int8))
    same(one("cast", x, to=DTYPES["i4"]), np.array([1, -1, 7, -8, 0, 7, -8, 0], np.int8))
    same(one("cast", x, to=DTYPES["bool"]), np.ones(8, bool))
    edge = 2**63
    same(
        one("cast", x * np.float32(2.0**70), to=DTYPES["i64"]),
        np.array([edge - 1, -edge, edge - 1, -edge, 0, edge - 1, -edge, edge - 1], np.int64),
    )
    whole = np.array([300, -7, 9, 2**40 + 5])
    same(one("cast", whole, to=DTYPES["i8"]), whole.astype(np.int8))
    same(one("cast", whole, to=DTYPES["i4"]), np.array([-4, -7, -7, 5], np.int8))
    same(one("cast", whole > 0, to=DTYPES["f16"]), np.array([1, 0, 1, 1], np.float16))
    f8 = np.array([448, -448, 448, -448, np.nan, 448, -448, 0.5], np.float32)
    same(one("cast", x * 10, to=DTYPES["f8e4m3"])[2:7], f8[2:7])


def test_half_precision_computes_in_single_and_rounds_once() -> None:
    x = (noise(500) * 3).astype(np.float16)
    want = one("gelu", x.astype(np.float32)).astype(np.float16)
    same(one("gelu", x), want)
    same(one("mul", x, x), (x.astype(np.float32) * x.astype(np.float32)).astype(np.float16))


def test_integer_division_by_zero_is_an_error_that_names_the_op() -> None:
    with pytest.raises(SpyrecError, match=r"^div %r0: an integer is divided by zero"):
        one("div", np.array([1]), np.array([0]))


def test_every_elementwise_op_is_tested_above() -> None:
    family = {op.name for op in OPS.values() if op.family == "elementwise"}
    tested = {*SCALARS, *BINARY, *(t[0] for t in ONNX_TWINS)}
    tested |= {"div", "pow", "mod", "prelu", "where", "and", "or", "xor", "not", "clip", "cast"}
    assert family == tested
