"""range-scale: powers of two change only the range, and binaries that overflowed are right."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import Graph, module, run_binary

from spyrec.ir.core import Loc, Module, Op, Value
from spyrec.ir.interp import run
from spyrec.ir.types import dtype
from spyrec.ir.verifier import verify
from spyrec.passes.decompose import decompose
from spyrec.passes.legalize_dtypes import float_limits
from spyrec.passes.manager import Target, run_pipeline
from spyrec.passes.pipeline import PIPELINE
from spyrec.passes.range_scale import RangeScale, _sentence, calibration_inputs
from spyrec.passes.scaling import Range, Scaled
from spyrec.sim.device import load_device
from tests.graphs import inputs_for
from tests.real_models import MODELS, model_path

TARGET = Target(load_device())
LARGEST, SMALLEST = float_limits(dtype("dl16"))
WITHOUT = ",".join(
    "range-scale{calibrate=false}" if p.name == "range-scale" else p.name for p in PIPELINE
)

Tail = Callable[[Graph, Value], Value]


def one(name: str, **attrs: object) -> Tail:
    return lambda g, x: g(name, x, **attrs)


def with_weight(name: str, *shape: int, **attrs: object) -> Tail:
    return lambda g, x: g(name, x, g.weight(*shape), **attrs)


def image(g: Graph, x: Value) -> Value:
    return g("reshape", x, shape=(1, 2, 4, 4))


WINDOW = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 1, 1)}
CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}

TAILS: dict[str, Tail] = {
    "neg": one("neg"),
    "relu": one("relu"),
    "transpose": one("transpose", perm=(1, 0)),
    "reshape": one("reshape", shape=(32,)),
    "slice": one("slice", starts=(0, 1), sizes=(4, 3), steps=(1, 2)),
    "pad": one("pad", lo=(0, 1), hi=(1, 0), mode="constant", value=3.0),
    "reduce_sum": one("reduce_sum", axes=(1,), keepdims=True),
    "reduce_max": one("reduce_max", axes=(0,), keepdims=True),
    "reduce_prod": one("reduce_prod", axes=(0,), keepdims=True),
    "reduce_mean": one("reduce_mean", axes=(0, 1), keepdims=True),
    "max_pool": lambda g, x: g("max_pool", image(g, x), dilations=(1, 1), **WINDOW),
    "avg_pool": lambda g, x: g("avg_pool", image(g, x), count_include_pad=True, **WINDOW),
    "conv": lambda g, x: g("conv", image(g, x), g.weight(3, 2, 3, 3), **CONV),
    "matmul": with_weight("matmul", 8, 5),
    "matmul-of-itself": lambda g, x: g("matmul", x, g("transpose", x, perm=(1, 0))),
    "add": with_weight("add", 8),
    "sub-reversed": lambda g, x: g("sub", g.weight(8), x),
    "mul": with_weight("mul", 8),
    "square": lambda g, x: g("mul", x, x),
    "max": with_weight("max", 8),
    "div": with_weight("div", 8),
    "div-reversed": lambda g, x: g("div", g.weight(8), g("add", g("abs", x), g.weight(1))),
    "reciprocal": one("reciprocal"),
    "sqrt": lambda g, x: g("sqrt", g("abs", x)),
    "log": lambda g, x: g("log", g("abs", x)),
    "sign": one("sign"),
    "isnan": one("isnan"),
    "exp": one("exp"),
    "tanh": one("tanh"),
    "sigmoid": one("sigmoid"),
    "floor": one("floor"),
    "concat": lambda g, x: g("concat", x, g.weight(2, 8), axis=0),
    "where": lambda g, x: g("where", g("lt", x, g.weight(8)), x, g.weight(8)),
    "compare": lambda g, x: g("gt", x, g("neg", x)),
    "to-int": one("cast", to=dtype("i32")),
    "softmax": one("softmax", axis=1),
    "log_softmax": one("log_softmax", axis=1),
    "layer_norm": lambda g, x: g("layer_norm", x, g.weight(8), axis=1, epsilon=1e-5),
    "rms_norm": lambda g, x: g("rms_norm", x, g.weight(8), axis=1, epsilon=0.0),
}
ROUNDED = ("log",)  # log(2^e x) = log x + e log 2 is the one rule that rounds


def scaled_weight(g: Graph, factor: float, *shape: int) -> Value:
    return g.constant((g.rng.normal(size=shape) * factor).astype(np.float32), dtype("f32"))


def extreme(tails: Sequence[Tail], factor: float, seed: int = 0) -> Module:
    """Values of about ``factor``, and each of the tails on them."""

    def make(g: Graph, x: Value) -> list[Value]:
        h = g("add", g("matmul", x, scaled_weight(g, factor, 6, 8)), scaled_weight(g, factor, 8))
        return [tail(g, h) for tail in tails]

    return decompose(module(make, ("x", (4, 6), "f32"), seed=seed))


def assert_same_meaning(before: Module, after: Module, rounded: bool, seed: int = 0) -> None:
    """Equal in float32, whatever becomes of values no float32 holds."""
    inputs = inputs_for(before, seed)
    wants, gots = run(before, inputs), run(after, inputs)
    for name, want in wants.items():
        got = gots[name]
        assert got.dtype == want.dtype
        if rounded:
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-5)
        else:
            np.testing.assert_array_equal(got, want)


def stored_magnitudes(m: Module) -> list[tuple[Op, float]]:
    """The largest finite magnitude of each float tensor on the inputs of the trial run."""
    found: list[tuple[Op, float]] = []

    def observe(op: Op, results: tuple[np.ndarray, ...]) -> None:
        for array in results:
            if array.dtype == np.float32 and array.size:
                size = np.abs(array)
                found.append((op, float(np.max(size, where=np.isfinite(size), initial=0.0))))

    run(m, calibration_inputs(m, 0), observe=observe)
    return found


@pytest.mark.parametrize("factor", [1e13, 1e-12])
@pytest.mark.parametrize("name", TAILS)
def test_each_op_keeps_its_meaning(name: str, factor: float) -> None:
    before = extreme([TAILS[name]], factor)
    after = RangeScale().run(before, TARGET)
    verify(after)
    assert after is not before
    assert_same_meaning(before, after, name in ROUNDED)


# These have no scaled form: their results are what they are.
UNSCALED = {"reduce_prod", "exp", "floor", "to-int", "pad"}


@pytest.mark.parametrize("name", sorted(set(TAILS) - UNSCALED))
def test_what_is_stored_is_in_range(name: str) -> None:
    """The sign of the result is asked for: an output that is itself too large cannot be helped."""

    def tail(g: Graph, x: Value) -> Value:
        y = TAILS[name](g, x)
        return g("sign", y) if y.type.dtype.kind == "float" else y

    after = RangeScale().run(extreme([tail], 1e13), TARGET)
    assert max(size for op, size in stored_magnitudes(after) if op.name != "constant") <= LARGEST


@settings(max_examples=60, deadline=None, database=None)
@given(
    st.lists(st.sampled_from(sorted(set(TAILS) - set(ROUNDED))), min_size=1, max_size=4),
    st.floats(-14, 14),
    st.integers(0, 99),
)
def test_random_graphs_keep_their_meaning(names: list[str], power: float, seed: int) -> None:
    before = extreme([TAILS[n] for n in names], 10.0**power, seed)
    after = RangeScale().run(before, TARGET)
    verify(after)
    assert_same_meaning(before, after, rounded=False, seed=seed)


def test_nothing_to_do_changes_nothing() -> None:
    before = extreme([TAILS["matmul"], TAILS["softmax"], TAILS["layer_norm"]], 1.0)
    assert RangeScale().run(before, TARGET) is before
    huge = extreme([TAILS["matmul"]], 1e13)
    assert RangeScale(calibrate=False).run(huge, TARGET) is huge
    assert RangeScale().run(huge, Target(TARGET.device, "fp32")) is huge


def test_stand_ins_for_infinity_are_no_magnitudes() -> None:
    def make(g: Graph, x: Value) -> list[Value]:
        mask = g.constant(np.array([0.0, -3.4e38], np.float32), dtype("f32"))
        return [g("softmax", g("add", x, mask), axis=1)]

    before = decompose(module(make, ("x", (4, 2), "f32")))
    assert RangeScale().run(before, TARGET) is before


def test_the_same_twice() -> None:
    before = extreme([TAILS["conv"], TAILS["softmax"], TAILS["rms_norm"]], 1e13)
    first, second = (RangeScale().run(before, TARGET) for _ in range(2))
    assert [o.name for o in first.body.ops] == [o.name for o in second.body.ops]
    assert first.attrs["warnings"] == second.attrs["warnings"]


def test_the_warning_names_magnitudes_and_limits() -> None:
    def make(g: Graph, x: Value) -> list[Value]:
        w = g.constant(np.full((2, 1), 2.0**40, np.float32), dtype("f32"))
        h = g("matmul", x, w)
        return [g("tanh", h), g("identity", h)]

    after = RangeScale().run(module(make, ("x", (1, 2), "f32")), TARGET)
    size = float(calibration_inputs(after, 0)["x"].sum()) * 2.0**40
    assert after.attrs["warnings"] == (
        "range-scale: 2 tensors are kept times a power of two: on seeded inputs dl16, which "
        "reaches from 4.67e-10 to 8.57e+09, is too narrow for magnitudes from "
        f"{size:.3g} (%matmul) to {size:.3g} (%matmul); out of reach and likely to overflow: "
        f"{size:.3g} (%identity)",
    )


def test_the_warning_names_model_nodes() -> None:
    before = extreme([TAILS["softmax"]], 1e13)
    ops = tuple(
        replace(op, loc=Loc((f"/{op.name}", "/other"))) if op.name != "constant" else op
        for op in before.body.ops
    )
    after = RangeScale().run(replace(before, body=replace(before.body, ops=ops)), TARGET)
    [sentence] = after.attrs["warnings"]
    assert re.search(r"too narrow for magnitudes from \S+ \(/\w+\) to \S+ \(/\w+\)$", sentence)


def test_a_tensor_that_takes_on_the_scale_of_another_is_not_told_of() -> None:
    before = module(lambda g, x: [g("neg", g("abs", x))], ("x", (4, 2), "f32"))
    near, far = (op.result for op in before.body.ops)
    span, kind = Range(-30.0, -20.0, 31.0, 33), dtype("dl16")
    done = Scaled(before, (near, far), ())
    said = _sentence(done, {near: 2.0, far: 2.0**40}, span, kind, before)
    assert "too narrow for magnitudes from 1.1e+12 (%neg) to 1.1e+12 (%neg)" in said
    assert _sentence(done, {near: 2.0, far: 2.0**30}, span, kind, before) == ""


def huge_mlp(g: Graph, x: Value) -> list[Value]:
    for rows, columns in ((96, 128), (128, 64), (64, 80)):
        x = g("relu", g("matmul", x, scaled_weight(g, 1e5, rows, columns)))
    return [g("softmax", g("mul", x, scaled_weight(g, 1e-18)), axis=1)]


def huge_image(g: Graph, x: Value) -> list[Value]:
    for channels in (3, 16):
        w = g.constant(np.abs(g.rng.normal(size=(16, channels, 3, 3)) * 3e5).astype(np.float32),
                       dtype("f32"))  # fmt: skip
        x = g("relu", g("conv", x, w, **CONV))
    x = g("max_pool", x, dilations=(1, 1), **WINDOW)
    x = g("reduce_mean", x, axes=(2, 3), keepdims=False)
    return [g("layer_norm", x, g.weight(16), axis=1, epsilon=1e-5)]


def huge_scores(g: Graph, x: Value) -> list[Value]:
    q, k = (g("matmul", x, scaled_weight(g, 3e7, 32, 32)) for _ in range(2))
    scores = g("matmul", q, g("transpose", k, perm=(0, 2, 1)))
    return [g("matmul", g("softmax", scores, axis=2), x)]


def tiny_norm(g: Graph, x: Value) -> list[Value]:
    x = g("matmul", x, scaled_weight(g, 1e-12, 96, 128))
    return [g("rms_norm", x, scaled_weight(g, 1.0, 128), axis=1, epsilon=0.0)]


@pytest.mark.parametrize(
    ("make", "shape"),
    [(huge_mlp, (40, 96)), (huge_image, (1, 3, 16, 16)), (huge_scores, (2, 48, 32)),
     (tiny_norm, (40, 96))],
    ids=lambda x: getattr(x, "__name__", ""),
)  # fmt: skip
def test_binaries_that_were_wrong_are_right(
    make: Callable[[Graph, Value], list[Value]], shape: tuple[int, ...]
) -> None:
    m = module(make, ("x", shape, "f32"))
    with np.errstate(all="ignore"):
        assert not run_binary(m, pipeline=WITHOUT).worst >= 0.9
    assert run_binary(m).worst >= 0.9999


@pytest.mark.slow
@pytest.mark.parametrize("name", ["C01", "C02", "C11", "C12", "C13", "C15", "C17"])
def test_real_models_in_range_stay_as_they_are(name: str) -> None:
    from spyrec.api import import_model

    before = import_model(str(model_path(name)), dict(MODELS[name].bind), {})
    prefix = PIPELINE[: [p.name for p in PIPELINE].index("range-scale")]
    before = run_pipeline(before, prefix, TARGET)
    assert RangeScale().run(before, TARGET) is before
