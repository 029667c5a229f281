"""Building `kernel` ops and small facts about them; reading one as an affine nest is in
spyrec.ir.tiles."""

from __future__ import annotations

from collections.abc import Sequence

from spyrec.ir.layout import Layout
from spyrec.ir.tiles import GROUP, Box, Map, Nest, Range, Row, clip, spans, window
from spyrec.ir.types import TensorType

__all__ = [
    "GROUP",
    "Box",
    "Map",
    "Nest",
    "Range",
    "Row",
    "box_elements",
    "clip",
    "identity_map",
    "memory_order",
    "padded",
    "rank1",
    "spans",
    "window",
]


def box_elements(box: Box) -> int:
    n = 1
    for _, size in box:
        n *= size
    return n


def rank1(type_: TensorType) -> tuple[int, ...]:
    """The static shape with scalars seen as one element."""
    return type_.static_shape or (1,)


def identity_map(shape: Sequence[int], full: Sequence[int], n_dims: int) -> Map:
    """The map of a tensor that broadcasts (right-aligned) into the kernel dimensions
    0..len(full)-1."""
    rows: list[Row] = []
    lead = len(full) - len(shape)
    for i, extent in enumerate(shape):
        coefs = [0] * n_dims
        if extent != 1 or full[lead + i] == 1:
            coefs[lead + i] = 1
        rows.append((0, tuple(coefs)))
    return tuple(rows)


def padded(n: int, grain: int) -> int:
    return -(-n // grain) * grain


def memory_order(layout: Layout) -> tuple[int, ...]:
    """The dimensions outermost first, as ``Layout.stick`` takes them."""
    return tuple(dict.fromkeys(digit.dim for digit in layout.digits if digit.axis == "mem"))
