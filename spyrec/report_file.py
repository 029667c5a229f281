"""Reading a report back: every field is checked before anything is made of it."""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from spyrec.ir.errors import SpyrecError
from spyrec.report import Report

MOST_BYTES = 1 << 28
"""A larger file is no report: one of 40 layers has a few hundred KiB."""
T = TypeVar("T")


def read_report(path: str | Path) -> Report:
    """The report in a file that ``simulate --report`` wrote. Fields that are not known are left
    out. SpyrecError that names each field which is missing or of another kind; OSError."""
    with open(path, "rb") as file:  # once: it may be a pipe
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise SpyrecError(f"{path} is larger than {MOST_BYTES >> 20} MiB: no report of spyrec")
    if content.startswith(b"\x7fELF"):
        raise SpyrecError(
            f"{path} is a program, not a report; spyrec simulate {path} --report FILE.json "
            "writes one"
        )
    try:
        data = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SpyrecError(f"{path} is no report: {error}") from None
    wrong: list[str] = []
    report = _made(Report, data, "", wrong)
    if report is None or wrong:
        told = "; ".join(wrong[:5]) + (f"; {len(wrong) - 5} more" if len(wrong) > 5 else "")
        raise SpyrecError(f"{path} is no report of spyrec: {told}")
    return report


def _made(kind: type[T], data: Any, where: str, wrong: list[str]) -> T | None:
    """An object of a data class from JSON; what does not fit goes to ``wrong``."""
    if not isinstance(data, dict):
        wrong.append(f"{where or 'the file'} is {_brief(data)}, expected an object")
        return None
    hints = get_type_hints(kind)
    given: dict[str, Any] = {}
    before = len(wrong)
    assert is_dataclass(kind)
    for f in fields(kind):
        place = f"{where}.{f.name}" if where else f.name
        if f.name in data:
            given[f.name] = _value(hints[f.name], data[f.name], place, wrong)
        elif not _has_default(f):
            wrong.append(f"{place} is missing")
    return kind(**given) if len(wrong) == before else None


def _has_default(f: Field[Any]) -> bool:
    return f.default is not MISSING or f.default_factory is not MISSING


def _value(kind: Any, value: Any, where: str, wrong: list[str]) -> Any:
    """The value as its field has it."""
    if isinstance(kind, UnionType):  # X | None
        (inner,) = [k for k in get_args(kind) if k is not NoneType]
        return None if value is None else _value(inner, value, where, wrong)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            wrong.append(f"{where} is {_brief(value)}, expected a list")
            return ()
        inner = get_args(kind)[0]
        return tuple(_value(inner, v, f"{where}[{i}]", wrong) for i, v in enumerate(value))
    if get_origin(kind) is dict:
        inner = get_args(kind)[1]
        if not isinstance(value, dict):
            wrong.append(f"{where} is {_brief(value)}, expected an object")
            return {}
        return {k: _value(inner, v, f"{where}.{k}", wrong) for k, v in value.items()}
    if is_dataclass(kind):
        assert isinstance(kind, type)
        return _made(kind, value, where, wrong)
    fits = isinstance(value, (int, float) if kind is float else kind)
    if not fits or (isinstance(value, bool) and kind is not bool):
        wrong.append(f"{where} is {_brief(value)}, expected {kind.__name__}")
    return float(value) if kind is float and fits else value


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
