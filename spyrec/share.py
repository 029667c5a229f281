"""Kernels put into one launch, and vector programs taken up less often, as prices and simulated
runs say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from spyrec.backend.joints import Joints
from spyrec.backend.merge_programs import with_merged_programs, with_programs_ahead
from spyrec.backend.switching import Costs, switch_counts, whole_costs
from spyrec.sim.device import DeviceSpec
from spyrec.sim.errors import SimulationError
from spyrec.sim.isa import Joint, Program
from spyrec.sim.joint import meet_cycles
from spyrec.sim.run import Prepared, prepare
from spyrec.sim.stats import RunResult

WORTH = 0.01
"""Share of a run that switches must cost before programs are merged to spare them."""


@dataclass(frozen=True)
class Way:
    """A program joined in the way in which it runs shortest: ``ran`` so; None where nobody can wait
    for its simulation."""

    program: Program
    ran: RunResult | None

    @property
    def cycles(self) -> int:
        return 0 if self.ran is None else self.ran.total_cycles


def finished_code(program: Program, device: DeviceSpec, *, joins: bool, merges: bool) -> Program:
    """The program, each kernel of which is a launch, as it runs shortest: with kernels in one
    launch (``joins``), and with vector programs that are taken up ahead of their work and merged
    (``merges``)."""
    if not merges or not device.sfp.switch_cycles:
        return _joined(program, device, joins).program
    plain = _joined(with_programs_ahead(program), device, joins)
    if plain.ran is None or not plain.program.launches:
        return plain.program
    ways = [plain]
    for costs in _costs(program, plain, device):
        merged = with_programs_ahead(with_merged_programs(program, device, costs))
        ways.append(_joined(merged, device, joins))
    return min(ways, key=lambda way: way.cycles).program


def _costs(program: Program, plain: Way, device: DeviceSpec) -> Iterator[Costs]:
    """What switches may cost: all of their time, or what a run takes longer for them in each
    launch. Neither is always nearer: a launch that was begun for the program that comes with it
    would be joined without. Nothing when the run hardly takes longer for all of them."""
    assert plain.ran is not None
    without = replace(device, sfp=replace(device.sfp, switch_cycles=0))
    spared = Prepared(plain.program, without).run(None)
    if plain.cycles - spared.total_cycles < WORTH * plain.cycles:
        return
    yield whole_costs(program, device.sfp)
    switch = float(device.sfp.switch_cycles)
    begun = max(0.0, min(switch, device.launch.start_cycles - meet_cycles(device)))
    entering, inside = [], []
    spans = zip(_spans(plain.ran), _spans(spared), strict=True)
    counts = switch_counts(program)
    for launch, (enters, within), (long, short) in zip(
        plain.program.launches, counts, spans, strict=True
    ):
        joined = enters and bool(launch.joint)
        each = min(switch, max(0, long - short) / max(1, within + joined))
        entering.append(each if launch.joint else begun * enters)
        inside.append(each)
    yield Costs(entering, inside)


def _joined(program: Program, device: DeviceSpec, joins: bool) -> Way:
    """As it is when no way of joining is shorter.

    One way is that of prices. Another takes what a run without any start-up says of kernels that
    would take up another micro-program: while a launch starts up, weights come for which the cores
    would wait anyway, so that a start-up can cost less than the switch it saves. Neither is always
    the better one.
    """
    try:
        ready = prepare(program, device)
    except SimulationError:
        return Way(program, None)
    known: dict[tuple[Joint, ...], RunResult] = {}
    joints = Joints(program, device)
    if not joins or not any(launch.joint for launch in joints.chained.launches):
        return Way(program, _ran(ready, program, known))
    apart, chained = (_ran(ready, way, known) for way in (program, joints.chained))
    prices = joints.priced()
    start = device.launch.start_cycles
    seen = [
        start + joined - alone if switching else price
        for price, alone, joined, switching in zip(
            prices, _spans(apart), _spans(chained), joints.switching, strict=True
        )
    ]
    ways = (program, joints.cheapest(prices), joints.cheapest(seen))
    best = min(ways, key=lambda way: _ran(ready, way, known).total_cycles)
    return Way(best, _ran(ready, best, known))


def _spans(ran: RunResult) -> list[int]:
    """Cycles from the end of the launch before to that of each."""
    ends = [0, *(stats.end_cycle for stats in ran.launches)]
    return [end - before for before, end in pairwise(ends)]


def _ran(ready: Prepared, way: Program, known: dict[tuple[Joint, ...], RunResult]) -> RunResult:
    """A run of the program joined in some way; ``known``: those of other ways, by their joints."""
    joints = tuple(launch.joint for launch in way.launches)
    if joints not in known:
        known[joints] = replace(ready, program=way).run(None)
    return known[joints]
