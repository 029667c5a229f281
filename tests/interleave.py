"""Run a program in any order its tokens allow.

The engine shows one timing. Here every issue and every completion is an event of its own; a random
priority for each, redrawn now and then, lets cores and units drift as far apart as they can.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from spyrec.sim.device import DeviceSpec
from spyrec.sim.expand import KernelPlan, UnitPlan, expand
from spyrec.sim.functional import Functional
from spyrec.sim.isa import GO, UNITS, Program

N = len(UNITS)
LATE = frozenset(UNITS.index(u) for u in ("ml", "ms", "rs"))  # complete after the next has begun


class Stuck(AssertionError):
    """A deadlock."""


@dataclass(eq=False)
class Thread:
    """One unit of one core. ``flight``: (launch, step) that have begun and are not complete."""

    core: int
    unit: int
    launch: int = 0
    step: int = 0
    flight: deque[tuple[int, int]] = field(default_factory=deque)

    @property
    def number(self) -> int:
        return self.core * N + self.unit


@dataclass(eq=False)
class Flight:
    """A launch and its counters: what each token holds."""

    plan: KernelPlan
    left: int
    opened: bool = False
    go: bool = False
    tokens: dict[tuple[int, int], int] = field(default_factory=dict)

    def work(self, thread: Thread) -> UnitPlan | None:
        work = self.plan.units.get(thread.unit)
        return work if work and thread.core < len(work.steps) else None


class Interleaving:
    """``effects``: carry the instructions out as well."""

    def __init__(
        self, program: Program, device: DeviceSpec, seed: int, effects: Functional | None = None
    ) -> None:
        self.program, self.effects = program, effects
        self.rng = np.random.default_rng(seed)
        plans = {k: expand(kernel, device) for k, kernel in enumerate(program.kernels)}
        self.flights = []
        for launch in program.launches:
            plan = plans[launch.kernel]
            steps = [s for unit in plan.units.values() for s in unit.steps]
            self.flights.append(Flight(plan, sum(map(len, steps))))
        self.threads = [Thread(c, u) for c in range(device.cores.count) for u in range(N)]
        self.heap: list[tuple[float, int, bool]] = []
        self.queued: set[tuple[int, bool]] = set()
        self.asleep: set[int] = set()

    def run(self) -> None:
        """Stuck when the tokens leave a deadlock."""
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
            raise Stuck(f"deadlock in launch {stuck[0]}: {'; '.join(where[:8])}")

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
        for i, flight in enumerate(self.flights):
            done += done == i and not flight.left
        for i, (flight, launch) in enumerate(
            zip(self.flights, self.program.launches, strict=True)
        ):
            flight.opened = flight.opened or done >= (i - 1 if launch.early else i)
            flight.go = flight.go or (
                flight.opened and all(not self.flights[j].left for j in launch.after)
            )
        for thread in self.threads:
            self._queue(thread, True)

    def _issue(self, thread: Thread) -> None:
        while thread.launch < len(self.flights):
            flight = self.flights[thread.launch]
            work = flight.work(thread)
            if work and thread.step < len(work.steps[thread.core]):
                break
            thread.launch, thread.step = thread.launch + 1, 0
        else:
            return
        if not flight.opened or (thread.unit not in LATE and thread.flight):
            self.asleep.add(thread.number)
            return
        waits = work.steps[thread.core][thread.step][0]
        for token, need, _ in waits:
            held = flight.go if token == GO else flight.tokens.get((thread.core, token), 0)
            if held < need:
                self.asleep.add(thread.number)
                return
        for token, _, take in waits:
            if take:
                flight.tokens[thread.core, token] -= take
        thread.flight.append((thread.launch, thread.step))
        thread.step += 1
        self._queue(thread, False)
        self._queue(thread, True)

    def _complete(self, thread: Thread) -> None:
        launch, step = thread.flight.popleft()
        flight = self.flights[launch]
        if self.effects is not None:
            self.effects(_Queue(launch, flight.plan, thread), step)  # type: ignore[arg-type]
        for token, n, cores in flight.plan.units[thread.unit].steps[thread.core][step][1]:
            for core in [thread.core] if cores is None else cores:
                flight.tokens[core, token] = flight.tokens.get((core, token), 0) + n
        self._wake()
        if thread.flight:
            self._queue(thread, False)
        self._queue(thread, True)
        flight.left -= 1
        if not flight.left:
            self._open()


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
