"""Decompositions of softmax and the normalisations.

All are written as mean, subtract, mean of squares, rsqrt, multiply, add: forms that stay inside
one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spyrec.ir.core import Op, Value

from .emit import Array, Emit
from .rule import Rule
from .rules_elementwise import number
from .rules_reduce import int_attr


def _softmax(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    axes = (int_attr(op, "axis"),)
    weight = e.op("exp", e.sub(x, e.reduce("max", x, axes)))
    return e.mul(weight, e.op("reciprocal", e.reduce("sum", weight, axes)))


def _log_softmax(op: Op, e: Emit) -> Value:
    (x,) = op.operands
    axes = (int_attr(op, "axis"),)
    shifted = e.sub(x, e.reduce("max", x, axes))
    total = e.reduce("sum", e.op("exp", shifted), axes)
    return e.sub(shifted, e.op("log", total))


def normalised(e: Emit, x: Value, axes: Sequence[int], epsilon: float) -> Value:
    """(x - mean) * rsqrt(var + epsilon), mean and variance over ``axes``."""
    centred = e.sub(x, e.mean(x, axes))
    var = e.mean(e.mul(centred, centred), axes)
    return e.mul(centred, e.op("rsqrt", e.add(var, epsilon)))


def _affine(e: Emit, x: Value, params: Sequence[Value]) -> Value:
    """x * scale, then + bias when there is one."""
    x = e.mul(x, params[0])
    return e.add(x, params[1]) if len(params) > 1 else x


def _layer_norm(op: Op, e: Emit) -> Value:
    x, *params = op.operands
    axes = range(int_attr(op, "axis"), x.type.rank)
    return _affine(e, normalised(e, x, axes, number(op, "epsilon")), params)


def _rms_norm(op: Op, e: Emit) -> Value:
    x, *params = op.operands
    axes = range(int_attr(op, "axis"), x.type.rank)
    inverse = e.op("rsqrt", e.add(e.mean(e.mul(x, x), axes), number(op, "epsilon")))
    return _affine(e, e.mul(x, inverse), params)


def channel(e: Emit, v: Value, rank: int) -> Value:
    """A vector over channels as [1, C, 1, ...] of the given rank."""
    return e.reshape(v, (1, v.type.size, *(1,) * (rank - 2)))


def batch_norm_terms(op: Op, e: Emit) -> tuple[Value, Value]:
    """The scale a and the shift b (both [C]) of y = a x + b; folded when the statistics are
    constants."""
    _, scale, bias, mean, var = op.operands
    a = e.mul(scale, e.op("rsqrt", e.add(var, number(op, "epsilon"))))
    return a, e.sub(bias, e.mul(mean, a))


def _batch_norm(op: Op, e: Emit) -> Value:
    x = op.operands[0]
    a, b = batch_norm_terms(op, e)
    return e.add(e.mul(x, channel(e, a, x.type.rank)), channel(e, b, x.type.rank))


def _batch_norm_into_conv(op: Op, e: Emit) -> Value | None:
    x = op.operands[0]
    conv = e.made_by(x, "conv")
    if conv is None or not e.read_once(x) or not _all_known(op, e):
        return None
    weights, bias = e.known(conv.operands[1]), [e.known(v) for v in conv.operands[2:]]
    if weights is None or any(b is None for b in bias):
        return None
    e.absorb(conv)
    a, b = _known_terms(op, e)
    scaled = weights.astype(np.float64) * a.reshape(-1, *(1,) * (weights.ndim - 1))
    shift = b if not bias or bias[0] is None else b + a * bias[0].astype(np.float64)
    kind = conv.operands[1].type.dtype
    return e.op(
        "conv", conv.operands[0], e.constant(scaled, kind), e.constant(shift, kind), **conv.attrs
    )


def _batch_norm_into_matmul(op: Op, e: Emit) -> Value | None:
    """[M, K] @ [K, N] (+ constant [N]) followed by a norm over N."""
    x = op.operands[0]
    if x.type.rank != 2 or not e.read_once(x) or not _all_known(op, e):
        return None
    bias: Array = np.zeros(1)
    between: tuple[Op, ...] = ()
    product = e.made_by(x, "matmul", "add")
    if product is not None and product.name == "add":
        known = e.known(product.operands[1])
        if known is None or known.ndim > 2 or (known.ndim == 2 and known.shape[0] != 1):
            return None
        bias, x, between = known.reshape(-1), product.operands[0], (product,)
        product = e.made_by(x, "matmul") if e.read_once(x) else None
    weights = None if product is None else e.known(product.operands[1])
    if product is None or weights is None or weights.ndim != 2 or x.type != op.result.type:
        return None
    e.absorb(product, *between)
    a, b = _known_terms(op, e)
    kind = product.operands[1].type.dtype
    scaled = e.op("matmul", product.operands[0], e.constant(weights.astype(np.float64) * a, kind))
    return e.add(scaled, e.constant((b + a * bias.astype(np.float64))[None, :], kind))


def _all_known(op: Op, e: Emit) -> bool:
    return all(e.known(v) is not None for v in op.operands[1:])


def _known_terms(op: Op, e: Emit) -> tuple[Array, Array]:
    """batch_norm_terms in float64, for statistics that are constants."""
    arrays = [e.known(v) for v in op.operands[1:]]
    scale, bias, mean, var = (np.zeros(0) if a is None else a.astype(np.float64) for a in arrays)
    a = scale / np.sqrt(var + number(op, "epsilon"))
    return a, bias - mean * a


def _instance_norm(op: Op, e: Emit) -> Value:
    x, scale, bias = op.operands
    rank = x.type.rank
    y = normalised(e, x, range(2, rank), number(op, "epsilon"))
    return _affine(e, y, (channel(e, scale, rank), channel(e, bias, rank)))


def _group_norm(op: Op, e: Emit) -> Value:
    x, scale, bias = op.operands
    n, c, *space = x.type.static_shape
    groups = int_attr(op, "groups")
    grouped = e.reshape(x, (n, groups, c // groups, *space))
    y = normalised(e, grouped, range(2, grouped.type.rank), number(op, "epsilon"))
    y = e.reshape(y, x.type.static_shape)
    return _affine(e, y, (channel(e, scale, x.type.rank), channel(e, bias, x.type.rank)))


BATCH_NORM_FOLDS = (
    Rule("batch-norm-into-conv", "batch_norm", _batch_norm_into_conv, "rounding",
         "a (w * x + c) + b = (a w) * x + (a c + b): the norm costs nothing at run time."),
    Rule("batch-norm-into-matmul", "batch_norm", _batch_norm_into_matmul, "rounding",
         "a (x W + c) + b = x (W a) + (a c + b)."),
)  # fmt: skip

NORM_RULES = (
    Rule("softmax", "softmax", _softmax, "rounding", "e^(x-m) / sum e^(x-m), m = max x."),
    Rule("log-softmax", "log_softmax", _log_softmax, "rounding",
         "x - m - log(sum e^(x-m)), m = max x."),
    Rule("layer-norm", "layer_norm", _layer_norm, "rounding",
         "d = x - mean x; d rsqrt(mean d^2 + eps) scale + bias: the two-pass variance."),
    Rule("rms-norm", "rms_norm", _rms_norm, "rounding", "x rsqrt(mean x^2 + eps) scale."),
    Rule("batch-norm", "batch_norm", _batch_norm, "rounding", "a x + b with a, b per channel."),
    Rule("instance-norm", "instance_norm", _instance_norm, "rounding",
         "Normalise over the positions of one channel."),
    Rule("group-norm", "group_norm", _group_norm, "rounding",
         "Normalise over the positions of a group of channels."),
)  # fmt: skip
