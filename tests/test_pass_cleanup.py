"""canonicalize, fold, cse, dce: what each does to small modules, and what it must leave alone."""

from __future__ import annotations

import numpy as np
import pytest

from spyrec.ir.core import Module
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import print_module
from spyrec.ir.types import DTYPES
from spyrec.ir.verifier import verify
from spyrec.passes.canonicalize import canonicalize
from spyrec.passes.cse import attr_key, merge_equal
from spyrec.passes.dce import remove_dead
from spyrec.passes.fold import fold_constants
from spyrec.passes.merge_moves import merge_moves
from spyrec.passes.rules_canonical import CANONICAL_RULES, widens


def module(body: str, *inputs: str, out: str = "y") -> Module:
    """A module from its op lines; each input is ``name: type``."""
    lines = [f"input %{i}" for i in inputs] + [body, f'output "y" = %{out}']
    made = parse_module('module "m" {\n' + "\n".join(lines) + "\n}")
    verify(made)
    return made


def body(made: Module) -> list[str]:
    """The op lines, then what the output is."""
    verify(made)
    lines = [line.strip() for line in print_module(made).splitlines()[1:-1]]
    return [line for line in lines if not line.startswith("input")]


def ops(made: Module) -> list[str]:
    verify(made)
    return [op.name for op in made.body.ops]


X = "x: tensor<2x3xf32>"


@pytest.mark.parametrize(
    "lines",
    [
        "%y = identity(%x) : tensor<2x3xf32>",
        "%y = cast(%x) {to = type f32} : tensor<2x3xf32>",
        "%a = cast(%x) {to = type f64} : tensor<2x3xf64>\n"
        "%y = cast(%a) {to = type f32} : tensor<2x3xf32>",
        "%a = transpose(%x) {perm = (1, 0)} : tensor<3x2xf32>\n"
        "%y = transpose(%a) {perm = (1, 0)} : tensor<2x3xf32>",
        "%a = reshape(%x) {shape = (6,)} : tensor<6xf32>\n"
        "%y = reshape(%a) {shape = (2, 3)} : tensor<2x3xf32>",
        "%a = neg(%x) : tensor<2x3xf32>\n%y = neg(%a) : tensor<2x3xf32>",
        "%y = slice(%x) {starts = (0, 0), sizes = (2, 3), steps = (1, 1)} : tensor<2x3xf32>",
        "%y = pad(%x) {lo = (0, 0), hi = (0, 0)} : tensor<2x3xf32>",
        "%y = tile(%x) {repeats = (1, 1)} : tensor<2x3xf32>",
        "%y = concat(%x) {axis = 0} : tensor<2x3xf32>",
        "%y = clip(%x) : tensor<2x3xf32>",
        "%a = slice(%x) {starts = (1, 0), sizes = (2, 3), steps = (-1, 1)} : tensor<2x3xf32>\n"
        "%y = slice(%a) {starts = (1, 0), sizes = (2, 3), steps = (-1, 1)} : tensor<2x3xf32>",
        "%c = constant {value = dense<float32, [1.0]>} : tensor<f32>\n"
        "%y = mul(%c, %x) : tensor<2x3xf32>",
        "%c = constant {value = dense<3xfloat32, [1.0, 1.0, 1.0]>} : tensor<3xf32>\n"
        "%y = div(%x, %c) : tensor<2x3xf32>",
        "%c = constant {value = dense<float32, [-0.0]>} : tensor<f32>\n"
        "%y = add(%x, %c) : tensor<2x3xf32>",
        "%c = constant {value = dense<float32, [0.0]>} : tensor<f32>\n"
        "%y = sub(%x, %c) : tensor<2x3xf32>",
        "%c = constant {value = dense<bool, [true]>} : tensor<bool>\n"
        "%a = exp(%x) : tensor<2x3xf32>\n"
        "%y = where(%c, %x, %a) : tensor<2x3xf32>",
    ],
)
def test_goes_away(lines: str) -> None:
    assert body(canonicalize(module(lines, X))) == ['output "y" = %x']


@pytest.mark.parametrize(
    "lines",
    [
        # x + 0 turns -0 into 0; 0 - x is no negation of 0; the result is larger than x
        "%c = constant {value = dense<float32, [0.0]>} : tensor<f32>\n"
        "%y = add(%x, %c) : tensor<2x3xf32>",
        "%c = constant {value = dense<float32, [0.0]>} : tensor<f32>\n"
        "%y = sub(%c, %x) : tensor<2x3xf32>",
        "%c = constant {value = dense<float32, [1.0]>} : tensor<f32>\n"
        "%y = div(%c, %x) : tensor<2x3xf32>",
        "%c = constant {value = dense<4x1x1xfloat32, splat 1.0>} : tensor<4x1x1xf32>\n"
        "%y = mul(%x, %c) : tensor<4x2x3xf32>",
        "%a = cast(%x) {to = type f16} : tensor<2x3xf16>\n"
        "%y = cast(%a) {to = type f32} : tensor<2x3xf32>",
        "%y = transpose(%x) {perm = (1, 0)} : tensor<3x2xf32>",
    ],
)
def test_stays(lines: str) -> None:
    before = module(lines, X)
    assert body(canonicalize(before)) == body(before)


def test_integers_may_add_a_zero() -> None:
    lines = (
        "%c = constant {value = dense<int64, [0]>} : tensor<i64>\n%y = add(%x, %c) : tensor<2xi64>"
    )
    before = module(lines, "x: tensor<2xi64>")
    assert ops(canonicalize(before)) == []


@pytest.mark.parametrize(
    ("lines", "after"),
    [
        (
            "%a = reshape(%x) {shape = (6,)} : tensor<6xf32>\n"
            "%y = reshape(%a) {shape = (3, 2)} : tensor<3x2xf32>",
            "%reshape = reshape(%x) {shape = (3, 2)} : tensor<3x2xf32>",
        ),
        (
            "%a = slice(%x) {starts = (0, 2), sizes = (2, 3), steps = (1, -1)} : tensor<2x3xf32>\n"
            "%y = slice(%a) {starts = (1, 0), sizes = (1, 2), steps = (1, 2)} : tensor<1x2xf32>",
            "%slice = slice(%x) {starts = (1, 2), sizes = (1, 2), steps = (1, -2)} : "
            "tensor<1x2xf32>",
        ),
        (
            "%a = broadcast_to(%x) {shape = (4, 2, 3)} : tensor<4x2x3xf32>\n"
            "%b = constant {value = dense<4x2x3xfloat32, splat 2.0>} : tensor<4x2x3xf32>\n"
            "%y = mul(%a, %b) : tensor<4x2x3xf32>",
            "%mul = mul(%x, %b) : tensor<4x2x3xf32>",
        ),
        (
            "%a = reshape(%x) {shape = (2, 1, 3)} : tensor<2x1x3xf32>\n"
            "%y = transpose(%a) {perm = (1, 0, 2)} : tensor<1x2x3xf32>",
            "%reshape_2 = reshape(%x) {shape = (1, 2, 3)} : tensor<1x2x3xf32>",
        ),
        (
            "%y = reduce_max(%x) {axes = (0,), keepdims = false} : tensor<3xf32>",
            "%reshape = reshape(%reduce_max) {shape = (3,)} : tensor<3xf32>",
        ),
    ],
)
def test_merges(lines: str, after: str) -> None:
    assert body(canonicalize(module(lines, X)))[-2] == after


def test_one_broadcast_stays_when_both_operands_were_broadcast() -> None:
    lines = (
        "%a = broadcast_to(%x) {shape = (4, 2, 3)} : tensor<4x2x3xf32>\n"
        "%y = add(%a, %a) : tensor<4x2x3xf32>"
    )
    assert ops(canonicalize(module(lines, X))) == ["broadcast_to", "add"]


@pytest.mark.parametrize(
    ("a", "b", "inside"),
    [
        ("i8", "i32", True), ("u8", "i8", False), ("i8", "u8", False), ("i8", "f16", True),
        ("i16", "f16", False), ("i32", "f32", False), ("i32", "f64", True), ("f16", "bf16", False),
        ("f16", "f32", True), ("dl16", "f16", False), ("dl16", "f32", True), ("bool", "u8", True),
        ("f32", "i32", False), ("i64", "f64", False), ("u8", "dl16", True), ("u16", "dl16", False),
    ],
)  # fmt: skip
def test_widens(a: str, b: str, inside: bool) -> None:
    assert widens(DTYPES[a], DTYPES[b]) is inside


def test_casts_merge_only_when_the_first_loses_nothing() -> None:
    def through(kinds: list[str]) -> list[str]:
        lines = [
            f"%{'y' if i == len(kinds) - 1 else f'v{i}'} = cast(%{'x' if i == 1 else f'v{i - 1}'}) "
            f"{{to = type {kind}}} : tensor<2x{kind}>"
            for i, kind in enumerate(kinds)
            if i
        ]
        return ops(canonicalize(module("\n".join(lines), f"x: tensor<2x{kinds[0]}>")))

    assert through(["i8", "f32", "i64"]) == ["cast"]
    assert through(["i16", "f32", "i8"]) == ["cast", "cast"], "saturates, where i16 to i8 wraps"
    assert through(["i16", "i32", "i8"]) == ["cast"]
    assert through(["f32", "f16", "f64"]) == ["cast", "cast"]
    assert through(["u8", "f16", "u8"]) == []


def test_canonical_rules_are_exact_and_named_once() -> None:
    names = [rule.name for rule in CANONICAL_RULES]
    assert len(set(names)) == len(names)
    assert {rule.exactness for rule in CANONICAL_RULES} == {"exact"}


def test_fold_computes_chains_and_shapes() -> None:
    lines = (
        "%s = shape_of(%x) : tensor<2xi64>\n"
        "%i = iota {shape = (2,), axis = 0, to = type i64} : tensor<2xi64>\n"
        "%a = add(%s, %i) : tensor<2xi64>\n"
        "%y = mul(%a, %a) : tensor<2xi64>"
    )
    assert body(fold_constants(module(lines, X))) == [
        "%c_4 = constant {value = dense<2xint64, [4, 16]>} : tensor<2xi64>",
        'output "y" = %c_4',
    ]


def test_fold_keeps_what_would_grow_beyond_the_limit() -> None:
    lines = (
        "%c = constant {value = dense<float32, [1.0]>} : tensor<f32>\n"
        "%y = broadcast_to(%c) {shape = (100, 100)} : tensor<100x100xf32>"
    )
    before = module(lines, X)
    assert ops(fold_constants(before, limit=9_999)) == ["constant", "broadcast_to"]
    assert ops(fold_constants(before, limit=10_000)) == ["constant"]


def test_fold_rearranges_weights_however_large() -> None:
    lines = (
        "%c = constant {value = dense<100x200xfloat32, splat 1.0>} : tensor<100x200xf32>\n"
        "%y = transpose(%c) {perm = (1, 0)} : tensor<200x100xf32>"
    )
    assert ops(fold_constants(module(lines, X), limit=1)) == ["constant"]


def test_fold_rounds_to_the_type() -> None:
    lines = (
        "%c = constant {value = dense<float32, [1.0]>} : tensor<dl16>\n"
        "%d = constant {value = dense<float32, [0.0009765625]>} : tensor<dl16>\n"
        "%y = add(%c, %d) : tensor<dl16>"
    )
    (op,) = fold_constants(module(lines, X)).body.ops
    assert op.attrs["value"] == np.float32(1.0)


def test_cse_merges_equal_constants_but_not_zeros_of_other_sign() -> None:
    lines = "\n".join(
        f"%c{i} = constant {{value = dense<2xfloat32, {text}>}} : tensor<2xf32>\n"
        f"%s{i} = add(%x, %c{i}) : tensor<2xf32>"
        for i, text in enumerate(("[0.0, nan]", "[0.0, nan]", "[-0.0, nan]"))
    )
    sums = "\n%t = mul(%s0, %s1) : tensor<2xf32>\n%y = mul(%t, %s2) : tensor<2xf32>"
    merged = remove_dead(merge_equal(module(lines + sums, "x: tensor<2xf32>")))
    assert ops(merged) == ["constant", "add", "constant", "add", "mul", "mul"]


def test_cse_tells_attributes_apart() -> None:
    lines = (
        "%a = softmax(%x) {axis = 0} : tensor<2x3xf32>\n"
        "%b = softmax(%x) {axis = 1} : tensor<2x3xf32>\n"
        "%y = add(%a, %b) : tensor<2x3xf32>"
    )
    assert ops(merge_equal(module(lines, X))) == ["softmax", "softmax", "add"]
    assert attr_key(1) != attr_key(1.0) != attr_key(True)
    assert attr_key(0.0) != attr_key(-0.0)
    assert attr_key((1, (2.0,))) == attr_key((1, (2.0,)))
    assert attr_key(np.zeros(4, np.int32)) != attr_key(np.zeros(4, np.float32))
    assert attr_key(np.zeros((2, 2))) != attr_key(np.zeros(4))


def test_cse_counts_a_default_as_the_same() -> None:
    lines = (
        "%a = gelu(%x) : tensor<2x3xf32>\n"
        '%b = gelu(%x) {approximate = "none"} : tensor<2x3xf32>\n'
        "%y = add(%a, %b) : tensor<2x3xf32>"
    )
    assert ops(merge_equal(module(lines, X))) == ["gelu", "add"]


def test_dce_keeps_what_regions_read() -> None:
    lines = (
        "%a = exp(%x) : tensor<2x3xf32>\n"
        "%b = neg(%x) : tensor<2x3xf32>\n"
        "%y = if(%c) : tensor<2x3xf32> "
        "{ () : %dead = sin(%b) : tensor<2x3xf32> %t = neg(%a) : tensor<2x3xf32> yield %t }\n"
        "{ () : yield %x }"
    )
    slim = remove_dead(module(lines, X, "c: tensor<bool>"))
    assert ops(slim) == ["exp", "if"]
    assert [op.name for op in slim.body.ops[1].regions[0].ops] == ["neg"]


def test_moves_that_show_only_padding_read_nothing() -> None:
    before = module(
        "%e = exp(%x) : tensor<2x3xf32>\n"
        "%p = pad(%e) {lo = (0, 0), hi = (2, 0), value = 1.5} : tensor<4x3xf32>\n"
        "%y = slice(%p) {starts = (2, 1), sizes = (2, 1), steps = (1, 1)} : tensor<2x1xf32>", X,
    )  # fmt: skip
    assert body(merge_moves(before)) == [
        "%c = constant {value = dense<2x1xfloat32, [1.5, 1.5]>} : tensor<2x1xf32>",
        'output "y" = %c',
    ]
