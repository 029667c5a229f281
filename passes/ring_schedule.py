"""How long an exchange over the ring takes: a few ways to list what is sent, of which the best is
improved where there is much to gain.

A core sends one thing at a time. A payload keeps all the segments of its way, each one hop later
than the one before, and who wants one of them waits with all of its own kept. So an exchange is
slow when senders queue for segments they cannot have yet: in a list a core takes the next of its
fragments whose way is (nearly) free, and if there is none waits for one of others to arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, islice, product

from spyrec.sim.device import DeviceSpec

from .ring_order import Order, Schedule, Timing, improved
from .ring_ways import Fragment, add_load, evened, hops_of, ways_of

Finish = Callable[[Schedule], int]
"""Core cycles until all is done that a schedule is for."""


def all_arrived(made: Schedule) -> int:
    """When nothing is to be done with what has arrived."""
    return made.cycles


def schedule(
    fragments: Sequence[Fragment], device: DeviceSpec, finish: Finish = all_arrived,
    tries: int | None = None, effort: int = 0,
) -> Schedule:
    """The best of a few ways to list them: by the shorter way or so that the load is even, farthest
    or nearest first, with more or less patience before a sender queues up; fewer of what is larger,
    ``tries`` at most, and no more once little is left to gain. Then improved with that ``effort``
    (see ``improved``) while there is more to gain."""
    if not fragments:
        return Schedule((), 0)
    ways, stops = evened(fragments, device), device.cores.count + 1
    least = _least(ways[0], device)
    enough = int(GOOD * least) + device.ring.start_cycles
    found: list[tuple[float, Timing, Order]] = []
    for some, urgency, patience in islice(_tried(fragments, ways), tries):
        most = min((int(cycles) for cycles, _, _ in found), default=None)
        numbers = _Listing(device, some, urgency, patience).run(most)
        if numbers is not None:
            found.append(_timed(some, numbers, device))
            if found[-1][0] <= enough:
                break
    if effort:
        found += [_timed(some, _swept(some, stops), device) for some in ways]
    found.sort(key=lambda x: x[0])
    cycles, timing, order = found[0]
    best = timing.schedule(order)
    enough = int(mean_cycles(fragments, device)) + device.ring.start_cycles // 4
    if effort and cycles > enough:
        begun = {cycles: (timing, order) for cycles, timing, order in found}
        tried = [
            (timing, improved(timing, order, effort // (2 * BEGUN), enough))
            for timing, order in islice(begun.values(), BEGUN)
        ]
        timing, order = min(tried, key=lambda x: x[0].cycles(x[1]))
        better = timing.schedule(improved(timing, order, effort // 2, enough))
        best = min(best, better, key=finish)
    return best


def _timed(
    some: Sequence[Fragment], numbers: Sequence[int], device: DeviceSpec
) -> tuple[float, Timing, Order]:
    """How long the fragments take in an order by their ways, and both."""
    timing = Timing(some, device)
    order = Order(numbers, [hops_of(f, timing.stops) for f in some])
    return timing.cycles(order), timing, order


def _swept(some: Sequence[Fragment], stops: int) -> list[int]:
    """The first of each core, then the second..., each time along the ring: what goes upwards in
    the order of the cores, what goes downwards against it. So the payloads of neighbours follow one
    another closely, where all go far."""
    sent = Counter[int]()
    keys: list[tuple[int, int, int]] = []
    for i, f in enumerate(some):
        up, down = hops_of(f, stops)
        keys.append((sent[f.core], f.core if up >= down else stops - 1 - f.core, i))
        sent[f.core] += 1
    return [i for _, _, i in sorted(keys)]


def _tried(
    fragments: Sequence[Fragment], ways: Sequence[Sequence[Fragment]]
) -> Iterator[tuple[Sequence[Fragment], Urgency, float]]:
    """What is tried, in the order in which it is likely to be good."""
    n, firsts = len(fragments), (far_first, near_first)
    if any(f.tail for f in fragments):
        firsts = (long_first, far_first)
    yield from product(ways[:1], firsts, (0.25, 0.5, 1.0) if n <= MANY else (0.25,))
    if n <= FEW:
        yield from product((*ways[1:], fragments), firsts, (0.5,))
        yield from product(ways[:1], firsts, (NEVER,))


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


BEGUN = 4  # orders, no two of which take equally long, from which better ones are looked for
GOOD = 1.02  # times the least that it could take, and a set-up, is good enough
NEVER = float("inf")  # patience of one who queues up whatever the wait
FEW, MANY = 64, 300  # fragments


# Lists ----------------------------------------------------------------------------------------

Urgency = Callable[[Fragment, int, int], tuple[int, ...]]
"""What is sent first: the least, by fragment, hops of its way and ticks that it would wait."""


def far_first(f: Fragment, hops: int, wait: int) -> tuple[int, ...]:
    """What takes the longest way."""
    return -hops, wait, -f.nbytes


def near_first(f: Fragment, hops: int, wait: int) -> tuple[int, ...]:
    """What waits least, then what takes the shortest way."""
    return wait, hops, -f.nbytes


def long_first(f: Fragment, hops: int, wait: int) -> tuple[int, ...]:
    """That of which most is left to do when it has arrived."""
    return -f.tail, wait, -hops


class _Listing:
    """List scheduling in ticks, with gates as in Timing. ``patience``: a sender queues up when the
    part of its payload's time that it has to wait is no more than that."""

    def __init__(
        self, device: DeviceSpec, fragments: Sequence[Fragment], urgency: Urgency, patience: float
    ) -> None:
        ring, self.stops = device.ring, device.cores.count + 1
        self.fragments, self.urgency = fragments, urgency
        self.tick = ring.clock_mhz  # of a core cycle
        hop = ring.hop_cycles * device.clock_mhz
        self.start = ring.start_cycles * self.tick
        self.most = ring.fragments_max
        up = [-s * hop for s in range(self.stops)]
        self.gates = [up, [-t for t in up]]
        self.length = [ring.payload_cycles(f.nbytes) * device.clock_mhz for f in fragments]
        self.held = [f.runs * ring.run_cycles * self.tick for f in fragments]
        self.queue_at = [n * patience + self.start for n in self.length]
        self.ways = [ways_of(f.core, hops_of(f, self.stops), self.stops, hop) for f in fragments]
        self.flat = [
            [(self.gates[way], *row) for way, _, rows in ways for row in rows] for ways in self.ways
        ]
        self.far = [sum(ticks for _, ticks, _ in ways) for ways in self.ways]
        self.to = [[c for c in range(self.stops) if f.cores >> c & 1] for f in fragments]
        self.landed: list[list[int]] = [[] for _ in range(self.stops)]  # the latest, ``most`` each
        self.half = max(1, device.cores.count // 2)

    def run(self, most: int | None = None) -> list[int] | None:
        """Numbers of the fragments in the order in which they begin; None when all takes no less
        than ``most`` cycles."""
        limit = NEVER if most is None else (most - 1) * self.tick
        pending: dict[int, list[int]] = {}
        for i, f in enumerate(self.fragments):
            pending.setdefault(f.core, []).append(i)
        number = count().__next__
        # when, number, core that is free or -1 when something has arrived
        events = [
            (0, number(), core) for core in sorted(pending, key=lambda c: (c % self.half, c))
        ]
        heapify(events)
        idle: dict[int, int] = {}  # core -> when it is worth while to look again
        sent: list[int] = []
        numbers = dict.fromkeys(pending, 0)
        while events:
            now, _, core = heappop(events)
            looking = [core]
            if core < 0:
                looking = [c for c, again in idle.items() if again <= now]
                looking.sort(key=lambda c: (numbers[c], c))
            for c in looking:
                place, again = self._choose(pending[c], now)
                if place is None:
                    idle[c] = again
                    continue
                idle.pop(c, None)
                i = pending[c].pop(place)
                left, done = self._send(i, now)
                if done > limit:
                    return None
                if pending[c]:
                    heappush(events, (left, number(), c))
                heappush(events, (done, number(), -1))
                sent.append(i)
                numbers[c] += 1
        return sent

    def _choose(self, pending: Sequence[int], now: int) -> tuple[int | None, int]:
        """The place of the most urgent fragment that need not queue up for long; else when one may
        not."""
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
            key = self.urgency(self.fragments[i], self.far[i], start - earliest)
            if chosen is None or key < best:
                best, chosen = key, place
        return chosen, again

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
