"""``spyrec explain``: what it says is simulated, can be pinned, and fits the terminal."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from real_models import MODELS, model_path
from rich.console import Console
from small_models import Graph, module

import spyrec
from examples.make_models import encoder
from spyrec import api, cli
from spyrec.explain_model import chosen
from spyrec.explain_table import explained
from spyrec.explanation import (
    Alternative,
    Choice,
    Explanation,
    Gain,
    KernelExplained,
    TensorPlace,
    Trial,
    WhatIf,
)
from spyrec.ir.core import Module, Value
from spyrec.ir.errors import SpyrecError
from spyrec.ir.printer import print_module
from spyrec.passes.pipeline import PIPELINE
from spyrec.passes.pipeline_text import print_pipeline
from spyrec.sim.device import load_device
from spyrec.sim.isa import Bucket
from spyrec.trials import merged, planner_of
from spyrec.what_if import CHANGES

STALE = "docs/explain.md has drifted from the program; run: make docs"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "explain.md"


def layers(count: int = 2) -> Module:
    """Equal layers, each a product with a residual."""

    def make(g: Graph, x: Value) -> list[Value]:
        for _ in range(count):
            x = g("add", g("matmul", x, g.weight(256, 256)), x)
        return [x]

    return module(make, ("x", (64, 256), "f32"))


def one_product() -> Module:
    return module(lambda g, x: [g("matmul", x, g.weight(256, 192))], ("x", (100, 256), "f32"))


@pytest.fixture(scope="module")
def told() -> Explanation:
    return spyrec.explain(layers(), tries=True)


@pytest.fixture(scope="module")
def program() -> api.Program:
    return spyrec.compile(layers())


# What it says is so ------------------------------------------------------------------------------


def device_file(folder: Path, values: dict[str, int]) -> str:
    """The usual device file with these values written into its text."""
    text = load_device().text
    for key, value in values.items():
        section, name = key.split(".")
        pattern = rf"(?ms)(^\[{section}\].*?^{name} = )\d+"
        text, found = re.subn(pattern, rf"\g<1>{value}", text, count=1)
        assert found == 1, key
    path = folder / "changed.toml"
    path.write_text(text, "utf-8")
    return str(path)


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.name)
def test_a_what_if_is_a_simulation_with_such_a_device_file(
    change: Any, told: Explanation, program: api.Program, tmp_path: Path
) -> None:
    [what_if] = [w for w in told.what_ifs if w.name == change.name]
    device = device_file(tmp_path, dict(what_if.device))
    ran = spyrec.simulate(program, timing_only=True, device=device)
    assert what_if.cycles == ran.total_cycles
    assert what_if.gain_cycles == told.total_cycles - ran.total_cycles
    assert what_if.gain == pytest.approx(1 - ran.total_cycles / told.total_cycles)


def test_what_helps_a_kernel_is_simulated_for_it_alone(tmp_path: Path) -> None:
    program = spyrec.compile(one_product())
    [kernel] = spyrec.explain(program).kernels
    assert kernel.alone_cycles == spyrec.simulate(program, timing_only=True).total_cycles
    for change in CHANGES:
        device = device_file(tmp_path, change.values(load_device()))
        cycles = spyrec.simulate(program, timing_only=True, device=device).total_cycles
        [gain] = [g for g in kernel.what_ifs if g.name == change.name]
        assert (gain.cycles, gain.gain_cycles) == (cycles, kernel.alone_cycles - cycles)
    assert any(g.gain_cycles > 0 for g in kernel.what_ifs)


def test_gains_come_sorted(told: Explanation) -> None:
    for gains in (told.what_ifs, *(k.what_ifs for k in told.kernels)):
        assert len(gains) == len(CHANGES)
        found = [g.gain_cycles for g in gains]
        assert found == sorted(found, reverse=True)


def test_every_change_is_of_a_parameter_and_changes_it() -> None:
    device = load_device()
    for change in CHANGES:
        changed = change.device(device)
        assert changed != device
        for key, value in change.values(device).items():
            section, name = key.split(".")
            assert getattr(getattr(changed, section), name) == value


def test_times_are_those_of_the_report(told: Explanation, program: api.Program) -> None:
    ran = spyrec.simulate(program, timing_only=True)
    assert told.total_cycles == ran.total_cycles
    assert told.launch_cycles == ran.facts.launch_cycles
    assert told.meeting_cycles == ran.facts.meeting_cycles
    assert told.runs == sum(k.count for k in told.kernels) == sum(r.count for r in ran.kernels)
    assert told.launches == ran.totals.launches
    assert sum(k.cycles for k in told.kernels) == sum(r.count * r.cycles for r in ran.kernels)
    assert sum(told.bounds.values()) == pytest.approx(1)
    for bound, share in told.bounds.items():
        cycles = sum(r.count * r.cycles for r in ran.kernels if r.bound == bound)
        waited = {
            "start-up": ran.facts.launch_cycles, "meeting": ran.facts.meeting_cycles
        }.get(bound, 0)
        assert share * ran.total_cycles == pytest.approx(cycles + waited)
    times = [k.cycles for k in told.kernels]
    assert times == sorted(times, reverse=True)


def test_equal_kernels_are_told_of_once() -> None:
    program = spyrec.compile(layers(5))
    five = spyrec.explain(program)
    assert five.runs == 5
    assert sorted(k.count for k in five.kernels) == [1, 1, 3]
    names = sorted(n for k in five.kernels for n in k.launches)
    assert names == sorted(program.plan["kernels"])


def test_floors_are_no_longer_than_the_time_of_a_kernel_alone(told: Explanation) -> None:
    for kernel in told.kernels:
        assert max(kernel.floors.values()) <= kernel.alone_cycles * kernel.count
        assert kernel.floors.get(kernel.bound, max(kernel.floors.values())) == kernel.floor_cycles
        assert kernel.over_floor == pytest.approx(kernel.cycles / kernel.floor_cycles)


# Alternatives are real ---------------------------------------------------------------------------


def test_alternatives_are_as_many_as_asked_for_sorted_and_others_than_the_choice(
    told: Explanation,
) -> None:
    for kernel in told.kernels:
        for kind, decision in (("cut", kernel.choice.parts), ("tile", kernel.choice.tile)):
            found = [a for a in kernel.alternatives if a.kind == kind]
            prices = [a.predicted_cycles for a in found if a.predicted_cycles is not None]
            assert len(prices) == 3
            assert prices == sorted(prices)
            decisions = [(dict(a.decision), a.loops) for a in found]
            taken = (dict(decision), kernel.choice.loops if kind == "tile" else ())
            assert all(decisions.count(d) == 1 and d != taken for d in decisions)


def test_pinning_an_alternative_gives_the_time_that_was_told(told: Explanation) -> None:
    kernel = told.kernels[0]
    for other in kernel.alternatives:
        pinned = spyrec.compile(layers(), plan=json.loads(json.dumps(other.pins)))
        for name in kernel.launches:
            taken = pinned.plan["kernels"][name]
            assert taken["parts" if other.kind == "cut" else "tile"] == other.decision
        ran = spyrec.simulate(pinned, timing_only=True)
        trial = other.trial
        assert trial is not None and not trial.refused
        assert trial.total_cycles == ran.total_cycles
        assert trial.gain_cycles == told.total_cycles - ran.total_cycles
        names = [*pinned.plan["kernels"]]
        assert 0 < trial.kernel_cycles <= sum(r.count * r.cycles for r in ran.kernels)
        assert set(kernel.launches) <= set(names)


def test_an_alternative_that_cannot_be_says_why() -> None:
    target = api.target_of("spyre", "dl16")
    ready = planner_of(one_product(), target, None, None)
    pins = {"kernels": {"k0_matmul": {"parts": {"m": 64}}}}
    trial = ready.tried(Alternative("cut", {"m": 64}, (), 1.0, pins), ["k0_matmul"], 100).trial
    refused = "plan: kernel k0_matmul, parts: m=64 are 64 parts, there are 32 cores"
    assert trial == Trial(0, 0, 0, refused)


def test_pins_of_the_user_stay_beside_those_that_are_tried() -> None:
    user = {"kernels": {"a": {"parts": {"m": 2}, "buffers": 1}}, "tensors": {"x": {"stick": 0}}}
    more = {"kernels": {"a": {"parts": {"m": 4}}, "b": {"buffers": 2}}}
    assert merged(user, more) == {
        "kernels": {"a": {"parts": {"m": 4}, "buffers": 1}, "b": {"buffers": 2}},
        "tensors": {"x": {"stick": 0}},
    }
    assert user["kernels"]["a"] == {"parts": {"m": 2}, "buffers": 1}


def test_what_the_user_pins_has_no_alternatives() -> None:
    name = next(iter(spyrec.compile(one_product()).plan["kernels"]))
    plan = {"kernels": {name: {"parts": {"m": 4, "n": 3, "k": 1}}}}
    [kernel] = spyrec.explain(one_product(), plan=plan).kernels
    assert kernel.choice.parts == {"m": 4, "n": 3, "k": 1}
    assert kernel.choice.pinned == ("parts m", "parts n", "parts k")
    assert {a.kind for a in kernel.alternatives} == {"tile"}


# Residency in words ------------------------------------------------------------------------------


def test_a_tensor_without_room_says_how_much_it_needs_and_how_much_there_is() -> None:
    passes = print_pipeline(PIPELINE).replace("ring-relayout", "ring-relayout{share=0.0}")
    told = spyrec.explain(layers(), passes=passes)
    [middle] = {t.why for k in told.kernels for t in k.tensors if t.why.startswith("no room")}
    owned = 64 * 256 * 2 // 32  # bytes: each core makes an equal part
    room = load_device().lx.usable_bytes
    assert middle == (
        f"no room: needs {owned} bytes a core, and copies for its readers, beside 0 that others "
        f"take meanwhile of {room}"
    )


def test_places_are_told_of_operands_and_results(told: Explanation) -> None:
    first = next(k for k in told.kernels if "k0_matmul_add" in k.launches)
    places = {(t.role, t.name): t for t in first.tensors}
    assert places["operand", "x"].why == "model input"
    assert places["operand", "x"].space == "hbm"
    constants = [t for t in first.tensors if t.why == "constant"]
    assert [t.shape for t in constants] == [(256, 256)]
    [result] = [t for t in first.tensors if t.role == "result"]
    assert (result.space, result.core_bytes > 0) == ("lx", True)


def test_a_tensor_pinned_to_card_memory_says_so(program: api.Program) -> None:
    kept = [n for n, t in program.plan["tensors"].items() if t["space"] == "lx"]
    plan = {"tensors": {kept[0]: {"space": "hbm"}}}
    told = spyrec.explain(layers(), plan=plan)
    whys = {t.why for k in told.kernels for t in k.tensors if t.name == kept[0]}
    assert whys == {"pinned there"}


# Programs, patterns, errors ----------------------------------------------------------------------


def test_a_program_from_its_file_with_its_plan_tells_all_but_tensors(
    program: api.Program, told: Explanation, tmp_path: Path
) -> None:
    program.save(tmp_path / "m.spx")
    (tmp_path / "plan.json").write_text(json.dumps(program.plan), "utf-8")
    loaded = api.load(tmp_path / "m.spx")
    bare = spyrec.explain(loaded)
    assert bare.what_ifs == told.what_ifs
    assert all(k.alternatives == k.tensors == () for k in bare.kernels)
    cuts = [[k.choice.parts for k in of.kernels] for of in (bare, told)]
    assert cuts[0] == cuts[1]
    full = spyrec.explain(loaded, plan=tmp_path / "plan.json")
    assert all(len(k.alternatives) == 6 for k in full.kernels)
    other = spyrec.compile(one_product()).plan
    with pytest.raises(SpyrecError, match="the plan is not that of the program"):
        spyrec.explain(loaded, plan=other)
    with pytest.raises(SpyrecError, match="to try alternatives the model is needed"):
        spyrec.explain(loaded, tries=True)


@pytest.mark.parametrize(
    ("patterns", "names"),
    [(["k1"], {"k1"}), (["k1_*"], {"k1"}), (["*1*", "k0"], {"k0", "k1"}), (["add"], {"k0", "k1"})],
)
def test_kernels_are_chosen_by_part_or_pattern(
    patterns: list[str], names: set[str], told: Explanation
) -> None:
    assert {k.name.split("_")[0] for k in chosen(told.kernels, patterns)} == names


def test_a_kernel_that_is_not_there_is_an_error(told: Explanation) -> None:
    with pytest.raises(SpyrecError, match="no kernel is called 'conv'; known: k"):
        [*chosen(told.kernels, ["k0", "conv"])]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("m.sir").write_text(print_module(one_product()), "utf-8")
    return tmp_path


def test_the_command_prints_and_writes_what_the_api_gives(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["explain", "m.sir", "--kernel", "matmul", "--json", "told.json"]) == 0
    captured = capsys.readouterr()
    told = spyrec.explain("m.sir")
    assert json.loads(Path("told.json").read_text("utf-8")) == json.loads(told.as_json())
    assert captured.err == ""
    assert "\x1b" not in captured.out
    assert captured.out == printed(told, 1000) + "json: told.json\n"


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (["m.sir", "--kernel", "zz"], 1, "spyrec: no kernel is called 'zz'; known: k0_matmul"),
        (["none.onnx"], 1, "none.onnx does not exist"),
        (["m.sir", "--top", "0"], 2, "0 is not in the range x>=1"),
        ([], 2, "expected either MODEL or --from-config"),
        (["m.spx", "--bind", "a=1", "--try"], 2, "--bind, --try: for a model; a program is"),
        (["m.sir", "--json", "-"], 2, "'-' is no file name here"),
    ],
)
def test_faults_have_their_exit_codes(
    args: list[str], code: int, sentence: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["explain", *args]) == code
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.out == ""


def test_a_program_with_buckets_is_refused(program: api.Program) -> None:
    code = replace(program.code, buckets=(Bucket("n=1", {"n": 1}, len(program.code.launches), ()),))
    with pytest.raises(SpyrecError, match="the program has buckets, each planned for itself"):
        spyrec.explain(replace(program, code=code))


def test_a_pipeline_in_the_wrong_order_is_refused_as_by_compile() -> None:
    passes = "canonicalize,decompose,fuse,tiling,stick-layout"
    with pytest.raises(SpyrecError) as wanted:
        spyrec.compile(one_product(), passes=passes)
    with pytest.raises(SpyrecError) as error:
        spyrec.explain(one_product(), passes=passes)
    assert str(error.value) == str(wanted.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["C02", "C13", "light_squeezenet"])
def test_what_is_tried_on_a_real_model_is_what_pinning_gives(name: str) -> None:
    bind = dict(MODELS[name].bind)
    told = spyrec.explain(model_path(name), bind=bind, tries=True, top=3)
    tried = [a for k in told.kernels[:3] for a in k.alternatives]
    assert tried and all(a.trial is not None and not a.trial.refused for a in tried)
    for other in tried[::4]:
        pinned = spyrec.compile(model_path(name), bind=bind, plan=other.pins)
        assert other.trial is not None
        assert other.trial.total_cycles == spyrec.simulate(pinned, timing_only=True).total_cycles


# The text ----------------------------------------------------------------------------------------

CHOICE = Choice(
    {"m": 8, "n": 4, "k": 1}, ("m", "n"), 32, {"m": 8, "n": 64, "k": 1024}, ("n",), 2, "all",
    5850.4, 4686.8, 262336, 853278, ("parts m",),
)  # fmt: skip
TENSORS = (
    TensorPlace("gelu", "operand", (64, 1024), "dl16", 1, "lx", 131072, 16384, "fits", True),
    TensorPlace("weight", "operand", (1024, 256), "dl16", 1, "hbm", 524288, 0, "constant", False),
    TensorPlace("y", "result", (64, 256), "dl16", 1, "hbm", 32768, 0, "model output", False),
)
OTHERS = (
    Alternative("cut", {"m": 5, "n": 6, "k": 1}, (), 5200.0, {}, "it leaves cores without work",
                Trial(4400, 44400, -400)),
    Alternative("tile", {"m": 8, "n": 64, "k": 512}, ("n", "k"), 4726.8, {}, "",
                Trial(7000, 42998, 1002)),
    Alternative("tile", {"m": 8, "n": 64, "k": 1024}, (), None, {}, "", Trial(0, 0, 0, "plan: no")),
)  # fmt: skip
KERNEL = KernelExplained(
    "k15_matmul_add", ("k15_matmul_add", "k20_matmul_add"), 2, ("matmul", "add"),
    ("a", "b", "c", "d"), "m=64,n=256,k=1024", 8000, 7.3, 0.1818, 4441, "memory",
    {"compute": 1024, "memory": 7718, "vector": 48, "ring": 606}, 7718, 8000 / 7718, CHOICE,
    TENSORS, OTHERS,
    (Gain("memory bandwidth x 2", 2513, 1928, 0.434), Gain("ring x 2", 4441, 0, 0.0)),
)  # fmt: skip
WHOLE = Explanation(
    "m.onnx", "spyre", "dl16", 1100, 44000, 40.0, 2200, 0, 2, 2,
    {"memory": 0.95, "start-up": 0.05},
    (WhatIf("launch start-up 0", 41800, 2200, 0.05, {"launch.start_cycles": 0}),
     WhatIf("ring x 2", 44044, -44, -0.001, {"ring.bytes_per_cycle": 256})),
    (KERNEL, replace(KERNEL, name="k2", cycles=0, share=0.0, over_floor=None, alternatives=())),
)  # fmt: skip

GOLDEN = """\
m.onnx on spyre, dl16: 44,000 cycles (40.0 us), 2 kernels in 2 launches
bound by: memory 95.0%, start-up 5.0%

kernel          count  cycles  share  bound   x floor  helps most
k15_matmul_add      2   8,000  18.2%  memory   1.04 x  memory bandwidth x 2 (-43.4%)
and 1 more with 0.0%; see --top and --kernel

what if (whole run)  cycles  change
launch start-up 0    41,800   -5.0%
ring x 2             44,044   +0.1%

faster when pinned: k15_matmul_add, tile k=512, loops n k: -1,002 cycles (-2.3%)


k15_matmul_add
time      2 launches of 4,000 cycles (alone and with start-up 4,441), 7.3 us in all, 18.2%
space     m=64 n=256 k=1024
from      a, b, c and 1 more
bound     memory: 1.04 x its floor; floors: compute 512, memory 3,859, vector 24, ring 303
cut       m=8 n=4 on 32 cores, slowest first m n, predicted 5,850 cycles
tile      m=8 n=64 k=1024, loops n, 2 slots, overlapping all, 256.2 KiB of 833.3 KiB of \
scratchpad, predicted 4,687 cycles
pinned    parts m
what if   memory bandwidth x 2 -43.4%

tensor          shape  lanes  lives in                                   bytes
gelu     64x1024 dl16     d1  scratchpad, comes over the ring  16.0 KiB a core
weight  1024x256 dl16     d1  card memory: constant                  512.0 KiB
-> y      64x256 dl16     d1  card memory: model output               32.0 KiB

instead                     predicted  simulated  kernel     run
cut m=5 n=6            5,200 (-11.1%)      2,200  -45.0%    +400
tile k=512, loops n k   4,727 (+0.9%)      3,500  -12.5%  -1,002
tile loops none                     -    refused       -       -
cut m=5 n=6: it leaves cores without work
tile loops none: plan: no
"""


def printed(told: Explanation, columns: int, top: int | None = None) -> str:
    console = Console(width=1000)
    with console.capture() as text:
        for piece in explained(told, top or 5, columns):
            console.print(piece)
    return "".join(f"{line.rstrip()}\n" for line in text.get().splitlines())


def test_the_page_shows_the_encoder_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPYREC_PLAN_BUDGET")
    told = spyrec.explain(encoder())
    page = PAGE.read_text("utf-8")
    assert f": {told.total_cycles:,} cycles (" in page, STALE
    assert f"\n{next(chosen(told.kernels, ['matmul'])).name}\n" in page, STALE


def test_a_copy_that_several_kernels_read_is_told_of_by_its_tensor() -> None:
    def make(g: Graph, x: Value) -> list[Value]:
        h = g("matmul", x, g.weight(256, 2048))
        one = g("matmul", h, g.weight(2048, 256))
        return [one, g("matmul", g("add", h, h), g.weight(2048, 128))]

    program = spyrec.compile(module(make, ("x", (64, 256), "f32")))
    assert program.module is not None
    copied = [op for op in program.module.body.ops if op.name == "relayout"]
    names = {op.operands[0].name for op in copied}
    kernels = spyrec.explain(program).kernels
    kept = [t for k in kernels for t in k.tensors if t.space == "lx"]
    assert all(t.core_bytes > 0 and t.name in program.plan["tensors"] for t in kept)
    arriving = [t.name for t in kept if t.relayout]
    assert copied and set(arriving) == names and len(arriving) == len(copied)


def test_the_text() -> None:
    assert printed(WHOLE, 1000, 1) == GOLDEN


@pytest.mark.parametrize("columns", [20, 40, 60, 80])
def test_a_narrow_terminal_loses_no_number(columns: int) -> None:
    text = printed(WHOLE, columns, 1)
    numbers = re.compile(r"[-+]?\d+(?:[,.]\d+)*%?")
    assert sorted(numbers.findall(text)) == sorted(numbers.findall(GOLDEN))
    assert "k15_matmul_add" in text
    prose = [line for line in text.splitlines() if line.startswith(("time", "bound", "m.onnx"))]
    assert max(map(len, prose)) <= max(columns, 40)


def test_a_terminal_of_eighty_columns_holds_it() -> None:
    assert max(map(len, printed(WHOLE, 80, 1).splitlines())) <= 80


def test_a_decision_that_helps_more_than_any_machine_is_named() -> None:
    better = replace(OTHERS[1], trial=Trial(1000, 40000, 4000))
    text = printed(replace(WHOLE, kernels=(replace(KERNEL, alternatives=(better,)),)), 1000)
    assert "tile k=512, loops n k (-50.0%)" in text


def test_the_page_names_every_field() -> None:
    page = PAGE.read_text("utf-8")
    kinds = (Explanation, KernelExplained, Choice, TensorPlace, Alternative, Trial, Gain, WhatIf)
    missing = {f.name for kind in kinds for f in fields(kind) if f"`{f.name}`" not in page}
    assert missing == set()
    assert [c.name for c in CHANGES if f"| {c.name} |" not in page] == []
    assert [key for c in CHANGES for key in c.factors if f"`{key}`" not in page] == []
