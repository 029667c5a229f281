"""Decompositions of resize: one axis at a time, as copies or as a product with a constant matrix.

The matrix (or the source index) of an axis is what the interpreter's resize does to the identity
(or to 0, 1, 2, ...), so each coordinate mode is defined in one place only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spyrec.ir.core import Builder, Op, Value
from spyrec.ir.interp import run_op
from spyrec.ir.types import DTYPES

from .emit import Array, Emit
from .rule import Rule
from .rules_move import take
from .rules_reduce import ints


def axis_response(op: Op, axis: int, probe: Array) -> Array:
    """What ``op`` does along its axis ``axis``, applied to the last axis of ``probe``."""
    out, lead = op.result.type.static_shape[axis], probe.shape[:-1]
    builder = Builder()
    attrs: dict[str, Any] = {
        **op.attrs,
        "sizes": (*lead, out),
        "scales": (*(1.0 for _ in lead), _scales(op)[axis]),
    }
    value = builder.constant(probe, DTYPES["f64"])
    made = builder.op("resize", [value], loc=op.loc, **attrs)
    return np.asarray(run_op(made, [probe])[0])


def _scales(op: Op) -> tuple[float, ...]:
    scales = op.attrs["scales"]
    assert isinstance(scales, tuple)
    return tuple(float(s) for s in scales)


def _nearest(op: Op, e: Emit) -> Value | None:
    if op.attrs["mode"] != "nearest":
        return None
    (x,) = op.operands
    for axis, out in enumerate(ints(op, "sizes")):
        n = x.type.static_shape[axis]
        source = axis_response(op, axis, np.arange(n, dtype=np.float64)).astype(np.int64)
        x = _repeat(e, x, axis, source, out)
    return x


def _repeat(e: Emit, x: Value, axis: int, source: Array, out: int) -> Value:
    shape = x.type.static_shape
    n = shape[axis]
    if np.array_equal(source, np.arange(n)):
        return x
    if out % n == 0 and np.array_equal(source, np.arange(out) // (out // n)):
        factor = out // n
        wide = (*shape[: axis + 1], factor, *shape[axis + 1 :])
        narrow = (*shape[: axis + 1], 1, *shape[axis + 1 :])
        copies = e.broadcast(e.reshape(x, narrow), wide)
        return e.reshape(copies, (*shape[:axis], out, *shape[axis + 1 :]))
    picked = take(e, x, axis, [int(i) for i in source])
    if picked is not None:
        return picked
    return e.op("gather", x, e.constant(source, DTYPES["i64"]), axis=axis)


def _interpolated(op: Op, e: Emit) -> Value | None:
    if op.attrs["mode"] == "nearest":
        return None
    (x,) = op.operands
    before, after, scales = x.type.static_shape, op.result.type.static_shape, _scales(op)
    changed = [a for a in range(x.type.rank) if before[a] != after[a] or scales[a] != 1]
    # Shrinking axes first: less is left to interpolate.
    for axis in sorted(changed, key=lambda a: after[a] / before[a]):
        weights = axis_response(op, axis, np.eye(x.type.static_shape[axis]))
        x = along_axis(e, x, axis, weights)
    return x


def along_axis(e: Emit, x: Value, axis: int, weights: Array) -> Value:
    """y[.., j, ..] = sum over i of x[.., i, ..] * weights[i, j], without a transpose."""
    shape: Sequence[int] = x.type.static_shape
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    n, out = weights.shape
    if inner == 1:
        y = e.op("matmul", e.reshape(x, (outer, n)), e.constant(weights, x.type.dtype))
    else:
        matrix = e.constant(np.ascontiguousarray(weights.T), x.type.dtype)
        y = e.op("matmul", matrix, e.reshape(x, (outer, n, inner)))
    return e.reshape(y, (*shape[:axis], out, *shape[axis + 1 :]))


RESIZE_RULES = (
    Rule("resize-nearest", "resize", _nearest, "exact",
         "Whole factors are broadcasts; else elements picked by constant indices."),
    Rule("resize-interpolated", "resize", _interpolated, "rounding",
         "Interpolation is linear and separable: one constant matrix an axis."),
)  # fmt: skip
