"""Number formats against a slow definition in exact fractions that shares no code with them."""

from __future__ import annotations

import bisect
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spyrec.sim.errors import SimError
from spyrec.sim.formats import (
    FORMATS,
    decode,
    decode_bool,
    encode,
    quantize,
    stored_bytes,
)

FLOATS = ("dl16", "f16", "bf16", "f8e4m3")
BEYOND = {
    "dl16": 0x7FFF,
    "f16": 0x7C00,
    "bf16": 0x7F80,
    "f8e4m3": 0x7E,
}  # what too large a value becomes


def slow_value(pattern: int, fmt: str) -> Fraction | str:
    """What the pattern means: a number, "nan" or "inf" (sign left out of the special ones)."""
    bits, exponent_bits, bias = {
        "dl16": (16, 6, 31),
        "f16": (16, 5, 15),
        "bf16": (16, 8, 127),
        "f8e4m3": (8, 4, 7),
    }[fmt]
    fraction_bits = bits - 1 - exponent_bits
    sign = -1 if pattern >> (bits - 1) else 1
    e = pattern >> fraction_bits & (1 << exponent_bits) - 1
    f = pattern & (1 << fraction_bits) - 1
    top = (1 << exponent_bits) - 1
    ones = (1 << fraction_bits) - 1
    if fmt == "dl16":
        if (e, f) == (0, 0):
            return Fraction(0)
        if (e, f) == (top, ones):
            return "nan"
        return sign * (1 + Fraction(f, 512)) * Fraction(2) ** (e - 31)
    if fmt == "f8e4m3" and (e, f) == (top, ones):
        return "nan"
    if fmt != "f8e4m3" and e == top:
        return "nan" if f else "inf"
    if e == 0:
        return sign * Fraction(f, 1 << fraction_bits) * Fraction(2) ** (1 - bias)
    return sign * (1 + Fraction(f, 1 << fraction_bits)) * Fraction(2) ** (e - bias)


def magnitudes(fmt: str) -> list[tuple[Fraction, int]]:
    """Non-negative finite values with their patterns, ascending."""
    half = 1 << FORMATS[fmt].bits - 1
    found = [(v, p) for p in range(half) if isinstance(v := slow_value(p, fmt), Fraction)]
    assert found == sorted(found)
    return found


def slow_encode(x: float, fmt: str, table: list[tuple[Fraction, int]]) -> int:
    """Nearest pattern, ties to the even one, found by trying the neighbours."""
    half = 1 << FORMATS[fmt].bits - 1
    sign = half if np.signbit(x) else 0
    special = BEYOND[fmt]
    if np.isinf(x):
        return sign | special
    exact = abs(Fraction(float(x)))
    i = bisect.bisect_left(table, (exact, -1))
    last, last_pattern = table[-1]
    if i == len(table):
        step = last - table[-2][0]
        beyond = exact - last > step / 2 or (exact - last == step / 2 and last_pattern % 2 == 1)
        return sign | (special if beyond else last_pattern)
    above, p_above = table[i]
    if i == 0 or above == exact:
        return sign | p_above
    below, p_below = table[i - 1]
    if exact - below == above - exact:
        return sign | (p_below if p_below % 2 == 0 else p_above)
    return sign | (p_below if exact - below < above - exact else p_above)


@pytest.mark.parametrize("fmt", FLOATS)
def test_every_pattern_decodes_to_what_it_means(fmt: str) -> None:
    bits = FORMATS[fmt].bits
    patterns = np.arange(1 << bits, dtype=FORMATS[fmt].storage)
    values = decode(patterns, fmt)
    assert values.dtype == np.float32
    for pattern, value in zip(patterns.tolist(), values.tolist(), strict=True):
        meaning = slow_value(pattern, fmt)
        negative = bool(pattern >> (bits - 1))
        assert bool(np.signbit(np.float32(value))) == negative, hex(pattern)
        if isinstance(meaning, str):
            assert (np.isnan if meaning == "nan" else np.isinf)(value), hex(pattern)
        else:
            assert Fraction(value) == meaning, hex(pattern)


@pytest.mark.parametrize("fmt", FLOATS)
def test_every_pattern_survives_decode_and_encode(fmt: str) -> None:
    patterns = np.arange(1 << FORMATS[fmt].bits, dtype=FORMATS[fmt].storage)
    values = decode(patterns, fmt)
    keep = (
        ~np.isnan(values) if fmt in ("f16", "bf16") else slice(None)
    )  # signalling NaNs become quiet
    np.testing.assert_array_equal(encode(values[keep], fmt), patterns[keep])
    assert np.isnan(quantize(values[np.isnan(values)], fmt)).all()


@pytest.mark.parametrize("fmt", FLOATS)
def test_rounding_at_every_boundary(fmt: str) -> None:
    """Each midpoint between neighbours goes to the even one, the float32 on either side of it to
    the neighbour on that side."""
    table = magnitudes(fmt)
    last, before = table[-1][0], table[-2][0]
    rows = [*table, (2 * last - before, BEYOND[fmt])]
    exact = [(a + b) / 2 for (a, _), (b, _) in pairwise(rows)]
    middles = np.array([float(m) for m in exact], np.float32)
    assert [Fraction(m) for m in middles.tolist()] == exact
    low = np.array([p for _, p in table])
    high = np.array([p for _, p in rows[1:]])
    tie_high = low % 2 == 1
    tests = [
        (np.nextafter(middles, np.float32(0)), low),
        (middles, np.where(tie_high, high, low)),
        (np.nextafter(middles, np.float32(np.inf)), high),
    ]
    half = 1 << FORMATS[fmt].bits - 1
    for x, expected in tests:
        np.testing.assert_array_equal(encode(x, fmt), expected)
        np.testing.assert_array_equal(encode(-x, fmt), expected + half)


ANY_FLOAT = st.integers(0, 2**32 - 1).map(lambda b: np.uint32(b).view(np.float32))
TABLES = {fmt: magnitudes(fmt) for fmt in FLOATS}


@given(st.lists(ANY_FLOAT, min_size=1, max_size=50), st.sampled_from(FLOATS))
def test_encode_is_nearest_even(values: list[np.float32], fmt: str) -> None:
    x = np.array([v for v in values if not np.isnan(v)], np.float32)
    expected = [slow_encode(float(v), fmt, TABLES[fmt]) for v in x]
    assert encode(x, fmt).tolist() == expected


def test_dl16_landmarks() -> None:
    x = np.array(
        [0.0, -0.0, 1.0, -2.0, 2.0**-31, 1e-45, np.inf, -np.inf, 2.0**33, -(2.0**33)], np.float32
    )
    assert [hex(b) for b in encode(x, "dl16")] == [
        "0x0",
        "0x8000",
        "0x3e00",
        "0xc000",
        "0x1",
        "0x0",
        "0x7fff",
        "0xffff",
        "0x7fff",
        "0xffff",
    ]
    assert encode(np.array([np.nan], np.float32), "dl16")[0] == 0x7FFF
    largest = np.float32((1 + 510 / 512) * 2.0**32)
    assert decode(np.array([0x7FFE, 0xFFFE], np.uint16), "dl16").tolist() == [largest, -largest]


def test_f8e4m3_saturates_and_keeps_nan() -> None:
    x = np.array([448, 464, 1e9, -np.inf, np.nan, 2.0**-9, 2.0**-10], np.float32)
    assert encode(x, "f8e4m3").tolist() == [0x7E, 0x7E, 0x7E, 0xFE, 0x7F, 0x01, 0x00]


@pytest.mark.parametrize("fmt", ["f16", "bf16"])
def test_nan_stays_nan(fmt: str) -> None:
    x = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(quantize(x, fmt)).all()


@pytest.mark.parametrize(
    ("fmt", "low", "high"), [("i32", -(2**31), 2**31 - 1), ("i8", -128, 127), ("i4", -8, 7)]
)
def test_integers_round_half_to_even_and_saturate(fmt: str, low: int, high: int) -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e30, -np.inf, np.nan, np.inf, -3.0], np.float32)
    assert quantize(x, fmt).tolist() == [0, 2, 2, 0, -2, high, low, 0, high, -3]
    wide = np.array([low - 1, low, high, high + 1], np.int64)
    assert quantize(wide, fmt).tolist() == [low, low, high, high]
    assert quantize(wide, fmt).dtype == np.int32


INTEGERS = {"i8": (-128, 127), "i4": (-8, 7)}


def slow_integer(x: float, fmt: str) -> int:
    """Nearest whole number, ties to even, stopped at the ends."""
    low, high = INTEGERS[fmt]
    if np.isnan(x):
        return 0
    return high if x > high else low if x < low else round(Fraction(x))


@pytest.mark.parametrize("fmt", INTEGERS)
def test_every_integer_pattern_and_every_boundary(fmt: str) -> None:
    low, high = INTEGERS[fmt]
    patterns = np.arange(256, dtype=np.uint8)
    values = decode(patterns, fmt)
    bits = FORMATS[fmt].bits
    digits = [[p >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)] for p in range(256)]
    expected = [d - (1 << bits) * (d >> bits - 1) for row in digits for d in row]
    assert values.tolist() == expected
    assert (encode(values, fmt) == patterns).all()
    middles = (np.arange(low - 2, high + 1) + 0.5).astype(np.float32)
    for away in (-np.inf, None, np.inf):
        x = middles if away is None else np.nextafter(middles, np.float32(away))
        assert quantize(x, fmt).tolist() == [slow_integer(float(v), fmt) for v in x]


@pytest.mark.parametrize("target", ["dl16", "bf16", "f16", "f8e4m3", *INTEGERS])
@pytest.mark.parametrize("source", FLOATS)
def test_every_pattern_of_a_format_in_every_other(source: str, target: str) -> None:
    """Conversion is by way of float32, which holds all of them: one rounding, no more."""
    values = decode(np.arange(1 << FORMATS[source].bits, dtype=FORMATS[source].storage), source)
    values = values[~np.isnan(values)]
    if target in INTEGERS:
        assert quantize(values, target).tolist() == [
            slow_integer(v, target) for v in values.tolist()
        ]
        return
    expected = [slow_encode(v, target, TABLES[target]) for v in values.tolist()]
    assert encode(values, target).tolist() == expected


def test_i32_keeps_every_integer() -> None:
    x = np.array([2**31 - 1, 2**24 + 1, -(2**31)], np.int32)
    assert quantize(x, "i32").tolist() == x.tolist()


def test_i4_packs_two_a_byte_low_half_first() -> None:
    x = np.array([[1, -1, 7, -8]])
    assert encode(x, "i4").tolist() == [[0xF1, 0x87]]
    assert quantize(x, "i4").tolist() == x.tolist()
    with pytest.raises(SimError) as caught:
        encode(np.zeros((2, 3)), "i4")
    assert str(caught.value) == (
        "i4 keeps two elements in a byte; the last axis of shape (2, 3) is not even, pad it first"
    )


@pytest.mark.parametrize("fmt", ["dl16", "f16", "bf16", "f32", "i32"])
def test_truth_values_are_zero_and_one_of_the_format(fmt: str) -> None:
    truth = np.array([True, False, True])
    assert quantize(truth, fmt).tolist() == [1, 0, 1]
    assert decode_bool(encode(truth, fmt), fmt).tolist() == [True, False, True]
    assert not decode_bool(encode(np.array([-0.0]), fmt), fmt).any()


@given(st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_f32_keeps_every_bit(bits: list[int]) -> None:
    x = np.array(bits, np.uint32)
    assert encode(decode(x, "f32"), "f32").tolist() == bits


@pytest.mark.parametrize("fmt", FORMATS)
def test_shapes_and_sizes(fmt: str) -> None:
    x = np.arange(24).reshape(2, 3, 4)[:, :, ::-1] % 8
    assert quantize(x, fmt).tolist() == x.tolist()
    assert encode(x, fmt).nbytes == stored_bytes(x.size, fmt)
    assert stored_bytes(FORMATS[fmt].per_stick, fmt) == 128
    big = np.tile(np.arange(8), 10_000)  # longer than one block
    assert quantize(big, fmt).tolist() == big.tolist()


def test_mistakes_are_sentences() -> None:
    with pytest.raises(SimError) as caught:
        encode(np.zeros(1), "f17")
    assert str(caught.value) == (
        "no number format is called 'f17'; known: dl16, f16, bf16, f32, i32, f8e4m3, i8, i4"
    )
    with pytest.raises(SimError) as caught:
        decode(np.zeros(1, np.uint8), "dl16")
    assert str(caught.value) == "bits of dl16 are uint16, not uint8; view the bytes first"
