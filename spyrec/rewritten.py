"""What is made of kernels for runs that only ask for time, kept from run to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spyrec.backend.merge_programs import Known, fewer_switches
from spyrec.backend.switching import Costs
from spyrec.sim.device import DeviceSpec
from spyrec.sim.expand import KernelPlan
from spyrec.sim.isa import Program, Stream
from spyrec.sim.run import Prepared, prepare

KNOWN_MOST = 256
"""Kernels with other vector programs that are kept, the last that were made."""
STEPS_MOST = 1_000_000
"""Steps of all kernels that stay unrolled, the last that ran; some 200 bytes each."""


@dataclass
class Rewritten:
    """``known``: kernels with other vector programs; ``unrolled``: kernels that ran, by their
    streams."""

    known: Known = field(default_factory=dict)
    unrolled: dict[int, tuple[Mapping[str, Stream], KernelPlan]] = field(default_factory=dict)

    def fewer_switches(
        self, program: Program, device: DeviceSpec, costs: Costs | None = None
    ) -> Program:
        """See there."""
        made = fewer_switches(program, device, costs, self.known)
        while len(self.known) > KNOWN_MOST:
            del self.known[next(iter(self.known))]
        return made

    def prepared(self, program: Program, device: DeviceSpec) -> Prepared:
        """Ready to run, what has been unrolled before not to be again. Errors as ``prepare``."""
        ready = prepare(program, device)
        for i, kernel in enumerate(program.kernels):
            number = id(kernel.streams)
            known = self.unrolled.get(number)
            if known is not None and known[1].kernel.programs == kernel.programs:
                self.unrolled[number] = self.unrolled.pop(number)  # the last that was used
                ready.plans[i] = replace(known[1], kernel=kernel)
        return ready

    def keep(self, ready: Prepared) -> None:
        """What a run has unrolled."""
        for i, plan in ready.plans.items():
            streams = ready.program.kernels[i].streams  # kept, so that no others get its number
            self.unrolled[id(streams)] = streams, plan
        left = STEPS_MOST
        for number in reversed([*self.unrolled]):
            left -= _steps(self.unrolled[number][1])
            if left < 0:
                del self.unrolled[number]


def _steps(plan: KernelPlan) -> int:
    """Steps of all cores, those of cores that do the same once."""
    lists = {id(steps): len(steps) for unit in plan.units.values() for steps in unit.steps}
    return sum(lists.values())
