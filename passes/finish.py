"""Ending a tile of a matrix kernel in pieces: how many slots what streams in and out has there."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from .kernel import Map, Nest, spans


def piece_slots(nest: Nest, m: Map) -> int:
    """Slots of the buffer of a result, or of what sums are finished with, in the pieces of
    ``nest.finish``; ``m``: its map."""
    pieces = len(nest.pieces) if spans(m, nest.stick) else 1
    trips = prod(nest.trips(d) for d in nest.loops if d in nest.parallel)
    return slots_of(nest.buffers, pieces, trips == 1)


@lru_cache(maxsize=1 << 10)
def slots_of(buffers: int, pieces: int, once: bool) -> int:
    """Slots for so many pieces of a tile where other buffers have ``buffers``. A slot is the same
    in every trip, so that pieces are a multiple of the slots unless there is one trip only
    (``once``)."""
    if once:
        return min(buffers, pieces)
    return next((n for n in range(buffers, pieces + 1) if pieces % n == 0), 1)
