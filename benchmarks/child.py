"""What a Python process costs, for benchmarks in which each step is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Cost:
    """Of one command: seconds on the clock and of the processor, peak memory."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def run(args: Sequence[str], environment: Mapping[str, str] | None = None) -> Cost:
    """What Python with ``args`` costs, in the project's folder; ``environment``: variables beside
    ours. RuntimeError, with its words, when it fails.

    The caller stays small: a child starts with its parent's memory on its account.
    """
    with tempfile.TemporaryFile() as said:
        start = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, *args], cwd=ROOT, env={**os.environ, **(environment or {})},
            stdout=said, stderr=said,
        )  # fmt: skip
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        if child.returncode:
            words = said.read().decode("utf-8", "replace").strip()
            raise RuntimeError(f"{' '.join(args)}: exit code {child.returncode}: {words}")
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
