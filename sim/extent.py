"""How much of its iteration space an instruction really works on, trip by trip and core by core:
tails (limits), borders (guards) and the contiguous runs that remain. Timing needs nothing else.

Arrays are int64 of shape [trips or 1, cores or 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from .errors import SimulationError
from .isa import LANES, Guard, Instr, Num

Counts = NDArray[np.int64]


def trip_numbers(loops: Sequence[int]) -> Counts:
    """Every combination of the loops' trip numbers in order of execution: [loops, trips]."""
    if not loops:
        return np.zeros((0, 1), np.int64)
    return np.indices(tuple(loops), dtype=np.int64).reshape(len(loops), -1)


def per_core(value: Num, cores: int) -> Counts:
    """[1, 1] for a number all cores share, else [1, cores]."""
    if isinstance(value, int):
        return np.full((1, 1), value, np.int64)
    if len(value) < cores:
        raise SimulationError(
            f"a per-core number has {len(value)} entries; the kernel runs on {cores} cores"
        )
    return np.array([value[:cores]], np.int64)


def core_value(value: Num, core: int) -> int:
    """The number as one core sees it."""
    return value if isinstance(value, int) else value[core]


def padded(strides: Sequence[int], dims: int) -> tuple[int, ...]:
    """Strides of all ``dims`` dimensions; those not given are 0."""
    return (*strides, *[0] * (dims - len(strides)))


def loop_offset(loops: Sequence[int], trips: Counts) -> Counts:
    """``sum(loops[l] * trip[l])`` for every trip: [trips, 1]."""
    if not any(loops):
        return np.zeros((1, 1), np.int64)
    steps = np.array(loops, np.int64)
    return (steps @ trips[: len(steps)]).reshape(-1, 1)


def effective_counts(instr: Instr, trips: Counts, cores: int) -> list[Counts]:
    """The count of each iteration dimension after its limit."""
    counts = [per_core(count, cores) for count in instr.counts]
    for d, limit in enumerate(instr.limits):
        if limit is not None:
            left = per_core(limit.start, cores) - loop_offset(limit.loops, trips)
            counts[d] = np.clip(left, 0, counts[d])
    return counts


def left_over(
    instr: Instr, dim: int, number: Num, trips: Counts, cores: int, step: int = LANES
) -> Counts:
    """Of ``number`` elements along dimension ``dim``, ``step`` at a time, how many the trips before
    leave: the loops of the dimension's limit count them off. May be negative."""
    limit = instr.limits[dim] if 0 <= dim < len(instr.limits) else None
    done = loop_offset(limit.loops, trips) if limit is not None else np.zeros((1, 1), np.int64)
    return per_core(number, cores) - done * step


def product(counts: Sequence[Counts]) -> Counts:
    return prod(counts, start=np.ones((1, 1), np.int64))


def inside(
    counts: Sequence[Counts], guards: Sequence[Guard], trips: Counts, cores: int
) -> tuple[list[Counts], Counts, set[int]]:
    """Iteration points that pass every guard.

    Returns how many indices of each dimension do, a factor for what cannot be said dimension by
    dimension, and the dimensions that factor stands for (their own entry is 1).
    """
    low = [np.zeros((1, 1), np.int64) for _ in counts]
    high = list(counts)
    factor = np.ones((1, 1), np.int64)
    joint: list[tuple[Counts, Counts, tuple[int, ...], tuple[int, ...]]] = []
    for guard in guards:
        origin = per_core(guard.origin, cores) + loop_offset(guard.loops, trips)
        extent = per_core(guard.extent, cores)
        dims = tuple(d for d, s in enumerate(guard.strides) if s and int(counts[d].max()) > 1)
        strides = tuple(guard.strides[d] for d in dims)
        match dims:
            case ():
                factor = factor * ((origin >= 0) & (origin < extent))
            case (d,):
                first, end = _interval(origin, extent, strides[0])
                low[d] = np.maximum(low[d], first)
                high[d] = np.minimum(high[d], end)
            case _:
                joint.append((origin, extent, dims, strides))
    merged = {d for _, _, dims, _ in joint for d in dims}
    if merged:
        factor = factor * _count_jointly(sorted(merged), low, high, joint)
    own = [
        np.ones((1, 1), np.int64) if d in merged else np.maximum(high[d] - low[d], 0)
        for d in range(len(counts))
    ]
    return own, factor, merged


def _interval(origin: Counts, extent: Counts, stride: int) -> tuple[Counts, Counts]:
    """Indices i with ``0 <= origin + stride * i < extent`` as first and end."""
    if stride > 0:
        return -(origin // stride), -(-(extent - origin) // stride)
    return (origin - extent) // -stride + 1, origin // -stride + 1


def _count_jointly(
    dims: Sequence[int],
    low: Sequence[Counts],
    high: Sequence[Counts],
    guards: Sequence[tuple[Counts, Counts, tuple[int, ...], tuple[int, ...]]],
) -> Counts:
    """Points of the box ``low..high`` over ``dims`` that pass guards reaching over several
    dimensions, by trying each."""
    sizes = tuple(max(int(high[d].max()), 0) for d in dims)
    total = np.zeros((1, 1), np.int64)
    for point in np.ndindex(*sizes):
        index = dict(zip(dims, point, strict=True))
        ok = np.ones((1, 1), np.bool_)
        for d, i in index.items():
            ok = ok & (low[d] <= i) & (i < high[d])
        for origin, extent, over, strides in guards:
            at = origin + sum(index[d] * s for d, s in zip(over, strides, strict=True))
            ok = ok & (at >= 0) & (at < extent)
        total = total + ok
    return total


def run_length(
    counts: Sequence[Counts], strides: Sequence[Sequence[int]], skip: set[int] | None = None
) -> Counts:
    """Length of the contiguous runs, in iteration order, that are contiguous in every one of the
    address sequences ``strides`` (each in the unit a run is counted in). Dimensions in ``skip`` end
    a run. At least 1."""
    run = np.ones((1, 1), np.int64)
    going = np.ones((1, 1), np.bool_)
    for d in range(len(counts) - 1, -1, -1):
        single = counts[d] == 1
        follows = np.ones((1, 1), np.bool_)
        for sequence in strides:
            follows = follows & (sequence[d] == run)
        if skip and d in skip:
            follows = np.zeros((1, 1), np.bool_)
        run = np.where(going & ~single & follows, run * counts[d], run)
        going = going & (single | follows)
    return np.maximum(run, 1)


def run_gap(counts: Sequence[Counts], strides: Sequence[int]) -> int | None:
    """From the start of a contiguous run to that of the next, in the unit of ``strides``; None when
    all is one run."""
    run = 1
    for count, stride in zip(reversed(counts), reversed(strides), strict=True):
        most = int(count.max())
        if most > 1 and stride != run:
            return abs(stride)
        run *= most
    return None
