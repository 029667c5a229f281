"""Compile a model, run it on the simulated card, see what it cost. Run make_models.py first."""

import sys

import spyrec

program = spyrec.compile(sys.argv[1] if len(sys.argv) > 1 else "demo/encoder.onnx")
result = spyrec.simulate(program, seed=0)
print(f"{result.total_us:.1f} us, outputs {list(result.outputs)}")
