"""Attributes of an op read as the type a pass knows them to have."""

from __future__ import annotations

from typing import Any

from spyrec.ir.core import Op
from spyrec.ir.errors import PassError


def whole_number(op: Op, name: str) -> int:
    """An integer attribute. PassError when it is missing or something else."""
    value = op.attrs.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise PassError(
            f"{op.name}: attribute {name} should be a whole number, got {value!r} (from {op.loc})"
        )
    return value


def entries(op: Op, name: str) -> tuple[Any, ...]:
    """A tuple attribute. PassError when it is missing or something else."""
    value = op.attrs.get(name)
    if not isinstance(value, tuple):
        raise PassError(
            f"{op.name}: attribute {name} should be a tuple, got {value!r} (from {op.loc})"
        )
    return value
