"""What an exchange costs, quickly enough to be asked for every cut that the planner looks at; and
what the way through card memory costs instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from spyrec.ir.layout import Layout
from spyrec.sim.device import DeviceSpec, Hbm, Ring

from .homes import Boxes, local_layout
from .kernel import Box
from .runs import STICK, sticks_and_run

Ints = npt.NDArray[np.int64]


def ring_cycles(
    like: Layout, own: Sequence[Box], need: Sequence[Box], device: DeviceSpec
) -> float:
    """Estimated core cycles of the exchange of a tensor laid out ``like`` this: the longest of what
    the busiest sender does, the busiest segment's load and the mean of all, and for each
    ``fragments_max`` that come to a core the way of one payload. 0 when every core has what it
    needs.

    Estimated over what ``plan_exchange`` would do, without planning: the nearest core sends, all go
    the shorter way, and buffers are ordered for the longest runs. The factors are fitted to what
    the simulator says of 140 exchanges (benchmarks/relayouts.py): LOADED, since some go the longer
    way round and ease the busiest segment; CROWDED and WAITED, since senders wait for one another.
    """
    ring, cores = device.ring, device.cores.count
    return _estimated(like, tuple(own), tuple(need), ring, cores, device.clock_mhz)


LOADED, CROWDED, WAITED = 0.8, 1.2, 1.5


@lru_cache(maxsize=1 << 13)
def _estimated(
    like: Layout, own: Boxes, need: Boxes, ring: Ring, cores: int, clock_mhz: int
) -> float:
    idle = ((0, 0),) * len(like.shape)
    own, need = (
        (*(box or idle for box in side), *[idle] * (cores - len(side))) for side in (own, need)
    )
    stops = cores + 1
    different, nearest = _owners(own, stops)
    low, size = _overlaps(different, need)
    to, box = np.nonzero(size.all(axis=2) & (nearest != np.arange(len(need))[:, None]))
    if not len(to):
        return 0.0
    source = nearest[to, box]
    sizes = size[to, box]
    sticks, runs = _sticks_and_runs(like, own, need, sizes)
    up = (to - source) % stops
    hops_up, hops_down = np.where(up <= stops // 2, up, 0), np.where(up > stops // 2, stops - up, 0)
    key = np.concatenate([source[:, None], low[to, box], sizes], axis=1)
    _, first, group = np.unique(key, axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    far_up, far_down = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
    np.maximum.at(far_up, group, hops_up)
    np.maximum.at(far_down, group, hops_down)
    nbytes, runs_of, sender = sticks[first] * STICK, runs[first], source[first]
    to_core = clock_mhz / ring.clock_mhz / ring.bytes_per_cycle
    took = ring.start_cycles + nbytes * to_core + runs_of * ring.run_cycles
    sending = float(np.bincount(sender, took, cores).max())
    mean = float(nbytes @ (far_up + far_down)) / (2 * stops) * to_core
    loaded = _busiest(sender, far_up, far_down, nbytes, stops) * to_core
    hop = ring.hop_cycles * clock_mhz / ring.clock_mhz
    way = ring.start_cycles + float((far_up + far_down).max()) * hop / 2
    turns = -(-int(np.bincount(to).max()) // ring.fragments_max)
    return max(sending, LOADED * loaded, CROWDED * mean) + WAITED * way * turns


def _owners(own: Sequence[Box], stops: int) -> tuple[list[Box], Ints]:
    """The different boxes that are owned, and for each core (rows) the nearest owner of each."""
    held: dict[Box, list[int]] = {}
    for core, box in enumerate(own):
        if all(n for _, n in box):
            held.setdefault(box, []).append(core)
    nearest = np.zeros((len(own), len(held)), np.int64)
    for i, cores in enumerate(held.values()):
        up = (np.array(cores)[None, :] - np.arange(len(own))[:, None]) % stops
        nearest[:, i] = np.array(cores)[np.minimum(up, stops - up).argmin(axis=1)]
    return list(held), nearest


def _overlaps(own: Sequence[Box], need: Sequence[Box]) -> tuple[Ints, Ints]:
    """[to, from, dimension]: where what a core needs and another owns begins, and its size."""
    held, wanted = (np.array(boxes, np.int64) for boxes in (own, need))
    low = np.maximum(held[None, :, :, 0], wanted[:, None, :, 0])
    high = np.minimum(held.sum(axis=2)[None], wanted.sum(axis=2)[:, None])
    here, there = (side[:, :, 1].min(axis=1) > 0 for side in (held, wanted))
    size = np.clip(high - low, 0, None) * (here[None, :, None] & there[:, None, None])
    return low, size


def _sticks_and_runs(
    like: Layout, own: Sequence[Box], need: Sequence[Box], sizes: Ints
) -> tuple[Ints, Ints]:
    """Sticks of boxes of those sizes, and in how many contiguous pieces they go between buffers."""
    here, there = (local_layout(like, tuple(boxes)) for boxes in (own, need))
    units = [here.unit(t) for t in range(len(here.shape))]
    counts = -(-sizes // np.array(units))
    wide = max(1, like.bits // 16)
    sticks = counts.prod(axis=1) * wide
    full = np.array([-(-np.array(end.shape) // np.array(units)) for end in (here, there)])
    whole = (counts == full[0]) & (counts == full[1])
    inner = np.where(whole, counts, 1).prod(axis=1)
    return sticks, sticks // (wide * inner * np.where(whole, 1, counts).max(axis=1))


def _busiest(sender: Ints, up: Ints, down: Ints, nbytes: Ints, stops: int) -> float:
    """Bytes over the busiest segment."""
    steps = np.arange(stops)
    most = 0.0
    for start, hops in ((sender, up), (sender - down, down)):
        passed = ((steps[None, :] - start[:, None]) % stops) < hops[:, None]
        most = max(most, float((passed * nbytes[:, None]).sum(axis=0).max()))
    return most


def memory_cycles(
    like: Layout, own: Sequence[Box], needs: Sequence[Sequence[Box]], device: DeviceSpec
) -> float:
    """Estimated core cycles to store what the cores own in card memory and to load what they need
    from there, each different box once for as many cores as can take it together, with nothing
    beside it."""
    return _through_memory(like, tuple(own), tuple(map(tuple, needs)), device.hbm)


@lru_cache(maxsize=1 << 12)
def _through_memory(like: Layout, own: Boxes, needs: tuple[Boxes, ...], hbm: Hbm) -> float:
    ticks = 0.0
    for boxes, writes in ((own, True), *((need, False) for need in needs)):
        turns: dict[Box, int] = {}
        for box in boxes:
            if all(n for _, n in box):
                turns[box] = turns.get(box, 0) + 1
        for box, cores in turns.items():
            sticks, run = sticks_and_run(like, [n for _, n in box])
            times = 1 if writes else -(-cores // hbm.takers_max)
            ticks += times * hbm.bus_ticks(sticks * STICK, run * STICK, writes)
    return ticks / hbm.bytes_per_cycle + hbm.latency_cycles
