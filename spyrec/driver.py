"""From a tensor module to an object program: the pipeline, then code generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spyrec.backend.program import emit_program
from spyrec.ir.core import Module
from spyrec.ir.errors import CapacityError, PassError
from spyrec.passes.baseline_residency import BaselineResidency
from spyrec.passes.manager import Hook, Pass, Pipeline, Target, no_hook, run_pipeline
from spyrec.passes.pin import pinned_pipeline
from spyrec.passes.pipeline import PLANNERS, check_order, registry
from spyrec.passes.pipeline_text import parse_pipeline
from spyrec.passes.plan import parse_plan
from spyrec.passes.plan_record import full_plan
from spyrec.passes.residency import RingRelayout
from spyrec.sim.isa import Program

JOINT = "joint"
"""The planner when nothing is said."""
Progress = Callable[[str, int, int], None]
LEAST_HELD = 16
"""Of the scratchpad a kernel is given this part more when it had too little; then twice as much."""
RESIDENCY = RingRelayout | BaselineResidency
"""Passes that decide which tensors stay on chip; without room, planning begins anew with them."""


@dataclass(frozen=True)
class Compiled:
    """``module`` is the IR after the last pass; ``plan`` every decision, by kernel name."""

    program: Program
    module: Module
    plan: Mapping[str, Any] = field(default_factory=dict)


def compile_module(
    module: Module, target: Target, *, pipeline: str | Sequence[Pass] | None = None,
    plan: Mapping[str, Any] | None = None, hook: Hook | None = None,
    progress: Progress | None = None, planner: str = JOINT,
) -> Compiled:
    """Run the pipeline (that of the planner, or the one given as text or as passes) and generate
    code.

    Raises SpyrecError when the model, the pipeline or the plan is at fault.
    """
    final = lower_module(
        module, target, pipeline=pipeline, plan=plan, hook=hook, progress=progress, planner=planner
    )
    if final.stage != "tile" or "hbm" not in final.attrs:
        raise PassError(
            f"the pipeline ends at the {final.stage} stage without addresses, so there is no "
            "program to write; let it end as the usual one does (see spyrec passes), or look at "
            "its result with --emit ir"
        )
    program = emit_program(final, target)
    if progress is not None:
        progress("codegen", 1, 1)
    return Compiled(program, final, full_plan(final, target.device.lx.usable_bytes))


def lower_module(
    module: Module, target: Target, *, pipeline: str | Sequence[Pass] | None = None,
    plan: Mapping[str, Any] | None = None, hook: Hook | None = None,
    progress: Progress | None = None, planner: str = JOINT,
) -> Module:
    """The module after the pipeline, whatever stage that ends at. SpyrecError as compile_module."""
    if pipeline is None and module.stage != "tensor":
        raise PassError(
            f"module {module.name!r} is at the {module.stage} stage; expected stage tensor, where "
            "the usual pipeline begins; name the passes that are left with --passes"
        )
    passes = chosen_passes(pipeline, planner)
    if module.stage == "tensor":
        check_order(passes)
    if plan is not None:
        passes = pinned_pipeline(passes, parse_plan(plan))
    watch = hook or no_hook
    done = 0

    def report(step: Pass, before: Module, after: Module, seconds: float) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(step.name, min(done, len(passes)), len(passes) + 1)
        watch(step, before, after, seconds)

    return _plan_with_room(module, passes, target, report)


def chosen_passes(pipeline: str | Sequence[Pass] | None, planner: str = JOINT) -> Pipeline:
    """The planner's passes, or those given as text or as they are. PassError when the text is
    wrong, there is no such planner, or both are given."""
    if planner not in PLANNERS:
        raise PassError(f"there is no planner {planner!r}; known: {', '.join(PLANNERS)}")
    if pipeline is not None and planner != JOINT:
        raise PassError(f"a pipeline and planner {planner} are given; leave one of them out")
    if isinstance(pipeline, str):
        return parse_pipeline(pipeline, registry())
    return PLANNERS[planner] if pipeline is None else tuple(pipeline)


def _plan_with_room(module: Module, passes: tuple[Pass, ...], target: Target, hook: Hook) -> Module:
    """Run the passes. When a kernel finds too little scratchpad beside the tensors that stay on
    chip, plan again from there with more of it held free while that kernel runs, and only then."""
    split = next((i for i, p in enumerate(passes) if isinstance(p, RESIDENCY)), None)
    if split is None:
        return run_pipeline(module, passes, target, hook)
    start = run_pipeline(module, passes[:split], target, hook)
    usable = target.device.lx.usable_bytes
    held: dict[str, int] = {}
    while True:
        given = start.with_attrs(held=tuple(held.items())) if held else start
        try:
            return run_pipeline(given, passes[split:], target, hook)
        except CapacityError as error:
            short = [name for name in error.kernels if held.get(name, 0) < usable]
            if not short:
                raise
            for name in short:
                more = max(2 * held.get(name, 0), error.lacking, usable // LEAST_HELD)
                held[name] = min(usable, more)
