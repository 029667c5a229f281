"""Decompositions of convolutions into 2-D ones without bias that are dense or depthwise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spyrec.ir.core import Op, Value

from .emit import Emit
from .rule import Rule
from .rules_norm import channel
from .rules_reduce import int_attr, ints


def _geometry(op: Op) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """strides, dilations, lo and hi pads."""
    pads, rank = ints(op, "pads"), op.operands[0].type.rank - 2
    return ints(op, "strides"), ints(op, "dilations"), pads[:rank], pads[rank:]


def is_depthwise(op: Op) -> bool:
    """Each channel has one filter of its own and nothing else."""
    group, x, w = int_attr(op, "group"), op.operands[0].type, op.operands[1].type
    return group == x.shape[1] == w.shape[0]


def _bias(op: Op, e: Emit) -> Value | None:
    if len(op.operands) < 3:
        return None
    y = e.op(op.name, *op.operands[:2], **op.attrs)
    return e.add(y, channel(e, op.operands[2], y.type.rank))


def sees_padding_only(
    extents: Sequence[int], out: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], lo: Sequence[int],
) -> bool:
    """Is there a dimension along which no window reaches any of the ``extents`` elements?"""
    return any(
        all(not 0 <= o * s + k * d - p < n for o in range(m) for k in range(taps))
        for n, m, taps, s, d, p in zip(extents, out, kernel, strides, dilations, lo, strict=True)
    )


def _conv_of_padding(op: Op, e: Emit) -> Value | None:
    x, w = op.operands[:2]
    strides, dilations, lo, _ = _geometry(op)
    out = op.result.type.static_shape
    taps = w.type.static_shape[2:]
    if not sees_padding_only(x.type.static_shape[2:], out[2:], taps, strides, dilations, lo):
        return None
    return e.broadcast(e.scalar(0.0, x), out)


def _conv_1d(op: Op, e: Emit) -> Value | None:
    x, w = op.operands[:2]
    if x.type.rank != 3 or len(op.operands) > 2:
        return None
    (n, c, length), (o, i, taps) = x.type.static_shape, w.type.static_shape
    strides, dilations, lo, hi = _geometry(op)
    y = e.op(
        "conv", e.reshape(x, (n, c, 1, length)), e.reshape(w, (o, i, 1, taps)),
        strides=(1, *strides), dilations=(1, *dilations), pads=(0, *lo, 0, *hi),
        group=int_attr(op, "group"),
    )  # fmt: skip
    return e.reshape(y, op.result.type.static_shape)


def _conv_3d(op: Op, e: Emit) -> Value | None:
    x, w = op.operands[:2]
    if x.type.rank != 5 or len(op.operands) > 2:
        return None
    strides, dilations, lo, hi = _geometry(op)
    x = e.pad(x, (0, 0, lo[0], 0, 0), (0, 0, hi[0], 0, 0))
    n, c, _, high, wide = x.type.static_shape
    o, i, taps, *kernel = w.type.static_shape
    depth = op.result.type.static_shape[2]
    total: Value | None = None
    for tap in range(taps):
        frames = e.slice_axis(x, 2, tap * dilations[0], depth, strides[0])
        frames = e.reshape(e.transpose(frames, (0, 2, 1, 3, 4)), (n * depth, c, high, wide))
        filters = e.reshape(e.slice_axis(w, 2, tap, 1), (o, i, *kernel))
        part = e.op(
            "conv", frames, filters, strides=strides[1:], dilations=dilations[1:],
            pads=(*lo[1:], *hi[1:]), group=int_attr(op, "group"),
        )  # fmt: skip
        total = part if total is None else e.add(total, part)
    assert total is not None
    y = e.reshape(total, (n, depth, o, *total.type.static_shape[2:]))
    return e.transpose(y, (0, 2, 1, 3, 4))


def _depth_multiplier(op: Op, e: Emit) -> Value | None:
    """m filters per channel and nothing shared: repeat each channel m times, then depthwise."""
    x, w = op.operands[:2]
    group = int_attr(op, "group")
    if group != x.type.shape[1] or is_depthwise(op) or group == 1 or len(op.operands) > 2:
        return None
    n, c, *space = x.type.static_shape
    times = w.type.static_shape[0] // c
    copies = e.broadcast(e.reshape(x, (n, c, 1, *space)), (n, c, times, *space))
    repeated = e.reshape(copies, (n, c * times, *space))
    return e.op("conv", repeated, w, **{**op.attrs, "group": c * times})


def _grouped(op: Op, e: Emit) -> Value | None:
    x, w = op.operands[:2]
    group = int_attr(op, "group")
    if group == 1 or group == x.type.shape[1] or x.type.rank != 4 or len(op.operands) > 2:
        return None
    c, o = x.type.static_shape[1] // group, w.type.static_shape[0] // group
    attrs = {**op.attrs, "group": 1}
    parts = [
        e.op("conv", e.slice_axis(x, 1, g * c, c), e.slice_axis(w, 0, g * o, o), **attrs)
        for g in range(group)
    ]
    return e.concat(parts, 1)


def _transposed_blocks(op: Op, e: Emit) -> Value | None:
    """Stride = kernel, no overlap: each input position makes one block of outputs. Taps vary slower
    than channels, so that what one output position gets lies side by side."""
    x, w = op.operands[:2]
    strides, dilations, lo, hi = _geometry(op)
    kernel = w.type.static_shape[2:]
    extra = ints(op, "output_padding")
    plain = strides == kernel and set(dilations) == {1} and not any((*lo, *hi, *extra))
    if not plain or x.type.rank != 4 or int_attr(op, "group") != 1 or len(op.operands) > 2:
        return None
    c, o = w.type.static_shape[:2]
    if len(set(kernel)) != 1 or kernel[0] == 1:
        return None
    filters = e.reshape(e.transpose(w, (2, 3, 1, 0)), (math.prod(kernel) * o, c, 1, 1))
    y = e.op("conv", x, filters, strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1)
    return e.op("depth_to_space", y, block=kernel[0], mode="DCR")


def _transposed(op: Op, e: Emit) -> Value | None:
    x, w = op.operands[:2]
    if len(op.operands) > 2:
        return None
    strides, dilations, lo, hi = _geometry(op)
    group, rank = int_attr(op, "group"), len(strides)
    extra = ints(op, "output_padding")
    c, o, *kernel = w.type.static_shape
    reach = [dilations[d] * (kernel[d] - 1) for d in range(rank)]
    padded = e.pad(
        x,
        (0, 0, *(reach[d] - lo[d] for d in range(rank))),
        (0, 0, *(reach[d] - hi[d] + extra[d] for d in range(rank))),
        interior=(0, 0, *(s - 1 for s in strides)),
    )
    filters = e.op("reverse", w, axes=tuple(range(2, 2 + rank)))
    filters = e.reshape(filters, (group, c // group, o, *kernel))
    filters = e.transpose(filters, (0, 2, 1, *range(3, 3 + rank)))
    filters = e.reshape(filters, (group * o, c // group, *kernel))
    y = e.op(
        "conv", padded, filters, strides=(1,) * rank, pads=(0,) * (2 * rank), dilations=dilations,
        group=group,
    )  # fmt: skip
    return y


CONV_RULES = (
    Rule("conv-bias", "conv", _bias, "rounding", "conv(x, w) + b over channels."),
    Rule("conv-of-padding", "conv", _conv_of_padding, "exact",
         "Every window lies in the padding: 0 w = 0 (finite w), so that nothing is to be loaded."),
    Rule("conv-transpose-bias", "conv_transpose", _bias, "rounding",
         "conv_transpose(x, w) + b over channels."),
    Rule("conv-1d", "conv", _conv_1d, "rounding", "A 2-D convolution of height 1."),
    Rule("conv-3d", "conv", _conv_3d, "rounding",
         "The sum over depth taps of 2-D convolutions of the frames that tap sees."),
    Rule("conv-multiplier", "conv", _depth_multiplier, "rounding",
         "m filters a channel = depthwise over channels repeated m times."),
    Rule("conv-grouped", "conv", _grouped, "rounding", "Each group alone, side by side."),
    Rule("conv-transpose-blocks", "conv_transpose", _transposed_blocks, "rounding",
         "Stride = kernel: a 1x1 convolution to all taps, then depth to space: no zeros."),
    Rule("conv-transpose", "conv_transpose", _transposed, "rounding",
         "Put stride-1 zeros between elements, pad, convolve with the flipped filters."),
)  # fmt: skip
