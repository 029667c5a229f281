"""Each kind of failure gets its exit code, a sentence on stderr and no traceback."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from spyrec import cli
from spyrec.cli_path import NewFile, Writing
from spyrec.ir.errors import ImportError_, SpyrecError
from spyrec.sim import device as device_module
from spyrec.sim.errors import SimulationError


def raising(error: BaseException) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def devices_failing_with(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, *flags: str
) -> int:
    monkeypatch.setattr(device_module, "builtin_devices", raising(error))
    return cli.run(["devices", *flags])


def test_success_is_0_and_says_nothing_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["devices"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["--version"], ["compile", "--help"]])
def test_help_and_version_are_0(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(args) == 0
    assert "spyrec" in capsys.readouterr().out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["--help"])
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in cli.COMMANDS)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["simulate"], "Missing argument 'PROGRAM'"),
        (["simulate", "x.spx", "--seed", "-1"], "-1 is not in the range x>=0"),
        (["simulate", "x.spx", "--timing-only", "--outputs", "o.npz"], "has no --outputs to write"),
        (["compile", "m.onnx", "--numerics", "fp4"], "'fp4' is not one of"),
        (["compile", "m.onnx", "--bind", "batch"], "--bind 'batch': expected the form KEY=VALUE"),
        (["compile", "m.onnx", "--bind", "batch=-1"], "expected a whole number, 0 or more"),
        (["compile", "m.onnx", "--bind", "b=1", "--bind", "b=2"], "--bind b is given twice"),
        (["compile", "m.onnx", "--const", "k=zzz"], "--const k=zzz: expected a number"),
        (["asm", "x.lst"], "Missing option '-o'"),
        (["asm", "x.lst", "-o", "-"], "'-o' / '--output': '-' is no file name here"),
        (["compile", "m.onnx", "-o", "-"], "'-' is no file name here; give the path of a file"),
        (["compile", "m.onnx", "--emit-plan", "-"], "'--emit-plan': '-' is no file name here"),
        (["compile", "m.onnx", "--no-weights"], "--no-weights is for --emit ir and --emit asm"),
        (["simulate", "x.spx", "--outputs", "-"], "'--outputs': '-' is no file name here"),
        (["simulate", "x.spx", "--report", "-"], "'--report': '-' is no file name here"),
        (["simulate", "x.spx", "--trace", "-"], "'--trace': '-' is no file name here"),
        (["compile", "m.onnx", "-o", "p", "--emit-plan", "./p"], "--output writes to ./p too"),
        (["opt", "m.sir", "--seed", "-1"], "-1 is not in the range x>=0"),
        (["bisect", "m.sir", "--seed", "-1"], "-1 is not in the range x>=0"),
        (["check-rule", "m.rules", "--seed", "-1"], "-1 is not in the range x>=0"),
        (["opt", "m.sir", "--tolerance", "nan"], "nan is not a number"),
        (["reduce", "m.sir", "--test", "false", "--timeout", "nan"], "nan is not a number"),
        (["reduce", "m.sir", "--test", "false", "--timeout", "inf"], "inf is not in the range"),
    ],
)
def test_usage_faults_are_2(
    args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(args) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (SpyrecError("the model is odd"), "spyrec: the model is odd\n"),
        (SimulationError("kernel k1 deadlocks"), "spyrec: kernel k1 deadlocks\n"),
        (ImportError_(["fault one", "fault two"]), "spyrec: fault one\nspyrec: fault two\n"),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out.spx"),
            "spyrec: out.spx: No space left on device\n",
        ),
        (MemoryError(), "spyrec: not enough memory: an allocation failed\n"),
    ],
)
def test_faults_of_the_input_are_1(
    error: Exception,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert devices_failing_with(error, monkeypatch) == 1
    assert capsys.readouterr().err == shown


def test_notes_of_an_error_are_shown_to_who_asks_for_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = SpyrecError("%x has no layout")
    error.add_note("in pass fuse, after decompose")
    assert devices_failing_with(error, monkeypatch) == 1
    assert capsys.readouterr().err == "spyrec: %x has no layout\n"
    assert devices_failing_with(error, monkeypatch, "--debug") == 1
    assert capsys.readouterr().err.endswith(
        "\nspyrec: %x has no layout\nspyrec: in pass fuse, after decompose\n"
    )


def test_a_defect_is_70_and_says_how_to_reproduce_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert devices_failing_with(KeyError("k"), monkeypatch) == 70
    assert capsys.readouterr().err == (
        "spyrec: defect of spyrec: KeyError: 'k'\n"
        "spyrec: reproduce it with: spyrec --debug devices\n"
    )


@pytest.mark.parametrize("error", [SpyrecError("odd"), ValueError("odd")])
def test_debug_shows_the_traceback(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = devices_failing_with(error, monkeypatch, "--debug")
    assert code == (1 if isinstance(error, SpyrecError) else 70)
    assert "Traceback (most recent call last):" in capsys.readouterr().err


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert devices_failing_with(KeyboardInterrupt(), monkeypatch) == 130
    assert "interrupted" in capsys.readouterr().err


def test_missing_files_are_1_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("simulate", "disasm", "compile"):
        missing = str(tmp_path / "absent.onnx")
        assert cli.run([command, missing]) == 1
        assert missing in capsys.readouterr().err


def test_main_leaves_with_the_exit_code() -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["frobnicate"])
    assert caught.value.code == 2


def test_a_folder_that_is_not_there_is_told_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "no" / "small.sir"
    assert cli.run(["bisect", "not-read.sir", "-o", str(path)]) == 1
    assert capsys.readouterr().err == f"spyrec: {path}: there is no folder {path.parent}\n"


def test_two_outputs_may_go_to_one_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["compile", "no.onnx", "-o", os.devnull, "--emit-plan", os.devnull]) == 1
    assert "no.onnx" in capsys.readouterr().err


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("m.onnx", "m.sir", "p.py", "p.spx", "k.npy", "d.toml", "r.json", "a.csv"):
        Path(name).write_text(f"{name} is no such file, and is not read", "utf-8")
    Path("link.onnx").symlink_to("m.onnx")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("compile m.onnx -o m.onnx", "m.onnx is read as input"),
        ("compile -o ./m.onnx m.onnx", "m.onnx is read as input"),
        ("compile link.onnx --emit-plan m.onnx", "m.onnx is read as input"),
        ("compile m.sir -o m.sir", "m.sir is read as input"),
        ("compile m.onnx --const k=k.npy -o k.npy", "k.npy is read by --const"),
        ("compile m.onnx --device d.toml -o d.toml", "d.toml is read by --device"),
        ("compile --from-config r.json --prompt 3 -o r.json", "r.json is read by --from-config"),
        ("opt m.sir --load p.py -o p.py", "p.py is read by --load"),
        ("opt m.onnx -o m.onnx", "m.onnx is read as input"),
        ("bisect m.onnx -o m.onnx", "m.onnx is read as input"),
        ("reduce m.onnx --test false -o m.onnx", "m.onnx is read as input"),
        ("simulate p.spx --report p.spx", "p.spx is read as input"),
        ("report r.json -o r.json", "r.json is read as input"),
        ("compare r.json r.json --json r.json", "r.json is read as input"),
        ("explain m.onnx --plan r.json --json r.json", "r.json is read by --plan"),
        ("disasm p.spx -o p.spx", "p.spx is read as input"),
        ("asm p.spx -o p.spx", "p.spx is read as input"),
        ("validate a.csv --json a.csv", "a.csv is read as input"),
        ("sweep m.onnx device=spyre,d.toml -o d.toml", "d.toml is read as input"),
        ("sweep m.onnx --points a.csv -o a.csv", "a.csv is read by --points"),
    ],
)
def test_no_file_that_is_read_is_overwritten_by_one_of_another_kind(
    desk: Path, line: str, read: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {p: p.read_bytes() for p in desk.iterdir()}
    assert cli.run(line.split()) == 2
    err = capsys.readouterr().err
    assert f"{read} and would be overwritten by a file of another kind; give another name" in err
    assert {p: p.read_bytes() for p in desk.iterdir()} == before


@pytest.mark.parametrize(
    "line",
    [
        "opt m.sir -o m.sir", "bisect m.sir -o m.sir", "reduce m.sir --test false -o m.sir",
        "compile m.sir --emit ir -o m.sir", "compile m.onnx --plan r.json --emit-plan r.json",
        "simulate p.spx --inputs k.npz --outputs k.npz", "compile m.onnx --passes p.py -o p.py",
    ],
)
def test_one_of_its_own_kind_may_be_overwritten(
    desk: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(line.split()) == 1  # what stands in the files is told
    assert "overwritten" not in capsys.readouterr().err


def test_every_command_that_writes_spares_what_it_reads() -> None:
    context = click.Context(cli.cli)
    commands = [cli.cli.get_command(context, name) for name in cli.COMMANDS]
    writing = [c for c in commands if c and any(isinstance(p.type, NewFile) for p in c.params)]
    assert len(writing) >= 12
    assert all(isinstance(c, Writing) for c in writing)


@pytest.mark.parametrize(("closed", "code"), [("<&-", 1), (">&-", 0), ("2>&-", 0), ("2>&- >&-", 0)])
def test_closed_streams_are_empty(closed: str, code: int) -> None:
    line = f"{shlex.quote(sys.executable)} -m spyrec opt - {closed}"
    model = 'module "m" {\n  input %x: tensor<4xf32>\n  output "y" = %x\n}\n'
    done = subprocess.run(["sh", "-c", line], input=model, text=True, check=False)
    assert done.returncode == code
