"""Sorting, writing by index and experts on the device, against the interpreter and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_models import Graph, module

from spyrec import api
from spyrec.ir.core import Module, Value
from spyrec.ir.interp import run
from spyrec.ir.types import dtype
from spyrec.passes.decompose import decompose

Array = np.ndarray[Any, Any]


def on_device(m: Module, **inputs: Array) -> list[Array]:
    """The outputs of the binary, computed in float32."""
    return [*api.simulate(api.compile(m, numerics="fp32"), inputs).outputs.values()]


def exact(m: Module, **inputs: Array) -> list[Array]:
    """The outputs of the binary, which must be those of the interpreter."""
    got = on_device(m, **inputs)
    for a, b in zip(run(m, inputs).values(), got, strict=True):
        np.testing.assert_array_equal(b, a)
    return got


def ordered(shape: tuple[int, ...], kind: str, **attrs: Any) -> Module:
    return module(lambda g, x: list(g.op("top_k", [x], **attrs).results), ("x", shape, kind))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("shape", "axis", "k"),
    [((64,), 0, 64), ((3, 70), 1, 70), ((70, 3), 0, 70), ((300,), 0, 300), ((2, 3, 5), 1, 3)],
)
def test_sort(shape: tuple[int, ...], axis: int, k: int, largest: bool) -> None:
    """With many equal elements, whose order is that of their index, infinities and, where all pairs
    are compared, NaN."""
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    x.flat[1], x.flat[3] = np.inf, -np.inf
    if k > 3:
        x.flat[[0, 2, 4]] = np.nan, np.nan, np.inf
    exact(ordered(shape, "f32", k=k, axis=axis, largest=largest), x=x)


@pytest.mark.parametrize("largest", [True, False])
def test_whole_numbers_are_sorted_as_such(largest: bool) -> None:
    x = np.random.default_rng(0).integers(-(2**24), 2**24, (2, 80))
    values, _ = exact(ordered((2, 80), "i64", k=80, axis=1, largest=largest), x=x)
    np.testing.assert_array_equal(values, np.sort(x)[:, ::-1] if largest else np.sort(x))


def test_few_of_a_long_line_are_found_block_by_block() -> None:
    m = ordered((5000,), "f32", k=3, axis=0)
    longest = max(v.type.size for op in decompose(m).body.ops for v in op.results)
    assert longest == 5120, "nothing grows beyond the line filled up to whole blocks"
    x = np.zeros(5000, np.float32)
    x[[4999, 17, 600, 601]] = 2, 1, 1, 1
    _, indices = exact(m, x=x)
    assert indices.tolist() == [4999, 17, 600]


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("kind", ["f32", "i64"])
def test_writes_at_places_known_at_run_time(reduction: str, kind: str) -> None:
    """Some places are named twice, some from the end; the last update wins."""
    rng = np.random.default_rng(1)
    x, updates = (rng.integers(-9, 9, s).astype(dtype(kind).np_dtype) for s in ((40, 6), (12, 6)))
    places = rng.integers(-40, 40, (12, 1))
    places[3] = places[7]

    def rows(g: Graph, x: Value, at: Value, new: Value) -> list[Value]:
        return [g("scatter_nd", x, at, new, reduction=reduction)]

    m = module(rows, ("x", x.shape, kind), ("at", (12, 1), "i64"), ("new", (12, 6), kind))
    exact(m, x=x, at=places, new=updates)

    def elements(g: Graph, x: Value, at: Value, new: Value) -> list[Value]:
        return [g("scatter_elements", x, at, new, axis=0, reduction=reduction)]

    m = module(elements, ("x", x.shape, kind), ("at", (12, 5), "i64"), ("new", (12, 5), kind))
    exact(m, x=x, at=rng.integers(-40, 40, (12, 5)), new=updates[:, :5].copy())


def experts(count: int, items: int) -> Module:
    def make(g: Graph, x: Value, number: Value) -> list[Value]:
        return [g("matmul", x, g("gather", g.weight(count, 64, 96), number, axis=0))]

    return module(make, ("x", (items, 1, 64), "f32"), ("number", (items,), "i64"))


@pytest.mark.parametrize(("count", "items", "looked_up"), [(4, 12, False), (16, 2, True)])
def test_each_item_times_a_matrix_of_its_own(count: int, items: int, looked_up: bool) -> None:
    """Many items share one product with all matrices; for few the matrices are looked up."""
    m, rng = experts(count, items), np.random.default_rng(2)
    ops = decompose(m).body.ops
    assert any(op.name == "gather" for op in ops) == looked_up
    inputs = {
        "x": rng.normal(size=(items, 1, 64)).astype(np.float32),
        "number": rng.integers(0, count, items),
    }
    [want], [got] = run(m, inputs).values(), on_device(m, **inputs)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
