"""Contractions: matmul, convolutions, einsum. 16-bit formats accumulate in float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from spyrec.ir.types import Dim, TensorType

from .shapes import (
    broadcast,
    need_kind,
    need_length,
    need_rank,
    need_same_dtype,
    need_shape,
    show,
    show_type,
    static_dim,
    static_dims,
)
from .spec import (
    TENSOR,
    Array,
    Arrays,
    Attrs,
    AttrSpec,
    OpDef,
    Site,
    Types,
    operands,
)

NUMBERS = ("float", "int")
BLOCK_ELEMENTS = 16 * 2**20  # gathered window elements that a convolution holds at a time


def matmul(a: Array, b: Array) -> Array:
    """``a @ b``. Floats are summed in float64 and rounded once, so that equal terms give equal sums
    in whatever order they are added. Integers go that way, and so fast, when it is exact."""
    if a.dtype.kind == "f":
        rounded: Array = np.matmul(a, b, dtype=np.float64).astype(a.dtype)
        return rounded
    if a.size and b.size:
        largest = a.shape[-1] * _magnitude(a) * _magnitude(b)
        if largest <= 2**53:
            exact: Array = np.matmul(a.astype(np.float64), b.astype(np.float64))
            return exact.astype(np.int64).astype(a.dtype)
    result: Array = np.matmul(a, b)
    return result


def _magnitude(x: Array) -> int:
    return max(abs(int(x.min())), abs(int(x.max())))


def _infer_matmul(types: Types, attrs: Attrs, site: Site) -> Types:
    a, b = types
    if attrs["to"] is None:
        need_same_dtype(types, site)
    for t in types:
        need_kind(t, NUMBERS, "operands", site)
        need_rank(t, 2, "operands", site, -1)
    if a.shape[-1] != b.shape[-2]:
        raise site.error(
            f"expected the last dimension of a to equal the last but one of b, got "
            f"{show(a.shape)} and {show(b.shape)}"
        )
    batch = broadcast([a.shape[:-2], b.shape[:-2]], site)
    return (TensorType((*batch, a.shape[-2], b.shape[-1]), attrs["to"] or a.dtype),)


def _eval_matmul(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (matmul(arrays[0], arrays[1]),)


_WINDOW_ATTRS: Mapping[str, AttrSpec] = {
    "strides": AttrSpec("ints", doc="one a spatial dimension"),
    "pads": AttrSpec("ints", doc="zeros before each spatial dimension, then after each"),
    "dilations": AttrSpec("ints", doc="distance of neighbouring taps"),
}
_GROUP = {"group": AttrSpec("int", 1, "channel groups that do not mix")}


def check_window(attrs: Attrs, spatial: int, site: Site) -> None:
    """``strides``, ``pads`` and ``dilations`` have the right lengths and signs."""
    need_length(attrs["strides"], spatial, "strides", site)
    need_length(attrs["dilations"], spatial, "dilations", site)
    need_length(attrs["pads"], 2 * spatial, "pads", site)
    if min((*attrs["strides"], *attrs["dilations"]), default=1) < 1:
        raise site.error("strides and dilations must be 1 or more")
    if min(attrs["pads"], default=0) < 0:
        raise site.error(f"pads must not be negative, got {attrs['pads']}; use a pad op to crop")


def _check_conv(types: Types, attrs: Attrs, site: Site) -> tuple[tuple[int, ...], int, int]:
    """What both convolutions ask for: (kernel, spatial rank, group)."""
    x, w = types[0], types[1]
    need_same_dtype(types, site)
    need_kind(x, NUMBERS, "operands", site)
    need_rank(x, 3, "x", site, 5)
    need_rank(w, x.rank, "w", site)
    check_window(attrs, x.rank - 2, site)
    group = attrs["group"]
    if group < 1:
        raise site.error(f"group must be 1 or more, got {group}")
    return static_dims(w.shape[2:], "a kernel size", site), x.rank - 2, group


def _conv_channels(types: Types, out: int, bias: int, site: Site) -> None:
    if len(types) > bias:
        need_shape(types[bias], (out,), "bias", site)


def _infer_conv(types: Types, attrs: Attrs, site: Site) -> Types:
    kernel, rank, group = _check_conv(types, attrs, site)
    x, w = types[0], types[1]
    channels = static_dim(x.shape[1], "the channel count", site)
    out = static_dim(w.shape[0], "the output channel count", site)
    if channels != group * static_dim(w.shape[1], "the channels of w", site) or out % group:
        raise site.error(
            f"expected x[N,C,...] and w[O,C/group,...] with group {group} dividing C and O, got "
            f"{show(x.shape)} and {show(w.shape)}"
        )
    _conv_channels(types, out, 2, site)
    size = static_dims(x.shape[2:], "a spatial dimension", site)
    pads, reach = attrs["pads"], spans(kernel, attrs["dilations"])
    result = [
        (size[i] + pads[i] + pads[rank + i] - reach[i]) // attrs["strides"][i] + 1
        for i in range(rank)
    ]
    if min(result) < 1:
        raise site.error(f"the kernel {kernel} does not fit into {show_type(x)} with pads {pads}")
    return (TensorType((x.shape[0], out, *result), x.dtype),)


def spans(kernel: Sequence[int], dilations: Sequence[int]) -> tuple[int, ...]:
    """Extent from the first tap to the last, both included."""
    return tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))


def _eval_conv(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x, w = arrays[0], arrays[1]
    group, kernel, strides = attrs["group"], w.shape[2:], attrs["strides"]
    rank = len(kernel)
    pads, out_shape = attrs["pads"], types[0].static_shape
    padded = np.pad(x, ((0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)))
    n, c = padded.shape[:2]
    steps = padded.strides[2:]
    # windows[n, group, channel, tap..., position...]
    windows = as_strided(
        padded,
        (n, group, c // group, *kernel, *out_shape[2:]),
        (
            padded.strides[0],
            padded.strides[1] * (c // group),
            padded.strides[1],
            *(s * d for s, d in zip(steps, attrs["dilations"], strict=True)),
            *(s * d for s, d in zip(steps, strides, strict=True)),
        ),
        writeable=False,
    )
    depth = prod(w.shape[1:])
    weights = w.reshape(group, w.shape[0] // group, depth)
    result = np.empty((n, group, w.shape[0] // group, *out_shape[2:]), x.dtype)
    row_elements = c * prod(kernel) * prod(out_shape[3:])
    rows = max(1, BLOCK_ELEMENTS // max(1, row_elements))
    for image in range(n):
        for row in range(0, out_shape[2], rows):
            part = (slice(None),) * (rank + 2) + (slice(row, row + rows),)
            columns = windows[image][part].reshape(group, depth, -1)
            block = result[image, :, :, row : row + rows]
            block[...] = matmul(weights, columns).reshape(block.shape)
    result = result.reshape(out_shape)
    return (_add_bias(result, arrays[2:]),)


def _add_bias(result: Array, bias: Arrays) -> Array:
    if not bias:
        return result
    return result + bias[0].reshape(-1, *[1] * (result.ndim - 2))


def _infer_conv_transpose(types: Types, attrs: Attrs, site: Site) -> Types:
    kernel, rank, group = _check_conv(types, attrs, site)
    x, w = types[0], types[1]
    need_length(attrs["output_padding"], rank, "output_padding", site)
    channels = static_dim(x.shape[1], "the channel count", site)
    if channels != static_dim(w.shape[0], "the channels of w", site) or channels % group:
        raise site.error(
            f"expected x[N,C,...] and w[C,O/group,...] with group {group} dividing C, got "
            f"{show(x.shape)} and {show(w.shape)}"
        )
    out = group * static_dim(w.shape[1], "the output channels of w", site)
    _conv_channels(types, out, 2, site)
    size = static_dims(x.shape[2:], "a spatial dimension", site)
    pads, reach = attrs["pads"], spans(kernel, attrs["dilations"])
    result = [
        (size[i] - 1) * attrs["strides"][i]
        + reach[i]
        + attrs["output_padding"][i]
        - pads[i]
        - pads[rank + i]
        for i in range(rank)
    ]
    if min(result) < 1:
        raise site.error(f"pads {pads} leave nothing of the result of {show_type(x)}")
    return (TensorType((x.shape[0], out, *result), x.dtype),)


def _eval_conv_transpose(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    """Each input element adds its weights, scaled, where its taps fall: per tap one matmul."""
    x, w = arrays[0], arrays[1]
    group, kernel, strides = attrs["group"], w.shape[2:], attrs["strides"]
    rank, pads, out_shape = len(kernel), attrs["pads"], types[0].static_shape
    n, c, *size = x.shape
    columns = x.reshape(n, group, c // group, -1)
    weights = w.reshape(group, c // group, w.shape[1], *kernel)
    extent = [out_shape[2 + i] + pads[i] + pads[rank + i] for i in range(rank)]
    full = np.zeros((n, out_shape[1], *extent), x.dtype)
    for tap in product(*(range(k) for k in kernel)):
        at = [t * d for t, d in zip(tap, attrs["dilations"], strict=True)]
        where = tuple(
            slice(a, a + (s - 1) * stride + 1, stride)
            for a, s, stride in zip(at, size, strides, strict=True)
        )
        share = matmul(_tap(weights, tap).transpose(0, 2, 1), columns)
        full[(slice(None), slice(None), *where)] += share.reshape(n, -1, *size)
    inside = tuple(slice(pads[i], pads[i] + out_shape[2 + i]) for i in range(rank))
    return (_add_bias(full[(slice(None), slice(None), *inside)], arrays[2:]),)


def _tap(weights: Array, tap: tuple[int, ...]) -> Array:
    """``weights[..., *tap]``: one number of the kernel for each pair of channels."""
    taken: Array = weights[(slice(None),) * 3 + tap]
    return taken


def einsum_terms(equation: str, ranks: Sequence[int], site: Site) -> tuple[list[str], str]:
    """The operands' and the result's labels, one character a dimension. Dimensions an ellipsis
    stands for are labelled by digits, counted from the right."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise site.error(f"equation {equation!r} has {len(terms)} terms for {len(ranks)} operands")
    bulk = [r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True)]
    most = max((b for t, b in zip(terms, bulk, strict=True) if "..." in t), default=0)
    if any(c.isdigit() for c in equation):
        raise site.error(f"equation {equation!r} has a digit for a label; use letters")
    digits = "9876543210"
    if most > len(digits):
        raise site.error(f"equation {equation!r}: an ellipsis stands for {most} dimensions")
    labels: list[str] = []
    for term, rank, b in zip(terms, ranks, bulk, strict=True):
        expanded = term.replace("...", digits[len(digits) - max(b, 0) :])
        if len(expanded) != rank:
            raise site.error(f"term {term!r} of {equation!r} does not fit rank {rank}")
        labels.append(expanded)
    if not arrow:
        joined = "".join(t.replace("...", "") for t in terms)
        right = "..." + "".join(sorted(c for c in set(joined) if joined.count(c) == 1))
    return labels, right.replace("...", digits[len(digits) - most :])


def _infer_einsum(types: Types, attrs: Attrs, site: Site) -> Types:
    if not types:
        raise site.error("expected one operand or more, got none")
    need_same_dtype(types, site)
    need_kind(types[0], NUMBERS, "operands", site)
    equation = attrs["equation"]
    terms, result = einsum_terms(equation, [t.rank for t in types], site)
    dims: dict[str, Dim] = {}
    for labels, t in zip(terms, types, strict=True):
        for label, dim in zip(labels, t.shape, strict=True):
            if not (label.isascii() and label.isalnum()):
                raise site.error(f"equation {equation!r} has the label {label!r}, not a letter")
            known = dims.setdefault(label, dim)
            if label.isdigit() and 1 in (known, dim):
                dims[label] = dim if known == 1 else known
            elif known != dim:
                raise site.error(f"label {label} of {equation!r} is {known} and also {dim}")
    missing = [c for c in result if c not in dims]
    if missing or len(set(result)) != len(result):
        raise site.error(
            f"the result {result!r} of {equation!r} must name labels of the operands, each once"
        )
    return (TensorType(tuple(dims[c] for c in result), types[0].dtype),)


def _eval_einsum(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (np.einsum(attrs["equation"], *arrays, optimize=True),)


DEFS: tuple[OpDef, ...] = (
    OpDef(
        "matmul", "contract", operands("a b"),
        {"to": AttrSpec("dtype", None, "of the result; None: the operands', which are alike")},
        TENSOR,
        "Matrix product over the last two dimensions; the others broadcast.",
        _infer_matmul, _eval_matmul,
    ),
    OpDef(
        "conv", "contract", operands("x w bias?"), {**_WINDOW_ATTRS, **_GROUP}, TENSOR,
        "Cross-correlation of x[N,C,*S] with w[O,C/group,*K] in 1 to 3 spatial dimensions.",
        _infer_conv, _eval_conv,
    ),
    OpDef(
        "conv_transpose", "contract", operands("x w bias?"),
        {
            **_WINDOW_ATTRS,
            "output_padding": AttrSpec("ints", doc="extra extent after each dimension"),
            **_GROUP,
        },
        TENSOR,
        "The gradient of conv: x[N,C,*S] spread by w[C,O/group,*K], cropped by pads.",
        _infer_conv_transpose, _eval_conv_transpose,
    ),
    OpDef(
        "einsum", "contract", operands("x*"),
        {"equation": AttrSpec("str", doc="in the notation of numpy.einsum")}, TENSOR,
        "Sum of products that the equation spells out.", _infer_einsum, _eval_einsum,
    ),
)  # fmt: skip
