"""Passes that carry a plan's pins to where decisions are taken: the tensors' before stick-layout,
the kernels' before improve and core-allocation. Before tiling, what only then can be judged is
checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from spyrec.ir.core import Module, Op
from spyrec.ir.errors import PassError
from spyrec.ir.near import listed

from .allocate import CoreAllocation
from .baseline_division import BaselineDivision
from .improve import Improve
from .kernel import Nest
from .manager import Pass, Pipeline, Target
from .pin_rules import (
    kernel_problems,
    makers,
    possible_sticks,
    tensor_problems,
    tile_problems,
)
from .pins import FREE
from .plan import NO_PLAN, KernelPins, Plan
from .stick_layout import StickLayout
from .tiling import Tiling


def pinned_pipeline(passes: Pipeline, plan: Plan) -> Pipeline:
    """The passes, with those that pin the plan's decisions before the ones that take them.

    PassError when the pipeline lacks one of stick-layout, core-allocation and tiling.
    """
    out: list[Pass] = []
    cores = next((p.cores for p in passes if isinstance(p, CoreAllocation)), 0)
    for step in passes:
        match step:
            case StickLayout():
                out.append(PinSticks(plan))
            case Improve() | CoreAllocation() | BaselineDivision() if not _has(out, PinKernels):
                out.append(PinKernels(plan, cores))
            case Tiling():
                out.append(PinTiles(plan, step.share))
        out.append(step)
    names = [p.name for p in out]
    for needed in (StickLayout, CoreAllocation, Tiling):
        if needed.name not in names:
            raise PassError(
                f"plan: the pipeline has no pass {needed.name}, which takes decisions of a plan"
            )
    return tuple(out)


def _has(passes: Sequence[Pass], kind: type) -> bool:
    return any(isinstance(p, kind) for p in passes)


def refuse(problems: Sequence[str]) -> None:
    """PassError with one line for each problem, if there is any."""
    if problems:
        raise PassError("\n".join(f"plan: {p}" for p in problems))


@dataclass(frozen=True)
class PinSticks:
    """Set ``pin_sticks`` = ((tensor name, dimension), ...) on the module, for those that can be
    had; pin-kernels reports the others. What a planner has pinned before stays for the rest."""

    name: ClassVar[str] = "pin-sticks"
    summary: ClassVar[str] = "Pins the stick dimensions that a plan gives."
    plan: Plan = NO_PLAN

    def run(self, module: Module, target: Target) -> Module:
        made = makers(module)
        sticks: dict[str, int] = dict(module.attrs.get("pin_sticks", ()))  # type: ignore[arg-type]
        for v in (*module.body.args, *made):
            pin = self.plan.tensors.get(v.name)
            if pin is None or pin.stick is None:
                continue
            if pin.stick in possible_sticks(v, made.get(v)):
                sticks[v.name] = pin.stick
        return module.with_attrs(pin_sticks=tuple(sticks.items()))


@dataclass(frozen=True)
class PinKernels:
    """Set ``pin_parts``, ``pin_order``, ``buffers``, ``overlap``, ``pin_tile``, ``pin_loops`` and
    ``pin_keep``, ``pin_finish`` and ``pin_ahead`` on kernels and ``pin_spaces`` on the module.

    Raises PassError with every pin that breaks a rule, sizes of tiles excepted: see PinTiles.
    """

    name: ClassVar[str] = "pin-kernels"
    summary: ClassVar[str] = "Pins the cuts, loops and memories that a plan gives."
    plan: Plan = NO_PLAN
    cores: int = 0  # 0: all the device has

    def run(self, module: Module, target: Target) -> Module:
        cores = min(self.cores or target.device.cores.count, target.device.cores.count)
        kernels = {str(op.attrs["name"]): op for op in module.body.ops if op.name == "kernel"}
        pins = self.plan.kernels
        problems: list[str] = []
        for n, pin in pins.items():
            if n in kernels:
                problems += kernel_problems(kernels[n], pin, cores)
            else:
                problems.append(f"there is no kernel {n}; {listed(n, kernels)}")
        problems += tensor_problems(module, self.plan.tensors)
        refuse(problems)
        ops = tuple(_pin(op, pins.get(str(op.attrs.get("name")))) for op in module.body.ops)
        spaces = tuple((n, t.space) for n, t in self.plan.tensors.items() if t.space is not None)
        return replace(module, body=replace(module.body, ops=ops)).with_attrs(pin_spaces=spaces)


def _pin(op: Op, pins: KernelPins | None) -> Op:
    if op.name != "kernel" or pins is None:
        return op
    nest = Nest(op)
    if pins.buffers is not None:
        op = op.with_attrs(buffers=pins.buffers)
    if pins.overlap is not None:
        op = op.with_attrs(overlap=pins.overlap)
    if pins.keep is not None and nest.kind == "contract":
        op = op.with_attrs(pin_keep=pins.keep)
    if pins.finish is not None and nest.kind == "contract":
        names = [nest.dim_names[d] for d in (nest.k, nest.stick)]
        last = tuple(pins.finish.get(n, FREE) for n in names) if pins.finish else ()
        op = op.with_attrs(pin_finish=last)
    if pins.ahead is not None and nest.kind == "contract":
        op = op.with_attrs(pin_ahead=pins.ahead)
    return op.with_attrs(
        pin_parts=tuple(pins.parts.get(d, FREE) for d in nest.dim_names),
        pin_order=tuple(nest.dim_names.index(d) for d in pins.core_order or ()),
        pin_tile=tuple(pins.tile.get(d, FREE) for d in nest.dim_names),
        pin_loops=tuple(nest.dim_names.index(d) for d in pins.loops or ()),
    )


@dataclass(frozen=True)
class PinTiles:
    """Check the pinned tile sizes against the parts that cores got and the scratchpad, and that
    tensors pinned to the scratchpad found room there. PassError with every problem."""

    name: ClassVar[str] = "pin-tiles"
    summary: ClassVar[str] = "Checks the tiles that a plan gives."
    plan: Plan = NO_PLAN
    share: float = 0.42  # of the scratchpad for one kernel's tiles, as the tiling pass has it

    def run(self, module: Module, target: Target) -> Module:
        usable = target.device.lx.usable_bytes
        budget = int(usable * self.share)
        problems: list[str] = []
        for op in module.body.ops:
            if op.name == "kernel":
                problems += tile_problems(op, target.device, budget)
        for v, maker in makers(module).items():
            pin = self.plan.tensors.get(v.name)
            if pin is not None and pin.space == "lx" and v.type.space != "lx":
                problems.append(
                    f"tensor {v.name} is pinned to the scratchpads, but beside what else is pinned "
                    f"there it does not fit into {usable / 2**20:.2f} MiB a core "
                    f"(from {maker.loc})"
                )
        refuse(problems)
        return module
