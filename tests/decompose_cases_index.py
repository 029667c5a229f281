"""For each decomposition rule on indices and masks a random module that it applies to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spyrec.ir.core import Builder, Value
from spyrec.ir.types import DTYPES
from tests.decompose_draw import Case, Const, Draw, case, graph


def _gather(d: Draw, known: bool) -> Case:
    x = d.array(*d.ints(2, 4, d.int(1, 3)))
    axis = d.int(0, x.ndim - 1)
    n = x.shape[axis]
    indices = d.whole(-n, n, *d.shape(0, 2))
    return case("gather", x, Const(indices) if known else indices, axis=axis)


def _gather_nd(d: Draw) -> Case:
    x = d.array(3, 4, 2)
    batch = d.int(0, 1)
    lead = (3,) if batch else d.shape(0, 2)
    depth = d.int(1, 3 - batch)
    sizes = x.shape[batch : batch + depth]
    columns = [d.whole(-n, n, *lead) for n in sizes]
    return case("gather_nd", x, d.maybe_const(np.stack(columns, -1)), batch_dims=batch)


def _gather_elements(d: Draw) -> Case:
    x = d.array(3, 4, 2)
    axis = d.int(0, 2)
    shape = tuple(d.int(1, 5) if i == axis else d.int(1, n) for i, n in enumerate(x.shape))
    n = x.shape[axis]
    return case("gather_elements", x, d.maybe_const(d.whole(-n, n, *shape)), axis=axis)


def _one_hot(d: Draw) -> Case:
    indices = d.whole(-6, 6, *d.shape(0, 2))
    return case(
        "one_hot", indices, depth=4, axis=d.int(0, indices.ndim), on=2.0, off=-1.0,
        to=DTYPES[d.pick("f64", "i64")],
    )  # fmt: skip


_MEETINGS = ("none", "none", "add", "mul", "max", "min")


def _scatter_nd(d: Draw) -> Case:
    depth, count = d.int(1, 2), d.int(1, 4)
    x, reduction = d.array(4, 3, 2), d.pick(*_MEETINGS)
    where = np.stack([d.whole(-n, n, count) for n in x.shape[:depth]], -1)
    updates = d.array(count, *x.shape[depth:])
    return case("scatter_nd", x, d.maybe_const(where), updates, reduction=reduction)


def _scatter_elements(d: Draw) -> Case:
    x, axis, shape = d.array(3, 4), d.int(0, 1), d.pick((2, 3), (3, 4), (1, 1))
    where = d.maybe_const(d.whole(-x.shape[axis], x.shape[axis], *shape))
    updates, reduction = d.array(*shape), d.pick(*_MEETINGS)
    return case("scatter_elements", x, where, updates, axis=axis, reduction=reduction)


def _softmax_no_mask(d: Draw) -> Case:
    shape = d.shape()
    x, zero = d.array(*shape), np.full(shape[-1], d.pick(0.0, -0.0, 1.0))
    axis, first = d.int(0, x.ndim - 1), d.pick(True, False)

    def make(b: Builder, v: list[Value]) -> Any:
        return b.op("softmax", [b.op("add", v[::-1] if first else v).result], axis=axis).results

    return graph(make, x, Const(zero))


def _attention_no_mask(d: Draw) -> Case:
    q, k, v = (d.array(1, 2, n, 4) for n in (3, 5, 5))
    mask = d.pick(np.ones((3, 5), np.bool_), np.zeros((1, 1, 3, 5)), np.ones((3, 5)))
    return case("attention", q, k, v, Const(mask), causal=d.pick(True, False))


def _experts(d: Draw) -> Case:
    """Matrices looked up by number, as either factor, times one or two vectors an item."""
    count, items, n, k, m = d.int(1, 4), d.int(2, 5), d.int(1, 3), d.int(1, 4), d.int(1, 2)
    numbers, first = d.whole(-count, count, items), d.pick(True, False)
    matrices = d.array(count, n, k) if first else d.array(count, k, n)
    rows = d.array(items, k, m) if first else d.array(items, m, k)

    def make(b: Builder, v: list[Value]) -> Any:
        picked = b.op("gather", [v[1], v[2]], axis=0).result
        return b.op("matmul", [picked, v[0]] if first else [v[0], picked]).results

    return graph(make, rows, d.maybe_const(matrices), numbers)


CASES: dict[str, Callable[[Draw], Case]] = {
    "gather-constant": lambda d: _gather(d, True),
    "gather-from-end": lambda d: case("gather", d.array(4, 3), d.whole(-4, 4, 5), axis=0),
    "gather-axis": lambda d: _gather(d, False),
    "gather-nd": _gather_nd,
    "gather-elements": _gather_elements,
    "one-hot": _one_hot,
    "softmax-no-mask": _softmax_no_mask,
    "attention-no-mask": _attention_no_mask,
    "experts": _experts,
    "scatter-nd": _scatter_nd,
    "scatter-elements": _scatter_elements,
}
