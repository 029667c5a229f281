"""One point of a sweep: what it is, and measuring it, in whatever process and on whatever host."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from typing import Any

from spyrec import __version__, api
from spyrec.cache_key import LIBRARIES, source_digest
from spyrec.driver import JOINT, VARIABLE
from spyrec.ir.core import Module
from spyrec.ir.errors import SpyrecError
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import print_module
from spyrec.passes.manager import Registry
from spyrec.passes.pipeline import PLANNERS
from spyrec.passes.pipeline_text import parse_pipeline, print_pipeline
from spyrec.report import KernelRow
from spyrec.sim.device import load_device
from spyrec.sim.device_values import changed, device_of, value_at, values_of
from spyrec.sim.errors import SimError
from spyrec.sweep.grid import MODEL, described
from spyrec.sweep.settings import BIND, DEFAULTS, Settings, Value
from spyrec.versions import versions
from spyrec.workbench.plugins import PassFile, Place, known_passes, pipeline_of

MODULES_KEPT = 2  # in a process: points of one model come one after the other


@dataclass(frozen=True)
class Source:
    """A model with the sizes of its dimensions. ``digest`` is of what is imported, and all that
    counts; ``text``: the module in full, for a process that cannot read the file."""

    digest: str
    path: str = field(compare=False)
    bind: Mapping[str, int] = field(compare=False)
    const: Mapping[str, Any] = field(compare=False)
    text: str = field(default="", compare=False, repr=False)

    def module(self) -> Module:
        """The model. SpyrecError when the file is no longer what it was."""
        if self.text:
            return parse_module(self.text)
        module = api.import_model(self.path, self.bind, self.const)
        if digest_of(module) != self.digest:
            raise SpyrecError(f"model {self.path} was changed while the sweep ran")
        return module


def import_source(path: str, bind: Mapping[str, int], const: Mapping[str, Any]) -> Source:
    """SpyrecError or OSError when there is no such model or it cannot be imported."""
    return Source(digest_of(api.import_model(path, bind, const)), path, bind, const)


def with_text(source: Source) -> Source:
    """The same with its module as text."""
    text = print_module(source.module(), data="full")
    return Source(source.digest, source.path, source.bind, source.const, text)


def digest_of(module: Module) -> str:
    """Of all there is in a module, weights included."""
    return hashlib.sha256(print_module(module, data="elide").encode()).hexdigest()


@dataclass(frozen=True)
class Own:
    """Passes of the user's: the files they are in, and what goes before and after which pass."""

    files: tuple[PassFile, ...] = ()
    before: tuple[Place, ...] = ()
    after: tuple[Place, ...] = ()


NOTHING = Own()


@dataclass(frozen=True)
class Task:
    """A point as it is measured. ``id``: a digest of model, machine, options and files of passes,
    the same however they were spelt. ``device``: the values of its file. ``passes``: text of those
    that are not the planner's. ``budget``: nominal seconds, None for what suits the model.
    ``lasting``: measuring it again with the same compiler gives the same; a pass of somebody else
    may have changed. ``files``: where those passes are that the pipeline has of the user's."""

    id: str
    label: str
    source: str
    device: Mapping[str, Any]
    planner: str
    passes: str
    numerics: str
    budget: float | None
    lasting: bool
    files: tuple[PassFile, ...] = ()


@dataclass(frozen=True)
class Figures:
    """What is told of a run. ``kernels``: different ones, ``launches``: those the device starts;
    bytes, ``macs`` and cycles are of all launches together, ``lx_peak_bytes`` of the fullest core.
    ``..._share``: part of ``total_cycles`` in kernels that are bound by that, or in which a launch
    starts up or cores meet; with kernels that overlap they are more than 1 together."""

    total_cycles: int
    total_us: float
    kernels: int
    launches: int
    macs: int
    pt_utilisation: float
    hbm_read_bytes: int
    hbm_write_bytes: int
    ring_bytes: int
    lx_peak_bytes: int
    compute_share: float
    memory_share: float
    ring_share: float
    vector_share: float
    latency_share: float
    launch_share: float


FIGURES = tuple(f.name for f in fields(Figures))


@dataclass(frozen=True)
class Outcome:
    """``figures`` by name, none when ``error`` says why there are none. ``defect``: it is one of
    spyrec. ``lasting``: another try gives the same. ``compiler``: who measured, None: unknown."""

    id: str
    figures: Mapping[str, Value]
    error: str = ""
    defect: bool = False
    lasting: bool = True
    compiler: str | None = None


@cache
def compiler() -> str | None:
    """A digest of this spyrec and what it computes with. None when a file of it was written after
    it was loaded."""
    source = source_digest()
    if source is None:
        return None
    parts = __version__, source, versions(LIBRARIES), platform.python_version(), platform.machine()
    return _digest(parts)


def task_of(settings: Settings, source: Source, own: Own = NOTHING) -> Task:
    """SpyrecError, SimError or OSError when an option is wrong."""
    told = {**DEFAULTS, **settings}
    numbers = {
        name: int(value) for name, value in settings.items()
        if name not in DEFAULTS and name != MODEL and not name.startswith(BIND)
    }
    device = changed(values_of(load_device(str(told["device"]))), numbers)
    planner, passes = str(told["planner"]), str(told["passes"])
    pipeline, lasting = "", True
    files: tuple[PassFile, ...] = ()
    if passes or own.before or own.after:
        if passes and planner != JOINT:
            raise SpyrecError(f"a pipeline and planner {planner} are given; leave one of them out")
        made = pipeline_of(
            passes or None, _known(own.files), own.before, own.after, base=PLANNERS[planner]
        )
        pipeline, planner = print_pipeline(made), JOINT
        foreign = {m for p in made if not (m := type(p).__module__).startswith("spyrec.")}
        files = tuple(f for f in own.files if f.module in foreign)
        lasting = foreign <= {f.module for f in files if f.complete}
    said = told["plan-budget"]
    if said == "":
        said = os.environ.get(VARIABLE, "")
    try:
        budget = None if said == "" else float(said)
    except ValueError:
        raise SpyrecError(f"{VARIABLE}: {said!r} is no number of seconds") from None
    about = (
        source.digest, device, planner, pipeline, told["numerics"], budget,
        *(hashlib.sha256(file.content).hexdigest() for file in files),
    )  # fmt: skip
    return Task(
        _digest(about)[:16], described(settings), source.digest, device, planner, pipeline,
        str(told["numerics"]), budget, lasting, files,
    )  # fmt: skip


@lru_cache(1)
def _known(files: tuple[PassFile, ...]) -> Registry:
    return known_passes(files)


def shown(settings: Settings, task: Task, names: list[str]) -> dict[str, Value | None]:
    """What each of the names is at this point, said or not; None for the size of a dimension that
    it leaves open, and for an entry that a table of the device does not have."""
    told: dict[str, Value | None] = {}
    for name in names:
        if name in settings or name in DEFAULTS:
            told[name] = settings.get(name, DEFAULTS.get(name))
        else:
            told[name] = None if name.startswith(BIND) else value_at(task.device, name)
    return told


def measure(task: Task, source: Source) -> Outcome:
    """Compile and simulate a point, for time only. Never raises but for KeyboardInterrupt."""
    try:
        if task.budget is None and os.environ.get(VARIABLE):
            raise SpyrecError(f"{VARIABLE} is set where this point ran, not where it was asked for")
        program = api.compile(
            _module(source), device=device_of(task.device, "device"), planner=task.planner,
            numerics=task.numerics, plan_budget=task.budget,  # type: ignore[arg-type]
            passes=parse_pipeline(task.passes, _known(task.files)) if task.passes else None,
        )
        figures = _figures(api.simulate(program, timing_only=True), len(program.code.kernels))
    except (SpyrecError, SimError) as error:
        return Outcome(task.id, {}, _line(error), compiler=compiler())
    except (MemoryError, OSError) as error:
        return lost(task, f"{type(error).__name__}: {_line(error)}")
    except Exception as error:  # of one point: the others are measured nevertheless
        told = f"defect of spyrec: {type(error).__name__}: {_line(error)}"
        return Outcome(task.id, {}, told, defect=True, compiler=compiler())
    return Outcome(task.id, vars(figures), compiler=compiler())


def lost(task: Task, why: str) -> Outcome:
    """The outcome of a point that could not be measured here and now, and may be later."""
    return Outcome(task.id, {}, why, lasting=False, compiler=compiler())


@lru_cache(MODULES_KEPT)
def _module(source: Source) -> Module:
    return source.module()


def _figures(result: api.Result, n_kernels: int) -> Figures:
    rows, totals = result.kernels, result.totals
    whole = max(totals.cycles, 1)

    def summed(name: str) -> int:
        return sum(int(getattr(row, name)) * row.count for row in rows)

    def share(bound: str) -> float:
        return sum(_cycles(row) for row in rows if row.bound == bound) / whole

    return Figures(
        totals.cycles, totals.us, n_kernels, totals.launches, summed("macs"), totals.pt_utilisation,
        summed("hbm_read_bytes"), summed("hbm_write_bytes"), summed("ring_bytes"),
        max((row.lx_peak_bytes for row in rows), default=0), share("compute"), share("memory"),
        share("ring"), share("vector"), share("latency"),
        (totals.launch_cycles + totals.meeting_cycles) / whole,
    )


def _cycles(row: KernelRow) -> int:
    return row.cycles * row.count


def _line(error: BaseException) -> str:
    return "; ".join(str(error).splitlines())


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
