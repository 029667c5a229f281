"""dce: ops whose results nobody reads are dropped. All ops are pure, so nothing else is lost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from spyrec.ir.core import Block, Module, Op, Value, walk

from .manager import Target


@dataclass(frozen=True)
class Dce:
    """Drop what does not reach an output. Model inputs stay, read or not.

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> before = parse_module('''module "m" {
    ...   input %x: tensor<2xf32>
    ...   %a = exp(%x) : tensor<2xf32>
    ...   %b = neg(%x) : tensor<2xf32>
    ...   output "y" = %b
    ... }''')
    >>> print(print_module(remove_dead(before)), end="")
    module "m" {
      input %x: tensor<2xf32>
      %b = neg(%x) : tensor<2xf32>
      output "y" = %b
    }
    """

    name: ClassVar[str] = "dce"
    summary: ClassVar[str] = "Drops ops whose results nobody reads."

    def run(self, module: Module, target: Target) -> Module:
        return remove_dead(module)


def remove_dead(module: Module) -> Module:
    """The module without ops that reach no output."""
    return replace(module, body=_live_block(module.body))


def _live_block(block: Block) -> Block:
    live = set(block.results)
    kept: list[Op] = []
    for op in reversed(block.ops):
        if not any(v in live for v in op.results):
            continue
        slim = replace(op, regions=tuple(map(_live_block, op.regions))) if op.regions else op
        kept.append(slim)
        live.update(_reads(slim))
    return replace(block, ops=tuple(reversed(kept)))


def _reads(op: Op) -> list[Value]:
    """Operands, and what its regions read or yield."""
    inside = [o for region in op.regions for o in walk(region)]
    blocks = [*op.regions, *(r for o in inside for r in o.regions)]
    read = [v for o in inside for v in o.operands]
    return [*op.operands, *read, *(v for block in blocks for v in block.results)]
