"""Kernels that look the same are planned and built once: the program is the one that planning and
building each for itself gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from benchmarks import granite
from examples.make_models import cnn, encoder
from spyrec.api import import_model
from spyrec.backend import program, shared
from spyrec.backend.kernels import build_kernel
from spyrec.backend.shared import Placed, SharedKernels
from spyrec.driver import compile_module
from spyrec.ir.core import Block, Module, Op, Value
from spyrec.ir.errors import CapacityError
from spyrec.ir.parser import parse_module
from spyrec.ir.types import dtype, tensor
from spyrec.passes import allocate, kernel_price, ownership, tiling
from spyrec.passes.manager import Target
from spyrec.passes.signature import signature
from spyrec.sim.device import load_device
from spyrec.sim.isa import launched
from spyrec.sim.objfile import dump
from tests.graphs import modules

TARGET = Target(load_device())
SIZES = {"HIDDEN": 256, "HEADS": 4, "KV_HEADS": 2, "HEAD": 64, "INNER": 512}


def decoder(layers: int) -> onnx.ModelProto:
    """Granite's decoder layers, but narrow ones, for 32 tokens."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in SIZES.items():
            patch.setattr(granite, name, size)
        return granite.decoder(layers, 32)


LAYERS = """module "m" {
  input %x: tensor<64x128xf32>
  input %v: tensor<128x128xf32>
  input %w: tensor<128x128xf32>
  %a = matmul(%x, %v) : tensor<64x128xf32> @ "up"
  %b = exp(%a) : tensor<64x128xf32> @ "up"
  %c = matmul(%b, %w) : tensor<64x128xf32> @ "down"
  %d = exp(%c) : tensor<64x128xf32> @ "grow"
  %e = matmul(%d, %v) : tensor<64x128xf32> @ "again"
  %f = exp(%e) : tensor<64x128xf32> @ "and again"
  output "y" = %f
}"""
"""Layers of one form, the first of which comes from one node of the model and the others from
two."""


class EachForItself(SharedKernels):
    """Every kernel is built under its own names, and then compared with those before."""

    def add(self, op: Op, exchanges: Sequence[Op]) -> Placed:
        kernel, params, claimed = build_kernel(op, exchanges, self.around)
        for i, known in enumerate(self.kernels):
            same = replace(kernel, name=known.name, info=known.info, notes=known.notes)
            if len(known.notes) == len(kernel.notes) and same == known:
                return Placed(i, kernel.notes, params, claimed)
        self.kernels.append(kernel)
        return Placed(len(self.kernels) - 1, kernel.notes, params, claimed)


def assert_same(module: Module) -> None:
    together = compile_module(module, TARGET)
    with pytest.MonkeyPatch.context() as patch:
        for planner in (allocate, kernel_price, ownership, tiling):
            patch.setattr(planner, "signature", lambda op, without=(): object())
        patch.setattr(program, "SharedKernels", EachForItself)
        apart = compile_module(module, TARGET)
    assert dump(together.program) == dump(apart.program)
    assert together.plan == apart.plan


@pytest.mark.parametrize(
    "model", [cnn, encoder, lambda: decoder(3)], ids=["cnn", "encoder", "decoder"]
)
def test_a_model_is_the_same(model: Callable[[], onnx.ModelProto]) -> None:
    assert_same(import_model(model(), {}, {}))


@given(modules(max_ops=12, widths=(1, 3, 64, 130)))
@settings(
    max_examples=25, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_a_random_graph_is_the_same(module: Module) -> None:
    try:
        compile_module(module, TARGET)
    except CapacityError:
        return
    assert_same(module)


def test_provenance_is_each_launch_s_own() -> None:
    module = parse_module(LAYERS)
    assert_same(module)
    code = compile_module(module, TARGET).program
    nodes = [
        {node for note in launched(code.kernels[x.kernel], x).notes for node in note.nodes}
        for x in code.launches
    ]
    assert nodes == [{"up"}, {"down", "grow"}, {"again", "and again"}]


def test_equal_layers_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def counting(op: Op, *rest: Any) -> Any:
        built.append(str(op.attrs["ops"]))
        return build_kernel(op, *rest)

    monkeypatch.setattr(shared, "build_kernel", counting)
    few, many = (import_model(decoder(layers), {}, {}) for layers in (4, 8))
    counts = []
    for module in (few, many):
        built.clear()
        launches = compile_module(module, TARGET).program.launches
        counts.append((len(launches), len(built)))
    assert counts[1][0] > 1.7 * counts[0][0]
    assert counts[1][1] == counts[0][1] < counts[0][0]


def kernel(swap: bool = False, twice: bool = False, **changes: Any) -> Op:
    """A vector kernel of two operands, ``changes`` in its attributes or of the op inside."""
    given_ = {"name": "k0", "kind": "vec", "ops": "sub", "level": 1, **changes}
    x, y, a, b = (Value(n, tensor((4, 64), dtype("dl16"))) for n in "xyab")
    inner = Op("sub", (b, a) if swap else (a, b), (Value("s", a.type),))
    return Op(
        "kernel", (x, x if twice else y), (Value("r", x.type),), MappingProxyType(given_),
        (Block((a, b), (inner,), inner.results),),
    )  # fmt: skip


def test_names_are_all_that_may_differ() -> None:
    assert signature(kernel()) == signature(kernel(name="k1"))
    different = [
        kernel(), kernel(level=True), kernel(level=1.0), kernel(level=0.0), kernel(level=-0.0),
        kernel(level=(1,)), kernel(level=(True,)), kernel(level=None), kernel(level="1"),
        kernel(level=(2, (1, (0,)))), kernel(level=(2, (1, (False,)))),
        kernel(level=(2, (1, (0.0,)))),
        kernel(level=np.array([1, 0])), kernel(level=np.array([1, 2])),
        kernel(level=np.array([[1, 2]])), kernel(level=np.array([1, 2], np.int32)),
        kernel(level=float("nan")), kernel(swap=True), kernel(twice=True), kernel(more=1),
    ]  # fmt: skip
    assert len({signature(op) for op in different}) == len(different)
    assert len({signature(op, without=("level", "more")) for op in different}) == 3
    assert len({hash(signature(op)) for op in [kernel(level=np.array([1, 2]))] * 3}) == 1
