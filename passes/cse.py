"""cse: an op that computes what an earlier one did is replaced by it."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from spyrec.ir.core import Builder, Loc, Module, Op, Value, rewrite
from spyrec.ir.ops import attributes
from spyrec.ir.types import DType, Sym

from .manager import Target


@dataclass(frozen=True)
class Cse:
    """Merge ops of the same name, operands, attributes and types. Ops with regions are left alone.

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> before = parse_module('''module "m" {
    ...   input %x: tensor<2xf32>
    ...   %a = exp(%x) : tensor<2xf32>
    ...   %b = exp(%x) : tensor<2xf32>
    ...   %c = add(%a, %b) : tensor<2xf32>
    ...   output "y" = %c
    ... }''')
    >>> print(print_module(merge_equal(before)), end="")
    module "m" {
      input %x: tensor<2xf32>
      %a = exp(%x) : tensor<2xf32>
      %c = add(%a, %a) : tensor<2xf32>
      output "y" = %c
    }
    """

    name: ClassVar[str] = "cse"
    summary: ClassVar[str] = "Merges ops that compute the same value."

    def run(self, module: Module, target: Target) -> Module:
        return merge_equal(module)


def merge_equal(module: Module) -> Module:
    """The module with repeated top-level ops merged into the first of them, which then stands for
    the model nodes of all."""
    seen: dict[Hashable, tuple[Value, ...]] = {}
    merged: dict[tuple[Value, ...], list[Loc]] = {}

    def step(op: Op, _builder: Builder) -> Sequence[Value] | None:
        if op.regions:
            return None
        key = _key(op)
        if key in seen:
            if op.name != "constant":  # a constant comes from no node
                merged.setdefault(seen[key], []).append(op.loc)
            return seen[key]
        seen[key] = op.results
        return None

    after = rewrite(module, step)
    ops = tuple(
        replace(op, loc=Loc.merge([op.loc, *merged.get(op.results, ())])) for op in after.body.ops
    )
    return replace(after, body=replace(after.body, ops=ops))


def _key(op: Op) -> Hashable:
    full = attributes(op) if op.name != "constant" else op.attrs
    attrs = tuple((name, attr_key(full[name])) for name in sorted(full))
    return op.name, tuple(map(id, op.operands)), attrs, tuple(r.type for r in op.results)


def attr_key(value: Any) -> Hashable:
    """A key that is equal for attributes of the same kind and bits: 0.0 differs from -0.0 and 1
    from 1.0 and True; arrays go by a digest of their bytes."""
    match value:
        case np.ndarray():
            digest = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()
            return "array", value.dtype.str, value.shape, digest
        case tuple():
            return "tuple", tuple(map(attr_key, value))
        case float():
            return "float", struct.pack("<d", value)
        case DType() | Sym():
            return type(value).__name__, value
        case _:
            return type(value).__name__, value
