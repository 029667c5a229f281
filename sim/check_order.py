"""What happens before what in every run of a program, whatever its timing: vector clocks from the
order of units, tokens and launches.

A *lane* is a line of events that finish in order: one for each unit of each core, and for a ring
sender one for each set of receivers, since what is sent to a near core may arrive before what was
sent to a far one earlier. A clock says for each lane how many of its events have surely finished.

* An instruction of a matrix, vector or receiving unit starts when the one before has finished. One
  that moves data starts when the one before has left, and finishes after it in its lane. One that
  moves nothing, in a unit that moves data, finishes when all those ahead of it in its unit and
  launch have; a sender that only ever sends one way in a launch has all of them in one lane.
* Launch i opens when launches 0..i - 1 are complete, an ``early`` one when 0..i - 2 are; a unit
  begins it after its own part of the launches before; GO rises when those in ``after`` are done.
* Tokens are counters. A wait that brings what was taken to R in all proves that R were signalled,
  not by whom. If lane l signals T(l) over the whole launch, then all other lanes together gave at
  most sum(T) - T(l), so l gave at least R - (sum(T) - T(l)). Lanes finish in order, so the event
  with which l's running sum reaches that number has finished: that is the edge, the same for every
  way signals and waits could be matched. With one lane it is the k-th signal before the k-th wait;
  with several there may be no edge but for the last wait, which needs all.
* This holds if one unit takes from a counter; that two do is a finding, because then the faster
  one gets the signal.

The events are visited in one order that respects all this. When nothing can go on, that is so in
every run: with one taker to a counter what a unit may do next never depends on who was faster.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .expand import KernelPlan, Site, Step, UnitPlan
from .extent import core_value
from .isa import GO, UNITS, Launch

Clock = NDArray[np.int32]
N_UNITS = len(UNITS)
LATE = frozenset(UNITS.index(unit) for unit in ("ml", "ms", "rs"))
SEND = UNITS.index("rs")


@dataclass(eq=False)
class Thread:
    """One unit of one core. ``clock``: what had finished when its latest instruction started, its
    own lane aside when the unit finishes one before it starts the next. ``count``: instructions
    started so far, in all launches."""

    core: int
    unit: int
    clock: Clock
    work: UnitPlan | None = None
    step: int = 0
    count: int = 0
    paths: dict[int, int] = field(default_factory=dict)  # lanes of a sender and their counts
    moved: set[int] = field(default_factory=set)  # lanes in which this launch has moved something
    lanes: list[int] = field(default_factory=list)  # in which each step finishes

    @property
    def lane(self) -> int:
        return self.core * N_UNITS + self.unit

    @property
    def steps(self) -> list[Step]:
        return self.work.steps[self.core] if self.work else []

    def at(self, step: int) -> tuple[Site, int]:
        assert self.work is not None
        return self.work.at(self.core, step)


@dataclass
class Counter:
    """A token of one core in a launch. ``totals``: what each lane signals in all; ``given``: by
    lane, running sums and what is known once they are reached; ``takers``: threads that wait for it
    and how much they take in all."""

    totals: dict[int, int] = field(default_factory=dict)
    takers: dict[Thread, int] = field(default_factory=dict)
    given: dict[int, tuple[list[int], list[Clock]]] = field(default_factory=dict)
    signallers: set[Thread] = field(default_factory=set)
    credits: int = 0  # handed out by syncs before their unit has done or waited for anything
    held: int = 0
    taken: list[int] = field(default_factory=lambda: [0])  # before each wait, and now
    waits: list[int] = field(default_factory=list)  # the taker's events those are
    most: int = 0  # it can ever hold

    def give(self, lane: int, n: int, clock: Clock) -> None:
        """A signal. The most there can be afterwards is all that other lanes ever give, less what
        has surely been taken."""
        sums, clocks = self.given.setdefault(lane, ([], []))
        sums.append(n + (sums[-1] if sums else 0))
        clocks.append(clock)
        self.held += n
        surely = 0
        if len(self.takers) == 1:
            (taker,) = self.takers
            surely = bisect_right(self.waits, clock[taker.lane])
        others = sum(self.totals.values()) - self.totals[lane]
        self.most = max(self.most, others + sums[-1] - self.taken[surely])

    def take(self, count: int, n: int) -> None:
        """The taker's event number ``count`` takes ``n``."""
        self.waits.append(count)
        self.taken.append(self.taken[-1] + n)
        self.held -= n

    def implied(self, required: int) -> list[Clock]:
        """What is known when ``required`` have been signalled in all."""
        everyone = sum(self.totals.values())
        found = []
        for lane, total in self.totals.items():
            least = required - (everyone - total)
            if least > 0:
                sums, clocks = self.given[lane]
                found.append(clocks[bisect_left(sums, least)])
        return found


@dataclass(frozen=True)
class Event:
    """An instruction that starts: ``clock`` is what has surely finished by then (a unit that
    finishes one before it starts the next knows its own lane too). Its results are there when
    event ``count`` of ``lane`` has finished; what it reads has been read when event ``left`` of the
    unit's own lane has."""

    thread: Thread
    step: int
    launch: int
    clock: Clock
    lane: int
    count: int
    left: int


Counters = Mapping[tuple[int, int], Counter]


class Order:
    """Works through launches one after the other. ``visit`` is called with each event."""

    def __init__(
        self, cores: int, plans: list[KernelPlan], visit: Callable[[Event], None]
    ) -> None:
        self._paths = _paths(cores, plans)
        self.lanes = cores * N_UNITS + len(self._paths)
        nothing = np.zeros(self.lanes, np.int32)
        self.threads = [Thread(c, u, nothing) for c in range(cores) for u in range(N_UNITS)]
        self._visit = visit
        self._all_done = [nothing, nothing]  # after launch i - 2, after launch i - 1
        self._ends: list[Clock] = []  # what is known once launch i is complete

    def launch(self, index: int, launch: Launch, plan: KernelPlan) -> tuple[Counters, list[Thread]]:
        """Work off a launch; its counters in the end, and the threads that take part. One that has
        not come to its last step is stuck."""
        opened = self._all_done[0 if launch.early else 1]
        go = np.maximum.reduce([opened, *(self._ends[i] for i in launch.after)])
        active = []
        for thread in self.threads:
            thread.step, thread.work = 0, None
            work = plan.units.get(thread.unit)
            if work is not None and thread.core < len(work.steps) and work.steps[thread.core]:
                thread.work, thread.lanes = work, self._lanes(thread, work)
                thread.moved.clear()
                thread.clock = np.maximum(thread.clock, opened)
                active.append(thread)
        counters = self._counters(active)
        self._run(index, active, counters, go)
        self._ends.append(np.maximum.reduce([opened, *map(self._complete, active)]))
        self._all_done = [self._all_done[1], self._everything()]
        return counters, active

    def _counters(self, active: list[Thread]) -> dict[tuple[int, int], Counter]:
        counters: dict[tuple[int, int], Counter] = {}
        for thread in active:
            fresh = True
            for number, (waits, signals, *_) in enumerate(thread.steps):
                fresh = fresh and not waits and thread.at(number)[0].instr.op == "sync"
                for token, _, taken in waits:
                    if token != GO:
                        takers = counters.setdefault((thread.core, token), Counter()).takers
                        takers[thread] = takers.get(thread, 0) + taken
                lane = thread.lanes[number]
                for token, n, cores in signals:
                    for core in (thread.core,) if cores is None else cores:
                        counter = counters.setdefault((core, token), Counter())
                        counter.totals[lane] = counter.totals.get(lane, 0) + n
                        counter.signallers.add(thread)
                        counter.credits += n if fresh else 0
        return counters

    def _lanes(self, thread: Thread, work: UnitPlan) -> list[int]:
        """The lane in which each step of a launch finishes. A step that by chance has nothing to
        send stays in the lane of those that have: its signal counts among theirs."""
        steps = work.steps[thread.core]
        if thread.unit != SEND:
            return [thread.lane] * len(steps)
        ways = {_path(work, thread.core, i) for i, step in enumerate(steps) if step[2]}
        still = next(iter(ways)) if len(ways) == 1 else NOWHERE
        paths = (_path(work, thread.core, step) for step in range(len(steps)))
        return [self._paths[thread.core, *(path if path in ways else still)] for path in paths]

    def _run(
        self, index: int, active: list[Thread], counters: dict[tuple[int, int], Counter], go: Clock
    ) -> None:
        ready = deque(active)
        asleep: dict[tuple[int, int], list[Thread]] = {}
        while ready:
            thread = ready.popleft()
            steps = thread.steps
            while thread.step < len(steps):
                waits, signals, *_ = steps[thread.step]
                lacking = next(
                    (t for t, need, _ in waits if t != GO and counters[thread.core, t].held < need),
                    None,
                )
                if lacking is not None:
                    asleep.setdefault((thread.core, lacking), []).append(thread)
                    break
                self._take(thread, waits, counters, go)
                self._start(index, thread)
                if signals:
                    lane = thread.lanes[thread.step]
                    clock = self._finished(thread)
                    for token, n, cores in signals:
                        for core in (thread.core,) if cores is None else cores:
                            counters[core, token].give(lane, n, clock)
                            ready.extend(asleep.pop((core, token), ()))
                thread.step += 1

    def _take(
        self, thread: Thread, waits: tuple[tuple[int, int, int], ...],
        counters: dict[tuple[int, int], Counter], go: Clock,
    ) -> None:
        known = []
        for token, need, taken in waits:
            if token == GO:
                known.append(go)
                continue
            counter = counters[thread.core, token]
            if len(counter.takers) == 1:
                known += counter.implied(counter.taken[-1] + need)
            counter.take(thread.count + 1, taken)
        if known:
            thread.clock = np.maximum.reduce([thread.clock, *known])

    def _start(self, index: int, thread: Thread) -> None:
        lane = thread.lanes[thread.step]
        thread.count += 1
        count = thread.count
        if lane != thread.lane:
            count = thread.paths[lane] = thread.paths.get(lane, 0) + 1
        if thread.steps[thread.step][2]:
            thread.moved.add(lane)
        self._visit(Event(thread, thread.step, index, thread.clock, lane, count, thread.count))

    def _finished(self, thread: Thread) -> Clock:
        """What is known once the thread's latest instruction has finished. A launch's first
        transfers say nothing of those the launch before may still have under way elsewhere."""
        clock = thread.clock.copy()
        if thread.unit not in LATE or thread.unit == SEND or thread.moved:
            clock[thread.lane] = thread.count
        if thread.unit == SEND:
            mine = thread.lanes[thread.step]
            everywhere = mine == self._paths[thread.core, *NOWHERE]
            for lane in thread.moved if everywhere else thread.moved & {mine}:
                clock[lane] = thread.paths[lane]
        return clock

    def _complete(self, thread: Thread) -> Clock:
        """What is known once the thread's part of a launch is complete."""
        clock = thread.clock.copy()
        if thread.unit not in LATE or thread.unit == SEND:
            clock[thread.lane] = thread.count
        for lane in thread.moved:
            clock[lane] = thread.paths.get(lane, thread.count)
        return clock

    def _everything(self) -> Clock:
        clock = np.zeros(self.lanes, np.int32)
        for thread in self.threads:
            clock[thread.lane] = thread.count
            for lane, count in thread.paths.items():
                clock[lane] = count
        return clock


Path = tuple[str, int, int]
NOWHERE: Path = ("", 0, 0)


def _path(work: UnitPlan, core: int, step: int) -> Path:
    """The ring, the receivers of a sender's step and those reached the longer way; NOWHERE when it
    has none."""
    instr = work.at(core, step)[0].instr
    mask, far = (core_value(instr.imm.get(name, 0), core) for name in ("cores", "far"))
    return (instr.op, mask, far) if mask else NOWHERE


def _paths(cores: int, plans: list[KernelPlan]) -> dict[tuple[int, str, int, int], int]:
    """A lane for each sender and each way it sends, and one for its steps without receivers."""
    found: dict[tuple[int, str, int, int], int] = {}
    for plan in plans:
        work = plan.units.get(SEND)
        for core, steps in enumerate(work.steps if work else ()):
            assert work is not None
            for path in (NOWHERE, *(_path(work, core, step) for step in range(len(steps)))):
                found.setdefault((core, *path), cores * N_UNITS + len(found))
    return found
