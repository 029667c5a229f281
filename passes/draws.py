"""How the cores of a cut draw an operand from card memory: parts that differ, cores of one half of
the ring, and cores that read far apart: what a price has to know beside the largest part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod

from spyrec.ir.tiles import FACTORS
from spyrec.sim.device import SPREAD_STEPS, Hbm

from .kernel import Box, Nest, clip, rank1, spans, window
from .runs import STICK, sticks_and_run

FEW = 8
"""Rows of a product, at most, that does nothing but wait for its weights: one pass of them."""

Level = tuple[int, int, int]
"""How much more of a part, in grains, and how many cores of each half draw so much of theirs."""


@dataclass(frozen=True)
class Draw:
    """Times what as many of the largest part would take at the rate of the bus: ``bus``, for which
    it is busy with what the cores really draw; ``link``, until all have it, since the cores of one
    half of the ring share a narrower link. ``lost``: bus ticks that a byte takes longer because
    cores read far apart."""

    bus: float
    link: float
    lost: float


def draw(nest: Nest, operand: int, hbm: Hbm, cores: int) -> Draw:
    """How an operand of a divided kernel comes to the cores of a card that has so many. See
    ``Hbm.side_bytes_per_cycle`` and ``Hbm.spread_ticks``: what each core reads in one piece is
    spared what reading far apart costs.

    Cores progress alike until the smaller parts are there; what is left comes at the pace of those
    that have more. A load that several cores take uses both links and is spared too. It, and all
    but the second factor of a matmul of ``FEW`` rows, counts as if all parts were the largest and
    the bus all there is: such a matmul waits for weights that each core loads for itself.
    """
    m = nest.maps[operand]
    cut = tuple(d for d, p in enumerate(nest.parts) if p > 1 and spans(m, d))
    grains = tuple(nest.grain(d) for d in cut)
    levels, alone = _levels(nest.reading(operand), cut, grains, cores // 2)
    rows = prod(nest.extents[d] for d in nest.parallel if d != nest.stick)
    weights = nest.summed == {nest.k} and operand == FACTORS - 1 and rows <= FEW
    if not (levels and alone and weights):
        return Draw(1.0, 0.0, 0.0)
    most = (levels[0][1] + levels[0][2]) * sum(more for more, _, _ in levels)
    narrow = hbm.bytes_per_cycle / hbm.side_bytes_per_cycle
    bus = sum(more * (a + b) for more, a, b in levels) / most
    link = sum(more * max(a + b, narrow * max(a, b)) for more, a, b in levels) / most
    return Draw(bus, link, _lost(nest, operand, cut, hbm, cores))


@lru_cache(maxsize=1 << 12)
def _levels(
    ranges: tuple[Box, ...], cut: tuple[int, ...], grains: tuple[int, ...], half: int
) -> tuple[tuple[Level, ...], bool]:
    """The levels at which one part or another is there, the lowest first, and whether each core
    loads a part of its own."""
    parts: dict[tuple[int, ...], tuple[int, int]] = {}
    busy = [(core, box) for core, box in enumerate(ranges) if all(n for _, n in box)]
    for core, box in busy:
        size = prod(-(-box[d][1] // grain) for d, grain in zip(cut, grains, strict=True))
        parts.setdefault(tuple(box[d][0] for d in cut), (size, core))
    found = []
    for below, size in pairwise(sorted({0, *(size for size, _ in parts.values())})):
        mine = [core for n, core in parts.values() if n >= size]
        first = sum(core < half for core in mine)
        found.append((size - below, first, len(mine) - first))
    return tuple(found), len(parts) == len(busy)


def _lost(nest: Nest, operand: int, cut: tuple[int, ...], hbm: Hbm, cores: int) -> float:
    """Bus ticks that each byte of a load takes longer that one core takes."""
    v, m = nest.op.operands[operand], nest.maps[operand]
    layout = v.type.layout
    if layout is None or not cut:
        return 0.0
    box = clip(window(m, [(0, n) for n in nest.local]), rank1(v.type))
    sticks, run = sticks_and_run(layout, [n for _, n in box])
    if sticks == run:
        return 0.0
    apart = min(
        sum(
            abs(coefs[d]) * nest.least(d) // layout.unit(t) * layout.dim_stride(t)
            for t, (_, coefs) in enumerate(m) if coefs[d]
        )
        for d in cut
    )  # fmt: skip
    readers = prod(nest.parts[d] for d in cut)
    share = hbm.far_cycles * hbm.bytes_per_cycle / hbm.burst_bytes * readers / cores
    return share * hbm.spread(apart * STICK) / SPREAD_STEPS
