"""Sizes as expressions: both spellings, and text that is none."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spyrec.frontend.torch_symbols import Open, Unreadable, lone_symbol, size_of, value_of

S0 = "Symbol('s0', positive=True, integer=True)"
S1 = "Symbol('s1', integer=True)"
SYMBOLS = {"s0": 7, "s1": 3}

BOTH = [
    ("Integer(5)", "5", 5),
    (S0, "s0", 7),
    (f"Add({S0}, Integer(-1))", "s0 - 1", 6),
    (f"Mul(Integer(2), {S0}, {S1})", "2*s0*s1", 42),
    (f"Add(Mul(Integer(-1), {S0}), {S1})", "-s0 + s1", -4),
    (f"Pow({S0}, Integer(2))", "s0**2", 49),
    (f"FloorDiv({S0}, Integer(2))", "s0//2", 3),
    (f"FloorDiv(Mul(Integer(-1), {S0}), Integer(2))", "(-s0)//2", -4),
    (f"Mul({S0}, Pow(Integer(2), Integer(-1)))", "s0/2", 3.5),
    (f"Mul(Integer(2), {S0}, Pow(Integer(2), Integer(-1)))", "2*s0/2", 7),
    (f"Mul(Rational(1, 3), {S1})", "s1/3", 1),
    (f"Mod({S0}, Integer(4))", "s0 % 4", 3),
    (f"Max(Integer(1), {S0}, {S1})", "Max(1, s0, s1)", 7),
    (f"Min(Integer(1), {S0})", "Min(1, s0)", 1),
    (f"CeilDiv({S0}, Integer(2))", "CeilDiv(s0, 2)", 4),
    (f"ceiling(Mul(Rational(1, 2), {S0}))", "ceiling(s0/2)", 4),
    (f"floor(Mul(Rational(1, 2), {S0}))", "floor(s0/2)", 3),
    (f"TruncToInt(IntTrueDiv({S0}, Integer(2)))", "TruncToInt(IntTrueDiv(s0, 2))", 3),
    (f"CeilToInt(FloatTrueDiv({S0}, Integer(2)))", "CeilToInt(FloatTrueDiv(s0, 2))", 4),
    (f"FloorToInt(Mul(Float('0.5', precision=53), ToFloat({S0})))", "FloorToInt(0.5*s0)", 3),
    (f"Abs(Add({S1}, Integer(-5)))", "Abs(s1 - 5)", 2),
    (f"PythonMod(Integer(-1), {S1})", "PythonMod(-1, s1)", 2),
    (f"CleanDiv({S0}, Integer(7))", "CleanDiv(s0, 7)", 1),
    (f"PowByNatural(Integer(2), {S1})", "PowByNatural(2, s1)", 8),
    (f"Identity({S0})", "Identity(s0)", 7),
    (f"Equality({S0}, Integer(7))", "Eq(s0, 7)", True),
    (f"Unequality({S0}, Integer(7))", "Ne(s0, 7)", False),
    (f"StrictGreaterThan({S0}, {S1})", "s0 > s1", True),
    (f"GreaterThan({S1}, {S0})", "s1 >= s0", False),
    (f"StrictLessThan({S0}, {S1})", "s0 < s1", False),
    (f"LessThan({S0}, {S1})", "s0 <= s1", False),
    (f"And(Equality({S0}, Integer(7)), Not(Equality({S1}, Integer(7))))",
     "And(Eq(s0, 7), Not(Eq(s1, 7)))", True),
    (f"Or(Equality({S0}, Integer(8)), Equality({S1}, Integer(7)))", "Or(s0 == 8, s1 == 7)", False),
]  # fmt: skip


@pytest.mark.parametrize(("sympy", "plain", "value"), BOTH, ids=[b[1] for b in BOTH])
def test_both_spellings(sympy: str, plain: str, value: float) -> None:
    for text in (sympy, plain, f"  {plain} "):
        found = value_of(text, SYMBOLS)
        assert (found, type(found)) == (value, type(value))


def test_a_lone_symbol() -> None:
    assert [lone_symbol(t) for t in (S0, "s0", f"Mul(Integer(2), {S0})", "2", "s0 + 1")] == [
        "s0", "s0", "", "", "",
    ]  # fmt: skip


def test_a_symbol_without_value_is_named() -> None:
    for text in (f"Mul(Integer(2), {S0})", "2*s0"):
        with pytest.raises(Open, match=r"^s0$"):
            value_of(text, {})


@pytest.mark.parametrize("text", ["s0 - s1", "s0 // s1", "2**30"])
def test_sizes(text: str) -> None:
    assert size_of(text, SYMBOLS) == value_of(text, SYMBOLS)


@pytest.mark.parametrize(
    "text", ["s1 - s0", "s0/2", "s0 > 1", "2**31", "1e400", "Float('nan')", "Float('-inf')"]
)
def test_values_that_are_no_sizes(text: str) -> None:
    with pytest.raises(Unreadable):
        size_of(text, SYMBOLS)


POWERS = "9"
for _ in range(20):
    POWERS = f"Pow({POWERS}, 60)"

BAD = [
    "", "1 +", "s0.bit_length()", "__import__('os').system('true')", "open('x')", "lambda: 1",
    "[1, 2]", "(1, 2)", "{1: 2}", "s0[0]", "s0 if 1 else 2", "Add(*s0)", "Add(s0", "f'{s0}'",
    "s0 @ s1", "s0 << 900000", "1 < s0 < 3", "Symbol(s0)", "Symbol()", "Max()", "s0 := 3",
    "1/0", "s0 // 0", "s0 % (s1 - 3)", "Pow(0, -1)", "FloorDiv(s0, 0)", "Rational(1, 0)",
    "9**9**9", "Pow(2, 1000)", "2**-65", "1e308 ** 9", POWERS, "9" * 5000, "(-8)**0.5",
    "Integer('x')", "Float('x')", "'s0'", "None", "b'1'", "...", "1j", "\0", "\ud800",
    "(" * 500 + ")" * 500, "-" * 9000 + "1", "Not(" * 1500 + "1" + ")" * 1500, "1+" * 4000 + "1",
    "x" * 20_000,
]  # fmt: skip


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_text_that_is_no_expression(text: str) -> None:
    began = time.monotonic()
    with pytest.raises(Unreadable) as caught:
        value_of(text, SYMBOLS)
    assert time.monotonic() - began < 2
    assert len(str(caught.value)) < 300


@settings(max_examples=500, deadline=None)
@given(st.text("s01 ()+-*/%<>=,.'_PowMulAddIntegerSymbolMaxFloat9e", max_size=40))
def test_any_text_has_a_value_or_is_refused(text: str) -> None:
    try:
        assert isinstance(value_of(text, SYMBOLS), bool | int | float)
        size_of(text, SYMBOLS)
    except (Open, Unreadable):
        pass


@settings(max_examples=200, deadline=None)
@given(st.recursive(
    st.sampled_from(["s0", "s1"]) | st.integers(0, 9).map(str),
    lambda e: st.tuples(e, st.sampled_from(["+", "-", "*", "//", "%"]), e).map(
        lambda t: f"({t[0]} {t[1]} {t[2]})"), max_leaves=6,
))  # fmt: skip
def test_arithmetic_is_pythons(text: str) -> None:
    try:
        want = eval(text, dict(SYMBOLS))
    except ZeroDivisionError:
        with pytest.raises(Unreadable):
            value_of(text, SYMBOLS)
        return
    assert value_of(text, SYMBOLS) == want
