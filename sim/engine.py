"""The event engine: units take steps off their lists, wait for tokens, occupy what they need
and signal.

A heap of (cycle, sequence, ...) makes ties first-in first-out, so two runs are equal. Nothing
here knows what instructions compute: that is the ``effects`` callback.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from .bus import Bus
from .cost import SHARE
from .device import DeviceSpec
from .expand import KernelPlan, Step, expand
from .isa import GO, UNITS, Program
from .ring import Ring
from .stats import LaunchStats, Observer, bound

N_UNITS = len(UNITS)
ML, MS, RS = (UNITS.index(u) for u in ("ml", "ms", "rs"))
FREE_ONLY, RAISE_GO = -1, -2  # event codes; others are numbers of completed steps

Tokens = list[int]
Waiters = list[list["Queue"]]


class Queue:
    """One launch's steps for one unit of one core, and how far the unit has come."""

    __slots__ = ("busy", "core", "due", "launch", "next", "share", "size", "steps", "tokens",
                 "unit", "waiters")

    def __init__(self, launch: InFlight, core: int, unit: int, steps: list[Step]) -> None:
        self.launch, self.core, self.unit, self.steps = launch, core, unit, steps
        self.size, self.next = len(steps), 0
        self.tokens, self.waiters = launch.tokens[core], launch.waiters[core]
        self.busy = 0  # cycles the unit was occupied
        self.due = 0  # cycle by which every transfer started so far has arrived
        self.share = 0  # of the scratchpad port, held now


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


Effects = Callable[[Queue, int], None]  # a completed step: its queue and number in it


class Engine:
    """Runs a program's launches in time. ``effects`` is told each completed step; ``observer`` each
    occupied unit; ``progress`` (launches done, launches)."""

    def __init__(
        self, program: Program, device: DeviceSpec, effects: Effects | None = None,
        observer: Observer | None = None, progress: Callable[[int, int], None] | None = None,
    ) -> None:
        cores = device.cores.count
        self.bus = Bus(device.hbm, cores)
        self.ring = Ring(device.ring, cores, device.clock_mhz)
        self.stats: list[LaunchStats | None] = [None] * len(program.launches)
        self.events = 0
        self.in_flight: list[InFlight] = []
        self._program, self._device = program, device
        self._effects, self._observer, self._progress = effects, observer, progress
        self._plans: dict[int, KernelPlan] = {}
        self._uses = [0] * len(program.kernels)
        for launch in program.launches:
            self._uses[launch.kernel] += 1
        self._heap: list[tuple[int, int, Queue | InFlight, int, bool]] = []
        self._sequence = 0
        self._ready: deque[Queue] = deque()
        self._load = [0] * cores  # shares of each core's scratchpad port that are taken
        self._next_launch = [0] * (cores * N_UNITS)  # what an idle unit takes next; -1 while busy
        self._opened = self._done = 0  # launches opened, and complete without a gap

    def run(self) -> int:
        """Work off all that can happen; the last cycle in which something did. Whoever calls asks
        ``in_flight`` whether everything finished."""
        heap, ready, load = self._heap, self._ready, self._load
        complete = self._complete
        now = 0
        self._open(now)
        while True:
            while ready:
                queue = ready.popleft()
                number = queue.next
                if number == queue.size:
                    self._idle(queue.core * N_UNITS + queue.unit, queue.launch.index + 1)
                    continue
                waits, signals, work, extra = queue.steps[number]
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
                            self._sequence += 1
                            heappush(heap, (queue.due, self._sequence, queue, number, False))
                        else:
                            complete(queue, number, now)
                        ready.append(queue)
                        continue
                    core = queue.core
                    if queue.unit <= RS:
                        end, share = self._move(queue, number, now, work, extra)
                    else:
                        taken = load[core] + extra
                        end = now + (work if taken <= SHARE else -(-work * taken // SHARE))
                        share = extra
                        self._sequence += 1
                        heappush(heap, (end, self._sequence, queue, number, True))
                    load[core] += share
                    queue.share = share
                    queue.busy += end - now
                    if self._observer is not None:
                        self._watch(queue, number, now, end)
            if not heap:
                return now
            now, _, event, code, frees = heappop(heap)
            self.events += 1
            if isinstance(event, InFlight):
                self._raise_go(event)
                continue
            if code >= 0:
                complete(event, code, now)
            if frees:
                load[event.core] -= event.share
                ready.append(event)

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
        self, queue: Queue, number: int, now: int, nbytes: int, extra: int
    ) -> tuple[int, int]:
        """Start a transfer: the cycle its unit is free, and its share of the scratchpad port. It
        completes later by the memory's latency or the ring's hops."""
        if queue.unit == RS:
            end, done = self.ring.send(now, queue.core, nbytes, extra)
        else:
            before = self.bus.busy_ticks
            end = self.bus.transfer(now, queue.core, nbytes, extra, queue.unit == MS)
            queue.launch.bus_ticks += self.bus.busy_ticks - before
            done = end + self._device.hbm.latency_cycles
        width = self._device.lx.port_bytes_per_cycle
        end = max(end, now - (-nbytes // width))
        share = -(-nbytes * SHARE // (width * (end - now)))
        taken = self._load[queue.core] + share
        if taken > SHARE:
            end = max(end, now - (-nbytes * taken // (width * SHARE)))
        done = max(done, end)
        queue.due = max(queue.due, done)
        self._sequence += 2
        if done == end:
            heappush(self._heap, (end, self._sequence, queue, number, True))
        else:
            heappush(self._heap, (end, self._sequence - 1, queue, FREE_ONLY, True))
            heappush(self._heap, (done, self._sequence, queue, number, False))
        return end, share

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
            flight = InFlight(index, self._plan(launch.kernel))
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
        self._sequence += 1
        heappush(self._heap, (flight.go, self._sequence, flight, RAISE_GO, False))

    def _raise_go(self, flight: InFlight) -> None:
        for tokens, waiters in zip(flight.tokens, flight.waiters, strict=True):
            tokens[GO] = 1
            self._ready.extend(waiters[GO])
            waiters[GO].clear()

    def _finish(self, flight: InFlight, now: int) -> None:
        """Its steps are done and the launches it depends on are complete."""
        self.stats[flight.index] = stats = self._stats(flight, now)
        self.in_flight.remove(flight)
        while self._done < self._opened and self.stats[self._done] is not None:
            self._done += 1
        if self._observer is not None:
            self._observer.finished(stats)
        if self._progress is not None:
            self._progress(sum(s is not None for s in self.stats), len(self.stats))
        for other in tuple(self.in_flight):
            self._schedule_go(other, now)
            if not other.left and other.go is not None:
                self._finish(other, now)

    def _plan(self, kernel: int) -> KernelPlan:
        """The unrolled kernel, kept until its last launch."""
        plan = self._plans.get(kernel) or expand(self._program.kernels[kernel], self._device)
        self._plans[kernel] = plan
        self._uses[kernel] -= 1
        if not self._uses[kernel]:
            del self._plans[kernel]
        return plan

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
