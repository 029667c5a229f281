"""The vector unit on elements of 8 bits: a group of 64 is half a stick, and the halves of a stick
are interleaved in groups of eight, as the matrix unit reads them (see arrange)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrange import INTERLEAVED
from .formats import decode, encode, format_of
from .isa import LANES, STICK
from .memory import Image
from .view import Grid, broadcast, read_groups, write_groups

Array = NDArray[Any]
HALVES = INTERLEAVED.lanes.reshape(2, LANES)
"""For each half of a stick the lanes of its elements in order."""


def read_vector(
    image: Image, where: Grid, dtype: str, fill: int = 0, lanes: int = LANES
) -> Array:
    """``view.read_groups`` for operands of the vector unit: in 8 bits ``where`` counts halves."""
    kind = format_of(dtype)
    if kind.bits != 8:
        return read_groups(image, where, dtype, fill, lanes)
    pattern = np.array(fill, np.uint32).view(kind.value)
    out = np.full((*where.counts, lanes), pattern, kind.value)
    mask = where.inside()
    halves = where.addresses()[mask]
    if len(halves):
        sticks = halves // 2
        image.check_range(int(sticks.min()), int(sticks.max()) + 1)
        flags = image.valid[sticks]
        if not flags.all():
            image.check_written(flags, int(sticks[np.argmin(flags)]))
        spread = HALVES[halves % 2, :lanes]
        raw = image.data.reshape(-1, STICK)[sticks[:, None], spread]
        out[mask] = decode(raw.view(kind.storage), dtype)
    return out


def write_vector(image: Image, where: Grid, values: Array, dtype: str) -> None:
    """``view.write_groups`` for operands of the vector unit: in 8 bits ``where`` counts halves."""
    if format_of(dtype).bits != 8:
        write_groups(image, where, values, dtype)
        return
    image.check_writable()
    mask = where.inside()
    halves = where.addresses()[mask]
    if len(halves):
        sticks = halves // 2
        image.check_range(int(sticks.min()), int(sticks.max()) + 1)
        bits = broadcast(encode(values, dtype), (*where.counts, LANES))[mask]
        image.data.reshape(-1, STICK)[sticks[:, None], HALVES[halves % 2]] = bits
        image.valid[sticks] = True
