"""The rules that kernels and tile bodies obey, one function each; ir/rules.py lists them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any

from .core import Block, Module, Op, Value, walk
from .errors import SpyrecError
from .literals import value_text
from .ops import OPS, infer
from .printer import input_line, output_line
from .tiles import FACTORS, Box, Map, Nest, clip, spans, tile_shape, window
from .types import TensorType

Found = tuple[Op | str, str]  # where (an op, or another line of the text), and what is wrong

LOOPED_KINDS = ("contract", "vec", "fold")
"""Kinds whose tiles are run over by the loops of a tile body."""


def kernels(module: Module) -> Iterator[Op]:
    """The kernels that an affine nest can be read from."""
    for op in module.body.ops:
        if op.name == "kernel" and not any(nest_problems(op)):
            yield op


def is_affine_nest(module: Module, _stage: str) -> Iterator[Found]:
    for op in module.body.ops:
        if op.name != "kernel":
            continue
        found = list(nest_problems(op))
        for sentence in found or plan_problems(op, module.attrs.get("cores")):
            yield op, f"{sentence} (from {op.loc})"


def nest_problems(op: Op) -> Iterator[str]:
    """What keeps ``dims``, ``maps`` and ``out_maps`` from describing an affine nest."""
    attrs: dict[str, Any] = dict(op.attrs)
    dims, maps, out_maps = attrs.get("dims"), attrs.get("maps"), attrs.get("out_maps")
    if not isinstance(dims, tuple) or not all(map(_is_dim, dims)):
        yield f"expected dims ((name, extent), ...), got {dims!r}"
        return
    for what, found, values in (("maps", maps, op.operands), ("out_maps", out_maps, op.results)):
        if not isinstance(found, tuple) or len(found) != len(values):
            yield f"expected {what} with one map for each of {len(values)} tensors, got {found!r}"
            continue
        for v, m in zip(values, found, strict=True):
            if attrs.get("kind") == "move" and what == "maps" and m == ():
                continue  # its pieces say what it reads
            rank = max(1, v.type.rank)
            if attrs.get("kind") == "gather" and what == "maps" and isinstance(m, tuple):
                rank = len(m)  # a row is looked up
            if not _is_map(m, rank, len(dims)):
                yield (
                    f"expected a map of {_show(v)} with {rank} rows (offset, "
                    f"{len(dims)} coefficients), got {m!r}"
                )


def plan_problems(op: Op, cores: object) -> Iterator[str]:
    """What is wrong with how a kernel is divided and tiled, as far as that is decided."""
    nest, attrs = Nest(op), op.attrs
    n = len(nest.extents)
    for name in ("parts", "grains", "tile"):
        if name in attrs and not _positive(attrs[name], n):
            yield f"expected {name} of {n} positive integers, got {attrs[name]!r}"
            return
    if not _positive((attrs.get("buffers", 1),), 1):
        yield f"expected buffers of 1 or more, got {attrs['buffers']!r}"
        return
    if isinstance(cores, int) and prod(nest.parts) > cores:
        yield f"its parts {nest.parts} make {prod(nest.parts)}, the device has {cores} cores"
    divided = [d for d, p in enumerate(nest.parts) if p > 1]
    order = nest.core_order
    if "core_order" in attrs and not (_distinct(order, n) and set(divided) <= set(order)):
        yield f"core_order {order!r} does not order the divided dimensions {divided}"
        return
    folded = [d for d in divided if d not in nest.parallel]
    if any(d != nest.k for d in folded):
        yield f"dimensions {folded} index no result, so they cannot be divided over cores"
    elif folded and [d for d in order if d in divided][-1] != nest.k:
        yield (
            f"{nest.dim_names[nest.k]} is summed over, so the cores that divide it are neighbours: "
            f"its digit is the last of core_order, got {order!r}"
        )
    keep = attrs.get("keep", ())
    factors = range(FACTORS) if nest.kind == "contract" else ()
    if not isinstance(keep, tuple) or not set(keep) <= set(factors):
        yield f"expected keep to name factors of a matrix kernel, got {keep!r}"
        return
    if not nest.held <= nest.keep:
        yield f"expected held to name factors that are kept, got {attrs['held']!r}"
    if "tile" in attrs:
        yield from _tile_problems(nest)
        yield from finish_problems(nest)


def finish_problems(nest: Nest) -> Iterator[str]:
    """Why a kernel's tiles cannot be ended in pieces of ``finish``."""
    end, tile, k, stick = nest.finish, nest.tile, nest.k, nest.stick
    if not end:
        return
    if nest.kind != "contract" or nest.terms > 1 or nest.buffers < 2 or nest.overlap != "all":
        yield "finish is for matrix kernels that sum on one core and overlap loads and stores"
    elif len(end) != len(tile) or any(
        (e > t if d == stick else e != t) for d, (e, t) in enumerate(zip(end, tile, strict=True))
        if d != k
    ):
        yield f"expected finish as the tile {tile!r}, but for fewer columns, got {end!r}"
    elif k not in nest.loops or end[stick] % nest.grain(stick) or end[stick] < 1:
        yield f"expected a loop over the inner dimension and pieces of whole groups, got {end!r}"
    elif tile[stick] % end[stick] and nest.trips(stick) > 1:
        yield f"expected pieces of one width of the tile {tile!r}, got {end!r}"
    elif not 0 < end[k] < nest.local[k] or (nest.local[k] - end[k]) % tile[k]:
        yield f"expected finish to leave whole trips of the inner dimension, got {end!r}"
    elif not 2 <= nest.ending <= min(nest.ahead, nest.trips(k) - 2) or nest.trips(k) % nest.ahead:
        yield (
            f"expected finish to take two trips or more of {nest.trips(k)} over the inner "
            "dimension and to leave as many, and ahead slots for them that divide the trips, got "
            f"{end!r} and {nest.ahead}"
        )
    elif len(nest.pieces) < 2:
        yield f"expected finish with fewer columns than the tile {tile!r}, got {end!r}"
    else:
        last = (tile[stick] - 1) // end[stick] * end[stick]
        least = min(r[stick][1] for r in nest.core_ranges if all(n for _, n in r))
        if least <= last:
            yield f"a core has {least} columns, none of the last piece of {end!r}"


def _tile_problems(nest: Nest) -> Iterator[str]:
    n = len(nest.extents)
    if not _distinct(nest.loops, n):
        yield f"loops {nest.loops!r} are not distinct dimensions"
        return
    for d, (tile, extent) in enumerate(zip(nest.tile, nest.extents, strict=True)):
        if tile > max(1, extent):
            yield f"the tile of {nest.dim_names[d]} is {tile}, more than its extent {extent}"
        if nest.kind in LOOPED_KINDS and nest.trips(d) > 1 and d not in nest.loops:
            yield f"{nest.dim_names[d]} takes {nest.trips(d)} tiles on a core, but has no loop"


def has_home(module: Module, stage: str) -> Iterator[Found]:
    if stage == "tensor":
        return  # rule 12 speaks of it
    homes: dict[Value, tuple[Box, ...]] = {}
    for v in module.body.args:
        if v.type.space == "lx":
            yield input_line(v), f"{_show(v)} is an input, so it must be in card memory"
    for op in module.body.ops:
        if op.name == "kernel":
            for i, v in enumerate(op.operands):
                if v in homes:
                    yield from _missing(op, i, homes[v])
        for i, v in enumerate(op.results):
            boxes = home_boxes(op, i)
            if (boxes is not None) != (v.type.space == "lx"):
                where = "in the scratchpads, but has no home there" if boxes is None else (
                    "given a home in the scratchpads, but its type does not say so"
                )
                yield op, f"{_show(v)} is {where} (from {op.loc})"
            if boxes is not None:
                homes[v] = boxes
    for i, v in enumerate(module.body.results):
        if v.type.space == "lx":
            yield output_line(module, i), f"{_show(v)} is an output, so it must be in card memory"


def home_boxes(op: Op, index: int) -> tuple[Box, ...] | None:
    """For each core the box of a result that it holds."""
    attrs: dict[str, Any] = dict(op.attrs)
    if op.name == "relayout":
        return attrs.get("boxes")
    return next((boxes for i, boxes in attrs.get("resident", ()) if i == index), None)


def _missing(op: Op, index: int, boxes: Sequence[Box]) -> Iterator[Found]:
    """Each core of a reader holds what its maps reach of an operand."""
    nest = Nest(op)
    if op.attrs.get("kind") not in LOOPED_KINDS or any(nest_problems(op)):
        return
    v = op.operands[index]
    shape = v.type.static_shape or (1,)
    for core, ranges in enumerate(nest.reading(index)):
        need = clip(window(nest.maps[index], ranges), shape)
        if all(n for _, n in need) and not (core < len(boxes) and _inside(need, boxes[core])):
            held = boxes[core] if core < len(boxes) else "nothing"
            yield op, (
                f"core {core} reads {need} of {_show(v)}, but holds {held}; put a relayout before "
                f"it (from {op.loc})"
            )
            return


def _inside(inner: Box, outer: Box) -> bool:
    return all(a <= s and s + n <= a + m for (s, n), (a, m) in zip(inner, outer, strict=True))


def tiles_cover(module: Module, _stage: str) -> Iterator[Found]:
    for op in kernels(module):
        tiled = op.attrs.get("tiled") is True
        if not tiled or any(plan_problems(op, None)) or not _sound(op.regions[0]):
            continue
        nest = Nest(op)
        stores: dict[int, int] = dict.fromkeys(range(len(op.results)), 0)
        for inner, path, carried, ends in _walk(op.regions[0], (), False):
            here = nest.pieces[0] if ends and nest.finish else nest
            for sentence in _tile_op_problems(op, here, inner, path, carried):
                yield inner, f"{sentence} (from {op.loc})"
            if inner.name == "store":
                index = _int(inner, "result")
                stores[index] = stores.get(index, 0) + 1
        for i, count in stores.items():
            if count != 1 or i >= len(op.results):
                yield op, (
                    f"expected one store of each result, got {count} of result {i} (from {op.loc})"
                )


def _sound(block: Block) -> bool:
    """Do the tile ops obey their own rules? If not, rule 6 speaks of it."""
    for op in walk(block):
        if op.name in OPS and OPS[op.name].family == "tile":
            types, declared = [v.type for v in op.operands], [v.type for v in op.results]
            try:
                infer(op.name, types, op.attrs, op.loc, regions=op.regions, declared=declared)
            except SpyrecError:
                return False
    return True


def _walk(
    block: Block, path: tuple[int, ...], carried: bool, ends: bool = False
) -> Iterator[tuple[Op, tuple[int, ...], bool, bool]]:
    """Tile ops with the dimensions of the loops around, whether one of those carries values, and
    whether they end a tile piece by piece."""
    for op in block.ops:
        yield op, path, carried, ends
        if op.name == "for":
            inside = (*path, _int(op, "dim"))
            yield from _walk(op.regions[0], inside, carried or bool(op.operands), ends)
        elif op.name == "finish":
            yield from _walk(op.regions[0], path, carried, True)


def _tile_op_problems(
    op: Op, nest: Nest, inner: Op, path: tuple[int, ...], carried: bool
) -> Iterator[str]:
    yield from _term_problems(nest, inner, carried)
    match inner.name:
        case "for":
            yield from _loop_problems(nest, (*path, _int(inner, "dim")), bool(inner.operands))
        case "load":
            index, args = _int(inner, "operand"), op.regions[0].args
            if index >= len(args) or inner.operands[0] is not args[index]:
                yield f"operand {index} of the kernel is not {_show(inner.operands[0])}"
                return
            m = nest.maps[index]
            yield from _shape_problems(nest, m, inner.result.type, "a tile")
            late = [d for d in nest.loops if spans(m, d) and d not in path]
            if late:
                yield f"the operand varies along {_names(nest, late)}; load it inside their loops"
        case "store":
            index = _int(inner, "result")
            if index >= len(op.results):
                return  # the count of stores tells
            tile, result = inner.operands[0].type, op.results[index].type
            yield from _shape_problems(nest, nest.out_maps[index], tile, "a tile to store")
            if tile.dtype != result.dtype:
                yield f"expected a tile of {result.dtype} to store, got {tile.dtype}"
            late = [d for d in nest.loops if spans(nest.out_maps[index], d) and d not in path]
            if late:
                yield f"the result varies along {_names(nest, late)}; store it inside their loops"
            if carried:
                yield "a store stands in a loop that carries values, so it is not of final ones"
        case "finish":
            if carried or not nest.finish:
                yield "a finish stands where nothing is left to multiply"
        case "compute" | "init" | "psum":
            return
        case _:
            yield f"{inner.name} stands in a tile body; tensor ops stand only inside a compute"


def _term_problems(nest: Nest, inner: Op, carried: bool) -> Iterator[str]:
    """Where cores divide a summed dimension the matrix unit makes terms, which psum alone adds
    up."""
    matrix = inner.name == "compute" and inner.attrs.get("unit") == "pt"
    made = [_terms(v) for v in inner.results]
    if matrix and made != [nest.terms]:
        yield f"{nest.terms} cores hold a term of the result, but its layout says {made[0]}"
    if matrix or inner.name in ("for", "psum"):
        if inner.name == "psum" and carried:
            yield "a psum stands in a loop that carries values, so it is not of whole terms"
        return
    for v in inner.operands:
        if _terms(v) > 1:
            yield f"{_show(v)} is one of {_terms(v)} terms; only psum makes a sum of them"


def _terms(v: Value) -> int:
    return 1 if v.type.layout is None else v.type.layout.terms


def _loop_problems(nest: Nest, path: tuple[int, ...], carries: bool) -> Iterator[str]:
    dim = path[-1]
    if dim not in nest.loops:
        yield f"dimension {dim} is none of the kernel's loops {nest.loops}"
        return
    order = [nest.loops.index(d) for d in path if d in nest.loops]
    if any(a >= b for a, b in pairwise(order)):
        yield f"loops {path} are not nested as the kernel's loops {nest.loops} are"
    if carries and dim in nest.parallel:
        yield f"{_names(nest, [dim])} indexes a result, so its loop must not carry values"


def _shape_problems(nest: Nest, m: Map, type_: TensorType, what: str) -> Iterator[str]:
    want = tile_shape(m, nest.tile)
    if type_.shape != want:
        yield f"expected {what} of shape {list(want)}, as the maps give, got {list(type_.shape)}"


def _names(nest: Nest, dims: Sequence[int]) -> str:
    return ", ".join(nest.dim_names[d] for d in dims)


def _is_dim(value: object) -> bool:
    match value:
        case (str(), int(extent)) if extent >= 0:
            return True
    return False


def _is_map(value: object, rows: int, dims: int) -> bool:
    return isinstance(value, tuple) and len(value) == rows and all(_is_row(v, dims) for v in value)


def _is_row(value: object, dims: int) -> bool:
    match value:
        case (int(), tuple() as coefs):
            return len(coefs) == dims and all(isinstance(c, int) for c in coefs)
    return False


def _positive(value: object, n: int) -> bool:
    if not isinstance(value, tuple) or len(value) != n:
        return False
    return all(isinstance(v, int) and v >= 1 for v in value)


def _distinct(value: object, n: int) -> bool:
    if not isinstance(value, tuple) or len(set(value)) != len(value):
        return False
    return all(d in range(n) for d in value)


def _int(op: Op, name: str) -> int:
    return int(op.attrs[name])  # type: ignore[arg-type]


def _show(value: Value) -> str:
    return value_text(value.name)
