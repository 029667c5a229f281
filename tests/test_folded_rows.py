"""Reductions whose tiles cut what they fold: the partial results stay in fp32 between the trips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import module, run_program

from spyrec.driver import compile_module, lower_module
from spyrec.ir import interp
from spyrec.ir.core import Module, Value
from spyrec.ir.rounding import round_to
from spyrec.ir.types import dtype
from spyrec.ir.verifier import verify
from spyrec.passes.manager import Pass, Target, output_error
from spyrec.sim.device import load_device
from spyrec.sim.isa import instructions
from tests.graphs import inputs_for
from tests.pipeline_proof import DL16_ERROR

PRODUCT_ERROR = 0.2  # of up to a thousand factors, each rounded to 16 bits before they are fused
CARD = Target(load_device(), "dl16")
REDUCTIONS = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod")
Data = dict[str, Any]


def reduction(name: str, shape: tuple[int, int], axis: int, around: bool) -> Module:
    """``around``: with a prologue, of which one operand has no columns, and an epilogue that reads
    another column and gives the reduction's own result away too."""

    def make(g: Any, x: Value, y: Value) -> list[Value]:
        folded = g("mul", x, g("exp", y)) if around else x
        if name in ("reduce_sum", "reduce_mean"):
            folded = g("abs", folded)  # so that nothing cancels
        if name == "reduce_prod":
            twentieth = g.constant(np.array(0.05, np.float32), dtype("f32"))
            folded = g("exp", g("mul", g("tanh", folded), twentieth))
        total = g(name, folded, axes=(axis,), keepdims=True)
        if not around:
            return [total]
        return [total, g("add", g("tanh", total), y) if axis else g("neg", total)]

    return module(make, ("x", shape, "f32"), ("y", (shape[0], 1), "f32"))


def pins(m: Module, parts: Data, tile: Data) -> Data:
    """A plan for the kernel that reduces."""
    ops = [op for op in compile_module(m, CARD).module.body.ops if op.name == "kernel"]
    [name] = [str(op.attrs["name"]) for op in ops if "reduce" in str(op.attrs["ops"])]
    return {"kernels": {name: {"parts": parts, "tile": tile}}}


def loops_of(m: Module, plan: Data) -> list[str]:
    taken = compile_module(m, CARD, plan=plan).plan["kernels"]
    return list(taken[next(iter(plan["kernels"]))]["loops"])


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_tile_of_a_reduction_gives_the_same(data: st.DataObject) -> None:
    name, around = data.draw(st.sampled_from(REDUCTIONS)), data.draw(st.booleans())
    axis = data.draw(st.sampled_from([0, 1]))
    shape = data.draw(st.sampled_from([(67, 300), (130, 192), (9, 1000), (2, 257)]))
    kept = 1 - axis
    most = min(6, -(-shape[kept] // (64 if kept else 1)))
    parts = data.draw(st.integers(1, most), label="parts")
    sizes = {
        0: st.integers(1, max(1, shape[0] // (parts if kept == 0 else 1))),
        1: st.sampled_from(list(range(64, shape[1] // (parts if kept == 1 else 1), 64)) or [64]),
    }
    tile = {f"d{d}": data.draw(sizes[d], label=f"tile {d}") for d in (0, 1)}
    m = reduction(name, shape, axis, around)
    plan = pins(m, {f"d{kept}": parts, f"d{axis}": 1}, tile)
    assert f"d{axis}" in loops_of(m, plan) or tile[f"d{axis}"] >= shape[axis]
    allowed = PRODUCT_ERROR if name == "reduce_prod" else DL16_ERROR
    inputs = inputs_for(m, 0)
    want = interp.run(m, inputs)

    def check(step: Pass, _before: Module, after: Module, _seconds: float) -> None:
        verify(after)
        fitted = {
            v.name: np.asarray(round_to(inputs[v.name], v.type.dtype)) for v in after.body.args
        }
        got = interp.run(after, fitted)
        for key, expected in want.items():
            assert output_error(expected, got[key]) <= allowed, f"{key} after {step.name}"

    lower_module(m, CARD, plan=plan, hook=check)
    outcome = run_program(m, compile_module(m, CARD, plan=plan).program)
    assert outcome.relative <= allowed


def test_two_hundred_partial_sums_are_not_rounded_to_sixteen_bits() -> None:
    shape = (5, 12800)
    m = module(
        lambda g, x: [g("reduce_sum", g("abs", x), axes=(1,), keepdims=True)], ("x", shape, "f32")
    )
    plan = pins(m, {"d0": 1, "d1": 1}, {"d0": 5, "d1": 64})
    assert run_program(m, compile_module(m, CARD, plan=plan).program).relative <= 2.0**-9


def test_several_reductions_hold_their_rows_whole() -> None:
    m = module(lambda g, x: [g("softmax", x, axis=1)], ("x", (100, 300), "f32"))
    [op] = [op for op in compile_module(m, CARD).module.body.ops if op.name == "kernel"]
    assert op.attrs["whole"] == (1,)


def test_a_result_along_the_rows_holds_them_whole() -> None:
    m = module(
        lambda g, x: [g("sub", x, g("reduce_max", x, axes=(1,), keepdims=True))],
        ("x", (100, 300), "f32"),
    )
    [op] = [op for op in compile_module(m, CARD).module.body.ops if op.name == "kernel"]
    assert op.attrs["whole"] == (1,)


@pytest.mark.parametrize("name", ["add", "reduce_max"])
def test_rows_of_a_tile_make_runs_of_a_burst(name: str) -> None:
    """Rows lie one after the other in card memory, a stick each."""
    burst = CARD.device.hbm.burst_bytes

    def make(g: Any, x: Value) -> list[Value]:
        return [g("add", x, x)] if name == "add" else [g(name, x, axes=(1,), keepdims=True)]

    m = module(make, ("x", (8192, 8192), "dl16"))
    [kernel] = compile_module(m, CARD).program.kernels
    [load] = [i for i, _ in instructions(kernel.streams["ml"]) if i.op == "load"]
    source = load.operands[1]
    assert source.strides[-1] == 1
    assert load.counts[-1] * 128 >= burst
