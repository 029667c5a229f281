"""Gather, scatter, top-k and the makers of values against onnxruntime and numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ops_reference import every, noise, one, onnx_run, patient, same

from spyrec.ir.core import Loc
from spyrec.ir.errors import SpyrecError, VerifyError
from spyrec.ir.ops import infer
from spyrec.ir.types import DTYPES, Sym, tensor


def ints(low: int, high: int, *shape: int, kind: type = np.int64) -> np.ndarray:
    return np.random.default_rng(7).integers(low, high, shape).astype(kind)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_gather(axis: int, shape: tuple[int, ...], kind: type) -> None:
    x = noise(3, 4, 5)
    indices = ints(-x.shape[axis], x.shape[axis], *shape, kind=kind)
    same(one("gather", x, indices, axis=axis), onnx_run("Gather", x, indices, axis=axis)[0])


@pytest.mark.parametrize("index", [-5, 4])
def test_indices_lie_in_minus_n_to_n_minus_1(index: int) -> None:
    x, at = noise(4), np.array([index])
    for name, arrays, attrs in (
        ("gather", (x, at), {"axis": 0}),
        ("gather_elements", (x, at), {"axis": 0}),
        ("gather_nd", (x, at[None]), {}),
        ("scatter_elements", (x, at, x[:1]), {"axis": 0}),
        ("scatter_nd", (x, at[None], x[:1]), {}),
    ):
        with pytest.raises(SpyrecError, match=rf"{name} %r0: index {index} is outside 0\.\.3"):
            one(name, *arrays, **attrs)


def test_an_index_outside_is_an_error_that_names_the_op() -> None:
    with pytest.raises(SpyrecError) as error:
        one("gather", noise(3, 4), np.array([1, 4]), axis=1)
    assert str(error.value) == (
        "gather %r0: index 4 is outside 0..3 along axis 1 "
        "(evaluated on float32[3, 4], int64[2]; from node)"
    )


@pytest.mark.parametrize(
    ("x", "indices", "batch"),
    [((3, 4, 5), (6, 1), 0), ((3, 4, 5), (2, 7, 2), 0), ((3, 4, 5), (3,), 0),
     ((2, 3, 4, 5), (2, 6, 2), 1), ((2, 3, 4, 5), (2, 3, 1), 2), ((2, 3, 4), (2, 7, 1), 1)],
)  # fmt: skip
def test_gather_nd(x: tuple[int, ...], indices: tuple[int, ...], batch: int) -> None:
    data, index = noise(*x), ints(-2, 2, *indices)
    want = onnx_run("GatherND", data, index, batch_dims=batch)[0]
    same(one("gather_nd", data, index, batch_dims=batch), want)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_and_scatter_elements(axis: int) -> None:
    x = noise(3, 4, 5)
    shape = [2, 3, 4]
    shape[axis] = 6
    index = ints(-x.shape[axis], x.shape[axis], *shape)
    same(one("gather_elements", x, index, axis=axis),
         onnx_run("GatherElements", x, index, axis=axis)[0])  # fmt: skip
    updates = noise(*shape, seed=1)
    for reduction in ("add", "mul", "min", "max"):
        got = one("scatter_elements", x, index, updates, axis=axis, reduction=reduction)
        want = onnx_run("ScatterElements", x, index, updates, axis=axis, reduction=reduction)[0]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_scatter_elements_without_reduction() -> None:
    x = noise(3, 5)
    index = np.stack([np.random.default_rng(i).permutation(5)[:4] for i in range(2)])
    updates = noise(2, 4, seed=1)
    before = x.copy()
    want = onnx_run("ScatterElements", x, index, updates, axis=1)[0]
    same(one("scatter_elements", x, index, updates, axis=1), want)
    same(x, before)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatter_nd(reduction: str) -> None:
    x = noise(4, 5, 6)
    index = np.array([[[0, 1], [3, -1]], [[1, 2], [2, 2]]])
    if reduction != "none":
        index[1, 1] = index[0, 0]
    updates = noise(2, 2, 6, seed=1)
    want = onnx_run("ScatterND", x, index, updates, reduction=reduction)[0]
    got = one("scatter_nd", x, index, updates, reduction=reduction)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_top_k(largest: bool, axis: int) -> None:
    x = noise(4, 5, 6)
    got = every("top_k", x, k=3, axis=axis, largest=largest)
    want = onnx_run("TopK", x, np.array([3]), outputs=2, axis=axis, largest=int(largest))
    same(got[0], want[0])
    same(got[1], want[1])


@patient
@given(st.lists(st.integers(-2, 2), min_size=1, max_size=9), st.data())
def test_top_k_of_equal_values_keeps_their_order(values: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(values)))
    for largest in (True, False):
        order = sorted(range(len(values)), key=lambda i: (-values[i] if largest else values[i], i))
        _, got = every("top_k", np.array(values, np.int32), k=k, axis=0, largest=largest)
        assert got.tolist() == order[:k]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_one_hot(axis: int) -> None:
    index = ints(-4, 4, 3, 5)
    want = onnx_run("OneHot", index, np.array(4), np.float32([-1, 2]), axis=axis)[0]
    got = one("one_hot", index, depth=4, axis=axis, off=-1.0, on=2.0, to=DTYPES["f32"])
    same(got, want)
    outside = one("one_hot", np.array([4, -5]), depth=4, axis=1, off=0, on=1, to=DTYPES["i8"])
    same(outside, np.zeros((2, 4), np.int8))
    half = one("one_hot", index, depth=4, axis=axis, off=-1.0, on=2.0, to=DTYPES["f16"])
    same(half, want.astype(np.float16))


def test_iota_constant_trilu() -> None:
    rows = one("iota", shape=(3, 4), axis=0, to=DTYPES["i32"])
    same(rows, np.indices((3, 4), np.int32)[0])
    columns = one("iota", shape=(3, 4), axis=1, to=DTYPES["bf16"])
    same(columns, np.indices((3, 4))[1].astype(np.float32))
    x = noise(2, 4, 5)
    same(one("constant", value=x), x)
    for k in (-1, 0, 2):
        for upper in (True, False):
            want = onnx_run("Trilu", x, np.array(k), upper=int(upper))[0]
            same(one("trilu", x, upper=upper, k=k), want)


def test_index_rules() -> None:
    n = Sym("N", 1, 8)
    x, index = tensor((n, 4, 5), "f16"), tensor((n, 3), "i32")
    assert infer("gather", [x, index], {"axis": 1}, Loc()) == (tensor((n, n, 3, 5), "f16"),)
    with pytest.raises(VerifyError, match="expected indices of int type"):
        infer("gather", [x, x], {"axis": 1}, Loc())
    with pytest.raises(VerifyError, match=r"k is 6, but axis 2 of .* has 5 elements"):
        infer("top_k", [x], {"k": 6, "axis": 2}, Loc())
    with pytest.raises(VerifyError, match=r"expected updates of shape \[7, 5\], got \[7, 4\]"):
        types = [tensor((3, 4, 5), "f16"), tensor((7, 2), "i64"), tensor((7, 4), "f16")]
        infer("scatter_nd", types, {}, Loc())
    with pytest.raises(VerifyError, match="indices no larger than x except along axis 0"):
        types = [tensor((3, 4), "f16"), tensor((9, 5), "i64")]
        infer("gather_elements", types, {"axis": 0}, Loc())


def test_constants_take_their_stated_type() -> None:
    value = np.zeros((2, 3), np.float32)
    stated = tensor((2, 3), "dl16")
    assert infer("constant", [], {"value": value}, Loc()) == (tensor((2, 3), "f32"),)
    assert infer("constant", [], {"value": value}, Loc(), declared=[stated]) == (stated,)
    with pytest.raises(VerifyError, match=r"expected an array of float16\[2, 3\] for \[2, 3\] f16"):
        infer("constant", [], {"value": value}, Loc(), declared=[tensor((2, 3), "f16")])
