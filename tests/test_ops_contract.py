"""matmul, convolutions and einsum against onnxruntime, numpy and exact integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ops_reference import Array, close, noise, one, onnx_run, patient, same

from spyrec.ir.core import Loc
from spyrec.ir.errors import VerifyError
from spyrec.ir.ops import contract, infer
from spyrec.ir.types import Sym, tensor


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 6)), ((7, 3, 4), (4, 2)), ((2, 0, 4), (4, 3)),
     ((2, 3, 0), (0, 4))],
)  # fmt: skip
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = noise(*a), noise(*b, seed=1)
    close(one("matmul", x, y), np.matmul(x, y))


def test_matmul_of_halves_accumulates_in_single() -> None:
    x = np.full((1, 4096), 1.0, np.float16)
    assert one("matmul", x, x.T)[0, 0] == 4096  # in half precision it would stop at 2048
    assert one("matmul", x.astype(np.float32), x.T.astype(np.float32), types="dl16 dl16") == 4096


@patient
@given(st.integers(1, 9), st.sampled_from(["i8", "i32", "i64"]), st.integers(1, 2**62))
def test_matmul_of_integers_is_exact_modulo_the_type(k: int, name: str, size: int) -> None:
    kind = np.dtype({"i8": "int8", "i32": "int32", "i64": "int64"}[name])
    size = min(size, int(np.iinfo(kind).max))
    rng = np.random.default_rng(k)
    a = rng.integers(-size, size, (3, k), endpoint=True).astype(kind)
    b = rng.integers(-size, size, (k, 2), endpoint=True).astype(kind)
    exact = [[sum(int(p) * int(q) for p, q in zip(r, c, strict=True)) for c in b.T] for r in a]
    wrapped = [[(v - int(np.iinfo(kind).min)) % 2 ** (8 * kind.itemsize) for v in r] for r in exact]
    want = [[v + int(np.iinfo(kind).min) for v in r] for r in wrapped]
    same(one("matmul", a, b), np.array(want, kind))


CONVS = [
    # x, w, strides, pads, dilations, group
    ((2, 3, 9), (4, 3, 3), (2,), (1, 0), (1,), 1),
    ((2, 4, 9, 8), (6, 4, 3, 2), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((1, 4, 9, 8), (6, 2, 3, 3), (2, 1), (1, 2, 0, 1), (1, 2), 2),
    ((2, 6, 7, 7), (6, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 6),
    ((1, 3, 11, 11), (5, 3, 7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1),
    ((1, 2, 5, 6, 7), (4, 2, 2, 3, 2), (1, 2, 2), (1, 0, 1, 0, 1, 0), (1, 1, 2), 1),
    ((3, 8, 4, 4), (4, 8, 1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
]


@pytest.mark.parametrize(("xs", "ws", "strides", "pads", "dilations", "group"), CONVS)
@pytest.mark.parametrize("biased", [False, True])
def test_conv(xs, ws, strides, pads, dilations, group, biased) -> None:  # type: ignore[no-untyped-def]
    arrays = [noise(*xs), noise(*ws), *([noise(ws[0])] if biased else [])]
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
    close(one("conv", *arrays, **attrs), onnx_run("Conv", *arrays, **attrs)[0])


def test_conv_in_blocks_equals_conv_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = noise(2, 4, 13, 6), noise(4, 2, 3, 3)
    attrs = {"strides": (1, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 2}
    whole = one("conv", x, w, **attrs)
    monkeypatch.setattr(contract, "BLOCK_ELEMENTS", 4 * 9 * 3 * 2)  # two rows at a time
    close(one("conv", x, w, **attrs), whole, 1e-6)


def scattered(x: Array, w: Array, lengths: list[int], attrs: dict[str, Any]) -> Array:
    """conv_transpose by scattering every product, one input element and tap at a time."""
    rank, group, pads = x.ndim - 2, attrs["group"], attrs["pads"]
    outs, ins = w.shape[1], x.shape[1] // group
    extent = [n + pads[i] + pads[rank + i] for i, n in enumerate(lengths)]
    full = np.zeros((len(x), outs * group, *extent))
    for at in np.ndindex(x.shape[2:]):
        for tap in np.ndindex(w.shape[2:]):
            steps = zip(at, attrs["strides"], tap, attrs["dilations"], strict=True)
            to = tuple(a * s + t * d for a, s, t, d in steps)
            for c in range(x.shape[1]):
                first = c // ins * outs
                share = np.outer(x[(slice(None), c, *at)], w[(c, slice(None), *tap)])
                full[(slice(None), slice(first, first + outs), *to)] += share
    inside = tuple(slice(pads[i], pads[i] + n) for i, n in enumerate(lengths))
    return full[(slice(None), slice(None), *inside)]


@settings(patient, max_examples=25)
@given(st.data())
def test_conv_transpose(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))

    def draw(low: int, high: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(low, high)) for _ in range(rank))

    size, kernel, strides, dilations = draw(1, 4), draw(1, 3), draw(1, 3), draw(1, 2)
    pads, extra, group = draw(0, 1) + draw(0, 1), draw(0, 2), data.draw(st.integers(1, 2))
    lengths = [
        (size[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + extra[i]
        - pads[i] - pads[rank + i]
        for i in range(rank)
    ]  # fmt: skip
    assume(min(lengths) > 0)
    x, w, bias = noise(2, 2 * group, *size), noise(2 * group, 3, *kernel), noise(3 * group)
    attrs = {
        "strides": strides, "pads": pads, "dilations": dilations, "output_padding": extra,
        "group": group,
    }  # fmt: skip
    want = scattered(x, w, lengths, attrs) + bias.reshape(-1, *[1] * rank)
    close(one("conv_transpose", x, w, bias, **attrs), want.astype(np.float32))


def test_conv_transpose_against_onnxruntime() -> None:
    x, w, bias = noise(1, 4, 5, 6), noise(4, 3, 3, 3), noise(6)
    attrs = {
        "strides": (2, 3), "pads": (1, 0, 1, 1), "dilations": (1, 2), "output_padding": (1, 0),
        "group": 2,
    }  # fmt: skip
    want = onnx_run("ConvTranspose", x, w, bias, **attrs)[0]
    close(one("conv_transpose", x, w, bias, **attrs), want)


def test_conv_keeps_a_symbolic_batch_and_says_what_does_not_fit() -> None:
    n = Sym("N", 1, 4)
    attrs = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    x, w = tensor((n, 3, 8, 8), "f16"), tensor((5, 3, 3, 3), "f16")
    assert infer("conv", [x, w], attrs, Loc()) == (tensor((n, 5, 6, 6), "f16"),)
    with pytest.raises(VerifyError, match=r"expected x\[N,C,\.\.\.\] and w\[O,C/group,\.\.\.\]"):
        infer("conv", [x, tensor((5, 2, 3, 3), "f16")], attrs, Loc())
    with pytest.raises(VerifyError, match=r"the kernel \(9, 9\) does not fit into"):
        infer("conv", [x, tensor((5, 3, 9, 9), "f16")], attrs, Loc())
    with pytest.raises(VerifyError, match="a spatial dimension must be a number here"):
        infer("conv", [tensor((1, 3, n, 8), "f16"), w], attrs, Loc())
    with pytest.raises(VerifyError, match="attribute strides must have 2 entries, got 1"):
        infer("conv", [x, w], {**attrs, "strides": (1,)}, Loc())
    with pytest.raises(VerifyError, match=r"expected bias of shape \[5\], got \[4\]"):
        infer("conv", [x, w, tensor((4,), "f16")], attrs, Loc())


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ij->ji", [(3, 4)]),
        ("ii->i", [(4, 4)]),
        ("ij,ij", [(3, 4), (3, 4)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("...ij,jk", [(2, 3, 4), (4, 5)]),
        ("a,b,c->abc", [(2,), (3,), (4,)]),
        ("i...->...", [(3, 2, 4)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [noise(*s, seed=i) for i, s in enumerate(shapes)]
    got = one("einsum", *arrays, equation=equation)
    close(got, onnx_run("Einsum", *arrays, equation=equation)[0])


def test_einsum_rules() -> None:
    n = Sym("N", 1, 9)
    types = [tensor((n, 3), "f32"), tensor((3, n), "f32")]
    assert infer("einsum", types, {"equation": "ij,jk->k"}, Loc()) == (tensor((n,), "f32"),)
    for equation, message in (
        ("ij->i", "has 1 terms for 2 operands"),
        ("ij,ij->i", r"label i of 'ij,ij->i' is N\[1..9\] and also 3"),
        ("ij,jk->z", "must name labels of the operands"),
        ("ijk,jk->i", "term 'ijk' of .* does not fit rank 2"),
        ("i0,jk->i", "has a digit for a label"),
        ("i-,jk->i", "has the label '-', not a letter"),
    ):
        with pytest.raises(VerifyError, match=message):
            infer("einsum", types, {"equation": equation}, Loc())


def test_matmul_rules() -> None:
    b, s = Sym("B", 1, 8), Sym("S", 1, 64)
    q, k = tensor((b, 4, s, 16), "bf16"), tensor((b, 4, 16, s), "bf16")
    assert infer("matmul", [q, k], {}, Loc()) == (tensor((b, 4, s, s), "bf16"),)
    with pytest.raises(VerifyError) as error:
        infer("matmul", [q, q], {}, Loc(("MatMul_7",)))
    assert str(error.value) == (
        "matmul: expected the last dimension of a to equal the last but one of b, got "
        "[B[1..8], 4, S[1..64], 16] and [B[1..8], 4, S[1..64], 16] (from MatMul_7)"
    )
    with pytest.raises(VerifyError, match=r"expected operands of rank 2 or more, got \[16\] bf16"):
        infer("matmul", [tensor((16,), "bf16"), k], {}, Loc())
