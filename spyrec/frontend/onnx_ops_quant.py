"""Quantisation. What has no op of ours is spelled out as dequantise, compute, quantise."""

from __future__ import annotations

from spyrec.ir.types import DTYPES, DType

from .emit import F32, Handle, Results, Unsupported, elements, matmul, shape_of
from .onnx_node import Node, Table
from .onnx_ops_contract import conv
from .onnx_ops_elementwise import element_type

U8 = DTYPES["u8"]


def _quantize(n: Node) -> Handle:
    x, scale, zero = n.arg(0), n.arg(1), n.opt(2)
    if zero is not None:
        to = zero.type.dtype
    else:
        to = element_type(n.int_("output_dtype", 0)) if n.int_("output_dtype", 0) else U8
    return _emit_quantize(n, x, scale, zero, to)


def _emit_quantize(n: Node, x: Handle, scale: Handle, zero: Handle | None, to: DType) -> Handle:
    axis = _axis(n, x, scale)
    if zero is None:
        zero = n.const(0, to)
    scale, zero = _flat(n, scale, zero)
    return n.emit("quantize_linear", x, n.cast(scale, x.type.dtype), zero, axis=axis, to=to)


def _dequantize(n: Node) -> Handle:
    wide = (
        element_type(n.int_("output_dtype", 0))
        if n.int_("output_dtype", 0)
        else n.arg(1).type.dtype
    )
    return n.cast(dequantize(n, n.arg(0), n.arg(1), n.opt(2), _axis(n, n.arg(0), n.arg(1))), wide)


def dequantize(n: Node, x: Handle, scale: Handle, zero: Handle | None, axis: int) -> Handle:
    """(x - zero) * scale; scale and zero are one number or one for each index along ``axis``."""
    scale, zero = _flat(n, scale, n.const(0, x.type.dtype) if zero is None else zero)
    return n.emit("dequantize_linear", x, scale, zero, axis=axis)


def _flat(n: Node, scale: Handle, zero: Handle) -> tuple[Handle, Handle]:
    """Scale and zero point of one shape: () for one number, [K] for one a channel."""
    shape = () if scale.type.size == 1 else shape_of(scale)
    zero = n.reshape(zero, ()) if zero.type.size == 1 else zero
    return n.reshape(scale, shape), n.broadcast(zero, shape)


def _axis(n: Node, x: Handle, scale: Handle) -> int:
    """The channel axis; it means nothing when there is one scale."""
    if n.int_("block_size", 0) or len(shape_of(scale)) > 1:
        raise Unsupported("it has a scale for each block")
    if scale.type.size == 1:
        return 0
    axis = n.axis("axis", 1, len(shape_of(x)))
    if shape_of(scale) != (shape_of(x)[axis],):
        raise Unsupported(
            f"its {scale.type.size} scales do not fit axis {axis} of {list(shape_of(x))}"
        )
    return axis


def _dynamic_quantize(n: Node) -> Results:
    """To u8 over the range of x widened to hold 0; gives (y, scale, zero)."""
    x = n.arg(0)
    axes = tuple(range(len(shape_of(x))))
    none = n.const(0, F32)
    low = n.emit("min", n.emit("reduce_min", x, axes=axes, keepdims=False), none)
    high = n.emit("max", n.emit("reduce_max", x, axes=axes, keepdims=False), none)
    scale = n.emit("div", n.emit("sub", high, low), n.const(255, F32))
    exact = n.emit("div", n.emit("neg", low), scale)
    zero = n.cast(n.emit("clip", n.emit("round", exact), min=0.0, max=255.0), U8)
    return [n.emit("quantize_linear", x, scale, zero, axis=0, to=U8), scale, zero]


def _qlinear_matmul(n: Node) -> Handle:
    a, scale_a, zero_a, b, scale_b, zero_b, scale_y, zero_y = (n.arg(i) for i in range(8))
    rows = max(len(shape_of(a)) - 2, 0)
    wide = matmul(
        n,
        dequantize(n, a, scale_a, zero_a, rows),
        dequantize(n, b, scale_b, zero_b, len(shape_of(b)) - 1),
    )
    return _emit_quantize(n, wide, scale_y, zero_y, zero_y.type.dtype)


def _qlinear_conv(n: Node) -> Handle:
    """The bias is in steps of scale_x * scale_w, one a channel."""
    x, scale_x, zero_x, w, scale_w, zero_w, scale_y, zero_y = (n.arg(i) for i in range(8))
    bias = n.opt(8)
    if bias is not None:
        step = n.emit("mul", n.reshape(scale_x, ()), n.reshape(scale_w, _vector(scale_w)))
        bias = n.emit("mul", n.cast(bias, F32), step)
    wide = conv(n, dequantize(n, x, scale_x, zero_x, 1), dequantize(n, w, scale_w, zero_w, 0), bias)
    return _emit_quantize(n, wide, scale_y, zero_y, zero_y.type.dtype)


def _vector(x: Handle) -> tuple[int, ...]:
    return () if x.type.size == 1 else (elements(shape_of(x)),)


QUANT: Table = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "QLinearMatMul": _qlinear_matmul,
    "QLinearConv": _qlinear_conv,
}
