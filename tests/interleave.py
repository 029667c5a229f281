"""Run a program in any order its tokens allow, and find accesses that they leave unordered.

The engine shows one timing. Here every issue and every completion is an event of its own; a random
priority for each, redrawn now and then, lets cores and units drift as far apart as they can. Vector
clocks say what happened before what: two accesses to one stick or accumulator group, one of them a
write, that neither comes before the other are a race, whatever order this run had.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from footprint import touches

from spyrec.sim.device import DeviceSpec
from spyrec.sim.expand import KernelPlan, expand
from spyrec.sim.functional import Functional
from spyrec.sim.isa import GO, UNITS, Program
from spyrec.sim.view import Moment

Clock = np.ndarray[Any, np.dtype[np.int32]]
N = len(UNITS)
LATE = frozenset(UNITS.index(u) for u in ("ml", "ms", "rs"))  # complete after the next has begun


class Unordered(AssertionError):
    """A race, a deadlock or a token left over."""


@dataclass(eq=False)
class Thread:
    """One unit of one core. ``flight``: (launch, step, clock at its start) not yet complete."""

    core: int
    unit: int
    clock: Clock
    done: Clock
    launch: int = 0
    step: int = 0
    issued: int = 0
    completed: int = 0
    flight: deque[tuple[int, int, Clock]] = field(default_factory=deque)

    @property
    def number(self) -> int:
        return self.core * N + self.unit


@dataclass
class Shadow:
    """Per address of one memory of one core: thread and count of the last write, and for each local
    unit the count of its last read."""

    writer: np.ndarray[Any, np.dtype[np.int16]]
    wrote: np.ndarray[Any, np.dtype[np.int32]]
    read: np.ndarray[Any, np.dtype[np.int32]]

    @staticmethod
    def of(size: int) -> Shadow:
        return Shadow(
            np.full(size, -1, np.int16), np.zeros(size, np.int32), np.zeros((N, size), np.int32)
        )


@dataclass(eq=False)
class Flight:
    """A launch: its counters hold (how many, clock of who signalled). ``opened``, ``go``: what is
    complete by then; ``end``: all it has done so far."""

    plan: KernelPlan
    left: int
    end: Clock
    opened: Clock | None = None
    go: Clock | None = None
    tokens: dict[tuple[int, int], deque[list[Any]]] = field(default_factory=dict)


class Interleaving:
    """``check``: look for races; ``effects``: also carry the instructions out."""

    def __init__(
        self, program: Program, device: DeviceSpec, seed: int, effects: Functional | None = None,
        check: bool = True,
    ) -> None:
        self.program, self.effects, self.check = program, effects, check
        self.rng = np.random.default_rng(seed)
        cores = device.cores.count
        zero = np.zeros(cores * N, np.int32)
        plans = {k: expand(kernel, device) for k, kernel in enumerate(program.kernels)}
        self.flights = []
        for launch in program.launches:
            plan = plans[launch.kernel]
            steps = [s for unit in plan.units.values() for s in unit.steps]
            self.flights.append(Flight(plan, sum(map(len, steps)), zero.copy()))
        self.threads = [
            Thread(c, u, zero.copy(), zero.copy()) for c in range(cores) for u in range(N)
        ]
        self.shadows = {
            **{("lx", c): Shadow.of(device.lx.usable_bytes // 128) for c in range(cores)},
            **{("acc", c): Shadow.of(device.pt.acc_groups) for c in range(cores)},
        }
        self.heap: list[tuple[float, int, bool]] = []
        self.queued: set[tuple[int, bool]] = set()
        self.asleep: set[int] = set()

    def run(self) -> None:
        """Unordered when the tokens leave a race or a deadlock, or a launch ends with a buffer
        full."""
        self._open()
        while self.heap:
            _, number, issue = heapq.heappop(self.heap)
            self.queued.discard((number, issue))
            thread = self.threads[number]
            if issue:
                self._issue(thread)
            elif thread.flight:
                self._complete(thread)
        stuck = [i for i, f in enumerate(self.flights) if f.left]
        if stuck:
            where = [
                f"core {t.core} {UNITS[t.unit]} at step {t.step} of launch {t.launch}"
                for t in self.threads if t.launch < len(self.flights)
            ]  # fmt: skip
            raise Unordered(f"deadlock in launch {stuck[0]}: {'; '.join(where[:8])}")

    def _queue(self, thread: Thread, issue: bool) -> None:
        key = (thread.number, issue)
        if key not in self.queued:
            self.queued.add(key)
            heapq.heappush(self.heap, (float(self.rng.random()), *key))

    def _wake(self) -> None:
        for number in sorted(self.asleep):
            self._queue(self.threads[number], True)
        self.asleep.clear()

    def _open(self) -> None:
        done = 0
        before = [np.zeros_like(f.end) for f in self.flights]  # what launches 0..i - 2 have done
        for i, flight in enumerate(self.flights):
            if i > 1:
                before[i] = np.maximum(before[i - 1], self.flights[i - 2].end)
            done += done == i and not flight.left
        for i, (flight, launch) in enumerate(
            zip(self.flights, self.program.launches, strict=True)
        ):
            if flight.opened is None and done >= (i - 1 if launch.early else i):
                last = [] if launch.early or not i else [self.flights[i - 1].end]
                flight.opened = np.maximum.reduce([before[i], *last])
            if flight.opened is not None and flight.go is None and done >= i:
                ends = [self.flights[j].end for j in launch.after]
                flight.go = np.maximum.reduce([flight.opened, *ends])
        for thread in self.threads:
            self._queue(thread, True)

    def _issue(self, thread: Thread) -> None:
        while thread.launch < len(self.flights):
            flight = self.flights[thread.launch]
            work = flight.plan.units.get(thread.unit)
            size = len(work.steps[thread.core]) if work and thread.core < len(work.steps) else 0
            if thread.step < size:
                break
            thread.launch, thread.step = thread.launch + 1, 0
        else:
            return
        late = thread.unit in LATE
        if flight.opened is None or (not late and thread.flight):
            self.asleep.add(thread.number)
            return
        assert work is not None
        waits = work.steps[thread.core][thread.step][0]
        for token, need, _ in waits:
            if token == GO:
                ready = flight.go is not None
            else:
                held = flight.tokens.get((thread.core, token), ())
                ready = sum(n for n, _ in held) >= need
            if not ready:
                self.asleep.add(thread.number)
                return
        clock = np.maximum(thread.clock, flight.opened)
        if not late:
            clock = np.maximum(clock, thread.done)
        for token, _, take in waits:
            known = flight.go if token == GO else _taken(flight, thread.core, token, take)
            if known is not None:
                clock = np.maximum(clock, known)
        thread.clock = clock
        thread.issued += 1
        self._access(thread, flight, clock)
        thread.flight.append((thread.launch, thread.step, clock))
        thread.step += 1
        self._queue(thread, False)
        self._queue(thread, True)

    def _complete(self, thread: Thread) -> None:
        launch, step, started = thread.flight.popleft()
        flight = self.flights[launch]
        thread.completed += 1
        clock = np.maximum(started, thread.done)
        clock[thread.number] = thread.completed
        thread.done = clock
        if self.effects is not None:
            self.effects(_Queue(launch, flight.plan, thread), step)  # type: ignore[arg-type]
        for token, n, cores in flight.plan.units[thread.unit].steps[thread.core][step][1]:
            for core in [thread.core] if cores is None else cores:
                flight.tokens.setdefault((core, token), deque()).append([n, clock])
        self._wake()
        if thread.flight:
            self._queue(thread, False)
        self._queue(thread, True)
        flight.left -= 1
        flight.end = np.maximum(flight.end, clock)
        if not flight.left:
            self._open()

    def _access(self, thread: Thread, flight: Flight, clock: Clock) -> None:
        if not self.check:
            return
        site, execution = flight.plan.units[thread.unit].at(thread.core, thread.step)
        moment = Moment(thread.core, site.trip(execution))
        me = thread.number
        for touch in touches(site.instr, moment):
            shadow, at = self.shadows[touch.space, touch.core], touch.at
            writer = shadow.writer[at]
            unknown = (writer >= 0) & (clock[writer] < shadow.wrote[at])
            if touch.writes:  # a unit's transfers arrive in the order they were begun
                unknown &= writer != me
            problems = [("write", int(writer[i]), i) for i in np.flatnonzero(unknown)[:1]]
            for unit in range(N) if touch.writes else ():
                other = touch.core * N + unit
                unknown = clock[other] < shadow.read[unit][at]
                if other != me:
                    problems += [("read", other, i) for i in np.flatnonzero(unknown)[:1]]
            for what, other, i in problems:
                does = "writes" if touch.writes else "reads"
                raise Unordered(
                    f"race: core {thread.core} {UNITS[thread.unit]} {site.instr.op} of launch "
                    f"{thread.launch} {does} {touch.space} {at[i]} of core "
                    f"{touch.core} with nothing to keep it after the {what} by core "
                    f"{other // N} {UNITS[other % N]} in kernel {flight.plan.kernel.name} or before"
                )
        for touch in touches(site.instr, moment):
            shadow = self.shadows[touch.space, touch.core]
            if touch.writes:
                shadow.writer[touch.at] = me
                shadow.wrote[touch.at] = thread.issued
            else:
                assert touch.core == thread.core
                shadow.read[thread.unit][touch.at] = thread.issued


@dataclass(frozen=True)
class _Queue:
    """What ``Functional`` asks a queue of the engine."""

    index: int
    plan: KernelPlan
    thread: Thread

    @property
    def launch(self) -> _Queue:
        return self

    @property
    def core(self) -> int:
        return self.thread.core

    @property
    def unit(self) -> int:
        return self.thread.unit


def _taken(flight: Flight, core: int, token: int, take: int) -> Clock | None:
    """Take the oldest signals; what those who gave them had seen."""
    known: Clock | None = None
    held = flight.tokens.get((core, token), deque())
    while take:
        first = held[0]
        n = min(take, first[0])
        first[0] -= n
        take -= n
        known = first[1] if known is None else np.maximum(known, first[1])
        if not first[0]:
            held.popleft()
    return known
