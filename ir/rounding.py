"""Rounding host arrays to the values an element format has: to nearest, ties to even."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .types import DType

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class FloatFormat:
    """``fraction`` bits; ``least_exponent`` of the smallest binade; ``smallest`` positive value;
    ``largest`` finite value; ``overflow``: what a value beyond it becomes (times its sign)."""

    fraction: int
    least_exponent: int
    smallest: float
    largest: float
    overflow: float


# dl16: 1 sign, 6 exponent, 9 fraction bits, bias 31. There are no subnormals: the bit pattern of
# exponent field e and fraction f is (1 + f/512) * 2^(e - 31) also for e = 0, except that the
# all-zero pattern is zero; so the smallest positive value is (1 + 1/512) * 2^-31. The all-ones
# pattern is NaN and infinity in one; on the host it is NaN.
FORMATS: dict[str, FloatFormat] = {
    "dl16": FloatFormat(9, -31, (1 + 1 / 512) * 2.0**-31, (1 + 510 / 512) * 2.0**32, np.nan),
    "bf16": FloatFormat(7, -126, 2.0**-133, (2 - 2.0**-7) * 2.0**127, np.inf),
    "f8e4m3": FloatFormat(3, -6, 2.0**-9, 448.0, 448.0),
}


def round_to(array: Array, dtype: DType) -> Array:
    """The nearest values of ``dtype``, in the host array type ``dtype.numpy``.

    Float formats: ties go to the even fraction, the sign of zero is kept, and magnitudes that
    round beyond the largest finite value become infinite (f16, bf16) or NaN (dl16); f8e4m3 has no
    infinity and saturates.
    In dl16 what lies below the smallest value goes to it or to zero, whichever is nearer.
    Integer formats: ties go to the even integer, what lies outside saturates, NaN becomes 0.
    """
    if dtype.name in FORMATS:
        return _round_float(array, FORMATS[dtype.name]).astype(np.float32)
    with np.errstate(over="ignore"):
        if dtype.kind == "int":
            return _round_int(array, dtype)
        return array.astype(dtype.np_dtype)


def int_range(dtype: DType) -> tuple[int, int]:
    """The least and the largest value of an integer format."""
    if dtype.name.startswith("u"):
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


def _round_float(array: Array, fmt: FloatFormat) -> Array:
    x = array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
    with np.errstate(all="ignore"):
        # A unit of the last place is 2^shift; scaled by it the value is rounded as an integer.
        exponent = np.maximum(np.frexp(x)[1] - 1, fmt.least_exponent)
        shift = exponent - fmt.fraction
        rounded = np.ldexp(np.rint(np.ldexp(x, -shift)), shift)
        magnitude = np.abs(x)
        tiny = magnitude < fmt.smallest
        if tiny.any():
            near = np.where(magnitude > fmt.smallest / 2, fmt.smallest, 0.0)
            rounded = np.where(tiny, np.copysign(near, x), rounded)
        beyond = np.abs(rounded) > fmt.largest
        if beyond.any():
            rounded = np.where(beyond, np.copysign(fmt.overflow, x), rounded)
        return np.where(np.isnan(x), x, rounded)


def _round_int(array: Array, dtype: DType) -> Array:
    low, high = int_range(dtype)
    if array.dtype.kind in "iub":
        info = np.iinfo(np.uint8 if array.dtype.kind == "b" else array.dtype)
        inside = array.clip(max(low, int(info.min)), min(high, int(info.max)))
        return inside.astype(dtype.np_dtype)
    x = np.nan_to_num(np.rint(array.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
    whole = np.where((x >= low) & (x <= high), x, 0.0)
    if high >= 2**53:  # the float nearest to high lies above it
        whole = np.where(x >= float(high), 0.0, whole)
    result = whole.astype(dtype.np_dtype)
    result[x >= float(high)] = high
    result[x <= float(low)] = low
    return result
