"""Decompositions of data movement into the moves that are primitive, and of what is all known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spyrec.ir.core import Op, Value
from spyrec.ir.types import DTYPES

from .emit import Array, Emit
from .rule import Rule
from .rules_elementwise import number
from .rules_reduce import int_attr, ints

RUNS_MAX = 16
"""Most slices that a selection by constant indices is cut into."""


def runs(indices: Sequence[int]) -> list[tuple[int, int, int]]:
    """Maximal arithmetic runs ``(start, step, length)``, greedily from the left.

    >>> runs([2, 1, 0, 1, 2, 3, 3, 3])
    [(2, -1, 3), (1, 1, 3), (3, 0, 2)]
    """
    found: list[tuple[int, int, int]] = []
    at = 0
    while at < len(indices):
        end = at + 1
        step = indices[end] - indices[at] if end < len(indices) else 1
        while end < len(indices) and indices[end] - indices[end - 1] == step:
            end += 1
        found.append((indices[at], step if end - at > 1 else 1, end - at))
        at = end
    return found


def take(e: Emit, x: Value, axis: int, indices: Sequence[int]) -> Value | None:
    """``x`` at constant indices along ``axis`` as slices side by side; None if that takes more
    than RUNS_MAX."""
    found = runs(indices)
    if len(found) > RUNS_MAX or not found:
        return None
    parts = []
    for start, step, length in found:
        if step != 0:
            parts.append(e.slice_axis(x, axis, start, length, step))
            continue
        one = e.slice_axis(x, axis, start, 1)
        shape = list(one.type.static_shape)
        shape[axis] = length
        parts.append(e.broadcast(one, shape))
    return e.concat(parts, axis)


def _pad_by_index(op: Op, e: Emit) -> Value | None:
    mode = op.attrs["mode"]
    if mode == "constant":
        return None
    (x,) = op.operands
    lo, hi = ints(op, "lo"), ints(op, "hi")
    for axis, n in enumerate(x.type.static_shape):
        if lo[axis] == hi[axis] == 0:
            continue
        source = padded_indices(n, lo[axis], hi[axis], str(mode))
        selected = take(e, x, axis, source)
        if selected is None:
            numbers = e.constant(np.array(source), DTYPES["i64"])
            selected = e.op("gather", x, numbers, axis=axis)
        x = selected
    return x


def padded_indices(n: int, lo: int, hi: int, mode: str) -> list[int]:
    """Where each element of a padded axis of ``n`` elements comes from; negative
    pads crop first."""
    kept = np.arange(max(-lo, 0), n - max(-hi, 0))
    full: Array = np.pad(kept, (max(lo, 0), max(hi, 0)), mode=mode)  # type: ignore[call-overload]
    return [int(i) for i in full]


def _pad_crop(op: Op, e: Emit) -> Value | None:
    """Negative constant padding is a slice."""
    lo, hi = ints(op, "lo"), ints(op, "hi")
    if op.attrs["mode"] != "constant" or min(*lo, *hi, 0) >= 0:
        return None
    (x,) = op.operands
    value, interior = number(op, "value"), ints(op, "interior")
    grown = e.pad(x, [max(v, 0) for v in lo], [max(v, 0) for v in hi], value, interior)
    return e.op(
        "slice", grown, starts=tuple(max(-v, 0) for v in lo),
        sizes=op.result.type.static_shape, steps=(1,) * len(lo),
    )  # fmt: skip


def _reverse(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    for axis in ints(op, "axes"):
        n = x.type.static_shape[axis]
        x = e.slice_axis(x, axis, n - 1, n, -1) if n > 1 else x
    return x


def _split(op: Op, e: Emit) -> list[Value]:
    (x,) = op.operands
    axis, start, parts = int_attr(op, "axis"), 0, []
    for size in ints(op, "sizes"):
        parts.append(e.slice_axis(x, axis, start, size))
        start += size
    return parts


def _tile(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    split_up, wide = [], []
    for n, times in zip(x.type.static_shape, ints(op, "repeats"), strict=True):
        if times == 1:
            split_up.append(n)
            wide.append(n)
        elif n == 1:
            split_up.append(1)
            wide.append(times)
        else:
            split_up += [1, n]
            wide += [times, n]
    copies = e.broadcast(e.reshape(x, split_up), wide)
    return e.reshape(copies, op.result.type.static_shape)


def _depth_to_space(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    n, c, h, w = x.type.static_shape
    b = int_attr(op, "block")
    out = c // (b * b)
    if op.attrs["mode"] == "DCR":
        parts = e.transpose(e.reshape(x, (n, b, b, out, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        parts = e.transpose(e.reshape(x, (n, out, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return e.reshape(parts, op.result.type.static_shape)


def _space_to_depth(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    n, c, h, w = x.type.static_shape
    b = int_attr(op, "block")
    parts = e.transpose(e.reshape(x, (n, c, h // b, b, w // b, b)), (0, 3, 5, 1, 2, 4))
    return e.reshape(parts, op.result.type.static_shape)


def _trilu(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    rows, columns = x.type.static_shape[-2:]
    k = int_attr(op, "k")
    below = np.tri(rows, columns, k=k - 1 if op.attrs["upper"] else k, dtype=np.bool_)
    kept = ~below if op.attrs["upper"] else below
    return e.where(e.constant(kept, DTYPES["bool"]), x, 0.0)


def _iota(op: Op, e: Emit) -> Value:
    axis, shape = int_attr(op, "axis"), op.result.type.static_shape
    line = np.arange(shape[axis]).reshape(tuple(-1 if d == axis else 1 for d in range(len(shape))))
    return e.broadcast(e.constant(line, op.result.type.dtype), shape)


def _shape_of(op: Op, e: Emit) -> Value | None:
    shape = op.operands[0].type.shape
    if not all(isinstance(d, int) for d in shape):
        return None
    return e.constant(np.array(shape, dtype=np.int64), DTYPES["i64"])


MOVE_RULES = (
    Rule("pad-by-index", "pad", _pad_by_index, "exact",
         "reflect, edge and wrap padding repeat elements: slices, side by side."),
    Rule("pad-crop", "pad", _pad_crop, "exact", "Negative padding is a slice."),
    Rule("reverse", "reverse", _reverse, "exact", "A slice with step -1 from the last element."),
    Rule("split", "split", _split, "exact", "One slice a part."),
    Rule("tile", "tile", _tile, "exact", "Broadcast along a new axis, then merge it."),
    Rule("depth-to-space", "depth_to_space", _depth_to_space, "exact",
         "Split the channels into block rows and columns and interleave them."),
    Rule("space-to-depth", "space_to_depth", _space_to_depth, "exact",
         "Cut rows and columns into blocks and move the positions in a block to the channels."),
    Rule("trilu", "trilu", _trilu, "exact", "A constant mask decides what stays."),
    Rule("iota", "iota", _iota, "exact", "Known when compiled."),
    Rule("shape-of", "shape_of", _shape_of, "exact", "Known once the dimensions are bound."),
)  # fmt: skip
