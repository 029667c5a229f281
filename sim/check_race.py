"""Accesses that nothing keeps apart, and reads of what nothing has written.

Scratchpads and accumulators keep, for each address, which access wrote it last and which read it
last for each unit of the core. Accesses come in an order that every run respects, so an address is
free of races when each access comes surely after the last write, and each write also after the
last reads. Card memory is compared launch by launch: a launch with itself and, when it may start
early, with the one before; all others are complete by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .check_claim import Claims
from .check_order import LATE, N_UNITS, Event
from .check_touch import At, Runs, Touch, addresses, touches
from .device import DeviceSpec
from .formats import format_of
from .isa import STICK, Instr, Launch, Program
from .view import Moment

NOBODY, HOST = -1, -2  # in place of the number of an access
ELEMENTWISE = ("shuf", "fill")  # what writes less than whole sticks
GIVEN = ("input", "const")  # kinds of buffers that the host has filled


@dataclass(frozen=True)
class Access:
    """An instruction's execution and when it is over."""

    event: Event
    instr: Instr
    kernel: int

    def has_written(self, event: Event) -> bool:
        """Whether what it wrote is surely there when ``event`` starts."""
        mine, other = self.event, event.thread
        if mine.thread is other and other.unit not in LATE:
            return True
        return bool(event.clock[mine.lane] >= mine.count)

    def has_read(self, event: Event) -> bool:
        """Whether it has surely read before ``event`` writes; a unit reads before what it starts
        later arrives."""
        mine = self.event
        return mine.thread is event.thread or bool(event.clock[mine.thread.lane] >= mine.left)

    @property
    def site(self) -> tuple[int, int]:
        """The same for every core and trip of a launch."""
        return self.event.launch, id(self.instr)

    @property
    def exchange(self) -> tuple[int, str, int]:
        """The same for all sends that carry out one op of a launch."""
        return self.event.launch, self.instr.op, self.instr.note

    @property
    def value(self) -> tuple[int, int] | None:
        """The same for all that write parts of one value in a launch; None if nobody says which."""
        intents = self.instr.intents
        return (self.event.launch, intents[0].claims[0].tensor) if intents else None

    @property
    def in_part(self) -> bool:
        """Whether it may leave some bytes of what it writes as they were."""
        return self.instr.op in ELEMENTWISE or format_of(self.instr.operands[0].dtype).bits < 16

    @property
    def key(self) -> tuple[int, int, int]:
        """The same for every core and trip."""
        return self.kernel, self.event.thread.unit, id(self.instr)


@dataclass(frozen=True)
class Clash:
    """What an access does wrong: ``does`` is the sentence's verb and object, ``others`` whom it
    clashes with, ``other_does`` what they do."""

    kind: str
    access: Access
    does: str
    others: tuple[Access, ...] = ()
    other_does: str = ""


@dataclass(frozen=True)
class Shadow:
    """One memory of one core. ``writer``: number of the access that wrote an address last;
    ``reader``: by unit, of the one that read it last; -1 for none. ``odd``: of the group of two
    sticks that an address was written in, whether it starts at an odd one, or NOBODY. ``unread``:
    whether elements were copied there beyond what was prepared and nothing has read them since."""

    name: str
    writer: NDArray[np.int32]
    reader: NDArray[np.int32]
    odd: NDArray[np.int8]
    unread: NDArray[np.bool_]

    @staticmethod
    def of(name: str, size: int) -> Shadow:
        writer = np.full(size, NOBODY, np.int32)
        readers = np.tile(writer, (N_UNITS, 1))
        odd = np.full(size, NOBODY, np.int8)
        return Shadow(name, writer, readers, odd, np.zeros(size, np.bool_))


@dataclass
class CardAccesses:
    """Runs of absolute sticks of card memory that a launch touches, and by which access."""

    runs: list[tuple[int, int]] = field(default_factory=list)
    number: list[int] = field(default_factory=list)
    writes: list[bool] = field(default_factory=list)


class Races:
    """Is told every event in order. ``begin`` and ``end`` stand around the events of a launch;
    ``found`` has one clash for each pair of instructions and kind."""

    def __init__(self, program: Program, device: DeviceSpec) -> None:
        self.found: dict[tuple[object, ...], Clash] = {}
        self._program, self._span = program, device.hbm.span_bytes
        cores, sticks = range(device.cores.count), device.lx.usable_bytes // STICK
        self._shadows = {
            **{("lx", c): Shadow.of(f"scratchpad of core {c}", sticks) for c in cores},
            **{("acc", c): Shadow.of(f"accumulators of core {c}", device.pt.acc_groups)
               for c in cores},
        }  # fmt: skip
        self._buffers = {b.name: b for b in program.buffers}
        self._written = {
            b.name: np.full(-(-b.size // STICK), HOST if b.kind in GIVEN else NOBODY, np.int32)
            for b in program.buffers
        }
        self._claims = Claims(program, device)
        self._accesses: list[Access] = []
        self._results: dict[tuple[int, int], Access] = {}  # of each instruction that writes, one
        self._useful: set[tuple[int, int]] = set()  # those whose results something reads
        self._card, self._card_before = CardAccesses(), CardAccesses()
        self._args: Mapping[str, tuple[str, int]] = {}
        self._launch = Launch(0)
        self._reach: dict[tuple[int, str], tuple[int, int]] = {}

    def begin(self, launch: Launch) -> None:
        kernel = self._program.kernels[launch.kernel]
        self._launch = launch
        self._args = dict(zip(kernel.params, launch.args, strict=True))
        self._card_before, self._card = self._card, CardAccesses()
        self._reach = {}
        self._claims.begin(launch)

    def visit(self, event: Event) -> None:
        """Look at everything the event touches, then note it."""
        thread = event.thread
        site, execution = thread.at(event.step)
        if not site.instr.operands:
            return
        access = Access(event, site.instr, self._launch.kernel)
        number = len(self._accesses)
        self._accesses.append(access)
        noted = []
        moment = Moment(thread.core, site.trip(execution))
        for text in self._claims.visit(site.instr, moment):
            self._clash(Clash("astray", access, text))
        for touch in touches(site.instr, moment):
            if touch.space == "hbm":
                self._card_touch(access, number, touch)
                continue
            shadow = self._shadows[touch.space, touch.core]
            runs = self._within(access, touch, len(shadow.writer), shadow.name)
            if not len(runs):
                continue
            at = addresses(runs)
            if touch.writes:
                self._results.setdefault(access.site, access)
                self._before_write(access, shadow, at)
                noted.append((shadow.writer, at))
                if not site.instr.intents:
                    self._claims.forget(touch.space, touch.core, at)
                shadow.odd[at] = NOBODY if touch.odd is None else touch.odd
                shadow.unread[at] = site.instr.op == "shuf" and self._beyond(shadow.writer[at])
                continue
            shadow.unread[at] = False
            if not touch.exact:
                continue
            self._before_read(access, shadow, at, touch.core)
            if touch.odd is not None:
                self._in_step(access, shadow, at, touch.odd)
            if touch.core == thread.core:  # elsewhere it only adds to what it then writes
                noted.append((shadow.reader[thread.unit], at))
        for memory, at in noted:
            memory[at] = number

    def end(self) -> None:
        """The launch is over: compare what it did in card memory."""
        self._compare(self._card, self._card)
        if self._launch.early:
            self._compare(self._card_before, self._card)

    def unwritten_outputs(self) -> Iterator[str]:
        """A sentence for each output buffer that is not complete."""
        for buffer in self._program.buffers:
            missing = np.flatnonzero(self._written[buffer.name] == NOBODY)
            if buffer.kind == "output" and len(missing):
                yield (
                    f"output buffer {buffer.name}: nothing writes {len(missing)} of its "
                    f"{len(self._written[buffer.name])} sticks, the first is {missing[0]}"
                )

    def lost(self) -> Iterator[tuple[Access, str]]:
        """One access of each instruction of a launch of whose results nothing is ever read, and
        what that is: all of it, or a stick it copied to beyond a prepared tile.

        What a fill leaves in a border may all be written over later, which loses nothing. An
        exchange gives each core the box around what it reads: one of its sends may lie in a gap.
        Of a value that is read in part the other parts are no loss, where claims tell the value,
        but for what writes parts of sticks: claims do not tell which are there.
        """
        useful = [access for site, access in self._results.items() if site in self._useful]
        read, values = {access.exchange for access in useful}, {access.value for access in useful}
        for site, access in self._results.items():
            gap = access.instr.op == "send" and access.exchange in read
            part = not access.in_part and access.value is not None and access.value in values
            if site not in self._useful and access.instr.op != "fill" and not gap and not part:
                yield access, "what nothing ever reads, on no core and trip"
        for shadow in self._shadows.values():
            unread = np.flatnonzero(shadow.unread)
            for number in _distinct(shadow.writer[unread]) if len(unread) else ():
                access = self._accesses[number]
                if access.site in self._useful:
                    first = _first(shadow.writer[unread], unread, number)
                    yield access, f"{first} of the {shadow.name}, which nothing reads"

    def last_writer(self, buffer: str, stick: int) -> Access | None:
        """Who wrote a stick of a buffer last, None when no instruction did."""
        number = int(self._written[buffer][stick])
        return self._accesses[number] if number >= 0 else None

    def _clash(self, clash: Clash) -> None:
        key = (clash.kind, clash.access.key, *(other.key for other in clash.others))
        self.found.setdefault(key, clash)

    def _within(self, access: Access, touch: Touch, size: int, name: str) -> Runs:
        """The runs of a touch, cut to the memory."""
        runs = touch.runs
        if not len(runs) or (runs[0, 0] >= 0 and runs[-1, 1] <= size):
            return runs
        does = "writes" if touch.writes else "reads"
        where = _units(touch.space, int(runs[0, 0]), int(runs[-1, 1]))
        self._clash(Clash("capacity", access, f"{does} {where} of the {name}, which has {size}"))
        runs = np.clip(runs, 0, size)
        return runs[runs[:, 0] < runs[:, 1]]

    def _before_read(self, access: Access, shadow: Shadow, at: At, core: int) -> None:
        values: dict[tuple[int, str], int] = {}
        noted = shadow.writer[at]
        for number in _distinct(noted):
            if number < 0:
                where = f"{_first(noted, at, number)} of the {shadow.name}"
                text = f"reads {where}, which nothing has written"
                self._clash(Clash("uninitialised", access, text))
                continue
            other = self._accesses[number]
            self._useful.add(other.site)
            values.setdefault(self._value(other), number)
            arrives = core != access.event.thread.core and other.event.lane == access.event.lane
            if not arrives and not other.has_written(access.event):
                self._race(access, "reads", shadow, _first(noted, at, number), other, "writes")
        if len(values) > 1:
            one, *_, last = values.values()
            where = f"{_first(noted, at, one)} of the {shadow.name}"
            text = f"reads {where} and {_first(noted, at, last)} with it"
            pair = self._accesses[one], self._accesses[last]
            self._clash(Clash("mixed", access, text, pair))

    def _beyond(self, noted: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which of the sticks that elements are copied to lie beyond what a ``fill`` has prepared;
        none when it has prepared none of them, or all."""
        filled = [n for n in _distinct(noted) if n >= 0 and self._accesses[n].instr.op == "fill"]
        inside = np.isin(noted, filled)
        return ~inside & inside.any()

    def _in_step(self, access: Access, shadow: Shadow, at: At, odd: bool) -> None:
        """Groups of two sticks are read as they were written, not from the middle of one on."""
        torn = (shadow.odd[at] != NOBODY) & (shadow.odd[at] != odd)
        if torn.any():
            first = _nth(at, int(np.argmax(torn)))
            text = f"reads {first} of the {shadow.name} as part of another group than the one"
            other = self._accesses[shadow.writer[first]]
            self._clash(Clash("mixed", access, text, (other,), "wrote"))

    def _value(self, access: Access) -> tuple[int, str]:
        """What an access writes: of which launch, and by which IR op if that is known."""
        launch = self._program.launches[access.event.launch]
        notes = launch.notes or self._program.kernels[launch.kernel].notes
        return access.event.launch, notes[access.instr.note].op if notes else ""

    def _before_write(self, access: Access, shadow: Shadow, at: At) -> None:
        noted = shadow.writer[at]
        for number in _distinct(noted):
            if number < 0:
                continue
            other = self._accesses[number]
            if access.in_part:
                self._useful.add(other.site)
            in_order = other.event.lane == access.event.lane  # of arrival
            if not in_order and not other.has_written(access.event):
                self._race(access, "writes", shadow, _first(noted, at, number), other, "writes")
        readers = shadow.reader[:, at]
        alike = (readers == readers[:, :1]).all(axis=1).tolist()
        for unit, some in enumerate(readers[:, 0].tolist()):
            for number in [some] if alike[unit] else np.unique(readers[unit]).tolist():
                if number >= 0 and not (other := self._accesses[number]).has_read(access.event):
                    first = _first(readers[unit], at, number)
                    self._race(access, "writes", shadow, first, other, "reads")

    def _race(
        self, access: Access, does: str, shadow: Shadow, first: int, other: Access, did: str
    ) -> None:
        text = f"{does} {first} of the {shadow.name}"
        self._clash(Clash("race", access, text, (other,), did))

    def _card_touch(self, access: Access, number: int, touch: Touch) -> None:
        name, offset = self._args[touch.symbol]
        buffer, written = self._buffers[name], self._written[name]
        moved = replace(touch, runs=touch.runs + offset // STICK)
        what = f"{buffer.kind} buffer {name}"
        for low, end in self._within(access, moved, len(written), what).tolist():
            self._card.runs.append((buffer.address // STICK + low, buffer.address // STICK + end))
            self._card.number.append(number)
            self._card.writes.append(touch.writes)
            if not touch.writes:
                writers = (n for n in _distinct(written[low:end]) if n >= 0)
                self._useful.update(self._accesses[n].site for n in writers)
            if touch.writes:
                written[low:end] = number
                self._results.setdefault(access.site, access)
                if buffer.kind == "output":  # the host reads it
                    self._useful.add(access.site)
                if buffer.kind == "const":
                    self._clash(Clash("constant", access, f"writes the constant buffer {name}"))
            elif touch.exact and (written[low:end] == NOBODY).any():
                first = low + int(np.argmax(written[low:end] == NOBODY))
                where = f"stick {first} of {buffer.kind} buffer {name}"
                text = f"reads {where}, which nothing has written"
                self._clash(Clash("uninitialised", access, text))
            if touch.exact:
                self._widen(access, name, low, end)

    def _widen(self, access: Access, name: str, low: int, end: int) -> None:
        """What a core reaches of one buffer in a launch must fit its span."""
        core = access.event.thread.core
        before = self._reach.get((core, name), (low, end))
        low, end = min(low, before[0]), max(end, before[1])
        self._reach[core, name] = (low, end)
        if (end - low) * STICK > self._span:
            text = (
                f"reaches over sticks {low}..{end - 1} of buffer {name}, {(end - low) * STICK} "
                f"bytes; the span of a core is {self._span}"
            )
            self._clash(Clash("span", access, text))

    def _compare(self, one: CardAccesses, other: CardAccesses) -> None:
        """Races between two launches, which may be the same one twice."""
        for first, second, stick in overlaps(one, other):
            if one.number[first] >= other.number[second]:
                continue  # a launch with itself shows each pair twice
            wrote, writes = one.writes[first], other.writes[second]
            a, b = self._accesses[one.number[first]], self._accesses[other.number[second]]
            arrives_after = wrote and writes and a.event.lane == b.event.lane
            if arrives_after or (a.has_written if wrote else a.has_read)(b.event):
                continue
            text = f"{'writes' if writes else 'reads'} stick {stick} of card memory"
            self._clash(Clash("race", b, text, (a,), "writes" if wrote else "reads"))


def _distinct(numbers: NDArray[np.int32]) -> list[int]:
    """Each of the numbers once; nearly always there is only one."""
    first = numbers[0]
    return [int(first)] if (numbers == first).all() else np.unique(numbers).tolist()


def _first(noted: NDArray[np.int32], at: At, number: int) -> int:
    """The first address of ``at``, at which ``noted`` are, that has ``number``."""
    return _nth(at, int(np.argmax(noted == number)))


def _nth(at: At, place: int) -> int:
    return int(at.start) + place if isinstance(at, slice) else int(at[place])


def overlaps(one: CardAccesses, other: CardAccesses) -> Iterator[tuple[int, int, int]]:
    """Positions in ``one`` and ``other`` of runs that share a stick, at least one of them written,
    and the first such stick."""
    for writing, reading, swapped in ((one, other, False), (other, one, True)):
        picked = np.flatnonzero(writing.writes)
        if not len(picked) or not reading.runs:
            continue
        runs = np.array(writing.runs)[picked]
        picked = picked[np.argsort(runs[:, 0], kind="stable")]
        low, end = np.array(writing.runs)[picked].T
        reach = np.maximum.accumulate(end)
        theirs = np.array(reading.runs)
        begin = np.searchsorted(reach, theirs[:, 0], "right")
        stop = np.searchsorted(low, theirs[:, 1], "left")
        for j in np.flatnonzero(begin < stop).tolist():
            for i in range(begin[j], stop[j]):
                first = max(int(low[i]), int(theirs[j, 0]))
                if first < min(end[i], theirs[j, 1]):
                    yield (j, int(picked[i]), first) if swapped else (int(picked[i]), j, first)


def _units(space: str, low: int, end: int) -> str:
    word = "group" if space == "acc" else "stick"
    return f"{word} {low}" if end == low + 1 else f"{word}s {low}..{end - 1}"
