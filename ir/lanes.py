"""Between host arrays and sticks: packing a whole tensor into the slots of its layout and back.
Weights are large, so the common case is one reshape and one transposed copy per core.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .layout import Box, Digit, Layout

Array = npt.NDArray[Any]


def pack(layout: Layout, array: Array, fill: float) -> Array:
    """``array`` of the layout's shape -> ``[cores, loops * sticks, lanes]``, the rest ``fill``."""
    slots = (layout.cores, layout.loops * layout.sticks, layout.lanes)
    full = math.prod(slots) == array.size
    out = np.empty(slots, array.dtype) if full else np.full(slots, fill, array.dtype)
    for core, box in enumerate(layout.boxes()):
        if any(size == 0 for _, size in box):
            continue
        if _nests_exactly(layout):
            _pack_core(layout, array[_index(box)], out[core], fill)
        else:
            coords, alive = _coords(layout, core)
            out[core].reshape(-1)[alive] = array[coords]
    return out


def unpack(layout: Layout, packed: Array) -> Array:
    """``[cores, loops * sticks, lanes]`` -> array of the layout's shape, from first copies."""
    out = np.empty(layout.shape, packed.dtype)
    seen: set[Box] = set()
    for core, box in enumerate(layout.boxes()):
        if box in seen or any(size == 0 for _, size in box):
            continue
        seen.add(box)
        if _nests_exactly(layout):
            cover = _cover(layout)
            local = _by_dim(layout, packed[core]).reshape(cover)
            out[_index(box)] = local[tuple(slice(size) for _, size in box)]
        else:
            coords, alive = _coords(layout, core)
            out[coords] = packed[core].reshape(-1)[alive]
    return out


def _index(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, start + size) for start, size in box)


def _inner(layout: Layout, dim: int) -> tuple[Digit, ...]:
    return layout.nest(dim, "loop", "mem", "lane")


def _cover(layout: Layout) -> tuple[int, ...]:
    """Extents of one core's slots, padding included."""
    return tuple(math.prod(g.size for g in _inner(layout, d)) for d in range(len(layout.shape)))


def _nests_exactly(layout: Layout) -> bool:
    """Whether inside a core's part each digit's stride is what the digits inside it cover."""
    return all(
        digit.stride == math.prod(g.size for g in nest[k + 1 :]) and not digit.long
        for d in range(len(layout.shape))
        for nest in [_inner(layout, d)]
        for k, digit in enumerate(nest)
    )


def _by_dim(layout: Layout, slots: Array) -> Array:
    """A core's slots as a view with an axis for each digit: those of dimension 0 first."""
    listed = [k for k, g in enumerate(layout.digits) if g.axis != "core"]
    wanted = [k for nest in layout.nests for k in nest if k in listed]
    view = slots.reshape([layout.digits[k].size for k in listed])
    return view.transpose([listed.index(k) for k in wanted])


def _pack_core(layout: Layout, local: Array, out: Array, fill: float) -> None:
    cover = _cover(layout)
    if cover != local.shape:
        padded = np.full(cover, fill, local.dtype)
        padded[tuple(slice(n) for n in local.shape)] = local
        local = padded
    target = _by_dim(layout, out)
    target[...] = local.reshape(target.shape)


def _coords(
    layout: Layout, core: int
) -> tuple[tuple[npt.NDArray[np.int64], ...], npt.NDArray[np.bool_]]:
    """Coordinates of the elements ``core`` holds, and which of its slots (flat) hold them."""
    loop, stick, lane = np.indices((layout.loops, layout.sticks, layout.lanes)).reshape(3, -1)
    coords = layout.element(core, loop, stick, lane)
    alive = coords[:, 0] >= 0
    return tuple(coords[alive].T), alive
