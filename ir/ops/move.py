"""Data movement: the same elements in another order, shape or number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

import numpy as np

from spyrec.ir.types import Dim, Sym, TensorType

from .shapes import (
    need_axes,
    need_axis,
    need_length,
    need_rank,
    need_same_dtype,
    show,
    show_type,
    static_dim,
    static_dims,
)
from .spec import TENSOR, Array, Arrays, Attrs, AttrSpec, OpDef, Site, Types, operands


def _infer_reshape(types: Types, attrs: Attrs, site: Site) -> Types:
    """Symbolic dimensions must stand on both sides; at most one -1 takes what is left."""
    x, shape = types[0], attrs["shape"]
    free = [i for i, d in enumerate(shape) if d == -1]
    if len(free) > 1 or any(isinstance(d, int) and d < -1 for d in shape):
        raise site.error(f"shape {show(shape)} must hold sizes and at most one -1")
    before, after = Counter(_syms(x.shape)), Counter(_syms(shape))
    have = prod(d for d in x.shape if isinstance(d, int))
    want = prod(d for d in shape if isinstance(d, int) and d != -1)
    left = before - after
    fits = not (after - before) and (want and have % want == 0 if free else have == want)
    if free and fits and left:
        if sum(left.values()) > 1 or have != want:
            raise site.error(f"-1 would stand for a product of {show(x.shape)}; bind it first")
        return (TensorType(tuple(next(iter(left)) if d == -1 else d for d in shape), x.dtype),)
    if not fits or left:
        raise site.error(f"expected as many elements as {show_type(x)} has, got {show(shape)}")
    return (TensorType(tuple(have // want if d == -1 else d for d in shape), x.dtype),)


def _syms(shape: Sequence[Dim]) -> list[Sym]:
    return [d for d in shape if isinstance(d, Sym)]


def _eval_reshape(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (arrays[0].reshape(types[0].static_shape),)


def _infer_transpose(types: Types, attrs: Attrs, site: Site) -> Types:
    x, perm = types[0], attrs["perm"]
    if sorted(perm) != list(range(x.rank)):
        raise site.error(f"perm {perm} is not an order of the {x.rank} dimensions of x")
    return (TensorType(tuple(x.shape[p] for p in perm), x.dtype),)


def _eval_transpose(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (arrays[0].transpose(attrs["perm"]),)


def _infer_broadcast_to(types: Types, attrs: Attrs, site: Site) -> Types:
    x, shape = types[0], attrs["shape"]
    tail = shape[len(shape) - x.rank :] if x.rank <= len(shape) else ()
    if len(tail) != x.rank or any(d not in (1, t) for d, t in zip(x.shape, tail, strict=True)):
        raise site.error(f"expected x to broadcast to {show(shape)}, got {show_type(x)}")
    return (TensorType(shape, x.dtype),)


def _eval_broadcast_to(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (np.broadcast_to(arrays[0], types[0].static_shape),)


def _infer_concat(types: Types, attrs: Attrs, site: Site) -> Types:
    if not types:
        raise site.error("expected one operand or more, got none")
    need_same_dtype(types, site)
    first = types[0]
    axis = need_axis(attrs["axis"], first.rank, site)
    if len(types) == 1:
        return (TensorType(first.shape, first.dtype),)
    for t in types:
        rest = (*t.shape[:axis], *t.shape[axis + 1 :])
        if t.rank != first.rank or rest != (*first.shape[:axis], *first.shape[axis + 1 :]):
            raise site.error(
                f"expected shapes that differ only along axis {axis}, got {show(first.shape)} "
                f"and {show(t.shape)}"
            )
    total = sum(static_dim(t.shape[axis], f"the size along axis {axis}", site) for t in types)
    return (TensorType((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype),)


def _eval_concat(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (np.concatenate(arrays, axis=attrs["axis"]),)


def _infer_slice(types: Types, attrs: Attrs, site: Site) -> Types:
    x, sizes = types[0], attrs["sizes"]
    for name in ("starts", "sizes", "steps"):
        need_length(attrs[name], x.rank, name, site)
    for i, dim in enumerate(x.shape):
        start, size, step = attrs["starts"][i], sizes[i], attrs["steps"][i]
        if size == dim and (start, step) == (0, 1):
            continue
        extent = static_dim(dim, f"dimension {i}, which is not taken whole,", site)
        count = static_dim(size, f"size {i}", site)
        last = start + (count - 1) * step
        if count < 0 or step == 0 or (count and not (0 <= start < extent and 0 <= last < extent)):
            raise site.error(
                f"start {start}, size {count}, step {step} leave dimension {i} of {show_type(x)}"
            )
    return (TensorType(sizes, x.dtype),)


def _eval_slice(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    index = []
    for start, size, step in zip(
        attrs["starts"], types[0].static_shape, attrs["steps"], strict=True
    ):
        stop = start + size * step
        index.append(slice(start, stop if stop >= 0 else None, step) if size else slice(0, 0))
    return (arrays[0][tuple(index)],)


def _infer_pad(types: Types, attrs: Attrs, site: Site) -> Types:
    x, lo, hi = types[0], attrs["lo"], attrs["hi"]
    need_length(lo, x.rank, "lo", site)
    need_length(hi, x.rank, "hi", site)
    interior = attrs["interior"] or (0,) * x.rank
    need_length(interior, x.rank, "interior", site)
    if min(interior, default=0) < 0 or (any(interior) and attrs["mode"] != "constant"):
        raise site.error("interior must be 0 or more, and only with mode constant")
    shape: list[Dim] = []
    for i, dim in enumerate(x.shape):
        if (lo[i], hi[i], interior[i]) == (0, 0, 0):
            shape.append(dim)
            continue
        size = static_dim(dim, f"dimension {i}, which is padded,", site)
        spread = size + max(size - 1, 0) * interior[i]
        kept = size + min(lo[i], 0) + min(hi[i], 0)
        if spread + lo[i] + hi[i] < 0:
            raise site.error(f"lo {lo} and hi {hi} crop more than there is of {show_type(x)}")
        if attrs["mode"] != "constant" and kept < 1:
            raise site.error(f"mode {attrs['mode']} has nothing to repeat in {show_type(x)}")
        shape.append(spread + lo[i] + hi[i])
    return (TensorType(tuple(shape), x.dtype),)


def _eval_pad(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    """Zeros between elements, then cropping, then padding."""
    x, lo, hi, value = arrays[0], attrs["lo"], attrs["hi"], attrs["value"]
    fill = x.dtype.type(value)
    if any(attrs["interior"]):
        gaps = attrs["interior"]
        spread = [s + max(s - 1, 0) * g for s, g in zip(x.shape, gaps, strict=True)]
        wide = np.zeros(spread, x.dtype)
        wide[tuple(slice(None, None, g + 1) for g in gaps)] = x
        x = wide
    if attrs["mode"] != "constant":
        kept = tuple(
            slice(max(-low, 0), size - max(-high, 0))
            for low, high, size in zip(lo, hi, x.shape, strict=True)
        )
        widths = [(max(low, 0), max(high, 0)) for low, high in zip(lo, hi, strict=True)]
        return (np.pad(x[kept], widths, mode=attrs["mode"]),)
    result = np.full(types[0].static_shape, fill, x.dtype)
    source, target = [], []
    for low, size, extent in zip(lo, x.shape, result.shape, strict=True):
        first, end = max(low, 0), min(low + size, extent)
        target.append(slice(first, max(end, first)))
        source.append(slice(first - low, max(end, first) - low))
    result[tuple(target)] = x[tuple(source)]
    return (result,)


def _infer_reverse(types: Types, attrs: Attrs, site: Site) -> Types:
    need_axes(attrs["axes"], types[0].rank, site)
    return (TensorType(types[0].shape, types[0].dtype),)


def _eval_reverse(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (np.flip(arrays[0], attrs["axes"]),)


def _infer_space_to_depth(types: Types, attrs: Attrs, site: Site) -> Types:
    x, b = types[0], attrs["block"]
    need_rank(x, 4, "x", site)
    c, h, w = static_dims(x.shape[1:], "channels, height and width", site)
    if b < 1 or h % b or w % b:
        raise site.error(f"expected height and width to be multiples of {b}, got {show_type(x)}")
    return (TensorType((x.shape[0], c * b * b, h // b, w // b), x.dtype),)


def _eval_space_to_depth(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x, b = arrays[0], attrs["block"]
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
    return (blocks.reshape(types[0].static_shape),)


def _infer_depth_to_space(types: Types, attrs: Attrs, site: Site) -> Types:
    x, b = types[0], attrs["block"]
    need_rank(x, 4, "x", site)
    c, h, w = static_dims(x.shape[1:], "channels, height and width", site)
    if b < 1 or c % (b * b):
        raise site.error(f"expected a multiple of {b * b} channels, got {show_type(x)}")
    return (TensorType((x.shape[0], c // (b * b), h * b, w * b), x.dtype),)


def _eval_depth_to_space(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    x, b = arrays[0], attrs["block"]
    n, c, h, w = x.shape
    if attrs["mode"] == "DCR":
        blocks = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return (blocks.reshape(types[0].static_shape),)


def _infer_split(types: Types, attrs: Attrs, site: Site) -> Types:
    x, sizes = types[0], attrs["sizes"]
    axis = need_axis(attrs["axis"], x.rank, site)
    extent = static_dim(x.shape[axis], f"the size along axis {axis}", site)
    if not sizes or min(sizes) < 0 or sum(sizes) != extent:
        raise site.error(f"expected sizes that add up to {extent}, got {sizes}")
    return tuple(
        TensorType((*x.shape[:axis], s, *x.shape[axis + 1 :]), x.dtype) for s in sizes
    )


def _eval_split(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    ends = np.cumsum(attrs["sizes"])[:-1]
    parts: list[Array] = np.split(arrays[0], ends, axis=attrs["axis"])
    return tuple(parts)


def _infer_tile(types: Types, attrs: Attrs, site: Site) -> Types:
    x, repeats = types[0], attrs["repeats"]
    need_length(repeats, x.rank, "repeats", site)
    if min(repeats, default=0) < 0:
        raise site.error(f"repeats must not be negative, got {repeats}")
    shape = tuple(
        d if r == 1 else r * static_dim(d, f"dimension {i}, which is repeated,", site)
        for i, (d, r) in enumerate(zip(x.shape, repeats, strict=True))
    )
    return (TensorType(shape, x.dtype),)


def _eval_tile(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (np.tile(arrays[0], attrs["repeats"]),)


DEFS: tuple[OpDef, ...] = (
    OpDef(
        "reshape", "move", operands("x"),
        {"shape": AttrSpec("dims", doc="at most one -1, which takes what is left")}, TENSOR,
        "The same elements in row-major order under another shape.",
        _infer_reshape, _eval_reshape,
    ),
    OpDef(
        "transpose", "move", operands("x"),
        {"perm": AttrSpec("ints", doc="dimension of x that each result dimension is")}, TENSOR,
        "Dimensions in another order.", _infer_transpose, _eval_transpose,
    ),
    OpDef(
        "broadcast_to", "move", operands("x"), {"shape": AttrSpec("dims")}, TENSOR,
        "Dimensions of size 1, and missing leading ones, repeated.",
        _infer_broadcast_to, _eval_broadcast_to,
    ),
    OpDef(
        "concat", "move", operands("x*"), {"axis": AttrSpec("int")}, TENSOR,
        "The operands one after another along an axis.", _infer_concat, _eval_concat,
    ),
    OpDef(
        "slice", "move", operands("x"),
        {
            "starts": AttrSpec("ints", doc="the first index taken, also of a negative step"),
            "sizes": AttrSpec("dims", doc="how many are taken"),
            "steps": AttrSpec("ints", doc="from one taken index to the next; may be negative"),
        },
        TENSOR, "Evenly spaced elements of each dimension.", _infer_slice, _eval_slice,
    ),
    OpDef(
        "pad", "move", operands("x"),
        {
            "lo": AttrSpec("ints", doc="elements before each dimension; negative ones crop"),
            "hi": AttrSpec("ints", doc="elements after each dimension; negative ones crop"),
            "mode": AttrSpec(
                "str", "constant", "what the new elements are",
                ("constant", "reflect", "edge", "wrap"),
            ),
            "value": AttrSpec("float", 0.0, "of mode constant"),
            "interior": AttrSpec("ints", (), "zeros between neighbours, put in first"),
        },
        TENSOR, "Elements added around and between those of x.", _infer_pad, _eval_pad,
    ),
    OpDef(
        "reverse", "move", operands("x"), {"axes": AttrSpec("ints")}, TENSOR,
        "Some dimensions back to front.", _infer_reverse, _eval_reverse,
    ),
    OpDef(
        "space_to_depth", "move", operands("x"), {"block": AttrSpec("int")}, TENSOR,
        "Blocks of the plane become channels: [N,C,H,W] to [N,b*b*C,H/b,W/b], block row, block "
        "column, channel in this order.",
        _infer_space_to_depth, _eval_space_to_depth,
    ),
    OpDef(
        "depth_to_space", "move", operands("x"),
        {
            "block": AttrSpec("int"),
            "mode": AttrSpec(
                "str", doc="DCR: block first in the channels; CRD: block last",
                choices=("DCR", "CRD"),
            ),
        },
        TENSOR, "Channels become blocks of the plane: [N,b*b*C,H,W] to [N,C,H*b,W*b].",
        _infer_depth_to_space, _eval_depth_to_space,
    ),
    OpDef(
        "split", "move", operands("x"), {"axis": AttrSpec("int"), "sizes": AttrSpec("ints")},
        TENSOR, "x cut along an axis into parts of the given sizes.",
        _infer_split, _eval_split, results=("part*",),
    ),
    OpDef(
        "tile", "move", operands("x"), {"repeats": AttrSpec("ints", doc="one a dimension")},
        TENSOR, "x repeated along each dimension.", _infer_tile, _eval_tile,
    ),
)  # fmt: skip
