"""A search for better sends of an exchange and a better order of them at once.

What is gathered before (``exchange_beside``) is judged by how busy senders, vector units and
segments are, not by when all is done: a segment may be idle because a sender sets up one send after
the other, or busy to no purpose. Here a send that keeps the last one waiting is joined with another
of its core, divided, landed elsewhere or given to another owner, and all is timed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from spyrec.ir.exchange import intersect

from .exchange_beside import WIDE, Around, Group, hull, sizes
from .exchange_landing import ExchangePlan, Landing, halves, straight
from .exchange_owners import owners_of
from .homes import Boxes
from .kernel import Box
from .ring_order import WARM, Order, Timed, Timing, neighbour
from .ring_ways import Hops, bits, choices, hops_of
from .sends import Send, divided

Draw = Callable[[], float]


def groups_of(plan: ExchangePlan, around: Around) -> list[Group]:
    """The groups of which a plan is made, in the order of its sends."""
    parts: dict[int, list[tuple[int, Box]]] = {}
    for pick in plan.picks:
        parts.setdefault(pick.of, []).append((pick.copy.core, pick.copy.box))
    return [
        Group(s.core, s.box, tuple(parts[i]), True) if s.beside is not None
        else around.group(s.core, s.box, [(c, s.box) for c in bits(s.cores)])
        for i, s in enumerate(plan.sends)
    ]  # fmt: skip


def reshaped(
    plan: ExchangePlan, own: Boxes, around: Around, beside: bool, effort: int, patience: float
) -> ExchangePlan:
    """The best plan that is found from this one on with so much ``effort`` (see Timing), of which
    a share of ``patience`` without a gain is enough. ``own``: each core's box before; ``beside``:
    sends may land beside the receivers' buffers.

    Simulated annealing, as in ``improved``. The numbers drawn are the same in every run.
    """
    if not plan.sends:
        return plan
    search = _Search(own, around, plan.copies, beside)
    draw = Random(len(plan.sends)).random
    now = search.begun(plan)
    best, spent, gained = now, 0, 0
    while spent < effort and spent - gained < patience * effort:
        limit = now.ticks * (1 + WARM * (1 - spent / effort) * draw() ** 2)
        if draw() < SHARE:
            made, cost = search.changed(now, draw, limit)
            cost += MAKING + len(now.groups) // 8
        else:
            made, cost = search.turned(now, draw, limit)
        spent += 1 + cost
        if made is None:
            continue
        now = made
        if now.ticks < best.ticks:
            best, gained = now, spent
    found = search.plan(best)
    return found if found is not None and found.cycles < plan.cycles else plan


MAKING = 3  # fragments may be timed while one change is made
SHARE = 0.3  # of the changes are of what is sent, the others of the order and the ways
SHORTER = 0.7  # of what is sent anew goes by the shorter way at first


@dataclass(frozen=True)
class _State:
    """Groups in an order, their choices of ways, and how long they take."""

    groups: Sequence[Group]
    timing: Timing
    order: Order
    timed: Timed
    ways: Sequence[Sequence[Hops]]

    @property
    def ticks(self) -> int:
        return self.timed.ticks


Change = tuple[list[int], list[Group]]
"""Numbers of the groups that go, and what comes for them."""


@dataclass(frozen=True)
class _Search:
    own: Boxes
    around: Around
    copies: tuple[Send, ...]
    beside: bool

    @property
    def stops(self) -> int:
        return self.around.device.cores.count + 1

    def begun(self, plan: ExchangePlan) -> _State:
        """What a plan is made of."""
        sent = [self.around.ends.fragment(s) for s in plan.sends]
        hops = [(0, 0)] * len(sent)
        for x in plan.schedule.sendings:
            hops[x.index] = hops_of(replace(sent[x.index], far=x.far), self.stops)
        order = Order([x.index for x in plan.schedule.sendings], hops)
        landing = Landing(groups_of(plan, self.around), self.copies, self.around)
        timing = Timing(landing.fragments, self.around.device, landing.stays)
        timed = timing.run(order)
        assert timed is not None
        ways = [choices(f, self.stops) for f in timing.fragments]
        return _State(landing.groups, timing, order, timed, ways)

    def plan(self, state: _State) -> ExchangePlan | None:
        """Of such groups in such an order; None when there is no room beside the buffers."""
        landing = Landing(state.groups, self.copies, self.around)
        return landing.timed(partial(state.timing.schedule, state.order))

    def changed(self, now: _State, draw: Draw, limit: float) -> tuple[_State | None, int]:
        """With other groups for one of those that keep the last waiting, and how many were timed;
        None where what was drawn changes nothing, or not all is done within a limit, in ticks."""
        some = now.timed.chain
        i = some[int(draw() * len(some))]
        kind = draw()
        makes = next(makes for share, makes in CHANGES if kind < share)
        change = makes(self, now.groups, i, draw)
        if change is None or (not self.beside and any(g.beside for g in change[1])):
            return None, 0
        gone, made = change
        left = [i for i in range(len(now.groups)) if i not in gone]
        others = Landing(made, (), self.around).fragments
        timing = now.timing.with_others(left, others)
        ways = [*(now.ways[i] for i in left), *(choices(f, self.stops) for f in others)]
        order = self._order(now, gone, left, timing, ways, draw)
        timed = timing.run(order, limit)
        if timed is None:
            return None, timing.spent
        groups = [*(now.groups[i] for i in left), *made]
        return _State(groups, timing, order, timed, ways), timing.spent

    def turned(self, now: _State, draw: Draw, limit: float) -> tuple[_State | None, int]:
        """In another order or by another way, and how many were timed; None likewise."""
        order = neighbour(now.order, now.timed.chain, now.ways, draw)
        if order is None:
            return None, 0
        before = now.timing.spent
        timed = now.timing.run(order, limit)
        found = replace(now, order=order, timed=timed) if timed else None
        return found, now.timing.spent - before

    def joined(self, groups: Sequence[Group], i: int, draw: Draw) -> Change | None:
        """With another of its core as one."""
        g = groups[i]
        others = [j for j, o in enumerate(groups) if o.core == g.core and j != i]
        if not others:
            return None
        j = others[int(draw() * len(others))]
        box = hull(g.box, groups[j].box)
        one, other, both = (
            self.around.ends.bytes_and_runs(sizes(b))[0] for b in (g.box, groups[j].box, box)
        )
        if both > WIDE * (one + other):
            return None
        return [i, j], [self.around.group(g.core, box, (*g.parts, *groups[j].parts))]

    def halved(self, groups: Sequence[Group], i: int, draw: Draw) -> Change | None:
        """In two, one after the other."""
        parts = [*halves(groups[i], self.around)]
        return ([i], parts) if len(parts) > 1 else None

    def parted(self, groups: Sequence[Group], i: int, draw: Draw) -> Change | None:
        """To those of its receivers that are nearest upwards, and to the others."""
        g = groups[i]
        away = sorted(bits(g.cores), key=lambda c: (c - g.core) % self.stops)
        if len(away) < 2:
            return None
        near = away[: 1 + int(draw() * (len(away) - 1))]
        sides = ([p for p in g.parts if (p[0] in near) == side] for side in (True, False))
        return [i], [self.around.group(g.core, g.box, parts, g.beside) for parts in sides]

    def moved(self, groups: Sequence[Group], i: int, draw: Draw) -> Change | None:
        """Beside its receivers' buffers, or part by part to their places."""
        g = groups[i]
        if g.beside:
            return [i], [*straight(g, self.around)]
        return [i], [replace(g, beside=True)]

    def given(self, groups: Sequence[Group], i: int, draw: Draw) -> Change | None:
        """From another owner, or in parts from several."""
        g = groups[i]
        owners = [c for c in owners_of(g.box, self.own) if not g.cores >> c & 1]
        if len(owners) < 2:
            return None
        made = []
        n = min(len(owners), 1 + int(draw() * GIVEN))
        owners.sort(key=lambda c: (c == g.core, draw()))
        for part in divided(self.around.send(g), self.around.ends, n):
            parts = [(c, both) for c, box in g.parts if (both := intersect(part.box, box))]
            if parts:
                made.append(self.around.group(owners.pop(0), part.box, parts, g.beside))
        return [i], made

    def _order(
        self, now: _State, gone: Sequence[int], left: Sequence[int], timing: Timing,
        ways: Sequence[Sequence[Hops]], draw: Draw,
    ) -> Order:
        """What is made in the place of what goes, of two in that of either; by the same way as
        before where that reaches the same, mostly by the shorter way else."""
        number = {i: n for n, i in enumerate(left)}
        hops = [now.order.hops[i] for i in left]
        before = now.order.hops[gone[0]]
        for f, some in zip(timing.fragments[len(left) :], ways[len(left) :], strict=True):
            if len(gone) == 1 and len(ways) == len(now.ways) and before in some:
                hops.append(before)
            elif draw() < SHORTER:
                hops.append(hops_of(f, self.stops))
            else:
                hops.append(some[int(draw() * len(some))])
        slot = gone[int(draw() * len(gone))]
        numbers: list[int] = []
        for i in now.order.numbers:
            if i == slot:
                numbers += range(len(left), len(ways))
            elif i in number:
                numbers.append(number[i])
        return Order(numbers, hops)


GIVEN = 3  # parts that go to different owners, at most
CHANGES: tuple[tuple[float, Callable[..., Change | None]], ...] = (
    (0.45, _Search.joined), (0.6, _Search.halved), (0.72, _Search.parted),
    (0.85, _Search.moved), (1.0, _Search.given),
)  # fmt: skip
"""With which share each is drawn, summed up."""
