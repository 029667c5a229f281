"""From statements in one order to a stream per unit, with the tokens that keep the units in step.

Between a buffer's writer and each unit that reads it there are counting tokens. *Full*: the writer
has filled a slot. *Free*: the reader is done with one; it hands out one *free* per slot at the
start. In every trip of the buffer's scope the writer takes *free* before it first touches the
buffer and gives *full* after the last time; the reader takes *full* and gives *free* likewise.
When one core loads for a group, each member gives its *free* to a counter of its own on the
leader: in a common one a fast member's second could pass for a slow member's first. Of a buffer
that all cores touch ``together`` every reader gives *free* to all cores, and a writer takes as many
as there are cores: none gives its second before all have given their first.

Why this cannot deadlock: a unit's stream keeps the order of the tree, and what a wait needs, on
whatever core, is signalled by a statement that stands earlier in that order (``check_tree``), so
the earliest unfinished statement can always run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from spyrec.ir.errors import CapacityError
from spyrec.sim.isa import GO, UNITS, Instr, Loop, Num, Signal, Stream, Wait

from .address import num
from .tree import Body, Buffer, LoopStmt, check_tree, statements

MAX_TOKENS = 255


@dataclass
class _Item:
    """A stream element under construction, with the buffers its unit reads and writes in it.

    ``loads``: what it loads for groups of cores; ``credits``: the number of its first *free* token
    for each reader, one token for each member."""

    element: Instr | Loop
    reads: set[Buffer]
    writes: set[Buffer]
    waits: list[Wait] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)
    loads: Buffer | None = None
    credits: list[int] = field(default_factory=list)


class Streams:
    """Builds the streams of one kernel. ``cores``: how many cores run it; ``used``: tokens 1..used
    are taken.

    PassError when the tree breaks a rule of ``check_tree``, CapacityError when it needs too many
    tokens.
    """

    def __init__(self, root: Body, cores: int, used: int = 0) -> None:
        check_tree(root)
        self.root = root
        self.cores = cores
        self._next_token = GO + 1 + used
        self.writer = {b: s.unit for s in statements(root) for b in s.writes}
        self.readers: dict[Buffer, list[str]] = {}
        for s in statements(root):
            for b in s.reads:
                if _must_wait(self.writer[b], s.unit) and s.unit not in self.readers.get(b, ()):
                    self.readers.setdefault(b, []).append(s.unit)
        self.full: dict[tuple[Buffer, str], int] = {}
        self.free: dict[tuple[Buffer, str], int] = {}
        for b, units in self.readers.items():
            members = max((mask.bit_count() for mask in b.groups), default=1)
            for unit in units:
                self.full[b, unit] = self._tokens(1)
                self.free[b, unit] = self._tokens(members)

    def _tokens(self, n: int) -> int:
        """The first of ``n`` tokens in a row."""
        first = self._next_token
        self._next_token += n
        if self._next_token > MAX_TOKENS + 1:
            raise CapacityError(
                f"codegen: a kernel needs more than {MAX_TOKENS} tokens; pin a coarser tile"
            )
        return first

    def build(self) -> dict[str, Stream]:
        """Unit -> stream, for the units that have something to do."""
        out: dict[str, Stream] = {}
        for unit in UNITS:
            body = self._unit(self.root, unit)
            if body:
                out[unit] = (*self._opening(unit), *body)
        return out

    def _opening(self, unit: str) -> list[Instr]:
        """Every slot of what the unit reads is free; then it waits for the launches before this
        one. The loader waits only where it first needs their results."""
        free = tuple(
            self._freed(b, unit, b.slots)
            if not b.together else Signal(self.free[b, unit], b.slots * self.cores)
            for b, units in self.readers.items() if unit in units
        )
        opening = [Instr("sync", signals=free)] if free else []
        return opening if unit == "ml" else [*opening, Instr("sync", waits=(Wait(GO, 0),))]

    def _freed(self, b: Buffer, unit: str, slots: int) -> Signal:
        """``slots`` have been read: told to the core that loads, on the counter kept for this
        one."""
        first = self.free[b, unit]
        if b.together:
            return Signal(first, slots, (1 << self.cores) - 1)
        if not b.groups:
            return Signal(first, slots)
        leader, place = [0] * self.cores, [0] * self.cores
        for mask, first_of in b.led():
            members = [c for c in range(self.cores) if mask >> c & 1]
            for i, c in enumerate(members):
                leader[c], place[c] = 1 << first_of, i
        return Signal(num([first + i for i in place]), slots, tuple(leader))

    def _unit(self, body: Body, unit: str) -> list[Instr | Loop]:
        items = self._items(body, unit)
        for b in body.scoped:
            self._synchronise(b, unit, items, _mask(body, b))
        for b in (*body.takes, *body.gives):
            if unit in self.readers.get(b, []) and (at := _touched(items, b, write=False)):
                mask = _mask(body, b)
                if b in body.gives:
                    _after(items, at[-1], [self._freed(b, unit, 1)], mask)
                else:
                    _before(items, at[0], [Wait(self.full[b, unit])], mask)
        return [made for item in items for made in _finish(item)]

    def _items(self, body: Body, unit: str) -> list[_Item]:
        items = []
        for s in body.items:
            if isinstance(s, LoopStmt):
                inner = self._unit(s.body, unit)
                mine = [x for x in statements(s.body) if x.unit == unit]
                reads = {b for x in mine for b in x.reads}
                writes = {b for x in mine for b in x.writes}
                if s.count == 1:  # an unrolled step: tokens of its own buffers are in place
                    items += [_Item(element, reads, writes) for element in inner]
                elif inner:
                    items.append(_Item(Loop(s.count, tuple(inner)), reads, writes))
            elif s.unit == unit:
                go = [Wait(GO, 0)] if unit == "ml" and not s.early else []
                items.append(_Item(s.instr, set(s.reads), set(s.writes), go))
        return items

    def _synchronise(self, b: Buffer, unit: str, items: list[_Item], mask: int) -> None:
        """Put the buffer's waits before the unit's first touch in this body and its signals after
        the last. The cores of ``mask`` take part, also those on which this unit has nothing to do
        here."""
        units = self.readers.get(b, [])
        if unit == self.writer.get(b) and (at := _touched(items, b, write=True)):
            to = group_members(b, self.cores)
            _after(items, at[-1], [Signal(self.full[b, u], 1, to) for u in units], mask)
            if b.groups:
                assert _on(items[at[0]].element, mask), "all members need what their leader loads"
                items[at[0]].loads = b
                items[at[0]].credits += [self.free[b, u] for u in units]
            else:
                n = self.cores if b.together else 1
                _before(items, at[0], [Wait(self.free[b, u], n) for u in units], mask)
        if unit in units and (at := _touched(items, b, write=False)):
            _after(items, at[-1], [self._freed(b, unit, 1)], mask)
            _before(items, at[0], [Wait(self.full[b, unit])], mask)


def group_members(b: Buffer, cores: int) -> Num:
    """For each core the mask of the cores it loads a buffer for (itself when it leads no group); 0
    without groups."""
    if not b.groups:
        return 0
    members = [1 << c for c in range(cores)]
    for mask, leader in b.led():
        members[leader] = mask
    return tuple(members)


def _must_wait(writer: str, reader: str) -> bool:
    """A unit works in order, but a load is complete only some time after the next has begun."""
    return writer != reader or writer == "ml"


def _touched(items: list[_Item], b: Buffer, *, write: bool) -> list[int]:
    return [i for i, item in enumerate(items) if b in (item.writes if write else item.reads)]


def _before(items: list[_Item], i: int, waits: list[Wait], mask: int) -> None:
    if waits and not _on(items[i].element, mask):
        items.insert(i, _Item(Instr("sync", where=mask), set(), set()))
    items[i].waits += waits


def _after(items: list[_Item], i: int, signals: list[Signal], mask: int) -> None:
    if signals and not _on(items[i].element, mask):
        i += 1
        items.insert(i, _Item(Instr("sync", where=mask), set(), set()))
    items[i].signals += signals


def _on(element: Instr | Loop, mask: int) -> bool:
    """Do exactly the cores of the mask execute the element?"""
    return isinstance(element, Instr) and element.where == mask


def _finish(item: _Item) -> list[Instr | Loop]:
    """The element with its tokens; a load for groups once for each size of group, on the leaders,
    which wait for as many members."""
    element = item.element
    if isinstance(element, Loop):
        return [element]
    made = replace(
        element, waits=(*element.waits, *item.waits), signals=(*element.signals, *item.signals)
    )
    if item.loads is None:
        return [made]
    leaders: dict[int, int] = {}
    for mask, leader in item.loads.led():
        size = mask.bit_count()
        leaders[size] = leaders.get(size, 0) | 1 << leader
    return [
        replace(made, where=where, waits=(*made.waits, *(
            Wait(first + i) for first in item.credits for i in range(size)
        )))
        for size, where in sorted(leaders.items())
    ]  # fmt: skip


def _mask(body: Body, b: Buffer) -> int:
    """Cores that read or write the buffer in this body (0: all)."""
    mask = 0
    for s in statements(body):
        if b in s.reads or b in s.writes:
            if s.instr.where == 0:
                return 0
            mask |= s.instr.where
    return mask
