"""Moves against brute force: ops as pieces, chains of ops as one move, permutations undone."""

from __future__ import annotations

import itertools
import math
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spyrec.ir.affine import (
    AffineMap,
    as_move,
    canonical,
    compose,
    inverse_if_permutation,
    is_view,
    renumber,
    reshape_via_flat,
    windows,
)
from spyrec.ir.core import Op, Value
from spyrec.ir.errors import SpyrecError
from spyrec.ir.refine import Term, solve
from spyrec.ir.types import tensor


def evaluate(spec, arrays):
    """The definition of a move, element by element; no element may be written twice."""
    result = np.full(spec.shape, spec.fill)
    written = np.zeros(spec.shape, dtype=bool)
    for piece in spec.pieces:
        for point in itertools.product(*map(range, piece.counts)):
            at, source = piece.dst.at(point), piece.src.at(point)
            assert min(at, default=0) >= 0 and min(source, default=0) >= 0
            assert not written[at]
            written[at] = True
            result[at] = arrays[piece.operand][source]
    return result


def op(name, arrays, results, **attrs):
    operands = tuple(Value(f"x{i}", tensor(a.shape, "f64")) for i, a in enumerate(arrays))
    outs = tuple(Value(f"y{i}", tensor(r.shape, "f64")) for i, r in enumerate(results))
    return Op(name, operands, outs, MappingProxyType(attrs))


def numbered(shape, first=1):
    return np.arange(first, first + math.prod(shape), dtype=float).reshape(shape)


small_shapes = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


@st.composite
def factored(draw, size):
    """A shape of ``size`` elements."""
    shape = []
    while size > 1 and len(shape) < 5:
        factor = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
        shape.append(factor)
        size //= factor
    return tuple(draw(st.permutations([*shape, size])))


@st.composite
def steps(draw, x, names=None):
    """One data movement op on ``x`` and what numpy makes of it."""
    rank = x.ndim
    name = draw(st.sampled_from(names or sorted(MAKERS)))
    assume(rank or name in ("reshape", "broadcast_to", "identity"))
    return MAKERS[name](draw, x)


def reshape(draw, x):
    shape = draw(factored(x.size))
    y = x.reshape(shape)
    return op("reshape", [x], [y], shape=shape), y


def transpose(draw, x):
    perm = tuple(draw(st.permutations(range(x.ndim))))
    return op("transpose", [x], [x.transpose(perm)], perm=perm), x.transpose(perm)


def broadcast_to(draw, x):
    lead = tuple(draw(st.lists(st.integers(1, 3), max_size=1)))
    shape = (*lead, *(draw(st.integers(1, 3)) if n == 1 else n for n in x.shape))
    assume(math.prod(shape) <= 400)
    y = np.broadcast_to(x, shape)
    return op("broadcast_to", [x], [y], shape=shape), y


def slice_(draw, x):
    index, starts, sizes, strides = [], [], [], []
    for n in x.shape:
        start = draw(st.integers(0, n - 1))
        step = draw(st.sampled_from([1, 1, 2, 3, -1, -2]))
        most = (n - 1 - start) // step + 1 if step > 0 else start // -step + 1
        size = draw(st.integers(1, most))
        index.append(np.array([start + k * step for k in range(size)]))
        starts, sizes, strides = [*starts, start], [*sizes, size], [*strides, step]
    y = x[np.ix_(*index)]
    return op("slice", [x], [y], starts=tuple(starts), sizes=tuple(sizes), steps=tuple(strides)), y


def concat(draw, x):
    axis = draw(st.integers(0, x.ndim - 1))
    assume(x.size <= 150)
    y = np.concatenate([x, x], axis)
    return op("concat", [x, x], [y], axis=axis), y


def pad(draw, x):
    lo, hi, gaps = [], [], []
    for n in x.shape:
        gap = draw(st.sampled_from([0, 0, 1, 2]))
        wide = n + (n - 1) * gap
        low = draw(st.integers(-min(2, wide - 1), 3))
        lo, gaps = [*lo, low], [*gaps, gap]
        hi.append(draw(st.integers(max(-2, 1 - wide - low), 2)))
    shape = [n + (n - 1) * g + a + b for n, g, a, b in zip(x.shape, gaps, lo, hi, strict=True)]
    assume(math.prod(shape) <= 800)
    value = 0.0 if any(gaps) else draw(st.sampled_from([0.0, 7.0, -0.0]))
    y = np.full(shape, value)
    for point in np.ndindex(x.shape):
        at = tuple(a + i * (g + 1) for a, i, g in zip(lo, point, gaps, strict=True))
        if all(0 <= i < n for i, n in zip(at, shape, strict=True)):
            y[at] = x[point]
    attrs = {"lo": tuple(lo), "hi": tuple(hi), "mode": "constant", "value": value}
    return op("pad", [x], [y], interior=tuple(gaps), **attrs), y


def pad_mode(draw, x):
    mode = draw(st.sampled_from(["reflect", "edge", "wrap"]))
    assume(mode != "reflect" or min(x.shape) > 1)
    lo = tuple(draw(st.integers(0, 3)) for _ in x.shape)
    hi = tuple(draw(st.integers(0, 3)) for _ in x.shape)
    assume(math.prod(n + 6 for n in x.shape) <= 1500)
    y = np.pad(x, list(zip(lo, hi, strict=True)), mode=mode)
    return op("pad", [x], [y], lo=lo, hi=hi, mode=mode), y


def reverse(draw, x):
    axes = tuple(draw(st.lists(st.integers(0, x.ndim - 1), unique=True)))
    return op("reverse", [x], [np.flip(x, axes)], axes=axes), np.flip(x, axes)


def tile(draw, x):
    repeats = tuple(draw(st.sampled_from([1, 1, 2])) for _ in x.shape)
    assume(x.size * math.prod(repeats) <= 400)
    return op("tile", [x], [np.tile(x, repeats)], repeats=repeats), np.tile(x, repeats)


def identity(draw, x):
    return op("identity", [x], [x]), x


MAKERS = {
    "reshape": reshape, "transpose": transpose, "broadcast_to": broadcast_to, "slice": slice_,
    "concat": concat, "pad": pad, "pad_mode": pad_mode, "reverse": reverse, "tile": tile,
    "identity": identity,
}  # fmt: skip
SIMPLE = ["reshape", "transpose", "broadcast_to", "slice", "concat", "pad"]


def move_of(step):
    """An op as a list of moves that come one after the other."""
    found = as_move(step)
    if found is None:
        return list(reshape_via_flat(step.operands[0].type.shape, step.results[0].type.shape))
    return [found]


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
