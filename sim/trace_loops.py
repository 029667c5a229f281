"""Which trips of which loops a unit's instructions belong to, for slices around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from .expand import UnitPlan
from .isa import Loop, Stream

Trips = tuple[int, ...]


@dataclass(frozen=True)
class Nest:
    """A unit's loops. ``paths``: of each site, the numbers of the loops around it, outermost first;
    loops are numbered as they begin in the stream."""

    plan: UnitPlan
    stream: Stream

    @cached_property
    def paths(self) -> tuple[Trips, ...]:
        return tuple(_paths(self.stream, (), iter(range(1 << 62))))

    def spans(self, steps: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, str]]:
        """Runs of ``steps`` (site, execution number; in the order in which they ran) that are one
        trip of one loop: number of the first step, of the last, and what to call it. Those around
        others come before them. Trips of one step are left out, as are loops of a single trip, and
        inner trips that hold the very steps of one around them."""
        trips = [
            tuple(zip(self.paths[site], self.plan.sites[site].trip(number), strict=True))
            for site, number in steps
        ]
        yield from self._spans(trips, steps, 0, len(steps), 0, False)

    def _spans(
        self, trips: Sequence[tuple[tuple[int, int], ...]], steps: Sequence[tuple[int, int]],
        low: int, end: int, depth: int, drawn: bool,
    ) -> Iterator[tuple[int, int, str]]:
        first = low
        while first < end:
            inside = trips[first][depth : depth + 1]
            after = first + 1
            while after < end and trips[after][depth : depth + 1] == inside:
                after += 1
            if inside and after - first > 1:
                ((loop, trip),) = inside
                count = self.plan.sites[steps[first][0]].loops[depth]
                same = (first, after) == (low, end)
                draw = count > 1 and not (drawn and same)
                if draw:
                    yield first, after - 1, f"loop {loop} trip {trip} of {count}"
                around = draw or (drawn and same)
                yield from self._spans(trips, steps, first, after, depth + 1, around)
            first = after


def _paths(stream: Stream, around: Trips, number: Iterator[int]) -> Iterator[Trips]:
    for item in stream:
        if isinstance(item, Loop):
            yield from _paths(item.body, (*around, next(number)), number)
        else:
            yield around
