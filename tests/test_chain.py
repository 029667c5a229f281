"""Chains of moves as one move, and where two mixed radices meet, against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from move_steps import evaluate, move_of, numbered, op, small_shapes, steps

from spyrec.ir.affine import (
    as_move,
    canonical,
    compose,
    inverse_if_permutation,
    is_view,
    renumber,
    reshape_via_flat,
)
from spyrec.ir.errors import SpyrecError
from spyrec.ir.refine import Term, solve

# Chains


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_random_chains_compose_to_one_equal_move(data):
    x = array = numbered(data.draw(small_shapes))
    whole = None
    for _ in range(data.draw(st.integers(2, 4))):
        step, array = data.draw(steps(array))
        for spec in move_of(step):
            spec = renumber(spec, [0] * len(spec.operands))
            whole = spec if whole is None else compose(whole, spec)
            assume(whole is not None)
    assert whole.operands == (x.shape,)
    got = evaluate(whole, [x])
    assert (got == array).all() and (np.signbit(got) == np.signbit(array)).all()
    assert canonical(whole) == whole


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_permutation_chains_always_compose_when_digits_refine(data):
    """Powers of two always have a common refinement, so nothing may be refused."""
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=4)))
    assume(math.prod(shape) <= 512)
    x = array = numbered(shape)
    whole = None
    for _ in range(data.draw(st.integers(2, 6))):
        step, array = data.draw(steps(array, ["reshape", "transpose"]))
        (spec,) = move_of(step)
        whole = spec if whole is None else compose(whole, spec)
        assert whole is not None and len(whole.pieces) == 1
    assert (evaluate(whole, [x]) == array).all()
    back = inverse_if_permutation(whole)
    assert (evaluate(back, [array]) == x).all()
    there_and_back = compose(whole, back)
    assert is_view(there_and_back) and len(there_and_back.pieces[0].counts) <= len(shape)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_composing_into_one_operand_of_several(data):
    x, other = numbered((4, 6)), numbered((2, 6), 500)
    step, y = data.draw(steps(x, ["slice", "reverse", "pad"]))
    assume(y.shape[0] <= 12)
    side = np.resize(other, (2, y.shape[1]))
    order = data.draw(st.booleans())
    parts = [y, side] if order else [side, y]
    second = as_move(op("concat", parts, [np.concatenate(parts)], axis=0))
    one = compose(as_move(step), second, 0 if order else 1)
    fill = as_move(step).fill
    assume(one is not None)
    arrays = [x, side] if order else [side, x]
    assert one.operands == tuple(a.shape for a in arrays)
    assert (evaluate(one, arrays) == np.concatenate(parts)).all()
    assert one.fill in (fill, 0.0)


def test_concat_of_two_concats_is_one_move_of_their_operands():
    a, b, c = numbered((2, 3)), numbered((1, 3), 50), numbered((4, 3), 90)
    inner = as_move(op("concat", [a, b], [np.concatenate([a, b])], axis=0))
    outer = as_move(op("concat", [np.zeros((3, 3)), c], [np.zeros((7, 3))], axis=0))
    one = compose(inner, outer)
    assert one.operands == ((2, 3), (1, 3), (4, 3))
    assert (evaluate(one, [a, b, c]) == np.concatenate([a, b, c])).all()
    assert len(one.pieces) == 3


def test_slices_of_slices_and_undone_pads_have_one_piece():
    x = numbered((20,))
    every = op("slice", [x], [x[1::2]], starts=(1,), sizes=(10,), steps=(2,))
    third = op("slice", [x[1::2]], [x[1::2][9::-3]], starts=(9,), sizes=(4,), steps=(-3,))
    one = compose(as_move(every), as_move(third))
    assert one.attr() == ((0, (4,), ((19, (-6,)),), ((0, (1,)),)),)
    padded = np.pad(x, 3)
    wide = as_move(op("pad", [x], [padded], lo=(3,), hi=(3,), value=9.0))
    crop = as_move(op("slice", [padded], [x], starts=(3,), sizes=(20,), steps=(1,)))
    assert is_view(compose(wide, crop)) and compose(wide, crop).fill == 0.0


def test_reshape_without_refinement_composes_to_a_few_pieces():
    x = numbered((2, 3))
    assert as_move(op("reshape", [x], [x.reshape(3, 2)], shape=(3, 2))) is None
    one = compose(*reshape_via_flat((2, 3), (3, 2)))
    assert (evaluate(one, [x]) == x.reshape(3, 2)).all()
    assert is_view(one) and 1 < len(one.pieces) <= 4
    assert compose(*reshape_via_flat((101, 103), (103, 101))) is None


def test_two_fill_values_do_not_fit_in_one_move():
    x = numbered((4,))

    def border(array, n, value):
        made = np.pad(array, n, constant_values=value)
        return as_move(op("pad", [array], [made], lo=(n,), hi=(n,), value=value)), made

    first, y = border(x, 1, 2.0)
    same, z = border(y, 1, 2.0)
    other, _ = border(y, 1, 3.0)
    negative, _ = border(y, 1, -0.0)
    assert (evaluate(compose(first, same), [x]) == z).all()
    assert compose(first, other) is None
    assert compose(border(x, 1, 0.0)[0], negative) is None
    nan = compose(border(x, 1, math.nan)[0], border(y, 1, math.nan)[0])
    assert len(nan.pieces) == 1 and math.isnan(nan.fill)


def test_repeating_a_tensor_becomes_a_dimension_that_stays():
    x = numbered((3, 4))
    spec = as_move(op("concat", [x, x], [np.concatenate([x, x])], axis=0))
    assert len(spec.pieces) == 2
    (piece,) = renumber(spec, (0, 0)).pieces
    assert piece.counts == (2, 3, 4) and piece.src.step(0) == (0, 0)
    with pytest.raises(SpyrecError, match=r"cannot be numbered \(0, 2\): each needs a number"):
        renumber(spec, (0, 2))


def test_heads_of_attention_are_one_piece_there_and_back():
    x = numbered((1, 6, 8))
    heads = x.reshape(1, 6, 2, 4).transpose(0, 2, 1, 3)
    split = as_move(op("reshape", [x], [x.reshape(1, 6, 2, 4)], shape=(1, 6, 2, 4)))
    swap = as_move(op("transpose", [x.reshape(1, 6, 2, 4)], [heads], perm=(0, 2, 1, 3)))
    there = compose(split, swap)
    assert [piece.counts for piece in there.pieces] == [(2, 6, 4)]
    assert (evaluate(there, [x]) == heads).all()
    assert is_view(compose(there, inverse_if_permutation(there)))


def test_shifted_windows_are_nine_pieces():
    """Roll both axes by 3, then cut into windows of 7: each axis has whole windows, the last
    partial one and what came round."""
    x = numbered((56, 56))
    spec = None
    y = x
    for axis in (0, 1):
        starts = [3 if d == axis else 0 for d in (0, 1)], [0, 0]
        sizes = [53 if d == axis else 56 for d in (0, 1)], [3 if d == axis else 56 for d in (0, 1)]
        halves = [
            y[start[0] : start[0] + size[0], start[1] : start[1] + size[1]]
            for start, size in zip(starts, sizes, strict=True)
        ]
        rolled = np.concatenate(halves, axis)
        joined = as_move(op("concat", halves, [rolled], axis=axis))
        for k in (1, 0):
            cut = op("slice", [y], [halves[k]], starts=starts[k], sizes=sizes[k], steps=(1, 1))
            joined = compose(as_move(cut), joined, k)
        joined = renumber(joined, (0, 0))
        spec, y = joined if spec is None else compose(spec, joined), rolled
    assert (y == np.roll(x, (-3, -3), (0, 1))).all()
    tiles = y.reshape(8, 7, 8, 7)
    cut = as_move(op("reshape", [y], [tiles], shape=tiles.shape))
    swap = as_move(op("transpose", [tiles], [tiles.transpose(0, 2, 1, 3)], perm=(0, 2, 1, 3)))
    whole = compose(spec, compose(cut, swap))
    assert len(whole.pieces) == 9
    assert (evaluate(whole, [x]) == tiles.transpose(0, 2, 1, 3)).all()


def test_shapes_that_do_not_fit_are_an_error():
    a = as_move(op("identity", [numbered((2,))], [numbered((2,))]))
    b = as_move(op("identity", [numbered((3,))], [numbered((3,))]))
    with pytest.raises(SpyrecError, match=r"makes shape \(2,\) cannot be operand 0 of a move that"):
        compose(a, b)
    with pytest.raises(SpyrecError, match=r"shape \(2, 3\) cannot become \(7,\): 6 elements"):
        reshape_via_flat((2, 3), (7,))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_solve_finds_every_meeting_once(data):
    def terms(first):
        pairs = data.draw(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 4)), max_size=3))
        return [Term(stride, n, first + k) for k, (stride, n) in enumerate(pairs)]

    left, right, delta = terms(0), terms(0), data.draw(st.integers(-15, 15))
    cells = solve(delta, left, right, 60)
    assume(cells is not None)
    found = []
    for cell in cells:
        for point in itertools.product(*(range(s.count) for s in cell.shared)):
            at = {("left", t.var): 0 for t in left} | {("right", t.var): 0 for t in right}
            for side, var, amount in cell.fixed:
                at[side, var] += amount
            for t, s in zip(point, cell.shared, strict=True):
                at["left", s.left] += t * s.left_scale
                at["right", s.right] += t * s.right_scale
            found.append((tuple(at["left", t.var] for t in left),
                          tuple(at["right", t.var] for t in right)))
    wanted = [
        (i, j)
        for i in itertools.product(*(range(t.count) for t in left))
        for j in itertools.product(*(range(t.count) for t in right))
        if sum(t.stride * a for t, a in zip(left, i, strict=True))
        == delta + sum(t.stride * b for t, b in zip(right, j, strict=True))
    ]
    assert sorted(found) == sorted(wanted)


def test_solve_cuts_a_range_where_the_coarse_digit_steps():
    """20 positions from 2 on in sixes: the rest of one, two whole ones, the start of one."""
    cells = solve(2, [Term(6, 4, 0), Term(1, 6, 1)], [Term(1, 20, 0)], 16)
    assert [tuple(s.count for s in cell.shared) for cell in cells] == [(4,), (2, 6), (4,)]
