"""Tile-stage ops, which stand only inside kernels: what one core does, one tile at a time.

Their meaning needs the kernel around them (its maps and the core's ranges): ir/run_tiles.py has it.
"""

from __future__ import annotations

from spyrec.ir.types import DTYPES, TensorType

from .control import check_values, plain
from .shapes import show_type, static_dims
from .spec import Attrs, AttrSpec, OpDef, Site, Types, operands

TILE = frozenset({"tile"})
F32 = DTYPES["f32"]


def working(type_: TensorType) -> TensorType:
    """The plain type of a tile inside a computation: the units work on floats in f32."""
    return TensorType(type_.shape, F32 if type_.dtype.kind == "float" else type_.dtype)


def _declared(site: Site) -> TensorType:
    """The one type that the op states for its result; it depends on the kernel around."""
    if site.declared is None or len(site.declared) != 1:
        raise site.error("its result type follows from the kernel around it; state one")
    static_dims(site.declared[0].shape, "a dimension of a tile", site)
    return site.declared[0]


def _infer_for(types: Types, attrs: Attrs, site: Site) -> Types:
    if attrs["dim"] < 0:
        raise site.error(f"expected a kernel dimension, got dim = {attrs['dim']}")
    body = site.regions[0]
    carried = tuple(plain(t) for t in types)
    check_values(body.args, carried, "arguments of the body, as what is carried,", site)
    check_values(body.results, carried, "results of the body, as what is carried,", site)
    return carried


def _infer_finish(types: Types, attrs: Attrs, site: Site) -> Types:
    whole, body = types[0], site.regions[0]
    args = [v.type for v in body.args]
    if len(args) != 1 or (args[0].dtype, args[0].rank) != (whole.dtype, whole.rank):
        listed = ", ".join(map(show_type, args)) or "none"
        raise site.error(
            f"expected one argument of the body, a piece of {show_type(whole)}; got {listed}"
        )
    check_values(body.results, (), "results of the body", site)
    return ()


def _infer_load(types: Types, attrs: Attrs, site: Site) -> Types:
    source, tile = types[0], _declared(site)
    if attrs["operand"] < 0:
        raise site.error(f"expected the number of a kernel operand, got {attrs['operand']}")
    if tile.dtype != source.dtype or tile.rank != max(1, source.rank):
        raise site.error(
            f"expected a tile of {source.dtype} and rank {max(1, source.rank)}, as its source has, "
            f"got {show_type(tile)}"
        )
    return (plain(tile),)


def _infer_init(types: Types, attrs: Attrs, site: Site) -> Types:
    return (plain(_declared(site)),)


def _infer_compute(types: Types, attrs: Attrs, site: Site) -> Types:
    result, body = _declared(site), site.regions[0]
    read = tuple(working(t) for t in types)
    check_values(body.args, read, "region arguments, as the tiles with floats in f32,", site)
    made = (working(result),)
    check_values(body.results, made, "a region result, as the tile with floats in f32,", site)
    if attrs["head"] and all(op.name != attrs["head"] for op in body.ops):
        raise site.error(f"its head is {attrs['head']}, which its region does not hold")
    return (plain(result),)


def _infer_psum(types: Types, attrs: Attrs, site: Site) -> Types:
    tile = types[0]
    if tile.layout is None or tile.layout.terms == 1:
        raise site.error(f"expected a tile of which cores hold terms, got {show_type(tile)}")
    return (plain(tile),)


def _infer_store(types: Types, attrs: Attrs, site: Site) -> Types:
    if attrs["result"] < 0:
        raise site.error(f"expected the number of a kernel result, got {attrs['result']}")
    return ()


DEFS: tuple[OpDef, ...] = (
    OpDef(
        "for", "tile", operands("carried*"),
        {"dim": AttrSpec("int", doc="the kernel dimension whose tiles it runs over")},
        TILE,
        "Runs the region (carried...) -> (carried...) for each tile of a kernel dimension that the "
        "core has; gives what was carried last.",
        _infer_for, None, regions=1, results=("carried*",),
    ),
    OpDef(
        "finish", "tile", operands("sums"), {},
        TILE,
        "Runs the region (piece) -> () for each piece of the columns of a tile of sums, over the "
        "inner elements that the loop before it has left.",
        _infer_finish, None, regions=1, results=(),
    ),
    OpDef(
        "load", "tile", operands("x"),
        {
            "operand": AttrSpec("int", doc="number of the kernel operand that x stands for"),
            "fill": AttrSpec("float", 0.0, "of what lies outside the tensor"),
        },
        TILE,
        "The window of a kernel operand that the current trip needs; elements beyond a tail are "
        "undefined.",
        _infer_load, None, results=("tile",),
    ),
    OpDef(
        "init", "tile", operands(""), {"value": AttrSpec("float", doc="of every element")},
        TILE, "A tile of one value, to accumulate into.", _infer_init, None, results=("tile",),
    ),
    OpDef(
        "compute", "tile", operands("tile*"),
        {
            "unit": AttrSpec("str", doc="matrix or vector unit", choices=("pt", "sfp")),
            "head": AttrSpec("str", "", "the matmul, conv, window or reduction in it, if any"),
            "room": AttrSpec("int", -1, "the tile whose place the result takes; -1: its own"),
        },
        TILE,
        "One instruction: the region on the tiles, floats in f32, rounded once to the result.",
        _infer_compute, None, regions=1, results=("tile",),
    ),
    OpDef(
        "psum", "tile", operands("tile"), {},
        TILE,
        "The sum of a tile over the neighbouring cores that hold terms of it, as each adds its own "
        "and passes it on; the last has it and goes on, on the others the block ends here.",
        _infer_psum, None, results=("tile",),
    ),
    OpDef(
        "store", "tile", operands("tile"),
        {"result": AttrSpec("int", doc="number of the kernel result")},
        TILE, "Writes the part of a tile inside the core's range to a kernel result.",
        _infer_store, None, results=(),
    ),
)  # fmt: skip
