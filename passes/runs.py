"""How the bytes of a tile lie in card memory: short runs waste the bus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spyrec.ir.arrange import resized_sticks
from spyrec.ir.digits import Whole
from spyrec.ir.layout import Layout
from spyrec.ir.tiles import tile_shape

from .kernel import Nest, memory_order

STICK = 128  # bytes


def buffer_sticks(shape: Sequence[Whole], like: Layout) -> Whole:
    """Sticks of a buffer for a part of that shape of a tensor laid out ``like`` this."""
    return resized_sticks(like, shape)


def sticks_and_run(layout: Layout, sizes: Sequence[Whole]) -> tuple[Whole, Whole]:
    """Sticks of a part of ``sizes`` elements of a tensor, padding included, and how many of them
    lie one after the other: as far as the part covers the innermost memory dimensions.

    >>> sticks_and_run(Layout.stick((8192, 4096), 16, 1), (32, 256))
    (128, 32)
    >>> sticks_and_run(Layout.stick((8192, 4096), 16, 1), (8192, 256))
    (32768, 32768)
    """
    run: Any = max(1, layout.bits // 16)
    sticks, whole = run, True
    for t in reversed(memory_order(layout)):
        unit = layout.unit(t)
        steps = -(-sizes[t] // unit)
        steps = steps + (steps < 1)
        sticks = sticks * steps
        run = run * (1 + (steps - 1) * whole)
        whole = whole & (steps == -(-layout.shape[t] // unit))
    return sticks, run


def bursts(nest: Nest, tile: Sequence[int], burst_bytes: int) -> float:
    """Bursts in which one core loads and stores its part once, tile by tile: fewest when the runs
    of the large tensors reach ``burst_bytes``. Of a move only the result's are known."""
    total = 0.0
    ends = [*zip(nest.op.operands, nest.maps, strict=True)]
    ends += zip(nest.op.results, nest.out_maps, strict=True)
    for v, m in ends:
        layout = v.type.layout
        if m and layout is not None and v.type.space != "lx" and v.type.size > 1:
            part, _ = sticks_and_run(layout, tile_shape(m, nest.local))
            _, run = sticks_and_run(layout, tile_shape(m, tile))
            total += part * STICK / min(run * STICK, burst_bytes)
    return total
