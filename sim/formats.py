"""Number formats of the device, bit for bit: host values to storage bits and back.

One FORMATS table gives width, storage and both conversions; rounding is to nearest, ties to even.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import SimError
from .isa import STICK

Array = NDArray[Any]
F32 = NDArray[np.float32]
U32 = NDArray[np.uint32]

_BLOCK = 1 << 15  # elements converted at a time, so that the scratch arrays stay in the cache
_ABS = np.uint32(0x7FFFFFFF)
_SIGN = np.uint32(0x80000000)
_INF = np.uint32(0x7F800000)

DL16_ZERO, DL16_MAX, DL16_NAN = 0x0000, 0x7FFE, 0x7FFF
_DL16_SHIFT = np.uint32(14)  # float32 keeps 23 fraction bits, dl16 keeps 9
_DL16_REBIAS = np.uint32((127 - 31) << 9)
_DL16_HALF_LEAST = np.uint32(((127 - 32) << 23) | (1 << 14))  # half of (1 + 1/512) * 2**-31
_F8_REBIAS = np.uint32((127 - 7) << 3)
_F8_NORMAL = np.uint32((127 - 6) << 23)  # 2**-6, the least normal number
_F8_ALIGN = np.float32(2.0**14)  # adding it leaves a float32 whose last bit is worth 2**-9
F8_MAX, F8_NAN = 0x7E, 0x7F


@dataclass(frozen=True)
class Format:
    """An element format: ``bits`` is its width in device memory, ``storage`` the numpy type of the
    bits (i4 keeps two elements in a byte), ``value`` the numpy type it decodes to, ``code`` its
    number in an encoded instruction."""

    name: str
    code: int
    bits: int
    storage: type[np.unsignedinteger[Any]]
    value: type[np.generic]
    encode: Callable[[Array], Array]
    decode: Callable[[Array], Array]

    @property
    def per_stick(self) -> int:
        """Elements of one 128-byte stick."""
        return STICK * 8 // self.bits


def encode(values: Array, fmt: str) -> Array:
    """Storage bits of ``values`` (floats, ints or truth values, any shape), in the same shape; i4
    packs pairs of the last axis into bytes, the first element in the low half.

    dl16 overflows to the merged NaN/infinity with the value's sign, f16 and bf16 to infinity;
    f8e4m3 saturates at +-448. Integer formats round half to even and saturate; NaN gives 0. True is
    the format's 1, False its 0.
    SimError: no such format, or an odd last axis for i4.
    """
    return format_of(fmt).encode(np.asarray(values))


def decode(bits: Array, fmt: str) -> Array:
    """Values of storage ``bits``: float32, or int32 for i32, i8 and i4 (whose last axis doubles).

    SimError: no such format, or ``bits`` is not an array of its storage type.
    """
    f = format_of(fmt)
    if bits.dtype != f.storage:
        raise SimError(
            f"bits of {fmt} are {f.storage.__name__}, not {bits.dtype}; view the bytes first"
        )
    return f.decode(bits)


def quantize(values: Array, fmt: str) -> Array:
    """``values`` as they read back after being stored in ``fmt``."""
    return decode(encode(values, fmt), fmt)


def decode_bool(bits: Array, fmt: str) -> NDArray[np.bool_]:
    """Truth values kept as numbers of ``fmt``: anything but zero is true."""
    truth: NDArray[np.bool_] = decode(bits, fmt) != 0
    return truth


def format_of(name: str) -> Format:
    """The format called ``name``; SimError if there is none."""
    if name not in FORMATS:
        raise SimError(f"no number format is called {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def stored_bytes(count: int, fmt: str) -> int:
    """Bytes that ``count`` elements take, without padding to sticks."""
    return -(-count * format_of(fmt).bits // 8)


def _float32(values: Array) -> F32:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32).reshape(values.shape)


def _blocks(
    values: Array, storage: type[np.unsignedinteger[Any]], step: Callable[[U32], U32]
) -> Array:
    """``step`` (float32 bits without sign -> storage bits without sign) block by block, and the
    sign put on top."""
    bits = _float32(values).view(np.uint32)
    flat, out = bits.reshape(-1), np.empty(bits.size, storage)
    shift = np.uint32(32 - out.itemsize * 8)
    for i in range(0, flat.size, _BLOCK):
        word = flat[i : i + _BLOCK]
        code = step(word & _ABS)
        sign = word & _SIGN
        sign >>= shift
        code |= sign
        out[i : i + _BLOCK] = code
    return out.reshape(bits.shape)


def _round_off(mag: U32, shift: np.uint32) -> U32:
    """``mag >> shift`` rounded to nearest, ties to even (cannot overflow: mag < 2**31)."""
    code = mag >> shift
    code &= np.uint32(1)
    code += mag
    code += np.uint32((1 << (int(shift) - 1)) - 1)
    code >>= shift
    return code


def _dl16_step(mag: U32) -> U32:
    code = _round_off(mag, _DL16_SHIFT)
    np.maximum(code, _DL16_REBIAS, out=code)
    code -= _DL16_REBIAS
    np.minimum(code, np.uint32(DL16_NAN), out=code)
    # Zero has the pattern of 2**-31: all that is above half of the least number becomes that one.
    np.maximum(code, mag > _DL16_HALF_LEAST, out=code)
    return code


def _encode_dl16(values: Array) -> Array:
    return _blocks(values, np.uint16, _dl16_step)


@cache
def _dl16_table() -> F32:
    """float32 of every dl16 pattern: a gather from it is faster than numpy's bit arithmetic."""
    bits = np.arange(1 << 16, dtype=np.uint32)
    mag = bits & np.uint32(0x7FFF)
    wide = (mag << _DL16_SHIFT) + (_DL16_REBIAS << _DL16_SHIFT)
    wide[mag == DL16_ZERO] = 0
    wide[mag == DL16_NAN] = _INF | np.uint32(1 << 22)
    return _frozen((wide | ((bits & np.uint32(0x8000)) << np.uint32(16))).view(np.float32))


def _decode_dl16(bits: Array) -> Array:
    return _dl16_table()[bits]


def _encode_f16(values: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return _float32(values).astype(np.float16).view(np.uint16)


@cache
def _f16_table() -> F32:
    return _frozen(np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32))


def _decode_f16(bits: Array) -> Array:
    return _f16_table()[bits]


def _bf16_step(mag: U32) -> U32:
    code = _round_off(mag, np.uint32(16))
    # Rounding a NaN could carry it out of the format or into infinity: it is cut and made quiet.
    np.copyto(code, mag >> np.uint32(16) | np.uint32(0x40), where=mag > _INF)
    return code


def _encode_bf16(values: Array) -> Array:
    return _blocks(values, np.uint16, _bf16_step)


def _decode_bf16(bits: Array) -> Array:
    wide = bits.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def _f8_step(mag: U32) -> U32:
    code = _round_off(mag, np.uint32(20))
    np.maximum(code, _F8_REBIAS, out=code)
    code -= _F8_REBIAS
    np.minimum(code, np.uint32(F8_MAX), out=code)
    small = mag < _F8_NORMAL
    aligned = (np.minimum(mag, _F8_NORMAL).view(np.float32) + _F8_ALIGN).view(np.uint32)
    np.copyto(code, aligned - _F8_ALIGN.view(np.uint32), where=small)
    np.copyto(code, np.uint32(F8_NAN), where=mag > _INF)
    return code


def _encode_f8(values: Array) -> Array:
    return _blocks(values, np.uint8, _f8_step)


@cache
def _f8_table() -> F32:
    bits = np.arange(1 << 8, dtype=np.uint32)
    mag = bits & np.uint32(0x7F)
    wide = ((mag << np.uint32(20)) + (_F8_REBIAS << np.uint32(20))).view(np.float32)
    wide = np.where(mag < 8, mag.astype(np.float32) * np.float32(2.0**-9), wide)
    wide[mag == F8_NAN] = np.float32(np.nan)
    return _frozen(
        (wide.view(np.uint32) | ((bits & np.uint32(0x80)) << np.uint32(24))).view(np.float32)
    )


def _decode_f8(bits: Array) -> Array:
    return _f8_table()[bits]


def _encode_f32(values: Array) -> Array:
    return _float32(values).view(np.uint32)


def _decode_f32(bits: Array) -> Array:
    return bits.view(np.float32)


def _whole(values: Array, low: int, high: int) -> NDArray[np.int32]:
    """int32 in ``low..high``: floats rounded half to even, all saturated, NaN 0."""
    if values.dtype == np.bool_:
        return values.astype(np.int32)
    if values.dtype.kind in "iu":
        return np.clip(values, low, high).astype(np.int32)
    rounded = np.rint(_float32(values))
    # float32 cannot hold 2**31 - 1; its neighbour 2**31 counts as too large and is never cast.
    inside = (rounded > np.float32(low)) & (rounded < np.float32(high))
    whole = np.where(inside, rounded, np.float32(0)).astype(np.int32)
    np.copyto(whole, np.int32(high), where=rounded >= np.float32(high))
    np.copyto(whole, np.int32(low), where=rounded <= np.float32(low))
    return whole


def _encode_i32(values: Array) -> Array:
    return _whole(values, -(2**31), 2**31 - 1).view(np.uint32)


def _decode_i32(bits: Array) -> Array:
    return bits.view(np.int32)


def _encode_i8(values: Array) -> Array:
    return _whole(values, -128, 127).astype(np.int8).view(np.uint8)


def _decode_i8(bits: Array) -> Array:
    return bits.view(np.int8).astype(np.int32)


def _encode_i4(values: Array) -> Array:
    if values.ndim == 0 or values.shape[-1] % 2:
        raise SimError(
            f"i4 keeps two elements in a byte; the last axis of shape {values.shape} is not even, "
            "pad it first"
        )
    nibbles = (_whole(values, -8, 7) & 15).astype(np.uint8)
    return nibbles[..., 0::2] | nibbles[..., 1::2] << np.uint8(4)


def _decode_i4(bits: Array) -> Array:
    if bits.ndim == 0:
        raise SimError(
            "i4 keeps two elements in a byte, so its bits are at least one axis; got a scalar"
        )
    pairs = np.stack([bits & np.uint8(15), bits >> np.uint8(4)], axis=-1).astype(np.int32)
    return ((pairs ^ 8) - 8).reshape(*bits.shape[:-1], bits.shape[-1] * 2)


def _frozen(table: F32) -> F32:
    table.flags.writeable = False
    return table


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("dl16", 1, 16, np.uint16, np.float32, _encode_dl16, _decode_dl16),
        Format("f16", 2, 16, np.uint16, np.float32, _encode_f16, _decode_f16),
        Format("bf16", 3, 16, np.uint16, np.float32, _encode_bf16, _decode_bf16),
        Format("f32", 4, 32, np.uint32, np.float32, _encode_f32, _decode_f32),
        Format("i32", 5, 32, np.uint32, np.int32, _encode_i32, _decode_i32),
        Format("f8e4m3", 6, 8, np.uint8, np.float32, _encode_f8, _decode_f8),
        Format("i8", 7, 8, np.uint8, np.int32, _encode_i8, _decode_i8),
        Format("i4", 8, 4, np.uint8, np.int32, _encode_i4, _decode_i4),
    )
}
