"""Matrix products, convolutions and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from spyrec.ir.core import Value

from .emit import BOOL, F32, I64, Handle, Known, Unsupported, matmul, shape_of
from .torch_site import Converter, Site, Table


def _two(first: str, second: str) -> Converter:
    return lambda s: matmul(s, s.operand(first, s.dtype), s.operand(second, s.dtype))


def _linear(s: Site) -> Handle:
    """x w' + b"""
    w = s.operand("weight", s.dtype)
    product = matmul(s, s.operand("input", s.dtype), _turned(s, w))
    return s.emit("add", product, s.operand("bias", s.dtype)) if s.has("bias") else product


def _turned(s: Site, w: Handle) -> Handle:
    return w if w.type.rank < 2 else s.transpose(w, (1, 0))


def _add_product(first: str, second: str) -> Converter:
    """beta * self + alpha * (first @ second)"""

    def convert(s: Site) -> Handle:
        product = matmul(s, s.operand(first, s.dtype), s.operand(second, s.dtype))
        product, beta = s.scale(product, s.get("alpha", 1)), s.get("beta", 1)
        if beta == 0:
            return product
        return s.emit("add", s.scale(s.operand("self", s.dtype), beta), product)

    return convert


def _einsum(s: Site) -> Handle:
    parts = [s.cast(t, s.dtype) for t in s.tensors("tensors")]
    return s.emit("einsum", *parts, equation=s.str_("equation", "").replace(" ", ""))


def _convolution(s: Site) -> Handle:
    """conv1d ... conv3d, and the general form with ``transposed``."""
    x, w = s.operand("input", s.dtype), s.operand("weight", s.dtype)
    bias = s.operand("bias", s.dtype) if s.has("bias") else None
    n = w.type.rank - 2
    if x.type.rank == n + 1:  # one image without a batch
        lone = s.reshape(x, (1, *shape_of(x)))
        return s.reshape(_convolved(s, lone, w, bias, n), s.shape)
    return _convolved(s, x, w, bias, n)


def spread(values: Sequence[int], n: int) -> tuple[int, ...]:
    """One number for all dimensions, or one for each."""
    return tuple(values) * n if len(values) == 1 else tuple(values)


def _convolved(s: Site, x: Handle, w: Handle, bias: Handle | None, n: int) -> Handle:
    strides, dilations = (spread(s.ints(k, (1,)), n) for k in ("stride", "dilation"))
    transposed = s.bool_("transposed") or "transpose" in s.target
    named = s.get("padding", (0,))
    if isinstance(named, str):
        pads = _named_pads(s, named, shape_of(w)[2:], strides, dilations)
    else:
        low = spread(s.ints("padding", (0,)), n)
        pads = (*low, *low)
    operands = (x, w) if bias is None else (x, w, bias)
    if not transposed:
        return s.emit(
            "conv", *operands, strides=strides, pads=pads, dilations=dilations,
            group=s.int_("groups", 1),
        )  # fmt: skip
    return s.emit(
        "conv_transpose", *operands, strides=strides, pads=pads, dilations=dilations,
        output_padding=spread(s.ints("output_padding", (0,)), n), group=s.int_("groups", 1),
    )  # fmt: skip


def _named_pads(
    s: Site, name: str, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[int, ...]:
    """"valid": none; "same": the odd one goes behind."""
    if name == "valid":
        return (0,) * (2 * len(kernel))
    if name != "same" or set(strides) != {1}:
        raise Unsupported(f"its padding is '{name}' with strides {list(strides)}")
    total = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    return (*(t // 2 for t in total), *(t - t // 2 for t in total))


def _attention(s: Site) -> Handle:
    """Heads in the last but two dimension; what stands before is one batch."""
    if s.float_("dropout_p", 0.0):
        raise Unsupported("it drops elements at random; call model.eval() before the export")
    q, k, v = (s.operand(n, s.dtype) for n in ("query", "key", "value"))
    mask = s.opt("attn_mask")
    q, k, v = _same_batches(s, (q, k, v))
    rank = q.type.rank
    flat: tuple[Handle, ...]
    if rank == 4:
        flat = (q, k, v)
    elif rank == 3:
        flat = tuple(s.reshape(t, (1, *shape_of(t))) for t in (q, k, v))
    else:
        outer = [math.prod(shape_of(t)[:-3]) for t in (q, k, v)]
        if rank < 3 or (mask is not None and mask.type.rank > 4):
            raise Unsupported(f"its operands have shapes {[list(shape_of(t)) for t in (q, k, v)]}")
        flat = tuple(
            s.reshape(t, (n, *shape_of(t)[-3:])) for t, n in zip((q, k, v), outer, strict=True)
        )
    heads = [shape_of(t)[1] for t in flat]
    shared = heads[0] == heads[1] or heads[1] == 1 or s.bool_("enable_gqa")
    if heads[1] != heads[2] or heads[0] % heads[1] or not shared:
        raise Unsupported(f"its numbers of heads are {heads}")
    if mask is not None:
        mask = mask if mask.type.dtype.kind == "bool" else s.cast(mask, s.dtype)
        mask = s.reshape(mask, (*(1,) * (4 - mask.type.rank), *shape_of(mask)))
        flat = (*flat, mask)
    scale = s.float_("scale") if s.has("scale") else None
    out = s.emit("attention", *flat, scale=scale, causal=s.bool_("is_causal"))
    if mask is not None:
        out = _zero_where_hidden(s, out, mask)
    return s.reshape(out, s.shape)


def _zero_where_hidden(s: Site, out: Handle, mask: Handle) -> Handle:
    """A query from which all keys are hidden gets zeros. Of a mask of numbers that is only known at
    run time this cannot be told: in 16 bits minus infinity is the lowest number."""
    if mask.type.dtype == BOOL:
        sees = s.emit("ne", s.emit("reduce_max", s.cast(mask, F32), axes=(3,), keepdims=True),
                      s.const(0, F32))  # fmt: skip
    elif isinstance(mask, Value) or mask.absent:
        return out
    else:
        most = s.emit("reduce_max", mask, axes=(3,), keepdims=True)
        sees = s.emit("gt", most, s.const(-math.inf, s.dtype))
    if isinstance(sees, Known) and not sees.absent and sees.array.all():
        return out
    return s.emit("where", sees, out, s.const(0, s.dtype))


def _same_batches(s: Site, parts: Sequence[Handle]) -> list[Handle]:
    """Operands whose dimensions before the heads are alike: the shorter shapes are repeated."""
    rank = max(t.type.rank for t in parts)
    tall = [s.reshape(t, (*(1,) * (rank - t.type.rank), *shape_of(t))) for t in parts]
    cut = max(rank - 3, 0)
    outer = np.broadcast_shapes(*(shape_of(t)[:cut] for t in tall))
    return [s.broadcast(t, (*outer, *shape_of(t)[cut:])) for t in tall]


def _fused_attention(s: Site) -> tuple[Handle, ...]:
    """The form for processors: its first result; the second serves only training."""
    return (_attention(s),)


def _outer(s: Site) -> Handle:
    a, b = s.operand("self", s.dtype), s.operand("vec2", s.dtype)
    return s.emit("and" if s.dtype == BOOL else "mul", s.reshape(a, (a.type.size, 1)), b)


def _grouped(s: Site) -> Handle:
    """Rows in groups, each times a matrix of its own: x[S, K] @ w[group of the row, K, N], where
    ``offs`` says at which row each group ends; rows behind the last group become zero. Two stacks
    of matrices need no groups."""
    x, w = (s.operand(n if s.has(n) else other, s.dtype)
            for n, other in (("input", "self"), ("weight", "mat2")))  # fmt: skip
    if x.type.rank == 3 and w.type.rank == 3:
        product = matmul(s, x, w)
    elif x.type.rank == 2 and w.type.rank == 3:
        product = _grouped_rows(s, x, w, s.cast(s.tensor("offs"), I64))
    else:
        raise Unsupported(f"its groups lie in operands of rank {x.type.rank} and {w.type.rank}")
    return s.emit("add", product, s.operand("bias", s.dtype)) if s.has("bias") else product


def _grouped_rows(s: Site, x: Handle, w: Handle, ends: Handle) -> Handle:
    (rows, k), (groups, _, n) = shape_of(x), shape_of(w)
    numbers = s.const(np.arange(rows)[:, None], I64)
    passed = s.cast(s.emit("ge", numbers, s.reshape(ends, (1, groups))), I64)
    group = s.emit("reduce_sum", passed, axes=(1,), keepdims=False)
    last = s.const(groups - 1, I64)
    mine = s.emit("gather", w, s.emit("min", group, last), axis=0)
    product = s.reshape(s.emit("matmul", s.reshape(x, (rows, 1, k)), mine), (rows, n))
    inside = s.reshape(s.emit("le", group, last), (rows, 1))
    return s.emit("where", inside, product, s.const(0, s.dtype))


CONTRACT: Table = {
    "_grouped_mm": _grouped, "transformers.grouped_mm_fallback": _grouped,
    "matmul": _two("self", "other"), "mm": _two("self", "mat2"), "bmm": _two("self", "mat2"),
    "mv": _two("self", "vec"), "dot": _two("self", "tensor"), "linear": _linear,
    "addmm": _add_product("mat1", "mat2"), "addmv": _add_product("mat", "vec"),
    "baddbmm": _add_product("batch1", "batch2"), "einsum": _einsum, "outer": _outer,
    **dict.fromkeys((
        "convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
        "conv_transpose3d",
    ), _convolution),
    "scaled_dot_product_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _fused_attention,
}  # fmt: skip
