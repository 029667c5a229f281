"""fold: ops whose operands are all constants are computed now, by the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from spyrec.ir.core import Builder, Module, Op, Value, rewrite
from spyrec.ir.interp import run_op

from .dce import remove_dead
from .emit import FOLD_LIMIT, Emit, Facts, may_fold
from .legalize_dtypes import is_exact_scalar
from .manager import Target


@dataclass(frozen=True)
class Fold:
    """Compute what is known. A result larger than ``limit`` elements is kept as an op if it also
    is larger than its operands together (so a broadcast scalar stays a scalar). After
    legalize-dtypes the cast of a float scalar stays too: it is free and would cost accuracy here.

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> before = parse_module('''module "m" {
    ...   input %x: tensor<2xf32>
    ...   %a = constant {value = dense<2xfloat32, [1.0, 2.0]>} : tensor<2xf32>
    ...   %b = neg(%a) : tensor<2xf32>
    ...   %y = add(%x, %b) : tensor<2xf32>
    ...   output "y" = %y
    ... }''')
    >>> print(print_module(fold_constants(before)), end="")
    module "m" {
      input %x: tensor<2xf32>
      %c = constant {value = dense<2xfloat32, [-1.0, -2.0]>} : tensor<2xf32>
      %y = add(%x, %c) : tensor<2xf32>
      output "y" = %y
    }
    """

    name: ClassVar[str] = "fold"
    summary: ClassVar[str] = "Computes ops whose operands are all constants."
    limit: int = FOLD_LIMIT

    def run(self, module: Module, target: Target) -> Module:
        return fold_constants(module, self.limit)


def fold_constants(module: Module, limit: int = FOLD_LIMIT) -> Module:
    """The module with constant ops computed, and the constants nobody reads any more dropped."""
    facts = Facts()
    legal = "numerics" in module.attrs

    def step(op: Op, builder: Builder) -> Sequence[Value] | None:
        if legal and op.name == "cast" and is_exact_scalar(op):
            facts.note(op)
            return None
        arrays = _known_operands(op, facts, limit)
        if arrays is None:
            facts.note(op)
            return None
        emit = Emit(builder, facts, op.loc)
        values = run_op(op, arrays)
        return [
            emit.constant(np.asarray(v), r.type.dtype)
            for v, r in zip(values, op.results, strict=True)
        ]

    return remove_dead(rewrite(module, step))


def _known_operands(op: Op, facts: Facts, limit: int) -> list[np.ndarray] | None:
    """The operands' arrays if the op can and should be computed."""
    if op.name == "constant" or op.regions or not _static(op) or not may_fold(op, limit):
        return None
    if op.name == "shape_of":
        return [np.empty(op.operands[0].type.static_shape, np.bool_)]
    arrays = [facts.constants.get(v) for v in op.operands]
    return None if any(a is None for a in arrays) else [a for a in arrays if a is not None]


def _static(op: Op) -> bool:
    return all(isinstance(d, int) for v in (*op.operands, *op.results) for d in v.type.shape)
