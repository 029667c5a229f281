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
        return json.dumps(self.as_dict(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in pairs}
