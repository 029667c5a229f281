"""The template of a distribution with a pass, as its reader gets it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from spyrec import cli
from spyrec.passes.registry import ENTRY_POINT_GROUP
from spyrec.workbench.plugins import passes_of, read_file

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "examples" / "my_pass"


def test_its_tests_and_its_example_pass_where_it_was_copied_to(tmp_path: Path) -> None:
    shutil.copytree(TEMPLATE, tmp_path / "mine")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-modules", "."],
        cwd=tmp_path / "mine", capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_its_rule_is_tried_on_the_examples_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["check-rule", str(TEMPLATE / "my_pass.py")]) == 0
    assert capsys.readouterr().out == "early-slice: exact, 200 models, worst error 0\n"


def test_its_entry_point_names_the_pass_it_holds() -> None:
    text = (TEMPLATE / "pyproject.toml").read_text("utf-8")
    points = tomllib.loads(text)["project"]["entry-points"][ENTRY_POINT_GROUP]
    made = passes_of(read_file(TEMPLATE / "my_pass.py"))
    assert {name: f"my_pass:{m.__name__}" for name, m in made.items()} == points
