"""Resizing along one axis, as ONNX Resize-19 defines it: which coordinate of the input an output
index stands for, and how much each input element weighs there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from .spec import Array, Attrs

MODES = ("nearest", "linear", "cubic")

# (output index, numerator and denominator of 1 / scale, input size, output size) -> coordinate
_COORDINATE: Mapping[str, Callable[[Array, float, float, int, int], Array]] = {
    "half_pixel": lambda i, num, den, n, m: (i + 0.5) * num / den - 0.5,
    "asymmetric": lambda i, num, den, n, m: i * num / den,
    "align_corners": lambda i, num, den, n, m: i * (n - 1) / max(m - 1, 1),
    "pytorch_half_pixel": lambda i, num, den, n, m: (i + 0.5) * num / den - 0.5 if m > 1 else 0 * i,
    "tf_half_pixel_for_nn": lambda i, num, den, n, m: (i + 0.5) * num / den,
}
COORDINATES = tuple(_COORDINATE)

_ROUNDING: Mapping[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
ROUNDINGS = tuple(_ROUNDING)


def resample(x: Array, axis: int, size: int, scale: float, attrs: Attrs) -> Array:
    """``x`` with ``size`` elements along ``axis``."""
    extent = x.shape[axis]
    index = np.arange(size, dtype=np.float64)
    # A scale that is size / extent in single precision means the exact ratio: ties depend on it.
    exact = np.float32(scale) == np.float32(size / extent)
    num, den = (extent, size) if exact else (1, scale)
    at = _COORDINATE[attrs["coordinate"]](index, num, den, extent, size)
    if attrs["mode"] == "nearest":
        nearest = _ROUNDING[attrs["rounding"]](at).clip(0, extent - 1).astype(np.intp)
        return np.take(x, nearest, axis=axis)
    weights = _weights(at, extent, scale, attrs).astype(x.dtype)
    moved: Array = np.matmul(np.moveaxis(x, axis, -1), weights.T)
    return np.moveaxis(moved, -1, axis)


def _weights(at: Array, extent: int, scale: float, attrs: Attrs) -> Array:
    """How much input element k weighs in output element i: [output, input]. What lies outside
    the input repeats its edge."""
    shrink = min(scale, 1.0) if attrs["antialias"] else 1.0
    if attrs["mode"] == "linear":
        kernel: Callable[[Array], Array] = _linear
        radius = 1.0
    else:
        kernel = _cubic(attrs["cubic_a"])
        radius = 2.0
    reach = int(np.ceil(radius / shrink)) + 1
    first = np.floor(at).astype(np.intp)
    taps = first[:, None] + np.arange(-reach, reach + 1)
    share = kernel((taps - at[:, None]) * shrink)
    share = share / share.sum(axis=1, keepdims=True)
    weights = np.zeros((len(at), extent))
    rows = np.arange(len(at))[:, None]
    np.add.at(weights, (rows, taps.clip(0, extent - 1)), share)
    return weights


def _linear(distance: Array) -> Array:
    height: Array = np.maximum(1 - np.abs(distance), 0)
    return height


def _cubic(a: float) -> Callable[[Array], Array]:
    """Keys' cubic convolution kernel with parameter ``a``."""

    def kernel(distance: Array) -> Array:
        d = np.abs(distance)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0))

    return kernel
