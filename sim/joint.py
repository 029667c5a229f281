"""Kernels that go on in the launch of the one before: how long their cores take to meet, and which
of them make the vector unit take up another micro-program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from .device import DeviceSpec
from .encoding import encode_kernel
from .expand import KernelPlan, Step, taken_up
from .isa import UNITS, Kernel, Launch, Program, instructions
from .wellformed import Limits

VECTOR = UNITS.index("sfp")
Run = tuple[object, ...] | None
"""A micro-program and kind of reduction, None for no vector work."""


def meet_cycles(device: DeviceSpec) -> int:
    """Core cycles until all cores know that all have come: each tells one core, and that core
    tells them, both as long as a send of nothing to the farthest stop of the ring."""
    farthest = (device.cores.count + 1) // 2  # memory is one more stop
    return 2 * device.ring.send_cycles(0, farthest, device.clock_mhz)


def code_bytes(kernel: Kernel, device: DeviceSpec) -> int:
    """Bytes of the program region that a kernel's words take on each core. Launched twice it takes
    them twice, since the addresses of each launch are patched into its words."""
    limits = Limits(device.cores.count, device.launch.loop_max, device.hbm.bytes)
    return encode_kernel(kernel, limits).words.nbytes


def shared(program: Program) -> Iterator[tuple[int, tuple[Launch, ...]]]:
    """The launches that the device starts: the number of the first kernel of each, and all."""
    first = [i for i, launch in enumerate(program.launches) if not launch.joint]
    for low, end in pairwise((*first, len(program.launches))):
        yield low, program.launches[low:end]


def switches(program: Program) -> tuple[bool, ...]:
    """Of each launch whether its vector unit begins with another micro-program than it ran last in
    what is one launch of the device. That launch's first one comes with the program."""
    ends = {i: _ends(program.kernels[i]) for i in {launch.kernel for launch in program.launches}}
    out: list[bool] = []
    last: Run = None
    for launch in program.launches:
        if not launch.joint:
            last = None
        first, then = ends[launch.kernel]
        out.append(first is not None and last is not None and first != last)
        last = last if then is None else then
    return tuple(out)


def _ends(kernel: Kernel) -> tuple[Run, Run]:
    """What a kernel's vector unit runs first and last."""
    runs = []
    for instr, _ in instructions(kernel.streams.get("sfp", ())):
        number = taken_up(instr)
        if number is not None:
            program, reduce = number
            runs.append((kernel.programs[program], reduce))
    return (runs[0], runs[-1]) if runs else (None, None)


def switched(plan: KernelPlan, cycles: int) -> KernelPlan:
    """The plan with that much more to do where the vector unit takes up its first micro-program."""
    unit = plan.units[VECTOR]
    first = [taken_up(site.instr) is not None for site in unit.sites]
    at = next(i for i, site in enumerate(unit.order.tolist()) if first[site])
    ahead = unit.sites[unit.order[at]].instr.op == "prog"
    known: dict[int, list[Step]] = {}
    steps: list[list[Step]] = []
    for mine, kept in zip(unit.steps, unit.kept, strict=True):
        place = at if kept is None else int(kept.searchsorted(at))
        runs = place < len(mine) and (kept is None or kept[place] == at)
        if not runs or not (mine[place][2] or ahead):
            steps.append(mine)
            continue
        if id(mine) not in known:
            waits, signals, work, *rest = mine[place]
            later: Step = (waits, signals, work + cycles, *rest)  # type: ignore[assignment]
            known[id(mine)] = [*mine[:place], later, *mine[place + 1 :]]
        steps.append(known[id(mine)])
    units = {**plan.units, VECTOR: replace(unit, steps=tuple(steps))}
    return replace(plan, units=units)
