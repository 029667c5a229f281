"""Alternatives pinned one at a time: the model compiled again from where planning begins, and its
time simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from spyrec.driver import JOINT, Compiled, chosen_passes, compile_module, lower_module
from spyrec.explanation import Alternative, Trial
from spyrec.ir.core import Module
from spyrec.ir.errors import SpyrecError
from spyrec.passes.manager import ChangedInput, Pass, Target
from spyrec.passes.pipeline import check_order
from spyrec.passes.stick_layout import StickLayout
from spyrec.sim.run import run

Plan = Mapping[str, Any]
Progress = Callable[[str, int, int], None]


@dataclass
class Planner:
    """A model up to where its plan begins, and the passes that are left. ``pins``: the user's;
    ``budget``: nominal seconds of the search for better plans, None: what suits the model."""

    module: Module
    passes: tuple[Pass, ...]
    target: Target
    pins: Plan | None
    budget: float | None = None
    found: Plan | None = None
    seen: dict[str, Trial] = field(default_factory=dict)

    def compile(self, more: Plan | None = None, progress: Progress | None = None) -> Compiled:
        """The program with the user's pins and ``more`` of them. What the search found of all
        other kernels is kept then, and nothing is searched anew. SpyrecError when a pin is
        illegal."""
        if more is None:
            done = self._compile(self.pins, self.budget, progress)
            self.found = done.plan if "why" in done.plan else None
            return done
        known = self.pins or {}
        if self.found is not None:
            kernels = self.found["kernels"].items()
            others = {name: k for name, k in kernels if name not in more.get("kernels", {})}
            known = merged({"kernels": others, "tensors": self.found["tensors"]}, known)
        return self._compile(merged(known, more), 0.0, progress)

    def _compile(
        self, plan: Plan | None, budget: float | None, progress: Progress | None
    ) -> Compiled:
        return compile_module(
            self.module, self.target, pipeline=self.passes, progress=progress, plan_budget=budget,
            plan=None if plan is None else dict(plan),
        )

    def tried(self, other: Alternative, names: Sequence[str], total_cycles: int) -> Alternative:
        """The alternative with its trial; ``names`` are those of the kernels that it pins,
        ``total_cycles`` what the run takes as planned."""
        key = repr(other.pins)
        if key not in self.seen:
            self.seen[key] = self._trial(other.pins, names, total_cycles)
        return replace(other, trial=self.seen[key])

    def _trial(self, pins: Plan, names: Sequence[str], total_cycles: int) -> Trial:
        try:
            done = self.compile(pins)
        except ChangedInput:  # what is tried next would be another model
            raise
        except SpyrecError as error:
            return Trial(0, 0, 0, str(error))
        ran = run(done.program, self.target.device, timing_only=True)
        mine = frozenset(names)
        cycles = sum(
            stats.cycles
            for name, stats in zip(done.plan["kernels"], ran.launches, strict=True)
            if name in mine
        )
        return Trial(cycles, ran.total_cycles, total_cycles - ran.total_cycles)


def planner_of(
    module: Module, target: Target, passes: str | Sequence[Pass] | None, pins: Plan | None,
    planner: str = JOINT, budget: float | None = None, progress: Progress | None = None,
) -> Planner:
    """What decides nothing that a plan can pin is done once. SpyrecError as ``compile_module``."""
    every = chosen_passes(passes, planner)
    if module.stage == "tensor":
        check_order(every)
    before = tuple(takewhile(lambda p: not isinstance(p, StickLayout), every))
    lowered = lower_module(module, target, pipeline=before, progress=progress)
    return Planner(lowered, every[len(before):], target, pins, budget)


def merged(plan: Plan, more: Plan) -> dict[str, Any]:
    """``plan`` with the decisions of ``more``, which win."""
    parts: dict[str, Any] = {kind: dict(pins) for kind, pins in plan.items()}
    for kind, pins in more.items():
        known = parts.setdefault(kind, {})
        for name, decisions in pins.items():
            known[name] = {**known.get(name, {}), **decisions}
    return parts


def alternatives(plan: Plan, names: Sequence[str]) -> Iterator[Alternative]:
    """The cuts, then the tiles, that were given up for the kernels ``names``, which are equal; of
    each the cheapest first. A tile is one of the cut that was taken."""
    taken = plan["kernels"][names[0]]
    why = taken["why"]
    for other in why["parts"].get("rejected", ()):
        pins = {"kernels": {name: {"parts": other["parts"]} for name in names}}
        ruled_out = other.get("ruled_out", "")
        yield Alternative("cut", other["parts"], (), other["cost_cycles"], pins, ruled_out)
    for other in why["tile"].get("rejected", ()):
        cut = {"parts": taken["parts"], "core_order": taken["core_order"]}
        decision: dict[str, Any] = {**cut, "tile": other["tile"]}
        if other["loops"]:
            decision["loops"] = other["loops"]
        pins = {"kernels": dict.fromkeys(names, decision)}
        cost = other.get("cost_cycles")
        yield Alternative("tile", other["tile"], tuple(other["loops"]), cost, pins)
