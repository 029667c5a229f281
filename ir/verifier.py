"""Check a module against every rule at once and report the faults inside its own text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .core import Module, Op, walk
from .errors import SpyrecError, VerifyError
from .literals import quote
from .printer import input_line, module_line, output_line, print_head
from .rules import RULES


@dataclass(frozen=True)
class Problem:
    """One fault: the number of the rule it breaks, the text it stands in, what is wrong."""

    rule: int
    line: str
    sentence: str


def verify(module: Module, stage: str | None = None) -> None:
    """Check every rule of RULES.

    ``stage``: the stage the module is expected to be at; default: the one it says it is at.
    VerifyError lists all problems, each under the text of the op it is about, in program order.
    """
    found = problems(module, stage)
    if not found:
        return
    by_line: dict[str, list[Problem]] = {line: [] for line in _lines(module)}
    for problem in found:
        by_line[problem.line].append(problem)
    text = [f"module {quote(module.name)} breaks rules of the {stage or module.stage} stage:"]
    for line, here in by_line.items():
        if here:
            text.append(f"  {line}")
        text += [f"  ^ rule {p.rule}: {p.sentence}" for p in here]
    raise VerifyError("\n".join(text))


def problems(module: Module, stage: str | None = None) -> list[Problem]:
    """Everything that breaks a rule, rule by rule; see :func:`verify`.

    A rule takes for granted what the others ask for, so it may stumble over what breaks one of
    them: then that is what is told. A stumble in a module that breaks none is a defect of the rule
    and raised.
    """
    found: list[Problem] = []
    stumble: Exception | None = None
    for rule in RULES:
        try:
            for where, sentence in rule.check(module, stage or module.stage):
                line = where if isinstance(where, str) else _head(where)
                found.append(Problem(rule.number, line, sentence))
        except Exception as error:
            stumble = stumble or error
    if stumble is not None and not found:
        raise stumble
    return found


def _lines(module: Module) -> Iterator[str]:
    """The module's text in order, regions flattened: whatever a problem can stand under."""
    yield module_line(module)
    yield from map(input_line, module.body.args)
    yield from map(_head, walk(module.body))
    count = max(len(module.output_names), len(module.body.results))
    yield from (output_line(module, i) for i in range(count))


def _head(op: Op) -> str:
    try:
        return print_head(op)
    except SpyrecError:  # an attribute without a text, which is a problem of its own
        return print_head(replace(op, attrs={}))
