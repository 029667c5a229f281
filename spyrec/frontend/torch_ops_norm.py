"""Softmax and normalisations."""

from __future__ import annotations

import math

import numpy as np

from .emit import Handle, Known, Unsupported, shape_of
from .torch_ops_reduce import reduced
from .torch_site import Converter, Site, Table

EPSILON = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
"""What rms_norm adds when it is not told: the step above 1 of the element type."""


def _softmax(op: str) -> Converter:
    def convert(s: Site) -> Handle:
        x = s.operand("self", s.dtype)
        if not x.type.rank:
            return s.const(1.0 if op == "softmax" else 0.0, s.dtype)
        return s.emit(op, x, axis=s.dim("dim", x.type.rank))

    return convert


def _safe_softmax(s: Site) -> Handle:
    """As softmax, but zero where a row is all -infinity."""
    x = s.operand("self", s.dtype)
    if not x.type.rank:
        return s.const(1.0, s.dtype)
    dim = s.dim("dim", x.type.rank)
    largest = s.emit("reduce_max", x, axes=(dim,), keepdims=True)
    nothing = s.emit("eq", largest, s.const(-math.inf, s.dtype))
    return s.emit("where", nothing, s.const(0, s.dtype), s.emit("softmax", x, axis=dim))


def _ones(s: Site, shape: tuple[int, ...], value: float) -> Known:
    array = np.broadcast_to(s.const(value, s.dtype).array, shape)
    return Known(s.hint, array, s.dtype, s.loc)


def _layer_norm(s: Site) -> Handle:
    x, inner = s.operand("input", s.dtype), s.ints("normalized_shape")
    axis = x.type.rank - len(inner)
    scale = s.operand("weight", s.dtype) if s.has("weight") else _ones(s, inner, 1.0)
    operands = [x, scale] + ([s.operand("bias", s.dtype)] if s.has("bias") else [])
    return s.emit("layer_norm", *operands, axis=axis, epsilon=s.float_("eps", 1e-5))


def _native_layer_norm(s: Site) -> tuple[Handle, ...]:
    """Its first result; the statistics serve only training."""
    return (_layer_norm(s),)


def _rms_norm(s: Site) -> Handle:
    x, inner = s.operand("input", s.dtype), s.ints("normalized_shape")
    scale = s.operand("weight", s.dtype) if s.has("weight") else _ones(s, inner, 1.0)
    epsilon = s.float_("eps", EPSILON.get(s.dtype.name, 2.0**-23))
    return s.emit("rms_norm", x, scale, axis=x.type.rank - len(inner), epsilon=epsilon)


def _batch_norm(s: Site) -> Handle:
    if s.bool_("training"):
        raise Unsupported("it is in training mode; call model.eval() before the export")
    x = s.operand("input", s.dtype)
    if x.type.rank < 2:
        raise Unsupported(f"its input has shape {list(shape_of(x))}")
    channels = (shape_of(x)[1],)
    given = [
        s.operand(name, s.dtype) if s.has(name) else _ones(s, channels, other)
        for name, other in (("weight", 1.0), ("bias", 0.0))
    ]
    stats = [s.operand(name, s.dtype) for name in ("running_mean", "running_var")]
    return s.emit("batch_norm", x, *given, *stats, epsilon=s.float_("eps", 1e-5))


def _batch_norm_first(s: Site) -> tuple[Handle, ...]:
    return (_batch_norm(s),)


def _channel_norm(s: Site, groups: int) -> Handle:
    x = s.operand("input", s.dtype)
    channels = (shape_of(x)[1],)
    given = [
        s.operand(name, s.dtype) if s.has(name) else _ones(s, channels, other)
        for name, other in (("weight", 1.0), ("bias", 0.0))
    ]
    if not x.type.size:
        return x
    return s.emit("group_norm", x, *given, groups=groups, epsilon=s.float_("eps", 1e-5))


def _group_norm(s: Site) -> Handle:
    return _channel_norm(s, s.int_("num_groups"))


def _native_group_norm(s: Site) -> tuple[Handle, ...]:
    return (_channel_norm(s, s.int_("group")),)


def _instance_norm(s: Site) -> Handle:
    if not s.bool_("use_input_stats", True):
        raise Unsupported("it uses running statistics")
    return _channel_norm(s, shape_of(s.tensor("input"))[1])


def _cosine(s: Site) -> Handle:
    """x1 x2 / max(|x1| |x2|, eps) summed over a dimension"""
    a, b = s.operand("x1", s.dtype), s.operand("x2", s.dtype)
    shape = np.broadcast_shapes(shape_of(a), shape_of(b))
    a, b = s.broadcast(a, shape), s.broadcast(b, shape)
    dim = s.dim("dim", a.type.rank, 1)
    axes = (dim,) if a.type.rank else ()
    dot = reduced(s, "reduce_sum", s.emit("mul", a, b), axes, False)
    sizes = [reduced(s, "reduce_l2", t, axes, False) for t in (a, b)]
    floor = s.const(max(s.float_("eps", 1e-8), math.ulp(0.0)), s.dtype)
    a_size, b_size = (s.emit("max", size, floor) for size in sizes)
    return s.emit("div", dot, s.emit("mul", a_size, b_size))


NORM: Table = {
    "softmax": _softmax("softmax"), "_softmax": _softmax("softmax"),
    "_safe_softmax": _safe_softmax,
    "log_softmax": _softmax("log_softmax"), "_log_softmax": _softmax("log_softmax"),
    "layer_norm": _layer_norm, "native_layer_norm": _native_layer_norm, "rms_norm": _rms_norm,
    "_fused_rms_norm": _rms_norm, "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm_first, "group_norm": _group_norm,
    "native_group_norm": _native_group_norm, "instance_norm": _instance_norm,
    "cosine_similarity": _cosine,
}  # fmt: skip
