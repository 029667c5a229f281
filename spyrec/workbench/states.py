"""What a pipeline made of a module after each pass, and how far results are from those of the
module that was imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spyrec import runtime
from spyrec.driver import compile_module, lower_module
from spyrec.ir import interp
from spyrec.ir.core import Module, walk
from spyrec.ir.errors import SpyrecError
from spyrec.passes.hbm_plan import HbmPlan
from spyrec.passes.manager import Pass, Pipeline, Target, fitted, output_error
from spyrec.sim.check import find_hazards
from spyrec.sim.isa import Program
from spyrec.sim.run import run as simulate

from .maps import MapCheck

Array = np.ndarray[Any, Any]

EXACT = 1e-4
"""Allowed error of float32 results: sums may be taken in another order."""
ROUNDED = 0.03
"""Allowed error where values have ten bits of precision, for a chain of some eight ops."""
IMPORT, CODE = "import", "code generation"


@dataclass(frozen=True)
class State:
    """The module after the pass called ``step``."""

    step: str
    module: Module


@dataclass(frozen=True)
class Road:
    """``states``: the module as imported, then after each pass that ran; ``program``, when the
    pipeline goes that far; ``error``: what was raised after the last state, in pass ``failed``."""

    states: tuple[State, ...]
    program: Program | None = None
    error: Exception | None = None
    failed: str = ""


@dataclass(frozen=True)
class Faint:
    """An output no element of which is larger than ``largest``, while an error of ``allowed`` is
    accepted in it, after pass ``since`` and those behind it; "": after all of them."""

    output: str
    largest: float
    allowed: float
    since: str = ""


SHOWN = 3


def told_faint(outputs: Sequence[Faint], cure: str) -> str:
    """A sentence about outputs in which errors are not seen, what would show them last; "" when
    there are none."""
    if not outputs:
        return ""
    parts = [
        f"output {f.output} is at most {f.largest:.3g}, below the {f.allowed:.3g} that is allowed"
        + f" from {f.since} on" * bool(f.since)
        for f in outputs[:SHOWN]
    ]
    if (more := len(outputs) - SHOWN) > 0:
        parts.append(f"so {'is 1 more' if more == 1 else f'are {more} more'}")
    itself = "itself" if len(outputs) == 1 else "themselves"
    return f"{', '.join(parts)}: an error as large as {itself} would not be seen; {cure}"


def travel(module: Module, passes: Pipeline, target: Target) -> Road:
    """Run a pipeline, and code generation where it ends with addresses; an error ends the road."""
    states = [State(IMPORT, module)]

    def note(step: Pass, before: Module, after: Module, _seconds: float) -> None:
        if before is not states[-1].module:  # planned again from an earlier pass
            names = [s.step for s in states]
            if step.name in names:
                del states[names.index(step.name):]
        states.append(State(step.name, after))

    try:
        if any(isinstance(p, HbmPlan) for p in passes):
            done = compile_module(module, target, pipeline=passes, hook=note)
            return Road(tuple(states), done.program)
        lower_module(module, target, pipeline=passes, hook=note)
        return Road(tuple(states))
    except Exception as error:
        failed = passes[len(states) - 1].name if len(states) <= len(passes) else CODE
        return Road(tuple(states), None, error, failed)


def allowed(module: Module) -> float:
    """How far the results of a module may be from those of the model."""
    values = [*module.body.args, *(v for op in walk(module.body) for v in op.results)]
    floats = {v.type.dtype.bits for v in values if v.type.dtype.kind == "float"}
    return ROUNDED if any(bits < 32 for bits in floats) else EXACT


def worst(want: Mapping[str, Array], got: Mapping[str, Array]) -> tuple[str, float]:
    """The output that is farthest off, and its error (see ``output_error``)."""
    errors = {n: output_error(a, got[n].astype(a.dtype)) for n, a in want.items()}
    name = max(errors, key=lambda n: errors[n], default="")
    return name, errors.get(name, 0.0)


def interpreted(
    module: Module, inputs: Mapping[str, Array], limit: float | None = None
) -> tuple[dict[str, Array], str]:
    """Outputs of a module at any stage, the inputs rounded to its own formats; and, with the
    ``limit`` of an error, what the maps of its kernels get wrong, "" when nothing."""
    given = fitted(module, inputs)
    if limit is None:
        return interp.run(module, given), ""
    maps = MapCheck(module, given, limit)
    return interp.run(module, given, observe=maps.observe), maps.wrong


def simulated(program: Program, target: Target, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs of a program, in poisoned memory; SpyrecError when it has hazards."""
    hazards = find_hazards(program, target.device)
    if hazards:
        raise SpyrecError(f"the program has {len(hazards)} hazards, the first: {hazards[0]}")
    ports = runtime.ports(program, "input")
    packed = {p.buffer.name: runtime.pack(p, np.asarray(inputs[p.name]), True) for p in ports}
    result = simulate(program, target.device, packed, poison=True)
    return {
        p.name: runtime.unpack(p, result.outputs[p.buffer.name])
        for p in runtime.ports(program, "output")
    }
