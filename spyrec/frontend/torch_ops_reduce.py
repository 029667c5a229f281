"""Sums, means, extremes and running sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .emit import BOOL, F32, I64, Handle, Unsupported, shape_of
from .torch_ops_elementwise import extreme, truth
from .torch_site import Converter, Site, Table


def _over(s: Site) -> tuple[int, ...]:
    """The dimensions that are reduced: those named, else all."""
    rank = s.tensor("self").type.rank
    return s.dims("dim", rank) if rank else ()


def _reduce(op: str) -> Converter:
    def convert(s: Site) -> Handle:
        return reduced(s, op, s.operand("self", s.dtype), _over(s), s.bool_("keepdim"))

    return convert


def reduced(s: Site, op: str, x: Handle, axes: Sequence[int], keepdims: bool) -> Handle:
    """Over some axes; of a scalar there are none."""
    if not x.type.rank:
        return s.emit("abs", x) if op in ("reduce_l1", "reduce_l2") else x
    if x.type.dtype == BOOL and op in ("reduce_max", "reduce_min"):
        return s.cast(s.emit(op, s.cast(x, F32), axes=tuple(axes), keepdims=keepdims), BOOL)
    return s.emit(op, x, axes=tuple(axes), keepdims=keepdims)


def _extreme(op: str, arg: str) -> Converter:
    """max, min: of all, of a dimension with indices, or elementwise of two tensors."""

    def convert(s: Site) -> Handle | tuple[Handle, Handle]:
        if s.has("other"):
            return extreme(s, op, s.operand("self", s.dtype), s.operand("other", s.dtype))
        x, keep = s.tensor("self"), s.bool_("keepdim")
        if not s.has("dim"):
            return reduced(s, f"reduce_{op}", x, tuple(range(x.type.rank)), False)
        dim = s.dim("dim", x.type.rank)
        if not x.type.rank:
            return x, s.const(0, I64)
        values = reduced(s, f"reduce_{op}", x, (dim,), keep)
        return values, s.cast(s.emit(arg, comparable(s, x), axis=dim, keepdims=keep), I64)

    return convert


def comparable(s: Site, x: Handle) -> Handle:
    """Truth values as numbers, other elements as they are."""
    return s.cast(x, F32) if x.type.dtype == BOOL else x


def _arg(op: str) -> Converter:
    def convert(s: Site) -> Handle:
        x = comparable(s, s.tensor("self"))
        if not s.has("dim") or not x.type.rank:
            flat = s.reshape(x, (x.type.size,))
            return s.reshape(s.cast(s.emit(op, flat, axis=0, keepdims=False), s.dtype), s.shape)
        found = s.emit(op, x, axis=s.dim("dim", x.type.rank), keepdims=s.bool_("keepdim"))
        return s.cast(found, s.dtype)

    return convert


def _any(op: str) -> Converter:
    """any, all: the largest or smallest of zeros and ones."""

    def convert(s: Site) -> Handle:
        x = s.cast(truth(s, s.tensor("self")), F32)
        found = reduced(s, op, x, _over(s), s.bool_("keepdim"))
        return s.cast(s.emit("ne", found, s.const(0, F32)), BOOL)

    return convert


def _variance(s: Site, x: Handle, axes: Sequence[int], keep: bool) -> tuple[Handle, Handle]:
    """Variance and mean."""
    count = math.prod(shape_of(x)[a] for a in axes)
    correction = s.float_("correction", 1.0)
    if "unbiased" in s.args:
        correction = float(s.bool_("unbiased", True))
    mean = reduced(s, "reduce_mean", x, axes, True)
    total = reduced(s, "reduce_sum", s.emit("square", s.emit("sub", x, mean)), axes, keep)
    if count - correction <= 0:
        raise Unsupported(f"it takes the variance of {count} elements")
    shape = shape_of(total)
    return s.scale(total, 1 / (count - correction)), s.reshape(mean, shape)


def _var(finish: Callable[[Site, Handle], Handle]) -> Converter:
    def convert(s: Site) -> Handle:
        x = s.operand("self", s.dtype)
        return finish(s, _variance(s, x, _over(s), s.bool_("keepdim"))[0])

    return convert


def _var_mean(s: Site) -> tuple[Handle, Handle]:
    return _variance(s, s.operand("self", s.dtype), _over(s), s.bool_("keepdim"))


def _cumsum(s: Site) -> Handle:
    x = s.operand("self", s.dtype)
    if not x.type.rank:
        return s.rounded(x)
    return s.rounded(s.emit("cumsum", x, axis=s.dim("dim", x.type.rank)))


def _norm(s: Site) -> Handle:
    """The p-norm over some dimensions, p of 1, 2 or infinity."""
    p = s.float_("ord", 2.0) if "ord" in s.args else s.float_("p", 2.0)
    x, axes, keep = s.operand("self", s.dtype), _over(s), s.bool_("keepdim")
    if p == 2.0:
        return reduced(s, "reduce_l2", x, axes, keep)
    if p == 1.0:
        return reduced(s, "reduce_l1", x, axes, keep)
    if math.isinf(p):
        op = "reduce_max" if p > 0 else "reduce_min"
        return reduced(s, op, s.emit("abs", x), axes, keep)
    raise Unsupported(f"it takes the {p}-norm")


REDUCE: Table = {
    "sum": _reduce("reduce_sum"),
    "mean": _reduce("reduce_mean"),
    "amax": _reduce("reduce_max"),
    "amin": _reduce("reduce_min"),
    "prod": _reduce("reduce_prod"),
    "logsumexp": _reduce("reduce_log_sum_exp"),
    "max": _extreme("max", "arg_max"),
    "min": _extreme("min", "arg_min"),
    "argmax": _arg("arg_max"),
    "argmin": _arg("arg_min"),
    "any": _any("reduce_max"),
    "all": _any("reduce_min"),
    "var": _var(lambda s, x: x),
    "std": _var(lambda s, x: s.emit("sqrt", x)),
    "var_mean": _var_mean,
    "cumsum": _cumsum,
    "norm": _norm,
    "linalg_vector_norm": _norm,
}
