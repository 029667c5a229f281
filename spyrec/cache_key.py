"""What a compiled program depends on, as one digest. Whatever cannot be put into words has no key,
and is compiled each time."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spyrec import LOADED_AT, __version__
from spyrec.driver import JOINT, chosen_passes, with_budget
from spyrec.ir.core import Module
from spyrec.ir.errors import SpyrecError
from spyrec.ir.printer import print_module
from spyrec.passes.manager import Pipeline, Target
from spyrec.passes.pipeline_text import print_pipeline
from spyrec.versions import versions

FORMAT = "spyrec cache 1"
PACKAGES = ("spyrec", "spyrec.ir", "spyrec.passes", "spyrec.sim")
SOURCES = (".py", ".lark")
LIBRARIES = ("numpy", "networkx")  # what passes and code generation compute with


def module_key(module: Module, surroundings: str) -> str | None:
    """The key of a module at the tensor stage; None when it has no text."""
    try:
        return _digest("module", print_module(module, data="elide"), surroundings)
    except SpyrecError:
        return None


def recipe_key(recipe: str, surroundings: str) -> str:
    """The key of a model that is made from ``recipe``, which has to tell it completely."""
    return _digest("recipe", recipe, surroundings)


def surroundings(
    target: Target, pipeline: str | None, plan: Mapping[str, Any] | None, planner: str = JOINT,
    budget: float | None = None,
) -> str | None:
    """All that a program depends on beside the model: this compiler and the libraries it computes
    with, the machine, the numerics, the planner, the pipeline, the pins and the ``budget`` of the
    search.

    ``pipeline``: the text of one that is not the usual; PassError when it is wrong. None when it
    cannot be known: a pass of somebody else (its code may change without notice),
    a plan that is not JSON, or a file of spyrec that was written after this process loaded it.
    """
    passes = with_budget(chosen_passes(pipeline, planner), budget)
    return surroundings_of(target, passes, plan)


def surroundings_of(
    target: Target, passes: Pipeline, plan: Mapping[str, Any] | None
) -> str | None:
    """The same of passes as they are."""
    source = source_digest()
    if source is None or any(not type(p).__module__.startswith("spyrec.") for p in passes):
        return None
    try:
        pins = json.dumps(plan, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return _digest(
        FORMAT, __version__, source, versions(LIBRARIES), platform.python_version(),
        platform.machine(), repr(target), print_pipeline(passes), pins,
    )  # fmt: skip


def source_digest() -> str | None:
    """Of every source file of spyrec, by name and content. None when one is newer than this
    process's import of spyrec: what runs here may then not be what stands in the file."""
    state = hashlib.sha256()
    try:
        for name, path in _sources():
            if path.stat().st_mtime >= LOADED_AT:
                return None
            content = path.read_bytes()
            state.update(f"{name} {len(content)}\n".encode())
            state.update(content)
    except OSError:  # it is being replaced right now
        return None
    return state.hexdigest()


def _sources() -> Iterator[tuple[str, Path]]:
    """(package:path in it, file) of every file, in a fixed order. ``ir``, ``passes`` and ``sim``
    are walked as packages: where they lie depends on how spyrec is installed."""
    for package in PACKAGES:
        root = Path(next(iter(importlib.import_module(package).__path__))).resolve()
        for folder, inner, names in os.walk(root):
            inner.sort()
            for name in sorted(names):
                if name.endswith(SOURCES):
                    path = Path(folder, name)
                    yield f"{package}:{path.relative_to(root).as_posix()}", path


def _digest(*parts: str) -> str:
    """Of texts whose borders count."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
