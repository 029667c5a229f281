"""Decompositions of reductions, running sums and arg max."""

from __future__ import annotations

import math

import numpy as np

from spyrec.ir.core import Op, Value
from spyrec.ir.types import DTYPES

from .emit import Emit
from .rule import Rule

_REDUCTIONS = (
    "sum", "mean", "max", "min", "prod", "l1", "l2", "sum_square", "log_sum_exp",
)  # fmt: skip

TRIANGLE_MAX = 512
"""Longest axis whose running sum is one product with a triangle; longer ones are blocked."""


def ints(op: Op, key: str) -> tuple[int, ...]:
    """A tuple attribute of ints."""
    value = op.attrs[key]
    assert isinstance(value, tuple)
    return value


def int_attr(op: Op, key: str) -> int:
    """An int attribute."""
    value = op.attrs[key]
    assert isinstance(value, int)
    return value


def drop_keepdims(op: Op, e: Emit) -> Value | None:
    """keepdims=False is keepdims=True and a reshape."""
    if op.attrs["keepdims"]:
        return None
    kept = e.op(op.name, *op.operands, **{**op.attrs, "keepdims": True})
    return e.reshape(kept, op.result.type.static_shape)


def _mean(op: Op, e: Emit) -> Value:
    return e.mean(op.operands[0], ints(op, "axes"))


def _l1(op: Op, e: Emit) -> Value:
    return e.reduce("sum", e.op("abs", op.operands[0]), ints(op, "axes"))


def _sum_square(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    return e.reduce("sum", e.mul(x, x), ints(op, "axes"))


def _l2(op: Op, e: Emit) -> Value:
    return e.op("sqrt", _sum_square(op, e))


def _log_sum_exp(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    top = e.reduce("max", x, ints(op, "axes"))
    total = e.reduce("sum", e.op("exp", e.sub(x, top)), ints(op, "axes"))
    return e.add(e.op("log", total), top)


def _cumsum(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    axis, shape = int_attr(op, "axis"), x.type.static_shape
    n = shape[axis]
    exclusive, reverse = bool(op.attrs["exclusive"]), bool(op.attrs["reverse"])
    if x.type.dtype.kind != "float":
        return _cumsum_by_shifts(e, x, axis, exclusive, reverse)
    inner = math.prod(shape[axis + 1 :])
    rows = e.reshape(x, (math.prod(shape[:axis]), n, inner))
    if n <= TRIANGLE_MAX:
        return e.reshape(_triangle(e, rows, exclusive, reverse), shape)
    block = TRIANGLE_MAX // 4
    blocks = -(-n // block)
    padded = e.pad(rows, (0, 0, 0), (0, blocks * block - n, 0))
    parts = e.reshape(padded, (rows.type.static_shape[0], blocks, block, inner))
    totals = e.reduce("sum", parts, (2,))
    before = e.op("cumsum", totals, axis=1, exclusive=True, reverse=reverse)
    sums = e.add(_triangle(e, parts, exclusive, reverse), before)
    flat = e.reshape(sums, padded.type.static_shape)
    return e.reshape(e.slice_axis(flat, 1, 0, n), shape)


def _triangle(e: Emit, x: Value, exclusive: bool, reverse: bool) -> Value:
    """Running sum along the last axis but one: a lower (upper in reverse) triangle of ones @ x."""
    n = x.type.static_shape[-2]
    ones = np.tri(n, k=-1 if exclusive else 0)
    ones = ones.T if reverse else ones
    return e.op("matmul", e.constant(ones, x.type.dtype), x)


def _cumsum_by_shifts(e: Emit, x: Value, axis: int, exclusive: bool, reverse: bool) -> Value:
    """For integers: add the array shifted by 1, 2, 4, ...; exact, no matrix unit."""
    n = x.type.static_shape[axis]
    if exclusive:
        x = _shift(e, x, axis, min(1, n), reverse)
    step = 1
    while step < n:
        x = e.add(x, _shift(e, x, axis, step, reverse))
        step *= 2
    return x


def _shift(e: Emit, x: Value, axis: int, by: int, reverse: bool) -> Value:
    n, rank = x.type.static_shape[axis], x.type.rank
    kept = e.slice_axis(x, axis, by if reverse else 0, n - by)
    zeros = tuple(by if d == axis else 0 for d in range(rank))
    none = (0,) * rank
    return e.pad(kept, none if reverse else zeros, zeros if reverse else none)


def axis_numbers(e: Emit, rank: int, axis: int, n: int) -> Value:
    """0..n-1 as i64 along ``axis`` of a tensor whose other dimensions are 1."""
    shape = tuple(n if d == axis else 1 for d in range(rank))
    return e.constant(np.arange(n).reshape(shape), DTYPES["i64"])


def _arg_extreme(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    axis = int_attr(op, "axis")
    best = e.reduce("max" if op.name == "arg_max" else "min", x, (axis,))
    hit = e.op("eq", x, best)
    if x.type.dtype.kind == "float":
        hit = e.op("or", hit, e.op("isnan", x))
    return first_true(e, hit, axis)


def first_true(e: Emit, hit: Value, axis: int) -> Value:
    """Index along ``axis`` of the first true element (the axis length if there is none)."""
    n = hit.type.static_shape[axis]
    numbers = axis_numbers(e, hit.type.rank, axis, n)
    return e.reduce("min", e.where(hit, numbers, n), (axis,))


REDUCE_RULES = (
    *(
        Rule(f"keepdims-{name}", f"reduce_{name}", drop_keepdims, "exact",
             "reduce without keepdims = reduce with keepdims, then reshape.")
        for name in _REDUCTIONS
    ),
    Rule("keepdims-arg-max", "arg_max", drop_keepdims, "exact", "As for the reductions."),
    Rule("keepdims-arg-min", "arg_min", drop_keepdims, "exact", "As for the reductions."),
    Rule("mean", "reduce_mean", _mean, "rounding", "sum * (1/n)."),
    Rule("l1", "reduce_l1", _l1, "rounding", "sum |x|."),
    Rule("l2", "reduce_l2", _l2, "rounding", "sqrt(sum x^2)."),
    Rule("sum-square", "reduce_sum_square", _sum_square, "rounding", "sum x^2."),
    Rule("log-sum-exp", "reduce_log_sum_exp", _log_sum_exp, "rounding",
         "m + log(sum e^(x-m)), m = max x: no overflow; m must be finite."),
    Rule("cumsum", "cumsum", _cumsum, "rounding",
         "A product with a triangle of ones (shifted adds for integers, exact)."),
    Rule("arg-max", "arg_max", _arg_extreme, "exact", "min index where x = max x or x is NaN."),
    Rule("arg-min", "arg_min", _arg_extreme, "exact", "min index where x = min x or x is NaN."),
)  # fmt: skip
