"""Lifetimes of buffers: who lives at one time, how much at most, and first fit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple


@dataclass(frozen=True)
class Span:
    """A buffer of ``size`` bytes alive at every step from ``first`` to ``last`` (inclusive)."""

    name: str
    size: int
    first: int
    last: int

    @property
    def steps(self) -> int:
        """For how many steps it is alive."""
        return self.last - self.first + 1

    def meets(self, other: Span) -> bool:
        """Are both alive at some step?"""
        return self.first <= other.last and other.first <= self.last


class Placement(NamedTuple):
    """Addresses by name, and the end of the highest buffer."""

    where: dict[str, int]
    top: int


def apart(spans: Iterable[Span]) -> list[list[Span]]:
    """The spans in groups of which no two have a step in common, by time."""
    groups: list[list[Span]] = []
    end = 0
    for span in sorted(spans, key=lambda s: (s.first, s.name)):
        if groups and span.first <= end:
            groups[-1].append(span)
            end = max(end, span.last)
        else:
            groups.append([span])
            end = span.last
    return groups


def first_fit(spans: Sequence[Span], start: int) -> Placement:
    """Each at the lowest free address, in the order given."""
    done = _Taken(spans)
    out: dict[str, int] = {}
    top = start
    for span in spans:
        at = start
        for low, high in sorted(done.during(span)):
            if at + span.size <= low:
                break
            at = max(at, high)
        out[span.name] = at
        done.add(span, at)
        top = max(top, at + span.size)
    return Placement(out, top)


class _Taken:
    """Address ranges by when they are taken: a binary tree over the steps, whose leaf for a step is
    node ``leaves + step`` and whose node n lies above 2n and 2n + 1. A lifetime is the disjoint
    union of a few nodes' steps."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.start = min((s.first for s in spans), default=0)
        steps = max((s.last for s in spans), default=0) - self.start + 1
        self.leaves = 1 << (steps - 1).bit_length()
        self.at: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.below: dict[int, list[tuple[int, int]]] = defaultdict(list)  # at it or further down

    def add(self, span: Span, address: int) -> None:
        taken = address, address + span.size
        above: set[int] = set()
        for node in self._nodes(span):
            self.at[node].append(taken)
            above.update(_upwards(node))
        for node in above:
            self.below[node].append(taken)

    def during(self, span: Span) -> set[tuple[int, int]]:
        """What is taken at some step of the span's lifetime."""
        found: set[tuple[int, int]] = set()
        for node in self._nodes(span):
            found.update(self.below.get(node, ()))
            for above in _upwards(node >> 1):
                found.update(self.at.get(above, ()))
        return found

    def _nodes(self, span: Span) -> Iterator[int]:
        low = span.first - self.start + self.leaves
        end = span.last - self.start + self.leaves + 1
        while low < end:
            if low & 1:
                yield low
                low += 1
            if end & 1:
                end -= 1
                yield end
            low, end = low >> 1, end >> 1


def _upwards(node: int) -> Iterator[int]:
    """The node and those above it."""
    while node:
        yield node
        node >>= 1


def tops(spans: Iterable[Span], where: Mapping[str, int], steps: Iterable[int]) -> dict[int, int]:
    """For each step the end of the highest span alive at it, 0 when none is."""
    coming = sorted(spans, key=lambda s: -s.first)
    alive: list[tuple[int, int]] = []  # a heap of (-end, last)
    found = {}
    for step in sorted(steps):
        while coming and coming[-1].first <= step:
            span = coming.pop()
            heappush(alive, (-where[span.name] - span.size, span.last))
        while alive and alive[0][1] < step:
            heappop(alive)
        found[step] = -alive[0][0] if alive else 0
    return found


def peak(spans: Sequence[Span]) -> int:
    """Most bytes alive at one step: what no placement can go below."""
    steps: dict[int, int] = {}
    for s in spans:
        steps[s.first] = steps.get(s.first, 0) + s.size
        steps[s.last + 1] = steps.get(s.last + 1, 0) - s.size
    most = now = 0
    for step in sorted(steps):
        now += steps[step]
        most = max(most, now)
    return most
