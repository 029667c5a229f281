"""Plans: what is written pins again to the same bytes, pins are honoured or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from real_models import MODELS as MODELS_ON_FILE
from real_models import model_path
from small_models import module, run_binary, run_program

import spyrec
from spyrec import cli
from spyrec.driver import Compiled, compile_module
from spyrec.ir.core import Module, Value
from spyrec.ir.errors import PassError
from spyrec.passes.allocate import largest_part
from spyrec.passes.manager import Target
from spyrec.passes.plan import Plan, parse_plan
from spyrec.sim.device import load_device
from spyrec.sim.objfile import dump

TARGET = Target(load_device(), "dl16")
Data = dict[str, Any]


def compiled(m: Module, plan: Mapping[str, Any] | None = None) -> Compiled:
    return compile_module(m, TARGET, plan=plan)


def matmul() -> Module:
    def make(g: Any, x: Value) -> list[Value]:
        return [g("relu", g("matmul", x, g.weight(320, 200)))]

    return module(make, ("x", (100, 320), "f32"))


def odd_inner_dimension() -> Module:
    return module(lambda g, x: [g("matmul", x, g.weight(300, 200))], ("x", (100, 300), "f32"))


def conv() -> Module:
    return module(
        lambda g, x: [g("conv", x, g.weight(100, 70, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1),
                        dilations=(1, 1))],
        ("x", (1, 70, 30, 31), "f32"),
    )  # fmt: skip


def feed_forward() -> Module:
    def make(g: Any, x: Value) -> list[Value]:
        h = g("gelu", g("add", g("matmul", x, g.weight(256, 512)), g.weight(512)))
        return [g("add", g("matmul", h, g.weight(512, 256)), x)]

    return module(make, ("x", (64, 256), "f32"))


def attention() -> Module:
    def make(g: Any, x: Value) -> list[Value]:
        def head(perm: tuple[int, ...]) -> Value:
            y = g("reshape", g("matmul", x, g.weight(128, 128)), shape=(1, 64, 4, 32))
            return g("transpose", y, perm=perm)

        scores = g("softmax", g("matmul", head((0, 2, 1, 3)), head((0, 2, 3, 1))), axis=3)
        out = g("transpose", g("matmul", scores, head((0, 2, 1, 3))), perm=(0, 2, 1, 3))
        return [g("reshape", out, shape=(1, 64, 128))]

    return module(make, ("x", (1, 64, 128), "f32"))


def embedding() -> Module:
    return module(lambda g, i: [g("gather", g.weight(500, 192), i, axis=0)], ("i", (3, 100), "u16"))


def pooled_image() -> Module:
    def make(g: Any, x: Value) -> list[Value]:
        y = g("max_pool", g("conv", x, g.weight(70, 30, 3, 3), strides=(1, 1), pads=(1, 1, 1, 1),
                            dilations=(1, 1)),
              kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1))  # fmt: skip
        return [g("reduce_mean", g("concat", y, g("neg", y), axis=1), axes=(2, 3))]

    return module(make, ("x", (1, 30, 20, 21), "f32"))


def column_sums() -> Module:
    return module(
        lambda g, x: [g("reduce_sum", g("exp", x), axes=(0,)), g("sigmoid", x)],
        ("x", (300, 70), "f32"),
    )


MODELS = [matmul, odd_inner_dimension, conv, feed_forward, attention, embedding, pooled_image,
          column_sums]  # fmt: skip


def decisions(plan: Mapping[str, Any]) -> Data:
    """A plan without what is only there to be read."""
    return {
        kind: {name: {k: v for k, v in pins.items() if k != "why"} for name, pins in part.items()}
        for kind, part in plan.items()
    }


def without_room(plan: Mapping[str, Any]) -> list[str]:
    """Tensors that only the lack of room keeps out of the scratchpads."""
    reasons = {name: t["why"].get("card_memory", "") for name, t in plan["tensors"].items()}
    return [name for name, reason in reasons.items() if reason.startswith("no room")]


@pytest.mark.parametrize("model", MODELS, ids=lambda f: f.__name__)
def test_a_full_plan_gives_the_same_bytes_again(model: Callable[[], Module]) -> None:
    first = compiled(model())
    plan = json.loads(json.dumps(first.plan))
    again = compiled(model(), plan)
    assert dump(again.program) == dump(first.program)
    assert decisions(again.plan) == decisions(first.plan)
    assert {k.name for k in first.program.kernels} <= set(plan["kernels"])


@pytest.mark.parametrize("model", MODELS, ids=lambda f: f.__name__)
def test_a_plan_names_every_kernel_and_tensor_with_numbers(model: Callable[[], Module]) -> None:
    done = compiled(model())
    kernels = [op for op in done.module.body.ops if op.name == "kernel"]
    assert list(done.plan["kernels"]) == [op.attrs["name"] for op in kernels]
    made = [*done.module.body.args, *(r for op in kernels for r in op.results)]
    assert list(done.plan["tensors"]) == [v.name for v in made]
    for pins in done.plan["kernels"].values():
        assert pins["why"]["parts"]["cost_cycles"] > 0
        for other in pins["why"]["parts"]["rejected"]:
            assert other["parts"] != pins["parts"]
            cheaper = other["cost_cycles"] < pins["why"]["parts"]["cost_cycles"]
            assert cheaper == ("ruled_out" in other)
    for pins in done.plan["tensors"].values():
        assert pins["why"]["bytes"] % 128 == 0
        assert ("core_bytes" in pins["why"]) == (pins["space"] == "lx")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["C02", "C17", "light_squeezenet"])
def test_the_plan_of_a_real_model_gives_the_same_bytes_again(name: str) -> None:
    bind = dict(MODELS_ON_FILE[name].bind)
    first = spyrec.compile(model_path(name), bind=bind)
    plan = json.loads(json.dumps(first.plan))
    assert dump(spyrec.compile(model_path(name), bind=bind, plan=plan).code) == dump(first.code)


def test_the_price_of_a_tile_stands_beside_those_of_the_next_best() -> None:
    chosen = compiled(feed_forward()).plan["kernels"]["k0_matmul_add_mul"]
    why = chosen["why"]["tile"]
    prices = [why["cost_cycles"], *(other["cost_cycles"] for other in why["rejected"])]
    assert prices[0] > 0
    assert len(prices) == 4
    assert prices == sorted(prices)
    kinds = [(t["tile"], t["loops"]) for t in (chosen, *why["rejected"])]
    assert all(kinds.count(kind) == 1 for kind in kinds)
    assert 0 < why["bytes"] <= why["budget_bytes"]


# Pins that are honoured ------------------------------------------------------------------------


@st.composite
def cuts(draw: st.DrawFn, extents: Mapping[str, tuple[int, int]]) -> tuple[dict[str, int], Data]:
    """Parts and the largest part of each dimension given as name -> (extent, grain)."""
    left, parts, local = 32, {}, {}
    for name, (extent, grain) in extents.items():
        parts[name] = draw(st.integers(1, min(-(-extent // grain), left)), label=f"parts {name}")
        left //= parts[name]
        local[name] = largest_part(extent, parts[name], grain)
    return parts, local


def tiles(extents: Mapping[str, tuple[int, int]], local: Mapping[str, int]) -> Any:
    return st.fixed_dictionaries({
        name: st.sampled_from([*range(grain, local[name], grain), local[name]])
        for name, (_, grain) in extents.items()
    })


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_legal_pins_of_a_matmul_hold_and_the_binary_stays_right(data: st.DataObject) -> None:
    model, kernel, k = data.draw(
        st.sampled_from([(matmul, "k0_matmul_max", 320), (odd_inner_dimension, "k0_matmul", 300)])
    )
    rows = {"m": (100, 1), "n": (200, 64)}
    parts, local = data.draw(cuts(rows))
    tile = data.draw(tiles({**rows, "k": (k, 64)}, {**local, "k": k}))
    order = data.draw(st.sampled_from([["m", "n"], ["n", "m"]]))
    loops = [*data.draw(st.sampled_from([["m", "n"], ["n", "m"]])), "k"]
    whole = {**parts, "k": 1}  # left open, the sum may be divided too
    pins = {"parts": whole, "core_order": order, "tile": tile, "loops": loops}
    check_pins(model(), kernel, pins, {**local, "k": k})


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_legal_pins_of_a_convolution_hold_and_the_binary_stays_right(
    data: st.DataObject,
) -> None:
    rows = {"oh": (15, 1), "ow": (16, 1), "oc": (100, 64)}
    parts, local = data.draw(cuts(rows))
    tile = data.draw(tiles(rows, local))
    loops = data.draw(st.sampled_from(list(permutations(rows))))
    pins = {"parts": parts, "tile": tile, "loops": list(loops)}
    check_pins(conv(), "k0_conv", pins, local)


def check_pins(m: Module, kernel: str, pins: Data, local: Mapping[str, int]) -> None:
    plan = {"kernels": {kernel: pins}}
    done = compiled(m, plan)
    taken = done.plan["kernels"][kernel]
    assert taken["parts"] == {**taken["parts"], **pins["parts"]}
    assert taken["tile"] == {**taken["tile"], **pins["tile"]}
    named = [d for d in taken["loops"] if d in pins["loops"]]  # others may be looped over, too
    assert named == [d for d in pins["loops"] if pins["tile"].get(d, 0) < local[d]]
    if "core_order" in pins:
        assert taken["core_order"] == [d for d in pins["core_order"] if pins["parts"][d] > 1]
    assert run_program(m, done.program).worst >= 0.9999


def test_what_a_partial_pin_leaves_open_is_decided_by_the_passes() -> None:
    plan = {"kernels": {"k0_matmul_max": {"parts": {"m": 3}, "tile": {"k": 64}}}}
    taken = compiled(matmul(), plan).plan["kernels"]["k0_matmul_max"]
    assert taken["parts"] == {"m": 3, "n": 4, "k": 1}
    assert taken["tile"]["k"] == 64
    assert taken["loops"][-1] == "k"
    assert taken["why"]["parts"]["pinned"] == ["m"]
    assert taken["why"]["tile"]["pinned"] == ["k"]


def test_tensors_pinned_to_card_memory_go_there() -> None:
    free = compiled(feed_forward()).plan["tensors"]
    [kept] = [name for name, t in free.items() if t["space"] == "lx"]
    plan = {"tensors": {kept: {"space": "hbm"}}}
    assert compiled(feed_forward(), plan).plan["tensors"][kept]["space"] == "hbm"
    outcome = run_binary(feed_forward(), plan=plan)
    assert outcome.worst >= 0.9999
    assert sum(launch.ring_bytes for launch in outcome.result.launches) == 0


def test_a_tensor_pinned_to_the_scratchpad_stays_there_whatever_the_share() -> None:
    pipeline = (
        "canonicalize,fold,decompose,canonicalize,fold,legalize-dtypes,dce,fuse,stick-layout,"
        "core-allocation,ring-relayout{share=0.0},tiling,lower-tiles,scratchpad,hbm"
    )
    m = module(
        lambda g, x: [g("matmul", g("matmul", x, g.weight(256, 512)), g.weight(512, 256))],
        ("x", (64, 256), "f32"),
    )
    free = compile_module(m, TARGET, pipeline=pipeline)
    [name] = without_room(free.plan)
    plan = {"tensors": {name: {"space": "lx"}}}
    pinned = compile_module(m, TARGET, pipeline=pipeline, plan=plan)
    assert pinned.plan["tensors"][name]["space"] == "lx"
    assert run_binary(m, pipeline=pipeline, plan=plan).worst >= 0.9999


def test_a_pinned_stick_is_taken_and_repacked_for_its_readers() -> None:
    plan = {"tensors": {"x": {"stick": 0}}}
    done = compiled(matmul(), plan)
    assert done.plan["tensors"]["x"]["stick"] == 0
    assert "r0_restickify" in done.plan["kernels"]
    assert "r0_restickify" not in compiled(matmul()).plan["kernels"]
    assert run_binary(matmul(), plan=plan).worst >= 0.9999


def test_an_empty_plan_changes_nothing() -> None:
    want = dump(compiled(attention()).program)
    assert dump(compiled(attention(), {}).program) == want
    assert dump(compiled(attention(), {"kernels": {}, "tensors": {}}).program) == want
    assert parse_plan({}) == Plan()


# Pins that are refused -------------------------------------------------------------------------


def refusal(m: Module, plan: Mapping[str, Any]) -> list[str]:
    with pytest.raises(PassError) as error:
        compiled(m, plan)
    return str(error.value).splitlines()


KERNEL_RULES = [
    (matmul, {"parts": {"q": 2}}, "parts: there is no dimension q; known: m, n, k"),
    (matmul, {"core_order": ["z"]}, "core_order: there is no dimension z; known: m, n, k"),
    (matmul, {"parts": {"m": 9, "n": 4}}, "parts: m=9 x n=4 are 36 parts, there are 32 cores"),
    (matmul, {"parts": {"n": 5}},
     "parts: n = 200 is cut in steps of 64 into 4 parts at most, got 5"),
    (conv, {"parts": {"kh": 3}},
     "parts: kh is summed over, so it is not divided among cores; got 3 parts"),
    (matmul, {"loops": ["k", "m"]},
     "loops: k is summed over, so its loop stands inside the others; put it last"),
    (matmul, {"parts": {"m": 4}, "tile": {"m": 26}},
     "tile: m = 26 is larger than the part of a core, 25"),
    (matmul, {"parts": {"n": 1}, "tile": {"n": 100}}, "tile: n = 100 is no multiple of 64"),
    (matmul, {"tile": {"k": 100}}, "tile: k = 100 is no multiple of 64"),
    (conv, {"tile": {"kh": 1}}, "tile: kh = 1 cuts a dimension that stays whole, 3"),
    (conv, {"loops": ["kw"]}, "loops: kw is whole in each tile and has no loop"),
    (attention, {"tile": {"b1": 4}, "parts": {"b1": 1}},
     "tile: b1 = 4 must be 1: an instruction has no dimension left for it"),
    (embedding, {"tile": {"i1": 20}}, "tile: i1 = 20 is no multiple of 64"),
    (embedding, {"loops": ["i1"]},
     "loops: tiles of a gather kernel come in the order of its dimensions; leave loops out"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "pins", "rule"), KERNEL_RULES, ids=lambda x: None)
def test_a_pin_that_breaks_a_rule_is_refused_by_name(
    model: Callable[[], Module], pins: Data, rule: str
) -> None:
    dims = {*pins.get("parts", ()), *pins.get("tile", ())}
    kernels = compiled(model()).plan["kernels"]
    kernel = next((k for k, v in kernels.items() if dims <= set(v["parts"])), next(iter(kernels)))
    assert refusal(model(), {"kernels": {kernel: pins}}) == [f"plan: kernel {kernel}, {rule}"]


def test_a_dimension_that_is_folded_and_used_again_is_not_divided() -> None:
    m = module(lambda g, x: [g("softmax", x, axis=1)], ("x", (100, 300), "f32"))
    [kernel] = compiled(m).plan["kernels"]
    assert refusal(m, {"kernels": {kernel: {"parts": {"d1": 2}}}}) == [
        f"plan: kernel {kernel}, parts: d1 is folded and used again in one tile, so it stays "
        "whole; got 2 parts"
    ]


def test_a_tile_over_the_accumulators_is_refused() -> None:
    m = module(lambda g, x: [g("matmul", x, g.weight(64, 512))], ("x", (200, 64), "f32"))
    one = {"m": 1, "n": 1}
    plan = {"kernels": {"k0_matmul": {"parts": one, "tile": {"m": 200, "n": 512}}}}
    assert refusal(m, plan) == [
        "plan: kernel k0_matmul, tile: 200 rows of 512 columns take 1600 accumulator groups, the "
        "device has 1024"
    ]


def test_tiles_over_half_the_accumulators_follow_each_other_in_one_slot() -> None:
    m = module(lambda g, x: [g("matmul", x, g.weight(64, 512))], ("x", (200, 64), "f32"))
    pins = {"parts": {"m": 1, "n": 1}, "tile": {"m": 100, "n": 512}}  # 800 groups, twice
    plan = {"kernels": {"k0_matmul": pins}}
    assert compiled(m, plan).plan["kernels"]["k0_matmul"]["tile"] == {"m": 100, "n": 512, "k": 64}
    assert run_binary(m, plan=plan).worst >= 0.9999


def test_a_tile_over_the_scratchpad_is_refused() -> None:
    m = module(lambda g, x: [g("exp", x)], ("x", (20000, 64), "f32"))
    [kernel] = compiled(m).plan["kernels"]
    plan = {"kernels": {kernel: {"parts": {"d0": 2, "d1": 1}, "tile": {"d0": 10000}}}}
    assert refusal(m, plan) == [
        f"plan: kernel {kernel}, tile: its buffers take 4.88 MiB of scratchpad at least, the "
        "budget of one kernel is 0.81 MiB"
    ]


def test_what_no_loop_changes_counts_once_in_a_pinned_tile() -> None:
    m = module(lambda g, x: [g("matmul", x, g.weight(2048, 128))], ("x", (64, 2048), "f32"))
    tile = {"m": 16, "n": 128, "k": 2048}  # 0.5 MiB of weights, twice more than the 0.81 MiB
    plan = {"kernels": {"k0_matmul": {"parts": {"m": 1, "n": 1}, "tile": tile}}}
    assert compiled(m, plan).plan["kernels"]["k0_matmul"]["tile"] == tile
    assert run_binary(m, plan=plan).worst >= 0.9999


def test_tensors_that_cannot_be_as_pinned_are_refused_all_at_once() -> None:
    tensors = compiled(feed_forward()).plan["tensors"]
    [middle] = [name for name, t in tensors.items() if t["space"] == "lx"]
    output = list(tensors)[-1]
    plan = {
        "kernels": {"k9": {}, "k1_matmul_add": {"parts": {"m": 99}}},
        "tensors": {
            "x": {"space": "lx"}, output: {"space": "lx"}, middle: {"stick": 0},
            "y": {"stick": 0}, "x_2": {"stick": 7},
        },
    }  # fmt: skip
    names = ", ".join(tensors)
    assert refusal(feed_forward(), plan) == [
        "plan: there is no kernel k9; known: k0_matmul_add_mul, k1_matmul_add",
        "plan: kernel k1_matmul_add, parts: m=99 are 99 parts, there are 32 cores",
        "plan: kernel k1_matmul_add, parts: m = 64 is cut into 64 parts at most, got 99",
        "plan: tensor x cannot be pinned to the scratchpads: it is a model input, which lies in "
        "card memory",
        f"plan: tensor {output} cannot be pinned to the scratchpads: it is a model output, which "
        "lies in card memory",
        f"plan: tensor {middle}: k0_matmul_add_mul cannot have its dimension 0 along the lanes; "
        "possible: 1",
        f"plan: there is no tensor y; known: {names}",
        f"plan: there is no tensor x_2; known: {names}",
    ]


def test_tensors_a_look_up_reads_and_constants_are_refused() -> None:
    m = module(
        lambda g, x, i: [g("gather", g("exp", g("matmul", x, g.weight(64, 128))), i, axis=0)],
        ("x", (50, 64), "f32"), ("i", (40,), "u16"),
    )  # fmt: skip
    done = compiled(m)
    [table] = [n for n, t in done.plan["tensors"].items() if "look-up" in str(t["why"])]
    gather = next(k for k in done.plan["kernels"] if "gather" in k)
    weight = next(op.result.name for op in done.module.body.ops if op.name == "constant")
    plan = {"tensors": {table: {"space": "lx"}, weight: {"stick": 0}}}
    assert refusal(m, plan) == [
        f"plan: tensor {table} cannot be pinned to the scratchpads: {gather} looks it up, which "
        "works in card memory only",
        f"plan: tensor {weight} is a constant, which is stored as each of its readers wants it",
    ]


def test_a_tensor_that_does_not_fit_the_scratchpads_is_refused() -> None:
    m = module(
        lambda g, x: [g("matmul", g("matmul", x, g.weight(64, 8192)), g.weight(8192, 64))],
        ("x", (8192, 64), "f32"),
    )
    [name] = without_room(compiled(m).plan)
    [problem] = refusal(m, {"tensors": {name: {"space": "lx"}}})
    assert problem.startswith(
        f"plan: tensor {name} is pinned to the scratchpads, but beside what else is pinned there "
        "it does not fit into 1.94 MiB a core (from "
    )


def test_a_plan_of_the_wrong_form_lists_every_place() -> None:
    with pytest.raises(PassError) as error:
        parse_plan({
            "kernel": {},
            "kernels": {"k0": {"parts": {"m": 0, "n": True}, "split": 1, "loops": "mn",
                               "buffers": 3}, "k1": 3, "k3": ["m"] * 99,
                        "k2": {"core_order": ["m", "m"]}},
            "tensors": {"x": {"stick": -1, "space": "ring"}},
        })  # fmt: skip
    assert str(error.value).splitlines() == [
        "plan: the plan has no part 'kernel'; known: kernels, tensors, why",
        "plan: kernel k0 has no part 'split'; known: parts, core_order, buffers, overlap, tile, "
        "loops, keep, finish, ahead, why",
        "plan: kernel k0, buffers: expected 1 or 2, got 3",
        "plan: kernel k0, parts, m: expected a whole number, 1 or more, got 0",
        "plan: kernel k0, parts, n: expected a whole number, 1 or more, got True",
        "plan: kernel k0, loops: expected a list of dimension names, got 'mn'",
        "plan: kernel k1: expected an object, got 3",
        "plan: kernel k3: expected an object, got a list",
        "plan: kernel k2, core_order: a dimension is named twice in ['m', 'm']",
        "plan: tensor x, stick: expected the number of a dimension, counted from 0, got -1",
        "plan: tensor x, space: expected \"lx\" or \"hbm\", got 'ring'",
    ]


def test_a_pipeline_without_planning_passes_takes_no_plan() -> None:
    with pytest.raises(PassError) as error:
        compile_module(matmul(), TARGET, pipeline="canonicalize,fuse", plan={})
    assert str(error.value) == (
        "plan: the pipeline has no pass stick-layout, which takes decisions of a plan"
    )


def test_the_command_line_refuses_a_plan_with_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="/dense")], "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 32])],
        [numpy_helper.from_array(np.ones((64, 32), np.float32), "w")],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), "dense.onnx")
    Path("plan.json").write_text('{"kernels": {"k0_matmul": {"parts": {"m": 64}}}}', "utf-8")
    with pytest.raises(spyrec.SpyrecError, match="m=64 are 64 parts, there are 32 cores"):
        spyrec.compile("dense.onnx", plan="plan.json")
    assert cli.run(["compile", "dense.onnx", "-o", "d.spx", "--plan", "plan.json"]) == 1
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == (
        "spyrec: plan: kernel k0_matmul, parts: m=64 are 64 parts, there are 32 cores"
    )
    assert second == (
        "spyrec: plan: kernel k0_matmul, parts: m = 4 is cut into 4 parts at most, got 64"
    )
    assert not Path("d.spx").exists()
