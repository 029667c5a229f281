"""The points that are finished, on disk as soon as they are: a sweep that is stopped in any way
goes on from there."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from spyrec.ir.errors import SpyrecError
from spyrec.sweep.point import FIGURES, Outcome

HEAD = b'{"spyrec sweep": 1}\n'
SUFFIX = ".partial.jsonl"


class Journal:
    """A file of JSON lines beside the result: HEAD, then an outcome a line, each flushed to disk
    before the next. A last line that was not finished is cut off. One process has it at a time.

    ``finished``: the outcomes in it that ``compiler`` measured, by id; with None there are none, as
    nobody knows who that is. SpyrecError when the file is something else or in use; OSError.
    """

    def __init__(self, result: str, compiler: str | None) -> None:
        self.path = Path(result + SUFFIX)
        self.finished: dict[str, Outcome] = {}
        if self.path.exists() and not self.path.is_file():  # a device may be read without end
            raise SpyrecError(f"{self.path} is no file; move it away")
        self._file = open(self.path, "a+b")  # noqa: SIM115 (closed on leaving)
        try:
            self._read(compiler)
        except BaseException:
            self._file.close()
            raise

    def _read(self, compiler: str | None) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # goes with the process
        except BlockingIOError:
            raise SpyrecError(f"{self.path}: another sweep is writing there") from None
        self._file.seek(0)
        text = self._file.read()
        if not text.startswith(HEAD):
            if not HEAD.startswith(text):
                raise SpyrecError(f"{self.path} is not of a sweep; move it away")
            text = HEAD
            self._file.truncate(0)
            self._write(HEAD)
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            self._file.truncate(whole)
        for line in text[len(HEAD) : whole].splitlines():
            outcome = _outcome(line)
            if outcome is not None and compiler is not None and outcome.compiler == compiler:
                self.finished[outcome.id] = outcome

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome. Raises OSError."""
        self._write(json.dumps(asdict(outcome), allow_nan=False).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())

    def remove(self) -> None:
        """When the result holds all that is in it."""
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._size() == len(HEAD):
            self.remove()
        self._file.close()

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size


def _outcome(line: bytes) -> Outcome | None:
    """None when it is not what ``add`` writes."""
    try:
        told: Any = json.loads(line)
        outcome = Outcome(**told)
    except (ValueError, TypeError, RecursionError):
        return None
    figures = outcome.figures
    if not isinstance(figures, Mapping) or not isinstance(outcome.id, str):
        return None
    numbers = all(type(value) in (int, float) for value in figures.values())
    whole = outcome.error != "" if not figures else tuple(figures) == FIGURES and numbers
    return outcome if whole else None
