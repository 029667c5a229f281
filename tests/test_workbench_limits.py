"""What ``spyrec opt --oracle-each`` and ``spyrec bisect`` say of what they cannot see: errors in
outputs that are small, faults beside the rounding to 16 bits, a pass that changes its input."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spyrec import cli
from spyrec.ir.parser import parse_module
from spyrec.passes.manager import faint, output_error
from spyrec.workbench.states import EXACT, ROUNDED, Faint, told_faint

PASSES = '''from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from spyrec.ir.core import rewrite, walk
from spyrec.ir.types import DTYPES


@dataclass(frozen=True)
class Times:
    name: ClassVar[str] = "times"
    summary: ClassVar[str] = "Makes every tanh BY times as large."
    by: float = 16.0

    def run(self, module, target):
        def rule(op, b):
            if op.name != "tanh":
                return None
            x = b.op("tanh", op.operands, **op.attrs).result
            by = b.constant(np.array(self.by, x.type.dtype.np_dtype), x.type.dtype)
            return b.op("mul", [x, by]).results

        return rewrite(module, rule)


@dataclass(frozen=True)
class InPlace:
    name: ClassVar[str] = "in-place"
    summary: ClassVar[str] = "Makes tanh a neg, in the module it is given."

    def run(self, module, target):
        for op in walk(module.body):
            if op.name == "tanh":
                object.__setattr__(op, "name", "neg")
        return module


@dataclass(frozen=True)
class At16:
    name: ClassVar[str] = "at-16"
    summary: ClassVar[str] = "Makes a module that cannot be run, with 16-bit floats only."

    def run(self, module, target):
        def rule(op, b):
            if op.name != "tanh" or target.numerics == "fp32":
                return None
            index = b.constant(np.array([99], np.int32), DTYPES["i32"])
            return b.op("gather", [op.operands[0], index], axis=0).results

        return rewrite(module, rule)
'''
Capture = pytest.CaptureFixture[str]


def scaled(by: float) -> str:
    return f"""module "m" {{
  input %x: tensor<1x64xf32>
  %c = constant {{value = dense<float32, [{by}]>}} : tensor<f32>
  %t = tanh(%x) : tensor<1x64xf32>
  %y = mul(%t, %c) : tensor<1x64xf32>
  output "y" = %y
}}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my.py").write_text(PASSES, encoding="utf-8")
    (tmp_path / "small.sir").write_text(scaled(1e-6), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def opt(model: str, passes: str, *more: str) -> int:
    return cli.run(["opt", model, "--load", "my.py", "--passes", passes, "--oracle-each", *more])


def bisect(model: str, *more: str) -> int:
    return cli.run(["bisect", model, "--load", "my.py", *more])


UNSEEN = "an error as large as itself would not be seen"


def test_opt_says_which_output_it_does_not_see(here: Path, capsys: Capture) -> None:
    assert opt("small.sir", "times,canonicalize") == 0
    err = capsys.readouterr().err
    assert re.fullmatch(
        r"compared: 2 passes, the largest error is [\d.]+e-05, of output y after times, allowed is "
        rf"0\.0001; output y is at most [\d.]+e-07, below the 0\.0001 that is allowed: {UNSEEN}; "
        r"scale it, or give a smaller --tolerance\n", err,
    ), err
    assert opt("small.sir", "times", "--tolerance", "1e-8") == 1  # as it is told
    assert "pass times changed output y" in capsys.readouterr().err
    assert opt("small.sir", "cse,dce") == 0  # equal bits hide nothing
    assert capsys.readouterr().err == "compared: 2 passes, all results equal\n"


def test_opt_says_from_which_pass_on(here: Path, capsys: Capture) -> None:
    """0.01 is more than is allowed of 32 bits and less than is allowed of 16."""
    Path("m.sir").write_text(scaled(0.01), "utf-8")
    assert opt("m.sir", "usual") == 0
    assert (
        f"below the 0.03 that is allowed from legalize-dtypes on: {UNSEEN};"
    ) in capsys.readouterr().err
    assert opt("m.sir", "usual", "--numerics", "fp32") == 0
    assert UNSEEN not in capsys.readouterr().err


def test_bisect_says_which_output_it_does_not_see(here: Path, capsys: Capture) -> None:
    broken = ("--before", "cse", "times")
    assert bisect("small.sir", *broken) == 0
    verdict, told = capsys.readouterr().out.splitlines()
    assert verdict.endswith("passes and none of them breaks small.sir")
    assert re.fullmatch(
        rf"output y is at most [\d.]+e-07, below the 0\.0001 that is allowed: {UNSEEN}; give "
        r"--inputs that make it larger, or scale it", told,
    ), told
    Path("m.sir").write_text(scaled(1.0), "utf-8")
    assert bisect("m.sir", *broken, "--no-reduce") == 1
    assert UNSEEN not in capsys.readouterr().out
    assert bisect("m.sir") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    Path("m.sir").write_text(scaled(0.01), "utf-8")
    assert bisect("m.sir") == 0
    assert "below the 0.03 that is allowed from legalize-dtypes on" in capsys.readouterr().out
    assert bisect("m.sir", "--numerics", "fp32") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_inputs_make_an_output_seen(here: Path, capsys: Capture) -> None:
    text = scaled(1e-6).replace("constant {value = dense<float32, [1e-06]>} : tensor<f32>", "")
    lines = [line for line in text.splitlines() if not line.startswith("  %c")]
    lines[2:2] = ["  input %c: tensor<1x64xf32>"]
    Path("m.sir").write_text("\n".join(lines), "utf-8")
    x = np.ones((1, 64), np.float32)
    np.savez("tiny.npz", x=x, c=x * 1e-6)
    np.savez("large.npz", x=x, c=x)
    broken = ["--before", "cse", "times", "--no-reduce"]
    assert bisect("m.sir", *broken, "--inputs", "tiny.npz") == 0
    assert UNSEEN in capsys.readouterr().out
    assert bisect("m.sir", *broken, "--inputs", "large.npz") == 1
    assert ", times, changes results: " in capsys.readouterr().out


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(width=32), min_size=0, max_size=5),
    st.sampled_from((0.0, EXACT, ROUNDED, 1.0, 100.0)),
)
def test_faint_are_those_that_may_be_off_by_themselves(values: list[float], limit: float) -> None:
    """By definition: with every finite number doubled the error is allowed."""
    array = np.array(values, np.float32)
    found = faint({"y": array}, limit)
    finite = array[np.isfinite(array)].astype(np.float64)
    if finite.size == 0 or limit == 0:
        assert not found
        return
    largest = float(np.max(np.abs(finite)))
    assert found == ({"y": largest} if largest <= limit else {})
    if largest <= 1:
        doubled = np.where(np.isfinite(array), 2 * array.astype(np.float64), array)
        assert (output_error(array, doubled) <= limit) == ("y" in found)


def test_integers_are_never_faint() -> None:
    """They must be equal."""
    assert not faint({"i": np.zeros(3, np.int32), "b": np.zeros(3, bool)}, 1.0)


def test_many_outputs_are_counted() -> None:
    many = [Faint(f"y{i}", 1e-6, 1e-4) for i in range(5)]
    told = told_faint(many, "scale them")
    assert told.count("is at most") == 3 and ", so are 2 more: " in told
    assert told.endswith("an error as large as themselves would not be seen; scale them")
    assert ", so is 1 more: " in told_faint(many[:4], "") and told_faint([], "x") == ""


ROUNDS = """module "m" {
  input %x: tensor<4x64xf32>
  %k = constant {value = dense<float32, [100.0]>} : tensor<f32>
  %z = mul(%x, %k) : tensor<4x64xf32>
  %s = sin(%z) : tensor<4x64xf32>
  %y = tanh(%s) : tensor<4x64xf32>
  output "y" = %y
}
"""
MAY_BE = "so this may be rounding to 16 bits alone: "


def test_a_healthy_model_that_rounding_breaks_is_told_so(here: Path, capsys: Capture) -> None:
    """The sine of a hundred: ten bits do not say where in its period it is."""
    Path("sine.sir").write_text(ROUNDS, "utf-8")
    assert bisect("sine.sir", "--no-reduce") == 1
    verdict, told = capsys.readouterr().out.splitlines()
    assert ", legalize-dtypes, changes results: the error of output y is " in verdict
    assert told.startswith(f"no pass breaks the model under --numerics fp32, {MAY_BE}")
    assert all(word in told for word in ("--numerics fp32", "--tolerance", "--inputs"))
    assert bisect("sine.sir", "--numerics", "fp32") == 0  # what it says is so
    assert bisect("sine.sir", "--tolerance", "0.5") == 0
    np.savez("small.npz", x=np.full((4, 64), 0.0078125, np.float32))
    assert bisect("sine.sir", "--inputs", "small.npz") == 0
    assert MAY_BE not in capsys.readouterr().out


@pytest.mark.parametrize("numerics", ["dl16", "ieee16", "fp32"])
@pytest.mark.parametrize("before", ["cse", "fuse"])
def test_a_broken_pass_is_not_excused(
    before: str, numerics: str, here: Path, capsys: Capture
) -> None:
    """Whether it runs in front of the rounding or behind it."""
    Path("m.sir").write_text(scaled(1.0), "utf-8")
    args = ["--before", before, "times", "--numerics", numerics, "--no-reduce"]
    assert bisect("m.sir", *args) == 1
    out = capsys.readouterr().out
    assert ", times, changes results: " in out and MAY_BE not in out


def test_what_cannot_be_run_is_no_rounding(here: Path, capsys: Capture) -> None:
    """Also where it goes wrong under 16-bit numerics only."""
    Path("m.sir").write_text(ROUNDS.replace("4x64", "1x64"), "utf-8")
    assert bisect("m.sir", "--before", "cse", "at-16", "--no-reduce") == 1
    out = capsys.readouterr().out
    assert ", at-16, changes results: " in out and MAY_BE not in out
    assert bisect("m.sir", "--before", "cse", "at-16", "--numerics", "fp32") == 0


@pytest.mark.parametrize("before", ["cse", "legalize-dtypes", "stick-layout", "tiling", "hbm"])
def test_a_pass_that_changes_its_input_is_named(
    before: str, here: Path, capsys: Capture
) -> None:
    """The modules before it share ops with it and are changed too; the passes that made them are
    not to blame. A trial run of the planner does not hide it either."""
    Path("m.sir").write_text(scaled(1.0), "utf-8")
    assert bisect("m.sir", "--before", before, "in-place", "-o", "small.sir") == 1
    told = capsys.readouterr()
    assert ", fails: ChangedInput: pass in-place changed the module it was given;" in told.out
    assert "--seed" not in told.err
    if before == "cse":  # the ops are those of the imported model, which is another now
        assert "in-place does not do it again with the model: it changed it" in told.err
    else:
        assert "tanh(" in Path("small.sir").read_text("utf-8")
        assert parse_module(Path("small.sir").read_text("utf-8"))


def test_compile_refuses_what_a_trial_changed(here: Path, capsys: Capture) -> None:
    Path("m.sir").write_text(scaled(1.0), "utf-8")
    args = ["compile", "m.sir", "--load", "my.py", "--before", "tiling", "in-place"]
    assert cli.run([*args, "-o", "m.spx", "--no-cache"]) == 1
    assert "pass in-place changed the module it was given" in capsys.readouterr().err
    assert not Path("m.spx").exists()
