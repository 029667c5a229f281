"""Between which numbers the elements of a tensor lie, as far as its ops tell."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from spyrec.ir.core import Op, Value
from spyrec.ir.rounding import int_range
from spyrec.ir.types import DType

Array = np.ndarray[Any, Any]
Range = tuple[float, float]
Maker = Callable[[Value], Op | None]

DEPTH = 64  # ops behind a value that are looked at
TRUTH = frozenset((
    "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "isnan", "isinf",
))  # fmt: skip
SAME = frozenset((
    "identity", "reshape", "transpose", "broadcast_to", "slice", "reverse", "gather", "reduce_max",
    "reduce_min",
))  # fmt: skip
ROUNDED: dict[str, Callable[[float], float]] = {
    "floor": math.floor, "ceil": math.ceil, "round": round
}  # fmt: skip


def bounds(v: Value, maker: Maker) -> Range:
    """Lowest and highest element; ``maker``: the op that makes a value, None when it is unknown.
    Infinite where nothing is known of a float."""
    return _Bounds(maker).of(v, DEPTH)


def from_end(v: Value, maker: Maker) -> int | None:
    """n where ``v`` is i < 0 ? i + n : i, an index that counts from the end when negative."""
    choice = maker(v)
    if choice is None or choice.name != "where":
        return None
    test, moved = maker(choice.operands[0]), maker(choice.operands[1])
    if test is None or moved is None or test.name != "lt" or moved.name != "add":
        return None
    index = choice.operands[2]
    if test.operands[0] is not index or moved.operands[0] is not index:
        return None
    zero, n = (_array(maker(op.operands[1])) for op in (test, moved))
    if zero is None or n is None or zero.any() or n.size != 1:
        return None
    return int(n.reshape(-1)[0])


def never_negative(v: Value, maker: Maker) -> bool:
    """Is a valid index ``v`` known to be 0 or more?"""
    return _Bounds(maker, indices=True).of(v, DEPTH)[0] >= 0


class _Bounds:
    """``indices``: i < 0 ? i + n : i is taken to be 0..n-1, as it is of every valid index."""

    def __init__(self, maker: Maker, indices: bool = False) -> None:
        self.maker = maker
        self.indices = indices
        self.found: dict[Value, Range] = {}

    def of(self, v: Value, depth: int) -> Range:
        if v not in self.found:
            op = self.maker(v)
            low, high = any_of(v.type.dtype)
            if op is not None and depth > 0:
                a, b = self._made(op, depth - 1)
                wraps = v.type.dtype.kind == "int" and not (low <= a and b <= high)
                low, high = (low, high) if wraps or math.isnan(a + b) else (a, b)
            self.found[v] = low, high
        return self.found[v]

    def _made(self, op: Op, depth: int) -> Range:
        n = from_end(op.results[0], self.maker) if self.indices and op.name == "where" else None
        if n is not None:
            return 0, n - 1
        array = _array(op)
        if array is not None:
            return (float(array.min()), float(array.max())) if array.size else (0, 0)
        if op.name in TRUTH:
            return 0, 1
        ranges = [self.of(v, depth) for v in op.operands]
        unknown = any_of(op.results[0].type.dtype)
        match op.name:
            case "cast":
                return self._cast(op, ranges[0])
            case "pad" if op.attrs["mode"] == "constant":
                return _union(ranges[0], (float(op.attrs["value"]),) * 2)  # type: ignore[arg-type]
            case "concat":
                return _union(*ranges)
            case "where":
                return _union(*ranges[1:])
            case name if name in SAME:
                return ranges[0]
            case name if name in ROUNDED and _finite(ranges[0]):
                return ROUNDED[name](ranges[0][0]), ROUNDED[name](ranges[0][1])
            case _:
                return _arithmetic(op, ranges) or unknown

    def _cast(self, op: Op, source: Range) -> Range:
        """A float stops at the ends of an integer type; what wraps is seen by ``of``."""
        to = op.results[0].type.dtype
        if to.kind == "bool":
            return 0, 1
        if op.operands[0].type.dtype.kind != "float" or to.kind != "int":
            return source
        if not _finite(source):
            return any_of(to)
        low, high = int_range(to)
        a, b = (min(max(math.trunc(x), low), high) for x in source)
        return a, b


def any_of(kind: DType) -> Range:
    """The range of an element type."""
    if kind.kind == "int":
        return int_range(kind)
    return (0, 1) if kind.kind == "bool" else (-math.inf, math.inf)


def _arithmetic(op: Op, ranges: list[Range]) -> Range | None:
    match op.name, ranges:
        case "neg", [(a, b)]:
            return -b, -a
        case "abs", [(a, b)]:
            return max(a, -b, 0), max(-a, b)
        case "add", [(a, b), (c, d)]:
            return a + c, b + d
        case "sub", [(a, b), (c, d)]:
            return a - d, b - c
        case "mul", [x, y] if _finite(x) and _finite(y):
            ends = [a * b for a, b in product(x, y)]
            return min(ends), max(ends)
        case "max", [(a, b), (c, d)]:
            return max(a, c), max(b, d)
        case "min", [(a, b), (c, d)]:
            return min(a, c), min(b, d)
        case "mod", [_, (c, d)] if c > 0 and not op.attrs.get("fmod", False):
            return 0, d
        case "div", [(a, b), (c, _)] if a >= 0 and c >= 1:
            return 0, b
        case "reduce_sum", [(a, b)]:
            n = op.operands[0].type.size // max(op.results[0].type.size, 1)
            return n * a, n * b
        case _:
            return None


def _union(*ranges: Range) -> Range:
    return min(a for a, _ in ranges), max(b for _, b in ranges)


def _finite(x: Range) -> bool:
    return math.isfinite(x[0]) and math.isfinite(x[1])


def _array(op: Op | None) -> Array | None:
    """What a constant holds."""
    return np.asarray(op.attrs["value"]) if op is not None and op.name == "constant" else None
