"""Plans of exchanges of which a part lands beside the receivers' buffers: where exactly, in which
turns the vector units copy it to its place, and when all is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from spyrec.ir.exchange import intersect

from .exchange_beside import Around, Group, Part, gathered
from .kernel import Box
from .ring_order import Schedule
from .ring_schedule import schedule
from .ring_ways import Fragment
from .runs import STICK
from .sends import Send, copy_cycles, divided


@dataclass(frozen=True)
class Pick:
    """A ``copy`` out of what one of the sends brings beside the buffers; of a core's picks those of
    an earlier ``turn`` come first, and each waits for all that its turn is made from."""

    of: int
    copy: Send
    turn: int


@dataclass(frozen=True)
class ExchangePlan:
    """``sends`` as they are to be made, ``schedule`` saying when; ``copies``: what a core's vector
    unit brings to its new place meanwhile, and ``picks`` as it arrives, out of ``room`` sticks
    beside the receivers' buffers. ``cycles``: core cycles until all is in place."""

    sends: tuple[Send, ...]
    schedule: Schedule
    copies: tuple[Send, ...]
    cycles: int
    picks: tuple[Pick, ...] = ()
    room: int = 0


def plan_beside(
    moved: Sequence[Send], copies: tuple[Send, ...], around: Around, cycles: int
) -> tuple[Landing, ExchangePlan] | None:
    """A plan that brings to their places what the sends ``moved`` bring, with some that land beside
    the receivers' buffers, and what may be improved; None where that promises no gain over one that
    takes ``cycles``, or there is no room."""
    groups = gathered(moved, around)
    if groups is None:
        return None
    landing = Landing(groups, copies, around)
    best = landing.plan()
    if best is None or best.cycles > HOPEFUL * cycles:
        return None
    for _ in range(REFINED if len(groups) <= REFINED_MOST else 0):
        tried = [Landing(some, copies, around) for some in landing.refined(best)]
        plans = [(made, plan) for made in tried if (plan := made.plan()) is not None]
        finer, plan = min(plans, key=lambda x: x[1].cycles, default=(landing, best))
        if plan.cycles >= best.cycles:
            break
        landing, best = finer, plan
    return landing, best


TRIES = 6  # of schedules, until it is known what is sent
HOPEFUL = 1.15  # times what another plan takes, more tries may gain
REFINED = 5  # times, what is copied last is divided or sent to its place
REFINED_MOST = 64  # groups


@dataclass
class Landing:
    """What the vector units do in a plan: ``copies`` of what stays, and for each group those of
    what it brings beside the buffers."""

    groups: Sequence[Group]
    copies: tuple[Send, ...]
    around: Around

    def __post_init__(self) -> None:
        self.ends, self.device = self.around.ends, self.around.device
        self.brought = [[*self.around.copies(g)] for g in self.groups]
        self.stays = self._took(self.copies)
        self.took = [self._took(some) for some in self.brought]

    def _took(self, copies: Iterable[Send]) -> dict[int, int]:
        """Cycles of each core."""
        found: dict[int, int] = {}
        for c in copies:
            took = copy_cycles([c], self.ends, self.device)
            found[c.core] = found.get(c.core, 0) + took
        return found

    @cached_property
    def fragments(self) -> list[Fragment]:
        """Of the groups, with what is to be copied when they have arrived."""
        sends = (self.around.send(g) for g in self.groups)
        return [
            replace(
                (self.ends.packed(s.sizes) if g.beside else self.ends).fragment(s),
                tails=tuple(took.items()),
            )
            for g, s, took in zip(self.groups, sends, self.took, strict=True)
        ]

    def plan(self, effort: int = 0) -> ExchangePlan | None:
        """The best of a few tries, improved with that ``effort``; None when there is no room beside
        the buffers."""
        tries = None if effort else TRIES
        return self.timed(
            lambda: schedule(self.fragments, self.device, self.cycles, tries, effort)
        )

    def timed(self, schedule: Callable[[], Schedule]) -> ExchangePlan | None:
        """With a schedule, for which is only asked when there is room beside the buffers."""
        places, room = _places(self.groups, self.around)
        sticks = self.ends.source.sticks + self.ends.target.sticks + room
        if room and sticks * STICK > self.device.lx.usable_bytes:
            return None
        sends = tuple(
            replace(self.around.send(g), beside=at)
            for g, at in zip(self.groups, places, strict=True)
        )
        done = schedule()
        return ExchangePlan(sends, done, self.copies, self.cycles(done), self.picks(done), room)

    def refined(self, plan: ExchangePlan) -> Iterator[list[Group]]:
        """The groups, but that which is copied last in two, or sent part by part to its place."""
        done = self._done(plan.schedule)
        core = max(done, key=lambda c: (done[c], c), default=-1)
        mine = [p for p in plan.picks if p.copy.core == core]
        if mine:
            late = max(mine, key=lambda p: (p.turn, p.copy.box)).of
            others = [g for i, g in enumerate(self.groups) if i != late]
            for finer in (halves, straight):
                yield [*others, *finer(self.groups[late], self.around)]

    def picks(self, made: Schedule) -> tuple[Pick, ...]:
        """The copies out of what has arrived, as the vector units make them."""
        turns = self._turns(made)
        order = sorted(turns, key=lambda i: (turns[i], i))
        return tuple(Pick(i, copy, turns[i]) for i in order for copy in self.brought[i])

    def cycles(self, made: Schedule) -> int:
        """When all is in its place."""
        return max([made.cycles, *self._done(made).values()])

    def _done(self, made: Schedule) -> dict[int, int]:
        """When each core has copied all."""
        turns = self._turns(made)
        arrived: dict[tuple[int, int], int] = {}
        work: dict[tuple[int, int], int] = {}
        for sending in made.sendings:
            i = sending.index
            for core, took in self.took[i].items():
                key = turns[i], core
                arrived[key] = max(arrived.get(key, 0), sending.arrives)
                work[key] = work.get(key, 0) + took
        busy = dict(self.stays)
        for key in sorted(work):
            busy[key[1]] = max(busy.get(key[1], 0), arrived[key]) + work[key]
        return busy

    def _turns(self, made: Schedule) -> dict[int, int]:
        """For each group that lands beside the turn in which its receivers copy it: later than what
        has arrived at any of them before, but for turns that are joined."""
        last: dict[int, int] = {}
        found: dict[int, int] = {}
        for sending in sorted(made.sendings, key=lambda s: (s.arrives, s.index)):
            if to := self.took[sending.index]:
                turn = 1 + max(last.get(c, 0) for c in to)
                found[sending.index] = turn
                last |= dict.fromkeys(to, turn)
        most = max([TURNS, *found.values()])
        return {i: (turn - 1) * TURNS // most for i, turn in found.items()}


def halves(group: Group, around: Around) -> Iterator[Group]:
    """A group in two, divided as its send would be."""
    for part in divided(around.send(group), around.ends, 2):
        parts = [
            (c, common) for c, box in group.parts if (common := intersect(part.box, box))
        ]
        if parts:
            yield around.group(group.core, part.box, parts, group.beside)


def straight(group: Group, around: Around) -> Iterator[Group]:
    """The parts of a group, each sent to its place."""
    to: dict[tuple[Box, tuple[int, ...]], list[Part]] = {}
    for core, box in group.parts:
        to.setdefault((box, around.offset(core, box)), []).append((core, box))
    for (box, _), parts in to.items():
        yield around.group(group.core, box, parts)


TURNS = 24  # of a core's copies, in which it waits once


def _places(groups: Sequence[Group], around: Around) -> tuple[list[int | None], int]:
    """Where what lands beside the buffers does so, the largest first in the lowest place that is
    free on all its receivers; and the sticks of all that room."""
    sticks = [around.ends.packed(around.send(g).sizes).target.sticks for g in groups]
    places: list[int | None] = [None] * len(groups)
    taken: dict[int, list[tuple[int, int]]] = {}
    for i in sorted(range(len(groups)), key=lambda i: (-sticks[i], i)):
        if not groups[i].beside:
            continue
        to = {c for c, _ in groups[i].parts}
        at = 0
        for start, end in sorted(span for c in to for span in taken.get(c, ())):
            if start < at + sticks[i] and at < end:
                at = end
        places[i] = at
        for c in to:
            taken.setdefault(c, []).append((at, at + sticks[i]))
    return places, max((end for spans in taken.values() for _, end in spans), default=0)
