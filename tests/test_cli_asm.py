"""``spyrec disasm`` and ``spyrec asm`` undo each other, byte for byte."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
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
    assert cli.run(["disasm", str(spx), "-o", "same.lst"]) == 0
    assert Path("same.lst").read_text("utf-8") == listing
    assert cli.run(["asm", "double.lst", "-o", "again.spx"]) == 0
    assert Path("again.spx").read_bytes() == spx.read_bytes()


def test_one_kernel_and_no_weights(spx: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = doubling(2)
    data = bytes(range(256))
    weights = replace(program.buffers[0], name="w", kind="const", size=256, address=8192, data=data)
    api.Program(replace(program, buffers=(*program.buffers, weights))).save("w.spx")

    def listed(*options: str) -> str:
        assert cli.run(["disasm", "w.spx", *options]) == 0
        return capsys.readouterr().out

    full, short, kernel = listed(), listed("--no-weights"), listed("--kernel", "double")
    assert "zlib" in full and "zlib" not in short
    assert "# data left out" in short
    assert kernel.startswith("kernel @double cores 1 ") and kernel.endswith("\n}\n")
    assert kernel in full and kernel in short
    assert cli.run(["disasm", "w.spx", "--kernel", "triple"]) == 1
    assert capsys.readouterr().err == (
        "spyrec: w.spx has no kernel triple; its kernels are: double\n"
    )


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
