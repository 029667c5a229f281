"""Who waited for whom in a launch: the instructions that occupied units, and for each the one that
gave the last token it waited for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .expand import KernelPlan, Step
from .isa import GO, UNITS

N_UNITS = len(UNITS)


@dataclass(slots=True)
class Work:
    """An instruction that occupied a unit. ``slot``: core and unit, ``number``: of the works of the
    slot in its launch, ``step``: of the unit's steps, ``cause``: who gave the last token that it
    waited for. ``passed``: when the last of it left the memory bus; ``load``: ring cycles of all
    segments together."""

    slot: int
    number: int
    step: int
    start: int
    end: int
    nbytes: int
    passed: int
    load: int
    cause: Work | None
    arrows: list[int] = field(default_factory=list)


Cause = tuple[int, Work]  # the cycle in which a token was given, and by whom


@dataclass(slots=True)
class Flight:
    """What is known of a launch that has not ended. ``gifts``: by core and token what was given and
    not yet taken: how many, in which cycle, by whom. ``causes``: of each slot, what the steps that
    took no time waited for since its last work; ``last``: that work. ``open``: by slot and step
    whom its signals are to be from: the work, or of a step without one what came before it, what it
    waited for, and the cycle in which it began."""

    plan: KernelPlan
    opened: int = 0
    works: dict[int, list[Work]] = field(default_factory=dict)
    last: dict[int, Work] = field(default_factory=dict)
    causes: dict[int, Cause] = field(default_factory=dict)
    gifts: dict[tuple[int, int], deque[tuple[int, int, Work | None]]] = field(default_factory=dict)
    open: dict[tuple[int, int], tuple[Work | None, Work | None, int]] = field(default_factory=dict)
    begun: tuple[int, Cause | None] = (0, None)  # the step whose work is to come, and its cause
    passed: int = 0  # when it leaves the memory bus

    def began(self, core: int, unit: int, number: int, cycle: int) -> None:
        """A step has the tokens it waited for, which are taken here."""
        waits, signals, work, *_ = self.step(core, unit, number)
        slot = core * N_UNITS + unit
        cause = self.causes.get(slot)
        for token, _, taken in waits:
            found = None if token == GO else self.take(core, token, taken)
            if found is not None and (cause is None or found[0] > cause[0]):
                cause = found
        if work:
            self.begun = number, cause
            self.causes.pop(slot, None)
            return
        if cause is not None:
            self.causes[slot] = cause
        if signals:
            last = self.last.get(slot)
            later = cause is not None and (last is None or cause[0] > last.end)
            self.open[slot, number] = (cause[1] if cause and later else last, last, cycle)

    def worked(
        self, core: int, unit: int, start: int, end: int, nbytes: int, load: int
    ) -> None:
        """The step that just began occupies its unit."""
        slot = core * N_UNITS + unit
        number, cause = self.begun
        works = self.works.setdefault(slot, [])
        giver = cause[1] if cause is not None and cause[1].slot != slot else None
        work = Work(slot, len(works), number, start, end, nbytes, self.passed, load, giver)
        works.append(work)
        self.last[slot] = work
        if self.step(core, unit, number)[1]:
            self.open[slot, number] = (work, work, start)

    def ended(self, core: int, unit: int, number: int, cycle: int) -> None:
        """A step is complete: what it signals is given here."""
        found = self.open.pop((core * N_UNITS + unit, number), None)
        if found is None:
            return
        giver, last, began = found
        if cycle > began:  # it was held up by the transfers ahead of it
            giver = last
        for token, n, cores in self.step(core, unit, number)[1]:
            for receiver in (core,) if cores is None else cores:
                gift = (n, cycle, giver)
                self.gifts.setdefault((receiver, token), deque()).append(gift)

    def step(self, core: int, unit: int, number: int) -> Step:
        return self.plan.units[unit].steps[core][number]

    def take(self, core: int, token: int, n: int) -> Cause | None:
        """Who gave the last of ``n`` of a core's tokens (0: the first that there is, which
        stays)."""
        queue = self.gifts[core, token]
        while True:
            had, cycle, giver = queue[0]
            if had > n:
                if n:
                    queue[0] = (had - n, cycle, giver)
                break
            queue.popleft()
            n -= had
            if not n:
                break
        return None if giver is None else (cycle, giver)
