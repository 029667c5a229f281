"""The event engine: units take steps off their lists, wait for tokens, occupy what they need
and signal.

A heap of (cycle, sequence, ...) makes ties first-in first-out, so two runs are equal. Nothing
here knows what instructions compute: that is the ``effects`` callback.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count

from .bus import Bus
from .cost import SHARE
from .device import DeviceSpec
from .expand import KernelPlan, Step, expand
from .isa import GO, UNITS, Program, launched
from .ring import Ring
from .shortcut import SHORTCUTS, Shortcut, Shortcuts
from .stats import LaunchStats, Observer, bound

N_UNITS = len(UNITS)
ML, MS, RS = (UNITS.index(u) for u in ("ml", "ms", "rs"))
FREE_ONLY, RAISE_GO = -1, -2  # event codes; others are numbers of completed steps

Tokens = list[int]
Waiters = list[list["Queue"]]


class Queue:
    """One launch's steps for one unit of one core, and how far the unit has come."""

    __slots__ = ("busy", "core", "due", "launch", "next", "share", "size", "steps", "tokens",
                 "unit", "until", "waiters")

    def __init__(self, launch: InFlight, core: int, unit: int, steps: list[Step]) -> None:
        self.launch, self.core, self.unit, self.steps = launch, core, unit, steps
        self.size, self.next = len(steps), 0
        self.tokens, self.waiters = launch.tokens[core], launch.waiters[core]
        self.busy = 0  # cycles the unit was occupied
        self.due = 0  # cycle by which every transfer started so far has arrived
        self.share = 0  # of the scratchpad port, held now
        self.until = 0  # cycle in which the unit is free


class InFlight:
    """A launch between opening and completion."""

    __slots__ = ("bus_ticks", "first", "go", "index", "left", "plan", "queues", "tokens", "waiters")

    def __init__(self, index: int, plan: KernelPlan) -> None:
        cores = plan.kernel.cores
        self.index, self.plan = index, plan
        self.tokens: list[Tokens] = [[0] * plan.tokens for _ in range(cores)]
        self.waiters: list[Waiters] = [[[] for _ in range(plan.tokens)] for _ in range(cores)]
        self.queues = {
            core * N_UNITS + unit: Queue(self, core, unit, steps)
            for unit, work in plan.units.items()
            for core, steps in enumerate(work.steps)
            if steps
        }
        self.left = sum(queue.size for queue in self.queues.values())
        self.first: int | None = None  # cycle of its first instruction
        self.go: int | None = None  # cycle of GO, once known
        self.bus_ticks = 0


Event = tuple[int, int, Queue | InFlight | None, int, bool]
"""Cycle, sequence, whose (None: GO of a launch that has ended), code, whether it frees the unit."""
Effects = Callable[[Queue, int], None]  # a completed step: its queue and number in it


class Engine:
    """Runs a program's launches in time. ``effects`` is told each completed step; ``observer`` each
    occupied unit; ``progress`` (launches done, launches). With neither of the first two, the
    ``shortcuts`` are taken; the result is the same."""

    def __init__(
        self, program: Program, device: DeviceSpec, effects: Effects | None = None,
        observer: Observer | None = None, progress: Callable[[int, int], None] | None = None,
        shortcuts: Collection[Shortcut] = SHORTCUTS,
    ) -> None:
        cores = device.cores.count
        self.bus = Bus(device.hbm, cores)
        self.ring = Ring(device.ring, cores, device.clock_mhz)
        self.stats: list[LaunchStats | None] = [None] * len(program.launches)
        self.events = 0
        self.in_flight: list[InFlight] = []
        self._program, self._device = program, device
        self._effects, self._observer, self._progress = effects, observer, progress
        self.plans: dict[int, KernelPlan] = {}  # unrolled kernels that will be launched again
        self._last = {launch.kernel: i for i, launch in enumerate(program.launches)}
        self._heap: list[Event] = []
        self._sequence = count(1).__next__
        self._ready: deque[Queue] = deque()
        self._load = [0] * cores  # shares of each core's scratchpad port that are taken
        self._next_launch = [0] * (cores * N_UNITS)  # what an idle unit takes next; -1 while busy
        self._opened = self._done = 0  # launches opened, and complete without a gap
        watched = effects is not None or observer is not None
        self._shortcuts = Shortcuts(self, shortcuts) if shortcuts and not watched else None
        self.skipped_cycles = 0

    def run(self) -> int:
        """Work off all that can happen; the last cycle in which something did. Whoever calls asks
        ``in_flight`` whether everything finished."""
        heap, ready, load = self._heap, self._ready, self._load
        complete, sequence, shortcuts = self._complete, self._sequence, self._shortcuts
        now = 0
        self._open(now)
        while True:
            while ready:
                queue = ready.popleft()
                number = queue.next
                if number == queue.size:
                    self._idle(queue.core * N_UNITS + queue.unit, queue.launch.index + 1)
                    continue
                waits, signals, work, extra, held = queue.steps[number]
                tokens = queue.tokens
                for token, need, _ in waits:
                    if tokens[token] < need:
                        queue.waiters[token].append(queue)
                        break
                else:
                    for token, _, take in waits:
                        tokens[token] -= take
                    queue.next = number + 1
                    if not number and queue.launch.first is None:
                        queue.launch.first = now
                    if not work:
                        if signals and queue.due > now:  # not before the transfers ahead of it
                            heappush(heap, (queue.due, sequence(), queue, number, False))
                        else:
                            complete(queue, number, now)
                        ready.append(queue)
                        continue
                    if shortcuts is not None and queue is shortcuts.anchor:
                        shortcuts.due = True
                    core = queue.core
                    if queue.unit <= RS:
                        end, share = self._move(queue, number, now, work, extra, held)
                    else:
                        free = load[core] + extra <= SHARE
                        end = now + work if free else self._crowded(queue, now, work, extra)
                        share = extra
                        heappush(heap, (end, sequence(), queue, number, True))
                    load[core] += share
                    queue.share = share
                    queue.until = end
                    queue.busy += end - now
                    if self._observer is not None:
                        self._watch(queue, number, now, end)
            if shortcuts is not None and shortcuts.due:
                now = shortcuts.skip(now)
            if not heap:
                return now
            now, _, event, code, frees = heappop(heap)
            self.events += 1
            if not isinstance(event, Queue):
                if event is not None:
                    self._raise_go(event)
                continue
            if code >= 0:
                complete(event, code, now)
            if frees:
                load[event.core] -= event.share
                ready.append(event)

    def _crowded(self, queue: Queue, now: int, work: int, share: int) -> int:
        """End of work that asks for a ``share`` of a scratchpad port on which not enough is left:
        until the others end, each at its time, it goes on at the rate that is left to it."""
        core = queue.core
        others = sorted(
            (q.until, q.share)
            for flight in self.in_flight
            for unit in range(N_UNITS)
            if (q := flight.queues.get(core * N_UNITS + unit)) and q.until > now and q.share
        )
        taken = share + sum(held for _, held in others)
        for until, held in others:
            done = (until - now) * SHARE // max(taken, SHARE)
            if done >= work:
                break
            now, work, taken = until, work - done, taken - held
        return now - (-work * max(taken, SHARE) // SHARE)

    def _complete(self, queue: Queue, number: int, now: int) -> None:
        launch = queue.launch
        if self._effects is not None:
            self._effects(queue, number)
        for token, n, cores in queue.steps[number][1]:
            if cores is None:
                queue.tokens[token] += n
                waiting = queue.waiters[token]
                if waiting:
                    self._ready.extend(waiting)
                    waiting.clear()
                continue
            for core in cores:
                launch.tokens[core][token] += n
                waiting = launch.waiters[core][token]
                self._ready.extend(waiting)
                waiting.clear()
        launch.left -= 1
        if not launch.left and launch.go is not None:
            self._finish(launch, now)
            self._open(now)

    def _move(
        self, queue: Queue, number: int, now: int, nbytes: int, extra: int, held: int
    ) -> tuple[int, int]:
        """Start a transfer: the cycle its unit is free, and its share of the scratchpad port. It
        completes when all has come over, memory's latency or the ring's hops later."""
        if queue.unit == RS and extra < 0:  # between accumulators, which have their own port
            end, done = self.ring.pass_on(now, queue.core, nbytes, -extra)
            self._arrive(queue, number, end, done)
            return end, 0
        if queue.unit == RS:
            end, done = (cycle + held for cycle in self.ring.send(now, queue.core, nbytes, extra))
        else:
            before = self.bus.busy_ticks
            passed = self.bus.transfer(now, queue.core, nbytes, extra, queue.unit == MS)
            queue.launch.bus_ticks += self.bus.busy_ticks - before
            hbm = self._device.hbm
            end, done = passed + hbm.held_cycles(nbytes), passed + hbm.latency_cycles
            end = max(end, now + held)
        width = self._device.lx.port_bytes_per_cycle
        end = max(end, now - (-nbytes // width))
        share = -(-nbytes * SHARE // (width * (end - now)))
        taken = self._load[queue.core] + share
        if taken > SHARE:
            end = max(end, now - (-nbytes * taken // (width * SHARE)))
        done = max(done, end)
        self._arrive(queue, number, end, done)
        return end, share

    def _arrive(self, queue: Queue, number: int, end: int, done: int) -> None:
        """A transfer leaves its unit free at ``end`` and is complete at ``done``."""
        queue.due = max(queue.due, done)
        if done == end:
            heappush(self._heap, (end, self._sequence(), queue, number, True))
        else:
            heappush(self._heap, (end, self._sequence(), queue, FREE_ONLY, True))
            heappush(self._heap, (done, self._sequence(), queue, number, False))

    def _watch(self, queue: Queue, number: int, now: int, end: int) -> None:
        assert self._observer is not None
        launch, work = queue.launch, queue.steps[number][2]
        site, _ = launch.plan.units[queue.unit].at(queue.core, number)
        self._observer.worked(
            launch.index, launch.plan.kernel, queue.core, UNITS[queue.unit], site.instr, now, end,
            work if queue.unit <= RS else 0,
        )

    def _idle(self, slot: int, index: int) -> None:
        """Hand the unit its steps of the next open launch from ``index`` on that has any for it."""
        flying = {launch.index: launch for launch in self.in_flight}
        while index < self._opened:
            if index in flying and slot in flying[index].queues:
                self._next_launch[slot] = -1
                self._ready.append(flying[index].queues[slot])
                return
            index += 1
        self._next_launch[slot] = index

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
            if self._observer is not None:
                self._observer.started(index, flight.plan.kernel, now)
            self._schedule_go(flight, now)
            for slot, following in enumerate(self._next_launch):
                if following == index:
                    self._idle(slot, index)
            if not flight.left and flight.go is not None:
                self._finish(flight, now)

    def _schedule_go(self, flight: InFlight, now: int) -> None:
        """GO rises ``start_cycles`` after the last launch it depends on, or after it opened when it
        depends on none; never before it opened."""
        after = [self.stats[i] for i in self._program.launches[flight.index].after]
        ends = [stats.end_cycle for stats in after if stats is not None]
        if flight.go is not None or len(ends) < len(after):
            return
        flight.go = max(now, max(ends, default=now) + self._device.launch.start_cycles)
        heappush(self._heap, (flight.go, self._sequence(), flight, RAISE_GO, False))

    def _raise_go(self, flight: InFlight) -> None:
        for tokens, waiters in zip(flight.tokens, flight.waiters, strict=True):
            tokens[GO] = 1
            self._ready.extend(waiters[GO])
            waiters[GO].clear()

    def _finish(self, flight: InFlight, now: int) -> None:
        """Its steps are done and the launches it depends on are complete."""
        stats = self._stats(flight, now)
        self._ended(stats)
        self.in_flight.remove(flight)
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
        self._forget(index)
        return InFlight(index, replace(plan, kernel=launched(plan.kernel, launch)))

    def _forget(self, index: int) -> None:
        kernel = self._program.launches[index].kernel
        if self._last[kernel] == index:
            self.plans.pop(kernel, None)

    def _stats(self, flight: InFlight, now: int) -> LaunchStats:
        plan, queues = flight.plan, flight.queues.values()
        per_unit = {
            unit: [q.busy for q in queues if q.unit == u] or [0] for u, unit in enumerate(UNITS)
        }
        busiest = {unit: max(busy) for unit, busy in per_unit.items()}
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
            instructions=sum(q.size for q in queues),
            busy_cycles={unit: sum(busy) for unit, busy in per_unit.items()},
            busiest_cycles=busiest,
            bus_busy_cycles=bus_cycles,
            hbm_read_bytes=plan.hbm_read_bytes,
            hbm_write_bytes=plan.hbm_write_bytes,
            ring_bytes=plan.ring_bytes,
            lx_peak_bytes=plan.kernel.lx_bytes,
            bound=bound(now - go, busiest, bus_cycles),
        )
