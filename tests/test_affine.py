"""Ops as moves and the properties of moves, against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from move_steps import (
    MAKERS,
    SIMPLE,
    evaluate,
    factored,
    move_of,
    numbered,
    op,
    small_shapes,
    steps,
)

from spyrec.ir.affine import (
    AffineMap,
    as_move,
    compose,
    inverse_if_permutation,
    is_view,
    windows,
)

# Ops as moves


@pytest.mark.parametrize("name", sorted(MAKERS))
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_an_op_is_the_move_it_says(name, data):
    x = numbered(data.draw(small_shapes))
    step, y = data.draw(steps(x, [name]))
    spec = as_move(step)
    if spec is None:
        assert name == "reshape"
        first, second = move_of(step)
        assert (evaluate(second, [evaluate(first, [x])]) == y).all()
        return
    assert spec.shape == y.shape and spec.operands == tuple(v.type.shape for v in step.operands)
    got = evaluate(spec, [x] * len(step.operands))
    assert (got == y).all() and (np.signbit(got) == np.signbit(y)).all()


@given(small_shapes, st.data())
@settings(max_examples=150, deadline=None)
def test_a_reshape_has_one_piece_exactly_when_there_is_a_common_refinement(shape, data):
    x = numbered(shape)
    target = data.draw(factored(x.size))
    spec = as_move(op("reshape", [x], [x.reshape(target)], shape=target))

    def ends(s):
        return {math.prod(s[k:]) for k in range(len(s) + 1)}

    chain = sorted(ends(shape) | ends(target))
    assert (spec is not None) == all(b % a == 0 for a, b in itertools.pairwise(chain))
    if spec is not None:
        assert len(spec.pieces) == 1 and is_view(spec)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_concat_and_split_of_different_tensors(data):
    shape = data.draw(small_shapes)
    axis = data.draw(st.integers(0, len(shape) - 1))
    sizes = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    parts = [
        numbered((*shape[:axis], n, *shape[axis + 1 :]), 1000 * k) for k, n in enumerate(sizes)
    ]
    whole = np.concatenate(parts, axis)
    spec = as_move(op("concat", parts, [whole], axis=axis))
    assert (evaluate(spec, parts) == whole).all()
    cut = op("split", [whole], parts, axis=axis, sizes=sizes)
    for k, part in enumerate(parts):
        assert (evaluate(as_move(cut, k), [whole]) == part).all()


@pytest.mark.parametrize(("mode", "block"), [("DCR", 2), ("CRD", 2), ("DCR", 3), ("CRD", 3)])
def test_depth_and_space(mode, block):
    b, c, h, w = block, 2, 3, 4
    x = numbered((2, c * b * b, h, w))
    if mode == "DCR":
        y = x.reshape(2, b, b, c, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(2, c, h * b, w * b)
    else:
        y = x.reshape(2, c, b, b, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(2, c, h * b, w * b)
    spec = as_move(op("depth_to_space", [x], [y], block=b, mode=mode))
    assert len(spec.pieces) == 1 and (evaluate(spec, [x]) == y).all()
    if mode == "DCR":
        back = as_move(op("space_to_depth", [y], [x], block=b))
        assert back == inverse_if_permutation(spec)
        assert (evaluate(back, [y]) == x).all()


def test_a_move_op_is_read_back():
    x = numbered((2, 3, 4))
    y = x.transpose(2, 0, 1)
    spec = as_move(op("transpose", [x], [y], perm=(2, 0, 1)))
    attrs = {"shape": spec.shape, "fill": spec.fill, "pieces": spec.attr()}
    assert as_move(op("move", [x], [y], **attrs)) == spec
    assert spec.attr() == (
        (
            0, (4, 2, 3),
            ((0, (0, 1, 0)), (0, (0, 0, 1)), (0, (1, 0, 0))),
            ((0, (1, 0, 0)), (0, (0, 1, 0)), (0, (0, 0, 1))),
        ),
    )
    twice = {**attrs, "pieces": spec.attr() * 2}
    assert as_move(op("move", [x], [y], **twice)) is None


def test_ops_that_are_no_moves():
    x = numbered((2, 3))
    assert as_move(op("add", [x, x], [x])) is None
    assert as_move(op("constant", [], [x], value=x)) is None
    lo_hi = {"lo": (1, 1), "hi": (0, 0), "interior": (1, 1)}
    spread = op("pad", [x], [np.zeros((4, 6))], value=5.0, **lo_hi)
    assert as_move(spread) is None


def test_empty_and_scalar_tensors():
    empty = np.zeros((0, 3))
    assert as_move(op("transpose", [empty], [empty.T], perm=(1, 0))).pieces == ()
    assert as_move(op("reshape", [empty], [empty.reshape(3, 0)], shape=(3, 0))).pieces == ()
    one = np.array(5.0)
    spec = as_move(op("broadcast_to", [one], [np.broadcast_to(one, (2, 3))], shape=(2, 3)))
    assert (evaluate(spec, [one]) == 5.0).all()
    spec = as_move(op("reshape", [one], [one.reshape(1, 1)], shape=(1, 1)))
    assert evaluate(spec, [one]).tolist() == [[5.0]]


# Properties of moves


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_inverse_exists_only_for_permutations_and_undoes_them(data):
    x = numbered(data.draw(small_shapes))
    step, y = data.draw(steps(x, ["reshape", "transpose", "reverse", "slice", "tile", "pad"]))
    spec = as_move(step)
    assume(spec is not None)
    back = inverse_if_permutation(spec)
    bijective = sorted(y.ravel()) == sorted(x.ravel())
    assert (back is not None) == bijective
    if back is not None:
        assert (evaluate(back, [y]) == x).all()
        assert is_view(compose(spec, back))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_view_is_what_keeps_row_major_order(data):
    x = array = numbered(data.draw(small_shapes))
    step, array = data.draw(steps(array, [*SIMPLE, "reverse"]))
    spec = as_move(step)
    assume(spec is not None and len(spec.operands) == 1)
    assert is_view(spec) == (array.size == x.size and (array.ravel() == x.ravel()).all())


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_windows_are_the_bounding_boxes_of_images(data):
    dims = data.draw(st.integers(1, 3))
    coef = st.integers(-4, 4)
    rows = data.draw(
        st.lists(
            st.tuples(st.integers(-9, 9), st.lists(coef, min_size=dims, max_size=dims).map(tuple)),
            min_size=1, max_size=3,
        )
    )
    box = [(data.draw(st.integers(-3, 5)), data.draw(st.integers(0, 4))) for _ in range(dims)]
    got = windows(AffineMap(tuple(rows)), box)
    points = list(itertools.product(*(range(s, s + n) for s, n in box)))
    if not points:
        assert all(size == 0 for _, size in got)
        return
    images = np.array([AffineMap(tuple(rows)).at(p) for p in points])
    low, high = images.min(axis=0), images.max(axis=0)
    assert got == tuple((a, b - a + 1) for a, b in zip(low.tolist(), high.tolist(), strict=True))


def test_window_of_a_convolution_is_its_halo():
    """Rows h * 2 + r - 1 of the input for output rows 4..7 and taps 0..2."""
    assert windows(AffineMap(((-1, (2, 1)),)), [(4, 4), (0, 3)]) == ((7, 9),)
