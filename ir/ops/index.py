"""Ops that select by index, and ops that make values out of indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spyrec.ir.types import DTYPES, DType, TensorType

from .elementwise import cast
from .shapes import (
    need_axis,
    need_kind,
    need_length,
    need_rank,
    need_same_dtype,
    need_shape,
    show,
    show_type,
    static_dim,
)
from .spec import TENSOR, Array, Arrays, Attrs, AttrSpec, OpDef, Site, Types, operands

I64 = DTYPES["i64"]
INT = ("int",)


def _inside(indices: Array, extent: int, what: str) -> Array:
    """Indices with the negative ones counted from the end; IndexError if one is outside."""
    wide = indices.astype(np.int64)
    bad = wide[(wide < -extent) | (wide >= extent)]
    if bad.size:
        raise IndexError(f"index {bad.flat[0]} is outside 0..{extent - 1} along {what}")
    return np.where(wide < 0, wide + extent, wide)


def _infer_gather(types: Types, attrs: Attrs, site: Site) -> Types:
    x, indices = types
    need_kind(indices, INT, "indices", site)
    axis = need_axis(attrs["axis"], x.rank, site)
    return (TensorType((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype),)


def _eval_gather(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x, axis = arrays[0], attrs["axis"]
    return (np.take(x, _inside(arrays[1], x.shape[axis], f"axis {axis}"), axis=axis),)


def _infer_gather_nd(types: Types, attrs: Attrs, site: Site) -> Types:
    x, indices = types
    batch = attrs["batch_dims"]
    need_kind(indices, INT, "indices", site)
    need_rank(indices, 1, "indices", site, -1)
    depth = static_dim(indices.shape[-1], "the last dimension of indices", site)
    if not 0 <= batch < indices.rank or not 1 <= depth <= x.rank - batch:
        raise site.error(
            f"expected batch_dims and the length of an index to fit x of rank {x.rank}, got "
            f"batch_dims {batch} and indices {show(indices.shape)}"
        )
    if x.shape[:batch] != indices.shape[:batch]:
        raise site.error(
            f"expected equal first {batch} dimensions, got {show_type(x)} and {show_type(indices)}"
        )
    return (TensorType((*indices.shape[:-1], *x.shape[batch + depth :]), x.dtype),)


def _index_tuple(indices: Array, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Columns of ``indices[..., depth]`` as one index array a dimension."""
    return tuple(
        _inside(indices[..., i], shape[i], f"dimension {i}") for i in range(indices.shape[-1])
    )


def _eval_gather_nd(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x, indices = arrays
    batch = attrs["batch_dims"]
    lead = np.indices(indices.shape[:batch]).reshape(
        batch, *indices.shape[:batch], *[1] * (indices.ndim - 1 - batch)
    )
    return (x[(*lead, *_index_tuple(indices, x.shape[batch:]))],)


def _infer_gather_elements(types: Types, attrs: Attrs, site: Site) -> Types:
    x, indices = types
    need_kind(indices, INT, "indices", site)
    need_rank(indices, x.rank, "indices", site)
    axis = need_axis(attrs["axis"], x.rank, site)
    _check_within(indices, x, axis, site)
    return (TensorType(indices.shape, x.dtype),)


def _check_within(indices: TensorType, x: TensorType, axis: int, site: Site) -> None:
    for i, (a, b) in enumerate(zip(indices.shape, x.shape, strict=True)):
        fits = a == b or (isinstance(a, int) and isinstance(b, int) and a <= b)
        if i != axis and not fits:
            raise site.error(
                f"expected indices no larger than x except along axis {axis}, got "
                f"{show(indices.shape)} for {show(x.shape)}"
            )


def _element_index(indices: Array, axis: int, extent: int) -> tuple[Array, ...]:
    index: list[Array] = list(np.indices(indices.shape, sparse=True))
    index[axis] = _inside(indices, extent, f"axis {axis}")
    return tuple(index)


def _eval_gather_elements(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x, indices = arrays
    return (x[_element_index(indices, attrs["axis"], x.shape[attrs["axis"]])],)


_COMBINE: Mapping[str, Callable[[Array, Any, Array], None]] = {
    "none": lambda into, index, updates: into.__setitem__(index, updates),
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _infer_scatter_nd(types: Types, attrs: Attrs, site: Site) -> Types:
    x, indices, updates = types
    need_same_dtype((x, updates), site)
    need_kind(indices, INT, "indices", site)
    need_rank(indices, 1, "indices", site, -1)
    depth = static_dim(indices.shape[-1], "the last dimension of indices", site)
    if not 1 <= depth <= x.rank:
        raise site.error(f"an index of {depth} entries does not fit {show_type(x)}")
    need_shape(updates, (*indices.shape[:-1], *x.shape[depth:]), "updates", site)
    return (TensorType(x.shape, x.dtype),)


def _eval_scatter_nd(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x, indices, updates = arrays
    result = x.copy()
    _COMBINE[attrs["reduction"]](result, _index_tuple(indices, x.shape), updates)
    return (result,)


def _infer_scatter_elements(types: Types, attrs: Attrs, site: Site) -> Types:
    x, indices, updates = types
    need_same_dtype((x, updates), site)
    need_kind(indices, INT, "indices", site)
    need_rank(indices, x.rank, "indices", site)
    need_shape(updates, indices.shape, "updates", site)
    _check_within(indices, x, need_axis(attrs["axis"], x.rank, site), site)
    return (TensorType(x.shape, x.dtype),)


def _eval_scatter_elements(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x, indices, updates = arrays
    result, axis = x.copy(), attrs["axis"]
    index = _element_index(indices, axis, x.shape[axis])
    _COMBINE[attrs["reduction"]](result, index, updates)
    return (result,)


def _infer_top_k(types: Types, attrs: Attrs, site: Site) -> Types:
    x, k = types[0], attrs["k"]
    need_kind(x, ("float", "int"), "x", site)
    axis = need_axis(attrs["axis"], x.rank, site)
    extent = static_dim(x.shape[axis], f"the size along axis {axis}", site)
    if not 0 <= k <= extent:
        raise site.error(f"k is {k}, but axis {axis} of {show_type(x)} has {extent} elements")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return TensorType(shape, x.dtype), TensorType(shape, I64)


def _eval_top_k(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    """Sorted whether asked for or not; equal values in order of their index."""
    x, k, axis = arrays[0], attrs["k"], attrs["axis"]
    if attrs["largest"]:
        # A stable ascending sort of the reversed row, read backwards, keeps ties in order.
        backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(backwards, axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    first = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, first, axis), first.astype(np.int64)


def _infer_one_hot(types: Types, attrs: Attrs, site: Site) -> Types:
    indices, axis = types[0], attrs["axis"]
    need_kind(indices, INT, "indices", site)
    need_axis(axis, indices.rank + 1, site)
    if attrs["depth"] < 0:
        raise site.error(f"depth must not be negative, got {attrs['depth']}")
    shape = (*indices.shape[:axis], attrs["depth"], *indices.shape[axis:])
    return (TensorType(shape, attrs["to"]),)


def _eval_one_hot(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    """Negative indices count from the end; a row whose index is outside is all ``off``."""
    depth = attrs["depth"]
    wide = arrays[0].astype(np.int64)
    indices = np.expand_dims(np.where(wide < 0, wide + depth, wide), attrs["axis"])
    places = np.arange(depth).reshape(-1, *[1] * (arrays[0].ndim - attrs["axis"]))
    off, on = (_host(attrs[name], attrs["to"]) for name in ("off", "on"))
    return (np.where(indices == places, on, off),)


def _host(number: float, to: DType) -> Array:
    """A number as a scalar array of the type that evaluation holds ``to`` in."""
    return np.array(number, np.float32 if to.name == "f16" else to.np_dtype)


def _infer_iota(types: Types, attrs: Attrs, site: Site) -> Types:
    need_axis(attrs["axis"], len(attrs["shape"]), site)
    need_kind(TensorType((), attrs["to"]), ("float", "int"), "a result", site)
    return (TensorType(attrs["shape"], attrs["to"]),)


def _eval_iota(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    shape, axis = types[0].static_shape, attrs["axis"]
    line = cast(np.arange(shape[axis], dtype=np.int64), attrs["to"])
    return (np.broadcast_to(line.reshape(-1, *[1] * (len(shape) - 1 - axis)), shape),)


def _infer_constant(types: Types, attrs: Attrs, site: Site) -> Types:
    """The stated type, which the array must fit; with none stated, the array's own."""
    value: Array = attrs["value"]
    if site.declared is None:
        return (TensorType(value.shape, _own_dtype(value, site)),)
    need_length(site.declared, 1, "value (results)", site)
    stated = site.declared[0]
    if stated.shape != value.shape or stated.dtype.np_dtype != value.dtype:
        raise site.error(
            f"expected an array of {stated.dtype.np_dtype}{list(value.shape)} for "
            f"{show_type(stated)}, got {value.dtype}{list(value.shape)}"
        )
    return (TensorType(stated.shape, stated.dtype),)


def _own_dtype(value: Array, site: Site) -> DType:
    for d in DTYPES.values():
        if d.np_dtype == value.dtype:
            return d
    raise site.error(f"no element type holds numpy arrays of {value.dtype}")


def _eval_constant(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (attrs["value"],)


def _infer_trilu(types: Types, attrs: Attrs, site: Site) -> Types:
    need_rank(types[0], 2, "x", site, -1)
    return (TensorType(types[0].shape, types[0].dtype),)


def _eval_trilu(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    keep = np.triu if attrs["upper"] else np.tril
    return (keep(arrays[0], attrs["k"]),)


_AXIS = {"axis": AttrSpec("int")}
_REDUCTION = {
    "reduction": AttrSpec(
        "str", "none", "how an update meets what is there", ("none", "add", "mul", "max", "min")
    )
}

DEFS: tuple[OpDef, ...] = (
    OpDef(
        "gather", "index", operands("x indices"), _AXIS, TENSOR,
        "Slices of x along an axis, chosen by indices of any shape.",
        _infer_gather, _eval_gather,
    ),
    OpDef(
        "gather_nd", "index", operands("x indices"),
        {"batch_dims": AttrSpec("int", 0, "leading dimensions that x and indices share")}, TENSOR,
        "Parts of x at the coordinates in the last dimension of indices.",
        _infer_gather_nd, _eval_gather_nd,
    ),
    OpDef(
        "gather_elements", "index", operands("x indices"), _AXIS, TENSOR,
        "x with its coordinate along an axis replaced by indices.",
        _infer_gather_elements, _eval_gather_elements,
    ),
    OpDef(
        "scatter_nd", "index", operands("x indices updates"), _REDUCTION, TENSOR,
        "x with updates written at the coordinates in the last dimension of indices.",
        _infer_scatter_nd, _eval_scatter_nd,
    ),
    OpDef(
        "scatter_elements", "index", operands("x indices updates"), {**_AXIS, **_REDUCTION},
        TENSOR, "x with each update written where indices say along an axis.",
        _infer_scatter_elements, _eval_scatter_elements,
    ),
    OpDef(
        "top_k", "index", operands("x"),
        {
            "k": AttrSpec("int"), **_AXIS,
            "largest": AttrSpec("bool", True, "else the smallest"),
            "sorted": AttrSpec("bool", True, "whether the order of the results matters"),
        },
        TENSOR, "The k largest or smallest elements along an axis and their indices.",
        _infer_top_k, _eval_top_k, results=("values", "indices"),
    ),
    OpDef(
        "one_hot", "index", operands("indices"),
        {
            "depth": AttrSpec("int", doc="the size of the new dimension"),
            "axis": AttrSpec("int", doc="where the new dimension stands in the result"),
            "on": AttrSpec("float"), "off": AttrSpec("float"), "to": AttrSpec("dtype"),
        },
        TENSOR, "on at the place each index names along a new dimension, off elsewhere.",
        _infer_one_hot, _eval_one_hot,
    ),
    OpDef(
        "iota", "index", (),
        {"shape": AttrSpec("dims"), **_AXIS, "to": AttrSpec("dtype")}, TENSOR,
        "Each element's coordinate along an axis.", _infer_iota, _eval_iota,
    ),
    OpDef(
        "constant", "index", (), {"value": AttrSpec("array")},
        frozenset({"tensor", "device", "tile"}),
        "A given array; the result type says how its numbers are held.",
        _infer_constant, _eval_constant,
    ),
    OpDef(
        "trilu", "index", operands("x"),
        {
            "upper": AttrSpec("bool"),
            "k": AttrSpec("int", doc="the diagonal that is the border; it is kept"),
        },
        TENSOR, "The triangle above or below a diagonal of the last two dimensions, else 0.",
        _infer_trilu, _eval_trilu,
    ),
)  # fmt: skip
