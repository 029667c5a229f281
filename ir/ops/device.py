"""Device-stage ops: kernels around tensor ops, affine data movement, changes of layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from spyrec.ir.core import Value
from spyrec.ir.types import TensorType

from .control import check_values, plain
from .shapes import need_same_dtype, show_type, static_dims
from .spec import NO_ATTRS, Array, Arrays, Attrs, AttrSpec, OpDef, Site, Types, operands
from .tile import F32, working

DEVICE = frozenset({"device", "tile"})

Affine = tuple[int, tuple[int, ...]]  # offset, one coefficient a count
Piece = tuple[int, tuple[int, ...], tuple[Affine, ...], tuple[Affine, ...]]


def _infer_kernel(types: Types, attrs: Attrs, site: Site) -> Types:
    """The region is the meaning: its arguments are the operands, its yield the results. Stated
    result types may add layouts and spaces."""
    body = site.regions[0]
    if attrs.get("tiled") is not True:
        types = _as_computed(body.args, types)
    check_values(body.args, types, "region arguments, as the operands,", site)
    if attrs.get("tiled") is True:  # the body stores its results tile by tile
        if site.declared is None:
            raise site.error("the result types of a tiled kernel follow from no yield; state them")
        check_values(body.results, (), "region results of a tiled kernel", site)
        return site.declared
    if site.declared is None:
        return tuple(plain(v.type) for v in body.results)
    results = _as_computed(body.results, site.declared)
    check_values(body.results, results, "region results, as the kernel's results,", site)
    return site.declared


def _as_computed(values: Sequence[Value], types: Types) -> Types:
    """What the region may have for these types: a float may stand in it in f32, as the machine has
    it in its registers; results are rounded when they leave the kernel."""
    if len(values) != len(types):
        return types
    return tuple(
        working(t) if v.type.dtype == F32 else t for v, t in zip(values, types, strict=True)
    )


def _infer_move(types: Types, attrs: Attrs, site: Site) -> Types:
    if not types:
        raise site.error("expected one operand or more, got none")
    need_same_dtype(types, site)
    shape = static_dims(attrs["shape"], "the result shape", site)
    for number, piece in enumerate(attrs["pieces"]):
        if not _well_formed(piece):
            raise site.error(
                f"piece {number} must be (operand index, counts, one (offset, coefficients) a "
                f"source dimension, one a result dimension), got {piece!r}"
            )
        index, counts, src, dst = piece
        if not 0 <= index < len(types):
            raise site.error(f"piece {number} reads operand {index}, but there are {len(types)}")
        source = static_dims(types[index].shape, "a dimension of an operand", site)
        _check_box(counts, src, source, f"piece {number} reads", types[index], site)
        result = TensorType(shape, types[0].dtype)
        _check_box(counts, dst, shape, f"piece {number} writes", result, site)
    return (TensorType(shape, types[0].dtype),)


def _well_formed(piece: object) -> bool:
    match piece:
        case (int(), tuple() as counts, tuple() as src, tuple() as dst):
            return _ints(counts) and all(_affine(a, len(counts)) for a in (*src, *dst))
    return False


def _affine(value: object, counts: int) -> bool:
    match value:
        case (int(), tuple() as coefs):
            return len(coefs) == counts and _ints(coefs)
    return False


def _ints(values: Sequence[object]) -> bool:
    return all(isinstance(v, int) for v in values)


def _check_box(
    counts: Sequence[int],
    maps: Sequence[Affine],
    extents: Sequence[int],
    what: str,
    type_: TensorType,
    site: Site,
) -> None:
    """Every index of the box stays inside ``extents``."""
    if len(maps) != len(extents):
        raise site.error(f"{what} {len(maps)} dimensions of {show_type(type_)}")
    if min(counts, default=1) < 0:
        raise site.error(f"{what} a box of counts {tuple(counts)}; they must not be negative")
    if 0 in counts:
        return
    for dim, ((offset, coefs), extent) in enumerate(zip(maps, extents, strict=True)):
        reach = [c * (n - 1) for c, n in zip(coefs, counts, strict=True)]
        low = offset + sum(r for r in reach if r < 0)
        high = offset + sum(r for r in reach if r > 0)
        if low < 0 or high >= extent:
            raise site.error(
                f"{what} indices {low}..{high} along dimension {dim} of {show_type(type_)}"
            )


def _eval_move(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    first = arrays[0]
    result: Array = np.full(types[0].static_shape, first.dtype.type(attrs["fill"]), first.dtype)
    for index, counts, src, dst in attrs["pieces"]:
        if 0 not in counts:
            _view(result, counts, dst)[...] = _view(arrays[index], counts, src)
    return (result,)


def _view(array: Array, counts: Sequence[int], maps: Sequence[Affine]) -> Array:
    """The elements that the affine maps name for each index of the box, without copying. The
    bounds were checked by ``_check_box``."""
    starts: tuple[Any, ...] = tuple(slice(offset, None) for offset, _ in maps)
    origin = array[(..., *starts)]  # with ... it is a view also of rank 0
    strides = [
        sum(coefs[i] * stride for (_, coefs), stride in zip(maps, array.strides, strict=True))
        for i in range(len(counts))
    ]
    return as_strided(origin, tuple(counts), strides)


def _infer_same(types: Types, attrs: Attrs, site: Site) -> Types:
    return (plain(types[0]),)


def _eval_same(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (arrays[0],)


DEFS: tuple[OpDef, ...] = (
    OpDef(
        "kernel", "device", operands("x*"),
        {
            "kind": AttrSpec("str", doc="contract, vec, fold, move or gather: how it runs"),
            "name": AttrSpec("str"),
            "dims": AttrSpec("tuple", doc="(name, extent) of each iteration dimension"),
            "maps": AttrSpec("tuple", doc="from iteration point to coordinate, one an operand; "
                                          "out_maps has one a result"),
        },
        DEVICE,
        "One affine loop nest on one unit; its region says what it computes, in tensor ops or, "
        "once tiled, for one core in tile ops.",
        _infer_kernel, None, regions=1, open_attrs=True, results=("result*",),
    ),
    OpDef(
        "move", "device", operands("x*"),
        {
            "shape": AttrSpec("ints", doc="of the result"),
            "fill": AttrSpec("float", 0.0, "of elements that no piece writes"),
            "pieces": AttrSpec("tuple", doc="(operand index, counts, source map, result map); a "
                                            "map is (offset, coefficients) a dimension"),
        },
        DEVICE | {"tensor"},
        "For each piece in order and each index i of its box of counts: result[dst(i)] = "
        "operand[src(i)].",
        _infer_move, _eval_move, open_attrs=True,
    ),
    OpDef(
        "relayout", "device", operands("x"), NO_ATTRS, DEVICE,
        "The same values under another ownership by cores.", _infer_same, _eval_same,
        open_attrs=True,
    ),
    OpDef(
        "restickify", "device", operands("x"), NO_ATTRS, DEVICE,
        "The same values with another dimension in the sticks.", _infer_same, _eval_same,
        open_attrs=True,
    ),
)  # fmt: skip
