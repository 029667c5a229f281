"""Random modules for the rules of attention, heads and rotary embedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spyrec.ir.core import Builder, Loc, Value
from tests.decompose_draw import Array, Case, Const, Draw, case, graph

AT = Loc(("node",))


def attention(d: Draw) -> Case:
    batch, groups, share, depth, out = d.ints(1, 3, 5)
    rows, columns = d.pick(1, 2, 70, 130), d.pick(1, 3, 70, 130)
    q = d.array(batch, groups * share, rows, depth)
    k, v = d.array(batch, groups, columns, depth), d.array(batch, groups, columns, out)
    return case(
        "attention", q, k, v, *_mask(d, batch, groups * share, rows, columns),
        causal=d.pick(True, False), scale=d.pick(None, 0.3), rows=d.pick(0, 64, 50),
        keys=d.pick(0, 64, 40),
    )  # fmt: skip


def _mask(d: Draw, batch: int, heads: int, rows: int, columns: int) -> list[Array | Const]:
    """None, a band as sliding windows have it, one bit for each score, or numbers to add. The first
    key is seen by all, or a causal mask might leave a row none."""
    place = np.arange(columns) - np.arange(rows)[:, None]
    shape = d.pick((rows, columns), (columns,), (heads, rows, columns), (batch, 1, 1, columns))
    match d.pick("none", "band", "bool", "float"):
        case "band":
            return [Const((place > -d.pick(3, 66)) & (place <= d.pick(0, 5)) | (place < -columns))]
        case "bool":
            keep = d.rng.random(shape) < 0.5
            keep[..., 0] = True
            return [d.maybe_const(keep)]
        case "float":
            hidden = np.where(d.rng.random(shape) < 0.3, d.pick(-np.inf, -2.0), 0.5)
            hidden[..., 0] = 0
            return [d.maybe_const(hidden)]
    return []


def _repeated(b: Builder, x: Value, times: int, tiled: bool) -> Value:
    """Each head of x[b, g, r, d] ``times`` times in a row."""
    batch, groups, rows, depth = x.type.static_shape
    y = b.op("reshape", [x], loc=AT, shape=(batch, groups, 1, rows, depth)).result
    if tiled:
        y = b.op("tile", [y], loc=AT, repeats=(1, 1, times, 1, 1)).result
    else:
        wide = (batch, groups, times, rows, depth)
        y = b.op("broadcast_to", [y], loc=AT, shape=wide).result
    return b.op("reshape", [y], loc=AT, shape=(batch, groups * times, rows, depth)).result


def shared_heads(d: Draw) -> Case:
    batch, groups, share, rows, depth, out = d.ints(1, 3, 6)
    times, columns, tiled = d.int(2, 3), d.int(1, 4), d.pick(True, False)
    heads = groups * times * share

    def make(b: Builder, v: list[Value]) -> Any:
        k, w = (_repeated(b, x, times, tiled) for x in v[1:])
        return b.op("attention", [v[0], k, w], loc=AT, scale=0.4).results

    return graph(make, d.array(batch, heads, rows, depth), d.array(batch, groups, columns, depth),
                 d.array(batch, groups, columns, out))  # fmt: skip


def split_early(d: Draw) -> Case:
    """A rotation of heads, then the heads in groups."""
    groups, share, rows, half = d.ints(1, 3, 4)
    heads = groups * share
    table = d.pick((rows, 2 * half), (1, rows, 2 * half), (1, 1, rows, 2 * half))
    parts = d.pick((groups, share), (heads, 1), (1, heads))

    def make(b: Builder, v: list[Value]) -> Any:
        def op(name: str, *operands: Value, **attrs: Any) -> Value:
            return b.op(name, operands, loc=AT, **attrs).result

        x = op("transpose", v[0], perm=(0, 2, 1, 3))
        low, high = (
            op("slice", x, starts=(0, 0, 0, s), sizes=(1, heads, rows, half), steps=(1,) * 4)
            for s in (0, half)
        )
        turned = op("concat", high, low, axis=3)
        y = op("add", op("mul", x, v[1]), op("mul", turned, v[2]))
        return [op("reshape", y, shape=(1, *parts, rows, 2 * half))]

    return graph(make, d.array(1, rows, heads, 2 * half), d.array(*table), d.array(*table))


def signs(d: Draw) -> Case:
    """Both ways of rotary embedding: halves, and neighbours, whose pairs become one dimension."""
    batch, heads, rows, half = d.ints(1, 3, 4)
    near = d.pick(True, False)
    axis, piece = (4, (batch, heads, rows, half, 1)) if near else (3, (batch, heads, rows, half))

    def make(b: Builder, v: list[Value]) -> Any:
        x, table = v
        starts = ((0, 0, 0, 1), (0, 0, 0, 0)) if near else ((0, 0, 0, half), (0, 0, 0, 0))
        parts = []
        for start, sign in zip(starts, d.pick((-1, 1), (1, -1), (-1, -1)), strict=True):
            y = b.op("slice", [x], loc=AT, starts=start, sizes=(batch, heads, rows, half),
                     steps=(1, 1, 1, 2 if near else 1)).result  # fmt: skip
            y = b.op("neg", [y], loc=AT).result if sign < 0 else y
            parts.append(b.op("reshape", [y], loc=AT, shape=piece).result if near else y)
        y = b.op("concat", parts, loc=AT, axis=axis).result
        if near:
            y = b.op("reshape", [y], loc=AT, shape=(batch, heads, rows, 2 * half)).result
        return b.op("mul", [table, y] if d.pick(True, False) else [y, table], loc=AT).results

    table = d.pick((2 * half,), (rows, 2 * half), (batch, 1, rows, 2 * half))
    return graph(make, d.array(batch, heads, rows, 2 * half), d.maybe_const(d.array(*table)))


def whole_heads(d: Draw) -> Case:
    """The first of each head's numbers are rotated, the others kept."""
    heads, rows, half, rest = d.int(2, 4), *d.ints(1, 3, 3)
    table = d.pick((2 * half,), (rows, 2 * half), (1, 1, rows, 2 * half))
    order, before = d.pick((0, 1), (1, 0)), d.int(0, 2)

    def make(b: Builder, v: list[Value]) -> Any:
        def op(name: str, *operands: Value, **attrs: Any) -> Value:
            return b.op(name, operands, loc=AT, **attrs).result

        def cut(x: Value, start: int, size: int) -> Value:
            return op("slice", x, starts=(0, 0, 0, start), sizes=(1, heads, rows, size),
                      steps=(1,) * 4)  # fmt: skip

        x, cos, sin = v
        part, kept = cut(x, before, 2 * half), cut(x, before + 2 * half, rest)
        turned = op("concat", op("neg", cut(part, half, half)), cut(part, 0, half), axis=3)
        terms = [op("mul", part, cos), op("mul", sin, turned)]
        return [op("concat", op("add", *(terms[i] for i in order)), kept, axis=3)]

    tables = (d.maybe_const(d.array(*table)) for _ in range(2))
    return graph(make, d.array(1, heads, rows, before + 2 * half + rest), *tables)


def turn_product(d: Draw) -> Case:
    lead = d.pick((), (2,), (2, 3))
    m, k, n = d.int(1, 66), d.pick(70, 130), d.pick(100, 300)

    def make(b: Builder, v: list[Value]) -> Any:
        last = (*range(len(lead)), len(lead) + 1, len(lead))
        turned = b.op("transpose", [v[1]], loc=AT, perm=last).result
        return b.op("matmul", [v[0], turned], loc=AT).results

    return graph(make, d.array(*lead, m, k), d.array(*lead, n, k))


CASES: dict[str, Callable[[Draw], Case]] = {
    "attention": attention,
    "attention-shared-heads": shared_heads,
    "split-early": split_early,
    "signs-into-table": signs,
    "whole-heads": whole_heads,
    "turn-product": turn_product,
}
