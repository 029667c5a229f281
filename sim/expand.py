"""A kernel's streams unrolled into per-core step lists that the engine can work off without
looking at an instruction again. Cores whose steps are equal share one list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from .cost import Cost, cost_of
from .device import DeviceSpec
from .extent import core_value, per_core, trip_numbers
from .isa import GO, UNITS, Instr, Kernel, Loop, Signal, Stream, Wait
from .legal import check_kernel
from .pieces import scattered

Waits = tuple[tuple[int, int, int], ...]  # token, needed, taken
Signals = tuple[tuple[int, int, tuple[int, ...] | None], ...]  # token, n, cores (None: this one)
Step = tuple[Waits, Signals, int, int, int, tuple[int, ...] | None]
"""Waits, signals, Cost.work, .extra, .held, and the cores of Cost.takers."""


@dataclass(frozen=True)
class Site:
    """One instruction where it stands in its stream: the trip counts of the loops around it."""

    instr: Instr
    loops: tuple[int, ...]

    def trip(self, number: int) -> tuple[int, ...]:
        """Trip numbers of the loops at the ``number``-th execution."""
        trips = []
        for count in reversed(self.loops):
            number, trip = divmod(number, count)
            trips.append(trip)
        return tuple(reversed(trips))


@dataclass(frozen=True)
class UnitPlan:
    """One unit's work. ``order``: site of each step of the stream; ``trip``: how many times
    that site ran before; ``steps``: per core; ``kept``: per core, the stream's steps the core
    executes (None: all of them)."""

    sites: tuple[Site, ...]
    order: NDArray[np.int64]
    trip: NDArray[np.int64]
    steps: tuple[list[Step], ...]
    kept: tuple[NDArray[np.int64] | None, ...]

    def at(self, core: int, step: int) -> tuple[Site, int]:
        """Site and execution number of a core's step."""
        kept = self.kept[core]
        position = step if kept is None else int(kept[step])
        return self.sites[int(self.order[position])], int(self.trip[position])


@dataclass(frozen=True)
class KernelPlan:
    """A kernel ready to run. ``units``: by index into UNITS. ``tokens``: how many counters a
    core needs. Totals are of all cores together."""

    kernel: Kernel
    units: dict[int, UnitPlan]
    tokens: int
    macs: int
    hbm_read_bytes: int
    hbm_write_bytes: int
    ring_bytes: int


def expand(kernel: Kernel, device: DeviceSpec) -> KernelPlan:
    """Unroll and price ``kernel``. SimulationError when it breaks a rule of the machine."""
    check_kernel(kernel, device)
    units: dict[int, UnitPlan] = {}
    moved = dict.fromkeys(UNITS, 0)
    macs = tokens = 0
    for u, unit in enumerate(UNITS):
        sites: list[Site] = []
        order = _flatten(kernel.streams.get(unit, ()), (), sites)
        if not sites:
            continue
        loads = ((site.instr, site.loops) for site in sites if site.instr.op == "load")
        far = scattered(loads)
        costs = [cost_of(s.instr, kernel, device, trip_numbers(s.loops), far) for s in sites]
        active = [_executing(s.instr, kernel) for s in sites]
        units[u] = _unit_plan(
            kernel, tuple(sites), order, costs, active, device.sfp.switch_cycles
        )
        for site, cost, cores in zip(sites, costs, active, strict=True):
            moved[unit] += _total(cost.work, site, cores)
            macs += _total(cost.macs, site, cores)
            tokens = max([tokens, *(w.token for w in site.instr.waits)])
            for signal in site.instr.signals:
                tokens = max(tokens, int(np.max(signal.token)))
    return KernelPlan(kernel, units, tokens + 1, macs, moved["ml"], moved["ms"], moved["rs"])


def _flatten(
    stream: Stream, loops: tuple[int, ...], sites: list[Site]
) -> NDArray[np.int64]:
    """Site numbers in order of execution; new sites are appended to ``sites``."""
    parts = [np.zeros(0, np.int64)]
    for item in stream:
        if isinstance(item, Loop):
            parts.append(np.tile(_flatten(item.body, (*loops, item.count), sites), item.count))
        else:
            parts.append(np.array([len(sites)], np.int64))
            sites.append(Site(item, loops))
    return np.concatenate(parts)


def _switches(
    sites: Sequence[Site], order: NDArray[np.int64], works: NDArray[np.bool_],
    runs: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """[steps, cores]: where the vector unit takes up another micro-program than it ran last. What
    only finishes lanes that were folded belongs to the program that folded them; a ``vec`` with
    nothing to do takes up none."""
    wanted = [taken_up(site.instr) for site in sites]
    numbers = {program: i for i, program in enumerate(dict.fromkeys(p for p in wanted if p))}
    switched = np.zeros(works.shape, np.bool_)
    if len(numbers) < 2:
        return switched
    taken = np.array([numbers[p] if p else -1 for p in wanted], np.int64)[order]
    ahead = np.array([site.instr.op == "prog" for site in sites])[order]
    takes = (works | ahead[:, None]) & runs & (taken >= 0)[:, None]
    for core in range(works.shape[1]):
        at = np.flatnonzero(takes[:, core])
        switched[at[1:], core] = taken[at[1:]] != taken[at[:-1]]
    return switched


def taken_up(instr: Instr) -> tuple[int, int] | None:
    """The number of the micro-program that the vector unit must have taken up for an instruction,
    and its kind of reduction; None where any will do."""
    if instr.op not in ("vec", "prog") or (instr.op == "vec" and _finishes(instr)):
        return None
    program, reduce = (
        int(per_core(instr.imm.get(name, 0), 1)[0, 0]) for name in ("program", "reduce")
    )
    return program, reduce


def _finishes(instr: Instr) -> bool:
    """Whether a ``vec`` only works on lanes that were folded: it uses one of each group."""
    reduces = per_core(instr.imm.get("reduce", 0), 1).any()
    return not reduces and all(source.splat for source in instr.operands[1:])


def _total(values: NDArray[np.int64], site: Site, active: NDArray[np.bool_]) -> int:
    """Sum over all trips and the ``active`` cores."""
    if not values.any():
        return 0
    full = np.broadcast_to(values, (prod(site.loops), len(active)))
    return int(full[:, active].sum())


def _executing(instr: Instr, kernel: Kernel) -> NDArray[np.bool_]:
    cores = range(kernel.cores)
    return np.array([not instr.where or bool(instr.where >> core & 1) for core in cores])


def _unit_plan(
    kernel: Kernel, sites: tuple[Site, ...], order: NDArray[np.int64], costs: list[Cost],
    active: list[NDArray[np.bool_]], switch_cycles: int,
) -> UnitPlan:
    cores = kernel.cores
    by_site = np.argsort(order, kind="stable")
    bounds = np.concatenate(([0], np.cumsum(np.bincount(order, minlength=len(sites)))))
    trip = np.empty(len(order), np.int64)
    work = np.empty((len(order), cores), np.int64)
    extra = np.empty((len(order), cores), np.int64)
    held = np.empty((len(order), cores), np.int64)
    takers = np.empty((len(order), cores), np.int64)
    runs = np.ones((len(order), cores), np.bool_)
    for number, cost in enumerate(costs):
        where = by_site[bounds[number] : bounds[number + 1]]
        trip[where] = np.arange(len(where))
        work[where] = cost.work
        extra[where] = cost.extra
        held[where] = cost.held
        takers[where] = cost.takers
        runs[where] = active[number]
    work += switch_cycles * _switches(sites, order, work > 0, runs)
    costs_of = np.stack((work, extra, held, takers))
    waits = [_waits(site.instr.waits) for site in sites]
    alike = [_signals(site.instr.signals, 0, cores) if _uniform(site.instr.signals) else None
             for site in sites]
    shared: dict[tuple[bytes, bytes, tuple[Signals, ...]], list[Step]] = {}
    steps: list[list[Step]] = []
    kept: list[NDArray[np.int64] | None] = []
    for core in range(cores):
        signals = tuple(
            _signals(site.instr.signals, core, cores) if same is None else same
            for site, same in zip(sites, alike, strict=True)
        )
        column = runs[:, core]
        mine = None if column.all() else np.flatnonzero(column)
        chosen, numbers = order, costs_of[:, :, core]
        if mine is not None:
            chosen, numbers = order[mine], numbers[:, mine]
        key = (column.tobytes(), numbers.tobytes(), signals)
        if key not in shared:
            at = chosen.tolist()
            w, x, h, masks = numbers.tolist()
            shared[key] = list(
                zip(
                    map(waits.__getitem__, at), map(signals.__getitem__, at),
                    w, x, h, [_targets(mask, cores) for mask in masks], strict=True,
                )
            )
        steps.append(shared[key])
        kept.append(mine)
    return UnitPlan(sites, order, trip, tuple(steps), tuple(kept))


def _waits(waits: tuple[Wait, ...]) -> Waits:
    """What each token must hold and what is taken, one entry a token. GO is a level."""
    need: dict[int, int] = {}
    take: dict[int, int] = {}
    for wait in waits:
        taken = 0 if wait.token == GO else wait.n
        take[wait.token] = take.get(wait.token, 0) + taken
        need[wait.token] = max(1, take[wait.token])
    return tuple((token, need[token], take[token]) for token in need)


def _uniform(signals: tuple[Signal, ...]) -> bool:
    """Whether they are the same on every core."""
    return all(isinstance(s.token, int) and isinstance(s.cores, int) for s in signals)


def _signals(signals: tuple[Signal, ...], core: int, cores: int) -> Signals:
    return tuple(
        (core_value(s.token, core), s.n, _targets(core_value(s.cores, core), cores))
        for s in signals
    )


@lru_cache(maxsize=4096)
def _targets(mask: int, cores: int) -> tuple[int, ...] | None:
    return tuple(c for c in range(cores) if mask >> c & 1) if mask else None
