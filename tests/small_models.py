"""Small modules that each exercise one road through the compiler, and runs of their binaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spyrec import runtime
from spyrec.driver import compile_module
from spyrec.ir import interp
from spyrec.ir.core import Block, Builder, Module, Value
from spyrec.ir.rounding import round_to
from spyrec.ir.types import dtype, tensor
from spyrec.passes.manager import Numerics, Target
from spyrec.sim.check import find_hazards
from spyrec.sim.device import load_device, parse_device
from spyrec.sim.isa import Program
from spyrec.sim.run import run
from spyrec.sim.stats import RunResult

Array = np.ndarray[Any, Any]
Make = Callable[..., Sequence[Value]]


class Graph(Builder):
    """A builder with seeded constants and calls that give values."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.rng = np.random.default_rng(seed)

    def weight(self, *shape: int) -> Value:
        """A float32 constant, normal with deviation 0.1."""
        return self.constant(self.rng.normal(0, 0.1, shape).astype(np.float32), dtype("f32"))

    def __call__(self, name: str, *operands: Value, **attrs: Any) -> Value:
        return self.op(name, operands, **attrs).result


def module(make: Make, *inputs: tuple[str, tuple[int, ...], str], seed: int = 0) -> Module:
    """A module around ``make(graph, *inputs)``, outputs named o0, o1, ..."""
    graph = Graph(seed)
    args = tuple(graph.value(name, tensor(shape, kind)) for name, shape, kind in inputs)
    outs = tuple(make(graph, *args))
    return Module(
        "small", Block(args, tuple(graph.ops), outs), tuple(f"o{i}" for i in range(len(outs)))
    )


def random_inputs(m: Module, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for v in m.body.args:
        shape, kind = v.type.static_shape, v.type.dtype
        values = rng.normal(size=shape) if kind.kind == "float" else rng.integers(0, 5, shape)
        made[v.name] = np.asarray(round_to(np.asarray(values), kind))
    return made


@dataclass(frozen=True)
class Outcome:
    """``worst``: the smallest cosine over the outputs; ``error``: the largest absolute error;
    ``relative``: the largest of an output's error over its largest value (a cosine alone does not
    see a factor)."""

    program: Program
    result: RunResult
    worst: float
    error: float
    relative: float


def run_binary(
    m: Module, numerics: Numerics = "dl16", pipeline: str | None = None, seed: int = 0,
    plan: Mapping[str, Any] | None = None,
) -> Outcome:
    """Compile, run with everything poisoned, compare with the interpreter in float32."""
    target = Target(load_device(), numerics)
    return run_program(m, compile_module(m, target, pipeline=pipeline, plan=plan).program, seed)


def run_program(m: Module, program: Program, seed: int = 0) -> Outcome:
    """Run what ``m`` was compiled to, which must have no hazard, with everything poisoned, and
    compare with the interpreter."""
    device = parse_device(program.device)
    assert find_hazards(program, device) == ()
    inputs = random_inputs(m, seed)
    want = interp.run(m, inputs)
    packed = {
        p.buffer.name: runtime.pack(p, inputs[p.name], True)
        for p in runtime.ports(program, "input")
    }
    result = run(program, device, packed, poison=True)
    worst, error, relative = 1.0, 0.0, 0.0
    for p in runtime.ports(program, "output"):
        got = runtime.unpack(p, result.outputs[p.buffer.name])
        worst = float(np.minimum(worst, cosine(want[p.name], got)))  # NaN stays
        distance = np.abs(want[p.name].astype(np.float64) - got).max(initial=0.0)
        error = float(np.maximum(error, distance))
        largest = max(1e-30, float(np.abs(want[p.name]).max(initial=0.0)))
        relative = float(np.maximum(relative, distance / largest))
    return Outcome(program, result, worst, error, relative)


def cosine(want: Array, got: Array) -> float:
    """Cosine of two arrays as vectors; 1 when both are zero, nan when something is not finite."""
    a, b = want.astype(np.float64).ravel(), got.astype(np.float64).ravel()
    if not a.any() and not b.any():
        return 1.0
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))
