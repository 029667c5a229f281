"""Code for ring exchanges: the planned sends in their order, and the tokens that keep a core from
being sent more fragments at once than it takes.

A core numbers what is sent to it in the order in which it is planned to begin. Fragment k may begin
when the core has taken k - ``fragments_max`` + 1 of those before, whichever they are: each *taken*
is told to the sender of the one that may then come. A send that is planned to wait until another
begins or has arrived is told that likewise. All that a core's j-th send waits for comes on one
token, so that no signal is mistaken for one that belongs to another send (of up to MAX_ROWS a
core).

What lands beside the receivers' buffers raises one token more there, that of the turn in which the
vector units copy it to its place: each waits for as many as its turn is made from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from spyrec.ir.core import Op
from spyrec.ir.errors import PassError
from spyrec.passes.exchange_landing import ExchangePlan, Pick
from spyrec.passes.exchange_plan import plan_exchange
from spyrec.passes.ring_order import Schedule
from spyrec.passes.ring_ways import bits
from spyrec.passes.sends import Ends, Send, Sizes
from spyrec.sim.device import DeviceSpec
from spyrec.sim.isa import MAX_DIMS, Affine, Extent, Instr, Intent, Num, Operand, Signal, Wait

from .address import mask_of, num
from .regions import Hop, Region, box_transfer
from .tree import Body, Buffer, Stmt

MAX_ROWS = 100  # tokens for what sends wait for; a core's later sends use them again

Place = tuple[int, int]
"""Of a send: its core, and its number among those of the core."""
Planned = tuple[Send, int]
"""A send and the receivers it reaches the longer way."""
Tells = Mapping[int, tuple[int, int]]
"""For each core a token, and a mask of the cores on which to raise it."""
Key = TypeVar("Key", bound=Hashable)


@dataclass
class Telling:
    """Who tells whom. ``waits``: how many signals a send waits for; ``taken``: for each core, the
    send that may come when it has taken its first, second... fragment; ``begun``, ``arrived``: the
    sends that wait for one to begin or to arrive; ``fragments``: how many come to a core;
    ``places``: of the sends by index; ``landed``: of those that land beside buffers, token and
    receivers."""

    waits: Counter[Place] = field(default_factory=Counter)
    taken: dict[int, list[Place]] = field(default_factory=dict)
    begun: dict[Place, list[Place]] = field(default_factory=dict)
    arrived: dict[Place, list[Place]] = field(default_factory=dict)
    fragments: Counter[int] = field(default_factory=Counter)
    places: dict[int, Place] = field(default_factory=dict)
    landed: dict[Place, tuple[int, int]] = field(default_factory=dict)


def telling(sends: Sequence[Send], schedule: Schedule, most: int) -> Telling:
    """What the sends of a schedule wait for when a core takes ``most`` fragments at once."""
    out = Telling()
    places: list[Place] = []
    numbers = Counter[int]()
    for sending in schedule.sendings:
        send = sends[sending.index]
        place = send.core, numbers[send.core]
        numbers[send.core] += 1
        places.append(place)
        out.places[sending.index] = place
        for core in bits(send.cores):
            out.fragments[core] += 1
            if out.fragments[core] > most:
                out.taken.setdefault(core, []).append(place)
                out.waits[place] += 1
        for told, others in ((out.begun, sending.after), (out.arrived, sending.landed)):
            for other in others:
                told.setdefault(places[other], []).append(place)
                out.waits[place] += 1
    return out


def _grouped(of: Mapping[int, Key]) -> dict[Key, list[int]]:
    """The cores that have the same value."""
    found: dict[Key, list[int]] = {}
    for core, key in sorted(of.items()):
        found.setdefault(key, []).append(core)
    return found


class RelayoutEmitter:
    """Statements that fill the receivers' buffer. ``source`` and ``target``: each core's box of the
    tensor before and after; ``beside``: stick address of the room where sends may land that the
    vector units then copy from, None for no such room. ``arrived`` is the buffer its readers wait
    for."""

    def __init__(
        self, op: Op, source: Region, target: Region, device: DeviceSpec, cores: int,
        beside: int | None = None,
    ) -> None:
        self.op, self.source, self.target = op, source, target
        self.device, self.cores, self.beside = device, cores, beside
        self.ends = Ends(source.layout, target.layout)
        self.arrived = Buffer(f"{op.result.name}_arrived")

    def emit(self, body: Body, fresh: Callable[[], int]) -> None:
        """Add the sends, each of which raises a token where it lands, and the deliveries that wait
        for them. ``fresh`` gives tokens that nothing else uses."""
        assert self.source.boxes is not None and self.target.boxes is not None
        plan = plan_exchange(
            self.source.boxes, self.target.boxes, self.ends, self.device, self.beside is not None
        )
        told = telling(plan.sends, plan.schedule, self.device.ring.fragments_max)
        rows = self._rows(plan.sends, plan.schedule)
        landed = fresh()
        turns = {turn: fresh() for turn in sorted({p.turn for p in plan.picks})}
        for pick in plan.picks:
            send = plan.sends[pick.of]
            told.landed[told.places[pick.of]] = turns[pick.turn], send.cores
        ready: dict[int, int] = {}
        most = MAX_ROWS - len(turns)
        for _, number in sorted(told.waits, key=lambda place: place[1]):
            if number not in ready:
                tokens = [*ready.values()]
                ready[number] = tokens[-most] if len(tokens) >= most else fresh()
        for number, row in enumerate(rows):
            body.items += [Stmt("rs", instr) for instr in self._awaited(row, number, told, ready)]
            body.items += [Stmt("rs", instr) for instr in self._begun(row, number, told, ready)]
            for tells, some in self._by_tells(row, number, told, ready):
                body.items += [Stmt("rs", instr) for instr in self._sends(some, landed, tells)]
        body.items += self._deliveries(told, landed, ready)
        if plan.copies or plan.picks:
            body.items += self._copies(plan, turns, fresh())
        body.scoped.append(self.arrived)

    def _mask(self, cores: Iterable[int]) -> int:
        return mask_of(cores, self.cores)

    def _rows(self, sends: Sequence[Send], schedule: Schedule) -> list[dict[int, Planned]]:
        """The first send of every core, and which receivers it reaches the longer way; the second
        and so on."""
        rows: list[dict[int, Planned]] = []
        numbers = Counter[int]()
        for sending in schedule.sendings:
            send = sends[sending.index]
            if numbers[send.core] == len(rows):
                rows.append({})
            rows[numbers[send.core]][send.core] = send, sending.far
            numbers[send.core] += 1
        return rows

    def _awaited(
        self, row: Iterable[int], number: int, told: Telling, ready: Mapping[int, int]
    ) -> Iterator[Instr]:
        """What the sends of a row wait for."""
        counts = {c: told.waits[c, number] for c in row if told.waits[c, number]}
        for n, cores in sorted(_grouped(counts).items()):
            yield Instr("sync", waits=(Wait(ready[number], n),), where=self._mask(cores))

    def _begun(
        self, row: Iterable[int], number: int, told: Telling, ready: Mapping[int, int]
    ) -> Iterator[Instr]:
        """What tells that the sends of a row begin. Who waits for that hears of it in the same
        cycle, but its send comes after: it has still to take the token."""
        tokens = {c: _tokens(told.begun.get((c, number), ()), ready) for c in row}
        for n, cores in sorted(_grouped({c: len(t) for c, t in tokens.items() if t}).items()):
            tells = [{c: tokens[c][i] for c in cores} for i in range(n)]
            yield Instr("sync", signals=tuple(map(self._signal, tells)), where=self._mask(cores))

    def _by_tells(
        self, row: Mapping[int, Planned], number: int, told: Telling, ready: Mapping[int, int]
    ) -> Iterator[tuple[list[Tells], dict[int, Planned]]]:
        """A row's sends that are laid out alike where they land, by how many tokens they raise
        where others wait for them to arrive, with the tokens and whom to tell."""
        tokens: dict[int, list[tuple[int, int]]] = {}
        for core in row:
            tokens[core] = _tokens(told.arrived.get((core, number), ()), ready)
            if (core, number) in told.landed:
                tokens[core].append(told.landed[core, number])
        alike = {c: (len(t), self._room_sizes(row[c][0])) for c, t in tokens.items()}
        for (n, _), cores in sorted(_grouped(alike).items()):
            yield [{c: tokens[c][i] for c in cores} for i in range(n)], {c: row[c] for c in cores}

    def _sends(
        self, row: Mapping[int, Planned], landed: int, tells: Sequence[Tells]
    ) -> list[Instr]:
        """One send for each core in ``row``; the last raises ``landed`` and tells."""
        signals = [self._signal({c: (landed, send.cores) for c, (send, _) in row.items()})]
        signals += map(self._signal, tells)
        *ahead, last = self._send(row)
        if ahead:  # some cores may have no part in the last: let them signal on their own
            ahead.append(last)
            last = Instr("sync", where=self._mask(row))
        return [*ahead, replace(last, signals=tuple(signals))]

    def _signal(self, now: Tells) -> Signal:
        """Each core's token and the cores to tell."""
        some = next(iter(now.values()))[0]
        token = num([now[c][0] if c in now else some for c in range(self.cores)])
        return Signal(token, 1, num([now[c][1] if c in now else 0 for c in range(self.cores)]))

    def _deliveries(
        self, told: Telling, landed: int, ready: Mapping[int, int]
    ) -> Iterator[Stmt]:
        """What takes the fragments: one by one while there are more to come than a core takes at
        once, the rest together."""
        for turn in range(max(map(len, told.taken.values()), default=0)):
            next_ = {c: places[turn] for c, places in told.taken.items() if turn < len(places)}
            tell = {c: (ready[number], 1 << core) for c, (core, number) in next_.items()}
            yield self._taken(1, landed, tell, (self._signal(tell),))
        rest = {c: n - len(told.taken.get(c, ())) for c, n in told.fragments.items()}
        for n, cores in sorted(_grouped(rest).items()):
            yield self._taken(n, landed, cores)

    def _taken(
        self, n: int, landed: int, cores: Iterable[int], signals: tuple[Signal, ...] = ()
    ) -> Stmt:
        instr = Instr(
            "recv", imm={"fragments": n}, waits=(Wait(landed, n),), signals=signals,
            where=self._mask(cores),
        )  # fmt: skip
        return Stmt("rr", instr, (), (self.arrived,))

    def _copies(
        self, plan: ExchangePlan, turns: Mapping[int, int], copied: int
    ) -> Iterator[Stmt]:
        """What stays on its core is copied there, and what has landed beside the buffers turn by
        turn; the receiver waits for that too."""
        yield from self._copied({s: s for s in plan.copies}, self.source)
        for turn, token in turns.items():
            mine = [p for p in plan.picks if p.turn == turn]
            sends = {c: {p.of for p in mine if p.copy.core == c} for c in _cores_of(mine)}
            for n, cores in sorted(_grouped({c: len(of) for c, of in sends.items()}).items()):
                where = self._mask(cores)
                yield Stmt("sfp", Instr("sync", waits=(Wait(token, n),), where=where))
            alike: dict[Sizes, dict[Send, Send]] = {}
            for p in mine:
                send = plan.sends[p.of]
                alike.setdefault(send.sizes, {})[p.copy] = send
            for copies in alike.values():
                yield from self._copied(copies, self._room(next(iter(copies.values()))))
        where = self._mask({s.core for s in plan.copies} | _cores_of(plan.picks))
        yield Stmt("sfp", Instr("sync", signals=(Signal(copied),), where=where))
        yield Stmt("rr", Instr("sync", waits=(Wait(copied),), where=where), (), (self.arrived,))

    def _copied(self, copies: Mapping[Send, Send], source: Region) -> Iterator[Stmt]:
        """Copies, each out of what one send has brought (itself when it stays on its core) to
        regions laid out like ``source``: the first of every core, the second and so on."""
        turns: list[dict[int, Hop]] = []
        numbers = Counter[int]()
        for copy, send in copies.items():
            if numbers[copy.core] == len(turns):
                turns.append({})
            turns[numbers[copy.core]][copy.core] = self._hop(copy, send)
            numbers[copy.core] += 1
        for hops in turns:
            for instr in box_transfer("shuf", hops, source, self.target, self.cores):
                yield Stmt("sfp", _by_lanes(instr, source))

    def _room_sizes(self, send: Send) -> Sizes:
        """How the room beside the buffers is laid out in which a send lands; () when it lands in
        them."""
        return () if send.beside is None else send.sizes

    def _room(self, send: Send) -> Region:
        """The room beside the receivers' buffers in which a send lands."""
        assert self.beside is not None and send.beside is not None
        layout, base = self.ends.packed(send.sizes).target, self.beside + send.beside
        return replace(self.source, layout=layout, base=(base,), boxes=(send.box,) * self.cores)

    def _send(self, row: Mapping[int, Planned]) -> list[Instr]:
        """One for each core in ``row``, all laid out alike where they land."""
        some, _ = next(iter(row.values()))
        cores = [row[c][0].cores if c in row else some.cores for c in range(self.cores)]
        imm = {"cores": num(cores)}
        if any(far for _, far in row.values()):
            imm["far"] = num([row[c][1] if c in row else 0 for c in range(self.cores)])
        hops = {c: self._hop(s) for c, (s, _) in row.items()}
        target = self.target if some.beside is None else self._room(some)
        return box_transfer("send", hops, self.source, target, self.cores, imm)

    def _hop(self, send: Send, brought: Send | None = None) -> Hop:
        """From where a send begins, or from where another has ``brought`` it, to where it lands."""
        start = tuple(s for s, _ in send.box)
        if brought is not None and brought.beside is not None:
            here = self._room(brought).at(send.core, start)
        else:
            here = self.source.at(send.core, start)
        if send.beside is not None:
            return Hop(start, send.sizes, here, self._room(send).address(send.core))
        lane = self.source.layout.stick_dim
        if send.offset[lane] % self.source.units[lane]:
            raise PassError(
                f"codegen: relayout of %{self.op.operands[0].name} cuts a stick at element "
                f"{start[lane]} of dimension {lane}; pin other parts (from {self.op.loc})"
            )
        units = zip(send.offset, self.target.units, self.target.along, strict=True)
        there = self.target.address(0) + sum(o // unit * step for o, unit, step in units)
        return Hop(start, send.sizes, here, there)


def _tokens(places: Iterable[Place], ready: Mapping[int, int]) -> list[tuple[int, int]]:
    """The tokens for which sends wait, and for each the cores of which."""
    masks: dict[int, int] = {}
    for core, number in places:
        masks[ready[number]] = masks.get(ready[number], 0) | 1 << core
    return sorted(masks.items())


def _cores_of(picks: Iterable[Pick]) -> set[int]:
    return {p.copy.core for p in picks}


def _by_lanes(instr: Instr, region: Region) -> Instr:
    """A transfer of whole sticks, as the vector unit copies: element by element."""
    layout = region.layout
    lanes = layout.lanes
    if len(instr.counts) == MAX_DIMS:
        raise PassError(f"codegen: a copy of {MAX_DIMS} dimensions of sticks has none for lanes")

    def widened(operand: Operand) -> Operand:
        base: Num = operand.base
        base = base * lanes if isinstance(base, int) else tuple(b * lanes for b in base)
        return replace(operand, base=base, strides=(*(s * lanes for s in operand.strides), 1))

    def counted(intent: Intent) -> Intent:
        claims = tuple(
            replace(claim, at=tuple(
                Affine(a.start, (*a.steps, int(t == layout.stick_dim)), a.loops)
                for t, a in enumerate(claim.at)
            ))
            for claim in intent.claims
        )  # fmt: skip
        return replace(intent, claims=claims, extents=(*intent.extents, Extent(lanes, 1, lanes)))

    return replace(
        instr, counts=(*instr.counts, lanes), limits=(*instr.limits, None),
        operands=tuple(map(widened, instr.operands)), imm={"bits": layout.bits},
        intents=tuple(map(counted, instr.intents)),
    )  # fmt: skip
