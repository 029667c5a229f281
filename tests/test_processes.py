"""Work spread over processes: none outlives the command, and one that dies costs what it was at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from sessions import ENVIRONMENT, HAS_PROC, session, until

from spyrec.processes import Lost, spread
from spyrec.sim.device import load_device
from spyrec.validate import predict, validate
from spyrec.validate_rows import COLUMNS, read_rows

MEASURED = "mm,matmul,,1,256,512,256,,,,fp16,32,1_4_8_1,,10.5,H,"


@pytest.mark.skipif(not HAS_PROC, reason="looks for processes in /proc")
def test_no_process_outlives_a_command_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    lines = [MEASURED.replace("mm,", f"m{i},", 1) for i in range(2000)]
    path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n", "utf-8")
    child = subprocess.Popen(
        [sys.executable, "-m", "spyrec", "validate", str(path)], env=ENVIRONMENT,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    until(lambda: len(session(child.pid)) >= 3)  # the command and others
    child.kill()
    child.wait()
    until(lambda: session(child.pid) == [], 30)


def work(folder: str, item: int) -> int:
    """The square; the process that is to make that of 3 is killed, the first time."""
    marked = Path(folder, "killed")
    if item == 3 and not marked.exists():
        marked.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


def test_results_come_with_their_places_and_what_was_lost(tmp_path: Path) -> None:
    items = [5, 3, 4, 2]
    done = dict(spread(partial(work, str(tmp_path)), items, 2, "spyrec.processes"))
    assert done == {0: 25, 1: Lost("the process that ran it ended with signal 9"), 2: 16, 3: 4}
    assert dict(spread(partial(work, str(tmp_path)), items, 1, "")) == {0: 25, 1: 9, 2: 16, 3: 4}
    assert list(spread(partial(work, str(tmp_path)), [], 2, "")) == []


def test_a_row_that_was_lost_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes are in the order of rows, in whatever order they come."""
    path = tmp_path / "two.csv"
    path.write_text("\n".join([",".join(COLUMNS), MEASURED, MEASURED.replace("mm,", "nn,", 1)]))
    first, second = read_rows(path)
    device = load_device()
    came = [(1, predict(second, device)), (0, Lost("signal 9"))]
    monkeypatch.setattr("spyrec.validate.spread", lambda *_: iter(came))
    done = validate([first, second], device.text)
    assert [(o.id, o.reason) for o in done.outcomes] == [("mm", "signal 9"), ("nn", "")]
