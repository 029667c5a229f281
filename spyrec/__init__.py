"""spyrec: compile a model for a Spyre-class dataflow accelerator and simulate it cycle by cycle.

``compile``, ``load``, ``simulate`` and ``explain`` are the whole public way in; they are imported
when first used, so that ``import spyrec`` costs nothing.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

LOADED_AT = time.time()
"""Seconds since 1970. A file of spyrec that is newer may not be what runs in this process."""

if TYPE_CHECKING:
    from spyrec.api import Program, Result, compile, load, simulate
    from spyrec.explain_model import explain
    from spyrec.ir.errors import SpyrecError
    from spyrec.session import Session
    from spyrec.sim.errors import SimError

__all__ = [
    "Program", "Result", "Session", "SimError", "SpyrecError", "compile", "explain", "load",
    "simulate",
]  # fmt: skip

_HOMES = {
    "Program": "spyrec.api",
    "Result": "spyrec.api",
    "Session": "spyrec.session",
    "SimError": "spyrec.sim.errors",
    "SpyrecError": "spyrec.ir.errors",
    "compile": "spyrec.api",
    "explain": "spyrec.explain_model",
    "load": "spyrec.api",
    "simulate": "spyrec.api",
}

if not TYPE_CHECKING:  # a type checker would take every misspelt attribute for one of these

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'spyrec' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
