"""The rules that addresses obey: what is needed at the same time lies apart."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from .core import Block, Module, Op, Value, uses, walk
from .layout import Layout
from .literals import value_text
from .printer import input_line
from .rules_kernel import Found, home_boxes

STICK_BYTES = 128


@dataclass(frozen=True)
class Room:
    """Bytes ``start`` to ``end`` (not included) that hold ``name`` at the times ``first`` to
    ``last`` (included); ``where``: what asks for them."""

    first: int
    last: int
    start: int
    end: int
    name: str
    where: Op | str


def apart_in_memory(module: Module, _stage: str) -> Iterator[Found]:
    given: Any = module.attrs.get("hbm")
    if not isinstance(given, tuple):
        return
    places = {name: (address, size) for name, address, size in given}
    rooms = []
    for v, where, first, last in _tensors(module):
        if v.name not in places:
            yield where, f"{value_text(v.name)} has no place in card memory{_from(where)}"
            continue
        address, size = places[v.name]
        if v.type.layout is not None and size < (least := v.type.layout.sticks * STICK_BYTES):
            yield where, (
                f"{value_text(v.name)} takes {least} bytes of card memory, its place has {size}"
                f"{_from(where)}"
            )
        rooms.append(Room(first, last, address, address + size, v.name, where))
    yield from _clashes(rooms, "card memory")


def _tensors(module: Module) -> Iterator[tuple[Value, Op | str, int, int]]:
    """What lies in card memory, what makes it, and the first and last op that need it there."""
    body = module.body
    position = {op: i for i, op in enumerate(body.ops)}
    readers, outputs, end = uses(body), set(body.results), len(body.ops)
    for v in body.args:
        yield v, input_line(v), 0, end
    for i, op in enumerate(body.ops):
        for v in op.results:
            if v.type.space == "lx":
                continue
            if op.name == "constant" or v in outputs:
                yield v, op, 0, end
            else:
                last = max((position.get(u, i) for u, _ in readers.get(v, ())), default=i)
                yield v, op, i, last


def apart_in_scratchpads(module: Module, _stage: str) -> Iterator[Found]:
    ops = module.body.ops
    if not any(op.name == "kernel" and "lx" in op.attrs for op in ops):
        return
    launch, count = {}, 0
    for op in ops:
        launch[op] = count
        count += op.name == "kernel"
    readers = uses(module.body)
    owner: dict[Value, Value] = {}  # whose room a tensor takes over
    last: dict[Value, int] = {}
    for op in ops:
        pairs: Any = op.attrs.get("in_place", ())
        for result, operand in pairs:
            v = op.operands[operand]
            owner[op.results[result]] = owner.get(v, v)
        for v in op.results:
            until = max((launch.get(u, 0) for u, _ in readers.get(v, ())), default=0)
            mine = owner.get(v, v)
            last[mine] = max(last.get(mine, 0), until, launch[op])
    rooms: list[Room] = []
    for op in ops:
        rooms += _tensor_rooms(op, launch[op], last, owner)
        if op.name == "kernel":
            rooms += _tile_rooms(op, launch[op])
    yield from _clashes(rooms, "the scratchpads")


def _tensor_rooms(
    op: Op, launch: int, last: Mapping[Value, int], owner: Mapping[Value, Value]
) -> Iterator[Room]:
    """Those of an op's results that stay in the scratchpads, each from its own launch on; not of
    those that have another tensor's."""
    for i, v in enumerate(op.results):
        boxes, like = home_boxes(op, i), v.type.layout
        address = op.attrs.get("lx") if op.name == "relayout" else _places(op).get(v.name)
        if boxes is None or like is None or v in owner or not isinstance(address, int):
            continue
        shape = tuple(max(1, *(box[d][1] for box in boxes)) for d in range(len(boxes[0])))
        size = Layout.stick(shape, like.bits, like.stick_dim).sticks * STICK_BYTES
        yield Room(launch, last[v], address, address + size, v.name, op)


def _tile_rooms(op: Op, launch: int) -> Iterator[Room]:
    """Those of a kernel's buffers for tiles. Of a move's or a look-up's, of which the body says
    nothing, only a stick a slot is known here. A tile in the place of another has none."""
    given: Any = op.attrs.get("lx", ())
    early: Any = op.attrs.get("early", ())
    tiles = {v.name: v for v in _tiles(op.regions)}
    kept = {v.name for v in op.results}
    sharing = {v.name for o in _inside(op.regions) if "room" in o.attrs for v in o.results}
    for name, address, slots in given:
        if name in kept or name in sharing:
            continue
        layout = tiles[name].type.layout if name in tiles else None
        size = (1 if layout is None else layout.sticks) * STICK_BYTES * slots
        yield Room(launch - (name in early), launch, address, address + size, name, op)


def _inside(blocks: Iterable[Block]) -> Iterator[Op]:
    for block in blocks:
        yield from walk(block)


def _tiles(blocks: Iterable[Block]) -> Iterator[Value]:
    for op in _inside(blocks):
        yield from op.results


def _places(op: Op) -> Mapping[str, int]:
    given: Any = op.attrs.get("lx", ())
    return {name: address for name, address, _ in given}


def _clashes(rooms: Iterable[Room], what: str) -> Iterator[Found]:
    """Each room that shares bytes with a neighbour that is there when it comes."""
    there: list[tuple[int, int, Room]] = []  # by address
    leaving: list[tuple[int, int, int]] = []  # a heap, the first to leave on top
    for n, room in enumerate(sorted(rooms, key=lambda r: (r.first, r.start, r.name))):
        if room.start >= room.end:
            continue
        while leaving and leaving[0][0] < room.first:
            _, start, number = heappop(leaving)
            del there[bisect_left(there, (start, number), key=lambda entry: entry[:2])]
        at = bisect_left(there, (room.start, n), key=lambda entry: entry[:2])
        for _, _, other in there[max(at - 1, 0) : at + 1]:
            if other.start < room.end and room.start < other.end:
                yield room.where, (
                    f"{value_text(room.name)} and {value_text(other.name)} are needed at the same "
                    f"time, but both lie at byte {max(room.start, other.start)} of {what}"
                    f"{_from(room.where)}"
                )
                break
        there.insert(at, (room.start, n, room))
        heappush(leaving, (room.last, room.start, n))


def _from(where: Op | str) -> str:
    return f" (from {where.loc})" if isinstance(where, Op) else ""
