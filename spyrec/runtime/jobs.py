"""A program as device jobs, and what launching them takes: the host's three ordered steps beside
the device's time, on one clock of core cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spyrec.ir.errors import SpyrecError
from spyrec.sim.device import DeviceSpec
from spyrec.sim.host import CORRECTION_BYTES, HOST_LAUNCHES, HostLaunch
from spyrec.sim.isa import Program
from spyrec.sim.stats import LaunchStats


@dataclass(frozen=True)
class Job:
    """Launches that the host hands over together: ``cycles`` on the device, ``corrections``
    addresses to be patched before."""

    cycles: int
    corrections: int


@dataclass(frozen=True)
class Span:
    """``what`` occupied a ``lane`` ("host", "up", "down": the link's two ways, "device") from one
    core cycle to another, for ``stream``."""

    lane: str
    what: str
    start_cycle: int
    end_cycle: int
    stream: str = ""

    @property
    def cycles(self) -> int:
        return self.end_cycle - self.start_cycle


@dataclass(frozen=True)
class Lanes:
    """From which cycle on each lane is free; ``ends``: when the device was done with its last
    jobs, as many as the host must look back."""

    host: int = 0
    up: int = 0
    down: int = 0
    device: int = 0
    ends: tuple[int, ...] = ()


@dataclass(frozen=True)
class HostTime:
    """One launch of a program: ``launch`` is how, as ``jobs`` device jobs. ``device_us``: kernels
    and the prologues that patch addresses; ``host_us``: the host computes, constructs and submits;
    ``copy_us``: what crosses the link, corrections above all; ``wall_us``: from the first step to
    the last."""

    launch: HostLaunch
    jobs: int
    device_us: float
    host_us: float
    copy_us: float
    wall_us: float


def first_launches(program: Program, jobs: int) -> tuple[int, ...]:
    """The launch that each of ``jobs`` jobs begins with: as many launches in each as can be.
    SpyrecError when there are fewer launches than jobs."""
    count = len(program.launches)
    if not 1 <= jobs <= max(count, 1):
        raise SpyrecError(
            f"{program.meta.get('model', 'the program')} has {count} launches, so it cannot be "
            f"cut into {jobs} device jobs; say at most {max(count, 1)}"
        )
    return tuple(i * count // jobs for i in range(jobs))


def cut(program: Program, jobs: int) -> Program:
    """The program as it runs in ``jobs`` jobs: no launch begins while another job's still runs, nor
    is one joined to another job's."""
    first = {*first_launches(program, jobs)}
    launches = tuple(
        replace(launch, early=False, joint="") if i in first else launch
        for i, launch in enumerate(program.launches)
    )
    return replace(program, launches=launches)


def jobs_of(program: Program, jobs: int, stats: Sequence[LaunchStats]) -> tuple[Job, ...]:
    """The jobs of a program that ran as ``cut`` makes it; ``stats`` of its launches in order."""
    starts = first_launches(program, jobs)
    made, before = [], 0
    for low, end in zip(starts, (*starts[1:], len(program.launches)), strict=True):
        until = max((s.end_cycle for s in stats[low:end]), default=before)
        corrections = sum(len(launch.args) for launch in program.launches[low:end])
        made.append(Job(until - before, corrections))
        before = until
    return tuple(made)


def launch_steps(
    device: DeviceSpec, mode: HostLaunch, jobs: Sequence[Job], lanes: Lanes, *,
    host_from: int = 0, device_from: int = 0, what: str = "", stream: str = "",
    correct: bool | None = None,
) -> tuple[tuple[Span, ...], Lanes]:
    """The spans of a launch, and the lanes after it.

    Each job goes host -> up -> device. The host begins a job no earlier than ``host_from``, and
    only when no more than ``host.ahead_jobs`` jobs are still on the device; the device no earlier
    than ``device_from``. ``correct``: whether addresses must be computed and sent; by default
    unless ``mode`` is "bound", which finds them in place.
    """
    correct = mode != "bound" if correct is None else correct
    spans = []
    for number, job in enumerate(jobs):
        name = f"{what} {number + 1}/{len(jobs)}" if len(jobs) > 1 else what
        host, up, run = _step_cycles(device, mode, job, correct)
        ahead = device.host.ahead_jobs
        clear = lanes.ends[-1 - ahead] if len(lanes.ends) > ahead else 0
        at = max(host_from, lanes.host, clear)
        prepared = Span("host", name, at, at + host, stream)
        at = max(prepared.end_cycle, lanes.up) if up else prepared.end_cycle
        sent = Span("up", f"{name} corrections", at, at + up, stream)
        at = max(sent.end_cycle, lanes.device, device_from)
        ran = Span("device", name, at, at + run, stream)
        spans += [s for s in (prepared, sent, ran) if s.cycles]
        lanes = replace(
            lanes, host=prepared.end_cycle, up=max(lanes.up, sent.end_cycle if up else 0),
            device=ran.end_cycle, ends=(*lanes.ends, ran.end_cycle)[-1 - ahead :],
        )
    return tuple(spans), lanes


def _step_cycles(
    device: DeviceSpec, mode: HostLaunch, job: Job, correct: bool
) -> tuple[int, int, int]:
    """Cycles that a job takes of host, link and device."""
    corrections = job.corrections if correct else 0
    host = device.host_cycles(device.host.job_ns(mode, corrections))
    up = device.host_cycles(device.host.link_ns(corrections * CORRECTION_BYTES))
    return host, up, job.cycles + device.host.patch_cycles * corrections


def host_time(device: DeviceSpec, mode: str, jobs: Sequence[Job]) -> HostTime:
    """What one launch of those jobs takes by itself, on a card where it was launched before.
    SpyrecError when there is no such ``mode``."""
    how = checked_mode(mode)
    spans, _ = launch_steps(device, how, jobs, Lanes())
    return summed(device, how, len(jobs), spans)


def summed(device: DeviceSpec, mode: HostLaunch, jobs: int, spans: Sequence[Span]) -> HostTime:
    """What the spans of one launch come to."""
    def total(*lanes: str) -> float:
        return device.us(sum(s.cycles for s in spans if s.lane in lanes))

    first = min((s.start_cycle for s in spans), default=0)
    last = max((s.end_cycle for s in spans), default=0)
    return HostTime(
        mode, jobs, total("device"), total("host"), total("up", "down"), device.us(last - first)
    )


def checked_mode(mode: str) -> HostLaunch:
    """SpyrecError unless it is one of HOST_LAUNCHES."""
    for known in HOST_LAUNCHES:
        if mode == known:
            return known
    raise SpyrecError(f"host launch {mode!r} is unknown; known: {', '.join(HOST_LAUNCHES)}")
