"""Decompositions of pooling (other ranks, ceil mode, averages) and of local response norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from spyrec.ir.core import Op, Value

from .emit import Array, Emit
from .rule import Rule
from .rules_conv import sees_padding_only
from .rules_elementwise import number
from .rules_reduce import int_attr, ints


def _window(op: Op) -> tuple[tuple[int, ...], ...]:
    """kernel, strides, dilations, lo pads, hi pads of a pooling op; the hi pads reach just as far
    as the last window does, so that ceil mode is no longer needed."""
    kernel, strides, pads = ints(op, "kernel"), ints(op, "strides"), ints(op, "pads")
    rank = len(kernel)
    dilations = ints(op, "dilations") if "dilations" in op.attrs else (1,) * rank
    shape, out = op.operands[0].type.static_shape[2:], op.result.type.static_shape[2:]
    hi = []
    for d in range(rank):
        reach = (out[d] - 1) * strides[d] + dilations[d] * (kernel[d] - 1) + 1
        hi.append(max(reach - shape[d] - pads[d], 0))
    return kernel, strides, dilations, pads[:rank], tuple(hi)


def _pool_floor(op: Op, e: Emit) -> Value | None:
    """ceil_mode is floor mode with more padding behind."""
    if not op.attrs["ceil_mode"]:
        return None
    kernel, strides, dilations, lo, hi = _window(op)
    return _pool(e, op.name, op.operands[0], kernel, strides, dilations, lo, hi)


def _pool(
    e: Emit,
    name: str,
    x: Value,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    lo: Sequence[int],
    hi: Sequence[int],
) -> Value:
    return e.op(
        name, x, kernel=tuple(kernel), strides=tuple(strides), pads=(*lo, *hi),
        dilations=tuple(dilations),
    )  # fmt: skip


def _pool_rank(op: Op, e: Emit) -> Value | None:
    """1-D and 3-D pooling as 2-D pooling of one or two axes at a time (max and sum separate)."""
    (x,) = op.operands
    if x.type.rank == 4 or op.attrs.get("ceil_mode"):
        return None
    parts = _window(op)
    rank = len(parts[0])
    first = rank % 2
    if first:
        x = _pool_axes(e, op.name, x, 0, 1, parts)
    for axis in range(first, rank, 2):
        x = _pool_axes(e, op.name, x, axis, axis + 2, parts)
    return x


def _pool_axes(
    e: Emit, name: str, x: Value, start: int, stop: int, parts: Sequence[tuple[int, ...]]
) -> Value:
    """Pool over the spatial axes start..stop (one or two); the others are carried along.

    One axis: [outer, 1, n, inner] with a window of 1 along inner. Two: [outer, inner = 1, n, m].
    """
    shape = x.type.static_shape
    a, b = start + 2, stop + 2
    outer, inner = math.prod(shape[:a]), math.prod(shape[b:])
    window = [p[start:stop] for p in parts]
    if stop - start == 1:
        view = e.reshape(x, (outer, 1, shape[a], inner))
        unit = (1, 1, 1, 0, 0)
        window = [(*w, u) for w, u in zip(window, unit, strict=True)]
    else:
        if inner != 1:
            view = e.reshape(x, (outer, *shape[a:b], inner))
            view = e.transpose(view, (0, 3, 1, 2))
        else:
            view = e.reshape(x, (outer, 1, *shape[a:b]))
    y = _pool(e, name, view, *window)
    sizes = y.type.static_shape[2:]
    if stop - start == 1:
        return e.reshape(y, (*shape[:a], sizes[0], *shape[b:]))
    y = e.transpose(y, (0, 2, 3, 1)) if inner != 1 else y
    return e.reshape(y, (*shape[:a], *sizes, *shape[b:]))


def _pool_of_padding(op: Op, e: Emit) -> Value | None:
    (x,) = op.operands
    kernel, strides, dilations, lo, _ = _window(op)
    out = op.result.type.static_shape
    if not sees_padding_only(x.type.static_shape[2:], out[2:], kernel, strides, dilations, lo):
        return None
    if op.name == "max_pool" and x.type.dtype.kind != "float":
        return None
    return e.broadcast(e.scalar(-math.inf if op.name == "max_pool" else 0.0, x), out)


def _avg_pool(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    kernel, strides, dilations, lo, hi = _window(op)
    total = _pool(e, "sum_pool", x, kernel, strides, dilations, lo, hi)
    counts = _counts(op)
    if np.all(counts == counts.flat[0]):
        return e.mul(total, 1.0 / float(counts.flat[0]))
    return e.mul(total, e.constant(1.0 / counts[None, None], x.type.dtype))


def _counts(op: Op) -> Array:
    """How many elements each window averages; an array over the output's positions.

    Padding counts when count_include_pad is set; what only ceil mode added never does.
    """
    kernel, strides, dilations, lo, _ = _window(op)
    rank = len(kernel)
    given_hi = ints(op, "pads")[rank:]
    include = bool(op.attrs["count_include_pad"])
    counts: Array = np.ones((1,) * rank)
    for d, n in enumerate(op.operands[0].type.static_shape[2:]):
        low, high = (-lo[d], n + given_hi[d]) if include else (0, n)
        out = op.result.type.static_shape[2 + d]
        at = np.arange(out)[:, None] * strides[d] - lo[d] + np.arange(kernel[d]) * dilations[d]
        along = ((at >= low) & (at < high)).sum(axis=1)
        counts = counts * along.reshape(tuple(out if i == d else 1 for i in range(rank)))
    return np.maximum(counts, 1.0)


def _lrn(op: Op, e: Emit) -> Value:
    """Neighbouring channels are summed by a convolution of one tap, with ones near the diagonal: so
    channels stay along the lanes, and what follows joins the matrix kernel."""
    (x,) = op.operands
    shape, size = x.type.static_shape, int_attr(op, "size")
    alpha, beta, bias = (number(op, key) for key in ("alpha", "beta", "bias"))
    channels = np.arange(shape[1])
    offset = channels[None, :] - channels[:, None] + (size - 1) // 2
    near = ((offset >= 0) & (offset < size)).astype(np.float32)[:, :, None, None]
    flat = shape if len(shape) == 4 else (*shape[:2], math.prod(shape[2:]), 1)
    squares, ones = e.reshape(e.mul(x, x), flat), e.constant(near, x.type.dtype)
    total = e.op("conv", squares, ones, strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1)
    base = e.add(e.mul(e.reshape(total, shape), alpha / size), bias)
    return e.mul(x, e.op("pow", base, e.scalar(-beta, base)))


WINDOW_RULES = (
    Rule("max-pool-ceil", "max_pool", _pool_floor, "exact", "ceil mode = more padding behind."),
    Rule("max-pool-of-padding", "max_pool", _pool_of_padding, "exact",
         "Every window lies in the padding: the greatest of nothing is -inf."),
    Rule("max-pool-rank", "max_pool", _pool_rank, "exact", "max over a box = max over its sides."),
    Rule("sum-pool-of-padding", "sum_pool", _pool_of_padding, "exact",
         "Every window lies in the padding: the sum of nothing."),
    Rule("sum-pool-rank", "sum_pool", _pool_rank, "rounding",
         "sum over a box = sum over its sides."),
    Rule("avg-pool", "avg_pool", _avg_pool, "rounding",
         "sum over the window times the reciprocal of how many elements count, a constant."),
    Rule("lrn", "lrn", _lrn, "rounding",
         "x (bias + alpha/size sum of x^2 over neighbouring channels)^-beta."),
)  # fmt: skip
