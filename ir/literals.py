"""Names, strings and numbers as IR text: each writer next to its reader."""

from __future__ import annotations

import math
import re
import struct

from .errors import SpyrecError

KEYWORDS = frozenset(
    {
        *("module", "input", "output", "yield", "resources", "resource", "elided", "splat"),
        *("true", "false", "none", "type", "nan", "inf"),
    }
)
MAX_DEPTH = 64  # of nested tuples and regions: what is printed must be read without deep recursion
MAX_INT_BITS = 3300  # reading longer decimals takes quadratic time
MAX_INT_CHARS = 1000

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_VALUE_NAME = re.compile(r"[A-Za-z0-9_.]+")
_ESCAPE = re.compile(r"\\(u\{[0-9a-f]{1,6}\}|.)", re.DOTALL)
_ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_UNESCAPED = {"\\": "\\", '"': '"', "n": "\n", "t": "\t", "r": "\r"}

# Per width of a float in bytes: bits of the mantissa, and the NaN that prints as plain ``nan``.
_MANTISSA = {2: 10, 4: 23, 8: 52}
_USUAL_NAN = {2: 0x7E00, 4: 0x7FC00000, 8: 0x7FF8000000000000}


def quote(text: str) -> str:
    """A quoted string on one line; what is not printable becomes an escape."""
    return '"' + "".join(map(_escape, text)) + '"'


def _escape(char: str) -> str:
    if char in _ESCAPED:
        return _ESCAPED[char]
    return char if char.isprintable() else f"\\u{{{ord(char):x}}}"


def unquote(text: str) -> str:
    """The inverse of :func:`quote`; SpyrecError for an escape that does not exist."""
    return _ESCAPE.sub(_unescape, text[1:-1]) if "\\" in text else text[1:-1]


def _unescape(match: re.Match[str]) -> str:
    body = match[1]
    if body in _UNESCAPED:
        return _UNESCAPED[body]
    if len(body) > 1 and int(body[2:-1], 16) < 0x110000:
        return chr(int(body[2:-1], 16))
    raise SpyrecError(
        f'the escape \\{body} does not exist; use \\\\, \\", \\n, \\t, \\r or \\u{{hex code point}}'
    )


def name_text(name: str) -> str:
    """An op or attribute name: bare when it is an identifier and no keyword, quoted otherwise."""
    return name if _NAME.fullmatch(name) and name not in KEYWORDS else quote(name)


def symbol_text(name: str) -> str:
    """The name of a symbolic dimension; keywords need no quotes there."""
    return name if _NAME.fullmatch(name) else quote(name)


def value_text(name: str) -> str:
    """``%name`` or ``%"any name"``."""
    return "%" + (name if _VALUE_NAME.fullmatch(name) else quote(name))


def bare(text: str) -> str:
    """The name that a bare or quoted name stands for."""
    return unquote(text) if text.startswith('"') else text


def int_text(number: int) -> str:
    """Decimal digits; SpyrecError beyond what is read back."""
    if number.bit_length() > MAX_INT_BITS:
        raise SpyrecError(
            f"an integer of {number.bit_length()} bits cannot be written; "
            f"at most {MAX_INT_BITS} bits are read back"
        )
    return int.__repr__(int(number))


def parse_int(text: str) -> int:
    """A decimal integer; SpyrecError when it is longer than MAX_INT_CHARS."""
    if len(text) > MAX_INT_CHARS:
        raise SpyrecError(
            f"the integer {text[:12]}... has {len(text)} characters; "
            f"at most {MAX_INT_CHARS} are read"
        )
    return int(text)


def float_text(number: float) -> str:
    """The shortest decimal that reads back to the same float64, NaN payloads in hex."""
    if math.isnan(number):
        (bits,) = struct.unpack("<Q", struct.pack("<d", number))
        return nan_text(bits, 8)
    return with_point(float.__repr__(number))


def parse_number(text: str) -> int | float:
    """An int, or a float if the text has a point, an exponent or is nan or inf."""
    if not is_float(text):
        return parse_int(text)
    if text.startswith("nan"):
        (number,) = struct.unpack("<d", struct.pack("<Q", nan_bits(text, 8)))
        return float(number)
    return finite_or_inf(text, "float64")


def finite_or_inf(text: str, dtype_name: str) -> float:
    """The float64 nearest to the text; SpyrecError if it overflows without saying inf."""
    number = float(text)
    if math.isinf(number) and "inf" not in text:
        raise SpyrecError(f"{text} is too large for {dtype_name}")
    return number


def is_float(text: str) -> bool:
    """Whether a number has a point or an exponent, or is inf or nan."""
    return any(c in text for c in ".eEn")


def with_point(text: str) -> str:
    """``5`` -> ``5.0``, so that a float never looks like an int."""
    return text if is_float(text) else text + ".0"


def nan_text(bits: int, width: int) -> str:
    """``nan``, or ``nan(0x...)`` when the ``width`` bytes are not the usual quiet NaN."""
    return "nan" if bits == _USUAL_NAN[width] else f"nan(0x{bits:x})"


def nan_bits(text: str, width: int) -> int:
    """The inverse of :func:`nan_text`; SpyrecError if the bits are no NaN of ``width`` bytes."""
    bits = _USUAL_NAN[width] if text == "nan" else int(text[len("nan(0x") : -1], 16)
    mantissa = _MANTISSA[width]
    exponent = ((1 << (8 * width - 1 - mantissa)) - 1) << mantissa
    if bits >> (8 * width) or bits & exponent != exponent or not bits & ((1 << mantissa) - 1):
        raise SpyrecError(f"{text} is not the bit pattern of a {8 * width}-bit NaN")
    return bits
