"""Whether a rewrite rule keeps what it says: instances of it are run by the interpreter before and
after, on numbers that are meant to break it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spyrec.ir.core import Module
from spyrec.ir.errors import PassError, SpyrecError
from spyrec.ir.interp import run
from spyrec.passes.manager import output_error
from spyrec.passes.pattern import PatternRule
from spyrec.passes.pattern_draw import numbers
from spyrec.passes.pattern_instances import instances
from spyrec.passes.rule import Rule, apply_rules

from .reduce import Reduction
from .shrink import smaller_sizes, some_smaller_sizes

Array = np.ndarray[Any, Any]

ROUNDING = 1e-11
"""Allowed error where a formula is evaluated in another order, in 64 bits."""
ROUNDING_32, ROUNDING_16 = 1e-5, 1e-2
TRIES = 300


@dataclass(frozen=True)
class Counterexample:
    """A module that the rule changes, its inputs, and what it computes before and after."""

    module: Module
    inputs: Mapping[str, Array]
    before: Mapping[str, Array]
    after: Mapping[str, Array]


@dataclass(frozen=True)
class Verdict:
    """``checked``: instances that were run, nothing is known where there were none; ``worst``: the
    largest error of an output (for exact rules 0 or infinity); ``wrong``: what shows that it is not
    kept, "" when nothing does; ``unmatched``: examples that do not have the rule's pattern."""

    rule: Rule
    checked: int
    worst: float
    wrong: str = ""
    example: Counterexample | None = None
    unmatched: int = 0


def allowed(rule: Rule) -> float:
    """The error that the rule's class of exactness allows."""
    if rule.exactness == "approximation":
        return rule.error if isinstance(rule, PatternRule) else float("inf")
    return ROUNDING if rule.exactness == "rounding" else 0.0


def check(
    rule: Rule, count: int = 200, seed: int = 0, examples: Sequence[Module] = ()
) -> Verdict:
    """Run ``count`` instances of a declared rule, or the ``examples`` of one written in Python with
    so many inputs. An exact rule is tried with zeros of both signs, infinities and NaN and must
    give the same bits; the others with numbers of common size, in 64 bits."""
    worst, checked = 0.0, 0
    unmatched: set[int] = set()
    for number, module in enumerate(_modules(rule, count, seed, examples)):
        try:
            tried = _tried(rule, module, seed + number)
        except SpyrecError as fault:
            example = Counterexample(module, {}, {}, {})
            told = str(fault).removeprefix(f"rule {rule.name}: ")
            return Verdict(rule, checked, float("inf"), told, example)
        if tried is None:
            unmatched.add(number % len(examples))
            continue
        error, example = tried
        checked += 1
        worst = max(worst, error)
        limit = _limit(rule, module)
        if error > limit:
            told = f"the error is {error:.3g}, allowed is {limit:.3g}"
            if rule.exactness == "exact":
                told = "the bits differ"
            return Verdict(rule, checked, worst, told, _smaller(rule, example, seed + number))
    return Verdict(rule, checked, worst, unmatched=len(unmatched))


def _limit(rule: Rule, module: Module) -> float:
    """The error allowed in a model: more where its floats have fewer than 64 bits, as those of
    examples may."""
    if rule.exactness != "rounding":
        return allowed(rule)
    values = [*module.body.args, *(v for op in module.body.ops for v in op.results)]
    bits = [v.type.dtype.bits for v in values if v.type.dtype.kind == "float"]
    return {64: ROUNDING, 32: ROUNDING_32}.get(min(bits, default=64), ROUNDING_16)


def _modules(
    rule: Rule, count: int, seed: int, examples: Sequence[Module]
) -> Iterator[Module]:
    if isinstance(rule, PatternRule):
        yield from instances(rule, count, seed, wide=rule.exactness != "exact")
        return
    for i in range(count if examples else 0):
        yield examples[i % len(examples)]


def _tried(rule: Rule, module: Module, seed: int) -> tuple[float, Counterexample] | None:
    """The error of one module; None when the rule does not apply. SpyrecError when it breaks the
    module."""
    used: Counter[str] = Counter()
    try:
        after = apply_rules(module, (rule,), used)
    except SpyrecError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(rule, PatternRule):  # ours; else its function raised it, or gave no values
            raise
        raise PassError(f"{type(error).__name__}: {error}") from error
    if not used:
        return None
    inputs = {
        v.name: numbers(
            v.type.static_shape, v.type.dtype, seed + i, special=rule.exactness == "exact"
        )
        for i, v in enumerate(module.body.args)
    }
    given = {v.name: inputs[v.name] for v in after.body.args}
    with np.errstate(all="ignore"):
        want, got = run(module, inputs), run(after, given)
    return max(_error(rule, want[n], got[n]) for n in want), Counterexample(
        module, inputs, want, got
    )


def _error(rule: Rule, want: Array, got: Array) -> float:
    if rule.exactness != "exact":
        return output_error(want, got)
    if want.shape != got.shape or want.dtype != got.dtype:
        return float("inf")
    if want.dtype.kind != "f":
        return 0.0 if bool(np.all(want == got)) else float("inf")
    same = (want == got) & (np.signbit(want) == np.signbit(got))
    return 0.0 if bool(np.all(same | (np.isnan(want) & np.isnan(got)))) else float("inf")


def _smaller(rule: Rule, example: Counterexample, seed: int) -> Counterexample:
    """The same fault in a smaller module, where one is found."""

    def shows(module: Module) -> bool:
        try:
            tried = _tried(rule, module, seed)
        except SpyrecError:
            return False
        return tried is not None and tried[0] > _limit(rule, module)

    if not shows(example.module):
        return example
    steps = (smaller_sizes, some_smaller_sizes)
    module = Reduction(shows, most=TRIES, steps=steps).run(example.module)
    tried = _tried(rule, module, seed)
    assert tried is not None
    return tried[1]


def text_of(example: Counterexample) -> Iterator[str]:
    """Lines that show a counterexample: its IR, inputs, and results before and after."""
    from spyrec.ir.printer import print_module

    yield from print_module(example.module).splitlines()
    named = (("", example.inputs), ("before: ", example.before), ("after: ", example.after))
    for label, arrays in named:
        for name, array in arrays.items():
            values = np.array2string(array, precision=9, threshold=16).replace("\n", " ")
            yield f"{label}{name} = {values}"
