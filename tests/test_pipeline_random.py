"""Random small graphs through the whole pipeline: after every pass the module is well-formed and
means what the imported one meant; the text form keeps it; the binary computes it.

The graphs are the same in every run. A second machine, with few cores and little scratchpad, makes
kernels loop and end unevenly where the first holds them in one tile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from spyrec import runtime
from spyrec.driver import compile_module
from spyrec.ir import interp
from spyrec.ir.core import Module
from spyrec.ir.errors import CapacityError
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import print_module
from spyrec.ir.rounding import round_to
from spyrec.ir.same import difference
from spyrec.ir.verifier import verify
from spyrec.passes.manager import Pass, Target, output_error, run_pipeline
from spyrec.passes.pipeline import PIPELINE
from spyrec.sim.device import DeviceSpec, load_device, parse_device
from spyrec.sim.run import run as simulate
from tests.graphs import inputs_for, modules

Array = np.ndarray[Any, Any]

DL16_ERROR = 0.03  # of the largest magnitude, for about eight ops with ten bits of precision each
F32_ERROR = 1e-5  # sums associate differently
WIDTHS = (1, 3, 64, 65, 130, 200)  # around the 64 elements the units handle together


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


def prove(module: Module, target: Target, seed: int, allowed: float) -> Module:
    """Every pass leaves a well-formed module that agrees with ``module``; gives the last one."""
    inputs = inputs_for(module, seed)
    want = interp.run(module, inputs)

    def check(step: Pass, _before: Module, after: Module, _seconds: float) -> None:
        verify(after)
        got = interp.run(after, fitted(after, inputs))
        for name, expected in want.items():
            error = output_error(expected, got[name].astype(expected.dtype))
            assert error <= allowed, f"after {step.name} the error of output {name} is {error:.3g}"

    try:
        return run_pipeline(module, PIPELINE, target, check)
    except CapacityError:
        if target.device is WIDE:
            raise
        reject()


def fixed(examples: int) -> Any:
    """The same random examples in every run."""
    return settings(
        max_examples=examples, deadline=None, derandomize=True, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@fixed(200)
@given(modules(smooth=True), st.integers(0, 99))
def test_200_graphs_in_the_card_s_format(module: Module, seed: int) -> None:
    prove(module, Target(WIDE, "dl16"), seed, DL16_ERROR)


@fixed(100)
@given(modules(), st.integers(0, 99))
def test_graphs_in_f32_differ_by_the_order_of_sums_only(module: Module, seed: int) -> None:
    prove(module, Target(WIDE, "fp32"), seed, F32_ERROR)


@fixed(60)
@given(modules(widths=WIDTHS), st.integers(0, 99))
def test_graphs_that_loop_and_end_unevenly(module: Module, seed: int) -> None:
    final = prove(module, Target(NARROW, "fp32"), seed, F32_ERROR)
    text = print_module(final)
    assert difference(final, parse_module(text)) is None
    assert print_module(parse_module(text)) == text


@pytest.mark.parametrize(("machine", "widths"), [(WIDE, (1, 2, 3, 4, 5)), (NARROW, WIDTHS)],
                         ids=["small", "wide"])  # fmt: skip
def test_binaries_compute_what_was_imported(machine: DeviceSpec, widths: tuple[int, ...]) -> None:
    target = Target(machine, "dl16")

    @fixed(40)
    @given(modules(smooth=True, widths=widths), st.integers(0, 99))
    def compare(module: Module, seed: int) -> None:
        inputs = inputs_for(module, seed)
        want = interp.run(module, inputs)
        try:
            program = compile_module(module, target).program
        except CapacityError:
            assert machine is NARROW
            reject()
        ports = runtime.ports(program, "input")
        packed = {p.buffer.name: runtime.pack(p, inputs[p.name], True) for p in ports}
        result = simulate(program, machine, packed, poison=True)
        for port in runtime.ports(program, "output"):
            got = runtime.unpack(port, result.outputs[port.buffer.name])
            assert output_error(want[port.name], got.astype(want[port.name].dtype)) <= DL16_ERROR

    compare()
