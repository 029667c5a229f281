"""Random data movement ops with what numpy makes of them, and moves evaluated by elements."""

from __future__ import annotations

import itertools
import math
from types import MappingProxyType

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from spyrec.ir.affine import as_move, reshape_via_flat
from spyrec.ir.core import Op, Value
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
