"""Attention and rotary embedding, standard operators since opset 23."""

from __future__ import annotations

import numpy as np

from .emit import BOOL, Handle, Results, Unsupported, shape_of
from .onnx_node import Node, Table


def _attention(n: Node) -> Results:
    """Gives (result, present key, present value). Operands of rank 3 carry the heads inside the
    last dimension; a cache of earlier keys and values goes in front of the new ones."""
    _check_plain(n)
    packed = n.ranked(0, 3, 4).type.rank == 3
    rank = 3 if packed else 4
    q, k, v = (n.ranked(i, rank, rank) for i in range(3))
    if packed:
        groups = n.int_("kv_num_heads", 0)
        q = _heads(n, q, n.int_("q_num_heads", 0))
        k, v = _heads(n, k, groups), _heads(n, v, groups)
    past = 0
    if n.opt(4) is not None:
        past = shape_of(n.ranked(4, 4, 4))[2]
        k, v = _join(n, n.arg(4), k), _join(n, n.ranked(5, 4, 4), v)
    mask, causal = n.opt(3), bool(n.int_("is_causal", 0))
    if causal and shape_of(q)[2] + past != shape_of(k)[2]:
        raise Unsupported("it is causal over queries and keys of different length")
    if causal and past:
        mask, causal = _cached_mask(n, mask, shape_of(q)[2], past), False
    scale = n.float_("scale", 1.0) if "scale" in n.attrs else None
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    out = n.emit("attention", *operands, scale=scale, causal=causal)
    return [_merged(n, out) if packed else out, k, v]


def _check_plain(n: Node) -> None:
    if n.opt(6) is not None:
        raise Unsupported("it has a length for each sequence of the batch")
    if n.float_("softcap", 0.0) != 0.0:
        raise Unsupported("its softcap is set")
    for side in ("left_window_size", "right_window_size"):
        if n.int_(side, -1) >= 0:
            raise Unsupported(f"its {side} is set")


def _heads(n: Node, x: Handle, heads: int) -> Handle:
    """[B, S, H*D] -> [B, H, S, D]"""
    batch, length, width = shape_of(x)
    if heads < 1 or width % heads:
        raise Unsupported(f"its width {width} does not divide into {heads} heads")
    return n.transpose(n.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def _merged(n: Node, x: Handle) -> Handle:
    """[B, H, S, D] -> [B, S, H*D]"""
    batch, heads, length, width = shape_of(x)
    return n.reshape(n.transpose(x, (0, 2, 1, 3)), (batch, length, heads * width))


def _join(n: Node, past: Handle, new: Handle) -> Handle:
    return n.emit("concat", past, new, axis=2) if past.type.size else new


def _cached_mask(n: Node, mask: Handle | None, rows: int, past: int) -> Handle:
    """Query i sees keys 0..past+i, and of these what ``mask`` lets it see."""
    seen = n.const(np.tril(np.ones((rows, past + rows), np.bool_), past), BOOL)
    if mask is None:
        return seen
    if mask.type.dtype == BOOL:
        return n.emit("and", mask, seen)
    return n.emit("where", seen, mask, n.const(-np.inf, mask.type.dtype))


def _rotary(n: Node) -> Handle:
    """(a cos - b sin, a sin + b cos) for the halves a, b of each head, or its even and odd
    elements."""
    x, heads = n.ranked(0, 3, 4), n.int_("num_heads", 0)
    packed = x.type.rank == 3
    y = _heads(n, x, heads) if packed else x
    size = shape_of(y)[3]
    turned = n.int_("rotary_embedding_dim", 0) or size
    if turned % 2 or turned > size:
        raise Unsupported(f"its rotary_embedding_dim {turned} does not fit heads of {size}")
    cos, sin = (_angles(n, n.arg(i), turned // 2) for i in (1, 2))
    front = _part(n, y, 0, turned)
    rotated = _turn(n, front, cos, sin, bool(n.int_("interleaved", 0)))
    if turned < size:
        rotated = n.emit("concat", rotated, _part(n, y, turned, size - turned), axis=3)
    return _merged(n, rotated) if packed else rotated


def _angles(n: Node, cache: Handle, half: int) -> Handle:
    """Cosines or sines as [B, 1, S, half]: picked from [P, half] by position, or given as [B, S,
    half]."""
    positions = n.opt(3)
    if positions is not None:
        cache = n.emit("gather", cache, positions, axis=0)
    shape = shape_of(cache)
    if len(shape) != 3 or shape[2] != half:
        raise Unsupported(f"its cache has shape {list(shape)}, not {half} angles a position")
    return n.reshape(cache, (shape[0], 1, shape[1], half))


def _turn(n: Node, x: Handle, cos: Handle, sin: Handle, interleaved: bool) -> Handle:
    shape = shape_of(x)
    half = shape[3] // 2
    step = 2 if interleaved else 1
    a, b = (_part(n, x, i if interleaved else i * half, half, step) for i in (0, 1))
    real = n.emit("sub", n.emit("mul", a, cos), n.emit("mul", b, sin))
    imaginary = n.emit("add", n.emit("mul", a, sin), n.emit("mul", b, cos))
    if not interleaved:
        return n.emit("concat", real, imaginary, axis=3)
    pairs = [n.reshape(p, (*shape[:3], half, 1)) for p in (real, imaginary)]
    return n.reshape(n.emit("concat", *pairs, axis=4), shape)


def _part(n: Node, x: Handle, start: int, size: int, step: int = 1) -> Handle:
    """Every ``step``-th of the last dimension's elements from ``start`` on."""
    shape = shape_of(x)
    if (start, size, step) == (0, shape[3], 1):
        return x
    sizes = (*shape[:3], size)
    return n.emit("slice", x, starts=(0, 0, 0, start), sizes=sizes, steps=(1, 1, 1, step))


ATTENTION: Table = {
    "Attention": _attention,
    "RotaryEmbedding": _rotary,
}
