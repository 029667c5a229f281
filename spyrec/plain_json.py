"""Data classes that are written as JSON files."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any


class AsJson:
    """For a data class: itself as plain data, the keys in the order of its fields."""

    def as_dict(self) -> dict[str, Any]:
        """What the file holds: dicts and lists."""
        return asdict(self, dict_factory=_plain)  # type: ignore[call-overload,no-any-return]

    def as_json(self) -> str:
        """The text of the file."""
        return _text(self.as_dict(), "\n") + "\n"


def _plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in pairs}


def _text(value: Any, line: str) -> str:
    """As ``json.dumps`` with an indent of one, but a list of numbers or of such lists is one
    line. ``line``: what begins the line the value stands on."""
    if isinstance(value, dict) and value:
        items = (f"{_brief(str(k))}: {_text(v, line + ' ')}" for k, v in value.items())
        return "{" + line + " " + f",{line} ".join(items) + line + "}"
    if isinstance(value, list) and value and not _numbers(value):
        return "[" + line + " " + f",{line} ".join(_text(v, line + " ") for v in value) + line + "]"
    return _brief(value)


def _numbers(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_numbers, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _brief(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
