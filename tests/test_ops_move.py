"""Data movement against numpy, loops and onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ops_reference import close, every, noise, one, onnx_run, patient, same

from spyrec.ir.core import Loc
from spyrec.ir.errors import VerifyError
from spyrec.ir.ops import infer
from spyrec.ir.types import Sym, tensor

N, S = Sym("N", 1, 8), Sym("S", 1, 128)


@patient
@given(st.data())
def test_slice_takes_the_named_elements(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    picks = []
    for extent in shape:
        start = data.draw(st.integers(0, extent - 1))
        step = data.draw(st.integers(-3, 3).filter(bool))
        room = (extent - 1 - start) // step if step > 0 else start // -step
        picks.append((start, data.draw(st.integers(0, room + 1)), step))
    x = np.arange(np.prod(shape)).reshape(shape)
    starts, sizes, steps = (tuple(p[i] for p in picks) for i in range(3))
    want = x[np.ix_(*([a + i * c for i in range(b)] for a, b, c in picks))]
    same(one("slice", x, starts=starts, sizes=sizes, steps=steps), want)


def test_slice_rules() -> None:
    x = tensor((N, 10), "f16")
    attrs = {"starts": (0, 9), "sizes": (N, 4), "steps": (1, -3)}
    assert infer("slice", [x], attrs, Loc()) == (tensor((N, 4), "f16"),)
    with pytest.raises(VerifyError) as error:
        infer("slice", [x], {**attrs, "sizes": (N, 5)}, Loc(("Slice_1",)))
    assert str(error.value) == (
        "slice: start 9, size 5, step -3 leave dimension 1 of [N[1..8], 10] f16 (from Slice_1)"
    )
    with pytest.raises(VerifyError, match="dimension 0, which is not taken whole, must be"):
        infer("slice", [x], {**attrs, "sizes": (1, 4)}, Loc())


PADS = st.tuples(st.integers(1, 5), st.integers(-4, 4), st.integers(-4, 4), st.integers(0, 2))


@patient
@given(st.lists(PADS, min_size=1, max_size=3), st.booleans())
@example([(3, 3, -4, 0)], False)  # all of x is cropped away behind a border
@example([(3, -4, 3, 0)], False)
def test_pad_puts_each_element_where_it_belongs(plan: list[tuple[int, ...]], inside: bool) -> None:
    sizes, lo, hi, gaps = (tuple(p[i] for p in plan) for i in range(4))
    gaps = gaps if inside else (0,) * len(plan)
    shape = tuple(
        (n - 1) * (g + 1) + 1 + a + b for n, a, b, g in zip(sizes, lo, hi, gaps, strict=True)
    )
    x = np.arange(1, np.prod(sizes) + 1).reshape(sizes)
    attrs = {"lo": lo, "hi": hi, "value": -5, "interior": gaps if inside else ()}
    if min(shape) < 0:
        with pytest.raises(VerifyError, match="crop more than there is"):
            one("pad", x, **attrs)
        return
    want = np.full(shape, -5)
    for at in np.ndindex(*((n - 1) * (g + 1) + 1 for n, g in zip(sizes, gaps, strict=True))):
        to = tuple(i + a for i, a in zip(at, lo, strict=True))
        if all(0 <= t < n for t, n in zip(to, shape, strict=True)):
            on_grid = all(i % (g + 1) == 0 for i, g in zip(at, gaps, strict=True))
            source = tuple(i // (g + 1) for i, g in zip(at, gaps, strict=True))
            want[to] = x[source] if on_grid else 0
    same(one("pad", x, **attrs), want)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize(("lo", "hi"), [((1, 2), (3, 0)), ((0, 3), (2, 3)), ((-1, 2), (2, -1))])
def test_pad_modes(mode: str, lo: tuple[int, int], hi: tuple[int, int]) -> None:
    x = noise(4, 5)
    want = onnx_run("Pad", x, np.array(lo + hi, np.int64), mode=mode)[0]
    same(one("pad", x, lo=lo, hi=hi, mode=mode), want)


def test_pad_keeps_symbolic_dimensions_it_does_not_touch() -> None:
    x = tensor((N, 4), "f32")
    attrs = {"lo": (0, 1), "hi": (0, -2)}
    assert infer("pad", [x], attrs, Loc()) == (tensor((N, 3), "f32"),)
    with pytest.raises(VerifyError, match="dimension 0, which is padded, must be a number here"):
        infer("pad", [x], {"lo": (1, 0), "hi": (0, 0)}, Loc())
    with pytest.raises(VerifyError, match="mode edge has nothing to repeat"):
        infer("pad", [x], {"lo": (0, -4), "hi": (0, 5), "mode": "edge"}, Loc())


def test_reshape() -> None:
    x = noise(2, 3, 4)
    same(one("reshape", x, shape=(4, 6)), x.reshape(4, 6))
    same(one("reshape", x, shape=(2, -1)), x.reshape(2, 12))
    same(one("reshape", noise(0, 3), shape=(0, 7)), np.zeros((0, 7), np.float32))


@pytest.mark.parametrize(
    ("before", "shape", "after"),
    [
        ((N, S, 12), (N, S, 3, 4), (N, S, 3, 4)),
        ((N, 6, S), (N, -1, S), (N, 6, S)),
        ((N, S, 12), (N, -1, 12), (N, S, 12)),
        ((N, 1, 1), (-1,), (N,)),
        ((N, N, 2), (2, N, N), (2, N, N)),
    ],
)
def test_reshape_of_symbolic_shapes(before, shape, after) -> None:  # type: ignore[no-untyped-def]
    got = infer("reshape", [tensor(before, "f16")], {"shape": shape}, Loc())
    assert got == (tensor(after, "f16"),)


@pytest.mark.parametrize(
    ("before", "shape", "message"),
    [
        ((2, 3), (7,), r"expected as many elements as \[2, 3\] f16 has, got \[7\]"),
        ((2, 3), (4, -1), "expected as many elements"),
        ((N, 3), (3,), "expected as many elements"),
        ((3,), (N, 3), "expected as many elements"),
        ((N, N), (N, 1), "expected as many elements"),
        ((N, S, 2), (-1, 2), "-1 would stand for a product of"),
        ((N, 3), (-1,), "-1 would stand for a product of"),
        ((2, 3), (-1, -1), "at most one -1"),
        ((2, 3), (-2, -3), "at most one -1"),
    ],
)
def test_reshape_rules(before, shape, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(VerifyError, match=message):
        infer("reshape", [tensor(before, "f16")], {"shape": shape}, Loc())


@patient
@given(st.permutations(range(4)))
def test_transpose(perm: list[int]) -> None:
    x = noise(2, 3, 4, 5)
    got = one("transpose", x, perm=tuple(perm))
    for at in ((0, 0, 0, 0), (1, 2, 3, 4), (1, 0, 2, 1)):
        assert got[tuple(at[p] for p in perm)] == x[at]
    assert got.shape == tuple(x.shape[p] for p in perm)


def test_transpose_and_broadcast_rules() -> None:
    x = tensor((N, 1, S), "f16")
    assert infer("transpose", [x], {"perm": (2, 0, 1)}, Loc()) == (tensor((S, N, 1), "f16"),)
    with pytest.raises(VerifyError, match=r"perm \(0, 0, 1\) is not an order of the 3 dimensions"):
        infer("transpose", [x], {"perm": (0, 0, 1)}, Loc())
    wide = infer("broadcast_to", [x], {"shape": (2, N, 5, S)}, Loc())
    assert wide == (tensor((2, N, 5, S), "f16"),)
    for shape in ((N, 5, 4), (1, S)):
        with pytest.raises(VerifyError, match="expected x to broadcast to"):
            infer("broadcast_to", [x], {"shape": shape}, Loc())


def test_broadcast_concat_split_tile_reverse() -> None:
    x = noise(2, 1, 3)
    same(one("broadcast_to", x, shape=(4, 2, 5, 3)), np.broadcast_to(x, (4, 2, 5, 3)).copy())
    parts = [noise(2, n, 3) for n in (1, 4, 0, 2)]
    joined = one("concat", *parts, axis=1)
    same(joined, onnx_run("Concat", *parts, axis=1)[0])
    for got, want in zip(every("split", joined, axis=1, sizes=(1, 4, 0, 2)), parts, strict=True):
        same(got, want)
    y = noise(2, 3)
    same(one("tile", y, repeats=(3, 2)), onnx_run("Tile", y, np.array([3, 2]))[0])
    same(one("reverse", y, axes=(1, 0)), y[::-1, ::-1].copy())
    same(one("reverse", y, axes=()), y)


def test_concat_and_split_rules() -> None:
    a, b = tensor((N, 4), "f32"), tensor((N, 5), "f32")
    assert infer("concat", [a, b, a], {"axis": 1}, Loc()) == (tensor((N, 13), "f32"),)
    with pytest.raises(VerifyError, match="expected shapes that differ only along axis 0, got"):
        infer("concat", [a, b], {"axis": 0}, Loc())
    with pytest.raises(VerifyError, match="the size along axis 0 must be a number here"):
        infer("concat", [a, a], {"axis": 0}, Loc())
    with pytest.raises(VerifyError, match=r"expected sizes that add up to 4, got \(1, 2\)"):
        infer("split", [a], {"axis": 1, "sizes": (1, 2)}, Loc())
    halves = infer("split", [a], {"axis": 1, "sizes": (1, 3)}, Loc())
    assert halves == (tensor((N, 1), "f32"), tensor((N, 3), "f32"))


@pytest.mark.parametrize("block", [1, 2, 3])
def test_space_and_depth(block: int) -> None:
    x = noise(2, 3, 2 * block, 3 * block)
    deep = one("space_to_depth", x, block=block)
    close(deep, onnx_run("SpaceToDepth", x, blocksize=block)[0], 0)
    same(one("depth_to_space", deep, block=block, mode="DCR"), x)
    for mode in ("DCR", "CRD"):
        want = onnx_run("DepthToSpace", deep, blocksize=block, mode=mode)[0]
        same(one("depth_to_space", deep, block=block, mode=mode), want)


def test_half_precision_and_integers_move_unchanged() -> None:
    for x in (noise(2, 3).astype(np.float16), np.arange(6, dtype=np.int8).reshape(2, 3)):
        same(one("transpose", x, perm=(1, 0)), x.T.copy())
        same(one("concat", x, x, axis=0), np.concatenate([x, x]))
