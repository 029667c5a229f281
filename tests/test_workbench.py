"""``spyrec opt``, ``passes NAME`` and passes from files: what a pass author works with."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spyrec import cli
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import print_module
from spyrec.passes.pipeline import PIPELINE, registry
from spyrec.passes.pipeline_text import print_pipeline
from spyrec.workbench.plugins import known_passes, pipeline_of, until

MODEL = """module "m" {
  input %x: tensor<4x8xf32>
  %a = neg(%x) : tensor<4x8xf32> @ "first"
  %b = neg(%a) : tensor<4x8xf32> @ "second"
  %c = softmax(%b) {axis = 1} : tensor<4x8xf32> @ "third"
  output "y" = %c
}
"""

PASSES = '''from dataclasses import dataclass
from typing import ClassVar

from spyrec.ir.core import Module, rewrite


@dataclass(frozen=True)
class ExpForSoftmax:
    """Wrong on purpose."""

    name: ClassVar[str] = "exp-for-softmax"
    summary: ClassVar[str] = "Forgets the denominator."
    on: bool = True

    def run(self, module, target):
        def rule(op, b):
            if op.name != "softmax" or not self.on:
                return None
            return b.op("exp", op.operands, loc=op.loc).results

        return rewrite(module, rule)
'''


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.sir"
    path.write_text(MODEL, encoding="utf-8")
    return path


@pytest.fixture
def passes(tmp_path: Path) -> Path:
    path = tmp_path / "my_passes.py"
    path.write_text(PASSES, encoding="utf-8")
    return path


Capture = pytest.CaptureFixture[str]


def test_without_passes_text_is_checked_and_printed(model: Path, capsys: Capture) -> None:
    assert cli.run(["opt", str(model)]) == 0
    assert capsys.readouterr().out == MODEL
    model.write_text(MODEL.replace("tensor<4x8xf32> @ \"third\"", "tensor<4x9xf32>"), "utf-8")
    assert cli.run(["opt", str(model)]) == 1
    assert "softmax" in capsys.readouterr().err


def test_stdin_is_read_and_what_is_printed_parses_back(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    text = MODEL
    for passes in ("canonicalize,decompose,fuse", "stick-layout", "core-allocation"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert cli.run(["opt", "-", "--passes", passes]) == 0
        text = capsys.readouterr().out
        assert print_module(parse_module(text)) == text
    assert "why_parts" in text


def test_a_faulty_text_on_stdin_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"module {")))
    assert cli.run(["opt", "-"]) == 1
    assert capsys.readouterr().err.startswith("spyrec: stdin: ")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    assert cli.run(["opt", "-"]) == 1
    assert "UTF-8" in capsys.readouterr().err


def test_changes_are_shown_as_a_diff(model: Path, capsys: Capture) -> None:
    assert cli.run(["opt", str(model), "--passes", "canonicalize,cse", "--print-changed"]) == 0
    err = capsys.readouterr().err
    assert err == """// canonicalize changed
@@ -1,7 +1,5 @@
 module "m" {
   input %x: tensor<4x8xf32>
-  %a = neg(%x) : tensor<4x8xf32> @ "first"
-  %b = neg(%a) : tensor<4x8xf32> @ "second"
-  %c = softmax(%b) {axis = 1} : tensor<4x8xf32> @ "third"
+  %c = softmax(%x) {axis = 1} : tensor<4x8xf32> @ "third"
   output "y" = %c
 }
// cse changed nothing
"""


def test_time_and_ops_of_each_pass(model: Path, capsys: Capture) -> None:
    args = ["--passes", "canonicalize,decompose", "--time-passes", "--stats"]
    assert cli.run(["opt", str(model), *args]) == 0
    lines = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert [line[0] for line in lines[:4]] == ["pass", "canonicalize", "decompose", "total"]
    assert ["canonicalize", "1", "-2", "neg"] in lines
    assert any(line[:3] == ["decompose", "6", "+1"] for line in lines)


def test_usual_stands_for_the_usual_passes_and_until_cuts_them(
    model: Path, capsys: Capture
) -> None:
    known = registry()
    assert print_pipeline(pipeline_of("usual", known)) == print_pipeline(PIPELINE)
    both = pipeline_of("cse, usual ,dce", known)
    assert [p.name for p in both] == ["cse", *(p.name for p in PIPELINE), "dce"]
    assert [p.name for p in until(PIPELINE, "fold")][-1] == "fold"
    assert cli.run(["opt", str(model), "--passes", "usual", "--until", "fuse"]) == 0
    assert "kernel(" in capsys.readouterr().out
    assert cli.run(["opt", str(model), "--passes", "cse", "--until", "fuse"]) == 1
    assert "no pass of the pipeline is called fuse; known: cse" in capsys.readouterr().err


def test_a_pass_of_a_file_is_put_in_by_name(
    model: Path, passes: Path, capsys: Capture
) -> None:
    args = ["opt", str(model), "--load", str(passes), "--passes", "cse,dce"]
    assert cli.run([*args, "--before", "dce", "exp-for-softmax"]) == 0
    assert "exp(" in capsys.readouterr().out
    assert cli.run([*args, "--after", "cse", "exp-for-softmax{on=false}"]) == 0
    assert "softmax(" in capsys.readouterr().out
    assert cli.run([*args, "--after", "fold", "exp-for-softmax"]) == 1
    assert "no pass of the pipeline is called fold; known: cse, dce" in capsys.readouterr().err


def test_several_are_put_in_in_their_order() -> None:
    known = registry()
    made = pipeline_of("cse,dce", known, [("dce", "fold,decompose")], [("cse", "fuse,fold")])
    assert [p.name for p in made] == ["cse", "fuse", "fold", "fold", "decompose", "dce"]


def test_compile_takes_passes_of_a_file_too(
    model: Path, passes: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "m.spx"
    args = ["compile", str(model), "-o", str(out), "--load", str(passes)]
    assert cli.run([*args, "--before", "decompose", "exp-for-softmax"]) == 0
    assert cli.run(["compile", str(model), "--emit", "ir", "--load", str(passes),
                    "--passes", "exp-for-softmax", "--print-after", "exp-for-softmax"]) == 0
    assert "// after exp-for-softmax" in capsys.readouterr().err
    text = [*args, "--planner", "baseline", "--before", "decompose", "exp-for-softmax"]
    assert cli.run(text) == 0


def test_the_oracle_catches_a_wrong_pass(model: Path, passes: Path, capsys: Capture) -> None:
    args = ["opt", str(model), "--load", str(passes), "--passes", "exp-for-softmax"]
    assert cli.run([*args, "--verify-each"]) == 0
    capsys.readouterr()
    assert cli.run([*args, "--oracle-each"]) == 1
    assert "oracle: pass exp-for-softmax changed output y" in capsys.readouterr().err
    assert cli.run([*args, "--oracle-each", "--tolerance", "100"]) == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = (", "does not load: line 1: SyntaxError"),
        ("\nraise ValueError('no')", "does not load: line 2: ValueError: no"),
        ("x = 1", "defines no pass"),
        (PASSES.replace('"exp-for-softmax"', '"cse"'), "the pass cse exists already"),
        (PASSES + PASSES[PASSES.index("@"):].replace("class Exp", "class Again"), "two passes"),
        ("import sys\nsys.exit(0)", "does not load: line 2: SystemExit: 0"),
        (PASSES.replace('"exp-for-softmax"', '"a,b"'), "a pass cannot be called 'a,b': expected"),
        ("class Any:\n    def __getattr__(self, name):\n        raise OSError\nx = Any()",
         "defines no pass"),
    ],
)
def test_a_faulty_file_of_passes_is_told(
    model: Path, passes: Path, text: str, told: str, capsys: Capture
) -> None:
    passes.write_text(text, "utf-8")
    assert cli.run(["opt", str(model), "--load", str(passes)]) == 1
    err = capsys.readouterr().err
    assert told in err and str(passes) in err
    assert cli.run(["opt", str(model), "--load", str(passes) + "x"]) == 1
    assert "does not exist" in capsys.readouterr().err


FAULTY = """import sys
from dataclasses import replace

from spyrec.ir.errors import PassError


class Faulty:
    name = "faulty"
    summary = "Does something wrong."

    def run(self, module, target):
        STATEMENT
"""


@pytest.mark.parametrize(
    ("given", "shown"),
    [("self, module", "(module)"), ("self, module, target, *, more", "(module, target, *, more)")],
)
def test_a_method_that_takes_something_else_is_told(
    model: Path, passes: Path, given: str, shown: str, capsys: Capture
) -> None:
    text = FAULTY.replace("self, module, target", given).replace("STATEMENT", "return module")
    passes.write_text(text, "utf-8")
    args = ["opt", str(model), "--load", str(passes), "--passes", "faulty"]
    assert cli.run(args) == 1
    assert capsys.readouterr().err == (
        f"spyrec: pass faulty: its method run takes {shown}, but is called with (module, target); "
        "write def run(self, module, target)\n"
    )


@pytest.mark.parametrize(
    "command", [["opt"], ["compile", "--emit", "ir"], ["compile", "--emit", "asm"]]
)
def test_what_passes_print_is_no_part_of_the_text(
    model: Path, passes: Path, command: list[str], capsys: Capture
) -> None:
    texts = []
    for loud in ("", "print('in the file')\n"):
        run = "print('in run'); return module" if loud else "return module"
        passes.write_text(loud + FAULTY.replace("STATEMENT", run), "utf-8")
        load = ["--load", str(passes), "--before", "decompose", "faulty"]
        assert cli.run([command[0], str(model), *command[1:], *load]) == 0
        texts.append(capsys.readouterr())
    assert texts[0].out == texts[1].out != ""
    assert "in the file\n" in texts[1].err and "in run\n" in texts[1].err


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("return module.bodies", "pass faulty: AttributeError: 'Module' object has no attribute"),
        ("return module.bodies", "my_passes.py, line 12)"),
        ("return None", "pass faulty gave NoneType, expected a module"),
        ("raise PassError('cannot do this')", "pass faulty: cannot do this"),
        ("sys.exit(0)", "pass faulty: SystemExit: 0 ("),
        ("raise GeneratorExit('odd')", "pass faulty: GeneratorExit: odd ("),
        ("module.body.ops[0].attrs['x'] = 1; return module", "pass faulty: TypeError: 'mapping"),
        ("object.__setattr__(module, 'name', 'n'); return module",
         "pass faulty changed the module it was given; it must make a new one"),
        ("return replace(module, body=None)", "pass faulty left a module with a part that is none"),
        ("return replace(module, name=5)", "pass faulty left a module with a part that is none"),
    ],
)
def test_a_fault_of_a_pass_from_elsewhere_names_it(
    model: Path, passes: Path, statement: str, told: str, capsys: Capture
) -> None:
    passes.write_text(FAULTY.replace("STATEMENT", statement), "utf-8")
    load = ["--load", str(passes)]
    assert cli.run(["opt", str(model), *load, "--passes", "faulty"]) == 1
    assert told in capsys.readouterr().err
    assert cli.run(["bisect", str(model), *load, "--before", "fold", "faulty", "--no-reduce"]) == 1
    kind = "ChangedInput" if "changed the module" in told else "PassError"
    assert f"faulty, fails: {kind}: pass faulty" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("return replace(module, output_names=())",
         "pass faulty left a malformed module: rule 8: expected a name for each output"),
        ("return replace(module, body=replace(module.body, ops=()))",
         "pass faulty left a malformed module: rule 3: %c is not defined"),
    ],
)
def test_what_stumbles_over_a_malformed_module_is_not_blamed(
    model: Path, passes: Path, statement: str, told: str, capsys: Capture
) -> None:
    passes.write_text(FAULTY.replace("STATEMENT", statement), "utf-8")
    args = ["compile", str(model), "--load", str(passes), "--before", "decompose", "faulty"]
    assert cli.run([*args, "-o", str(model.with_suffix(".spx")), "--no-cache"]) == 1
    assert told in capsys.readouterr().err


def test_what_was_verified_and_compared_is_told_beside_the_text(
    model: Path, passes: Path, capsys: Capture
) -> None:
    watch = ["--verify-each", "--oracle-each"]
    assert cli.run(["opt", str(model), "--passes", "canonicalize,dce"]) == 0
    plain = capsys.readouterr()
    assert plain.err == ""
    assert cli.run(["opt", str(model), "--passes", "canonicalize,dce", *watch]) == 0
    told = capsys.readouterr()
    assert told.out == plain.out
    assert told.err == (
        "verified: 2 passes, no rule of the IR is broken\n"
        "compared: 2 passes, all results equal\n"
    )
    load = ["--load", str(passes), "--passes", "dce,exp-for-softmax"]
    assert cli.run(["opt", str(model), *load, "--oracle-each", "--tolerance", "100"]) == 0
    found = re.fullmatch(
        r"compared: 2 passes, the largest error is ([\d.]+), of output y after exp-for-softmax, "
        r"allowed is 100; output y is at most [\d.]+, below the 100 that is allowed: an error as "
        r"large as itself would not be seen; scale it, or give a smaller --tolerance\n",
        capsys.readouterr().err,
    )
    assert found
    assert cli.run(["opt", str(model), *load, "--oracle-each"]) == 1
    assert f"the error is {found[1]}, allowed" in capsys.readouterr().err


def test_the_oracle_sees_other_outputs(model: Path, passes: Path, capsys: Capture) -> None:
    statement = "return replace(module, output_names=('z',))"
    passes.write_text(FAULTY.replace("STATEMENT", statement), "utf-8")
    args = ["opt", str(model), "--load", str(passes), "--passes", "faulty", "--oracle-each"]
    assert cli.run(args) == 1
    told = "spyrec: oracle: pass faulty changed the outputs from y to z\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("field", "told"),
    [("k: int", "cannot be made: TypeError: "),
     ("k: int = 1\n    def __post_init__(self): sys.exit(0)", "cannot be made: SystemExit: 0")],
)
def test_a_pass_that_cannot_be_made_is_told(
    model: Path, passes: Path, field: str, told: str, capsys: Capture
) -> None:
    text = PASSES.replace("on: bool = True", field)
    passes.write_text(f"import sys\n{text}", "utf-8")
    args = ["--load", str(passes)]
    assert cli.run(["opt", str(model), *args, "--passes", "exp-for-softmax"]) == 1
    assert f"spyrec: pass exp-for-softmax {told}" in capsys.readouterr().err
    assert cli.run(["passes", *args, "exp-for-softmax"]) == 0
    out = capsys.readouterr().out
    assert "option k" in out and "MISSING" not in out


def test_a_file_comes_before_an_installed_pass_of_its_name(
    passes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Installed:
        name = "exp-for-softmax"

    found = {**registry(), "exp-for-softmax": Installed}
    monkeypatch.setattr("spyrec.workbench.plugins.registry", lambda: found)
    assert known_passes([passes])["exp-for-softmax"] is not Installed


def test_passes_put_in_by_name_go_into_the_usual_ones(
    model: Path, passes: Path, capsys: Capture
) -> None:
    args = ["opt", str(model), "--load", str(passes), "--until", "fuse"]
    assert cli.run([*args, "--before", "decompose", "exp-for-softmax"]) == 0
    out = capsys.readouterr().out
    assert "exp(" in out and "kernel(" in out


def test_passes_tells_all_about_one(passes: Path, capsys: Capture) -> None:
    assert cli.run(["passes", "canonicalize", "fold"]) == 0
    out = capsys.readouterr().out
    assert "canonicalize: Removes ops" in out and "  option limit=" in out
    assert "pass 1 and 9 of 29 of the usual pipeline with --planner joint" in out
    assert ">>> before = parse_module(" in out
    assert cli.run(["passes", "exp-for-softmax", "--load", str(passes)]) == 0
    assert "Wrong on purpose." in capsys.readouterr().out
    assert cli.run(["passes", "nothing"]) == 1
    assert "no pass is called 'nothing'; spyrec passes lists all" in capsys.readouterr().err


def test_every_pass_that_ships_has_an_example() -> None:
    for name, make in known_passes().items():
        assert ">>>" in (make.__doc__ or ""), f"{name} shows no IR before and after"


def test_it_goes_through_a_pipe(model: Path) -> None:
    command = [sys.executable, "-m", "spyrec", "opt", "-", "--passes", "canonicalize"]
    done = subprocess.run(command, input=MODEL, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == ""
    assert "%c = softmax(%x)" in done.stdout


@pytest.mark.parametrize("type_", ["4294967296x4294967296xf32", "2x" * 70 + "f32"])
def test_types_that_no_array_has_are_told(tmp_path: Path, type_: str, capsys: Capture) -> None:
    text = f'module "m" {{\n  input %x: tensor<{type_}>\n  output "y" = %x\n}}\n'
    (tmp_path / "m.sir").write_text(text, "utf-8")
    assert cli.run(["opt", str(tmp_path / "m.sir"), "--oracle-each"]) == 1
    assert "spyrec: input x cannot be made at random, no array has its" in capsys.readouterr().err
