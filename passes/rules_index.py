"""Decompositions of indexing: every gather becomes rows picked from a [V, D] table, or slices."""

from __future__ import annotations

import math

import numpy as np

from spyrec.ir.core import Op, Value
from spyrec.ir.types import DType

from .bounds import never_negative
from .emit import Array, Emit
from .rule import Rule
from .rules_move import take
from .rules_reduce import int_attr

_TABLE_INDEX = ("i32", "i64")


def is_table_lookup(op: Op) -> bool:
    """gather(axis=0) of rows of a matrix by i32 or i64 indices: what the machine does itself."""
    x, indices = op.operands
    return (
        int_attr(op, "axis") == 0 and x.type.rank == 2 and indices.type.dtype.name in _TABLE_INDEX
    )


def wrapped(array: Array, n: int) -> Array:
    """Negative indices count from the end."""
    return np.where(array < 0, array + n, array)


def _gather_constant(op: Op, e: Emit) -> Value | None:
    x, indices = op.operands
    known, axis = e.known(indices), int_attr(op, "axis")
    if known is None or known.size == 0:
        return None
    flat = wrapped(known, x.type.static_shape[axis]).reshape(-1)
    picked = take(e, x, axis, [int(i) for i in flat])
    return None if picked is None else e.reshape(picked, op.result.type.static_shape)


def _gather_from_end(op: Op, e: Emit) -> Value | None:
    x, indices = op.operands
    if not is_table_lookup(op) or never_negative(indices, e.facts.producers.get):
        return None
    return e.op("gather", x, from_front(e, indices, x.type.static_shape[0]), axis=0)


def _gather_axis(op: Op, e: Emit) -> Value | None:
    x, indices = op.operands
    if is_table_lookup(op):
        return None
    axis, rank = int_attr(op, "axis"), x.type.rank
    order = (axis, *(d for d in range(rank) if d != axis))
    front = e.transpose(x, order)
    rows, *rest = front.type.static_shape
    table = e.reshape(front, (rows, math.prod(rest)))
    picked = e.op("gather", table, index_type(e, indices), axis=0)
    k = indices.type.rank
    whole = e.reshape(picked, (*indices.type.static_shape, *rest))
    return e.transpose(whole, (*range(k, k + axis), *range(k), *range(k + axis, k + rank - 1)))


def index_type(e: Emit, indices: Value) -> Value:
    return indices if indices.type.dtype.name in _TABLE_INDEX else e.cast(indices, "i64")


def _gather_nd(op: Op, e: Emit) -> Value:
    x, indices = op.operands
    batch = int_attr(op, "batch_dims")
    shape, *_ = (x.type.static_shape,)
    depth = indices.type.static_shape[-1]
    picked = shape[batch : batch + depth]
    rest = shape[batch + depth :]
    row = row_numbers(e, indices, picked)
    if batch:
        groups = np.arange(math.prod(shape[:batch])) * math.prod(picked)
        first = groups.reshape(*shape[:batch], *(1,) * (row.type.rank - batch))
        row = e.add(row, e.constant(first, row.type.dtype))
    table = e.reshape(x, (math.prod(shape[: batch + depth]), math.prod(rest)))
    rows = e.op("gather", table, index_type(e, row), axis=0)
    return e.reshape(rows, op.result.type.static_shape)


def row_numbers(e: Emit, indices: Value, sizes: tuple[int, ...]) -> Value:
    """Coordinates in the last dimension of ``indices`` as one number each, of a row of a table with
    dimensions of ``sizes``."""
    row: Value | None = None
    for j, n in enumerate(sizes):
        column = e.slice_axis(indices, indices.type.rank - 1, j, 1)
        column = e.reshape(from_front(e, column, n), indices.type.static_shape[:-1])
        stride = math.prod(sizes[j + 1 :])
        term = column if stride == 1 else e.mul(column, stride)
        row = term if row is None else e.add(row, term)
    assert row is not None
    return row


def from_front(e: Emit, indices: Value, n: int) -> Value:
    """Indices that may be negative (from the end) as 0..n-1; nothing to do for constants that are
    not negative, or for unsigned ones."""
    known = e.known(indices)
    if indices.type.dtype.name.startswith("u"):
        return indices
    if known is not None:
        return e.constant(wrapped(known, n), indices.type.dtype)
    return e.where(e.test("lt", indices, 0), e.add(indices, n), indices)


def _gather_elements(op: Op, e: Emit) -> Value:
    x, indices = op.operands
    axis, shape, out = int_attr(op, "axis"), x.type.static_shape, indices.type.static_shape
    others: Array = np.zeros((1,) * len(out), np.int64)
    for d, n in enumerate(out):
        if d == axis:
            continue
        line = np.arange(n) * math.prod(shape[d + 1 :])
        others = others + line.reshape(tuple(-1 if i == d else 1 for i in range(len(out))))
    index = from_front(e, index_type(e, indices), shape[axis])
    place = e.add(
        e.mul(index, math.prod(shape[axis + 1 :])), e.constant(others, index.type.dtype)
    )
    table = e.reshape(x, (x.type.size, 1))
    return e.reshape(e.op("gather", table, place, axis=0), out)


def _one_hot(op: Op, e: Emit) -> Value:
    (indices,) = op.operands
    depth, axis = int_attr(op, "depth"), int_attr(op, "axis")
    to = op.attrs["to"]
    assert isinstance(to, DType)
    shape = indices.type.static_shape
    index = e.reshape(indices, (*shape[:axis], 1, *shape[axis:]))
    numbers = np.arange(depth).reshape(-1, *(1,) * (len(shape) - axis))
    hit = e.op("eq", index, e.constant(numbers, index.type.dtype))
    if not index.type.dtype.name.startswith("u"):
        from_end = e.op("eq", index, e.constant(numbers - depth, index.type.dtype))
        hit = e.op("or", hit, from_end)
    on, off = (e.constant(np.array(op.attrs[k]), to) for k in ("on", "off"))
    return e.op("where", hit, on, off)


INDEX_RULES = (
    Rule("gather-constant", "gather", _gather_constant, "exact",
         "Constant indices in few runs are slices side by side."),
    Rule("gather-from-end", "gather", _gather_from_end, "exact",
         "Indices that may be negative count from the end: i < 0 ? i + n : i."),
    Rule("gather-axis", "gather", _gather_axis, "exact",
         "Bring the axis to the front, pick rows of the [V, D] table, put the axes back."),
    Rule("gather-nd", "gather_nd", _gather_nd, "exact",
         "Several indices are one row number; batches are offsets."),
    Rule("gather-elements", "gather_elements", _gather_elements, "exact",
         "Each element has a place in the flattened table [size, 1]."),
    Rule("one-hot", "one_hot", _one_hot, "exact", "index == 0..depth-1 chooses on or off."),
)  # fmt: skip
