"""For each decomposition rule a random module that it applies to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spyrec.ir.core import Block, Builder, Value
from spyrec.ir.types import DTYPES
from tests.decompose_cases_attention import CASES as ATTENTION_CASES
from tests.decompose_cases_index import CASES as INDEX_CASES
from tests.decompose_draw import Case, Const, Draw, case, graph, of_padding, type_of


def unary(name: str, **attrs: Any) -> Callable[[Draw], Case]:
    return lambda d: case(name, d.array(*d.shape()), **attrs)


def _pow(exponent: Callable[[Draw], float]) -> Callable[[Draw], Case]:
    return lambda d: case("pow", d.positive(*d.shape(1)), Const(np.array(exponent(d))))


def _pow_general(d: Draw) -> Case:
    y = d.pick(d.array(3), np.array([2.0, -3.0, 0.0]))
    return case("pow", d.array(*d.shape(0, 2), 3), d.maybe_const(y))


def _reduction(name: str, keepdims: bool | None = None) -> Callable[[Draw], Case]:
    def make(d: Draw) -> Case:
        x = d.array(*d.shape())
        axes = tuple(i for i in range(x.ndim) if d.pick(True, False))
        keep = d.pick(True, False) if keepdims is None else keepdims
        return case(f"reduce_{name}", x, axes=axes, keepdims=keep)

    return make


def _arg(name: str, keepdims: bool = True) -> Callable[[Draw], Case]:
    def make(d: Draw) -> Case:
        x = np.round(d.array(*d.shape()))
        if d.pick(True, False):
            x.flat[d.int(0, x.size - 1)] = np.nan
        return case(name, x, axis=d.int(0, x.ndim - 1), keepdims=keepdims)

    return make


def _cumsum(d: Draw) -> Case:
    n = d.pick(1, 3, 5, 700)
    shape = d.pick((n,), (2, n), (2, n, 3))
    x = d.pick(d.array(*shape), d.whole(-9, 9, *shape))
    axis = len(shape) - 1 if len(shape) < 3 else 1
    return case(
        "cumsum", x, axis=axis, exclusive=d.pick(True, False), reverse=d.pick(True, False)
    )


def _top_k(d: Draw) -> Case:
    x = d.pick(np.round(d.array(3, 6)), d.whole(-3, 3, 3, 6), np.full((3, 6), -np.inf))
    axis = d.int(0, 1)
    return case("top_k", x, k=d.int(1, x.shape[axis]), axis=axis, largest=d.pick(True, False))


def _softmax(name: str) -> Callable[[Draw], Case]:
    def make(d: Draw) -> Case:
        x = d.array(*d.shape())
        return case(name, x, axis=d.int(0, x.ndim - 1))

    return make


def _layer_norm(d: Draw) -> Case:
    x = d.array(*d.shape(1, 3), 5)
    axis = d.int(0, x.ndim - 1)
    params = [d.array(*x.shape[axis:]) for _ in range(d.int(1, 2))]
    return case("layer_norm", x, *params, axis=axis, epsilon=1e-5)


def _rms_norm(d: Draw) -> Case:
    x = d.array(*d.shape(1, 3), 5)
    axis = d.int(0, x.ndim - 1)
    return case("rms_norm", x, d.array(*x.shape[axis:]), axis=axis, epsilon=1e-6)


def _channel_norm(name: str, **attrs: Any) -> Callable[[Draw], Case]:
    def make(d: Draw) -> Case:
        x = d.array(2, 4, *d.shape(1, 2))
        return case(name, x, d.array(4), d.array(4), epsilon=1e-3, **attrs)

    return make


def _statistics(d: Draw, n: int) -> list[Const]:
    return [Const(a) for a in (d.array(n), d.array(n), d.array(n), d.positive(n))]


def _batch_norm(d: Draw) -> Case:
    stats = [d.maybe_const(c.array) for c in _statistics(d, 3)]
    return case("batch_norm", d.array(2, 3, *d.shape(0, 3)), *stats, epsilon=1e-3)


def _batch_norm_conv(d: Draw) -> Case:
    bias = [Const(d.array(4))] * d.int(0, 1)

    def make(b: Builder, v: list[Value]) -> Any:
        split = 2 + len(bias)
        y = b.op("conv", v[:split], strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
        return b.op("batch_norm", [y.result, *v[split:]], epsilon=1e-3).results

    return graph(make, d.array(1, 3, 4, 5), Const(d.array(4, 3, 3, 3)), *bias, *_statistics(d, 4))


def _batch_norm_matmul(d: Draw) -> Case:
    bias = d.pick(True, False)

    def make(b: Builder, v: list[Value]) -> Any:
        y = b.op("matmul", v[:2]).result
        y = b.op("add", [y, v[2]]).result if bias else y
        return b.op("batch_norm", [y, *v[3:]], epsilon=1e-3).results

    return graph(make, d.array(5, 3), Const(d.array(3, 4)), Const(d.array(4)), *_statistics(d, 4))


def _pool(name: str, rank: int, **fixed: Any) -> Callable[[Draw], Case]:
    def make(d: Draw) -> Case:
        x = d.array(d.int(1, 2), d.int(1, 3), *d.ints(4, 7, rank))
        kernel = d.ints(1, 3, rank)
        pads = tuple(d.int(0, k - 1) for k in kernel * 2)
        attrs: dict[str, Any] = {"kernel": kernel, "pads": pads, "strides": d.ints(1, 3, rank)}
        if name != "avg_pool":
            attrs["dilations"] = d.ints(1, 2, rank) if max(kernel) < 3 else (1,) * rank
        return case(name, x, **attrs, **fixed)

    return make


def _avg_pool(d: Draw) -> Case:
    include, ceil = d.pick(True, False), d.pick(True, False)
    return _pool("avg_pool", d.int(1, 3), count_include_pad=include, ceil_mode=ceil)(d)


def _lrn(d: Draw) -> Case:
    x = d.array(2, 5, *d.shape(0, 2))
    beta = d.pick(0.75, 0.5, 0.6)
    return case("lrn", x, size=d.int(1, 5), alpha=0.1, beta=beta, bias=2.0)


def _conv(rank: int, *, bias: bool = False, groups: int = 1, channels: int = 0, filters: int = 0):
    def make(d: Draw) -> Case:
        c = channels or groups * d.int(1, 3)
        o = filters or groups * d.int(1, 3)
        kernel = d.ints(1, 3, rank)
        x, w = d.array(d.int(1, 2), c, *d.ints(5, 7, rank)), d.array(o, c // groups, *kernel)
        more = [d.array(o)] if bias else []
        return case(
            "conv", x, d.maybe_const(w), *more, strides=d.ints(1, 2, rank),
            pads=d.ints(0, 2, 2 * rank), dilations=d.ints(1, 2, rank), group=groups,
        )  # fmt: skip

    return make


def _conv_transpose(d: Draw, bias: bool = False) -> Case:
    rank, group = d.int(1, 3), d.int(1, 2)
    strides, kernel = d.ints(1, 3, rank), d.ints(1, 3, rank)
    pads = tuple(d.int(0, 1) for _ in range(2 * rank))
    extra = tuple(d.int(0, s - 1) for s in strides)
    o = d.int(1, 2)
    x = d.array(1, group * 2, *d.ints(3, 4, rank))
    more = [d.array(group * o)] if bias else []
    return case(
        "conv_transpose", x, d.maybe_const(d.array(group * 2, o, *kernel)), *more,
        strides=strides, pads=pads, dilations=d.ints(1, 2, rank), output_padding=extra, group=group,
    )  # fmt: skip


def _conv_transpose_blocks(d: Draw) -> Case:
    k = d.int(2, 3)
    return case(
        "conv_transpose", d.array(2, 3, 2, 4), Const(d.array(3, 2, k, k)), strides=(k, k),
        pads=(0,) * 4, dilations=(1, 1), output_padding=(0, 0),
    )  # fmt: skip


def _resize(*modes: str) -> Callable[[Draw], Case]:
    def make(d: Draw) -> Case:
        x = d.array(1, 2, *d.ints(2, 6, d.int(1, 2)))
        factor = d.pick(2.0, 3.0, 0.5, 1.5, 0.7)
        scales = (1.0, 1.0, *(factor for _ in x.shape[2:]))
        sizes = tuple(max(1, int(n * s)) for n, s in zip(x.shape, scales, strict=True))
        coordinate = d.pick(
            "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel",
            "tf_half_pixel_for_nn",
        )  # fmt: skip
        mode = d.pick(*modes)
        return case(
            "resize", x, sizes=sizes, scales=scales, mode=mode, coordinate=coordinate,
            rounding=d.pick("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
            antialias=mode != "nearest" and d.pick(True, False),
        )  # fmt: skip

    return make


def _pad_by_index(d: Draw) -> Case:
    x = d.array(*d.shape(1, 3))
    least = [-1 if n > 2 else 0 for n in x.shape]
    lo, hi = (tuple(d.int(at, 4) for at in least) for _ in range(2))
    return case("pad", x, lo=lo, hi=hi, mode=d.pick("reflect", "edge", "wrap"))


def _pad_crop(d: Draw) -> Case:
    x = d.array(3, 4)
    lo, hi, gaps = (-1, d.int(-1, 2)), d.ints(-1, 2, 2), d.ints(0, 2, 2)
    return case("pad", x, lo=lo, hi=hi, value=7.0, interior=gaps)


def _reverse(d: Draw) -> Case:
    x = d.array(*d.shape())
    return case("reverse", x, axes=tuple(i for i in range(x.ndim) if d.pick(True, False)))


def _tile(d: Draw) -> Case:
    x = d.array(*d.shape())
    return case("tile", x, repeats=d.ints(1, 3, x.ndim))


EQUATIONS: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = (
    ("ij,jk->ik", ((2, 3), (3, 4))), ("bhqd,bhkd->bhqk", ((2, 2, 3, 4), (2, 2, 5, 4))),
    ("bqhd,bkhd->bhqk", ((2, 3, 2, 4), (2, 5, 2, 4))),
    ("...ij,...jk->...ik", ((2, 1, 2, 3), (4, 3, 2))), ("ii->i", ((3, 3),)),
    ("iij->j", ((3, 3, 2),)), ("ij->", ((2, 3),)), ("ij", ((3, 2),)), ("ji", ((3, 2),)),
    ("i,j->ji", ((2,), (3,))), ("ij,j,jk->ik", ((2, 3), (3,), (3, 4))),
    ("abc,abd->acd", ((2, 3, 4), (2, 3, 5))), ("ij,ij->i", ((2, 3), (2, 3))),
    ("a...,b->...", ((2, 3), (4,))), ("ab,cd->", ((2, 3), (1, 4))),
)  # fmt: skip


def _einsum(d: Draw) -> Case:
    equation, shapes = d.pick(*EQUATIONS)
    return case("einsum", *(d.array(*s) for s in shapes), equation=equation)


def _quantize(d: Draw) -> Case:
    to = d.pick(np.int8, np.uint8)
    x = d.array(3, 4) * 100
    vector = d.pick(True, False)
    scale = d.positive(4) if vector else np.array(1.7)
    zero = d.rng.integers(0, 9, scale.shape).astype(to)
    return case("quantize_linear", x, Const(scale), Const(zero), axis=1, to=type_of(zero).dtype)


def _dequantize(d: Draw) -> Case:
    kind = d.pick(np.int8, np.uint8)
    x = d.rng.integers(0, 127, (3, 4)).astype(kind)
    scale = d.pick(d.positive(4), np.array(0.3))
    zero = d.rng.integers(0, 9, scale.shape).astype(kind)
    return case("dequantize_linear", d.maybe_const(x), d.maybe_const(scale), Const(zero), axis=1)


def _div_constant(d: Draw) -> Case:
    return case("div", d.array(2, 3), Const(d.positive(*d.pick((), (3,), (2, 3)))))


def _div_smaller(d: Draw) -> Case:
    def make(b: Builder, v: list[Value]) -> Any:
        y = b.op("sqrt", [v[1]]).result if root else v[1]
        return b.op("div", [v[0], y]).results

    root = d.pick(True, False)
    return graph(make, d.array(2, 3), d.positive(2, 1))


def _reciprocal_sqrt(d: Draw) -> Case:
    def make(b: Builder, v: list[Value]) -> Any:
        return b.op("reciprocal", [b.op("sqrt", v).result]).results

    return graph(make, d.positive(2, 3))


def _affine(*steps: str) -> Callable[[Draw], Case]:
    """A conv or matmul with constant weights, then constants added (a) or multiplied (m)."""

    def make(d: Draw) -> Case:
        conv = d.pick(True, False)
        shapes = ((1, 4, 1, 1), (4, 1, 1), ()) if conv else ((4,), (1, 4), (1,))
        constants = [Const(d.array(*d.pick(*shapes))) for _ in steps]
        x, w = d.array(2, 3, *(4, 4) * conv), d.array(3, 4)
        w = d.array(4, 3, 2, 2) if conv else w
        window = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)} if conv else {}

        def build(b: Builder, v: list[Value]) -> Any:
            y = b.op("conv" if conv else "matmul", v[:2], **window).result
            for step, c in zip(steps, v[2:], strict=True):
                y = b.op(step, d.pick([y, c], [c, y])).result
            return (y,)

        return graph(build, x, Const(w), *constants)

    return make


def _iota(d: Draw) -> Case:
    shape = d.shape()
    return case("iota", shape=shape, axis=d.int(0, len(shape) - 1), to=DTYPES[d.pick("f64", "i32")])


def _split(d: Draw) -> Case:
    x = d.array(2, 6)
    return case("split", x, axis=1, sizes=d.pick((6,), (1, 5), (2, 2, 2)))


def _trilu(d: Draw) -> Case:
    return case("trilu", d.array(*d.shape(2, 3)), upper=d.pick(True, False), k=d.int(-3, 3))


def _if(d: Draw) -> Case:
    cond = d.maybe_const(np.array(d.pick(True, False)))

    def make(b: Builder, v: list[Value]) -> Any:
        regions = []
        for name in ("exp", "silu"):
            inner = Builder({x.name for x in v} | {f"r{len(regions)}"})
            y = inner.op(name, [v[1]], hint=f"branch{len(regions)}")
            regions.append(Block((), tuple(inner.ops), y.results))
        return b.op("if", v[:1], regions=regions, types=[v[1].type]).results

    return graph(make, cond, d.array(2, 3))


def _loop(d: Draw) -> Case:
    def make(b: Builder, v: list[Value]) -> Any:
        trip, cond, x = v
        inner = Builder({a.name for a in v})
        args = (inner.value("i", trip.type), inner.value("on", cond.type), inner.value("c", x.type))
        y = inner.op("add", [inner.op("silu", [args[2]], hint="s").result, x], hint="t").result
        total = inner.op("reduce_max", [y], axes=(0, 1), keepdims=False, hint="u").result
        limit = inner.constant(np.array(3.0), DTYPES["f64"], hint="v")
        again = inner.op("lt", [total, limit], hint="w").result if dynamic else args[1]
        body = Block(args, tuple(inner.ops), (again, y))
        return b.op("loop", v, regions=[body], types=[x.type]).results

    dynamic = d.pick(True, False)
    cond = d.maybe_const(np.array(d.pick(True, False)))
    return graph(make, Const(np.array(d.int(0, 3))), cond, d.array(2, 3))


_REDUCTIONS = ("sum", "mean", "max", "min", "prod", "l1", "l2", "sum_square", "log_sum_exp")

CASES: dict[str, Callable[[Draw], Case]] = {
    **INDEX_CASES,
    **{name: unary(name) for name in (
        "square", "relu", "softplus", "softsign", "silu", "mish", "elu", "selu",
    )},
    "gelu-none": unary("gelu"),
    "gelu-tanh": unary("gelu", approximate="tanh"),
    "clip": lambda d: case("clip", d.pick(d.array(3, 4), d.whole(-5, 5, 3, 4)),
                           min=d.pick(None, -1.5), max=d.pick(None, 1.2)),
    "hard-sigmoid": unary("hard_sigmoid", alpha=0.3),
    "hard-swish": unary("hard_swish"),
    "leaky-relu": lambda d: unary("leaky_relu", alpha=d.pick(0.2, 1.5, -0.1))(d),
    "prelu": lambda d: case("prelu", d.array(2, 3), d.array(3)),
    "celu": lambda d: unary("celu", alpha=d.pick(0.5, 2.0))(d),
    "thresholded-relu": unary("thresholded_relu", alpha=0.7),
    "reciprocal-of-sqrt": _reciprocal_sqrt,
    "fmod": lambda d: case("mod", d.array(2, 3), d.positive(3), fmod=True),
    "div-by-constant": _div_constant,
    "div-by-smaller": _div_smaller,
    "pow-whole": _pow(lambda d: float(d.int(-6, 9))),
    "pow-root": _pow(lambda d: d.pick(0.5, -0.5, 0.25, 0.75, -0.75, -0.25, 1.5, -1.5, 2.25)),
    "pow-general": _pow_general,
    **{f"keepdims-{n}": _reduction(n, False) for n in _REDUCTIONS},
    "keepdims-arg-max": _arg("arg_max", False),
    "keepdims-arg-min": _arg("arg_min", False),
    "mean": _reduction("mean"),
    "l1": _reduction("l1"),
    "l2": _reduction("l2"),
    "sum-square": _reduction("sum_square"),
    "log-sum-exp": _reduction("log_sum_exp"),
    "cumsum": _cumsum,
    "arg-max": _arg("arg_max"),
    "arg-min": _arg("arg_min"),
    "top-k": _top_k,
    "softmax": _softmax("softmax"),
    "log-softmax": _softmax("log_softmax"),
    "layer-norm": _layer_norm,
    "rms-norm": _rms_norm,
    "batch-norm": _batch_norm,
    "batch-norm-into-conv": _batch_norm_conv,
    "batch-norm-into-matmul": _batch_norm_matmul,
    "instance-norm": _channel_norm("instance_norm"),
    "group-norm": _channel_norm("group_norm", groups=2),
    "max-pool-ceil": lambda d: _pool("max_pool", d.int(1, 3), ceil_mode=True)(d),
    "max-pool-rank": lambda d: _pool("max_pool", d.pick(1, 3), ceil_mode=False)(d),
    "sum-pool-rank": lambda d: _pool("sum_pool", d.pick(1, 3))(d),
    "max-pool-of-padding": lambda d: of_padding(d, "max_pool"),
    "sum-pool-of-padding": lambda d: of_padding(d, "sum_pool"),
    "avg-pool": _avg_pool,
    "lrn": _lrn,
    "conv-bias": lambda d: _conv(d.int(1, 2), bias=True)(d),
    "conv-of-padding": lambda d: of_padding(d, "conv"),
    "conv-1d": _conv(1),
    "conv-3d": _conv(3),
    "conv-multiplier": _conv(2, groups=3, channels=3, filters=6),
    "conv-grouped": _conv(2, groups=2, channels=4, filters=6),
    "conv-transpose-bias": lambda d: _conv_transpose(d, True),
    "conv-transpose-blocks": _conv_transpose_blocks,
    "conv-transpose": _conv_transpose,
    "resize-nearest": _resize("nearest"),
    "resize-interpolated": _resize("linear", "cubic"),
    "pad-by-index": _pad_by_index,
    "pad-crop": _pad_crop,
    "reverse": _reverse,
    "split": _split,
    "tile": _tile,
    "depth-to-space": lambda d: case("depth_to_space", d.array(2, 8, 2, 3), block=2,
                                     mode=d.pick("DCR", "CRD")),
    "space-to-depth": lambda d: case("space_to_depth", d.array(2, 3, 4, 6), block=2),
    "trilu": _trilu,
    "iota": _iota,
    "shape-of": lambda d: case("shape_of", d.array(*d.shape())),
    "einsum": _einsum,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "scale-into-weights": _affine("mul"),
    "scale-through-shift": _affine("add", "mul"),
    "shift-of-shift": _affine("add", "mul", "add"),
    "if": _if,
    "loop": _loop,
    **ATTENTION_CASES,
}  # fmt: skip
