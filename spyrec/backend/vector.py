"""One step of the vector unit: an elementwise program over tiles, maybe folded into a reduction."""

from __future__ import annotations

from collections.abc import Sequence

from spyrec.ir.core import Op, Value
from spyrec.ir.errors import PassError
from spyrec.passes.attrs import entries
from spyrec.passes.kernel import GROUP, Map, rank1, spans
from spyrec.sim.isa import Guard, Instr, Intent, MicroProgram, Num

from .address import border, limit, with_tails
from .claims import extents_of
from .micro import Micro
from .places import Path, Place, Places
from .tree import Body, Stmt

REDUCE_CODE = {
    "reduce_sum": 1, "sum_pool": 1, "conv": 1, "reduce_max": 2, "max_pool": 2, "reduce_min": 3,
    "reduce_prod": 4,
}  # fmt: skip
LOWEST, HIGHEST, ONE = 0xFF800000, 0x7F800000, 0x3F800000  # float32 bit patterns
FILL_BITS = {
    "max_pool": LOWEST, "reduce_max": LOWEST, "reduce_min": HIGHEST, "reduce_prod": ONE
}  # fmt: skip


def vector_step(places: Places, op: Op, body: Body, path: Path, stored: int | None) -> None:
    """Add the `vec` of a compute op. ``stored``: which result of the kernel it is, if one."""
    nest, region = places.nest, op.regions[0]
    head = str(op.attrs.get("head", ""))
    args = list(zip(region.args, op.operands, strict=True))
    ops = region.ops
    carried = places.of.get(op.result) if head else None
    if carried is not None:  # the instruction itself folds into the accumulator
        args, ops = args[:-1], ops[:-1]
    place = carried or _result_place(places, op, body, path, stored)
    places.of[op.result] = place
    tensors = [(a, v) for a, v in args if v not in places.scalar]
    scalars = {a: places.scalar[v] for a, v in args if v in places.scalar}
    reducing = next((o for o in ops if o.name == head), None) if head else None
    maps = [*(places.of[v].map for _, v in tensors), place.map]
    dims, alone = _dims(places, maps, _reduced(places, reducing), path)
    over = places.iteration(dims, path)
    kept = [i for i, d in enumerate(dims) if spans(place.map, d) and d != nest.stick]
    limits = with_tails(places.frame, alone, over.counts, over.limits, path, kept)
    result = ops[-1].result if ops else region.results[0]
    program = _program(tensors, scalars, ops, reducing, result, op.result)
    imm: dict[str, Num] = {"program": places.ctx.program(program)}
    if reducing is not None:
        imm |= _reduction(places, reducing, dims, path, place)
    sources = []
    for _, v in tensors:
        p = places.of[v]
        guards: list[Guard] = []
        if reducing is not None and reducing.attrs.get("strides"):
            guards = _window_borders(places, p, dims, path)
        if guards and reducing is not None:
            imm["fill"] = FILL_BITS.get(reducing.name, 0)
        fmt = "f32" if p.space == "acc" else places.ctx.format(v.type.dtype)
        splat = nest.stick >= 0 and not spans(p.map, nest.stick)
        sources.append(places.operand(p, over, path, fmt, splat=splat, guards=guards))
    kept_as = places.ctx.format(op.result.type.dtype)
    target = places.operand(place, over, path, kept_as, parts=place.layout.group // GROUP)
    claims = (
        places.claim(place, over, path, made=True),
        *(places.claim(places.of[v], over, path) for _, v in tensors),
    )
    ends = [(d, nest.tile[d]) for d in alone]
    intent = Intent(claims, extents_of(places.frame, [*over.dims, *ends], path))
    instr = Instr(
        "vec", over.counts, limits, (target, *sources), imm, where=places.frame.active,
        intents=(intent,),
    )  # fmt: skip
    reads = [places.of[v].buffer for _, v in tensors]
    names = list(dict.fromkeys(o.name for o in ops)) or ["copy"]
    what = f"%{op.result.name} = {', '.join(names[:4])}"
    body.items.append(Stmt(
        "sfp", places.noted(instr, what, op), tuple(b for b in reads if b is not None),
        (place.buffer,) if place.buffer is not None else (),
    ))  # fmt: skip


def _program(
    tensors: Sequence[tuple[Value, Value]], scalars: dict[Value, float], ops: Sequence[Op],
    reducing: Op | None, result: Value, tile: Value,
) -> MicroProgram:
    """What is computed per lane; the reduction itself is the instruction's."""
    micro = Micro([(a, v.type.dtype) for a, v in tensors], scalars)
    for o in ops:
        if o is not reducing:
            micro.add(o)
        elif o.name == "conv":
            micro.multiply(o)
        else:
            micro.alias(o.result, o.operands[0])
    return micro.finish(result, tile.type.dtype)


def _reduced(places: Places, head: Op | None) -> frozenset[int]:
    """Kernel dimensions that a reduction of a vec kernel folds, even if what it reads is the same
    all along; not those along which it reads one element."""
    if head is None or places.nest.kind != "vec":
        return frozenset()
    shape = head.operands[0].type.static_shape
    lead = len(places.nest.extents) - len(shape)
    return frozenset(lead + axis for axis in entries(head, "axes") if shape[axis] > 1)


def _dims(
    places: Places, maps: Sequence[Map], reduced: frozenset[int], path: Path
) -> tuple[list[int], list[int]]:
    """Kernel dimensions the instruction iterates: those it reduces or some operand varies along of
    which a tile holds more than one, and the lanes'. Looped ones of one step that end early on some
    core are iterated too while there is room, and given apart when there is none."""
    nest = places.nest
    varying = {d for d in range(len(nest.extents)) if any(spans(m, d) for m in maps)}
    used = sorted(varying | reduced)
    dims = [d for d in used if nest.tile[d] > 1 or d == nest.stick]
    if len(dims) > 6:
        raise PassError(
            f"codegen: {nest.name} iterates {len(dims)} dimensions at once, six exist; pin tiles "
            f"of 1 (from {places.op.loc})"
        )
    single = [d for d in used if d not in dims and d in path]
    early = [d for d in single if limit(places.frame, d, 1, 1, path) is not None]
    room = 6 - len(dims)
    return sorted(dims + early[:room]), early[room:]


def _result_place(
    places: Places, op: Op, body: Body, path: Path, stored: int | None
) -> Place:
    if stored is None:
        return places.tile(op.result, temporary_map(places, op.result), path, body)
    result, m = places.op.results[stored], places.nest.out_maps[stored]
    if result in places.ctx.homes:
        return places.resident(result, m)
    return places.tile(op.result, m, path, body, result)


def temporary_map(places: Places, v: Value) -> Map:
    """A temporary varies along the leading result dimensions in which its tile is not 1 wide."""
    extents = places.nest.extents
    shape = rank1(v.type)
    lead = places.nest.rank - len(shape)
    return tuple(
        (0, tuple(int(d == lead + i and (e > 1 or x == 1)) for d, x in enumerate(extents)))
        for i, e in enumerate(shape)
    )


def _reduction(
    places: Places, head: Op, dims: Sequence[int], path: Path, place: Place
) -> dict[str, Num]:
    nest = places.nest
    gone = [i for i, d in enumerate(dims) if not spans(place.map, d)]
    imm: dict[str, Num] = {
        "reduce": REDUCE_CODE[head.name], "axes": sum(1 << i for i in gone),
    }  # fmt: skip
    if nest.stick >= 0 and nest.stick in dims and dims.index(nest.stick) in gone:
        imm["lanes"] = 1
        imm["lane_dim"] = dims.index(nest.stick)
        imm["lane_valid"] = nest.extents[nest.stick]
    folded = [i for i, d in enumerate(path) if d not in nest.parallel and d not in nest.whole]
    imm["acc_levels"] = sum(1 << i for i in folded)
    return imm


def _window_borders(places: Places, p: Place, dims: Sequence[int], path: Path) -> list[Guard]:
    index = next(i for i, m in enumerate(places.nest.maps) if m == p.map)
    shape = rank1(places.op.operands[index].type)
    found = []
    for t, row in enumerate(p.map):
        guard = border(row, places.frame, shape[t], [row[1][d] for d in dims], path)
        if t != p.layout.stick_dim and guard is not None:
            found.append(guard)
    return found
