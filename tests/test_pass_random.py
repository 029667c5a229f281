"""Random small graphs through the clean-up passes and the tensor stage, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spyrec.ir.core import Module, Op, walk
from spyrec.ir.interp import run
from spyrec.ir.verifier import verify
from spyrec.passes.canonicalize import Canonicalize
from spyrec.passes.cse import Cse
from spyrec.passes.dce import Dce
from spyrec.passes.decompose import Decompose
from spyrec.passes.fold import Fold
from spyrec.passes.legalize_dtypes import LegalizeDtypes, is_exact_scalar
from spyrec.passes.manager import (
    Pass,
    Target,
    hooks,
    oracle,
    output_error,
    run_pipeline,
    verify_each,
)
from spyrec.passes.primitives import is_primitive
from spyrec.sim.device import load_device
from tests.graphs import inputs_for, modules

TARGET = Target(load_device(), "dl16")
TENSOR_STAGE: tuple[Pass, ...] = (
    Canonicalize(), Fold(), Decompose(), Canonicalize(), Fold(), Cse(), Dce(),
)  # fmt: skip


@settings(max_examples=60, deadline=None, database=None)
@given(modules())
def test_graphs_are_valid(module: Module) -> None:
    verify(module)
    outputs = run(module, inputs_for(module))
    assert list(outputs) == list(module.output_names)


@pytest.mark.parametrize("step", [Canonicalize(), Fold(), Cse(), Dce(), Decompose()], ids=str)
def test_each_pass_alone_keeps_the_meaning(step: Pass) -> None:
    @settings(max_examples=40, deadline=None, database=None)
    @given(modules(floats="f64"), st.integers(0, 99))
    def prove(module: Module, seed: int) -> None:
        inputs = inputs_for(module, seed)
        hook = hooks(verify_each(), oracle(inputs, 1e-5 if step.name == "decompose" else 1e-12))
        run_pipeline(module, (step,), TARGET, hook)

    prove()


@settings(max_examples=40, deadline=None, database=None)
@given(modules(floats="f64"), st.integers(0, 99))
def test_the_tensor_stage_leaves_primitives_and_the_meaning(module: Module, seed: int) -> None:
    hook = hooks(verify_each(), oracle(inputs_for(module, seed), 1e-5))
    after = run_pipeline(module, TENSOR_STAGE, TARGET, hook)
    assert all(is_primitive(op) for op in after.body.ops)
    assert after.output_names == module.output_names
    assert [a.name for a in after.body.args] == [a.name for a in module.body.args]


@settings(max_examples=40, deadline=None, database=None)
@given(modules(max_ops=4), st.sampled_from(["dl16", "ieee16", "fp32"]))
def test_legal_modules_hold_only_types_of_the_machine(module: Module, numerics: str) -> None:
    target = Target(TARGET.device, numerics)  # type: ignore[arg-type]
    before = run_pipeline(module, TENSOR_STAGE, target)
    after = LegalizeDtypes().run(before, target)
    verify(after)
    want = {"dl16": {"dl16"}, "ieee16": {"f16"}, "fp32": {"f32"}}[numerics] | {"i32", "bool"}
    exact = {op.operands[0] for op in after.body.ops if op.name == "cast" and is_exact_scalar(op)}
    results = [r for op in walk(after.body) for r in op.results if r not in exact]
    assert {r.type.dtype.name for r in results} <= want
    if numerics == "fp32":
        inputs = inputs_for(module)
        with np.errstate(all="ignore"):
            a, b = run(before, inputs), run(after, inputs)
        assert all(output_error(a[k], b[k]) == 0.0 for k in a)


@settings(max_examples=40, deadline=None, database=None)
@given(modules())
def test_passes_come_to_rest(module: Module) -> None:
    once = run_pipeline(module, TENSOR_STAGE, TARGET)
    twice = run_pipeline(once, TENSOR_STAGE, TARGET)
    assert _signature(once) == _signature(twice)


def _signature(module: Module) -> list[tuple[str, tuple[object, ...]]]:
    def line(op: Op) -> tuple[str, tuple[object, ...]]:
        return op.name, tuple(r.type for r in op.results)

    return [line(op) for op in module.body.ops]
