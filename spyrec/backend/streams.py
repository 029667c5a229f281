"""From statements in one order to a stream per unit, with the tokens that keep the units in step.

A kernel is first written as one tree of statements and loops, as if a single unit did everything. Each
statement says which scratchpad or accumulator buffers it reads and writes. A buffer is produced anew in every trip
of the loop body it belongs to (its scope) by one unit, and has one or more slots that rotate. For each unit
that reads what another wrote there are two counting tokens: *full* (a slot has been written) and *free* (a slot has been
read). The reader hands out one *free* per slot at the start.

A multicast load fills the same slot on several cores at once, so it waits for each of them. Every member of the group
has its own *free* token on the leader: in one shared counter two credits of a fast member could stand for a slow
one's, and the load would overwrite a slot still being read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from spyrec.ir.errors import CapacityError
from spyrec.sim.isa import GO, UNITS, Instr, Loop, Num, Signal, Stream, Wait

MAX_TOKENS = 255


@dataclass(eq=False)
class Buffer:
    """A tile buffer of ``slots`` rotating slots. ``groups``: masks of cores that share one multicast load,
    leader the lowest core; empty when each core loads for itself."""

    name: str
    slots: int = 1
    groups: tuple[int, ...] = ()


@dataclass(eq=False)
class Stmt:
    """One instruction without tokens. ``early``: it touches neither tensors of earlier kernels nor scratchpad that they
    may still use, so it need not wait for them."""

    unit: str
    instr: Instr
    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()
    early: bool = False


@dataclass(eq=False)
class Body:
    """Statements in order; ``scoped`` lists the buffers produced anew each time the body runs."""

    items: list[Stmt | LoopStmt] = field(default_factory=list)
    scoped: list[Buffer] = field(default_factory=list)


@dataclass(eq=False)
class LoopStmt:
    count: int
    body: Body


def statements(body: Body) -> Iterator[Stmt]:
    for item in body.items:
        if isinstance(item, LoopStmt):
            yield from statements(item.body)
        else:
            yield item


@dataclass
class _Item:
    """A stream element under construction with the buffers its unit reads and writes in it."""

    element: Instr | Loop
    reads: set[Buffer]
    writes: set[Buffer]
    waits: list[Wait] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)
    variants: tuple[tuple[int, int], ...] = ()  # multicast: (group size, mask of leaders)
    credits: list[Wait] = field(default_factory=list)  # multicast: the leader's; members' tokens follow
    early: bool = False


class Streams:
    """Builds the streams of one kernel. ``cores``: how many cores run it; ``used``: tokens 1..used are taken."""

    def __init__(self, root: Body, cores: int, used: int = 0) -> None:
        self.root = root
        self.cores = cores
        self.next_token = GO + 1 + used
        self.writer: dict[Buffer, str] = {}
        self.readers: dict[Buffer, list[str]] = {}
        self.full: dict[tuple[Buffer, str], int] = {}
        self.free: dict[tuple[Buffer, str], int] = {}
        for stmt in statements(root):
            for b in stmt.writes:
                self.writer.setdefault(b, stmt.unit)
        for stmt in statements(root):
            for b in stmt.reads:
                if b in self.writer and self.writer[b] != stmt.unit and stmt.unit not in self.readers.setdefault(b, []):
                    self.readers[b].append(stmt.unit)
        for b, units in self.readers.items():
            for unit in units:
                self.full[b, unit] = self._token()
                self.free[b, unit] = self._token()
                for _ in range(max((g.bit_count() for g in b.groups), default=1) - 1):
                    self._token()  # the members' tokens follow the leader's

    def _token(self) -> int:
        token = self.next_token
        self.next_token += 1
        if token > MAX_TOKENS:
            raise CapacityError(f"a kernel needs more than {MAX_TOKENS} tokens; tile it coarser")
        return token

    def build(self) -> dict[str, Stream]:
        """Unit -> stream, for the units that have something to do."""
        out: dict[str, Stream] = {}
        for unit in UNITS:
            body = self._unit(self.root, unit)
            if body:
                out[unit] = (*self._opening(unit), *body)
        return out

    def _opening(self, unit: str) -> list[Instr]:
        """Every slot of what the unit reads is free; then it waits for the launches before this one. The loader
        waits only where it first needs their results."""
        free = tuple(
            replace(self._credit(b, unit), n=b.slots) for b, units in self.readers.items() if unit in units
        )
        opening = [Instr("sync", signals=free)] if free else []
        return opening if unit == "ml" else [*opening, Instr("sync", waits=(Wait(GO, 0),))]

    def _credit(self, b: Buffer, unit: str) -> Signal:
        """One slot of the buffer is free again: tell the core that fills it."""
        first = self.free[b, unit]
        if not b.groups:
            return Signal(first)
        token = [first] * self.cores
        for mask in b.groups:
            members = [c for c in range(self.cores) if mask >> c & 1]
            for place, c in enumerate(members):
                token[c] = first + place
        return Signal(tuple(token), 1, self._leaders(b))

    def _leaders(self, b: Buffer) -> Num:
        """For each core the mask of the core that loads for it (0: itself)."""
        if not b.groups:
            return 0
        leader = [0] * self.cores
        for mask in b.groups:
            low = mask & -mask
            for c in range(self.cores):
                if mask >> c & 1:
                    leader[c] = low
        return tuple(leader)

    def _members(self, b: Buffer) -> Num:
        """For each core the mask of the cores it loads for (itself when it is no leader)."""
        if not b.groups:
            return 0
        members = [1 << c for c in range(self.cores)]
        for mask in b.groups:
            members[(mask & -mask).bit_length() - 1] = mask
        return tuple(members)

    def _unit(self, body: Body, unit: str) -> list[Instr | Loop]:
        items = self._items(body, unit)
        for b in body.scoped:
            self._synchronise(b, unit, items, _mask(body, b))
        out: list[Instr | Loop] = []
        for item in items:
            out.extend(self._finish(item))
        return out

    def _items(self, body: Body, unit: str) -> list[_Item]:
        items = []
        for s in body.items:
            if isinstance(s, LoopStmt):
                inner = self._unit(s.body, unit)
                mine = [x for x in statements(s.body) if x.unit == unit]
                reads, writes = {b for x in mine for b in x.reads}, {b for x in mine for b in x.writes}
                if s.count == 1:  # an unrolled step: tokens of its own buffers are in place
                    items.extend(_Item(e, reads, writes) for e in inner)
                elif inner:
                    items.append(_Item(Loop(s.count, tuple(inner)), reads, writes))
            elif s.unit == unit:
                item = _Item(s.instr, set(s.reads), set(s.writes), early=s.early)
                if unit == "ml" and not s.early:
                    item.waits.append(Wait(GO, 0))
                items.append(item)
        return items

    def _synchronise(self, b: Buffer, unit: str, items: list[_Item], mask: int) -> None:
        """Put the buffer's waits before the unit's first touch in this body and its signals after the last. The
        cores of ``mask`` take part, also those on which this unit has nothing to do here."""
        units = self.readers.get(b, [])
        if not units:
            return
        writes = unit == self.writer[b]
        if not writes and unit not in units:
            return
        touched = [i for i, item in enumerate(items) if b in (item.writes if writes else item.reads)]
        if not touched:
            return
        if writes:
            for u in units:
                touched[-1] += self._before(items, touched[0], Wait(self.free[b, u]), b, mask)
            for u in units:
                self._after(items, touched[-1], Signal(self.full[b, u], 1, self._members(b)), mask)
        else:
            touched[-1] += self._before(items, touched[0], Wait(self.full[b, unit]), None, mask)
            self._after(items, touched[-1], self._credit(b, unit), mask)

    @staticmethod
    def _before(items: list[_Item], i: int, wait: Wait, multicast: Buffer | None, mask: int) -> int:
        """Returns how many items it put in."""
        element, added = items[i].element, 0
        if isinstance(element, Loop) or element.where != mask:
            items.insert(i, _Item(Instr("sync", where=mask), set(), set()))
            added = 1
        if multicast is not None and multicast.groups:
            items[i].variants = _variants(multicast.groups)
            items[i].credits.append(wait)
        else:
            items[i].waits.append(wait)
        return added

    @staticmethod
    def _after(items: list[_Item], i: int, signal: Signal, mask: int) -> None:
        element = items[i].element
        if isinstance(element, Loop) or element.where != mask:
            items.insert(i + 1, _Item(Instr("sync", where=mask), set(), set()))
            i += 1
        items[i].signals.append(signal)

    def _finish(self, item: _Item) -> list[Instr | Loop]:
        e = item.element
        if isinstance(e, Loop):
            return [e]
        made = replace(e, waits=(*e.waits, *item.waits), signals=(*e.signals, *item.signals))
        if not item.variants:
            return [made]
        return [
            replace(made, waits=(*made.waits, *_from_all(item.credits, size)), where=leaders)
            for size, leaders in item.variants
        ]


def _from_all(credits: list[Wait], size: int) -> list[Wait]:
    """A wait for each member of a group."""
    return [Wait(c.token + i) for c in credits for i in range(size)]


def _mask(body: Body, b: Buffer) -> int:
    """Cores that read or write the buffer in this body (0: all)."""
    mask = 0
    for s in statements(body):
        if b in s.reads or b in s.writes:
            if s.instr.where == 0:
                return 0
            mask |= s.instr.where
    return mask


def _variants(groups: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(group size, mask of the leaders of groups of that size)."""
    by_size: dict[int, int] = {}
    for mask in groups:
        by_size[mask.bit_count()] = by_size.get(mask.bit_count(), 0) | (mask & -mask)
    return tuple(sorted(by_size.items()))
