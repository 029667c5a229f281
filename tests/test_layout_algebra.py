"""Layouts against brute force: each element in one slot, each slot accounted for, exact slices."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_strategies import HOST, all_coords, layouts, plain_layouts, slots_of

from spyrec.ir.digits import parse_digit
from spyrec.ir.errors import ParseError, SpyrecError
from spyrec.ir.layout import SUM, Digit, Layout, LayoutError, parse_layout, split_points

# Known facts


def test_a_matrix_is_four_columns_of_sticks():
    layout = Layout.stick((1024, 256), 16, 1)
    assert str(layout) == (
        "[shape 1024x256 bits 16 | 1:4*64 mem, 0:1024*1 mem, 1:64*1 lane | pad undefined]"
    )
    assert [g.size for g in layout.digits] == [4, 1024, 64]
    assert (layout.sticks, layout.dim_stride(0), layout.dim_stride(1)) == (4096, 1, 1024)


def test_default_and_explicit_orders_of_rank_three():
    assert [g.size for g in Layout.stick((5, 100, 150), 16, 2).digits] == [5, 3, 100, 64]
    middle_out = Layout.stick((5, 100, 150), 16, 2, order=(1, 2, 0))
    assert [(g.dim, g.size) for g in middle_out.digits] == [(1, 100), (2, 3), (0, 5), (2, 64)]
    assert [(g.dim, g.size) for g in Layout.stick((5, 100, 150), 16, 1).digits] == [
        (0, 5), (1, 2), (2, 150), (1, 64),
    ]
    assert [(g.dim, g.size) for g in Layout.stick((5, 100, 150), 16, 0).digits] == [
        (0, 1), (1, 100), (2, 150), (0, 64),
    ]


@pytest.mark.parametrize(
    ("bits", "digits"),
    [
        (16, "1:6*64 mem, 0:128*1 mem, 1:64*1 lane"),
        (32, "1:6*64 mem, 0:128*1 mem, 1:2*32 mem, 1:32*1 lane"),
        (8, "1:3*128 mem, 0:128*1 mem, 1:128*1 lane"),
        (4, "1:2*256 mem, 0:128*1 mem, 1:256*1 lane"),
        (64, "1:6*64 mem, 0:128*1 mem, 1:4*16 mem, 1:16*1 lane"),
    ],
)
def test_the_stick_dimension_is_padded_to_whole_groups(bits, digits):
    layout = Layout.stick((128, 384), bits, 1)
    assert str(layout) == f"[shape 128x384 bits {bits} | {digits} | pad undefined]"
    assert layout.sticks * 128 * 8 >= 128 * 384 * bits


def test_67_rows_over_32_cores_use_all_32():
    layout = Layout.stick((67, 128), 16, 1).owned({0: 32}, (0,))
    sizes = [box[0][1] for box in layout.boxes()]
    assert sizes == [3] * 3 + [2] * 29
    assert str(layout.digits[0]) == "0:32*2+3x1 core"
    assert layout.local_shape == (3, 128)
    assert layout.sticks == 6


def test_769_sticks_over_32_cores_use_all_32():
    layout = Layout.stick((1, 769 * 64), 16, 1).owned({1: 32}, (1,))
    groups = [box[1][1] / 64 for box in layout.boxes()]
    assert groups == [25.0] + [24.0] * 31
    assert layout.sticks == 25


def test_longer_columns_are_spread_over_both_halves_of_the_cores():
    layout = Layout.stick((1, 200 * 64), 16, 1).owned({1: 32}, (1,))
    groups = [box[1][1] // 64 for box in layout.boxes()]
    assert groups == [7, 6, 6, 6] * 8
    assert str(layout.digits[0]) == "1:32*384+8x64 core"
    layout = Layout.stick((1, 67 * 64), 16, 1).owned({1: 32}, (1,))
    groups = [box[1][1] // 64 for box in layout.boxes()]
    assert [core for core, n in enumerate(groups) if n == 3] == [0, 10, 21]
    assert sum(groups) == 67 and set(groups) == {2, 3}
    later = layout.slice(((0, 1), (5 * 128 + 64, 128 * 8 + 64)))
    assert str(later.digits[0]) == "1:32*128+3x64-5 core"
    assert [n // 64 for _, n in (box[1] for box in later.boxes())][:8] == [2] * 5 + [3, 2, 2]


def test_cuts_of_rows_and_into_few_or_too_many_parts_have_long_parts_first():
    rows = [size for _, size in split_points(40, 32)]
    assert rows == [2] * 8 + [1] * 24
    assert [size // 64 for _, size in split_points(6 * 64, 4, 64)] == [2, 2, 1, 1]
    assert [size // 64 for _, size in split_points(28 * 64, 32, 64)] == [1] * 28 + [0] * 4


def test_more_cores_than_parts_leave_cores_without_elements():
    layout = Layout.stick((5, 64), 16, 1).owned({0: 8}, (0,))
    assert [box[0] for box in layout.boxes()] == [(i, 1) for i in range(5)] + [(5, 0)] * 3
    assert all(size == 0 for box in layout.boxes()[5:] for _, size in box)


def test_rank_zero_is_one_element():
    layout = Layout.stick((), 16, 0)
    assert layout.shape == (1,)
    packed = layout.pack(np.array(7, np.uint16), fill=9)
    assert packed.shape == (1, 1, 64)
    assert packed[0, 0, 0] == 7 and (packed[0, 0, 1:] == 9).all()


def test_core_order_last_is_fastest():
    layout = Layout.stick((4, 256), 16, 1).owned({0: 2, 1: 4}, (1, 0))
    cores = layout.locate([[0, 0], [2, 0], [0, 64], [3, 255]])[0]
    assert cores.tolist() == [0, 1, 2, 7]


def test_widening_interleave_is_a_layout_too():
    """Column 64 p + 8 g + 4 s + e: sixteen lanes groups g, e over two sticks s."""
    digits = (
        Digit(0, 2, 64, "mem"), Digit(0, 2, 4, "mem"),
        Digit(0, 8, 8, "lane"), Digit(0, 4, 1, "lane"),
    )
    layout = Layout((128,), 32, digits)
    column = np.arange(128)
    _, _, stick, lane = layout.locate(column[:, None])
    assert (stick == column // 64 * 2 + column // 4 % 2).all()
    assert (lane == column % 64 // 8 * 4 + column % 4).all()
    assert (layout.unpack(layout.pack(column.astype(np.int32))) == column).all()


# Elements and slots


@given(plain_layouts())
@settings(max_examples=60, deadline=None)
def test_plain_addresses_are_those_of_the_written_rule(layout):
    """The rule spelled out by hand: group coordinates in memory order, row-major."""
    s = layout.stick_dim
    order = [g.dim for g in layout.digits[: len(layout.shape)]]
    extents = [-(-layout.shape[d] // layout.group) if d == s else layout.shape[d] for d in order]
    per_group = layout.group // layout.lanes
    coords = all_coords(layout.shape)
    core, loop, stick, lane = layout.locate(coords)
    for point, got in zip(coords.tolist(), zip(stick, lane, strict=True), strict=True):
        address = 0
        for d, extent in zip(order, extents, strict=True):
            address = address * extent + (point[d] // layout.group if d == s else point[d])
        inside = point[s] % layout.group
        assert got == (address * per_group + inside // layout.lanes, inside % layout.lanes)
    assert not core.any() and not loop.any()


@given(layouts())
@settings(max_examples=150, deadline=None)
def test_every_element_has_one_slot_per_copy_and_every_slot_is_accounted_for(layout):
    copies = math.prod(g.size for g in layout.digits if g.dim == -1)
    slots = slots_of(layout)
    held = layout.element(*slots).reshape(-1, len(layout.shape))
    alive = (held >= 0).all(axis=1)
    assert (held[~alive] == -1).all()
    flat = np.ravel_multi_index(tuple(held[alive].T), layout.shape)
    count = np.bincount(flat, minlength=math.prod(layout.shape))
    assert (count == copies).all()
    coords = all_coords(layout.shape)
    assert (layout.element(*layout.locate(coords)) == coords).all()


@given(layouts())
@settings(max_examples=100, deadline=None)
def test_boxes_say_what_locate_says(layout):
    coords = all_coords(layout.shape)
    core = layout.locate(coords)[0]
    for c, box in enumerate(layout.boxes()):
        inside = np.ones(len(coords), dtype=bool)
        for d, (start, size) in enumerate(box):
            inside &= (coords[:, d] >= start) & (coords[:, d] < start + size)
        held = layout.element(c, *np.indices((layout.loops, layout.sticks, layout.lanes)))
        assert inside.sum() == (held[..., 0] >= 0).sum()
        assert (core[inside] <= c).all()
        assert all(s <= m for (_, s), m in zip(box, layout.local_shape, strict=True))
    shapes_ = np.array([[size for _, size in box] for box in layout.boxes()])
    assert tuple(shapes_.max(axis=0)) == layout.local_shape


@given(plain_layouts(), st.data())
@settings(max_examples=100, deadline=None)
def test_owned_parts_are_the_split_points(layout, data):
    dim = data.draw(st.integers(0, len(layout.shape) - 1))
    atom = layout.group if dim == layout.stick_dim else 1
    parts, grain = data.draw(st.integers(1, 40)), atom * data.draw(st.integers(1, 3))
    owned = layout.owned({dim: parts}, (dim,), {dim: grain})
    assert [box[dim] for box in owned.boxes()] == split_points(layout.shape[dim], parts, grain)
    largest = max(size for _, size in split_points(layout.shape[dim], parts, grain))
    assert owned.sticks == layout.sticks // -(-layout.shape[dim] // atom) * -(-largest // atom)


@given(st.integers(0, 400), st.integers(1, 40), st.integers(1, 70))
def test_split_points_are_balanced(extent, parts, grain):
    points = split_points(extent, parts, grain)
    assert len(points) == parts
    position = 0
    for start, size in points:
        assert start == position
        position += size
    assert position == extent
    units = [-(-size // grain) for _, size in points]
    assert max(units) - min(units) <= 1
    assert all(size % grain == 0 for start, size in points if start + size < extent)


@given(layouts(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_pack_puts_each_element_in_its_slot_and_unpack_takes_it_back(layout, random):
    fill = 77
    size = math.prod(layout.shape)
    values = np.array([random.randrange(100) for _ in range(size)]).reshape(layout.shape)
    array = values.astype(HOST[layout.bits])
    packed = layout.pack(array, fill)
    assert packed.shape == (layout.cores, layout.loops * layout.sticks, layout.lanes)
    held = layout.element(*slots_of(layout)).reshape(*packed.shape, len(layout.shape))
    alive = held[..., 0] >= 0
    assert (packed[~alive] == fill).all()
    assert (packed[alive] == array[tuple(held[alive].T)]).all()
    back = layout.unpack(packed)
    assert back.dtype == array.dtype and (back == array).all()


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_pack_of_a_layout_that_does_not_nest_exactly(layout):
    """A slice keeps its parent's digits, which then cover more than the part: no plain reshape."""
    box = tuple((0, -(-n // 2)) for n in layout.shape)
    part = layout.slice(box)
    array = np.arange(math.prod(part.shape)).reshape(part.shape).astype(HOST[part.bits])
    packed = part.pack(array)
    held = part.element(*slots_of(part)).reshape(*packed.shape, len(part.shape))
    alive = held[..., 0] >= 0
    assert (packed[alive] == array[tuple(held[alive].T)]).all()
    assert (part.unpack(packed) == array).all()


def test_packing_32_megabytes_of_weights_is_quick():
    for stick_dim in (0, 1):
        layout = Layout.stick((4097, 4096), 16, stick_dim)
        array = np.arange(4097 * 4096, dtype=np.uint32).astype(np.uint16).reshape(layout.shape)
        begin = time.perf_counter()
        packed = layout.pack(array)
        assert time.perf_counter() - begin < 2.0
        assert (layout.unpack(packed) == array).all()


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_whole_forgets_division_only(layout):
    whole = layout.whole()
    order = [g.dim for g in whole.digits if g.axis == "mem"]
    assert whole.cores == whole.loops == 1
    assert order == [g.dim for g in layout.digits if g.axis == "mem"]
    kept = [(g.dim, g.stride) for g in layout.digits if g.axis in ("mem", "lane")]
    assert [(g.dim, g.stride) for g in whole.digits] == kept
    assert (whole.element(*whole.locate(all_coords(whole.shape))) == all_coords(whole.shape)).all()


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_dim_stride_is_the_step_locate_shows(layout):
    core, loop, stick, lane = layout.locate(all_coords(layout.shape))
    grids = [x.reshape(layout.shape) for x in (core, loop, stick, lane)]
    for dim in range(len(layout.shape)):
        unit = layout.group if dim == layout.stick_dim else 1
        step = layout.dim_stride(dim)
        a = [np.moveaxis(g, dim, 0)[:-unit] for g in grids]
        b = [np.moveaxis(g, dim, 0)[unit:] for g in grids]
        same_part = (a[0] == b[0]) & (a[1] == b[1])
        assert ((b[2] - a[2])[same_part] == step).all()


def test_tiles_cut_each_part_into_trips():
    layout = Layout.stick((67, 256), 16, 1).owned({0: 4}, (0,)).tiled({0: 5, 1: 128}, (1, 0))
    assert [str(g) for g in layout.digits] == [
        "0:4*16+3x1 core", "1:2*128 loop", "0:4*5 loop", "1:2*64 mem", "0:5*1 mem", "1:64*1 lane",
    ]
    assert (layout.loops, layout.sticks, layout.tile_shape) == (8, 10, (5, 128))
    core, loop, stick, lane = (int(x[0]) for x in layout.locate([[17 + 11, 200]]))
    assert (core, loop, stick, lane) == (1, 4 + 2, 5 + 1, 200 - 128 - 64)


# Slices


@given(layouts(), st.data())
@settings(max_examples=200, deadline=None)
def test_a_slice_lies_where_its_elements_lie_or_says_why_not(layout, data):
    box = []
    for n in layout.shape:
        start = data.draw(st.sampled_from([0, 0, min(64, n - 1), data.draw(st.integers(0, n - 1))]))
        box.append((start, data.draw(st.integers(1, n - start))))
    start = np.array([s for s, _ in box])
    points = all_coords(tuple(n for _, n in box))
    there = np.stack(layout.locate(points + start)) - np.stack(layout.locate([start]))
    try:
        part = layout.slice(tuple(box))
    except LayoutError as error:
        assert "begins inside a" in str(error)
        # Refused only when the digits carry or the first element is not in lane 0 of its dimension.
        lane = layout.locate([start])[3][0]
        trivial = all(s == 0 for s, _ in box)
        assert not trivial and (lane or any(s for s, _ in box))
    else:
        assert part.shape == tuple(n for _, n in box)
        first = np.stack(part.locate(np.zeros_like(start)))
        assert (np.stack(part.locate(points)) - first == there).all()


def test_slices_at_whole_groups_and_whole_parts_are_exact():
    layout = Layout.stick((10, 256), 16, 1).owned({0: 3}, (0,))
    part = layout.slice(((4, 3), (64, 128)))
    assert part.shape == (3, 128)
    assert [g.dim for g in part.digits] == [g.dim for g in layout.digits]
    assert (part.locate(all_coords((3, 128)))[0] == 0).all()


def test_slices_that_cut_a_stick_or_a_part_are_refused():
    layout = Layout.stick((10, 256), 16, 1).owned({0: 3}, (0,))
    with pytest.raises(LayoutError, match="range 3:7 of dimension 0 begins inside a part"):
        layout.slice(((3, 4), (0, 256)))
    with pytest.raises(LayoutError, match=r"range 3:5 of dimension 1 begins inside a stick"):
        layout.slice(((0, 1), (3, 2)))
    with pytest.raises(LayoutError, match="does not lie inside shape"):
        layout.slice(((0, 11), (0, 1)))


# Text and errors


@given(layouts(), st.sampled_from(["undefined", "zero", "-inf", "+inf", "replicated"]))
@settings(max_examples=100, deadline=None)
def test_text_round_trip(layout, pad):
    layout = Layout(layout.shape, layout.bits, layout.digits, pad)
    text = str(layout)
    assert parse_layout(text) == layout
    assert "<" not in text and ">" not in text and hash(parse_layout(text)) == hash(layout)


@given(st.text(max_size=60))
def test_foreign_text_is_refused_with_a_message(text):
    for parse in (parse_layout, parse_digit):
        with pytest.raises(ParseError, match="is not of the form"):
            parse(text)


GOOD = "[shape 2x64 bits 16 | 1:1*64 mem, 0:2*1 mem, 1:64*1 lane | pad zero]"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0:2*1 mem", "0:1*1 mem", "digit 0:1*1 mem reaches 1 of the 2 elements it must cover"),
        ("0:2*1 mem", "0:1*2 mem", "dimension 0 ends in parts of 2 elements"),
        ("0:2*1 mem, ", "", "dimension 0 ends in parts of 2 elements"),
        ("0:2*1 mem", "2:2*1 mem", "digit 2:2*1 mem is of no dimension of a shape of rank 2"),
        ("0:2*1 mem", "0:2*0+1x1 mem", "which needs a core or loop digit with a grain"),
        ("0:2*1 mem", "0:2*0 mem", "digit 0:2*0 mem has empty parts only"),
        ("1:64*1 lane", "1:32*1 lane", "its lanes take 512 bits where a stick has 1024"),
        ("0:2*1 mem, 1:64*1 lane", "1:64*1 lane, 0:2*1 mem", "in the order core, loop, mem, lane"),
        ("0:2*1 mem", "copy:2*0 mem", "counts copies, which needs an even core digit"),
        ("2x64", "2x0", "each dimension must have an element"),
        ("1:1*64 mem", f"1:{10**17}*64 mem, 0:{10**17}*1 mem", "2**62 slots or more"),
        ("pad zero", "pad some", "pad state 'some' is unknown"),
    ],
)
def test_unsound_layouts_are_refused(old, new, message):
    parse_layout(GOOD)
    with pytest.raises(SpyrecError) as caught:
        parse_layout(GOOD.replace(old, new))
    assert message in str(caught.value)


def test_wrong_arguments_are_named():
    layout = Layout.stick((8, 128), 16, 1)
    cases = [
        (lambda: Layout.stick((8,), 16, 1), "stick dimension 1 is not in 0..0"),
        (lambda: Layout.stick((8,), 24, 0), "elements of 24 bits do not fill a stick"),
        (lambda: Layout.stick((8, 8), 16, 0, order=(0, 0)), "does not list each of 2 dimensions"),
        (lambda: layout.owned({0: 2}, ()), "does not name each divided dimension (0) once"),
        (lambda: layout.owned({1: 2}, (1,), {1: 32}), "grain 32 of dimension 1 is not a multiple"),
        (lambda: layout.owned({0: 0}, (0,)), "dimension 0 cannot be cut into 0 parts"),
        (lambda: layout.owned({0: 2}, (0,)).owned({1: 2}, (1,)), "divided already"),
        (lambda: layout.tiled({5: 2}, (5,)), "5 is not a dimension of shape (8, 128)"),
        (lambda: layout.locate([[0, 128]]), "lies outside the shape"),
        (lambda: layout.box(1), "core 1 is not one of the 1 of layout"),
        (lambda: layout.pack(np.zeros((8, 127), np.uint16)), "of shape (8, 128), got (8, 127)"),
        (lambda: layout.pack(np.zeros((8, 128), np.int32)), "type int32 are not 16 bits wide"),
        (lambda: split_points(5, 0), "cannot cut 5 elements into 0 parts in grains of 1"),
    ]
    for call, message in cases:
        with pytest.raises(LayoutError) as caught:
            call()
        assert message in str(caught.value)


def test_two_dimensional_sticks_step_by_what_they_hold():
    """A stick of 2 x 32: two rows are a step of whole sticks, a group of 64 columns is not one."""
    digits = (
        Digit(0, 3, 2, "mem"), Digit(1, 2, 32, "mem"),
        Digit(0, 2, 1, "lane"), Digit(1, 32, 1, "lane"),
    )
    layout = Layout((6, 64), 16, digits)
    assert (layout.element(*layout.locate(all_coords((6, 64)))) == all_coords((6, 64))).all()
    assert (layout.unit(0), layout.dim_stride(0)) == (2, 2)
    with pytest.raises(LayoutError, match="is less than a stick"):
        layout.dim_stride(1)


def test_every_pair_of_ranks_agrees_with_itertools():
    """Brute force over whole slot spaces, no generator involved."""
    for shape, parts in [((3, 70), {0: 2}), ((2, 3, 65), {1: 2, 0: 2}), ((130,), {0: 2})]:
        layout = Layout.stick(shape, 16, len(shape) - 1).owned(parts, tuple(parts))
        seen = set()
        for core, stick, lane in itertools.product(
            range(layout.cores), range(layout.sticks), range(layout.lanes)
        ):
            point = tuple(layout.element(core, 0, stick, lane).tolist())
            if point[0] >= 0:
                assert point not in seen
                seen.add(point)
        assert seen == set(itertools.product(*map(range, shape)))


@given(layouts(), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_terms_are_held_by_neighbours_and_the_sum_by_the_last(layout, terms):
    summed = layout.summed(terms)
    assert summed.terms == layout.terms * terms and summed.cores == layout.cores * terms
    for core in range(summed.cores):
        assert summed.term_box(core) == layout.term_box(core // terms)
        owned = summed.box(core)
        if core % terms < terms - 1:
            assert all(size == 0 for _, size in owned)
        else:
            assert owned == layout.box(core // terms)
    assert parse_layout(str(summed)) == summed
    assert summed.complete() == layout.complete() and layout.complete().terms == 1


def test_a_sum_digit_counts_cores_only():
    layout = Layout.stick((2, 64), 16, 1)
    assert str(layout.summed(4)).split("| ")[1].startswith("sum:4*0 core, ")
    for bad in (Digit(SUM, 4, 1, "core"), Digit(SUM, 4, 0, "loop")):
        with pytest.raises(LayoutError, match="counts terms, which needs an even core digit of"):
            Layout(layout.shape, 16, (bad, *layout.digits))
