"""A proof for each decomposition rule: random operands through the interpreter before and after."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spyrec.ir.core import Builder, Loc, Value
from spyrec.ir.errors import PassError
from spyrec.ir.interp import run
from spyrec.ir.verifier import verify
from spyrec.passes.decompose import FIRST_RULES, RULES, decompose
from spyrec.passes.manager import output_error
from spyrec.passes.primitives import is_primitive
from tests.decompose_cases import CASES
from tests.decompose_draw import Const, Draw, case, graph

BOUND = {"exact": 0.0, "rounding": 1e-11}
APPROXIMATIONS = {"pow-general": 1e-11}
ALL_RULES = {rule.name: rule for rule in (*FIRST_RULES, *RULES)}


def test_every_rule_has_a_proof() -> None:
    assert sorted(ALL_RULES) == sorted(CASES)
    assert len(ALL_RULES) == len(RULES) + len(FIRST_RULES), "two rules share a name"


@pytest.mark.parametrize("name", CASES)
def test_rule_keeps_the_meaning(name: str) -> None:
    rule = ALL_RULES[name]
    bound = APPROXIMATIONS.get(name, BOUND.get(rule.exactness))
    assert bound is not None
    used: Counter[str] = Counter()

    @settings(max_examples=25, deadline=None, database=None)
    @given(st.data())
    def prove(data: st.DataObject) -> None:
        before = CASES[name](Draw(data))
        verify(before.module)
        here: Counter[str] = Counter()
        after = decompose(before.module, here)
        used.update(here)
        verify(after)
        assert all(is_primitive(op) for op in after.body.ops)
        assert all(op.loc in (Loc(), Loc(("node",))) for op in after.body.ops)
        # A rule calls on others, so its own bound holds only where no weaker rule took part.
        weakest = max([bound, *(_bound(n) for n in here)])
        with np.errstate(all="ignore"):
            want, got = (run(m, before.inputs) for m in (before.module, after))
        for key in want:
            error = output_error(want[key], got[key])
            assert error <= weakest, f"{key}: {error:.3g} > {weakest:.3g}"

    prove()
    assert used[name] > 0, f"the cases never use rule {name}"


def _bound(name: str) -> float:
    return APPROXIMATIONS.get(name, BOUND.get(ALL_RULES[name].exactness, 0.0))


def test_gelu_in_single_precision_on_a_dense_grid() -> None:
    x = np.linspace(-14, 14, 400_001).astype(np.float32)
    exact, single = case("gelu", x.astype(np.float64)), case("gelu", x)
    want = run(exact.module, exact.inputs)["out0"]
    got = run(decompose(single.module), single.inputs)["out0"]
    assert np.max(np.abs(want - got) / np.maximum(1.0, np.abs(x))) <= 2e-7


@pytest.mark.parametrize("x", [-1e30, -300.0, 300.0, 1e30, np.nan])
@pytest.mark.parametrize("name", ["erf", "gelu", "mish", "softplus", "silu", "elu", "selu"])
def test_activations_far_out(name: str, x: float) -> None:
    before = case(name, np.array([x], np.float32))
    after = decompose(before.module)
    with np.errstate(all="ignore"):
        want, got = (run(m, before.inputs)["out0"] for m in (before.module, after))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_what_no_rule_covers_is_listed() -> None:
    def make(b: Builder, v: list[Value]) -> Any:
        best = [b.op("top_k", v, loc=Loc((n,)), k=200, axis=0) for n in ("TopK_1", "TopK_2")]
        return [op.results[0] for op in best]

    module = graph(make, np.zeros(70_000)).module
    with pytest.raises(PassError) as caught:
        decompose(module)
    assert str(caught.value) == (
        "decompose: no rule turns these ops into primitive ones: top_k 2x (from TopK_1, "
        "TopK_2); the device has no form for them"
    )


def test_conv_transpose_with_constant_weights_folds_them() -> None:
    before = case(
        "conv_transpose", np.zeros((1, 2, 4, 4)), Const(np.ones((2, 3, 3, 3))), strides=(2, 2),
        pads=(1, 1, 1, 1), dilations=(1, 1), output_padding=(1, 1),
    )  # fmt: skip
    names = [op.name for op in decompose(before.module).body.ops]
    assert names == ["pad", "constant", "conv"]


def test_attributes_of_the_op_stay_out_of_shared_state() -> None:
    module = case("silu", np.zeros(2)).module
    assert isinstance(module.body.ops[0].attrs, MappingProxyType)
    decompose(module)
    assert [op.name for op in module.body.ops] == ["silu"]
