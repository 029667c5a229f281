"""Which core sends what when, and which way round, in an exchange over the ring; and how long that
takes.

A core sends one thing at a time. A payload keeps all the segments of its way, each one hop later
than the one before, and who wants one of them waits with all of its own kept. So an exchange is
slow when senders queue for segments they cannot have yet: here a core takes the next of its
fragments whose way is (nearly) free, and if there is none waits for one of others to arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count, islice, product
from typing import NamedTuple

from spyrec.sim.device import DeviceSpec

from .ring_ways import Fragment, add_load, evened, hops_of, ways_of


@dataclass(frozen=True)
class Sending:
    """``index`` of the fragment; ``far``: cores it reaches the longer way round. ``after``: place
    in the schedule of a sending of another core whose arrival it waits for. ``arrives``: in which
    core cycle it has arrived everywhere."""

    index: int
    far: int = 0
    after: int | None = None
    arrives: int = 0


@dataclass(frozen=True)
class Schedule:
    """``sendings`` in the order in which they begin; ``cycles``: core cycles from the start until
    all have arrived."""

    sendings: tuple[Sending, ...]
    cycles: int


Finish = Callable[[Schedule], int]
"""Core cycles until all is done that a schedule is for."""


def all_arrived(made: Schedule) -> int:
    """When nothing is to be done with what has arrived."""
    return made.cycles


def schedule(
    fragments: Sequence[Fragment], device: DeviceSpec, finish: Finish = all_arrived,
    tries: int | None = None,
) -> Schedule:
    """The best of a few ways to list them: by the shorter way or so that the load is even, farthest
    or nearest first or what the busiest segments and senders wait for, with more or less patience
    before a sender queues up; fewer of what is larger, ``tries`` at most, and no more once little
    is left to gain."""
    if not fragments:
        return Schedule((), 0)
    ways = evened(fragments, device)
    enough = GOOD * _least(ways[0], device) + device.ring.start_cycles
    best: tuple[int, Schedule] | None = None
    for how in islice(_tried(fragments, ways), tries):
        if best is not None and how[1].jointly and best[0] < LONG:
            break
        made = _Listing(device, *how).run(None if best is None else best[0])
        cycles = None if made is None else finish(made)
        if made is not None and cycles is not None and (best is None or cycles < best[0]):
            best = cycles, made
        assert best is not None
        if best[0] <= enough:
            break
    assert best is not None
    return best[1]


def _tried(
    fragments: Sequence[Fragment], ways: Sequence[Sequence[Fragment]]
) -> Iterator[tuple[Sequence[Fragment], Urgency, float]]:
    """What is tried, in the order in which it is likely to be good."""
    n, firsts = len(fragments), (far_first, near_first)
    yield from product(ways[:1], firsts, (0.25, 0.5) if n <= MANY else (0.25,))
    if n > MANY:
        return
    yield from product(ways[:1], firsts, (1.0,))
    if n <= FEW:
        yield from product((fragments, *ways[1:]), firsts, (0.5, 1.0))
        yield from product((fragments, *ways), firsts, (0.0, NEVER))
    if n <= VERY_FEW:
        yield from product(ways, map(any_order, range(DRAWN)), (0.5, 1.0))
    if n <= JOINTLY:
        yield from product(ways, (soon_first,), (0.5, 1.0))
        yield from product(ways[:1], (loaded_first, next_first), (0.25, 0.5, 1.0))


def least_cycles(fragments: Sequence[Fragment], device: DeviceSpec) -> int:
    """Core cycles that they take at least by evened ways: the busiest segment's bytes, or what the
    busiest sender does one after the other."""
    return _least(evened(fragments, device)[0], device)


def mean_cycles(fragments: Sequence[Fragment], device: DeviceSpec) -> float:
    """Core cycles that they would take if they loaded all segments alike, or the busiest sender."""
    stops, ring, busy, total = device.cores.count + 1, device.ring, dict[int, int](), 0
    for f in fragments:
        total += f.nbytes * sum(hops_of(f, stops))
        busy[f.core] = busy.get(f.core, 0) + sender_cycles(f, device)
    link = ring.to_core(ring.payload_cycles(total // (2 * stops)), device.clock_mhz)
    return max(link, *busy.values(), 1)


def _least(fragments: Sequence[Fragment], device: DeviceSpec) -> int:
    stops, ring = device.cores.count + 1, device.ring
    loads, busy = [[0.0] * stops, [0.0] * stops], [0] * stops
    for f in fragments:
        add_load(loads, f, hops_of(f, stops), f.nbytes)
        busy[f.core] += sender_cycles(f, device)
    link = ring.to_core(ring.payload_cycles(int(max(map(max, loads)))), device.clock_mhz)
    return max(link + ring.start_cycles, *busy)


def sender_cycles(f: Fragment, device: DeviceSpec) -> int:
    """Core cycles in which its sender does nothing else, with nobody in its way."""
    ring = device.ring
    payload = ring.to_core(ring.payload_cycles(f.nbytes), device.clock_mhz)
    return ring.start_cycles + payload + f.runs * ring.run_cycles


LONG = 750  # core cycles from which an exchange is worth tries that take long themselves
GOOD = 1.02  # times the least that it could take, and a set-up, is good enough
NEVER = float("inf")  # patience of one who queues up whatever the wait
VERY_FEW, FEW, JOINTLY, MANY = 32, 64, 64, 300  # fragments
DRAWN = 8  # arbitrary orders that are tried of very few fragments


# Lists ----------------------------------------------------------------------------------------

class Candidate(NamedTuple):
    """A fragment that may be sent now: hops of its way, ticks that it would wait and how many
    set-ups these are, and ticks for which a segment on its way, and that or its sender, has work
    left (with what comes when it has arrived)."""

    fragment: Fragment
    hops: int
    wait: int
    late: int
    load: int
    left: int


@dataclass(frozen=True)
class Urgency:
    """What is sent first: the least ``key``. Of several cores that may send, the one that has sent
    least comes first or, ``jointly``, the one whose fragment is most urgent."""

    key: Callable[[Candidate], tuple[int, ...]]
    jointly: bool = False


far_first = Urgency(lambda c: (-c.hops, c.wait, -c.fragment.nbytes))
"""What takes the longest way."""
near_first = Urgency(lambda c: (c.wait, c.hops, -c.fragment.nbytes))
"""What waits least, then what takes the shortest way."""
loaded_first = Urgency(lambda c: (-c.load, c.wait, -c.fragment.nbytes), jointly=True)
"""What passes the segment with most to do."""
next_first = Urgency(lambda c: (c.wait, -c.load, -c.fragment.nbytes), jointly=True)
"""What waits least, then what passes the segment with most to do."""
soon_first = Urgency(lambda c: (c.late, -c.left, c.wait, -c.fragment.nbytes), jointly=True)
"""What hardly waits, then what passes the segment, or leaves the sender, with most to do."""


def any_order(number: int) -> Urgency:
    """One of many arbitrary orders, always the same for a number."""
    def key(c: Candidate) -> tuple[int, ...]:
        return (c.fragment.core * 40503 + c.fragment.cores * 97 + number * 7919) % 9973, c.wait

    return Urgency(key)


class _Listing:
    """List scheduling in ticks, of which both clocks' cycles are whole numbers. A segment has a
    gate: when it is free, less the hops from stop 0 (plus them, downwards), so that one payload
    leaves the same gate on all of its way. ``patience``: a sender queues up when the part of its
    payload's time that it has to wait is no more than that."""

    def __init__(
        self, device: DeviceSpec, fragments: Sequence[Fragment], urgency: Urgency, patience: float
    ) -> None:
        ring, self.stops = device.ring, device.cores.count + 1
        self.fragments, self.urgency = fragments, urgency
        self.tick = ring.clock_mhz  # of a core cycle
        self.hop = ring.hop_cycles * device.clock_mhz
        self.start = ring.start_cycles * self.tick
        self.most = ring.fragments_max
        up = [-s * self.hop for s in range(self.stops)]
        self.gates = [up, [-t for t in up]]
        self.length = [ring.payload_cycles(f.nbytes) * device.clock_mhz for f in fragments]
        self.held = [f.runs * ring.run_cycles * self.tick for f in fragments]
        self.queue_at = [n * patience + self.start for n in self.length]
        self.ways = [ways_of(f, self.stops, self.hop) for f in fragments]
        self.flat = [
            [(self.gates[way], *row) for way, _, rows in ways for row in rows] for ways in self.ways
        ]
        self.far = [sum(ticks for _, ticks, _ in ways) for ways in self.ways]
        self.to = [[c for c in range(self.stops) if f.cores >> c & 1] for f in fragments]
        self.landed: list[list[int]] = [[] for _ in range(self.stops)]  # the latest, ``most`` each
        self.half = max(1, device.cores.count // 2)
        self.tail = [f.tail * self.tick for f in fragments]
        self.loads = [[0] * self.stops, [0] * self.stops]  # not sent yet, in ticks
        self.left = [0] * self.stops  # of each sender
        self.passed = [
            [(self.loads[way], a, b) for way, _, rows in ways for a, b, _ in rows]
            for ways in self.ways
        ]
        for i, f in enumerate(fragments):
            self._owe(i, f.core, 1)

    def _owe(self, i: int, core: int, sign: int) -> None:
        """Add a fragment to what is to be sent, or take it off."""
        self.left[core] += sign * (self.start + self.length[i] + self.held[i])
        for loads, a, b in self.passed[i]:
            for s in range(a, b):
                loads[s] += sign * self.length[i]

    def run(self, most: int | None = None) -> Schedule | None:
        """None when it takes no less than so many cycles."""
        limit = NEVER if most is None else (most - 1) * self.tick
        pending: dict[int, list[int]] = {}
        for i, f in enumerate(self.fragments):
            pending.setdefault(f.core, []).append(i)
        number = count().__next__
        # when, number, core that is free or -1, place of what has arrived
        events = [
            (0, number(), core, -1) for core in sorted(pending, key=lambda c: (c % self.half, c))
        ]
        heapify(events)
        idle: dict[int, int] = {}  # core -> when it is worth while to look again
        sent: list[Sending] = []
        numbers = dict.fromkeys(pending, 0)
        last = 0
        while events:
            now, _, core, arrived = heappop(events)
            if core >= 0:
                looking = [core]
                while self.urgency.jointly and events and events[0][2] >= 0 == events[0][0] - now:
                    looking.append(heappop(events)[2])
            else:
                looking = [c for c, again in idle.items() if again <= now]
                looking.sort(key=lambda c: (numbers[c], c))
            for c, place in self._chosen(looking, pending, idle, now):
                i = pending[c].pop(place)
                waited = idle.pop(c, None) is not None
                left, done = self._send(i, now)
                f = self.fragments[i]
                self._owe(i, c, -1)
                if pending[c]:
                    heappush(events, (left, number(), c, -1))
                heappush(events, (done, number(), -1, len(sent)))
                after = arrived if waited else None
                sent.append(Sending(i, f.far, after, done // self.tick))
                numbers[c] += 1
                last = max(last, done)
                if last > limit:
                    return None
        return Schedule(tuple(sent), -(-last // self.tick))

    def _chosen(
        self, looking: Sequence[int], pending: Mapping[int, Sequence[int]], idle: dict[int, int],
        now: int,
    ) -> Iterator[tuple[int, int]]:
        """Cores that send now and the place of what, each told when those before have been sent, in
        the order in which the machine lets them begin; the others are idle."""
        if self.urgency.jointly and len(looking) > 1:
            places = self._agreed(looking, pending, idle, now)
            yield from [(c, places[c]) for c in looking if c in places]
            return
        for c in looking:
            _, place, again = self._choose(pending[c], now)
            if place is None:
                idle[c] = again
            else:
                yield c, place

    def _agreed(
        self, looking: Sequence[int], pending: Mapping[int, Sequence[int]], idle: dict[int, int],
        now: int,
    ) -> dict[int, int]:
        """What each core sends when the most urgent of all goes first; the others are idle."""
        gates, landed = [[*lane] for lane in self.gates], [[*times] for times in self.landed]
        places: dict[int, int] = {}
        while len(places) < len(looking):
            found = [(*self._choose(pending[c], now), c) for c in looking if c not in places]
            able = [(key, c, place) for key, place, _, c in found if place is not None]
            if not able:
                idle |= {c: again for _, _, again, c in found}
                break
            _, c, places[c] = min(able, key=lambda x: x[0])
            self._send(pending[c][places[c]], now)
        for lane, before in zip(self.gates, gates, strict=True):
            lane[:] = before
        self.landed[:] = landed
        return places

    def _choose(
        self, pending: Sequence[int], now: int
    ) -> tuple[tuple[int, ...], int | None, int]:
        """Of the most urgent fragment that need not queue up for long its urgency and place; else
        when one may not."""
        best: tuple[int, ...] = ()
        chosen, again = None, 1 << 62
        most, landed, earliest = self.most, self.landed, now + self.start
        for place, i in enumerate(pending):
            ready = now
            for c in self.to[i]:
                if len(landed[c]) >= most and landed[c][0] > ready:
                    ready = landed[c][0]
            start = ready + self.start
            for gates, a, b, delay in self.flat[i]:
                free = max(gates[a:b]) + delay
                if start < free:
                    start = free
            if ready > now or start - earliest > self.queue_at[i]:
                late = start - self.start - self.queue_at[i]
                again = min(again, max(ready, int(late) if late > 0 else now))
                continue
            load, left = self._left(i) if self.urgency.jointly else (0, 0)
            wait, f = start - earliest, self.fragments[i]
            key = self.urgency.key(Candidate(f, self.far[i], wait, wait // self.start, load, left))
            if chosen is None or key < best:
                best, chosen = key, place
        return best, chosen, again

    def _left(self, i: int) -> tuple[int, int]:
        """Ticks that the busiest segment on its way is still to be taken up, and that or its
        sender, with what comes when it has arrived."""
        load = max([max(loads[a:b]) for loads, a, b in self.passed[i]], default=0)
        return load + self.tail[i], max(load, self.left[self.fragments[i].core]) + self.tail[i]

    def _send(self, i: int, now: int) -> tuple[int, int]:
        """When its core is free again and when it has arrived."""
        earliest = now + self.start
        left = done = earliest + self.length[i]
        for way, ticks, rows in self.ways[i]:
            gates, start = self.gates[way], earliest
            for a, b, delay in rows:
                free = max(gates[a:b]) + delay
                if start < free:
                    start = free
            end = start + self.length[i]
            for a, b, delay in rows:
                gates[a:b] = [end - delay] * (b - a)
            left, done = max(left, end), max(done, end + ticks)
        left, done = (-(-t // self.tick) * self.tick + self.held[i] for t in (left, done))
        for c in self.to[i]:
            landed = self.landed[c]
            landed.append(done)
            landed.sort()
            if len(landed) > self.most:
                del landed[0]
        return left, done
