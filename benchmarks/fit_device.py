"""Fit the device file's unpublished parameters to measured kernels: a coordinate search that
changes one physical parameter at a time, and figures for shapes it did not see.
Run: python -m benchmarks.fit_device MEASUREMENTS.csv [--stack H] [--rounds 3] [--every 1]

Programs are compiled once, for the device as it is; the search times the same programs on other
devices, so it fits the machine and not the planner's reaction to it. What it prints are the values
to put into the device file; `spyrec validate` then tells what they are worth with new plans.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from spyrec.ir.errors import SpyrecError
from spyrec.passes.manager import Target
from spyrec.sim.device import DeviceSpec, load_device
from spyrec.sim.isa import Program
from spyrec.sim.run import run
from spyrec.validate import CLASSES, build
from spyrec.validate_rows import Row, case_of, read_rows

Floats = npt.NDArray[np.float64]
Values = tuple[int, ...]  # one for each parameter that is searched

PARAMETERS = (
    "hbm.far_cycles", "hbm.turnaround_cycles", "hbm.write_bytes_per_cycle",
    "hbm.again_bytes_per_cycle", "hbm.side_bytes_per_cycle", "hbm.latency_cycles",
    "hbm.request_cycles", "hbm.side_request_cycles", "hbm.shared_run_cycles", "pt.fill_cycles",
    "sfp.lane_reduce_cycles", "sfp.lane_spread_cycles", "sfp.switch_cycles", "sfp.start_cycles",
    "launch.start_cycles", "hbm.bytes_per_cycle",
)  # fmt: skip
"""What nobody publishes, or publishes only as inferred from kernel times. Clock, sizes and counts
are known and stay."""

FACTORS = (0.5, 0.8, 0.9, 1.1, 1.25, 2.0)
"""Each parameter is tried at these multiples of its value, and a step up or down."""

PROCESSES = 2


@dataclass(frozen=True)
class Sample:
    """A measured row as a program. ``shape`` is equal for rows of one op and one size, whatever
    their cores, split, layout or variant."""

    id: str
    group: str
    shape: str
    measured_us: float
    program: Program


def samples(rows: Sequence[Row], device: DeviceSpec) -> list[Sample]:
    """Those of the rows that can be built."""
    group = {kind: name for name, kinds in CLASSES.items() for kind in kinds}
    found = []
    for row in rows:
        try:
            compiled, _ = build(case_of(row), Target(device))
        except SpyrecError:
            continue
        sizes = [f"{k}{n}" for k, n in row.sizes.items() if k not in ("cores", "row_tiles")]
        kind = f"{row.op} {row.variant}".strip()
        shape = " ".join([group[kind], *sizes])
        found.append(Sample(row.id, group[kind], shape, row.measured_us, compiled.program))
    return found


def get(device: DeviceSpec, name: str) -> int:
    """The parameter called ``section.name`` or ``section.table.name``."""
    section, _, key = name.partition(".")
    table, _, entry = key.partition(".")
    value = getattr(getattr(device, section), table)
    return int(value[entry] if entry else value)


def with_value(device: DeviceSpec, name: str, value: int) -> DeviceSpec:
    """The device with one parameter changed."""
    section, _, key = name.partition(".")
    table, _, entry = key.partition(".")
    old = getattr(device, section)
    new = {**getattr(old, table), entry: value} if entry else value
    return replace(device, **{section: replace(old, **{table: new})})


def candidates(name: str, value: int) -> list[int]:
    """Other values to try, in order; times may be 0, rates not."""
    least = 0 if name.endswith("_cycles") else 1
    near = {value - 1, value + 1, *(round(value * f) for f in FACTORS)}
    return sorted(n for n in near if n >= least and n != value)


def log_ratios(device: DeviceSpec, programs: Sequence[Sample]) -> list[float]:
    """log(predicted / measured) of each program."""
    return [
        math.log(run(s.program, device, timing_only=True).total_cycles / device.clock_mhz
                 / s.measured_us)
        for s in programs
    ]  # fmt: skip


@dataclass
class Search:
    """Log ratios of all samples on every device tried so far; ``timed`` gives those of one.
    ``groups``: the class of each sample; ``names``: the parameters that are searched."""

    device: DeviceSpec
    groups: npt.NDArray[np.str_]
    timed: Callable[[DeviceSpec], Floats]
    names: Sequence[str] = PARAMETERS
    memo: dict[Values, Floats] = field(default_factory=dict)

    def logs(self, values: Values) -> Floats:
        if values not in self.memo:
            device = self.device
            for name, value in zip(self.names, values, strict=True):
                device = with_value(device, name, value)
            self.memo[values] = self.timed(device)
        return self.memo[values]

    def loss(self, values: Values, use: npt.NDArray[np.bool_]) -> float:
        """Mean over the classes of the root mean square over the class's rows in ``use``."""
        logs = self.logs(values)
        each = [logs[use & (self.groups == g)] for g in np.unique(self.groups[use])]
        return float(np.mean([np.sqrt(np.mean(e**2)) for e in each]))

    def fit(self, use: npt.NDArray[np.bool_], rounds: int, say: Callable[[str], None]) -> Values:
        """Parameters one after the other, each set to what serves best, until a round changes
        nothing. Of equal ones the first stays."""
        best = tuple(get(self.device, name) for name in self.names)
        loss = self.loss(best, use)
        for _ in range(rounds):
            before = best
            for i, name in enumerate(self.names):
                for value in candidates(name, best[i]):
                    tried = (*best[:i], value, *best[i + 1 :])
                    if self.loss(tried, use) < loss - 1e-6:
                        best, loss = tried, self.loss(tried, use)
                say(f"{name} = {best[i]}: {100 * loss:.2f} %")
            if best == before:
                break
        return best


def rms_by_group(logs: Floats, groups: npt.NDArray[np.str_]) -> Mapping[str, float]:
    """Root mean square in percent of each class."""
    return {
        str(g): 100 * float(np.sqrt(np.mean(logs[groups == g] ** 2))) for g in np.unique(groups)
    }


def unseen(search: Search, shapes: npt.NDArray[np.str_], folds: int, rounds: int) -> Floats:
    """Log ratios of each row with parameters fitted without any row of its shape; the shapes are
    dealt to ``folds`` in their order, each left out in turn."""
    names = np.unique(shapes)
    out = np.zeros(len(shapes))
    for fold in range(min(folds, len(names))):
        held = np.isin(shapes, names[fold::folds])
        out[held] = search.logs(search.fit(~held, rounds, lambda _: None))[held]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measurements")
    parser.add_argument("--stack", default="H")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=int, default=1, help="take every n-th row")
    parser.add_argument("--folds", type=int, default=5, help="parts of the shapes left out in turn")
    parser.add_argument("--only", default="", help="the parameters to search, with commas between")
    args = parser.parse_args()
    names = tuple(args.only.split(",")) if args.only else PARAMETERS
    unknown = [name for name in names if name not in PARAMETERS]
    if unknown:
        parser.error(f"no parameter to fit is called {', '.join(unknown)}")
    device = load_device()
    rows = [r for r in read_rows(args.measurements) if r.stack == args.stack][:: args.every]
    found = samples(rows, device)
    groups = np.array([s.group for s in found])
    shapes = np.array([s.shape for s in found])
    with ProcessPoolExecutor(PROCESSES, initializer=_hold, initargs=(found,)) as pool:
        halves = [range(i, len(found), PROCESSES) for i in range(PROCESSES)]

        def timed(spec: DeviceSpec) -> Floats:
            logs = np.zeros(len(found))
            for half, part in zip(halves, pool.map(partial(_timed, spec), halves), strict=True):
                logs[half.start :: PROCESSES] = part
            return logs

        search = Search(device, groups, timed, names)
        fitted = search.fit(np.ones(len(found), np.bool_), args.rounds, print)
        held_out = unseen(search, shapes, args.folds, args.rounds)
    start = tuple(get(device, name) for name in names)
    print(f"\n{len(found)} rows, {len(np.unique(shapes))} shapes, {len(search.memo)} devices timed")
    for name, old, new in zip(names, start, fitted, strict=True):
        print(f"{name} = {new}" + ("" if new == old else f"  (was {old})"))
    tables = [rms_by_group(x, groups) for x in (search.logs(start), search.logs(fitted), held_out)]
    print(f"\n{'RMS %':12}{'before':>8}{'fitted':>8}{'unseen':>8}")
    for group in tables[0]:
        print(f"{group:12}" + "".join(f"{t[group]:8.1f}" for t in tables))


_HELD: list[Sample] = []
"""A worker's programs: sent once, not with every device."""


def _hold(found: list[Sample]) -> None:
    _HELD[:] = found


def _timed(device: DeviceSpec, which: range) -> list[float]:
    return log_ratios(device, [_HELD[i] for i in which])


if __name__ == "__main__":
    main()
