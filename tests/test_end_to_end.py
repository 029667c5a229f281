"""Each road through the compiler, run as a binary with poisoned padding, scratchpad and memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from small_models import Graph, module, run_binary

from spyrec.ir.core import Module, Value

ATTENTION_HEADS, HEAD, SEQ = 12, 32, 128


def matmul() -> Module:
    return module(lambda g, x: [g("matmul", x, g.weight(300, 200))], ("x", (100, 300), "f32"))


def matmul_of_two_inputs() -> Module:
    return module(
        lambda g, x, y: [g("matmul", x, y)], ("x", (3, 20, 70), "f32"), ("y", (3, 70, 90), "f32")
    )


def long_inner_dimension() -> Module:
    return module(lambda g, x: [g("matmul", x, g.weight(9216, 128))], ("x", (4, 9216), "f32"))


def shared_weights_in_uneven_columns() -> Module:
    """Eight cores share each multicast of weights and run at different speeds: a leader that
    counted their credits in one token overwrote slots still being read."""
    return module(lambda g, x: [g("matmul", x, g.weight(1536, 384))], ("x", (128, 1536), "f32"))


def elementwise() -> Module:
    return module(
        lambda g, x, y: [g("exp", g("add", x, y))], ("x", (67, 300), "f32"), ("y", (67, 300), "f32")
    )


def column_broadcast() -> Module:
    return module(
        lambda g, x, y: [g("mul", x, y)], ("x", (67, 300), "f32"), ("y", (67, 1), "f32")
    )


def softmax() -> Module:
    return module(lambda g, x: [g("softmax", x, axis=1)], ("x", (100, 300), "f32"))


def softmax_down() -> Module:
    return module(lambda g, x: [g("softmax", x, axis=0)], ("x", (100, 300), "f32"))


def layer_norm() -> Module:
    return module(
        lambda g, x: [g("layer_norm", x, g.weight(384), g.weight(384), axis=1, epsilon=1e-5)],
        ("x", (100, 384), "f32"),
    )


def conv() -> Module:
    def make(g: Graph, x: Value) -> list[Value]:
        y = g("conv", x, g.weight(100, 70, 3, 3), g.weight(100), strides=(2, 2),
              pads=(1, 1, 1, 1), dilations=(1, 1))  # fmt: skip
        return [g("relu", y)]

    return module(make, ("x", (1, 70, 30, 31), "f32"))


def dilated_conv() -> Module:
    return module(
        lambda g, x: [g("conv", x, g.weight(20, 3, 3, 5), strides=(1, 2), pads=(2, 0, 2, 3),
                        dilations=(2, 1))],
        ("x", (2, 3, 30, 31), "f32"),
    )  # fmt: skip


def mlp() -> Module:
    def make(g: Graph, x: Value) -> list[Value]:
        h = g("gelu", g("add", g("matmul", x, g.weight(256, 512)), g.weight(512)))
        return [g("add", g("matmul", h, g.weight(512, 256)), x)]

    return module(make, ("x", (64, 256), "f32"))


def transpose() -> Module:
    return module(lambda g, x: [g("transpose", x, perm=(1, 0))], ("x", (100, 300), "f32"))


def split_heads() -> Module:
    def make(g: Graph, x: Value) -> list[Value]:
        return [g("transpose", g("reshape", x, shape=(1, SEQ, 12, 32)), perm=(0, 2, 1, 3))]

    return module(make, ("x", (1, SEQ, 384), "f32"))


def odd_heads() -> Module:
    def make(g: Graph, x: Value) -> list[Value]:
        return [g("transpose", g("reshape", x, shape=(1, 30, 5, 72)), perm=(0, 2, 1, 3))]

    return module(make, ("x", (1, 30, 360), "f32"))


def attention() -> Module:
    def make(g: Graph, x: Value) -> list[Value]:
        def head(perm: tuple[int, ...]) -> Value:
            y = g("reshape", g("matmul", x, g.weight(384, 384)), shape=(1, SEQ, 12, 32))
            return g("transpose", y, perm=perm)

        scores = g("matmul", g("mul", head((0, 2, 1, 3)), g.weight()), head((0, 2, 3, 1)))
        out = g("matmul", g("softmax", scores, axis=3), head((0, 2, 1, 3)))
        return [g("reshape", g("transpose", out, perm=(0, 2, 1, 3)), shape=(1, SEQ, 384))]

    return module(make, ("x", (1, SEQ, 384), "f32"))


def max_pool() -> Module:
    return module(
        lambda g, x: [g("max_pool", x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1),
                        dilations=(1, 1))],
        ("x", (1, 70, 30, 31), "f32"),
    )  # fmt: skip


def depthwise_conv() -> Module:
    return module(
        lambda g, x: [g("conv", x, g.weight(70, 1, 3, 3), g.weight(70), strides=(1, 1),
                        pads=(1, 1, 1, 1), dilations=(1, 1), group=70)],
        ("x", (1, 70, 30, 31), "f32"),
    )  # fmt: skip


def global_mean() -> Module:
    return module(
        lambda g, x: [g("reduce_mean", g("relu", x), axes=(2, 3))], ("x", (1, 700, 30, 31), "f32")
    )


def mean_of_a_large_image() -> Module:
    return module(
        lambda g, x: [g("reduce_mean", x, axes=(2, 3))], ("x", (1, 64, 200, 200), "f32")
    )


def concat_channels() -> Module:
    return module(
        lambda g, x, y: [g("concat", x, g("relu", y), axis=1)],
        ("x", (1, 70, 10, 10), "f32"), ("y", (1, 30, 10, 10), "f32"),
    )  # fmt: skip


def embedding() -> Module:
    return module(
        lambda g, i: [g("gather", g.weight(1000, 384), i, axis=0)], ("i", (1, 100), "i64")
    )


def integer_broadcast() -> Module:
    return module(
        lambda g, x: [g("broadcast_to", g("reshape", x, shape=(1, 128, 1)), shape=(1, 128, 384))],
        ("x", (1, 128), "i64"),
    )


def nearest_resize() -> Module:
    def make(g: Graph, x: Value) -> list[Value]:
        wide = g("broadcast_to", g("reshape", g("relu", x), shape=(1, 70, 10, 1, 10, 1)),
                 shape=(1, 70, 10, 2, 10, 2))  # fmt: skip
        return [g("reshape", wide, shape=(1, 70, 20, 20))]

    return module(make, ("x", (1, 70, 10, 10), "f32"))


def padded() -> Module:
    return module(
        lambda g, x: [g("pad", x, lo=(0, 0, 1, 2), hi=(0, 0, 3, 0), value=7.0)],
        ("x", (1, 30, 11, 13), "f32"),
    )


def strided_slices() -> Module:
    def make(g: Graph, x: Value) -> list[Value]:
        parts = [
            g("slice", x, starts=(0, 0, i, j), sizes=(1, 3, 16, 16), steps=(1, 1, 2, 2))
            for i in (0, 1) for j in (0, 1)
        ]  # fmt: skip
        return [g("concat", *parts, axis=1)]

    return module(make, ("x", (1, 3, 32, 32), "f32"))


def echo_and_constant() -> Module:
    return module(lambda g, x: [x, g.weight(3, 5), g("relu", x)], ("x", (7, 70), "f32"))


def reduction_of_a_reduction() -> Module:
    """The second folds an axis along which the first left one element: it counts once."""
    return module(
        lambda g, x: [g("reduce_sum", g("reduce_max", x, axes=(1,), keepdims=True), axes=(0, 1),
                        keepdims=True)],
        ("x", (3, 2), "f32"),
    )  # fmt: skip


def one_element_pieces() -> Module:
    """A piece of one element belongs to one core, not to all."""
    return module(
        lambda g, x, y: [
            g("concat", x, y, axis=0), g("pad", x, lo=(1,), hi=(1,), mode="edge", value=0.0)
        ],
        ("x", (130,), "f32"), ("y", (1,), "f32"),
    )  # fmt: skip


def two_ranks() -> Module:
    """A second result of lower rank has no place for the first one's lanes."""
    return module(
        lambda g, x, y: [g("mul", x, g("exp", y)), g("neg", g("exp", y))],
        ("x", (64, 5, 3, 3), "f32"), ("y", (5, 3, 1), "f32"),
    )  # fmt: skip


def moved_three_times() -> Module:
    def make(g: Graph, x: Value) -> list[Value]:
        p = g("pad", x, lo=(2, 0), hi=(0, 1), mode="reflect", value=0.0)
        return [g("concat", p, p, p, axis=0)]

    return module(make, ("x", (10, 32), "f32"))


def pool_times_scalar() -> Module:
    return module(
        lambda g, x, y: [g("mul", g("max_pool", x, kernel=(2, 2), strides=(2, 2),
                                    pads=(0, 0, 0, 0), dilations=(1, 1)), y)],
        ("x", (1, 6, 8, 8), "f32"), ("y", (), "f32"),
    )  # fmt: skip


def padded_pointwise_conv() -> Module:
    return module(
        lambda g, x: [g("conv", x, g.weight(2, 16, 1, 1), strides=(1, 1), pads=(1, 1, 1, 1),
                        dilations=(1, 1))],
        ("x", (1, 16, 8, 8), "f32"),
    )  # fmt: skip


def patch_conv() -> Module:
    """In fp32 the taps alone fill more than half a tile's budget: they are loaded once, into one
    slot."""
    return module(
        lambda g, x: [g("conv", x, g.weight(64, 48, 8, 8), strides=(8, 8), pads=(0, 0, 0, 0),
                        dilations=(1, 1))],
        ("x", (1, 48, 24, 40), "f32"),
    )  # fmt: skip


ROADS: list[Callable[[], Module]] = [
    matmul, matmul_of_two_inputs, long_inner_dimension,
    shared_weights_in_uneven_columns, elementwise, column_broadcast, softmax,
    softmax_down, layer_norm, conv, dilated_conv, mlp, transpose, split_heads, odd_heads,
    attention, max_pool, depthwise_conv, global_mean, mean_of_a_large_image, concat_channels,
    embedding, integer_broadcast, nearest_resize, padded, strided_slices, echo_and_constant,
    reduction_of_a_reduction, one_element_pieces, two_ranks, moved_three_times, pool_times_scalar,
    padded_pointwise_conv, patch_conv,
]  # fmt: skip


@pytest.mark.parametrize("road", ROADS, ids=lambda f: f.__name__)
def test_binary_agrees_with_the_interpreter(road: Callable[[], Module]) -> None:
    outcome = run_binary(road())
    assert outcome.worst >= 0.99995
    assert outcome.relative <= 0.01
