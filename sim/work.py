"""How much there is to do in a run, known from counts and trips before anything starts: a damaged
count would else keep the simulator busy for days or ask for more memory than there is."""

from __future__ import annotations

from math import prod

from .describe import place
from .device import DeviceSpec
from .errors import SimulationError
from .isa import Kernel, Program, instructions

STEPS_PER_BYTE = 4  # iteration points of one instruction, for each byte of a core's scratchpad
MAX_EXECUTIONS = 1 << 20  # of all instructions of one unit in one launch: each is kept in memory
MAX_STEPS = 1 << 36  # iteration points of a whole run on all cores: hours of work


def check_work(program: Program, device: DeviceSpec) -> None:
    """SimulationError when an instruction, a stream or the whole run asks for more iteration points
    or executions than any real program does: the limits are far beyond what large models take.

    Tails and borders are not subtracted, and what takes no time counts as one point.
    """
    work = [_kernel_steps(kernel, device) for kernel in program.kernels]
    total = sum(work[launch.kernel] for launch in program.launches)
    if total > MAX_STEPS:
        raise SimulationError(
            f"the program's {len(program.launches)} launches take {total} steps, a run has "
            f"{MAX_STEPS} at most; a count or a number of trips is damaged, or the model has to be "
            "run in parts"
        )


def _kernel_steps(kernel: Kernel, device: DeviceSpec) -> int:
    most = STEPS_PER_BYTE * device.lx.bytes
    total = 0
    for unit, stream in kernel.streams.items():
        executions = 0
        for instr, loops in instructions(stream):
            counts = (c if isinstance(c, int) else max(c) for c in instr.counts)
            steps = prod(counts)
            if steps > most:
                raise SimulationError(
                    f"{place(kernel, unit, instr)}: its counts make {steps} steps; a core with "
                    f"{device.lx.bytes} bytes of scratchpad takes {most} at most in one instruction"
                )
            executions += prod(loops)
            total += prod(loops) * max(1, steps) * kernel.cores
        if executions > MAX_EXECUTIONS:
            raise SimulationError(
                f"kernel {kernel.name}, unit {unit}: the loops of its stream make {executions} "
                f"executions, one launch has {MAX_EXECUTIONS} at most for each unit; launch it in "
                "parts"
            )
    return total
