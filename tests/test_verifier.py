"""Each rule of the verifier: a module that breaks just it, and the sentence that says so."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spyrec.ir.core import Block, Loc, Module, Op, Value
from spyrec.ir.errors import VerifyError
from spyrec.ir.layout import Layout
from spyrec.ir.ops import OPS
from spyrec.ir.parser import parse_module
from spyrec.ir.rules import DEVICE_TYPES, RULES, STAGES
from spyrec.ir.types import DTYPES, tensor
from spyrec.ir.verifier import problems, verify

GOOD = """
module "good" {stage = "tensor"} {
  input %x: tensor<batch[1..8]x4xf32>
  %c = constant {value = dense<4xfloat32, [0.0, 1.0, 2.0, 3.0]>} : tensor<4xf32>
  %y = add(%x, %c) : tensor<batch[1..8]x4xf32> @ "Add_1"
  %on = constant {value = dense<bool, [true]>} : tensor<bool>
  %z = if(%on) : tensor<batch[1..8]x4xf32> {
    ():
    %n = neg(%y) : tensor<batch[1..8]x4xf32>
    yield %n
  } {
    ():
    yield %x
  }
  output "z" = %z
}
"""

MAPS = "(((0, (1, 0)), (0, (0, 1))),)"
DIMS = 'dims = (("d0", 4), ("d1", 64))'
ATTRS = f'kind = "vec", name = "k0", {DIMS}, maps = {MAPS}, out_maps = {MAPS}'
DEVICE = f"""
module "dev" {{stage = "device"}} {{
  input %x: tensor<4x64xdl16>
  %y = kernel(%x) {{{ATTRS}}} : tensor<4x64xdl16> @ "Relu_2" {{
    (%a: tensor<4x64xdl16>):
    %r = relu(%a) : tensor<4x64xdl16>
    yield %r
  }}
  output "y" = %y
}}
"""


def _broken(text: str, rules: set[int]) -> str:
    module = parse_module(text)
    assert {p.rule for p in problems(module)} == rules
    with pytest.raises(VerifyError) as caught:
        verify(module)
    return str(caught.value)


@pytest.mark.parametrize("text", [GOOD, DEVICE])
def test_good_modules_pass(text: str) -> None:
    module = parse_module(text)
    verify(module)
    verify(module, module.stage)


def test_all_problems_stand_under_the_text_of_their_op() -> None:
    text = GOOD.replace("%y = add(%x, %c) : tensor<batch[1..8]x4", "%y = add(%x, %c) : tensor<8x4")
    text = text.replace(
        "%n = neg(%y) : tensor<batch[1..8]x4xf32>", '%n = wiggle(%y) : tensor<4xf32> @ "W"'
    )
    assert _broken(text, {4, 6, 7}) == (
        'module "good" breaks rules of the tensor stage:\n'
        '  %y = add(%x, %c) : tensor<8x4xf32> @ "Add_1"\n'
        "  ^ rule 7: expected %y of type tensor<batch[1..8]x4xf32>, got tensor<8x4xf32> "
        "(from Add_1)\n"
        "  %z = if(%on) : tensor<batch[1..8]x4xf32>\n"
        "  ^ rule 6: if: expected results of the else region, as of the then region, of types "
        "[4] f32; got [batch[1..8], 4] f32 (from unknown)\n"
        '  %n = wiggle(%y) : tensor<4xf32> @ "W"\n'
        "  ^ rule 4: no op is called wiggle; spyrec ops lists all (from W)"
    )


def test_rule_1_stage() -> None:
    module = parse_module(GOOD)
    with pytest.raises(VerifyError) as caught:
        verify(module, "tile")
    assert "rule 1: expected a module at the tile stage, got one at the tensor stage" in str(
        caught.value
    )
    message = _broken(GOOD.replace('stage = "tensor"', 'stage = "attic"'), {1})
    assert "rule 1: attic is no stage; the stages are tensor, device, tile" in message
    with pytest.raises(VerifyError, match="rule 1: attic was asked for, which is no stage"):
        verify(module, "attic")


def test_rule_2_names() -> None:
    x, y = Value("x", tensor((4,), "f32")), Value("x", tensor((4,), "f32"))
    op = Op("neg", (x,), (y,), loc=Loc(("Neg_0",)))
    module = Module("m", Block((x,), (op,), (y,)), ("y",))
    assert [(p.rule, p.line, p.sentence) for p in problems(module)] == [
        (
            2,
            '%x = neg(%x) : tensor<4xf32> @ "Neg_0"',
            "%x is defined 2 times; give each value its own name (from Neg_0)",
        )
    ]


def test_rule_3_order() -> None:
    module = parse_module(GOOD)
    swapped = (module.body.ops[1], module.body.ops[0], *module.body.ops[2:])
    found = problems(replace(module, body=replace(module.body, ops=swapped)))
    assert [(p.rule, p.sentence) for p in found] == [
        (3, "operand 1, %c, is not defined before this op (from Add_1)")
    ]


def test_rule_3_regions_and_outputs() -> None:
    type_ = tensor((), "f32")
    x, inner, stray = (Value(n, type_) for n in ("x", "inner", "stray"))
    on = Value("on", tensor((), "bool"))
    inside = Block((), (Op("neg", (x,), (inner,)),), (inner,))
    branch = Op("if", (on,), (Value("r", type_),), {}, (inside, Block((), (), (stray,))))
    late = Op("neg", (inner,), (Value("n", type_),))
    module = Module("m", Block((x, on), (branch, late), (stray,)), ("out",))
    assert [(p.rule, p.line, p.sentence) for p in problems(module)] == [
        (3, "%r = if(%on) : tensor<f32>",
         "region 1 yields %stray, which it does not see (from unknown)"),
        (3, "%n = neg(%inner) : tensor<f32>",
         "operand 0, %inner, is not defined before this op (from unknown)"),
        (3, 'output "out" = %stray', "%stray is not defined in the module's block"),
    ]  # fmt: skip


def test_rule_4_unknown_op() -> None:
    message = _broken(GOOD.replace("add(%x, %c)", "ad(%x, %c)"), {4})
    assert message.endswith(
        "rule 4: no op is called ad; did you mean pad? spyrec ops lists all (from Add_1)"
    )


def test_rule_5_attributes_have_a_text() -> None:
    module = parse_module(GOOD)
    odd = module.body.ops[1].with_attrs(axis=np.int64(3))  # type: ignore[arg-type]
    ops = (module.body.ops[0], odd, *module.body.ops[2:])
    found = problems(replace(module, body=replace(module.body, ops=ops)))
    assert {p.rule for p in found} == {5, 6}
    assert found[0].line == '%y = add(%x, %c) : tensor<batch[1..8]x4xf32> @ "Add_1"'
    assert found[0].sentence.startswith("the attribute value 3 of type int64 has no text")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("add(%x, %c)", "add(%x)", "rule 6: add: expected 2 operands (x, y), got 1 (from Add_1)"),
        ("add(%x, %c)", "add(%x, %c) {axis = 1}", "rule 6: add: attribute axis is unknown"),
        ("add(%x, %c)", "concat(%x, %x)", "rule 6: concat: attribute axis (int) is required"),
        ("if(%on) :", "if(%on, %on) :", "rule 6: if: expected 1 operands (cond), got 2"),
    ],
)
def test_rule_6_operands_and_attributes(old: str, new: str, sentence: str) -> None:
    assert sentence in _broken(GOOD.replace(old, new), {6})


def test_rule_7_result_count() -> None:
    text = GOOD.replace("%y = add(%x, %c) : ", "%y, %w = add(%x, %c) : tensor<batch[1..8]x4xf32>, ")
    assert "rule 7: expected 1 results, got 2 (from Add_1)" in _broken(text, {7})


def test_rule_7_bounds_of_a_symbol_belong_to_the_type() -> None:
    text = GOOD.replace("add(%x, %c) : tensor<batch[1..8]", "add(%x, %c) : tensor<batch[1..9]")
    message = _broken(text, {7, 11})
    assert (
        "rule 11: %y has the dimension batch[1..9], but the first batch is batch[1..8]" in message
    )


def test_rule_8_outputs() -> None:
    text = GOOD.replace('output "z" = %z', 'output "z" = %z\n output "z" = %y')
    assert '  output "z" = %y\n  ^ rule 8: two outputs are called "z"; rename one' in _broken(
        text, {8}
    )
    module = replace(parse_module(GOOD), output_names=("z", "q"))
    with pytest.raises(VerifyError) as caught:
        verify(module)
    assert str(caught.value) == (
        'module "good" breaks rules of the tensor stage:\n'
        '  module "good"\n'
        "  ^ rule 8: expected a name for each output, got 2 names for 1 outputs"
    )


def test_rule_9_legality() -> None:
    text = DEVICE.replace('output "y" = %y', '%z = relu(%y) : tensor<4x64xdl16>\n output "y" = %z')
    assert "rule 9: relu may not stand at the device stage, only at: tensor" in _broken(text, {9})
    message = _broken(DEVICE.replace('"device"', '"tensor"'), {9})
    assert "rule 9: kernel may not stand at the tensor stage, only at: device, tile" in message
    message = _broken(DEVICE.replace("relu(%a)", "relayout(%a)"), {9})
    assert "rule 9: relayout may not stand in a region at the device stage" in message


@pytest.mark.parametrize(
    ("array", "type_", "sentence"),
    [
        (
            "4xfloat32, [0.0, 1.0, 2.0, 1.001]",
            "4xdl16",
            "1.001 is no value of dl16; round the array",
        ),
        ("1xfloat32, [256.5]", "1xbf16", "256.5 is no value of bf16; round the array first"),
        ("2xint8, [-8, 8]", "2xi4", "8 is no value of i4; round the array first"),
        ("99x99xfloat32, splat 1e+10", "99x99xf8e4m3", "1e+10 is no value of f8e4m3; round"),
    ],
)
def test_rule_10_constants(array: str, type_: str, sentence: str) -> None:
    text = f'module "m" {{ %c = constant {{value = dense<{array}>}} : tensor<{type_}> }}'
    assert f"rule 10: {sentence}" in _broken(text, {10})


def test_rule_10_lets_through_what_fits() -> None:
    text = """module "m" {
      %a = constant {value = dense<3xfloat32, [nan, -0.0, 1.5]>} : tensor<3xdl16>
      %b = constant {value = dense<2xint8, [-8, 7]>} : tensor<2xi4>
      %c = constant {value = dense<2xuint64, [0, 18446744073709551615]>} : tensor<2xu64>
      %d = constant {value = dense<0xfloat32, []>} : tensor<0xbf16>
      %e = constant {value = dense<2xfloat64, [inf, 1e300]>} : tensor<2xf64>
    }"""
    verify(parse_module(text))
    message = _broken(text.replace("tensor<2xf64>", "tensor<3xf64>"), {6})
    assert "constant: expected an array of" in message


def test_rule_11_negative_dimensions() -> None:
    text = 'module "m" { input %x: tensor<-3xf32> }'
    assert _broken(text, {11}) == (
        'module "m" breaks rules of the tensor stage:\n'
        "  input %x: tensor<-3xf32>\n"
        "  ^ rule 11: %x has the negative dimension -3"
    )


def test_rule_12_no_layouts_at_the_tensor_stage() -> None:
    message = _broken('module "m" { input %x: tensor<3xf32, lx> }', {12})
    assert "rule 12: %x has a layout or a space; passes after fusion give it" in message


def test_rule_13_device_types() -> None:
    message = _broken(DEVICE.replace("dl16", "f64"), {13})
    assert (
        "rule 13: %x is f64, which the device does not have; cast it to one of "
        f"{', '.join(DEVICE_TYPES)} (from Relu_2)" in message
    )


def test_rule_14_and_15_layouts() -> None:
    text = DEVICE.replace('stage = "device"', 'stage = "device", laid_out = true')
    message = _broken(text, {14})
    for name in "xy":
        assert f"rule 14: %{name} has no layout in a module that is laid out" in message
    layout = Layout.stick((4, 64), 16, 1)
    laid = text.replace("input %x: tensor<4x64xdl16", f"input %x: tensor<4x64xdl16, {layout}")
    laid = laid.replace("} : tensor<4x64xdl16", f"}} : tensor<4x64xdl16, {layout}")
    verify(parse_module(laid))
    other = laid.replace(
        f"input %x: tensor<4x64xdl16, {layout}",
        f"input %x: tensor<4x64xdl16, {Layout.stick((4, 128), 16, 1)}",
    )
    assert (
        "rule 15: expected a layout of shape [4, 64] and 16 bits for %x, "
        "got shape [4, 128] and 16 bits" in _broken(other, {15})
    )


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('("d0", 4)', '("d0", -4)',
         "expected dims ((name, extent), ...), got (('d0', -4), ('d1', 64))"),
        (f"out_maps = {MAPS}", "out_maps = ()",
         "expected out_maps with one map for each of 1 tensors, got ()"),
        (f" maps = {MAPS}", " maps = (((0, (1, 0)),),)",
         "expected a map of %x with 2 rows (offset, 2 coefficients), got ((0, (1, 0)),)"),
        ('name = "k0"', 'name = "k0", parts = (2,)',
         "expected parts of 2 positive integers, got (2,)"),
        ('name = "k0"', 'name = "k0", tile = (4, 0)',
         "expected tile of 2 positive integers, got (4, 0)"),
        ('name = "k0"', 'name = "k0", parts = (4, 1), core_order = (1,)',
         "core_order (1,) does not order the divided dimensions [0]"),
        ('name = "k0"', 'name = "k0", tile = (5, 64)',
         "the tile of d0 is 5, more than its extent 4"),
        ('name = "k0"', 'name = "k0", tile = (2, 64)',
         "d0 takes 2 tiles on a core, but has no loop"),
        ('name = "k0"', 'name = "k0", tile = (2, 64), loops = (0, 0)',
         "loops (0, 0) are not distinct dimensions"),
        ('"device"}', '"device", cores = 3}', "its parts (4, 1) make 4, the device has 3 cores"),
        (f"out_maps = {MAPS}", "out_maps = (((0, (0, 0)), (0, (0, 1))),)",
         "dimensions [0] index no result, so they cannot be divided over cores"),
    ],
)  # fmt: skip
def test_rule_16_nests(old: str, new: str, sentence: str) -> None:
    text = DEVICE.replace(old, new)
    if "divided over" in sentence or "cores" in new:
        text = text.replace('name = "k0"', 'name = "k0", parts = (4, 1), core_order = (0,)')
    assert f"rule 16: {sentence} (from Relu_2)" in _broken(text, {16})


def test_rule_16_lets_through_a_divided_and_tiled_kernel() -> None:
    plan = 'name = "k0", parts = (2, 1), core_order = (0,), tile = (1, 64), loops = (0,)'
    text = DEVICE.replace('"device"}', '"device", cores = 2}')
    verify(parse_module(text.replace('name = "k0"', plan)))


HOME = ", resident = ((0, (((0, 4), (0, 64)), ((0, 0), (0, 0)))),)"
RESIDENT = f"""
module "res" {{stage = "device"}} {{
  input %x: tensor<4x64xdl16, hbm>
  %y = kernel(%x) {{{ATTRS}{HOME}}} : tensor<4x64xdl16, lx> {{
    (%a: tensor<4x64xdl16>):
    %r = neg(%a) : tensor<4x64xdl16>
    yield %r
  }}
  %there = relayout(%y) {{boxes = (((0, 2), (0, 64)), ((2, 2), (0, 64)))}} : tensor<4x64xdl16, lx>
  %z = kernel(%there) {{
    {ATTRS}, parts = (2, 1), core_order = (0,)
  }} : tensor<4x64xdl16, hbm> @ "Z" {{
    (%b: tensor<4x64xdl16>):
    %s = neg(%b) : tensor<4x64xdl16>
    yield %s
  }}
  output "z" = %z
}}
"""


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("kernel(%there)", "kernel(%y)",
         "core 1 reads ((2, 2), (0, 64)) of %y, but holds ((0, 0), (0, 0)); put a relayout"),
        ("((2, 2), (0, 64))", "((2, 1), (0, 64))",
         "core 1 reads ((2, 2), (0, 64)) of %there, but holds ((2, 1), (0, 64)); put a relayout"),
        (HOME, "",
         "%y is in the scratchpads, but has no home there"),
        ("xdl16, lx> {\n    (%a", "xdl16, hbm> {\n    (%a",
         "%y is given a home in the scratchpads, but its type does not say so"),
        ("%x: tensor<4x64xdl16, hbm>", "%x: tensor<4x64xdl16, lx>",
         "%x is an input, so it must be in card memory"),
        ('output "z" = %z', 'output "z" = %z output "y" = %y',
         "%y is an output, so it must be in card memory"),
    ],
)  # fmt: skip
def test_rule_17_homes(old: str, new: str, sentence: str) -> None:
    verify(parse_module(RESIDENT))
    assert f"rule 17: {sentence}" in _broken(RESIDENT.replace(old, new), {17})


TILED = """
module "til" {stage = "tile"} {
  input %x: tensor<4x8xf32>
  input %w: tensor<8x6xf32>
  %y = kernel(%x, %w) {
    kind = "contract", name = "k0", tiled = true, dims = (("m", 4), ("n", 6), ("k", 8)),
    maps = (((0, (1, 0, 0)), (0, (0, 0, 1))), ((0, (0, 0, 1)), (0, (0, 1, 0)))),
    out_maps = (((0, (1, 0, 0)), (0, (0, 1, 0))),), tile = (2, 6, 4), loops = (0, 2)
  } : tensor<4x6xf32> @ "M" {
    (%a: tensor<4x8xf32>, %b: tensor<8x6xf32>):
    for {dim = 0} {
      ():
      %zero = init {value = 0.0} : tensor<2x6xf32>
      %sum = for(%zero) {dim = 2} : tensor<2x6xf32> {
        (%acc: tensor<2x6xf32>):
        %at = load(%a) {operand = 0} : tensor<2x4xf32>
        %bt = load(%b) {operand = 1} : tensor<4x6xf32>
        %next = compute(%at, %bt, %acc) {unit = "pt", head = "matmul"} : tensor<2x6xf32> {
          (%p: tensor<2x4xf32>, %q: tensor<4x6xf32>, %r: tensor<2x6xf32>):
          %pq = matmul(%p, %q) : tensor<2x6xf32>
          %all = add(%r, %pq) : tensor<2x6xf32>
          yield %all
        }
        yield %next
      }
      store(%sum) {result = 0}
      yield
    }
    yield
  }
  output "y" = %y
}
"""


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("store(%sum) {result = 0}", "", "expected one store of each result, got 0 of result 0"),
        ("store(%sum) {result = 0}", "store(%sum) {result = 0} store(%sum) {result = 0}",
         "expected one store of each result, got 2 of result 0"),
        ("store(%sum) {result = 0}", "store(%sum) {result = 0} store(%sum) {result = 1}",
         "expected one store of each result, got 1 of result 1"),
        ("yield %next", "store(%next) {result = 0} yield %next",
         "a store stands in a loop that carries values, so it is not of final ones"),
        ("load(%a) {operand = 0} : tensor<2x4xf32>", "load(%b) {operand = 0} : tensor<2x4xf32>",
         "operand 0 of the kernel is not %b"),
        ("for(%zero) {dim = 2}", "for(%zero) {dim = 1}",
         "dimension 1 is none of the kernel's loops (0, 2)"),
        ("loops = (0, 2)", "loops = (2, 0)",
         "loops (0, 2) are not nested as the kernel's loops (2, 0) are"),
        ("for(%zero) {dim = 2}", "for(%zero) {dim = 0}",
         "m indexes a result, so its loop must not carry values"),
        ("tile = (2, 6, 4)", "tile = (2, 6, 3)",
         "expected a tile of shape [2, 3], as the maps give, got [2, 4]"),
        ("tile = (2, 6, 4)", "tile = (1, 6, 4)",
         "expected a tile to store of shape [1, 6], as the maps give, got [2, 6]"),
        ("yield %next", "%odd = neg(%next) : tensor<2x6xf32> yield %next",
         "neg stands in a tile body; tensor ops stand only inside a compute"),
    ],
)  # fmt: skip
def test_rule_18_tile_bodies(old: str, new: str, sentence: str) -> None:
    verify(parse_module(TILED))
    assert f"rule 18: {sentence} (from M)" in _broken(TILED.replace(old, new), {18})


def test_rule_18_depth_of_loads_and_stores() -> None:
    load = "%at = load(%a) {operand = 0} : tensor<2x4xf32>"
    early = TILED.replace(load, "").replace("for {dim = 0}", f"{load} for {{dim = 0}}")
    message = "rule 18: the operand varies along m, k; load it inside their loops (from M)"
    assert message in _broken(early, {18})
    flat = TILED.replace("    for {dim = 0} {\n      ():\n", "").replace("yield\n    }\n", "", 1)
    message = "rule 18: the result varies along m; store it inside their loops (from M)"
    assert message in _broken(flat, {18})


def test_rules_are_numbered_and_each_has_a_test() -> None:
    assert [rule.number for rule in RULES] == list(range(1, len(RULES) + 1))
    files = (Path(__file__).name, "test_memory_rules.py", "test_ir_mutated.py")
    here = "".join((Path(__file__).parent / name).read_text("utf-8") for name in files)
    tested = {
        int(n)
        for names in re.findall(r"def test_rule((?:_(?:and_)?\d+)+)_", here)
        for n in re.findall(r"\d+", names)
    }
    assert tested == {rule.number for rule in RULES}


def test_tables_agree_with_the_ops_and_types() -> None:
    assert set(STAGES) == {stage for op in OPS.values() for stage in op.stages} | {"tile"}
    assert set(DEVICE_TYPES) <= set(DTYPES)
    for stage in STAGES.values():
        assert any(stage.top in op.stages for op in OPS.values())
