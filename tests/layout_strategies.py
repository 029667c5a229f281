"""Random small layouts and the slot spaces to check them against by brute force."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from spyrec.ir.layout import Layout

HOST = {8: np.uint8, 16: np.uint16, 32: np.int32, 64: np.int64}


@st.composite
def shapes(draw, limit=1500):
    """Small shapes, one dimension of which may be longer than a stick."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    long = draw(st.integers(0, len(shape) - 1))
    shape[long] = draw(st.sampled_from([shape[long], 31, 63, 64, 65, 129, 200]))
    while math.prod(shape) > limit:
        shape[shape.index(max(shape))] //= 2
    return tuple(shape)


@st.composite
def plain_layouts(draw, bits=(8, 16, 32)):
    shape = draw(shapes())
    stick_dim = draw(st.integers(0, len(shape) - 1))
    order = draw(st.none() | st.permutations(range(len(shape))))
    return Layout.stick(shape, draw(st.sampled_from(bits)), stick_dim, order)


@st.composite
def layouts(draw, copies=True):
    """Layouts with ownership, uneven parts, coarse grains, copies and loop tiles."""
    layout = draw(plain_layouts())
    dims = draw(st.lists(st.integers(0, len(layout.shape) - 1), unique=True, max_size=2))
    parts = {d: draw(st.integers(1, 7)) for d in dims}
    coarse = {d: draw(st.integers(1, 3)) for d in dims}
    grains = {d: n * (layout.group if d == layout.stick_dim else 1) for d, n in coarse.items()}
    layout = layout.owned(parts, dims, grains if draw(st.booleans()) else None)
    if copies and draw(st.booleans()):
        layout = layout.copied(draw(st.integers(1, 3)))
    if draw(st.booleans()):
        layout = layout.summed(draw(st.integers(1, 3)))
    tiled = draw(st.lists(st.integers(0, len(layout.shape) - 1), unique=True, max_size=2))
    tiles = {d: draw(st.integers(1, 4)) for d in tiled}
    atoms = {d: layout.group if d == layout.stick_dim else 1 for d in tiled}
    return layout.tiled({d: n * atoms[d] for d, n in tiles.items()}, tiled)


def all_coords(shape):
    return np.indices(shape).reshape(len(shape), -1).T


def slots_of(layout):
    return np.indices((layout.cores, layout.loops, layout.sticks, layout.lanes))
