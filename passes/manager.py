"""What a pass is, how a tuple of passes runs, and the one hook that watches between them."""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, Protocol, TextIO

import numpy as np

from spyrec.ir.core import Module
from spyrec.ir.errors import PassError, SpyrecError
from spyrec.ir.near import listed
from spyrec.ir.rounding import round_to
from spyrec.sim.device import DeviceSpec

from .trial import Try

Array = np.ndarray[Any, Any]
Numerics = Literal["dl16", "ieee16", "fp32"]


@dataclass(frozen=True)
class Target:
    """What is compiled for: the machine, and the float format its tensors are kept in.

    ``dl16`` is the card's own 16-bit format, ``ieee16`` is IEEE half, ``fp32`` keeps 32 bits.
    ``attempt`` runs a laid-out module in the simulator, for passes that settle close calls; None
    where nobody can. It is no part of what is compiled for.
    """

    device: DeviceSpec
    numerics: Numerics = "dl16"
    attempt: Try | None = field(default=None, repr=False, compare=False)


class Pass(Protocol):
    """A frozen dataclass whose fields are its options.

    ``name`` and ``summary`` (one sentence) are class variables, not fields.
    """

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str: ...

    def run(self, module: Module, target: Target) -> Module:
        """A new module; the one given is not changed. PassError when it cannot be handled."""
        ...


Pipeline = tuple[Pass, ...]
Registry = Mapping[str, Callable[..., Pass]]
"""Pass name -> its class, called with options as keywords."""


@dataclass(frozen=True)
class Absent:
    """In the place of a pass that does not load: whoever asks for it is told why."""

    told: str

    @property
    def summary(self) -> str:
        return f"Not there: {self.told}"

    def __call__(self, **options: object) -> NoReturn:
        raise PassError(self.told)


Hook = Callable[[Pass, Module, Module, float], None]
"""Called after each pass with ``(pass, before, after, seconds)``."""


def no_hook(_pass: Pass, _before: Module, _after: Module, _seconds: float) -> None:
    """The hook that does nothing."""


def run_pipeline(
    module: Module, passes: Iterable[Pass], target: Target, hook: Hook = no_hook
) -> Module:
    """Run the passes in order. An error that a pass or the hook after it raises gains a note saying
    which ran before. Whatever a pass from elsewhere raises becomes a PassError that names it and
    the line; so does a result that is no module."""
    done: list[str] = []
    for step in passes:
        start = time.perf_counter()
        try:
            after = _result(step, module, target)
            hook(step, module, after, time.perf_counter() - start)
        except Exception as error:
            error.add_note(f"in pass {step.name}, after {', '.join(done) or 'no other pass'}")
            raise
        done.append(step.name)
        module = after
    return module


class ChangedInput(PassError):
    """A pass changed the module it was given, and with it those of passes before that share ops
    with it: what any of them computes says nothing more."""


def from_elsewhere(step: Pass) -> bool:
    """Whether somebody else wrote the pass."""
    return not type(step).__module__.startswith("spyrec.")


def _result(step: Pass, module: Module, target: Target) -> Module:
    if not from_elsewhere(step):
        return step.run(module, target)
    _check_run(step, module, target)
    given = _text(module)
    try:
        after = step.run(module, target)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: the command goes on
        *_, last = traceback.extract_tb(error.__traceback__)
        kind = "" if isinstance(error, SpyrecError) else f"{type(error).__name__}: "
        where = "" if isinstance(error, SpyrecError) else f" ({last.filename}, line {last.lineno})"
        raise PassError(f"pass {step.name}: {kind}{_said(error)}{where}") from error
    if not isinstance(after, Module):
        raise PassError(f"pass {step.name} gave {type(after).__name__}, expected a module")
    try:
        changed = _text(module) != given
        _text(after)
    except Exception as error:
        raise PassError(
            f"pass {step.name} left a module with a part that is none: "
            f"{type(error).__name__}: {error}"
        ) from error
    if changed:
        raise ChangedInput(
            f"pass {step.name} changed the module it was given; it must make a new one, as rewrite "
            "and dataclasses.replace do"
        )
    return after


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:
        return f"(its text raises {type(other).__name__})"


def _check_run(step: Pass, module: Module, target: Target) -> None:
    """PassError when ``run`` does not take the two that it is called with."""
    try:
        takes = inspect.signature(step.run)
    except Exception:  # of something that does not tell
        return
    try:
        takes.bind(module, target)
    except TypeError as error:
        names = [p.replace(annotation=p.empty) for p in takes.parameters.values()]
        bare = takes.replace(parameters=names, return_annotation=takes.empty)
        raise PassError(
            f"pass {step.name}: its method run takes {bare}, but is called with (module, target); "
            "write def run(self, module, target)"
        ) from error


def _text(module: Module) -> str:
    """The module as text, long constants by digest; "" where a rule that it breaks leaves none."""
    from spyrec.ir.printer import print_module

    try:
        return print_module(module, data="elide")
    except SpyrecError:
        return ""


def blame(guests: Iterable[tuple[Pass, Module, Module]]) -> None:
    """To be called when a pass of ours stumbled: PassError when one of the passes from elsewhere,
    each with the modules before and after it, left one that breaks a rule and was given none."""
    from spyrec.ir.verifier import problems

    for step, before, after in guests:
        if (found := problems(after)) and not problems(before):
            raise PassError(
                f"pass {step.name} left a malformed module: rule {found[0].rule}: "
                f"{found[0].sentence}"
            )


def insert_before(pipeline: Pipeline, name: str, step: Pass) -> Pipeline:
    """The pipeline with ``step`` before the first pass called ``name``; PassError without one."""
    at = _places(pipeline, name)[0]
    return (*pipeline[:at], step, *pipeline[at:])


def insert_after(pipeline: Pipeline, name: str, step: Pass) -> Pipeline:
    """The pipeline with ``step`` after the last pass called ``name``; PassError without one."""
    at = _places(pipeline, name)[-1] + 1
    return (*pipeline[:at], step, *pipeline[at:])


def _places(pipeline: Pipeline, name: str) -> list[int]:
    places = [i for i, p in enumerate(pipeline) if p.name == name]
    if not places:
        raise no_such(pipeline, name)
    return places


def no_such(pipeline: Pipeline, name: str) -> PassError:
    """What to raise when a pipeline has no pass called ``name``."""
    names = dict.fromkeys(p.name for p in pipeline)
    told = listed(name, names, "spyrec passes shows the pipelines")
    return PassError(f"no pass of the pipeline is called {name}; {told}")


def hooks(*parts: Hook) -> Hook:
    """One hook that calls several in order."""

    def call_all(step: Pass, before: Module, after: Module, seconds: float) -> None:
        for part in parts:
            part(step, before, after, seconds)

    return call_all


def print_after(out: TextIO, only: str | None = None) -> Hook:
    """Write the module as text after each pass, or after the pass named ``only``; long constants
    by digest only."""
    from spyrec.ir.printer import print_module

    def show(step: Pass, _before: Module, after: Module, _seconds: float) -> None:
        if only in (None, "all", step.name):
            text = print_module(after, data="elide")
            out.write(f"// after {step.name}\n{text}\n")

    return show


@dataclass(frozen=True)
class Timing:
    """One line of the ``time_into`` record: ``ops`` counts the ops after the pass."""

    name: str
    seconds: float
    ops: int


def time_into(record: list[Timing]) -> Hook:
    """Append how long each pass took and how many ops it left."""

    def note(step: Pass, _before: Module, after: Module, seconds: float) -> None:
        record.append(Timing(step.name, seconds, len(after.body.ops)))

    return note


@dataclass(frozen=True)
class Compared:
    """One line of the record of ``oracle``: the output that was farthest off after the pass, its
    error and the error allowed; a module without outputs has "" and 0. ``faint``: see there."""

    name: str
    output: str
    error: float
    allowed: float
    faint: Mapping[str, float] = field(default_factory=dict)


def verify_each() -> Hook:
    """Check every rule of the module's stage after each pass; the VerifyError names the pass."""
    from spyrec.ir.errors import VerifyError
    from spyrec.ir.verifier import verify

    def check(step: Pass, _before: Module, after: Module, _seconds: float) -> None:
        try:
            verify(after)
        except VerifyError as error:
            error.add_note(f"the module was well-formed before pass {step.name}")
            raise

    return check


def oracle(
    inputs: Mapping[str, Array], tolerance: float | Callable[[Module], float],
    record: list[Compared] | None = None,
) -> Hook:
    """Run the interpreter after each pass, before the first too, on the same inputs and compare
    the outputs.

    The error of an output is ``max|after - before| / max(1, max|before|)``; PassError when one is
    above ``tolerance``, which may be a function of the module after the pass. Integer and bool
    outputs must be equal. Passes that change the types of the inputs are fed the inputs cast to the
    new types. ``record`` gains a line for each pass that was compared and is right.
    """
    from spyrec.ir.interp import run

    last: tuple[Module, Mapping[str, Array]] | None = None  # a module and what it computes

    def compare(step: Pass, before: Module, after: Module, _seconds: float) -> None:
        nonlocal last
        if last is None or last[0] is not before:
            last = before, run(before, fitted(before, inputs))
        wants = last[1]
        gots = run(after, fitted(after, inputs))
        last = after, gots
        if wants.keys() != gots.keys():
            raise PassError(
                f"oracle: pass {step.name} changed the outputs from {', '.join(wants)} to "
                f"{', '.join(gots) or 'none'}"
            )
        limit = tolerance(after) if callable(tolerance) else tolerance
        errors = {name: output_error(wants[name], gots[name]) for name in after.output_names}
        for name, error in errors.items():
            if not error <= limit:
                raise PassError(
                    f"oracle: pass {step.name} changed output {name}: the error is {error:.3g}, "
                    f"allowed is {limit:.3g}; --print-after {step.name} shows what it left, spyrec "
                    "bisect finds a smaller model that shows it"
                )
        if record is not None:
            worst = max(errors, key=lambda name: errors[name], default="")
            small = faint(wants, limit)
            record.append(Compared(step.name, worst, errors.get(worst, 0.0), limit, small))

    return compare


def fitted(module: Module, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs as values of the module's own input types."""
    return {
        v.name: round_to(np.asarray(inputs[v.name]), v.type.dtype)
        if v.type.dtype.kind == "float"
        else np.asarray(inputs[v.name]).astype(v.type.dtype.np_dtype)
        for v in module.body.args
    }


def random_inputs(module: Module, seed: int = 0) -> dict[str, Array]:
    """Inputs for the oracle: normal floats, integers 0 and 1 (legal as any index), coin flips.
    PassError when one has more elements or dimensions than an array may have."""
    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for v in module.body.args:
        shape, kind = v.type.static_shape, v.type.dtype
        try:
            if kind.kind == "float":
                made[v.name] = round_to(rng.normal(size=shape), kind)
            else:
                made[v.name] = rng.integers(0, 2, shape).astype(kind.np_dtype)
        except ValueError as error:
            raise PassError(
                f"input {v.name} cannot be made at random, no array has its type {v.type}: {error}"
            ) from None
    return made


def faint(outputs: Mapping[str, Array], limit: float) -> dict[str, float]:
    """The outputs of floats that are small all over, and the largest magnitude of each: at most
    ``limit``, so that an error as large as the output itself is allowed (see ``output_error``).
    Those that have no finite number are not small."""
    found: dict[str, float] = {}
    for name, array in outputs.items():
        if array.dtype.kind not in "biu":
            values = np.abs(array.astype(np.float64))
            largest = float(np.max(values, where=np.isfinite(values), initial=-1.0))
            if 0 <= largest <= limit and limit > 0:
                found[name] = largest
    return found


def output_error(want: Array, got: Array) -> float:
    """``max|got - want| / max(1, max|want|)``; inf on unequal shapes or where only one is finite.

    Equal infinities and NaN against NaN count as no error.
    """
    if want.shape != got.shape:
        return float("inf")
    if want.size == 0:
        return 0.0
    a, b = want.astype(np.float64), got.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.all(same | finite):
        return float("inf")
    if want.dtype.kind in "biu":
        return 0.0 if bool(np.all(same)) else float("inf")
    scale = max(1.0, float(np.max(np.abs(a[finite]), initial=0.0)))
    return float(np.max(np.abs(a[finite] - b[finite]), initial=0.0)) / scale
