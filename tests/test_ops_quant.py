"""Quantisation against onnxruntime, and formats it lacks against fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ops_reference import close, noise, one, onnx_run, patient, same

from spyrec.ir.core import Loc
from spyrec.ir.errors import VerifyError
from spyrec.ir.ops import infer
from spyrec.ir.types import DTYPES, Sym, tensor


@pytest.mark.parametrize("name", ["i8", "u8", "i16", "u16"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_quantize_and_dequantize(name: str, axis: int | None) -> None:
    to = DTYPES[name]
    x = noise(4, 6) * 300
    n = 1 if axis is None else x.shape[axis]
    scale = np.abs(noise(n)) + np.float32(0.5)
    zero = np.arange(3, 3 + n).astype(to.np_dtype)
    if axis is None:
        scale, zero = scale[0], zero[0]
    scale, zero = np.asarray(scale), np.asarray(zero)
    where = 0 if axis is None else axis
    q = one("quantize_linear", x, scale, zero, axis=where, to=to)
    same(q, onnx_run("QuantizeLinear", x, scale, zero, axis=where)[0])
    back = one("dequantize_linear", q, scale, zero, axis=where)
    close(back, onnx_run("DequantizeLinear", q, scale, zero, axis=where)[0], 1e-6)


@patient
@given(st.integers(-400, 400), st.sampled_from([0.25, 0.5, 2.0]), st.integers(-8, 7))
def test_quantize_to_four_bits(eighths: int, scale: float, zero: int) -> None:
    exact = round(Fraction(eighths, 8) / Fraction(scale)) + zero  # ties to even
    x, s, z = np.float32([eighths / 8]), np.float32(scale), np.array(zero, np.int8)
    got = one("quantize_linear", x, s, z, types="f32 f32 i4", axis=0, to=DTYPES["i4"])
    assert got[0] == min(max(exact, -8), 7)
    back = one("dequantize_linear", got, s, z, types="i4 f32 i4", axis=0)
    assert back[0] == (int(got[0]) - zero) * scale


def test_quantize_to_eight_bit_floats_saturates() -> None:
    x = np.float32([1.0, 1.06, 1.07, 1e6, -1e6, np.inf, np.nan])
    got = one(
        "quantize_linear", x, np.float32(1), np.float32(0), types="f32 f32 f8e4m3", axis=0,
        to=DTYPES["f8e4m3"],
    )  # fmt: skip
    same(got, np.float32([1, 1, 1.125, 448, -448, 448, np.nan]))


def test_quant_rules() -> None:
    n = Sym("N", 1, 4)
    x, scale, zero = tensor((n, 8), "f16"), tensor((8,), "f16"), tensor((8,), "i8")
    attrs = {"axis": 1, "to": DTYPES["i8"]}
    assert infer("quantize_linear", [x, scale, zero], attrs, Loc()) == (tensor((n, 8), "i8"),)
    q = tensor((n, 8), "i8")
    assert infer("dequantize_linear", [q, scale, zero], {"axis": 1}, Loc()) == (x,)
    with pytest.raises(VerifyError, match="expected a scalar scale, or one entry for each of the"):
        infer("quantize_linear", [x, scale, zero], {**attrs, "axis": 0}, Loc())
    with pytest.raises(VerifyError, match="expected zero of type i8, got u8"):
        infer("quantize_linear", [x, scale, tensor((8,), "u8")], attrs, Loc())
    with pytest.raises(VerifyError, match="expected a result of integer type or f8e4m3, got f32"):
        infer("quantize_linear", [x, scale, zero], {**attrs, "to": DTYPES["f32"]}, Loc())
