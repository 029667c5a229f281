"""A run as Chrome trace events (open in Perfetto or chrome://tracing): a process per core, a
thread per unit, counters for the bytes memory and ring move."""

from __future__ import annotations

import json
from heapq import heappop, heappush
from math import inf, nextafter
from typing import TextIO

from .describe import text
from .device import DeviceSpec
from .isa import UNITS, Instr, Kernel
from .stats import LaunchStats

LAUNCHES = 1_000_000  # process number of the launches' own row
BUCKETS = {"ml": "hbm read bytes", "ms": "hbm write bytes", "rs": "ring bytes"}
TITLES = ("memory load", "memory store", "ring send", "ring receive", "matrix", "vector")


class ChromeTrace:
    """An Observer that streams events to ``out``; call ``close`` after the run. Times are
    microseconds. Counters show the bytes moved since the run began, in order of time."""

    def __init__(self, out: TextIO, device: DeviceSpec) -> None:
        self._out, self._device = out, device
        self._first = True
        self._named: set[int] = set()
        self._moved = dict.fromkeys(BUCKETS, 0)
        self._moving: list[tuple[int, str, int]] = []  # end cycle, unit, bytes: not counted yet
        out.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        self._name(LAUNCHES, "launches")

    def started(self, launch: int, kernel: Kernel, cycle: int) -> None:
        """Nothing is drawn until the launch is complete."""

    def worked(
        self, launch: int, kernel: Kernel, core: int, unit: str, instr: Instr,
        start: int, end: int, nbytes: int,
    ) -> None:
        if core not in self._named:
            self._named.add(core)
            self._name(core, f"core {core}")
            for thread, title in enumerate(TITLES):
                self._meta("thread_name", core, thread, title)
        args: dict[str, object] = {
            "launch": launch, "kernel": kernel.name, "instr": text(instr, core)
        }
        if 0 <= instr.note < len(kernel.notes):
            note = kernel.notes[instr.note]
            args |= {"op": note.op, "nodes": ", ".join(note.nodes)}
        if nbytes:
            args["bytes"] = nbytes
        self._count_until(start)
        self._slice(instr.op, core, UNITS.index(unit), start, end, args)
        if unit in self._moved:
            heappush(self._moving, (end, unit, nbytes))

    def finished(self, stats: LaunchStats) -> None:
        args = {"launch": stats.index, "bound": stats.bound, "padded_macs": stats.padded_macs}
        lane = stats.index % 2  # two launches may be in flight
        self._slice(stats.kernel, LAUNCHES, lane, stats.go_cycle, stats.end_cycle, args)

    def close(self) -> None:
        """End the file. Nothing may be added afterwards."""
        self._count_until(inf)
        self._out.write("\n]}\n")

    def _slice(
        self, name: str, process: int, thread: int, start: int, end: int, args: dict[str, object]
    ) -> None:
        if end > start:
            ts, until = self._device.us(start), self._device.us(end)
            dur = until - ts
            while ts + dur > until:  # rounded up: it would reach into the slice after it
                dur = nextafter(dur, 0.0)
            self._event(name=name, ph="X", pid=process, tid=thread, ts=ts, dur=dur, args=args)

    def _count_until(self, cycle: float) -> None:
        """Step the counters for what has been moved by ``cycle``."""
        while self._moving and self._moving[0][0] <= cycle:
            end, unit, nbytes = heappop(self._moving)
            self._moved[unit] += nbytes
            self._event(name=BUCKETS[unit], ph="C", pid=LAUNCHES, tid=0, ts=self._device.us(end),
                        args={"bytes": self._moved[unit]})

    def _name(self, process: int, title: str) -> None:
        self._meta("process_name", process, 0, title)

    def _meta(self, kind: str, process: int, thread: int, title: str) -> None:
        self._event(name=kind, ph="M", pid=process, tid=thread, args={"name": title})

    def _event(self, **event: object) -> None:
        self._out.write(("" if self._first else ",\n") + json.dumps(event))
        self._first = False
