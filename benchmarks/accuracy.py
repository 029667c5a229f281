"""How far the binaries of real models are from onnxruntime in float32: for each output the cosine,
the largest absolute error and the largest magnitude. Run: python -m benchmarks.accuracy [MODEL ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime

from spyrec import api, runtime
from spyrec.passes.manager import Numerics
from spyrec.sim.run import run
from tests.real_models import MODELS, make_inputs, model_path, with_random_weights

Array = np.ndarray[Any, Any]

NAMES = (
    "C01", "C02", "C11", "C12", "C13", "C15", "C17", "light_resnet50", "light_squeezenet",
    "light_densenet121",
)  # fmt: skip
LEAST_COSINE = 0.9999


@dataclass(frozen=True)
class Accuracy:
    """One output. ``cosine`` is NaN when something is not finite."""

    model: str
    output: str
    cosine: float
    error: float
    largest: float

    @property
    def good(self) -> bool:
        return self.cosine >= LEAST_COSINE


def measure(
    name: str, numerics: Numerics = "dl16", seed: int = 0, random_weights: bool = False,
    planner: str = "joint",
) -> Iterator[Accuracy]:
    """Compile the model, run it with poisoned padding, scratchpad and memory, and compare every
    output. ``random_weights``: instead of the constants that the light models have."""
    model = onnx.load(str(model_path(name)))
    if random_weights:
        model = with_random_weights(model, seed)
    inputs = make_inputs(name, seed)
    wanted = reference(model, inputs)
    program = api.compile(model, bind=dict(MODELS[name].bind), numerics=numerics, planner=planner)
    fed = {p.buffer.name: runtime.pack(p, inputs[p.name], True) for p in program.inputs}
    result = run(program.code, program.device, fed, poison=True)
    for port in program.outputs:
        got = runtime.unpack(port, result.outputs[port.buffer.name])
        yield compare(name, port.name, wanted[port.name], got)


def reference(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs by name that onnxruntime computes on the host."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    outputs = [o.name for o in session.get_outputs()]
    return dict(zip(outputs, session.run(None, dict(inputs)), strict=True))


def compare(model: str, output: str, want: Array, got: Array) -> Accuracy:
    a, b = want.astype(np.float64).ravel(), got.astype(np.float64).ravel()
    scale = np.sqrt((a @ a) * (b @ b))
    cosine = float(a @ b / scale) if scale else float(np.array_equal(a, b))
    error, largest = (float(np.max(np.abs(x), initial=0.0)) for x in (a - b, a))
    return Accuracy(model, output, cosine, error, largest)


def print_row(a: Accuracy) -> None:
    print(f"{a.model:<18} {a.cosine:>10.7f} {a.error:>10.2e} {a.largest:>10.2e}  {a.output}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="names in tests/real_models.py")
    parser.add_argument("--numerics", choices=("dl16", "ieee16", "fp32"), default="dl16")
    parser.add_argument("--planner", choices=("joint", "baseline"), default="joint")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs")
    parser.add_argument("--random-weights", action="store_true", help="in light models")
    options = parser.parse_args()
    usual = [n for n in NAMES if n.startswith("light_") or not options.random_weights]
    print(f"{'model':<18} {'cosine':>10} {'max error':>10} {'max value':>10}  output")
    bad = 0
    for name in options.models or usual:
        for row in measure(
            name, options.numerics, options.seed, options.random_weights, options.planner
        ):
            print_row(row)
            bad += not row.good
    print(f"{bad} outputs below a cosine of {LEAST_COSINE}")
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
