"""Padding touches no true element: every rule against the interpreter at every true size, random
graphs, and what is refused with its reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from padded_runs import Make, padded, same_as_exact
from small_models import Graph

from spyrec.ir.core import Value
from spyrec.ir.errors import PassError
from spyrec.ir.types import dtype
from spyrec.passes.extents import Factor, axis_of, fixed, regrouped, scattered, seen
from spyrec.passes.padding_moves import UNTOLD, UNTOLD_WRITE

X = ("x", (-1, 6), "f32")
WIDE = ("x", (-1, 11), "f32")  # longer than any open size
F32 = dtype("f32")


def const(g: Graph, array: Any, kind: str = "f32") -> Value:
    return g.constant(np.asarray(array, dtype(kind).np_dtype), dtype(kind))


def attend(g: Graph, n: int, x: Value, *mask: Value, causal: bool = False) -> list[Value]:
    """Two heads share a key head."""
    q = g("reshape", g("matmul", x, g.weight(6, 8)), shape=(1, n, 2, 4))
    k = g("reshape", g("matmul", x, g.weight(6, 4)), shape=(1, n, 1, 4))
    v = g("reshape", g("matmul", g("exp", x), g.weight(6, 4)), shape=(1, n, 1, 4))
    q, k, v = (g("transpose", t, perm=(0, 2, 1, 3)) for t in (q, k, v))
    return [g("attention", q, k, v, *mask, causal=causal)]


def centred(g: Graph, n: int, x: Value) -> list[Value]:
    y = g("sub", x, g("reduce_mean", x, axes=(0,)))
    return [y, g("reduce_l2", y, axes=(0, 1), keepdims=False)]


def gram(g: Graph, n: int, x: Value) -> list[Value]:
    """exp makes no zeros of zeros, so both factors of the sum over n are hidden or finite."""
    e = g("exp", x)
    return [g("matmul", g("transpose", e, perm=(1, 0)), g("log", e))]


def flat(g: Graph, n: int, x: Value) -> list[Value]:
    """A sum over an axis in which n is the middle of three factors."""
    y = g("transpose", g("reshape", x, shape=(n, 2, 3)), perm=(1, 0, 2))
    y = g("reshape", g("exp", y), shape=(2 * n * 3,))
    return [g("reduce_sum", y, axes=(0,)), g("reduce_max", y, axes=(0,)), y]


def last(g: Graph, n: int, x: Value) -> list[Value]:
    two = g("slice", x, starts=(n - 2, 0), sizes=(2, 6), steps=(1, 1))
    return [two, g("gather", x, const(g, n - 1, "i64"), axis=0),
            g("gather", x, const(g, [[-1]], "i64"), axis=0)]


def replaced(g: Graph, n: int, x: Value) -> list[Value]:
    """The front of a fixed tensor is x."""
    old = const(g, np.arange(72).reshape(12, 6))
    rest = g("slice", old, starts=(n + 1, 0), sizes=(11 - n, 6), steps=(1, 1))
    first = g("slice", old, starts=(0, 0), sizes=(1, 6), steps=(1, 1))
    whole = g("concat", first, x, rest, axis=0)
    places = const(g, np.arange(n)[:, None] + 3, "i64")
    return [whole, g("reduce_sum", whole, axes=(0,)), g("scatter_nd", old, places, x)]


def normalised(g: Graph, n: int, x: Value) -> list[Value]:
    """Over other axes than n, and one that is written out since it is over n."""
    image = g("reshape", g("transpose", x, perm=(1, 0)), shape=(1, 6, n))
    return [
        g("layer_norm", x, g.weight(6), g.weight(6), axis=1, epsilon=1e-5),
        g("rms_norm", x, g.weight(6), axis=1, epsilon=1e-5),
        g("instance_norm", image, g.weight(6), g.weight(6), epsilon=1e-5),
        g("softmax", g("exp", x), axis=0), g("log_softmax", x, axis=0),
        g("softmax", x, axis=1),
    ]


def reduced(name: str) -> Make:
    def make(g: Graph, n: int, x: Value) -> list[Value]:
        y = g("add", x, const(g, 1.5))  # no zeros in padding
        return [g(name, y, axes=(0, 1)), g(name, y, axes=(0,), keepdims=False),
                g(name, y, axes=(1,))]
    return make


def rows(g: Graph, n: int, x: Value) -> list[Value]:
    """Numbers that follow n: a table cut to it, a causal triangle, n itself and 1/n."""
    table = const(g, np.arange(60).reshape(10, 6)[:n])
    seen_ = const(g, np.tri(n), "bool")
    scores = g("matmul", x, g("transpose", x, perm=(1, 0)))
    shown = g("softmax", g("where", seen_, scores, const(g, -np.inf)), axis=1)
    total = g("reduce_sum", x, axes=(0,))
    return [g("add", x, table), g("matmul", shown, x), g("mul", total, const(g, 1 / n)),
            g("mul", total, const(g, [float(n + 3)]))]


def moved(g: Graph, n: int, x: Value) -> list[Value]:
    front = g("concat", const(g, np.ones((2, 6))), x, axis=0)
    around = g("pad", x, lo=(1, 0), hi=(2, 1), value=3.0)
    inner = g("slice", front, starts=(1, 2), sizes=(n, 3), steps=(1, 1))
    spread = g("broadcast_to", g("slice", x, starts=(0, 0), sizes=(1, 6), steps=(1, 1)),
               shape=(n, 6))  # fmt: skip
    each = [front, around, inner, spread]
    return each + [g("reduce_max", y, axes=(0,)) for y in each]


def convolved(g: Graph, n: int, x: Value) -> list[Value]:
    line = g("reshape", g("exp", g("transpose", x, perm=(1, 0))), shape=(1, 6, n))
    y = g("conv", line, g.weight(5, 6, 3), strides=(1,), pads=(2, 1), dilations=(1,))
    z = g("conv", y, g.weight(2, 5, 2), strides=(1,), pads=(0, 0), dilations=(1,))
    return [y, z, g("reduce_mean", z, axes=(2,))]


def picked(g: Graph, n: int, x: Value) -> list[Value]:
    values, places = g.op("top_k", [x], k=2, axis=0).results
    grown = g("cumsum", x, axis=0, reverse=True)
    return [g("arg_max", x, axis=0), g("arg_min", g("exp", x), axis=0, keepdims=False), values,
            places, g("cumsum", x, axis=0), grown]  # fmt: skip


CASES: dict[str, tuple[Make, Any]] = {
    "attention": (attend, [("x", (1, -1, 6), "f32")]),
    "attention with a mask": (attend, [("x", (1, -1, 6), "f32"), ("m", (1, 1, 1, -1), "f32")]),
    "causal attention": (
        lambda g, n, x: attend(g, n, x, causal=True), [("x", (1, -1, 6), "f32")]
    ),
    **{make.__name__: (make, [X]) for make in (
        centred, gram, flat, last, replaced, normalised, rows, moved, convolved, picked,
    )},
    **{f"reduce_{kind}": (reduced(f"reduce_{kind}"), [X]) for kind in (
        "sum", "mean", "max", "min", "prod", "l1", "l2", "sum_square", "log_sum_exp",
    )},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_bucket_gives_what_the_true_size_gives(name: str) -> None:
    make, inputs = CASES[name]
    same_as_exact(make, *inputs)


def test_a_mask_of_the_model_hides_keys_even_where_it_hides_all() -> None:
    """Scores that are all the lowest number leave no room for one that is lower."""
    def make(g: Graph, n: int, scores: Value) -> list[Value]:
        low = g("mul", scores, const(g, 0.0))
        return [g("softmax", g("add", low, const(g, np.finfo(np.float32).min)), axis=1)]

    same_as_exact(make, ("scores", (4, -1), "f32"))


def test_no_mask_where_the_input_is_zero_already() -> None:
    """A sum of products with zeros behind is right as it is; after exp it is not."""
    def zero(g: Graph, n: int, x: Value) -> list[Value]:
        return [g("matmul", g("transpose", x, perm=(1, 0)), g("tanh", x))]

    assert same_as_exact(zero, X).masks == ()
    assert [op for op, _ in same_as_exact(gram, X).masks] == ["matmul", "matmul"]


def test_rows_of_zeros_without_an_epsilon_are_not_zero() -> None:
    """0 / 0 in padding, of which a sum must not get anything."""
    def make(g: Graph, n: int, x: Value) -> list[Value]:
        y = g("rms_norm", x, const(g, np.ones(6)), axis=1, epsilon=0.0)
        return [g("matmul", g("transpose", y, perm=(1, 0)), g("sigmoid", x))]

    same_as_exact(make, X)


def test_indices_that_padding_makes_name_what_is_there() -> None:
    """Of padding, which is 0, they are one beyond the end."""
    def make(g: Graph, n: int, x: Value) -> list[Value]:
        two, six = const(g, 2, "i64"), const(g, 6, "i64")
        places = g("where", g("eq", x, const(g, 0)), six, two)
        pairs = g("slice", places, starts=(0, 0), sizes=(n, 2), steps=(1, 1))
        table = const(g, np.arange(36).reshape(6, 6))
        return [g("gather", table, places, axis=0), g("gather_nd", table, pairs),
                g("gather_elements", x, places, axis=1)]

    same_as_exact(make, X)


def test_macs_are_counted_as_products_of_sizes() -> None:
    found = padded(attend, 8, ("x", (1, -1, 6), "f32"))
    assert {dims: n for n, dims in found.macs} == {
        (("n", 0),): 6 * 8 + 6 * 4 + 6 * 4, (("n", 0), ("n", 0)): 2 * 4 + 2 * 4
    }  # fmt: skip


def refused(make: Make, *inputs: Any) -> str:
    with pytest.raises(PassError) as caught:
        padded(make, 8, *(inputs or [X]))
    return str(caught.value)


def twice(g: Graph, n: int, x: Value) -> Value:
    """An axis of 2 n, of which padding is the end of either half."""
    y = g("transpose", g("reshape", x, shape=(n, 2, 3)), perm=(1, 0, 2))
    return g("reshape", y, shape=(2 * n, 3))


REFUSED: dict[str, tuple[Make, str]] = {
    "diagonal": (
        lambda g, n, x: [g("trilu", twice(g, n, x), upper=False, k=-4)],
        "buckets: trilu %trilu: it draws a diagonal through several dimensions in one "
        "(from unknown)",
    ),
    "moving part": (
        lambda g, n, x: [g("add", x, g("slice", const(g, np.ones((30, 6))), starts=(n, 0),
                                       sizes=(n, 6), steps=(1, 1)))],
        "buckets: slice %slice: it begins at 8, 2, 3, 5, 7 along axis 0: where it begins follows "
        "the size (from unknown)",
    ),
    "look-up behind padding": (
        lambda g, n, x: [g("gather", twice(g, n, x), const(g, [3], "i64"), axis=0)],
        f"buckets: gather %gather: it {UNTOLD} (from unknown)",
    ),
    "look-ups behind padding": (
        lambda g, n, x: [g("gather_nd", twice(g, n, x), const(g, [[3]], "i64"))],
        f"buckets: gather_nd %gather_nd: it {UNTOLD} (from unknown)",
    ),
    "write behind padding": (
        lambda g, n, x: [g("scatter_nd", twice(g, n, x), const(g, [[3]], "i64"),
                           const(g, np.ones((1, 3))))],
        f"buckets: scatter_nd %scatter_nd: it {UNTOLD_WRITE} (from unknown)",
    ),
    "write at the end": (
        lambda g, n, x: [g("scatter_nd", x, const(g, [[-1]], "i64"), const(g, np.ones((1, 6))))],
        f"buckets: scatter_nd %scatter_nd: it {UNTOLD_WRITE} (from unknown)",
    ),
    "rows from the end": (
        lambda g, n, x: [g("scatter_nd", const(g, np.ones((12, 6))),
                           const(g, np.arange(n)[:, None] - 9, "i64"), x)],
        "buckets: scatter_nd %scatter_nd: it writes padding at places that are not known to be one "
        "after the other (from unknown)",
    ),
    "reverse": (
        lambda g, n, x: [g("reverse", x, axes=(0,))],
        "buckets: reverse %reverse: it turns an axis round whose end is padding (from unknown)",
    ),
    "repeat": (
        lambda g, n, x: [g("tile", x, repeats=(2, 1))],
        "buckets: tile %tile: it repeats an axis whose end is padding (from unknown)",
    ),
    "behind": (
        lambda g, n, x: [g("concat", x, const(g, np.ones((2, 6))), axis=0)],
        "buckets: concat %concat: it puts something behind a tensor whose end is padding "
        "(from unknown)",
    ),
    "strided": (
        lambda g, n, x: [g("slice", x, starts=(0, 0), sizes=((n + 1) // 2, 6), steps=(2, 1))],
        "buckets: slice %slice: it makes axis 0 as long as 4, 1, 2, 3, 4 for n=8; n=2; n=3; n=5; "
        "n=7, which is no dimension plus a number (from unknown)",
    ),
    "clamped": (
        lambda g, n, x: [g("slice", x, starts=(0, 0), sizes=(min(n, 5), 6), steps=(1, 1))],
        "buckets: slice %slice: it makes axis 0 as long as 5, 2, 3, 5, 5 for n=8; n=2; n=3; n=5; "
        "n=7, which is no dimension plus a number (from unknown)",
    ),
    "norm": (
        lambda g, n, x: [g("layer_norm", g("transpose", x, perm=(1, 0)), const(g, np.ones(n)),
                           axis=1, epsilon=1e-5)],
        "buckets: layer_norm %layer_norm: it normalises over axis 1, which has padding "
        "(from unknown)",
    ),
    "alibi": (
        lambda g, n, x: [g("add", x, const(g, np.arange(n)[::-1, None]))],
        "buckets: constant %c: it holds numbers that follow the size and are not those of the "
        "largest one cut short (from unknown)",
    ),
    "two lengths": (
        lambda g, n, x: [g("reshape", x, shape=(2 * n, 3)),
                         g("add", g("reshape", x, shape=(2 * n, 3)), const(g, np.ones((1, 3)))),
                         g("matmul", g("reshape", g("transpose", x, perm=(1, 0)), shape=(1, 6 * n)),
                           g("reshape", x, shape=(6 * n, 1)))],
        "buckets: matmul %matmul: it sums over two axes whose padding lies in different places "
        "(from unknown)",
    ),
    "graph": (
        lambda g, n, x: [g("exp", g("neg", x) if n > 5 else x)],
        "buckets: the model is another graph for n=8 and for n=2: neg (from unknown) stands "
        "where exp (from unknown) does; a bucket needs one graph",
    ),
    "attribute": (
        lambda g, n, x: [g("leaky_relu", x, alpha=1 / n)],
        "buckets: leaky_relu %leaky_relu: it has the alpha 0.125, 0.5, 0.3333333333333333, 0.2, "
        "0.14285714285714285 for n=8; n=2; n=3; n=5; n=7, so it follows the size (from unknown)",
    ),
    "pool": (
        lambda g, n, x: [g("max_pool", g("reshape", x, shape=(1, 1, n, 6)), kernel=(2, 2),
                           strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))],
        "buckets: max_pool %max_pool: it has windows that reach into padding (from unknown)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_padding_would_change_is_refused(name: str) -> None:
    make, sentence = REFUSED[name]
    assert refused(make) == sentence


def test_a_look_up_at_places_known_at_run_time_is_refused() -> None:
    message = refused(lambda g, n, x, i: [g("gather", x, i, axis=0)], X, ("i", (3,), "i64"))
    assert message == (
        "buckets: gather %gather: it looks things up along an axis with padding at places known "
        "only at run time (from unknown)"
    )


UNARY = ("exp", "neg", "tanh", "sigmoid", "square", "relu", "cos", "abs", "silu")
BINARY = ("add", "mul", "sub", "max", "min")


def random_graph(seed: int) -> Make:
    """A graph of any op with a rule that fits, chosen by a seed and not by the size."""
    def make(g: Graph, n: int, x: Value, y: Value) -> list[Value]:
        rng = np.random.default_rng(seed)
        pool = [x, y]
        for _ in range(rng.integers(3, 10)):
            a, b = (pool[i] for i in rng.integers(0, len(pool), 2))
            made = step(g, n, rng, a, b)
            if made is not None:
                pool.append(made)
        return pool[2:] or [x]
    return make


def step(g: Graph, n: int, rng: np.random.Generator, a: Value, b: Value) -> Value | None:
    shape, rank = a.type.static_shape, a.type.rank
    axis = int(rng.integers(0, rank)) if rank else 0
    # Draws come first, so that they are the same at every size.
    kind, pick, size = (int(rng.integers(0, top)) for top in (12, 99, 5))
    one = tuple(int(d == axis) for d in range(rank))
    match kind:
        case 0 | 1:
            return g(UNARY[pick % len(UNARY)], g("tanh", a))
        case 2 | 3 if a.type.shape == b.type.shape:
            return g(BINARY[pick % len(BINARY)], a, b)
        case 4 if rank:
            name = ("sum", "mean", "max", "min", "l2")[pick % 5]
            return g(f"reduce_{name}", a, axes=(axis,), keepdims=bool(pick % 2))
        case 5 if rank:
            return g("softmax", a, axis=axis)
        case 6 if rank == 2 and b.type.rank == 2:
            if shape[1] == b.type.shape[0]:
                return g("matmul", a, b)
            return g("matmul", a, g("transpose", a, perm=(1, 0)))
        case 7 if rank > 1:
            return g("transpose", a, perm=tuple(range(rank))[::-1])
        case 8 if rank:
            return g("reshape", a, shape=(int(np.prod(shape)), 1))
        case 9 if rank:
            return g("pad", a, lo=tuple(x * (pick % 2) for x in one),
                     hi=tuple(x * size for x in one), value=float(pick % 3))  # fmt: skip
        case 10 if rank and shape[axis] > 2:
            cut = tuple(s - (d == axis) for d, s in enumerate(shape))
            starts = tuple(int(d == axis) * int(pick % 2) for d in range(rank))
            return g("slice", a, starts=starts, sizes=cut, steps=(1,) * rank)
        case 11 if rank:
            return g("cumsum", a, axis=axis, reverse=bool(pick % 2))
    return None


def test_random_graphs_are_right_or_refused() -> None:
    """Of 300 graphs nine in ten are taken, and those give what the exact size gives."""
    taken = 0
    for seed in range(300):
        make = random_graph(seed)
        try:
            same_as_exact(make, WIDE, ("y", (11, -1), "f32"), bucket=7, least=4)
        except PassError:
            continue
        taken += 1
    assert taken >= 270


def test_extents() -> None:
    n = Factor(8, "n")
    assert seen([{"n": 8}, {"n": 3}], [9, 4]) == (Factor(9, "n", 1),)
    assert seen([{"n": 8}, {"n": 3}], [16, 6]) is None
    assert seen([{"n": 8}, {"n": 3}], [5, 5]) == fixed(5)
    assert axis_of([Factor(1), Factor(2), Factor(3), n, Factor(1)]) == (Factor(6), n)
    assert [scattered(a) for a in ((), fixed(6), (n, Factor(2)), (Factor(2), n), (n, n))] == [
        False, False, False, True, True,
    ]
    assert regrouped([(n,), fixed(12)], [8, 3, 4]) == ((n,), fixed(3), fixed(4))
    assert regrouped([(n,), fixed(12)], [24, 4]) == ((n, Factor(3)), fixed(4))
    assert regrouped([(n,), fixed(12)], [2, 48]) is None
    assert regrouped([fixed(6), (n,)], [48]) == ((Factor(6), n),)
