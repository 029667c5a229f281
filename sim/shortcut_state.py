"""The state of an engine relative to the clock, as a value: equal states have equal futures, so
long as the launches ahead are equal. Launches count from the first that is not complete. This reads
and writes what is private to the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from .bus import BusState
from .isa import Joint
from .ring import RingState

if TYPE_CHECKING:
    from .engine import Engine, InFlight, Queue

LAUNCH = -1  # instead of a slot: the launch itself
ENDED = (0, -2)  # instead of a launch and slot: the GO of a launch that has ended

Ref = tuple[int, int]  # launch, slot (core and unit)
Work = tuple[int, int, int, int, int]  # of a Queue: next, busy, due, share, until
Waiting = tuple[int, int, tuple[int, ...]]  # core, token, slots in turn
Dependency = tuple[bool, int]  # complete, and its end; or not, and the launch
Kind = tuple[int, bool, Joint, bool]  # of a launch: kernel, early, joint, whether it switches
Opening = tuple[Kind, tuple[Dependency, ...]]  # of a launch, and what raises its GO


@dataclass(frozen=True)
class Flight:
    """A launch in flight; ``after``: what raises GO, while ``go`` is None."""

    number: int
    kind: Kind
    first: int | None
    go: int | None
    after: tuple[Dependency, ...]
    bus_ticks: int
    left: int
    tokens: tuple[tuple[int, ...], ...]
    waiting: tuple[Waiting, ...]
    work: tuple[Work, ...]  # in the order of InFlight.queues


@dataclass(frozen=True)
class State:
    """Everything that an engine's future depends on at a cycle in which nothing is ready any more.
    Cycles count from that one; those that have passed and only bound something are 0.

    ``ended``: launches complete although one before them is not, with their ends; ``heap``: events
    in the order in which they come.
    """

    opened: int
    ended: tuple[tuple[int, int], ...]
    flights: tuple[Flight, ...]
    heap: tuple[tuple[int, Ref, int, bool], ...]
    load: tuple[int, ...]
    at: tuple[int | None, ...]  # the launch each unit works on
    bus: BusState
    ring: RingState


def capture(engine: Engine, now: int) -> State:
    """The engine's state at cycle ``now``."""
    base = engine._done
    ended = (
        (i - base, stats.end_cycle - now)
        for i in range(base, engine._opened) if (stats := engine.stats[i]) is not None
    )  # fmt: skip
    refs: dict[Queue | InFlight, Ref] = {}
    for flight in engine.in_flight:
        refs[flight] = (flight.index - base, LAUNCH)
        refs |= {queue: (flight.index - base, slot) for slot, queue in flight.queues.items()}
    return State(
        engine._opened - base,
        tuple(ended),
        tuple(_flight(engine, flight, now) for flight in engine.in_flight),
        tuple((cycle - now, ENDED if event is None else refs.get(event, ENDED), code, frees)
              for cycle, _, event, code, frees in sorted(engine._heap, key=lambda e: e[:2])),
        tuple(engine._load),
        tuple(None if q is None else q.launch.index - base for q in engine._at),
        engine.bus.relative(now),
        engine.ring.relative(now),
    )  # fmt: skip


def _flight(engine: Engine, flight: InFlight, now: int) -> Flight:
    launch = engine._program.launches[flight.index]
    slot = {queue: at for at, queue in flight.queues.items()}
    return Flight(
        flight.index - engine._done,
        kind(engine, flight.index),
        None if flight.first is None else flight.first - now,
        None if flight.go is None else flight.go - now,
        dependencies(engine, launch.after, now) if flight.go is None else (),
        flight.bus_ticks,
        flight.left,
        tuple(map(tuple, flight.tokens)),
        tuple(
            (core, token, tuple(slot[queue] for queue in waiting))
            for core, tokens in enumerate(flight.waiters)
            for token, waiting in enumerate(tokens) if waiting is not None
        ),
        tuple(
            (q.next, q.busy, max(0, q.due - now), q.share, max(0, q.until - now))
            for q in flight.queues.values()
        ),
    )  # fmt: skip


def kind(engine: Engine, index: int) -> Kind:
    """What an equal launch has in common with launch ``index``, but for what it waits for."""
    launch = engine._program.launches[index]
    return launch.kernel, launch.early, launch.joint, engine._switches[index]


def dependencies(engine: Engine, after: tuple[int, ...], now: int) -> tuple[Dependency, ...]:
    """What a launch's GO waits for. An end so long ago that GO need not wait for it is as good as
    any other such."""
    long_ago = -max(engine._device.launch.start_cycles, engine._meet_cycles)
    found: set[Dependency] = set()
    for i in after:
        stats = engine.stats[i]
        if stats is None:
            found.add((False, i - engine._done))
        else:
            found.add((True, max(long_ago, stats.end_cycle - now)))
    return tuple(sorted(found))


def put_back(engine: Engine, state: State, now: int) -> None:
    """Make ``state`` the engine's at cycle ``now``, whose launches done and their statistics are
    those of that cycle."""
    base = engine._done
    engine._opened = base + state.opened
    engine.in_flight[:] = [engine._flight(base + f.number) for f in state.flights]
    engine._at[:] = [None] * len(state.at)
    events: dict[Ref, Queue | InFlight] = {}
    for flight, known in zip(engine.in_flight, state.flights, strict=True):
        _resume(flight, known, now)
        events[known.number, LAUNCH] = flight
        for slot, queue in flight.queues.items():
            events[known.number, slot] = queue
            if state.at[slot] == known.number:
                engine._at[slot] = queue
    engine._heap[:] = [
        (now + cycle, engine._sequence(), events.get(ref), code, frees)
        for cycle, ref, code, frees in state.heap
    ]
    engine._load[:] = state.load
    engine.bus.resume(now, state.bus)
    engine.ring.resume(now, state.ring)


def _resume(flight: InFlight, known: Flight, now: int) -> None:
    flight.first = None if known.first is None else now + known.first
    flight.go = None if known.go is None else now + known.go
    flight.bus_ticks, flight.left = known.bus_ticks, known.left
    for tokens, values in zip(flight.tokens, known.tokens, strict=True):
        tokens[:] = values
    for core, token, slots in known.waiting:
        flight.waiters[core][token] = [flight.queues[slot] for slot in slots]
    for queue, work in zip(flight.queues.values(), known.work, strict=True):
        queue.next, queue.busy, due, queue.share, until = work
        queue.due, queue.until = now + due, now + until


def counters(engine: Engine) -> tuple[int, ...]:
    """What only ever grows, but for the statistics of launches."""
    bus = engine.bus
    passed = chain.from_iterable(engine.ring.counted())
    return engine.events, bus.read_bytes, bus.write_bytes, bus.busy_ticks, *passed


def grow(engine: Engine, by: tuple[int, ...]) -> None:
    """Add to what ``counters`` gives."""
    bus = engine.bus
    events, read, written, busy, *passed = by
    engine.events += events
    bus.read_bytes += read
    bus.write_bytes += written
    bus.busy_ticks += busy
    more = iter(passed)
    for lane in engine.ring.counted():
        lane[:] = [count + next(more) for count in lane]
