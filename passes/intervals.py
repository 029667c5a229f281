"""Placing buffers with lifetimes into one address range: first fit in the best of a few orders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


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


ORDERS: tuple[Callable[[Span], tuple[int, ...]], ...] = (
    lambda s: (s.steps == 1, -s.size, s.first),  # what lives long, larger before smaller
    lambda s: (-s.size, s.first),
    lambda s: (-s.size * s.steps, s.first),
    lambda s: (-s.steps, -s.size, s.first),
    lambda s: (s.first, -s.size),
    lambda s: (-s.last, -s.size),
)


def place(spans: Sequence[Span], start: int, align: int = 128) -> tuple[dict[str, int], int]:
    """Addresses so that no two spans alive at one step overlap, and the highest address used.

    Each is placed at the lowest free address, in the order that needs least. It takes as long as
    there are pairs that are alive at one step.
    """
    whole = [Span(s.name, -(-s.size // align) * align, s.first, s.last) for s in spans]
    floor = start + peak(whole)
    best: tuple[dict[str, int], int] | None = None
    by_name = sorted(whole, key=lambda s: s.name)
    for order in ORDERS:
        found = first_fit(sorted(by_name, key=order), start)
        if best is None or found[1] < best[1]:
            best = found
        if best[1] == floor:
            break
    assert best is not None
    return best


def first_fit(spans: Sequence[Span], start: int) -> tuple[dict[str, int], int]:
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
    return out, top


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
