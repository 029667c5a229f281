"""A run as Chrome trace events, for Perfetto: a process per core, a row per unit, arrows from those
who gave tokens to those who waited for them, loops, rates, and the launches."""

from __future__ import annotations

from hashlib import blake2b
from math import inf
from typing import TextIO

import numpy as np

from .device import DeviceSpec
from .expand import KernelPlan
from .isa import UNITS, Instr, Kernel
from .ring import Ring
from .stats import LaunchStats
from .trace_file import EventFile
from .trace_launch import ROWS, LaunchSlices, inside
from .trace_rates import MATRIX, READ, RING, WRITTEN, Buckets
from .trace_tokens import N_UNITS, Flight

LAUNCHES = 1_000_000  # process number of the launches' own rows, and of the counters
ML, MS, RS, _, PT, _ = range(N_UNITS)
SCRATCHPAD = "scratchpad of the fullest core bytes"
MOVED = ("hbm_read_bytes", "hbm_write_bytes", "ring_bytes")
"""Fields of LaunchStats that are counted up, each in a counter of that name with spaces."""
TURNS = {row: f"launches, {which}" for row, which in enumerate(("even", "odd"), LAUNCHES * ROWS)}
"""Launches take turns on two rows, as two may be in flight."""

MOST_BYTES = 40_000_000
"""Of instructions and arrows, in a trace without a window: what readers open without effort."""
LEAST_WORK_BYTES = 128
"""That an instruction takes at the least: what has too many of them is not even tried."""

Window = tuple[int, float]  # cycles: from, to


class ChromeTrace:
    """A StepObserver that writes events to ``out``; call ``close`` after the run. ``window``: the
    cycles of which all is shown, of others only the launches. Without one, all is shown but the
    instructions of launches that are, relative to GO, what an earlier launch of the kernel was, and
    of those that would bring all instructions above ``most_bytes``. ``left_out``: how many of these
    and like these there are."""

    def __init__(
        self, out: TextIO, device: DeviceSpec, window: Window | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._file, self._device, self._window = EventFile(out, device), device, window
        self._left = most_bytes
        self.left_out = 0
        self._ring = Ring(device.ring, device.cores.count, device.clock_mhz)
        self._rates = Buckets(device)
        self._flights: dict[int, Flight] = {}
        self._ended: dict[int, LaunchStats] = {}
        self._next = 0  # the launch that is to be written
        self._now = 0
        self._seen: dict[tuple[int, bytes], int] = {}
        self._shown: set[int | None] = set()
        self._kernels: dict[int, Kernel] = {}  # keeps what ids are of
        self._moved = dict.fromkeys(MOVED, 0)
        self._group: list[tuple[LaunchStats, str]] = []  # what shares a launch of the device
        self._groups = 0
        self._file.named(LAUNCHES, "launches", TURNS)

    def planned(self, launch: int, plan: KernelPlan) -> None:
        self._flights[launch] = Flight(plan)

    def started(self, launch: int, kernel: Kernel, cycle: int) -> None:
        self._flights[launch].opened = cycle

    def began(self, launch: int, core: int, unit: int, step: int, cycle: int) -> None:
        self._flights[launch].began(core, unit, step, cycle)

    def queued(self, launch: int, passed: int) -> None:
        self._flights[launch].passed = passed

    def worked(
        self, launch: int, kernel: Kernel, core: int, unit: str, instr: Instr,
        start: int, end: int, nbytes: int,
    ) -> None:
        flight, number, load = self._flights[launch], UNITS.index(unit), 0
        if number == RS:
            _, _, _, mask, _, far = flight.step(core, number, flight.begun[0])
            if mask > 0:  # not to a neighbour's accumulators, beside the ring
                segments = sum(self._ring.reach(core, mask, far or ()))
                load = int(self._device.ring.payload_cycles(nbytes)) * segments
        flight.worked(core, number, start, end, nbytes, load)

    def ended(self, launch: int, core: int, unit: int, step: int, cycle: int) -> None:
        self._flights[launch].ended(core, unit, step, cycle)

    def finished(self, stats: LaunchStats) -> None:
        for name in MOVED:
            if nbytes := getattr(stats, name):
                self._moved[name] += nbytes
                self._counted(name.replace("_", " "), stats.end_cycle, self._moved[name])
        self._counted(SCRATCHPAD, stats.go_cycle, stats.lx_peak_bytes)
        self._ended[stats.index] = stats
        self._now = stats.end_cycle
        while self._next in self._ended:
            self._write(self._ended.pop(self._next), self._flights.pop(self._next))
            self._next += 1
        pending = [flight.opened for flight in self._flights.values()]
        self._count(min([self._now, *pending]))

    def close(self) -> None:
        """End the file. Nothing may be added afterwards."""
        self._launch_rows()
        self._count(None)
        self._file.close()

    def _count(self, cycle: int | None) -> None:
        for at, counter, rate in self._rates.before(cycle):
            self._counted(counter, at, rate)

    def _counted(self, counter: str, cycle: int, value: float) -> None:
        self._file.put([self._file.count(LAUNCHES, LAUNCHES * ROWS, counter, cycle, value)])

    def _write(self, stats: LaunchStats, flight: Flight) -> None:
        """All of a launch, or only its own slice."""
        like, slices = None, LaunchSlices(self._file, stats.index, flight)
        events: list[str] | None = None
        if self._window is not None:
            since, until = self._window
            if stats.start_cycle < until and stats.end_cycle > since:
                events = slices.events(since, until)
        else:
            like = self._like(stats, flight)
            if like is None:
                events = self._that_fit(slices, flight)
        if events is not None:
            slices.write(events)
            self._shown.add(stats.index)
            self._rates_of(flight)
        else:
            self._mean_rates(stats, flight)
        if not stats.joint:
            self._launch_rows()
        left_out = events is None and self._window is None and like not in self._shown
        self.left_out += left_out
        self._group.append((stats, _facts(stats, flight.plan, like, left_out)))

    def _that_fit(self, slices: LaunchSlices, flight: Flight) -> list[str] | None:
        """All events of a launch, None when they are more than what is left of the most bytes."""
        if sum(map(len, flight.works.values())) * LEAST_WORK_BYTES > self._left:
            return None
        events = slices.events(0, inf)
        nbytes = sum(map(len, events))
        if nbytes > self._left:
            return None
        self._left -= nbytes
        return events

    def _like(self, stats: LaunchStats, flight: Flight) -> int | None:
        """The earlier launch that was the same, if there is one."""
        streams = flight.plan.kernel.streams
        self._kernels.setdefault(id(streams), flight.plan.kernel)
        works = [
            (w.slot, w.step, w.start - stats.go_cycle, w.end - stats.go_cycle, w.nbytes,
             -1 if w.cause is None else w.cause.slot, 0 if w.cause is None else w.cause.number)
            for slot in sorted(flight.works) for w in flight.works[slot]
        ]  # fmt: skip
        facts = np.array(works, np.int64).tobytes() + repr(stats.cycles).encode()
        key = id(streams), blake2b(facts).digest()
        first = self._seen.setdefault(key, stats.index)
        return None if first == stats.index else first

    def _rates_of(self, flight: Flight) -> None:
        add, rate, ring = self._rates.add, self._device.hbm.bytes_per_cycle, self._device.ring
        for slot, works in flight.works.items():
            unit = slot % N_UNITS
            for w in works:
                if unit == PT:
                    add(MATRIX, w.start, w.end, w.end - w.start)
                elif unit == RS and w.load:  # waits for its segments, then occupies them
                    left = w.end - flight.step(slot // N_UNITS, unit, w.step)[4]
                    length = ring.to_core(ring.payload_cycles(w.nbytes), self._device.clock_mhz)
                    add(RING, left - length, left, w.load)
                elif unit in (ML, MS):  # waits for its turn on the bus, then passes
                    ticks = abs(flight.step(slot // N_UNITS, unit, w.step)[3])
                    begin = w.passed - max(1, -(-ticks // rate))
                    add(READ if unit == ML else WRITTEN, begin, w.passed, w.nbytes)

    def _mean_rates(self, stats: LaunchStats, flight: Flight) -> None:
        """The same amounts, evenly from its first instruction to its end."""
        sent = [w for slot, works in flight.works.items() if slot % N_UNITS == RS for w in works]
        amounts = {
            READ: stats.hbm_read_bytes, WRITTEN: stats.hbm_write_bytes,
            RING: sum(w.load for w in sent), MATRIX: stats.busy_cycles["pt"],
        }
        for counter, amount in amounts.items():
            if amount:
                self._rates.add(counter, stats.start_cycle, stats.end_cycle, amount)

    def _launch_rows(self) -> None:
        """The launches that came since the device started one, and a slice around them if there are
        several."""
        group, self._group = self._group, []
        if not group:
            return
        row = LAUNCHES * ROWS + self._groups % 2
        self._groups += 1
        spans = [
            ("launch", stats.kernel, stats.go_cycle, stats.end_cycle, facts)
            for stats, facts in group
        ]
        if len(group) > 1:
            start, end = group[0][0].go_cycle, group[-1][0].end_cycle
            name = f"{len(group)} kernels in one launch"
            spans.insert(0, ("shared", name, start, end, f'"cycles":{end - start}'))
        self._file.put(
            self._file.slice(kind, name, LAUNCHES, row, start, end, facts)
            for kind, name, start, end, facts in spans
        )


def _facts(stats: LaunchStats, plan: KernelPlan, like: int | None, left_out: bool) -> str:
    notes = dict.fromkeys((note.op, ", ".join(note.nodes)) for note in plan.kernel.notes)
    facts: dict[str, object] = {
        "launch": stats.index, "cycles": stats.cycles, "go_cycle": stats.go_cycle,
        "start_cycle": stats.start_cycle, "joint": stats.joint or "no", "bound": stats.bound,
        "cores": stats.cores_used, "macs": int(plan.kernel.info.get("macs", stats.padded_macs)),
        "padded_macs": stats.padded_macs, "instructions": stats.instructions,
        "hbm_read_bytes": stats.hbm_read_bytes, "hbm_write_bytes": stats.hbm_write_bytes,
        "ring_bytes": stats.ring_bytes, "lx_peak_bytes": stats.lx_peak_bytes,
        "bus_busy_cycles": stats.bus_busy_cycles, "busy_cycles": dict(stats.busy_cycles),
        "ops": [f"{op} (from {nodes})" if nodes else op for op, nodes in notes],
    }
    if like is not None:
        facts["like launch"] = like
    if left_out:
        facts["left out"] = "its instructions, see --trace-window"
    return inside(facts)
