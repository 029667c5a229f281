"""Running passes: hooks, the oracle, pipelines as text, the registry, doctests of the passes."""

from __future__ import annotations

import doctest
import importlib
import io
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spyrec.ir import interp
from spyrec.ir.core import Block, Builder, Module, Op, Value, rewrite
from spyrec.ir.errors import PassError, PluginWarning, VerifyError
from spyrec.ir.parser import parse_module
from spyrec.passes.dce import Dce
from spyrec.passes.decompose import Decompose
from spyrec.passes.fold import Fold
from spyrec.passes.legalize_dtypes import LegalizeDtypes
from spyrec.passes.manager import (
    Target,
    Timing,
    hooks,
    insert_after,
    insert_before,
    oracle,
    output_error,
    print_after,
    random_inputs,
    run_pipeline,
    time_into,
    verify_each,
)
from spyrec.passes.pin import PinKernels, PinSticks, PinTiles
from spyrec.passes.pipeline import BASELINE_PASSES, DEVICE_PASSES
from spyrec.passes.pipeline_text import parse_pipeline, print_pipeline
from spyrec.passes.registry import PASSES, with_plugins
from spyrec.sim.device import load_device

TARGET = Target(load_device())

TWO_OPS = """module "m" {
  input %x: tensor<2xf32>
  %a = exp(%x) : tensor<2xf32>
  %y = silu(%x) : tensor<2xf32>
  output "y" = %y
}
"""


@dataclass(frozen=True)
class Negate:
    """A wrong pass: it changes what the model computes."""

    name: ClassVar[str] = "negate"
    summary: ClassVar[str] = "Negates the outputs."

    def run(self, module: Module, target: Target) -> Module:
        builder = Builder(v.name for op in module.body.ops for v in op.results)
        for op in module.body.ops:
            builder.add(op)
        results = tuple(builder.op("neg", [v]).result for v in module.body.results)
        return replace(module, body=Block(module.body.args, tuple(builder.ops), results))


@dataclass(frozen=True)
class Breaks:
    """A wrong pass: it leaves a value without a definition, or fails."""

    name: ClassVar[str] = "breaks"
    summary: ClassVar[str] = "Drops every op."
    fail: bool = False

    def run(self, module: Module, target: Target) -> Module:
        if self.fail:
            raise PassError("breaks: asked to fail")
        return replace(module, body=replace(module.body, ops=()))


@dataclass(frozen=True)
class Options:
    """A pass with an option of each kind."""

    name: ClassVar[str] = "options"
    summary: ClassVar[str] = "Does nothing."
    beam: int = 64
    share: float = 0.5
    mode: str = "fast"
    strict: bool = False
    sizes: tuple[int, ...] = ()
    plan: str | None = None

    def run(self, module: Module, target: Target) -> Module:
        return module


REGISTRY = {**PASSES, "options": Options}


def test_passes_run_in_order_and_hooks_see_each() -> None:
    text, record = io.StringIO(), []
    record_type: list[Timing] = record
    hook = hooks(print_after(text, "dce"), time_into(record_type), verify_each())
    after = run_pipeline(parse_module(TWO_OPS), (Dce(), Decompose()), TARGET, hook)
    assert [op.name for op in after.body.ops] == ["sigmoid", "mul"]
    assert [(t.name, t.ops) for t in record] == [("dce", 1), ("decompose", 2)]
    assert all(t.seconds >= 0 for t in record)
    assert text.getvalue() == (
        '// after dce\nmodule "m" {\n  input %x: tensor<2xf32>\n'
        '  %y = silu(%x) : tensor<2xf32>\n  output "y" = %y\n}\n\n'
    )


def test_the_oracle_names_pass_output_and_error() -> None:
    module = parse_module(TWO_OPS)
    hook = oracle({"x": np.array([1.0, 2.0], np.float32)}, 1e-6)
    run_pipeline(module, (Dce(), Decompose()), TARGET, hook)
    with pytest.raises(PassError) as caught:
        run_pipeline(module, (Dce(), Negate()), TARGET, hook)
    assert str(caught.value) == (
        "oracle: pass negate changed output y: the error is 2, allowed is 1e-06; --print-after "
        "negate shows what it left, spyrec bisect finds a smaller model that shows it"
    )


def test_the_oracle_follows_changed_input_types() -> None:
    module = parse_module(TWO_OPS)
    inputs = random_inputs(module, seed=3)
    loose, tight = oracle(inputs, 5e-3), oracle(inputs, 1e-6)
    steps = (Decompose(), LegalizeDtypes())
    run_pipeline(module, steps, TARGET, loose)
    with pytest.raises(PassError, match="pass legalize-dtypes changed output y"):
        run_pipeline(module, steps, TARGET, tight)


def test_verify_each_stops_after_the_pass_that_broke_the_module() -> None:
    with pytest.raises(VerifyError) as caught:
        run_pipeline(parse_module(TWO_OPS), (Dce(), Breaks()), TARGET, verify_each())
    assert "the module was well-formed before pass breaks" in caught.value.__notes__


def test_the_oracle_interprets_each_module_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Module] = []

    def counted(module: Module, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        runs.append(module)
        return original(module, inputs)

    original = interp.run
    module = parse_module(TWO_OPS)
    with monkeypatch.context() as patched:
        patched.setattr("spyrec.ir.interp.run", counted)
        hook = oracle(random_inputs(module), 1e-6)
    middle = run_pipeline(module, (Dce(),), TARGET, hook)
    after = run_pipeline(middle, (Decompose(),), TARGET, hook)
    assert runs == [module, middle, after]
    run_pipeline(module, (Dce(),), TARGET, hook)  # from the start again: not what was kept
    assert runs[3] is module and len(runs) == 5


def test_an_error_says_which_passes_ran() -> None:
    with pytest.raises(PassError) as caught:
        run_pipeline(parse_module(TWO_OPS), (Dce(), Fold(), Breaks(fail=True)), TARGET)
    assert caught.value.__notes__ == ["in pass breaks, after dce, fold"]


def test_an_error_of_a_hook_says_which_passes_ran() -> None:
    hook = oracle(random_inputs(parse_module(TWO_OPS)), 1e-6)
    with pytest.raises(PassError, match="pass negate changed") as caught:
        run_pipeline(parse_module(TWO_OPS), (Dce(), Negate()), TARGET, hook)
    assert caught.value.__notes__ == ["in pass negate, after dce"]


def test_passes_are_inserted_by_name() -> None:
    usual = (Dce(), Fold(), Dce())
    assert insert_before(usual, "dce", Negate()) == (Negate(), Dce(), Fold(), Dce())
    assert insert_after(usual, "dce", Negate()) == (Dce(), Fold(), Dce(), Negate())
    assert insert_after(usual, "fold", Negate()) == (Dce(), Fold(), Negate(), Dce())
    with pytest.raises(PassError) as caught:
        insert_after(usual, "cse", Negate())
    assert str(caught.value) == "no pass of the pipeline is called cse; known: dce, fold"


@pytest.mark.parametrize(
    ("want", "got", "error"),
    [
        ([1.0, 4.0], [1.0, 4.2], 0.05),
        ([np.inf, np.nan], [np.inf, np.nan], 0.0),
        ([np.inf, 0.0], [1e30, 0.0], np.inf),
        ([0.0], [np.nan], np.inf),
    ],
)
def test_output_error(want: list[float], got: list[float], error: float) -> None:
    assert output_error(np.array(want), np.array(got)) == pytest.approx(error)
    assert output_error(np.array(want), np.zeros(9)) == np.inf


def test_integer_outputs_must_be_equal() -> None:
    assert output_error(np.array([100, 7]), np.array([100, 7])) == 0.0
    assert output_error(np.array([100, 7]), np.array([100, 8])) == np.inf


def test_pipeline_text_round_trip() -> None:
    text = "dce,options{beam=8,share=0.25,mode=slow,strict=true,sizes=(1,2),plan=p.json},fold"
    passes = parse_pipeline(text, REGISTRY)
    assert passes[1] == Options(8, 0.25, "slow", True, (1, 2), "p.json")
    assert print_pipeline(passes) == text
    assert parse_pipeline("", REGISTRY) == ()
    assert print_pipeline((Options(),)) == "options"


@given(
    st.builds(
        Options, st.integers(), st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8), st.booleans(),
        st.lists(st.integers(), max_size=3).map(tuple), st.none() | st.text("tfn", max_size=5),
    )
)  # fmt: skip
@example(Options(0, 0.0, "INFINITY", False, (), "nan"))
def test_any_options_round_trip(step: Options) -> None:
    assert parse_pipeline(print_pipeline((step, Dce())), REGISTRY) == (step, Dce())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dce,fusion", "no pass is called 'fusion'; spyrec passes lists all"),
        ("fold{limits=3}", "pass fold has no option limits; did you mean limit? known: limit"),
        ("dce{a=1}", "pass dce has no option a; it has none"),
        ("fold{limit=many}", "pass fold: option limit takes a int, got 'many'"),
        ("options{strict=1}", "pass options: option strict takes a bool, got 1"),
        ("options{beam=true}", "pass options: option beam takes a int, got True"),
        ("dce fold", "pipeline 'dce fold', column 5: expected ',', got 'fold'"),
        ("fold{limit=}", "pipeline 'fold{limit=}', column 12: the value of an option is missing"),
        ("fold{limit=3", "pipeline 'fold{limit=3', column 13: expected '}', got 'the end'"),
        ("dce,", "pipeline 'dce,', column 5: the name of a pass is missing"),
        ("dce;", "pipeline 'dce;', column 4: ';' does not belong in a pipeline"),
        ("fold{limit=1,limit=2}", "pipeline 'fold{limit=1,limit=2}', column 14: option limit is "
         "given twice"),
    ],
)  # fmt: skip
def test_pipeline_text_errors(text: str, message: str) -> None:
    with pytest.raises(PassError) as caught:
        parse_pipeline(text, REGISTRY)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", PASSES)
def test_each_pass_shows_before_and_after(name: str) -> None:
    module = importlib.import_module(PASSES[name].__module__)
    found = [t for t in doctest.DocTestFinder().find(module) if t.examples]
    assert any(t.name.endswith(PASSES[name].__name__) for t in found), "no doctest on the pass"
    outcome = doctest.testmod(module)
    assert outcome.failed == 0


PINS = {str(p.name): p for p in (PinSticks, PinKernels, PinTiles)}
ALL = {**PASSES, **{str(p.name): p for p in (*DEVICE_PASSES, *BASELINE_PASSES)}, **PINS}


@pytest.mark.parametrize("name", ALL)
def test_each_pass_describes_itself(name: str) -> None:
    step = ALL[name]()
    assert step.name == name
    assert step.summary[0].isupper()
    assert step.summary.endswith(".")
    assert step.summary.count(".") == 1


def test_plugins_add_passes_and_may_not_replace_any(monkeypatch: pytest.MonkeyPatch) -> None:
    def offer(value: str) -> dict[str, Any]:
        points = [EntryPoint("x", value, "spyrec.passes")]
        monkeypatch.setattr("spyrec.passes.registry.entry_points", lambda group: points)
        return dict(with_plugins(PASSES))

    assert set(offer(f"{__name__}:Options")) == {*PASSES, "options"}
    for value, told in (
        ("spyrec.passes.dce:Dce", "is called dce, and so is another pass"),
        ("spyrec.passes.dce:Missing", "does not load: AttributeError: module 'spyrec.passes.dce' "
         "has no attribute 'Missing'"),
        ("no_such_module:Pass", "does not load: ModuleNotFoundError: No module named "
         "'no_such_module'"),
        ("spyrec.passes.dce:remove_dead", "is no class with a name, a summary (both class "
         "variables) and a method run(module, target)"),
    ):  # fmt: skip
        sentence = f"the pass x (entry point {value}) {told}"
        with pytest.warns(PluginWarning) as seen:
            found = offer(value)
        assert [str(w.message) for w in seen] == [f"{sentence}; spyrec goes on without it"]
        assert found.keys() == {*PASSES, "x"} and found["dce"] is Dce
        with pytest.raises(PassError) as caught:
            parse_pipeline("fold,x{limit=3}", found)
        assert str(caught.value) == sentence


def test_rewrite_hook_sees_the_module_before_unchanged() -> None:
    seen: list[tuple[int, int]] = []

    def hook(step: object, before: Module, after: Module, seconds: float) -> None:
        seen.append((len(before.body.ops), len(after.body.ops)))

    module = parse_module(TWO_OPS)
    run_pipeline(module, (Dce(), Decompose()), TARGET, hook)
    assert seen == [(2, 1), (1, 2)]

    def nothing(op: Op, builder: Builder) -> list[Value] | None:
        return None

    assert [op.name for op in rewrite(module, nothing).body.ops] == ["exp", "silu"]
