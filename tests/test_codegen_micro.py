"""Micro-programs compute what the ops they were made of compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import module

from spyrec.backend.micro import STEP_OF, Micro
from spyrec.driver import compile_module
from spyrec.ir.core import Block, Builder, Module, Op, Value
from spyrec.ir.errors import PassError
from spyrec.ir.interp import run
from spyrec.ir.types import dtype, tensor
from spyrec.passes.manager import Target
from spyrec.sim.device import load_device
from spyrec.sim.isa import MICRO_OPS, MicroOp, MicroProgram
from spyrec.sim.micro import evaluate

Array = np.ndarray[Any, Any]
F32 = dtype("f32")
SIZE = 6
EXACT_ONE = ("neg", "abs", "floor", "ceil", "round", "sign", "identity")
ONE = ("exp", "tanh", "sigmoid", "erf", "sin", "cos", "sqrt", "rsqrt", "log", "reciprocal")
TWO = ("add", "sub", "mul", "div", "max", "min")
TESTS = ("eq", "ne", "lt", "le", "gt", "ge")


@st.composite
def expressions(draw: st.DrawFn) -> tuple[Module, list[Value], dict[Value, float], tuple[Op, ...]]:
    """Ops on two tensors and a scalar, each reading what is there already."""
    b = Builder()
    inputs = [b.value(n, tensor((SIZE,), F32)) for n in ("x", "y")]
    scalar = b.value("s", tensor((SIZE,), F32))
    live = [*inputs, scalar]
    for _ in range(draw(st.integers(1, 6))):
        some = st.sampled_from(live)
        kind = draw(st.sampled_from(["one", "two", "where", "cast"]))
        if kind == "one":
            op = b.op(draw(st.sampled_from(EXACT_ONE + ONE)), [draw(some)])
        elif kind == "two":
            op = b.op(draw(st.sampled_from(TWO)), [draw(some), draw(some)])
        elif kind == "where":
            test = b.op(draw(st.sampled_from(TESTS)), [draw(some), draw(some)])
            op = b.op("where", [test.result, draw(some), draw(some)])
        else:
            op = b.op("cast", [b.op("cast", [draw(some)], to=dtype("i32")).result], to=F32)
        live.append(op.result)
    body = Block((*inputs, scalar), tuple(b.ops), (live[-1],))
    known = {scalar: draw(st.sampled_from([0.0, -1.5, 3.0]))}
    return Module("m", body, ("o",)), inputs, known, body.ops


@given(expressions(), st.integers(0, 1000))
@settings(max_examples=200, deadline=None)
def test_programs_agree_with_the_interpreter(
    case: tuple[Module, list[Value], dict[Value, float], tuple[Op, ...]], seed: int
) -> None:
    module, inputs, scalars, ops = case
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(0, 3, SIZE).astype(np.float32) for _ in inputs]
    micro = Micro([(v, F32) for v in inputs], scalars)
    for op in ops:
        micro.add(op)
    program = micro.finish(module.body.results[0], F32)
    assert all(len(s.args) == MICRO_OPS[s.op] for s in program.steps)
    got = np.broadcast_to(evaluate(program, arrays), (SIZE,))
    feed = dict(zip(("x", "y"), arrays, strict=True))
    feed["s"] = np.full(SIZE, next(iter(scalars.values())), np.float32)
    sane = np.ones(SIZE, np.bool_)

    def watch(_: Op, results: Sequence[Array]) -> None:
        """What follows an overflow or a NaN is not defined for casts and comparisons."""
        for result in results:
            sane[:] &= np.isfinite(result) & (np.abs(result.astype(np.float64)) < 1e6)

    with np.errstate(all="ignore"):
        want = run(module, feed, observe=watch)["o"]
    assert np.allclose(got[sane], want[sane], rtol=2e-5, atol=2e-5)


def built(make: Callable[[Micro, Builder], Value], into: str = "f32", *kinds: str) -> MicroProgram:
    b = Builder()
    values = [b.value(f"x{i}", tensor((SIZE,), k)) for i, k in enumerate(kinds or ("f32",))]
    micro = Micro([(v, v.type.dtype) for v in values], {})
    b.ops += [Op("args", tuple(values), ())]
    return micro.finish(make(micro, b), dtype(into))


def add(micro: Micro, b: Builder, name: str, *operands: Value, **attrs: Any) -> Value:
    op = b.op(name, operands, **attrs)
    micro.add(op)
    return op.result


def test_the_only_input_needs_no_step() -> None:
    assert built(lambda micro, b: b.ops[0].operands[0]) == MicroProgram(1)


def test_a_result_that_is_no_last_step_is_copied() -> None:
    program = built(lambda micro, b: b.ops[0].operands[1], "f32", "f32", "f32")
    assert program == MicroProgram(2, (), (MicroOp("copy", (1,)),))


def test_integers_are_floats_inside() -> None:
    program = built(lambda micro, b: b.ops[0].operands[0], "i32", "i32")
    assert program == MicroProgram(1, (), (MicroOp("i2f", (0,)), MicroOp("f2i", (1,))))


def test_integer_division_truncates_toward_zero() -> None:
    def quotient(micro: Micro, b: Builder) -> Value:
        return add(micro, b, "div", *b.ops[0].operands)

    program = built(quotient, "i32", "i32", "i32")
    x, y = (np.array(a, np.int32) for a in ([7, -7, 7, -7], [2, 2, -2, -2]))
    assert evaluate(program, [x, y]).tolist() == [3, -3, -3, 3]


def test_a_cast_to_bool_asks_whether_it_is_zero() -> None:
    program = built(
        lambda micro, b: add(micro, b, "cast", b.ops[0].operands[0], to=dtype("bool")), "bool"
    )
    assert program == MicroProgram(1, (0.0,), (MicroOp("ne", (0, 1)),))


def test_equal_constants_are_kept_once_and_zeros_apart() -> None:
    b = Builder()
    scalars = {b.value(f"s{i}", tensor((), F32)): v for i, v in enumerate((0.5, 0.5, 0.0, -0.0))}
    micro = Micro([], scalars)
    total = add(micro, b, "add", *list(scalars)[:2])
    assert micro.finish(total, F32) == MicroProgram(
        0, (0.5, 0.0), (MicroOp("neg", (1,)), MicroOp("add", (0, 0)))
    )


def test_every_step_exists() -> None:
    assert set(STEP_OF.values()) <= set(MICRO_OPS)


def test_gelu_is_five_steps() -> None:
    gelu = module(lambda g, x: [g("gelu", x)], ("x", (64, 64), "f32"))
    [kernel] = compile_module(gelu, Target(load_device())).program.kernels
    [program] = kernel.programs
    assert sorted(step.op for step in program.steps) == ["add", "erf", "mul", "mul", "mul"]


def test_an_op_without_a_step_is_named() -> None:
    with pytest.raises(PassError) as caught:
        built(lambda micro, b: add(micro, b, "mish", b.ops[0].operands[0]))
    assert str(caught.value) == "codegen: the vector unit has no step for mish (from unknown)"
