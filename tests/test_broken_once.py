"""What was wrong once: each finding of a search for wrong answers and crashes, as a small model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import Graph, Make, module, run_binary

from spyrec import runtime
from spyrec.driver import compile_module
from spyrec.frontend.onnx_import import import_onnx
from spyrec.ir.core import Module, Value
from spyrec.ir.errors import PassError
from spyrec.ir.interp import run
from spyrec.ir.types import dtype
from spyrec.passes.decompose import decompose
from spyrec.passes.manager import Numerics, Target
from spyrec.sim.device import load_device, parse_device
from spyrec.sim.isa import instructions
from spyrec.sim.run import run as simulate

Array = np.ndarray[Any, Any]
Inputs = tuple[str, tuple[int, ...], str]


def check(make: Make, *inputs: Inputs, numerics: Numerics = "dl16", error: float = 0.0) -> None:
    """The binary's outputs are the interpreter's but for ``error``."""
    done = run_binary(module(make, *inputs), numerics)
    assert done.worst >= 0.99995
    assert done.error <= error


def narrow(g: Graph, x: Value, low: int) -> Value:
    """An i32 input as what 8 bits hold, less a zero point."""
    return g("sub", g("cast", g("cast", x, to=dtype("u8")), to=dtype("i32")),
             g.constant(np.array(low), dtype("i32")))  # fmt: skip


# W1: groups of 64 indices of one row are not next to each other -------------------------------


@pytest.mark.parametrize("shape", [(16, 160), (2, 300), (3, 2, 97), (1, 160), (160,)])
def test_w1_look_up_by_indices_in_several_rows(shape: tuple[int, ...]) -> None:
    check(
        lambda g, x, i: [g("gather", x, i, axis=0)], ("x", (50, 200), "f32"), ("i", shape, "i64"),
        error=0.01,
    )  # fmt: skip


def test_w1_pinned_tiles_do_not_reach_over_a_group() -> None:
    m = module(
        lambda g, x, i: [g("gather", x, i, axis=0)], ("x", (50, 64), "f32"), ("i", (2, 300), "i64")
    )
    planned = compile_module(m, Target(load_device())).plan["kernels"]
    name = next(k for k in planned if "gather" in k)
    kernels = {name: {"parts": {"i0": 1, "i1": 1, "d": 1}, "tile": {"i1": 128}}}
    with pytest.raises(PassError, match="more rows than one instruction looks up, 64"):
        run_binary(m, plan={"kernels": kernels})


# W2: a reduction that is a result is compared with what was reduced -----------------------------


@pytest.mark.parametrize("numerics", ["dl16", "ieee16", "fp32"])
def test_w2_top_k_of_a_softmax(numerics: Numerics) -> None:
    def make(g: Graph, x: Value) -> list[Value]:
        soft = g("softmax", x, axis=1)
        return list(g.op("top_k", [soft], k=3, axis=1, largest=True, sorted=True).results)

    check(make, ("x", (3, 10), "f32"), numerics=numerics, error=0.002)


@pytest.mark.parametrize("shape", [(4, 80), (70, 300)])
def test_w2_arg_max_and_max_of_one_expression(shape: tuple[int, ...]) -> None:
    def make(g: Graph, x: Value) -> list[Value]:
        y = g("exp", x)
        places = [g(f"arg_{w}", y, axis=1, keepdims=True) for w in ("max", "min")]
        return [*places, *(g(f"reduce_{w}", y, axes=(1,), keepdims=True) for w in ("max", "min"))]

    check(make, ("x", shape, "f32"), error=0.1)


def test_w2_a_sum_that_is_a_result_divides_unrounded() -> None:
    def make(g: Graph, x: Value) -> list[Value]:
        total = g("reduce_sum", g("exp", x), axes=(1,), keepdims=True)
        return [total, g("sub", g("div", total, g.constant(np.float32(3), dtype("f32"))), total)]

    check(make, ("x", (20, 100), "f32"), error=0.5)


# C1: integer products ----------------------------------------------------------------------------


@pytest.mark.parametrize("numerics", ["dl16", "ieee16", "fp32"])
def test_c1_integer_matmul_is_exact(numerics: Numerics) -> None:
    def make(g: Graph, x: Value, y: Value) -> list[Value]:
        large = g("mul", x, g.constant(np.array(50), dtype("i32")))
        return [g("matmul", narrow(g, large, 128), narrow(g, y, 3))]

    check(make, ("x", (5, 200), "i32"), ("y", (200, 70), "i32"), numerics=numerics)


def test_c1_integer_conv_is_exact() -> None:
    def make(g: Graph, x: Value) -> list[Value]:
        w = g.constant(g.rng.integers(-128, 128, (20, 12, 3, 3)), dtype("i32"))
        window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
        each = g.constant(g.rng.integers(-128, 128, (12, 1, 3, 3)), dtype("i32"))
        y = narrow(g, x, 7)
        return [g("conv", y, w, **window, group=1), g("conv", y, each, **window, group=12)]

    check(make, ("x", (1, 12, 9, 9), "i32"))


def test_c1_factors_that_may_be_large_are_refused() -> None:
    m = module(lambda g, x, y: [g("matmul", x, y)], ("x", (4, 3), "i32"), ("y", (3, 4), "i32"))
    with pytest.raises(PassError, match=r"nothing keeps its operand %x \(i32\) within \+-1023"):
        run_binary(m)


# C4: more sources than a vector instruction takes ------------------------------------------------


@pytest.mark.parametrize("k", [8, 13])
def test_c4_top_k_of_eight(k: int) -> None:
    check(
        lambda g, x: list(g.op("top_k", [x], k=k, axis=0, largest=True, sorted=True).results),
        ("x", (13,), "f32"), error=0.002,
    )  # fmt: skip


# C6: indices that count from the end -------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 70), (5,), ()])
def test_c6_indices_from_the_end_at_run_time(shape: tuple[int, ...]) -> None:
    def make(g: Graph, x: Value, i: Value) -> list[Value]:
        back = g("sub", i, g.constant(np.array(3), dtype("i64")))
        return [g("gather", x, back, axis=0), g("gather", x, back, axis=1)]

    check(make, ("x", (6, 10), "f32"), ("i", shape, "i64"), error=0.002)


def test_c6_only_indices_that_may_be_negative_are_wrapped() -> None:
    def wheres(make: Make, *inputs: Inputs) -> int:
        ops = decompose(module(make, *inputs)).body.ops
        return sum(op.name == "where" for op in ops)

    table, index = ("x", (50, 8), "f32"), ("i", (9,), "i64")
    assert wheres(lambda g, x, i: [g("gather", x, i, axis=0)], table, index) == 1
    known: list[Make] = [
        lambda g, x, i: [g("gather", x, g("mod", i, g.constant(np.array(50), dtype("i64")),
                                          fmod=False), axis=0)],
        lambda g, x, i: [g("gather", x, g("clip", i, min=0.0, max=49.0), axis=0)],
        lambda g, x, i: [g("gather", x, g("cast", i, to=dtype("u8")), axis=0)],
    ]
    assert [wheres(make, table, index) for make in known] == [0, 0, 0]


# W6: the remainder ------------------------------------------------------------------------------


@pytest.mark.parametrize("fmod", [True, False])
@pytest.mark.parametrize("by", [3, -3])
def test_w6_integer_remainders(fmod: bool, by: int) -> None:
    def make(g: Graph, x: Value) -> list[Value]:
        divisor = g.constant(np.array([by]), dtype("i64"))
        both = g("concat", x, g("neg", x), axis=0)
        return [g("mod", both, divisor, fmod=fmod)]

    check(make, ("x", (80,), "i64"))


@pytest.mark.parametrize("fmod", [True, False])
def test_w6_float_remainders(fmod: bool) -> None:
    check(
        lambda g, x, y: [g("mod", x, y, fmod=fmod)], ("x", (8, 9), "f32"), ("y", (9,), "f32"),
        numerics="fp32", error=1e-6,
    )  # fmt: skip


# W7: zero rows, and ties -------------------------------------------------------------------------


def node(op: str, x: Array, *weights: Array, **attrs: Any) -> Module:
    """A model of one ONNX node."""
    names = [f"w{i}" for i in range(len(weights))]
    made = helper.make_node(op, ["x", *names], ["y"], **attrs)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    outputs = [helper.make_empty_tensor_value_info("y")]
    held = [numpy_helper.from_array(w, n) for w, n in zip(weights, names, strict=True)]
    graph = helper.make_graph([made], "one", inputs, outputs, held)
    return import_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]))


def outputs(m: Module, numerics: Numerics, **inputs: Array) -> dict[str, Array]:
    """What the binary gives for these inputs."""
    program = compile_module(m, Target(load_device(), numerics)).program
    packed = {
        p.buffer.name: runtime.pack(p, inputs[p.name], True)
        for p in runtime.ports(program, "input")
    }
    result = simulate(program, parse_device(program.device), packed, poison=True)
    ports = runtime.ports(program, "output")
    return {p.name: runtime.unpack(p, result.outputs[p.buffer.name]) for p in ports}


@pytest.mark.parametrize("numerics", ["dl16", "fp32"])
@pytest.mark.parametrize("p", [1, 2])
def test_w7_normalisation_leaves_a_zero_row_zero(p: int, numerics: Numerics) -> None:
    x = np.array([[3, 4, 0], [0, 0, 0], [0, 0, -2]], np.float32)
    want = np.array([[3, 4, 0], [0, 0, 0], [0, 0, -2]]) / np.array([[7 if p == 1 else 5], [1], [2]])
    m = node("LpNormalization", x, axis=1, p=p)
    np.testing.assert_allclose(run(m, {"x": x})["y"], want, atol=1e-6)
    np.testing.assert_allclose(outputs(m, numerics, x=x)["y"], want, atol=1e-3)


@pytest.mark.parametrize("axis", [None, 1])
def test_w7_quantisation_divides(axis: int | None) -> None:
    """Times the reciprocal, 1.5 * 0.1 / 0.1 and its like fall on the other side of a tie."""
    scale = np.array([0.1, 0.3, 0.7, 1.1, 49.0][: 5 if axis else 1], np.float32)
    ties = np.arange(-100, 100, dtype=np.float32)[:, None] + np.float32(0.5)
    x = (ties * (scale if axis else np.full(5, scale))).astype(np.float32)
    held = (scale, np.zeros(5, np.int8)) if axis else (scale[0], np.array(0, np.int8))
    m = node("QuantizeLinear", x, *held, axis=1)
    want = np.clip(np.rint(x / scale), -128, 127)
    np.testing.assert_array_equal(run(m, {"x": x})["y"], want)
    np.testing.assert_array_equal(outputs(m, "fp32", x=x)["y"], want)


# A row of a cache is written where a number says, in a kernel cut along heads that the question
# "is it this row?" does not know ------------------------------------------------------------------


@pytest.mark.parametrize("numerics", ["dl16", "fp32"])
def test_what_another_core_owns_is_computed_in_its_own_room(numerics: Numerics) -> None:
    """The cores of the second head computed the marks beyond the room they have for them."""
    heads, rows, width = 2, 64, 64

    def make(g: Graph, at: Value, new: Value, cache: Value) -> list[Value]:
        w = g.weight(width, width)
        places = g.constant(np.arange(rows, dtype=np.int32).reshape(1, 1, rows, 1), dtype("i32"))
        up = g("add", at, g.constant(np.array(rows, np.int32), dtype("i32")))
        below = g("lt", at, g.constant(np.array(0, np.int32), dtype("i32")))
        mark = g("eq", places, g("reshape", g("where", below, up, at), shape=(1, 1, 1, 1)))
        products = g("matmul", g("mul", new, new), w), g("matmul", cache, w)
        return [g("where", mark, g("add", new, new), cache), g("where", mark, *products)]

    inputs: list[Inputs] = [("at", (1,), "i32"), ("new", (1, heads, 1, width), "f32"),
                            ("cache", (1, heads, rows, width), "f32")]  # fmt: skip
    check(make, *inputs, numerics=numerics, error=0.01)
    program = compile_module(module(make, *inputs), Target(load_device(), numerics)).program
    marks = [
        instr.operands[0].base for kernel in program.kernels
        for instr, _ in instructions(kernel.streams.get("sfp", ()))
        if instr.op == "vec" and kernel.notes[instr.note].op.endswith("= eq")
    ]  # fmt: skip
    assert marks and all(isinstance(base, int) for base in marks), "the same room on every core"
