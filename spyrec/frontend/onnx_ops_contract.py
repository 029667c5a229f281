"""Matrix products and convolutions, float and integer."""

from __future__ import annotations

from spyrec.ir.types import DTYPES

from .emit import Handle, Unsupported, matmul, shape_of
from .onnx_node import Node, Table
from .onnx_pads import window_pads

I32 = DTYPES["i32"]


def _matmul(n: Node) -> Handle:
    return matmul(n, n.arg(0), n.arg(1))


def _gemm(n: Node) -> Handle:
    """alpha * A' @ B' + beta * C"""
    a, b, c = n.arg(0), n.arg(1), n.opt(2)
    if len(shape_of(a)) != 2 or len(shape_of(b)) != 2:
        raise Unsupported("its operands are not matrices")
    a = n.transpose(a, (1, 0)) if n.int_("transA", 0) else a
    b = n.transpose(b, (1, 0)) if n.int_("transB", 0) else b
    product = n.scale(n.emit("matmul", a, b), n.float_("alpha", 1.0))
    beta = n.float_("beta", 1.0)
    if c is None or beta == 0.0:
        return product
    return n.emit("add", product, n.scale(c, beta))


def _einsum(n: Node) -> Handle:
    n.need("equation")
    return n.emit("einsum", *n.args(), equation=n.str_("equation", "").replace(" ", ""))


def conv(n: Node, x: Handle, w: Handle, bias: Handle | None) -> Handle:
    """A convolution with this node's kernel attributes."""
    kernel = _kernel(n, x, w)
    strides, dilations = _ones(n, "strides", kernel), _ones(n, "dilations", kernel)
    return n.emit(
        "conv",
        *((x, w) if bias is None else (x, w, bias)),
        strides=strides,
        dilations=dilations,
        pads=window_pads(n, shape_of(x)[2:], kernel, strides, dilations),
        group=n.int_("group", 1),
    )


def _kernel(n: Node, x: Handle, w: Handle) -> tuple[int, ...]:
    """The spatial size of the weights, which must fit the input and what the node says."""
    kernel, given = shape_of(w)[2:], n.ints("kernel_shape")
    if not kernel or len(shape_of(x)) != len(shape_of(w)):
        raise Unsupported(
            f"its input has shape {list(shape_of(x))}, its weights {list(shape_of(w))}"
        )
    if given is not None and given != kernel:
        raise Unsupported(
            f"its kernel_shape {list(given)} is not that of its weights, {list(kernel)}"
        )
    return kernel


def _ones(n: Node, name: str, kernel: tuple[int, ...]) -> tuple[int, ...]:
    found = n.ints(name) or (1,) * len(kernel)
    if len(found) != len(kernel) or min(found, default=1) < 1:
        raise Unsupported(
            f"its {name} {list(found)} do not fit a kernel of {len(kernel)} dimensions"
        )
    return found


def _conv(n: Node) -> Handle:
    return conv(n, n.arg(0), n.arg(1), n.opt(2))


def _conv_transpose(n: Node) -> Handle:
    x, w, bias = n.arg(0), n.arg(1), n.opt(2)
    kernel, size = _kernel(n, x, w), shape_of(x)[2:]
    strides, dilations = _ones(n, "strides", kernel), _ones(n, "dilations", kernel)
    extra = n.ints("output_padding") or (0,) * len(kernel)
    if len(extra) != len(kernel):
        raise Unsupported(f"its output_padding {list(extra)} does not fit {list(kernel)}")
    full = tuple(
        s * (i - 1) + e + (k - 1) * d + 1
        for i, k, s, d, e in zip(size, kernel, strides, dilations, extra, strict=True)
    )
    return n.emit(
        "conv_transpose",
        *((x, w) if bias is None else (x, w, bias)),
        strides=strides,
        dilations=dilations,
        output_padding=extra,
        pads=_transposed_pads(n, full, size, strides),
        group=n.int_("group", 1),
    )


def _transposed_pads(
    n: Node, full: tuple[int, ...], size: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[int, ...]:
    """What is cut from the full result so that it has the size asked for (ONNX operator
    ConvTranspose)."""
    auto, target = n.str_("auto_pad", "NOTSET"), n.ints("output_shape")
    if target is None:
        if auto == "VALID":
            return (0,) * (2 * len(full))
        if auto == "NOTSET":
            return n.ints("pads", (0,) * (2 * len(full))) or ()
        target = tuple(i * s for i, s in zip(size, strides, strict=True))
    if len(target) < len(full):
        raise Unsupported(f"its output_shape {list(target)} lacks dimensions")
    total = [f - t for f, t in zip(full, target[-len(full) :], strict=True)]
    if min(total) < 0:
        raise Unsupported(
            f"its output_shape {list(target)} is larger than the {list(full)} it can make"
        )
    small, large = [t // 2 for t in total], [t - t // 2 for t in total]
    return (*small, *large) if auto == "SAME_UPPER" else (*large, *small)


def _less_zero(
    n: Node, x: Handle, zero: Handle | None, shape: tuple[int, ...] | None = None
) -> Handle:
    """x - zero in 32-bit integers; ``shape``: how a zero point of several elements lies along x."""
    wide = n.cast(x, I32)
    if zero is None:
        return wide
    offset = n.cast(zero, I32)
    return n.emit(
        "sub", wide, n.reshape(offset, shape) if shape and offset.type.size > 1 else offset
    )


def _matmul_integer(n: Node) -> Handle:
    a, b, za, zb = n.arg(0), n.arg(1), n.opt(2), n.opt(3)
    rows = (za.type.size, 1) if za is not None and len(shape_of(za)) == 1 else None
    return matmul(n, _less_zero(n, a, za, rows), _less_zero(n, b, zb))


def _conv_integer(n: Node) -> Handle:
    x, w, zx, zw = n.ranked(0, 3), n.ranked(1, 3), n.opt(2), n.opt(3)
    per_output = (shape_of(w)[0],) + (1,) * (len(shape_of(w)) - 1)
    return conv(n, _less_zero(n, x, zx), _less_zero(n, w, zw, per_output), None)


CONTRACT: Table = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer,
}
