"""Loads and stores of tiles: strided transfers between card memory and tile buffers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from spyrec.ir.core import Op, Value
from spyrec.passes.attrs import whole_number
from spyrec.passes.kernel import Map, spans
from spyrec.passes.tiling import RANK
from spyrec.sim.isa import Claim, Guard, Instr, Intent, Limit, Num, Operand

from .address import (
    base,
    border,
    limit,
    loop_strides,
    mask_of,
    strides_along,
    tail,
    unit_of,
    with_tails,
)
from .claims import second_stick, window_of
from .places import Path, Place, Places
from .streams import group_members
from .tree import Body, Stmt


def load(places: Places, op: Op, body: Body, path: Path) -> None:
    """A tensor in card memory is fetched tile by tile; one in the scratchpads, or one that is a
    number known at compile time, is used where it is."""
    ctx = places.ctx
    i = whole_number(op, "operand")
    outside, m = places.op.operands[i], places.nest.maps[i]
    factor = places.nest.kind == "contract" and i < 2  # the matrix unit takes no immediates
    if outside in ctx.scalars and not factor:
        places.scalar[op.result] = ctx.scalars[outside]
        return
    if outside in ctx.homes:
        places.of[op.result] = places.resident(outside, m)
        return
    if i in places.nest.held:
        places.of[op.result] = places.found(op.result, m, path, outside)
        return
    place = places.tile(op.result, m, path, body, outside)
    assert place.buffer is not None
    if not place.buffer.groups:  # pieces of a tile share a buffer
        place.buffer.groups = sharing(places, m)
        place.buffer.leaders = leaders(places, place.buffer.groups)
    places.of[op.result] = place
    fetch(places, op, place, body, path)


def fetch(places: Places, op: Op, place: Place, body: Body, path: Path) -> None:
    """The load of a tile to its place."""
    i = whole_number(op, "operand")
    outside = places.op.operands[i]
    assert place.buffer is not None
    _, kept = places.nest.kept(i)
    made = transfer(places, "load", outside, place, path, f"p{i}", kept)
    instr = places.noted(made, f"load %{outside.name}", op)
    early = op.result.name in places.ctx.early
    body.items.append(Stmt("ml", instr, (), (place.buffer,), early))


def store(places: Places, op: Op, body: Body, path: Path) -> None:
    """Results that live in the scratchpads were computed in place; others go to card memory, each
    part once: of the cores that share a part of a small result all compute it."""
    i = whole_number(op, "result")
    r = places.op.results[i]
    if r in places.ctx.homes:
        return
    place = places.of[op.operands[0]]
    assert place.buffer is not None
    made = transfer(places, "store", r, place, path, f"r{i}")
    first = (cores[0] for cores in _alike(places, places.nest.out_maps[i]))
    made = replace(made, where=mask_of(first, places.ctx.cores))
    instr = places.noted(made, f"store %{r.name}", op)
    body.items.append(Stmt("ms", instr, (place.buffer,), ()))


def sharing(places: Places, m: Map) -> tuple[int, ...]:
    """Masks of cores that need the same tiles of an operand, at most ``multicast_max`` each; ()
    when none do."""
    most = places.ctx.device.hbm.multicast_max
    groups = []
    for cores in _alike(places, m):
        parts = -(-len(cores) // most)
        size = -(-len(cores) // parts)
        for i in range(0, len(cores), size):
            groups.append(sum(1 << c for c in cores[i : i + size]))
    return tuple(groups) if any(g.bit_count() > 1 for g in groups) else ()


def leaders(places: Places, groups: Collection[int]) -> tuple[int, ...]:
    """The core of each group that loads for it: the first. Where many tiles are read ahead, one
    that loads as little else as can be: what it loads after another tile comes later than what
    other cores load, which go on meanwhile with what is not needed yet."""
    found = []
    for number, mask in enumerate(groups):
        members = [c for c in range(places.ctx.cores) if mask >> c & 1]
        if places.nest.ahead > places.nest.buffers:
            turn = number % len(members)
            members = members[turn:] + members[:turn]
            members.sort(key=lambda c: places.leads[c])
        places.leads[members[0]] += 1
        found.append(members[0])
    return tuple(found)


def _alike(places: Places, m: Map) -> list[list[int]]:
    """The busy cores in groups that work on the same part of a tensor."""
    by_box: dict[object, list[int]] = {}
    for c, r in enumerate(places.frame.ranges):
        if all(n for _, n in r):
            key = tuple(r[d] for d in range(len(r)) if spans(m, d))
            by_box.setdefault(key, []).append(c)
    return list(by_box.values())


def transfer(
    places: Places, name: Literal["load", "store"], tensor: Value, place: Place, path: Path,
    symbol: str, kept: Collection[int] = (),
) -> Instr:
    """One tile between ``tensor`` and its buffer: iterate the tensor's own dimensions, outermost
    memory digit first; what lies outside the tensor is left alone. On later trips of the loops
    ``kept`` there is nothing left to transfer."""
    layout, m, frame = tensor.type.layout, place.map, places.frame
    assert layout is not None and place.buffer is not None
    far, near = strides_along(layout), place.along
    counts: list[Num] = []
    limits: list[Limit | None] = []
    dims: list[int] = []
    for t in sorted(range(len(m)), key=lambda t: -near[t]):
        unit = unit_of(layout, t)
        count = -(-place.layout.shape[t] // unit)
        short = _window_tail(places, m, t, count, unit, path)
        beyond = t != layout.stick_dim and border(m[t], frame, layout.shape[t], [], path)
        if count > 1 or short is not None or beyond:
            counts.append(count)
            limits.append(short)
            dims.append(t)
    limits = _in_other_tails(places, m, dims, counts, limits, path, RANK - (layout.bits > 16))
    guards: list[Guard] = []
    for t, row in enumerate(m):
        strides = [int(t == d) for d in dims]
        guard = border(row, frame, layout.shape[t], strides, path)
        if t == layout.stick_dim or guard is None:
            continue
        guards.append(guard)
    far_strides, near_strides = [far[t] for t in dims], [near[t] for t in dims]
    if layout.bits > 16:
        counts.append(layout.bits // 16)
        limits.append(None)
        far_strides.append(1)
        near_strides.append(1)
        guards = [Guard(g.origin, g.extent, (*g.strides, 0), g.loops) for g in guards]
    if kept:
        if not counts:
            counts, limits = [1], [None]
            far_strides, near_strides, dims = [0], [0], [-1]
        limits[0] = _first_trips(counts[0], limits[0], kept, path)
    fmt = places.ctx.format(tensor.type.dtype)
    outer = Operand(
        "hbm", base(m, layout, frame, far, 0, None), tuple(far_strides), fmt, symbol,
        loop_strides(m, layout, places.nest, path, far), guards=tuple(guards),
    )  # fmt: skip
    inner = Operand(
        "lx", place.address, tuple(near_strides), fmt, rotate=places.rotate(place, path)
    )
    operands = (inner, outer) if name == "load" else (outer, inner)
    shared = name == "load" and place.buffer.groups
    imm = {"cores": group_members(place.buffer, places.ctx.cores)} if shared else {}
    steps = [
        tuple(unit_of(layout, t) if t == d else 0 for t in range(len(m))) for d in dims
    ]
    if layout.bits > 16:
        steps.append(second_stick(layout))
    claim = Claim(places.ctx.ledger.tensor(tensor), window_of(m, frame, steps, path))
    return Instr(
        name, tuple(counts), tuple(limits), operands, imm, where=frame.active,
        intents=(Intent((claim, claim)),),
    )  # fmt: skip


def _first_trips(
    count: Num, limit: Limit | None, loops: Collection[int], path: Path
) -> Limit:
    """The limit of a dimension that has nothing left after the first trip of ``loops``."""
    start = limit.start if limit is not None else count
    most = start if isinstance(start, int) else max(start)
    inner = limit.loops if limit is not None and limit.loops else (0,) * len(path)
    return Limit(start, tuple(n + most * (d in loops) for d, n in zip(path, inner, strict=True)))


def _in_other_tails(
    places: Places, m: Map, dims: list[int], counts: list[Num], limits: list[Limit | None],
    path: Path, room: int,
) -> list[Limit | None]:
    """The limits once dimensions of one step that are there to end early are taken out of ``dims``
    and ``counts``, until ``room`` are left: another dimension ends with them."""
    kept = list(limits)
    ended = []
    for i in reversed(range(len(dims))):
        if len(dims) <= room:
            break
        if counts[i] == 1 and kept[i] is not None:
            ended += [d for d, c in enumerate(m[dims[i]][1]) if c and d in path][:1]
            del dims[i], counts[i], kept[i]
    if not ended:
        return kept
    return list(with_tails(places.frame, ended, counts, kept, path, range(len(counts))))


def _window_tail(
    places: Places, m: Map, t: int, count: int, unit: int, path: Path
) -> Limit | None:
    """Tail of the window along one tensor dimension: as long as the iterations that are left need.
    Of several kernel dimensions that move the window the first that is cut decides."""
    nest, ranges = places.nest, places.frame.ranges
    _, coefs = m[t]
    used = [d for d, c in enumerate(coefs) if c]
    moving = [
        d for d in used
        if d in path or nest.local[d] != nest.tile[d]
        or len({r[d][1] for r in ranges if r[d][1]}) > 1
    ]  # fmt: skip
    if not moving:
        return None
    d = moving[0]
    if len(used) == 1 and coefs[d] == 1:
        return limit(places.frame, d, count, unit, path)
    fixed = 1 + sum(abs(coefs[e]) * (nest.tile[e] - 1) for e in used if e != d)
    sizes = [coefs[d] * (r[d][1] - 1) + fixed if r[d][1] else 0 for r in ranges]
    step = coefs[d] * nest.pace[d] if d in path else 0
    return tail(sizes, count, step, nest.trips(d), d, path)
