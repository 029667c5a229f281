"""Decompositions of sorting: the best one after the other, or the rank of every element at once."""

from __future__ import annotations

import math
from functools import reduce

from spyrec.ir.core import Op, Value
from spyrec.ir.rounding import int_range
from spyrec.ir.types import DTYPES

from .emit import Emit
from .rule import Rule
from .rules_reduce import axis_numbers, first_true, int_attr

STEPS_MAX = 64
"""Largest k that is taken one after the other."""

LINE_MAX, BLOCK = 4096, 512
"""Few of a longer line are first looked for in blocks of so many."""

COMPARED = 256
"""Elements that one kernel compares each element with: a whole line of them in the scratchpad."""

PAIRS_MAX = 1 << 31
"""Most pairs that are compared."""

I64 = DTYPES["i64"]


def _top_k(op: Op, e: Emit) -> tuple[Value, Value] | None:
    (x,) = op.operands
    k, n = int_attr(op, "k"), x.type.static_shape[int_attr(op, "axis")]
    if not k:
        return None
    if n > LINE_MAX and 4 * k <= BLOCK:
        return _by_blocks(op, e)
    pairs = x.type.size * (n + k)
    # Cycles on the device that ships, set by eye from runs of lines of 8 to 2,048 elements: single
    # estimates are off by up to a half, and only choose between two exact ways.
    ranks, steps = 15_000 + pairs / 64, 2_000 + k * (2_000 + x.type.size / 32)
    if pairs <= PAIRS_MAX and (ranks < steps or k > STEPS_MAX):
        return _by_rank(op, e)
    return _by_steps(op, e) if k <= STEPS_MAX else None


def _by_blocks(op: Op, e: Emit) -> tuple[Value, Value]:
    """The best k of the line are among the best k of its blocks. Blocks stand in the order of the
    line, so equal elements stay in the order of their index; what fills the last block comes after
    them."""
    (x,) = op.operands
    k, axis, largest = int_attr(op, "k"), int_attr(op, "axis"), bool(op.attrs["largest"])
    shape = x.type.static_shape
    blocks = -(-shape[axis] // BLOCK)
    more = tuple(blocks * BLOCK - n if d == axis else 0 for d, n in enumerate(shape))
    padded = e.pad(x, (0,) * len(shape), more, _worst(x, largest))
    cut = e.reshape(padded, (*shape[:axis], blocks, BLOCK, *shape[axis + 1 :]))
    how = {"k": k, "largest": largest, "sorted": True}
    values, places = e.ops("top_k", cut, axis=axis + 1, **how)
    places = e.add(places, e.mul(axis_numbers(e, len(shape) + 1, axis, blocks), BLOCK))
    few = (*shape[:axis], blocks * k, *shape[axis + 1 :])
    best, which = e.ops("top_k", e.reshape(values, few), axis=axis, **how)
    return best, e.op("gather_elements", e.reshape(places, few), which, axis=axis)


def _by_rank(op: Op, e: Emit) -> tuple[Value, Value]:
    """An element's place is how many others come before it; each place asks who stands there. A
    NaN, which compares with nothing, is infinite here, and before what else is."""
    (x,) = op.operands
    k, axis, largest = int_attr(op, "k"), int_attr(op, "axis"), bool(op.attrs["largest"])
    shape, rank = x.type.static_shape, x.type.rank + 1
    n, result = shape[axis], (*shape[:axis], k, *shape[axis + 1 :])
    keys, turns = x, axis_numbers(e, x.type.rank, axis, n)  # of equal keys the lower turn is first
    if x.type.dtype.kind == "float":
        lost = e.op("isnan", x)
        keys = e.where(lost, math.inf, x)
        turns = e.where(lost, e.add(turns, -n if largest else n), turns)
    mine, turn = _along(e, keys, axis, (n, 1)), _along(e, turns, axis, (n, 1))
    counts = []
    for start in range(0, n, COMPARED):
        size = min(COMPARED, n - start)
        other, earlier = (
            _along(e, e.slice_axis(t, axis, start, size), axis, (1, size)) for t in (keys, turns)
        )
        tied = e.op("and", e.op("eq", other, mine), e.op("lt", earlier, turn))
        before = e.op("or", e.op("gt" if largest else "lt", other, mine), tied)
        counts.append(e.reduce("sum", e.cast(before, I64), (axis + 1,)))
    place, old = _total(e, counts, "add"), _along(e, x, axis, (n, 1))
    fold, join, nothing = ("sum", "add", 0.0)
    if x.type.dtype.kind == "float":
        fold, join, nothing = ("max", "max", -math.inf)
    chosen, indices = [], []
    for start in range(0, n, COMPARED):
        size = min(COMPARED, n - start)
        here = e.slice_axis(place, axis, start, size)
        here = e.op("eq", here, axis_numbers(e, rank, axis + 1, k))
        stood = e.add(axis_numbers(e, rank, axis, size), start)
        value = e.where(here, e.slice_axis(old, axis, start, size), nothing)
        chosen.append(e.reduce(fold, value, (axis,)))
        indices.append(e.reduce("sum", e.where(here, stood, 0), (axis,)))
    values = _total(e, chosen, join)
    return e.reshape(values, result), e.reshape(_total(e, indices, "add"), result)


def _along(e: Emit, x: Value, axis: int, sizes: tuple[int, int]) -> Value:
    """With two dimensions in place of one."""
    shape = x.type.static_shape
    return e.reshape(x, (*shape[:axis], *sizes, *shape[axis + 1 :]))


def _total(e: Emit, parts: list[Value], op: str) -> Value:
    return reduce(lambda a, b: e.op(op, a, b), parts)


def _by_steps(op: Op, e: Emit) -> tuple[Value, Value]:
    """k times the best of what is left, whose first place is then taken."""
    (x,) = op.operands
    k, axis, largest = int_attr(op, "k"), int_attr(op, "axis"), bool(op.attrs["largest"])
    numbers = axis_numbers(e, x.type.rank, axis, x.type.static_shape[axis])
    worst = _worst(x, largest)
    taken: Value | None = None
    values, indices = [], []
    for _ in range(k):
        left = x if taken is None else e.where(taken, worst, x)
        best = e.reduce("max" if largest else "min", left, (axis,))
        hit = e.op("eq", left, best)
        hit = hit if taken is None else e.op("and", hit, e.op("not", taken))
        index = first_true(e, hit, axis)
        values.append(best)
        indices.append(index)
        now = e.op("eq", numbers, index)
        taken = now if taken is None else e.op("or", taken, now)
    return e.concat(values, axis), e.concat(indices, axis)


def _worst(x: Value, largest: bool) -> float:
    """What no element is better than, within the device's integers of 32 bits."""
    kind = x.type.dtype
    if kind.kind == "float":
        return -math.inf if largest else math.inf
    (low, high), (least, most) = int_range(kind), int_range(DTYPES["i32"])
    return max(low, least) if largest else min(high, most)


ORDER_RULES = (
    Rule("top-k", "top_k", _top_k, "exact",
         "An element's place is how many come before it, all pairs compared; or k times the best "
         "of what is left, its first place then taken (no NaN); of long lines block by block."),
)  # fmt: skip
