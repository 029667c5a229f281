"""How the matrix unit wants its factors: which element of a factor lies in which lane of a stick.

Formats of 16 and 32 bits stand in order. Of the narrower ones a stick is a small block of the
factor's matrix: of ``a`` along k (fp8 and int8: two halves of 64 interleaved in groups of eight;
int4: two rows, interleaved likewise), of ``b`` two or four rows of 64 columns. The arrangements are
those the published compiler names QFP8CH and QFP8WT (torch-spyre) and their int4 kin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .formats import format_of
from .isa import LANES, STICK

Array = NDArray[Any]

ACROSS, ALONG = 0, 1


@dataclass(frozen=True)
class Arrangement:
    """The digits of a lane number, the most significant first, as ``(axis, size, stride)``: digit i
    adds ``i * stride`` to the coordinate along (the axis neighbouring lanes run along) or across
    the block of a matrix that a stick is."""

    digits: tuple[tuple[int, int, int], ...]

    @property
    def block(self) -> tuple[int, int]:
        """Elements of the block across and along."""
        across, along = (
            prod(size for axis, size, _ in self.digits if axis == wanted)
            for wanted in (ACROSS, ALONG)
        )
        return across, along

    @cached_property
    def lanes(self) -> NDArray[np.int64]:
        """For each element of the block, row by row, its lane."""
        index = np.indices([size for _, size, _ in self.digits]).reshape(len(self.digits), -1)
        at = [
            sum(index[i] * stride for i, (a, _, stride) in enumerate(self.digits) if a == axis)
            for axis in (ACROSS, ALONG)
        ]
        return np.argsort(np.asarray(at[ACROSS] * self.block[ALONG] + at[ALONG]))

    def blocks(self, sticks: Array) -> Array:
        """Sticks [..., lanes] -> blocks [..., across, along]."""
        return sticks[..., self.lanes].reshape(*sticks.shape[:-1], *self.block)

    def sticks(self, blocks: Array) -> Array:
        """The inverse of ``blocks``."""
        out = np.empty((*blocks.shape[:-2], self.lanes.size), blocks.dtype)
        out[..., self.lanes] = blocks.reshape(out.shape)
        return out


INTERLEAVED = Arrangement(((ALONG, 8, 8), (ALONG, 2, 64), (ALONG, 8, 1)))
ROW_PAIRS = Arrangement(((ACROSS, 2, 1), (ALONG, 64, 1)))
ROW_FOURS = Arrangement(((ACROSS, 4, 1), (ALONG, 64, 1)))
TWO_ROWS = Arrangement(((ALONG, 16, 8), (ACROSS, 2, 1), (ALONG, 8, 1)))

LEFT: dict[str, Arrangement] = {"f8e4m3": INTERLEAVED, "i8": INTERLEAVED, "i4": TWO_ROWS}
"""Format of ``a`` -> its block of rows (across) and k (along), where it does not stand in order."""

RIGHT: dict[str, Arrangement] = {"f8e4m3": ROW_PAIRS, "i8": ROW_PAIRS, "i4": ROW_FOURS}
"""Format of ``b`` -> its block of k (across) and columns (along)."""


def k_step(a: str) -> int:
    """Elements along k that one step of ``kc`` of an ``mm`` takes from ``a`` of that format."""
    return LEFT[a].block[ALONG] if a in LEFT else LANES


def row_block(a: str) -> int:
    """Rows of ``a`` that share its sticks."""
    return LEFT[a].block[ACROSS] if a in LEFT else 1


def row_sticks(b: str, rows: int) -> tuple[int, int]:
    """In how many places ``rows`` rows of 64 columns of ``b`` lie, and how many sticks each is."""
    together = RIGHT[b].block[ACROSS] if b in RIGHT else 1
    return -(-rows // together), max(1, LANES * format_of(b).bits // (8 * STICK))
