"""round_to against a slow definition in fractions: the nearest value in a list of all there are."""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ops_reference import patient

from spyrec.ir.rounding import int_range, round_to
from spyrec.ir.types import DTYPES

DL16, BF16, F16, F8 = (DTYPES[n] for n in ("dl16", "bf16", "f16", "f8e4m3"))


def dl16_value(pattern: int) -> Fraction | None:
    """The magnitude of a 15-bit pattern; None for the merged NaN and infinity."""
    exponent, fraction = pattern >> 9, pattern & 511
    if pattern == 0x7FFF:
        return None
    if pattern == 0:
        return Fraction(0)
    return (1 + Fraction(fraction, 512)) * Fraction(2) ** (exponent - 31)


def ieee_value(pattern: int, bits: int, bias: int) -> Fraction:
    """The magnitude of a pattern with subnormals, ``bits`` of fraction."""
    exponent, fraction = pattern >> bits, pattern & ((1 << bits) - 1)
    if exponent == 0:
        return Fraction(fraction, 1 << bits) * Fraction(2) ** (1 - bias)
    return (1 + Fraction(fraction, 1 << bits)) * Fraction(2) ** (exponent - bias)


# All finite magnitudes in order; the index is the bit pattern. Then what lies beyond.
DL16_VALUES = [v for p in range(0x8000) if (v := dl16_value(p)) is not None]
TABLES = {
    "dl16": (DL16_VALUES, np.nan),
    "bf16": ([ieee_value(p, 7, 127) for p in range(255 << 7)], np.inf),
    "f16": ([ieee_value(p, 10, 15) for p in range(31 << 10)], np.inf),
    "f8e4m3": ([ieee_value(p, 3, 7) for p in range(0x7F)], 448.0),
}


def slow(x: float, name: str) -> float:
    """Nearest value, ties to the even pattern. Beyond the largest the next pattern would stand one
    step further on."""
    values, beyond = TABLES[name]
    if not np.isfinite(x):
        return float(np.copysign(beyond, x)) if np.isinf(x) else x
    magnitude = abs(Fraction(x))
    at = bisect_left(values, magnitude)
    if at == len(values):
        limit = values[-1] + (values[-1] - values[-2]) / 2
        over = magnitude > limit or (magnitude == limit and len(values) % 2 == 0)
        return float(np.copysign(beyond if over else float(values[-1]), x))
    if at and values[at] != magnitude:
        low, high = magnitude - values[at - 1], values[at] - magnitude
        at -= low < high or (low == high and at % 2 == 1)
    return float(np.copysign(float(values[at]), x))


@pytest.mark.parametrize("name", TABLES)
def test_every_value_is_a_fixed_point_of_either_sign(name: str) -> None:
    values = np.array([float(v) for v in TABLES[name][0]])
    for signed in (values, -values):
        for width in (np.float32, np.float64):
            got = round_to(signed.astype(width), DTYPES[name])
            assert got.dtype == DTYPES[name].np_dtype
            np.testing.assert_array_equal(got.astype(np.float64), signed)
            np.testing.assert_array_equal(np.signbit(got), np.signbit(signed))


@pytest.mark.parametrize("name", TABLES)
def test_midpoints_go_to_the_even_pattern_and_their_neighbours_to_the_nearer(name: str) -> None:
    exact = TABLES[name][0]
    values = np.array([float(v) for v in exact])
    middle = np.array([float((a + b) / 2) for a, b in pairwise(exact)])
    even = np.where(np.arange(len(middle)) % 2 == 0, values[:-1], values[1:])
    as_float = [round_to(m, DTYPES[name]).astype(np.float64) for m in (
        middle, -middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf)
    )]  # fmt: skip
    np.testing.assert_array_equal(as_float[0], even)
    np.testing.assert_array_equal(as_float[1], -even)
    np.testing.assert_array_equal(as_float[2], values[:-1])
    np.testing.assert_array_equal(as_float[3], values[1:])


def test_dl16_has_65534_patterns_with_a_number() -> None:
    assert len(DL16_VALUES) == 0x7FFF
    assert sorted(set(DL16_VALUES)) == DL16_VALUES


def test_dl16_ends() -> None:
    smallest = (1 + 1 / 512) * 2.0**-31
    largest = (1 + 510 / 512) * 2.0**32
    cases = {
        smallest / 2: 0.0,
        np.nextafter(smallest / 2, 1): smallest,
        2.0**-31: smallest,
        largest: largest,
        (1 + 510.5 / 512) * 2.0**32: largest,  # halfway: 510 is even
        np.nextafter((1 + 510.5 / 512) * 2.0**32, np.inf): np.nan,
        np.inf: np.nan,
        -np.inf: np.nan,
        np.nan: np.nan,
    }
    got = round_to(np.array(list(cases)), DL16)
    np.testing.assert_array_equal(got, np.array(list(cases.values()), np.float32))
    assert np.signbit(round_to(np.array([-0.0, -(2.0**-40)]), DL16)).all()


@pytest.mark.parametrize("name", TABLES)
@patient
@given(x=st.floats() | st.floats(-1, 1) | st.floats(-500, 500) | st.floats(-1e-8, 1e-8))
def test_doubles_round_once(name: str, x: float) -> None:
    np.testing.assert_array_equal(
        round_to(np.array([x]), DTYPES[name]).astype(np.float64), [slow(x, name)]
    )


@pytest.mark.parametrize("name", TABLES)
@patient
@given(x=st.floats(width=32))
def test_singles_round(name: str, x: float) -> None:
    np.testing.assert_array_equal(
        round_to(np.array(x, np.float32), DTYPES[name]).astype(np.float64), slow(x, name)
    )


def test_f16_agrees_with_numpy_for_all_singles_of_one_exponent() -> None:
    x = (np.arange(1 << 16, dtype=np.uint32) + 0x38800000 - 0x8000).view(np.float32)
    assert np.array_equal(round_to(x, F16), x.astype(np.float16))


@pytest.mark.parametrize(
    "name", ["i4", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"]
)
@patient
@given(x=st.floats() | st.floats(-300, 300) | st.integers(-9, 9).map(lambda n: n + 0.5))
def test_integers_round_to_even_and_saturate(name: str, x: float) -> None:
    low, high = int_range(DTYPES[name])
    want = 0 if np.isnan(x) else high if x == np.inf else low if x == -np.inf else round(x)
    got = round_to(np.array([x]), DTYPES[name])
    assert got.dtype == DTYPES[name].np_dtype
    assert int(got[0]) == min(max(want, low), high)


@patient
@given(x=st.integers(-(2**63), 2**63 - 1))
def test_integers_saturate_in_narrower_integers(x: int) -> None:
    for name in ("i4", "u8", "i32", "u64"):
        low, high = int_range(DTYPES[name])
        assert int(round_to(np.array([x]), DTYPES[name])[0]) == min(max(x, low), high)
