"""Less common operators that are made of others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .emit import BOOL, F32, Handle, Known, Unsupported, matmul, shape_of
from .torch_ops_elementwise import truth
from .torch_ops_index import INDEX
from .torch_ops_reduce import REDUCE, reduced
from .torch_ops_shape import SHAPE
from .torch_site import Converter, Item, Site, Table


def _x(s: Site) -> Handle:
    return s.operand("self", s.dtype)


def _one(s: Site) -> Handle:
    return s.const(1, s.dtype)


LARGEST = {"f16": 65504.0, "bf16": 3.3895313892515355e38}
"""Of floats of fewer than 32 bits."""


# Elementwise -------------------------------------------------------------------------------------


def _log_sigmoid(s: Site) -> Handle:
    """-log(1 + exp(-x))"""
    return s.emit("neg", s.emit("softplus", s.emit("neg", _x(s))))


def _log_add_exp(s: Site) -> Handle:
    """max(a, b) + log(1 + exp(-|a - b|)); of equal infinities the difference is zero too"""
    a, b = _x(s), s.operand("other", s.dtype)
    equal = s.emit("eq", a, b)
    apart = s.emit("where", equal, s.const(0, s.dtype), s.emit("abs", s.emit("sub", a, b)))
    rest = s.emit("softplus", s.emit("neg", apart))
    return s.emit("add", s.emit("max", a, b), rest)


def _shrink(s: Site, soft: bool) -> Handle:
    """Zero within [-lambd, lambd]; outside x, or what x is beyond it."""
    x, width = _x(s), s.float_("lambd", 0.5)
    far = s.emit("gt", s.emit("abs", x), s.const(width, s.dtype))
    kept = s.emit("sub", x, s.emit("clip", x, min=-width, max=width)) if soft else x
    return s.emit("where", far, kept, s.const(0, s.dtype))


def _nan_to_num(s: Site) -> Handle:
    x = _x(s)
    if s.dtype.kind != "float":
        return x
    most = LARGEST.get(s.dtype.name, 3.4028234663852886e38)
    high, low = s.float_("posinf", most), s.float_("neginf", -most)
    for at, value in ((math.inf, high), (-math.inf, low)):
        here = s.emit("eq", x, s.const(at, s.dtype))
        x = s.emit("where", here, s.const(value, s.dtype), x)
    return s.emit("where", s.emit("isnan", x), s.const(s.float_("nan", 0.0), s.dtype), x)


def _hypot(s: Site) -> Handle:
    squares = [s.emit("square", t) for t in (_x(s), s.operand("other", s.dtype))]
    return s.emit("sqrt", s.emit("add", *squares))


def _is_infinite(sign: float) -> Converter:
    def convert(s: Site) -> Handle:
        x = s.tensor("self")
        if x.type.dtype.kind != "float":
            return s.broadcast(s.const(False, BOOL), shape_of(x))
        return s.emit("eq", x, s.const(sign * math.inf, x.type.dtype))

    return convert


def _is_close(s: Site) -> Handle:
    """|a - b| <= atol + rtol |b|, or equal"""
    a, b = s.tensor("self"), s.tensor("other")
    same = s.emit("eq", a, b)
    if a.type.dtype.kind != "float":
        a, b = s.cast(a, F32), s.cast(b, F32)
    if s.bool_("equal_nan"):
        same = s.emit("or", same, s.emit("and", s.emit("isnan", a), s.emit("isnan", b)))
    most = s.emit("add", s.scale(s.emit("abs", b), s.float_("rtol", 1e-5)),
                  s.const(s.float_("atol", 1e-8), b.type.dtype))  # fmt: skip
    near = s.emit("le", s.emit("abs", s.emit("sub", a, b)), most)
    finite = s.emit("lt", s.emit("abs", b), s.const(math.inf, b.type.dtype))
    return s.emit("or", same, s.emit("and", near, finite))


def _heaviside(s: Site) -> Handle:
    x, zero = _x(s), s.const(0, s.dtype)
    above = s.cast(s.emit("gt", x, zero), s.dtype)
    return s.emit("where", s.emit("eq", x, zero), s.operand("values", s.dtype), above)


def _x_log_y(s: Site) -> Handle:
    """x log(y), zero where x is"""
    x, y = _x(s), s.operand("other", s.dtype)
    zero = s.emit("and", s.emit("eq", x, s.const(0, s.dtype)), s.emit("not", s.emit("isnan", y)))
    return s.emit("where", zero, s.const(0, s.dtype), s.emit("mul", x, s.emit("log", y)))


def _area(make: Callable[[Site, Handle], Handle]) -> Converter:
    """Inverse hyperbolic functions, by logarithms of what ``make`` gives."""
    return lambda s: make(s, _x(s))


def _asinh(s: Site, x: Handle) -> Handle:
    """sign(x) log(|x| + sqrt(x^2 + 1))"""
    size = s.emit("abs", x)
    root = s.emit("sqrt", s.emit("add", s.emit("square", x), _one(s)))
    return s.emit("mul", s.emit("sign", x), s.emit("log", s.emit("add", size, root)))


def _acosh(s: Site, x: Handle) -> Handle:
    root = s.emit("sqrt", s.emit("sub", s.emit("square", x), _one(s)))
    return s.emit("log", s.emit("add", x, root))


def _atanh(s: Site, x: Handle) -> Handle:
    ratio = s.emit("div", s.emit("add", _one(s), x), s.emit("sub", _one(s), x))
    return s.scale(s.emit("log", ratio), 0.5)


# Shapes ------------------------------------------------------------------------------------------


def as_(name: str, table: Table, **args: Item) -> Converter:
    """As another operator with some arguments set."""
    return lambda s: table[name](replace(s, args={**s.args, **args}))


def _joined(rank: int, dim: int, column: bool = False) -> Converter:
    """Parts with at least ``rank`` dimensions, joined along one; a vector may become a column."""

    def convert(s: Site) -> Handle:
        parts = []
        for part in s.tensors("tensors"):
            shape = shape_of(part)
            if rank == 3 and len(shape) < 3:
                shape = (1, 1, 1) if not shape else (*(1,) * (2 - len(shape)), *shape, 1)
            elif column and len(shape) < 2:
                shape = (part.type.size, 1)
            elif len(shape) < rank:
                shape = (*(1,) * (rank - len(shape)), *shape)
            parts.append(s.reshape(s.rounded(part), shape))
        axis = min(dim, parts[0].type.rank - 1)
        return parts[0] if len(parts) == 1 else s.emit("concat", *parts, axis=axis)

    return convert


def _broadcast_all(s: Site) -> list[Handle]:
    parts = s.tensors("tensors")
    shape = np.broadcast_shapes(*map(shape_of, parts))
    return [s.broadcast(p, shape) for p in parts]


def _diagonal_matrix(s: Site) -> Handle:
    """A last dimension on the diagonal of a new square of two."""
    x, offset = s.tensor("self"), s.int_("offset", 0)
    rank = x.type.rank + 1
    dims = s.dim("dim1", rank, -2), s.dim("dim2", rank, -1)
    if dims != (rank - 2, rank - 1):
        raise Unsupported(f"its dimensions are {list(dims)}, not the last two")
    n = shape_of(x)[-1]
    size = n + abs(offset)
    lo, hi = ((*(0,) * (rank - 2), max(n, 0)) for n in (offset, -offset))
    rows = s.emit("pad", x, lo=lo, hi=hi, mode="constant", value=0.0)
    square = s.broadcast(s.reshape(rows, (*shape_of(x)[:-1], 1, size)), s.shape)
    here = s.const(np.eye(size, k=offset, dtype=np.bool_), BOOL)
    return s.emit("where", here, square, s.const(0, s.dtype))


def _trace(s: Site) -> Handle:
    x = _x(s)
    kept = s.emit("where", s.const(np.eye(*shape_of(x), dtype=np.bool_), BOOL), x,
                  s.const(0, s.dtype))  # fmt: skip
    return reduced(s, "reduce_sum", kept, (0, 1), False)


def _triangle_places(upper: bool) -> Converter:
    def convert(s: Site) -> Handle:
        rows, cols, offset = (s.int_(n, 0) for n in ("row", "col", "offset"))
        if rows * cols > 1 << 26:
            raise Unsupported(f"its triangle is of {rows} by {cols}")
        places = np.triu_indices(rows, offset, cols) if upper else np.tril_indices(
            rows, offset, cols
        )
        return Known(s.hint, np.stack(places).astype(s.dtype.np_dtype), s.dtype, s.loc)

    return convert


def _shuffled(s: Site) -> Handle:
    """Channels dealt out: [N, g, C/g, ...] to [N, C/g, g, ...]."""
    x, groups = s.tensor("self"), s.int_("groups")
    n, c, *rest = shape_of(x)
    cut = s.reshape(x, (n, groups, c // groups, *rest))
    order = (0, 2, 1, *range(3, 3 + len(rest)))
    return s.reshape(s.transpose(cut, order), (n, c, *rest))


def _turned(s: Site) -> Handle:
    """By quarters, from the first named dimension to the second."""
    x = s.tensor("self")
    a, b = s.dims("dims", x.type.rank) if s.has("dims") else (0, 1)
    quarters = s.int_("k", 1) % 4
    if quarters in (1, 2):
        x = s.emit("reverse", x, axes=(b,))
    if quarters in (2, 3):
        x = s.emit("reverse", x, axes=(a,))
    order = list(range(x.type.rank))
    if quarters % 2:
        order[a], order[b] = b, a
    return s.transpose(x, order)


def _split_along(dim: int) -> Converter:
    def convert(s: Site) -> object:
        rank = s.tensor("self").type.rank
        return SHAPE["tensor_split"](
            replace(s, args={**s.args, "dim": 0 if rank == 1 else dim})
        )

    return convert  # type: ignore[return-value]


# Products and sums -------------------------------------------------------------------------------


def _inner(s: Site) -> Handle:
    """Over the last dimensions of both."""
    a, b = _x(s), s.operand("other", s.dtype)
    if not a.type.rank or not b.type.rank:
        return s.emit("mul", a, b)
    flat = s.reshape(b, (b.type.size // max(1, shape_of(b)[-1]), shape_of(b)[-1]))
    return s.reshape(matmul(s, a, s.transpose(flat, (1, 0))), s.shape)


def _tensor_dot(s: Site) -> Handle:
    a, b = _x(s), s.operand("other", s.dtype)
    mine, theirs = s.ints("dims_self", ()), s.ints("dims_other", ())
    mine = tuple(d % max(1, a.type.rank) for d in mine)
    theirs = tuple(d % max(1, b.type.rank) for d in theirs)
    for mine_d, their_d in zip(mine, theirs, strict=True):  # a dimension of one is repeated
        n = max(shape_of(a)[mine_d], shape_of(b)[their_d])
        a, b = _widened(s, a, mine_d, n), _widened(s, b, their_d, n)
    rest_a = [d for d in range(a.type.rank) if d not in mine]
    rest_b = [d for d in range(b.type.rank) if d not in theirs]
    inner = math.prod(shape_of(a)[d] for d in mine)
    rows = math.prod(shape_of(a)[d] for d in rest_a)
    cols = math.prod(shape_of(b)[d] for d in rest_b)
    left = s.reshape(s.transpose(a, (*rest_a, *mine)), (rows, inner))
    right = s.reshape(s.transpose(b, (*theirs, *rest_b)), (inner, cols))
    return s.reshape(s.emit("matmul", left, right), s.shape)


def _widened(s: Site, x: Handle, dim: int, size: int) -> Handle:
    shape = shape_of(x)
    return s.broadcast(x, (*shape[:dim], size if shape[dim] == 1 else shape[dim], *shape[dim + 1:]))


def _vec_dot(s: Site) -> Handle:
    a, b = s.operand("x", s.dtype), s.operand("y", s.dtype)
    both = s.emit("mul", a, b)
    return reduced(s, "reduce_sum", both, (s.dim("dim", both.type.rank, -1),), False)


def _chain(s: Site) -> Handle:
    """A product of several matrices, from the left."""
    first, *rest = (s.cast(t, s.dtype) for t in s.tensors("tensors"))
    for factor in rest:
        first = matmul(s, first, factor)
    return s.reshape(first, s.shape)


def _plus(s: Site, product: Handle) -> Handle:
    """beta * self + alpha * product"""
    product, beta = s.scale(product, s.get("alpha", 1)), s.get("beta", 1)
    return s.fit(product if beta == 0 else s.emit("add", s.scale(_x(s), beta), product))


def _add_outer(s: Site) -> Handle:
    a, b = s.operand("vec1", s.dtype), s.operand("vec2", s.dtype)
    return _plus(s, s.emit("mul", s.reshape(a, (a.type.size, 1)), b))


def _add_batches(s: Site) -> Handle:
    both = matmul(s, s.operand("batch1", s.dtype), s.operand("batch2", s.dtype))
    return _plus(s, s.emit("reduce_sum", both, axes=(0,), keepdims=False))


def _kron(s: Site) -> Handle:
    """[a, 1, b, 1] times [1, c, 1, d]"""
    a, b = _x(s), s.operand("other", s.dtype)
    rank = max(a.type.rank, b.type.rank)
    wide: list[list[int]] = [[], []]
    for which, t in enumerate((a, b)):
        for n in (*(1,) * (rank - t.type.rank), *shape_of(t)):
            wide[which] += [1, n] if which else [n, 1]
    return s.reshape(s.emit("mul", s.reshape(a, wide[0]), s.reshape(b, wide[1])), s.shape)


def _distance(s: Site) -> Handle:
    """The 2-norm of x1 - x2 + eps over the last dimension."""
    if s.float_("p", 2.0) != 2.0:
        raise Unsupported(f"it takes the {s.float_('p')}-norm")
    apart = s.emit("sub", s.operand("x1", s.dtype), s.operand("x2", s.dtype))
    apart = s.emit("add", apart, s.const(s.float_("eps", 1e-6), s.dtype))
    return reduced(s, "reduce_l2", apart, (apart.type.rank - 1,), s.bool_("keepdim"))


def _count_nonzero(s: Site) -> Handle:
    x = s.cast(truth(s, s.tensor("self")), F32)
    axes = s.dims("dim", x.type.rank) if x.type.rank else ()
    return s.cast(reduced(s, "reduce_sum", x, axes, False), s.dtype)


def _without_nan(mean: bool) -> Converter:
    """Sums and means of what is no NaN."""

    def convert(s: Site) -> Handle:
        x = _x(s)
        axes, keep = s.dims("dim", x.type.rank) if x.type.rank else (), s.bool_("keepdim")
        if s.dtype.kind != "float":
            return reduced(s, "reduce_sum", x, axes, keep)
        lost = s.emit("isnan", x)
        total = reduced(s, "reduce_sum", s.emit("where", lost, s.const(0, s.dtype), x), axes, keep)
        if not mean:
            return total
        kept = reduced(s, "reduce_sum", s.cast(s.emit("not", lost), s.dtype), axes, keep)
        return s.emit("div", total, kept)

    return convert


def _std_mean(s: Site) -> tuple[Handle, Handle]:
    variance, mean = REDUCE["var_mean"](s)  # type: ignore[misc]
    return s.emit("sqrt", variance), mean  # type: ignore[arg-type, return-value]


def _extremes(s: Site) -> tuple[Handle, ...]:
    x, keep = s.tensor("self"), s.bool_("keepdim")
    axes = (s.dim("dim", x.type.rank),) if s.has("dim") else tuple(range(x.type.rank))
    return tuple(reduced(s, f"reduce_{op}", x, axes, keep) for op in ("min", "max"))


def _order(s: Site) -> Handle:
    return INDEX["sort"](s)[1]  # type: ignore[index, return-value]


def _take(s: Site) -> Handle:
    """Elements by their number in the order of the shape."""
    x, index = s.tensor("self"), s.tensor("index")
    return s.emit("gather", s.reshape(x, (x.type.size,)), index, axis=0)


_COPIES = (
    "view", "permute", "transpose", "t", "squeeze", "unsqueeze", "expand", "slice", "select",
    "split", "split_with_sizes", "unbind", "diagonal", "unfold", "narrow",
)  # fmt: skip

COMPOSED: Table = {
    **{f"{name}_copy": SHAPE[name] for name in _COPIES},
    "alias_copy": lambda s: s.tensor("self"), "real": lambda s: s.tensor("self"),
    "mH": SHAPE["mT"], "log_sigmoid": _log_sigmoid, "logaddexp": _log_add_exp,
    "softshrink": lambda s: _shrink(s, True), "hardshrink": lambda s: _shrink(s, False),
    "nan_to_num": _nan_to_num, "hypot": _hypot, "isclose": _is_close, "heaviside": _heaviside,
    "xlogy": _x_log_y, "special_xlogy": _x_log_y, "isposinf": _is_infinite(1.0),
    "isneginf": _is_infinite(-1.0), "asinh": _area(_asinh), "acosh": _area(_acosh),
    "atanh": _area(_atanh), "erfc": lambda s: s.emit("sub", _one(s), s.emit("erf", _x(s))),
    "deg2rad": lambda s: s.scale(_x(s), math.pi / 180),
    "rad2deg": lambda s: s.scale(_x(s), 180 / math.pi), "hstack": _joined(1, 1),
    "vstack": _joined(2, 0), "dstack": _joined(3, 2), "column_stack": _joined(2, 1, column=True),
    "broadcast_tensors": _broadcast_all, "diag_embed": _diagonal_matrix, "trace": _trace,
    "tril_indices": _triangle_places(False), "triu_indices": _triangle_places(True),
    "channel_shuffle": _shuffled, "rot90": _turned, "fliplr": as_("flip", SHAPE, dims=(1,)),
    "flipud": as_("flip", SHAPE, dims=(0,)), "hsplit": _split_along(1),
    "vsplit": _split_along(0), "dsplit": _split_along(2),
    "atleast_3d": lambda s: s.reshape(s.tensor("self"), s.shape), "inner": _inner,
    "tensordot": _tensor_dot, "linalg_vecdot": _vec_dot, "linalg_multi_dot": _chain,
    "vdot": lambda s: matmul(s, _x(s), s.operand("other", s.dtype)), "addr": _add_outer,
    "addbmm": _add_batches, "kron": _kron, "pairwise_distance": _distance,
    "count_nonzero": _count_nonzero, "nansum": _without_nan(False),
    "nanmean": _without_nan(True), "std_mean": _std_mean, "aminmax": _extremes,
    "argsort": _order, "msort": lambda s: INDEX["sort"](
        replace(s, args={**s.args, "dim": 0}))[0],  # type: ignore[index]
    "take": _take,
}  # fmt: skip
