"""Sizes as expressions over symbols, as an exported graph writes them, and their values.

Two spellings occur: sympy's constructors ("Mul(Integer(2), Symbol('s0', integer=True))") and plain
arithmetic ("2*s0"). Both are read as Python syntax of which only the parts below mean anything.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

Number = Any  # int, Fraction, float or bool

MAX_TEXT = 10_000
MAX_POWER = 64
MAX_BITS = 4096  # of a number on the way
MAX_SHOWN = 80  # characters of a text in a message
MAX_SIZE = 2**31 - 1


class Open(Exception):
    """The expression needs a symbol that has no value; the message is its name."""


class Unreadable(Exception):
    """The text is no expression that is understood."""


def _power(base: Number, exponent: Number) -> Number:
    bits = base.bit_length() if isinstance(base, int) else 1
    if abs(exponent) > MAX_POWER or bits * abs(exponent) > MAX_BITS:
        raise Unreadable("a power that is too large")
    if isinstance(base, int) and exponent == -1:
        return Fraction(1, base)
    return base**exponent


def _ceil_div(a: Any, b: Any) -> int:
    return -int(-a // b)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Add": lambda *terms: sum(terms),
    "Mul": lambda *factors: math.prod(factors),
    "Pow": _power,
    "Max": max,
    "Min": min,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": _ceil_div,
    "CeilToInt": math.ceil,
    "FloorToInt": math.floor,
    "TruncToInt": math.trunc,
    "floor": math.floor,
    "ceiling": math.ceil,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "IntTrueDiv": lambda a, b: a / b,
    "FloatTrueDiv": lambda a, b: a / b,
    "PowByNatural": _power,
    "Abs": abs,
    "ToFloat": float,
    "Integer": int,
    "Rational": Fraction,
    "Float": lambda text, *_: float(text),
    "Equality": operator.eq, "Eq": operator.eq,
    "Unequality": operator.ne, "Ne": operator.ne,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "And": lambda *terms: all(terms),
    "Or": lambda *terms: any(terms),
    "Not": operator.not_,
    "Identity": lambda x: x,
}  # fmt: skip

OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: _power,
    ast.Div: lambda a, b: Fraction(a) / Fraction(b), ast.USub: operator.neg, ast.Not: operator.not_,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


def lone_symbol(text: str) -> str:
    """The symbol's name when the expression is nothing else, else ""."""
    node = _parsed(text)
    return _symbol(node) or ""


def value_of(text: str, symbols: Mapping[str, int]) -> int | float | bool:
    """The value of an expression. Open when it needs a symbol without value; Unreadable when the
    text is not understood, or divides by zero."""
    try:
        found = _value(_parsed(text), symbols)
        if isinstance(found, Fraction):
            found = int(found) if found.denominator == 1 else float(found)
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise Unreadable(f"{_shown(text)} ({error})") from None
    if not isinstance(found, bool | int | float):
        raise Unreadable(f"{_shown(text)} (it is no real number)")
    return found


def size_of(text: str, symbols: Mapping[str, int]) -> int:
    """The value of an expression that is a size; raises as ``value_of``, and Unreadable when it is
    none."""
    found = value_of(text, symbols)
    if isinstance(found, bool) or not 0 <= found <= MAX_SIZE or found != int(found):
        raise Unreadable(f"{_shown(text)} (it is {found}, no size)")
    return int(found)


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "...")


def _parsed(text: str) -> ast.expr:
    if len(text) > MAX_TEXT:
        raise Unreadable(f"an expression of {len(text)} characters")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Unreadable(_shown(text)) from None


def _symbol(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name)), *_]):
            return name
    return None


def _value(node: ast.expr, symbols: Mapping[str, int]) -> Number:
    name = _symbol(node)
    if name is not None:
        if name not in symbols:
            raise Open(name)
        return symbols[name]
    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            return number
        case ast.Constant(value=str(text)):  # of Float('0.5')
            return float(text)
        case ast.Call(func=ast.Name(id=called), args=args) if called in FUNCTIONS:
            return FUNCTIONS[called](*(_value(a, symbols) for a in args))
        case ast.BinOp(left=a, op=op, right=b) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(a, symbols), _value(b, symbols))
        case ast.UnaryOp(op=op, operand=a) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(a, symbols))
        case ast.Compare(left=a, ops=[op], comparators=[b]) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(a, symbols), _value(b, symbols))
    raise Unreadable(_shown(ast.unparse(node)))
