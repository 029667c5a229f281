"""Passes that stand in a file of the user's, and pipelines into which passes are put by name."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, cast

from spyrec.ir.core import Module
from spyrec.ir.errors import PassError
from spyrec.passes.manager import Pass, Pipeline, Registry, Target, insert_after, insert_before
from spyrec.passes.pattern_text import parse_rules
from spyrec.passes.pipeline import PIPELINE, registry
from spyrec.passes.pipeline_text import parse_pipeline, print_pipeline
from spyrec.passes.rule import apply_rules

RULES = ".rules"
"""How the name of a file of declared rules ends."""
USUAL = "usual"
"""A pipeline's text that stands for the usual one."""
Place = tuple[str, str]
"""The name of a pass, and the text of what goes beside it."""


def known_passes(files: Iterable[str | Path] = ()) -> Registry:
    """All passes by name: those that ship, those of installed distributions, those of ``files``,
    which come before installed ones of the same name.

    PassError when a file does not load, defines no pass, or takes a name that is in use.
    """
    found = dict(registry())
    for path in files:
        for name, made in load_file(path).items():
            if getattr(found.get(name), "__module__", "").startswith("spyrec."):
                raise PassError(f"{path}: the pass {name} exists already; give it another name")
            found[name] = made
    return found


def load_file(path: str | Path) -> dict[str, type[Pass]]:
    """The passes that a Python file defines, by name: its classes with ``name``, ``summary`` and
    ``run``. The file's code is run. A file of declared rules (``.rules``) is one pass of its name.
    PassError when that fails or there are none."""
    if Path(path).suffix == RULES:
        return rules_pass(Path(path))
    module = import_file(Path(path))
    found: dict[str, type[Pass]] = {}
    for made in _classes(module):
        name = str(made.name)
        if name in found:
            raise PassError(f"{path}: two passes are called {name}")
        found[name] = made
    if not found:
        raise PassError(
            f"{path} defines no pass: a class with a name, a summary (both class variables) and "
            "a method run(module, target); docs/writing-a-pass.md shows one"
        )
    return found


def rules_pass(path: Path) -> dict[str, type[Pass]]:
    """The pass that applies the declared rules of a file until none applies any more."""
    if not path.is_file():
        raise PassError(f"{path}: there is no such file of rules")
    try:
        rules = parse_rules(path.read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise PassError(f"{path} is not UTF-8 text: {error}") from None
    except PassError as error:
        raise PassError(f"{path}: {error}") from None

    @dataclass(frozen=True)
    class Rules:
        name: ClassVar[str] = path.stem.replace("_", "-")
        summary: ClassVar[str] = f"Applies {', '.join(r.name for r in rules)}."

        def run(self, module: Module, target: Target) -> Module:
            return apply_rules(module, rules)

    return {Rules.name: Rules}


def _classes(module: ModuleType) -> Iterator[type[Pass]]:
    for made in vars(module).values():
        if inspect.isclass(made) and made.__module__ == module.__name__:
            texts = (getattr(made, "name", None), getattr(made, "summary", None))
            if all(isinstance(t, str) for t in texts) and callable(getattr(made, "run", None)):
                yield cast("type[Pass]", made)


def import_file(path: Path) -> ModuleType:
    """The module of a Python file, whose code is run. PassError when that fails."""
    if not path.is_file():
        raise PassError(f"{path}: there is no such file of passes")
    name = f"spyrec_loaded_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PassError(f"{path} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise PassError(f"{path} does not load: {_told(error, path)}") from error
    return module


def _told(error: Exception, path: Path) -> str:
    """``line 3: NameError: ...``: where in the file it was."""
    here = path.resolve()
    lines = [at.lineno for at in _frames(error) if Path(at.filename).resolve() == here]
    if isinstance(error, SyntaxError) and Path(error.filename or "").resolve() == here:
        lines.append(error.lineno or 0)
    where = f"line {lines[-1]}: " if lines else ""
    return f"{where}{type(error).__name__}: {getattr(error, 'msg', None) or error}"


def _frames(error: Exception) -> list[Any]:
    import traceback

    return list(traceback.extract_tb(error.__traceback__))


def pipeline_of(
    text: str | None, known: Registry, before: Sequence[Place] = (), after: Sequence[Place] = (),
    base: Pipeline = PIPELINE,
) -> Pipeline:
    """The passes of ``text`` (None: ``base``; ``usual`` in it stands for the usual ones), with
    others put before the first or after the last pass of a name. PassError when a name is unknown.
    """
    passes = base if text is None else _parsed(text, known)
    for name, spec in before:
        for step in parse_pipeline(spec, known):
            passes = insert_before(passes, name, step)
    for name, spec in after:
        for step in reversed(parse_pipeline(spec, known)):
            passes = insert_after(passes, name, step)
    return passes


def _parsed(text: str, known: Registry) -> Pipeline:
    """The passes of a text, in which ``usual`` may stand between others."""
    words = text.split(",")
    if USUAL not in (w.strip() for w in words) or USUAL in known:
        return parse_pipeline(text, known)
    whole = [print_pipeline(PIPELINE) if w.strip() == USUAL else w for w in words]
    return parse_pipeline(",".join(whole), known)


def until(passes: Pipeline, name: str) -> Pipeline:
    """The passes up to the first called ``name``. PassError when there is none."""
    for i, step in enumerate(passes):
        if step.name == name:
            return passes[: i + 1]
    told = ", ".join(dict.fromkeys(p.name for p in passes)) or "none"
    raise PassError(f"the pipeline has no pass {name}; its passes are: {told}")
