"""A sentence encoder through the pipeline: after every pass well-formed, and what it meant."""

from __future__ import annotations

import numpy as np
import pytest

from spyrec import api
from spyrec.ir import interp
from spyrec.ir.core import Module
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import blobs, print_module
from spyrec.ir.rounding import round_to
from spyrec.ir.same import difference
from spyrec.ir.verifier import verify
from spyrec.passes.manager import Pass, Target, run_pipeline
from spyrec.passes.pipeline import PIPELINE
from spyrec.sim.device import load_device
from tests.real_models import MODELS, make_inputs, model_path
from tests.small_models import cosine


@pytest.mark.slow
def test_every_pass_keeps_c02() -> None:
    module = api.import_model(str(model_path("C02")), MODELS["C02"].bind, {})
    inputs = make_inputs("C02")
    want = interp.run(module, inputs)
    seen = []

    def check(step: Pass, _before: Module, after: Module, _seconds: float) -> None:
        verify(after)
        fitted = {
            v.name: round_to(np.asarray(inputs[v.name]), v.type.dtype) for v in after.body.args
        }
        got = interp.run(after, fitted)
        worst = np.min([cosine(want[name], got[name]) for name in want])  # NaN stays
        assert worst >= 0.9999, f"after {step.name} the cosine is {worst:.7f}"
        seen.append(step.name)

    final = run_pipeline(module, PIPELINE, Target(load_device()), check)
    assert seen == [step.name for step in PIPELINE]
    text = print_module(final, "elide")
    again = parse_module(text, blobs(final))
    assert difference(final, again) is None
    assert print_module(again, "elide") == text
