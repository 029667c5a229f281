"""Factors of a matrix kernel whose tiles stay in the scratchpad: each byte comes once, the numbers
are right, no hazard, and what stays is planned, recorded and pinned like any other decision."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import module, run_binary, run_program

from benchmarks.floors import wide
from spyrec.driver import Compiled, compile_module
from spyrec.ir.core import Module
from spyrec.ir.errors import PassError
from spyrec.ir.tiles import kept_trips
from spyrec.passes.attrs import entries
from spyrec.passes.kernel import Nest
from spyrec.passes.manager import Target
from spyrec.sim.device import load_device
from spyrec.sim.objfile import dump
from spyrec.sim.run import run
from tests.test_end_to_end import conv

TARGET = Target(load_device(), "dl16")
Pins = dict[str, Any]
M, N, K = 67, 300, 200


def product() -> Module:
    return module(lambda g, x, w: [g("matmul", x, w)], ("x", (M, K), "f32"), ("w", (K, N), "f32"))


def batch() -> Module:
    """A second factor for all of the batch: rows of two dimensions."""
    return module(lambda g, x: [g("matmul", x, g.weight(K, N))], ("x", (3, 21, K), "f32"))


def batched() -> Module:
    """Each matrix of the batch has a second factor of its own."""
    return module(
        lambda g, x, w: [g("matmul", x, w)], ("x", (3, M, K), "f32"), ("w", (3, K, N), "f32")
    )


def mlp() -> Module:
    """Two products of inputs: of the second one factor is there before its kernel begins."""
    return module(
        lambda g, x, v, w: [g("matmul", g("relu", g("matmul", x, v)), w)],
        ("x", (64, 256), "f32"), ("v", (256, 512), "f32"), ("w", (512, 256), "f32"),
    )  # fmt: skip


ROWS: Pins = {"parts": {"m": 2, "n": 2}, "tile": {"m": 16, "n": 64, "k": 64}}
CASES: Mapping[str, tuple[Any, Pins]] = {
    "first": (product, ROWS | {"loops": ["n", "m", "k"], "keep": [0]}),
    "second": (product, ROWS | {"loops": ["m", "n", "k"], "keep": [1]}),
    "rows of the first": (product, ROWS | {"loops": ["m", "n", "k"], "keep": [0]}),
    "columns of the second": (product, ROWS | {"loops": ["n", "m", "k"], "keep": [1]}),
    "both": (product, ROWS | {"loops": ["m", "n", "k"], "keep": [0, 1]}),
    "whole inner": (product, ROWS | {"tile": {"m": 16, "n": 64, "k": K}, "keep": [1]}),
    "two row dimensions": (
        batch, {"parts": {"b0": 2, "m": 1, "n": 2}, "tile": {"b0": 1, "m": 8, "n": 64, "k": 64},
                "loops": ["b0", "m", "n", "k"], "keep": [0, 1]},
    ),
    "anew for each matrix": (
        batched, {"parts": {"b0": 1, "m": 4, "n": 2}, "tile": {"m": 8, "n": 64, "k": 64},
                  "loops": ["b0", "m", "n", "k"], "keep": [0, 1]},
    ),
    "conv": (conv, {"parts": {"oh": 2, "ow": 1, "oc": 1}, "tile": {"oh": 2, "oc": 64},
                    "loops": ["oc", "oh"], "keep": [0]}),
}  # fmt: skip


def compiled(m: Module, pins: Pins | None = None) -> Compiled:
    name = next(iter(compile_module(m, TARGET).plan["kernels"]))
    return compile_module(m, TARGET, plan={"kernels": {name: pins}} if pins is not None else None)


def read_bytes(done: Compiled) -> int:
    launches = run(done.program, TARGET.device, timing_only=True).launches
    return sum(stats.hbm_read_bytes for stats in launches)


@pytest.mark.parametrize("name", CASES)
def test_what_stays_is_read_once_and_the_numbers_are_right(name: str) -> None:
    make, pins = CASES[name]
    done = compiled(make(), pins)
    (taken,) = done.plan["kernels"].values()
    assert taken["keep"] == pins["keep"]
    outcome = run_program(make(), done.program)
    assert outcome.worst >= 0.9999 and outcome.relative <= 0.01
    assert read_bytes(done) < read_bytes(compiled(make(), pins | {"keep": []}))


def test_each_byte_of_both_factors_comes_once() -> None:
    done = compiled(product(), CASES["both"][1] | {"parts": {"m": 1, "n": 1}})
    rows, lanes = {"x": (M, 256), "w": (K, 320)}, 2  # columns in whole groups of 64
    assert read_bytes(done) == sum(m * n * lanes for m, n in rows.values())


@st.composite
def pins_of_a_product(draw: st.DrawFn) -> Pins:
    tile = {
        "m": draw(st.sampled_from((5, 16, 33))), "n": 64 * draw(st.integers(1, 2)),
        "k": 64 * draw(st.integers(1, 3)),
    }  # fmt: skip
    return {
        "parts": {"m": 2, "n": draw(st.integers(1, 2))}, "tile": tile,
        "loops": [*draw(st.sampled_from(list(permutations("mn")))), "k"],
        "keep": draw(st.sampled_from(([], [0], [1], [0, 1]))),
    }  # fmt: skip


@given(pins_of_a_product())
@settings(max_examples=12, deadline=None)
def test_any_tiles_and_order_give_right_numbers(pins: Pins) -> None:
    done = compiled(product(), pins)
    (taken,) = done.plan["kernels"].values()
    assert set(taken["keep"]) <= set(pins["keep"])
    outcome = run_program(product(), done.program)
    assert outcome.worst >= 0.9999 and outcome.relative <= 0.01


def test_tiles_that_stay_are_those_inside_the_loops_that_repeat_them() -> None:
    first, second = ((0, (1, 0, 0)), (0, (0, 0, 1))), ((0, (0, 0, 1)), (0, (0, 1, 0)))
    assert kept_trips(first, (1, 0, 2), (5, 3, 4)) == 12  # n outside: all of the core's rows
    assert kept_trips(first, (0, 1, 2), (3, 5, 4)) == 4  # m outside: those of one row tile
    assert kept_trips(first, (0, 2), (3, 4)) == 0  # nothing repeats it
    assert kept_trips(second, (0, 1, 2), (3, 5, 4)) == 20
    assert kept_trips(second, (0, 1), (3, 5)) == 5  # the inner dimension whole in a tile
    between = ((0, (0, 1, 0, 0)), (0, (0, 0, 0, 1)))  # loops 0 and 2 repeat it, 1 is between
    assert kept_trips(between, (0, 1, 2, 3), (2, 2, 2, 2)) == 0


def test_the_planner_keeps_what_it_would_read_again() -> None:
    """As `benchmarks.floors T1` prints it for all six."""
    case = next(wide())
    done = compile_module(case.module(), TARGET)
    (kernel,) = (op for op in done.module.body.ops if op.name == "kernel")
    nest = Nest(kernel)
    assert nest.keep and nest.cores == TARGET.device.cores.count
    cycles = run(done.program, TARGET.device, timing_only=True).total_cycles
    peak = TARGET.device.cores.count * TARGET.device.pt.macs_per_cycle
    assert cycles <= case.aim_floors * 2 * 512 * 4096 * 12800 / peak


def test_a_full_plan_with_kept_factors_gives_the_same_bytes() -> None:
    done = compiled(product(), CASES["both"][1])
    again = compile_module(product(), TARGET, plan=done.plan)
    assert again.plan["kernels"] == done.plan["kernels"] | {
        name: {**kernel, "why": again.plan["kernels"][name]["why"]}
        for name, kernel in done.plan["kernels"].items()
    }
    assert dump(again.program) == dump(done.program)


@pytest.mark.parametrize(("keep", "told"), [
    ([2], "keep: expected one of [], [0], [1], [0, 1], got [2]"),
    ("first", "keep: expected one of [], [0], [1], [0, 1], got 'first'"),
])  # fmt: skip
def test_only_the_two_factors_can_be_kept(keep: object, told: str) -> None:
    with pytest.raises(PassError) as caught:
        compile_module(product(), TARGET, plan={"kernels": {"k0_matmul": {"keep": keep}}})
    assert str(caught.value) == f"plan: kernel k0_matmul, {told}"


def test_a_vector_kernel_has_no_factors_to_keep() -> None:
    m = module(lambda g, x: [g("exp", x)], ("x", (64, 64), "f32"))
    with pytest.raises(PassError, match="keep: only matrix kernels have factors to keep"):
        compile_module(m, TARGET, plan={"kernels": {"k0_exp": {"keep": [0]}}})


def test_a_factor_that_is_an_input_comes_while_the_kernel_before_runs() -> None:
    done = compile_module(mlp(), TARGET)
    first, second = (op for op in done.module.body.ops if op.name == "kernel")
    assert not entries(first, "early") and entries(second, "early")
    assert run_binary(mlp()).worst >= 0.9999
