"""What is sent over the ring, and which way round: fragments, the segments they pass, and ways that
load the busiest segments less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise

from spyrec.sim.device import DeviceSpec

UP, DOWN = 0, 1
Row = tuple[int, int, int]
"""Neighbouring segments: first, the one after the last, and what their gate is behind the time at
the sender."""
Way = tuple[int, int, tuple[Row, ...]]
"""Direction, ticks of all hops, segments."""


@dataclass(frozen=True)
class Fragment:
    """``nbytes`` in ``runs`` contiguous pieces from ``core`` to the cores of a mask, of which
    those ``far`` are reached the longer way round. ``tail``: core cycles of what is still to be
    done with it when it has arrived."""

    core: int
    cores: int
    nbytes: int
    runs: int = 1
    far: int = 0
    tail: int = 0


def away(f: Fragment, stops: int) -> list[int]:
    """How many stops up from its sender each receiver is, nearest first, without the sender."""
    found = ((c - f.core) % stops for c in range(stops) if f.cores >> c & 1)
    return sorted(n for n in found if n)


@lru_cache(maxsize=1 << 14)
def hops_of(f: Fragment, stops: int) -> tuple[int, int]:
    """Hops up and down."""
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
        tuple(_turned(f, a, h, stops) for f, a, h in zip(fragments, aways, hops, strict=True))
        for _, hops in sorted(found, key=lambda x: x[0])
    )


def _settled(
    fragments: Sequence[Fragment], aways: Sequence[Sequence[int]],
    begin: Sequence[tuple[int, int]], stops: int,
) -> tuple[float, list[tuple[int, int]]]:
    """The load of the busiest segment and each fragment's hops once none gains by another way."""
    loads, hops = [[0.0] * stops, [0.0] * stops], list(begin)
    for f, h in zip(fragments, hops, strict=True):
        add_load(loads, f, h, f.nbytes)
    more = sum(f.nbytes for f in fragments) / len(fragments)
    order = sorted(range(len(hops)), key=lambda i: (-fragments[i].nbytes * sum(hops[i]), i))
    order = [i for i in order if aways[i]]
    best_load, best_hops = max(map(max, loads)), list(hops)
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
            ends = [(0, stops - aways[i][0])]
            ends += [(a, stops - b) for a, b in pairwise(aways[i])]
            ends.append((aways[i][-1], 0))
            best = min(ends, key=lambda e: (up[e[0]] + down[e[1]], sum(e)))
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
def _on_way(core: int, hops: tuple[int, int], stops: int) -> tuple[tuple[int, ...], ...]:
    """Segments that a fragment from a core passes, upwards and downwards."""
    ups = tuple((core + n) % stops for n in range(hops[UP]))
    return ups, tuple(core - 1 - n for n in range(hops[DOWN]))


def add_load(loads: list[list[float]], f: Fragment, hops: tuple[int, int], nbytes: int) -> None:
    for lane, segments in zip(loads, _on_way(f.core, hops, len(loads[0])), strict=True):
        for s in segments:
            lane[s] += nbytes


def _priced(
    prices: list[list[float]], loads: list[list[float]], f: Fragment, hops: tuple[int, int],
    more: float, scale: float,
) -> None:
    segments = _on_way(f.core, hops, len(loads[0]))
    for price, lane, passed in zip(prices, loads, segments, strict=True):
        for s in passed:
            price[s] = ((lane[s] + more) / scale) ** STEEP


def _turned(f: Fragment, aways: Sequence[int], hops: tuple[int, int], stops: int) -> Fragment:
    """The fragment with the receivers within ``hops`` upwards reached upwards, the others
    downwards."""
    turned = [n for n in aways if (n <= stops // 2) != (n <= hops[UP])]
    return replace(f, far=sum(1 << (f.core + n) % stops for n in turned))


@lru_cache(maxsize=1 << 14)
def ways_of(f: Fragment, stops: int, hop: int) -> tuple[Way, ...]:
    """Of a fragment, with so many ticks a hop."""
    up, down = hops_of(f, stops)
    core, found = f.core, []
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
