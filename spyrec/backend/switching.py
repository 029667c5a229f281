"""How often the vector unit takes up another micro-program, and which kernels had better run one
united program (backend/united.py).

A *run* is a micro-program with a kind of reduction in one kernel: what the unit has taken up. A
group of runs that share a program spares the switches between them, and each of them takes as long
as all that the program computes. Begun with the runs that are equal anyway, two groups become one
as long as the switches between them cost more cycles than that adds, those first that gain most. A
run that has more to do than all its switches cost stays as it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import copysign, isinf, prod

import numpy as np

from spyrec.sim.device import Sfp
from spyrec.sim.expand import taken_up
from spyrec.sim.extent import effective_counts, product, trip_numbers
from spyrec.sim.formats import format_of
from spyrec.sim.isa import Instr, Kernel, Loop, MicroProgram, Program, Stream, instructions

from .united import United, unite

Taken = tuple[int, int]
"""Number of a kernel's micro-program, kind of reduction."""
Run = tuple[int, Taken]
"""Number of a kernel, what its vector unit takes up."""
Content = tuple[MicroProgram, int]
"""What is taken up: there is a switch where these differ."""
Ends = tuple[Taken, Taken, Counter[tuple[Taken, Taken]]]
"""What a stream takes up first and last, and how often one comes after another."""
LARGEST = float(np.finfo(np.float32).max)
CHOICE = 2  # micro-ops that choose one of two programs: a comparison, a selection


@dataclass(frozen=True)
class Costs:
    """Cycles that a switch costs in each launch: its first, to what was taken up in the launch
    before (``entering``), and those inside it."""

    entering: Sequence[float]
    inside: Sequence[float]


def whole_costs(program: Program, sfp: Sfp) -> Costs:
    """Nothing else goes on while the unit takes up a program."""
    cycles = [float(sfp.switch_cycles)] * len(program.launches)
    return Costs(cycles, cycles)


def switch_counts(program: Program) -> tuple[tuple[bool, int], ...]:
    """Of each launch whether it begins with another program than the launch before ended with, and
    how often it switches after that."""
    ends = [turns(kernel.streams.get("sfp", ())) for kernel in program.kernels]
    found: list[tuple[bool, int]] = []
    last: Content | None = None
    for launch in program.launches:
        end = ends[launch.kernel]
        if end is None:
            found.append((False, 0))
            continue
        first, then, inside = (
            content(program, (launch.kernel, end[0])), content(program, (launch.kernel, end[1])),
            sum(
                n for (a, b), n in end[2].items()
                if content(program, (launch.kernel, a)) != content(program, (launch.kernel, b))
            ),
        )  # fmt: skip
        found.append((last is not None and first != last, inside))
        last = then
    return tuple(found)


def grouped(program: Program, sfp: Sfp, costs: Costs) -> dict[Run, tuple[United, int]]:
    """For the runs that had better share a program: it, and their kind of reduction."""
    points, barred = _work(program)
    between = _between(program, costs)
    spent: defaultdict[Run, float] = defaultdict(float)
    for (a, b), cycles in between.items():
        spent[a] += cycles
        spent[b] += cycles
    light = [
        run for run in sorted(points)
        if run not in barred and points[run] * CHOICE < spent[run] * sfp.groups_per_cycle
    ]  # fmt: skip
    groups = _Groups(program, sfp, {run: points[run] for run in light})
    groups.connect(between)
    while (pair := groups.best()) is not None:
        groups.join(*pair)
    return {
        run: (group.united, group.reduce)
        for group in groups.of.values() if group.contents > 1 for run in group.runs
    }  # fmt: skip


def content(program: Program, run: Run) -> Content:
    kernel, (number, reduce) = run
    return program.kernels[kernel].programs[number], reduce


def turns(stream: Stream) -> Ends | None:
    """None for a stream that takes up nothing."""
    first = last = None
    found: Counter[tuple[Taken, Taken]] = Counter()
    for item in stream:
        if isinstance(item, Loop):
            inner = turns(item.body)
            if inner is None:
                continue
            a, b, inside = inner
            for pair, n in inside.items():
                found[pair] += n * item.count
            if a != b and item.count > 1:
                found[b, a] += item.count - 1
        else:
            taken = taken_up(item)
            if taken is None:
                continue
            a = b = taken
        if last is not None and last != a:
            found[last, a] += 1
        first, last = a if first is None else first, b
    return None if first is None or last is None else (first, last, found)


def _work(program: Program) -> tuple[Counter[Run], set[Run]]:
    """Groups of lanes that the busiest core computes in all launches of each run; the runs that
    cannot share a program."""
    launched = Counter(launch.kernel for launch in program.launches)
    points: Counter[Run] = Counter()
    barred: set[Run] = set()
    for i, kernel in enumerate(program.kernels):
        for instr, trips in instructions(kernel.streams.get("sfp", ())):
            taken = taken_up(instr)
            if taken is not None:
                points[i, taken] += launched[i] * _points(instr, trips, kernel)
                if not _unitable(instr, kernel.programs[taken[0]]):
                    barred.add((i, taken))
    return points, barred


def _points(instr: Instr, trips: tuple[int, ...], kernel: Kernel) -> int:
    counts = effective_counts(instr, trip_numbers(trips), kernel.cores)
    each = np.broadcast_to(product(counts), (prod(trips), kernel.cores))
    return int(each.sum(axis=0).max())


def _unitable(instr: Instr, program: MicroProgram) -> bool:
    """Whether it computes with floating-point numbers alone, of which it has some, and with
    constants that float32 tells apart: 0.0 == -0.0."""
    whole = any(format_of(operand.dtype).value is np.int32 for operand in instr.operands)
    converts = {"i2f", "f2i"} & {step.op for step in program.steps}
    known = all(
        (c or copysign(1.0, c) > 0) and (isinf(c) or abs(c) <= LARGEST) for c in program.constants
    )
    return not whole and not converts and known and program.n_inputs > 0 and not program.n_scalars


def _between(program: Program, costs: Costs) -> dict[tuple[Run, Run], float]:
    """Cycles that switches between two runs cost, in either direction, all launches following one
    another; also of runs of the same content, which cost that unless both share a program."""
    ends = [turns(kernel.streams.get("sfp", ())) for kernel in program.kernels]
    found: defaultdict[tuple[Run, Run], float] = defaultdict(float)
    last: Run | None = None
    for i, launch in enumerate(program.launches):
        kernel, end = launch.kernel, ends[launch.kernel]
        if end is None:
            continue
        first = kernel, end[0]
        if last is not None and last != first:
            found[min(last, first), max(last, first)] += costs.entering[i]
        for (a, b), n in end[2].items():
            found[(kernel, min(a, b)), (kernel, max(a, b))] += n * costs.inside[i]
        last = kernel, end[1]
    return found


@dataclass
class _Group:
    """Runs that share a program. ``reduce``: their one kind of reduction, 0 for none; ``points``:
    groups of lanes computed in all; ``contents``: how many different ones they had; ``spared``:
    cycles of the switches to other runs of the same content, which cost something as soon as there
    is another content."""

    runs: list[Run]
    united: United
    reduce: int
    points: int = 0
    contents: int = 1
    spared: float = 0.0


class _Groups:
    """Groups by number, and the cycles that switches ``between`` them cost."""

    def __init__(self, program: Program, sfp: Sfp, points: dict[Run, int]) -> None:
        self.program = program
        self.sfp = sfp
        self.of: dict[int, _Group] = {}
        self.member: dict[Run, int] = {}
        self.between: defaultdict[tuple[int, int], float] = defaultdict(float)
        self._known: dict[tuple[int, int], tuple[float, _Group] | None] = {}
        first: dict[Content, int] = {}
        for run, n in points.items():
            micro, reduce = found = content(program, run)
            number = self.member[run] = first.setdefault(found, len(first))
            group = self.of.setdefault(number, _Group([], United(micro, {micro: ()}), reduce))
            group.runs.append(run)
            group.points += n

    def connect(self, between: Mapping[tuple[Run, Run], float]) -> None:
        for (a, b), cycles in between.items():
            inside = [self.member[x] for x in (a, b) if x in self.member]
            if len(inside) == 2 and inside[0] != inside[1]:
                self.between[min(inside), max(inside)] += cycles
            elif len(inside) == 1 and content(self.program, a) == content(self.program, b):
                self.of[inside[0]].spared += cycles

    def best(self) -> tuple[int, int] | None:
        """The two that gain most, and something at all, when they become one."""
        gains = [(-gain[0], pair) for pair in self.between if (gain := self._gain(pair))]
        least = min(gains, default=None)
        return least[1] if least is not None and least[0] < 0 else None

    def join(self, i: int, j: int) -> None:
        gain = self._gain((i, j))
        assert gain is not None
        self.of[i] = gain[1]
        del self.of[j]
        moved: defaultdict[tuple[int, int], float] = defaultdict(float)
        for pair, cycles in self.between.items():
            a, b = (i if x == j else x for x in pair)
            if a != b:
                moved[min(a, b), max(a, b)] += cycles
        self.between = moved
        self._known = {p: known for p, known in self._known.items() if not {i, j} & {*p}}

    def _gain(self, pair: tuple[int, int]) -> tuple[float, _Group] | None:
        """Cycles that the two take less as one group, and it; None if they cannot be one."""
        if pair not in self._known:
            self._known[pair] = self._joined(self.between[pair], *(self.of[n] for n in pair))
        return self._known[pair]

    def _joined(self, cycles: float, a: _Group, b: _Group) -> tuple[float, _Group] | None:
        kinds = {a.reduce, b.reduce} - {0}
        programs = tuple(dict.fromkeys((*a.united.scalars, *b.united.scalars)))
        united = (unite(programs) if len(programs) > 1 else a.united) if len(kinds) < 2 else None
        if united is None:
            return None
        group = _Group(
            [*a.runs, *b.runs], united, max(kinds, default=0), a.points + b.points,
            a.contents + b.contents,
        )  # fmt: skip
        added = sum(old.points * (self._cycles(group) - self._cycles(old)) for old in (a, b))
        return cycles - a.spared - b.spared - added / self.sfp.groups_per_cycle, group

    def _cycles(self, group: _Group) -> int:
        ops = (step.op for step in group.united.program.steps)
        return self.sfp.group_cycles(ops, group.reduce > 0)
