"""The Python API: a model becomes a Program, a Program becomes a Result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spyrec import __version__, files, runtime
from spyrec import buckets as bucketed
from spyrec.cache import TRIALS, Cache, Entry, default_cache
from spyrec.ir.core import Module
from spyrec.ir.errors import ParseError, SpyrecError
from spyrec.lanes import undefined_outputs
from spyrec.passes.manager import Hook, Numerics, Pass, Target
from spyrec.progress import Progress, silent
from spyrec.report import BucketUse, KernelRow, Report, Totals, rows_and_places, run_totals
from spyrec.report_detail import detail_of
from spyrec.sim import check as hazards
from spyrec.sim import isa, objfile
from spyrec.sim.device import DeviceSpec, load_device, parse_device
from spyrec.sim.run import run
from spyrec.sim.stats import RunResult
from spyrec.tracing import left_out, tracing

if TYPE_CHECKING:
    from spyrec.driver import Compiled

Array = np.ndarray[Any, Any]
PortArray = tuple[runtime.Port, Array]
NUMERICS: tuple[Numerics, ...] = ("dl16", "ieee16", "fp32")


@dataclass(frozen=True)
class Program:
    """A compiled model.

    ``code`` is what the device runs. ``module`` (the IR after the last pass) and ``plan`` (every
    decision taken) are there right after compiling, not after ``load``; so are the ``warnings``
    on what is odd in the model. A program ``from_cache`` has all but the ``module``.
    """

    code: isa.Program
    module: Module | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    from_cache: bool = False

    @cached_property
    def inputs(self) -> tuple[runtime.Port, ...]:
        """The model's inputs: names, element types, shapes (with buckets those of the largest)."""
        return self._ports("input")

    @cached_property
    def outputs(self) -> tuple[runtime.Port, ...]:
        """The model's outputs: names, element types, shapes (with buckets those of the largest)."""
        return self._ports("output")

    def _ports(self, kind: str) -> tuple[runtime.Port, ...]:
        if self.code.buckets:
            return bucketed.ports(self.code, kind)
        return runtime.ports(self.code, kind)

    @property
    def buckets(self) -> tuple[dict[str, int], ...]:
        """The sizes of each bucket, empty without."""
        return tuple(dict(b.sizes) for b in self.code.buckets)

    def check(self, given: Mapping[str, runtime.Described], origin: str = "inputs") -> None:
        """SpyrecError that lists all that is wrong with inputs of these shapes and types."""
        if self.code.buckets:
            bucketed.choose(self.code, given, origin=origin)
        else:
            runtime.check(self.inputs, given, origin)

    def __repr__(self) -> str:
        name, kernels = self.code.meta.get("model", ""), len(self.code.kernels)
        ports = [", ".join(map(str, side)) for side in (self.inputs, self.outputs)]
        return f"<Program {name}: {kernels} kernels, {ports[0]} -> {ports[1]}>"

    @property
    def device(self) -> DeviceSpec:
        """The machine it was compiled for."""
        return parse_device(self.code.device, "the program's device")

    def save(self, path: str | Path) -> None:
        """Write the object file, whole or not at all. Raises OSError."""
        with files.atomic_file(path) as file:
            objfile.save_program(self.code, file)


@dataclass(frozen=True)
class Result:
    """One run. ``outputs``: by model output name (empty when only time was simulated);
    ``warnings``: sentences on overflow, NaN and what a trace leaves out; ``facts``: the report,
    typed."""

    outputs: Mapping[str, Array]
    kernels: tuple[KernelRow, ...]
    totals: Totals
    warnings: tuple[str, ...]
    facts: Report

    def __repr__(self) -> str:
        return f"<Result {self.facts.model}: {self.totals.cycles} cycles, {self.totals.us:.1f} us>"

    @property
    def total_cycles(self) -> int:
        return self.totals.cycles

    @property
    def total_us(self) -> float:
        return self.totals.us

    def report(self) -> dict[str, Any]:
        """What the report file holds, as dicts and lists."""
        return self.facts.as_dict()


def compile(  # the name users expect, as re.compile has it
    model: Any,
    *,
    bind: Mapping[str, int] | None = None,
    const: Mapping[str, Any] | None = None,
    device: str | DeviceSpec = "spyre",
    numerics: Numerics = "dl16",
    passes: str | Sequence[Pass] | None = None,
    plan: Mapping[str, Any] | str | Path | None = None,
    hook: Hook | None = None,
    progress: Progress = silent,
    example_inputs: Sequence[Any] | None = None,
    buckets: Mapping[str, Sequence[int]] | None = None,
    cache: bool | Cache = False,
    planner: str = "joint",
    plan_budget: float | None = None,
) -> Program:
    """Compile a model: the path of an ``.onnx``, ``.pt2`` or ``.sir`` file, an ``onnx.ModelProto``,
    a torch ``ExportedProgram``, a ``torch.nn.Module`` (with ``example_inputs``, which tell its
    shapes), a ``ConfiguredModel``, or a module of the tensor stage.

    ``bind`` gives dynamic dimensions their size (by name, or ``"INPUT:AXIS"``); ``const`` gives
    inputs a fixed value; ``device`` is a name, a ``.toml`` path or a DeviceSpec; ``numerics`` is
    the format tensors live in on the device; ``passes`` replaces the pipeline (text, or passes);
    ``planner``: "joint", or "baseline", the published heuristics (docs/baseline.md); ``plan`` (or
    the path of one) pins decisions; ``hook`` is called after each pass. ``buckets``
    gives open dimensions several sizes each: the program then holds kernels for every combination,
    which share weights (docs/buckets.md). ``cache``: look for the program among those kept on
    disk, and keep it there (True: in the user's folder, see docs/cache.md); what is found has the
    same bytes, but no ``module``. ``buckets``, a ``hook``, and passes that are given as objects or
    come from elsewhere leave it out. ``plan_budget``: nominal seconds in which better plans are
    looked for by simulation (docs/plan.md), 0 for none, None for what suits the model; the result
    is the same on every machine.

    Raises SpyrecError (the model, an option or the plan is at fault), SimError (the device file
    is), OSError (a file cannot be read).
    """
    from spyrec.cache_key import module_key, recipe_key, surroundings
    from spyrec.driver import compile_module
    from spyrec.frontend.torch_config import ConfiguredModel

    target = target_of(device, numerics)
    plan = read_plan(plan) if isinstance(plan, str | Path) else plan

    def load(sizes: Mapping[str, int]) -> Module:
        return import_model(model, {**(bind or {}), **sizes}, const or {}, example_inputs)

    def build(module: Module, decisions: Mapping[str, Any] | None) -> Compiled:
        given = dict(decisions) if decisions is not None else None
        return compile_module(
            module, target, pipeline=passes, plan=given, hook=hook, progress=progress,
            planner=planner, plan_budget=plan_budget,
            memo=kept.folder / TRIALS if kept else None,
        )

    def whole(module: Module) -> Program:
        done = build(module, plan)
        return Program(done.program, done.module, done.plan, oddities(done.module))

    kept = default_cache() if cache is True else cache or None
    about = None
    if buckets is None and kept and hook is None and (passes is None or isinstance(passes, str)):
        about = surroundings(target, passes, plan, planner, plan_budget)
    if buckets is not None:
        from spyrec.bucket_compile import compile_buckets

        if isinstance(model, Module | ConfiguredModel):
            raise SpyrecError(
                "buckets are for a model file or object that leaves sizes open, which a "
                f"{type(model).__name__} does not; got buckets of {', '.join(buckets)}"
            )
        if twice := sorted(set(buckets) & set(bind or {})):
            raise SpyrecError(
                f"{', '.join(twice)}: given a size by bind and several by buckets; leave one out"
            )
        program = Program(*compile_buckets(load, build, buckets, plan))
    elif "buckets" in (plan or {}):
        raise SpyrecError("the plan is for a program with buckets; give the buckets too")
    elif kept is None or about is None:
        program = whole(load({}))
    elif isinstance(model, ConfiguredModel) and not bind and not const:  # not even exported
        program = _kept(kept, recipe_key(model.recipe(), about), lambda: whole(load({})))
    else:
        module = load({})
        program = _kept(kept, module_key(module, about), lambda: whole(module))
    return named(program, Path(model).name) if isinstance(model, str | Path) else program


def _kept(cache: Cache, key: str | None, build: Callable[[], Program]) -> Program:
    """The program that the cache has under ``key``, else a new one, which it gets."""
    found = cache.load(key) if key is not None else None
    if found is not None:
        return Program(found.code, None, found.plan, found.warnings, from_cache=True)
    program = build()
    if key is not None:
        cache.store(key, Entry(program.code, program.plan, program.warnings))
    return program


def named(program: Program, name: str) -> Program:
    """The program as reports are to call it."""
    meta = {**program.code.meta, "model": name}
    return replace(program, code=replace(program.code, meta=meta))


def lower(
    model: Any,
    *,
    bind: Mapping[str, int] | None = None,
    const: Mapping[str, Any] | None = None,
    device: str | DeviceSpec = "spyre",
    numerics: Numerics = "dl16",
    passes: str | Sequence[Pass] | None = None,
    plan: Mapping[str, Any] | str | Path | None = None,
    hook: Hook | None = None,
    progress: Progress = silent,
    planner: str = "joint",
    plan_budget: float | None = None,
) -> Module:
    """The IR of a model after ``passes``, which may stop anywhere; else as ``compile``."""
    target = target_of(device, numerics)
    plan = read_plan(plan) if isinstance(plan, str | Path) else plan
    module = import_model(model, bind or {}, const or {})
    from spyrec.driver import lower_module

    return lower_module(
        module, target, pipeline=passes, plan=dict(plan) if plan is not None else None, hook=hook,
        progress=progress, planner=planner, plan_budget=plan_budget,
    )


def oddities(module: Module) -> tuple[str, ...]:
    """The sentences on what is odd in the model that the frontend and the passes left."""
    odd = module.attrs.get("warnings", ())
    return tuple(str(w) for w in odd) if isinstance(odd, tuple) else ()


def target_of(device: str | DeviceSpec, numerics: Numerics) -> Target:
    """What to compile for. SpyrecError for unknown numerics, SimError for a faulty device file."""
    if numerics not in NUMERICS:
        raise SpyrecError(f"numerics {numerics!r} is unknown; known: {', '.join(NUMERICS)}")
    return Target(load_device(device) if isinstance(device, str) else device, numerics)


PICKLED = (".pt", ".pth", ".ckpt")
"""Files that torch.save writes."""


def import_model(
    model: Any, bind: Mapping[str, int], const: Mapping[str, Any],
    example_inputs: Sequence[Any] | None = None,
) -> Module:
    """The tensor-stage module of whatever ``compile`` takes as a model."""
    from spyrec.frontend import import_onnx, import_torch, is_torch
    from spyrec.frontend.torch_config import ConfiguredModel

    if isinstance(model, str | Path):
        suffix = Path(model).suffix.lower()
        if odd := files.no_file(model):
            raise SpyrecError(f"model file {model} {odd}")
        if suffix == ".sir":
            return _read_sir(Path(model), bind, const)
        if suffix == ".pt2":
            return import_torch(model, bind, const)
        if suffix in PICKLED:
            raise SpyrecError(
                f"model {model}: a {suffix} file is a pickle, which only torch can read (pip "
                "install 'spyrec[torch]'); load it there and write what torch.export.export gives "
                "of the model with torch.export.save to a .pt2 file"
            )
        if suffix != ".onnx":
            raise SpyrecError(
                f"model {model}: its name must end in .onnx, .pt2 or .sir, which tells the kind of "
                "file"
            )
    elif isinstance(model, Module):
        return model
    elif isinstance(model, ConfiguredModel):
        return import_torch(model.exported(), bind, const)
    elif is_torch(model):
        return import_torch(model, bind, const, example_inputs)
    elif type(model).__name__ != "ModelProto":
        raise SpyrecError(
            f"a model of type {type(model).__name__} cannot be compiled; expected a path, an "
            "onnx.ModelProto, a torch ExportedProgram or a torch.nn.Module"
        )
    return import_onnx(model, bind, const)


def _read_sir(path: Path, bind: Mapping[str, int], const: Mapping[str, Any]) -> Module:
    from spyrec.ir.parser import parse_module
    from spyrec.ir.verifier import verify

    if bind or const:
        raise SpyrecError(f"model {path}: IR text states its shapes; leave bind and const out")
    try:
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            raise SpyrecError(f"model {path} is empty, expected IR text that begins with 'module'")
        module = parse_module(text)
        verify(module)
    except UnicodeDecodeError as error:
        raise SpyrecError(f"model {path} is not UTF-8 text: {error}") from None
    except ParseError as error:
        raise ParseError(f"model {path}: {error}") from None
    return module


def load(path: str | Path) -> Program:
    """The program in an object file. SimError when damaged, OSError when it cannot be read."""
    return Program(objfile.load_program(path))


def simulate(
    program: Program,
    inputs: Mapping[str, Array] | None = None,
    *,
    timing_only: bool = False,
    seed: int = 0,
    device: str | DeviceSpec | None = None,
    trace: str | Path | None = None,
    trace_window: str | None = None,
    check: bool = False,
    host_launch: str | None = None,
    jobs: int | None = None,
    progress: Progress = silent,
    bucket: Mapping[str, int] | None = None,
    detail: bool = False,
) -> Result:
    """Run a program on the simulated device.

    ``inputs``: arrays by model input name, in the model's own element types and shapes; random ones
    from ``seed`` when None. State that is not among them is as in a first run (see Session).
    ``timing_only`` counts cycles without computing numbers. ``device`` replaces the machine the
    program was compiled for. ``trace``: where to write a Chrome trace, ``trace_window``
    which part of the run it shows in full, as in "20us:35us" (docs/trace.md).
    ``check`` looks for hazards first and, unless only time is asked for, runs the program a second
    time to see whether undefined lanes reach an output (docs/checking.md).
    A program with buckets takes inputs of any shape that fits one: the smallest is run, outputs are
    what the true shape gives. ``bucket`` asks for sizes of some dimensions; without ``inputs`` and
    ``bucket`` the largest is run. ``detail``: the report tells of each launch, core, piece of the
    ring and tensor, too (docs/report.md).
    On a busy machine start Python with OPENBLAS_NUM_THREADS=1: the matrices are small.

    Raises SpyrecError (inputs do not fit), SimError (the program breaks a rule of the machine; a
    HazardError when it is ``check`` that found something), OSError (the trace cannot be written).
    """
    machine = _machine(program, device)
    given: dict[str, Array] = {}
    if inputs is not None:
        given = {name: as_array(array) for name, array in inputs.items()}
    chosen = bucketed.chosen(program.code, None if inputs is None else given, bucket)
    use = None if chosen is None else chosen.use
    if chosen is not None:
        program = replace(program, code=chosen.code)
        if inputs is None and not timing_only:
            inputs = given = runtime.random_inputs(bucketed.asked(chosen), seed)
        given = bucketed.filled(chosen, given)
    program, parts = _in_jobs(program, machine, host_launch, jobs)
    if inputs is not None:
        runtime.check(program.inputs, given)
        given = runtime.first_state(program.code) | given
    elif not timing_only:
        given = runtime.random_inputs(program.inputs, seed) | runtime.first_state(program.code)
    fed = [] if timing_only else [(port, given[port.name]) for port in program.inputs]
    packed = {port.buffer.name: runtime.pack(port, array) for port, array in fed}
    checked = hazards.examine(program.code, machine) if check else None
    if checked is not None:
        hazards.refuse(checked.findings)
    start = time.perf_counter()
    with tracing(trace, machine, trace_window) as observer:
        ran = run(
            program.code, machine, packed, timing_only=timing_only, observer=observer,
            progress=lambda done, all_: progress("simulating", done, all_),
        )
    wall_s = time.perf_counter() - start
    if checked is not None and not timing_only:
        found = undefined_outputs(program.code, machine, given, ran.outputs, checked)
        hazards.refuse(tuple(found))
    got = None if timing_only else [
        (port, bucketed.cropped(port, runtime.unpack(port, ran.outputs[port.buffer.name]), use))
        for port in program.outputs
    ]
    host = None
    if host_launch is not None:
        made = runtime.jobs_of(program.code, parts, ran.launches)
        host = runtime.host_time(machine, host_launch, made)
    result = result_of(
        program.code, machine, ran, fed, got, wall_s=wall_s, host=host, bucket=use, detail=detail
    )
    return replace(result, warnings=(*result.warnings, *left_out(observer)))


def as_array(value: Any) -> Array:
    """An input as an array: of a torch tensor its elements, whatever it records, wherever it is."""
    if isinstance(value, np.ndarray) or not hasattr(value, "detach"):
        return np.asarray(value)
    from spyrec.frontend.torch_live import host_array

    try:
        return np.asarray(value.detach().cpu())
    except TypeError:  # numpy has no such numbers
        return host_array(value)[0]


def result_of(
    code: isa.Program, machine: DeviceSpec, ran: RunResult, fed: Sequence[PortArray],
    got: Sequence[PortArray] | None, *, wall_s: float, host: runtime.HostTime | None = None,
    bucket: BucketUse | None = None, detail: bool = False,
) -> Result:
    """The result of a run: ``fed`` its inputs, ``got`` its outputs (None when only time was
    simulated), ``wall_s`` seconds of simulation."""
    kernels, places = rows_and_places(code, machine, ran.launches)
    totals = run_totals(ran, kernels, machine)
    facts = Report(
        spyrec=__version__, model=code.meta.get("model", ""), device=machine.name,
        numerics=code.meta.get("numerics", ""), total_cycles=totals.cycles, total_us=totals.us,
        clock_mhz=machine.clock_mhz, functional=got is not None, wall_s=round(wall_s, 6),
        events=ran.events, launch_cycles=totals.launch_cycles, meeting_cycles=totals.meeting_cycles,
        kernels=kernels, host=host, bucket=bucket,
        detail=detail_of(code, machine, ran.launches, places) if detail else None,
    )
    warnings = (*runtime.overflow_warnings(fed), *runtime.nan_warnings(got or ()))
    outputs = {port.name: array for port, array in got or ()}
    return Result(outputs, kernels, totals, warnings, facts)


def _in_jobs(
    program: Program, machine: DeviceSpec, host_launch: str | None, jobs: int | None
) -> tuple[Program, int]:
    """The program as the host launches it, and in how many jobs."""
    if host_launch is None:
        if jobs is not None:
            raise SpyrecError("jobs say how the host launches a program: say host_launch too")
        return program, 1
    runtime.checked_mode(host_launch)
    parts = machine.host.jobs if jobs is None else jobs
    return replace(program, code=runtime.cut(program.code, parts)), parts


def _machine(program: Program, device: str | DeviceSpec | None) -> DeviceSpec:
    if device is None:
        return program.device
    machine = load_device(device) if isinstance(device, str) else device
    needed = max((kernel.cores for kernel in program.code.kernels), default=0)
    if needed > machine.cores.count:
        named = device if isinstance(device, str) else machine.name
        raise SpyrecError(
            f"the program runs on {needed} cores, the device {named} has {machine.cores.count}; "
            f"compile again with --device {named}"
        )
    return machine


MOST_PLAN_BYTES = 1 << 28
"""One of forty layers has 2 MB."""


def read_plan(path: str | Path) -> dict[str, Any]:
    """A plan file. SpyrecError when it is not JSON or not an object."""
    try:
        plan = json.loads(files.read_text(path, MOST_PLAN_BYTES))
    except (ValueError, RecursionError) as error:
        raise SpyrecError(f"plan {path} is not valid JSON: {error}") from None
    if not isinstance(plan, dict):
        raise SpyrecError(f"plan {path} holds a JSON {type(plan).__name__}; expected an object")
    return plan
