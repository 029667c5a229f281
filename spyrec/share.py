"""Kernels put into one launch, as prices and simulated runs say."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from spyrec.backend.joints import Joints
from spyrec.sim.device import DeviceSpec
from spyrec.sim.errors import SimulationError
from spyrec.sim.isa import Joint, Program
from spyrec.sim.run import Prepared, prepare
from spyrec.sim.stats import RunResult


def share_launches(program: Program, device: DeviceSpec) -> Program:
    """The program, each kernel of which is a launch, joined in the way in which it runs shortest;
    as it is when no way is shorter, or nobody can wait for its simulation.

    One way is that of prices. Another takes what a run without any start-up says of kernels that
    would take up another micro-program: while a launch starts up, weights come for which the cores
    would wait anyway, so that a start-up can cost less than the switch it saves. Neither is always
    the better one.
    """
    joints = Joints(program, device)
    if not any(launch.joint for launch in joints.chained.launches):
        return program
    try:
        ready = prepare(program, device)
    except SimulationError:
        return program
    known: dict[tuple[Joint, ...], RunResult] = {}
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
    return min(ways, key=lambda way: _ran(ready, way, known).total_cycles)


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
