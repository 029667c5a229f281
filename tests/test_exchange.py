"""From one layout or ownership to another, against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_strategies import HOST, all_coords, layouts

from spyrec.ir.exchange import (
    compose,
    exchange,
    exchange_boxes,
    intersect,
    ring_distance,
    subtract,
)
from spyrec.ir.layout import Layout, LayoutError


@given(layouts(), st.data())
@settings(max_examples=60, deadline=None)
def test_compose_maps_slots_through_elements(a, data):
    stick_dim = data.draw(st.integers(0, len(a.shape) - 1))
    b = Layout.stick(a.shape, a.bits, stick_dim).owned({0: 3}, (0,))
    array = np.arange(math.prod(a.shape)).reshape(a.shape).astype(HOST[a.bits])
    packed_a, packed_b = a.pack(array), b.pack(array)
    table = compose(a, b).table()
    flat = packed_a.reshape(table.shape[:4])
    alive = table[..., 0] >= 0
    core, loop, stick, lane = table[alive].T
    assert (packed_b[core, loop * b.sticks + stick, lane] == flat[alive]).all()
    there = compose(a, b)(*a.locate(all_coords(a.shape)))
    back = compose(a, b).inverse()(*there.T)
    assert (back == np.stack(a.locate(all_coords(a.shape)), axis=-1)).all()


def test_identity_of_maps():
    a = Layout.stick((4, 256), 16, 1)
    assert compose(a, Layout((4, 256), 16, a.digits, "zero")).is_identity()
    assert not compose(a, a.owned({0: 2}, (0,))).is_identity()
    assert compose(a.copied(2), a.copied(2)).is_identity()
    assert not compose(a, a.copied(2)).is_identity()
    with pytest.raises(LayoutError, match="not of one shape"):
        compose(a, Layout.stick((4, 255), 16, 1))


# Exchange


@st.composite
def boxes_in(draw, shape, cores):
    def box():
        found = []
        for n in shape:
            start = draw(st.integers(0, n - 1))
            found.append((start, draw(st.integers(0, n - start))))
        return tuple(found)

    return [box() if draw(st.booleans()) else None for _ in range(cores)]


def grid_count(shape, boxes):
    grid = np.zeros(shape, dtype=int)
    for box in boxes:
        grid[tuple(slice(s, s + n) for s, n in box)] += 1
    return grid


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_exchange_covers_each_needed_element_once_from_the_nearest_holder(data):
    layout = data.draw(layouts())
    wanted = data.draw(boxes_in(layout.shape, data.draw(st.integers(1, 5))))
    held = [grid_count(layout.shape, [box]) > 0 for box in layout.boxes()]
    pieces = exchange(layout, wanted)
    stops = max(layout.cores, len(wanted))
    for core, box in enumerate(wanted):
        mine = [p for p in pieces if p.dst_core == core]
        need = grid_count(layout.shape, [box] if box else [])
        assert (grid_count(layout.shape, [p.box for p in mine]) == need).all()
        for piece in mine:
            at = tuple(slice(s, s + n) for s, n in piece.box)
            assert held[piece.src_core][at].all()
            for other, grid in enumerate(held):
                near = ring_distance(other, core, stops)
                if near < ring_distance(piece.src_core, core, stops):
                    assert not grid[at].any()


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_subtract_and_intersect_partition_a_box(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    a, b = (
        tuple(
            (s, data.draw(st.integers(1, n - s)))
            for n in shape
            for s in [data.draw(st.integers(0, n - 1))]
        )
        for _ in range(2)
    )
    common = intersect(a, b)
    pieces = [*subtract(a, b), *([common] if common else [])]
    assert (grid_count(shape, pieces) == grid_count(shape, [a])).all()
    if common:
        assert (grid_count(shape, [common]) <= grid_count(shape, [b])).all()


def test_gather_rows_and_broadcast_to_all():
    src = Layout.stick((32, 64), 16, 1).owned({0: 32}, (0,))
    pieces = exchange(src, [((0, 32), (0, 64))] * 32)
    assert len(pieces) == 32 * 32
    assert all(p.src_core == p.dst_core for p in pieces if p.box[0][0] == p.dst_core)


def test_halo_takes_the_border_rows_from_the_neighbours():
    src = Layout.stick((12, 64), 16, 1).owned({0: 3}, (0,))
    rows = [(0, 5), (3, 6), (7, 5)]
    wanted = [(own, (0, 64)) for own in rows]
    got = [(p.src_core, p.dst_core, p.box[0]) for p in exchange(src, wanted)]
    assert got == [
        (0, 0, (0, 4)), (1, 0, (4, 1)),
        (1, 1, (4, 4)), (0, 1, (3, 1)), (2, 1, (8, 1)),
        (2, 2, (8, 4)), (1, 2, (7, 1)),
    ]


def test_copies_are_read_at_the_nearest_core():
    src = Layout.stick((2, 64), 16, 1).owned({0: 2}, (0,)).copied(4)
    pieces = exchange(src, [None] * 3 + [((0, 2), (0, 64))])
    assert [(p.src_core, p.box[0]) for p in pieces] == [(3, (0, 1)), (4, (1, 1))]


def test_sums_that_lie_on_the_last_core_of_each_group_are_found_there():
    held = [None, ((0, 2), (0, 64)), None, ((2, 2), (0, 64))]
    pieces = exchange_boxes(held, [((0, 4), (0, 64))] * 2)
    assert [(p.src_core, p.dst_core) for p in pieces] == [(1, 0), (3, 0), (1, 1), (3, 1)]


def test_an_element_nobody_holds_is_an_error():
    with pytest.raises(LayoutError, match=r"core 0 needs elements \(\(2, 1\),\) \(start, size"):
        exchange_boxes([((0, 2),)], [((0, 3),)])
