"""Loops in step with each other are advanced by many trips at once.

While a launch runs, its state is compared whenever one of its units begins work, steps counted from
where each unit stands (Brent's way of finding a cycle: the state compared with is renewed after 8,
16, 32, ... looks). When it is as it was, all units will do what they did since, shifted in time,
for as long as their steps go on repeating: that many periods are added at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from .shortcut_state import State, capture, counters, grow

if TYPE_CHECKING:
    from .engine import Engine, InFlight, Queue
    from .expand import Step

LEAST_STEPS = 32  # of the longest queue of a launch: shorter loops are not worth looking at

FIRST_LOOKS = 8  # before a state is kept: a loop has to get into step first
WASTE = 16  # looks by their marks that a full one costs as much as

Mark = tuple[int, int, int, tuple[int, ...]]


class Progress(NamedTuple):
    """Of a queue: the step it comes to, the first that is not complete, cycles of work."""

    next: int
    begun: int
    busy: int


@dataclass(frozen=True)
class Look:
    """What was seen at ``cycle``. ``mark``: of ``state``, cheap to take; ``numbers``: for each
    launch in flight how many steps are left and its bus ticks; ``progress``: of their queues."""

    cycle: int
    mark: Mark
    state: State
    numbers: tuple[tuple[int, int], ...]
    progress: tuple[Progress, ...]
    counters: tuple[int, ...]


class Loops:
    """Skips periods of the launch in flight that is oldest."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._marks = self._wasted = 0
        self._forget()

    def watch(self) -> Queue | None:
        """Look at the launch that is the oldest now, whenever the queue returned begins work."""
        flights = self._engine.in_flight
        queues = flights[0].queues.values() if flights else ()
        longest = max(queues, key=lambda queue: queue.size, default=None)
        if longest is not None and longest.size < LEAST_STEPS:
            longest = None
        self._marks = self._wasted = 0
        self._forget()
        return longest

    def _forget(self) -> None:
        self._looks, self._renew = 0, FIRST_LOOKS
        self._seen: Look | None = None

    def skip(self, now: int) -> int:
        """To be called when the anchor has begun work and nothing is ready any more: the cycle it
        is after the periods that could be skipped."""
        mark = self._mark(now)
        self._marks += 1
        seen, worth_it = self._seen, self._wasted * WASTE <= self._marks
        if seen is not None and mark == seen.mark and worth_it:
            look = self._look(now, mark)
            periods = self._advance(seen, look) if look.state == seen.state else 0
            if periods * self._looks < WASTE:
                self._wasted += 1
            if periods:
                self._forget()
                return now + periods * (now - seen.cycle)
        self._looks += 1
        if self._looks == self._renew:
            self._renew *= 2
            self._seen = self._look(now, mark)
        return now

    def _mark(self, now: int) -> Mark:
        engine = self._engine
        heap = engine._heap
        until = sum(event[0] for event in heap) - now * len(heap)
        return engine.bus.backlog(now), len(heap), until, tuple(engine._load)

    def _look(self, now: int, mark: Mark) -> Look:
        engine = self._engine
        first: dict[Queue | InFlight | None, int] = {}
        for _, _, event, code, _ in engine._heap:
            if code >= 0:
                first[event] = min(first.get(event, code), code)
        return Look(
            now,
            mark,
            self._steady(capture(engine, now)),
            tuple((flight.left, flight.bus_ticks) for flight in engine.in_flight),
            tuple(
                Progress(queue.next, min(queue.next, first.get(queue, queue.next)), queue.busy)
                for flight in engine.in_flight for queue in flight.queues.values()
            ),
            counters(engine),
        )

    def _steady(self, state: State) -> State:
        """The state without what grows in every period."""
        base = self._engine._done
        at = {
            (flight.index - base, slot): queue.next
            for flight in self._engine.in_flight for slot, queue in flight.queues.items()
        }  # fmt: skip
        flights = tuple(
            replace(
                flight, first=None, go=None if flight.go is None else 0, bus_ticks=0, left=0,
                work=tuple((0, 0, due, share, until) for _, _, due, share, until in flight.work),
            )
            for flight in state.flights
        )  # fmt: skip
        heap = tuple(
            (cycle, ref, code - at[ref] if code >= 0 else code, frees)
            for cycle, ref, code, frees in state.heap
        )
        return replace(state, flights=flights, heap=heap)

    def _advance(self, before: Look, after: Look) -> int:
        """Add as many periods as there are; their number."""
        engine = self._engine
        now, period = after.cycle, after.cycle - before.cycle
        queues = [queue for flight in engine.in_flight for queue in flight.queues.values()]
        known: dict[tuple[int, int, int], int] = {}
        change = list(zip(queues, before.progress, after.progress, strict=True))
        periods = min(
            _periods(queue, old.begun, new.next - old.next, known)
            for queue, old, new in change if new.next > old.next
        )  # fmt: skip
        if not periods:
            return 0
        skipped = periods * period
        changes = zip(engine.in_flight, before.numbers, after.numbers, strict=True)
        for flight, (left, ticks), (left_now, ticks_now) in changes:
            flight.left += periods * (left_now - left)
            flight.bus_ticks += periods * (ticks_now - ticks)
        moved: dict[Queue | InFlight | None, int] = {}
        for queue, old, new in change:
            moved[queue] = periods * (new.next - old.next)
            queue.next += moved[queue]
            queue.busy += periods * (new.busy - old.busy)
            queue.due += skipped * (queue.due > now)
            queue.until += skipped * (queue.until > now)
        engine._heap[:] = [
            (cycle + skipped, number, event, code + moved[event] if code >= 0 else code, frees)
            for cycle, number, event, code, frees in engine._heap
        ]  # fmt: skip
        engine.bus.resume(now + skipped, engine.bus.relative(now))
        engine.ring.resume(now + skipped, engine.ring.relative(now))
        counted = zip(before.counters, after.counters, strict=True)
        grow(engine, tuple(periods * (b - a) for a, b in counted))
        engine.skipped_cycles += skipped
        return periods


def _periods(queue: Queue, begun: int, gain: int, known: dict[tuple[int, int, int], int]) -> int:
    """How often the queue can go on by ``gain`` steps that are those before; ``begun``: the first
    step that was not complete one period ago."""
    key = id(queue.steps), begun, gain
    if key not in known:
        known[key] = _repeating(queue.steps, begun, gain)
    return max(0, (known[key] - 1 - queue.next) // gain)


def _repeating(steps: Sequence[Step], start: int, gain: int) -> int:
    """Number of the first step from ``start + gain`` on that is not the one ``gain`` before."""
    later, earlier = islice(steps, start + gain, None), islice(steps, start, None)
    pairs = enumerate(zip(later, earlier, strict=False), start + gain)
    return next((number for number, (a, b) in pairs if a != b), len(steps))
