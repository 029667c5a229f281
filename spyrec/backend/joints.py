"""Which kernels of a program go on in the launch of the kernel before. Starting a launch up takes
the device longer than its cores take to meet, but brings the first micro-program along, and a
launch holds what the program region holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from spyrec.sim.device import DeviceSpec
from spyrec.sim.isa import Program
from spyrec.sim.joint import code_bytes, meet_cycles, switches


@dataclass(frozen=True)
class Joints:
    """Of a program in which each kernel is a launch."""

    program: Program
    device: DeviceSpec

    @cached_property
    def chained(self) -> Program:
        """All of it one launch, whether the program region holds it or not; of launches that wait
        for others than the one before them each begins one."""
        launches = tuple(
            replace(launch, joint="meet" if i and launch.after == (i - 1,) else "")
            for i, launch in enumerate(self.program.launches)
        )
        return replace(self.program, launches=launches)

    @cached_property
    def switching(self) -> tuple[bool, ...]:
        """Of each kernel whether it would take up another micro-program if all were joined."""
        return switches(self.chained)

    def priced(self) -> tuple[int, ...]:
        """What going on in a launch costs each kernel, in cycles, by the device's numbers."""
        meet, switch = meet_cycles(self.device), self.device.sfp.switch_cycles
        return tuple(meet + switch * switching for switching in self.switching)

    def cheapest(self, costs: Sequence[int]) -> Program:
        """The program joined so that with those ``costs`` and those of starting up all of it costs
        least."""
        launches = self.chained.launches
        sizes = {
            number: code_bytes(self.program.kernels[number], self.device)
            for number in {launch.kernel for launch in launches}
        }
        first = cuts(
            [sizes[launch.kernel] for launch in launches],
            [cost if x.joint else None for cost, x in zip(costs, launches, strict=True)],
            self.device.launch.start_cycles, self.device.lx.reserved_bytes,
        )
        cut = (
            replace(launch, joint="") if i in first else launch
            for i, launch in enumerate(launches)
        )
        return replace(self.program, launches=tuple(cut))


def cuts(
    sizes: Sequence[int], costs: Sequence[int | None], start: int, room: int
) -> frozenset[int]:
    """The kernels that begin a launch, so that all of it costs least: each of them costs ``start``,
    another what ``costs`` says (None: it must begin one), and the ``sizes`` of those in one launch
    come to no more than ``room``. A kernel alone may be larger. Of what costs the same, the longest
    launches, from the end on.
    """
    least, back = [0], [0]  # of the first n kernels, and where the last of their launches begins
    taken = [0, *accumulate(cost or 0 for cost in costs)]
    for end in range(1, len(sizes) + 1):
        best, at, used = None, 0, 0
        for low in range(end - 1, -1, -1):
            used += sizes[low]
            if used > room and low < end - 1:
                break
            price = least[low] + start + taken[end] - taken[low + 1]
            if best is None or price <= best:
                best, at = price, low
            if costs[low] is None:
                break
        assert best is not None
        least.append(best)
        back.append(at)
    found, end = set(), len(sizes)
    while end:
        end = back[end]
        found.add(end)
    return frozenset(found)
