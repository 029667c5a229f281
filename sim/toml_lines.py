"""Where in a TOML text each key stands, and everything in it that is no TOML.

``tomllib`` stops at the first error and tells no positions of keys. A statement of TOML (a table
header, or a key with its value) is a TOML text by itself, so the text is given to it statement by
statement: what comes back is the dotted key, and the line it began on is known.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Keys = tuple[str, ...]

STATEMENT_LINES = 64
"""A value of more lines is taken for one that is never closed, so that reading stays linear."""

FAULTS = 64
"""After so many faults the rest is not read."""

_HEADER = re.compile(r"\s*\[+\s*([\w.-]*)")
_KEY = re.compile(r"\s*([\w.-]+)")
_UNFINISHED = "(at end of document)"
_POSITION = re.compile(r"\s*\(at [^()]*\)$")


@dataclass(frozen=True)
class Fault:
    """A statement that is no TOML or contradicts one before it. ``line`` counts from 1; ``path`` is
    the key as far as it can be read."""

    line: int
    path: Keys
    said: str


@dataclass
class Document:
    """What can be read of a text: its values, the line where each path first stands, its faults,
    the lines of keys and headers spelt out, the number of its lines, and whether all was read."""

    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[Keys, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    given: dict[Keys, int] = field(default_factory=dict)
    last: int = 1
    whole: bool = True


def read_toml(text: str) -> Document:
    """The document; ``faults`` is empty for valid TOML (unless a value has more lines than
    STATEMENT_LINES)."""
    document = Document(last=text.count("\n") + (not text.endswith("\n")))
    section: Keys = ()
    for line, statement, table, said in _statements(text):
        if len(document.faults) >= FAULTS:
            document.whole = False
            break
        header = _HEADER.match(statement)
        if said:
            key = header or _KEY.match(statement)
            path = () if header else section
            path += tuple(key[1].split(".")) if key else ()
            document.lines.setdefault(path, line)
            document.faults.append(Fault(line, path, f"is not valid TOML: {said}"))
        else:
            path = _add(document, line, () if header else section, table)
        section = path if header else section
    return document


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, Any], str]]:
    """Each statement: its first line, text and table and, if it is no TOML, what is wrong with
    it."""
    lines = [f"{line}\n" for line in text.replace("\r\n", "\n").split("\n")]
    at = 0
    while at < len(lines):
        end = at + 1
        last = min(len(lines), at + STATEMENT_LINES)
        table, first = _parsed(lines[at])
        fault = first
        while fault.endswith(_UNFINISHED) and end < last:
            end += 1
            table, fault = _parsed("".join(lines[at:end]))
        if fault:  # one line is skipped: a value that never ends would hide all after it
            fault, end = first, at + 1
        yield at + 1, "".join(lines[at:end]), table, _POSITION.sub("", fault)
        at = end


def _parsed(text: str) -> tuple[dict[str, Any], str]:
    """The table a TOML text is, and what is wrong with it ("" if nothing is)."""
    try:
        return tomllib.loads(text), ""
    except RecursionError:
        return {}, "its brackets nest too deep"
    except ValueError as error:  # a syntax error, or a number of too many digits
        return {}, str(error)


def _add(document: Document, line: int, section: Keys, table: Mapping[str, Any]) -> Keys:
    """Put the table that one statement is into the document; the path the statement leads to."""
    path = section
    for path, value in _walk(section, table):
        document.lines.setdefault(path, line)
        if value == {} or not isinstance(value, dict):
            _give(document, line, path, value)
    return path


def _walk(path: Keys, table: Mapping[str, Any]) -> Iterator[tuple[Keys, Any]]:
    for key, value in table.items():
        yield (*path, key), value
        if isinstance(value, dict):
            yield from _walk((*path, key), value)


def _give(document: Document, line: int, path: Keys, value: Any) -> None:
    table: Any = document.data
    for key in path[:-1]:
        table = table.setdefault(key, {})
        if isinstance(table, list):  # of tables, each of which may have the key
            return
        if not isinstance(table, dict):
            document.faults.append(Fault(line, path, f"stands in {key}, which is no table"))
            return
    if path in document.given and value != [{}]:  # [[path]] adds to a list
        said = f"is given twice, first in line {document.given[path]}"
        document.faults.append(Fault(line, path, said))
    document.given.setdefault(path, line)
    table.setdefault(path[-1], value)
