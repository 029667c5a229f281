"""Two runs side by side: which kernels became faster or slower, and what was decided otherwise.

Kernels are paired by what they carry out, not by name: names are numbered, and a fusion renumbers
all that follow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from math import inf

import networkx as nx

from spyrec.plain_json import AsJson
from spyrec.report import KernelRow, Report
from spyrec.table import size

Rows = tuple[KernelRow, ...]


@dataclass(frozen=True)
class Pair(AsJson):
    """Kernels of one run and those of the other that carry out the same model nodes, mostly one and
    one. ``before`` and ``after``: cycles of all their launches; ``names``: of both sides, "-" for
    none; ``changed``: what was decided otherwise."""

    names: tuple[str, str]
    before: int
    after: int
    changed: tuple[str, ...]

    @property
    def more(self) -> int:
        return self.after - self.before

    @property
    def ratio(self) -> float:
        """``after`` over ``before``; infinity for what was not there."""
        return self.after / self.before if self.before else inf


@dataclass(frozen=True)
class Comparison(AsJson):
    """``pairs``: in the order of the second run; ``warnings``: why the two may not be comparable.
    Other numbers are (first run, second run). ``runs``: of kernels; ``idle_cycles``: in which none
    ran because a launch was starting up or cores were meeting."""

    models: tuple[str, str]
    cycles: tuple[int, int]
    runs: tuple[int, int]
    idle_cycles: tuple[int, int]
    hbm_bytes: tuple[int, int]
    ring_bytes: tuple[int, int]
    lx_peak_bytes: tuple[int, int]
    pairs: tuple[Pair, ...]
    warnings: tuple[str, ...]

    def slower(self, threshold: float, least_cycles: int = 0) -> tuple[Pair, ...]:
        """Pairs that take over ``threshold`` (0.05 is 5 %) more than before, and at least so many
        cycles."""
        return tuple(
            p for p in self.pairs
            if p.more > threshold * p.before and p.more >= max(least_cycles, 1)
        )

    def total_slower(self, threshold: float, least_cycles: int = 0) -> bool:
        """The same of the whole run."""
        before, after = self.cycles
        return after - before > threshold * before and after - before >= max(least_cycles, 1)


def compare(a: Report, b: Report) -> Comparison:
    """What changed from run ``a`` to run ``b``."""
    both = (a, b)

    def sums(number: Callable[[KernelRow], int]) -> tuple[int, int]:
        first, second = (sum(number(k) * k.count for k in r.kernels) for r in both)
        return first, second

    first, second = (max((k.lx_peak_bytes for k in r.kernels), default=0) for r in both)
    return Comparison(
        models=(a.model, b.model),
        cycles=(a.total_cycles, b.total_cycles),
        runs=sums(lambda _: 1),
        idle_cycles=(a.launch_cycles + a.meeting_cycles, b.launch_cycles + b.meeting_cycles),
        hbm_bytes=sums(lambda k: k.hbm_read_bytes + k.hbm_write_bytes),
        ring_bytes=sums(lambda k: k.ring_bytes),
        lx_peak_bytes=(first, second),
        pairs=tuple(_pair(x, y) for x, y in paired(a.kernels, b.kernels)),
        warnings=tuple(_doubts(a, b)),
    )


def _doubts(a: Report, b: Report) -> Iterator[str]:
    for what in ("model", "device", "numerics", "clock_mhz", "spyrec"):
        x, y = getattr(a, what), getattr(b, what)
        if x != y:
            yield f"{what.removesuffix('_mhz')} differs: {x} and {y}"
    if a.detail is not None and b.detail is not None and a.device == b.device:
        machines = a.detail.machine, b.detail.machine
        for field in fields(machines[0]):
            x, y = (getattr(machine, field.name) for machine in machines)
            if x != y:
                yield f"two machines are called {a.device}, {field.name}: {x:,} and {y:,}"
    if a.bucket != b.bucket:
        yield "the runs took different buckets"


def paired(a: Rows, b: Rows) -> list[tuple[Rows, Rows]]:
    """Kernels with equal ops and model nodes, one by one in their order; the rest in groups that
    share model nodes, and what shares none alone. In the order of ``b``, what is only in ``a`` in
    the place of its start."""
    same: dict[tuple[object, object], list[KernelRow]] = defaultdict(list)
    for k in a:
        same[k.ops, k.source].append(k)
    found: list[tuple[Rows, Rows]] = []
    rest_b: list[KernelRow] = []
    for k in b:
        others = same[k.ops, k.source]
        if others:
            found.append(((others.pop(0),), (k,)))
        else:
            rest_b.append(k)
    rest_a = [k for others in same.values() for k in others]
    found += _groups(rest_a, rest_b)
    return sorted(found, key=lambda p: (p[1] or p[0])[0].start_cycle)


def _groups(a: Sequence[KernelRow], b: Sequence[KernelRow]) -> Iterator[tuple[Rows, Rows]]:
    graph: nx.Graph = nx.Graph()
    for side, kernels in enumerate((a, b)):
        for i, k in enumerate(kernels):
            graph.add_node((side, i))
            graph.add_edges_from(((side, i), ("node", name)) for name in k.source)
    for part in nx.connected_components(graph):
        mine = [
            tuple(k for i, k in enumerate(kernels) if (side, i) in part)
            for side, kernels in enumerate((a, b))
        ]
        yield mine[0], mine[1]


def _pair(a: Rows, b: Rows) -> Pair:
    names = ["+".join(k.name for k in side) or "-" for side in (a, b)]
    cycles = [sum(k.cycles * k.count for k in side) for side in (a, b)]
    return Pair((names[0], names[1]), cycles[0], cycles[1], tuple(_changes(a, b)))


def _changes(a: Rows, b: Rows) -> Iterator[str]:
    """How kernels were decided otherwise. Where the report does not tell (orders, loops, memories),
    what that comes to: bytes on their way, and what is worked longest at."""
    if not a:
        yield "new"
        return
    if not b:
        yield "gone"
        return
    told = [*_decisions(a, b)]
    yield from told or _amounts(a, b)


def _decisions(a: Rows, b: Rows) -> Iterator[str]:
    if len(a) != 1 or len(b) != 1:
        if len(a) != len(b):
            yield f"{len(a)} kernels, now {len(b)}"
        return
    (x,), (y,) = a, b
    for what, old, new in (
        ("launches", f"{x.count:,}", f"{y.count:,}"),
        ("cores", str(x.cores), str(y.cores)),
        ("cut", _named(x, x.parts), _named(y, y.parts)),
        ("tile", _named(x, x.tile), _named(y, y.tile)),
        ("bound", x.bound, y.bound),
    ):
        if old != new:
            yield f"{what} {old or '-'} -> {new or '-'}"


def _amounts(a: Rows, b: Rows) -> Iterator[str]:
    numbers: Sequence[tuple[str, Callable[[KernelRow], int]]] = (
        ("read", lambda k: k.hbm_read_bytes), ("written", lambda k: k.hbm_write_bytes),
        ("over the ring", lambda k: k.ring_bytes),
    )  # fmt: skip
    for what, number in numbers:
        old, new = (sum(number(k) * k.count for k in side) for side in (a, b))
        if old != new:
            yield f"{what} {size(old)} -> {size(new)}"


def _named(k: KernelRow, numbers: str) -> str:
    """``8x4`` -> ``m=8 n=4``, ones left out."""
    names = [d.partition("=")[0] for d in k.dims.split(",")]
    values = numbers.split("x")
    if len(names) != len(values):
        return numbers
    return " ".join(f"{n}={v}" for n, v in zip(names, values, strict=True) if v != "1")
