"""IR text that was tampered with: it is read as what it says, or refused with a sentence."""

from __future__ import annotations

import random
import re

import pytest

from spyrec.driver import compile_module, lower_module
from spyrec.ir.errors import SpyrecError, VerifyError
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import print_module
from spyrec.ir.verifier import problems, verify
from spyrec.passes.manager import Target
from spyrec.passes.pipeline import PIPELINE
from spyrec.sim.device import load_device
from spyrec.workbench.plugins import until

TARGET = Target(load_device())
slow = pytest.mark.slow
STATEFUL = """module "m" {state = (("s", "t", dense<4x64xfloat32, splat 0.0>),), stage = "tensor"} {
  input %x: tensor<4x64xf32>
  input %s: tensor<4x64xf32>
  %c = constant {value = dense<float32, [0.25]>} : tensor<f32>
  %e = mul(%x, %c) : tensor<4x64xf32>
  %t = add(%s, %e) : tensor<4x64xf32>
  %r = transpose(%t) {perm = (1, 0)} : tensor<64x4xf32>
  %y = softmax(%r) {axis = 1} : tensor<64x4xf32>
  output "y" = %y
  output "t" = %t
}
"""
TOKEN = re.compile(r'\w+|"[^"\n]*"|[^\w\s]|\s+')
WORDS = (
    "state", "absent", "stage", '"device"', '"tile"', "held", "hbm", "none", "true", "inf", "nan",
    "-1", "0", "3.5", '"x"', "()", "(1,)", '("s", "t", 1)', "type", "f32", "dl16", "kernel", "%",
    "dense<2xfloat32, [1.0, 2.0]>", "resources", "yield", "@", "{", "}", "(", ")", ",", "=", ":",
    "99999999999999999999", "a[1..4]", "state = 3, ", 'state = (("x", "y", none),), ', "hbm = 3, ",
)  # fmt: skip


def at_stage(name: str) -> str:
    module = parse_module(STATEFUL)
    if name:
        module = lower_module(module, TARGET, pipeline=until(PIPELINE, name), plan_budget=0)
    return print_module(module)


def mutated(text: str, rng: random.Random) -> str:
    """One or two tokens left out, replaced, put in or exchanged."""
    tokens = TOKEN.findall(text)
    for _ in range(rng.randint(1, 2)):
        i, j = rng.randrange(len(tokens)), rng.randrange(len(tokens))
        match rng.randrange(5):
            case 0:
                tokens[i] = ""
            case 1:
                tokens[i] = rng.choice(WORDS)
            case 2:
                tokens[i] += rng.choice(WORDS)
            case 3:
                tokens[i] = tokens[j]
            case _:
                tokens[i], tokens[j] = tokens[j], tokens[i]
    return "".join(tokens)


@pytest.mark.parametrize(
    "stage", ["", "tiling", *(pytest.param(s, marks=slow) for s in ("fuse", "lower-tiles", "hbm"))]
)
def test_what_is_read_is_sound_or_refused(stage: str) -> None:
    text, rng = at_stage(stage), random.Random(stage)
    sound = 0
    for _ in range(200):
        try:
            module = parse_module(mutated(text, rng))
            verify(module)
            printed = print_module(module)
            assert print_module(parse_module(printed)) == printed
            sound += 1
        except SpyrecError:
            continue
        if module.stage == "tensor":
            compile_module(module, TARGET, plan_budget=0)
    assert sound >= 5


@pytest.mark.parametrize(
    ("attribute", "sentence"),
    [
        ("state = 3", "expected its state to be a tuple of (string, string, array), got 3"),
        ('state = (("x", "y", none),)',
         "expected its state to be a tuple of (string, string, array), got (('x', 'y', None),)"),
        ('state = (("z", "y", dense<float32, [0.0]>),)',
         'its state "z" is kept in "y", but there is no input "z"'),
        ('state = (("x", "z", dense<float32, [0.0]>),)',
         'its state "x" is kept in "z", but there is no output "z"'),
        ('state = (("x", "y", dense<float32, [0.0]>),)',
         'its state "x" is tensor<4x8xf32>, but its next value, "y", is tensor<8x4xf32>'),
        ('state = (("x", "w", dense<float32, [0.0]>),)',
         'its state "x" of tensor<4x8xf32> begins with shape ()'),
        ("absent = (1,)", "expected its absent to be a tuple of strings, got (1,)"),
        ("hbm = (1, 2)", "expected its hbm to be a tuple of (string, number, number), got (1, 2)"),
        ("cores = true", "expected its cores to be a number, got True"),
        ('laid_out = "x"', "expected its laid_out to be true or false, got 'x'"),
    ],
)
def test_rule_21_attributes_of_a_module_have_their_form(attribute: str, sentence: str) -> None:
    module = parse_module(f"""module "m" {{{attribute}}} {{
  input %x: tensor<4x8xf32>
  %y = transpose(%x) {{perm = (1, 0)}} : tensor<8x4xf32>
  %w = neg(%x) : tensor<4x8xf32>
  output "y" = %y
  output "w" = %w
}}""")
    assert [p.sentence for p in problems(module) if p.rule == 21] == [sentence]
    with pytest.raises(VerifyError, match="rule 21"):
        verify(module)


@pytest.mark.parametrize(
    ("attribute", "kind"),
    [
        ('lx = (("x", 0),)', "to be a tuple of (string, number, number), got (('x', 0),)"),
        ("early = (3,)", "to be a tuple of strings, got (3,)"),
        ("in_place = (0,)", "to be a tuple of (number, number), got (0,)"),
        ("resident = (1,)", "to be a tuple of (result, boxes of (first, count)), got (1,)"),
        ("resident = ((0, ((0, 4),)),)", "to be a tuple of (result, boxes of (first, count)), "),
    ],
)
def test_rule_21_where_a_kernels_buffers_are_has_its_form(attribute: str, kind: str) -> None:
    name = attribute.split()[0]
    text = re.sub(r"(= kernel\([^)]*\) \{)", rf"\1{attribute}, ", at_stage("tiling"), count=1)
    [found] = [p for p in problems(parse_module(text)) if p.rule == 21]
    assert found.sentence.startswith(f"expected its {name} {kind}")


def test_rule_21_what_is_in_a_place_is_there() -> None:
    text = re.sub(
        r"(= kernel\([^)]*\) \{)", r"\1in_place = ((7, 0),), ", at_stage("tiling"), count=1
    )
    [found] = [p for p in problems(parse_module(text)) if p.rule == 21]
    assert "its result 7 is in the place of its operand 0, but it has 1 and" in found.sentence


def test_a_rule_may_stumble_over_what_breaks_another() -> None:
    """Without its kind a kernel is no nest, which later rules take for granted."""
    text = re.sub(r'\bkind = "\w+", ', "", at_stage("tiling"), count=1)
    with pytest.raises(VerifyError, match=r"attribute kind .* is required but missing"):
        verify(parse_module(text))
    at_once = 'module "m" {hbm = (("x", 0),)} {\n  input %x: tensor<4xf32>\n  output "y" = %x\n}'
    assert [p.rule for p in problems(parse_module(at_once))] == [21]
