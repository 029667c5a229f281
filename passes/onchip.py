"""Which tensors stay on chip: a choice over all kernels at once, by what each kernel then costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from spyrec.ir.core import Op, Value
from spyrec.ir.layout import Layout
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

    @property
    def layout(self) -> Layout:
        """Of the whole tensor."""
        assert self.value.type.layout is not None
        return self.value.type.layout

    @cached_property
    def bytes(self) -> int:
        """Of its home, a core."""
        return buffer_bytes(self.value.type, self.own)

    @cached_property
    def end(self) -> int:
        """The last step at which it, or a copy, is there."""
        return max((self.last, *(last for _, last, _ in self.spans)))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of a core that it and its copies take at each step from ``first`` to ``end``."""
        return tuple(
            self.bytes * (step <= self.last)
            + sum(n for first, last, n in self.spans if first <= step <= last)
            for step in range(self.first, self.end + 1)
        )

    def at(self, step: int, in_place: bool) -> int:
        """The same at a step of its life; ``in_place``: in the room of an operand, which is counted
        as that one's while its kernel runs."""
        return self.sizes[step - self.first] - self.bytes * (in_place and step == self.first)


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
        self.opening: dict[int, list[tuple[Value, float]]] = {}
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
        looks = {step: self._look(step, kept, mine) for step in matter}
        memo: dict[tuple[Hashable, tuple[int, ...]], float] = {}

        def cost(step: int, picks: Picks) -> float:
            if step not in looks:
                return 0.0
            key = looks[step], tuple(picks.values())  # in the order of the candidates, as in a look
            if key not in memo:
                here = {asked[i].value for i, option in picks.items() if option}
                here.update(c.value for c in self.alive[step] if c.value in kept)
                memo[key] = self.cost(step, here)
            return memo[key]

        found = select([Thing(c.first, c.end) for c in asked], cost)
        self.exact = found.exact
        return kept | {c.value for c, option in zip(asked, found.options, strict=True) if option}

    def _look(self, step: int, kept: Collection[Value], asked: Collection[Value]) -> Hashable:
        """Equal for steps at which the same choice of the tensors ``asked`` about costs the same:
        those of layers that are alike. All that ``cost`` reads, tensors by their place among those
        alive."""
        op, here = self.ops[step], self.alive[step]
        place = {c.value: n for n, c in enumerate(here)}
        tensors = (
            (
                c.value in kept, c.value in asked, c.sizes[step - c.first], c.first == step
                and (c.bytes, tuple(place[v] for v in c.over if v in place)),
            ) for c in here
        )  # fmt: skip
        return (
            op.name == "kernel" and self.prices.number(op), self.room[step], tuple(tensors),
            tuple(map(place.get, op.operands)), tuple(map(place.get, op.results)),
            tuple((place[v], cycles) for v, cycles in self._exchanges(step)),
        )  # fmt: skip

    def dearer(self, kept: Collection[Value]) -> dict[Value, float]:
        """Candidates that are not among the tensors ``kept`` -> cycles, rounded, that it would cost
        more if they were; infinite where there is no room."""
        found: dict[Value, float] = {}
        for c in self.candidates:
            if c.value not in kept:
                steps = range(c.first, c.end + 1)  # of all its readers too
                met = {d.value for step in steps for d in self.alive[step] if d.value in kept}
                more = met | {c.value}
                delta = sum(self.cost(s, more) - self.cost(s, met) for s in steps)
                found[c.value] = float(round(delta)) if delta < NO_ROOM / 2 else math.inf
        return found

    def taken(self, step: int, kept: Collection[Value]) -> int:
        """Bytes of a core that the tensors ``kept`` take at a step."""
        return sum([
            c.at(step, step == c.first and any(v in kept for v in c.over))
            for c in self.alive[step] if c.value in kept
        ])

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
        for v, cycles in self._exchanges(step):
            if v in kept:
                total += cycles
        return total

    def _exchanges(self, step: int) -> list[tuple[Value, float]]:
        """The exchanges that open a kernel if their tensors are on chip, and their cycles; in
        order, as floats are added."""
        if step not in self.opening:
            self.opening[step] = [
                (c.value, ring_cycles(c.layout, c.own, need, self.device))
                for c in map(self.of.get, dict.fromkeys(self.ops[step].operands)) if c is not None
                for need, (first, _, _) in zip(c.copies, c.spans, strict=True) if first == step
            ]
        return self.opening[step]
