"""Random small graphs through the whole pipeline: after every pass the module is well-formed and
means what the imported one meant; the text form keeps it; the binary computes it.

The graphs are the same in every run. A second machine, with few cores and little scratchpad, makes
kernels loop and end unevenly where the first holds them in one tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from spyrec.driver import compile_module
from spyrec.ir.core import Module
from spyrec.ir.errors import CapacityError
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import print_module
from spyrec.ir.same import difference
from spyrec.passes.manager import Target
from spyrec.sim.check import find_hazards
from spyrec.sim.device import DeviceSpec
from tests.graphs import modules
from tests.pipeline_proof import DL16_ERROR, F32_ERROR, NARROW, WIDE, prove, prove_binary

WIDTHS = (1, 3, 64, 65, 130, 200)  # around the 64 elements the units handle together


def fixed(examples: int) -> Any:
    """The same random examples in every run."""
    return settings(
        max_examples=examples, deadline=None, derandomize=True, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@contextmanager
def fitting(machine: DeviceSpec) -> Iterator[None]:
    """Graphs too large for the narrow machine are skipped."""
    try:
        yield
    except CapacityError:
        if machine is WIDE:
            raise
        reject()


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
    with fitting(NARROW):
        final = prove(module, Target(NARROW, "fp32"), seed, F32_ERROR)
    text = print_module(final)
    assert difference(final, parse_module(text)) is None
    assert print_module(parse_module(text)) == text


@pytest.mark.parametrize(("machine", "widths"), [(WIDE, (1, 2, 3, 4, 5)), (NARROW, WIDTHS)],
                         ids=["small", "wide"])  # fmt: skip
def test_binaries_compute_what_was_imported(machine: DeviceSpec, widths: tuple[int, ...]) -> None:
    @fixed(40)
    @given(modules(smooth=True, widths=widths), st.integers(0, 99))
    def compare(module: Module, seed: int) -> None:
        with fitting(machine):
            prove_binary(module, Target(machine, "dl16"), seed, DL16_ERROR)

    compare()


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "widths"), [(WIDE, (1, 2, 3, 4, 5)), (NARROW, WIDTHS)],
                         ids=["small", "wide"])  # fmt: skip
def test_300_compiled_graphs_have_no_hazard(machine: DeviceSpec, widths: tuple[int, ...]) -> None:
    @fixed(300)
    @given(modules(widths=widths))
    def check(module: Module) -> None:
        with fitting(machine):
            program = compile_module(module, Target(machine, "dl16")).program
            assert find_hazards(program, machine) == ()

    check()
