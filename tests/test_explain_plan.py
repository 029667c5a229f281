"""``spyrec explain``: of plans that are not those of a program, and of passes that are not ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import spyrec
from spyrec import cli
from spyrec.ir.errors import SpyrecError
from spyrec.ir.parser import parse_module

TEXT = """module "m" {
  input %x: tensor<64x256xf32>
  input %v: tensor<256x128xf32>
  input %w: tensor<128x64xf32>
  %h = matmul(%x, %v) : tensor<64x128xf32>
  %y = matmul(%h, %w) : tensor<64x64xf32>
  output "y" = %y
}
"""


def test_a_program_is_explained_by_a_whole_plan() -> None:
    """Whatever a file holds: a sentence tells what is wrong, and where."""
    program = spyrec.compile(parse_module(TEXT), plan_budget=0)
    whole = json.dumps(program.plan)
    [first, _] = program.plan["kernels"]
    def told(change: Callable[[Any], Any]) -> str:
        plan = json.loads(whole)
        change(plan)
        with pytest.raises(SpyrecError) as caught:
            spyrec.explain(replace(program, module=None), plan=plan)
        return str(caught.value)

    def lacks(what: str) -> str:
        return (
            f"plan: {what} is missing or of another kind; a program is explained by the whole file "
            "that --emit-plan wrote beside it, not by pins"
        )

    def of(plan: Any) -> Any:
        return plan["kernels"][first]

    assert told(lambda p: p.clear()) == lacks("kernels")
    assert told(lambda p: p.pop("tensors")) == lacks("tensors")
    assert told(lambda p: of(p).pop("why")) == lacks(f"kernel {first}, why")
    assert told(lambda p: of(p)["why"].update(parts=[])) == lacks(f"kernel {first}, why, parts")
    assert told(lambda p: of(p)["why"]["tile"].update(rejected=[{}])) == lacks(
        f"kernel {first}, why, tile, rejected 0, tile"
    )
    for what, key in (("parts", "cost_cycles"), ("tile", "bytes"), ("tile", "budget_bytes")):
        for value in ("12", [[1]], {}, True):
            given: Any = {key: value}
            assert told(lambda p, w=what, g=given: of(p)["why"][w].update(g)) == lacks(
                f"kernel {first}, why, {what}, {key}"
            )
    assert told(lambda p: of(p).update(ahead=10**30)) == (
        f"plan: kernel {first}, ahead: expected a whole number from 2 on, got {10**30}"
    )
    assert told(lambda p: p.update(kernels=[1])) == "plan: kernels: expected an object, got [1]"
    assert told(lambda p: of(p).update(parts=3)) == (
        f"plan: kernel {first}, parts: expected an object, got 3"
    )
    assert told(lambda p: p["kernels"].pop(first)) == (
        "the plan is not that of the program: it has 1 kernels, the program launches 2"
    )
    dims = list(program.plan["kernels"][first]["parts"])
    for what, verb in (("parts", "cuts"), ("tile", "tiles")):
        threes = dict.fromkeys(dims, 3)
        assert told(lambda p, what=what, threes=threes: of(p).update({what: threes})).startswith(
            f"the plan is not that of the program: it {verb} {first} into m=3 n=3 k=3, the program "
        )


OWN = """class Nothing:
    name = "nothing"
    summary = "Changes nothing."

    def run(self, module, target):
        print("nothing ran")
        return module
"""


def test_passes_of_a_file_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.sir").write_text(TEXT, "utf-8")
    Path("own.py").write_text(OWN, "utf-8")
    own = ["--load", "own.py", "--before", "cse", "nothing"]
    assert cli.run(["explain", "m.sir", "--plan-budget", "0", *own]) == 0
    with_it = capsys.readouterr().out
    assert cli.run(["explain", "m.sir", "--plan-budget", "0"]) == 0
    assert with_it == "nothing ran\n" + capsys.readouterr().out
    assert cli.run(["explain", "m.sir", "--after", "cse", "nothink", "--load", "own.py"]) == 1
    assert "no pass is called 'nothink'; did you mean nothing?" in capsys.readouterr().err
    assert cli.run(["explain", "m.spx", *own]) == 2
    assert "--load, --before: for a model; a program is" in capsys.readouterr().err
