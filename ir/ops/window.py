"""Windows that slide over the spatial dimensions: pooling, LRN, and resampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product

import numpy as np

from spyrec.ir.types import TensorType

from .contract import check_window, spans
from .reduce import least_of
from .resample import COORDINATES, MODES, ROUNDINGS, resample
from .shapes import need_kind, need_length, need_rank, show, show_type, static_dims
from .spec import TENSOR, Array, Arrays, Attrs, AttrSpec, OpDef, Site, Types, operands

NUMBERS = ("float", "int")
FLOAT = ("float",)


def pooled_size(size: int, span: int, stride: int, lo: int, hi: int, ceil_mode: bool) -> int:
    """Number of windows along a dimension. With ``ceil_mode`` a last one may hang over the end,
    but it has to start inside the input or the padding before it."""
    room = size + lo + hi - span
    if not ceil_mode:
        return room // stride + 1
    count = -(-room // stride) + 1
    return count - 1 if (count - 1) * stride >= size + lo else count


def _infer_pool(types: Types, attrs: Attrs, site: Site) -> Types:
    x, kernel = types[0], attrs["kernel"]
    need_rank(x, 3, "x", site, 5)
    rank = x.rank - 2
    need_length(kernel, rank, "kernel", site)
    full = {"dilations": (1,) * rank, **attrs}
    check_window(full, rank, site)
    if min(kernel) < 1:
        raise site.error(f"kernel sizes must be 1 or more, got {kernel}")
    size = static_dims(x.shape[2:], "a spatial dimension", site)
    pads, reach = attrs["pads"], spans(kernel, full["dilations"])
    if any(max(pads[i], pads[rank + i]) >= reach[i] for i in range(rank)):
        raise site.error(f"pads {pads} are not smaller than the window {reach}")
    result = [
        pooled_size(
            size[i], reach[i], attrs["strides"][i], pads[i], pads[rank + i],
            attrs.get("ceil_mode", False),
        )
        for i in range(rank)
    ]  # fmt: skip
    if min(result) < 1:
        raise site.error(f"the window {reach} does not fit into {show_type(x)} with pads {pads}")
    return (TensorType((*x.shape[:2], *result), x.dtype),)


def _infer_pool_number(types: Types, attrs: Attrs, site: Site) -> Types:
    need_kind(types[0], NUMBERS, "x", site)
    return _infer_pool(types, attrs, site)


def _infer_pool_float(types: Types, attrs: Attrs, site: Site) -> Types:
    need_kind(types[0], FLOAT, "x", site)
    return _infer_pool(types, attrs, site)


def taps(x: Array, attrs: Attrs, out: tuple[int, ...], fill: float | int) -> Iterator[Array]:
    """For each tap of the window, the elements it meets: arrays of the result's shape. Outside
    the input stands ``fill``."""
    rank, kernel = x.ndim - 2, attrs["kernel"]
    dilations, strides = attrs.get("dilations", (1,) * rank), attrs["strides"]
    reach, pads = spans(kernel, dilations), attrs["pads"]
    widths = [(0, 0), (0, 0)]
    for i in range(rank):
        needed = (out[2 + i] - 1) * strides[i] + reach[i]
        widths.append((pads[i], max(0, needed - pads[i] - x.shape[2 + i])))
    padded = np.pad(x, widths, constant_values=fill)
    for tap in product(*(range(k) for k in kernel)):
        at = [t * d for t, d in zip(tap, dilations, strict=True)]
        where = tuple(
            slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(at, out[2:], strides, strict=True)
        )
        yield padded[(slice(None), slice(None), *where)]


def _fold_taps(
    x: Array, attrs: Attrs, type_: TensorType, fill: float | int, fold: Callable[..., object]
) -> Array:
    shape = type_.static_shape
    result = np.full(shape, fill, x.dtype)
    for part in taps(x, attrs, shape, fill):
        fold(result, part, out=result)
    return result


def _eval_max_pool(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x = arrays[0]
    return (_fold_taps(x, attrs, types[0], least_of(x.dtype), np.maximum),)


def _eval_sum_pool(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (_fold_taps(arrays[0], attrs, types[0], 0, np.add),)


def _eval_avg_pool(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    """A window is divided by how many of its elements lie inside the input, or, with
    count_include_pad, inside the input and its pads."""
    x = arrays[0]
    rank, pads = x.ndim - 2, attrs["pads"]
    ones = np.ones((1, 1, *x.shape[2:]), x.dtype)
    counting = attrs
    if attrs["count_include_pad"]:
        ones = np.pad(
            ones, ((0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)), constant_values=1
        )
        counting = {**attrs, "pads": (0,) * 2 * rank}
    shape = (1, 1, *types[0].static_shape[2:])
    count = _fold_taps(ones, counting, TensorType(shape, types[0].dtype), 0, np.add)
    return (_fold_taps(x, attrs, types[0], 0, np.add) / count,)


def _infer_lrn(types: Types, attrs: Attrs, site: Site) -> Types:
    need_rank(types[0], 2, "x", site, -1)
    need_kind(types[0], FLOAT, "x", site)
    if attrs["size"] < 1:
        raise site.error(f"size must be 1 or more, got {attrs['size']}")
    return (TensorType(types[0].shape, types[0].dtype),)


def _eval_lrn(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    """x / (bias + alpha/size * s)^beta, s the sum of squares over ``size`` channels around."""
    x, size = arrays[0], attrs["size"]
    before = (size - 1) // 2
    square = np.pad(x * x, ((0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)))
    total = sum(square[:, i : i + x.shape[1]] for i in range(size))
    scale = attrs["bias"] + attrs["alpha"] / size * total
    return (x / np.power(scale, np.array(attrs["beta"], x.dtype)),)


def _infer_resize(types: Types, attrs: Attrs, site: Site) -> Types:
    x = types[0]
    need_kind(x, NUMBERS if attrs["mode"] == "nearest" else FLOAT, "x", site)
    need_length(attrs["sizes"], x.rank, "sizes", site)
    need_length(attrs["scales"], x.rank, "scales", site)
    for i, (dim, size) in enumerate(zip(x.shape, attrs["sizes"], strict=True)):
        if size == dim and attrs["scales"][i] == 1:
            continue
        static_dims((dim, size), f"dimension {i}, which is resized,", site)
        if size < 1 or dim == 0 or attrs["scales"][i] <= 0:
            raise site.error(
                f"expected positive sizes and scales, got {show(attrs['sizes'])} and "
                f"{attrs['scales']} for {show_type(x)}"
            )
    return (TensorType(attrs["sizes"], x.dtype),)


def _eval_resize(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    result = arrays[0]
    for axis, (size, scale) in enumerate(
        zip(types[0].static_shape, attrs["scales"], strict=True)
    ):
        if size != result.shape[axis] or scale != 1:
            result = resample(result, axis, size, scale, attrs)
    return (result,)


_STEPS: Mapping[str, AttrSpec] = {
    "kernel": AttrSpec("ints", doc="extent of the window, one a spatial dimension"),
    "strides": AttrSpec("ints"),
    "pads": AttrSpec("ints", doc="before each spatial dimension, then after each"),
}
_DILATIONS = {"dilations": AttrSpec("ints", doc="distance of neighbouring taps")}
_CEIL = {"ceil_mode": AttrSpec("bool", False, "keep a last window that hangs over the end")}

DEFS: tuple[OpDef, ...] = (
    OpDef(
        "max_pool", "window", operands("x"), {**_STEPS, **_DILATIONS, **_CEIL}, TENSOR,
        "Largest element of each window; what lies outside never wins.",
        _infer_pool_number, _eval_max_pool,
    ),
    OpDef(
        "avg_pool", "window", operands("x"),
        {
            **_STEPS, **_CEIL,
            "count_include_pad": AttrSpec("bool", False, "pads count as elements of value 0"),
        },
        TENSOR, "Mean of each window.", _infer_pool_float, _eval_avg_pool,
    ),
    OpDef(
        "sum_pool", "window", operands("x"), {**_STEPS, **_DILATIONS}, TENSOR,
        "Sum of each window, zero outside.", _infer_pool_number, _eval_sum_pool,
    ),
    OpDef(
        "lrn", "window", operands("x"),
        {
            "size": AttrSpec("int", doc="channels summed over"),
            "alpha": AttrSpec("float"), "beta": AttrSpec("float"), "bias": AttrSpec("float"),
        },
        TENSOR, "x over a power of the mean square of neighbouring channels.",
        _infer_lrn, _eval_lrn,
    ),
    OpDef(
        "resize", "window", operands("x"),
        {
            "sizes": AttrSpec("dims", doc="the result's shape"),
            "scales": AttrSpec("floats", doc="result size over size, used for coordinates"),
            "mode": AttrSpec("str", choices=MODES),
            "coordinate": AttrSpec("str", doc="from result to x coordinate", choices=COORDINATES),
            "rounding": AttrSpec(
                "str", "round_prefer_floor", "to an index, in mode nearest", ROUNDINGS
            ),
            "cubic_a": AttrSpec("float", -0.75, "the parameter of the cubic kernel"),
            "antialias": AttrSpec("bool", False, "widen the kernel when shrinking"),
        },
        TENSOR, "x sampled on a coarser or finer grid, dimension by dimension.",
        _infer_resize, _eval_resize,
    ),
)  # fmt: skip
