"""Attention whose keys come a block at a time: no row's scores are ever there all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spyrec.ir.core import Value
from spyrec.ir.rounding import FORMATS
from spyrec.ir.types import DType

from .attention_parts import Block
from .emit import Emit


@dataclass(frozen=True)
class Scores:
    """How scores come of queries and keys: their product times ``factor``, the ``masks`` that are
    numbers added, and ``hidden`` where one of bools is false. Masks broadcast to all scores,
    [.., rows, columns]."""

    e: Emit
    factor: float
    masks: Sequence[Value]
    hidden: float

    def of(self, b: Block, q: Value, keys: Value) -> Value:
        """Those of a block, from its own ``q`` [.., rows, depth] and ``keys`` [.., depth, keys]."""
        e = self.e
        scores = e.mul(e.op("matmul", q, keys), self.factor)
        for m in self.masks:
            hides = m.type.dtype.kind == "bool"
            if hides and b.all:
                continue
            m = _cut(e, _cut(e, m, 2, b.first, b.last - b.first), 1, b.start, b.stop - b.start)
            if not hides and e.splat(m) == 0:  # softmax does not see the sign of a zero
                continue
            scores = e.where(m, scores, self.hidden) if hides else e.add(scores, m)
        return scores


def online(scores: Scores, q: Value, k: Value, v: Value, parts: Sequence[Block]) -> Value:
    """softmax(scores) v for the rows of ``parts``, [batch, heads, rows, n]; the parts are blocks of
    keys of the same rows, ``q``, ``k`` and ``v`` the operands of the attention.

    Of each row the largest score m and the sum of weights l so far are kept, and what was added up
    is scaled anew when m grows (Milakov and Gimelshein, "Online normalizer calculation for
    softmax", 2018; Dao et al., "FlashAttention", 2022): with the scores s of the next part,

        m' = max(m, max s),  f = e^(m - m'),  p = e^(s - m'),  l' = l f + sum p,  y' = y f + p v

    and y / l at the end. A row that has seen no key yet has m = -inf, and e^(s - m) would be no
    number; so m begins at the lowest finite number where that can be.
    """
    e, first = scores.e, parts[0]
    batch, heads, _, depth = q.type.static_shape
    groups, n = v.type.static_shape[1], v.type.static_shape[3]
    share = heads // groups
    height = first.last - first.first
    q = e.slice_axis(q, 2, first.first, height)
    if share > 1:
        q = e.reshape(q, (batch, groups, share, height, depth))
    lanes = (q.type.rank - 1,)
    top: Value | None = None
    total: Value | None = None
    done: Value | None = None
    for part in parts:
        width = part.stop - part.start
        keys = e.transpose(e.slice_axis(k, 2, part.start, width), (0, 1, 3, 2))
        values = e.slice_axis(v, 2, part.start, width)
        if share > 1:
            keys = e.reshape(keys, (batch, groups, 1, depth, width))
            values = e.reshape(values, (batch, groups, 1, width, n))
        s = scores.of(part, q, keys)
        most = e.reduce("max", s, lanes)
        if top is not None:
            most = e.max(top, most)
        elif not part.each:
            most = e.max(most, _lowest(s.type.dtype))
        fade = None if top is None else e.op("exp", e.sub(top, most))
        weights = e.op("exp", e.sub(s, most))
        added = e.reduce("sum", weights, lanes)
        total = _carried(e, total, fade, added)
        done = _carried(e, done, fade, e.op("matmul", weights, values))
        top = most
    assert done is not None and total is not None
    done = e.mul(done, e.op("reciprocal", total))
    return e.reshape(done, (batch, heads, height, n))


def _carried(e: Emit, before: Value | None, fade: Value | None, more: Value) -> Value:
    """before fade + more; ``more`` alone in the first part."""
    return more if before is None or fade is None else e.add(e.mul(before, fade), more)


def _lowest(kind: DType) -> float:
    """The lowest finite number."""
    if kind.name in FORMATS:
        return -FORMATS[kind.name].largest
    host: np.dtype[Any] = kind.np_dtype
    return float(np.finfo(host).min)


def _cut(e: Emit, mask: Value, from_last: int, start: int, size: int) -> Value:
    """The mask along its last (1) or last but one (2) dimension, if it varies there."""
    axis = mask.type.rank - from_last
    if axis < 0 or mask.type.static_shape[axis] == 1:
        return mask
    return e.slice_axis(mask, axis, start, size)
