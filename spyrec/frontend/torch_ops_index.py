"""Look-ups and writes by index, sorting and counting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .emit import BOOL, F32, I64, Handle, Known, Unsupported, axis_of, shape_of
from .torch_ops_elementwise import promoted, truth
from .torch_site import Converter, Site, Table
from .torch_state import clamped


def _embedding(s: Site) -> Handle:
    return s.emit("gather", s.tensor("weight"), s.tensor("indices"), axis=0)


def wrapped(s: Site, indices: Handle, size: int) -> Handle:
    """Indices with those below zero counted from the end."""
    if isinstance(indices, Known):
        return s.const(np.where(indices.array < 0, indices.array + size, indices.array), I64)
    zero = s.const(0, indices.type.dtype)
    up = s.emit("add", indices, s.const(size, indices.type.dtype))
    return s.emit("where", s.emit("lt", indices, zero), up, indices)


def _index_select(s: Site) -> Handle:
    x = s.tensor("self")
    indices = s.tensor("index")
    if not x.type.rank:
        return s.broadcast(x, s.shape)
    flat = s.reshape(indices, (indices.type.size,))
    return s.emit("gather", x, flat, axis=s.dim("dim", x.type.rank))


def _gather(s: Site) -> Handle:
    """Of the other dimensions only as much as the indices have."""
    x, index = s.tensor("self"), s.tensor("index")
    if not x.type.rank or not index.type.size:
        return s.broadcast(s.reshape(x, ()), s.shape) if x.type.size == 1 else _nothing(s)
    dim = s.dim("dim", x.type.rank)
    for d, n in enumerate(shape_of(index)):
        if d != dim:
            x = s.slice(x, d, 0, n)
    return s.emit("gather_elements", x, index, axis=dim)


def _nothing(s: Site) -> Handle:
    if s.type.size:
        raise Unsupported("its index has no elements")
    return s.const(np.zeros(s.shape), s.dtype)


def _take_along(s: Site) -> Handle:
    x, index = s.tensor("self"), s.tensor("indices")
    if not s.has("dim"):
        x, index = (s.reshape(t, (t.type.size,)) for t in (x, index))
        return s.reshape(s.emit("gather_elements", x, index, axis=0), s.shape)
    dim = s.dim("dim", x.type.rank)
    shape = np.broadcast_shapes(
        _without(shape_of(x), dim), _without(shape_of(index), dim)
    )
    full = (*shape[:dim], 0, *shape[dim:])
    x = s.broadcast(x, _with(full, dim, shape_of(x)[dim]))
    index = s.broadcast(index, _with(full, dim, shape_of(index)[dim]))
    return s.emit("gather_elements", x, index, axis=dim)


def _without(shape: Sequence[int], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


def _with(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _indices(s: Site) -> list[tuple[int, Handle]]:
    """Which dimensions are indexed, and by what; a mask only when it is known."""
    x, found, dim = s.tensor("self"), list[tuple[int, Handle]](), 0
    for index in s.get("indices"):
        if index is None:
            dim += 1
            continue
        if index.type.dtype.kind == "bool":
            if not isinstance(index, Known):
                raise Unsupported("how many elements its mask keeps is only known at run time")
            for d, places in enumerate(np.nonzero(index.array)):
                found.append((dim + d, s.const(places, I64)))
            dim += index.array.ndim
            continue
        found.append((dim, wrapped(s, index, shape_of(x)[dim])))
        dim += 1
    return found


def _index(s: Site) -> Handle:
    """x[i, :, j]: indexed dimensions go in front unless they are neighbours."""
    x, found = s.tensor("self"), _indices(s)
    dims = [d for d, _ in found]
    if not found:
        return x
    if len(found) == 1:
        return s.emit("gather", x, found[0][1], axis=dims[0])
    rank = x.type.rank
    rest = [d for d in range(rank) if d not in dims]
    coordinates = _coordinates(s, [i for _, i in found])
    picked = s.emit("gather_nd", s.transpose(x, (*dims, *rest)), coordinates)
    if dims != list(range(dims[0], dims[0] + len(dims))):
        return picked
    front = coordinates.type.rank - 1  # dimensions of the indices, to stand where theirs stood
    before = len([d for d in rest if d < dims[0]])
    order = [*range(front, front + before), *range(front), *range(front + before, picked.type.rank)]
    return s.transpose(picked, order)


def _coordinates(s: Site, indices: Sequence[Handle]) -> Handle:
    """Index tensors of shapes that broadcast, as one with a coordinate in the last dimension."""
    shape = np.broadcast_shapes(*(shape_of(i) for i in indices))
    columns = [s.reshape(s.broadcast(s.cast(i, I64), shape), (*shape, 1)) for i in indices]
    return columns[0] if len(columns) == 1 else s.emit("concat", *columns, axis=len(shape))


def _index_put(s: Site) -> Handle:
    mask = _lone_mask(s)
    if mask is not None:
        return _masked_write(s, mask)
    x, found = s.tensor("self"), _indices(s)
    dims = [d for d, _ in found]
    rest = [d for d in range(x.type.rank) if d not in dims]
    coordinates = _coordinates(s, [i for _, i in found])
    front = (*dims, *rest)
    turned = s.transpose(x, front)
    outer = shape_of(coordinates)[:-1]
    update = (*outer, *(shape_of(x)[d] for d in rest))
    values = s.operand("values", x.type.dtype)
    if dims != list(range(len(dims))) and dims == list(range(dims[0], dims[0] + len(dims))):
        values = _brought_front(s, values, len(outer), dims[0], x.type.rank - len(dims))
    values = s.broadcast(values, update)
    reduction = "add" if s.bool_("accumulate") else "none"
    put = s.emit("scatter_nd", turned, coordinates, values, reduction=reduction)
    back = sorted(range(len(front)), key=front.__getitem__)
    return s.transpose(put, back)


def _lone_mask(s: Site) -> Handle | None:
    """The mask that is the only index, over the first dimensions, when its elements are only known
    at run time and one value is written wherever it is true."""
    indices = s.get("indices")
    mask = indices[0] if indices else None
    if isinstance(mask, Known) or mask is None or any(i is not None for i in indices[1:]):
        return None
    return mask if mask.type.dtype == BOOL and s.tensor("values").type.size == 1 else None


def _masked_write(s: Site, mask: Handle) -> Handle:
    x = s.tensor("self")
    value = s.reshape(s.operand("values", x.type.dtype), ())
    mask = s.reshape(mask, (*shape_of(mask), *(1,) * (x.type.rank - mask.type.rank)))
    return s.emit("where", mask, s.emit("add", x, value) if s.bool_("accumulate") else value, x)


def _brought_front(s: Site, values: Handle, width: int, before: int, rest: int) -> Handle:
    """Values of x[:, i]: the dimensions of i stand behind ``before`` others; move them in front."""
    rank = width + rest
    full = (*(1,) * (rank - values.type.rank), *shape_of(values))
    order = (*range(before, before + width), *range(before), *range(before + width, rank))
    return s.transpose(s.reshape(values, full), order)


def _index_write(reduction: str) -> Converter:
    """Whole slices written where a list of indices says along a dimension."""

    def convert(s: Site) -> Handle:
        given = s.tensor("self")
        x = given if given.type.rank else s.reshape(given, (1,))
        shape = shape_of(x)
        dim = s.dim("dim", len(shape))
        index = s.tensor("index")
        count = index.type.size
        if s.has("value"):
            rows = s.broadcast(s.operand("value", x.type.dtype), _with(shape, dim, count))
        else:
            rows = s.scale(s.cast(s.tensor("source"), x.type.dtype), s.get("alpha", 1))
            rows = s.reshape(rows, _with(shape, dim, count))
        if not isinstance(index, Known):
            put = _rows_written(s, x, rows, dim, wrapped(s, index, shape[dim]), reduction)
            return s.reshape(put, shape_of(given))
        order = (dim, *(d for d in range(len(shape)) if d != dim))
        back = sorted(range(len(order)), key=order.__getitem__)
        where = s.reshape(wrapped(s, s.cast(index, I64), shape[dim]), (count, 1))
        put = s.emit(
            "scatter_nd", s.transpose(x, order), where, s.transpose(rows, order),
            reduction=reduction,
        )  # fmt: skip
        return s.reshape(s.transpose(put, back), shape_of(given))

    return convert


def _rows_written(
    s: Site, x: Handle, rows: Handle, dim: int, index: Handle, reduction: str
) -> Handle:
    """Where rows go is only known at run time: each row of ``x`` asks whether it is named. One row
    is chosen, several are a product with a matrix of zeros and ones."""
    shape, count = shape_of(x), index.type.size
    column = tuple(shape[dim] if d == dim else 1 for d in range(len(shape)))
    places = s.const(np.arange(shape[dim]), index.type.dtype)
    if count == 1:
        here = s.emit("eq", s.reshape(places, column), s.reshape(index, (1,) * len(shape)))
        return s.emit("where", here, s.emit("add", x, rows) if reduction == "add" else rows, x)
    here = s.emit("eq", s.reshape(places, (shape[dim], 1)), s.reshape(index, (1, count)))
    named = s.emit("reduce_max", s.cast(here, F32), axes=(1,), keepdims=False)
    hit = s.reshape(s.emit("ne", named, s.const(0, F32)), column)
    if s.has("value"):
        return s.emit("where", hit, s.operand("value", x.type.dtype), x)
    if x.type.dtype == BOOL:
        numbers = _rows_written(s, s.cast(x, F32), s.cast(rows, F32), dim, index, reduction)
        return s.emit("ne", numbers, s.const(0, F32))
    marks = s.cast(here, x.type.dtype)
    order = (*(d for d in range(len(shape)) if d != dim), dim)
    back = sorted(range(len(order)), key=order.__getitem__)
    wide = s.transpose(rows, order)  # ..., count
    flat = s.reshape(wide, (wide.type.size // count, count))
    moved = s.emit("matmul", flat, s.transpose(marks, (1, 0)))
    moved = s.transpose(s.reshape(moved, (*shape_of(wide)[:-1], shape[dim])), back)
    if reduction == "add":
        return s.emit("add", x, moved)
    return s.emit("where", hit, moved, x)


_REDUCTIONS = {"": "none", "add": "add", "sum": "add", "multiply": "mul", "prod": "mul",
               "amax": "max", "amin": "min"}  # fmt: skip


def _scatter(s: Site) -> Handle:
    """Elements written where indices say; only as many as there are indices."""
    x, index = s.tensor("self"), s.tensor("index")
    dim = s.dim("dim", x.type.rank)
    asked = "add" if s.target.startswith("aten.scatter_add") else s.str_("reduce", "")
    if asked not in _REDUCTIONS or not s.bool_("include_self", True):
        left_out = "" if s.bool_("include_self", True) else " without what was there"
        raise Unsupported(f"it combines what it writes by '{asked}'{left_out}")
    if s.has("value"):
        updates = s.broadcast(s.operand("value", x.type.dtype), shape_of(index))
    else:
        updates = s.cast(s.tensor("src"), x.type.dtype)
        for d, n in enumerate(shape_of(index)):
            updates = s.slice(updates, d, 0, n)
    return s.emit("scatter_elements", x, index, updates, axis=dim, reduction=_REDUCTIONS[asked])


def _slice_scatter(s: Site) -> Handle:
    x, part = s.tensor("self"), s.tensor("src")
    shape = shape_of(x)
    dim = s.dim("dim", len(shape), 0)
    step, start = s.int_("step", 1), clamped(s.int_("start", 0), shape[dim])
    if step != 1:
        places = s.const(start + step * np.arange(shape_of(part)[dim]), I64)
        grid = s.reshape(places, [-1 if d == dim else 1 for d in range(len(shape))])
        where = s.broadcast(grid, shape_of(part))
        return s.emit("scatter_elements", x, where, part, axis=dim, reduction="none")
    return s.splice(x, s.cast(part, x.type.dtype), dim, start)


def _select_scatter(s: Site) -> Handle:
    x = s.tensor("self")
    shape = shape_of(x)
    dim = s.dim("dim", len(shape))
    row = s.reshape(s.cast(s.tensor("src"), x.type.dtype), _with(shape, dim, 1))
    return s.splice(x, row, dim, axis_of(s.int_("index"), shape[dim]))


def _topk(s: Site) -> tuple[Handle, Handle]:
    x = s.tensor("self")
    dim = s.dim("dim", x.type.rank, -1)
    return _ordered(s, x, s.int_("k"), dim, s.bool_("largest", True), s.bool_("sorted", True))


def _sort(s: Site) -> tuple[Handle, Handle]:
    x = s.tensor("self")
    dim = s.dim("dim", x.type.rank, -1)
    size = shape_of(x)[dim] if x.type.rank else 1
    return _ordered(s, x, size, dim, s.bool_("descending"), True)


def _ordered(
    s: Site, x: Handle, count: int, dim: int, largest: bool, in_order: bool
) -> tuple[Handle, Handle]:
    """Elements in order and where they stood; a scalar is its own order."""
    if not x.type.rank:
        return x, s.const(0, I64)
    numbers = s.cast(x, F32) if x.type.dtype == BOOL else x
    values, indices = s.emit_all(
        "top_k", numbers, k=count, axis=dim, largest=largest, sorted=in_order
    )
    return s.cast(values, x.type.dtype), s.cast(indices, I64)


def _one_hot(s: Site) -> Handle:
    depth = s.int_("num_classes", -1)
    if depth < 0:
        depth = s.shape[-1]
    x = s.tensor("self")
    return s.emit("one_hot", x, depth=depth, axis=x.type.rank, on=1.0, off=0.0, to=s.dtype)


def _is_in(s: Site) -> Handle:
    """Whether each element equals any of some others: all pairs are compared."""
    x, those = (s.tensor(n if s.has(n) else n[:-1]) for n in ("elements", "test_elements"))
    dtype = promoted(x.type.dtype, those.type.dtype)
    wide = s.reshape(s.cast(x, dtype), (*shape_of(x), 1))
    equal = s.emit("eq", wide, s.reshape(s.cast(those, dtype), (those.type.size,)))
    found = s.emit("reduce_sum", s.cast(equal, F32), axes=(x.type.rank,), keepdims=False)
    return s.emit("eq" if s.bool_("invert") else "ne", found, s.const(0, F32))


def _bucketize(s: Site) -> Handle:
    """How many boundaries lie below each element, or at it."""
    x, bounds = s.tensor("self"), s.tensor("boundaries")
    op = "ge" if s.bool_("right") else "gt"
    dtype = promoted(x.type.dtype, bounds.type.dtype)
    wide = s.reshape(s.cast(x, dtype), (*shape_of(x), 1))
    above = s.cast(truth(s, s.emit(op, wide, s.cast(bounds, dtype))), F32)
    return s.cast(s.emit("reduce_sum", above, axes=(x.type.rank,), keepdims=False), s.dtype)


def _histogram(s: Site) -> Handle:
    """How many elements lie in each of some bins of equal width; the last one has its upper end
    too, and what lies outside counts nowhere. Whole numbers are compared as such."""
    x, bins = s.tensor("self"), s.int_("bins", 100)
    low, high = s.float_("min", 0.0), s.float_("max", 0.0)
    if low >= high:
        raise Unsupported("its bins reach from the least to the greatest element")
    source = s.emitter.source(x, "cast")
    if source is not None and source.type.dtype.kind == "int":
        x = source
    edges = low + np.arange(bins + 1) * (high - low) / bins
    if x.type.dtype.kind == "int":
        edges = np.ceil(edges)
    flat = s.reshape(x, (1, x.type.size))
    above, below = (s.const(ends[:, None], x.type.dtype) for ends in (edges[:-1], edges[1:]))
    inside = s.emit("and", s.emit("ge", flat, above), s.emit("lt", flat, below))
    at_end = s.emit("and", s.emit("eq", flat, s.const(high, x.type.dtype)),
                    s.const(np.arange(bins)[:, None] == bins - 1, BOOL))  # fmt: skip
    hit = s.cast(s.emit("or", inside, at_end), I64)
    return s.cast(s.emit("reduce_sum", hit, axes=(1,), keepdims=False), s.dtype)


INDEX: Table = {
    "histc": _histogram,
    "embedding": _embedding, "index_select": _index_select, "gather": _gather,
    "take_along_dim": _take_along, "index": _index, "_unsafe_index": _index,
    "index_put": _index_put, "_unsafe_index_put": _index_put, "_index_put_impl": _index_put,
    "index_copy": _index_write("none"), "index_fill": _index_write("none"),
    "index_add": _index_write("add"), "scatter": _scatter, "scatter_add": _scatter,
    "scatter_reduce": _scatter, "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter, "topk": _topk, "sort": _sort, "one_hot": _one_hot,
    "isin": _is_in, "bucketize": _bucketize,
}  # fmt: skip
