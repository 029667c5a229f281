"""How near any model could come to the measured kernels: the spread of kernels that differ only in
their arithmetic, what a smooth regression predicts of rows it did not see, and how far apart
kernels are that move the same bytes but differ in which operand is broadcast.
Run: spyrec validate MEASUREMENTS.csv --json V.json
     python -m benchmarks.noise_floor MEASUREMENTS.csv V.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spyrec.validate import CLASSES
from spyrec.validate_rows import Row, read_rows

Floats = npt.NDArray[np.float64]

ALIKE: Mapping[str, tuple[str, ...]] = {
    "pointwise": ("neg", "gelu"),
    "broadcast": ("bcast", "mulbcast"),
    "reduction": ("amax", "mean", "read", "sumrow"),
}
"""Variants of a class that move the same bytes in the same way, where memory hides arithmetic or
their arithmetic costs the same."""

SAME_BYTES = ("copy", "bcast", "bcastcol", "mulbcast")
"""Variants that read and write one matrix; what else they read is small beside it."""
APART = 10.0  # percent between two of them that no arithmetic explains

KINDS_APART = 3.0  # between two kinds of kernel, in doublings of a size
SCALES = ((0.7, 1, 1.5, 2.5, 4, 8), (0.7, 1.5, 3, 6), (2, 5, 15), (0.1, 0.3, 0.6, 1))
"""Tried in every combination: reach of the sizes, of the cores and of the kinds, and noise."""


@dataclass(frozen=True)
class Point:
    """A row in percent of a logarithm: ``measured`` and ``error``, which is predicted over
    measured. ``shape``: rows, columns; ``place``: what a regression sees."""

    variant: str
    shape: tuple[int, int]
    cores: int
    measured: float
    error: float
    place: tuple[float, ...]


def points(
    rows: Sequence[Row], predicted: Mapping[str, float], kinds: Sequence[str]
) -> list[Point]:
    """Rows of stack H of these kinds that were built."""
    found = []
    for row in rows:
        kind = f"{row.op} {row.variant}".strip()
        if row.stack != "H" or kind not in kinds or row.id not in predicted:
            continue
        cores, (r, c) = row.size("cores"), row.shape
        which = [KINDS_APART * (k == kind) for k in kinds]
        place = (np.log2(r), np.log2(c), np.log2(cores), *which)
        error = np.log(predicted[row.id] / row.measured_us)
        found.append(
            Point(row.variant, row.shape, cores, 100 * np.log(row.measured_us), 100 * error, place)
        )
    return found


def alike(found: Sequence[Point], variants: Sequence[str], least_cores: int) -> Floats:
    """Deviations from the mean of rows that differ only in their arithmetic, as of a sample."""
    sets: dict[tuple[tuple[int, int], int], list[float]] = {}
    for p in found:
        if p.variant in variants and p.cores >= least_cores:
            sets.setdefault((p.shape, p.cores), []).append(p.measured)
    several = [np.array(s) for s in sets.values() if len(s) > 1]
    off = [(s - s.mean()) * np.sqrt(len(s) / (len(s) - 1)) for s in several]
    return np.concatenate(off) if off else np.zeros(0)


def blind(found: Sequence[Point], least_cores: int) -> tuple[Floats, list[str]]:
    """Deviations of rows of SAME_BYTES from the mean of their shape and cores, in percent: the
    least that a model misses which does not look at the operand that is broadcast. And the shapes
    where two variants are farther apart than APART, with the logarithm of each time over that of
    a broadcast row."""
    sets: dict[tuple[tuple[int, int], int], list[Point]] = {}
    for p in found:
        if p.variant in SAME_BYTES and p.cores >= least_cores:
            sets.setdefault((p.shape, p.cores), []).append(p)
    off, notes = [], []
    for (shape, _), points_ in sorted(sets.items()):
        times = {p.variant: p.measured for p in points_}
        off.append(np.array([p.measured for p in points_]) - np.mean([p.measured for p in points_]))
        if "bcast" in times and max(times.values()) - min(times.values()) > APART:
            over = [f"{v} {t - times['bcast']:+.0f} %" for v, t in times.items() if v != "bcast"]
            notes.append(f"{shape[0]} x {shape[1]}: {', '.join(over)}")
    return np.concatenate(off) if off else np.zeros(0), notes


def left_out(place: Floats, y: Floats, groups: Sequence[object], scales: Sequence[float]) -> float:
    """Root mean square of what a Gaussian process misses of each group, fitted to the others."""
    sizes, cores, kinds, noise = scales
    reach = np.array([sizes, sizes, cores] + [kinds] * (place.shape[1] - 3))
    near = np.exp(-0.5 * (((place[:, None] - place[None]) / reach) ** 2).sum(-1))
    missed = np.zeros(len(y))
    for group in dict.fromkeys(groups):
        out = np.array([g == group for g in groups])
        seen = near[np.ix_(~out, ~out)] + noise**2 * np.eye(int((~out).sum()))
        mean = y[~out].mean()
        guess = mean + near[np.ix_(out, ~out)] @ np.linalg.solve(seen, y[~out] - mean)
        missed[out] = y[out] - guess
    return float(np.sqrt(np.mean(missed**2)))


def reachable(found: Sequence[Point]) -> Iterator[float]:
    """The best of SCALES, which flatters it: for times and for this model's errors, each with a
    row and with a shape left out."""
    place = np.array([p.place for p in found])
    # time for an element, so that a constant is a fair start
    times = np.array([p.measured - 100 * np.log(p.shape[0] * p.shape[1]) for p in found])
    errors = np.array([p.error for p in found])
    for y, groups in product((times, errors), (range(len(found)), [p.shape for p in found])):
        yield min(left_out(place, y, groups, scales) for scales in product(*SCALES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measurements")
    parser.add_argument("validation")
    args = parser.parse_args()
    rows = read_rows(args.measurements)
    told = json.loads(Path(args.validation).read_text("utf-8"))["rows"]
    predicted = {r["id"]: r["predicted_us"] for r in told if r["predicted_us"]}
    heads = ("model", "alike", "time-row", "time-shape", "error-row", "error-shape")
    print(f"{'RMS %':10}" + "".join(f"{h:>12}" for h in heads))
    for name in ("pointwise", "broadcast", "reduction", "transport"):
        found = points(rows, predicted, CLASSES[name])
        model = float(np.sqrt(np.mean([p.error**2 for p in found])))
        off = alike(found, ALIKE.get(name, ()), 32 if name == "pointwise" else 1)
        spread = f"{np.sqrt(np.mean(off**2)):12.1f}" if len(off) else f"{'-':>12}"
        print(f"{name:10}{model:12.1f}{spread}" + "".join(f"{x:12.1f}" for x in reachable(found)))
    print()
    found = points(rows, predicted, CLASSES["pointwise"] + CLASSES["broadcast"])
    without = [p for p in found if p.variant != "copy"]
    for label, part in (("broadcast", without), ("with copies", found)):
        off, notes = blind(part, 32)
        print(f"{label}: {len(off)} rows on 32 cores by a model blind to which operand is "
              f"broadcast: at least {np.sqrt(np.mean(off**2)):.1f} %")
    print("over the time of adding a row:")
    for note in notes:
        print(f"  {note}")


if __name__ == "__main__":
    main()
