"""Processes that a test starts in a session of their own, and waiting for what they do."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
HAS_PROC = Path("/proc/self/stat").exists()


def until(what: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def session(leader: int) -> list[int]:
    """The processes of a session that are not zombies."""
    found = []
    for name in os.listdir("/proc"):
        try:
            facts = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if name.isdigit() and int(facts[3]) == leader and facts[0] != "Z":
            found.append(int(name))
    return found


def listening() -> None:
    """To be called in the child: a shell's background jobs ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
