"""Quantisation: per tensor (scalar scale) or per slice along an axis (vector scale)."""

from __future__ import annotations

import numpy as np

from spyrec.ir.rounding import round_to
from spyrec.ir.types import DType, TensorType

from .shapes import need_axis, need_kind, need_shape, show
from .spec import TENSOR, Array, Arrays, Attrs, AttrSpec, OpDef, Site, Types, operands

F8_LARGEST = 448.0


def _check_scale(types: Types, axis: int, site: Site) -> None:
    x, scale, zero = types
    need_kind(scale, ("float",), "scale", site)
    need_shape(zero, scale.shape, "zero, as scale,", site)
    if scale.rank == 0:
        return
    need_axis(axis, x.rank, site)
    if scale.shape != (x.shape[axis],):
        raise site.error(
            f"expected a scalar scale, or one entry for each of the {x.shape[axis]} slices along "
            f"axis {axis}, got {show(scale.shape)}"
        )


def _check_format(format_: DType, what: str, site: Site) -> None:
    if format_.kind != "int" and format_.name != "f8e4m3":
        raise site.error(f"expected {what} of integer type or f8e4m3, got {format_}")


def _infer_quantize(types: Types, attrs: Attrs, site: Site) -> Types:
    x, _, zero = types
    need_kind(x, ("float",), "x", site)
    _check_format(attrs["to"], "a result", site)
    _check_scale(types, attrs["axis"], site)
    if zero.dtype != attrs["to"]:
        raise site.error(f"expected zero of type {attrs['to']}, got {zero.dtype}")
    return (TensorType(x.shape, attrs["to"]),)


def _infer_dequantize(types: Types, attrs: Attrs, site: Site) -> Types:
    x, scale, zero = types
    _check_format(x.dtype, "x", site)
    _check_scale(types, attrs["axis"], site)
    if zero.dtype != x.dtype:
        raise site.error(f"expected zero of the type of x, {x.dtype}, got {zero.dtype}")
    return (TensorType(x.shape, scale.dtype),)


def _along(values: Array, axis: int, rank: int) -> Array:
    """A vector shaped to broadcast along ``axis``; a scalar as it is."""
    if values.ndim == 0:
        return values
    return values.reshape([-1 if i == axis else 1 for i in range(rank)])


def _eval_quantize(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x, scale, zero = arrays
    axis, to = attrs["axis"], attrs["to"]
    ratio: Array = np.divide(x, _along(scale, axis, x.ndim))
    offset = _along(zero, axis, x.ndim)
    if to.kind == "float":
        return (round_to(np.clip(ratio + offset, -F8_LARGEST, F8_LARGEST), to),)
    return (round_to(np.rint(ratio).astype(np.float64) + offset, to),)


def _eval_dequantize(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x, scale, zero = arrays
    axis = attrs["axis"]
    wide = x.astype(np.float64) - _along(zero, axis, x.ndim).astype(np.float64)
    return (wide.astype(scale.dtype) * _along(scale, axis, x.ndim),)


_AXIS = {"axis": AttrSpec("int", doc="the dimension a vector scale runs along")}

DEFS: tuple[OpDef, ...] = (
    OpDef(
        "quantize_linear", "quant", operands("x scale zero"),
        {**_AXIS, "to": AttrSpec("dtype", doc="the type of the result and of zero")}, TENSOR,
        "x / scale rounded to even, plus zero, saturated to the result type.",
        _infer_quantize, _eval_quantize,
    ),
    OpDef(
        "dequantize_linear", "quant", operands("x scale zero"), _AXIS, TENSOR,
        "(x - zero) * scale, in the type of scale.", _infer_dequantize, _eval_dequantize,
    ),
)  # fmt: skip
