"""Host arrays to device bytes and back, and what is said when they do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spyrec import runtime
from spyrec.files import ArrayHeader
from spyrec.ir.errors import SpyrecError
from spyrec.ir.layout import Layout
from spyrec.sim.errors import ObjectError
from spyrec.sim.formats import format_of, quantize
from spyrec.sim.isa import Buffer, Program


def buffer(
    name: str, dtype: str, shape: tuple[int, ...], stored: str, kind: str = "input", **changes: Any
) -> Buffer:
    layout = Layout.stick(shape, format_of(stored).bits, max(len(shape) - 1, 0))
    meta = {
        "name": name, "dtype": dtype, "shape": "x".join(map(str, shape)), "device_dtype": stored,
        "layout": str(layout),
    }
    return Buffer(f"b_{name}", kind, changes.get("size", layout.sticks * 128), meta=meta)


def port(
    name: str, dtype: str, shape: tuple[int, ...], stored: str, **changes: Any
) -> runtime.Port:
    program = Program((), (buffer(name, dtype, shape, stored, **changes),), ())
    [made] = runtime.ports(program, "input")
    return made


PAIRS = [
    ("f32", "dl16"), ("f32", "f16"), ("f32", "f32"), ("f16", "dl16"), ("f64", "dl16"),
    ("bf16", "bf16"), ("i64", "i32"), ("i32", "i32"), ("bool", "dl16"), ("u8", "i32"),
    ("i8", "i8"), ("i4", "i4"),
]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(PAIRS),
    st.lists(st.integers(1, 5), max_size=2),
    st.integers(1, 200),
    st.booleans(),
    st.integers(0, 99),
)
def test_what_is_packed_unpacks_to_what_the_device_format_keeps(
    pair: tuple[str, str], outer: list[int], inner: int, poison: bool, seed: int
) -> None:
    p = port("x", pair[0], (*outer, inner), pair[1])
    rng = np.random.default_rng(seed)
    host = p.dtype.np_dtype
    array = (rng.normal(size=p.shape) * 3).clip(-7, 7).astype(host)
    if host.kind == "u":
        array = np.abs(array)
    data = runtime.pack(p, array, poison)
    assert len(data) == p.buffer.size
    back = runtime.unpack(p, data)
    assert back.dtype == host
    kept = array if pair[1] == "i4" else quantize(array, pair[1])
    want = kept.reshape(p.shape).astype(host)
    np.testing.assert_array_equal(back, want)


def test_elements_stand_where_the_layout_says() -> None:
    p = port("x", "f32", (2, 70), "dl16")
    data = np.frombuffer(runtime.pack(p, np.ones((2, 70), np.float32)), np.uint16)
    assert data.reshape(2, 2, 64).any(axis=-1).all()  # [stick group, row, lane]
    assert int(np.count_nonzero(data)) == 140
    poisoned = np.frombuffer(runtime.pack(p, np.ones((2, 70), np.float32), poison=True), np.uint16)
    assert int(np.count_nonzero(poisoned == 0xFFFF)) == 2 * 58


def test_what_hides_in_a_mask_hides_on_the_device() -> None:
    given_ = np.array([-np.inf, np.finfo(np.float32).min, np.inf, 1e5, np.nan], np.float32)
    for stored, largest in (("dl16", 8573157376.0), ("f16", 65504.0)):
        p = port("mask", "f32", (5,), stored)
        kept = runtime.unpack(p, runtime.pack(p, given_))
        most = min(largest, float(quantize(np.float32(1e5).reshape(1), "dl16")[0]))
        np.testing.assert_array_equal(kept, [-largest, -largest, largest, most, np.nan])
    half = port("mask", "f16", (1,), "dl16")
    assert runtime.pack(half, np.array([-np.inf], np.float16))[:2] == b"\xfe\xff"


def test_scalars_and_empty_arrays() -> None:
    scalar = port("s", "f32", (), "dl16")
    back = runtime.unpack(scalar, runtime.pack(scalar, np.float32(2.5).reshape(())))
    assert back.shape == ()
    assert back == 2.5
    meta = {"name": "e", "dtype": "f32", "shape": "0x3", "device_dtype": "dl16", "layout": ""}
    [empty] = runtime.ports(Program((), (Buffer("e", "input", 0, meta=meta),), ()), "input")
    assert runtime.pack(empty, np.zeros((0, 3), np.float32)) == b""
    assert runtime.unpack(empty, b"").shape == (0, 3)


def test_all_mismatches_are_listed_at_once() -> None:
    wanted = [port("ids", "i64", (1, 8), "i32"), port("mask", "i64", (1, 8), "i32"),
              port("x", "f32", (2, 3), "dl16")]
    given_ = {
        "ids": ArrayHeader((1, 8), np.dtype("int32")),
        "x": ArrayHeader((3, 2), np.dtype("float32")),
        "y": ArrayHeader((), np.dtype("float32")),
    }
    with pytest.raises(SpyrecError) as caught:
        runtime.check(wanted, given_, "in.npz")
    assert str(caught.value).splitlines() == [
        "in.npz: input 'ids': expected int64[1, 8], got int32[1, 8]",
        "in.npz: input 'mask' is missing; expected int64[1, 8]",
        "in.npz: input 'x': expected float32[2, 3], got float32[3, 2]",
        "in.npz: 'y' is not an input of the model; its inputs are: ids, mask, x",
    ]


def test_fitting_inputs_pass_the_check() -> None:
    runtime.check([port("x", "bool", (3,), "dl16")], {"x": np.zeros(3, np.bool_)})


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_whole_numbers_beyond_32_bits_are_an_error(value: int) -> None:
    p = port("ids", "i64", (2,), "i32")
    with pytest.raises(SpyrecError) as caught:
        runtime.pack(p, np.array([0, value]))
    low, high = sorted((0, value))
    assert str(caught.value) == (
        f"input 'ids' holds whole numbers from {low} to {high}; the device keeps them as i32, so "
        "they must lie in -2147483648..2147483647"
    )


def test_a_buffer_of_the_wrong_size_is_an_error() -> None:
    p = port("x", "f32", (3,), "dl16", size=64)
    with pytest.raises(ObjectError, match="buffer b_x has 64 bytes but its layout"):
        runtime.pack(p, np.zeros(3, np.float32))


def test_a_buffer_without_its_facts_is_an_error() -> None:
    program = Program((), (Buffer("b3", "output", 128, meta={"name": "y", "dtype": "f32"}),), ())
    with pytest.raises(ObjectError, match="output buffer b3 does not say its shape, device_dtype"):
        runtime.ports(program, "output")


def test_random_inputs_follow_seed_and_name_only() -> None:
    wanted = [port("ids", "i64", (4, 50), "i32"), port("attention_mask", "i64", (4, 50), "i32"),
              port("token_type_ids", "i64", (4, 50), "i32"), port("x", "f32", (4, 50), "dl16"),
              port("flag", "bool", (4, 50), "dl16")]
    one, two = runtime.random_inputs(wanted, 0), runtime.random_inputs(wanted[::-1], 0)
    for p in wanted:
        np.testing.assert_array_equal(one[p.name], two[p.name])
        assert one[p.name].dtype == p.dtype.np_dtype
    assert set(np.unique(one["ids"])) == set(range(10))
    for name in ("attention_mask", "token_type_ids", "flag"):
        assert set(np.unique(one[name])) == {0, 1}
    assert abs(float(one["x"].std()) - 1) < 0.2
    assert not np.array_equal(one["x"], runtime.random_inputs(wanted, 1)["x"])


def test_overflow_and_nan_are_counted() -> None:
    x = port("x", "f32", (4,), "f16")
    assert runtime.overflow_warnings([(x, np.array([1, 2, 3, 4], np.float32))]) == []
    assert runtime.overflow_warnings([(x, np.array([1, 1e6, -1e6, np.inf], np.float32))]) == [
        "input 'x': 2 of 4 values are beyond the range of f16 and become its largest"
    ]
    assert runtime.nan_warnings([(x, np.array([1, np.nan, np.inf, 0], np.float32))]) == [
        "output 'x': 2 of 4 values are NaN or infinite: something overflowed f16, or an input held "
        "such values"
    ]
    assert runtime.nan_warnings([(x, np.zeros(4, np.float32))]) == []
