"""The maps of a matrix kernel against its ops, which the interpreter runs."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from spyrec.driver import lower_module
from spyrec.ir.core import Module
from spyrec.ir.parser import parse_module
from spyrec.passes.manager import Target, random_inputs
from spyrec.passes.pipeline import PIPELINE
from spyrec.sim.device import load_device
from spyrec.workbench.plugins import until
from spyrec.workbench.states import ROUNDED, interpreted

TARGET = Target(load_device())
PRODUCT = """module "m" {
  input %x: tensor<3x5x8x16xf32>
  input %w: tensor<16x24xf32>
  %h = matmul(%x, %w) : tensor<3x5x8x24xf32>
  %y = tanh(%h) : tensor<3x5x8x24xf32>
  output "y" = %y
}"""
CONVOLUTION = """module "m" {
  input %x: tensor<2x4x9x7xf32>
  %c = constant {value = dense<8x4x3x2xfloat32, splat 0.5>} : tensor<8x4x3x2xf32>
  %r = constant {value = dense<8x1x1x1xfloat32, [1.0, -2.0, 0.5, 3.0, 0.25, 1.5, -1.0, 2.0]>} """ \
    """: tensor<8x1x1x1xf32>
  %w = mul(%c, %r) : tensor<8x4x3x2xf32>
  %y = conv(%x, %w) {strides = (2, 1), pads = (1, 0, 1, 1), dilations = (1, 1)} """ \
    """: tensor<2x8x5x7xf32>
  output "y" = %y
}"""


def fused(text: str) -> Module:
    return lower_module(parse_module(text), TARGET, pipeline=until(PIPELINE, "fuse"), plan_budget=0)


def told(module: Module) -> str:
    _, wrong = interpreted(module, random_inputs(module), ROUNDED)
    return wrong


def with_maps(module: Module, change: Any) -> Module:
    """The module, the maps of its matrix kernel as ``change`` makes them of a list of lists."""

    def changed(op: Any) -> Any:
        if op.attrs.get("kind") != "contract":
            return op
        maps = [[(offset, list(coefs)) for offset, coefs in m] for m in op.attrs["maps"]]
        change(maps)
        whole = tuple(tuple((offset, tuple(coefs)) for offset, coefs in m) for m in maps)
        return replace(op, attrs=MappingProxyType({**op.attrs, "maps": whole}))

    return replace(module, body=replace(module.body, ops=tuple(map(changed, module.body.ops))))


@pytest.mark.parametrize("text", [PRODUCT, CONVOLUTION], ids=["product", "convolution"])
def test_sound_maps_mean_what_the_ops_do(text: str) -> None:
    assert told(fused(text)) == ""


def test_a_wrong_map_is_told() -> None:
    def turned(maps: Any) -> None:
        maps[0][2], maps[0][3] = (0, maps[0][3][1]), (0, maps[0][2][1])

    def shifted(maps: Any) -> None:
        offset, coefs = maps[0][2]
        assert offset == -1  # the border
        maps[0][2] = 1, coefs

    assert told(with_maps(fused(PRODUCT), turned)).startswith("by the maps of kernel k0_matmul")
    sentence = told(with_maps(fused(CONVOLUTION), shifted))
    assert sentence.startswith("by the maps of kernel k0_conv element (0, ")
    assert ", by its ops " in sentence
