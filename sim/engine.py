"""The event engine: units take steps off their lists, wait for tokens, occupy what they need
and signal.

A heap of (cycle, sequence, ...) makes ties first-in first-out, so two runs are equal. Nothing
here knows what instructions compute: that is the ``effects`` callback.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from heapq import heappop, heappush
from itertools import count
from typing import Any

from .bus import Bus
from .cost import SHARE
from .device import DeviceSpec
from .expand import KernelPlan, Step, expand
from .isa import GO, UNITS, Program, launched
from .joint import meet_cycles, switched, switches
from .ring import Ring
from .shortcut import SHORTCUTS, Shortcut, Shortcuts
from .stats import LaunchStats, Observer, StepObserver, bound

N_UNITS = len(UNITS)
ML, MS, RS = (UNITS.index(u) for u in ("ml", "ms", "rs"))
FREE_ONLY, RAISE_GO = -1, -2  # event codes; others are numbers of completed steps

Tokens = list[int]  # what each counter of a core holds
Waiters = list["list[Queue] | None"]  # for each counter, who waits for more of it


class Queue:
    """One launch's steps for one unit of one core, and how far the unit has come."""

    __slots__ = ("busy", "core", "due", "launch", "next", "share", "size", "slot", "steps",
                 "tokens", "unit", "until", "waiters")

    def __init__(self, launch: InFlight, core: int, unit: int, steps: list[Step]) -> None:
        self.launch, self.core, self.unit, self.steps = launch, core, unit, steps
        self.slot = core * N_UNITS + unit
        self.size, self.next = len(steps), 0
        self.tokens, self.waiters = launch.tokens[core], launch.waiters[core]
        self.busy = 0  # cycles the unit was occupied
        self.due = 0  # cycle by which every transfer started so far has arrived
        self.share = 0  # of the scratchpad port, held now
        self.until = 0  # cycle in which the unit is free


def both_ways(cores: int, half: int) -> list[int]:
    """Cores in the order in which memory serves them when all ask at once: its two links in turn,
    the second of which begins with core ``half``."""
    return sorted(range(cores), key=lambda core: (core % half, core))


class InFlight:
    """A launch between opening and completion. ``queues``: by slot, which is core and unit, in the
    order in which memory serves cores that ask in the same cycle."""

    __slots__ = ("bus_ticks", "first", "go", "index", "left", "plan", "queues", "tokens", "waiters")

    def __init__(self, index: int, plan: KernelPlan, half: int) -> None:
        cores = both_ways(plan.kernel.cores, half)
        self.index, self.plan = index, plan
        self.tokens: list[Tokens] = [[0] * plan.tokens for _ in cores]
        self.waiters: list[Waiters] = [[None] * plan.tokens for _ in cores]
        self.queues: dict[int, Queue] = {}
        for core in cores:
            for unit, work in plan.units.items():
                if work.steps[core]:
                    queue = Queue(self, core, unit, work.steps[core])
                    self.queues[queue.slot] = queue
        self.left = sum(queue.size for queue in self.queues.values())
        self.first: int | None = None  # cycle of its first instruction
        self.go: int | None = None  # cycle of GO, once known
        self.bus_ticks = 0


Event = tuple[int, int, Any, int, bool]
"""Cycle, sequence, whose, code, whether it frees the unit. It is a Queue's, or RAISE_GO and an
InFlight's (None: of a launch that has ended)."""
Effects = Callable[[Queue, int], None]  # a completed step: its queue and number in it


class Engine:
    """Runs a program's launches in time. ``effects`` is told each completed step; ``observer`` each
    occupied unit; ``progress`` (launches done, launches). With neither of the first two, the
    ``shortcuts`` are taken; the result is the same. ``plans``: kernels unrolled so far, to which
    those of this run are added; without it they are forgotten as soon as they may be."""

    def __init__(
        self, program: Program, device: DeviceSpec, effects: Effects | None = None,
        observer: Observer | None = None, progress: Callable[[int, int], None] | None = None,
        shortcuts: Collection[Shortcut] = SHORTCUTS, plans: dict[int, KernelPlan] | None = None,
    ) -> None:
        cores = device.cores.count
        self._half = max(1, cores // 2)
        self.bus = Bus(device.hbm, cores)
        self.ring = Ring(device.ring, cores, device.clock_mhz)
        self.stats: list[LaunchStats | None] = [None] * len(program.launches)
        self.events = 0
        self.in_flight: list[InFlight] = []
        self._program, self._device = program, device
        self._effects, self._observer, self._progress = effects, observer, progress
        self._steps = observer if isinstance(observer, StepObserver) else None
        # unrolled kernels that will be launched again; all of them when the caller keeps them
        self.plans: dict[int, KernelPlan] = {} if plans is None else plans
        self._keeps_all = plans is not None
        self._last = {launch.kernel: i for i, launch in enumerate(program.launches)}
        self._switches = switches(program)
        self._switched: dict[int, KernelPlan] = {}  # kernels as they run behind another program
        self._meet_cycles = meet_cycles(device)
        self._heap: list[Event] = []
        self._sequence = count(1).__next__
        self._ready: deque[Queue] = deque()
        self._load = [0] * cores  # shares of each core's scratchpad port that are taken
        self._held_cycles = cache(device.hbm.held_cycles)
        self._latency, self._port = device.hbm.latency_cycles, device.lx.port_bytes_per_cycle
        self._at: list[Queue | None] = [None] * (cores * N_UNITS)  # what each unit works on
        self._opened = self._done = 0  # launches opened, and complete without a gap
        watched = effects is not None or observer is not None
        self._shortcuts = Shortcuts(self, shortcuts) if shortcuts and not watched else None
        self.skipped_cycles = 0

    def run(self) -> int:
        """Work off all that can happen; the last cycle in which something did. Whoever calls asks
        ``in_flight`` whether everything finished.

        Units that are ready begin the step they have come to or wait for a token. When none is
        ready the next event comes. Either may complete a step: that is how the loop ends.
        """
        heap, ready, load, sequence = self._heap, self._ready, self._load, self._sequence
        effects, observer, shortcuts = self._effects, self._observer, self._shortcuts
        steps = self._steps
        now = 0
        self._open(now)
        while True:
            while ready:
                queue = ready.popleft()
                number = queue.next
                if number == queue.size:
                    self._next(queue)
                    continue
                waits, signals, work, extra, held, takers = queue.steps[number]
                tokens = queue.tokens
                for token, need, _ in waits:
                    if tokens[token] < need:
                        waiting = queue.waiters[token]
                        if waiting is None:
                            queue.waiters[token] = [queue]
                        else:
                            waiting.append(queue)
                        break
                else:
                    for token, _, take in waits:
                        tokens[token] -= take
                    queue.next = number + 1
                    if not number and queue.launch.first is None:
                        queue.launch.first = now
                    if steps is not None:
                        steps.began(queue.launch.index, queue.core, queue.unit, number, now)
                    if work:
                        if shortcuts is not None and queue is shortcuts.anchor:
                            shortcuts.due = True
                        core = queue.core
                        if queue.unit <= RS:
                            end = self._move(queue, number, now, work, extra, held, takers)
                        else:
                            end = now + work
                            if load[core] + extra > SHARE:
                                end = self._crowded(queue, now, work, extra)
                            queue.share = extra
                            heappush(heap, (end, sequence(), queue, number, True))
                        load[core] += queue.share
                        queue.until = end
                        queue.busy += end - now
                        if observer is not None:
                            self._watch(observer, queue, number, now, end)
                    elif signals and queue.due > now:  # not before the transfers ahead of it
                        heappush(heap, (queue.due, sequence(), queue, number, False))
                        ready.append(queue)
                    else:
                        frees = True
                        break
            else:
                if shortcuts is not None and shortcuts.due:
                    now = shortcuts.skip(now)
                if not heap:
                    return now
                now, _, queue, number, frees = heappop(heap)
                self.events += 1
                if frees:
                    load[queue.core] -= queue.share
                    if number == FREE_ONLY:
                        ready.append(queue)
                        continue
                elif number == RAISE_GO:
                    self._raise_go(queue)
                    continue
                signals = queue.steps[number][1]

            # a step is complete
            if effects is not None:
                effects(queue, number)
            launch = queue.launch
            if steps is not None:
                steps.ended(launch.index, queue.core, queue.unit, number, now)
            for token, n, cores in signals:
                if cores is None:
                    queue.tokens[token] += n
                    waiting = queue.waiters[token]
                    if waiting is not None:
                        ready.extend(waiting)
                        queue.waiters[token] = None
                else:
                    for core in cores:
                        launch.tokens[core][token] += n
                        waiting = launch.waiters[core][token]
                        if waiting is not None:
                            ready.extend(waiting)
                            launch.waiters[core][token] = None
            launch.left -= 1
            if not launch.left and launch.go is not None:
                self._finish(launch, now)
                self._open(now)
            if frees:
                ready.append(queue)

    def _move(
        self, queue: Queue, number: int, now: int, nbytes: int, extra: int, held: int,
        takers: tuple[int, ...] | None,
    ) -> int:
        """Start a transfer, which takes its share of the scratchpad port: the cycle its unit is
        free. It completes when all has come over, memory's latency or the ring's hops later."""
        core, unit = queue.core, queue.unit
        if unit == RS and extra < 0:  # between accumulators, which have their own port
            end, done = self.ring.pass_on(now, core, nbytes, -extra)
            queue.share = 0
        else:
            if unit == RS:
                end, done = self.ring.send(now, core, nbytes, extra, takers)
                end, done = end + held, done + held
            else:
                bus = self.bus
                before = bus.busy_ticks
                asks = held if held > 0 else 0
                passed = bus.transfer(now, core, nbytes, extra, unit == MS, asks)
                queue.launch.bus_ticks += bus.busy_ticks - before
                end, done = passed + self._held_cycles(nbytes), passed + self._latency
                if takers is not None:
                    end = bus.meet(now, end, -held, takers)
                elif end < now - held:
                    end = now - held
            width = self._port
            least = now - (-nbytes // width)
            if end < least:
                end = least
            queue.share = share = -(-nbytes * SHARE // (width * (end - now)))
            taken = self._load[core] + share
            if taken > SHARE:
                end = max(end, now - (-nbytes * taken // (width * SHARE)))
            if done < end:
                done = end
        if queue.due < done:
            queue.due = done
        if done == end:
            heappush(self._heap, (end, self._sequence(), queue, number, True))
        else:
            heappush(self._heap, (end, self._sequence(), queue, FREE_ONLY, True))
            heappush(self._heap, (done, self._sequence(), queue, number, False))
        return end

    def _crowded(self, queue: Queue, now: int, work: int, share: int) -> int:
        """End of work that asks for a ``share`` of a scratchpad port on which not enough is left:
        until the others end, each at its time, it goes on at the rate that is left to it."""
        units = slice(queue.core * N_UNITS, (queue.core + 1) * N_UNITS)
        others = sorted(
            [(q.until, q.share) for q in self._at[units] if q and q.until > now and q.share]
        )
        taken = share + sum([held for _, held in others])
        for until, held in others:
            done = (until - now) * SHARE // max(taken, SHARE)
            if done >= work:
                break
            now, work, taken = until, work - done, taken - held
        return now - (-work * max(taken, SHARE) // SHARE)

    def _watch(
        self, observer: Observer, queue: Queue, number: int, now: int, end: int
    ) -> None:
        launch, work = queue.launch, queue.steps[number][2]
        site, _ = launch.plan.units[queue.unit].at(queue.core, number)
        if self._steps is not None and queue.unit <= MS:
            self._steps.queued(launch.index, self.bus.passed())
        observer.worked(
            launch.index, launch.plan.kernel, queue.core, UNITS[queue.unit], site.instr, now, end,
            work if queue.unit <= RS else 0,
        )

    def _next(self, queue: Queue) -> None:
        """Hand the queue's unit its steps of the next open launch that has any for it."""
        slot = queue.slot
        for flight in self.in_flight:
            if flight.index > queue.launch.index and slot in flight.queues:
                self._at[slot] = flight.queues[slot]
                self._ready.append(flight.queues[slot])
                return
        self._at[slot] = None

    def _open(self, now: int) -> None:
        """Open every launch whose turn has come: the one before is complete or, for an early
        one, all but the one before."""
        launches = self._program.launches
        while self._opened < len(launches):
            index, launch = self._opened, launches[self._opened]
            if self._done < (index - 1 if launch.early else index):
                return
            flight = self._flight(index)
            self.in_flight.append(flight)
            self._opened += 1
            if self._steps is not None:
                self._steps.planned(index, flight.plan)
            if self._observer is not None:
                self._observer.started(index, flight.plan.kernel, now)
            self._schedule_go(flight, now)
            for slot, queue in flight.queues.items():
                if self._at[slot] is None:
                    self._at[slot] = queue
                    self._ready.append(queue)
            if not flight.left and flight.go is not None:
                self._finish(flight, now)

    def _schedule_go(self, flight: InFlight, now: int) -> None:
        """GO rises ``start_cycles`` after the last launch it depends on, or after it opened when it
        depends on none; never before it opened. Where cores only meet it takes as long as that."""
        launch = self._program.launches[flight.index]
        after = [self.stats[i] for i in launch.after]
        ends = [stats.end_cycle for stats in after if stats is not None]
        if flight.go is not None or len(ends) < len(after):
            return
        start = self._meet_cycles if launch.joint else self._device.launch.start_cycles
        flight.go = max(now, max(ends, default=now) + start)
        heappush(self._heap, (flight.go, self._sequence(), flight, RAISE_GO, False))

    def _raise_go(self, flight: InFlight | None) -> None:
        if flight is None:
            return
        for core in both_ways(len(flight.tokens), self._half):
            flight.tokens[core][GO] = 1
            self._ready.extend(flight.waiters[core][GO] or ())
            flight.waiters[core][GO] = None

    def _finish(self, flight: InFlight, now: int) -> None:
        """Its steps are done and the launches it depends on are complete."""
        stats = self._stats(flight, now)
        self._ended(stats)
        self.in_flight.remove(flight)
        flight.queues = {}  # each knows its launch: only a garbage collection would free them
        if self._shortcuts is not None:
            self._shortcuts.finished(flight.index)
        while self._done < self._opened and self.stats[self._done] is not None:
            self._done += 1
        if self._observer is not None:
            self._observer.finished(stats)
        for other in tuple(self.in_flight):
            self._schedule_go(other, now)
            if not other.left and other.go is not None:
                self._finish(other, now)

    def _ended(self, stats: LaunchStats) -> None:
        self.stats[stats.index] = stats
        if self._progress is not None:
            self._progress(sum(s is not None for s in self.stats), len(self.stats))

    def _flight(self, index: int) -> InFlight:
        """The launch with its unrolled kernel, which is kept until its last launch."""
        launch = self._program.launches[index]
        kernel = launch.kernel
        plan = self.plans.get(kernel) or expand(self._program.kernels[kernel], self._device)
        self.plans[kernel] = plan
        if self._switches[index]:
            later = self._switched.get(kernel) or switched(plan, self._device.sfp.switch_cycles)
            self._switched[kernel] = plan = later
        self._forget(index)
        return InFlight(index, replace(plan, kernel=launched(plan.kernel, launch)), self._half)

    def _forget(self, index: int) -> None:
        kernel = self._program.launches[index].kernel
        if self._last[kernel] == index:
            self._switched.pop(kernel, None)
            if not self._keeps_all:
                self.plans.pop(kernel, None)

    def _stats(self, flight: InFlight, now: int) -> LaunchStats:
        plan = flight.plan
        per_unit: dict[str, list[int]] = {unit: [0] * plan.kernel.cores for unit in UNITS}
        for queue in flight.queues.values():
            per_unit[UNITS[queue.unit]][queue.core] = queue.busy
        busiest = {unit: max(busy, default=0) for unit, busy in per_unit.items()}
        start = now if flight.first is None else flight.first
        go = now if flight.go is None else min(flight.go, now)
        bus_cycles = -(-flight.bus_ticks // self._device.hbm.bytes_per_cycle)
        return LaunchStats(
            index=flight.index,
            kernel=plan.kernel.name,
            start_cycle=start,
            go_cycle=go,
            end_cycle=now,
            cores_used=plan.kernel.cores,
            padded_macs=plan.macs,
            instructions=sum(queue.size for queue in flight.queues.values()),
            busy_cycles={unit: sum(busy) for unit, busy in per_unit.items()},
            busiest_cycles=busiest,
            bus_busy_cycles=bus_cycles,
            hbm_read_bytes=plan.hbm_read_bytes,
            hbm_write_bytes=plan.hbm_write_bytes,
            ring_bytes=plan.ring_bytes,
            lx_peak_bytes=plan.kernel.lx_bytes,
            bound=bound(now - go, busiest, bus_cycles),
            joint=self._program.launches[flight.index].joint,
            core_busy_cycles={unit: tuple(busy) for unit, busy in per_unit.items()},
        )
