"""How the bits of each element format lie in model files."""

from __future__ import annotations

from typing import Any

import numpy as np

from spyrec.ir.types import DType

Array = np.ndarray[Any, np.dtype[Any]]

_STORED = {"bf16": "<u2", "f8e4m3": "u1", "i4": "u1", "bool": "u1"}


def stored_as(dtype: DType) -> np.dtype[Any]:
    """The numpy type to read a file's elements with; 4 bits lie two in a byte."""
    return np.dtype(_STORED.get(dtype.name, dtype.np_dtype.newbyteorder("<")))


def decode(flat: Array, dtype: DType, count: int) -> Array:
    """``count`` elements from what ``stored_as`` read, as host numbers (see ``DType.numpy``)."""
    match dtype.name:
        case "bf16":
            return (flat.astype(np.uint32) << 16).view(np.float32)
        case "f8e4m3":
            return np.asarray(np.take(_F8E4M3, flat))
        case "i4":
            nibbles = np.stack([flat & 15, flat >> 4], axis=1).reshape(-1)[:count].astype(np.int8)
            return np.where(nibbles > 7, nibbles - 16, nibbles).astype(np.int8)
        case "bool":
            return np.asarray(flat != 0)
        case _:
            return flat.astype(dtype.np_dtype, copy=False)


def _f8e4m3_table() -> Array:
    """All 256 values: sign, four exponent bits (bias 7), three of mantissa; no infinity, 0x7F and
    0xFF are NaN."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(
        exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0)
    )
    size[(code & 127) == 127] = np.nan
    return np.where(code < 128, size, -size).astype(np.float32)


_F8E4M3 = _f8e4m3_table()
