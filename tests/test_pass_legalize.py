"""legalize-dtypes: types, constants, casts and the border of the model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spyrec.ir.core import Module
from spyrec.ir.errors import PassError
from spyrec.ir.interp import run
from spyrec.ir.parser import parse_module
from spyrec.ir.types import DTYPES
from spyrec.ir.verifier import verify
from spyrec.passes.legalize_dtypes import LegalizeDtypes, legalize, saturated
from spyrec.passes.manager import Target
from spyrec.passes.pipeline_text import parse_pipeline
from spyrec.passes.registry import PASSES
from spyrec.sim.device import load_device

DL16_MAX = (1 + 510 / 512) * 2.0**32
DL16_MIN = (1 + 1 / 512) * 2.0**-31


def module(lines: str, *inputs: str) -> Module:
    made = parse_module(
        'module "m" {\n' + "\n".join(f"input %{i}" for i in inputs) + f"\n{lines}\n"
        'output "y" = %y\n}'
    )
    verify(made)
    return made


def constant(kind: str, array: str, text: str) -> Module:
    return module(
        f'%y = constant {{value = dense<{array}, {text}>}} : tensor<{array.split("x")[0]}x{kind}>'
    )


def value(made: Module) -> np.ndarray:
    verify(made)
    found = made.body.ops[-1].attrs["value"]
    assert isinstance(found, np.ndarray)
    return found


def test_float_constants_are_rounded_and_saturated() -> None:
    before = constant("f32", "5xfloat32", "[0.1, inf, -inf, 1e+30, nan]")
    got = value(legalize(before, "dl16"))
    tenth = 819 / 512 / 16  # the nearest with nine fraction bits
    np.testing.assert_array_equal(got, [tenth, DL16_MAX, -DL16_MAX, DL16_MAX, np.nan])
    half = value(legalize(before, "ieee16"))
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half[1:], np.float16([65504, -65504, 65504, np.nan]))
    np.testing.assert_array_equal(value(legalize(before, "fp32")), value(before))


def test_a_small_scalar_never_becomes_zero() -> None:
    tiny = np.array(1e-12)
    assert saturated(tiny, DTYPES["dl16"]) == np.float32(DL16_MIN)
    assert saturated(-tiny, DTYPES["f16"]) < 0
    assert saturated(np.array(0.0), DTYPES["dl16"]) == 0
    np.testing.assert_array_equal(saturated(np.array([1e-12, 1.0]), DTYPES["dl16"]), [0, 1])


@given(st.floats(width=32), st.sampled_from(["dl16", "f16"]))
def test_saturated_numbers_are_finite_or_nan(number: float, kind: str) -> None:
    got = float(saturated(np.array(number, np.float32), DTYPES[kind]))
    assert np.isnan(got) == np.isnan(number)
    assert np.isnan(got) or (np.isfinite(got) and np.sign(got) == np.sign(number))


@pytest.mark.parametrize(
    ("kind", "array", "text", "worst"),
    [
        ("i64", "2xint64", "[1, 2147483648]", "2147483648"),
        ("i64", "2xint64", "[-9223372036854775808, 0]", "-9223372036854775808"),
        ("u32", "1xuint32", "[4294967295]", "4294967295"),
    ],
)
def test_integer_constants_must_fit(kind: str, array: str, text: str, worst: str) -> None:
    with pytest.raises(PassError) as caught:
        legalize(constant(kind, array, text), "dl16")
    assert str(caught.value) == (
        f"legalize-dtypes: constant %y ({kind}) holds {worst}, which does not fit the device's "
        "32-bit integers (from unknown); keep such values out of run-time arithmetic or clip them "
        "in the model"
    )


def test_integers_that_fit_become_i32() -> None:
    got = value(legalize(constant("i64", "2xint64", "[-2147483648, 2147483647]"), "dl16"))
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, [-(2**31), 2**31 - 1])


def test_only_primitive_modules() -> None:
    before = module("%y = silu(%x) : tensor<2xf32>", "x: tensor<2xf32>")
    with pytest.raises(PassError, match=r"^legalize-dtypes: silu is not primitive; run decompose"):
        legalize(before, "dl16")


def test_host_types_and_names_at_the_border() -> None:
    before = module(
        "%c = constant {value = dense<int64, [3]>} : tensor<i64>\n"
        "%t = lt(%i, %c) : tensor<2xbool>\n"
        "%y = where(%t, %x, %x) : tensor<2xf64>",
        "x: tensor<2xf64>", "i: tensor<2xi64>",
    )  # fmt: skip
    step = LegalizeDtypes()
    after = step.run(before, Target(load_device(), "ieee16"))
    verify(after)
    assert after.attrs["host_types"] == (("x", "f64"), ("i", "i64"), ("y", "f64"))
    assert (after.attrs["device"], after.attrs["numerics"]) == ("spyre", "ieee16")
    assert [(a.name, a.type.dtype.name) for a in after.body.args] == [("x", "f16"), ("i", "i32")]
    assert [op.result.type.dtype.name for op in after.body.ops] == ["i32", "bool", "f16"]
    assert [op.result.name for op in after.body.ops] == ["c", "t", "y"]
    assert after.output_names == ("y",)


CASTS = [("i64", "i32", []), ("i32", "i64", []), ("f32", "f16", []), ("bool", "f32", ["cast"]),
         ("f32", "i64", ["cast"]), ("i64", "f32", ["cast"]), ("i64", "bool", ["cast"]),
         ("u8", "i16", []), ("u8", "u16", [])]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "names"), CASTS)
def test_casts_between_types_that_meet_go_away(a: str, b: str, names: list[str]) -> None:
    before = module(f"%y = cast(%x) {{to = type {b}}} : tensor<2x{b}>", f"x: tensor<2x{a}>")
    after = legalize(before, "dl16")
    verify(after)
    assert [op.name for op in after.body.ops] == names


@settings(max_examples=60, deadline=None, database=None)
@given(
    st.sampled_from(["i32", "i64", "f32"]), st.sampled_from(["i8", "u8", "i16", "u16"]),
    st.lists(st.integers(-(2**17), 2**17), min_size=3, max_size=3),
)  # fmt: skip
def test_narrow_casts_keep_wrapping_and_saturating(a: str, b: str, numbers: list[int]) -> None:
    before = module(f"%y = cast(%x) {{to = type {b}}} : tensor<3x{b}>", f"x: tensor<3x{a}>")
    after = legalize(before, "fp32")
    verify(after)
    x = np.array(numbers)
    want = run(before, {"x": x.astype(DTYPES[a].np_dtype)})["y"]
    host = np.float32 if a == "f32" else np.int32
    np.testing.assert_array_equal(run(after, {"x": x.astype(host)})["y"], want)


def test_a_clipped_value_needs_no_wrapping() -> None:
    before = module(
        "%a = constant {value = dense<float32, [0.0]>} : tensor<f32>\n"
        "%b = constant {value = dense<float32, [255.0]>} : tensor<f32>\n"
        "%c = max(%x, %a) : tensor<2xf32>\n"
        "%d = min(%c, %b) : tensor<2xf32>\n"
        "%y = cast(%d) {to = type u8} : tensor<2xu8>",
        "x: tensor<2xf32>",
    )
    names = [op.name for op in legalize(before, "dl16").body.ops]
    assert names == ["constant", "constant", "max", "min", "cast"]


def test_padding_with_infinity_is_saturated() -> None:
    before = module(
        "%y = pad(%x) {lo = (1,), hi = (0,), value = -inf} : tensor<3xf32>", "x: tensor<2xf32>"
    )
    after = legalize(before, "dl16")
    verify(after)
    np.testing.assert_array_equal(
        run(after, {"x": np.zeros(2, np.float32)})["y"], [-DL16_MAX, 0, 0]
    )


def test_exact_scalars_are_cast_where_they_are_used() -> None:
    before = module(
        "%c = constant {value = dense<float32, [0.044715]>} : tensor<f32>\n"
        "%y = mul(%x, %c) : tensor<2xf32>",
        "x: tensor<2xf32>",
    )
    (step,) = parse_pipeline("legalize-dtypes{exact-scalars=true}", PASSES)
    after = step.run(before, Target(load_device()))
    verify(after)
    assert [(op.name, op.result.type.dtype.name) for op in after.body.ops] == [
        ("constant", "f32"), ("cast", "dl16"), ("mul", "dl16"),
    ]  # fmt: skip
    assert after.body.ops[0].attrs["value"] == np.float32(0.044715)
