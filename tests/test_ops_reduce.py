"""Reductions against onnxruntime and numpy in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ops_reference import close, noise, one, onnx_run, patient, same

from spyrec.ir.core import Loc
from spyrec.ir.errors import VerifyError
from spyrec.ir.ops import infer
from spyrec.ir.types import Sym, tensor

TWINS = {
    "reduce_sum": "ReduceSum", "reduce_mean": "ReduceMean", "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd", "reduce_l1": "ReduceL1",
    "reduce_l2": "ReduceL2", "reduce_sum_square": "ReduceSumSquare",
    "reduce_log_sum_exp": "ReduceLogSumExp",
}  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("axes", [(0,), (1, 3), (3, 0, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("keepdims", [True, False])
def test_reductions(name: str, axes: tuple[int, ...], keepdims: bool) -> None:
    x = noise(2, 3, 4, 2)
    want = onnx_run(TWINS[name], x, np.array(axes, np.int64), keepdims=int(keepdims))[0]
    close(one(name, x, axes=axes, keepdims=keepdims), want)


def test_no_axes_fold_nothing() -> None:
    x = noise(2, 3)
    same(one("reduce_sum", x, axes=()), x)
    same(one("reduce_l2", x, axes=()), np.abs(x))


def test_reductions_of_nothing_and_of_infinities() -> None:
    empty = np.zeros((2, 0), np.float32)
    for name, want in (("sum", 0), ("prod", 1), ("max", -np.inf), ("min", np.inf)):
        same(one(f"reduce_{name}", empty, axes=(1,)), np.full((2, 1), want, np.float32))
    x = np.float32([[-np.inf, -np.inf], [np.inf, 0], [1000, 1000]])
    want = np.float32([-np.inf, np.inf, 1000 + np.log(2)])
    close(one("reduce_log_sum_exp", x, axes=(1,), keepdims=False), want)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64])
def test_reductions_of_integers_stay_in_their_type(kind: type) -> None:
    x = np.arange(2, 26).reshape(2, 3, 4).astype(kind)
    same(one("reduce_sum", x, axes=(1,)), x.sum(axis=1, keepdims=True, dtype=kind))
    same(one("reduce_max", x, axes=(0, 2)), x.max(axis=(0, 2), keepdims=True))
    same(one("reduce_min", x, axes=(0, 2)), x.min(axis=(0, 2), keepdims=True))
    same(one("reduce_l1", x, axes=(2,)), np.abs(x).sum(axis=2, keepdims=True, dtype=kind))


def test_halves_are_summed_in_single() -> None:
    x = np.ones((1, 4096), np.float16)
    assert one("reduce_sum", x, axes=(1,)) == 4096
    assert one("reduce_mean", np.full((1, 70000), 2, np.float16), axes=(1,)) == 2


@patient
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8))
def test_arg_max_and_arg_min_take_the_first(values: list[int]) -> None:
    for kind in (np.float32, np.int8):
        x = np.array([values], kind)
        assert one("arg_max", x, axis=1) == values.index(max(values))
        assert one("arg_min", x, axis=1, keepdims=False) == values.index(min(values))


def test_arg_max_shapes() -> None:
    x = noise(3, 4, 5)
    same(one("arg_max", x, axis=1), onnx_run("ArgMax", x, axis=1)[0])
    same(one("arg_min", x, axis=0, keepdims=False), onnx_run("ArgMin", x, axis=0, keepdims=0)[0])


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_cumsum(exclusive: bool, reverse: bool, axis: int) -> None:
    x = noise(4, 5)
    want = onnx_run(
        "CumSum", x, np.array(axis), exclusive=int(exclusive), reverse=int(reverse)
    )[0]
    close(one("cumsum", x, axis=axis, exclusive=exclusive, reverse=reverse), want)


def test_reduce_rules() -> None:
    n = Sym("N", 1, 4)
    x = tensor((n, 8, 3), "f16")
    assert infer("reduce_sum", [x], {"axes": (1,)}, Loc()) == (tensor((n, 1, 3), "f16"),)
    gone = infer("reduce_max", [x], {"axes": (0, 2), "keepdims": False}, Loc())
    assert gone == (tensor((8,), "f16"),)
    with pytest.raises(VerifyError, match=r"axes \(1, 1\) name a dimension twice"):
        infer("reduce_sum", [x], {"axes": (1, 1)}, Loc())
    with pytest.raises(VerifyError, match=r"attribute axes \(ints\) is required but missing"):
        infer("reduce_sum", [x], {}, Loc())
    with pytest.raises(VerifyError, match="expected an operand of float type"):
        infer("reduce_mean", [tensor((2,), "i32")], {"axes": (0,)}, Loc())
    with pytest.raises(VerifyError, match="nothing to choose from along axis 1"):
        infer("arg_max", [tensor((2, 0), "f32")], {"axis": 1}, Loc())
