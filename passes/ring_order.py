"""When an exchange over the ring is done whose fragments pass their segments in a given order, and
a search for a better order and better ways.

A segment takes payloads in the order in which their senders begin. So a plan is an order of all
fragments: of two that pass the same segment the earlier begins first, and a sender that is free too
soon waits until it is told that the other one begins. All times follow from the order, and any plan
in which nobody waits for nothing is one of these.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import chain
from random import Random

from spyrec.sim.device import DeviceSpec

from .ring_ways import Fragment, Hops, bits, choices, turned, ways_of


@dataclass(frozen=True)
class Sending:
    """``index`` of the fragment; ``far``: cores it reaches the longer way round. It waits until
    others, by their places in the schedule, begin (``after``) or have arrived (``landed``).
    ``arrives``: in which core cycle it has arrived everywhere itself."""

    index: int
    far: int = 0
    after: tuple[int, ...] = ()
    landed: tuple[int, ...] = ()
    arrives: int = 0


@dataclass(frozen=True)
class Schedule:
    """``sendings``, those that pass the same segment in the order in which they do; ``cycles``:
    core cycles from the start until all have arrived."""

    sendings: tuple[Sending, ...]
    cycles: int


@dataclass(frozen=True)
class Order:
    """Numbers of fragments, and hops up and down of each fragment."""

    numbers: Sequence[int]
    hops: Sequence[Hops]


@dataclass(frozen=True)
class Timed:
    """``ticks`` until all is done. Of each fragment: when it ``arrives``, for which others it waits
    ``after`` they begin or, less 1 below 0, until they have arrived, and which one kept it from
    passing earlier (``blocker``, -1 for none). ``last``: what is done last."""

    ticks: int
    arrives: Sequence[int]
    after: Sequence[Collection[int]]
    blocker: Sequence[int]
    last: int

    @property
    def chain(self) -> list[int]:
        """The last fragment, what kept it waiting, what kept that waiting..."""
        found = [self.last]
        while (before := self.blocker[found[-1]]) >= 0:
            found.append(before)
        return found


WHO = 20  # bits below a tick: the fragment to which it belongs
NOBODY = (1 << WHO) - 1
TOLD = 40  # bits for when a sender can tell that it begins


FragmentRow = tuple[int, int, int, list[tuple[int, int]], list[int]]
"""Sender, ticks of the payload and of the runs, of what receivers copy, and all receivers."""


class Timing:
    """The fragments of an exchange, to be timed in many orders, in ticks of which both clocks'
    cycles are whole numbers. A segment has a gate: when it is free, less the hops from stop 0 (plus
    them, downwards), so that one payload leaves the same gate on all of its way. ``copies``: core
    cycles of what vector units have to do before they copy what arrives."""

    def __init__(
        self, fragments: Sequence[Fragment], device: DeviceSpec,
        copies: Mapping[int, int] | None = None,
    ) -> None:
        self.ring, self.clock_mhz = device.ring, device.clock_mhz
        self.stops, self.most = device.cores.count + 1, device.ring.fragments_max
        self.tick = device.ring.clock_mhz  # of a core cycle
        self.hop = device.ring.hop_cycles * device.clock_mhz
        self.start = device.ring.start_cycles * self.tick
        self.copies = [0] * self.stops
        for core, cycles in (copies or {}).items():
            self.copies[core] = cycles * self.tick
        self._begin(fragments, [self._row(f) for f in fragments])

    def with_others(self, left: Sequence[int], others: Sequence[Fragment]) -> Timing:
        """Of the fragments those ``left``, by number, and ``others`` after them."""
        made = copy(self)
        made._begin(
            [*(self.fragments[i] for i in left), *others],
            [*(self.rows[i] for i in left), *map(self._row, others)],
        )
        return made

    def _row(self, f: Fragment) -> FragmentRow:
        return (
            f.core, self.ring.payload_cycles(f.nbytes) * self.clock_mhz,
            f.runs * self.ring.run_cycles * self.tick,
            [(c, cycles * self.tick) for c, cycles in f.tails], bits(f.cores),
        )

    def _begin(self, fragments: Sequence[Fragment], rows: Sequence[FragmentRow]) -> None:
        self.fragments, self.rows = fragments, rows
        coming = Counter(chain.from_iterable(row[-1] for row in rows))
        full = {c for c, n in coming.items() if n > self.most}
        self.work = [(*row[:-1], [c for c in row[-1] if c in full]) for row in rows]
        self.spent = 0  # fragments timed, and an eighth for each crowded receiver
        self.busy = [0] * self.stops  # of each sender, with nobody in its way
        for core, length, held, _, _ in rows:
            self.busy[core] += self.start + length + held

    def run(
        self, order: Order, limit: float = float("inf"), ties: bool = False
    ) -> Timed | None:
        """None when not all is done within the limit, in ticks. A sender can tell that it begins
        when all it has sent before has arrived. Of several that begin in one cycle before another
        it waits for all, with ``ties``, or for one in what is returned."""
        stops, start, tick, most, hop = self.stops, self.start, self.tick, self.most, self.hop
        up = [(-s * hop << WHO) | NOBODY for s in range(stops)]
        gates = up, [(s * hop << WHO) | NOBODY for s in range(stops)]
        begun = [-1] * stops, [-1] * stops  # the latest: tick, tick of telling, fragment
        taken, landed = [-1] * stops, [list[int]() for _ in range(stops)]
        free, due, sender, left_over = [0] * stops, [0] * stops, [-1] * stops, [*self.busy]
        arrivals: list[int] = []
        copied = [*self.copies]  # until when vector units have work
        n = len(self.work)
        arrives, blocker = [0] * n, [-1] * n
        after: list[Collection[int]] = [()] * n
        total, last, work, hops = 0, -1, self.work, order.hops
        for i in order.numbers:
            core, length, held, tails, crowded = work[i]
            self.spent += 1 + len(crowded) // 8
            ways = ways_of(core, hops[i], stops, hop)
            before = -1
            for way, _, rows in ways:
                lane = begun[way]
                for a, b, _ in rows:
                    if (m := max(lane[a:b])) > before:
                        before = m
            for c in crowded:
                if taken[c] > before:
                    before = taken[c]
            now = free[core]
            who = sender[core]
            if (begins := before >> TOLD + WHO) >= now:
                now, who = before >> WHO & (1 << TOLD) - 1, before & NOBODY
                after[i] = (who,)
                if now == begins and ties:
                    found = {m for way, _, rows in ways for a, b, _ in rows
                             for m in begun[way][a:b]}
                    found.update([taken[c] for c in crowded])
                    after[i] = {m & NOBODY for m in found if m >> TOLD + WHO == begins}
                elif now > begins:
                    at = bisect_left(arrivals, begins + 1 << WHO)
                    if at < len(arrivals) and arrivals[at] >> WHO < now:
                        now, who = arrivals[at] >> WHO, arrivals[at] & NOBODY
                        after[i] = (-1 - who,)
            for c in crowded:
                if len(landed[c]) == most and landed[c][0] >> WHO > now:
                    now, who = landed[c][0] >> WHO, landed[c][0] & NOBODY
            tells = due[core]
            if tells < now:
                tells = now
            key = (now << TOLD | tells) << WHO | i
            now += start
            left = done = now + length
            for way, ticks, rows in ways:
                lane, begin = gates[way], now
                for a, b, delay in rows:
                    gate = max(lane[a:b])
                    if (at := (gate >> WHO) + delay) > begin:
                        begin, who = at, gate & NOBODY
                end = begin + length
                keys = begun[way]
                for a, b, delay in rows:
                    lane[a:b] = [(end - delay << WHO) | i] * (b - a)
                    keys[a:b] = [key] * (b - a)
                if end > left:
                    left = end
                if end + ticks > done:
                    done = end + ticks
            left = -(-left // tick) * tick + held
            done = -(-done // tick) * tick + held
            left_over[core] -= start + length + held
            finished = done
            for c, cycles in tails:
                copied[c] = (done if done > copied[c] else copied[c]) + cycles
                if copied[c] > finished:
                    finished = copied[c]
            if left + left_over[core] > limit or finished > limit:
                return None
            for c in crowded:
                taken[c] = key
                insort(landed[c], done << WHO | i)
                if len(landed[c]) > most:
                    del landed[c][0]
            free[core], arrives[i], sender[core], blocker[i] = left, done, i, who
            if done > due[core]:
                due[core] = done
            insort(arrivals, done << WHO | i)
            if finished > total:
                total, last = finished, i
        return Timed(total, arrives, after, blocker, last)

    def cycles(self, order: Order) -> float:
        """Core cycles of an order."""
        timed = self.run(order)
        assert timed is not None
        return timed.ticks / self.tick

    def schedule(self, order: Order) -> Schedule:
        """The sendings of an order."""
        timed = self.run(order, ties=True)
        assert timed is not None
        place = {i: n for n, i in enumerate(order.numbers)}
        sendings: list[Sending] = []
        for i in order.numbers:
            far = turned(self.fragments[i], order.hops[i], self.stops).far
            after, landed = (
                tuple(sorted(place[w] for w in some))
                for some in ([w for w in timed.after[i] if w >= 0],
                             [-1 - w for w in timed.after[i] if w < 0])
            )
            sendings.append(Sending(i, far, after, landed, timed.arrives[i] // self.tick))
        return Schedule(tuple(sendings), max((s.arrives for s in sendings), default=0))


# Search ---------------------------------------------------------------------------------------


def improved(timing: Timing, order: Order, effort: int, enough: int) -> Order:
    """Of ``order`` and those that were tried from there on the one that is done soonest: until so
    much ``effort`` is spent (see Timing), or it takes no more than ``enough`` core cycles.

    Simulated annealing: of the chain of fragments that keep the last one waiting, two change their
    order, one goes elsewhere in the order, or another way. What takes a little longer is accepted
    too, less and less so. The numbers drawn are the same in every run.
    """
    timed = timing.run(order)
    assert timed is not None
    ways = [choices(f, timing.stops) for f in timing.fragments]
    draw = Random(len(ways)).random
    chain, ticks, best, best_ticks = timed.chain, timed.ticks, order, timed.ticks
    begun = gained = timing.spent
    while (spent := timing.spent - begun) < effort and best_ticks > enough * timing.tick:
        if timing.spent - gained > PATIENCE * effort:
            break
        timing.spent += 1  # for drawing
        tried = neighbour(order, chain, ways, draw)
        limit = ticks * (1 + WARM * (1 - spent / effort) * draw() ** 2)
        if tried is None or (timed := timing.run(tried, limit)) is None:
            continue
        order, chain, ticks = tried, timed.chain, timed.ticks
        if ticks < best_ticks:
            best, best_ticks, gained = order, ticks, timing.spent
    return best


PATIENCE = 0.5  # of the effort without a gain is enough
WARM = 0.03  # share of the time that a change may cost at first, to be accepted
SWAPS, TURNS = 0.55, 0.8  # of the changes: up to here two change their order, up to here a way
NEAR = 6  # places that half of the others go at most


def neighbour(
    order: Order, chain: Sequence[int], ways: Sequence[Sequence[Hops]], draw: Callable[[], float]
) -> Order | None:
    """A change that may let the last of the chain be done earlier; None where what was drawn
    changes nothing."""
    kind, at = draw(), int(draw() * len(chain))
    numbers = [*order.numbers]
    if kind < SWAPS and len(chain) > 1:
        at = min(at, len(chain) - 2)
        later, earlier = numbers.index(chain[at]), numbers.index(chain[at + 1])
        if later < earlier:
            return None
        if draw() < 0.5:
            numbers.insert(earlier, numbers.pop(later))
        else:
            numbers.insert(later, numbers.pop(earlier))
        return Order(numbers, order.hops)
    i = chain[at]
    if kind < TURNS and len(ways[i]) > 1:
        hops = [*order.hops]
        hops[i] = ways[i][int(draw() * len(ways[i]))]
        return None if hops[i] == order.hops[i] else Order(order.numbers, hops)
    before = numbers.index(i)
    del numbers[before]
    to = before + int(draw() * (2 * NEAR + 1)) - NEAR
    if draw() < 0.5:
        to = int(draw() * (len(numbers) + 1))
    numbers.insert(max(0, to), i)
    return Order(numbers, order.hops)
