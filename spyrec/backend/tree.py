"""A kernel as one tree of statements and loops, as if a single unit did everything in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from spyrec.ir.errors import PassError
from spyrec.sim.isa import Instr


@dataclass(eq=False)
class Buffer:
    """A tile buffer of ``slots`` rotating slots. ``groups``: masks of cores that share one
    multicast load; empty when each core loads for itself. ``leaders``: the core of each group that
    loads, the lowest unless given. ``together``: all cores touch it, and a slot is free when all
    have read theirs."""

    name: str
    slots: int = 1
    groups: tuple[int, ...] = ()
    leaders: tuple[int, ...] = ()
    together: bool = False

    def led(self) -> tuple[tuple[int, int], ...]:
        """The groups, each with the core that loads for it."""
        lowest = ((mask & -mask).bit_length() - 1 for mask in self.groups)
        return tuple(zip(self.groups, self.leaders or lowest, strict=True))


@dataclass(eq=False)
class Stmt:
    """One instruction without tokens. ``early``: it touches neither tensors of earlier kernels nor
    scratchpad that they may still use, so it need not wait for them."""

    unit: str
    instr: Instr
    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()
    early: bool = False


@dataclass(eq=False)
class Body:
    """Statements in order; ``scoped`` lists the buffers produced anew each time the body runs.
    ``takes``: buffers of which it reads what another body before it has produced, once each time it
    runs; ``gives``: those that it then frees, read before in other bodies."""

    items: list[Stmt | LoopStmt] = field(default_factory=list)
    scoped: list[Buffer] = field(default_factory=list)
    takes: list[Buffer] = field(default_factory=list)
    gives: list[Buffer] = field(default_factory=list)


@dataclass(eq=False)
class LoopStmt:
    """``count`` trips of a body. With one trip it only groups: its streams have no loop."""

    count: int
    body: Body


def statements(body: Body) -> Iterator[Stmt]:
    """All statements of a body, loops included, each once, in order."""
    for item in body.items:
        if isinstance(item, LoopStmt):
            yield from statements(item.body)
        else:
            yield item


def restrain(root: Body, buffers: int, overlap: str) -> None:
    """Keep the trips of a core as far apart as ``Nest.buffers`` and ``Nest.overlap`` say."""
    if buffers == 1 or overlap == "loads":
        _take_turns(root, "ml", buffers)
    if overlap == "loads":
        for unit in ("pt", "sfp"):
            _take_turns(root, unit, 1, together=True)


def _take_turns(body: Body, unit: str, slots: int, together: bool = False) -> None:
    """Make what ``unit`` does in each trip of the loops in ``body`` wait until the stores of the
    trip ``slots`` before have read their tiles, those of all cores when ``together``: as if all
    were one buffer of so many slots."""
    turn = Buffer(f"{unit}_turn", slots, together=together)
    trips = [item.body for item in body.items if isinstance(item, LoopStmt)]
    for trip in trips:
        _take_turns(trip, unit, slots, together)
        stores = [s for s in statements(trip) if s.unit == "ms"]
        if stores and any(s.unit == unit for s in statements(trip)):
            first = Stmt(unit, Instr("sync"), (), (turn,), early=unit == "ml")
            trip.items.insert(0, first)
            trip.scoped.append(turn)
            for s in stores:
                s.reads = (*s.reads, turn)


def check_tree(root: Body) -> None:
    """PassError unless every buffer can be kept in step by tokens: one unit writes it; each touch
    lies in exactly one body it is scoped to; there no write follows a read by another unit; what
    a group shares is loaded by one statement that stands directly in that body."""
    touched: dict[Buffer, int] = {}
    writers: dict[Buffer, set[str]] = {}
    for s in statements(root):
        for b in {*s.reads, *s.writes}:
            touched[b] = touched.get(b, 0) + 1
        for b in s.writes:
            writers.setdefault(b, set()).add(s.unit)
    for b in touched:
        units = writers.get(b, set())
        if len(units) != 1:
            found = ", ".join(sorted(units)) or "no unit"
            raise PassError(f"codegen: buffer {b.name} is written by {found}, expected one unit")
    for body in _bodies(root):
        for b in body.scoped:
            inside = [s for s in statements(body) if b in s.reads or b in s.writes]
            if inside:
                touched[b] -= len(inside)
                _check_scope(b, min(writers[b]), inside, body)
        for b in (*body.takes, *body.gives):
            touched[b] -= sum(b in s.reads for s in statements(body))
    for b, left in touched.items():
        if left:
            where = "outside the bodies it is scoped to" if left > 0 else "in two scopes at once"
            raise PassError(f"codegen: buffer {b.name} is touched {where}")


def _check_scope(b: Buffer, writer: str, inside: list[Stmt], body: Body) -> None:
    writes = [i for i, s in enumerate(inside) if b in s.writes]
    reads = [i for i, s in enumerate(inside) if b in s.reads and s.unit != writer]
    if not writes or (reads and reads[0] < writes[-1]):
        raise PassError(
            f"codegen: buffer {b.name} is read before {writer} has written it; in each trip of its "
            "scope all writes must come first"
        )
    if b.groups and (len(writes) != 1 or inside[writes[0]] not in body.items):
        raise PassError(
            f"codegen: buffer {b.name} is shared by groups of cores, so it needs one load directly "
            f"in the body it is scoped to, got {len(writes)} writes"
        )


def _bodies(body: Body) -> Iterator[Body]:
    yield body
    for item in body.items:
        if isinstance(item, LoopStmt):
            yield from _bodies(item.body)
