"""merge-moves: chains of data movement become one affine move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import numpy as np

from spyrec.ir.affine import MOVES, MoveSpec, as_move, compose, renumber
from spyrec.ir.core import Builder, Loc, Module, Op, Value, rewrite, uses

from .dce import remove_dead
from .manager import Target

MAX_PIECES = 64
FILLED_MAX = 1 << 16
"""Elements of what shows nothing but padding that become a constant, so that nothing is read."""


@dataclass(frozen=True)
class MergeMoves:
    """Compose a move with the moves that feed it.

    A tensor that only other moves read never needs to exist: reshape, broadcast and reshape is one
    strided read. Exact: elements are copied, never computed with.

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> from spyrec.passes.merge_moves import merge_moves
    >>> before = parse_module('''
    ... module "m" {stage = "tensor"} {
    ...   input %x: tensor<4x6xf32>
    ...   %r = reshape(%x) {shape = (4, 2, 3)} : tensor<4x2x3xf32>
    ...   %t = transpose(%r) {perm = (1, 0, 2)} : tensor<2x4x3xf32>
    ...   output "y" = %t
    ... }''')
    >>> [op.name for op in merge_moves(before).body.ops]
    ['move']
    """

    name: ClassVar[str] = "merge-moves"
    summary: ClassVar[str] = "Composes chains of reshapes, transposes, slices and concats."

    def run(self, module: Module, target: Target) -> Module:
        return merge_moves(module)


@dataclass(frozen=True)
class _Move:
    """A move, the values it reads and the model nodes it carries out."""

    spec: MoveSpec
    operands: tuple[Value, ...]
    loc: Loc


def merge_moves(module: Module) -> Module:
    """The module with moves composed and what became dead removed."""
    readers = {v: len(u) for v, u in uses(module.body).items()}
    for v in module.body.results:
        readers[v] = readers.get(v, 0) + 1
    made: dict[Value, _Move] = {}
    counts: dict[Value, int] = {}

    def merge(op: Op, builder: Builder) -> Sequence[Value] | None:
        if op.name not in MOVES or len(op.results) != 1 or op.name == "identity":
            return None
        spec = as_move(op)
        if spec is None or not prod(spec.shape):
            return None
        move, merged = _Move(spec, op.operands, op.loc), False
        for v in reversed(dict.fromkeys(op.operands)):
            first = made.get(v)
            if first is None or not _worth(first, counts.get(v, 1)):
                continue
            while v in move.operands:  # it may stand in several places
                both = _composed(first, move, move.operands.index(v))
                if both is None:
                    break
                move, merged = both, True
        result = op.results[0]
        if merged:
            if _is_identity(move):
                return move.operands
            if not move.spec.pieces and prod(move.spec.shape) <= FILLED_MAX:
                kind = result.type.dtype
                filled = np.full(move.spec.shape, move.spec.fill).astype(kind.np_dtype)
                return (builder.constant(filled, kind, loc=move.loc),)
            result = builder.op(
                "move",
                move.operands,
                loc=move.loc,
                hint=result.name,
                shape=move.spec.shape,
                fill=float(move.spec.fill),
                pieces=move.spec.attr(),
            ).result
        made[result] = move
        counts[result] = readers.get(op.results[0], 1)
        return (result,) if merged else None

    return remove_dead(rewrite(module, merge))


def _worth(first: _Move, readers: int) -> bool:
    """A move with one reader disappears; one that copies elements to several places is better read
    at the source.
    """
    return readers == 1 or prod(first.spec.shape) > sum(prod(s) for s in first.spec.operands)


def _composed(first: _Move, second: _Move, k: int) -> _Move | None:
    spec = compose(first.spec, second.spec, k, MAX_PIECES)
    if spec is None or len(spec.pieces) > max(
        16, 2 * len(first.spec.pieces) + len(second.spec.pieces)
    ):
        return None
    operands = (*second.operands[:k], *first.operands, *second.operands[k + 1 :])
    if len(spec.operands) != len(operands):
        return None
    distinct = tuple(dict.fromkeys(operands))
    if len(distinct) < len(operands):
        spec = renumber(spec, [distinct.index(v) for v in operands])
    used = sorted({p.operand for p in spec.pieces})
    if len(used) < len(distinct) and used:
        keep = {old: new for new, old in enumerate(used)}
        pieces = tuple(replace(p, operand=keep[p.operand]) for p in spec.pieces)
        spec = MoveSpec(spec.shape, spec.fill, pieces, tuple(spec.operands[i] for i in used))
        distinct = tuple(distinct[i] for i in used)
    return _Move(spec, distinct, Loc.merge([first.loc, second.loc]))


def _is_identity(move: _Move) -> bool:
    """Does the move copy its one operand as it is?"""
    spec = move.spec
    if len(move.operands) != 1 or spec.operands[0] != spec.shape or spec.filled:
        return False
    return all(p.src.rows == p.dst.rows for p in spec.pieces)
