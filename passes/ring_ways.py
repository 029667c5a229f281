"""What is sent over the ring, and which way round: fragments, the segments they pass, and ways that
load the busiest segments less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

from spyrec.sim.device import DeviceSpec

UP, DOWN = 0, 1
Hops = tuple[int, int]
"""Upwards and downwards."""
Row = tuple[int, int, int]
"""Neighbouring segments: first, the one after the last, and what their gate is behind the time at
the sender."""
Way = tuple[int, int, tuple[Row, ...]]
"""Direction, ticks of all hops, segments."""


@dataclass(frozen=True)
class Fragment:
    """``nbytes`` in ``runs`` contiguous pieces from ``core`` to the cores of a mask, of which
    those ``far`` are reached the longer way round. ``tails``: receivers, and core cycles of what
    their vector units have still to do with it when it has arrived."""

    core: int
    cores: int
    nbytes: int
    runs: int = 1
    far: int = 0
    tails: tuple[tuple[int, int], ...] = ()

    @property
    def tail(self) -> int:
        """Of all receivers the most."""
        return max([cycles for _, cycles in self.tails], default=0)


def bits(mask: int) -> list[int]:
    """The cores of a mask."""
    return [c for c in range(mask.bit_length()) if mask >> c & 1]


def away(f: Fragment, stops: int) -> list[int]:
    """How many stops up from its sender each receiver is, nearest first, without the sender."""
    found = ((c - f.core) % stops for c in range(stops) if f.cores >> c & 1)
    return sorted(n for n in found if n)


@lru_cache(maxsize=1 << 14)
def hops_of(f: Fragment, stops: int) -> Hops:
    """How many hops a fragment goes up and down."""
    ups, downs = [0], [0]
    for n in away(f, stops):
        turned = f.far >> (f.core + n) % stops & 1
        (ups if (n <= stops // 2) != turned else downs).append(n)
    return max(ups), max(((stops - n) % stops for n in downs), default=0)


def evened(fragments: Sequence[Fragment], device: DeviceSpec) -> Sequence[Sequence[Fragment]]:
    """The same fragments by ways that load the busiest segments less, best first. Each is taken off
    and put back where the segments it passes are least loaded, a few times over; begun with all by
    the shorter way, and with one all upwards and the next all downwards."""
    return _evened(tuple(fragments), device.cores.count + 1)


@lru_cache(maxsize=64)
def _evened(fragments: tuple[Fragment, ...], stops: int) -> tuple[tuple[Fragment, ...], ...]:
    aways = [away(f, stops) for f in fragments]
    short = [hops_of(f, stops) for f in fragments]
    turns = [
        (a[-1], 0) if i % 2 and a else (0, stops - a[0]) if a else (0, 0)
        for i, a in enumerate(aways)
    ]
    found = [_settled(fragments, aways, hops, stops) for hops in (short, turns)]
    return tuple(
        tuple(turned(f, h, stops) for f, h in zip(fragments, hops, strict=True))
        for _, hops in sorted(found, key=lambda x: x[0])
    )


def _settled(
    fragments: Sequence[Fragment], aways: Sequence[Sequence[int]],
    begin: Sequence[Hops], stops: int,
) -> tuple[float, list[Hops]]:
    """The load of the busiest segment and each fragment's hops once none gains by another way."""
    loads, hops = [[0.0] * stops, [0.0] * stops], list(begin)
    for f, h in zip(fragments, hops, strict=True):
        add_load(loads, f, h, f.nbytes)
    more = sum(f.nbytes for f in fragments) / len(fragments)
    order = sorted(range(len(hops)), key=lambda i: (-fragments[i].nbytes * sum(hops[i]), i))
    order = [i for i in order if aways[i]]
    best_load, best_hops = max(map(max, loads)), list(hops)
    ends = [choices(f, stops) for f in fragments]
    for _ in range(SWEEPS):
        moved = False
        scale = max(map(max, loads)) or 1.0
        prices = [[((n + more) / scale) ** STEEP for n in lane] for lane in loads]
        for i in order:
            f, core = fragments[i], fragments[i].core
            add_load(loads, f, hops[i], -f.nbytes)
            _priced(prices, loads, f, hops[i], more, scale)
            up = [0.0, *accumulate(prices[UP][core:] + prices[UP][:core])]
            down = [0.0, *accumulate(reversed(prices[DOWN][core:] + prices[DOWN][:core]))]
            best = min(ends[i], key=lambda e: (up[e[0]] + down[e[1]], sum(e)))
            if up[best[0]] + down[best[1]] < 0.999 * (up[hops[i][0]] + down[hops[i][1]]):
                hops[i], moved = best, True
            add_load(loads, f, hops[i], f.nbytes)
            _priced(prices, loads, f, hops[i], more, scale)
        busiest = max(map(max, loads))
        if busiest < best_load:
            best_load, best_hops = busiest, list(hops)
        if not moved:
            break
    return best_load, best_hops


SWEEPS = 4
STEEP = 8  # how much more a loaded segment counts


@lru_cache(maxsize=1 << 14)
def _on_way(core: int, hops: Hops, stops: int) -> tuple[tuple[int, ...], ...]:
    """Segments that a fragment from a core passes, upwards and downwards."""
    ups = tuple((core + n) % stops for n in range(hops[UP]))
    return ups, tuple(core - 1 - n for n in range(hops[DOWN]))


def add_load(loads: list[list[float]], f: Fragment, hops: Hops, nbytes: int) -> None:
    for lane, segments in zip(loads, _on_way(f.core, hops, len(loads[0])), strict=True):
        for s in segments:
            lane[s] += nbytes


def _priced(
    prices: list[list[float]], loads: list[list[float]], f: Fragment, hops: Hops,
    more: float, scale: float,
) -> None:
    segments = _on_way(f.core, hops, len(loads[0]))
    for price, lane, passed in zip(prices, loads, segments, strict=True):
        for s in passed:
            price[s] = ((lane[s] + more) / scale) ** STEEP


@lru_cache(maxsize=1 << 14)
def turned(f: Fragment, hops: Hops, stops: int) -> Fragment:
    """The fragment with the receivers within ``hops`` upwards reached upwards, the others
    downwards."""
    far = [n for n in away(f, stops) if (n <= stops // 2) != (n <= hops[UP])]
    return replace(f, far=sum(1 << (f.core + n) % stops for n in far))


def choices(f: Fragment, stops: int) -> list[Hops]:
    """Hops up and down with which a fragment comes to all its receivers, all downwards first."""
    ups = away(f, stops)
    if not ups:
        return [(0, 0)]
    return [*zip((0, *ups), (*(stops - n for n in ups), 0), strict=True)]


@lru_cache(maxsize=1 << 15)
def ways_of(core: int, hops: Hops, stops: int, hop: int) -> tuple[Way, ...]:
    """Of a fragment from a core, with so many ticks a hop."""
    (up, down), found = hops, []
    if up:
        end = core + up
        rows = [(core, min(end, stops), core), (0, end - stops, core - stops)]
        found.append((UP, up, rows))
    if down:
        end = core - down
        rows = [(max(0, end), core, 1 - core), (end + stops, stops, 1 - core - stops)]
        found.append((DOWN, down, rows))
    return tuple(
        (way, n * hop, tuple((a, b, d * hop) for a, b, d in rows if a < b))
        for way, n, rows in found
    )
