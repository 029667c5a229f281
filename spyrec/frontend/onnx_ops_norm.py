"""Softmax and the normalisations."""

from __future__ import annotations

from collections.abc import Callable

from .emit import Handle, Unsupported, axes_of, elements, shape_of
from .onnx_node import Converter, Node, Table


def _softmax(op: str) -> Converter:
    def convert(n: Node) -> Handle:
        x = n.arg(0)
        return _over_axis(n, x, lambda v, axis: n.emit(op, v, axis=axis))

    return convert


def _hardmax(n: Node) -> Handle:
    x = n.arg(0)

    def convert(v: Handle, axis: int) -> Handle:
        best = n.emit("arg_max", v, axis=axis, keepdims=False)
        dt = x.type.dtype
        return n.emit("one_hot", best, depth=shape_of(v)[axis], axis=axis, on=1.0, off=0.0, to=dt)

    return _over_axis(n, x, convert)


def _over_axis(n: Node, x: Handle, convert: Callable[[Handle, int], Handle]) -> Handle:
    """Since opset 13 along one axis; before, over all dimensions from ``axis`` on taken as one."""
    shape = shape_of(x)
    if n.opset >= 13:
        return convert(x, n.axis("axis", -1, len(shape)))
    axis = n.axis("axis", 1, len(shape), end=True)
    if axis < len(shape) and elements(shape[axis + 1 :]) == 1:
        return convert(x, axis)
    flat = n.reshape(x, (elements(shape[:axis]), elements(shape[axis:])))
    return n.reshape(convert(flat, 1), shape)


def _layer_norm(n: Node) -> Handle:
    x, bias = n.arg(0), n.opt(2)
    axis = n.axis("axis", -1, len(shape_of(x)))
    operands = (x, n.arg(1)) if bias is None else (x, n.arg(1), bias)
    return n.emit(
        "layer_norm", *_spread(n, operands, axis), axis=axis, epsilon=n.float_("epsilon", 1e-5)
    )


def _rms_norm(n: Node) -> Handle:
    x = n.arg(0)
    axis = n.axis("axis", -1, len(shape_of(x)))
    operands = _spread(n, (x, n.arg(1)), axis)
    return n.emit("rms_norm", *operands, axis=axis, epsilon=n.float_("epsilon", 1e-5))


def _spread(n: Node, operands: tuple[Handle, ...], axis: int) -> tuple[Handle, ...]:
    """Scale and bias in the exact shape of the normalised dimensions."""
    x, *rest = operands
    inner = shape_of(x)[axis:]
    for p in rest:
        if elements(shape_of(p)) not in (1, elements(inner)) or len(shape_of(p)) > len(inner):
            raise Unsupported(f"its scale or bias has shape {list(shape_of(p))}, not {list(inner)}")
    return (x, *(n.broadcast(p, inner) for p in rest))


def _batch_norm(n: Node) -> Handle:
    if n.int_("training_mode", 0):
        raise Unsupported("its training_mode is set")
    if not n.int_("spatial", 1):
        raise Unsupported("its spatial is 0")
    x = n.arg(0)
    params = [n.cast(n.arg(i), x.type.dtype) for i in range(1, 5)]
    return n.emit("batch_norm", x, *params, epsilon=n.float_("epsilon", 1e-5))


def _instance_norm(n: Node) -> Handle:
    return n.emit("instance_norm", n.arg(0), n.arg(1), n.arg(2), epsilon=n.float_("epsilon", 1e-5))


def _group_norm(n: Node) -> Handle:
    """Scale and bias are one a group in opset 18, one a channel since 21."""
    n.need("num_groups")
    x, groups = n.ranked(0, 2), n.int_("num_groups", 1)
    channels = shape_of(x)[1]
    if groups < 1 or channels % groups:
        raise Unsupported(f"its {channels} channels do not divide into {groups} groups")
    params = [n.arg(1), n.arg(2)]
    if n.opset < 21:
        wide = [
            n.broadcast(n.reshape(p, (groups, 1)), (groups, channels // groups)) for p in params
        ]
        params = [n.reshape(p, (channels,)) for p in wide]
    return n.emit("group_norm", x, *params, groups=groups, epsilon=n.float_("epsilon", 1e-5))


def _mean_variance(n: Node) -> Handle:
    """(x - mean) / (deviation + 1e-9)"""
    x = n.arg(0)
    axes = axes_of(n.ints("axes", (0, 2, 3)) or (), len(shape_of(x)))
    centred = n.emit("sub", x, n.emit("reduce_mean", x, axes=axes, keepdims=True))
    variance = n.emit("reduce_mean", n.emit("square", centred), axes=axes, keepdims=True)
    deviation = n.emit("add", n.emit("sqrt", variance), n.const(1e-9, x.type.dtype))
    return n.emit("div", centred, deviation)


def _lp_norm(n: Node) -> Handle:
    x, p = n.arg(0), n.int_("p", 2)
    if p not in (1, 2):
        raise Unsupported(f"its p is {p}")
    axis = n.axis("axis", -1, len(shape_of(x)))
    size = n.emit("reduce_l1" if p == 1 else "reduce_l2", x, axes=(axis,), keepdims=True)
    zero = n.emit("eq", size, n.const(0, x.type.dtype))  # such a line stays zero
    return n.emit("div", x, n.emit("where", zero, n.const(1, x.type.dtype), size))


NORM: Table = {
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log_softmax"),
    "Hardmax": _hardmax,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "MeanVarianceNormalization": _mean_variance,
    "LpNormalization": _lp_norm,
}
