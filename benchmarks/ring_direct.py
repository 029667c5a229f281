"""Proofs that no exchange without relays is done within so many core cycles.

*Direct* is an exchange in which a core sends only what it held before. A send goes from one core
to any set of cores at once and lands at one place in all of them, in their new buffers, where it
must belong, or beside these, whence the vector unit of each receiver copies what it wants. New
buffers lie at the same address and are laid out alike on all cores; so what lands in place in two
of them does so only if their boxes begin with the same element. All goes over the ring: nothing
through card memory, and no core packs what it sends. Nothing else is assumed: a send may carry any
part of what its core held, in one contiguous run, and it may reach each receiver either way round.

*Program.* Columns are sends (core, hops up and down, atoms, in place or beside) and copies of what
stays. Each adds its time to what it keeps busy: a sender (set-up, a run, bytes), segments (bytes)
and, beside, the receivers' vector units (bytes, and the start of an instruction for all bytes that
a core wants, at least). Every atom has to come to everybody that wants it. What is busiest, least,
is a linear program, as atoms may be divided and a send may be made in part.

*Whole sends.* Within T cycles a core makes no more than

    (T - bytes that only it holds and somebody lacks / rate) / (set-up + run), rounded down

sends. With these limits a program that needs more than T has no direct exchange within T. This is
much stronger than the fraction: few sends means that they go to many, who have to copy.

*Proof.* Weights w of what may be busy (of all together 1) and prices y of demands bound it from
below, whatever they are:

    sum of y + w * what is fixed + sum over cores of (sends at most) * min(0, cheapest send),

where a send costs the weights of what it keeps busy less the prices of what it brings. The cheapest
one is exact: for given hops each atom is in it if that gains. So the prices may come from anywhere;
they are those of the program with the columns found so far, drawn towards the best ones before.
Nothing here is taken from the code that plans exchanges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack, vstack

from benchmarks.ring_bound import Box, Floats, Ints, cells_of
from spyrec.sim.device import DeviceSpec

Bools = npt.NDArray[np.bool_]

ROUNDS = 60  # of columns
DRAWN = 0.7  # towards the best prices before
MISSING = 20.0  # times the cycles asked for, what a demand costs that nothing brings yet


def ruled_out(
    source: Sequence[Box], dest: Sequence[Box], stick: int, element_bytes: int,
    device: DeviceSpec, cycles: float,
) -> bool:
    """Whether no direct exchange takes at most so many core cycles; False where that is not proved.
    The tensor is as in ``ring_bound``."""
    problem = _Problem.of(source, dest, stick, element_bytes, device, cycles)
    if problem is None:
        return False
    if any(s.most < 1 for s in problem.senders if s.only):
        return True
    return _Program(problem).proves()


@dataclass(frozen=True)
class _Sender:
    """A core and the atoms that it holds and somebody wants. [core, atom]: which cores want them,
    and the cycles in which these copy them where they land beside. ``alike``: sets of receivers
    in which one send may land in place; ``only``: bytes that no other core holds; ``most``:
    sends it can make."""

    core: int
    atoms: Ints
    wanted: Bools
    copies: Floats
    alike: Sequence[Sequence[int]]
    only: float
    most: int


@dataclass(frozen=True)
class _Column:
    """What it keeps busy, and the demands [core, atom] it brings. ``sender``: -1 for a copy."""

    sender: int
    busy: Floats
    brings: Bools
    cost: float = 0.0


@dataclass(frozen=True)
class _Problem:
    """``nbytes`` of the atoms; [core, atom]: who ``wanted`` and who ``held`` them, and the cycles
    in which one that does both copies what it has ``kept``. What may be busy: segments upwards,
    downwards, senders, vector units with all they copy, and with what has landed beside;
    ``fixed``: cycles in which none of these is."""

    nbytes: Floats
    wanted: Bools
    held: Bools
    kept: Floats
    senders: Sequence[_Sender]
    fixed: Floats
    stops: int
    rate: float
    set_up: float
    cycles: float

    @staticmethod
    def of(
        source: Sequence[Box], dest: Sequence[Box], stick: int, element_bytes: int,
        device: DeviceSpec, cycles: float,
    ) -> _Problem | None:
        cores, ring, sfp = device.cores.count, device.ring, device.sfp
        stops, to_core = cores + 1, device.clock_mhz / ring.clock_mhz
        atoms: dict[tuple[int, int], int] = {}
        for hold, want, n in cells_of(source, dest, stick, element_bytes):
            if want:
                atoms[hold, want] = atoms.get((hold, want), 0) + n
        if not any(want & ~hold for hold, want in atoms):
            return None
        nbytes = np.array([*atoms.values()], float)
        masks = np.array([*atoms], np.uint64)
        core = np.arange(cores, dtype=np.uint64)[:, None]
        held, wanted = (masks[:, i] >> core & np.uint64(1) > 0 for i in range(2))
        starts = [tuple(s for s, _ in box) for box in dest]
        rate, set_up = ring.bytes_per_cycle / to_core, float(ring.start_cycles + ring.run_cycles)
        lacked = (wanted & ~held).any(axis=0) & (held.sum(axis=0) == 1)

        def copied(some: Bools) -> Floats:
            """Of some of what each core wants, all out of one core."""
            each = some * nbytes
            all_ = np.maximum(1.0, each.sum(axis=1, keepdims=True))
            return each / sfp.shuffle_bytes_per_cycle + sfp.start_cycles * each / all_

        senders = []
        for c in range(cores):
            if len(mine := np.flatnonzero(held[c] & wanted.any(axis=0))):
                of = wanted[:, mine]
                alike: dict[tuple[int, ...], list[int]] = {}
                for to in np.flatnonzero(of.any(axis=1)):
                    alike.setdefault(starts[to], []).append(int(to))
                only = float(nbytes[held[c] & lacked].sum())
                most = int((cycles - only / rate) / set_up + 1e-9)
                copies = copied(wanted & held[c])[:, mine]
                senders.append(_Sender(c, mine, of, copies, [*alike.values()], only, most))
        fixed = np.zeros(2 * stops + 3 * cores)
        fixed[: 2 * stops] = set_up + ring.hop_cycles * to_core
        fixed[-cores:] = set_up
        return _Problem(
            nbytes, wanted, held, copied(wanted & held), senders, fixed, stops, rate, set_up,
            cycles,
        )

    @property
    def cores(self) -> int:
        return len(self.wanted)

    def copy_rows(self, beside: bool) -> Sequence[slice]:
        """What is busy while vector units copy what stays, or what has landed beside."""
        first = 2 * self.stops + self.cores
        rows = [slice(first + i * self.cores, first + (i + 1) * self.cores) for i in range(2)]
        return rows if beside else rows[:1]

    def bound(self, weights: Floats, prices: Floats) -> tuple[float, list[_Column]]:
        """What the prices [core, atom] prove, and the columns that are too cheap under them."""
        own = self.wanted & self.held
        vector = weights[self.copy_rows(False)[0]]
        copy = np.where(own, vector[:, None] * self.kept - prices, 0.0)
        total = float(prices[self.wanted].sum() + weights @ self.fixed + copy[copy < 0].sum())
        found: list[_Column] = []
        for s in self.senders:
            some = [*self.cheapest(s, weights, prices)]
            least = min((column.cost for column in some), default=0.0)
            total += s.most * min(0.0, least)
            found += [column for column in some if column.cost < 0]
        return total, found

    def cheapest(self, s: _Sender, weights: Floats, prices: Floats) -> Iterator[_Column]:
        """The cheapest send of a core beside, and those in place of each set of receivers."""
        values = np.where(s.wanted, prices[:, s.atoms], 0.0)
        copied = sum(weights[rows] for rows in self.copy_rows(True))
        worth = np.maximum(0.0, values - copied[:, None] * s.copies)
        yield self.sent(s, weights, np.where(worth > 0, worth, 0.0), range(self.cores), True)
        for alike in s.alike:
            yield self.sent(s, weights, values, alike, False)

    def sent(
        self, s: _Sender, weights: Floats, values: Floats, to: Sequence[int], beside: bool
    ) -> _Column:
        """The cheapest send to some of the cores ``to``, of whom each gives the values [core, atom]
        for what it gets: the nearest of them upwards, the nearest downwards, and what pays off."""
        stops, c, hops = self.stops, s.core, np.arange(self.stops - 1)
        ways = (c + hops) % stops, stops + (c - 1 - hops) % stops
        takes = self.nbytes[s.atoms] / self.rate
        away = sorted((t - c) % stops for t in to if t != c and values[t].any())
        far = [0, *away], [0, *(stops - n for n in reversed(away))]
        weight = [
            np.array([0.0, *np.cumsum(weights[way])])[f] for way, f in zip(ways, far, strict=True)
        ]
        given = values[[(c + n) % stops for n in away]]
        here = values[c] if c in to else np.zeros(len(takes))
        up, down = (
            np.vstack([0 * here, np.cumsum(some, axis=0)]) for some in (given, given[::-1])
        )
        sender = weights[2 * stops + c]
        gain = up[:, None] + down[None] + here
        gain -= takes * (sender + weight[0][:, None, None] + weight[1][None, :, None])
        gains = np.maximum(gain, 0.0).sum(axis=2)
        gains[np.add.outer(np.arange(len(up)), np.arange(len(up))) > len(away)] = -1.0
        i, j = divmod(int(gains.argmax()), len(up))
        atoms = gain[i, j] > 0
        reached = [(c + n) % stops for n in (*away[:i], *away[len(away) - j :])]
        reached += [c] if c in to else []
        brings = np.zeros(self.wanted.shape, np.bool_)
        brings[np.ix_(reached, s.atoms)] = (atoms & (values > 0))[reached]
        busy = np.zeros(len(self.fixed))
        took = float(takes[atoms].sum())
        for way, f, n in zip(ways, far, (i, j), strict=True):
            busy[way[: f[n]]] = took
        busy[2 * stops + c] = self.set_up + took
        if beside:
            for rows in self.copy_rows(True):
                busy[rows] = (s.copies * brings[:, s.atoms]).sum(axis=1)
        return _Column(c, busy, brings, float(sender * self.set_up - gains[i, j]))


@dataclass
class _Program:
    """The linear program with the columns found so far."""

    problem: _Problem
    columns: dict[tuple[int, bytes, bytes], _Column] = field(default_factory=dict)

    def proves(self) -> bool:
        """Whether more than ``cycles`` are needed."""
        p = self.problem
        for column in self._begun():
            self._add(column)
        best: tuple[float, Floats, Floats] | None = None
        for _ in range(ROUNDS):
            needed, weights, prices = self._solved()
            if needed <= p.cycles:
                return False
            for drawn in (DRAWN, 0.0) if best else (0.0,):
                if best and drawn:
                    at = tuple(
                        drawn * old + (1 - drawn) * new
                        for old, new in zip(best[1:], (weights, prices), strict=True)
                    )
                else:
                    at = weights, prices
                proved, found = p.bound(*at)
                if proved > p.cycles:
                    return True
                if best is None or proved > best[0]:
                    best = proved, *at
                if sum([self._add(column) for column in found]):
                    break
            else:
                return False  # the prices are the best there are
        return False

    def _add(self, column: _Column) -> bool:
        key = column.sender, column.busy.tobytes(), column.brings.tobytes()
        new = key not in self.columns
        self.columns[key] = column
        return new

    def _begun(self) -> Iterator[_Column]:
        """Copies of what stays, and of each sender all to each receiver and to all."""
        p = self.problem
        for c, atom in np.argwhere(p.wanted & p.held):
            busy, brings = np.zeros(len(p.fixed)), np.zeros(p.wanted.shape, np.bool_)
            busy[p.copy_rows(False)[0]][c] = p.kept[c, atom]
            brings[c, atom] = True
            yield _Column(-1, busy, brings)
        free = np.full(len(p.fixed), 1e-9)  # so that ways are short
        for s in p.senders:
            yield p.sent(s, free, s.wanted * 1.0, range(p.cores), True)
            for to in np.flatnonzero(s.wanted.any(axis=1)):
                yield p.sent(s, free, s.wanted * 1.0, [int(to)], False)

    def _solved(self) -> tuple[float, Floats, Floats]:
        """What is busiest, least, and its weights and prices."""
        p, columns = self.problem, [*self.columns.values()]
        demands, n = np.argwhere(p.wanted), len(columns)
        busy = csr_matrix(np.array([x.busy for x in columns]).T)
        brings = csr_matrix(np.array([x.brings[p.wanted] for x in columns], float).T)
        sends = np.array([[x.sender == s.core for x in columns] for s in p.senders], float)
        ones = csr_matrix(np.ones((len(p.fixed), 1)))
        missing = csr_matrix(np.ones((len(demands), 1)))
        left: Any = vstack([
            hstack([busy, -ones, 0 * ones]), hstack([-brings, 0 * missing, -missing]),
            hstack([csr_matrix(sends), csr_matrix((len(sends), 2))]),
        ])  # fmt: skip
        right = [*-p.fixed, *[-1.0] * len(demands), *(s.most for s in p.senders)]
        costs = [*[0.0] * n, 1.0, MISSING * p.cycles]
        done = linprog(costs, A_ub=left.tocsr(), b_ub=right, method="highs")
        duals = np.maximum(0.0, -done.ineqlin.marginals)
        prices = np.zeros(p.wanted.shape)
        prices[p.wanted] = duals[len(p.fixed) : len(p.fixed) + len(demands)]
        weights = duals[: len(p.fixed)]
        return float(done.fun), weights / weights.sum(), prices
