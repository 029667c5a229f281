"""Decomposition of attention: keys and values are never repeated, blocks of rows leave out the keys
that their mask hides, and keys may come in blocks too."""

from __future__ import annotations

import math

import numpy as np

from spyrec.ir.core import Op, Value
from spyrec.ir.types import DTYPES

from .attention_parts import Block, blocks_of, parts_of, seen_by
from .emit import Emit
from .kernel import GROUP, padded
from .online_softmax import Scores, online
from .rule import Rule
from .rules_elementwise import number
from .rules_reduce import int_attr, ints


def _attention(op: Op, e: Emit) -> Value:
    q, k, v, *masks = op.operands
    batch, heads, rows, depth = q.type.static_shape
    groups, columns = k.type.static_shape[1:3]
    share = heads // groups
    factor = 1.0 / math.sqrt(depth) if op.attrs["scale"] is None else number(op, "scale")
    seen = seen_by(op, [e.known(m) for m in masks])
    if op.attrs["causal"]:
        masks.append(e.constant(np.tri(rows, columns, dtype=np.bool_), DTYPES["bool"]))
    merge = share > 1 and rows == 1
    if share > 1:
        masks = [_mask_for(e, m, heads, (groups, share), merge) for m in masks]
    scores = Scores(e, factor, masks, number(op, "hidden"))
    height, width = int_attr(op, "rows"), int_attr(op, "keys")
    if width and not merge:
        blocks = blocks_of(rows, columns, height, seen)
        done = [online(scores, q, k, v, parts_of(b, width, rows, columns, seen)) for b in blocks]
        return e.concat(done, 2)
    keys = e.transpose(k, (0, 1, 3, 2))
    if merge:  # the query heads of a key head are the rows of one product
        q = e.reshape(q, (batch, groups, share, depth))
        blocks = blocks_of(share, columns, 0, seen)
    else:
        if share > 1:  # ... or a dimension along which keys and values are broadcast
            q = e.reshape(q, (batch, groups, share, rows, depth))
            keys = e.reshape(keys, (batch, groups, 1, depth, columns))
            v = e.reshape(v, (batch, groups, 1, columns, v.type.static_shape[3]))
        blocks = blocks_of(rows, columns, height, seen)
    done = [_block(scores, b, q, keys, v) for b in blocks]
    return e.reshape(e.concat(done, done[0].type.rank - 2), op.result.type.static_shape)


def _block(scores: Scores, b: Block, q: Value, keys: Value, values: Value) -> Value:
    """softmax(scores) values for the rows of a block and the keys they see.

    ``q`` is [.., rows, depth], ``keys`` [.., depth, columns], ``values`` [.., columns, n].
    """
    e, rank = scores.e, q.type.rank
    q = e.slice_axis(q, rank - 2, b.first, b.last - b.first)
    keys = e.slice_axis(keys, rank - 1, b.start, b.stop - b.start)
    values = e.slice_axis(values, rank - 2, b.start, b.stop - b.start)
    return e.op("matmul", e.op("softmax", scores.of(b, q, keys), axis=rank - 1), values)


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
         "mask hides from a whole block are left out; in blocks of keys, what the blocks before "
         "have added up is scaled anew when the largest score of a row grows."),
    Rule("turn-product", "matmul", _turn_product, "rounding",
         "a b' = (b a')' where that moves less across lanes: a few rows of queries against many "
         "keys."),
)  # fmt: skip
