"""``spyrec disasm`` and ``spyrec asm`` undo each other, byte for byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_cli_simulate import doubling

from spyrec import api, cli


@pytest.fixture
def spx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("double.spx")
    api.Program(doubling(2)).save(path)
    return path


def test_a_listing_assembles_to_the_same_bytes(
    spx: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["disasm", str(spx)]) == 0
    listing = capsys.readouterr().out
    assert "double" in listing
    assert "load" in listing
    Path("double.lst").write_text(listing, "utf-8")
    assert cli.run(["asm", "double.lst", "-o", "again.spx"]) == 0
    assert Path("again.spx").read_bytes() == spx.read_bytes()


def test_a_fault_in_a_listing_names_file_and_line(
    spx: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["disasm", str(spx)]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("    load "))
    lines[at] = lines[at].replace("load", "lood", 1)
    Path("bad.lst").write_text("\n".join(lines), "utf-8")
    assert cli.run(["asm", "bad.lst", "-o", "bad.spx"]) == 1
    assert capsys.readouterr().err.startswith(f"spyrec: bad.lst: line {at + 1}: ")
    assert not Path("bad.spx").exists()


def test_a_listing_that_is_not_text_is_a_fault(
    spx: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["asm", str(spx), "-o", "x.spx"]) == 1
    assert "double.spx is not UTF-8 text" in capsys.readouterr().err


def test_a_closed_pipe_ends_quietly(spx: Path) -> None:
    api.Program(doubling(4000)).save("long.spx")
    run = subprocess.run(
        f"{sys.executable} -m spyrec disasm long.spx | head -1",
        shell=True, capture_output=True, text=True, check=False,
        cwd=Path.cwd(), env={"PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    assert run.stderr == ""
    assert len(run.stdout.splitlines()) == 1
