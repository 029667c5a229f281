"""Device-stage ops: affine moves against a loop, kernels' types against their regions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ops_reference import Array, noise, one, patient, same

from spyrec.ir.core import Block, Builder, Loc, Op, Value
from spyrec.ir.errors import VerifyError
from spyrec.ir.interp import run_op
from spyrec.ir.ops import OPS, infer
from spyrec.ir.types import TensorType, tensor


def move_by_hand(arrays: list[Array], shape, fill, pieces) -> Array:  # type: ignore[no-untyped-def]
    result = np.full(shape, fill, arrays[0].dtype)
    for index, counts, src, dst in pieces:
        for i in np.ndindex(*counts):
            at = [
                tuple(o + sum(c * k for c, k in zip(cs, i, strict=True)) for o, cs in m)
                for m in (src, dst)
            ]
            result[at[1]] = arrays[index][at[0]]
    return result


@st.composite
def affine(draw: st.DrawFn, counts: tuple[int, ...]) -> tuple[tuple[int, tuple[int, ...]], int]:
    """One dimension of a map, and an extent that it stays inside."""
    coefs = tuple(draw(st.integers(-3, 3)) for _ in counts)
    reach = [c * (n - 1) for c, n in zip(coefs, counts, strict=True)]
    offset = draw(st.integers(0, 2)) - sum(r for r in reach if r < 0)
    return (offset, coefs), offset + sum(r for r in reach if r > 0) + 1


@patient
@given(st.data())
def test_move_copies_what_its_maps_say(data: st.DataObject) -> None:
    arrays, pieces, shape = [], [], [1, 1]
    for number in range(data.draw(st.integers(1, 3))):
        counts = tuple(data.draw(st.lists(st.integers(1, 3), max_size=3)))
        src = [data.draw(affine(counts)) for _ in range(data.draw(st.integers(0, 3)))]
        dst = [data.draw(affine(counts)) for _ in range(2)]
        extents = tuple(e for _, e in src)
        arrays.append(np.arange(np.prod(extents, dtype=int)).reshape(extents) + 1000 * number)
        shape = [max(s, e) for s, (_, e) in zip(shape, dst, strict=True)]
        # One source element for each target, or the order of writes would matter.
        seen = {}
        for i in np.ndindex(*counts):
            to, source = (
                tuple(o + sum(c * k for c, k in zip(cs, i, strict=True)) for (o, cs), _ in m)
                for m in (dst, src)
            )
            seen.setdefault(to, set()).add(source)
        if all(len(s) == 1 for s in seen.values()):
            pieces.append((number, counts, tuple(m for m, _ in src), tuple(m for m, _ in dst)))
    got = one("move", *arrays, shape=tuple(shape), fill=-1.0, pieces=tuple(pieces))
    same(got, move_by_hand(arrays, shape, -1, pieces))


def test_later_pieces_win_and_empty_boxes_do_nothing() -> None:
    x, y = noise(4), noise(4, seed=1)
    pieces = (
        (0, (4,), ((0, (1,)),), ((0, (1,)),)),
        (1, (2,), ((1, (2,)),), ((1, (1,)),)),
        (1, (0,), ((9, (1,)),), ((9, (1,)),)),
    )
    got = one("move", x, y, shape=(5,), pieces=pieces)
    same(got, np.float32([x[0], y[1], y[3], x[3], 0]))


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        ((0, (4,), ((1, (1,)),), ((0, (1,)),)), r"piece 0 reads indices 1\.\.4 along dimension 0"),
        ((0, (4,), ((3, (-1,)),), ((2, (-1,)),)), r"piece 0 writes indices -1\.\.2 along"),
        ((1, (4,), ((0, (1,)),), ((0, (1,)),)), "piece 0 reads operand 1, but there are 1"),
        ((0, (4,), (), ((0, (1,)),)), r"piece 0 reads 0 dimensions of \[4\] f16"),
        ((0, (-1,), ((0, (1,)),), ((0, (1,)),)), "they must not be negative"),
        ((0, (4,), ((0, ()),), ((0, (1,)),)), r"piece 0 must be \(operand index, counts"),
        ((0, 4), r"piece 0 must be \(operand index, counts"),
    ],
)
def test_move_rules(piece: tuple[object, ...], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        infer("move", [tensor((4,), "f16")], {"shape": (4,), "pieces": (piece,)}, Loc())


def kernel(operand: TensorType, result: TensorType | None = None) -> Op:
    """gelu(x) * x in one kernel."""
    x = Value("x", operand)
    inner = Builder(["x"])
    a = Value("a", tensor((4, 8), "dl16"))
    product = inner.op("mul", [inner.op("gelu", [a]).result, a]).result
    body = Block((a,), tuple(inner.ops), (product,))
    attrs = {"kind": "vec", "name": "k", "dims": (("i", 4), ("j", 8)), "maps": (), "split": 3}
    (t,) = infer("kernel", [operand], attrs, Loc(), regions=[body], declared=result and [result])
    return Op("kernel", (x,), (Value("y", t),), attrs, (body,))


def test_a_kernel_is_its_region() -> None:
    op = kernel(tensor((4, 8), "dl16"))
    assert op.result.type == tensor((4, 8), "dl16")
    x = one("cast", noise(4, 8), to=tensor((), "dl16").dtype)
    inner = one("gelu", x, types="dl16")
    same(run_op(op, [x])[0], one("mul", inner, x, types="dl16 dl16"))


def test_kernel_types_ignore_where_tensors_live() -> None:
    stated = tensor((4, 8), "dl16").with_(space="lx")
    assert kernel(tensor((4, 8), "dl16").with_(space="hbm"), stated).result.type == stated
    with pytest.raises(VerifyError) as error:
        kernel(tensor((4, 9), "dl16"))
    assert str(error.value) == (
        "kernel: expected region arguments, as the operands, of types [4, 9] dl16; "
        "got [4, 8] dl16 (from unknown)"
    )
    with pytest.raises(VerifyError, match=r"expected region results, as the kernel's results,"):
        kernel(tensor((4, 8), "dl16"), tensor((4, 8), "f16"))
    with pytest.raises(VerifyError, match="expected 1 regions, got 0"):
        attrs = {"kind": "vec", "name": "k", "dims": (), "maps": ()}
        infer("kernel", [], attrs, Loc())


@pytest.mark.parametrize("name", ["relayout", "restickify"])
def test_changes_of_layout_keep_values(name: str) -> None:
    x = noise(3, 4)
    same(one(name, x), x)
    assert OPS[name].stages == {"device", "tile"}
