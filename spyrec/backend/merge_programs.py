"""A program whose vector units take up micro-programs less often, and sooner."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
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
Known = dict[tuple[Hashable, ...], tuple[Kernel, Kernel]]
"""Kernels, by their streams, programs and what is shared, and what was made of them."""


def fewer_switches(
    program: Program, device: DeviceSpec, costs: Costs | None = None, known: Known | None = None
) -> Program:
    """Micro-programs are taken up while their data is still on its way and, where switches have
    ``costs``, those become one between which the vector units switch for longer than they work.
    ``known``: what was made of kernels before, to be used and added to."""
    known = {} if known is None else known
    shared: dict[int, dict[Taken, tuple[United, int]]] = {}
    if costs is not None:
        for (kernel, taken), found in grouped(program, device.sfp, costs).items():
            shared.setdefault(kernel, {})[taken] = found
    made = (_rewritten(k, shared.get(i, {}), known) for i, k in enumerate(program.kernels))
    return replace(program, kernels=tuple(made))


def _rewritten(kernel: Kernel, shared: Shared, known: Known) -> Kernel:
    if "sfp" not in kernel.streams:
        return kernel
    chosen = tuple((taken, *_content(shared[taken])) for taken in sorted(shared))
    key = id(kernel.streams), kernel.programs, chosen  # the kernel is kept, so is its number
    if key not in known:
        stream, programs = kernel.streams["sfp"], list(kernel.programs)
        if shared:
            programs.clear()
            stream = _running(stream, kernel, shared, programs)
        streams = {**kernel.streams, "sfp": taken_ahead(stream)}
        known[key] = kernel, replace(kernel, streams=streams, programs=tuple(programs))
    made = known[key][1]
    return replace(made, name=kernel.name, notes=kernel.notes, info=kernel.info)


def _content(shared: tuple[United, int]) -> tuple[MicroProgram, int]:
    return shared[0].program, shared[1]


def _running(
    stream: Stream, kernel: Kernel, shared: Shared, programs: list[MicroProgram]
) -> Stream:
    """``programs``: those that what was rewritten before runs, to be added to."""
    out: list[Instr | Loop] = []
    for item in stream:
        if isinstance(item, Loop):
            out.append(Loop(item.count, _running(item.body, kernel, shared, programs)))
        elif item.op == "vec":
            out.append(_given(item, kernel, shared, programs))
        else:
            out.append(item)
    return tuple(out)


def _given(instr: Instr, kernel: Kernel, shared: Shared, programs: list[MicroProgram]) -> Instr:
    """The instruction with the program that it shares, and the scalars that stand for its own."""
    number = instr.imm.get("program", 0)
    assert isinstance(number, int)
    program, imm = kernel.programs[number], dict(instr.imm)
    taken = taken_up(instr)
    if taken is not None and taken in shared:
        united, imm["reduce"] = shared[taken]
        imm |= zip(SCALARS, map(_pattern, united.scalars[program]), strict=False)
        program = united.program
    if program not in programs:
        programs.append(program)
    return replace(instr, imm=imm | {"program": programs.index(program)})


def _pattern(value: float) -> int:
    """Bits of a float32."""
    return int(np.array(value, np.float32).view(np.uint32))
