"""Language models of full size, without weights: seconds and peak memory to compile them from their
configuration, the first time and from the cache, and to simulate them for time only. Each command
is a process of its own. Run: python -m benchmarks.full_size [--markdown] [CARD[:PHASE:TOKENS] ...]

Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.child import Cost, run

PHASES = ("prompt", "decode")
CASES = (
    *(f"granite-3.3-8b:{phase}:{tokens}" for tokens in (512, 1024) for phase in PHASES),
    *(f"{card}:{phase}:512" for card in ("llama-3.1-8b", "qwen3-8b", "ministral-8b")
      for phase in PHASES),
)  # fmt: skip
AIM_S, AIM_CACHED_S, AIM_MIB = 120.0, 15.0, 3072.0
"""Of compiling and simulating together, on two idle cores."""


@dataclass(frozen=True)
class Measure:
    """A model in one phase. ``first``: compiled with nothing in the cache; ``cached``: once more;
    ``simulate``: for time only, which gives ``predicted_ms``."""

    case: str
    first: Cost
    cached: Cost
    simulate: Cost
    launches: int
    predicted_ms: float

    def total(self, compiled: Cost) -> Cost:
        """Compiling, as it was done, and simulating."""
        return Cost(
            compiled.wall_s + self.simulate.wall_s, compiled.cpu_s + self.simulate.cpu_s,
            max(compiled.peak_mib, self.simulate.peak_mib),
        )  # fmt: skip


def measure(case: str, folder: Path) -> Measure:
    """Compile twice and simulate. RuntimeError also when the second program is another one."""
    card, phase, tokens = case.split(":")
    kept = {"SPYREC_CACHE": str(folder / "cache")}
    compile_ = ["-m", "spyrec", "compile", "--from-config", card, f"--{phase}", tokens]
    first_path, path, report = folder / "first.spx", folder / "second.spx", folder / "report.json"
    first = run([*compile_, "-o", str(first_path)], kept)
    cached = run([*compile_, "-o", str(path)], kept)
    if first_path.read_bytes() != path.read_bytes():
        raise RuntimeError(f"{case}: the program from the cache is not the one compiled")
    timed = run(["-m", "spyrec", "simulate", str(path), "--timing-only", "--report", str(report)])
    told = json.loads(report.read_text("utf-8"))
    launches = sum(kernel["count"] for kernel in told["kernels"])
    return Measure(case, first, cached, timed, launches, told["total_us"] / 1000)


HEAD = (
    "model", "phase", "tokens", "launches", "first s", "(cpu)", "cached s", "(cpu)", "simulate s",
    "(cpu)", "peak MiB", "predicted ms",
)  # fmt: skip


def row(m: Measure) -> tuple[str, ...]:
    """The cells under HEAD."""
    seconds = (x for c in (m.first, m.cached, m.simulate) for x in (c.wall_s, c.cpu_s))
    return (
        *m.case.split(":"), f"{m.launches:,}", *(f"{s:.1f}" for s in seconds),
        f"{m.total(m.first).peak_mib:.0f}", f"{m.predicted_ms:.1f}",
    )  # fmt: skip


def verdict(m: Measure) -> str:
    """Where the sums stand against the aims."""
    first, cached = m.total(m.first), m.total(m.cached)
    return (
        f"{m.case}: first {first.wall_s:.1f} s (aim {AIM_S:.0f}), cached {cached.wall_s:.1f} s "
        f"(aim {AIM_CACHED_S:.0f}), {first.peak_mib:.0f} MiB (aim {AIM_MIB:.0f})"
    )


def table(found: Iterable[Measure], markdown: bool) -> str:
    """A line for each measure, in columns or as a markdown table."""
    rows = [HEAD, *map(row, found)]
    if markdown:
        lines = ["| " + " | ".join(cells) + " |" for cells in rows]
        return "\n".join([lines[0], "|" + "---|" * len(HEAD), *lines[1:]])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(w) for cell, w in zip(cells, widths, strict=True)) for cells in rows
    )


def cases(names: Sequence[str]) -> list[str]:
    """The cases named, or all of a card when only that is."""
    return [
        case for name in names
        for case in ([name] if ":" in name else [c for c in CASES if c.startswith(f"{name}:")])
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--markdown", action="store_true", help="print a markdown table")
    options = parser.parse_args()
    found = []
    for case in cases(options.cases):
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(case, Path(folder)))
        print(verdict(found[-1]), file=sys.stderr, flush=True)
    print(table(found, options.markdown))


if __name__ == "__main__":
    main()
