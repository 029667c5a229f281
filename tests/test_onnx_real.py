"""Real models: the interpreter on the imported module against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from spyrec.frontend import import_onnx
from spyrec.ir.interp import run
from spyrec.ir.verifier import verify
from tests.real_models import MODELS, light_output, make_inputs, model_path, with_random_weights

LIGHT = [name for name in MODELS if name.startswith("light_")]
SMALL_LIGHT = ["light_densenet121", "light_inception_v2", "light_shufflenet", "light_squeezenet"]


def reference(model: str | bytes, inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def assert_agree(got: dict[str, np.ndarray], expected: dict[str, Any]) -> None:
    """Whole numbers are equal; floats have the same direction and differ little at their scale."""
    assert got.keys() == expected.keys()
    for name, want in expected.items():
        have = got[name]
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        if want.dtype.kind != "f":
            np.testing.assert_array_equal(have, want)
            continue
        a, b = have.astype(np.float64).ravel(), want.astype(np.float64).ravel()
        cosine = a @ b / np.sqrt((a @ a) * (b @ b))
        assert cosine > 0.999999, name
        assert np.abs(a - b).max() < 1e-3 * np.abs(b).max(), name


@pytest.mark.slow
@pytest.mark.parametrize("name", [m for m in MODELS if m not in LIGHT])
def test_real_model_agrees_with_onnxruntime(name: str) -> None:
    path, inputs = model_path(name), make_inputs(name)
    module = import_onnx(path, bind=MODELS[name].bind)
    assert module.attrs["warnings"] == ()
    verify(module)
    assert_agree(run(module, inputs), reference(str(path), inputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT)
def test_light_model_gives_the_expected_output(name: str) -> None:
    path, inputs = model_path(name), make_inputs(name)
    (got,) = run(import_onnx(path), inputs).values()
    np.testing.assert_allclose(got.ravel(), light_output(name).ravel(), rtol=1e-3, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_LIGHT)
def test_light_model_with_random_weights_agrees_with_onnxruntime(name: str) -> None:
    model, inputs = with_random_weights(onnx.load(model_path(name))), make_inputs(name)
    assert_agree(run(import_onnx(model), inputs), reference(model.SerializeToString(), inputs))
