"""Measured kernels against simulated ones: each row is compiled with its forced decisions, run for
time, and compared.

Predicted time is the run's ``total_cycles``: from an idle card to the end of the last launch. It
holds ``launch.start_cycles`` once a kernel, as the measured device time holds the start-up of its
kernels, and nothing of the host's launch, which neither has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from spyrec import __version__
from spyrec.driver import Compiled, compile_module
from spyrec.ir.core import Module
from spyrec.ir.errors import CapacityError, PassError, SpyrecError
from spyrec.ir.types import DType
from spyrec.passes.allocate import CoreAllocation
from spyrec.passes.fold_groups import FoldGroups
from spyrec.passes.fuse import Fuse
from spyrec.passes.improve import Improve
from spyrec.passes.manager import Pass, Pipeline, Target, run_pipeline
from spyrec.passes.merge_programs import MergePrograms
from spyrec.passes.pipeline import PIPELINE
from spyrec.passes.range_scale import RangeScale
from spyrec.passes.share_launches import ShareLaunches
from spyrec.passes.stick_layout import StickLayout
from spyrec.passes.tiling import Tiling
from spyrec.processes import Lost, spread, usable_cores
from spyrec.progress import Progress, silent
from spyrec.sim.device import DeviceSpec, parse_device
from spyrec.sim.errors import SimError
from spyrec.sim.run import run
from spyrec.validate_rows import CannotBuild, CardLayout, Case, Row, case_of

PROCESSES = 2
POOL_FROM = 16  # rows from which a second process is worth its start
LONE_SHARE = 0.9  # of the scratchpad for the tiles of a kernel that has it to itself
FEW = 3  # rows from which a rank correlation says anything

OVERLAP: Mapping[str, Mapping[str, Any]] = {
    "all": {}, "loads": {"buffers": 2, "overlap": "loads"}, "none": {"buffers": 1},
}  # fmt: skip
"""What goes on while a core works on a tile -> the pins that make it so."""

CLASSES: Mapping[str, tuple[str, ...]] = {
    "pointwise": ("pointwise add", "pointwise neg", "pointwise gelu", "pointwise copy"),
    "broadcast": ("pointwise bcast", "pointwise bcastcol", "pointwise mulbcast", "pointwise write"),
    "reduction": tuple(f"reduction {v}" for v in ("amax", "mean", "sumrow", "read", "ctsum")),
    "transport": ("copy cat0", "copy cat1", "restickify transpose2d"),
    "softmax": ("softmax",),
    "matmul": ("matmul",),
    "bmm": ("bmm",),
    "fused": ("fused",),
}
"""Class of mechanisms -> the "op variant" it holds."""


@dataclass(frozen=True)
class Outcome:
    """What became of one row. ``predicted_us`` is None when it could not be built, for the
    ``reason``. ``bound`` is what limits its longest kernel; ``remark`` how the program differs from
    the row."""

    id: str
    op: str
    variant: str
    stack: str
    measured_us: float
    predicted_us: float | None = None
    bound: str = ""
    remark: str = ""
    reason: str = ""

    @property
    def kind(self) -> str:
        return f"{self.op} {self.variant}".strip()

    @property
    def log_ratio(self) -> float:
        """log(predicted / measured); only of rows that were built."""
        assert self.predicted_us is not None
        return math.log(self.predicted_us / self.measured_us)


@dataclass(frozen=True)
class Summary:
    """Rows of one ``stack`` and ``name`` (an op and variant, or a class), and how far the built
    ones are off: root mean square and mean of the log ratio in percent, the row that is farthest
    off with its predicted over measured time, and Spearman's rank correlation. None: no row, or too
    few."""

    stack: str
    name: str
    rows: int
    built: int
    rms_percent: float | None
    mean_percent: float | None
    worst_id: str
    worst_ratio: float | None
    spearman: float | None


@dataclass(frozen=True)
class Validation:
    """``kinds`` and ``classes``: stack H first, the others by name."""

    device: str
    outcomes: tuple[Outcome, ...]
    kinds: tuple[Summary, ...]
    classes: tuple[Summary, ...]

    @property
    def unbuilt(self) -> tuple[Outcome, ...]:
        return tuple(o for o in self.outcomes if o.predicted_us is None)

    def as_json(self) -> str:
        """Everything, one record a row of the measurements, as JSON text."""
        data = {
            "spyrec": __version__,
            "device": self.device,
            "groups": [asdict(s) for s in self.kinds],
            "classes": [asdict(s) for s in self.classes],
            "unbuilt": [{"id": o.id, "reason": o.reason} for o in self.unbuilt],
            "rows": [asdict(o) for o in self.outcomes],
        }
        return json.dumps(data, indent=1) + "\n"


def validate(
    rows: Sequence[Row], device: str, progress: Progress = silent, processes: int = PROCESSES
) -> Validation:
    """Predict every row on the device (TOML text) and compare. Same rows, same result."""
    spec = parse_device(device)
    one = partial(predict, device=spec)
    jobs = min(processes, usable_cores()) if len(rows) >= POOL_FROM else 1
    found: dict[int, Outcome] = {}
    for i, done in spread(one, rows, jobs, __name__):
        found[i] = replace(_outcome(rows[i]), reason=done.how) if isinstance(done, Lost) else done
        progress("kernels", len(found), len(rows))
    outcomes = tuple(found[i] for i in range(len(rows)))
    return Validation(spec.name, outcomes, by_kind(outcomes), by_class(outcomes))


# One row -------------------------------------------------------------------------------------


def predict(row: Row, device: DeviceSpec) -> Outcome:
    """Compile and time one row; a row that cannot be built gets the reason."""
    outcome = _outcome(row)
    try:
        compiled, remark = build(case_of(row), Target(device))
        result = run(compiled.program, device, timing_only=True)
    except (SpyrecError, SimError) as error:
        return replace(outcome, reason=str(error).splitlines()[0])
    longest = max(result.launches, key=lambda launch: launch.cycles)
    return replace(
        outcome, predicted_us=result.total_cycles / device.clock_mhz, bound=longest.bound,
        remark=remark,
    )  # fmt: skip


def _outcome(row: Row) -> Outcome:
    """That nothing is known of yet."""
    return Outcome(row.id, row.op, row.variant, row.stack, row.measured_us)


def build(case: Case, target: Target) -> tuple[Compiled, str]:
    """The case compiled, and in words where its program differs from what was asked for.

    Raises SpyrecError when the compiler refuses the case.
    """
    if case.cores > target.device.cores.count:
        raise CannotBuild(f"it takes {case.cores} cores, the device has fewer")
    passes = _passes(case)
    ahead = passes.index(next(p for p in passes if isinstance(p, StickLayout)))
    fused = run_pipeline(case.module, passes[:ahead], target)
    for asked, kept in zip(_dtypes(case.module), _dtypes(fused), strict=True):
        if asked != kept:
            raise CannotBuild(f"the compiler keeps {asked} tensors as {kept}")
    make = partial(compile_module, fused, target, pipeline=passes[ahead:])
    if not case.row_tiles:
        try:
            return make(plan=_plan(case, fused)), ""
        except (PassError, CapacityError):
            if not case.tile:
                raise
            free = replace(case, tile={})
            return make(plan=_plan(free, fused)), "the card's tile does not fit: the compiler's own"
    rows = -(-case.module.body.args[0].type.static_shape[0] // case.cores)
    trips, remark = case.row_tiles, ""
    pins = OVERLAP["loads"]
    if trips == 1:  # no loop over rows: the kernel streams them
        trips, pins = 2, OVERLAP["all"]
    while True:
        try:
            plan = _plan(case, fused, {"tile": {"d0": -(-rows // trips)}, **pins})
            return make(plan=plan), remark
        except (PassError, CapacityError):
            if trips >= rows:
                raise
        trips = min(2 * trips, rows)
        if case.row_tiles > 1:
            remark = f"row_tiles {trips} for {case.row_tiles}: its tile does not fit the scratchpad"


def _dtypes(module: Module) -> list[DType]:
    return [v.type.dtype for v in (*module.body.args, *module.body.results)]


def _passes(case: Case) -> Pipeline:
    """The usual pipeline with the case's decisions; values do not matter to time, so no trial run
    looks at their range, no search looks for decisions other than those that were measured, the
    lanes of every group are folded, and each kernel is a launch, as it was there."""
    out: list[Pass] = []
    for step in PIPELINE:
        match step:
            case RangeScale() | Improve() | FoldGroups() | MergePrograms() | ShareLaunches():
                continue
            case Fuse() if case.between:
                out.append(replace(step, join=False))
            case CoreAllocation():
                out.append(replace(step, cores=case.cores))
            case Tiling() if case.row_tiles or case.tile:
                out.append(replace(step, share=LONE_SHARE))
            case _:
                out.append(step)
        if isinstance(step, StickLayout) and case.orders:
            out.append(CardLayout(tuple(case.orders.items())))
    return tuple(out)


def _plan(case: Case, fused: Module, tiles: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The case's pins, by the names its kernels and tensors got; ``tiles``: those of the kernel
    whose rows a core works off in a given number of trips."""
    kernels = [op for op in fused.body.ops if op.name == "kernel"]
    pins: dict[str, Any] = {}
    for op in kernels:
        name = str(op.attrs["name"])
        if op.attrs["kind"] == "contract" or len(kernels) == 1 or case.between:
            asked = {"parts": dict(case.parts), "tile": dict(case.tile)}
            pins[name] = {key: value for key, value in asked.items() if value}
            pins[name] |= {"keep": [], "finish": {}, **OVERLAP[case.overlap]}
        if tiles is not None:
            pins[name] = {"parts": {"d0": case.cores}, **tiles}
    made = [r for op in kernels for r in op.results if r not in fused.body.results]
    tensors: dict[str, Any] = {r.name: {"space": case.between} for r in made if case.between}
    for v in fused.body.args:  # the card's default: sticks along the last dimension
        tensors[v.name] = {"stick": v.type.rank - 1}
    return {"kernels": pins, "tensors": tensors}


# Figures -------------------------------------------------------------------------------------


def by_kind(outcomes: Sequence[Outcome]) -> tuple[Summary, ...]:
    """A summary for each stack, op and variant."""
    kinds = dict.fromkeys(o.kind for o in outcomes)
    return _summaries(outcomes, {kind: (kind,) for kind in kinds})


def by_class(outcomes: Sequence[Outcome]) -> tuple[Summary, ...]:
    """A summary for each stack and class of mechanisms."""
    return _summaries(outcomes, CLASSES)


def _summaries(
    outcomes: Sequence[Outcome], names: Mapping[str, tuple[str, ...]]
) -> tuple[Summary, ...]:
    stacks = sorted({o.stack for o in outcomes}, key=lambda s: (s != "H", s))
    found = []
    for stack in stacks:
        for name, kinds in names.items():
            rows = [o for o in outcomes if o.stack == stack and o.kind in kinds]
            if rows:
                found.append(summary(stack, name, rows))
    return tuple(found)


def summary(stack: str, name: str, outcomes: Sequence[Outcome]) -> Summary:
    """How far some rows are off, see Summary."""
    built = [o for o in outcomes if o.predicted_us is not None]
    if not built:
        return Summary(stack, name, len(outcomes), 0, None, None, "", None, None)
    logs = np.array([o.log_ratio for o in built])
    worst = max(built, key=lambda o: abs(o.log_ratio))
    rank = None
    if len(built) >= FEW:
        rank = spearman([o.predicted_us or 0.0 for o in built], [o.measured_us for o in built])
    return Summary(
        stack, name, len(outcomes), len(built), 100 * float(np.sqrt(np.mean(logs**2))),
        100 * float(np.mean(logs)), worst.id, math.exp(worst.log_ratio), rank,
    )  # fmt: skip


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's rank correlation; equal values share their mean rank. None when one side is
    constant."""
    x, y = ranks(a), ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / size if size else None


def ranks(values: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Ranks from 1, ties at their mean."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[inverse].astype(np.float64)
