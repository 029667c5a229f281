"""What a second process is worth to a sweep: seconds of 24 points of the demo's encoder with one
process and with two, in turn, on this machine as busy as it is.

    python -m benchmarks.sweep [ROUNDS]

Nominal budget 0, which is the hardest case: points that search for better plans take longer, and
what is done once counts for less.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnx

from examples.make_models import encoder

GRID = (
    "cores=4,8,12,16,24,32", "ring.bytes_per_cycle=64,128", "hbm.bytes_per_cycle=100,136",
    "plan-budget=0",
)  # fmt: skip
JOBS = (1, 2)


def seconds(folder: str, jobs: int) -> float:
    """Wall-clock seconds of the whole command."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "spyrec", "sweep", "encoder.onnx", *GRID, "-o", f"{jobs}.csv", "-j",
         str(jobs)],
        cwd=folder, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - start


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    best = dict.fromkeys(JOBS, float("inf"))
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(encoder(), Path(folder, "encoder.onnx"))
        for _ in range(rounds):
            for jobs in JOBS:
                took = seconds(folder, jobs)
                best[jobs] = min(best[jobs], took)
                print(f"{jobs} at once: {took:.1f} s, load {os.getloadavg()[0]:.1f}", flush=True)
        files = {Path(folder, f"{jobs}.csv").read_bytes() for jobs in JOBS}
    one, two = (best[jobs] for jobs in JOBS)
    print(f"best of {rounds}: {one:.1f} s and {two:.1f} s, {one / two:.2f} times as fast")
    print("the same file" if len(files) == 1 else "the files differ")


if __name__ == "__main__":
    main()
