"""Constant arrays as IR text: element lists, splats, and compressed data named by its digest."""

from __future__ import annotations

import hashlib
import math
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable

import numpy as np

from .errors import SpyrecError
from .literals import finite_or_inf, is_float, nan_bits, nan_text, parse_int, with_point

LIST_MAX = 16  # elements an array may have to be written out one by one
ARRAY_DTYPES = (
    *("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)

_MAX_BYTES = 1 << 40  # of one array that text may ask for
_MAX_RANK = 32
_MAX_RATIO = 1040  # zlib cannot shrink further than about 1032 : 1
_LINE_CHARS = 96  # of base64 text


def plain(array: np.ndarray) -> np.ndarray:
    """The array as contiguous little-endian data; SpyrecError if its element type has no text."""
    if array.dtype.name not in ARRAY_DTYPES:
        raise SpyrecError(
            f"an array of {array.dtype.name} cannot be written as text; "
            f"the element types are {', '.join(ARRAY_DTYPES)}"
        )
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def bits_equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Same element type, shape and bits: a NaN equals itself, 0.0 differs from -0.0."""
    if a.dtype.name != b.dtype.name or a.shape != b.shape:
        return False
    return a is b or bool(np.array_equal(_bits(plain(a)), _bits(plain(b))))


def is_splat(array: np.ndarray) -> bool:
    """Whether all elements (at least one) have the same bits."""
    if array.size == 0:
        return False
    if not any(array.strides):
        return True
    bits = _bits(plain(array)).reshape(-1)
    return bool(bits[0] == bits[-1] and (bits == bits[0]).all())


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"<u{array.dtype.itemsize}")


def element_texts(array: np.ndarray) -> list[str]:
    """One text per element, in row-major order; each reads back to the same bits."""
    flat = plain(array).reshape(-1)
    if flat.dtype.kind == "b":
        return ["true" if e else "false" for e in flat.tolist()]
    if flat.dtype.kind != "f":
        return [str(e) for e in flat.tolist()]
    width = flat.dtype.itemsize
    bits = _bits(flat).tolist()
    return [
        nan_text(b, width) if np.isnan(e) else _shortest(e) for e, b in zip(flat, bits, strict=True)
    ]


def _shortest(element: np.floating) -> str:
    short = with_point(str(element))
    # The fewest digits of a narrow float may round twice on their way through float64.
    return short if type(element)(float(short)) == element else float.__repr__(float(element))


def parse_elements(texts: Iterable[str], shape: tuple[int, ...], dtype_name: str) -> np.ndarray:
    """A read-only array from element texts in row-major order.

    SpyrecError when the count differs from what the shape holds or an element is not in the range
    of the element type.
    """
    size_bytes(shape, dtype_name)
    dtype = np.dtype(dtype_name).newbyteorder("<")
    read = {"b": _read_bool, "f": _read_float_bits}.get(dtype.kind, _read_int)
    items = [read(text, dtype) for text in texts]
    if len(items) != math.prod(shape):
        raise SpyrecError(
            f"{len(items)} elements are given, but shape {list(shape)} holds {math.prod(shape)}"
        )
    stored = f"<u{dtype.itemsize}" if dtype.kind == "f" else dtype
    array = np.array(items, stored).view(dtype).reshape(shape)
    array.setflags(write=False)
    return array


def parse_splat(text: str, shape: tuple[int, ...], dtype_name: str) -> np.ndarray:
    """A read-only array that repeats one element without storing it more than once."""
    size_bytes(shape, dtype_name)
    return np.broadcast_to(parse_elements([text], (), dtype_name), shape)


def size_bytes(shape: tuple[int, ...], dtype_name: str) -> int:
    """Bytes of such an array; SpyrecError when text may not ask for one."""
    if dtype_name not in ARRAY_DTYPES:
        raise SpyrecError(
            f"{dtype_name} is no element type of an array; known: {', '.join(ARRAY_DTYPES)}"
        )
    size = math.prod(shape) * np.dtype(dtype_name).itemsize
    if min(shape, default=0) < 0 or len(shape) > _MAX_RANK or size > _MAX_BYTES:
        raise SpyrecError(
            f"an array of shape {list(shape)} is not possible; it has at most {_MAX_RANK} "
            f"dimensions, none negative, and {_MAX_BYTES} bytes"
        )
    return size


def _read_bool(text: str, dtype: np.dtype) -> bool:
    if text not in ("true", "false"):
        raise SpyrecError(f"{text} is not a bool; write true or false")
    return text == "true"


def _read_int(text: str, dtype: np.dtype) -> int:
    if text in ("true", "false") or is_float(text):
        raise SpyrecError(f"{text} is not a whole number, which {dtype.name} needs")
    number, limits = parse_int(text), np.iinfo(dtype)
    if not limits.min <= number <= limits.max:
        raise SpyrecError(f"{text} is not in {limits.min}..{limits.max}, the range of {dtype.name}")
    return number


def _read_float_bits(text: str, dtype: np.dtype) -> int:
    if text in ("true", "false"):
        raise SpyrecError(f"{text} is not a number, which {dtype.name} needs")
    if text.startswith("nan"):
        return nan_bits(text, dtype.itemsize)
    number = finite_or_inf(text, dtype.name)
    with np.errstate(over="ignore"):
        element = np.array(number, dtype)
    if np.isinf(element) and not math.isinf(number):
        raise SpyrecError(f"{text} is too large for {dtype.name}")
    return int(_bits(element))


def digest(array: np.ndarray) -> str:
    """``sha256:...`` over element type, shape and little-endian data."""
    data = plain(array)
    state = hashlib.sha256(f"{data.dtype.name} {data.shape}\n".encode())
    state.update(data.reshape(-1).view(np.uint8).data)
    return "sha256:" + state.hexdigest()


def pack(array: np.ndarray) -> str:
    """The data as zlib-compressed base64 in lines."""
    text = b64encode(zlib.compress(plain(array).tobytes(), 6)).decode("ascii")
    return "\n".join(text[i : i + _LINE_CHARS] for i in range(0, len(text), _LINE_CHARS))


def unpack(text: str, shape: tuple[int, ...], dtype_name: str) -> np.ndarray:
    """The inverse of :func:`pack`, read-only.

    The size is known from type and shape, and is checked against what the compressed bytes could
    possibly hold before a byte is inflated. SpyrecError when it does not fit or data is damaged.
    """
    size = size_bytes(shape, dtype_name)
    try:
        packed = b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise SpyrecError(f"the data is not base64 text: {error}") from None
    if size > _MAX_RATIO * len(packed):
        raise SpyrecError(
            f"{len(packed)} compressed bytes cannot hold the {size} bytes of "
            f"{dtype_name} of shape {list(shape)}"
        )
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(packed, size + 1)
    except zlib.error as error:
        raise SpyrecError(f"the data does not inflate: {error}") from None
    if len(data) != size or not inflater.eof:
        raise SpyrecError(
            f"the data does not inflate to the {size} bytes of {dtype_name} of shape {list(shape)}"
        )
    return np.frombuffer(data, np.dtype(dtype_name).newbyteorder("<")).reshape(shape)
