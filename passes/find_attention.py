"""find-attention: attention that is spelled out becomes one op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spyrec.ir.core import Module

from .manager import Target
from .rule import apply_rules
from .rules_canonical import CANONICAL_RULES
from .rules_explicit import EXPLICIT_RULES


@dataclass(frozen=True)
class FindAttention:
    """Products, scales, masks and softmax that together are attention become the op, whose keys and
    values are then read where they stand once. Scales and masks may be constants by now.

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> before = parse_module('''module "m" {
    ...   input %q: tensor<1x4x8x2xf32>
    ...   input %k: tensor<1x1x2x8xf32>
    ...   input %v: tensor<1x1x8x2xf32>
    ...   input %seen: tensor<8x8xbool>
    ...   %half = constant {value = dense<float32, [0.5]>} : tensor<f32>
    ...   %low = constant {value = dense<float32, [-inf]>} : tensor<f32>
    ...   %a = matmul(%q, %k) : tensor<1x4x8x8xf32>
    ...   %b = mul(%a, %half) : tensor<1x4x8x8xf32>
    ...   %c = where(%seen, %b, %low) : tensor<1x4x8x8xf32>
    ...   %d = softmax(%c) {axis = 3} : tensor<1x4x8x8xf32>
    ...   %y = matmul(%d, %v) : tensor<1x4x8x2xf32>
    ...   output "y" = %y
    ... }''')
    >>> print(print_module(find_attention(before)), end="")
    module "m" {
      input %q: tensor<1x4x8x2xf32>
      input %k: tensor<1x1x2x8xf32>
      input %v: tensor<1x1x8x2xf32>
      input %seen: tensor<8x8xbool>
      %transpose = transpose(%k) {perm = (0, 1, 3, 2)} : tensor<1x1x8x2xf32>
      %attention = attention(%q, %transpose, %v, %seen) {scale = 0.5} : tensor<1x4x8x2xf32>
      output "y" = %attention
    }
    """

    name: ClassVar[str] = "find-attention"
    summary: ClassVar[str] = "Makes one op of attention that a model spells out."

    def run(self, module: Module, target: Target) -> Module:
        return find_attention(module)


def find_attention(module: Module) -> Module:
    """The module with its explicit attentions joined."""
    return apply_rules(module, (*EXPLICIT_RULES, *CANONICAL_RULES))
