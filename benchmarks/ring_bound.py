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

*Floor.* A second bound, in core cycles, takes those in, and what stays on its core. Segments,
senders and vector units are busy for some cycles each, and no exchange is done before any of them:
for all weights, of all together 1, it takes at least the weighted sum of

* what is fixed: a sender loses a set-up and a run, a segment these and a hop before its first byte
  and after its last, a vector unit the start of an instruction;
* bytes of each atom * (the lightest set of segments that reaches its receivers + the lightest
  sender among its holders, each at the rate of a segment);
* bytes that cores hold and want and nobody lacks * the lightest way to serve these cores. Each has
  to get them into another buffer: by its vector unit at the rate of copies, by its own sender, or
  over a segment into it. The last takes the sender of some holder as well, once for all cores that
  are served so: whoever passes the bytes on got them from one. A core that is the only holder has
  but the first two. (What somebody lacks a multicast may bring to its sender too, at no cost.)

Its weights are found likewise. Where the floor is above what is asked of an exchange, no plan on
this machine brings it there. Not in it: more than one set-up of a sender, which relays could take
off it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spyrec.sim.device import DeviceSpec

Box = tuple[tuple[int, int], ...]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Atoms = dict[tuple[int, int], int]
"""(Cores that hold it, cores that want it and do not hold it), as masks -> bytes."""

GROUP = 64  # elements along the stick dimension that stay together
STEPS = 300  # of multiplicative weights


@dataclass(frozen=True)
class Bound:
    """Bytes over the busiest directed segment and out of the busiest core, at least, and the core
    cycles in which the slower of them passes at the full rate of a segment. ``floor_cycles``: with
    all that the machine takes beside bytes."""

    segment_bytes: float
    port_bytes: float
    cycles: float
    floor_cycles: float


def ring_bound(
    source: Sequence[Box], dest: Sequence[Box], stick: int, element_bytes: int, device: DeviceSpec
) -> Bound:
    """The bound for a tensor of ``element_bytes`` whose sticks run along dimension ``stick``;
    ``source[c]`` and ``dest[c]``: what core c holds before and after, empty boxes for nothing."""
    atoms, stays = atoms_of(source, dest, stick, element_bytes)
    if not atoms:
        return Bound(0.0, 0.0, 0.0, 0.0)
    stops, ring = device.cores.count + 1, device.ring
    lightest = _Lightest.of(atoms, stops)
    segment = _segment_bytes(lightest)
    port = _port_bytes(atoms)
    cycles = max(segment, port) / ring.bytes_per_cycle * device.clock_mhz / ring.clock_mhz
    floor = max(cycles, _floor_cycles(atoms, stays, lightest, device))
    return Bound(segment, port, cycles, floor)


def atoms_of(
    source: Sequence[Box], dest: Sequence[Box], stick: int, element_bytes: int
) -> tuple[Atoms, Atoms]:
    """The bytes that must move, by who holds and who lacks them, and those that nobody lacks, by
    who holds and who of these wants them."""
    atoms: Atoms = {}
    stays: Atoms = {}
    for hold, want, n in cells_of(source, dest, stick, element_bytes):
        key = hold, want & ~hold
        if key[1]:
            assert key[0], "somebody wants what nobody holds"
            atoms[key] = atoms.get(key, 0) + n
        elif want:
            stays[hold, want] = stays.get((hold, want), 0) + n
    return atoms, stays


def cells_of(
    source: Sequence[Box], dest: Sequence[Box], stick: int, element_bytes: int
) -> Iterator[tuple[int, int, int]]:
    """Masks of the cores that hold and of those that want a part of the tensor, and its bytes: all
    boxes' borders cut it into cells."""
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
    for hold, want, n in zip(holds.flat, wants.flat, nbytes.flat, strict=True):
        yield int(hold), int(want), int(n)


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


@dataclass(frozen=True)
class _Lightest:
    """The sets of segments to choose from for all arcs. [arc, choice]: hops ``ups`` and ``downs``;
    [arc, hop]: segments in the order in which an arc passes them upwards and downwards, where
    segment s of a direction lies between stop s and s + 1."""

    stops: int
    nbytes: Floats
    ups: Ints
    downs: Ints
    up_way: Ints
    down_way: Ints

    @staticmethod
    def of(atoms: Atoms, stops: int) -> _Lightest:
        arcs = _arcs(atoms, stops)
        most = max(len(arc.choices) for arc in arcs)
        padded = np.array([
            [*arc.choices, *[arc.choices[-1]] * (most - len(arc.choices))] for arc in arcs
        ])  # fmt: skip
        low, high = (np.array([getattr(arc, end) for arc in arcs]) for end in ("low", "high"))
        hops = np.arange(stops)
        return _Lightest(
            stops, np.array([arc.nbytes for arc in arcs], float), padded[:, :, 0],
            padded[:, :, 1], (low[:, None] + hops) % stops, (high[:, None] - 1 - hops) % stops,
        )

    def under(self, weights: Floats) -> tuple[float, Floats]:
        """Bytes times weight of the lightest sets, and the bytes that they bring over each segment;
        ``weights`` [direction, segment], upwards first."""
        rows, hops = np.arange(len(self.nbytes)), np.arange(self.stops)
        zero = np.zeros((len(rows), 1))
        up = np.hstack([zero, np.cumsum(weights[0][self.up_way], axis=1)])
        down = np.hstack([zero, np.cumsum(weights[1][self.down_way], axis=1)])
        costs = up[rows[:, None], self.ups] + down[rows[:, None], self.downs]
        chosen = costs.argmin(axis=1)
        loads = np.zeros((2, self.stops))
        for lane, way, far in ((0, self.up_way, self.ups), (1, self.down_way, self.downs)):
            passed = hops < far[rows, chosen][:, None]
            nbytes = np.broadcast_to(self.nbytes[:, None], way.shape)
            np.add.at(loads[lane], way[passed], nbytes[passed])
        return float(self.nbytes @ costs[rows, chosen]), loads


def _segment_bytes(lightest: _Lightest) -> float:
    pressure = np.zeros((2, lightest.stops))
    best = 0.0
    for step in range(STEPS):
        weights = np.exp(pressure - pressure.max())
        bound, loads = lightest.under(weights / weights.sum())
        best = max(best, bound)
        pressure += 3.0 / (1 + step) ** 0.5 * loads / loads.max()
    return best


def _floor_cycles(
    atoms: Atoms, stays: Atoms, lightest: _Lightest, device: DeviceSpec
) -> float:
    cores, stops, ring, sfp = device.cores.count, lightest.stops, device.ring, device.sfp
    to_core = device.clock_mhz / ring.clock_mhz
    rate = ring.bytes_per_cycle / to_core
    holders = {hold: 0 for hold, _ in atoms}
    for (hold, _), n in atoms.items():
        holders[hold] += n
    may = np.array([[hold >> c & 1 for c in range(cores)] for hold in holders], bool)
    held = np.array([*holders.values()], float) / rate
    kept = _Kept.of(stays, cores, rate, sfp.shuffle_bytes_per_cycle)
    senders, vectors = slice(2 * stops, 2 * stops + cores), slice(2 * stops + cores, None)
    fixed = np.full(2 * stops + 2 * cores, float(ring.start_cycles + ring.run_cycles))
    fixed[: 2 * stops] += ring.hop_cycles * to_core
    fixed[vectors] = sfp.start_cycles if stays else 0
    pressure = np.zeros(len(fixed))
    best = 0.0
    for step in range(STEPS):
        weights = np.exp(pressure - pressure.max())
        weights /= weights.sum()
        moved, loads = lightest.under(weights[: 2 * stops].reshape(2, stops))
        costs = np.where(may, weights[senders], np.inf)
        sender = costs.argmin(axis=1)
        cost, occupied = kept.under(weights, stops)
        cheapest = float(held @ costs.min(axis=1)) + cost
        best = max(best, moved / rate + cheapest + float(fixed @ weights))
        busy = np.concatenate([loads.reshape(-1) / rate, np.zeros(2 * cores)])
        np.add.at(busy, senders.start + sender, held)
        busy += occupied + fixed
        pressure += 3.0 / (1 + step) ** 0.5 * busy / busy.max()
    return best


@dataclass(frozen=True)
class _Kept:
    """Bytes that stay, [atom], of which [atom, core] is held and wanted; ``takes``: cycles a byte
    of a vector unit, of a sender and of a segment."""

    nbytes: Floats
    held: npt.NDArray[np.bool_]
    wanted: npt.NDArray[np.bool_]
    takes: tuple[float, float, float]

    @staticmethod
    def of(stays: Atoms, cores: int, rate: float, copied: float) -> _Kept:
        masks = np.array([*stays], np.int64).reshape(-1, 2)
        held, wanted = (masks[:, i, None] >> np.arange(cores) & 1 > 0 for i in range(2))
        nbytes = np.array([*stays.values()], float)
        return _Kept(nbytes, held, wanted, (1 / copied, 1 / rate, 1 / rate))

    def under(self, weights: Floats, stops: int) -> tuple[float, Floats]:
        """Bytes times weight of the lightest ways to serve all that want them, and how long these
        keep each segment, sender and vector unit busy; ``weights`` in that order."""
        cores = self.held.shape[1]
        core = np.arange(cores)
        vector, sender = 2 * stops + cores + core, 2 * stops + core
        into = np.stack([(core - 1) % stops, stops + core])
        into = into[weights[into].argmin(axis=0), core]
        ways = np.stack([vector, sender, into])
        weighed = weights[ways] * np.array(self.takes)[:, None]
        own, brought = weighed[:2].min(axis=0), weighed.min(axis=0)
        # served by themselves, or some over a segment and one holder's sender for all of these
        alone = self.wanted @ own
        among = np.where(self.held, weighed[1], np.inf)
        helped = self.wanted @ brought + among.min(axis=1, initial=np.inf)
        help_ = (helped < alone) & (self.held.sum(axis=1) > 1)
        busy = np.zeros(len(weights))
        for helps, some in ((False, weighed[:2]), (True, weighed)):
            how = some.argmin(axis=0)
            nbytes = (self.nbytes * (help_ == helps)) @ self.wanted
            np.add.at(busy, ways[how, core], nbytes * np.array(self.takes)[how])
        np.add.at(busy, sender[among[help_].argmin(axis=1)], self.nbytes[help_] * self.takes[1])
        return float(self.nbytes @ np.where(help_, helped, alone)), busy
