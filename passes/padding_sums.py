"""What padding does to ops that sum, compare or multiply along an axis: it is masked first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spyrec.ir.core import Value

from .extents import (
    Axis,
    Extents,
    fixed,
    open_factors,
    plain,
    same,
    scattered,
    spread,
    with_zero,
)
from .padding import Refused, Rule, Site


def _opened(s: Site, operand: int, axes: Sequence[int]) -> list[tuple[int, int]]:
    return [(a, j) for a in axes for j in open_factors(s.axis(operand, a))]


def is_zero(s: Site, operand: int, axes: Sequence[int]) -> bool:
    """Whether all padding along these axes is zero; with two open factors what is padding along
    both is not known to be."""
    found = _opened(s, operand, axes)
    return len(found) == 1 and all(s.axis(operand, a)[j].zero for a, j in found)


def _lowest(s: Site, operand: int, sign: int) -> float:
    dtype = s.values[operand].type.dtype
    if dtype.kind != "float":
        raise Refused(f"compares numbers of the type {dtype}, of which none can stand for padding")
    return sign * math.inf


NEUTRAL = {"reduce_sum": 0.0, "reduce_mean": 0.0, "reduce_l1": 0.0, "reduce_l2": 0.0,
           "reduce_sum_square": 0.0, "reduce_prod": 1.0}  # fmt: skip


def _reduce(s: Site) -> Sequence[Extents] | Value:
    name, axes, keep = s.op.name, s.attr("axes"), s.attr("keepdims")
    opened = _opened(s, 0, axes)
    masked = False
    if opened:
        fill = NEUTRAL.get(name)
        if fill is None:
            fill = _lowest(s, 0, 1 if name == "reduce_min" else -1)
        if fill or not is_zero(s, 0, axes):
            s.hide_operand(0, axes, fill)
            masked = True
    x = s.known[0]
    # Padding along a reduced axis that was not masked may not be zero where another axis is padding
    kept = masked or not opened
    out: list[Axis] = []
    for a, axis in enumerate(x.axes):
        if a in axes:
            out += [()] if keep else []
        else:
            zero = kept and name not in ("reduce_prod", "reduce_log_sum_exp")
            out.append(axis if zero else plain(axis))
    never = name in ("reduce_l1", "reduce_l2", "reduce_sum_square")
    bounded = name in ("reduce_max", "reduce_min")
    low = x.low if bounded else 0.0 if never or x.low >= 0 else -math.inf
    finite = x.finite and name != "reduce_log_sum_exp"
    if name != "reduce_mean" or not opened:
        return [Extents(tuple(out), finite, low if name != "reduce_log_sum_exp" else -math.inf)]
    known = Extents(tuple(out), finite, low)
    total = s.emit("reduce_sum", s.values, known, axes=tuple(axes), keepdims=keep)
    return _divided(s, total, [x.axes[a] for a in axes])


def _divided(s: Site, total: Value, over: Sequence[Axis]) -> Value:
    """A sum over axes divided by how many elements truly are there."""
    known, dtype = s.walk.known[total], total.type.dtype
    factors = [f for axis in over for f in axis]
    shares = [s.walk.given("share", f.dim, f.add, (), dtype) for f in factors if f.dim]
    count = math.prod(f.size for f in factors if not f.dim)
    if count > 1:
        shares.append(s.constant(1 / count, dtype))
    for share in shares:
        total = s.emit("mul", [total, share], replace(known, low=min(known.low, 0.0)))
    return total


def _softmax(s: Site) -> Sequence[Extents] | Value:
    axis = s.attr("axis")
    x = s.known[0]
    if not open_factors(x.axes[axis]):
        low = 0.0 if s.op.name == "softmax" else -math.inf
        return [Extents(tuple(map(plain, x.axes)), x.finite, low)]
    shown = s.hide(s.values[0], [axis], _lowest(s, 0, -1))
    row = Extents(tuple(() if a == axis else plain(f) for a, f in enumerate(x.axes)), x.finite)
    each = Extents(tuple(map(plain, x.axes)), x.finite)
    over: Any = {"axes": (axis,), "keepdims": True}
    less = s.emit("sub", [shown, s.emit("reduce_max", [shown], row, **over)], each)
    # Masked once more: where every true score is the lowest number there is, e^(x - max) of a
    # masked one is 1, not 0.
    weight = s.hide(s.emit("exp", [less], replace(each, low=0.0)), [axis], 0.0)
    # At least 1 in every row, padding or not: the largest true score gives it.
    total = s.emit("reduce_sum", [weight], replace(row, low=1.0), **over)
    if s.op.name == "log_softmax":
        return s.emit("sub", [less, s.emit("log", [total], row)], replace(each, finite=False))
    share = s.emit("reciprocal", [total], replace(row, low=0.0))
    return s.emit("mul", [weight, share], s.walk.known[weight])


def _norm(s: Site) -> Sequence[Extents]:
    x = s.known[0]
    first = s.attr("axis")
    for a in range(first, len(x.axes)):
        if open_factors(x.axes[a]):
            raise Refused(f"normalises over axis {a}, which has padding")
    keep = s.op.name == "rms_norm" and s.attr("epsilon") > 0
    axes = tuple(x.axes if keep else map(plain, x.axes))
    fine = all(k.finite for k in s.known) and s.attr("epsilon") > 0
    return [Extents(axes, fine)]


def _scaled(s: Site) -> Sequence[Extents]:
    """Scale and zero point stand along one axis."""
    x, scale, zero = s.known
    along = s.values[1].type.size > 1 and open_factors(x.axes[s.attr("axis")])
    if along or scale.padded or zero.padded:
        raise Refused("has a scale for each index of an axis with padding")
    return [Extents(tuple(map(plain, x.axes)), x.finite)]


def _batch_norm(s: Site) -> Sequence[Extents]:
    x = s.known[0]
    if open_factors(x.axes[1]):
        raise Refused("has statistics for each index of an axis with padding")
    return [Extents(tuple(map(plain, x.axes)))]


def _arg(s: Site) -> Sequence[Extents]:
    axis, keep = s.attr("axis"), s.attr("keepdims")
    if open_factors(s.axis(0, axis)):
        if len(s.axis(0, axis)) > 1:
            raise Refused("gives an index into several dimensions in one")
        s.hide_operand(0, [axis], _lowest(s, 0, -1 if s.op.name == "arg_max" else 1))
    rest = [plain(f) if a != axis else () for a, f in enumerate(s.known[0].axes)]
    if not keep:
        del rest[axis]
    return [Extents(tuple(rest), True, 0.0)]


def _top_k(s: Site) -> Sequence[Extents]:
    x, axis = s.known[0], s.attr("axis")
    if open_factors(x.axes[axis]):
        if len(x.axes[axis]) > 1:
            raise Refused("gives indices into several dimensions in one")
        s.hide_operand(0, [axis], _lowest(s, 0, -1 if s.attr("largest") else 1))
    axes = tuple(fixed(s.attr("k")) if a == axis else plain(f) for a, f in enumerate(x.axes))
    return [Extents(axes, x.finite, x.low), Extents(axes, True, 0.0)]


def _cumsum(s: Site) -> Sequence[Extents]:
    axis, x = s.attr("axis"), s.known[0]
    if open_factors(x.axes[axis]):
        if s.attr("reverse"):
            s.hide_operand(0, [axis], 0.0)
        if len(x.axes[axis]) > 1:
            raise Refused("sums along several dimensions in one")
    axes = [plain(f) for f in x.axes]
    return [Extents(tuple(axes), x.finite, 0.0 if x.low >= 0 else -math.inf)]


def _trilu(s: Site) -> Sequence[Extents]:
    x = s.known[0]
    if any(map(scattered, x.axes[-2:])):
        raise Refused("draws a diagonal through several dimensions in one")
    return [Extents(x.axes, x.finite, min(x.low, 0.0))]


def _mask_product(s: Site, sides: Sequence[tuple[int, Sequence[int]]]) -> bool:
    """Mask so that no padding of a summed index counts: one factor must be zero there and the other
    finite, or both zero. ``sides``: operand and its summed axes. Whether something is summed over
    padding at all."""
    opened = [_opened(s, i, axes) for i, axes in sides]
    if not any(opened):
        return False
    zero = [is_zero(s, i, axes) for i, axes in sides]
    sizes = [s.values[i].type.size for i, _ in sides]
    ways = []
    for a in (False, True):
        for b in (False, True):
            z = [zero[0] or a, zero[1] or b]
            fine = [z[i] or s.known[sides[i][0]].finite for i in (0, 1)]
            if any(z) and all(fine):
                ways.append((a * sizes[0] + b * sizes[1], a, b))
    _, *chosen = min(ways)
    for (i, axes), mask in zip(sides, chosen, strict=True):
        if mask:
            s.hide_operand(i, axes, 0.0)
    return True


def _matmul(s: Site) -> Sequence[Extents]:
    ranks = [len(k.axes) for k in s.known]
    if min(ranks) < 2:
        raise Refused("multiplies vectors; give them a second axis")
    inner = s.axis(0, ranks[0] - 1), s.axis(1, ranks[1] - 2)
    if not same(*inner):
        raise Refused("sums over two axes whose padding lies in different places")
    summed = _mask_product(s, [(0, [ranks[0] - 1]), (1, [ranks[1] - 2])])
    a, b = s.known
    rank = max(ranks)
    batch: list[Axis] = []
    for x, y in zip(spread(a.axes[:-2], rank - 2), spread(b.axes[:-2], rank - 2), strict=True):
        if x and y and not same(x, y):
            raise Refused("has two batch axes whose padding lies in different places")
        batch.append(_product_axis(x, y, a, b, summed))
    rows = _product_axis(a.axes[-2], (), a, b, summed)
    columns = _product_axis((), b.axes[-1], a, b, summed)
    s.count_macs([*batch, rows, columns, inner[0]])
    low = 0.0 if a.low >= 0 and b.low >= 0 else -math.inf
    return [Extents((*batch, rows, columns), a.finite and b.finite, low)]


def _product_axis(x: Axis, y: Axis, a: Extents, b: Extents, summed: bool) -> Axis:
    """An axis of a product, from that of either factor or both."""
    shape = x or y
    zero = [
        not summed and ((bool(x) and x[j].zero and b.finite)
                        or (bool(y) and y[j].zero and a.finite))
        for j in range(len(shape))
    ]
    return with_zero(shape, zero)


def _conv(s: Site) -> Sequence[Extents]:
    x, w, *bias = s.known
    if open_factors(x.axes[1]) or w.padded or any(k.padded for k in bias):
        raise Refused("has padding in its channels or weights")
    spatial = [a for a in range(2, len(x.axes)) if open_factors(x.axes[a])]
    for a in spatial:
        _need_step_one(s, a)
    if spatial and not (len(spatial) == 1 and is_zero(s, 0, spatial)):
        s.hide_operand(0, spatial, 0.0)
    out = [plain(x.axes[0]), *(s.seen(a) for a in range(1, len(x.axes)))]
    weights = s.values[1].type.static_shape
    s.count_macs([*out, *map(fixed, weights[1:])])
    return [Extents(tuple(out), all(k.finite for k in s.known))]


def _need_step_one(s: Site, axis: int) -> None:
    if s.attr("strides")[axis - 2] != 1 or len(s.axis(0, axis)) > 1:
        raise Refused(f"takes steps of more than one along axis {axis}, which has padding")


def _window(s: Site) -> Sequence[Extents]:
    """Windows may not reach into padding; batches may have it."""
    x, *rest = s.known
    if any(open_factors(f) for f in x.axes[1:]) or any(k.padded for k in rest):
        raise Refused("has windows that reach into padding")
    shape = s.op.result.type.static_shape
    return [Extents((plain(x.axes[0]), *map(fixed, shape[1:])))]


SUMS: Mapping[str, Rule] = {
    **dict.fromkeys((*NEUTRAL, "reduce_max", "reduce_min", "reduce_log_sum_exp"), _reduce),
    "softmax": _softmax, "log_softmax": _softmax, "layer_norm": _norm, "rms_norm": _norm,
    "quantize_linear": _scaled, "dequantize_linear": _scaled, "batch_norm": _batch_norm,
    "arg_max": _arg, "arg_min": _arg, "top_k": _top_k, "cumsum": _cumsum, "trilu": _trilu,
    "matmul": _matmul, "conv": _conv,
    **dict.fromkeys(("conv_transpose", "max_pool", "avg_pool", "sum_pool", "lrn"), _window),
}  # fmt: skip
