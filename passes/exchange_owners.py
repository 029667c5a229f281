"""Who of several owners sends: the nearest of a receiver, or one for all of them, so that the
busiest sender and segment are less busy.

The nearest owner of each receiver loads the segments least. But where all want the same, one
multicast takes one set-up, and where the nearest is the same for many, its neighbour is idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from spyrec.sim.device import DeviceSpec

from .exchange_beside import Around, Cycles, weighed
from .homes import Boxes
from .kernel import Box
from .ring_ways import bits
from .sends import Ends, Send

SWEEPS = 4
MOST = 400  # sends, and as many ways to share one
GAIN = 0.999  # of the weighted time that may be left


def rebalanced(
    sends: Sequence[Send], own: Boxes, need: Boxes, ends: Ends, device: DeviceSpec
) -> tuple[Send, ...] | None:
    """The same boxes to the same cores from owners that are less busy; None where no box has two
    owners, or there are too many. Begun with what each core sends to its nearest receivers, each
    box changes its owners while that takes time off the busiest (by the sum of eighth powers)."""
    wanted: dict[tuple[Box, tuple[int, ...]], list[Send]] = {}
    for s in sends:
        if not s.stays:
            wanted.setdefault((s.box, s.offset), []).append(s)
    if len(wanted) > MOST:
        return None
    owners = {box: owners_of(box, own) for box, _ in wanted}
    if all(len(some) < 2 for some in owners.values()):
        return None
    around = Around(need, ends, device)
    took: dict[Send, Cycles] = {}

    def cycles(some: Sequence[Send]) -> Cycles:
        for s in some:
            if s not in took:
                group = around.group(s.core, s.box, [(c, s.box) for c in bits(s.cores)])
                took[s] = around.cycles(group)
        total: Cycles = np.sum([took[s] for s in some], axis=0)
        return total

    shares = {key: tuple(some) for key, some in wanted.items()}
    total: Cycles = np.sum([cycles(some) for some in shares.values()], axis=0)
    scale = float(np.max(total))
    for _ in range(SWEEPS):
        moved = False
        for (box, offset), now in shares.items():
            if len(owners[box]) < 2:
                continue
            others = total - cycles(now)
            best, least = now, GAIN * float(weighed(total / scale))
            for some in _shared(now, owners[box], device.cores.count + 1):
                if (cost := float(weighed((others + cycles(some)) / scale))) < least:
                    best, least = some, cost
            if best is not now:
                shares[box, offset], total, moved = best, others + cycles(best), True
        if not moved:
            break
    stays = tuple(s for s in sends if s.stays)
    return (*(s for some in shares.values() for s in some), *stays)


def owners_of(box: Box, own: Boxes) -> list[int]:
    """The cores that hold all of a box."""
    held, wanted = np.array(own), np.array(box)
    inside = (held[:, :, 0] <= wanted[:, 0]) & (wanted.sum(axis=1) <= held.sum(axis=2))
    found: list[int] = np.flatnonzero(inside.all(axis=1)).tolist()
    return found


def _shared(
    now: Sequence[Send], owners: Sequence[int], stops: int
) -> Iterator[tuple[Send, ...]]:
    """Ways to bring a box to all its receivers: from one owner, or from each of two to those that
    are nearer to it."""
    some, everybody = now[0], 0
    for s in now:
        everybody |= s.cores
    for i, core in enumerate(owners):
        if not everybody >> core & 1:
            yield (Send(core, some.box, some.offset, everybody),)
        for other in owners[i + 1 :]:
            masks = {core: 0, other: 0}
            for c in bits(everybody):
                near = min(core, other, key=lambda h: min((c - h) % stops, (h - c) % stops))
                masks[near] |= 1 << c
            if all(masks.values()):
                yield tuple(
                    Send(h, some.box, some.offset, mask) for h, mask in masks.items()
                )
