"""Run a program on a device: cycles always, numbers unless only timing is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .device import DeviceSpec
from .engine import Engine
from .errors import SimulationError
from .functional import Functional
from .isa import Program
from .memory import build_memory
from .stats import Observer, RunResult
from .stuck import explain_deadlock
from .wellformed import Limits, check_program
from .work import check_work


def run(
    program: Program,
    device: DeviceSpec,
    inputs: Mapping[str, bytes] | None = None,
    *,
    timing_only: bool = False,
    poison: bool = False,
    observer: Observer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RunResult:
    """Run all launches of ``program`` from idle and cold.

    ``inputs``: bytes of every input buffer by buffer name. ``timing_only``: touch no data; inputs
    are not looked at and there are no outputs. ``poison``: what was never written starts as a NaN
    pattern instead of zeros. ``progress`` is called with (launches complete, launches).

    ObjectError: the program is malformed. SimulationError: it breaks a rule of the machine, asks
    for more work than any real program does, an input is missing or of the wrong size, or the run
    gets stuck.
    """
    check_program(
        program, Limits(device.cores.count, device.launch.loop_max, device.hbm.bytes)
    )
    check_work(program, device)
    effects = None
    if not timing_only:
        effects = Functional(program, device, build_memory(program, device, inputs or {}, poison))
    engine = Engine(program, device, effects, observer, progress)
    cycle = engine.run()
    if engine.in_flight:
        raise SimulationError(explain_deadlock(engine.in_flight, cycle))
    launches = tuple(stats for stats in engine.stats if stats is not None)
    outputs = {}
    if effects is not None:
        outputs = {b.name: effects.memory.output(b) for b in program.buffers if b.kind == "output"}
    return RunResult(
        total_cycles=max((stats.end_cycle for stats in launches), default=0),
        events=engine.events,
        instructions=sum(stats.instructions for stats in launches),
        launches=launches,
        outputs=outputs,
    )
