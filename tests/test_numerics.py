"""Every road through the compiler in the other number formats; inner dimensions that end inside
a group of lanes, cut into tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from small_models import cosine, module, random_inputs, run_binary
from test_end_to_end import ROADS

from spyrec import runtime
from spyrec.backend.program import emit_program
from spyrec.ir import interp
from spyrec.ir.core import Module
from spyrec.passes.allocate import CoreAllocation
from spyrec.passes.kernel import Nest
from spyrec.passes.manager import Numerics, Pass, Target, run_pipeline
from spyrec.passes.pipeline import PIPELINE
from spyrec.passes.tiling import Tiling
from spyrec.sim.device import load_device
from spyrec.sim.isa import Program, instructions
from spyrec.sim.run import run

LEAST: dict[Numerics, float] = {"fp32": 0.9999999, "ieee16": 0.9999}


@pytest.mark.parametrize("numerics", LEAST)
@pytest.mark.parametrize("road", ROADS, ids=lambda f: f.__name__)
def test_binary_agrees_with_the_interpreter(
    road: Callable[[], Module], numerics: Numerics
) -> None:
    assert run_binary(road(), numerics).worst >= LEAST[numerics]


WHOLE = CoreAllocation(cores=10)  # so few that the inner dimension is not divided


@dataclass(frozen=True)
class InnerTiles:
    """Cut the inner dimension of every matrix kernel into tiles of ``size`` elements."""

    name = "inner-tiles"
    summary = "Cuts the inner dimension of matrix kernels."
    size: int

    def run(self, m: Module, target: Target) -> Module:
        tiled = Tiling().run(m, target)
        ops = []
        for op in tiled.body.ops:
            if op.name == "kernel" and op.attrs["kind"] == "contract":
                nest = Nest(op)
                tile = tuple(self.size if d == nest.k else n for d, n in enumerate(nest.tile))
                outer = (d for d in nest.loops if d != nest.k)
                op = op.with_attrs(tile=tile, loops=(*outer, nest.k))
            ops.append(op)
        return replace(tiled, body=replace(tiled.body, ops=tuple(ops)))


def odd_matmul() -> Module:
    return module(lambda g, x: [g("matmul", x, g.weight(300, 200))], ("x", (100, 300), "f32"))


def odd_conv() -> Module:
    return module(
        lambda g, x: [g("conv", x, g.weight(100, 130, 3, 3), strides=(1, 1), pads=(1, 1, 1, 1),
                        dilations=(1, 1))],
        ("x", (1, 130, 9, 10), "f32"),
    )  # fmt: skip


@pytest.mark.parametrize("numerics", ["dl16", "fp32"])
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("make", [odd_matmul, odd_conv])
def test_odd_inner_dimension_in_tiles(
    make: Callable[[], Module], size: int, numerics: Numerics
) -> None:
    m, target = make(), Target(load_device(), numerics)
    steps: dict[type[Pass], Pass] = {Tiling: InnerTiles(size), CoreAllocation: WHOLE}
    passes = tuple(steps.get(type(p), p) for p in PIPELINE)
    program = emit_program(run_pipeline(m, passes, target), target)
    assert _inner_trips(program) >= 2
    inputs = random_inputs(m)
    packed = {
        p.buffer.name: runtime.pack(p, inputs[p.name], True)
        for p in runtime.ports(program, "input")
    }
    outputs = run(program, target.device, packed, poison=True).outputs
    (port,) = runtime.ports(program, "output")
    got = runtime.unpack(port, outputs[port.buffer.name])
    assert cosine(interp.run(m, inputs)[port.name], got) >= 0.99999


def _inner_trips(program: Program) -> int:
    """Trips of the innermost loop around a matrix instruction."""
    return max(
        loops[-1]
        for k in program.kernels for instr, loops in instructions(k.streams.get("pt", ()))
        if instr.op == "mm"
    )  # fmt: skip


def test_wide_moves_write_whole_groups() -> None:
    """32-bit elements: a group is two sticks, and the second one may hold no element at all."""

    def make(axis: int, *shapes: tuple[int, int]) -> Module:
        return module(
            lambda g, x, y: [g("exp", g("concat", g("relu", x), y, axis=axis))],
            *((name, shape, "f32") for name, shape in zip("xy", shapes, strict=True)),
        )

    down = make(0, (40, 20), (33, 20)), make(0, (40, 1), (33, 1))
    for m in (*down, make(1, (9, 70), (9, 20))):
        assert run_binary(m, "fp32").worst >= LEAST["fp32"]
