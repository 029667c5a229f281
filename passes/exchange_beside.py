"""Sends that land beside the receivers' buffers, out of which their vector units copy what they
want to its place.

A send that lands in its place must be, for all its receivers, a box at one place of their buffers,
contiguous at both ends. What lands beside need not: parts that overlap on neighbours go as their
common pieces, each once over a segment; small pieces for several cores go as one multicast of the
box around them, one set-up instead of many; and what is in another order at its receivers goes in
long runs. The price is the copies, and bytes that some receiver does not want.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt

from spyrec.sim.device import DeviceSpec

from .homes import Boxes
from .kernel import Box
from .ring_schedule import sender_cycles
from .ring_ways import Fragment, bits, hops_of
from .runs import STICK
from .sends import Ends, Send, Sizes

Cycles = npt.NDArray[np.float64]
Part = tuple[int, Box]
"""A core and the box it wants."""


@dataclass(frozen=True)
class Group:
    """``box`` from ``core``, of which each receiver wants some ``parts``. Not ``beside``: one part
    each, the whole box, in the same place of their buffers."""

    core: int
    box: Box
    parts: tuple[Part, ...]
    beside: bool

    @cached_property
    def cores(self) -> int:
        """The mask of its receivers."""
        mask = 0
        for core, _ in self.parts:
            mask |= 1 << core
        return mask


@dataclass(frozen=True)
class Around:
    """What the groups of an exchange are judged by."""

    need: Boxes
    ends: Ends
    device: DeviceSpec

    def offset(self, core: int, box: Box) -> tuple[int, ...]:
        """Of a box in the box that a core needs."""
        return tuple(p - b for (p, _), (b, _) in zip(box, self.need[core], strict=True))

    def group(self, core: int, box: Box, parts: Iterable[Part], beside: bool = False) -> Group:
        """A group, beside its receivers' buffers where it must be."""
        parts = _joined(sorted(parts))
        same = all(part == box for _, part in parts)
        placed = same and len({self.offset(c, box) for c, _ in parts}) == 1
        return Group(core, box, parts, beside or not placed)

    def send(self, group: Group) -> Send:
        """The group as a send; where beside the buffers is not said yet."""
        if group.beside:
            return Send(group.core, group.box, (0,) * len(group.box), group.cores, 0)
        return Send(
            group.core, group.box, self.offset(group.parts[0][0], group.box), group.cores
        )

    def copies(self, group: Group) -> Iterator[Send]:
        """What the receivers of a group copy to its place."""
        if group.beside:
            for core, box in group.parts:
                yield Send(core, box, self.offset(core, box), 1 << core)

    def cycles(self, group: Group) -> Cycles:
        """How long it takes up each sender, each vector unit and each segment, by the shorter
        way."""
        device = self.device
        cores, stops = device.cores.count, device.cores.count + 1
        length = sizes(group.box)
        ends = self.ends.packed(length) if group.beside else self.ends
        f = Fragment(group.core, group.cores, *ends.bytes_and_runs(length))
        found = np.zeros(2 * cores + 2 * stops)
        found[f.core] = sender_cycles(f, device)
        if group.beside:
            for core, box in group.parts:
                nbytes, _ = self.ends.bytes_and_runs(sizes(box))
                found[cores + core] += device.sfp.shuffle_cycles(nbytes, STICK, nbytes // STICK)
        payload = device.ring.payload_cycles(f.nbytes) * device.clock_mhz / device.ring.clock_mhz
        ups, downs = found[2 * cores : 2 * cores + stops], found[2 * cores + stops :]
        up, down = hops_of(f, stops)
        ups[f.core : f.core + up] = payload
        ups[: max(0, f.core + up - stops)] = payload
        downs[max(0, f.core - down) : f.core] = payload
        downs[stops + min(0, f.core - down) :] = payload
        return found


def _joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The parts of each core, two as one where they make up a box."""
    found = list(parts)
    i = 0
    while i < len(found):
        for j in range(i):
            (core, one), (other_core, other) = found[j], found[i]
            both = union(one, other) if core == other_core else None
            if both is not None:
                del found[i]
                found[j] = core, both
                i = j - 1
                break
        i += 1
    return tuple(found)


def union(one: Box, other: Box) -> Box | None:
    """Two boxes as one that holds nothing else; None where there is no such box."""
    if one == other:
        return one
    sides = [t for t, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    if len(sides) != 1:
        return None
    t = sides[0]
    (a, n), (b, m) = sorted((one[t], other[t]))
    return (*one[:t], (a, max(a + n, b + m) - a), *one[t + 1 :]) if b <= a + n else None


def hull(one: Box, other: Box) -> Box:
    """The smallest box that holds both."""
    return tuple(
        (min(a, b), max(a + n, b + m) - min(a, b))
        for (a, n), (b, m) in zip(one, other, strict=True)
    )


def common_pieces(parts: Sequence[Part]) -> list[tuple[Box, list[int]]] | None:
    """The points of all parts as boxes, each once and with all the cores that want it; None where
    that would be too many."""
    rank = len(parts[0][1])
    ends = [sorted({e for _, b in parts for e in (b[t][0], sum(b[t]))}) for t in range(rank)]
    if np.prod([len(e) - 1 for e in ends]) > PIECES_MOST:
        return None
    wanted: dict[Box, list[int]] = {}
    for core, box in parts:
        inside = [
            [(a, b - a) for a, b in pairwise(e) if s <= a and b <= s + n]
            for e, (s, n) in zip(ends, box, strict=True)
        ]
        for cell in product(*inside):
            wanted.setdefault(cell, []).append(core)
    alike: dict[tuple[int, ...], list[Part]] = {}
    for cell, cores in sorted(wanted.items()):
        alike.setdefault(tuple(cores), []).append((0, cell))
    return [(box, [*cores]) for cores, cells in alike.items() for _, box in _joined(cells)]


def gathered(sends: Sequence[Send], around: Around) -> list[Group] | None:
    """Groups that bring to their places what ``sends`` bring, so that the busiest sender, vector
    unit or segment is less busy; None where nothing is gained. Begun with the sends as they are,
    and with the common pieces of what each core sends."""
    if not sends:
        return None
    plain = [
        around.group(s.core, s.box, [(c, s.box) for c in bits(s.cores)]) for s in sends
    ]
    starts = [plain]
    by_core: dict[int, list[Part]] = {}
    for g in plain:
        by_core.setdefault(g.core, []).extend(g.parts)
    cut = [(core, common_pieces(parts)) for core, parts in by_core.items()]
    if all(pieces is not None for _, pieces in cut):
        pieces = [
            around.group(core, box, [(c, box) for c in cores])
            for core, found in cut for box, cores in found or ()
        ]
        if pieces != plain and len(pieces) <= GROUPS_MOST:
            starts.append(pieces)
    before = _busiest(plain, around)
    best: tuple[float, list[Group]] | None = None
    for start in starts:
        if len(start) <= GROUPS_MOST:
            groups = _Gathering(start, around).run()
            most = _busiest(groups, around)
            if best is None or most < best[0]:
                best = most, groups
    return best[1] if best and best[0] < WORTH * before else None


PIECES_MOST = 400  # of what one core sends
GROUPS_MOST = 1000
WORTH = 0.95  # of the busiest sender's, vector unit's or segment's time must be left, at most
GAIN = 1e-4  # of the weighted time that one step must gain
WIDE = 2.0  # times the bytes of two groups that the box around both may hold


def _busiest(groups: Sequence[Group], around: Around) -> float:
    return float(np.sum([around.cycles(g) for g in groups], axis=0).max())


class _Gathering:
    """Greedy: the step that gains most is taken, two groups of one core becoming one or a group
    landing beside, until none gains. Gained is time of senders, vector units and segments, to a
    power, so that the busiest count."""

    def __init__(self, groups: Sequence[Group], around: Around) -> None:
        self.around = around
        self.groups = dict(enumerate(groups))
        self.cycles = {i: around.cycles(g) for i, g in self.groups.items()}
        self.total = np.sum([*self.cycles.values()], axis=0)
        self.scale = float(self.total.max())
        self.total = self.total / self.scale
        self.steps: dict[int, dict[tuple[int, int], tuple[Group, Cycles]]] = {}
        for i, g in self.groups.items():
            self._add_steps(i, g, before=i)

    def run(self) -> list[Group]:
        """What gains most now is looked for among what gained most before: a core whose best step
        gained less than another's does now is not asked again."""
        gains = {core: self._best(core)[0] for core in self.steps}
        while True:
            asked: dict[int, tuple[int, int]] = {}
            core = max(gains, key=lambda c: (gains[c], -c))
            while core not in asked:
                gains[core], asked[core] = self._best(core)
                core = max(gains, key=lambda c: (gains[c], -c))
            if not gains[core] > GAIN * float(weighed(self.total)):
                return [*self.groups.values()]
            self._take(core, asked[core])
            gains[core] = self._best(core)[0]

    def _best(self, core: int) -> tuple[float, tuple[int, int]]:
        """The step of a core that gains most, and how much."""
        steps = self.steps[core]
        if not steps:
            return 0.0, (-1, -1)
        changes = np.array([change for _, change in steps.values()])
        after = weighed(self.total + changes)
        at = int(after.argmin())
        return float(weighed(self.total) - after[at]), [*steps][at]

    def _take(self, core: int, pair: tuple[int, int]) -> None:
        made, change = self.steps[core][pair]
        self.total = self.total + change
        gone = {*pair}
        for i in gone:
            del self.groups[i], self.cycles[i]
        self.steps[core] = {p: s for p, s in self.steps[core].items() if not gone & {*p}}
        number = max(pair)
        self.groups[number], self.cycles[number] = made, self.around.cycles(made)
        self._add_steps(number, made)

    def _add_steps(self, i: int, g: Group, before: int | None = None) -> None:
        """The steps of a group: by itself, and with each other group of its core (of those
        ``before`` it)."""
        around, ends, scale = self.around, self.around.ends, self.scale
        steps = self.steps.setdefault(g.core, {})
        if not g.beside:
            made = replace(g, beside=True)
            steps[i, i] = made, (around.cycles(made) - self.cycles[i]) / scale
        nbytes, _ = ends.bytes_and_runs(sizes(g.box))
        for j, other in self.groups.items():
            if other.core != g.core or i == j or (before is not None and j > before):
                continue
            box = hull(g.box, other.box)
            others, _ = ends.bytes_and_runs(sizes(other.box))
            together, _ = ends.bytes_and_runs(sizes(box))
            if together <= WIDE * (nbytes + others):
                made = around.group(g.core, box, (*g.parts, *other.parts))
                change = around.cycles(made) - self.cycles[i] - self.cycles[j]
                steps[min(i, j), max(i, j)] = made, change / scale


def weighed(times: Cycles) -> Cycles:
    """The sum of eighth powers."""
    for _ in range(3):
        times = times * times
    total: Cycles = times.sum(axis=-1)
    return total


def sizes(box: Box) -> Sizes:
    """How long a box is along each dimension."""
    return tuple(n for _, n in box)
