"""Gathers, scatters, sorting, and operators that make a tensor from nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .emit import F32, FOLD_GROWTH_BYTES, I64, Handle, Known, Results, Unsupported, shape_of
from .onnx_node import Node, Table
from .onnx_ops_elementwise import element_type

MAX_FILL_BYTES = 4 << 30  # of a tensor that is one repeated value


def _indices(n: Node, i: int, extent: int) -> Handle:
    """Operand i with negative indices counted from the end, where that can be seen."""
    found = n.arg(i)
    if isinstance(found, Known) and found.array.size and found.array.min() < 0:
        wrapped = np.where(found.array < 0, found.array + extent, found.array)
        return Known(found.name, wrapped.astype(found.array.dtype), found.dtype, n.loc)
    return found


def _gather(n: Node) -> Handle:
    x = n.arg(0)
    axis = n.axis("axis", 0, len(shape_of(x)))
    return n.emit("gather", x, _indices(n, 1, shape_of(x)[axis]), axis=axis)


def _gather_nd(n: Node) -> Handle:
    return n.emit("gather_nd", n.arg(0), n.arg(1), batch_dims=n.int_("batch_dims", 0))


def _gather_elements(n: Node) -> Handle:
    x = n.arg(0)
    axis = n.axis("axis", 0, len(shape_of(x)))
    return n.emit("gather_elements", x, _indices(n, 1, shape_of(x)[axis]), axis=axis)


def _scatter_nd(n: Node) -> Handle:
    return n.emit("scatter_nd", n.arg(0), n.arg(1), n.arg(2), reduction=n.str_("reduction", "none"))


def _scatter_elements(n: Node) -> Handle:
    x = n.arg(0)
    axis = n.axis("axis", 0, len(shape_of(x)))
    reduction = n.str_("reduction", "none")
    indices = _indices(n, 1, shape_of(x)[axis])
    return n.emit("scatter_elements", x, indices, n.arg(2), axis=axis, reduction=reduction)


def _top_k(n: Node) -> Results:
    x = n.arg(0)
    if n.opset < 10:
        n.need("k")
        k = n.int_("k", 1)
    else:
        given = n.known_ints(1, "k")
        if given is None or len(given) != 1:
            raise Unsupported("its k is not one number")
        k = given[0]
    return n.emit_all(
        "top_k",
        x,
        k=k,
        axis=n.axis("axis", -1, len(shape_of(x))),
        largest=bool(n.int_("largest", 1)),
        sorted=bool(n.int_("sorted", 1)),
    )


def _one_hot(n: Node) -> Handle:
    indices, depth, values = n.arg(0), n.known_ints(1, "depth"), n.known(2, "values")
    if depth is None or len(depth) != 1 or values is None or values.size != 2:
        raise Unsupported("its depth is not one number or its values are not two")
    off, on = values.reshape(-1).tolist()
    return n.emit(
        "one_hot",
        n.cast(indices, I64),
        depth=depth[0],
        axis=n.axis("axis", -1, len(shape_of(indices)) + 1),
        on=float(on),
        off=float(off),
        to=n.arg(2).type.dtype,
    )


def _range(n: Node) -> Handle:
    start, limit, delta = (
        _scalar(n, i, what) for i, what in enumerate(("start", "limit", "delta"))
    )
    steps = (limit - start) / delta if delta else math.inf
    if not abs(steps) * 8 <= FOLD_GROWTH_BYTES:
        raise Unsupported(f"it counts from {start} to {limit} in steps of {delta}")
    count = max(math.ceil(steps), 0)
    return n.const(start + np.arange(count) * delta, n.arg(0).type.dtype)


def _scalar(n: Node, i: int, what: str) -> Any:
    array = n.known(i, what)
    if array is None or array.size != 1:
        raise Unsupported(f"its {what} is not one number")
    return array.reshape(()).item()


def _constant(n: Node) -> Handle:
    match sorted(n.attrs):
        case ["value"]:
            array, dtype = n.tensor("value")
            return Known(n.hint, array, dtype, n.loc)
        case ["value_float" | "value_floats" as name]:
            return n.const(n.attrs[name], F32)
        case ["value_int" | "value_ints" as name]:
            return n.const(n.attrs[name], I64)
        case other:
            raise Unsupported(f"its value is given as {', '.join(other) or 'nothing'}")


def _constant_of_shape(n: Node) -> Handle:
    """One value repeated, without memory for each element."""
    shape = n.known_ints(0, "shape")
    zero = np.zeros(1, np.float32), F32
    array, dtype = n.tensor("value") if "value" in n.attrs else zero
    if shape is None or min(shape, default=0) < 0 or array.size != 1:
        raise Unsupported("its shape or its value is malformed")
    if math.prod(shape) * array.itemsize > MAX_FILL_BYTES:
        raise Unsupported(f"it makes a tensor of shape {list(shape)}")
    return Known(n.hint, np.broadcast_to(array.reshape(()), shape), dtype, n.loc)


def _eye_like(n: Node) -> Handle:
    rows, columns = shape_of(n.ranked(0, 2, 2))
    dtype = element_type(n.int_("dtype", 1)) if "dtype" in n.attrs else n.arg(0).type.dtype
    return n.const(np.eye(rows, columns, n.int_("k", 0)), dtype)


INDEX: Table = {
    "Gather": _gather,
    "GatherND": _gather_nd,
    "GatherElements": _gather_elements,
    "ScatterND": _scatter_nd,
    "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements,
    "TopK": _top_k,
    "OneHot": _one_hot,
    "Range": _range,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "EyeLike": _eye_like,
}
