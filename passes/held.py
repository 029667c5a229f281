"""A factor that the kernel before has kept in the scratchpads is there already: which tiles it lies
there in, and whether a kernel would find its own in the same places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spyrec.ir.core import Op, Value
from spyrec.ir.tiles import FACTORS, again, around, tile_shape, window

from .kernel import Box, Map, Nest
from .pins import Counts
from .tile_ways import Bools, Tilings


class Lie(NamedTuple):
    """How the tiles of a factor that stays lie in the scratchpads: each core's part of the tensor,
    the ``shape`` of a tile, and of the loops that it varies with, outermost first, how (``rows``)
    and in how many ``trips``."""

    parts: tuple[Box, ...]
    shape: Counts
    rows: tuple[Counts, ...]
    trips: Counts


Kept = tuple[Value, Lie]
"""A tensor whose tiles are all in the scratchpads."""
Offer = tuple[int, Lie]
"""A factor, by number, that the kernel before has left there."""


def offered(op: Op) -> tuple[Kept, ...]:
    """The factors of which all tiles of every core are in the scratchpads when a kernel has ended.
    """
    if op.attrs.get("kind") != "contract" or "tile" not in op.attrs:
        return ()
    nest = Nest(op)
    return tuple(
        (op.operands[i], lie)
        for i in sorted(nest.keep) if _alone(op, i) and (lie := _lie(nest, i)) is not None
    )


def held(op: Op, there: Sequence[Kept]) -> tuple[int, ...]:
    """The factors of a tiled kernel whose tiles are where the kernel before has left them."""
    if not there or op.attrs.get("kind") != "contract":
        return ()
    nest = Nest(op)
    return tuple(
        i for i in sorted(nest.keep)
        if _alone(op, i) and (op.operands[i], _lie(nest, i)) in there
    )


def found_there(ways: Tilings, factor: int, lie: Lie) -> Bools:
    """[way]: does a factor stay in the very places in which it lies?"""
    m = ways.nest.maps[factor]
    same: Bools = ways.keep[factor].copy()
    if _parts(ways.nest, factor) != lie.parts:
        return np.zeros(len(ways), np.bool_)
    for mine, other in zip(tile_shape(m, [*ways.tile]), lie.shape, strict=True):
        same &= mine == other
    for way in np.flatnonzero(same).tolist():
        loops = ways.loops(way)
        trips = [n for n in ways.counts[:, way].tolist() if n > 1]
        same[way] = _inside(m, loops, trips) == (lie.rows, lie.trips)
    return same


def _lie(nest: Nest, factor: int) -> Lie | None:
    """None when other tiles take the places of a factor's tiles meanwhile."""
    m, loops = nest.maps[factor], nest.loops
    inside = _inside(m, loops, [nest.trips(d) for d in loops])
    if inside is None or factor not in nest.keep:
        return None
    return Lie(_parts(nest, factor), tile_shape(m, nest.tile), *inside)


def _parts(nest: Nest, factor: int) -> tuple[Box, ...]:
    return tuple(window(nest.maps[factor], ranges) for ranges in nest.core_ranges)


def _inside(
    m: Map, loops: Counts, trips: Sequence[int]
) -> tuple[tuple[Counts, ...], Counts] | None:
    """How the loops that a tensor varies with move it, and their trips; None unless all of them
    stand inside loops that would bring it again."""
    outer, every = again(m, loops), around(m, loops)
    if not outer or outer != every[: len(outer)]:
        return None
    rows = tuple(tuple(coefs[d] for _, coefs in m) for d in every[len(outer) :])
    return rows, tuple(trips[len(outer) : len(every)])


def _alone(op: Op, operand: int) -> bool:
    """Is it a factor from card memory, and the kernel's only operand of that tensor?"""
    v = op.operands[operand]
    return operand < FACTORS and v.type.space != "lx" and op.operands.count(v) == 1
