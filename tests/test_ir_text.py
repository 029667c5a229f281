"""The text form: everything printed reads back, and what cannot be read is explained."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spyrec.ir.core import Block, Loc, Module, Op, Value
from spyrec.ir.dense import ARRAY_DTYPES, bits_equal, digest, pack
from spyrec.ir.errors import ParseError, SpyrecError
from spyrec.ir.layout import Layout
from spyrec.ir.literals import quote
from spyrec.ir.parser import parse_module, parse_type
from spyrec.ir.printer import blobs, print_module, print_op
from spyrec.ir.same import difference, same
from spyrec.ir.types import DTYPES, Sym, TensorType, tensor

GOLDEN = """\
module "toy" {stage = "tensor"} {
  input %"a/b": tensor<1x3x224xf32>
  %c = constant {value = dense<2xfloat32, [1.0, 2.5]>} : tensor<2xf32>
  %y = add(%"a/b", %c) : tensor<batch[1..64]x128xf32> @ "node1", "node \\"2\\""
  %a, %b = split(%y) {axis = 1, sizes = (2, 3)} : tensor<bool>, tensor<0x4xi64, lx>
  %k = kernel(%a, %b) {kind = "contract", extra = (), one = (1,), to = type dl16} : tensor<4xf16> {
    (%x0: tensor<f32>, %w0: tensor<f32>):
    %r = matmul(%x0, %w0) : tensor<f32>
    store(%r, %y)
    yield %r
  }
  %t = if(%a) : tensor<4xf16> {
    ():
    yield %k
  } {
    ():
    %0 = neg(%k) : tensor<4xf16>
    yield %0
  }
  output "prob" = %t
}
"""


def test_golden_module_reads_and_prints_unchanged() -> None:
    module = parse_module(GOLDEN)
    assert print_module(module) == GOLDEN
    add = module.body.ops[1]
    assert add.loc == Loc(("node1", 'node "2"'))
    assert add.result.type == tensor((Sym("batch", 1, 64), 128), "f32")
    kernel = module.body.ops[3]
    attrs = {"kind": "contract", "extra": (), "one": (1,), "to": DTYPES["dl16"]}
    assert dict(kernel.attrs) == attrs
    assert kernel.regions[0].ops[1].operands[1] is add.result


def test_layout_and_space_are_part_of_the_type() -> None:
    layout = Layout.stick((4, 128), 16, 1)
    type_ = TensorType((4, 128), DTYPES["dl16"], layout, "lx")
    assert str(type_) == f"tensor<4x128xdl16, {layout}, lx>"
    assert parse_type(str(type_)) == type_


def test_comments_and_line_breaks_are_free() -> None:
    text = 'module "m" { // nothing else\ninput %x // "quoted"\n : tensor<f32>\noutput "y"=%x}'
    module = parse_module(text)
    assert module.output_names == ("y",) and module.body.results == module.body.args


def test_long_arrays_stand_in_a_section_at_the_end() -> None:
    array = np.arange(20, dtype=np.int32)
    module = _constants(array, array.copy(), np.full((5, 5), -0.0, np.float32))
    text = print_module(module)
    key = digest(array)
    assert text.count(f'resource "{key}"') == 2 and text.count(key) == 3
    assert "dense<5x5xfloat32, splat -0.0>" in text
    assert text.endswith(f'resources {{\n  "{key}" = <\n{pack(array)}>\n}}\n')
    assert same(parse_module(text), module)


def test_elided_arrays_need_blobs() -> None:
    module = _constants(np.arange(20, dtype=np.int32))
    text = print_module(module, "elide")
    assert list(blobs(module)) == [digest(np.arange(20, dtype=np.int32))]
    assert "resources" not in text
    assert same(parse_module(text, blobs(module)), module)
    with pytest.raises(ParseError, match="is elided and not in blobs; print it in full"):
        parse_module(text)
    wrong = {key: np.zeros(3, np.int32) for key in blobs(module)}
    with pytest.raises(ParseError, match=r"is int32 of shape \(3,\), but int32 of shape \(20,\)"):
        parse_module(text, wrong)


def test_nan_payloads_and_signed_zeros_survive() -> None:
    bits = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0x80000000, 0x7F800000], np.uint32)
    short, long = bits.view(np.float32), np.tile(bits, 7).view(np.float32)
    module = _constants(short, long, short.astype(np.float16))
    text = print_module(module)
    assert "[nan, nan(0xffc00000), nan(0x7f800001), -0.0, inf]" in text
    again = parse_module(text)
    for op, array in zip(again.body.ops, (short, long), strict=False):
        value = op.attrs["value"]
        assert isinstance(value, np.ndarray) and bits_equal(value, array)
    assert same(again, module)


def test_read_arrays_are_read_only_and_a_splat_takes_no_space() -> None:
    text = _with_attr("dense<1000x1000x1000xfloat32, splat 0.5>")
    value = parse_module(text).attrs["a"]
    assert isinstance(value, np.ndarray) and value.shape == (1000, 1000, 1000)
    assert value[-1, -1, -1] == 0.5 and not value.flags.writeable and not any(value.strides)


# --- random modules -------------------------------------------------------------------------

NAMES = st.text(max_size=6) | st.sampled_from(
    ["input", "yield", "a.b", "%", '"', "\\u{41}", "\ud800"]
)
BOUNDS = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted)
SYMS = st.builds(lambda n, b: Sym(n, *b), NAMES, BOUNDS)
TYPES = st.builds(
    TensorType,
    st.lists(st.integers(-1, 5) | SYMS, max_size=3).map(tuple),
    st.sampled_from(list(DTYPES.values())),
    st.none() | st.just(Layout.stick((4, 128), 16, 1, pad="-inf")),
    st.sampled_from([None, "hbm", "lx"]),
)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(ARRAY_DTYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=3)))
    size = int(np.prod(shape))
    if dtype.kind == "b":
        return np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool).reshape(
            shape
        )
    if draw(st.booleans()):
        return np.frombuffer(
            draw(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize)) * size, dtype
        ).reshape(shape)
    seed = draw(st.integers(0, 99))
    return np.frombuffer(np.random.default_rng(seed).bytes(size * dtype.itemsize), dtype).reshape(
        shape
    )


ATTRS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | NAMES | SYMS
    | st.sampled_from(list(DTYPES.values())) | arrays(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)  # fmt: skip
ATTR_MAPS = st.dictionaries(NAMES, ATTRS, max_size=3).map(MappingProxyType)
LOCS = st.lists(NAMES, max_size=2).map(lambda nodes: Loc(tuple(nodes)))


@st.composite
def modules(draw: st.DrawFn) -> Module:
    fresh = iter(draw(st.lists(NAMES, min_size=40, max_size=40, unique=True)))

    def values(most: int) -> tuple[Value, ...]:
        count = draw(st.integers(0, most))
        return tuple(Value(next(fresh), draw(TYPES)) for _ in range(count))

    def some(visible: list[Value]) -> tuple[Value, ...]:
        return tuple(draw(st.lists(st.sampled_from(visible), max_size=2))) if visible else ()

    def block(visible: list[Value], depth: int) -> Block:
        args = values(2)
        seen = [*visible, *args]
        ops = []
        for _ in range(draw(st.integers(0, 2))):
            operands = some(seen)
            regions = [
                block(seen, depth + 1) for _ in range(draw(st.integers(0, max(0, 2 - depth))))
            ]
            results = values(2)
            attrs, loc = draw(ATTR_MAPS), draw(LOCS)
            ops.append(Op(draw(NAMES), operands, results, attrs, tuple(regions), loc))
            seen += results
        return Block(args, tuple(ops), some(seen))

    body = block([], 0)
    outputs = tuple(draw(NAMES) for _ in body.results)
    return Module(draw(NAMES), body, outputs, draw(ATTR_MAPS))


@settings(max_examples=150, deadline=None)
@given(modules())
def test_random_modules_round_trip(module: Module) -> None:
    full = print_module(module)
    again = parse_module(full)
    assert difference(module, again) is None
    assert print_module(again) == full
    elided = parse_module(print_module(module, "elide"), blobs(module))
    assert difference(module, elided) is None


@settings(max_examples=200, deadline=None)
@given(arrays())
def test_random_arrays_round_trip(array: np.ndarray) -> None:
    again = parse_module(print_module(_constants(array))).body.ops[0].attrs["value"]
    assert isinstance(again, np.ndarray) and bits_equal(again, array)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_text_gives_a_parse_error_or_another_module(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(GOLDEN) - 1))
    cut = data.draw(st.integers(0, 3))
    text = GOLDEN[:at] + data.draw(st.text('"%(){}<>=,x1.\\\n', max_size=2)) + GOLDEN[at + cut :]
    try:
        module = parse_module(text)
    except ParseError as error:
        assert str(error).startswith("line ")
    else:
        assert same(parse_module(print_module(module)), module)


# --- differences ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"toy"', '"boy"', "the modules are called 'toy' and 'boy'"),
        ("axis = 1", "axis = 2", "attribute 'axis' of op 2 (split) of the module is 1 and 2"),
        ("axis = 1", "axis = 1.0", "attribute 'axis' of op 2 (split) of the module is 1 and 1.0"),
        ("axis = 1, ", "", "only one of the two has attribute 'axis' of op 2 (split)"),
        ('"node1", ', "", 'op 1 (add) of the module comes from node1, node "2" and from node "2"'),
        (" neg(", " abs(", "op 0 (neg) of region 1 of op 4 (if) of the module is neg and abs"),
        ("yield %0", "yield %k", "the results of region 1 of op 4 (if) of the module are %0 and"),
        ("(%a, %b) {", "(%a, %a) {", "the operands of op 3 (kernel) of the module are %b and %a"),
        ("    store(%r, %y)\n", "", "region 0 of op 3 (kernel) of the module has 2 and 1 ops"),
        ("neg(%k) : tensor<4xf16>", "neg(%k) : tensor<4xf32>",
         "the results of op 0 (neg) of region 1 of op 4 (if) of the module differ in the type of "),
        ('"prob"', '"odds"', "the outputs are called ('prob',) and ('odds',)"),
    ],
)  # fmt: skip
def test_difference_names_what_differs(old: str, new: str, sentence: str) -> None:
    assert GOLDEN.count(old) == 1
    a, b = parse_module(GOLDEN), parse_module(GOLDEN.replace(old, new))
    assert not same(a, b)
    assert str(difference(a, b)).startswith(sentence)


# --- errors ---------------------------------------------------------------------------------


def _error(text: str) -> str:
    with pytest.raises(ParseError) as caught:
        parse_module(text)
    return str(caught.value)


def test_a_syntax_error_shows_line_and_column() -> None:
    text = 'module "m" {\n  input %x: tensor<4xf32>\n  %y = neg(%x : tensor<4xf32>\n}\n'
    assert _error(text) == (
        "line 3, column 15: expected ')' or ',', got ':'\n"
        "    %y = neg(%x : tensor<4xf32>\n"
        "                ^"
    )


def test_a_character_of_no_token_is_shown() -> None:
    assert _error('module "m" {\n  input ?x: tensor<f32>\n}') == (
        "line 2, column 9: expected a %value, got '?'\n    input ?x: tensor<f32>\n          ^"
    )


def test_text_that_ends_early_points_at_its_end() -> None:
    message = _error('module "m" {\n  %x = neg(')
    assert message == (
        "line 2, column 12: expected ')' or a %value, got the end of the text\n"
        "    %x = neg(\n"
        "             ^"
    )


def test_a_long_line_is_cut_around_the_error() -> None:
    text = f'module "m" {{ %x = neg {{a = "{"z" * 500}", b = ?}} : tensor<f32> }}'
    _, line, mark = _error(text).split("\n")
    assert len(line) < 130 and line[mark.index("^")] == "?"


ONE_LINERS = [
    ("%y = neg(%x) : tensor<f32>",
     "column 10: no value %x has been defined so far; a value is defined before it is used"),
    ("%y = a : tensor<f32> %y = b : tensor<f32>",
     "column 22: %y is already defined in line 2; give it another name"),
    ("%y = if : tensor<f32> {(): %z = a : tensor<f32> yield %z} b(%z)",
     "column 61: no value %z is visible here; a value is defined before it is used"),
    ("%y, %z = a : tensor<f32>", "column 10: 2 results are named, but 1 types are given"),
    ("%y = a : tensor<4xf31>", "column 19: no element type is called 'f31'; known: f64, f32, "),
    ("%y = a : tensor<N[5..3]xf32>", "column 17: dimension N: the range 5..3 is empty"),
    ("%y = a : tensor<f32, cache>",
     "column 22: cache is no memory a tensor can live in; use hbm or lx"),
    ("%y = a : tensor<4xf32, [shape 4]>", "column 24: layout '[shape 4]' is not of the form"),
    ("a {k = 1, k = 2}", "column 11: attribute k is given twice"),
    ("a {k = type f31}", "column 13: no element type is called f31; known: f64, f32, "),
    ("a {k = 1e999}", "column 8: 1e999 is too large for float64"),
    ("a {k = nan(0x0)}", "column 8: nan(0x0) is not the bit pattern of a 64-bit NaN"),
    ('a {k = "\\q"}', 'column 8: the escape \\q does not exist; use \\\\, \\", \\n, \\t, \\r or '),
    ("a {k = " + "9" * 1001 + "}",
     "column 8: the integer 999999999999... has 1001 characters; at most 1000 are read"),
    ("a {k = " + "(" * 65 + ")" * 65 + "}", "column 4: attribute k is nested more than 64 deep"),
    ("a {k = dense<2xfloat32, [1.0]>}",
     "column 16: 1 elements are given, but shape [2] holds 2"),
    ("a {k = dense<1xint8, [200]>}", "column 16: 200 is not in -128..127, the range of int8"),
    ("a {k = dense<1xint8, [2.0]>}", "column 16: 2.0 is not a whole number, which int8 needs"),
    ("a {k = dense<1xbool, [1]>}", "column 16: 1 is not a bool; write true or false"),
    ("a {k = dense<1xfloat16, [true]>}", "column 16: true is not a number, which float16 needs"),
    ("a {k = dense<1xfloat16, [70000.0]>}", "column 16: 70000.0 is too large for float16"),
    ("a {k = dense<1xcomplex64, [1.0]>}",
     "column 16: complex64 is no element type of an array; known: bool, "),
    ("a {k = dense<-1xint8, []>}", "column 17: an array of shape [-1] is not possible; it has"),
    ('a {k = dense<20xint8, resource "sha256:00">}',
     'column 32: the text has no resource "sha256:00"; its data stands after the module'),
]  # fmt: skip


@pytest.mark.parametrize(("line", "sentence"), ONE_LINERS, ids=[s[1][:40] for s in ONE_LINERS])
def test_what_cannot_be_meant_is_explained(line: str, sentence: str) -> None:
    message = _error(f'module "m" {{\n{line}\n}}')
    assert message.startswith(f"line 2, {sentence}")
    assert message.endswith("^")


def test_an_element_type_without_its_word_is_told_how_it_is_written() -> None:
    message = _error('module "m" {\n%y = a {to = f32} : tensor<f32>\n}')
    assert "got 'f32'; an element type is written 'type f32'" in message
    assert "element type" not in _error('module "m" {\n%y = a {to = soon} : tensor<f32>\n}')


ZEROS = pack(np.zeros(4, np.int8))


@pytest.mark.parametrize(
    ("data", "size", "sentence"),
    [
        (ZEROS, 10**8, "12 compressed bytes cannot hold the 100000000 bytes of int8 of shape"),
        (ZEROS, 5, "the data does not inflate to the 5 bytes of int8 of shape [5]"),
        (ZEROS, 3, "the data does not inflate to the 3 bytes of int8 of shape [3]"),
        (ZEROS[:8], 4, "the data does not inflate to the 4 bytes of int8 of shape [4]"),
        ("AAAA", 4, "the data does not inflate: Error -3"),
        ("AAA", 4, "the data is not base64 text: "),
        (ZEROS, 4, 'the data of resource "sha256:0" does not have that digest'),
    ],
)
def test_damaged_resources_are_refused(data: str, size: int, sentence: str) -> None:
    text = _with_attr(f'dense<{size}xint8, resource "sha256:0">')
    assert sentence in _error(text + f'resources {{ "sha256:0" = <{data}> }}')


def test_what_has_no_text_is_refused_when_printing() -> None:
    with pytest.raises(SpyrecError, match="an array of complex64 cannot be written as text"):
        print_module(_constants(np.zeros(3, np.complex64)))
    with pytest.raises(SpyrecError, match="the attribute value 3 of type int64 has no text"):
        print_op(Op("a", (), (), {"k": np.int64(3)}))  # type: ignore[dict-item]
    deep: Any = ()
    for _ in range(64):
        deep = (deep,)
    with pytest.raises(SpyrecError, match="nested at most 64 deep"):
        print_op(Op("a", (), (), {"k": deep}))
    with pytest.raises(SpyrecError, match="module m has 1 output names for 0 outputs"):
        print_module(Module("m", Block((), (), ()), ("y",)))


def test_quoted_text_is_one_printable_line() -> None:
    assert quote('a"\\\n\x00\u2028é') == '"a\\"\\\\\\n\\u{0}\\u{2028}é"'


def _constants(*arrays_: np.ndarray) -> Module:
    ops = [
        Op("constant", (), (Value(f"c{i}", tensor(a.shape, "f32")),), {"value": a})
        for i, a in enumerate(arrays_)
    ]
    return Module("constants", Block((), tuple(ops), ()), ())


def _with_attr(text: str) -> str:
    return f'module "m" {{a = {text}}} {{}}\n'
