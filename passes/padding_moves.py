"""What padding does to ops that move elements, look them up or state them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spyrec.ir.core import Value
from spyrec.ir.types import DTYPES

from .extents import (
    Axis,
    Extents,
    Factor,
    fixed,
    open_factors,
    plain,
    regrouped,
    same,
    scattered,
    size_of,
    spread,
    true_size,
    with_zero,
)
from .padding import Refused, Rule, Site, Tail
from .padding_sums import is_zero

RELATIVE = 1e-6
"""Up to which numbers made in 32-bit floats count as the same."""


def _constant(s: Site) -> Sequence[Extents] | Value:
    arrays = [np.asarray(v) for v in s.attrs("value")]
    axes = [s.seen(a) for a in range(arrays[0].ndim)]
    for sizes, array in zip(s.walk.sizes[1:], arrays[1:], strict=True):
        crop = tuple(slice(0, true_size(axis, sizes)) for axis in axes)
        if arrays[0] is not array and not _alike(arrays[0][crop], array):
            return _follows(s, arrays)
    known = _held(arrays[0], axes)
    dtype = s.op.result.type.dtype
    if known.finite or dtype.name not in ("f32", "f16") or np.isnan(arrays[0]).any():
        return [known]
    # An infinite mask becomes the least number there is, as it does in the device's formats, so
    # that what is masked stays finite.
    most = float(np.finfo(arrays[0].dtype).max)
    return s.constant(np.clip(arrays[0], -most, most), dtype, axes)


def _held(array: Any, axes: Sequence[Axis]) -> Extents:
    if array.dtype.kind == "b" or not array.size:
        return Extents(tuple(axes), True, 0.0)
    low = float(array.min())
    finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
    return Extents(tuple(axes), finite, low if finite else -math.inf)


def _equal(a: Any, b: Any) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _alike(a: Any, b: Any) -> bool:
    """Equal, or made by the same formula and rounded otherwise, as sums of another length are."""
    if _equal(a, b):
        return True
    return a.dtype.kind == "f" and a.shape == b.shape and np.allclose(
        a, b, rtol=RELATIVE, atol=0, equal_nan=True
    )


def _follows(s: Site, arrays: Sequence[Any]) -> Value:
    """A number that is a size plus a number, or a number over a size, as an input."""
    dtype = s.op.result.type.dtype
    if arrays[0].size == 1 and dtype.kind in ("float", "int"):
        numbers = [float(a.reshape(-1)[0]) for a in arrays]
        shape = arrays[0].shape
        for dim in s.walk.sizes[0]:
            lengths = [z[dim] for z in s.walk.sizes]
            adds = {n - z for n, z in zip(numbers, lengths, strict=True)}
            shares = [n * z for n, z in zip(numbers, lengths, strict=True)]
            if len(adds) == 1 and next(iter(adds)).is_integer():
                size = s.walk.given("size", dim, int(adds.pop()), shape, dtype)
                s.walk.twins[size] = tuple(arrays)
                return size
            if dtype.kind == "float" and np.allclose(shares, shares[0], rtol=RELATIVE, atol=0):
                one = s.walk.given("share", dim, 0, shape, dtype)
                if abs(shares[0] - 1) <= RELATIVE:
                    return one
                times = s.constant(np.reshape(shares[0], (1,) * len(shape)), dtype)
                return s.emit("mul", [one, times], s.walk.known[one])
    raise Refused(
        "holds numbers that follow the size and are not those of the largest one cut short"
    )


def _reshape(s: Site) -> Sequence[Extents]:
    x = s.known[0]
    shape = s.op.result.type.static_shape
    axes = regrouped(x.axes, shape)
    if axes is None:
        shown = " x ".join("*".join(map(str, f)) or "1" for f in x.axes)
        raise Refused(f"cuts a dimension with padding in two: {shown} becomes {list(shape)}")
    return [x.with_axes(axes)]


def _transpose(s: Site) -> Sequence[Extents]:
    x = s.known[0]
    return [x.with_axes(x.axes[p] for p in s.attr("perm"))]


def _broadcast_to(s: Site) -> Sequence[Extents]:
    x = s.known[0]
    rank = s.op.result.type.rank
    rows = spread(x.axes, rank)
    axes = [axis if axis else s.seen(a) for a, axis in enumerate(rows)]
    return [x.with_axes(axes)]


def _concat(s: Site) -> Sequence[Extents] | Value:
    at = s.attr("axis")
    known = s.known
    tail = s.walk.tails.get(s.values[-1])
    axes: list[Axis] = []
    for a in range(len(known[0].axes)):
        column = [k.axes[a] for k in known]
        if a == at:
            axes.append(() if tail else _end_to_end(column))
        elif any(not same(column[0], x) for x in column[1:]):
            raise Refused(f"joins tensors whose padding along axis {a} lies in different places")
        else:
            axes.append(with_zero(column[0], [
                all(x[j].zero for x in column) for j in range(len(column[0]))]))
    finite, low = all(k.finite for k in known), min(k.low for k in known)
    if tail is not None:
        return _put_back(s, tail, Extents(tuple(map(plain, axes)), finite, low))
    if any(v in s.walk.tails for v in s.values):
        raise Refused("reads a part whose beginning follows the size")
    return [Extents(tuple(axes), finite, low)]


def _put_back(s: Site, tail: Tail, known: Extents) -> Value:
    """A tensor whose part of an open length was replaced: what lies behind the true part is as it
    was."""
    at, column = s.attr("axis"), [k.axes[s.attr("axis")] for k in s.known[:-1]]
    start = _end_to_end(column)
    begins = open_factors(start) and (start[0].dim, start[0].add) == (tail.dim, tail.add)
    whole = size_of(s.walk.known[tail.whole].axes[at])
    if at != tail.axis or not begins or s.op.result.type.static_shape[at] != whole:
        raise Refused("reads a part whose beginning follows the size")
    known = known.with_axes(fixed(whole) if a == at else f for a, f in enumerate(known.axes))
    joined = s.emit("concat", s.values, known, axis=at)
    shape = tuple(whole if a == at else 1 for a in range(len(known.axes)))
    true = s.walk.given("valid", tail.dim, tail.add, shape, DTYPES["bool"], whole)
    return s.emit("where", [true, joined, tail.whole], known)


def _end_to_end(column: Sequence[Axis]) -> Axis:
    before = sum(map(size_of, column[:-1]))
    if any(open_factors(x) for x in column[:-1]):
        raise Refused("puts something behind a tensor whose end is padding")
    last = column[-1]
    if not open_factors(last):
        return fixed(before + size_of(last))
    if len(last) > 1:
        raise Refused("puts something before several dimensions in one")
    f = last[0]
    return (Factor(before + f.size, f.dim, f.add + before, f.zero),)


def _slice(s: Site) -> Sequence[Extents] | Value:
    x = s.known[0]
    starts, steps = s.attrs("starts"), s.attr("steps")
    axes = []
    for a, axis in enumerate(x.axes):
        begin = [one[a] for one in starts]
        sizes = [op.result.type.static_shape[a] for op in s.ops]
        if set(begin) == {0} and sizes == [true_size(axis, z) for z in s.walk.sizes]:
            axes.append(axis)
            continue
        if not open_factors(axis) and steps[a] == 1 and (moved := _tail(s, a, begin, sizes)):
            return moved
        found = s.seen(a)
        if not open_factors(axis) and len(set(begin)) > 1:
            raise Refused(f"begins at {', '.join(map(str, begin))} along axis {a}: where it "
                          "begins follows the size")
        if not open_factors(axis) and not open_factors(found):
            axes.append(found)
        elif steps[a] != 1 or len(axis) > 1:
            raise Refused(f"takes a part of axis {a}, which has padding, in steps of {steps[a]}")
        elif len(set(begin)) > 1:
            return _from_end(s, a, begin)
        else:
            axes.append(_cut(axis, found, begin[0]))
    return [x.with_axes(axes)]


def _tail(s: Site, axis: int, begin: Sequence[int], sizes: Sequence[int]) -> Value | None:
    """The rest of a fixed axis from where an open dimension ends, None when it is no such part."""
    x, whole = s.known[0], size_of(s.axis(0, axis))
    starts = [(dim, {b - z[dim] for b, z in zip(begin, s.walk.sizes, strict=True)})
              for dim in s.walk.sizes[0]]  # fmt: skip
    found = [(dim, adds.pop()) for dim, adds in starts if len(adds) == 1]
    ends = all(b + n == whole for b, n in zip(begin, sizes, strict=True))
    shape = s.op.result.type.static_shape
    others = all(n == size_of(f) for a, (n, f) in enumerate(zip(shape, x.axes, strict=True))
                 if a != axis)  # fmt: skip
    if not ends or not others or len(set(begin)) == 1 or not found:
        return None
    axes = [fixed(shape[axis]) if a == axis else f for a, f in enumerate(x.axes)]
    value = s.emit("slice", s.values, x.with_axes(axes), **s.op.attrs)
    s.walk.tails[value] = Tail(s.values[0], axis, *found[0])
    return value


def _cut(axis: Axis, found: Axis, start: int) -> Axis:
    if not open_factors(axis) or not open_factors(found):
        return plain(found)
    f, g = axis[0], found[0]
    return (replace(g, zero=f.zero and start + g.add >= f.add),)


def _from_end(s: Site, axis: int, begin: Sequence[int]) -> Value:
    """A few elements counted from the true end, found by their indices."""
    x, shape = s.known[0], s.op.result.type.static_shape
    others = [a for a in range(len(shape)) if a != axis]
    f = s.axis(0, axis)[0]
    adds = {n - z[f.dim] for n, z in zip(begin, s.walk.sizes, strict=True)}
    rest = all(same(s.seen(a), x.axes[a]) for a in others)
    if len(adds) > 1 or open_factors(s.seen(axis)) or not rest:
        raise Refused(f"takes a part of axis {axis} that moves with the size")
    index = s.walk.given("index", f.dim, adds.pop(), (shape[axis],), DTYPES["i64"])
    axes = [fixed(shape[axis]) if a == axis else g for a, g in enumerate(x.axes)]
    return s.emit("gather", [s.values[0], index], x.with_axes(axes), axis=axis)


def _pad(s: Site) -> Sequence[Extents]:
    lo, hi, value = s.attr("lo"), s.attr("hi"), s.attr("value")
    gaps = s.attr("interior") or (0,) * len(lo)
    opened = [a for a in range(len(lo)) if open_factors(s.axis(0, a))]
    behind = []
    for a in opened:
        if not (lo[a] or hi[a] or gaps[a]):
            continue
        plainly = s.attr("mode") == "constant" and min(lo[a], hi[a]) >= 0 and not gaps[a]
        if not plainly or len(s.axis(0, a)) > 1:
            raise Refused(f"adds to axis {a}, which has padding, in a way that has no rule")
        if hi[a] and not (value == 0 and s.axis(0, a)[0].zero):
            behind.append(a)
    s.hide_operand(0, behind, value)
    x = s.known[0]
    axes = []
    for a, axis in enumerate(x.axes):
        if a not in opened:
            axes.append(fixed(s.op.result.type.static_shape[a]))
        elif not (lo[a] or hi[a]):
            axes.append(axis if value == 0 else plain(axis))
        else:
            f = axis[0]
            zero = value == 0 if hi[a] else f.zero
            axes.append((Factor(f.size + lo[a] + hi[a], f.dim, f.add + lo[a] + hi[a], zero),))
    return [Extents(tuple(axes), x.finite, min(x.low, value))]


def _reverse(s: Site) -> Sequence[Extents]:
    x = s.known[0]
    if any(open_factors(x.axes[a]) for a in s.attr("axes")):
        raise Refused("turns an axis round whose end is padding")
    return [x]


def _tile(s: Site) -> Sequence[Extents]:
    x = s.known[0]
    axes = []
    for axis, times in zip(x.axes, s.attr("repeats"), strict=True):
        if times != 1 and open_factors(axis):
            raise Refused("repeats an axis whose end is padding")
        axes.append(axis if times == 1 else fixed(size_of(axis) * times))
    return [x.with_axes(axes)]


def _split(s: Site) -> Sequence[Extents]:
    x, at = s.known[0], s.attr("axis")
    if open_factors(x.axes[at]):
        raise Refused("cuts an axis with padding in parts")
    return [
        x.with_axes(fixed(n) if a == at else f for a, f in enumerate(x.axes))
        for n in s.attr("sizes")
    ]


def _gather(s: Site) -> Sequence[Extents]:
    x, axis = s.known[0], s.attr("axis")
    if open_factors(x.axes[axis]) and not _inside(s, [axis]):
        s.values[1] = _index_from_end(s, axis)
    _hide_indices(s)
    indices = s.known[1]
    axes = (*x.axes[:axis], *map(plain, indices.axes), *x.axes[axis + 1:])
    return [Extents(axes, x.finite, x.low)]


def _gather_nd(s: Site) -> Sequence[Extents]:
    x, indices = s.known
    batch = s.attr("batch_dims")
    depth = s.values[1].type.static_shape[-1]
    along = range(batch, batch + depth)
    if any(not same(f, g) for f, g in zip(x.axes[:batch], indices.axes[:batch], strict=True)):
        raise Refused("has two batch axes whose padding lies in different places")
    if any(open_factors(x.axes[a]) for a in along) and not _inside(s, along):
        raise Refused(UNTOLD)
    _hide_indices(s)
    return [Extents((*map(plain, indices.axes[:-1]), *map(plain, x.axes[batch + depth:])),
                    x.finite, x.low)]  # fmt: skip


UNTOLD = "looks things up along an axis with padding at places known only at run time"


UNTOLD_WRITE = (
    "writes along an axis with padding at places that are not known to be counted from its "
    "beginning"
)


def _inside(s: Site, along: Sequence[int]) -> bool:
    """Whether the indices along these axes are known and, in every import, name only what is there
    at its size. Of several axes the last dimension of the indices tells which."""
    arrays = s.walk.twins.get(s.values[1])
    if arrays is None or any(scattered(s.axis(0, a)) for a in along):
        return False
    for array, sizes in zip(arrays, s.walk.sizes, strict=True):
        for i, a in enumerate(along):
            places = array if s.op.name == "gather" else array[..., i]
            if places.size and not 0 <= places.min() <= places.max() < true_size(
                s.axis(0, a), sizes
            ):
                return False
    return True


def _hide_indices(s: Site) -> None:
    """Padding of indices that are computed may name what is not there; index 0 is."""
    axes = range(len(s.known[1].axes))
    if s.values[1] not in s.walk.twins and not is_zero(s, 1, axes):
        s.hide_operand(1, axes, 0.0)


def _index_from_end(s: Site, axis: int) -> Value:
    """An index that is counted from the true end, as an input."""
    along, sizes = s.axis(0, axis), s.walk.sizes
    arrays = s.walk.twins.get(s.values[1])
    if arrays is None or arrays[0].size != 1 or len(along) > 1:
        raise Refused(UNTOLD)
    places = [int(a.reshape(-1)[0]) for a in arrays]
    ends = [true_size(along, z) for z in sizes]
    adds = {
        (p + n if p < 0 else p) - z[along[0].dim]
        for p, n, z in zip(places, ends, sizes, strict=True)
    }
    if len(adds) > 1:
        raise Refused("looks things up at places that follow the size")
    return s.walk.given("index", along[0].dim, adds.pop(), arrays[0].shape, DTYPES["i64"])


def _gather_elements(s: Site) -> Sequence[Extents]:
    x, indices = s.known
    if open_factors(x.axes[s.attr("axis")]):
        raise Refused("looks things up along an axis with padding")
    for a, (f, g) in enumerate(zip(x.axes, indices.axes, strict=True)):
        if a != s.attr("axis") and not same(f, g):
            raise Refused(f"meets padding along axis {a} in one operand only")
    _hide_indices(s)
    return [Extents(tuple(map(plain, indices.axes)), x.finite, x.low)]


def _scatter_nd(s: Site) -> Sequence[Extents] | Value:
    """Rows written one after the other at known places: those that padding would write are kept as
    they were."""
    x, indices, updates = s.known
    written = len(indices.axes) - 1
    rest = x.axes[len(x.axes) - (len(updates.axes) - written):]
    if any(not same(f, g) for f, g in zip(updates.axes[written:], rest, strict=True)):
        raise Refused("writes tensors whose padding lies in different places")
    named = range(s.values[1].type.static_shape[-1])
    if any(open_factors(x.axes[a]) for a in named) and not _inside(s, named):
        raise Refused(UNTOLD_WRITE)
    known = Extents(tuple(map(plain, x.axes)), x.finite and updates.finite,
                    min(x.low, updates.low))  # fmt: skip
    if not any(map(open_factors, (*indices.axes, *updates.axes[:written]))):
        return [known]
    arrays = s.walk.twins.get(s.values[1], ())
    starts = {_run_start(a) for a in arrays}
    along = updates.axes[0]
    if s.attr("reduction") != "none" or len(starts) != 1 or None in starts or len(along) > 1:
        raise Refused("writes padding at places that are not known to be one after the other")
    first = int(arrays[0].reshape(-1)[0])
    whole = s.emit("scatter_nd", s.values, known, reduction="none")
    count = size_of(x.axes[0])
    column = (count, *(1,) * (len(x.axes) - 1))
    true = s.walk.given(
        "valid", along[0].dim, along[0].add + first, column, DTYPES["bool"], count
    )
    return s.emit("where", [true, whole, s.values[0]], known)


def _run_start(array: Any) -> int | None:
    """The first of row numbers [n, 1] that count up by one from 0 or more, None when they do
    not."""
    if array.ndim != 2 or array.shape[1] != 1 or not array.size or array[0, 0] < 0:
        return None
    flat = array.reshape(-1)
    return int(flat[0]) if np.array_equal(flat, flat[0] + np.arange(flat.size)) else None


def _iota(s: Site) -> Sequence[Extents]:
    return [Extents(tuple(s.seen(a) for a in range(s.op.result.type.rank)), True, 0.0)]


def _one_hot(s: Site) -> Sequence[Extents]:
    axes = list(map(plain, s.known[0].axes))
    axes.insert(s.attr("axis"), fixed(s.attr("depth")))
    return [Extents(tuple(axes), True, min(s.attr("on"), s.attr("off")))]


MOVES: Mapping[str, Rule] = {
    "constant": _constant, "reshape": _reshape, "transpose": _transpose,
    "broadcast_to": _broadcast_to, "concat": _concat, "slice": _slice, "pad": _pad,
    "reverse": _reverse, "tile": _tile, "split": _split, "gather": _gather,
    "gather_nd": _gather_nd, "gather_elements": _gather_elements, "iota": _iota,
    "one_hot": _one_hot, "scatter_nd": _scatter_nd,
}  # fmt: skip
