"""Reductions over axes, positions of extremes, running sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spyrec.ir.types import DTYPES, Dim, TensorType

from .shapes import need_axes, need_axis, need_kind, static_dim
from .spec import TENSOR, Array, Arrays, Attrs, AttrSpec, OpDef, Site, Types, operands

NUMBERS = ("float", "int")
FLOAT = ("float",)
ANY = ("float", "int", "bool")

Axes = tuple[int, ...]
Fold = Callable[[Array, Axes], Any]  # keeps the dimensions


def reduced(x: TensorType, axes: Axes, keepdims: bool) -> tuple[Dim, ...]:
    """The shape of ``x`` with ``axes`` made 1 or left out."""
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(x.shape))
    return tuple(d for i, d in enumerate(x.shape) if i not in axes)


def fold_sum(x: Array, axes: Axes) -> Array:
    result: Array = np.sum(x, axis=axes, keepdims=True, dtype=x.dtype)
    return result


def fold_max(x: Array, axes: Axes) -> Array:
    result: Array = np.max(x, axis=axes, keepdims=True, initial=least_of(x.dtype))
    return result


def fold_min(x: Array, axes: Axes) -> Array:
    result: Array = np.min(x, axis=axes, keepdims=True, initial=greatest_of(x.dtype))
    return result


def fold_log_sum_exp(x: Array, axes: Axes) -> Array:
    top = fold_max(x, axes)
    top = np.where(np.isfinite(top), top, 0).astype(x.dtype)
    result: Array = np.log(fold_sum(np.exp(x - top), axes)) + top
    return result


def least_of(kind: np.dtype[np.generic]) -> float | int | bool:
    """The value that no other is below."""
    match kind.kind:
        case "f":
            return -np.inf
        case "b":
            return False
        case _:
            return int(np.iinfo(kind).min)  # type: ignore[type-var]


def greatest_of(kind: np.dtype[np.generic]) -> float | int | bool:
    match kind.kind:
        case "f":
            return np.inf
        case "b":
            return True
        case _:
            return int(np.iinfo(kind).max)  # type: ignore[type-var]


_FOLDS: Mapping[str, tuple[tuple[str, ...], Fold, str]] = {
    "sum": (NUMBERS, fold_sum, "Sum"),
    "mean": (
        FLOAT, lambda x, axes: np.mean(x, axis=axes, keepdims=True, dtype=x.dtype),
        "Arithmetic mean",
    ),
    "max": (ANY, fold_max, "Largest value (NaN if any is; of nothing, the type's least value)"),
    "min": (ANY, fold_min, "Smallest value (NaN if any is; of nothing, the type's greatest value)"),
    "prod": (
        NUMBERS, lambda x, axes: np.prod(x, axis=axes, keepdims=True, dtype=x.dtype), "Product"
    ),
    "l1": (NUMBERS, lambda x, axes: fold_sum(np.abs(x), axes), "Sum of magnitudes"),
    "l2": (FLOAT, lambda x, axes: np.sqrt(fold_sum(x * x, axes)), "Root of the sum of squares"),
    "sum_square": (NUMBERS, lambda x, axes: fold_sum(x * x, axes), "Sum of squares"),
    "log_sum_exp": (FLOAT, fold_log_sum_exp, "Logarithm of the sum of exponentials"),
}  # fmt: skip

_KEEPDIMS = {"keepdims": AttrSpec("bool", True, "leave reduced dimensions in, of size 1")}


def _reduction(name: str, kinds: tuple[str, ...], fold: Fold, summary: str) -> OpDef:
    def infer(types: Types, attrs: Attrs, site: Site) -> Types:
        x = types[0]
        need_kind(x, kinds, "an operand", site)
        axes = need_axes(attrs["axes"], x.rank, site)
        return (TensorType(reduced(x, axes, attrs["keepdims"]), x.dtype),)

    def evaluate(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
        return (fold(arrays[0], attrs["axes"]).reshape(types[0].static_shape),)

    attrs = {"axes": AttrSpec("ints", doc="() folds nothing"), **_KEEPDIMS}
    text = f"{summary} over some dimensions."
    return OpDef(
        f"reduce_{name}", "reduce", operands("x"), attrs, TENSOR, text, infer, evaluate
    )


def _infer_arg(types: Types, attrs: Attrs, site: Site) -> Types:
    x = types[0]
    need_kind(x, NUMBERS, "an operand", site)
    axis = need_axis(attrs["axis"], x.rank, site)
    if static_dim(x.shape[axis], f"the size along axis {axis}", site) < 1:
        raise site.error(f"there is nothing to choose from along axis {axis}")
    return (TensorType(reduced(x, (axis,), attrs["keepdims"]), DTYPES["i64"]),)


def _eval_arg_max(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (np.argmax(arrays[0], axis=attrs["axis"]).reshape(types[0].static_shape),)


def _eval_arg_min(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (np.argmin(arrays[0], axis=attrs["axis"]).reshape(types[0].static_shape),)


def _infer_cumsum(types: Types, attrs: Attrs, site: Site) -> Types:
    need_kind(types[0], NUMBERS, "an operand", site)
    need_axis(attrs["axis"], types[0].rank, site)
    return (TensorType(types[0].shape, types[0].dtype),)


def _eval_cumsum(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    axis = attrs["axis"]
    x = np.moveaxis(arrays[0], axis, 0)
    x = x[::-1] if attrs["reverse"] else x
    if attrs["exclusive"]:
        x = np.concatenate([np.zeros_like(x[:1]), x[:-1]])
    total = np.cumsum(x, axis=0, dtype=x.dtype)
    total = total[::-1] if attrs["reverse"] else total
    return (np.moveaxis(total, 0, axis),)


_ARG_ATTRS = {"axis": AttrSpec("int"), **_KEEPDIMS}

DEFS: tuple[OpDef, ...] = (
    *(_reduction(name, *row) for name, row in _FOLDS.items()),
    OpDef(
        "arg_max", "reduce", operands("x"), _ARG_ATTRS, TENSOR,
        "Index of the largest value along an axis, the first of equals.",
        _infer_arg, _eval_arg_max,
    ),
    OpDef(
        "arg_min", "reduce", operands("x"), _ARG_ATTRS, TENSOR,
        "Index of the smallest value along an axis, the first of equals.",
        _infer_arg, _eval_arg_min,
    ),
    OpDef(
        "cumsum", "reduce", operands("x"),
        {
            "axis": AttrSpec("int"),
            "exclusive": AttrSpec("bool", False, "leave the element itself out"),
            "reverse": AttrSpec("bool", False, "from the end"),
        },
        TENSOR, "Running sum along an axis.", _infer_cumsum, _eval_cumsum,
    ),
)  # fmt: skip
