"""Pooling, LRN and resize against onnxruntime; sum pooling and hanging windows against loops."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ops_reference import Array, close, noise, one, onnx_run, patient, same

from spyrec.ir.core import Loc
from spyrec.ir.errors import VerifyError
from spyrec.ir.ops import infer
from spyrec.ir.ops.resample import COORDINATES, ROUNDINGS
from spyrec.ir.ops.window import pooled_size
from spyrec.ir.types import Sym, tensor

POOLS = [
    # x, kernel, strides, pads, dilations, ceil
    ((2, 3, 10), (3,), (2,), (1, 0), (1,), False),
    ((2, 3, 9, 8), (3, 2), (2, 1), (1, 0, 1, 1), (1, 1), False),
    ((1, 2, 9, 8), (2, 3), (2, 3), (0, 1, 1, 0), (1, 1), True),
    ((1, 2, 10, 11), (3, 3), (1, 2), (0, 0, 0, 0), (2, 3), False),
    ((1, 2, 5, 6, 4), (2, 2, 2), (2, 2, 1), (0, 1, 0, 1, 0, 0), (1, 1, 1), False),
    ((1, 3, 7, 7), (7, 7), (1, 1), (0, 0, 0, 0), (1, 1), False),
]


def onnx_attrs(kernel, strides, pads, dilations, ceil):  # type: ignore[no-untyped-def]
    return {
        "kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": dilations,
        "ceil_mode": int(ceil),
    }  # fmt: skip


@pytest.mark.parametrize(("shape", "kernel", "strides", "pads", "dilations", "ceil"), POOLS)
def test_max_pool(shape, kernel, strides, pads, dilations, ceil) -> None:  # type: ignore[no-untyped-def]
    x = noise(*shape)
    want = onnx_run("MaxPool", x, **onnx_attrs(kernel, strides, pads, dilations, ceil))[0]
    got = one(
        "max_pool", x, kernel=kernel, strides=strides, pads=pads, dilations=dilations,
        ceil_mode=ceil,
    )  # fmt: skip
    same(got, want)


@pytest.mark.parametrize(("shape", "kernel", "strides", "pads", "dilations", "ceil"), POOLS)
@pytest.mark.parametrize("include", [False, True])
def test_avg_pool(shape, kernel, strides, pads, dilations, ceil, include) -> None:  # type: ignore[no-untyped-def]
    x = noise(*shape)
    undilated = (1,) * len(kernel)
    attrs = onnx_attrs(kernel, strides, pads, undilated, ceil)
    want = onnx_run("AveragePool", x, **attrs, count_include_pad=int(include))[0]
    got = one(
        "avg_pool", x, kernel=kernel, strides=strides, pads=pads, ceil_mode=ceil,
        count_include_pad=include,
    )  # fmt: skip
    close(got, want)


def window_by_hand(x: Array, at: tuple[int, ...], attrs: dict[str, tuple[int, ...]]) -> list[float]:
    """The elements inside the input that the window at a result position meets."""
    found = []
    for tap in product(*(range(k) for k in attrs["kernel"])):
        where = [
            a * s - p + t * d
            for a, s, p, t, d in zip(
                at, attrs["strides"], attrs["pads"], tap, attrs["dilations"], strict=False
            )
        ]
        if all(0 <= w < n for w, n in zip(where, x.shape, strict=True)):
            found.append(float(x[tuple(where)]))
    return found


@settings(patient, max_examples=40)
@given(st.data())
def test_sum_and_max_pool_against_loops(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 2))
    pick = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(rank))  # noqa: E731
    attrs = {
        "kernel": pick(1, 3), "strides": pick(1, 3), "dilations": pick(1, 2),
    }  # fmt: skip
    reach = [(k - 1) * d for k, d in zip(attrs["kernel"], attrs["dilations"], strict=True)]
    attrs["pads"] = tuple(data.draw(st.integers(0, min(r, 2))) for r in reach * 2)
    ceil = data.draw(st.booleans())
    x = np.random.default_rng(0).integers(-9, 9, pick(1, 7)).astype(np.float32)
    counts = [
        pooled_size(n, r + 1, s, attrs["pads"][i], attrs["pads"][rank + i], ceil)
        for i, (n, r, s) in enumerate(zip(x.shape, reach, attrs["strides"], strict=True))
    ]
    assume(min(counts) > 0)
    largest = one("max_pool", x[None, None], ceil_mode=ceil, **attrs)[0, 0]
    assert largest.shape == tuple(counts)
    for at in np.ndindex(largest.shape):
        assert largest[at] == max(window_by_hand(x, at, attrs), default=-np.inf)
    floor = [
        pooled_size(n, r + 1, s, attrs["pads"][i], attrs["pads"][rank + i], False)
        for i, (n, r, s) in enumerate(zip(x.shape, reach, attrs["strides"], strict=True))
    ]
    assume(min(floor) > 0)
    total = one("sum_pool", x[None, None], **attrs)[0, 0]
    assert total.shape == tuple(floor)
    for at in np.ndindex(total.shape):
        assert total[at] == sum(window_by_hand(x, at, attrs))


def test_a_hanging_window_divides_by_what_it_covers() -> None:
    x = np.arange(1, 6, dtype=np.float32).reshape(1, 1, 5)
    attrs = {"kernel": (3,), "strides": (2,), "pads": (1, 0), "ceil_mode": True}
    same(one("avg_pool", x, **attrs), np.float32([[[1.5, 3, 4.5]]]))
    included = one("avg_pool", x, **attrs, count_include_pad=True)
    same(included, np.float32([[[1, 3, 4.5]]]))


def test_a_window_may_not_start_in_the_padding_after_the_input() -> None:
    # Room for windows at -1, 1 and, hanging over, 3; the input ends at 3.
    assert pooled_size(3, 2, 2, 1, 1, True) == 2
    assert pooled_size(4, 2, 2, 1, 1, True) == 3
    x = np.float32([[[1, 2, 3]]])
    got = one("max_pool", x, kernel=(2,), strides=(2,), pads=(1, 1), dilations=(1,), ceil_mode=True)
    same(got, np.float32([[[1, 3]]]))


def test_pooling_of_integers_and_halves() -> None:
    x = np.random.default_rng(0).integers(-128, 127, (1, 2, 6, 6)).astype(np.int8)
    attrs = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    want = onnx_run("MaxPool", x, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))[0]
    same(one("max_pool", x, **attrs), want)
    half = np.full((1, 1, 64, 64), 1, np.float16)
    whole = {"kernel": (64, 64), "strides": (1, 1), "pads": (0, 0, 0, 0)}
    assert one("sum_pool", half, **whole, dilations=(1, 1)) == 4096  # summed in single precision


def test_pool_rules() -> None:
    n = Sym("N", 1, 4)
    attrs = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    x = tensor((n, 8, 12, 12), "dl16")
    assert infer("max_pool", [x], attrs, Loc()) == (tensor((n, 8, 6, 6), "dl16"),)
    with pytest.raises(VerifyError, match=r"pads \(3, 1, 1, 1\) are not smaller than the window"):
        infer("max_pool", [x], {**attrs, "pads": (3, 1, 1, 1)}, Loc())
    undilated = {name: value for name, value in attrs.items() if name != "dilations"}
    with pytest.raises(VerifyError, match="expected x of float type"):
        infer("avg_pool", [tensor((1, 1, 4, 4), "i8")], undilated, Loc())


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_lrn(size: int) -> None:
    x = noise(2, 7, 3, 4)
    want = onnx_run("LRN", x, size=size, alpha=0.3, beta=0.75, bias=1.5)[0] if size % 2 else None
    got = one("lrn", x, size=size, alpha=0.3, beta=0.75, bias=1.5)
    if want is not None:
        close(got, want)
    for c in range(7):
        low, high = max(0, c - (size - 1) // 2), min(6, c + size // 2)
        total = np.square(x[:, low : high + 1]).sum(axis=1)
        close(got[:, c], x[:, c] / (1.5 + 0.3 / size * total) ** np.float32(0.75))


def resize_both(x, sizes, mode, coordinate, rounding="round_prefer_floor", **more):  # type: ignore[no-untyped-def]
    scales = tuple(float(np.float32(m / n)) for m, n in zip(sizes, x.shape, strict=True))
    want = onnx_run(
        "Resize", x, None, None, np.array(sizes, np.int64), mode=mode, nearest_mode=rounding,
        coordinate_transformation_mode=coordinate, cubic_coeff_a=more.get("cubic_a", -0.75),
        antialias=int(more.get("antialias", False)),
    )[0]  # fmt: skip
    got = one(
        "resize", x, sizes=sizes, scales=scales, mode=mode, coordinate=coordinate,
        rounding=rounding, **more,
    )  # fmt: skip
    return got, want


SIZES = [(1, 2, 10, 14), (1, 2, 3, 4), (1, 2, 5, 15), (1, 2, 1, 1)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("coordinate", [c for c in COORDINATES if c != "tf_half_pixel_for_nn"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_smooth(sizes: tuple[int, ...], coordinate: str, mode: str) -> None:
    got, want = resize_both(noise(1, 2, 5, 7), sizes, mode, coordinate)
    close(got, want)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("coordinate", COORDINATES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_resize_nearest(sizes: tuple[int, ...], coordinate: str, rounding: str) -> None:
    got, want = resize_both(noise(1, 2, 5, 7), sizes, "nearest", coordinate, rounding)
    if sizes[2:] == (1, 1) and (coordinate, rounding) == ("half_pixel", "floor"):
        # The coordinate along the last axis is 3 exactly; single precision makes it 2.9999998.
        want = noise(1, 2, 5, 7)[:, :, 2:3, 3:4]
    same(got, want)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("sizes", [(1, 2, 5, 6), (1, 2, 20, 9), (1, 2, 4, 13)])
def test_resize_antialiased(sizes: tuple[int, ...], mode: str) -> None:
    got, want = resize_both(noise(1, 2, 11, 13), sizes, mode, "half_pixel", antialias=True)
    close(got, want)


def test_resize_cubic_parameter_and_symbolic_batch() -> None:
    got, want = resize_both(noise(1, 1, 5, 5), (1, 1, 8, 8), "cubic", "half_pixel", cubic_a=-0.5)
    close(got, want)
    n = Sym("N", 1, 4)
    attrs = {
        "sizes": (n, 3, 8, 8), "scales": (1.0, 1.0, 2.0, 2.0), "mode": "linear",
        "coordinate": "half_pixel",
    }  # fmt: skip
    (t,) = infer("resize", [tensor((n, 3, 4, 4), "f32")], attrs, Loc())
    assert t == tensor((n, 3, 8, 8), "f32")
    with pytest.raises(VerifyError, match="must be one of nearest, linear, cubic, got 'area'"):
        infer("resize", [tensor((n, 3, 4, 4), "f32")], {**attrs, "mode": "area"}, Loc())
