"""Compile a model, run it on the simulated card, see what it cost. Run make_models.py first."""

import sys
from pathlib import Path

import spyrec

model = Path(sys.argv[1] if len(sys.argv) > 1 else "demo/encoder.onnx")
if not model.is_file():
    sys.exit(f"{model} is not there; make it with: python examples/make_models.py {model.parent}")
program = spyrec.compile(model)
result = spyrec.simulate(program, seed=0)
print(f"{result.total_us:.1f} us, outputs {list(result.outputs)}")
