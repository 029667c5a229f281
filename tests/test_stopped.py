"""Interrupted, killed or out of room while writing: the old file stands, whole."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest

import spyrec
from examples.make_models import encoder

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with encoder.onnx and encoder.spx."""
    monkeypatch.chdir(tmp_path)
    onnx.save(encoder(), "encoder.onnx")
    spyrec.compile("encoder.onnx").save("encoder.spx")
    return tmp_path


def _listening() -> None:
    """A shell that runs the tests in the background has them, and all they start, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("command", ["compile", "simulate"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_being_stopped_leaves_the_old_files(desk: Path, command: str, how: signal.Signals) -> None:
    """Stopped at four moments, from the imports to the last write: the old file or the whole new
    one stands (new when the stop came after the writing, while the table was printed), and Ctrl-C
    says so with exit code 130 and leaves nothing beside it."""
    args, target = {
        "compile": (["encoder.onnx", "-o", "old.spx"], Path("old.spx")),
        "simulate": (["encoder.spx", "--outputs", "old.npz"], Path("old.npz")),
    }[command]
    line = [sys.executable, "-m", "spyrec", command, *args]
    start = time.monotonic()
    subprocess.run(line, env=ENVIRONMENT, check=True, capture_output=True)
    whole, took = target.read_bytes(), time.monotonic() - start
    before = set(os.listdir())
    stopped = 0
    for part in range(1, 5):
        target.write_bytes(b"old")
        child = subprocess.Popen(
            line, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, preexec_fn=_listening
        )
        time.sleep(took * part / 5)
        child.send_signal(how)
        _, said = child.communicate(timeout=60)
        stopped += child.returncode != 0
        assert target.read_bytes() in (b"old", whole)
        if how == signal.SIGINT:
            assert set(os.listdir()) == before
            assert child.returncode in (0, 130, -signal.SIGINT), said
            if child.returncode == 130:
                assert said.splitlines()[-1] == (
                    "spyrec: interrupted; files that were being written are left as they were"
                )
    assert stopped >= 2


@pytest.mark.parametrize(
    ("args", "target"),
    [
        (["compile", "encoder.onnx", "-o", "old.spx"], "old.spx"),
        (["compile", "encoder.onnx", "--emit", "asm", "-o", "old.lst"], "old.lst"),
        (["simulate", "encoder.spx", "--outputs", "old.npz"], "old.npz"),
        (["simulate", "encoder.spx", "--timing-only", "--trace", "old.json"], "old.json"),
    ],
)
def test_a_disk_without_room_leaves_the_old_file(desk: Path, args: list[str], target: str) -> None:
    """A limit on the size of files makes real writes fail, as a full disk does."""
    Path(target).write_bytes(b"old")
    before = set(os.listdir())
    done = subprocess.run(
        [sys.executable, "-m", "spyrec", *args],
        env=ENVIRONMENT, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512)),
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"spyrec: {target}: File too large"
    assert Path(target).read_bytes() == b"old"
    assert set(os.listdir()) == before
