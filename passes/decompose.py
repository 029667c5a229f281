"""decompose: by a table of rules everything becomes primitive ops, which kernels are made from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from spyrec.ir.core import Module, walk
from spyrec.ir.errors import PassError

from .manager import Target
from .primitives import is_primitive
from .rule import Rule, apply_rules
from .rules_affine import AFFINE_RULES
from .rules_attention import ATTENTION_RULES
from .rules_control import CONTROL_RULES
from .rules_conv import CONV_RULES
from .rules_einsum import EINSUM_RULES
from .rules_elementwise import ELEMENTWISE_RULES
from .rules_experts import EXPERT_RULES
from .rules_heads import HEADS_RULES
from .rules_index import INDEX_RULES
from .rules_mask import MASK_RULES
from .rules_move import MOVE_RULES
from .rules_norm import BATCH_NORM_FOLDS, NORM_RULES
from .rules_order import ORDER_RULES
from .rules_pow import POW_RULES
from .rules_quant import QUANT_RULES
from .rules_reduce import REDUCE_RULES
from .rules_resize import RESIZE_RULES
from .rules_rotary import ROTARY_RULES
from .rules_scatter import SCATTER_RULES
from .rules_window import WINDOW_RULES

FIRST_RULES: tuple[Rule, ...] = (
    *BATCH_NORM_FOLDS,
    *MASK_RULES,
    *EXPERT_RULES,  # a look-up in its own terms would not be known again
)

RULES: tuple[Rule, ...] = (
    *CONTROL_RULES,  # first: the ops inside regions are seen only once they stand outside
    *QUANT_RULES,
    *NORM_RULES,
    *HEADS_RULES,
    *ATTENTION_RULES,
    *ROTARY_RULES,
    *ELEMENTWISE_RULES,
    *POW_RULES,
    *REDUCE_RULES,
    *ORDER_RULES,
    *WINDOW_RULES,
    *CONV_RULES,
    *RESIZE_RULES,
    *MOVE_RULES,
    *INDEX_RULES,
    *SCATTER_RULES,
    *EINSUM_RULES,
    *AFFINE_RULES,
)

NODES_SHOWN = 3


@dataclass(frozen=True)
class Decompose:
    """Rewrite until only primitive ops are left (see ``primitives``). Constants fold on the way.

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> before = parse_module('''module "m" {
    ...   input %x: tensor<2xf32>
    ...   %y = silu(%x) : tensor<2xf32>
    ...   output "y" = %y
    ... }''')
    >>> print(print_module(decompose(before)), end="")
    module "m" {
      input %x: tensor<2xf32>
      %sigmoid = sigmoid(%x) : tensor<2xf32>
      %mul = mul(%x, %sigmoid) : tensor<2xf32>
      output "y" = %mul
    }
    """

    name: ClassVar[str] = "decompose"
    summary: ClassVar[str] = "Rewrites every op into the primitive ops that kernels are made from."

    def run(self, module: Module, target: Target) -> Module:
        return decompose(module)


def decompose(module: Module, counts: Counter[str] | None = None) -> Module:
    """The module in primitive ops. ``counts`` gains how often each rule was used.

    Dimensions must be bound. PassError lists every op that is left and is not primitive.
    """
    module = apply_rules(module, FIRST_RULES, counts)
    module = apply_rules(module, RULES, counts)
    left: dict[str, list[str]] = {}
    for op in walk(module.body):
        if not is_primitive(op):
            left.setdefault(op.name, []).append(str(op.loc))
    if left:
        raise PassError(
            "decompose: no rule turns these ops into primitive ones: "
            + "; ".join(_listed(name, locs) for name, locs in left.items())
            + "; the device has no form for them"
        )
    return module


def _listed(name: str, locs: list[str]) -> str:
    shown = ", ".join(locs[:NODES_SHOWN]) + (", ..." if len(locs) > NODES_SHOWN else "")
    return f"{name} {len(locs)}x (from {shown})"
