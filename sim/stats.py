"""What a run is asked about: numbers of each launch, and the interface of those who watch it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from .expand import KernelPlan
from .isa import Instr, Joint, Kernel

LATENCY_BELOW = 0.5  # no resource busy for half of its time: waiting is what a launch does


@dataclass(frozen=True)
class LaunchStats:
    """One launch. ``start_cycle``: its first instruction began; ``go_cycle``: GO was raised;
    ``end_cycle``: its last instruction completed.

    ``busy_cycles``: per unit, summed over the cores, how long it was occupied (for a memory unit
    that includes its turn on the bus); ``busiest_cycles``: the same of the core that has most.
    ``bus_busy_cycles``: bus time of its transfers, turnarounds included. ``padded_macs``:
    multiply-accumulates over whole groups of 64 columns. ``ring_bytes``: sent, partial sums
    included. ``lx_peak_bytes``: as planned.
    ``bound``: see the function of that name; ``joint``: as in Launch. ``core_busy_cycles``:
    ``busy_cycles`` of each core.
    """

    index: int
    kernel: str
    start_cycle: int
    go_cycle: int
    end_cycle: int
    cores_used: int
    padded_macs: int
    instructions: int
    busy_cycles: Mapping[str, int]
    busiest_cycles: Mapping[str, int]
    bus_busy_cycles: int
    hbm_read_bytes: int
    hbm_write_bytes: int
    ring_bytes: int
    lx_peak_bytes: int
    bound: str
    joint: Joint = ""
    core_busy_cycles: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def cycles(self) -> int:
        """From GO to the end: loading early, while the launch before ran, is not its time."""
        return self.end_cycle - self.go_cycle

    @property
    def prefetch_cycles(self) -> int:
        """How long before GO its first instruction began."""
        return max(0, self.go_cycle - self.start_cycle)

    @property
    def pt_busy_cycles(self) -> int:
        return self.busy_cycles["pt"]

    @property
    def sfp_busy_cycles(self) -> int:
        return self.busy_cycles["sfp"]


@dataclass(frozen=True)
class RunResult:
    """A finished run. ``events``: what the engine handled; ``instructions``: executions of
    instructions, all cores together. ``outputs``: bytes of each output buffer, empty after a
    timing-only run."""

    total_cycles: int
    events: int
    instructions: int
    launches: tuple[LaunchStats, ...]
    outputs: Mapping[str, bytes]


class Observer(Protocol):
    """Watches a run. Cycles are core cycles."""

    def started(self, launch: int, kernel: Kernel, cycle: int) -> None:
        """A launch may begin."""

    def worked(
        self, launch: int, kernel: Kernel, core: int, unit: str, instr: Instr,
        start: int, end: int, nbytes: int,
    ) -> None:
        """``unit`` is occupied by ``instr`` from ``start`` to ``end`` (never the same).
        ``nbytes``: what a memory or ring unit moves. Called when it begins."""

    def finished(self, stats: LaunchStats) -> None:
        """A launch is complete."""


@runtime_checkable
class StepObserver(Observer, Protocol):
    """Also learns of each step of a core's unit, those that take no time too: from the steps in
    ``plan.units[unit].steps[core]`` it can tell which tokens were taken and given."""

    def planned(self, launch: int, plan: KernelPlan) -> None:
        """``launch`` runs ``plan``. Called before ``started``."""

    def began(self, launch: int, core: int, unit: int, step: int, cycle: int) -> None:
        """The step has the tokens it waited for. ``worked`` follows if it takes time."""

    def queued(self, launch: int, passed: int) -> None:
        """What the step moves leaves the memory bus by cycle ``passed``. Called between the two."""

    def ended(self, launch: int, core: int, unit: int, step: int, cycle: int) -> None:
        """The step is complete; now it signals."""


def bound(cycles: int, busiest: Mapping[str, int], bus_cycles: int) -> str:
    """What limits a launch: "compute" (matrix unit), "vector", "memory" or "ring", whichever worked
    for it longest, by the busiest core; "latency" when none did for half of ``cycles``.

    ``cycles`` run from GO to the end, work counts from the first instruction on: a launch whose
    weights came early is bound by memory when bringing them took longest, though it waited for
    little of it.
    """
    used = {
        "compute": busiest["pt"], "vector": busiest["sfp"], "memory": bus_cycles,
        "ring": busiest["rs"],
    }
    most = max(used, key=lambda name: used[name])
    return most if used[most] >= LATENCY_BELOW * cycles and used[most] > 0 else "latency"
