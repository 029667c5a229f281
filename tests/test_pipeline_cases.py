"""Chosen modules after every pass and as binaries: each road of the compiler, and what random
graphs found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spyrec.ir.core import Module
from spyrec.ir.parser import parse_module
from spyrec.passes.manager import Target
from tests.pipeline_proof import DL16_ERROR, NARROW, WIDE, prove, prove_binary
from tests.test_end_to_end import ROADS

# Name: the body of a module, and what of it used to go wrong.
FOUND = {
    "residual of the factor": """
      // x is read by the matmul along rows and k, and by the add along rows and columns
      input %x: tensor<130x130xf32>
      %m = matmul(%x, %x) : tensor<130x130xf32>
      %y = add(%m, %x) : tensor<130x130xf32>
      output "y" = %y""",
    "residual of a pool": """
      // the window's map and the identity differ
      input %x: tensor<1x70x9x9xf32>
      %m = max_pool(%x) {kernel = (3, 3), strides = (1, 1), pads = (1, 1, 1, 1), dilations = (1, 1)}
        : tensor<1x70x9x9xf32>
      %y = sub(%m, %x) : tensor<1x70x9x9xf32>
      output "y" = %y""",
    "a result that cores share": """
      // all heads read one exp, which several cores make and stored at the same time
      input %x: tensor<1x65x80xf32>
      input %z: tensor<3x65x80xf32>
      %e = exp(%x) : tensor<1x65x80xf32>
      %y = add(%z, %e) : tensor<3x65x80xf32>
      output "e" = %e
      output "y" = %y""",
    "windows that begin in the border": """
      // seen by the checker only: the stick before the first is that of no other value
      input %x: tensor<2x3x20xf32>
      %y = max_pool(%x) {kernel = (3,), strides = (1,), pads = (2, 1), dilations = (2,)}
        : tensor<2x3x19xf32>
      output "y" = %y""",
    "one operand twice": """
      // a move of one tensor to two places has one operand
      input %x: tensor<4xf32>
      %y = concat(%x, %x) {axis = 0} : tensor<8xf32>
      output "y" = %y""",
    "one operand around another": """
      // what is read once is written twice, by cores that have uneven parts
      input %x: tensor<70x192xf32>
      input %z: tensor<70x128xf32>
      %y = concat(%x, %z, %x) {axis = 1} : tensor<70x512xf32>
      output "y" = %y""",
    "factor of one element": """
      // the matrix unit takes no immediate
      input %x: tensor<5x1xf32>
      %w = constant {value = dense<1x1xfloat32, [1.5]>} : tensor<1x1xf32>
      %y = matmul(%x, %w) : tensor<5x1xf32>
      output "y" = %y""",
    "scalars": """
      // moves of tensors of rank 0
      input %x: tensor<f32>
      %n = neg(%x) : tensor<f32>
      %r = reshape(%x) {shape = (1,)} : tensor<1xf32>
      output "n" = %n
      output "x" = %x
      output "r" = %r""",
    "scalar beside a column": """
      // lanes run down the column, so the scalar is copied to another shape
      input %x: tensor<f32>
      input %c: tensor<70x1xf32>
      %y = mul(%c, %x) : tensor<70x1xf32>
      output "y" = %y""",
    "row across the lanes": """
      // lanes run along the channels, which the constant row does not have
      input %x: tensor<2x65x5x3xf32>
      %c = constant {value = dense<3xfloat32, [0.5, -1.5, 2.5]>} : tensor<3xf32>
      %s = softmax(%x) {axis = 1} : tensor<2x65x5x3xf32>
      %n = neg(%c) : tensor<3xf32>
      %y = mul(%s, %n) : tensor<2x65x5x3xf32>
      output "y" = %y""",
    "sum of everything": """
      // no dimension is left for the lanes
      input %x: tensor<1x3000xf32>
      %y = reduce_sum(%x) {axes = (0, 1)} : tensor<1x1xf32>
      output "y" = %y""",
    "sum of equal elements": """
      // the reduced dimension is none of the operand's
      input %x: tensor<3x1xf32>
      %b = broadcast_to(%x) {shape = (3, 70)} : tensor<3x70xf32>
      %s = reduce_sum(%b) {axes = (1,)} : tensor<3x1xf32>
      %y = sub(%s, %x) : tensor<3x1xf32>
      output "y" = %y""",
    "batch that ends early": """
      // 152 products over five cores: the last trip of the loop is empty on three of them
      input %x: tensor<1x152x1x3xf32>
      %a = relu(%x) : tensor<1x152x1x3xf32>
      %t = transpose(%a) {perm = (0, 1, 3, 2)} : tensor<1x152x3x1xf32>
      %m = matmul(%a, %t) : tensor<1x152x1x1xf32>
      %y = exp(%m) : tensor<1x152x1x1xf32>
      output "y" = %y""",
}


@pytest.mark.parametrize("road", ROADS, ids=lambda road: road.__name__)
def test_each_road_keeps_its_meaning(road: Callable[[], Module]) -> None:
    prove(road(), Target(WIDE, "dl16"), 0, DL16_ERROR)


@pytest.mark.parametrize("machine", [WIDE, NARROW], ids=["card", "narrow"])
@pytest.mark.parametrize("body", FOUND.values(), ids=FOUND)
def test_what_random_graphs_found(body: str, machine: object) -> None:
    module = parse_module(f'module "found" {{ {body} }}')
    target = Target(WIDE if machine is WIDE else NARROW, "dl16")
    prove(module, target, 0, DL16_ERROR)
    prove_binary(module, target, 0, DL16_ERROR)
