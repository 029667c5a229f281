"""Decomposition of attention: keys and values are never repeated, blocks of rows leave out the keys
that their mask hides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spyrec.ir.core import Op, Value
from spyrec.ir.types import DTYPES

from .emit import Array, Emit
from .kernel import GROUP, padded
from .rule import Rule
from .rules_elementwise import number
from .rules_reduce import int_attr, ints


@dataclass(frozen=True)
class Block:
    """Query rows ``first`` to ``last`` and the keys ``start`` to ``stop`` that they see (ends not
    included); ``all``: none of these is hidden from any of the rows."""

    first: int
    last: int
    start: int
    stop: int
    all: bool


def blocks_of(rows: int, columns: int, height: int, seen: Array | None) -> tuple[Block, ...]:
    """Blocks of ``height`` rows (the last may be lower); 0: all in one.

    ``seen``: which keys each row sees, [.., rows, columns] (either may be 1), None: not known when
    compiled. Keys are left out in whole groups of lanes, and only where each row sees some: what
    attention gives for a row that sees none is not a matter of which keys are there.

    >>> blocks_of(128, 128, 64, np.tri(128, dtype=bool))
    (Block(first=0, last=64, start=0, stop=64, all=False), \
Block(first=64, last=128, start=0, stop=128, all=False))
    """
    blocks = []
    for first in range(0, rows, height or rows):
        last = min(first + (height or rows), rows)
        start, stop, everything = 0, columns, False
        if seen is not None:
            part = np.broadcast_to(seen, (*seen.shape[:-2], rows, columns))[..., first:last, :]
            flat = part.reshape(-1, columns)
            some = np.flatnonzero(flat.any(axis=0))
            if flat.any(axis=1).all():
                start = int(some[0]) // GROUP * GROUP
                stop = min(padded(int(some[-1]) + 1, GROUP), columns)
            everything = bool(flat[:, start:stop].all())
        blocks.append(Block(first, last, start, stop, everything))
    return tuple(blocks)


def seen_by(op: Op, masks: Sequence[Array | None]) -> Array | None:
    """Which keys each query row sees; None when the mask is not a constant. A number hides a key
    when it is -inf, or so low that it stands for that; so does the number of what is not seen."""
    rows, columns = op.operands[0].type.static_shape[2], op.operands[1].type.static_shape[2]
    seen: Array = np.tri(rows, columns, dtype=np.bool_) if op.attrs["causal"] else np.ones((), bool)
    for mask in masks:
        if mask is None:
            return None
        seen = seen & (mask if mask.dtype == np.bool_ else mask > hidden_from(mask.dtype))
    return np.atleast_2d(seen) if number(op, "hidden") <= HIDDEN else None


HIDDEN = -1e30
"""A mask that is added hides from here down: no score of 32 bits and less comes near."""


def hidden_from(kind: np.dtype[Any]) -> float:
    """The same for numbers of ``kind``: those of 16 bits do not reach so far, and there the lowest
    one stands for -inf."""
    return max(HIDDEN, float(np.finfo(kind).min))


def _attention(op: Op, e: Emit) -> Value:
    q, k, v, *masks = op.operands
    batch, heads, rows, depth = q.type.static_shape
    groups, columns = k.type.static_shape[1:3]
    share = heads // groups
    factor = 1.0 / math.sqrt(depth) if op.attrs["scale"] is None else number(op, "scale")
    seen = seen_by(op, [e.known(m) for m in masks])
    if op.attrs["causal"]:
        masks.append(e.constant(np.tri(rows, columns, dtype=np.bool_), DTYPES["bool"]))
    keys = e.transpose(k, (0, 1, 3, 2))
    if share > 1 and rows == 1:  # the query heads of a key head are the rows of one product
        q = e.reshape(q, (batch, groups, share, depth))
        masks = [_mask_for(e, m, heads, (groups, share), merge=True) for m in masks]
        blocks = blocks_of(share, columns, 0, seen)
    else:
        if share > 1:  # ... or a dimension along which keys and values are broadcast
            q = e.reshape(q, (batch, groups, share, rows, depth))
            keys = e.reshape(keys, (batch, groups, 1, depth, columns))
            v = e.reshape(v, (batch, groups, 1, columns, v.type.static_shape[3]))
            masks = [_mask_for(e, m, heads, (groups, share), merge=False) for m in masks]
        blocks = blocks_of(rows, columns, int_attr(op, "rows"), seen)
    done = [_block(e, b, q, keys, v, masks, factor, number(op, "hidden")) for b in blocks]
    return e.reshape(e.concat(done, done[0].type.rank - 2), op.result.type.static_shape)


def _block(
    e: Emit, b: Block, q: Value, keys: Value, values: Value, masks: Sequence[Value], factor: float,
    hidden: float,
) -> Value:
    """softmax(q keys factor, masked) values for the rows of a block and the keys they see; a bool
    mask gives ``hidden`` to those that they do not.

    ``q`` is [.., rows, depth], ``keys`` [.., depth, columns], ``values`` [.., columns, n], and the
    masks broadcast to [.., rows, columns].
    """
    height, width = b.last - b.first, b.stop - b.start
    rank = q.type.rank
    q = e.slice_axis(q, rank - 2, b.first, height)
    keys = e.slice_axis(keys, rank - 1, b.start, width)
    values = e.slice_axis(values, rank - 2, b.start, width)
    scores = e.mul(e.op("matmul", q, keys), factor)
    for m in masks:
        hides = m.type.dtype.kind == "bool"
        if hides and b.all:
            continue
        m = _cut(e, _cut(e, m, 2, b.first, height), 1, b.start, width)
        if not hides and e.splat(m) == 0:  # softmax does not see the sign of a zero
            continue
        scores = e.where(m, scores, hidden) if hides else e.add(scores, m)
    return e.op("matmul", e.op("softmax", scores, axis=rank - 1), values)


def _cut(e: Emit, mask: Value, from_last: int, start: int, size: int) -> Value:
    """The mask along its last (1) or last but one (2) dimension, if it varies there."""
    axis = mask.type.rank - from_last
    if axis < 0 or mask.type.static_shape[axis] == 1:
        return mask
    return e.slice_axis(mask, axis, start, size)


def _mask_for(e: Emit, mask: Value, heads: int, parts: tuple[int, int], merge: bool) -> Value:
    """A mask over [batch, heads, rows, columns] (any last part of it) for scores whose heads are
    split in ``parts``; ``merge``: there is one row, and the second part takes its place."""
    if mask.type.rank < 3:
        return mask
    *batch, own, rows, columns = mask.type.static_shape
    split = parts if own == heads else (1, 1)
    return e.reshape(mask, (*batch, *split, *(() if merge else (rows,)), columns))


def _turn_product(op: Op, e: Emit) -> Value | None:
    """Only where what is moved across lanes gets less: of a row of the result ``GROUP`` lanes."""
    a, b = op.operands
    swap = e.made_by(b, "transpose")
    if swap is None or a.type.rank != b.type.rank or a.type.shape[:-2] != b.type.shape[:-2]:
        return None
    rank, (m, k), n = a.type.rank, a.type.static_shape[-2:], b.type.static_shape[-1]
    last = (*range(rank - 2), rank - 1, rank - 2)
    if ints(swap, "perm") != last or e.known(a) is not None or not e.read_once(b):
        return None
    source = swap.operands[0]
    if e.known(source) is not None or padded(m, GROUP) * (k + n) > k * n:
        return None
    e.absorb(swap)
    return e.transpose(e.op("matmul", source, e.transpose(a, last), **op.attrs), last)


ATTENTION_RULES = (
    Rule("attention", "attention", _attention, "rounding",
         "softmax(q k^T s + mask) v; keys and values are broadcast over the query heads that share "
         "them, or for one row those heads are the rows; in blocks of rows, keys that a constant "
         "mask hides from a whole block are left out."),
    Rule("turn-product", "matmul", _turn_product, "rounding",
         "a b' = (b a')' where that moves less across lanes: a few rows of queries against many "
         "keys."),
)  # fmt: skip
