"""What a kernel sends over each segment of the ring: the same in every launch of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from .device import DeviceSpec
from .engine import RS
from .expand import expand
from .isa import UNITS, Kernel
from .ring import DOWN, UP, Cores, Ring

Lane = tuple[int, ...]


@dataclass(frozen=True)
class LinkLoad:
    """Bytes over each segment of the ring, upwards and downwards, and the same of the rings of
    partial sums. Segment s lies between stops s and s + 1; the last stop is card memory's."""

    up: Lane
    down: Lane
    sums_up: Lane
    sums_down: Lane


def link_load(kernel: Kernel, device: DeviceSpec) -> LinkLoad:
    """SimulationError when the kernel breaks a rule of the machine."""
    unit = UNITS[RS]
    sends = replace(kernel, streams={unit: kernel.streams.get(unit, ())})
    sent: Counter[tuple[int, int, Cores | None]] = Counter()
    plan = expand(sends, device).units.get(RS)
    for core, steps in enumerate(plan.steps if plan is not None else ()):
        for _, _, nbytes, extra, _, takers in steps:
            if nbytes:
                sent[core, extra, takers] += nbytes
    ring = Ring(device.ring, device.cores.count, device.clock_mhz)
    for (core, extra, far), nbytes in sent.items():
        if extra < 0:  # partial sums, as the engine tells them
            ring.pass_on(0, core, nbytes, -extra)
        else:
            ring.send(0, core, nbytes, extra, far)
    links, sums = ring.link_bytes, ring.psum_bytes
    return LinkLoad(*(tuple(lane[way]) for lane in (links, sums) for way in (UP, DOWN)))
