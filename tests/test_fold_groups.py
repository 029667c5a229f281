"""Rows are folded group by group, then lane by lane: the same results, in a fraction of the vector
unit's time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import Graph, module

from spyrec.driver import compile_module
from spyrec.ir.core import Module, Op, Value
from spyrec.ir.types import dtype
from spyrec.passes.fold_groups import FoldGroups
from spyrec.passes.manager import Pass, Target
from spyrec.passes.pipeline import BASELINE, PIPELINE
from spyrec.sim.device import DeviceSpec, load_device
from spyrec.sim.run import run
from tests.pipeline_proof import DL16_ERROR, NARROW, WIDE, prove, prove_binary

CARD = Target(load_device(), "dl16")
PROMPT = Target(
    replace(CARD.device, sfp=replace(CARD.device.sfp, switch_cycles=0, start_cycles=0)), "dl16"
)
"""A machine on which short instructions cost nothing, so that few rows are worth it too."""
WITHOUT: tuple[Pass, ...] = tuple(p for p in PIPELINE if not isinstance(p, FoldGroups))
KINDS = ("softmax", "norm", "residual norm", "extremes", "prod", "statistics")


def rows_of(kind: str, shape: tuple[int, ...]) -> Module:
    """A row's numbers used along the row; with results of the row's own, and of both kinds."""
    axis = len(shape) - 1

    def make(g: Graph, x: Value, y: Value) -> list[Value]:
        def fold(name: str, v: Value) -> Value:
            return g(f"reduce_{name}", v, axes=(axis,), keepdims=True)

        tenth = g.constant(np.array(0.1, np.float32), dtype("f32"))
        match kind:
            case "softmax":
                return [g("softmax", x, axis=axis)]
            case "norm":
                centred = g("sub", x, fold("mean", x))
                spread = g("add", fold("mean", g("mul", centred, centred)), tenth)
                return [g("mul", g("mul", centred, g("rsqrt", spread)), y)]
            case "residual norm":  # the sum is a result too, and read as it is stored
                total = g("add", x, y)
                square = fold("mean", g("mul", total, total))
                return [g("mul", total, g("rsqrt", g("add", square, tenth))), total]
            case "extremes":
                high, low = fold("max", x), fold("min", x)
                return [g("div", g("sub", x, low), g("add", g("sub", high, low), tenth)), high]
            case "prod":
                near = g("exp", g("mul", g("tanh", x), tenth))
                return [g("mul", near, fold("prod", near))]
        weight = g("exp", g("sub", x, fold("max", x)))
        return [g("mul", weight, y), fold("sum", weight)]

    return module(make, ("x", shape, "f32"), ("y", (shape[-1],), "f32"))


def split_kernels(m: Module, target: Target) -> list[Op]:
    ops = compile_module(m, target).module.body.ops
    return [op for op in ops if any(n.endswith("_lanes") for n, _ in op.attrs.get("dims", ()))]


@pytest.mark.parametrize("kind", KINDS)
def test_every_pass_and_the_binary_agree_with_the_model(kind: str) -> None:
    m = rows_of(kind, (2, 9, 256))
    assert split_kernels(m, PROMPT)
    prove(m, PROMPT, 1, DL16_ERROR)
    prove_binary(m, PROMPT, 2, DL16_ERROR)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_shape_gives_the_same(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    rows = data.draw(st.sampled_from([1, 5, 67]))
    columns = data.draw(st.sampled_from([64, 100, 128, 192, 320]))
    lead = data.draw(st.sampled_from([(), (3,), (1, 2)]))
    device = data.draw(st.sampled_from([WIDE, NARROW]))
    quick = replace(device.sfp, switch_cycles=0, start_cycles=0)
    target = Target(replace(device, sfp=quick), "dl16")
    m = rows_of(kind, (*lead, rows, columns))
    assert bool(split_kernels(m, target)) == (columns in (128, 192, 320))
    prove_binary(m, target, data.draw(st.integers(0, 9)), DL16_ERROR)


def test_long_rows_take_a_fraction_of_the_time() -> None:
    """Both on chip: a product before and after."""

    def make(g: Graph, x: Value) -> list[Value]:
        scores = g("matmul", x, g.weight(64, 1024))
        return [g("matmul", g("softmax", scores, axis=1), g.weight(1024, 64))]

    m = module(make, ("x", (2048, 64), "f32"))
    took = [vector_cycles(m, passes) for passes in (PIPELINE, WITHOUT)]
    assert took[0] < took[1] / 2


def vector_cycles(m: Module, passes: tuple[Pass, ...]) -> int:
    program = compile_module(m, CARD, pipeline=passes).program
    launches = run(program, CARD.device, timing_only=True).launches
    names = [program.kernels[launch.kernel].name for launch in program.launches]
    return sum(
        s.cycles for name, s in zip(names, launches, strict=True) if "reduce_max" in name
    )


def test_a_plan_of_it_can_be_pinned() -> None:
    m = rows_of("softmax", (4096, 512))
    assert split_kernels(m, CARD)
    first = compile_module(m, CARD)
    again = compile_module(m, CARD, plan=first.plan)
    assert first.program == again.program


def test_few_rows_stay_as_they_are() -> None:
    """Two rows on a core: what is saved is less than taking up one more program."""
    assert not split_kernels(rows_of("softmax", (64, 256)), CARD)
    assert split_kernels(rows_of("softmax", (4096, 256)), CARD)


def test_the_published_planner_folds_every_group() -> None:
    """As its kernels were measured: see docs/machine-model.md, folding lanes."""
    assert not any(isinstance(p, FoldGroups) for p in BASELINE)


def test_what_is_costly_is_still_written_once() -> None:
    """The exponential is computed twice where it takes one cycle, and once where it takes 40."""
    m = rows_of("softmax", (4096, 512))
    cheap, dear = CARD.device, _with_exp(40)
    assert [exponentials(m, d) for d in (cheap, dear)] == [2, 1]


def _with_exp(cost: int) -> DeviceSpec:
    sfp = CARD.device.sfp
    return replace(CARD.device, sfp=replace(sfp, cycles={**sfp.cycles, "exp": cost}))


def exponentials(m: Module, device: DeviceSpec) -> int:
    [op] = split_kernels(m, Target(device, "dl16"))
    return sum(
        o.name == "exp" for inner in _computes(op) for o in inner.regions[0].ops
    )


def _computes(op: Op) -> list[Op]:
    found: list[Op] = []
    for o in op.regions[0].ops:
        found += [o] if o.name == "compute" else _computes(o) if o.regions else []
    return found
