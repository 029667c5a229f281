"""What language models need of the compiler: where a rule helps, that it does; where the planner
and code generation do the right thing without one, that they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from small_models import Graph, module, run_binary, run_program

from spyrec.driver import compile_module, lower_module
from spyrec.ir.core import Module, Op, Value
from spyrec.ir.types import dtype
from spyrec.passes.attention_blocks import WIN, AttentionBlocks, Way, best_way
from spyrec.passes.attention_parts import Block, blocks_of
from spyrec.passes.decompose import decompose
from spyrec.passes.manager import Pass, Target
from spyrec.passes.pipeline import PIPELINE
from spyrec.passes.span import reaches
from spyrec.sim.device import load_device
from spyrec.sim.run import run

TARGET = Target(load_device())


def cycles(m: Module, passes: Sequence[Pass] = PIPELINE, plan: Any = None) -> int:
    """With launches, timing only."""
    program = compile_module(m, TARGET, pipeline=passes, plan=plan).program
    return run(program, TARGET.device, timing_only=True).total_cycles


def until(name: str) -> Sequence[Pass]:
    last = max(i for i, p in enumerate(PIPELINE) if p.name == name)
    return PIPELINE[: last + 1]


def in_blocks(rows: int) -> Sequence[Pass]:
    return [AttentionBlocks(rows) if p.name == "attention-blocks" else p for p in PIPELINE]


def kernels(m: Module) -> list[Op]:
    return [op for op in lower_module(m, TARGET, pipeline=until("fuse")).body.ops
            if op.name == "kernel"]  # fmt: skip


# Attention ---------------------------------------------------------------------------------------


def attention(
    heads: int, groups: int, rows: int, columns: int, depth: int, repeat: bool = False, **attrs: Any
) -> Module:
    def make(g: Graph, q: Value, k: Value, v: Value) -> list[Value]:
        if repeat:
            k, v = (_repeated(g, x, heads // groups) for x in (k, v))
        return [g("attention", q, k, v, **attrs)]

    shared = (1, groups, columns, depth)
    return module(
        make, ("q", (1, heads, rows, depth), "f32"), ("k", shared, "f32"), ("v", shared, "f32")
    )


def _repeated(g: Graph, x: Value, times: int) -> Value:
    batch, groups, rows, depth = x.type.static_shape
    x = g("reshape", x, shape=(batch, groups, 1, rows, depth))
    x = g("broadcast_to", x, shape=(batch, groups, times, rows, depth))
    return g("reshape", x, shape=(batch, groups * times, rows, depth))


@pytest.mark.parametrize("rows", [1, 70])
def test_repeated_keys_are_read_where_they_stand_once(rows: int) -> None:
    once, repeated = (attention(6, 2, rows, 100, 64, repeat) for repeat in (False, True))
    assert cycles(once) == cycles(repeated)
    assert run_binary(repeated).worst >= 0.9999


def test_a_few_queries_turn_and_the_cache_does_not() -> None:
    m = attention(8, 2, 1, 300, 128)
    moved = {v.name for k in kernels(m) if k.attrs["kind"] == "move" for v in k.operands}
    assert not moved & {"k", "v"}
    assert run_binary(m).worst >= 0.9999


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("mask", ["causal", "window", "none"])
def test_blocks_of_rows_on_the_device(groups: int, mask: str) -> None:
    near = np.arange(150) - np.arange(150)[:, None]

    def make(g: Graph, q: Value, k: Value, v: Value) -> list[Value]:
        masks = [g.constant((near <= 0) & (near > -40), dtype("bool"))] if mask == "window" else []
        return [g("attention", q, k, v, *masks, causal=mask == "causal")]

    shapes = [("q", (1, 2, 150, 64), "f32"), *((n, (1, groups, 150, 64), "f32") for n in "kv")]
    m = module(make, *shapes)
    whole, blocks = (
        compile_module(m, TARGET, pipeline=in_blocks(rows)).program for rows in (150, 64)
    )
    assert run_program(m, blocks).worst >= 0.9999
    macs = [sum(int(n.info.get("macs", 0)) for n in p.kernels) for p in (whole, blocks)]
    seen = {  # of 150 keys by 64, 64 and 22 rows
        "causal": 64 * 64 + 64 * 128 + 22 * 150, "window": 64 * 64 + 64 * 128 + 22 * 86,
        "none": 150 * 150,
    }[mask]  # fmt: skip
    assert macs[1] * 150 * 150 == macs[0] * seen


def test_a_row_that_sees_nothing_keeps_its_block_whole() -> None:
    seen = np.tri(128, dtype=bool)
    seen[3] = False
    first, second = blocks_of(128, 128, 64, seen)
    assert first == Block(0, 64, 0, 128, False, False)
    assert second == Block(64, 128, 0, 128, False, True)


def test_blocks_are_taken_where_they_are_faster() -> None:
    """Scores of 64 heads by 512 rows do not fit the scratchpads, those of 16 do."""
    for heads, height in ((64, 128), (16, 0)):
        m = attention(heads, 8, 512, 512, 128, causal=True)
        assert best_way(m.body.ops[-1], [], TARGET) == Way(height)
        chosen, other = (cycles(m, in_blocks(rows)) for rows in (0, 512 if height else 256))
        assert chosen < other / WIN  # as near as that no blocks are the choice


def test_more_keys_are_worth_more_blocks() -> None:
    long = attention(16, 8, 2048, 2048, 128, causal=True)
    assert 0 < best_way(long.body.ops[-1], [], TARGET).rows <= 512


def test_minus_infinity_becomes_the_lowest_finite_value() -> None:
    hidden = np.where(np.tri(40, 40, dtype=bool), 0, -np.inf).astype(np.float32)

    def make(g: Graph, q: Value, k: Value, v: Value) -> list[Value]:
        return [g("attention", q, k, v, g.constant(hidden, dtype("f32")))]

    m = module(make, *((n, (1, 2, 40, 64), "f32") for n in "qkv"))
    ops = lower_module(m, TARGET, pipeline=until("legalize-dtypes")).body.ops
    arrays = [np.asarray(op.attrs["value"]) for op in ops if op.name == "constant"]
    lowest = min(float(a.min()) for a in arrays)
    assert lowest == -(1 + 510 / 512) * 2.0**32
    assert run_binary(m).worst >= 0.9999


# Rotary embedding --------------------------------------------------------------------------------


def rotary(tokens: int, heads: int, depth: int, turned: int, near: bool = False) -> Module:
    """Of each head the first ``turned`` numbers are rotated; ``near``: neighbours, not halves."""

    def make(g: Graph, x: Value, cos: Value, sin: Value) -> list[Value]:
        x = g("reshape", x, shape=(1, tokens, heads, depth))
        x = g("transpose", x, perm=(0, 2, 1, 3))
        return [rotated(g, x, cos, sin, depth, near)]

    table = (1, 1, tokens, turned)
    return module(
        make, ("x", (1, tokens, heads * depth), "f32"), ("cos", table, "f32"), ("sin", table, "f32")
    )


def rotated(
    g: Graph, x: Value, cos: Value, sin: Value, depth: int, near: bool = False
) -> Value:
    (_, heads, tokens, _), turned = x.type.static_shape, cos.type.static_shape[3]
    cut = partial(_cut, g)
    part = cut(x, 0, turned)
    if near:
        odd, even = (cut(part, start, turned // 2, 2) for start in (1, 0))
        pairs = [g("reshape", y, shape=(1, heads, tokens, turned // 2, 1))
                 for y in (g("neg", odd), even)]  # fmt: skip
        swapped = g("concat", *pairs, axis=4)
        swapped = g("reshape", swapped, shape=(1, heads, tokens, turned))
    else:
        low, high = (cut(part, start, turned // 2) for start in (0, turned // 2))
        swapped = g("concat", g("neg", high), low, axis=3)
    y = g("add", g("mul", part, cos), g("mul", swapped, sin))
    rest = depth - turned
    return g("concat", y, cut(x, turned, rest), axis=3) if rest else y


def _cut(g: Graph, x: Value, start: int, size: int, step: int = 1) -> Value:
    *lead, width = x.type.static_shape
    if size == width:
        return x
    return g("slice", x, starts=(0, 0, 0, start), sizes=(*lead, size), steps=(1, 1, 1, step))


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize(("depth", "turned"), [(64, 64), (128, 128), (80, 80), (80, 32)])
def test_rotary_embedding_is_right_on_the_device(depth: int, turned: int, near: bool) -> None:
    assert run_binary(rotary(70, 3, depth, turned, near)).worst >= 0.9999


def test_a_rotation_is_one_move_beside_that_of_the_heads() -> None:
    kinds = Counter(k.attrs["kind"] for k in kernels(rotary(70, 3, 128, 128)))
    assert kinds == {"move": 2, "vec": 1}  # the signs turn the table where it is used


def test_heads_that_are_rotated_in_part_are_not_cut_apart() -> None:
    """With constant tables; those made at run time are widened where several read them."""

    def make(g: Graph, x: Value) -> list[Value]:
        cos, sin = g.weight(1, 1, 70, 32), g.weight(1, 1, 70, 32)
        return [rotated(g, x, cos, sin, 128)]

    m = module(make, ("x", (1, 3, 70, 128), "f32"))
    assert Counter(k.attrs["kind"] for k in kernels(m)) == {"move": 1, "vec": 1}
    assert run_binary(m).worst >= 0.9999
    once = Counter(k.attrs["kind"] for k in kernels(rotary(70, 3, 128, 32)))
    assert once == {"move": 4, "vec": 1}


# Sizes -------------------------------------------------------------------------------------------


def product(m: int, k: int, n: int) -> Module:
    return module(lambda g, x, w: [g("matmul", x, w)], ("x", (m, k), "f16"), ("w", (k, n), "f16"))


@pytest.mark.parametrize(
    ("rows", "hidden", "vocabulary"),
    [(1, 4096, 49159), (512, 4096, 49159), (1, 2048, 151936), (1, 1152, 262144)],
)
def test_any_vocabulary_is_spread_over_all_cores_within_the_span(
    rows: int, hidden: int, vocabulary: int
) -> None:
    # range-scale would run it once, with gigabytes of numbers.
    passes = [p for p in until("core-allocation") if p.name != "range-scale"]
    final = lower_module(product(rows, hidden, vocabulary), TARGET, pipeline=passes)
    (head,) = [op for op in final.body.ops if op.name == "kernel"]
    parts: Any = head.attrs["parts"]
    assert np.prod(parts) == TARGET.device.cores.count
    assert max(r.nbytes for r in reaches(head)) <= TARGET.device.hbm.span_bytes


def feed_forward(inner: int) -> Module:
    def make(g: Graph, x: Value, w: Value, v: Value) -> list[Value]:
        return [g("matmul", g("gelu", g("matmul", x, w)), v)]

    return module(
        make, ("x", (128, 384), "f16"), ("w", (384, inner), "f16"), ("v", (inner, 384), "f16")
    )


def test_sizes_that_are_no_whole_sticks_are_no_slower_than_padded_ones() -> None:
    assert cycles(feed_forward(1076)) <= cycles(feed_forward(1088))
    assert cycles(product(1, 512, 3001)) <= cycles(product(1, 512, 3072))
    heads = [attention(4, 4, 128, 128, depth) for depth in (72, 128)]
    assert cycles(heads[0]) <= cycles(heads[1])


def test_sizes_that_are_no_whole_sticks_are_right() -> None:
    assert run_binary(attention(4, 2, 40, 50, 72)).worst >= 0.9999
    weights = module(lambda g, x: [g("matmul", x, g.weight(70, 333))], ("x", (3, 70), "f32"))
    assert run_binary(weights).worst >= 0.9999


@pytest.mark.parametrize("k", [1024, 3072])
def test_one_row_by_few_columns_is_read_by_both_halves_of_the_card(k: int) -> None:
    m = product(1, k, 1024)
    one_half = {"kernels": {"k0_matmul": {"parts": {"n": 16, "k": 1}}}}
    assert cycles(m) < 0.6 * cycles(m, plan=one_half)


def test_gate_and_up_stay_two_products() -> None:
    """As one they would be cut apart again, and the second could not be multiplied where it is
    made."""

    def split(g: Graph, x: Value, w: Value, v: Value) -> list[Value]:
        return [g("mul", g("silu", g("matmul", x, w)), g("matmul", x, v))]

    def fused(g: Graph, x: Value, w: Value) -> list[Value]:
        both = g("matmul", x, w)
        parts = [g("slice", both, starts=(0, s), sizes=(512, 1728), steps=(1, 1))
                 for s in (0, 1728)]  # fmt: skip
        return [g("mul", g("silu", parts[0]), parts[1])]

    x, half = ("x", (512, 1152), "f16"), (1152, 1728)
    apart = module(split, x, ("w", half, "f16"), ("v", half, "f16"))
    assert cycles(apart) < cycles(module(fused, x, ("w", (1152, 3456), "f16")))


# The rest ----------------------------------------------------------------------------------------


def test_a_tied_table_is_stored_for_each_of_its_readers() -> None:
    """Rows to look up and columns to multiply with: nothing is repacked at run time."""

    def make(g: Graph, tokens: Value) -> list[Value]:
        table = g.weight(130, 96)
        x = g("gather", table, tokens, axis=0)
        return [g("matmul", x, g("transpose", table, perm=(1, 0)))]

    m = module(make, ("tokens", (5,), "i64"))
    assert Counter(k.attrs["kind"] for k in kernels(m))["move"] == 0
    assert run_binary(m).worst >= 0.9999


def test_a_cube_is_two_products() -> None:
    def make(g: Graph, x: Value) -> list[Value]:
        return [g("pow", x, g.constant(np.array(3.0, np.float32), dtype("f32")))]

    m = module(make, ("x", (7, 70), "f32"))
    assert [op.name for op in decompose(m).body.ops if op.name != "constant"] == ["mul", "mul"]
    assert run_binary(m).worst >= 0.9999
