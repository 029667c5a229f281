"""Each kind of failure gets its exit code, a sentence on stderr and no traceback."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spyrec import cli
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


@pytest.mark.parametrize(("closed", "code"), [("<&-", 1), (">&-", 0), ("2>&-", 0), ("2>&- >&-", 0)])
def test_closed_streams_are_empty(closed: str, code: int) -> None:
    line = f"{shlex.quote(sys.executable)} -m spyrec opt - {closed}"
    model = 'module "m" {\n  input %x: tensor<4xf32>\n  output "y" = %x\n}\n'
    done = subprocess.run(["sh", "-c", line], input=model, text=True, check=False)
    assert done.returncode == code
