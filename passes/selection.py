"""Choosing an option for each of many things that live for some steps, so that all steps together
cost least."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

WIDTH = 256  # ways of choosing that are followed side by side
EXCHANGES = 2_000  # looks at other options, where that was too few


@dataclass(frozen=True)
class Thing:
    """It lives from step ``first`` to ``last`` (inclusive) and has so many ``options``, of which it
    keeps one for all of its life."""

    first: int
    last: int
    options: int = 2


Picks = Mapping[int, int]
"""Thing, by its place in the sequence -> its option."""
StepCost = Callable[[int, Picks], float]
"""What a step costs by the options of the things alive at it."""


@dataclass(frozen=True)
class Selection:
    """``options`` of all things, and what they ``cost``; ``exact``: nothing costs less."""

    options: tuple[int, ...]
    cost: float
    exact: bool


def select(things: Sequence[Thing], cost: StepCost, width: int = WIDTH) -> Selection:
    """The options that cost least.

    A step's cost depends on what is alive only, so of all ways to choose that agree on what is
    still alive the cheapest will do: dynamic programming over the steps. Where more than ``width``
    ways remain, the dearest so far are given up, and in the end single options, and pairs of
    options of things that meet, are exchanged while that is cheaper.

    >>> room = lambda step, picks: 0.0 if sum(picks.values()) < 2 else 9.0
    >>> worth = {0: 3.0, 1: 2.0, 2: 2.0}
    >>> def cost(step, picks):
    ...     first = {0: 0, 1: 0, 2: 2}
    ...     lost = sum(worth[i] for i, option in picks.items() if first[i] == step and not option)
    ...     return lost + room(step, picks)
    >>> select([Thing(0, 3), Thing(0, 1), Thing(2, 3)], cost)
    Selection(options=(0, 1, 1), cost=3.0, exact=True)
    """
    ways: dict[tuple[tuple[int, int], ...], tuple[float, _Trail]] = {(): (0.0, None)}
    exact = True
    for step, starting in _steps(things):
        after: dict[tuple[tuple[int, int], ...], tuple[float, _Trail]] = {}
        choices = [*product(*(range(things[i].options) for i in starting))]
        for alive, (total, trail) in ways.items():
            for options in choices:
                new = tuple(zip(starting, options, strict=True))
                now = alive + new
                spent = total + cost(step, dict(now))
                left = tuple([(i, o) for i, o in now if things[i].last > step])
                if left not in after or spent < after[left][0]:
                    after[left] = spent, (trail, new) if new else trail
        if len(after) > width:
            exact = False
            after = dict(sorted(after.items(), key=lambda a: (a[1][0], a[0]))[:width])
        ways = after
    _, (_, trail) = min(ways.items(), key=lambda a: (a[1][0], a[0]))
    picked = dict(_along(trail))
    found = [picked[i] for i in range(len(things))]
    if not exact:
        _exchange(things, cost, found)
    return Selection(tuple(found), total_cost(things, cost, found), exact)


_Trail = tuple["_Trail", tuple[tuple[int, int], ...]] | None  # what was chosen before, and then


def _along(trail: _Trail) -> Iterator[tuple[int, int]]:
    while trail is not None:
        trail, new = trail
        yield from new


def _steps(things: Sequence[Thing]) -> Iterator[tuple[int, list[int]]]:
    """The steps at which something is alive, each with the things that begin there."""
    starting: dict[int, list[int]] = {}
    for i, thing in enumerate(things):
        starting.setdefault(thing.first, []).append(i)
    for step in sorted(_alive(things)):
        yield step, starting.get(step, [])


Alive = Mapping[int, Sequence[int]]
"""Step -> the things alive at it, in their order; only steps at which there are any."""


def _alive(things: Sequence[Thing]) -> Alive:
    found: dict[int, list[int]] = {}
    for i, thing in enumerate(things):
        for step in _life(thing):
            found.setdefault(step, []).append(i)
    return found


def total_cost(things: Sequence[Thing], cost: StepCost, options: Sequence[int]) -> float:
    """What all steps cost together."""
    alive = _alive(things)
    return _cost_of(alive, cost, options, sorted(alive))


def _cost_of(
    alive: Alive, cost: StepCost, options: Sequence[int], steps: Sequence[int]
) -> float:
    return sum(cost(s, {i: options[i] for i in alive[s]}) for s in steps)


def _exchange(things: Sequence[Thing], cost: StepCost, options: list[int]) -> None:
    """Change one option, or two of things that meet, while something is gained. Most of what is
    alive at a step stays as it was, so steps are asked for their costs again and again."""
    looks, alive = EXCHANGES, _alive(things)
    known: dict[tuple[int, tuple[int, ...]], float] = {}

    def spent_at(step: int) -> float:
        at = step, tuple([options[i] for i in alive[step]])
        found = known.get(at)
        if found is None:
            found = known[at] = cost(step, dict(zip(alive[step], at[1], strict=True)))
        return found

    changed = True
    while changed and looks > 0:
        changed = False
        for i, one in enumerate(things):
            meeting = {j for s in _life(one) for j in alive[s] if j > i}
            for who in ((i,), *((i, j) for j in sorted(meeting))):
                looks -= 1
                if looks <= 0:
                    return
                steps = sorted({s for k in who for s in _life(things[k])})
                best, kept = sum(map(spent_at, steps)), [options[k] for k in who]
                for tried in product(*(range(things[k].options) for k in who)):
                    _put(options, who, tried)
                    spent = sum(map(spent_at, steps))
                    if spent < best:
                        best, kept, changed = spent, [*tried], True
                _put(options, who, kept)


def _life(thing: Thing) -> range:
    return range(thing.first, thing.last + 1)


def _put(options: list[int], who: Sequence[int], values: Sequence[int]) -> None:
    for k, value in zip(who, values, strict=True):
        options[k] = value
