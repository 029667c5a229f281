"""What keeps more than 16 bits: scalars, registers, and what a logarithm looks at."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import Graph, module, random_inputs, run_binary

from spyrec.ir.core import Module, Op, Value
from spyrec.ir.interp import run
from spyrec.ir.rounding import round_to
from spyrec.ir.types import DTYPES, dtype
from spyrec.ir.verifier import verify
from spyrec.passes.decompose import decompose
from spyrec.passes.fold import Fold
from spyrec.passes.fuse import Fuse
from spyrec.passes.legalize_dtypes import LegalizeDtypes, is_exact_scalar
from spyrec.passes.manager import Pass, Target, run_pipeline
from spyrec.passes.sensitive import before_logarithms
from spyrec.sim.device import load_device

TARGET = Target(load_device())
THIRD = np.float32(1 / 3)


def number(g: Graph, value: float) -> Value:
    return g.constant(np.array(value, np.float32), dtype("f32"))


def times_a_third() -> Module:
    return module(lambda g, x: [g("mul", x, number(g, 1 / 3))], ("x", (3, 70), "f32"))


def after(m: Module, *passes: Pass) -> Module:
    return run_pipeline(m, passes, TARGET)


def scalars_of_kernels(m: Module) -> list[np.ndarray]:
    known = {op.result: op for op in m.body.ops if op.name == "constant"}
    kernels = [op for op in m.body.ops if op.name == "kernel"]
    return [
        np.asarray(known[v].attrs["value"]) for op in kernels for v in op.operands if v in known
    ]


@pytest.mark.parametrize("passes", [(), (Fold(),)], ids=["", "fold"])
def test_a_scalar_keeps_its_fraction_into_the_kernel(passes: tuple[Pass, ...]) -> None:
    fused = after(times_a_third(), LegalizeDtypes(), *passes, Fuse())
    verify(fused)
    assert [float(a) for a in scalars_of_kernels(fused)] == [float(THIRD)]


def test_without_exact_scalars_it_is_rounded() -> None:
    fused = after(times_a_third(), LegalizeDtypes(exact_scalars=False), Fuse())
    rounded = round_to(np.array(THIRD), DTYPES["dl16"])
    assert [float(a) for a in scalars_of_kernels(fused)] == [float(rounded)] != [float(THIRD)]


def test_a_binary_rounds_only_its_result() -> None:
    m = times_a_third()
    x = round_to(random_inputs(m)["x"], DTYPES["dl16"])
    want = round_to(x * THIRD, DTYPES["dl16"])
    got = run(after(m, LegalizeDtypes(), Fuse()), {"x": x})["o0"]
    np.testing.assert_array_equal(got, want)
    outcome = run_binary(m)
    exact = np.abs(want - random_inputs(m)["x"] * THIRD).max()
    assert outcome.error <= exact * 1.01


def test_a_scalar_that_is_moved_or_an_output_is_rounded() -> None:
    def make(g: Graph, x: Value) -> list[Value]:
        third = number(g, 1 / 3)
        return [g("add", x, third), g("reshape", third, shape=(1, 1))]

    m = module(make, ("x", (3, 5), "f32"))
    fused = after(m, LegalizeDtypes(), Fuse())
    verify(fused)
    rounded = float(round_to(np.array(THIRD), DTYPES["dl16"]))
    assert run(fused, {"x": np.zeros((3, 5), np.float32)})["o1"].item() == rounded
    assert run_binary(m).worst >= 0.99999


def test_large_and_tiny_scalars_stay_inside_the_format() -> None:
    def make(g: Graph, x: Value) -> list[Value]:
        return [g("mul", g("add", x, number(g, 1e-12)), number(g, -3.4e38))]

    legal = after(module(make, ("x", (2, 3), "f32")), LegalizeDtypes())
    values = [float(op.attrs["value"]) for op in legal.body.ops if op.name == "constant"]  # type: ignore[arg-type]
    smallest, largest = (1 + 1 / 512) * 2.0**-31, (1 + 510 / 512) * 2.0**32
    np.testing.assert_allclose(values, [smallest, -largest], rtol=1e-7)


@pytest.mark.parametrize("divisor", [1e-6, 0.3, 6e4])
@pytest.mark.filterwarnings("error")
def test_a_divisor_of_16_bits_is_inverted_only_where_f16_has_the_reciprocal(divisor: float) -> None:
    m = module(
        lambda g, x: [g("div", x, g.constant(np.array(divisor, np.float16), dtype("f16")))],
        ("x", (1, 3), "f16"),
    )
    x = {"x": np.array([[0.01, -0.002, 0.0]], np.float16)}
    [got], [want] = run(decompose(m), x).values(), run(m, x).values()
    np.testing.assert_allclose(got, want, rtol=2e-3)
    inverted = [op.name for op in decompose(m).body.ops if op.name in ("mul", "div")] == ["mul"]
    assert inverted == (divisor == 0.3)


def test_values_inside_a_kernel_are_not_rounded() -> None:
    """x + 2^-10 - x: the sum rounded to 16 bits would lose the small term for x above 1."""

    def make(g: Graph, x: Value) -> list[Value]:
        return [g("sub", g("add", x, number(g, 2.0**-10)), x)]

    m = module(make, ("x", (4, 64), "f32"))
    x = np.full((4, 64), 3.5, np.float32)
    legal = after(m, LegalizeDtypes())
    assert not np.any(run(legal, {"x": x})["o0"])
    np.testing.assert_array_equal(run(after(legal, Fuse()), {"x": x})["o0"], np.float32(2.0**-10))
    assert run_binary(m).error <= 2.0**-10 / 512


def test_a_result_that_is_read_again_is_read_as_stored() -> None:
    def make(g: Graph, x: Value) -> list[Value]:
        y = g("mul", x, number(g, 1 / 3))
        return [y, g("sub", g("mul", y, number(g, 3.0)), x)]

    m = module(make, ("x", (4, 64), "f32"))
    fused = after(m, LegalizeDtypes(), Fuse())
    verify(fused)
    assert sum(op.name == "kernel" for op in fused.body.ops) == 1
    x = round_to(random_inputs(m)["x"], DTYPES["dl16"])
    out = run(fused, {"x": x})
    np.testing.assert_array_equal(out["o1"], round_to(out["o0"] * 3 - x, DTYPES["dl16"]))


# --- logarithms --------------------------------------------------------------------------------


def decibels(g: Graph, x: Value) -> list[Value]:
    """Power in dB of two bands of a spectrum; the second is 60 dB below the first."""
    n = np.arange(128)
    bands = np.stack([np.cos(0.3 * n), np.cos(1.7 * n)], 1) * np.hanning(128)[:, None]
    band = g("matmul", x, g.constant(bands.astype(np.float32), dtype("f32")))
    power = g("add", g("mul", band, band), number(g, 1e-10))
    return [g("mul", g("log", power), number(g, 4.3429))]


def tone(seed: int = 0) -> np.ndarray:
    n = np.arange(128)
    return (np.cos(0.3 * n) + 1e-4 * np.cos(1.7 * n))[None].astype(np.float32)


def error_db(m: Module, passes: tuple[Pass, ...]) -> float:
    done = after(m, *passes)
    kind = done.body.args[0].type.dtype
    got = run(done, {"x": round_to(tone(), kind)})["o0"]
    return float(np.abs(got - run(m, {"x": tone()})["o0"]).max())


def test_a_power_spectrum_keeps_its_small_bands() -> None:
    m = decompose(module(decibels, ("x", (1, 128), "f32")))
    assert error_db(m, (LegalizeDtypes(exact_logs=False), Fuse())) > 1.0
    assert error_db(m, (LegalizeDtypes(), Fuse())) < 0.1
    legal = after(m, LegalizeDtypes())
    assert legal.body.args[0].type.dtype.name == "f32"
    assert legal.body.results[0].type.dtype.name == "dl16"
    assert run_binary(module(decibels, ("x", (1, 128), "f32"))).worst >= 0.99999


def names(m: Module, values: frozenset[Value]) -> set[str]:
    makers: dict[Value, Op] = {r: op for op in m.body.ops for r in op.results}
    return {makers[v].name if v in makers else v.name for v in values}


def test_what_lies_before_a_logarithm() -> None:
    m = decompose(module(decibels, ("x", (1, 128), "f32")))
    assert names(m, before_logarithms(m)) == {"x", "matmul", "mul", "add"}


@pytest.mark.parametrize(
    ("name", "attrs"), [("softplus", {}), ("log_softmax", {"axis": 1}), ("mish", {})]
)
def test_logarithms_that_see_nothing_small(name: str, attrs: dict[str, int]) -> None:
    m = module(lambda g, x: [g(name, g("matmul", x, g.weight(8, 8)), **attrs)],
               ("x", (4, 8), "f32"))  # fmt: skip
    assert before_logarithms(decompose(m)) == frozenset()


def test_one_plus_is_harmless() -> None:
    def make(g: Graph, x: Value) -> list[Value]:
        return [g("log", g("add", g("abs", g("matmul", x, g.weight(8, 8))), number(g, 1.0)))]

    assert before_logarithms(module(make, ("x", (4, 8), "f32"))) == frozenset()


def test_what_is_exact_is_rounded_for_other_readers() -> None:
    def make(g: Graph, x: Value) -> list[Value]:
        h = g("matmul", x, g.weight(8, 8))
        return [g("log", g("abs", h)), g("matmul", h, g.weight(8, 8)), g("gt", h, number(g, 0.0))]

    m = module(make, ("x", (4, 8), "f32"))
    legal = after(m, LegalizeDtypes())
    verify(legal)
    assert [v.type.dtype.name for v in legal.body.results] == ["dl16", "dl16", "bool"]
    casts = [op for op in legal.body.ops if op.name == "cast" and not is_exact_scalar(op)]
    assert all(op.result.type.dtype.name == "dl16" for op in casts)
    assert run_binary(m).worst >= 0.9999
