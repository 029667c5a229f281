"""Trial runs kept on disk: what the planner has tried once it need not try again, in this model or
another one that has the same kernels."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from spyrec import files
from spyrec.ir.core import Module, Op, Value
from spyrec.ir.errors import PassError
from spyrec.ir.rules_kernel import plan_problems
from spyrec.passes.allocate import divisions
from spyrec.passes.kernel import Nest
from spyrec.passes.pin_rules import kernel_problems
from spyrec.passes.plan import parse_plan
from spyrec.passes.signature import exact, structure
from spyrec.passes.trial import DECIDED, KernelTrial, Trial

LARGEST_BYTES = 1 << 22  # of one entry: nothing larger is read
LIMIT_BYTES = 1 << 27  # of all
NAME = re.compile(r"[0-9a-f]{64}\.trial\.json")
UNFIT = {"fits": False}


@dataclass(frozen=True)
class Memo:
    """A folder of trials that processes may share. An entry is called by a digest of the module
    that was tried, without its names, and of ``surroundings``: the device, the passes, this
    compiler.

    As in the cache of programs a file appears whole or not at all and carries a checksum; what is
    damaged, too large or no legal plan of the module counts as missing. Nothing here raises.
    """

    folder: Path
    surroundings: str
    cores: int

    def key(self, module: Module) -> str:
        """What the time of a module depends on; names, origins and constants are not among it."""
        state = hashlib.sha256(self.surroundings.encode())
        for part in _facts(module):
            state.update(repr(part).encode())
        return state.hexdigest()

    def load(self, key: str, module: Module) -> tuple[bool, Trial | None]:
        """Whether there is an entry, and the trial; None also for one that did not fit."""
        path = self._path(key)
        try:
            if path.stat().st_size > LARGEST_BYTES:
                return False, None
            told = _checked(json.loads(path.read_bytes()))
            if told == UNFIT:
                return True, None
            trial = _read(told)
            return (True, trial) if self._legal(trial, module) else (False, None)
        except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError):
            return False, None

    def store(self, key: str, trial: Trial | None) -> None:
        """Keep a trial, None for one that did not fit."""
        data = _written(UNFIT if trial is None else _told(trial))
        with suppress(OSError):
            if len(data) <= LARGEST_BYTES:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                files.write_bytes(self._path(key), data)

    def trim(self) -> None:
        """Remove the oldest entries beyond LIMIT_BYTES."""
        with suppress(OSError):
            found = sorted(
                (p.stat().st_mtime, p.name, p.stat().st_size) for p in self.folder.iterdir()
                if NAME.fullmatch(p.name)
            )
            total = sum(size for _, _, size in found)
            for _, name, size in found:
                if total <= LIMIT_BYTES:
                    return
                (self.folder / name).unlink(missing_ok=True)
                total -= size

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.trial.json"

    def _legal(self, trial: Trial, module: Module) -> bool:
        """Is what was decided of each kernel a plan that its rules allow?"""
        ops = [op for op in module.body.ops if op.name == "kernel"]
        seen: set[Hashable] = set()
        if len(ops) != len(trial.kernels):
            return False
        for op, k in zip(ops, trial.kernels, strict=True):
            known = op.attrs["dims"], op.attrs["maps"], tuple(k.decided.items())
            if known not in seen and not _is_legal(op, k, self.cores):
                return False
            seen.add(known)
        return True


def _facts(module: Module) -> Iterator[Hashable]:
    """The ops with values by number, inputs and outputs, pins, and the values of scalars."""
    numbers: dict[Value, int] = {}
    named: dict[str, int] = {}
    for op in module.body.ops:
        if op.name != "constant":
            yield structure(op, numbers, ("name",))
        elif op.result.type.size == 1:
            yield "scalar", numbers.setdefault(op.result, len(numbers)), exact(
                np.asarray(op.attrs["value"])
            )
        else:
            yield "constant", numbers.setdefault(op.result, len(numbers)), op.result.type
        named.update((v.name, numbers[v]) for v in op.results)
    yield tuple((numbers.get(v), v.type) for v in module.body.args)
    yield tuple(numbers.get(v) for v in module.body.results)
    pins: Any = module.attrs.get("pin_spaces", ())
    yield tuple(sorted((named.get(name, -1), space) for name, space in pins))


def _is_legal(op: Op, k: KernelTrial, cores: int) -> bool:
    nest = Nest(op)
    names, sizes = nest.dim_names, nest.extents
    decided: Mapping[str, Any] = k.decided
    parts, order, grains, tile, loops = (
        decided[key] for key in ("parts", "core_order", "grains", "tile", "loops")
    )
    counts = isinstance(parts, tuple) and isinstance(tile, tuple) and isinstance(loops, tuple)
    if not counts or len(parts) != len(sizes) or len(tile) != len(sizes):
        return False
    try:
        plan = parse_plan({"kernels": {nest.name: {
            "parts": dict(zip(names, parts, strict=True)),
            "tile": dict(zip(names, tile, strict=True)),
            "core_order": [names[d] for d in order],
            "loops": [names[d] for d in loops],
            **{key: decided[key] for key in ("buffers", "overlap", "ahead") if key in decided},
        }}})  # fmt: skip
    except PassError:
        return False
    pins = plan.kernels[nest.name]
    whole = all(t <= n for t, n in zip(tile, sizes, strict=True))
    divided = {n for n, p in pins.parts.items() if p > 1}
    return (
        whole and grains == divisions(nest)[1] and prod(pins.parts.values()) <= cores
        and divided <= set(pins.core_order or ()) and len(k.spaces) == len(op.results)
        and set(k.spaces) <= {"lx", "hbm"} and not list(kernel_problems(op, pins, cores))
        and not list(plan_problems(op.with_attrs(**decided), cores))
    )


def _told(trial: Trial) -> dict[str, Any]:
    """The trial as JSON has it: kernels that are alike once."""
    different: dict[str, int] = {}
    order = [
        different.setdefault(json.dumps(asdict(_plain(k))), len(different)) for k in trial.kernels
    ]
    return {
        "cycles": trial.cycles, "steps": trial.steps, "order": order,
        "kernels": [json.loads(text) for text in different],
    }  # fmt: skip


def _plain(k: KernelTrial) -> KernelTrial:
    return KernelTrial(k.cycles, k.floor_cycles, dict(k.decided), k.spaces)


def _read(told: Mapping[str, Any]) -> Trial:
    """ValueError, TypeError or KeyError when it is not what ``_told`` makes."""
    kernels = [
        KernelTrial(
            _count(k["cycles"]), _count(k["floor_cycles"]),
            {key: _tuples(k["decided"][key]) for key in DECIDED if key in k["decided"]},
            tuple(map(str, k["spaces"])),
        )
        for k in told["kernels"]
    ]  # fmt: skip
    order = tuple(kernels[_count(i)] for i in told["order"])
    return Trial(_count(told["cycles"]), order, _count(told["steps"]))


def _count(n: object) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise ValueError(f"expected a whole number, got {n!r}")
    return n


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _written(told: Mapping[str, Any]) -> bytes:
    return json.dumps({"sha256": _checksum(told), "trial": told}).encode()


def _checked(data: Any) -> Mapping[str, Any]:
    told = data["trial"]
    if not isinstance(told, dict) or data["sha256"] != _checksum(told):
        raise ValueError("not what was written")
    return told


def _checksum(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()
