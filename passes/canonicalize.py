"""canonicalize: local clean-up until nothing changes, so that later passes meet fewer forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spyrec.ir.core import Module

from .manager import Target
from .rule import apply_rules
from .rules_canonical import CANONICAL_RULES


@dataclass(frozen=True)
class Canonicalize:
    """Remove ops that change nothing, merge chains of reshapes, transposes, slices and casts, let
    elementwise ops broadcast, and give reductions keepdims. Every rule is exact.

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> before = parse_module('''module "m" {
    ...   input %x: tensor<2x3xf32>
    ...   %a = transpose(%x) {perm = (1, 0)} : tensor<3x2xf32>
    ...   %b = transpose(%a) {perm = (1, 0)} : tensor<2x3xf32>
    ...   %y = reduce_sum(%b) {axes = (1,), keepdims = false} : tensor<2xf32>
    ...   output "y" = %y
    ... }''')
    >>> print(print_module(canonicalize(before)), end="")
    module "m" {
      input %x: tensor<2x3xf32>
      %reduce_sum = reduce_sum(%x) {axes = (1,), keepdims = true} : tensor<2x1xf32>
      %reshape = reshape(%reduce_sum) {shape = (2,)} : tensor<2xf32>
      output "y" = %reshape
    }
    """

    name: ClassVar[str] = "canonicalize"
    summary: ClassVar[str] = "Removes ops that change nothing and merges chains of data movement."

    def run(self, module: Module, target: Target) -> Module:
        return canonicalize(module)


def canonicalize(module: Module) -> Module:
    """The module after all canonical rules, without what became dead."""
    return apply_rules(module, CANONICAL_RULES)
