"""Attention that is spelled out: every form of it is proven on random graphs, what only looks like
it is left alone, and the program is that of the op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import Graph, module, run_binary

from spyrec.driver import compile_module
from spyrec.ir.core import Builder, Loc, Module, Value
from spyrec.ir.interp import run
from spyrec.ir.types import dtype
from spyrec.ir.verifier import verify
from spyrec.passes.decompose import decompose
from spyrec.passes.find_attention import find_attention
from spyrec.passes.manager import Target, output_error
from spyrec.passes.rule import apply_rules
from spyrec.passes.rules_canonical import CANONICAL_RULES
from spyrec.passes.rules_explicit import EXPLICIT_RULES
from spyrec.sim.device import load_device
from spyrec.sim.run import run as run_card
from tests.decompose_draw import Array, Case, Const, Draw, graph

AT = Loc(("node",))
TARGET = Target(load_device())


class Writer:
    """Calls that give values, in the words of a model."""

    def __init__(self, b: Builder) -> None:
        self.b = b

    def __call__(self, name: str, *operands: Value | float, **attrs: Any) -> Value:
        like = next(v for v in operands if isinstance(v, Value) and v.type.dtype.name != "bool")
        return self.b.op(
            name, [v if isinstance(v, Value) else self.number(v, like) for v in operands],
            loc=AT, **attrs,
        ).result  # fmt: skip

    def number(self, value: float, like: Value) -> Value:
        return self.b.constant(np.array(value), like.type.dtype)

    def turned(self, x: Value) -> Value:
        rank = x.type.rank
        return self("transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))


def explicit(d: Draw) -> Case:
    """Of any rank, keys shared or not, scaled before or behind the product, masked in every way."""
    rank, rows, columns, depth, out = d.int(2, 5), *d.ints(1, 5, 4)
    batch = d.ints(1, 3, rank - 2)
    own = (*batch[:-1], 1) if batch and d.pick(True, False) else batch
    scales = [d.pick(0.0, 0.5, 3.0) for _ in range(3)]  # 0: none
    masks = [d.pick("none", "number", "low", "fill", "other"), d.pick("none", "low", "fill")]
    division, form = d.pick(True, False), d.pick("plain", "guard", "cast")
    guard, cast = form == "guard", form == "cast"
    arrays: list[Array | Const] = [
        d.array(*batch, rows, depth), d.array(*own, columns, depth), d.array(*own, columns, out)
    ]  # fmt: skip
    arrays += [d.maybe_const(_mask(d, m, (*batch, rows, columns))) for m in masks if m != "none"]

    def make(b: Builder, v: list[Value]) -> Any:
        w = Writer(b)
        q, k, value, *operands = v
        q = w("mul", q, scales[0]) if scales[0] else q
        k = w("mul", scales[1], k) if scales[1] else k
        x = w("matmul", q, w.turned(k))
        if scales[2]:
            x = w("div" if division else "mul", x, scales[2])
        for kind, mask in zip([m for m in masks if m != "none"], operands, strict=True):
            x = _masked(w, kind, x, mask)
        x = w("cast", x, to=dtype("f32")) if cast else x
        p = w("softmax", x, axis=rank - 1)
        p = w("cast", p, to=dtype("f64")) if cast else p
        if guard:
            p = w("where", w("isnan", p), 0.0, p)
        return [w("matmul", p, value)]

    return graph(make, *arrays)


def _mask(d: Draw, kind: str, scores: Sequence[int]) -> Array:
    """Of a shape that broadcasts, whose first key is seen by every row."""
    shape = [n if d.pick(True, False) else 1 for n in scores][d.int(0, len(scores) - 1) :]
    hides = d.rng.random(shape) < 0.4
    hides[..., :1] = False
    match kind:
        case "number":
            return d.array(*shape)
        case "low":
            return np.where(hides, d.pick(-np.inf, -1e32), 0.5)
        case "fill":
            return ~hides
    return hides


def _masked(w: Writer, kind: str, x: Value, mask: Value) -> Value:
    match kind:
        case "fill":
            return w("where", mask, x, -np.inf)
        case "other":
            return w("where", mask, -1e31, x)
    return w("add", mask, x)


def test_every_form_keeps_the_meaning() -> None:
    found: Counter[str] = Counter()

    @settings(max_examples=300, deadline=None, database=None)
    @given(st.data())
    def prove(data: st.DataObject) -> None:
        before = explicit(Draw(data))
        used: Counter[str] = Counter()
        after = apply_rules(before.module, (*EXPLICIT_RULES, *CANONICAL_RULES), used)
        verify(after)
        assert all(op.loc in (Loc(), AT) for op in after.body.ops)
        found["found"] += used["attention-explicit"]
        found["left"] += 1 - used["attention-explicit"]
        with np.errstate(all="ignore"):
            want = run(before.module, before.inputs)
            for m in (after, decompose(after)):
                got = run(m, before.inputs)
                # softmax is not in f32 any more
                assert max(output_error(want[k], got[k]) for k in want) <= 1e-5

    prove()
    assert found["found"] > found["left"] > 0, found


def attention(
    form: str, groups: int, share: int, rows: int, depth: int = 64, mask: str = "causal"
) -> Module:
    """The op ("op"), or spelled out with keys and values repeated by a broadcast ("expand"), by
    tiles ("tile") or by writing them side by side ("concat")."""
    seen = np.tri(rows, dtype=np.bool_)

    def make(g: Graph, q: Value, k: Value, v: Value) -> list[Value]:
        low = g.constant(np.where(seen, 0, np.finfo(np.float32).min).astype("f4"), dtype("f32"))
        scale = g.constant(np.array(depth**-0.5, np.float32), dtype("f32"))
        if form == "op":
            return [g("attention", q, k, v, *([low] if mask == "causal" else []))]
        k, v = (_repeated(g, x, form, share) for x in (k, v))
        x = g("matmul", q, g("transpose", k, perm=(0, 1, 3, 2)))
        x = g("mul", x, scale)
        x = g("add", x, low) if mask == "causal" else x
        return [g("matmul", g("softmax", x, axis=3), v)]

    shared = (1, groups, rows, depth)
    return module(
        make, ("q", (1, groups * share, rows, depth), "f32"), ("k", shared, "f32"),
        ("v", shared, "f32"),
    )  # fmt: skip


def _repeated(g: Graph, x: Value, form: str, times: int) -> Value:
    batch, groups, rows, depth = x.type.static_shape
    x = g("reshape", x, shape=(batch, groups, 1, rows, depth))
    match form:
        case "expand":
            x = g("broadcast_to", x, shape=(batch, groups, times, rows, depth))
        case "tile":
            x = g("tile", x, repeats=(1, 1, times, 1, 1))
        case "concat":
            x = g("concat", *(x,) * times, axis=2)
    return g("reshape", x, shape=(batch, groups * times, rows, depth))


@pytest.mark.parametrize("form", ["expand", "tile", "concat"])
@pytest.mark.parametrize("mask", ["causal", "none"])
def test_the_program_is_that_of_the_op(form: str, mask: str) -> None:
    spelled, op = (attention(f, 2, 3, 100, mask=mask) for f in (form, "op"))
    programs = [compile_module(m, TARGET).program for m in (spelled, op)]
    times = [run_card(p, TARGET.device, timing_only=True).total_cycles for p in programs]
    assert times[0] == times[1]
    assert run_binary(spelled).worst >= 0.9999


def test_hidden_keys_of_blocks_are_left_out() -> None:
    """1024 rows of 32 heads: four blocks, of which one sees a quarter of the keys, one half."""
    program = compile_module(attention("expand", 8, 4, 1024, 128), TARGET).program
    macs = sum(int(n.info.get("macs", 0)) for n in program.kernels)
    assert macs == 2 * 32 * 128 * 256 * (256 + 512 + 768 + 1024)


def names(make: Any, *inputs: tuple[str, tuple[int, ...], str]) -> set[str]:
    return {op.name for op in find_attention(module(make, *inputs)).body.ops}


QKV = tuple((n, (1, 2, 8, 4), "f32") for n in "qkv")


@pytest.mark.parametrize(
    "what",
    ["plain", "weights are read", "scores are read", "columns", "masked, then scaled",
     "scaled by row", "capped", "a guard that may be needed"],
)  # fmt: skip
def test_what_only_looks_like_it_is_left_alone(what: str) -> None:
    def make(g: Graph, q: Value, k: Value, v: Value) -> list[Value]:
        row = g.weight(8, 1)
        x = g("matmul", q, g("transpose", k, perm=(0, 1, 3, 2)))
        scores = x
        two = g.constant(np.array(2, np.float32), dtype("f32"))
        match what:
            case "masked, then scaled":
                x = g("mul", g("add", x, row), two)
            case "scaled by row":
                x = g("mul", x, row)
            case "capped":
                x = g("tanh", x)
            case "a guard that may be needed":
                x = g("add", x, g("reduce_max", x, axes=(1,), keepdims=True))
        p = g("softmax", x, axis=2 if what == "columns" else 3)
        if what.startswith("a guard"):
            zero = g.constant(np.array(0, np.float32), dtype("f32"))
            p = g("where", g("isnan", p), zero, p)
        extra = {"weights are read": [p], "scores are read": [scores]}.get(what, [])
        return [g("matmul", p, v), *extra]

    assert ("attention" in names(make, *QKV)) == (what == "plain")


def test_two_masks_become_one_only_where_that_is_small() -> None:
    def make(g: Graph, q: Value, k: Value, v: Value, a: Value, b: Value) -> list[Value]:
        x = g("matmul", q, g("transpose", k, perm=(0, 1, 3, 2)))
        x = g("add", g("add", x, a), b)
        return [g("matmul", g("softmax", x, axis=3), v)]

    qkv = [(n, (1, 4, 8, 4), "f32") for n in "qkv"]
    for shape, small in (((8, 8), True), ((4, 8, 8), False)):
        found = names(make, *qkv, ("a", shape, "f32"), ("b", (8,), "f32"))
        assert ("attention" in found) == small


def test_a_mask_in_half_precision_hides_with_its_lowest_number() -> None:
    """Two blocks: the op that is found knows which keys they see."""
    seen = np.tri(512, dtype=np.bool_)
    low = np.where(seen, 0, np.finfo(np.float16).min).astype(np.float16)

    def make(g: Graph, q: Value, k: Value, v: Value) -> list[Value]:
        return [g("attention", q, k, v, g.constant(low, dtype("f16")))]

    m = module(make, *((n, (1, 64, 512, 64), "f16") for n in "qkv"))
    done = sum(int(n.info.get("macs", 0)) for n in compile_module(m, TARGET).program.kernels)
    assert done < 2 * 64 * 64 * 512 * 512
