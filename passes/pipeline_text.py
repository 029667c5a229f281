"""Pipelines as text: ``decompose,fuse,stick-layout{beam=64}``. What is printed parses back."""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass
from typing import Any

from spyrec.ir.errors import PassError, SpyrecError
from spyrec.ir.near import EVERY_PASS, listed

from .manager import Absent, Pass, Pipeline, Registry

_WORD, _NUMBER, _STRING = r"[A-Za-z_][\w.-]*", r"[-+]?[\d.][\w.+-]*", r'"(?:[^"\\]|\\.)*"'
_TOKEN = re.compile(rf"\s*({_WORD}|{_NUMBER}|{_STRING}|[{{}},=()])")

MAX_TUPLES = 100

Option = bool | int | float | str | None | tuple["Option", ...]


def parse_pipeline(text: str, registry: Registry) -> Pipeline:
    """Passes from text such as ``decompose,fold{limit=1024},dce``.

    An option value is a number, ``true``, ``false``, ``none``, a word, a "quoted string", or a
    tuple ``(1,2)`` of those; quoted strings are JSON. PassError on a syntax error (with its
    column), an unknown pass or an unknown option (the known ones are listed).
    """
    tokens = _tokens(text)
    if sum(token == "(" for _, token in tokens) > MAX_TUPLES:
        raise PassError(f"a pipeline holds more than {MAX_TUPLES} tuples")
    at = 0
    made: list[Pass] = []
    while at < len(tokens):
        if made:
            at = _expect(text, tokens, at, ",")
        name, options, at = _pass_text(text, tokens, at)
        made.append(_make(name, options, registry))
    return tuple(made)


def check_name(name: str) -> None:
    """PassError when a pass is called what no pipeline can say."""
    if re.fullmatch(_WORD, name) is None:
        raise PassError(
            f"a pass cannot be called {name!r}: expected a letter or _, then letters, digits, _, - "
            "and ."
        )


def print_pipeline(passes: Pipeline) -> str:
    """The text of a pipeline; options at their default are left out."""
    return ",".join(_print_pass(p) for p in passes)


def _print_pass(step: Pass) -> str:
    if not is_dataclass(step):
        return step.name
    changed = [
        f"{f.name.replace('_', '-')}={_print_option(getattr(step, f.name))}"
        for f in fields(step)
        if getattr(step, f.name) != f.default
    ]
    return step.name + ("{" + ",".join(changed) + "}" if changed else "")


def _print_option(value: Any) -> str:
    match value:
        case True:
            return "true"
        case False:
            return "false"
        case None:
            return "none"
        case str():
            plain = re.fullmatch(_WORD, value) and value not in _WORDS and _number(value) is None
            return value if plain else json.dumps(value)
        case tuple():
            return "(" + ",".join(_print_option(v) for v in value) + ")"
        case _:
            return repr(value)


_WORDS: dict[str, Option] = {
    "true": True, "false": False, "none": None, "True": True, "False": False, "None": None,
}  # fmt: skip

_Token = tuple[int, str]  # column from 0, text


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(text.rstrip()):
        m = _TOKEN.match(text, at)
        if m is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise _syntax(text, at, f"{text[at]!r} does not belong in a pipeline")
        found.append((m.start(1), m.group(1)))
        at = m.end()
    return found


def _pass_text(text: str, tokens: list[_Token], at: int) -> tuple[str, dict[str, Option], int]:
    name, at = _take(text, tokens, at, "the name of a pass")
    options: dict[str, Option] = {}
    if at == len(tokens) or tokens[at][1] != "{":
        return name, options, at
    at += 1
    while True:
        column = _column(text, tokens, at)
        key, at = _take(text, tokens, at, "the name of an option")
        if key.replace("-", "_") in options:
            raise _syntax(text, column, f"option {key} is given twice")
        at = _expect(text, tokens, at, "=")
        options[key.replace("-", "_")], at = _option(text, tokens, at)
        if at < len(tokens) and tokens[at][1] == ",":
            at += 1
            continue
        return name, options, _expect(text, tokens, at, "}")


def _option(text: str, tokens: list[_Token], at: int) -> tuple[Option, int]:
    if at < len(tokens) and tokens[at][1] == "(":
        at += 1
        parts: list[Option] = []
        while at < len(tokens) and tokens[at][1] != ")":
            part, at = _option(text, tokens, at)
            parts.append(part)
            if at < len(tokens) and tokens[at][1] == ",":
                at += 1
        return tuple(parts), _expect(text, tokens, at, ")")
    if at == len(tokens) or tokens[at][1] in "{},=)":
        raise _syntax(text, _column(text, tokens, at), "the value of an option is missing")
    word = tokens[at][1]
    if word in _WORDS:
        return _WORDS[word], at + 1
    if word.startswith('"'):
        return _unquoted(text, tokens[at]), at + 1
    number = _number(word)
    return word if number is None else number, at + 1


def _number(word: str) -> int | float | None:
    """The number a word stands for ("inf" and "nan" are numbers too), or None."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return None


def _unquoted(text: str, token: _Token) -> str:
    try:
        return str(json.loads(token[1]))
    except json.JSONDecodeError as error:
        raise _syntax(text, token[0] + error.pos, f"the string is not JSON: {error.msg}") from None


def _take(text: str, tokens: list[_Token], at: int, what: str) -> tuple[str, int]:
    if at == len(tokens) or not re.match(r"[A-Za-z_]", tokens[at][1]):
        raise _syntax(text, _column(text, tokens, at), f"{what} is missing")
    return tokens[at][1], at + 1


def _expect(text: str, tokens: list[_Token], at: int, mark: str) -> int:
    if at == len(tokens) or tokens[at][1] != mark:
        got = tokens[at][1] if at < len(tokens) else "the end"
        raise _syntax(text, _column(text, tokens, at), f"expected {mark!r}, got {got!r}")
    return at + 1


def _column(text: str, tokens: list[_Token], at: int) -> int:
    return tokens[at][0] if at < len(tokens) else len(text)


def _syntax(text: str, column: int, why: str) -> PassError:
    return PassError(f"pipeline {text!r}, column {column + 1}: {why}")


def _make(name: str, options: dict[str, Option], registry: Registry) -> Pass:
    if name not in registry:
        raise PassError(f"no pass is called {name!r}; {listed(name, sorted(registry), EVERY_PASS)}")
    make = registry[name]
    if isinstance(make, Absent):
        return make()
    known: list[str] = [f.name for f in fields(make)] if is_dataclass(make) else []
    unknown = [k for k in options if k not in known]
    if unknown:
        spelt = [k.replace("_", "-") for k in unknown]
        options_text = "it has none"
        if known:
            where = f"spyrec passes {name} tells of all"
            options_text = listed(spelt[0], [k.replace("_", "-") for k in known], where)
        raise PassError(f"pass {name} has no option {', '.join(spelt)}; {options_text}")
    if is_dataclass(make):
        for f in fields(make):
            if f.name in options:
                _check_kind(name, f.name, options[f.name], f.default)
    try:
        return make(**options)
    except SpyrecError:
        raise
    except (Exception, SystemExit) as error:
        raise PassError(f"pass {name} cannot be made: {type(error).__name__}: {error}") from error


def _check_kind(step: str, key: str, value: Option, default: Any) -> None:
    """An option must be of its default's kind, so a typing slip is reported here and by name."""
    allowed: tuple[type, ...] = (type(default),)
    if isinstance(default, float):
        allowed = (float, int)
    if default is None or not isinstance(default, bool | int | float | str | tuple):
        return
    if not isinstance(value, allowed) or (
        isinstance(value, bool) and not isinstance(default, bool)
    ):
        raise PassError(
            f"pass {step}: option {key.replace('_', '-')} takes a {allowed[0].__name__}, "
            f"got {value!r}"
        )
