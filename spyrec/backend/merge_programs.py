"""A program whose vector units take up micro-programs less often, and sooner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from spyrec.sim.device import DeviceSpec
from spyrec.sim.expand import taken_up
from spyrec.sim.isa import SCALARS, Instr, Kernel, Loop, MicroProgram, Program, Stream

from .ahead import taken_ahead
from .switching import Costs, Taken, grouped
from .united import United

Shared = Mapping[Taken, tuple[United, int]]
"""For what a kernel takes up: the program that several share, and their kind of reduction."""


def with_programs_ahead(program: Program) -> Program:
    """Micro-programs are taken up while their data is still on its way."""
    return replace(program, kernels=tuple(map(_ahead, program.kernels)))


def with_merged_programs(program: Program, device: DeviceSpec, costs: Costs) -> Program:
    """Micro-programs between which the vector units switch longer than they work become one."""
    shared: dict[int, dict[Taken, tuple[United, int]]] = {}
    for (kernel, taken), found in grouped(program, device.sfp, costs).items():
        shared.setdefault(kernel, {})[taken] = found
    kernels = tuple(
        _merged(kernel, shared[i]) if i in shared else kernel
        for i, kernel in enumerate(program.kernels)
    )
    return replace(program, kernels=kernels)


def _ahead(kernel: Kernel) -> Kernel:
    if "sfp" not in kernel.streams:
        return kernel
    return replace(kernel, streams={**kernel.streams, "sfp": taken_ahead(kernel.streams["sfp"])})


def _merged(kernel: Kernel, shared: Shared) -> Kernel:
    programs: list[MicroProgram] = []
    stream = _rewritten(kernel.streams["sfp"], kernel, shared, programs)
    return replace(
        kernel, streams={**kernel.streams, "sfp": stream}, programs=tuple(programs)
    )


def _rewritten(
    stream: Stream, kernel: Kernel, shared: Shared, programs: list[MicroProgram]
) -> Stream:
    """``programs``: those that what was rewritten before runs, to be added to."""
    out: list[Instr | Loop] = []
    for item in stream:
        if isinstance(item, Loop):
            out.append(Loop(item.count, _rewritten(item.body, kernel, shared, programs)))
        elif item.op == "vec":
            out.append(_running(item, kernel, shared, programs))
        else:
            out.append(item)
    return tuple(out)


def _running(
    instr: Instr, kernel: Kernel, shared: Shared, programs: list[MicroProgram]
) -> Instr:
    number = instr.imm.get("program", 0)
    assert isinstance(number, int)
    program, imm = kernel.programs[number], dict(instr.imm)
    taken = taken_up(instr)
    if taken is not None and taken in shared:
        united, imm["reduce"] = shared[taken]
        values = united.scalars[program]
        imm |= zip(SCALARS, map(_pattern, values), strict=False)
        program = united.program
    if program not in programs:
        programs.append(program)
    return replace(instr, imm=imm | {"program": programs.index(program)})


def _pattern(value: float) -> int:
    """Bits of a float32."""
    return int(np.array(value, np.float32).view(np.uint32))
