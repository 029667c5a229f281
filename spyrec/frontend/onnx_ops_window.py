"""Pooling, local response normalisation and resizing."""

from __future__ import annotations

import numpy as np

from .emit import Handle, Unsupported, axes_of, shape_of
from .onnx_node import Node, Table
from .onnx_pads import window_pads

MAX_SCALE = 1 << 16


def _window(n: Node) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(kernel, strides, pads, dilations)"""
    n.need("kernel_shape")
    kernel = n.ints("kernel_shape") or ()
    size = shape_of(n.ranked(0, 3))[2:]
    strides, dilations = (
        n.ints("strides") or (1,) * len(kernel),
        n.ints("dilations") or (1,) * len(kernel),
    )
    fits = len(kernel) == len(size) == len(strides) == len(dilations)
    if not fits or min((*kernel, *strides, *dilations)) < 1:
        raise Unsupported(
            f"its kernel_shape {list(kernel)} does not fit an input of rank {len(size) + 2}"
        )
    return kernel, strides, window_pads(n, size, kernel, strides, dilations), dilations


def _max_pool(n: Node) -> Handle:
    kernel, strides, pads, dilations = _window(n)
    return n.emit(
        "max_pool",
        n.arg(0),
        kernel=kernel,
        strides=strides,
        pads=pads,
        dilations=dilations,
        ceil_mode=bool(n.int_("ceil_mode", 0)),
    )


def _average_pool(n: Node) -> Handle:
    kernel, strides, pads, dilations = _window(n)
    if set(dilations) - {1}:
        raise Unsupported(f"its dilations are {list(dilations)}")
    return n.emit(
        "avg_pool",
        n.arg(0),
        kernel=kernel,
        strides=strides,
        pads=pads,
        ceil_mode=bool(n.int_("ceil_mode", 0)),
        count_include_pad=bool(n.int_("count_include_pad", 0)),
    )


def _lrn(n: Node) -> Handle:
    n.need("size")
    return n.emit(
        "lrn",
        n.arg(0),
        size=n.int_("size", 1),
        alpha=n.float_("alpha", 0.0001),
        beta=n.float_("beta", 0.75),
        bias=n.float_("bias", 1.0),
    )


def _upsample(n: Node) -> Handle:
    """Upsample (7: scales as attribute, 9: as input) is a resize without half-pixel offset."""
    scales = tuple(float(v) for v in n.attrs.get("scales", ())) or _floats(n, 1, "scales")
    if scales is None:
        raise Unsupported("its scales are missing")
    return _emit_resize(n, _scaled(n, scales), scales, "asymmetric", "floor")


def _resize(n: Node) -> Handle:
    if n.opset < 11:
        scales = _floats(n, 1, "scales")
        if scales is None:
            raise Unsupported("its scales are missing")
        shrinks = min(scales) < 1.0
        if shrinks and max(scales) > 1.0:
            raise Unsupported("it shrinks some dimensions and enlarges others")
        return _emit_resize(
            n, _scaled(n, scales), scales, "asymmetric", "ceil" if shrinks else "floor"
        )
    coordinate = n.str_("coordinate_transformation_mode", "half_pixel")
    if coordinate in ("tf_crop_and_resize", "half_pixel_symmetric"):
        raise Unsupported(f"its coordinate_transformation_mode is '{coordinate}'")
    if n.int_("exclude_outside", 0):
        raise Unsupported("its exclude_outside is set")
    sizes, scales = _target(n)
    return _emit_resize(n, sizes, scales, coordinate, n.str_("nearest_mode", "round_prefer_floor"))


def _target(n: Node) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Sizes and scales of all dimensions; those outside ``axes`` stay as they are."""
    shape = shape_of(n.arg(0))
    named = n.ints("axes")
    order = list(range(len(shape))) if named is None else list(_in_order(named, len(shape)))
    scales, sizes = _floats(n, 2, "scales"), n.known_ints(3, "sizes") or None
    if (scales is None) == (sizes is None):
        raise Unsupported("it gives neither or both of scales and sizes")
    if scales is not None:
        if len(scales) != len(order):
            raise Unsupported(f"its {len(scales)} scales do not fit {len(order)} dimensions")
        all_scales = [1.0] * len(shape)
        for axis, s in zip(order, scales, strict=True):
            all_scales[axis] = s
        return _scaled(n, tuple(all_scales)), tuple(all_scales)
    wanted = sizes or ()
    if len(wanted) != len(order):
        raise Unsupported(f"its {len(wanted)} sizes do not fit {len(order)} dimensions")
    policy = n.str_("keep_aspect_ratio_policy", "stretch")
    all_sizes, ratios = list(shape), [1.0] * len(shape)
    if policy != "stretch":
        pick = min if policy == "not_larger" else max
        ratio = pick(w / shape[a] for a, w in zip(order, wanted, strict=True))
        for axis in order:
            all_sizes[axis], ratios[axis] = int(shape[axis] * ratio + 0.5), ratio
        return tuple(all_sizes), tuple(ratios)
    for axis, w in zip(order, wanted, strict=True):
        all_sizes[axis], ratios[axis] = w, w / shape[axis]
    return tuple(all_sizes), tuple(ratios)


def _in_order(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Axes made non-negative, in the order given."""
    axes_of(axes, rank)
    return tuple(a % rank for a in axes)


def _floats(n: Node, i: int, what: str) -> tuple[float, ...] | None:
    array = n.known(i, what)
    return None if array is None or array.size == 0 else tuple(float(v) for v in array.reshape(-1))


def _scaled(n: Node, scales: tuple[float, ...]) -> tuple[int, ...]:
    """floor(size * scale), in the single precision ONNX keeps scales in."""
    shape = shape_of(n.arg(0))
    if len(scales) != len(shape) or not all(0 < s < MAX_SCALE for s in scales):
        raise Unsupported(f"its scales {list(scales)} do not fit an input of rank {len(shape)}")
    return tuple(
        int(np.floor(np.float32(d) * np.float32(s))) for d, s in zip(shape, scales, strict=True)
    )


def _emit_resize(
    n: Node, sizes: tuple[int, ...], scales: tuple[float, ...], coordinate: str, rounding: str
) -> Handle:
    x, mode = n.arg(0), n.str_("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        raise Unsupported(f"its mode is '{mode}'")
    if sizes == shape_of(x) and all(s == 1.0 for s in scales):
        return x
    return n.emit(
        "resize",
        x,
        sizes=sizes,
        scales=scales,
        mode=mode,
        coordinate=coordinate,
        rounding=rounding,
        cubic_a=n.float_("cubic_coeff_a", -0.75),
        antialias=bool(n.int_("antialias", 0)),
    )


WINDOW: Table = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LRN": _lrn,
    "Upsample": _upsample,
    "Resize": _resize,
}
