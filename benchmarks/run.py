"""Wall time and peak memory of compiling and simulating the example models, each step in a process
of its own. Run: python -m benchmarks.run [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("cnn", "encoder")


@dataclass(frozen=True)
class Measure:
    """One command: seconds by the clock, the most memory it held, and the cycles it reported."""

    model: str
    step: str
    wall_s: float
    peak_mib: float
    cycles: int


def measure(model: str, step: str, args: list[str], report: Path | None) -> Measure:
    """Run ``spyrec`` with ``args``; RuntimeError when it fails."""
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "spyrec", *args], cwd=ROOT,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(child.pid, 0)
    wall_s = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"spyrec {' '.join(args)} gave exit code {child.returncode}")
    cycles = json.loads(report.read_text("utf-8"))["total_cycles"] if report else 0
    return Measure(model, step, wall_s, usage.ru_maxrss / 1024, cycles)


def steps(folder: Path, model: str) -> list[Measure]:
    """Compile, simulate with numbers, simulate for time only."""
    spx, report = folder / f"{model}.spx", folder / f"{model}.json"
    simulate = ["simulate", str(spx), "--report", str(report)]
    return [
        measure(model, "compile", ["compile", str(folder / f"{model}.onnx"), "-o", str(spx)], None),
        measure(model, "simulate", simulate, report),
        measure(model, "timing only", [*simulate, "--timing-only"], report),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make = [sys.executable, str(ROOT / "examples" / "make_models.py"), name]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        found = [m for model in MODELS for m in steps(folder, model)]
    print(f"{'model':<10} {'step':<12} {'wall s':>8} {'peak MiB':>9} {'cycles':>12}")
    for m in found:
        cycles = f"{m.cycles:,}" if m.cycles else ""
        print(f"{m.model:<10} {m.step:<12} {m.wall_s:>8.2f} {m.peak_mib:>9.0f} {cycles:>12}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(m) for m in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
