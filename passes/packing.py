"""The best addresses for a few buffers, by branch and bound, and better ones for many, by trying
other orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .intervals import Placement, Span, apart, first_fit, peak

ORDERS: tuple[Callable[[Span], tuple[int, ...]], ...] = (
    lambda s: (s.steps == 1, -s.size, s.first),  # what lives long, larger before smaller
    lambda s: (-s.size, s.first),
    lambda s: (-s.size * s.steps, s.first),
    lambda s: (-s.steps, -s.size, s.first),
    lambda s: (s.first, -s.size),
    lambda s: (-s.last, -s.size),
)
ROUNDS = 100  # orders that follow from the best of these
SEARCHED = 256  # spans that are searched through, at most
EFFORT = 20_000  # of the search for each group; see packed
MORE_EFFORT = 20 * EFFORT  # where it must succeed


def place(
    spans: Sequence[Span], start: int, align: int = 128, room: int | None = None
) -> Placement:
    """Addresses from ``start`` on, whole multiples of ``align`` apart from it, so that no two spans
    alive at one step overlap.

    Groups of spans that no span connects are placed by themselves: first fit in the best of a few
    orders, then in orders that place early what ended highest, then the best of all placements as
    far as a fixed number of steps leads. Each ends as soon as the top is what is alive at once,
    which no placement goes below. Where the top is above ``room`` the search goes on for longer.
    The result depends on names, sizes and lifetimes, not on the order of ``spans``.
    """
    whole = [Span(s.name, -(-s.size // align) * align, s.first, s.last) for s in spans]
    goal = start + peak(whole)
    where: dict[str, int] = {}
    top = start
    for group in apart(whole):
        found = _placed(group, start, goal, room)
        where |= found.where
        top = max(top, found.top)
    return Placement(where, top)


def _placed(group: Sequence[Span], start: int, goal: int, room: int | None) -> Placement:
    """A group no higher than ``goal``, if that is found."""
    by_name = sorted(group, key=lambda s: s.name)
    best, order = None, by_name
    for key in ORDERS:
        tried = sorted(by_name, key=key)
        found = first_fit(tried, start)
        if best is None or found.top < best.top:
            best, order = found, tried
        if best.top <= goal:
            return best
    assert best is not None
    best = promoted(order, start, best, goal)
    if len(group) <= SEARCHED:
        mine = max(goal, start + peak(group))
        best = packed(by_name, start, best, mine, EFFORT)
        if room is not None and goal <= room < best.top:
            best = packed(by_name, start, best, room, MORE_EFFORT)
    return best


def promoted(spans: Sequence[Span], start: int, best: Placement, goal: int) -> Placement:
    """``best``, the first fit of ``spans`` in this order, or what it becomes when what ends highest
    is placed before what lies below it. Ends at a placement no higher than ``goal``, or when the
    orders repeat.
    """
    order, now, seen = [*spans], best, set()
    for _ in range(ROUNDS):
        if best.top <= goal:
            break
        high = next(s for s in order if now.where[s.name] + s.size == now.top)
        met = (i for i, s in enumerate(order) if s is not high and s.meets(high))
        order.remove(high)
        order.insert(min(next(met), len(order)), high)
        key = tuple(s.name for s in order)
        if key in seen:
            break
        seen.add(key)
        now = first_fit(order, start)
        if now.top < best.top:
            best = now
    return best


def packed(
    spans: Sequence[Span], start: int, best: Placement, goal: int, effort: int
) -> Placement:
    """The lowest placement of ``spans``, unless ``best`` is one or ``effort`` runs out: a number of
    looks at one span at one partial placement. No placement below ``goal`` is looked for.

    Spans are placed in the order of their addresses. Some best placement has no span that could
    drop: each lies at ``start`` or on one that was placed before. So the only choice is which comes
    next, and its address is the height that those before it have reached while it lives.
    """
    largest = sorted(spans, key=lambda s: (-s.size * s.steps, s.first, s.name))
    search = _Search(largest, goal, effort, best)
    search.run(start)
    return search.best


@dataclass
class _Search:
    """A depth-first search. Time is cut at the ends of lifetimes; ``lives[i]`` is when span i is
    there, as a range of those intervals."""

    spans: list[Span]
    goal: int
    effort: int
    best: Placement
    seen: set[tuple[int, int, tuple[int, ...]]] = field(default_factory=set)
    where: dict[str, int] = field(default_factory=dict)

    def run(self, start: int) -> None:
        cuts = sorted({s.first for s in self.spans} | {s.last + 1 for s in self.spans})
        at = {cut: i for i, cut in enumerate(cuts)}
        self.lives = [range(at[s.first], at[s.last + 1]) for s in self.spans]
        left = [0] * len(cuts)
        for span, life in zip(self.spans, self.lives, strict=True):
            for t in life:
                left[t] += span.size
        self._next((1 << len(self.spans)) - 1, [start] * len(cuts), left, start)

    def _next(self, todo: int, heights: list[int], left: list[int], last: int) -> None:
        """Place the spans of the bit set ``todo``, at ``last`` or above, on ``heights``."""
        if not todo:
            top = max(self.where[s.name] + s.size for s in self.spans)
            if top < self.best.top:
                self.best = Placement(dict(self.where), top)
            return
        if max(max(h, last) + n for h, n in zip(heights, left, strict=True) if n) >= self.best.top:
            return
        state = todo, last, tuple(h if n else 0 for h, n in zip(heights, left, strict=True))
        if state in self.seen:
            return
        self.seen.add(state)
        found = []
        ceiling = None  # a span that fits below another one is placed before it
        for i, span in enumerate(self.spans):
            if todo >> i & 1:
                self.effort -= 1
                address = max(heights[t] for t in self.lives[i])
                end = address + span.size
                ceiling = end if ceiling is None else min(ceiling, end)
                found.append((address, i))
        assert ceiling is not None
        for address, i in sorted(found):
            if last <= address < ceiling:
                if self.effort <= 0 or self.best.top <= self.goal:
                    return
                span, life = self.spans[i], self.lives[i]
                higher, less = heights[:], left[:]
                for t in life:
                    higher[t], less[t] = address + span.size, less[t] - span.size
                self.where[span.name] = address
                self._next(todo & ~(1 << i), higher, less, address)
