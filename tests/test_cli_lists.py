"""``spyrec devices``, ``passes`` and ``ops`` list all there is; importing spyrec stays cheap."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

import spyrec
from spyrec import cli
from spyrec.ir.ops import OPS
from spyrec.passes.pipeline_text import parse_pipeline
from spyrec.reference import signature
from spyrec.sim.device import builtin_devices, load_device

ROOT = Path(__file__).resolve().parent.parent


def output(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.run([command]) == 0
    return capsys.readouterr().out


def test_devices_lists_each_with_its_size(capsys: pytest.CaptureFixture[str]) -> None:
    out = output("devices", capsys)
    assert [line.partition(":")[0] for line in out.splitlines()] == builtin_devices()
    bus_gb_s = load_device("spyre").hbm.bytes_per_cycle * 1100 / 1000
    assert (
        "spyre: 32 cores at 1100 MHz, 1024 16-bit MAC a cycle and core, 2 MiB scratchpad a core, "
        f"112 GiB memory at {bus_gb_s:g} GB/s"
    ) in out.splitlines()


def test_a_machine_of_ones_own_is_checked_and_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (files("spyrec.sim") / "devices" / "spyre.toml").read_text("utf-8")
    mine = tmp_path / "half.toml"
    mine.write_text(text.replace("\ncount = 32 ", "\ncount = 16 "))
    assert cli.run(["devices", str(mine)]) == 0
    assert capsys.readouterr().out.startswith(f"{mine}: 16 cores at 1100 MHz, ")
    mine.write_text(text.replace("\ncount = 32 ", "\ncount = 0 "))
    assert cli.run(["devices", str(mine)]) == 1
    assert "cores.count is 0, expected a whole number from 1 to 63" in capsys.readouterr().err


def test_no_line_of_the_help_is_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    commands = output("--help", capsys).partition("Commands:")[2].splitlines()
    assert len(commands) > 8
    assert [line for line in commands if line.endswith("...")] == []


def test_ops_lists_each_op_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output("ops", capsys).splitlines()
    listed = [line.strip().partition("(")[0] for line in lines if line.strip().endswith("result")]
    assert {op.name for op in OPS.values() if op.results == ("result",)} <= set(listed)
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize(
    ("op", "text"),
    [
        ("matmul", "matmul(a, b; to: dtype = None) -> result"),
        ("softmax", "softmax(x; axis: int) -> result"),
    ],
)
def test_an_op_is_shown_by_its_signature(op: str, text: str) -> None:
    assert signature(OPS[op]) == text


def test_passes_lists_each_and_a_pipeline_that_parses(
    capsys: pytest.CaptureFixture[str]
) -> None:
    from spyrec.passes.pipeline import PIPELINE, registry

    lines = output("passes", capsys).splitlines()
    for name in registry():
        at = next(i for i, line in enumerate(lines) if line.partition("{")[0] == name)
        assert len(lines[at + 1].split()) >= 3, f"{name} does not say what it does"
    [usual] = [line for line in lines if line.startswith("usual pipeline: ")]
    assert parse_pipeline(usual.removeprefix("usual pipeline: "), registry()) == PIPELINE


def test_importing_spyrec_and_asking_for_help_loads_no_heavy_library() -> None:
    code = (
        "import sys, spyrec, spyrec.cli\n"
        "spyrec.cli.run(['--version'])\n"
        "print([m for m in ('numpy', 'onnx', 'networkx', 'lark', 'rich') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines()[-1] == "[]"


def test_the_public_names_are_there() -> None:
    assert set(spyrec.__all__) <= set(dir(spyrec))
    for name in spyrec.__all__:
        assert getattr(spyrec, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'spyrec' has no attribute 'compyle'"):
        spyrec.compyle  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "spyrec.__version__"}
