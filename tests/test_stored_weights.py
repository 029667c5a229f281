"""Weights are stored in the layout their readers want: no kernel works on constants alone, so none
moves, repacks or exchanges them at run time."""

from __future__ import annotations

import pytest
import test_end_to_end as end_to_end
from real_models import MODELS, model_path

from spyrec.api import import_model
from spyrec.driver import lower_module
from spyrec.ir.core import Module, Value
from spyrec.ir.parser import parse_module
from spyrec.passes.fold import Fold
from spyrec.passes.manager import Target
from spyrec.passes.pipeline import PIPELINE
from spyrec.passes.residency import RingRelayout
from spyrec.sim.device import load_device

TARGET = Target(load_device())
AT = next(i for i, step in enumerate(PIPELINE) if isinstance(step, RingRelayout)) + 1
PLANNED = PIPELINE[:AT]


def constant_work(module: Module) -> list[str]:
    """Ops other than constants whose result is known before the run: all they read is."""
    known: set[Value] = set()
    found = []
    for op in module.body.ops:
        if all(v in known for v in op.operands):
            known.update(op.results)
            if op.name != "constant":
                found.append(str(op.attrs.get("name", op.name)))
    return found


TRANSPOSED = """module "m" {
  input %x: tensor<64x128xf32>
  %w = constant {value = dense<96x128xfloat32, splat 0.5>} : tensor<96x128xf32>
  %t = transpose(%w) {perm = (1, 0)} : tensor<128x96xf32>
  %y = matmul(%x, %t) : tensor<64x96xf32>
  output "y" = %y
}"""


def test_a_weight_that_the_model_transposes_is_stored_transposed() -> None:
    """And without the pass that computes with constants it would be moved at run time."""
    assert constant_work(lower_module(parse_module(TRANSPOSED), TARGET, pipeline=PLANNED)) == []
    unfolded = [step for step in PLANNED if not isinstance(step, Fold)]
    assert constant_work(lower_module(parse_module(TRANSPOSED), TARGET, pipeline=unfolded)) != []


@pytest.mark.parametrize("make", [end_to_end.mlp, end_to_end.attention])
def test_small_models_keep_their_weights_as_they_are_read(make: object) -> None:
    assert callable(make)
    assert constant_work(lower_module(make(), TARGET, pipeline=PLANNED)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_real_models_keep_their_weights_as_they_are_read(name: str) -> None:
    model = import_model(str(model_path(name)), MODELS[name].bind, {})
    module = lower_module(model, TARGET, pipeline=PLANNED)
    assert sum(op.name == "kernel" for op in module.body.ops) >= 8
    assert constant_work(module) == []
