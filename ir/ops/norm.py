"""Normalisations, softmax and attention. Statistics of 16-bit formats are taken in float32."""

from __future__ import annotations

import math

import numpy as np

from spyrec.ir.types import TensorType

from .contract import matmul
from .reduce import fold_log_sum_exp, fold_max, fold_sum
from .shapes import (
    broadcast,
    need_axis,
    need_kind,
    need_rank,
    need_same_dtype,
    need_shape,
    show,
    static_dim,
)
from .spec import TENSOR, Array, Arrays, Attrs, AttrSpec, OpDef, Site, Types, operands

FLOAT = ("float",)


def softmax(x: Array, axis: int) -> Array:
    e: Array = np.exp(x - fold_max(x, (axis,)))
    return np.divide(e, fold_sum(e, (axis,)))


def standardised(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """(x - mean) / sqrt(variance + epsilon), both over ``axes``."""
    centred: Array = x - np.mean(x, axis=axes, keepdims=True)
    variance: Array = np.mean(centred * centred, axis=axes, keepdims=True)
    return np.divide(centred, np.sqrt(variance + epsilon))


def _infer_softmax(types: Types, attrs: Attrs, site: Site) -> Types:
    need_kind(types[0], FLOAT, "an operand", site)
    need_axis(attrs["axis"], types[0].rank, site)
    return (TensorType(types[0].shape, types[0].dtype),)


def _eval_softmax(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (softmax(arrays[0], attrs["axis"]),)


def _eval_log_softmax(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x = arrays[0]
    shifted: Array = x - fold_max(x, (attrs["axis"],))
    return (shifted - fold_log_sum_exp(shifted, (attrs["axis"],)),)


def _norm_result(types: Types, site: Site) -> Types:
    need_same_dtype(types, site)
    need_kind(types[0], FLOAT, "operands", site)
    return (TensorType(types[0].shape, types[0].dtype),)


def _infer_trailing(types: Types, attrs: Attrs, site: Site) -> Types:
    """Scale and bias have the normalised shape, or broadcast to it."""
    x = types[0]
    axis = need_axis(attrs["axis"], x.rank, site)
    normalised = x.shape[axis:]
    for t, what in zip(types[1:], ("scale", "bias"), strict=False):
        if broadcast([normalised, t.shape], site) != normalised:
            raise site.error(
                f"expected {what} to broadcast to {show(normalised)}, got {show(t.shape)}"
            )
    return _norm_result(types, site)


def _trailing_axes(x: Array, axis: int) -> tuple[int, ...]:
    return tuple(range(axis, x.ndim))


def _eval_layer_norm(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x, scale, *bias = arrays
    result = standardised(x, _trailing_axes(x, attrs["axis"]), attrs["epsilon"]) * scale
    return (result + bias[0] if bias else result,)


def _eval_rms_norm(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x, scale = arrays
    mean = np.mean(x * x, axis=_trailing_axes(x, attrs["axis"]), keepdims=True)
    return (x / np.sqrt(mean + attrs["epsilon"]) * scale,)


def _infer_per_channel(types: Types, attrs: Attrs, site: Site) -> Types:
    """x[N,C,...]; every other operand is [C]."""
    need_rank(types[0], 2, "x", site, -1)
    for t in types[1:]:
        need_shape(t, types[0].shape[1:2], "a per-channel operand", site)
    return _norm_result(types, site)


def _channels(values: Array, x: Array) -> Array:
    return values.reshape(-1, *[1] * (x.ndim - 2))


def _eval_batch_norm(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x = arrays[0]
    scale, bias, mean, var = (_channels(a, x) for a in arrays[1:])
    return ((x - mean) / np.sqrt(var + attrs["epsilon"]) * scale + bias,)


def _eval_instance_norm(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x, scale, bias = arrays
    result = standardised(x, _trailing_axes(x, 2), attrs["epsilon"])
    return (result * _channels(scale, x) + _channels(bias, x),)


def _infer_group_norm(types: Types, attrs: Attrs, site: Site) -> Types:
    need_rank(types[0], 2, "x", site, -1)
    channels = static_dim(types[0].shape[1], "the channel count", site)
    if attrs["groups"] < 1 or channels % attrs["groups"]:
        raise site.error(f"{attrs['groups']} groups do not divide {channels} channels")
    return _infer_per_channel(types, attrs, site)


def _eval_group_norm(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x, scale, bias = arrays
    grouped = x.reshape(x.shape[0], attrs["groups"], -1)
    result = standardised(grouped, (2,), attrs["epsilon"]).reshape(x.shape)
    return (result * _channels(scale, x) + _channels(bias, x),)


def _infer_attention(types: Types, attrs: Attrs, site: Site) -> Types:
    q, k, v = types[:3]
    need_same_dtype(types[:3], site)
    need_kind(q, FLOAT, "q, k and v", site)
    for t, what in zip(types[:3], "qkv", strict=True):
        need_rank(t, 4, what, site)
    heads, groups = (static_dim(t.shape[1], "a head count", site) for t in (q, k))
    fits = (q.shape[0], q.shape[3], *k.shape[:3]) == (k.shape[0], k.shape[3], *v.shape[:3])
    if not fits or groups < 1 or heads % groups:
        raise site.error(
            f"expected q[B,H,S,D], k[B,G,T,D], v[B,G,T,E] with H a multiple of G, got "
            f"{show(q.shape)}, {show(k.shape)}, {show(v.shape)}"
        )
    if len(types) > 3:
        _check_mask(types, site)
    return (TensorType((*q.shape[:3], v.shape[3]), q.dtype),)


def _check_mask(types: Types, site: Site) -> None:
    q, k, mask = types[0], types[1], types[3]
    scores = (*q.shape[:3], k.shape[2])
    if mask.dtype.kind != "bool" and mask.dtype != q.dtype:
        raise site.error(f"expected a mask of bool or {q.dtype} type, got {mask.dtype}")
    if broadcast([scores, mask.shape], site) != scores:
        raise site.error(f"expected a mask that fits {show(scores)}, got {show(mask.shape)}")


def _eval_attention(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    """softmax(q k^T scale + mask) v. A bool mask hides where it is false; causal lets query i
    see keys 0..i; ``hidden`` stands for the scores that either hides."""
    q, k, v, *mask = arrays
    batch, heads, rows, depth = q.shape
    groups, keys = k.shape[1], k.shape[2]
    scale = depth**-0.5 if attrs["scale"] is None else attrs["scale"]
    shape = (batch, heads, rows, keys)
    seen = np.broadcast_to(np.tri(rows, keys, dtype=np.bool_) if attrs["causal"] else True, shape)
    bias = np.broadcast_to(np.zeros((), q.dtype), shape)
    if mask and mask[0].dtype == np.bool_:
        seen = seen & mask[0]
    elif mask:
        bias = np.broadcast_to(mask[0], shape)
    hidden = q.dtype.type(attrs["hidden"])
    result = np.empty((batch, heads, rows, v.shape[3]), q.dtype)
    for b in range(batch):
        for h in range(heads):
            g = h * groups // heads
            scores: Array = matmul(q[b, h], k[b, g].T) * scale + bias[b, h]
            result[b, h] = matmul(softmax(np.where(seen[b, h], scores, hidden), 1), v[b, g])
    return (result,)


_EPSILON = {"epsilon": AttrSpec("float", doc="added to the variance")}
_AXIS = {"axis": AttrSpec("int")}
_FROM_AXIS = {"axis": AttrSpec("int", doc="the first dimension to normalise over"), **_EPSILON}

DEFS: tuple[OpDef, ...] = (
    OpDef(
        "softmax", "norm", operands("x"), _AXIS, TENSOR,
        "exp(x) over its sum along an axis.", _infer_softmax, _eval_softmax,
    ),
    OpDef(
        "log_softmax", "norm", operands("x"), _AXIS, TENSOR,
        "Logarithm of softmax.", _infer_softmax, _eval_log_softmax,
    ),
    OpDef(
        "layer_norm", "norm", operands("x scale bias?"), _FROM_AXIS, TENSOR,
        "Zero mean and unit variance over the dimensions from axis on, times scale, plus bias.",
        _infer_trailing, _eval_layer_norm,
    ),
    OpDef(
        "rms_norm", "norm", operands("x scale"), _FROM_AXIS, TENSOR,
        "x over its root mean square over the dimensions from axis on, times scale.",
        _infer_trailing, _eval_rms_norm,
    ),
    OpDef(
        "batch_norm", "norm", operands("x scale bias mean var"), _EPSILON, TENSOR,
        "x[N,C,...] standardised by given per-channel statistics, times scale, plus bias.",
        _infer_per_channel, _eval_batch_norm,
    ),
    OpDef(
        "instance_norm", "norm", operands("x scale bias"), _EPSILON, TENSOR,
        "x[N,C,...] standardised over each channel of each image, times scale, plus bias.",
        _infer_per_channel, _eval_instance_norm,
    ),
    OpDef(
        "group_norm", "norm", operands("x scale bias"),
        {"groups": AttrSpec("int", doc="channels are cut into so many groups"), **_EPSILON},
        TENSOR,
        "x[N,C,...] standardised over groups of channels of each image, times scale, plus bias.",
        _infer_group_norm, _eval_group_norm,
    ),
    OpDef(
        "attention", "norm", operands("q k v mask?"),
        {
            "scale": AttrSpec("float", None, "of the scores; None: 1 / sqrt(D)"),
            "causal": AttrSpec("bool", False, "query i sees keys 0..i only"),
            "hidden": AttrSpec("float", -math.inf, "the score of a key that is not seen"),
            "rows": AttrSpec("int", 0, "queries that are computed at a time; 0: all"),
            "keys": AttrSpec("int", 0, "keys that are read at a time; 0: all"),
        },
        TENSOR,
        "Scaled dot-product attention of q[B,H,S,D] on k[B,G,T,D], v[B,G,T,E]; H / G query heads "
        "share a key head; a bool mask hides where false, a float mask is added to the scores.",
        _infer_attention, _eval_attention,
    ),
)  # fmt: skip
