"""What no exchange over the ring can beat: the busiest link under the best possible routing.

A change of ownership is a set of *atoms*: bytes that the same cores hold before and the same cores
want afterwards. Whatever an exchange does (multicast, forwarding, splitting, any order), the bytes
of an atom pass a set of directed segments of the ring through which every core that lacks them is
reached from one that holds them, each segment at least once: a multicast counts once a segment.

*Segments.* Give every directed segment a weight w >= 0 (of all together 1). Bytes times weight,
summed over the segments an exchange uses, is at most (the load of its busiest segment) * 1, and at
least the sum over atoms of bytes * (the lightest set of segments that reaches all of its
receivers). So for every w

    busiest segment >= sum over atoms of bytes * lightest set under w.

The best w is the dual of the linear program "route to make the busiest segment least" in which
atoms may be divided over routes at will; any other w gives a weaker bound, never a wrong one. It is
approached by multiplicative weights: segments that the lightest sets load most grow heavier.
All weight on the two segments into a stretch of cores is the cut argument, and among them that of a
core's own two segments inwards, which are its receive port: the machine has no other limit there.

*Lightest set.* Between two neighbouring holders on the ring (going round to itself if there is only
one) the receivers up to some point are reached upwards from the one, those behind it downwards
from the other. So it is the least of as many sums as there are receivers, plus one.

*Send ports.* A core sends one payload at a time, into one direction or both. Bytes that only cores
of a set hold must leave these: bytes / cores of the set. (Sets tried: the holders of each atom.)

Neither set-up, hops nor what a sender takes for each run are in the bound. Bytes are those of whole
sticks. Nothing here is taken from the code that plans exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spyrec.sim.device import DeviceSpec

Box = tuple[tuple[int, int], ...]
Atoms = dict[tuple[int, int], int]
"""(Cores that hold it, cores that want it and do not hold it), as masks -> bytes."""

GROUP = 64  # elements along the stick dimension that stay together
STEPS = 300  # of multiplicative weights


@dataclass(frozen=True)
class Bound:
    """Bytes over the busiest directed segment and out of the busiest core, at least, and the core
    cycles in which the slower of them passes at the full rate of a segment."""

    segment_bytes: float
    port_bytes: float
    cycles: float


def ring_bound(
    source: Sequence[Box], dest: Sequence[Box], stick: int, element_bytes: int, device: DeviceSpec
) -> Bound:
    """The bound for a tensor of ``element_bytes`` whose sticks run along dimension ``stick``;
    ``source[c]`` and ``dest[c]``: what core c holds before and after, empty boxes for nothing."""
    atoms = atoms_of(source, dest, stick, element_bytes)
    segment = _segment_bytes(atoms, device.cores.count + 1)
    port = _port_bytes(atoms)
    ring = device.ring
    cycles = max(segment, port) / ring.bytes_per_cycle * device.clock_mhz / ring.clock_mhz
    return Bound(segment, port, cycles)


def atoms_of(
    source: Sequence[Box], dest: Sequence[Box], stick: int, element_bytes: int
) -> Atoms:
    """The bytes that must move, by who holds and who lacks them: all boxes' borders cut the tensor
    into cells."""
    boxes = [b for b in (*source, *dest) if all(n for _, n in b)]
    rank = len(boxes[0]) if boxes else 0
    ends = [sorted({e for b in boxes for e in (b[d][0], sum(b[d]))}) for d in range(rank)]
    shape = [len(e) - 1 for e in ends]
    holds, wants = np.zeros(shape, np.uint64), np.zeros(shape, np.uint64)
    for masks, side in ((holds, source), (wants, dest)):
        for core, box in enumerate(side):
            if all(n for _, n in box):
                cells = tuple(
                    slice(e.index(s), e.index(s + n)) for e, (s, n) in zip(ends, box, strict=True)
                )
                masks[cells] |= np.uint64(1 << core)
    nbytes = np.ones(shape, np.int64) * element_bytes
    for d, e in enumerate(ends):
        sizes = np.diff(e)
        sizes = -(-sizes // GROUP) * GROUP if d == stick else sizes
        nbytes *= sizes.reshape([-1 if i == d else 1 for i in range(rank)])
    atoms: Atoms = {}
    for hold, want, n in zip(holds.flat, wants.flat, nbytes.flat, strict=True):
        key = int(hold), int(want) & ~int(hold)
        if key[1]:
            assert key[0], "somebody wants what nobody holds"
            atoms[key] = atoms.get(key, 0) + int(n)
    return atoms


def _port_bytes(atoms: Atoms) -> float:
    sets = {hold for hold, _ in atoms}
    return max(
        (
            sum(n for (hold, _), n in atoms.items() if not hold & ~chosen) / chosen.bit_count()
            for chosen in sets
        ),
        default=0.0,
    )


@dataclass(frozen=True)
class _Arc:
    """Receivers between two neighbouring holders: some of the first are reached upwards from the
    stop ``low``, the others downwards from ``high``. ``choices``: hops up and hops down."""

    nbytes: int
    low: int
    high: int
    choices: tuple[tuple[int, int], ...]


def _arcs(atoms: Atoms, stops: int) -> list[_Arc]:
    arcs: dict[tuple[int, int, tuple[tuple[int, int], ...]], int] = {}
    for (hold, want), nbytes in atoms.items():
        holders = [c for c in range(stops) if hold >> c & 1]
        for low, high in zip(holders, [*holders[1:], holders[0]], strict=True):
            length = (high - low) % stops or stops
            away = [n for n in range(1, length) if want >> (low + n) % stops & 1]
            if away:
                ups, downs = [0, *away], [*(length - n for n in away), 0]
                key = low, high, tuple(zip(ups, downs, strict=True))
                arcs[key] = arcs.get(key, 0) + nbytes
    return [_Arc(nbytes, *key) for key, nbytes in arcs.items()]


def _segment_bytes(atoms: Atoms, stops: int) -> float:
    """Segment s of a direction lies between stop s and s + 1; upwards first."""
    arcs = _arcs(atoms, stops)
    if not arcs:
        return 0.0
    most = max(len(arc.choices) for arc in arcs)
    padded = np.array([
        [*arc.choices, *[arc.choices[-1]] * (most - len(arc.choices))] for arc in arcs
    ])  # fmt: skip
    ups, downs = padded[:, :, 0], padded[:, :, 1]
    nbytes = np.array([arc.nbytes for arc in arcs], float)
    low, high = (np.array([getattr(arc, end) for arc in arcs]) for end in ("low", "high"))
    rows, hops = np.arange(len(arcs)), np.arange(stops)
    up_way = (low[:, None] + hops) % stops  # segments in the order in which an arc passes them
    down_way = (high[:, None] - 1 - hops) % stops
    pressure = np.zeros((2, stops))
    best = 0.0
    for step in range(STEPS):
        weights = np.exp(pressure - pressure.max())
        weights /= weights.sum()
        zero = np.zeros((len(arcs), 1))
        up_cost = np.hstack([zero, np.cumsum(weights[0][up_way], axis=1)])
        down_cost = np.hstack([zero, np.cumsum(weights[1][down_way], axis=1)])
        costs = up_cost[rows[:, None], ups] + down_cost[rows[:, None], downs]
        chosen = costs.argmin(axis=1)
        best = max(best, float(nbytes @ costs[rows, chosen]))
        loads = np.zeros((2, stops))
        for lane, way, far in ((0, up_way, ups), (1, down_way, downs)):
            passed = hops < far[rows, chosen][:, None]
            np.add.at(loads[lane], way[passed], np.broadcast_to(nbytes[:, None], way.shape)[passed])
        pressure += 3.0 / (1 + step) ** 0.5 * loads / loads.max()
    return best
