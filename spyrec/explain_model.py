"""``explain``: a model is compiled, simulated as it is and on machines that are better in one
thing, and what the plan says of each kernel is put beside its time."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from spyrec import api
from spyrec.driver import JOINT
from spyrec.emitted_plan import check_emitted, differs
from spyrec.explanation import (
    Alternative,
    Choice,
    Explanation,
    Gain,
    KernelExplained,
    TensorPlace,
    WhatIf,
)
from spyrec.ir.core import Module, Op, Value
from spyrec.ir.errors import SpyrecError
from spyrec.ir.near import listed
from spyrec.passes.homes import buffer_bytes, home
from spyrec.passes.kernel import rank1
from spyrec.passes.manager import Numerics, Pass
from spyrec.passes.signature import signature
from spyrec.progress import Progress, silent
from spyrec.report import KernelRow, kernel_rows, run_totals
from spyrec.sim import isa
from spyrec.sim.device import DeviceSpec
from spyrec.sim.run import Prepared, prepare
from spyrec.sim.stats import LaunchStats, RunResult
from spyrec.trials import Planner, alternatives, planner_of
from spyrec.what_if import CHANGES, Change

PLACED = ("lx", "early", "lx_bytes")
"""Attributes of a kernel that tell where it stands, not what it does."""

GLOB = frozenset("*?[")
TOP = 5  # kernels that are told of when nobody says which


def explain(
    model: Any,
    *,
    kernel: str | Sequence[str] = (),
    tries: bool = False,
    top: int | None = None,
    bind: Mapping[str, int] | None = None,
    const: Mapping[str, Any] | None = None,
    device: str | DeviceSpec = "spyre",
    numerics: Numerics = "dl16",
    passes: str | Sequence[Pass] | None = None,
    planner: str = JOINT,
    plan_budget: float | None = None,
    plan: Mapping[str, Any] | str | Path | None = None,
    example_inputs: Sequence[Any] | None = None,
    progress: Progress = silent,
) -> Explanation:
    """Compile a model, simulate its time, and tell of each kernel what was decided and what not.

    ``model`` is what ``compile`` takes, or a Program; one that was loaded tells of alternatives and
    tensors only with the ``plan`` that was emitted with it. ``kernel``: names, parts of names or
    patterns (``*``, ``?``) of the kernels to tell of; all when empty. ``tries``: pin each
    alternative of the ``top`` longest of these kernels, compile and simulate anew; without ``top``
    all that ``kernel`` names, else the five longest. The other arguments as those of ``compile``.

    Raises what ``compile`` does; SpyrecError when no kernel is called so, when the plan is not that
    of the program, or when alternatives of a Program are to be tried.
    """
    pins = api.read_plan(plan) if isinstance(plan, str | Path) else plan
    patterns = (kernel,) if isinstance(kernel, str) else tuple(kernel)
    source: Planner | None = None
    if isinstance(model, api.Program):
        if tries:
            raise SpyrecError("to try alternatives the model is needed; a program is planned")
        if pins is not None and not model.buckets:
            check_emitted(pins)
        program = model if pins is None else replace(model, plan=pins)
    else:
        target = api.target_of(device, numerics)
        module = api.import_model(model, bind or {}, const or {}, example_inputs)
        source = planner_of(module, target, passes, pins, planner, plan_budget, progress)
        done = source.compile(progress=progress)
        program = api.Program(done.program, done.module, done.plan)
        if isinstance(model, str | Path):
            program = api.named(program, Path(model).name)
    told = _Explainer(program, progress).explanation(patterns)
    if source is None or not tries:
        return told
    first = told.kernels[:shown(patterns, top)]
    wanted = [(k.name, a) for k in first for a in k.alternatives]
    names = {k.name: k.launches for k in first}
    found: dict[str, list[Alternative]] = {}
    for i, (name, other) in enumerate(wanted):
        progress("trying alternatives", i, len(wanted))
        tried = source.tried(other, names[name], told.total_cycles)
        found.setdefault(name, []).append(tried)
    kernels = tuple(
        replace(k, alternatives=tuple(found.get(k.name, k.alternatives))) for k in told.kernels
    )
    return replace(told, kernels=kernels)


def shown(patterns: Sequence[str], top: int | None) -> int | None:
    """How many kernels to tell of, None for all: TOP unless asked for some by name."""
    return top if top is not None else None if patterns else TOP


@dataclass(frozen=True)
class _Launched:
    """One launch: the kernel's name and op, the exchanges before it, and its row in the report."""

    name: str
    op: Op | None
    exchanges: tuple[Op, ...]
    row: KernelRow
    stats: LaunchStats


class _Explainer:
    """Of one program."""

    def __init__(self, program: api.Program, progress: Progress) -> None:
        if program.buckets:
            raise SpyrecError(
                "the program has buckets, each planned for itself; compile the model for one size "
                "(--bind) and explain that"
            )
        self.code, self.plan, self.device = program.code, program.plan, program.device
        self.module = program.module
        ops = () if program.module is None else program.module.body.ops
        self.copies = {op.result: op for op in ops if op.name == "relayout"}
        steps = len(CHANGES) + 1
        progress("simulating", 0, steps)
        ready, apart = prepare(self.code, self.device), one_by_one(self.code)
        self.ran, self.alone = _runs(ready, apart)
        self.changed: list[tuple[Change, RunResult, RunResult]] = []
        for i, change in enumerate(CHANGES):
            progress(f"what if {change.name}", i + 1, steps)
            machine = replace(ready, device=change.device(self.device), plans={})
            self.changed.append((change, *_runs(machine, apart)))

    def explanation(self, patterns: Sequence[str]) -> Explanation:
        launched = self._launched()
        groups: dict[Hashable, list[_Launched]] = {}
        for one in launched:
            groups.setdefault(self._kind(one), []).append(one)
        kernels = sorted((self._kernel(g) for g in groups.values()), key=lambda k: -k.cycles)
        total = self.ran.total_cycles
        totals = run_totals(self.ran, [one.row for one in launched], self.device)
        bounds: dict[str, int] = {
            "start-up": totals.launch_cycles, "meeting": totals.meeting_cycles
        }
        for one in launched:
            bounds[one.row.bound] = bounds.get(one.row.bound, 0) + one.stats.cycles
        shares = {b: _share(n, total) for b, n in sorted(bounds.items(), key=lambda i: -i[1])}
        what_ifs = sorted(
            (
                WhatIf(*_gain(c.name, total, ran.total_cycles), c.values(self.device))
                for c, ran, _ in self.changed
            ),
            key=lambda w: -w.gain_cycles,
        )
        return Explanation(
            self.code.meta.get("model", ""), self.device.name, self.code.meta.get("numerics", ""),
            self.device.clock_mhz, total, totals.us, totals.launch_cycles,
            totals.meeting_cycles, totals.launches, len(launched), shares, tuple(what_ifs),
            tuple(chosen(kernels, patterns)),
        )

    def _launched(self) -> list[_Launched]:
        """The launches in order: a launch for each kernel op, with the exchanges before it."""
        rows = [kernel_rows(self.code, self.device, [s])[0] for s in self.ran.launches]
        if self.module is not None:
            ops: list[tuple[Op | None, tuple[Op, ...]]] = [*_kernels(self.module)]
        else:
            ops = [(None, ())] * len(rows)
        names = [*self.plan.get("kernels", ())] or _names(rows)
        if odd := self._misfit(names, rows):
            raise SpyrecError(f"the plan is not that of the program: {odd}")
        return [
            _Launched(name, op, exchanges, row, stats)
            for name, (op, exchanges), row, stats in zip(
                names, ops, rows, self.ran.launches, strict=True
            )
        ]

    def _misfit(self, names: Sequence[str], rows: Sequence[KernelRow]) -> str:
        """How the plan, if there is one, differs from the program; "" when it does not."""
        kernels = self.plan.get("kernels")
        if not kernels:
            return ""
        if len(names) != len(rows):
            return f"it has {len(names)} kernels, the program launches {len(rows)}"
        odd = (differs(n, kernels[n], row) for n, row in zip(names, rows, strict=True))
        return next(filter(None, odd), "")

    def _kind(self, one: _Launched) -> Hashable:
        """Equal for launches of kernels that differ in names and addresses only."""
        kernel = self.code.launches[one.stats.index].kernel
        if one.op is None:
            return kernel
        exchanges = tuple(signature(x, without=PLACED) for x in one.exchanges)
        return signature(one.op, without=PLACED), exchanges

    def _kernel(self, group: Sequence[_Launched]) -> KernelExplained:
        first, names = group[0], tuple(one.name for one in group)
        cycles = sum(one.stats.cycles for one in group)
        total = self.ran.total_cycles
        floors: dict[str, int] = {}
        bounds: dict[str, int] = {}
        for one in group:
            bounds[one.row.bound] = bounds.get(one.row.bound, 0) + one.stats.cycles
            for name, n in self._floors(one).items():
                floors[name] = floors.get(name, 0) + n
        bound = max(bounds, key=lambda b: bounds[b])
        floor = floors.get(bound, max(floors.values()))
        index = self.code.launches[first.stats.index].kernel
        alone = _elapsed(self.alone, index)
        what_ifs = (
            Gain(*_gain(c.name, alone, _elapsed(ran, index))) for c, _, ran in self.changed
        )
        known = first.name in self.plan.get("kernels", {})
        return KernelExplained(
            first.name, names, len(group), first.row.ops,
            tuple(dict.fromkeys(node for one in group for node in one.row.source)), first.row.dims,
            cycles, self.device.us(cycles), _share(cycles, total), alone, bound, floors, floor,
            cycles / floor if floor else None, self._choice(first), tuple(self._tensors(first)),
            tuple(alternatives(self.plan, names)) if known else (),
            tuple(sorted(what_ifs, key=lambda g: -g.gain_cycles)),
        )

    def _floors(self, one: _Launched) -> dict[str, int]:
        """As KernelExplained has them, of one launch."""
        row, device = one.row, self.device
        moved = row.hbm_read_bytes + row.hbm_write_bytes
        return {
            "compute": -(-row.macs // (device.pt.macs_per_cycle * device.cores.count)),
            "memory": -(-moved // device.hbm.bytes_per_cycle),
            "vector": one.stats.busiest_cycles["sfp"],
            "ring": one.stats.busiest_cycles["rs"],
        }

    def _choice(self, one: _Launched) -> Choice:
        row, plan = one.row, self.plan.get("kernels", {}).get(one.name)
        if plan is None:
            dims = [part.split("=")[0] for part in row.dims.split(",") if part]
            parts, tile = (
                dict(zip(dims, map(int, text.split("x")), strict=True)) if text else {}
                for text in (row.parts, row.tile)
            )
            return Choice(
                parts, (), row.cores, tile, (), None, None, None, None, None, None, ()
            )
        cut, tiled = plan["why"]["parts"], plan["why"]["tile"]
        pinned = (f"{what} {d}" for what, why in (("parts", cut), ("tile", tiled))
                  for d in why.get("pinned", ()))  # fmt: skip
        return Choice(
            plan["parts"], tuple(plan["core_order"]), row.cores, plan["tile"],
            tuple(plan["loops"]), plan["buffers"], plan["overlap"], cut.get("cost_cycles"),
            tiled.get("cost_cycles"), tiled.get("bytes"), tiled.get("budget_bytes"), tuple(pinned),
        )

    def _tensors(self, one: _Launched) -> Iterator[TensorPlace]:
        """Operands without scalars, then results."""
        if one.op is None:
            return
        for v in dict.fromkeys(one.op.operands):
            if v.type.size > 1:
                yield self._tensor(v, "operand", self.copies.get(v) in one.exchanges)
        for v in one.op.results:
            yield self._tensor(v, "result", False)

    def _tensor(self, v: Value, role: str, arrives: bool) -> TensorPlace:
        """``arrives``: the kernel itself makes this copy."""
        layout, exchange = v.type.layout, self.copies.get(v)
        assert layout is not None and v.type.space is not None
        plan = self.plan["tensors"].get((v if exchange is None else exchange.operands[0]).name)
        why = {} if plan is None else plan["why"]
        core_bytes = int(why.get("core_bytes", 0))
        if exchange is not None:
            boxes = home(exchange, 0)
            assert boxes is not None
            core_bytes = buffer_bytes(v.type, boxes)
        reason = "constant" if plan is None else str(why.get("card_memory", "fits"))
        name = v.name if exchange is None else exchange.operands[0].name
        return TensorPlace(
            name, role, rank1(v.type), v.type.dtype.name, layout.stick_dim, v.type.space,
            layout.sticks * isa.STICK, core_bytes, reason, arrives,
        )


def _runs(whole: Prepared, apart: isa.Program) -> tuple[RunResult, RunResult]:
    """A run of the program, and one of its kernels ``apart``, which are unrolled once for both."""
    return whole.run(None), replace(whole, program=apart).run(None)


def one_by_one(code: isa.Program) -> isa.Program:
    """Each kernel of the program launched once, in order, none before the one before has ended."""
    first: dict[int, isa.Launch] = {}
    for launch in code.launches:
        first.setdefault(launch.kernel, launch)
    launches = tuple(
        replace(first[kernel], after=(i - 1,) if i else (), early=False, joint="")
        for i, kernel in enumerate(sorted(first))
    )
    return replace(code, launches=launches, holdings=())


def _elapsed(ran: RunResult, index: int) -> int:
    """Cycles from the end of the launch before to that of launch ``index``."""
    before = ran.launches[index - 1].end_cycle if index else 0
    return ran.launches[index].end_cycle - before


def _kernels(module: Module) -> Iterator[tuple[Op, tuple[Op, ...]]]:
    """Each kernel with the exchanges that run in its launch."""
    waiting: list[Op] = []
    for op in module.body.ops:
        if op.name == "relayout":
            waiting.append(op)
        elif op.name == "kernel":
            yield op, tuple(waiting)
            waiting = []


def _names(rows: Sequence[KernelRow]) -> list[str]:
    """One name for each launch; a kernel's later launches are numbered."""
    seen: dict[str, int] = {}
    names = []
    for row in rows:
        n = seen[row.name] = seen.get(row.name, 0) + 1
        names.append(row.name if n == 1 else f"{row.name} #{n}")
    return names


def chosen(
    kernels: Sequence[KernelExplained], patterns: Collection[str]
) -> Iterator[KernelExplained]:
    """Those that a pattern is true of, all without patterns. SpyrecError for one that is true of
    none."""
    for pattern in patterns:
        if not any(_is_called(k, pattern) for k in kernels):
            raise SpyrecError(
                f"no kernel is called {pattern!r}; {listed(pattern, [k.name for k in kernels])}"
            )
    for k in kernels:
        if not patterns or any(_is_called(k, p) for p in patterns):
            yield k


def _is_called(kernel: KernelExplained, pattern: str) -> bool:
    if GLOB & set(pattern):
        return any(fnmatchcase(name, pattern) for name in kernel.launches)
    return any(pattern in name for name in kernel.launches)


def _gain(name: str, before: int, after: int) -> tuple[str, int, int, float]:
    return name, after, before - after, _share(before - after, before)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
