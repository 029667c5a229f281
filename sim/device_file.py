"""From TOML text to dataclasses whose annotations say what each field may hold.

A parameter is one line in its class: ``rows: Annotated[int, Whole("output rows of a pass")]``.
All problems are told at once, each with its dotted key, the unit expected and the line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from itertools import islice
from typing import Any, Protocol, TypeVar, get_type_hints, runtime_checkable

from .errors import DeviceError
from .toml_lines import Document, Keys, read_toml

Spec = TypeVar("Spec")
Problem = tuple[Keys, str]

MOST = 1 << 20
"""The greatest value of a parameter that names no other: products of a few stay inside 64 bits."""

PROBLEMS_TOLD = 50


@dataclass(frozen=True)
class Whole:
    """A whole number of ``unit``, from ``least`` to ``most``."""

    unit: str
    least: int = 1
    most: int = MOST

    def __str__(self) -> str:
        return f"a whole number from {self.least} to {self.most} ({self.unit})"

    def accepts(self, value: object) -> bool:
        return type(value) is int and self.least <= value <= self.most


@dataclass(frozen=True)
class Word:
    """A string that is not empty; ``unit`` says what it stands for."""

    unit: str

    def __str__(self) -> str:
        return f"a string that is not empty ({self.unit})"

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and value != ""


@dataclass(frozen=True)
class Table:
    """A table of ``each`` for some of the ``keys``."""

    each: Whole
    keys: tuple[str, ...]

    def __str__(self) -> str:
        return f"a table: for {', '.join(self.keys)}, {self.each}"


@dataclass(frozen=True)
class Section:
    """A table with one key for each annotated field of a dataclass."""

    cls: type[Any]

    @property
    def rules(self) -> Mapping[str, Rule]:
        """What each field may hold; a field that is not annotated is not read from the file."""
        return _rules(self)

    def __str__(self) -> str:
        return f"a section with {', '.join(self.rules)}"


Rule = Whole | Word | Table | Section


@runtime_checkable
class Checked(Protocol):
    """A section whose fields may contradict each other."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """The name of a field, and what is wrong with it beside the others."""


def read_spec(cls: type[Spec], text: str, origin: str, more: Mapping[str, object]) -> Spec:
    """``cls`` from TOML text. ``more``: the fields that do not stand in the file.

    DeviceError tells everything that is missing, unknown or impossible, one line a problem.
    """
    document = Document()
    try:
        document.data = tomllib.loads(text)
    except RecursionError:
        raise DeviceError(f"{origin}: not valid TOML: its brackets nest too deep") from None
    except ValueError as error:  # a syntax error, or a number of too many digits
        document = read_toml(text)
        if not document.faults:
            raise DeviceError(f"{origin}: not valid TOML: {error}") from None
    root = Section(cls)
    unread = {fault.path for fault in document.faults}
    problems: list[Problem] = []
    spec = _section(root, document.data, (), more, problems)
    problems = [(path, said) for path, said in problems if document.whole and path not in unread]
    if document.faults or problems:
        told = [
            (fault.line, f"{_dotted(fault.path)}{fault.said}{_expected(root, fault.path)}")
            for fault in document.faults
        ]
        told += _located(text, problems, root)
        raise DeviceError(_sentences(origin, told))
    assert isinstance(spec, cls)
    return spec


def read_values(
    cls: type[Spec], values: Mapping[str, object], origin: str, more: Mapping[str, object]
) -> Spec:
    """``cls`` from what a TOML text would hold. DeviceError as of read_spec, without lines."""
    problems: list[Problem] = []
    spec = _section(Section(cls), values, (), more, problems)
    if problems:
        told = [f"{origin}: {_dotted(path)}{said}" for path, said in problems[:PROBLEMS_TOLD]]
        raise DeviceError("\n".join(told))
    assert isinstance(spec, cls)
    return spec


@cache
def _rules(section: Section) -> Mapping[str, Rule]:
    hints = get_type_hints(section.cls, include_extras=True)
    found = {f.name: _rule(hints[f.name]) for f in fields(section.cls)}
    return {name: rule for name, rule in found.items() if rule is not None}


def _rule(hint: Any) -> Rule | None:
    if isinstance(hint, type) and is_dataclass(hint):
        return Section(hint)
    return next(iter(getattr(hint, "__metadata__", ())), None)


def _section(
    section: Section, table: object, path: Keys, more: Mapping[str, object], problems: list[Problem]
) -> Any:
    """The dataclass of a section, None when something in it is wrong."""
    if not isinstance(table, dict):
        problems.append((path, _unlike(table, section)))
        return None
    before = len(problems)
    rules = section.rules
    problems += _unknown(table, path, rules)
    values = dict(more)
    for name, rule in rules.items():
        here = (*path, name)
        if name not in table:
            problems.append((here, f"is missing, expected {rule}"))
        elif isinstance(rule, Section):
            values[name] = _section(rule, table[name], here, {}, problems)
        else:
            values[name] = table[name]
            problems += _value_problems(rule, table[name], here)
    if len(problems) > before:
        return None
    made = section.cls(**values)
    if isinstance(made, Checked):
        problems += [((*path, name), said) for name, said in made.contradictions()]
    return made


def _value_problems(rule: Whole | Word | Table, value: object, path: Keys) -> list[Problem]:
    if not isinstance(rule, Table):
        return [] if rule.accepts(value) else [(path, _unlike(value, rule))]
    if not isinstance(value, dict):
        return [(path, _unlike(value, rule))]
    known = dict.fromkeys(rule.keys, rule.each)
    found = list(_unknown(value, path, known))
    for key in known.keys() & value.keys():
        found += _value_problems(rule.each, value[key], (*path, key))
    return found


def _unlike(value: object, rule: Rule) -> str:
    if isinstance(value, int) and abs(value) >= 1 << 128:
        shown = "a number of more than 38 digits"
    else:
        shown = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}..."
    return f"is {shown}, expected {rule}"


def _unknown(
    table: Mapping[str, object], path: Keys, known: Mapping[str, Rule]
) -> Iterator[Problem]:
    what = f"[{'.'.join(path)}]" if path else "a device file"
    for key in islice((key for key in table if key not in known), PROBLEMS_TOLD):
        near = get_close_matches(key, known, 1)
        hint = f"did you mean {'.'.join((*path, near[0]))}, {known[near[0]]}?" if near else ""
        yield (*path, key), f"is not known; {hint or f'{what} has ' + ', '.join(known)}"


def _located(text: str, problems: Iterable[Problem], root: Section) -> Iterator[tuple[int, str]]:
    """Each problem with its line: that of the key; of the section a missing key belongs into; the
    first for a missing key outside of sections, the last for a missing section."""
    document = read_toml(text)
    for path, said in problems:
        at = path
        while at and at not in document.lines:
            at = at[:-1]
        nowhere = document.last if isinstance(_rule_at(root, path), Section) else 1
        yield document.lines.get(at, nowhere), f"{_dotted(path)}{said}"


def _rule_at(rule: Rule | None, path: Keys) -> Rule | None:
    for key in path:
        if isinstance(rule, Section):
            rule = rule.rules.get(key)
        else:
            rule = rule.each if isinstance(rule, Table) and key in rule.keys else None
    return rule


def _expected(root: Section, path: Keys) -> str:
    rule = _rule_at(root, path)
    return f"; expected {rule}" if path and rule is not None else ""


def _dotted(path: Keys) -> str:
    return f"{'.'.join(path)} " if path else ""


def _sentences(origin: str, told: list[tuple[int, str]]) -> str:
    told.sort(key=lambda problem: problem[0])
    lines = [f"{origin}, line {line}: {said}" for line, said in told[:PROBLEMS_TOLD]]
    if len(told) > PROBLEMS_TOLD:
        lines.append(f"{origin}: there are more problems, which are not told")
    return "\n".join(lines)
