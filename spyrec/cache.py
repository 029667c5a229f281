"""Compiled programs kept on disk: a model that was compiled once is not compiled again.

An entry is the object file of a program and, beside it, JSON with what else a compilation gives.
Both are named by a digest of everything they depend on (cache_key.py), so an entry is never out
of date, only no longer asked for.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spyrec import files
from spyrec.sim import isa, objfile
from spyrec.sim.errors import SimError

VARIABLE = "SPYREC_CACHE"
OFF = "off"
TRIALS = "trials"  # the folder in it for what memo.py keeps
LIMIT_BYTES = 2 << 30
LARGEST = 4  # the constants of an entry take at most the limit divided by this
FORGOTTEN_S = 24 * 3600.0  # a half-written file this old is nobody's any more
NAME = re.compile(r"([0-9a-f]{64})\.(spx|json)|\.[0-9a-f]{64}\.(?:spx|json)\.[0-9a-f]{8}\.tmp")


@dataclass(frozen=True)
class Entry:
    """What is kept of a compilation. ``plan`` and ``warnings`` as a Program has them."""

    code: isa.Program
    plan: Mapping[str, Any]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Cache:
    """A folder of entries that processes may share.

    A file appears whole or not at all and carries a checksum; what is damaged counts as missing
    and is replaced. When all entries together take more than ``limit_bytes``, those that were not
    used for longest go. Nothing here raises: without a usable folder there is nothing to be found
    in it. Other files in the folder are left alone.
    """

    folder: Path
    limit_bytes: int = LIMIT_BYTES

    def load(self, key: str) -> Entry | None:
        """The entry, which counts as used now; None when there is none or it is damaged."""
        program, facts = self._paths(key)
        try:
            plan, warnings = _read_facts(facts.read_bytes())
            code = objfile.load_program(program)
        except (OSError, SimError, ValueError, RecursionError):
            return None
        with suppress(OSError):  # in somebody else's folder, say
            os.utime(facts)
        return Entry(code, plan, warnings)

    def store(self, key: str, entry: Entry) -> None:
        """Keep an entry, unless its constants alone are a quarter of all that may be kept."""
        if sum(b.size for b in entry.code.buffers if b.data is not None) > self.largest_bytes:
            return
        program, facts = self._paths(key)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with files.atomic_file(program) as file:
                objfile.save_program(entry.code, file)
            files.write_bytes(facts, _facts(entry))  # last: it makes the entry one
            self._trim(key)
        except (OSError, SimError):
            return

    @property
    def largest_bytes(self) -> int:
        """Of constants that a program may have to be kept."""
        return self.limit_bytes // LARGEST

    def _paths(self, key: str) -> tuple[Path, Path]:
        return self.folder / f"{key}.spx", self.folder / f"{key}.json"

    def _trim(self, newest: str) -> None:
        """Remove what is beyond the limit, the entry used last at the end, ``newest`` never."""
        used: dict[str, float] = {}
        sizes: dict[str, int] = {}
        for key, path, found in self._files():
            if key is None:
                if time.time() - found.st_mtime > FORGOTTEN_S:
                    path.unlink(missing_ok=True)
                continue
            used[key] = max(used.get(key, 0.0), found.st_mtime)
            sizes[key] = sizes.get(key, 0) + found.st_size
        total = sum(sizes.values())
        for key in sorted(sizes, key=lambda k: (k == newest, used[k], k)):
            if total <= self.limit_bytes or key == newest:
                return
            program, facts = self._paths(key)
            facts.unlink(missing_ok=True)  # first: without it there is no entry
            program.unlink(missing_ok=True)
            total -= sizes[key]

    def _files(self) -> Iterator[tuple[str | None, Path, os.stat_result]]:
        """(key, path, status) of each file that is ours; the key of a half-written one is None."""
        for path in self.folder.iterdir():
            match = NAME.fullmatch(path.name)
            if match is None:
                continue
            try:
                yield match[1], path, path.stat()
            except FileNotFoundError:  # another process was quicker
                continue


def default_cache() -> Cache | None:
    """Where SPYREC_CACHE says, else in the user's folder for such things; None when it says off."""
    said = os.environ.get(VARIABLE, "")
    if said == OFF:
        return None
    try:
        return Cache(Path(said) if said else user_folder())
    except RuntimeError:  # nobody knows where this user is at home
        return None


def user_folder() -> Path:
    """The platform's folder for what can be made again. RuntimeError when there is no home."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local"
        return Path(local) / "spyrec/Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/spyrec"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spyrec"


def _facts(entry: Entry) -> bytes:
    told = {"plan": entry.plan, "warnings": list(entry.warnings)}
    return json.dumps({"sha256": _checksum(told), **told}).encode()


def _read_facts(data: bytes) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """ValueError when it is not what ``_facts`` writes."""
    match json.loads(data):
        case {"sha256": str() as stated, "plan": dict() as plan, "warnings": list() as warnings}:
            if stated == _checksum({"plan": plan, "warnings": warnings}):
                return plan, tuple(map(str, warnings))
    raise ValueError("not what was written")


def _checksum(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()
