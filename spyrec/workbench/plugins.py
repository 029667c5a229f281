"""Passes that stand in a file of the user's, and pipelines into which passes are put by name."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from spyrec.cache_key import LIBRARIES
from spyrec.files import no_file
from spyrec.ir.core import Module
from spyrec.ir.errors import PassError
from spyrec.passes.manager import (
    Pass,
    Pipeline,
    Registry,
    Target,
    insert_after,
    insert_before,
    no_such,
)
from spyrec.passes.pattern import PatternRule
from spyrec.passes.pattern_text import parse_rules
from spyrec.passes.pipeline import PIPELINE, registry
from spyrec.passes.pipeline_text import check_name, parse_pipeline, print_pipeline
from spyrec.passes.registry import is_pass
from spyrec.passes.rule import apply_rules

RULES = ".rules"
"""How the name of a file of declared rules ends."""
LOADED = "spyrec_loaded_"
"""How the names of modules that are made of files begin."""
USUAL = "usual"
"""A pipeline's text that stands for the usual one."""
Place = tuple[str, str]
"""The name of a pass, and the text of what goes beside it."""


@dataclass(frozen=True)
class PassFile:
    """A file of passes or rules as it was read, so that all who use it run the same."""

    path: str
    content: bytes

    @property
    def rules(self) -> bool:
        return Path(self.path).suffix == RULES

    @property
    def module(self) -> str:
        """The name of the module that its passes are of."""
        return f"{LOADED}{Path(self.path).stem}"

    @property
    def complete(self) -> bool:
        """Whether its passes are all in it: it imports nothing but spyrec, what that computes with
        and the standard library."""
        if self.rules:
            return True
        used: set[str] = set()
        for node in ast.walk(ast.parse(self.content)):
            if isinstance(node, ast.Import):
                used.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                used.add((node.module or "").partition(".")[0])
        return used <= {"spyrec", *LIBRARIES, *sys.stdlib_module_names}


def read_file(path: str | Path) -> PassFile:
    """PassError when there is no such file; OSError."""
    if odd := no_file(path):
        raise PassError(f"the file of passes or rules {path} {odd}")
    return PassFile(str(path), Path(path).read_bytes())


def known_passes(files: Iterable[str | Path | PassFile] = ()) -> Registry:
    """All passes by name: those that ship, those of installed distributions, those of ``files``,
    which come before installed ones of the same name.

    PassError when a file does not load, defines no pass, or takes a name that is in use.
    """
    found = dict(registry())
    for given in files:
        file = given if isinstance(given, PassFile) else read_file(given)
        for name, made in passes_of(file).items():
            try:
                check_name(name)
            except PassError as error:
                raise PassError(f"{file.path}: {error}") from None
            here = found.get(name)
            if is_pass(here) and here.__module__.startswith("spyrec."):
                raise PassError(
                    f"{file.path}: the pass {name} exists already; give it another name"
                )
            found[name] = made
    return found


def passes_of(file: PassFile) -> dict[str, type[Pass]]:
    """The passes that a Python file defines, by name: its classes with ``name``, ``summary`` and
    ``run``. The file's code is run. A file of declared rules (``.rules``) is one pass of its name.
    PassError when that fails or there are none."""
    if file.rules:
        return _rules_pass(file)
    module = module_of(file)
    found: dict[str, type[Pass]] = {}
    for made in _classes(module):
        name = str(made.name)
        if name in found:
            raise PassError(f"{file.path}: two passes are called {name}")
        found[name] = made
    if not found:
        raise PassError(
            f"{file.path} defines no pass: a class with a name, a summary (both class variables) "
            "and a method run(module, target); docs/writing-a-pass.md shows one"
        )
    return found


def rules_of(file: PassFile) -> tuple[PatternRule, ...]:
    """The declared rules of a file. PassError when it is faulty."""
    try:
        return parse_rules(file.content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise PassError(f"{file.path} is not UTF-8 text: {error}") from None
    except PassError as error:
        raise PassError(f"{file.path}: {error}") from None


def _rules_pass(file: PassFile) -> dict[str, type[Pass]]:
    """The pass that applies the declared rules of a file until none applies any more."""
    rules = rules_of(file)

    @dataclass(frozen=True)
    class Rules:
        name: ClassVar[str] = Path(file.path).stem.replace("_", "-")
        summary: ClassVar[str] = f"Applies {', '.join(r.name for r in rules)}."

        def run(self, module: Module, target: Target) -> Module:
            return apply_rules(module, rules)

    Rules.__module__ = file.module  # whose pass it is
    return {Rules.name: Rules}


def _classes(module: ModuleType) -> Iterator[type[Pass]]:
    for made in vars(module).values():
        if is_pass(made) and made.__module__ == module.__name__:
            yield made


def module_of(file: PassFile) -> ModuleType:
    """The module of a Python file, whose code is run. PassError when that fails."""
    if Path(file.path).suffix != ".py":
        raise PassError(f"{file.path} is no Python file; its name must end in .py")
    module = ModuleType(file.module)
    module.__file__ = file.path
    sys.modules[file.module] = module  # dataclasses look their module up there
    try:
        exec(compile(file.content, file.path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[file.module]
        raise PassError(f"{file.path} does not load: {_told(error, Path(file.path))}") from error
    return module


def _told(error: Exception | SystemExit, path: Path) -> str:
    """``line 3: NameError: ...``: where in the file it was."""
    here = path.resolve()
    lines = [at.lineno for at in _frames(error) if Path(at.filename).resolve() == here]
    if isinstance(error, SyntaxError) and Path(error.filename or "").resolve() == here:
        lines.append(error.lineno or 0)
    where = f"line {lines[-1]}: " if lines else ""
    return f"{where}{type(error).__name__}: {getattr(error, 'msg', None) or error}"


def _frames(error: BaseException) -> list[Any]:
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
    return parse_pipeline(text if USUAL in known else spelt_out(text), known)


def spelt_out(text: str) -> str:
    """A pipeline's text with the usual passes wherever ``usual`` stands."""
    words = text.split(",")
    if USUAL not in (w.strip() for w in words):
        return text
    return ",".join(print_pipeline(PIPELINE) if w.strip() == USUAL else w for w in words)


def until(passes: Pipeline, name: str) -> Pipeline:
    """The passes up to the first called ``name``. PassError when there is none."""
    for i, step in enumerate(passes):
        if step.name == name:
            return passes[: i + 1]
    raise no_such(passes, name)
