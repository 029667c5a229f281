"""Random small valid modules at the tensor stage, for tests of any pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from spyrec.ir.core import Block, Builder, Loc, Module, Value
from spyrec.ir.types import DTYPES, tensor

Array = np.ndarray[Any, Any]

MAX_ELEMENTS = 4096


class Grower:
    """Grows a graph op by op. ``values`` are what later ops may read."""

    def __init__(
        self, draw: Callable[[st.SearchStrategy[Any]], Any], floats: str, smooth: bool
    ) -> None:
        self.draw = draw
        self.smooth = smooth
        self.float = DTYPES[floats]
        self.builder = Builder()
        self.args: list[Value] = []
        self.values: list[Value] = []
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def int(self, lo: int, hi: int) -> int:
        return int(self.draw(st.integers(lo, hi)))

    def pick(self, choices: Any) -> Any:
        return self.draw(st.sampled_from(list(choices)))

    def arg(self, shape: tuple[int, ...], kind: str) -> None:
        value = self.builder.value(f"x{len(self.args)}", tensor(shape, kind))
        self.args.append(value)
        self.values.append(value)

    def known(self, *shape: int) -> Value:
        """A constant of small floats."""
        return self.builder.constant(
            self.rng.normal(0, 1, shape).astype(self.float.np_dtype), self.float
        )

    def op(self, name: str, *operands: Value, **attrs: Any) -> Value:
        loc = Loc((f"{name}_{len(self.builder.ops)}",))
        return self.builder.op(name, operands, loc=loc, **attrs).result

    def some(self, rank: int = 0, kind: str = "float") -> Value | None:
        """A value of at least this rank, if there is one."""
        fits = [v for v in self.values if v.type.rank >= rank and v.type.dtype.kind == kind]
        return self.pick(fits) if fits else None


def _unary(g: Grower, x: Value) -> Value:
    names = "neg abs exp tanh sigmoid sin relu silu gelu erf softplus square identity"
    name = g.pick((names if g.smooth else f"{names} floor sign").split())
    return g.op(name, g.op("clip", x, min=-8.0, max=8.0) if name == "exp" else x)


def _binary(g: Grower, x: Value) -> Value:
    name = g.pick(("add", "sub", "mul", "max", "min"))
    shape = x.type.static_shape
    match g.pick(("same", "constant", "row", "scalar", "other")):
        case "same":
            y = x
        case "constant":
            y = g.known(*shape)
        case "row":
            y = g.known(*shape[-1:])
        case "scalar":
            y = g.known()
        case _:
            fits = [v for v in g.values if v.type == x.type]
            y = g.pick(fits)
    return g.op(name, *((x, y) if g.pick((True, False)) else (y, x)))


def _select(g: Grower, x: Value) -> Value:
    cond = g.op(g.pick(("lt", "ge", "eq")), x, g.known())
    return g.op("where", cond, x, g.known(*x.type.static_shape[-1:]))


def _cast(g: Grower, x: Value) -> Value:
    whole = g.op("cast", g.op("round", x), to=DTYPES["i32"])
    return g.op("cast", whole, to=x.type.dtype)


def _reduce(g: Grower, x: Value) -> Value:
    axes = tuple(i for i in range(x.type.rank) if g.pick((True, False)))
    name = g.pick(("sum", "mean", "max", "min", "l1", "sum_square"))
    return g.op(f"reduce_{name}", x, axes=axes, keepdims=g.pick((True, False)))


def _reshape(g: Grower, x: Value) -> Value:
    shape = list(x.type.static_shape)
    match g.pick(("flat", "one", "merge")):
        case "flat":
            return g.op("reshape", x, shape=(x.type.size,))
        case "one":
            shape.insert(g.int(0, len(shape)), 1)
        case _ if len(shape) > 1:
            shape[:2] = [shape[0] * shape[1]]
    return g.op("reshape", x, shape=tuple(shape))


def _transpose(g: Grower, x: Value) -> Value:
    return g.op("transpose", x, perm=tuple(g.draw(st.permutations(range(x.type.rank)))))


def _slice(g: Grower, x: Value) -> Value:
    starts, sizes, steps = [], [], []
    for n in x.type.static_shape:
        step = g.pick((1, 1, 2, -1))
        size = g.int(1, -(-n // abs(step)))
        reach = (size - 1) * abs(step)
        first = g.int(0, n - 1 - reach)
        starts.append(first + reach if step < 0 else first)
        sizes.append(size)
        steps.append(step)
    return g.op("slice", x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))


def _pad(g: Grower, x: Value) -> Value:
    lo, hi = (tuple(g.int(0, 2) for _ in x.type.shape) for _ in range(2))
    return g.op("pad", x, lo=lo, hi=hi, mode=g.pick(("constant", "edge")))


def _concat(g: Grower, x: Value) -> Value:
    return g.op("concat", x, x, g.known(*x.type.static_shape), axis=g.int(0, x.type.rank - 1))


def _broadcast(g: Grower, x: Value) -> Value:
    return g.op("broadcast_to", x, shape=(g.int(1, 3), *x.type.static_shape))


def _matmul(g: Grower, x: Value) -> Value:
    return g.op("matmul", x, g.known(x.type.static_shape[-1], g.int(1, 5)))


def _matmul_self(g: Grower, x: Value) -> Value:
    rank = x.type.rank
    flipped = g.op("transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))
    return g.op("matmul", x, flipped)


def _softmax(g: Grower, x: Value) -> Value:
    return g.op("softmax", x, axis=g.int(0, x.type.rank - 1))


def _layer_norm(g: Grower, x: Value) -> Value:
    n = x.type.static_shape[-1]
    return g.op("layer_norm", x, g.known(n), g.known(n), axis=x.type.rank - 1, epsilon=1e-3)


def _gather(g: Grower, x: Value) -> Value:
    axis = g.int(0, x.type.rank - 1)
    indices = g.rng.integers(0, x.type.static_shape[axis], g.int(1, 3))
    return g.op("gather", x, g.builder.constant(indices, DTYPES["i64"]), axis=axis)


def _conv(g: Grower, x: Value) -> Value:
    c = x.type.static_shape[1]
    group = g.pick((1, c))
    w = g.known(c * g.int(1, 2), c // group, 3, 3)
    return g.op(
        "conv", x, w, g.known(w.type.static_shape[0]), strides=(g.int(1, 2),) * 2,
        pads=(1, 1, 1, 1), dilations=(1, 1), group=group,
    )  # fmt: skip


def _pool(g: Grower, x: Value) -> Value:
    window = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    if g.pick((True, False)):
        return g.op("avg_pool", x, **window, count_include_pad=g.pick((True, False)))
    return g.op("max_pool", x, **window, dilations=(1, 1))


GROWTH: tuple[tuple[int, int, Callable[[Grower, Value], Value]], ...] = (
    (0, 9, _unary), (0, 9, _binary), (0, 9, _select), (0, 9, _cast), (0, 4, _reduce),
    (0, 4, _reshape), (1, 9, _transpose), (1, 4, _slice), (1, 4, _pad), (1, 3, _concat),
    (0, 3, _broadcast), (2, 4, _matmul), (2, 4, _matmul_self), (1, 9, _softmax),
    (1, 9, _layer_norm), (1, 4, _gather), (4, 4, _conv), (4, 4, _pool),
)  # fmt: skip
"""Least and greatest rank of the operand, and how an op is put on it."""

JUMPS = (_select, _cast)
"""What turns a small error into a large one."""


@st.composite
def modules(
    draw: Callable[[st.SearchStrategy[Any]], Any],
    max_ops: int = 8,
    floats: str = "f32",
    smooth: bool = False,
    widths: tuple[int, ...] = (1, 2, 3, 4, 5),
) -> Module:
    """A valid module with one to three inputs and outputs and about ``max_ops`` ops at most.

    Float tensors are of type ``floats``; dimensions are small numbers, the last (or the channels)
    is one of ``widths``. Values stay moderate enough for comparisons, but not for equality of
    rounded ones: with ``smooth`` no op makes a jump of a small error.
    """
    g = Grower(draw, floats, smooth)
    for _ in range(g.int(1, 3)):
        if g.pick((True, True, False)):
            lead = tuple(g.int(1, 5) for _ in range(g.int(-1, 2)))
            g.arg((*lead, g.pick(widths)) if lead or g.pick((True, False)) else (), floats)
        else:
            g.arg((g.int(1, 2), g.pick(widths), g.int(3, 6), g.int(3, 6)), floats)
    for _ in range(g.int(1, max_ops)):
        x = g.some()
        assert x is not None
        fits = [make for lo, hi, make in GROWTH if lo <= x.type.rank <= hi]
        fits = [make for make in fits if not (smooth and make in JUMPS)]
        grown = g.pick(fits)(g, x)
        if grown.type.size <= MAX_ELEMENTS:
            g.values.append(grown)
    made = [v for v in g.values if v not in g.args] or g.values
    results = tuple(g.pick(made) for _ in range(g.int(1, 2)))
    results = (*dict.fromkeys((made[-1], *results)),)
    names = tuple(f"y{i}" for i in range(len(results)))
    return Module("random", Block(tuple(g.args), tuple(g.builder.ops), results), names)


def inputs_for(module: Module, seed: int = 0) -> dict[str, Array]:
    """Inputs by name: moderate floats, integers 0 and 1, coin flips."""
    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for v in module.body.args:
        shape, kind = v.type.static_shape, v.type.dtype
        array = rng.normal(size=shape) if kind.kind == "float" else rng.integers(0, 2, shape)
        made[v.name] = np.asarray(array).astype(kind.np_dtype)
    return made
