"""What the planner chose for the kernels of a report, why, and what it rejected; and plans of other
programs, which are refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import spyrec
from examples.make_models import encoder
from spyrec import cli
from spyrec.decision_log import decision_log
from spyrec.ir.errors import SpyrecError
from spyrec.report import Report


@pytest.fixture(scope="module")
def program() -> spyrec.Program:
    return spyrec.compile(encoder())


@pytest.fixture(scope="module")
def report(program: spyrec.Program) -> Report:
    facts = spyrec.simulate(program, timing_only=True).facts
    return replace(facts, model="encoder.onnx")


def test_the_log_has_every_kernel_with_its_best_rejected(
    program: spyrec.Program, report: Report
) -> None:
    log = decision_log(report, program.plan)
    assert [k.kernel for k in log.kernels] == [k.name for k in report.kernels]
    for row in log.kernels:
        decided = program.plan["kernels"][row.kernel]
        assert row.cut == " ".join(f"{d}={n}" for d, n in decided["parts"].items())
        rejected = decided["why"]["parts"].get("rejected", [])
        assert row.cut_rejected_cost == (rejected[0]["cost_cycles"] if rejected else None)
    assert any(row.cut_rejected for row in log.kernels)
    assert sorted(n for p in log.tensors for n in p.names) == sorted(program.plan["tensors"])
    spaces = {n: p.space for p in log.tensors for n in p.names}
    known = {"lx": "scratchpads", "hbm": "card memory"}
    assert spaces == {n: known[t["space"]] for n, t in program.plan["tensors"].items()}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"kernels": {}}, "not that of the program encoder.onnx: it has no kernel k0_lt_add_where"),
        ({"kernels": []}, "plan: kernels is '[]', expected an object"),
        ({"kernels": {"k0_lt_add_where": 3}}, "plan: kernels.k0_lt_add_where is '3'"),
        ({"kernels": {"k0_lt_add_where": {"why": {"parts": {"rejected": 1}}}}}, "expected a list"),
        ({"buckets": {"a": 1}}, "plan: buckets.a is '1', expected an object"),
    ],
)
def test_a_plan_of_something_else_is_told(
    report: Report, plan: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpyrecError, match=re.escape(message)):
        decision_log(report, plan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda kernels: kernels.pop("k9_reduce_max_sub_exp"), "it has no kernel k9_reduce_max"),
        (lambda kernels: kernels.update(k99_more=kernels["k4_move"]),
         "it has 18 kernels, the program ran 17"),
        (lambda kernels: kernels["k4_move"]["parts"].update(d0=7), "it cuts k4_move into d0=7"),
        (lambda kernels: kernels["k4_move"]["tile"].update(d0=7), "it tiles k4_move into d0=7"),
    ],
)
def test_a_plan_of_a_program_much_like_it_is_refused(
    program: spyrec.Program, report: Report, change: Any, message: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = json.loads(json.dumps(program.plan))
    change(plan["kernels"])
    files = {"r.json": report.as_json(), "plan.json": json.dumps(plan)}
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    given, plans, page = (str(tmp_path / n) for n in ("r.json", "plan.json", "r.html"))
    assert cli.run(["report", given, "--plan", plans, "-o", page]) == 1
    err = capsys.readouterr().err
    assert f"the plan is not that of the program encoder.onnx: {message}" in err
    assert "give the plan that --emit-plan wrote when the program was compiled" in err
    assert not Path(page).exists()


def test_what_a_search_brought_is_told_with_readable_numbers(
    program: spyrec.Program, report: Report
) -> None:
    plan = json.loads(json.dumps(program.plan))
    plan["why"] = {"improve": {"first_cycles": 1234567, "cycles": 33453, "tried": 1000}}
    made = [{"move": "cut m=4", "cycles": 12518, "then": 9051}]
    plan["kernels"]["k4_move"]["why"]["improve"] = {"tried": 5, "made": made}
    log = decision_log(report, plan)
    assert log.searched == (
        "Simulating alternatives brought the run from 1,234,567 to 33,453 cycles; 1,000 were tried."
    )
    plan["why"]["improve"]["cycles"] = 1234567
    assert decision_log(report, plan).searched == (
        "Simulating alternatives to 1,234,567 cycles found no better; 1,000 were tried."
    )
    [row] = [k for k in log.kernels if k.kernel == "k4_move"]
    assert row.notes.endswith("5 moves simulated, made cut m=4: 12,518 to 9,051 cycles")
