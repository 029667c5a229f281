"""Products in which every item is multiplied by a matrix of its own, looked up by number: the
experts of a mixture."""

from __future__ import annotations

import numpy as np

from spyrec.ir.core import Op, Value

from .emit import Emit
from .rule import Rule
from .rules_index import from_front, index_type
from .rules_reduce import int_attr

MOVED = 3
"""A matrix that is looked up is read, written and read again."""

WIDE_MAX = 1 << 24
"""Elements of rows with a place for each matrix; of more, some matrices are taken at a time."""


def _looked_up(op: Op, e: Emit) -> Value | None:
    a, b = op.operands
    if op.attrs["to"] is not None or a.type.rank != 3 or b.type.rank != 3:
        return None
    if (found := _matrices(a, b, e)) is not None:
        return _dense(e, a, *found)
    if (found := _matrices(b, a, e)) is not None:  # (W a) = (a' W')'
        matrices, numbers = found
        rows, turned = (e.transpose(t, (0, 2, 1)) for t in (b, matrices))
        return e.transpose(_dense(e, rows, turned, numbers), (0, 2, 1))
    return None


def _matrices(items: Value, picked: Value, e: Emit) -> tuple[Value, Value] | None:
    """What ``picked`` [S, K, N] looks up: matrices [E, K, N] and their numbers [S], when reading
    all of them is less than looking up one for each item."""
    look = e.made_by(picked, "gather")
    if look is None or int_attr(look, "axis") or not e.read_once(picked):
        return None
    matrices, numbers = look.operands
    if matrices.type.rank != 3 or numbers.type.rank != 1 or e.known(numbers) is not None:
        return None
    size, count = numbers.type.size, matrices.type.static_shape[0]
    if items.type.static_shape[0] != size or count > MOVED * size:
        return None
    e.absorb(look)
    return matrices, numbers


def _dense(e: Emit, rows: Value, matrices: Value, numbers: Value) -> Value:
    """rows [S, M, K] times matrices [E, K, N] by number [S]: one product with all the matrices on
    top of each other, of rows that are zero but where their own matrix stands."""
    (items, m, k), (count, _, n) = rows.type.static_shape, matrices.type.static_shape
    number = from_front(e, index_type(e, numbers), count)
    number = e.reshape(number, (items, 1, 1, 1))
    one = e.reshape(rows, (items, m, 1, k))
    step = max(1, min(count, WIDE_MAX // max(1, rows.type.size)))
    total: Value | None = None
    for first in range(0, count, step):
        some = min(step, count - first)
        places = np.arange(first, first + some).reshape(1, 1, some, 1)
        mine = e.op("eq", number, e.constant(places, number.type.dtype))
        wide = e.reshape(e.where(mine, one, 0.0), (items * m, some * k))
        tall = e.reshape(e.slice_axis(matrices, 0, first, some), (some * k, n))
        product = e.op("matmul", wide, tall)
        total = product if total is None else e.add(total, product)
    assert total is not None
    return e.reshape(total, (items, m, n))


EXPERT_RULES = (
    Rule("experts", "matmul", _looked_up, "rounding",
         "a @ W[i]: with many items the product with all matrices, of rows that are zero but for "
         "their own one, moves less than a matrix for each item; matrices must be finite."),
)  # fmt: skip
