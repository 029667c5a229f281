"""The baseline planner: its rules are kept, its programs compute the same, and it has keys of its
own in the cache."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_end_to_end as end_to_end
from hypothesis import given
from hypothesis import strategies as st
from small_models import module, run_program

import spyrec
from benchmarks.accuracy import LEAST_COSINE
from benchmarks.accuracy import measure as accuracy
from benchmarks.planners import Measure, Planned, bound_bytes, geometric_mean, measure, verdict
from spyrec import cli
from spyrec.buckets import weight_bytes
from spyrec.cache_key import surroundings
from spyrec.driver import Compiled, compile_module
from spyrec.ir.core import Module, Op
from spyrec.ir.errors import PassError
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import print_module
from spyrec.passes.kernel import GROUP, Nest
from spyrec.passes.manager import Numerics, Target
from spyrec.passes.pipeline import BASELINE, BASELINE_PASSES
from spyrec.sim.device import load_device
from tests.graphs import modules
from tests.pipeline_proof import DL16_ERROR, NARROW, WIDE, prove, prove_binary
from tests.test_cache import dense
from tests.test_pipeline_random import fitting, fixed

TARGET = Target(load_device())


def baseline(m: Module, plan: Any = None) -> Compiled:
    return compile_module(m, TARGET, planner="baseline", plan=plan)


def kernels(done: Compiled) -> dict[str, Op]:
    return {str(op.attrs["name"]): op for op in done.module.body.ops if op.name == "kernel"}


def product(m: int, k: int, n: int) -> Module:
    return parse_module(f'''module "m" {{
      input %x: tensor<{m}x{k}xf16>
      input %w: tensor<{k}x{n}xf16>
      %y = matmul(%x, %w) : tensor<{m}x{n}xf16>
      output "y" = %y
    }}''').with_attrs(absent=("w",))


@pytest.mark.parametrize("step", BASELINE_PASSES, ids=lambda step: str(step.name))
def test_the_docstring_shows_before_and_after(step: Any) -> None:
    outcome = doctest.testmod(importlib.import_module(step.__module__))
    assert outcome.attempted >= 4
    assert outcome.failed == 0


# What it computes ---------------------------------------------------------------------------------


@fixed(15)
@given(modules(smooth=True), st.integers(0, 99))
def test_graphs_keep_their_meaning_after_each_pass(m: Module, seed: int) -> None:
    prove(m, Target(WIDE), seed, DL16_ERROR, BASELINE)


@fixed(15)
@given(modules(smooth=True), st.sampled_from([WIDE, NARROW]), st.integers(0, 99))
def test_binaries_of_graphs(m: Module, machine: Any, seed: int) -> None:
    with fitting(machine):
        prove_binary(m, Target(machine), seed, DL16_ERROR, "baseline")


def attention() -> Module:
    """Four query heads on two of keys and values, with a causal mask."""
    shapes = (("q", 4), ("k", 2), ("v", 2))
    return module(
        lambda g, q, k, v: [g("attention", q, k, v, causal=True)],
        *((name, (1, heads, 70, 64), "f32") for name, heads in shapes),
    )


ROADS = (
    attention, end_to_end.mlp, end_to_end.layer_norm, end_to_end.conv,
    end_to_end.odd_heads, end_to_end.softmax_down, end_to_end.max_pool,
)  # fmt: skip


@pytest.mark.parametrize("make", ROADS)
def test_roads_through_the_compiler(make: Callable[[], Module]) -> None:
    m = make()
    assert run_program(m, baseline(m).program).worst >= 0.9999


# Its rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ROADS)
def test_parts_are_exact_divisors_and_nothing_moves_over_the_ring(
    make: Callable[[], Module],
) -> None:
    done = baseline(make())
    assert [op for op in done.module.body.ops if op.name == "relayout"] == []
    for op in kernels(done).values():
        nest = Nest(op)
        assert prod(nest.parts) <= TARGET.device.cores.count
        for d, (extent, parts) in enumerate(zip(nest.extents, nest.parts, strict=True)):
            units = -(-extent // GROUP) if d in (nest.stick, nest.k) else extent
            assert units % parts == 0, (nest.name, nest.dim_names[d], extent, parts)


def test_an_op_is_a_kernel_and_only_known_ops_are_one() -> None:
    names = [n.partition("_")[2] for n in kernels(baseline(end_to_end.mlp()))]
    assert names == ["matmul", "add", "mul_erf_add", "matmul", "add"]
    norm = [n.partition("_")[2] for n in kernels(baseline(end_to_end.layer_norm()))]
    assert norm == ["reduce_sum_mul_sub", "add_rsqrt", "sub_mul_add"]
    softmax = [n.partition("_")[2] for n in kernels(baseline(end_to_end.softmax()))]
    assert softmax == ["reduce_max", "sub", "exp", "reduce_sum", "reciprocal_mul"]


def test_rms_norm_and_silu_and_clip() -> None:
    m = module(
        lambda g, x: [
            g("silu", g("rms_norm", x, g.weight(256), axis=1, epsilon=1e-5)),
            g("clip", x, min=-1.0, max=1.0),
        ],
        ("x", (64, 256), "f32"),
    )
    names = [n.partition("_")[2] for n in kernels(baseline(m))]
    assert names == ["mul", "reduce_sum_mul", "add_rsqrt", "mul", "sigmoid_mul", "max_min"]


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        ((512, 4096, 12800), (4, 8, 1)),  # T3's and T7's published cut
        ((1, 4096, 25600), (1, 25, 1)),  # 400 sticks: 25 of 32 cores (#4032)
        ((67, 256, 64), (1, 1, 1)),  # 67 is prime, one stick; K only where it pays
    ],
)
def test_published_cuts_of_matmuls(shape: tuple[int, int, int], parts: tuple[int, ...]) -> None:
    (op,) = kernels(baseline(product(*shape))).values()
    assert Nest(op).parts == parts
    assert op.attrs["why_division"][0] == "matmul cost model"  # type: ignore[index]


def test_elementwise_kernels_cut_their_largest_dimension() -> None:
    m = module(lambda g, x: [g("exp", x)], ("x", (512, 12800), "f32"))
    (op,) = kernels(baseline(m)).values()
    assert Nest(op).parts == (32, 1)  # T3: not as the matmul before it


def test_where_no_exact_cut_keeps_the_span_the_usual_division_steps_in() -> None:
    """The head of a vocabulary of 769 sticks, a prime, which the published compiler fails on."""
    (op,) = kernels(baseline(product(1, 4096, 49216))).values()
    assert op.attrs["why_division"] == ("no exact cut keeps the span",)
    assert Nest(op).cores == 32
    whole = kernels(baseline(product(1, 4096, 49280)))  # 770 sticks: works there too
    assert [Nest(op).parts for op in whole.values()] == [(1, 22, 1)]


def test_results_stay_on_chip_only_where_all_are_cut_alike() -> None:
    done = baseline(end_to_end.mlp())
    why = dict(done.module.attrs["why_space"])  # type: ignore[call-overload]
    spaces = {n: t["space"] for n, t in done.plan["tensors"].items()}
    assert "its readers are divided in another way" in why.values()
    assert {spaces[n] for n in why} == {"hbm"}
    assert {n: done.plan["tensors"][n]["why"]["card_memory"] for n in why} == why
    assert "lx" in spaces.values()


def test_pins_of_a_plan_come_first() -> None:
    m = end_to_end.mlp()
    free = baseline(m)
    name = next(iter(free.plan["kernels"]))
    plan = {"kernels": {name: {"parts": {"m": 2, "n": 3}}}}
    pinned = baseline(m, plan)
    assert pinned.plan["kernels"][name]["parts"] | {"m": 2, "n": 3} == (
        pinned.plan["kernels"][name]["parts"]
    )
    assert run_program(m, pinned.program).worst >= 0.9999


# The door -----------------------------------------------------------------------------------------


def test_the_planner_is_a_part_of_the_cache_s_key() -> None:
    keys = {surroundings(TARGET, None, None, planner) for planner in ("joint", "baseline")}
    assert len(keys) == 2


def test_unknown_planners_and_a_pipeline_beside_one_are_refused() -> None:
    m = product(8, 64, 64)
    with pytest.raises(PassError, match=r"^there is no planner 'best'; known: joint, baseline$"):
        spyrec.compile(m, planner="best")
    with pytest.raises(PassError, match=r"^a pipeline and planner baseline are given; leave one"):
        spyrec.compile(m, planner="baseline", passes="dce")


def test_the_command_takes_a_planner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mlp.sir"
    path.write_text(print_module(end_to_end.layer_norm()), "utf-8")
    made = []
    for planner in ("joint", "baseline"):
        out = tmp_path / f"{planner}.spx"
        command = ["compile", str(path), "-o", str(out), "--planner", planner, "--no-cache"]
        assert cli.run(command) == 0
        made.append(spyrec.load(out))
    assert [len(p.code.launches) for p in made] == [1, 3]
    capsys.readouterr()
    assert cli.run(["compile", str(path), "--planner", "baseline", "--passes", "dce"]) == 2
    assert "--passes and --planner both choose the passes" in capsys.readouterr().err


def test_buckets_share_weights_under_the_baseline_too() -> None:
    program = spyrec.compile(dense(), buckets={"batch": [4, 67]}, planner="baseline")
    x = np.random.default_rng(0).standard_normal((50, 64)).astype(np.float32)
    got = spyrec.simulate(program, {"x": x}, check=True).outputs["y"]
    weight = np.linspace(-1, 1, 64 * 32).reshape(64, 32)
    np.testing.assert_allclose(got, x @ weight, atol=0.05)
    shared, apart = weight_bytes(program.code)
    assert shared > 0
    assert apart == 0


# The comparison -----------------------------------------------------------------------------------


def test_the_verdict_sees_a_slower_model_and_too_many_bytes() -> None:
    fast = Measure("C13", Planned(300, 3, 10, 10), Planned(100, 1, 10, 5), 10)
    slow = Measure("C01", Planned(90, 3, 10, 10), Planned(100, 1, 10, 5), 10)
    assert geometric_mean([4.0, 1.0]) == pytest.approx(2.0)
    assert verdict([fast])[1]
    said, met = verdict([fast, slow])
    assert not met
    assert said == [
        "geometric mean 1.64 (aim 1.5)", "slower than the baseline: C01",
        "transformers above 1.2 x the bytes: C01",
    ]  # fmt: skip


def test_the_bound_counts_each_tensor_once_and_of_tables_what_is_looked_up() -> None:
    m = parse_module('''module "m" {
      input %x: tensor<8x64xdl16>
      input %i: tensor<4xi32>
      input %t: tensor<1000x64xdl16>
      %w = constant {value = dense<64x64xfloat32, splat 0.5>} : tensor<64x64xdl16>
      %v = constant {value = dense<64x64xfloat32, splat 0.5>} : tensor<64x64xdl16>
      %a = matmul(%x, %w) : tensor<8x64xdl16>
      %b = matmul(%a, %v) : tensor<8x64xdl16>
      %g = gather(%t, %i) {axis = 0} : tensor<4x64xdl16>
      output "b" = %b
      output "g" = %g
    }''')
    x, i, w, rows = 8 * 64 * 2, 4 * 4, 64 * 64 * 2, 4 * 64 * 2
    assert bound_bytes(m) == x + i + w + rows + x + rows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["C13", "light_squeezenet"])
def test_real_models_are_not_slower_than_under_the_baseline(name: str) -> None:
    found = measure(name)
    assert found.ratio >= 1.5
    assert found.joint.off_chip_bytes < found.baseline.off_chip_bytes
    assert found.joint.off_chip_bytes >= found.bound_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "numerics"), [("C02", "dl16"), ("light_squeezenet", "dl16"), ("C13", "ieee16")]
)
def test_real_models_meet_the_numerics_bar_under_the_baseline(
    name: str, numerics: Numerics
) -> None:
    """C13 in a format of more bits: a kernel an op rounds more often than fused ones do."""
    rows = list(accuracy(name, numerics, random_weights=not name.startswith("C"),
                         planner="baseline"))  # fmt: skip
    assert rows
    for row in rows:
        assert row.cosine >= LEAST_COSINE, row
