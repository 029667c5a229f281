"""Run a program on a device: cycles always, numbers unless only timing is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from .device import DeviceSpec
from .engine import Engine
from .errors import SimulationError
from .expand import KernelPlan
from .functional import Functional
from .isa import Buffer, Program
from .memory import Image, Memory, around_card, build_memory
from .stats import Observer, RunResult
from .stuck import explain_deadlock
from .wellformed import Limits, check_program
from .work import check_work

Progress = Callable[[int, int], None]


def run(
    program: Program,
    device: DeviceSpec,
    inputs: Mapping[str, bytes] | None = None,
    *,
    timing_only: bool = False,
    poison: bool = False,
    observer: Observer | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Run all launches of ``program`` from idle and cold.

    ``inputs``: bytes of every input buffer by buffer name. ``timing_only``: touch no data; inputs
    are not looked at and there are no outputs. ``poison``: what was never written starts as a NaN
    pattern instead of zeros. ``progress`` is called with (launches complete, launches).

    ObjectError: the program is malformed. SimulationError: it breaks a rule of the machine, asks
    for more work than any real program does, an input is missing or of the wrong size, or the run
    gets stuck.
    """
    _check(program, device)
    memory = None if timing_only else build_memory(program, device, inputs or {}, poison)
    ran = _run(program, device, memory, observer, progress, None)
    if memory is None:
        return ran
    return replace(ran, outputs={b.name: memory.output(b) for b in _outputs(program)})


@dataclass(frozen=True)
class Prepared:
    """A program that was checked against a device, to be run there any number of times.
    ``plans``: its kernels as far as runs have unrolled them, each once."""

    program: Program
    device: DeviceSpec
    plans: dict[int, KernelPlan] = field(default_factory=dict)

    def run(
        self, card: Mapping[str, Image] | None, observer: Observer | None = None,
        progress: Progress | None = None,
    ) -> RunResult:
        """Run all launches from idle. ``card``: the memory of each buffer, in which inputs and
        constants are and outputs will be, of which the result holds no copy; None: touch no
        data. Errors as those of ``run``."""
        memory = None if card is None else around_card(self.device, card)
        ran = _run(self.program, self.device, memory, observer, progress, self.plans)
        if memory is not None:
            for buffer in _outputs(self.program):
                memory.check_complete(buffer)
        return ran


def prepare(program: Program, device: DeviceSpec) -> Prepared:
    """ObjectError: the program is malformed. SimulationError: it asks for more work than any real
    program does."""
    _check(program, device)
    return Prepared(program, device)


def _check(program: Program, device: DeviceSpec) -> None:
    if program.buckets:
        raise SimulationError("the program has buckets; choose the one to run")
    limits = Limits(device.cores.count, device.launch.loop_max, device.hbm.bytes)
    check_program(program, limits)
    check_work(program, device)


def _run(
    program: Program, device: DeviceSpec, memory: Memory | None, observer: Observer | None,
    progress: Progress | None, plans: dict[int, KernelPlan] | None,
) -> RunResult:
    effects = None if memory is None else Functional(program, device, memory)
    engine = Engine(program, device, effects, observer, progress, plans=plans)
    cycle = engine.run()
    if engine.in_flight:
        raise SimulationError(explain_deadlock(engine.in_flight, cycle))
    launches = tuple(stats for stats in engine.stats if stats is not None)
    return RunResult(
        total_cycles=max((stats.end_cycle for stats in launches), default=0),
        events=engine.events,
        instructions=sum(stats.instructions for stats in launches),
        launches=launches,
        outputs={},
    )


def _outputs(program: Program) -> list[Buffer]:
    return [b for b in program.buffers if b.kind == "output"]
