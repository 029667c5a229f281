"""What it means that the pipeline is right, after every pass and on the machine; and a machine
narrow enough for small graphs to loop and end unevenly."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from spyrec import runtime
from spyrec.driver import compile_module
from spyrec.ir import interp
from spyrec.ir.core import Module
from spyrec.ir.rounding import round_to
from spyrec.ir.verifier import verify
from spyrec.passes.manager import Pass, Pipeline, Target, output_error, run_pipeline
from spyrec.passes.pipeline import PIPELINE
from spyrec.sim.check import find_hazards
from spyrec.sim.device import DeviceSpec, load_device, parse_device
from spyrec.sim.run import run as simulate
from tests.graphs import inputs_for

Array = np.ndarray[Any, Any]

DL16_ERROR = 0.03  # of the largest magnitude, for about eight ops with ten bits of precision each
F32_ERROR = 1e-5  # sums associate differently


def narrow() -> DeviceSpec:
    """Five cores with 64 KiB of scratchpad each."""
    text = load_device().text
    changes = (("cores", "count", 5), ("lx", "bytes", 65536), ("lx", "reserved_bytes", 0))
    for section, key, value in changes:
        pattern = rf"(?ms)(^\[{section}\].*?^{key} *= *)\d+"
        text, count = re.subn(pattern, rf"\g<1>{value}", text, count=1)
        assert count == 1
    return parse_device(text)


WIDE, NARROW = load_device(), narrow()


def fitted(module: Module, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs in the formats of the module's own input types."""
    return {
        v.name: round_to(inputs[v.name], v.type.dtype).astype(v.type.dtype.np_dtype)
        for v in module.body.args
    }


def prove(
    module: Module, target: Target, seed: int, allowed: float, pipeline: Pipeline = PIPELINE
) -> Module:
    """Every pass leaves a well-formed module that agrees with ``module``; gives the last one."""
    inputs = inputs_for(module, seed)
    want = interp.run(module, inputs)

    def check(step: Pass, _before: Module, after: Module, _seconds: float) -> None:
        verify(after)
        got = interp.run(after, fitted(after, inputs))
        for name, expected in want.items():
            error = output_error(expected, got[name].astype(expected.dtype))
            assert error <= allowed, f"after {step.name} the error of output {name} is {error:.3g}"

    return run_pipeline(module, pipeline, target, check)


def prove_binary(
    module: Module, target: Target, seed: int, allowed: float, planner: str = "joint"
) -> None:
    """The compiled program has no hazard and, run with everything poisoned, gives what ``module``
    means."""
    inputs = inputs_for(module, seed)
    want = interp.run(module, inputs)
    program = compile_module(module, target, planner=planner).program
    assert find_hazards(program, target.device) == ()
    ports = runtime.ports(program, "input")
    packed = {p.buffer.name: runtime.pack(p, inputs[p.name], True) for p in ports}
    result = simulate(program, target.device, packed, poison=True)
    for port in runtime.ports(program, "output"):
        got = runtime.unpack(port, result.outputs[port.buffer.name])
        error = output_error(want[port.name], got.astype(want[port.name].dtype))
        assert error <= allowed, f"the error of output {port.name} is {error:.3g}"
