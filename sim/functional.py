"""The functional side of a run: carries out each completed instruction on the memories, and
names it when it breaks a rule of the machine."""

from __future__ import annotations

from collections.abc import Callable

from .describe import place
from .device import DeviceSpec
from .engine import Queue
from .errors import SimulationError
from .functional_move import Hbm, fill, gather, load, send, shuf, store
from .functional_pt import mm, psum
from .functional_vec import vec
from .isa import STICK, UNITS, Instr, Program
from .memory import Image, Memory
from .view import Grid, Moment

MOVES: dict[str, Callable[[Instr, Memory, Moment, Hbm], None]] = {
    "load": load,
    "gather": gather,
    "store": store,
    "send": send,
    "shuf": shuf,
    "fill": fill,
}


class Functional:
    """Call with a completed step (its queue, its number): does what the instruction does.

    SimulationError, with launch, kernel, core, unit, instruction, op and model nodes: an address
    outside its memory, a read of what was never written, a gather index out of range, a core
    reaching over more than a span of one buffer in a launch.
    """

    def __init__(self, program: Program, device: DeviceSpec, memory: Memory) -> None:
        self.memory = memory
        self._span = device.hbm.span_bytes
        self._args = [
            dict(zip(program.kernels[launch.kernel].params, launch.args, strict=True))
            for launch in program.launches
        ]
        self._reach: dict[tuple[int, int, str], tuple[int, int]] = {}

    def __call__(self, queue: Queue, number: int) -> None:
        launch, core = queue.launch.index, queue.core
        plan = queue.launch.plan
        site, execution = plan.units[queue.unit].at(core, number)
        instr = site.instr
        if instr.op in ("sync", "recv", "prog"):
            return
        moment = Moment(core, site.trip(execution))
        try:
            match instr.op:
                case "mm":
                    mm(instr, self.memory, moment)
                case "psum":
                    psum(instr, self.memory, moment)
                case "vec":
                    vec(instr, plan.kernel, self.memory, moment)
                case op:
                    MOVES[op](instr, self.memory, moment, self._binding(instr, launch, core))
        except SimulationError as error:
            unit = UNITS[queue.unit]
            where = place(plan.kernel, unit, instr, launch=launch, core=core)
            raise SimulationError(f"{where}: {error}") from None

    def _binding(self, instr: Instr, launch: int, core: int) -> Hbm:
        def hbm(number: int, at: Grid) -> tuple[Image, Grid]:
            name, offset = self._args[launch][instr.operands[number].symbol]
            bound = Grid(at.base + offset // STICK, at.strides, at.counts, at.mask)
            if at.mask is None:
                low, high = bound.range()
            else:
                inside = bound.addresses()[bound.inside()]
                if not len(inside):
                    return self.memory.hbm[name], bound
                low, high = int(inside.min()), int(inside.max())
            self._touch(launch, core, name, low, high)
            return self.memory.hbm[name], bound

        return hbm

    def _touch(self, launch: int, core: int, name: str, low: int, high: int) -> None:
        """Widen what the core has touched of a buffer in this launch."""
        key = (launch, core, name)
        before = self._reach.get(key, (low, high))
        low, high = min(low, before[0]), max(high, before[1])
        self._reach[key] = (low, high)
        if (high + 1 - low) * STICK > self._span:
            raise SimulationError(
                f"core {core} reaches over sticks {low}..{high} of buffer {name}, "
                f"{(high + 1 - low) * STICK} bytes; its span is {self._span} bytes, so divide the "
                "tensor among more cores"
            )
