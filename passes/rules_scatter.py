"""Decompositions of writing by index: for each place, which update it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from spyrec.ir.core import Op, Value
from spyrec.ir.types import DTYPES

from .emit import Array, Emit
from .rule import Rule
from .rules_index import from_front, index_type, row_numbers, wrapped
from .rules_reduce import axis_numbers, int_attr

I64 = DTYPES["i64"]

PAIRS_MAX = 1 << 31
"""Most pairs of a place and an update that are compared."""

EXACT = 1 << 24
"""Integers below this are exact on the vector unit."""

_IDENTITY = {"add": 0.0, "mul": 1.0}
"""What a place that no update names is combined with, max and min apart."""


def _scatter_nd(op: Op, e: Emit) -> Value | None:
    """As rows [P, R] of x and [C, R] of updates, each update with the number of its place."""
    x, indices, updates = op.operands
    shape, depth = x.type.static_shape, indices.type.static_shape[-1]
    places, width = math.prod(shape[:depth]), math.prod(shape[depth:])
    count = indices.type.size // depth
    if not count or not x.type.size:
        return x
    whole, parts = e.reshape(x, (places, width)), e.reshape(updates, (count, width))
    reduction = str(op.attrs["reduction"])
    known = e.known(indices)
    if known is not None and reduction == "none":
        rows = np.arange(places)
        rows[_flat_places(known, shape[:depth])] = places + np.arange(count)
        if rows.min() >= places:  # nothing of x is left
            taken = e.constant(rows - places, I64)
            return e.reshape(e.op("gather", parts, taken, axis=0), shape)
        return e.reshape(_picked(e, whole, parts, e.constant(rows, I64)), shape)
    if places * count * (1 if reduction in ("none", "add") else width) > PAIRS_MAX:
        return None
    place = e.reshape(row_numbers(e, indices, shape[:depth]), (1, count))
    hit = e.op("eq", e.constant(np.arange(places)[:, None], place.type.dtype), place)
    if reduction == "none":
        source = _last(e, hit, 1, places)
        return e.reshape(_picked(e, whole, parts, e.reshape(source, (places,))), shape)
    if reduction == "add" and width > 1 and x.type.dtype.kind == "float":
        met = e.op("matmul", e.cast(hit, x.type.dtype), parts)
        return e.reshape(e.add(whole, met), shape)
    hit, parts = e.reshape(hit, (places, count, 1)), e.reshape(parts, (1, count, width))
    done = _combined(e, reduction, e.reshape(whole, (places, 1, width)), hit, parts, 1)
    return e.reshape(done, shape)


def _scatter_elements(op: Op, e: Emit) -> Value | None:
    """Along one axis, line by line. Lines of x beyond the indices stay as they are."""
    x, indices, updates = op.operands
    axis, shape, some = int_attr(op, "axis"), x.type.static_shape, indices.type.static_shape
    if not indices.type.size or not x.type.size:
        return x
    reduction = str(op.attrs["reduction"])
    known = e.known(indices)
    if known is not None and reduction == "none":
        places = np.indices(known.shape)
        places[axis] = wrapped(known, shape[axis])
        full = e.constant(np.moveaxis(places, 0, -1), I64)
        return e.op("scatter_nd", x, full, updates, reduction="none")
    n, count = shape[axis], some[axis]
    if x.type.size * count > PAIRS_MAX or n + count > EXACT:
        return None
    lines = tuple(shape[d] if d == axis else m for d, m in enumerate(some))
    near = e.op("slice", x, starts=(0,) * len(shape), sizes=lines, steps=(1,) * len(shape))
    place = from_front(e, index_type(e, indices), n)
    place = e.reshape(place, _with(some, axis, (1, count)))
    hit = e.op("eq", e.cast(axis_numbers(e, len(shape) + 1, axis, n), place.type.dtype), place)
    if reduction == "none":
        source = e.reshape(_last(e, hit, axis + 1, n), lines)
        both = e.concat([near, updates], axis)
        done = e.op("gather_elements", both, source, axis=axis)
    else:
        done = _combined(
            e, reduction, e.reshape(near, _with(lines, axis, (n, 1))), hit,
            e.reshape(updates, _with(some, axis, (1, count))), axis + 1,
        )
        done = e.reshape(done, lines)
    return _put_back(e, x, done)


def _with(shape: Sequence[int], axis: int, sizes: Sequence[int]) -> tuple[int, ...]:
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def _put_back(e: Emit, x: Value, part: Value) -> Value:
    """``x`` with ``part`` in place of its first elements along every dimension."""
    shape = x.type.static_shape
    for axis in reversed(range(len(shape))):
        have = part.type.static_shape
        if have[axis] == shape[axis]:
            continue
        sizes = tuple(shape[d] - have[d] if d == axis else n for d, n in enumerate(have))
        starts = tuple(have[d] if d == axis else 0 for d in range(len(shape)))
        rest = e.op("slice", x, starts=starts, sizes=sizes, steps=(1,) * len(shape))
        part = e.concat([part, rest], axis)
    return part


def _last(e: Emit, hit: Value, axis: int, places: int) -> Value:
    """Of the rows of x and, behind them, the updates the number that each place takes: the last
    update that names it, else its own. ``hit``: places along ``axis - 1``, updates along it."""
    count, rank = hit.type.static_shape[axis], hit.type.rank
    numbers = e.constant(1 + np.arange(count).reshape(_line(rank, axis)), I64)
    last = e.reduce("max", e.where(hit, numbers, 0), (axis,))
    own = axis_numbers(e, rank, axis - 1, places)
    return e.where(e.test("gt", last, 0), e.add(last, places - 1), own)


def _line(rank: int, axis: int) -> tuple[int, ...]:
    return tuple(-1 if d == axis else 1 for d in range(rank))


def _combined(
    e: Emit, reduction: str, x: Value, hit: Value, updates: Value, axis: int
) -> Value:
    """x and all the updates that name a place, folded along ``axis``. For max and min, x itself
    stands where no update does, which changes nothing."""
    name = {"add": "sum", "mul": "prod"}.get(reduction, reduction)
    neutral: Value | float = _IDENTITY.get(reduction, 0.0)
    chosen = e.where(hit, updates, neutral if reduction in _IDENTITY else x)
    return e.op(reduction, x, e.reduce(name, chosen, (axis,)))


def _picked(e: Emit, x: Value, updates: Value, source: Value) -> Value:
    return e.op("gather", e.concat([x, updates], 0), source, axis=0)


def _flat_places(known: Array, sizes: tuple[int, ...]) -> Array:
    columns = [wrapped(known[..., j].reshape(-1), n) for j, n in enumerate(sizes)]
    return np.ravel_multi_index(columns, sizes)


SCATTER_RULES = (
    Rule("scatter-elements", "scatter_elements", _scatter_elements, "rounding",
         "Constant places: scatter_nd of single elements. Else each place along the axis asks "
         "which updates name it: it takes the last, or what all of them come to."),
    Rule("scatter-nd", "scatter_nd", _scatter_nd, "rounding",
         "Each place takes a row of x or of the updates, the last that names it; sums of rows are "
         "a product with a matrix of zeros and ones."),
)  # fmt: skip
