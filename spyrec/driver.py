"""From a tensor module to an object program: the pipeline, then code generation."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from spyrec.backend.program import emit_program
from spyrec.backend.shared import Built
from spyrec.ir.core import Module
from spyrec.ir.errors import CapacityError, PassError, SpyrecError
from spyrec.memo import Memo
from spyrec.passes.baseline_residency import BaselineResidency
from spyrec.passes.hbm_plan import HbmPlan
from spyrec.passes.improve import BY_SIZE, Improve
from spyrec.passes.manager import (
    Hook,
    Pass,
    Pipeline,
    Target,
    blame,
    from_elsewhere,
    no_hook,
    run_pipeline,
)
from spyrec.passes.merge_programs import MERGED
from spyrec.passes.pin import pinned_pipeline
from spyrec.passes.pipeline import PLANNERS, check_order, registry
from spyrec.passes.pipeline_text import parse_pipeline
from spyrec.passes.plan import parse_plan
from spyrec.passes.plan_record import full_plan
from spyrec.passes.residency import RingRelayout
from spyrec.passes.share_launches import SHARED
from spyrec.passes.trial import STEPS_A_SECOND
from spyrec.rewritten import Rewritten
from spyrec.settle import Trials
from spyrec.share import finished_code
from spyrec.sim.isa import Program

JOINT = "joint"
"""The planner when nothing is said."""
Progress = Callable[[str, int, int], None]
LEAST_HELD = 16
"""Of the scratchpad a kernel is given this part more when it had too little; then twice as much."""
RESIDENCY = RingRelayout | BaselineResidency
"""Passes that decide which tensors stay on chip; without room, planning begins anew with them."""
VARIABLE = "SPYREC_PLAN_BUDGET"
"""Of the environment: nominal seconds for improve where none are asked for."""


@dataclass(frozen=True)
class Compiled:
    """``module`` is the IR after the last pass; ``plan`` every decision, by kernel name."""

    program: Program
    module: Module
    plan: Mapping[str, Any] = field(default_factory=dict)


def compile_module(
    module: Module, target: Target, *, pipeline: str | Sequence[Pass] | None = None,
    plan: Mapping[str, Any] | None = None, hook: Hook | None = None,
    progress: Progress | None = None, planner: str = JOINT, plan_budget: float | None = None,
    memo: Path | None = None,
) -> Compiled:
    """Run the pipeline (that of the planner, or the one given as text or as passes) and generate
    code.

    ``plan_budget``: nominal seconds that the improve pass may search, 0 for none; None: what
    SPYREC_PLAN_BUDGET says, else what suits the model. ``memo``: the folder in which its trial runs
    are looked for and kept.

    Raises SpyrecError when the model, the pipeline or the plan is at fault.
    """
    built: dict[Hashable, Built] = {}
    rewritten = Rewritten()
    final = lower_module(
        module, target, pipeline=pipeline, plan=plan, hook=hook, progress=progress, planner=planner,
        plan_budget=plan_budget, built=built, rewritten=rewritten, memo=memo,
    )
    if final.stage != "tile" or "hbm" not in final.attrs:
        raise PassError(
            f"the pipeline ends at the {final.stage} stage without addresses, so there is no "
            "program to write; let it end as the usual one does (see spyrec passes), or look at "
            "its result with --emit ir"
        )
    program = emit_program(final, target, built=built)
    joins, merges = (bool(final.attrs.get(name)) for name in (SHARED, MERGED))
    program = finished_code(
        program, target.device, joins=joins, merges=merges, rewritten=rewritten
    )
    if progress is not None:
        progress("codegen", 1, 1)
    return Compiled(program, final, full_plan(final, target.device.lx.usable_bytes))


def lower_module(
    module: Module, target: Target, *, pipeline: str | Sequence[Pass] | None = None,
    plan: Mapping[str, Any] | None = None, hook: Hook | None = None,
    progress: Progress | None = None, planner: str = JOINT, plan_budget: float | None = None,
    built: dict[Hashable, Built] | None = None, rewritten: Rewritten | None = None,
    memo: Path | None = None,
) -> Module:
    """The module after the pipeline, whatever stage that ends at. ``built`` and ``rewritten`` take
    the kernels that trial runs build, and what is made of them. SpyrecError as compile_module."""
    if pipeline is None:
        check_beginning(module)
    passes = with_budget(chosen_passes(pipeline, planner), plan_budget)
    if module.stage == "tensor":
        check_order(passes)
    if plan is not None:
        passes = pinned_pipeline(passes, parse_plan(plan))
    watch = hook or no_hook
    done = 0
    guests: list[tuple[Pass, Module, Module]] = []

    def report(step: Pass, before: Module, after: Module, seconds: float) -> None:
        nonlocal done
        done += 1
        if from_elsewhere(step):
            guests.append((step, before, after))
        if progress is not None:
            progress(step.name, min(done, len(passes)), len(passes) + 1)
        watch(step, before, after, seconds)

    try:
        return _lowered(module, passes, target, report, built, rewritten, memo)
    except SpyrecError:
        raise
    except Exception:
        blame(guests)
        raise


def _lowered(
    module: Module, passes: Pipeline, target: Target, report: Hook,
    built: dict[Hashable, Built] | None, rewritten: Rewritten | None, memo: Path | None,
) -> Module:
    """The module after the passes, with trial runs for those that settle close calls."""
    at = next((i + 1 for i, p in enumerate(passes) if isinstance(p, Improve) and p.steps), None)
    if at is None or not any(isinstance(p, HbmPlan) for p in passes[at:]):
        return _plan_with_room(module, passes, target, report)
    trials = Trials(
        partial(finished, passes[at:], target), target, {} if built is None else built,
        None if memo is None else _memo(memo, target, passes[at:]),
        Rewritten() if rewritten is None else rewritten,
    )  # fmt: skip
    planned = _plan_with_room(module, passes, replace(target, attempt=trials), report)
    if trials.memo is not None:
        trials.memo.trim()
    return planned


def check_beginning(module: Module) -> None:
    """PassError unless the module is one that the usual pipeline takes."""
    if module.stage != "tensor":
        raise PassError(
            f"module {module.name!r} is at the {module.stage} stage; expected stage tensor, where "
            "the usual pipeline begins; name the passes that are left with --passes"
        )


def _memo(folder: Path, target: Target, passes: Pipeline) -> Memo | None:
    """The trials in a folder; None where nobody can say what they depend on."""
    from spyrec.cache_key import surroundings_of

    about = surroundings_of(target, passes, None)
    return None if about is None else Memo(folder, about, target.device.cores.count)


def finished(passes: Pipeline, target: Target, module: Module) -> Module:
    """The module after the passes that are left of a pipeline."""
    return _plan_with_room(module, passes, target, no_hook)


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


def with_budget(passes: Pipeline, seconds: float | None) -> Pipeline:
    """The passes with that many nominal seconds for improve. SpyrecError when the number is wrong.

    None: what SPYREC_PLAN_BUDGET says where improve has no number of its own."""
    said = os.environ.get(VARIABLE, "") if seconds is None else seconds
    if said == "":
        return passes
    try:
        steps = round(float(said) * STEPS_A_SECOND)
    except (ValueError, OverflowError):
        steps = -1
    if steps < 0:
        raise SpyrecError(f"plan budget {said!r}: expected seconds, 0 or more")
    return tuple(
        replace(p, steps=steps)
        if isinstance(p, Improve) and (seconds is not None or p.steps == BY_SIZE) else p
        for p in passes
    )


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
