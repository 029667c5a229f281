"""Where kernels can have the same cut, nothing is exchanged between them (T4's second half: the
published pair of ops, cut alike, needs no relayout)."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from benchmarks.targets import RELAYOUT, RELAYOUT_CORES, one_kernel_an_op
from spyrec.driver import compile_module
from spyrec.ir.core import Module
from spyrec.ir.parser import parse_module
from spyrec.passes.manager import Target
from spyrec.sim.device import load_device
from spyrec.sim.run import run

DEVICE = load_device()


def ring_bytes(module: Module, cores: int) -> int:
    """What the planner's program for a kernel an op sends over the ring."""
    done = compile_module(module, Target(DEVICE), pipeline=one_kernel_an_op(cores, reorder=True))
    assert len(done.program.launches) > 1
    result = run(done.program, DEVICE, timing_only=True)
    assert not sum(x.hbm_read_bytes for x in result.launches[1:]), "kept in card memory"
    return sum(x.ring_bytes for x in result.launches)


def padded(module: Module) -> int:
    """Elements of its input with the innermost dimension in whole groups of 64."""
    *outer, inner = module.body.args[0].type.static_shape
    return prod(outer) * -(-inner // 64) * 64


@pytest.mark.parametrize("cores", [RELAYOUT_CORES, DEVICE.cores.count])
def test_the_published_pair_exchanges_nothing(cores: int) -> None:
    text = "\n".join(line for line in RELAYOUT.splitlines() if "constant" not in line)
    assert ring_bytes(parse_module(text.replace("%zero", "%neg")), cores) == 0


ROOM = 256 << 10
"""Of a tensor on a core, so that a chain stays in the scratchpads."""
SIZES = st.sampled_from((1, 2, 3, 5, 8, 24, 64, 67, 96, 128, 200, 512))


@st.composite
def chains(draw: st.DrawFn) -> Module:
    """Elementwise ops over one shape, each reading earlier results: any cut of one suits all."""
    shape = "x".join(str(draw(SIZES)) for _ in range(draw(st.integers(1, 3))))
    kind = f"tensor<{shape}xdl16>"
    lines, values = [f"  input %x: {kind}", f"  %v0 = neg(%x) : {kind}"], ["v0"]
    for i in range(1, draw(st.integers(2, 5))):
        name = draw(st.sampled_from(("neg", "exp", "add", "mul", "max")))
        last = [values[-1]]
        if name not in ("neg", "exp"):
            last.append(draw(st.sampled_from(values)))
        operands = ", ".join(f"%{v}" for v in last)
        lines.append(f"  %v{i} = {name}({operands}) : {kind}")
        values.append(f"v{i}")
    lines.append(f'  output "y" = %{values[-1]}')
    return parse_module("\n".join(['module "m" {', *lines, "}"]))


@given(chains(), st.sampled_from((2, 8, 32)))
@settings(
    max_examples=60, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_a_chain_over_one_shape_exchanges_nothing(module: Module, cores: int) -> None:
    assume(2 * padded(module) <= cores * ROOM)
    assert ring_bytes(module, cores) == 0


PRODUCTS = """module "m" {{
  input %x: tensor<{rows}x512xdl16>
  input %v: tensor<512x{wide}xdl16>
  %p = matmul(%x, %v) : tensor<{rows}x{wide}xdl16>
  %n = neg(%p) : tensor<{rows}x{wide}xdl16>
  %e = exp(%n) : tensor<{rows}x{wide}xdl16>
  output "y" = %e
}}"""


@pytest.mark.parametrize(("rows", "wide"), [(512, 512), (512, 2048), (64, 4096), (67, 1280)])
def test_what_follows_a_product_takes_its_cut(rows: int, wide: int) -> None:
    assert ring_bytes(parse_module(PRODUCTS.format(rows=rows, wide=wide)), 32) == 0
