"""One program for several sizes of a model: each bucket is imported, made right under padding and
compiled, and all are linked so that they share weights and state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from spyrec.buckets import extents_text
from spyrec.driver import Compiled
from spyrec.ir.core import Module
from spyrec.ir.errors import ImportError_, PassError, SpyrecError
from spyrec.ir.types import TensorType
from spyrec.passes.padding import OtherGraph, Padded, Probe, pad_safely, prepared
from spyrec.passes.padding_rules import RULES
from spyrec.sim.device import parse_device
from spyrec.sim.isa import Buffer, Program
from spyrec.sim.link import Part, link
from spyrec.sim.run import run

MAX_BUCKETS = 32
SMALLEST = (2, 4, 8, 16, 32)
"""Sizes from which a model may be the graph it is at the buckets, tried in turn; then 1."""

Sizes = Mapping[str, int]
Import = Callable[[Sizes], Module]
Build = Callable[[Module, Mapping[str, Any] | None], Compiled]


@dataclass(frozen=True)
class Family:
    """The buckets of a model, right under padding, in the order of their sizes. ``least``: the
    smallest true size of each dimension."""

    buckets: tuple[tuple[Sizes, Padded], ...]
    least: Sizes


def crossed(buckets: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Every combination of sizes, smaller ones first. SpyrecError: no or too many buckets, or a
    size that is none."""
    for dim, sizes in buckets.items():
        if not isinstance(sizes, Iterable):
            raise SpyrecError(f"buckets of {dim}: expected a list of sizes, got {sizes!r}")
        if not sizes or any(
            isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1 for n in sizes
        ):
            raise SpyrecError(f"buckets of {dim}: expected sizes of 1 or more, got {list(sizes)}")
    ordered = {dim: sorted({int(n) for n in sizes}) for dim, sizes in buckets.items()}
    found = [dict(zip(ordered, sizes, strict=True)) for sizes in product(*ordered.values())]
    if not ordered or len(found) > MAX_BUCKETS:
        raise SpyrecError(
            f"the buckets make {len(found) if ordered else 0} combinations, expected 1 to "
            f"{MAX_BUCKETS}; name fewer sizes"
        )
    return found


def family(load: Import, buckets: Mapping[str, Sequence[int]]) -> Family:
    """The model at each combination of sizes, proven to give what the true size would give.
    SpyrecError names what stands in the way."""
    sizes = crossed(buckets)
    top = sizes[-1]
    held = _Imports(load, {})
    held.at(top)  # what is wrong with the model itself is told first
    floor = {dim: min(s[dim] for s in sizes) for dim in top}
    least = _least(held, sizes, top, floor)
    made = [(s, _padded(held, s, sizes, least)) for s in sizes]
    for at, one in made:
        may_vary = all(at[d] > least[d] for d in at)
        if may_vary and _needs(one) != _needs(made[-1][1]):
            raise PassError(
                f"buckets: {_label(at)} needs other masks than {_label(top)}; leave that size out"
            )
    return Family(tuple(made), least)


def _needs(padded: Padded) -> Any:
    return padded.masks, [(m.kind, m.dim, m.add) for m in padded.made]


@dataclass
class _Imports:
    """The model as imported at the sizes seen so far; equal constants are one array."""

    load: Import
    known: dict[tuple[int, ...], Module]

    def at(self, sizes: Sizes) -> Module:
        key = tuple(sizes.values())
        if key not in self.known:
            first = next(iter(self.known.values()), None)
            module = prepared(self._loaded(sizes))
            self.known[key] = module if first is None else _sharing(module, first)
        return self.known[key]


    def _loaded(self, sizes: Sizes) -> Module:
        """The model as it is imported; what is wrong with a size is told of the buckets."""
        try:
            return self.load(sizes)
        except ImportError_ as error:
            told = [(f"--bind {dim}={n}:", f"--buckets {dim}={n}:") for dim, n in sizes.items()]
            raise ImportError_([_replaced(p, told) for p in error.problems]) from None


def _replaced(sentence: str, pairs: Sequence[tuple[str, str]]) -> str:
    for old, new in pairs:
        if sentence.startswith(old):
            return new + sentence.removeprefix(old)
    return sentence


def _sharing(module: Module, first: Module) -> Module:
    """The module with constants that equal those of ``first`` at the same place being the very
    arrays, so that a large model's weights are held once."""
    arrays = [op.attrs["value"] for op in first.body.ops if op.name == "constant"]
    left = iter(arrays)
    ops = []
    for op in module.body.ops:
        mine = op.attrs.get("value") if op.name == "constant" else None
        theirs = next(left, None) if op.name == "constant" else None
        if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray) and _same(mine, theirs):
            op = op.with_attrs(value=theirs)
        ops.append(op)
    return replace(module, body=replace(module.body, ops=tuple(ops)))


def _same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    equal_nan = a.dtype.kind == "f"
    return a.dtype == b.dtype and bool(np.array_equal(a, b, equal_nan=equal_nan))


def _least(held: _Imports, sizes: Sequence[Sizes], top: Sizes, floor: Sizes) -> dict[str, int]:
    """The smallest true sizes for which the model is the graph it is at the largest bucket."""
    tries = [n for n in SMALLEST if n <= max(floor.values())] or [1]
    for number, n in enumerate(tries):
        least = {dim: min(n, floor[dim]) for dim in floor}
        try:
            _padded(held, top, sizes, least)
            break
        except (ImportError_, OtherGraph):
            if number == len(tries) - 1:
                raise
    for dim in least:  # one by one, whether a single row will do
        lower = {**least, dim: 1}
        try:
            _padded(held, top, sizes, lower)
        except SpyrecError:
            continue
        least = lower
    return least


def _padded(held: _Imports, at: Sizes, sizes: Sequence[Sizes], least: Sizes) -> Padded:
    """The module of a bucket, checked against every probe that is no larger."""
    alone = ({**at, dim: low} for dim, low in least.items())  # tells the dimensions apart
    points = [*sizes, *_probes(sizes[-1], least), *alone]
    smaller = [p for p in points if p != at and all(p[d] <= at[d] for d in at)]
    probes: list[Probe] = []
    for point in smaller:
        if all(point != known for known, _ in probes):
            probes.append((point, held.at(point)))
    return pad_safely(held.at(at), at, probes, RULES)


def _probes(top: Sizes, least: Sizes) -> Iterator[dict[str, int]]:
    """Of each dimension the smallest size, the next, one in the middle and one below the largest,
    and all smallest together. A length that is a straight line through these is one everywhere,
    unless it bends in both directions; a quotient rounded down is none."""
    for dim, most in top.items():
        low = least[dim]
        for n in (low, low + 1, (low + most) // 2, most - 1):
            if low <= n < most:
                yield {**top, dim: n}
    yield dict(least)


def _label(sizes: Sizes) -> str:
    return ",".join(f"{dim}={n}" for dim, n in sizes.items())


def compile_buckets(
    load: Import, build: Build, buckets: Mapping[str, Sequence[int]],
    plan: Mapping[str, Any] | None = None,
) -> tuple[Program, Module, dict[str, Any], tuple[str, ...]]:
    """The program of a model that ``load`` imports at sizes and ``build`` compiles under a plan;
    the IR of the largest bucket, the plan of each (``{"buckets": {name: plan}}``, which may be
    given as well as one plan for all), and the sentences on what is odd in the model."""
    made = family(load, buckets)
    modules = [p.module.with_attrs(one_image=True) for _, p in made.buckets]  # of the weights
    if plan is not None:
        each = plan.get("buckets", {})
        pins = [each.get(_label(s)) if "buckets" in plan else plan for s, _ in made.buckets]
        done = [build(m, pin) for m, pin in zip(modules, pins, strict=True)]
    else:
        done = [build(m, None) for m in modules]
        done = [
            _as_stored(build, m, one, done[-1]) for m, one in zip(modules, done, strict=True)
        ]
    plans = {_label(s): c.plan for (s, _), c in zip(made.buckets, done, strict=True)}
    odd: Any = done[-1].module.attrs.get("warnings", ())
    return linked(made, done), done[-1].module, {"buckets": plans}, tuple(map(str, odd))


def _as_stored(build: Build, module: Module, mine: Compiled, top: Compiled) -> Compiled:
    """A bucket that reads weights and state in the layouts of the largest bucket where it would
    have had others, unless it is faster with copies of its own. A weight is stored as its readers
    want it, so it is the tensors beside it whose sticks are pinned to those of the largest."""
    theirs, sticks = _stored(top), _sticks(top)
    if not any(_stored_otherwise(one, theirs.get(n)) for n, one in _stored(mine).items()):
        return mine
    pins = {
        name: {"stick": sticks[name]}
        for name, stick in _sticks(mine).items() if sticks.get(name, stick) != stick
    }
    try:
        pinned = build(module, {"tensors": pins})
    except SpyrecError:  # this bucket cannot have them so
        return mine
    return mine if _cycles(mine) < _cycles(pinned) else pinned


Stored = tuple[TensorType, Any]
"""Type and layout of an input or constant, and the elements of a constant."""


def _stored(done: Compiled) -> dict[str, Stored]:
    body = done.module.body
    held = {
        op.result.name: (op.result.type, op.attrs["value"])
        for op in body.ops if op.name == "constant"
    }
    return held | {v.name: (v.type, None) for v in body.args}


def _stored_otherwise(mine: Stored, theirs: Stored | None) -> bool:
    """Whether two are the same tensor in different layouts."""
    if theirs is None or mine[0] == theirs[0] or mine[0].shape != theirs[0].shape:
        return False
    return mine[1] is None or _same(mine[1], theirs[1])


def _sticks(done: Compiled) -> dict[str, int]:
    return {n: t["stick"] for n, t in done.plan["tensors"].items() if "stick" in t}


def _cycles(done: Compiled) -> int:
    device = parse_device(done.program.device, "the program's device")
    return run(done.program, device, timing_only=True).total_cycles


def linked(made: Family, programs: Sequence[Compiled]) -> Program:
    """One program of the buckets, each compiled by itself."""
    parts = []
    for (sizes, padded), done in zip(made.buckets, programs, strict=True):
        told = {m.name: json.dumps([m.kind, m.dim, m.add, m.size, m.inner]) for m in padded.made}
        kept = [n for n, axes in padded.inputs.items() if not _open(axes)]
        buffers = tuple(_told(b, padded, told) for b in done.program.buffers)
        program = replace(done.program, buffers=buffers)
        meta = {"macs": json.dumps(padded.macs), "least": json.dumps(dict(made.least))}
        parts.append(Part(_label(sizes), sizes, program, kept, meta))
    return link(parts)


def _open(axes: Sequence[Sequence[Any]]) -> bool:
    return any(f.dim for axis in axes for f in axis)


def _told(buffer: Buffer, padded: Padded, made: Mapping[str, str]) -> Buffer:
    """An input or output that says how its axes follow the open dimensions, or what it is filled
    with."""
    name = buffer.meta.get("name", "")
    if buffer.kind == "input" and name in made:
        return replace(buffer, meta={**buffer.meta, "made": made[name]})
    side = {"input": padded.inputs, "output": padded.outputs}.get(buffer.kind, {})
    if name not in side or not _open(side[name]):
        return buffer
    return replace(buffer, meta={**buffer.meta, "extents": extents_text(side[name])})

