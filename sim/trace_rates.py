"""Counters of a trace as rates over short buckets: what memory, ring and matrix units do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .device import DeviceSpec

BUCKET_CYCLES = 512
DIGITS = 4  # of a value: what differs by less is not written again

Rates = dict[str, float]
READ, WRITTEN, RING, MATRIX = (
    "memory read GB/s", "memory written GB/s", "ring load %", "matrix units busy %",
)


def _full(device: DeviceSpec) -> Rates:
    """What one of a counter's unit is, in what a bucket sums up: bytes, ring cycles of segments,
    core cycles of matrix units."""
    nanoseconds = device.us(BUCKET_CYCLES) * 1000
    segments = 2 * (device.cores.count + 1)
    ring_cycles = BUCKET_CYCLES * device.ring.clock_mhz / device.clock_mhz
    return {
        READ: nanoseconds, WRITTEN: nanoseconds, RING: segments * ring_cycles / 100,
        MATRIX: device.cores.count * BUCKET_CYCLES / 100,
    }


@dataclass
class Buckets:
    """Amounts spread over time, given out as rates once nothing more can be added before a
    time."""

    device: DeviceSpec
    _sums: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    _shown: Rates = field(default_factory=dict)
    _done: int = 0  # buckets given out

    def add(self, counter: str, start: int, end: int, amount: int) -> None:
        """``amount`` evenly from cycle ``start`` to ``end``, which comes after it."""
        sums = self._sums[counter]
        first, last = start // BUCKET_CYCLES, (end - 1) // BUCKET_CYCLES
        if first == last:
            sums[first] = sums.get(first, 0.0) + amount
            return
        rate = amount / (end - start)
        ends = [(first, (first + 1) * BUCKET_CYCLES - start), (last, end - last * BUCKET_CYCLES)]
        for bucket, cycles in ends:
            sums[bucket] = sums.get(bucket, 0.0) + rate * cycles
        whole = rate * BUCKET_CYCLES  # the same in each, so that it is written once
        for bucket in range(first + 1, last):
            sums[bucket] = sums.get(bucket, 0.0) + whole

    def before(self, cycle: int | None) -> Iterator[tuple[int, str, float]]:
        """Changes of counters in the buckets that end by ``cycle`` (None: all): the cycle in which
        the bucket begins, the counter, its rate from then on."""
        found = {bucket for sums in self._sums.values() for bucket in sums}
        after = max(self._done, *found, 0) + 2  # when all are back to 0
        end = after if cycle is None else cycle // BUCKET_CYCLES
        full = _full(self.device)
        now = {bucket for bucket in found if bucket < end}
        for bucket in sorted(now | {b + 1 for b in now if b + 1 < end} | {self._done}):
            if bucket >= end:
                break
            for counter, unit in full.items():
                rate = float(f"{self._sums[counter].pop(bucket, 0.0) / unit:.{DIGITS}g}")
                if rate != self._shown.get(counter, 0.0):
                    self._shown[counter] = rate
                    yield bucket * BUCKET_CYCLES, counter, rate
        self._done = max(self._done, end)
