"""Which tensors stay on chip: a choice over all kernels at once, by what each kernel then costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from spyrec.ir.core import Op, Value
from spyrec.sim.device import DeviceSpec

from .exchange_price import ring_cycles
from .homes import Boxes, buffer_bytes
from .kernel_price import KernelPrices
from .selection import Picks, Thing, select

Use = tuple[Op, int]

NO_ROOM = 1e12  # cycles: more than any program takes, and adding up they still count kernels


@dataclass(frozen=True)
class Candidate:
    """A tensor that may stay on chip: the ``index``-th result of ``op``, of which each core holds
    its box of ``own`` until step ``last``. ``copies``: boxes that readers need and do not find
    there -> who. ``over``: operands whose room it can have, if they are on chip."""

    op: Op
    index: int
    value: Value
    own: Boxes
    first: int
    last: int
    copies: Mapping[Boxes, Sequence[Use]]
    spans: tuple[tuple[int, int, int], ...]  # (first step, last, bytes) of each copy
    over: tuple[Value, ...] = ()

    @cached_property
    def bytes(self) -> int:
        """Of its home, a core."""
        return buffer_bytes(self.value.type, self.own)

    @cached_property
    def end(self) -> int:
        """The last step at which it, or a copy, is there."""
        return max((self.last, *(last for _, last, _ in self.spans)))

    def at(self, step: int, in_place: bool) -> int:
        """Bytes of a core that it and its copies take at a step."""
        home = self.bytes * (self.first + in_place <= step <= self.last)
        return home + sum(n for first, last, n in self.spans if first <= step <= last)


@dataclass
class OnChip:
    """The choice. ``room``: bytes of the scratchpad that tensors and tiles share at each step;
    ``most``: of it, bytes that tensors may take."""

    ops: Sequence[Op]
    candidates: Sequence[Candidate]
    room: Sequence[int]
    most: int
    device: DeviceSpec
    prices: KernelPrices
    exact: bool = field(default=True, init=False)  # was nothing given up unseen?

    def __post_init__(self) -> None:
        self.of = {c.value: c for c in self.candidates}
        self.tiles = int(self.device.lx.usable_bytes * self.prices.tiling.share)
        self.alive: list[list[Candidate]] = [[] for _ in self.ops]
        for c in self.candidates:
            for step in range(c.first, c.end + 1):
                self.alive[step].append(c)

    def fitting(self, wanted: Sequence[Candidate], room: int) -> set[Value]:
        """Those that find ``room`` beside the ones before them."""
        kept: set[Value] = set()
        for c in wanted:
            tried = kept | {c.value}
            if all(self.taken(step, tried) <= room for step in range(c.first, c.end + 1)):
                kept = tried
        return kept

    def choose(self, fixed: Collection[Value], decided: Collection[Value]) -> set[Value]:
        """The tensors on chip: of those ``decided`` already the ones in ``fixed``. Whatever is
        alive only where all fits beside tiles of the usual size is one of them; the others are
        chosen by price."""
        kept = {c.value for c in self.candidates if c.value in fixed or c.value not in decided}
        tight = {
            step for step in range(len(self.ops))
            if self.taken(step, kept) > min(self.most, self.room[step] - self.tiles)
        }
        asked = [
            c for c in self.candidates
            if c.value not in decided and any(c.first <= step <= c.end for step in tight)
        ]
        kept -= {c.value for c in asked}
        mine = {c.value for c in asked}
        matter = {
            step for step, op in enumerate(self.ops)
            if step in tight or not mine.isdisjoint(op.operands + op.results)
        }
        memo: dict[tuple[int, frozenset[Value]], float] = {}

        def cost(step: int, picks: Picks) -> float:
            if step not in matter:
                return 0.0
            here = frozenset(asked[i].value for i, option in picks.items() if option)
            if (step, here) not in memo:
                memo[step, here] = self.cost(step, kept | here)
            return memo[step, here]

        found = select([Thing(c.first, c.end) for c in asked], cost)
        self.exact = found.exact
        return kept | {c.value for c, option in zip(asked, found.options, strict=True) if option}

    def dearer(self, kept: Collection[Value]) -> dict[Value, float]:
        """Candidates that are not among the tensors ``kept`` -> cycles, rounded, that it would cost
        more if they were; infinite where there is no room."""
        found: dict[Value, float] = {}
        for c in self.candidates:
            if c.value not in kept:
                more = {*kept, c.value}
                steps = range(c.first, c.end + 1)  # of all its readers too
                delta = sum(self.cost(s, more) - self.cost(s, kept) for s in steps)
                found[c.value] = float(round(delta)) if delta < NO_ROOM / 2 else math.inf
        return found

    def taken(self, step: int, kept: Collection[Value]) -> int:
        """Bytes of a core that the tensors ``kept`` take at a step."""
        return sum(
            c.at(step, any(v in kept for v in c.over))
            for c in self.alive[step] if c.value in kept
        )

    def cost(self, step: int, kept: Collection[Value]) -> float:
        """Cycles of a kernel, and of the exchanges that open it, with the tensors ``kept`` on
        chip."""
        op = self.ops[step]
        if op.name != "kernel":
            return 0.0
        taken = self.taken(step, kept)
        operands = [i for i, v in enumerate(op.operands) if v in kept]
        results = [i for i, v in enumerate(op.results) if v in kept]
        total = self.prices.price(op, operands, results, self.room[step] - taken)
        if total == math.inf or taken > self.most:
            total = NO_ROOM + taken
        for v in dict.fromkeys(v for v in op.operands if v in kept):  # in order: floats are added
            c, like = self.of[v], v.type.layout
            assert like is not None
            for need, (first, _, _) in zip(c.copies, c.spans, strict=True):
                if first == step:
                    total += ring_cycles(like, c.own, need, self.device)
        return total
