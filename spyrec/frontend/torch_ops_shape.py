"""Operators that only say where elements go: views, joins, cuts, repeats."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from .emit import Handle, Unsupported, axis_of, shape_of
from .torch_ops_elementwise import first
from .torch_site import Converter, Site, Table
from .torch_state import clamped


def _view(s: Site) -> Handle:
    """Everything that keeps the order of elements: torch has found the shape."""
    x = s.tensor(first(s))
    if x.type.dtype != s.dtype:
        raise Unsupported(f"it takes the bits of {x.type.dtype} numbers for {s.dtype}")
    return s.reshape(x, s.shape)


def _expand(s: Site) -> Handle:
    return s.broadcast(s.tensor("self"), s.shape)


def _swap(s: Site) -> Handle:
    x = s.tensor("self")
    rank = x.type.rank
    perm = list(range(rank))
    a = s.dim("dim0" if s.has("dim0") else "axis0", rank)
    b = s.dim("dim1" if s.has("dim1") else "axis1", rank)
    if rank:
        perm[a], perm[b] = b, a
    return s.transpose(x, perm)


def _permute(s: Site) -> Handle:
    x = s.tensor("self")
    return s.transpose(x, [axis_of(d, x.type.rank) for d in s.ints("dims")])


def _t(s: Site) -> Handle:
    x = s.tensor("self")
    return s.transpose(x, range(x.type.rank)[::-1])


def _m_t(s: Site) -> Handle:
    x = s.tensor("self")
    *outer, a, b = range(x.type.rank)
    return s.transpose(x, (*outer, b, a))


def _movedim(s: Site) -> Handle:
    x = s.tensor("self")
    rank = x.type.rank
    source = [axis_of(d, rank) for d in s.ints("source")]
    target = [axis_of(d, rank) for d in s.ints("destination")]
    rest = iter(d for d in range(rank) if d not in source)
    at = dict(zip(target, source, strict=True))
    return s.transpose(x, [at[d] if d in at else next(rest) for d in range(rank)])


def _slice(s: Site) -> Handle:
    x = s.tensor("self")
    shape = shape_of(x)
    dim = s.dim("dim", len(shape), 0)
    start, end = _bounds(s, shape[dim])
    step = s.int_("step", 1)
    return s.slice(x, dim, start, max(0, -(-(end - start) // step)), step)


def _bounds(s: Site, size: int) -> tuple[int, int]:
    start, end = clamped(s.int_("start", 0), size), clamped(s.int_("end", size), size)
    return start, max(start, end)


def _select(s: Site) -> Handle:
    x = s.tensor("self")
    shape = shape_of(x)
    dim = s.dim("dim", len(shape))
    return s.reshape(s.slice(x, dim, axis_of(s.int_("index"), shape[dim]), 1), s.shape)


def _narrow(s: Site) -> Handle:
    x = s.tensor("self")
    dim = s.dim("dim", x.type.rank)
    return s.slice(x, dim, s.int_("start") % max(1, shape_of(x)[dim]), s.int_("length"))


def _cat(s: Site) -> Handle:
    """Parts without elements add nothing, whatever their rank."""
    parts = [t for t in s.tensors("tensors") if t.type.size]
    if not parts:
        return s.reshape(s.rounded(s.tensors("tensors")[0]), s.shape)
    dim = s.dim("dim", parts[0].type.rank, 0)
    parts = [s.rounded(p) for p in parts]
    return parts[0] if len(parts) == 1 else s.emit("concat", *parts, axis=dim)


def _stack(s: Site) -> Handle:
    parts = s.tensors("tensors")
    shape = shape_of(parts[0])
    dim = s.dim("dim", len(shape) + 1, 0)
    rows = [s.reshape(s.rounded(p), (*shape[:dim], 1, *shape[dim:])) for p in parts]
    return rows[0] if len(rows) == 1 else s.emit("concat", *rows, axis=dim)


def _cut(s: Site, x: Handle, dim: int, sizes: list[int]) -> list[Handle]:
    starts = [0, *accumulate(sizes)]
    return [s.slice(x, dim, start, n) for start, n in zip(starts, sizes, strict=False)]


def _split(s: Site) -> list[Handle]:
    x = s.tensor("self")
    dim = s.dim("dim", x.type.rank, 0)
    size = shape_of(x)[dim]
    asked = s.ints("split_sizes" if s.has("split_sizes") else "split_size")
    if isinstance(s.args.get("split_size"), int):
        step = max(1, asked[0])
        asked = tuple(min(step, size - at) for at in range(0, max(size, 1), step))
    return _cut(s, x, dim, list(asked))


def _chunk(s: Site) -> list[Handle]:
    x = s.tensor("self")
    dim = s.dim("dim", x.type.rank, 0)
    size = shape_of(x)[dim]
    step = max(1, -(-size // s.int_("chunks")))
    return _cut(s, x, dim, [min(step, size - at) for at in range(0, size, step)])


def _tensor_split(s: Site) -> list[Handle]:
    x = s.tensor("self")
    dim = s.dim("dim", x.type.rank, 0)
    size = shape_of(x)[dim]
    if s.has("indices"):
        marks = [0, *(clamped(i, size) for i in s.ints("indices")), size]
        return _cut(s, x, dim, [b - a for a, b in pairwise(marks)])
    whole, rest = divmod(size, s.int_("sections"))
    return _cut(s, x, dim, [whole + (i < rest) for i in range(s.int_("sections"))])


def _unbind(s: Site) -> list[Handle]:
    x = s.tensor("self")
    shape = shape_of(x)
    dim = s.dim("dim", len(shape), 0)
    rest = (*shape[:dim], *shape[dim + 1 :])
    return [s.reshape(part, rest) for part in _cut(s, x, dim, [1] * shape[dim])]


def _repeat(s: Site) -> Handle:
    x, repeats = s.tensor("self"), s.ints("repeats" if s.has("repeats") else "dims")
    shape = (*(1,) * (len(repeats) - x.type.rank), *shape_of(x))
    repeats = (*(1,) * (len(shape) - len(repeats)), *repeats)
    return s.emit("tile", s.reshape(x, shape), repeats=repeats)


def _repeat_interleave(s: Site) -> Handle:
    x, times = s.tensor("self"), s.get("repeats")
    if not isinstance(times, int):
        raise Unsupported("how often it repeats each element is a tensor")
    if not s.has("dim"):
        x = s.reshape(x, (x.type.size,))
    dim = s.dim("dim", x.type.rank, 0)
    shape = shape_of(x)
    spread = (*shape[: dim + 1], times, *shape[dim + 1 :])
    row = s.reshape(x, (*shape[: dim + 1], 1, *shape[dim + 1 :]))
    return s.reshape(s.broadcast(row, spread), s.shape)


def _flip(s: Site) -> Handle:
    x = s.tensor("self")
    return s.emit("reverse", x, axes=tuple(sorted(s.dims("dims", x.type.rank))))


def _roll(s: Site) -> Handle:
    x, shifts = s.tensor("self"), s.ints("shifts")
    shape = shape_of(x)
    if not s.has("dims"):
        flat = s.reshape(x, (x.type.size,))
        return s.reshape(_rolled(s, flat, 0, shifts[0]), shape)
    for dim, shift in zip(s.dims("dims", len(shape)), shifts, strict=True):
        x = _rolled(s, x, dim, shift)
    return x


def _rolled(s: Site, x: Handle, dim: int, shift: int) -> Handle:
    size = shape_of(x)[dim]
    at = -shift % size if size else 0
    if not at:
        return x
    return s.emit("concat", s.slice(x, dim, at, size - at), s.slice(x, dim, 0, at), axis=dim)


def _pad(s: Site) -> Handle:
    """Amounts come from the last dimension on, low and high; a negative one cuts."""
    x, amounts = s.tensor("self"), s.ints("pad")
    mode = s.str_("mode", "constant")
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    if mode not in modes:
        raise Unsupported(f"its mode is {mode}")
    rank = x.type.rank
    low, high = [0] * rank, [0] * rank
    for i in range(len(amounts) // 2):
        low[rank - 1 - i], high[rank - 1 - i] = amounts[2 * i], amounts[2 * i + 1]
    for dim, size in enumerate(shape_of(x)):
        start, end = max(0, -low[dim]), size - max(0, -high[dim])
        x = s.slice(x, dim, start, max(0, end - start))
    lo, hi = (tuple(max(0, n) for n in side) for side in (low, high))
    if not any((*lo, *hi)):
        return x
    value = float(s.get("value", 0.0))
    return s.emit("pad", x, lo=lo, hi=hi, mode=modes[mode], value=value)


def _pad_with(mode: str) -> Converter:
    return lambda s: _pad(replace(s, args={**s.args, "pad": s.args["padding"], "mode": mode}))


def _pixel_shuffle(s: Site) -> Handle:
    x, r = s.tensor("self"), s.int_("upscale_factor")
    *outer, c, h, w = shape_of(x)
    flat = s.reshape(x, (math.prod(outer), c, h, w))
    return s.reshape(s.emit("depth_to_space", flat, block=r, mode="CRD"), s.shape)


def _pixel_unshuffle(s: Site) -> Handle:
    """Channel, block row, block column in this order."""
    x, r = s.tensor("self"), s.int_("downscale_factor")
    *outer, c, h, w = shape_of(x)
    n = math.prod(outer)
    cut = s.reshape(x, (n, c, h // r, r, w // r, r))
    return s.reshape(s.transpose(cut, (0, 1, 3, 5, 2, 4)), s.shape)


def _tri(upper: bool) -> Converter:
    return lambda s: s.emit("trilu", s.tensor("self"), upper=upper, k=s.int_("diagonal", 0))


def _diff(s: Site) -> Handle:
    """Differences of neighbours, ``n`` times, after joining what goes in front and behind."""
    x = s.tensor("self")
    dim = s.dim("dim", x.type.rank, -1)
    if not s.int_("n", 1):
        return x
    parts = [s.opt("prepend"), x, s.opt("append")]
    joined = [p for p in parts if p is not None]
    x = joined[0] if len(joined) == 1 else s.emit("concat", *joined, axis=dim)
    for _ in range(s.int_("n", 1)):
        size = max(0, shape_of(x)[dim] - 1)
        op = "ne" if x.type.dtype.kind == "bool" else "sub"
        x = s.emit(op, s.slice(x, dim, 1, size), s.slice(x, dim, 0, size))
    return x


def _diagonal(s: Site) -> Handle:
    """Of the last two dimensions, when they are the ones asked for."""
    x = s.tensor("self")
    rank = x.type.rank
    a, b = s.dim("dim1", rank, 0), s.dim("dim2", rank, 1)
    rest = [d for d in range(rank) if d not in (a, b)]
    x = s.transpose(x, (*rest, a, b))
    *outer, rows, cols = shape_of(x)
    offset, count = s.int_("offset", 0), s.shape[-1]
    start = offset if offset >= 0 else -offset * cols
    flat = s.reshape(x, (*outer, rows * cols))
    return s.slice(flat, len(outer), start, count, cols + 1) if count else s.slice(
        flat, len(outer), 0, 0
    )


def _unfold(s: Site) -> Handle:
    """Windows along a dimension become a last one."""
    x = s.tensor("self")
    dim = s.dim("dimension", x.type.rank)
    size, step = s.int_("size"), s.int_("step")
    if not x.type.rank or not size:
        return s.reshape(x, s.shape) if s.type.size == 1 else s.const(np.zeros(s.shape), s.dtype)
    count = (shape_of(x)[dim] - size) // step + 1
    rows = [s.slice(x, dim, i * step, size) for i in range(count)]
    shape = shape_of(rows[0])
    tall = [s.reshape(r, (*shape[:dim], 1, *shape[dim:])) for r in rows]
    joined = tall[0] if count == 1 else s.emit("concat", *tall, axis=dim)
    rank = len(shape) + 1
    return s.transpose(joined, (*range(dim + 1), *range(dim + 2, rank), dim + 1))


SHAPE: Table = {
    **dict.fromkeys((
        "view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten",
        "view_as", "reshape_as", "ravel", "atleast_1d", "atleast_2d",
    ), _view),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expand),
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), _swap),
    "permute": _permute, "t": _t, "numpy_T": _t, "mT": _m_t, "matrix_H": _m_t, "adjoint": _m_t,
    "movedim": _movedim, "moveaxis": _movedim, "slice": _slice, "select": _select,
    "narrow": _narrow, "stack": _stack, "split": _split, "split_with_sizes": _split,
    "unsafe_split": _split, "chunk": _chunk, "unsafe_chunk": _chunk,
    "tensor_split": _tensor_split, "unbind": _unbind, "repeat": _repeat, "tile": _repeat,
    "repeat_interleave": _repeat_interleave, "flip": _flip, "roll": _roll,
    "constant_pad_nd": _pad, "pad": _pad, "pixel_shuffle": _pixel_shuffle,
    "pixel_unshuffle": _pixel_unshuffle, "diff": _diff, "diagonal": _diagonal, "unfold": _unfold,
    "triu": _tri(True), "tril": _tri(False),
    **{f"reflection_pad{n}d": _pad_with("reflect") for n in (1, 2, 3)},
    **{f"replication_pad{n}d": _pad_with("replicate") for n in (1, 2, 3)},
}  # fmt: skip
