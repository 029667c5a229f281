"""The examples do what they say."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def run(script: str, *args: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *args],
        capture_output=True, text=True, cwd=cwd, env={"PYTHONPATH": str(ROOT), "PATH": ""},
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quick_start_compiles_and_runs_the_encoder(tmp_path: Path) -> None:
    run("make_models.py", "demo", cwd=tmp_path)
    assert re.fullmatch(r"[\d.]+ us, outputs \['hidden'\]\n", run("quick_start.py", cwd=tmp_path))


def test_quick_start_says_how_to_make_a_model_that_is_not_there(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "quick_start.py"), "my/encoder.onnx"],
        capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""},
        timeout=240, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1, "my/encoder.onnx is not there; make it with: python examples/make_models.py my\n"
    )  # fmt: skip


def test_the_ten_line_pass_saves_cycles(tmp_path: Path) -> None:
    lines = run("merge_matmuls.py", cwd=tmp_path).splitlines()
    cycles = [int(line.split()[1]) for line in lines]
    assert [line.split()[0] for line in lines] == ["canonicalize", "merge-matmuls"]
    assert cycles[1] < 0.8 * cycles[0]


def test_every_cell_of_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel runs them: in the notebook's folder, the value of a last expression shown."""
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text("utf-8"))["cells"]
    names: dict[str, object] = {"__name__": "__main__"}
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p).resolve() != ROOT])
    for known in [name for name in sys.modules if name.partition(".")[0] == "examples"]:
        monkeypatch.delitem(sys.modules, known)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for cell in cells:
            if cell["cell_type"] == "code":
                assert cell["outputs"] == [], "outputs are not kept: they would drift"
                tree = ast.parse("".join(cell["source"]), cell["id"])
                last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
                exec(compile(tree, cell["id"], "exec"), names)
                if last is not None:
                    shown = eval(compile(ast.Expression(last.value), cell["id"], "eval"), names)
                    assert repr(shown)
    told = out.getvalue()
    assert "272 bytes a cycle" in told and "| kernel | before | after |" in told
    totals = [names[n].total_cycles for n in ("result", "other", "on_faster")]  # type: ignore[attr-defined]
    assert totals[2] < totals[0] != totals[1]
    assert names["verdict"].wrong == ""  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.skipif(
    not (find_spec("nbclient") and find_spec("ipykernel")), reason="needs nbclient and ipykernel"
)
def test_the_notebook_runs_in_a_kernel() -> None:
    import nbclient  # type: ignore[import-not-found,unused-ignore]
    import nbformat  # type: ignore[import-not-found,unused-ignore]

    notebook = nbformat.read(EXAMPLES / "tour.ipynb", 4)
    nbformat.validate(notebook)
    client = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(EXAMPLES)}}
    )
    client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell.outputs for cell in cells)
