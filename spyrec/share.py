"""Kernels put into one launch, and vector programs taken up less often, as prices and simulated
runs say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from spyrec.backend.joints import Joints
from spyrec.backend.switching import Costs, switch_counts, whole_costs
from spyrec.rewritten import Rewritten
from spyrec.sim.device import DeviceSpec
from spyrec.sim.errors import SimulationError
from spyrec.sim.isa import Joint, Program
from spyrec.sim.joint import meet_cycles
from spyrec.sim.run import Prepared
from spyrec.sim.stats import RunResult

WORTH = 0.01
"""Share of a run that switches must cost before programs are merged to spare them."""


def finished_code(
    program: Program, device: DeviceSpec, *, joins: bool, merges: bool,
    rewritten: Rewritten | None = None,
) -> Program:
    """The program, each kernel of which is a launch, as it runs shortest: with kernels in one
    launch (``joins``), and with vector programs that are taken up ahead of their work and merged
    (``merges``). ``rewritten``: what was made of its kernels before."""
    kept = Rewritten() if rewritten is None else rewritten
    if merges and device.sfp.switch_cycles:
        program = _merged(program, device, joins, kept)
    if not joins:
        return program
    try:
        return _Ways(program, device, joins, kept).shortest()
    except SimulationError:  # nobody can wait for it
        return program


def _merged(program: Program, device: DeviceSpec, joins: bool, kept: Rewritten) -> Program:
    """With the vector programs with which it runs shortest when prices say how it is joined."""
    ahead = kept.fewer_switches(program, device)
    try:
        plain = _Ways(ahead, device, joins, kept)
    except SimulationError:
        return ahead
    tried = [(plain.priced_cycles, ahead)]
    for costs in _costs(program, plain):
        merged = kept.fewer_switches(program, device, costs)
        tried.append((_Ways(merged, device, joins, kept).priced_cycles, merged))
    return min(tried, key=lambda way: way[0])[1]


def _costs(program: Program, plain: _Ways) -> Iterator[Costs]:
    """What switches may cost: all of their time, or what a run takes longer for them in each
    launch. Neither is always nearer: a launch that was begun for the program that comes with it
    would be joined without. Nothing when the run hardly takes longer for all of them."""
    device, joined = plain.device, plain.priced
    switch, counts = float(device.sfp.switch_cycles), switch_counts(program)
    ran = plain.ran(joined)
    if switch * sum(enters + within for enters, within in counts) < WORTH * ran.total_cycles:
        return
    without = replace(device, sfp=replace(device.sfp, switch_cycles=0))
    spared = Prepared(joined, without).run(None)
    if ran.total_cycles - spared.total_cycles < WORTH * ran.total_cycles:
        return
    yield whole_costs(program, device.sfp)
    begun = max(0.0, min(switch, device.launch.start_cycles - meet_cycles(device)))
    entering, inside = [], []
    spans = zip(_spans(ran), _spans(spared), strict=True)
    for launch, (enters, within), (long, short) in zip(
        joined.launches, counts, spans, strict=True
    ):
        goes_on = bool(launch.joint)
        each = min(switch, max(0, long - short) / max(1, within + (enters and goes_on)))
        entering.append(each if goes_on else begun * enters)
        inside.append(each)
    yield Costs(entering, inside)


class _Ways:
    """A program, each kernel of which is a launch, and its runs in ways to join these.
    SimulationError when nobody can wait for its simulation."""

    def __init__(
        self, program: Program, device: DeviceSpec, joins: bool, kept: Rewritten
    ) -> None:
        self.program = program
        self.device = device
        self.joints = Joints(program, device)
        self.joins = joins and any(launch.joint for launch in self.joints.chained.launches)
        self.kept = kept
        self.ready = kept.prepared(program, device)
        self.known: dict[tuple[Joint, ...], RunResult] = {}

    @cached_property
    def priced(self) -> Program:
        """Joined as the device's numbers say."""
        return self.joints.cheapest(self.joints.priced()) if self.joins else self.program

    @property
    def priced_cycles(self) -> int:
        return self.ran(self.priced).total_cycles

    def shortest(self) -> Program:
        """As it is when no way of joining is shorter.

        One way is that of prices. Another takes what a run without any start-up says of kernels
        that would take up another micro-program: while a launch starts up, weights come for which
        the cores would wait anyway, so that a start-up can cost less than the switch it saves.
        Neither is always the better one.
        """
        if not self.joins:
            return self.program
        joints, start = self.joints, self.device.launch.start_cycles
        apart, chained = (_spans(self.ran(way)) for way in (self.program, joints.chained))
        seen = [
            start + joined - alone if switching else price
            for price, alone, joined, switching in zip(
                joints.priced(), apart, chained, joints.switching, strict=True
            )
        ]
        ways = (self.program, self.priced, joints.cheapest(seen))
        return min(ways, key=lambda way: self.ran(way).total_cycles)

    def ran(self, way: Program) -> RunResult:
        """A run of the program joined in some way."""
        joints = tuple(launch.joint for launch in way.launches)
        if joints not in self.known:
            self.known[joints] = replace(self.ready, program=way).run(None)
            self.kept.keep(self.ready)
        return self.known[joints]


def _spans(ran: RunResult) -> list[int]:
    """Cycles from the end of the launch before to that of each."""
    ends = [0, *(stats.end_cycle for stats in ran.launches)]
    return [end - before for before, end in pairwise(ends)]
