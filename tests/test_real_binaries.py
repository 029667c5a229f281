"""Real models as binaries on the simulator, everything poisoned, against onnxruntime in float32."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from real_models import MODELS, Inputs, make_inputs, model_path, with_random_weights
from small_models import cosine

import spyrec
from spyrec import runtime
from spyrec.report import KernelRow
from spyrec.sim.check import find_hazards
from spyrec.sim.device import DeviceSpec
from spyrec.sim.isa import Instr, Kernel, Program
from spyrec.sim.run import run
from spyrec.sim.stats import LaunchStats, RunResult

NAMES = [
    "C01", "C02", "C11", "C12", "C13", "C15", "C17",
    "light_densenet121", "light_resnet50", "light_squeezenet",
]  # fmt: skip
LEAST_COSINE = 0.9999
FULL_TILES = 32  # a kernel with less work than this may leave cores idle
LEAST_CORE_USE = 0.95

Array = np.ndarray[Any, Any]


@dataclass
class MatrixCores:
    """An observer that notes which cores' matrix units work in each launch."""

    cores: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def started(self, launch: int, kernel: Kernel, cycle: int) -> None:
        """A launch that opens says nothing about its cores."""

    def worked(
        self, launch: int, kernel: Kernel, core: int, unit: str, instr: Instr,
        start: int, end: int, nbytes: int,
    ) -> None:  # fmt: skip
        if unit == "pt":
            self.cores[launch].add(core)

    def finished(self, stats: LaunchStats) -> None:
        """The launch was looked at while it ran."""


def reference(path: str | bytes, inputs: Inputs) -> dict[str, Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def run_poisoned(program: spyrec.Program, inputs: Inputs, watch: MatrixCores) -> RunResult:
    """With NaN patterns in padding, scratchpad and memory that nothing has written."""
    packed = {p.buffer.name: runtime.pack(p, inputs[p.name], poison=True) for p in program.inputs}
    return run(program.code, program.device, packed, poison=True, observer=watch)


def disagreements(name: str, got: dict[str, Array], expected: dict[str, Array]) -> list[str]:
    """A sentence for each output that is off; the figures of every output are printed."""
    assert got.keys() == expected.keys()
    found = []
    for output, want in expected.items():
        have = got[output]
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        alike = cosine(want, have)
        error = float(np.abs(have.astype(np.float64) - want).max(initial=0.0))
        largest = float(np.abs(want).max(initial=0))
        print(f"{name} {output}: cosine {alike:.7f}, largest error {error:.4g} of {largest:.4g}")
        if want.dtype.kind != "f":
            if not np.array_equal(have, want):
                found.append(f"output {output}: the whole numbers differ by up to {error:g}")
        elif not np.isfinite(have).all():
            found.append(f"output {output}: {np.count_nonzero(~np.isfinite(have))} not finite")
        elif not alike >= LEAST_COSINE:
            found.append(f"output {output}: cosine {alike:.7f}, largest error {error:.4g}")
    return found


def idle_cores(program: Program, watch: MatrixCores, device: DeviceSpec) -> list[str]:
    """A sentence for each launch with work enough whose matrix units are not nearly all busy, and
    for each that keeps other cores busy than its facts, which the report shows, say."""
    found = []
    for number, launch in enumerate(program.launches):
        kernel = program.kernels[launch.kernel]
        tiles, used = int(kernel.info.get("tiles", 0)), len(watch.cores[number])
        if tiles >= FULL_TILES and used < LEAST_CORE_USE * device.cores.count:
            found.append(f"{kernel.name}: {used} cores for {tiles} tiles; {dict(kernel.info)}")
        if bool(tiles) != bool(used) or (tiles and used != kernel.info["cores"]):
            found.append(f"{kernel.name}: {used} cores work; {dict(kernel.info)}")
    return found


def over_capacity(rows: Sequence[KernelRow], device: DeviceSpec) -> list[str]:
    """A sentence for each kernel that needs more scratchpad or span than there is."""
    found = []
    for row in rows:
        if not 0 < row.lx_peak_bytes <= device.lx.bytes:
            found.append(f"{row.name}: {row.lx_peak_bytes} bytes of scratchpad")
        if not 0 <= row.span_bytes <= device.hbm.span_bytes:
            found.append(f"{row.name}: a core reaches over {row.span_bytes} bytes of a tensor")
    return found


def check(name: str, program: spyrec.Program, model: str | bytes, inputs: Inputs) -> None:
    """Right, finite, indifferent to poison, on all cores and within the machine's capacities."""
    device, watch = program.device, MatrixCores()
    poisoned = run_poisoned(program, inputs, watch)
    got = {p.name: runtime.unpack(p, poisoned.outputs[p.buffer.name]) for p in program.outputs}
    clean = spyrec.simulate(program, inputs)
    problems = disagreements(name, got, reference(model, inputs))
    problems += [
        f"output {output} depends on the poison"
        for output, array in clean.outputs.items()
        if not np.array_equal(array, got[output], equal_nan=True)
    ]
    problems += map(str, find_hazards(program.code, device))
    problems += idle_cores(program.code, watch, device)
    problems += over_capacity(clean.kernels, device)
    assert clean.total_cycles == poisoned.total_cycles
    assert any(watch.cores.values()) and any(row.span_bytes for row in clean.kernels)
    assert not problems, "\n".join(problems)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_the_binary_is_right_and_uses_the_machine(name: str) -> None:
    path = str(model_path(name))
    check(name, spyrec.compile(path, bind=MODELS[name].bind), path, make_inputs(name))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["light_densenet121", "light_squeezenet"])
def test_the_binary_of_a_model_with_random_weights_is_right(name: str) -> None:
    """The light models' own weights are one constant each, which hides what is mixed up."""
    model = with_random_weights(onnx.load(model_path(name)))
    check(name, spyrec.compile(model), model.SerializeToString(), make_inputs(name))
