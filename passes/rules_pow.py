"""Decompositions of pow: products and roots for small constant exponents, else exp and log."""

from __future__ import annotations

from spyrec.ir.core import Op, Value

from .emit import Emit
from .rule import Rule

EXPONENT_MAX = 16


def whole_power(e: Emit, x: Value, n: int) -> Value:
    """x^n for n >= 1 by repeated squaring."""
    total: Value | None = None
    while n:
        if n & 1:
            total = x if total is None else e.mul(total, x)
        n >>= 1
        if n:
            x = e.mul(x, x)
    assert total is not None
    return total


def _constant_exponent(op: Op, e: Emit) -> float | None:
    """The exponent when it is one number and does not widen the base."""
    x, y = op.operands
    number = e.splat(y)
    if number is None or op.result.type.shape != x.type.shape:
        return None
    return float(number)


def _pow_whole(op: Op, e: Emit) -> Value | None:
    x, n = op.operands[0], _constant_exponent(op, e)
    if n is None or n != round(n) or abs(n) > EXPONENT_MAX:
        return None
    if n == 0:
        return e.broadcast(e.scalar(1.0, x), x.type.static_shape)
    if n > 0:
        return whole_power(e, x, int(n))
    if x.type.dtype.kind != "float":
        return None
    return e.op("reciprocal", whole_power(e, x, int(-n)))


def _pow_root(op: Op, e: Emit) -> Value | None:
    """Exponents that are multiples of 1/4: a whole power times roots."""
    x, y = op.operands[0], _constant_exponent(op, e)
    if y is None or y * 4 != round(y * 4) or abs(y) > EXPONENT_MAX or x.type.dtype.kind != "float":
        return None
    quarters = int(abs(y) * 4)
    if quarters % 4 == 0:
        return None
    if y < 0 and quarters in (1, 2, 3):
        root = e.op("rsqrt", x)
        factors = {1: (_root(e, root),), 2: (root,), 3: (root, _root(e, root))}[quarters]
        return _product(e, factors)
    root = e.op("sqrt", x)
    parts = [whole_power(e, x, quarters // 4)] if quarters >= 4 else []
    parts += [root] if quarters % 4 >= 2 else []
    parts += [_root(e, root)] if quarters % 2 else []
    total = _product(e, tuple(parts))
    return total if y > 0 else e.op("reciprocal", total)


def _root(e: Emit, x: Value) -> Value:
    return e.op("sqrt", x)


def _product(e: Emit, parts: tuple[Value, ...]) -> Value:
    total = parts[0]
    for part in parts[1:]:
        total = e.mul(total, part)
    return total


def _pow_general(op: Op, e: Emit) -> Value | None:
    x, y = op.operands
    if x.type.dtype.kind != "float":
        return None
    y = e.cast(y, x.type.dtype)
    known = e.known(y)
    magnitude = e.op("exp", e.op("mul", y, e.op("log", e.op("abs", x))))
    if known is None or bool((known == 0).any()):
        magnitude = e.where(e.test("eq", y, 0.0), 1.0, magnitude)
    whole = e.test("eq", e.op("floor", y), y)
    odd = e.test("eq", e.op("abs", e.op("mod", y, e.scalar(2.0, y), fmod=True)), 1.0)
    signed = e.where(odd, e.op("neg", magnitude), magnitude)
    negative = e.where(whole, signed, float("nan"))
    return e.where(e.test("lt", x, 0.0), negative, magnitude)


POW_RULES = (
    Rule("pow-whole", "pow", _pow_whole, "rounding", "x^n by repeated squaring, |n| <= 16."),
    Rule("pow-root", "pow", _pow_root, "rounding",
         "x^(n/4) as a product of x, sqrt(x), sqrt(sqrt(x)); x^-1/2 is rsqrt; finite x."),
    Rule("pow-general", "pow", _pow_general, "approximation",
         "x^y = e^(y log|x|), negated for odd y and x < 0, NaN for broken y and x < 0; the "
         "relative error is that of exp times |y log|x||."),
)  # fmt: skip
