"""Tiles of a matrix kernel that are ended piece by piece: the numbers are right, no hazard, stores
overlap with the product, and the choice is planned, recorded and pinned like any other decision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_proof import DL16_ERROR, fitted
from small_models import module, random_inputs, run_program

from benchmarks.floors import gated
from spyrec.driver import Compiled, compile_module
from spyrec.ir import interp
from spyrec.ir.core import Module, Op, walk
from spyrec.ir.errors import PassError
from spyrec.ir.rules_kernel import finish_problems
from spyrec.ir.types import DTYPES
from spyrec.passes.kernel import Nest
from spyrec.passes.manager import Target
from spyrec.sim.device import load_device
from spyrec.sim.objfile import dump
from spyrec.sim.run import run

TARGET = Target(load_device(), "dl16")
Pins = dict[str, Any]
M, N, K = 67, 600, 500


def product() -> Module:
    return module(lambda g, x, w: [g("matmul", x, w)], ("x", (M, K), "f32"), ("w", (K, N), "f32"))


def followed() -> Module:
    """What follows the product reads a row, a column and a whole tensor; two results."""

    def make(g: Any, x: Any, w: Any, row: Any, column: Any, whole: Any) -> list[Any]:
        y = g("add", g("mul", g("matmul", x, w), row), whole)
        return [y, g("mul", y, column)]

    return module(
        make, ("x", (M, K), "f32"), ("w", (K, N), "f32"), ("row", (1, N), "f32"),
        ("column", (M, 1), "f32"), ("whole", (M, N), "f32"),
    )  # fmt: skip


def chain() -> Module:
    """The first product's result stays in the scratchpads, the second's goes to card memory."""
    return module(
        lambda g, x, v, w: [g("matmul", g("relu", g("matmul", x, v)), w)],
        ("x", (64, 512), "f32"), ("v", (512, 512), "f32"), ("w", (512, 512), "f32"),
    )  # fmt: skip


def batched() -> Module:
    return module(
        lambda g, x, w: [g("matmul", x, w)], ("x", (3, M, K), "f32"), ("w", (3, K, N), "f32")
    )


def narrow() -> Module:
    """Factors of eight bits, which the matrix unit takes in an arrangement of their own."""
    return module(
        lambda g, x, w: [g("matmul", x, w, to=DTYPES["dl16"])],
        ("x", (64, 1024), "f8e4m3"), ("w", (1024, 512), "f8e4m3"),
    )  # fmt: skip


CUT: Pins = {"parts": {"m": 2, "n": 2}}
ONE = CUT | {"tile": {"m": 34, "n": 320, "k": 64}}
SEVERAL = CUT | {"tile": {"m": 16, "n": 192, "k": 64}}
CASES: Mapping[str, tuple[Any, Pins]] = {
    "one tile of results": (product, ONE | {"finish": {"n": 64, "k": 116}, "ahead": 2}),
    "more tiles there": (product, ONE | {"finish": {"n": 128, "k": 180}, "ahead": 4}),
    "several": (product, SEVERAL | {"finish": {"n": 64, "k": 180}, "ahead": 4}),
    "first kept": (product, SEVERAL | {
        "finish": {"n": 64, "k": 116}, "ahead": 4, "loops": ["n", "m", "k"], "keep": [0]}),
    "second kept": (product, SEVERAL | {
        "finish": {"n": 64, "k": 116}, "ahead": 4, "loops": ["m", "n", "k"], "keep": [1]}),
    "both kept": (product, SEVERAL | {
        "finish": {"n": 64, "k": 116}, "ahead": 4, "loops": ["m", "n", "k"], "keep": [0, 1]}),
    "followed": (followed, SEVERAL | {"finish": {"n": 64, "k": 116}, "ahead": 2}),
    "followed, one tile": (followed, ONE | {"finish": {"n": 128, "k": 116}, "ahead": 4}),
    "results that stay": (chain, {
        "parts": {"m": 2, "n": 2}, "tile": {"m": 32, "n": 256, "k": 64},
        "finish": {"n": 64, "k": 128}, "ahead": 4}),
    "narrow": (narrow, {
        "parts": {"m": 2, "n": 2}, "tile": {"m": 32, "n": 256, "k": 128},
        "finish": {"n": 64, "k": 256}, "ahead": 4}),
    "batched": (batched, SEVERAL | {
        "tile": {"b0": 1, "m": 16, "n": 192, "k": 64}, "finish": {"n": 64, "k": 116}, "ahead": 4}),
}  # fmt: skip


def first_product(done: Compiled) -> str:
    return next(name for name in done.plan["kernels"] if "matmul" in name or "conv" in name)


def compiled(m: Module, pins: Pins | None = None) -> Compiled:
    done = compile_module(m, TARGET)
    if pins is None:
        return done
    return compile_module(m, TARGET, plan={"kernels": {first_product(done): pins}})


@pytest.mark.parametrize("name", CASES)
def test_ended_tiles_give_the_numbers(name: str) -> None:
    make, pins = CASES[name]
    done = compiled(make(), pins)
    taken = done.plan["kernels"][first_product(done)]
    assert (taken["finish"], taken["ahead"]) == (pins["finish"], pins["ahead"])
    outcome = run_program(make(), done.program)
    assert outcome.worst >= 0.9999 and outcome.relative <= 0.01


@pytest.mark.parametrize("name", ["several", "both kept", "followed", "results that stay"])
def test_the_tile_stage_says_what_is_done(name: str) -> None:
    """The interpreter runs the pieces as they stand in the module."""
    make, pins = CASES[name]
    done = compiled(make(), pins)
    assert any(o.name == "finish" for op in done.module.body.ops for o in walk_all(op))
    inputs = random_inputs(make())
    want, got = interp.run(make(), inputs), interp.run(done.module, fitted(done.module, inputs))
    for key, array in want.items():
        assert np.abs(array - got[key]).max() <= DL16_ERROR * np.abs(array).max()


def walk_all(op: Op) -> Iterator[Op]:
    for region in op.regions:
        yield from walk(region)


@st.composite
def pins_of_a_product(draw: st.DrawFn) -> Pins:
    columns = 64 * draw(st.integers(2, 5))
    return {
        "parts": {"m": draw(st.integers(1, 3)), "n": draw(st.integers(1, 2))},
        "tile": {"m": draw(st.sampled_from((5, 16, 23))), "n": columns, "k": 64},
        "loops": draw(st.sampled_from((["m", "n", "k"], ["n", "m", "k"]))),
        "keep": draw(st.sampled_from(([], [0], [1], [0, 1]))),
        "finish": {
            "n": 64 * draw(st.integers(1, columns // 64 - 1)),
            "k": draw(st.sampled_from((116, 180, 244))),
        },
        "ahead": draw(st.sampled_from((2, 4))),
    }


@given(pins_of_a_product())
@settings(max_examples=8, deadline=None)
def test_any_pieces_give_right_numbers(pins: Pins) -> None:
    """Also pins that ask for what cannot be: then tiles are not ended, or not so."""
    done = compiled(product(), pins)
    outcome = run_program(product(), done.program)
    assert outcome.worst >= 0.9999 and outcome.relative <= 0.01


def wide() -> Module:
    return module(
        lambda g, x, w: [g("matmul", x, w)], ("x", (512, 4096), "dl16"), ("w", (4096, 4096), "dl16")
    )


def cycles(done: Compiled) -> int:
    return run(done.program, TARGET.device, timing_only=True).total_cycles


def test_the_planner_ends_tiles_in_pieces_and_stores_them_meanwhile() -> None:
    chosen, whole = compiled(wide()), compiled(wide(), {"finish": {}})
    assert chosen.plan["kernels"]["k0_matmul"]["finish"]
    assert whole.plan["kernels"]["k0_matmul"]["finish"] == {}
    stored = TARGET.device.hbm.bus_cycles(0, 512 * 4096 * 2)
    assert cycles(chosen) <= cycles(whole) - stored // 4


def test_a_full_plan_with_pieces_gives_the_same_bytes() -> None:
    make, pins = CASES["first kept"]
    done = compiled(make(), pins)
    assert dump(compile_module(make(), TARGET, plan=done.plan).program) == dump(done.program)


def siblings() -> Module:
    """Two products of one tensor that is not in the scratchpads."""
    return module(
        lambda g, x, v, w: [g("matmul", x, v), g("relu", g("matmul", x, w))],
        ("x", (M, K), "f32"), ("v", (K, N), "f32"), ("w", (K, N), "f32"),
    )  # fmt: skip


def both(pins: Pins, other: Pins) -> Compiled:
    first, second = (n for n in compile_module(siblings(), TARGET).plan["kernels"] if "mat" in n)
    return compile_module(siblings(), TARGET, plan={"kernels": {first: pins, second: other}})


def holding(done: Compiled) -> list[frozenset[int]]:
    return [Nest(op).held for op in done.module.body.ops if op.name == "kernel" and "k" in op.attrs]


@pytest.mark.parametrize("finish", [{}, {"n": 64, "k": 116}])
def test_what_the_kernel_before_has_left_does_not_come_again(finish: dict[str, int]) -> None:
    pins = SEVERAL | {"loops": ["n", "m", "k"], "keep": [0], "finish": finish, "ahead": 4}
    done = both(pins, pins)
    assert holding(done)[-1] == {0}
    outcome = run_program(siblings(), done.program)
    assert outcome.worst >= 0.9999 and outcome.relative <= 0.01
    first, second = (
        stats.hbm_read_bytes
        for stats in run(done.program, TARGET.device, timing_only=True).launches[-2:]
    )
    assert first - second == 2 * M * 512  # all of x, in whole sticks


@pytest.mark.parametrize("other", [
    {"tile": {"m": 32, "n": 192, "k": 64}}, {"parts": {"m": 1, "n": 2}}, {"keep": []},
    {"tile": {"m": 16, "n": 192, "k": 128}},
])  # fmt: skip
def test_what_lies_elsewhere_comes_again(other: Pins) -> None:
    pins = SEVERAL | {"loops": ["n", "m", "k"], "keep": [0], "finish": {}}
    done = both(pins, pins | other)
    assert holding(done)[-1] == set()
    assert run_program(siblings(), done.program).worst >= 0.9999


def test_a_gated_mlp_reaches_its_aim() -> None:
    """As `benchmarks.floors T3` prints it."""
    (case,) = gated()
    assert TARGET.device.us(cycles(compile_module(case.module(), TARGET))) <= case.aim_us


@pytest.mark.parametrize(("finish", "told"), [
    ({"m": 4}, "finish: expected elements of n and k, got m"),
    ({"n": 0}, "finish, n: expected a whole number, 1 or more, got 0"),
    (3, "finish: expected an object, got 3"),
])  # fmt: skip
def test_pieces_that_cannot_be_meant_are_refused(finish: object, told: str) -> None:
    with pytest.raises(PassError, match="finish") as caught:
        compile_module(product(), TARGET, plan={"kernels": {"k0_matmul": {"finish": finish}}})
    assert told in str(caught.value)


@pytest.mark.parametrize(("changes", "told"), [
    ({"buffers": 1}, "overlap loads and stores"),
    ({"finish": (16, 192, 116)}, "fewer columns than the tile"),
    ({"finish": (16, 100, 116)}, "pieces of whole groups"),
    ({"finish": (8, 64, 116)}, "but for fewer columns"),
    ({"finish": (16, 128, 116)}, "pieces of one width"),
    ({"finish": (16, 64, 100)}, "leave whole trips"),
    ({"finish": (16, 64, 436)}, "two trips or more of 8"),
    ({"ahead": 3}, "ahead slots for them that divide the trips"),
])  # fmt: skip
def test_the_verifier_says_what_keeps_tiles_from_being_ended(
    changes: dict[str, Any], told: str
) -> None:
    pins = SEVERAL | {"finish": {"n": 64, "k": 116}, "ahead": 4}
    (op,) = (o for o in compiled(product(), pins).module.body.ops if o.name == "kernel")
    assert not [*finish_problems(Nest(op))]
    (sentence,) = finish_problems(Nest(op.with_attrs(**changes)))
    assert told in sentence
