"""Declared rewrite rules: what is parsed, found, replaced, refused; and `spyrec check-rule`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from spyrec import cli
from spyrec.ir.errors import PassError
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import print_module
from spyrec.ir.verifier import verify
from spyrec.passes.pattern_instances import instances
from spyrec.passes.pattern_text import parse_rules
from spyrec.passes.rule import apply_rules
from spyrec.workbench.check_rule import check

Capture = pytest.CaptureFixture[str]

RULES = """
rule "twice" exact "x + x = 2 x."
  match   %y = add(%x, %x)
  when    float(%x)
  replace %y = mul(%x, 2.0)

rule "neg-neg" exact "-(-x) = x."     // a comment
  match   %a = neg(%x)
          %y = neg(%a)
  replace %y = %x

rule "factor" rounding "a x + b x = (a + b) x."
  match   %l = mul(%a, %x)
          %r = mul(%b, %x)
          %y = add(%l, %r)
  when    same(%l, %r), same(%a, %b), float(%x)
  replace %s = add(%a, %b)
          %y = mul(%s, %x)

rule "transposes" exact "Chains merge."
  match   %a = transpose(%x) {perm = $p}
          %y = transpose(%a) {perm = $q}
  shared  %a
  replace %y = transpose(%x) {perm = after($p, $q)}

rule "shifted-softmax" rounding "softmax(x + c) = softmax(x) for one number c."
  match   %s = add(%x, %c)
          %y = softmax(%s) {axis = $axis}
  when    size(%c, 1), same(%s, %x)
  replace %y = softmax(%x) {axis = $axis}

rule "erf-of-half" approximation "erf(x) = tanh(1.2 x), to 0.05."
  match   %y = erf(%x)
  replace %z = mul(%x, 1.2)
          %y = tanh(%z)
  error   0.05
"""


def applied(rule: str, module: str) -> str:
    rules = {r.name: r for r in parse_rules(RULES, check=False)}
    after = apply_rules(parse_module(module), (rules[rule],))
    verify(after)
    return print_module(after)


def test_a_commutative_op_matches_either_way_round() -> None:
    text = """module "m" {
  input %a: tensor<4xf32>
  input %b: tensor<4xf32>
  input %x: tensor<4xf32>
  %l = mul(%x, %a) : tensor<4xf32> @ "one"
  %r = mul(%b, %x) : tensor<4xf32> @ "two"
  %y = add(%l, %r) : tensor<4xf32> @ "three"
  output "y" = %y
}
"""
    assert applied("factor", text) == """module "m" {
  input %a: tensor<4xf32>
  input %b: tensor<4xf32>
  input %x: tensor<4xf32>
  %add = add(%a, %b) : tensor<4xf32> @ "one", "two", "three"
  %mul = mul(%add, %x) : tensor<4xf32> @ "one", "two", "three"
  output "y" = %mul
}
"""


CHAIN = """module "m" {
  input %x: tensor<2x3x4xf32>
  %a = transpose(%x) {perm = (1, 2, 0)} : tensor<3x4x2xf32>
  %y = transpose(%a) {perm = (0, 2, 1)} : tensor<3x2x4xf32>
  output "y" = %y
  OUTPUT
}
"""


def test_attributes_are_bound_and_computed() -> None:
    after = applied("transposes", CHAIN.replace("OUTPUT", ""))
    assert "transpose(%x) {perm = (1, 0, 2)}" in after and after.count("transpose(") == 1


def test_an_inner_value_is_read_once_unless_shared() -> None:
    both = CHAIN.replace("OUTPUT", 'output "a" = %a')
    assert "transpose(%x) {perm = (1, 0, 2)}" in applied("transposes", both)
    text = """module "m" {
  input %x: tensor<4xf32>
  %a = neg(%x) : tensor<4xf32>
  %y = neg(%a) : tensor<4xf32>
  output "y" = %y
  output "a" = %a
}
"""
    assert applied("neg-neg", text) == text
    assert "neg(" not in applied("neg-neg", text.replace('  output "a" = %a\n', ""))


def test_one_value_twice_is_one_value() -> None:
    text = """module "m" {
  input %x: tensor<4xf32>
  input %z: tensor<4xf32>
  %y = add(%x, OTHER) : tensor<4xf32>
  output "y" = %y
}
"""
    assert "mul(%x" in applied("twice", text.replace("OTHER", "%x"))
    assert "mul(" not in applied("twice", text.replace("OTHER", "%z"))
    integers = text.replace("OTHER", "%x").replace("f32", "i32")
    assert "mul(" not in applied("twice", integers)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("neg(%a)", "nag(%a)"), "rule neg-neg: match: nag is no op that a pattern can have"),
        (("%y = %x", "%y = %z"), "replace: %z is not known there"),
        (("{perm = $p}", ""), "transpose needs its attribute perm, as perm = $perm"),
        (("{perm = $q}", "{parm = $q}"), "transpose has no attribute parm"),
        (("after($p, $q)", "$r"), "replace: $r is not known there"),
        (("after(", "behind("), "there is no function behind"),
        (("float(%x)\n  replace %y = mul", "flat(%x)\n  replace %y = mul"), "no condition flat"),
        (("size(%c, 1)", "size(%d, 1)"), "when: %d is not known"),
        (("  error   0.05\n", ""), "an approximation states its error"),
        (("%y = tanh(%z)", "%w = tanh(%z)"), "the last line of replace gives %y, not %w"),
        (("  replace %y = %x\n", "\n"), "rule neg-neg: replace is missing"),
        (("%a = neg(%x)", "%b = neg(%x)"), "match: nothing reads %b"),
        (('rule "neg-neg"', 'rule "twice"'), "two rules are called twice"),
        (("match   %y = add(%x, %x)", "match   %y = add(%x, %x"), "rules, line 4, column"),
        (("rounding \"a x", "about \"a x"), "rules, line 12, column 15: 'about"),
    ],
)
def test_what_is_wrong_with_a_rule_is_told(change: tuple[str, str], told: str) -> None:
    assert change[0] in RULES
    with pytest.raises(PassError) as caught:
        parse_rules(RULES.replace(*change))
    assert told in str(caught.value)


def test_types_are_checked_when_rules_are_read() -> None:
    wrong = RULES.replace("after($p, $q)", "$p")
    with pytest.raises(PassError, match=r"rule transposes: .* has type"):
        parse_rules(wrong)
    with pytest.raises(PassError, match="of 400 drawn models none has its pattern"):
        parse_rules(RULES.replace("float(%x)\n  replace", "rank(%x, 2), rank(%x, 3)\n  replace", 1))
    parse_rules(wrong, check=False)


def test_instances_are_the_same_every_time() -> None:
    for rule in parse_rules(RULES):
        once, again = (
            [print_module(m) for m in instances(rule, 20, seed=3)] for _ in range(2)
        )
        assert once == again and len(once) == 20
        assert len(set(once)) > 3, "they hardly differ"


def test_sound_rules_pass(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "my.rules"
    path.write_text(RULES, "utf-8")
    assert cli.run(["check-rule", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert lines[0] == "twice: exact, 200 models, worst error 0"
    assert cli.run(["check-rule", str(path), "neg-neg", "--count", "10"]) == 0
    assert capsys.readouterr().out == "neg-neg: exact, 10 models, worst error 0\n"
    assert cli.run(["check-rule", str(path), "x"]) == 1
    assert "has no rule x; known: twice, neg-neg" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("twice", ("mul(%x, 2.0)", "mul(%x, 2.001)")),
        ("factor", ("%s = add(%a, %b)", "%s = sub(%a, %b)")),
        ("transposes", ("after($p, $q)", "after($q, $p)")),
        ("shifted-softmax", ("size(%c, 1), ", "")),
        ("erf-of-half", ("error   0.05", "error   0.01")),
    ],
)
def test_a_wrong_rule_is_caught(
    name: str, change: tuple[str, str], tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "my.rules"
    assert change[0] in RULES
    path.write_text(RULES.replace(*change), "utf-8")
    code = cli.run(["check-rule", str(path), name])
    told = capsys.readouterr()
    assert code == 1
    if not told.err:  # told with a model; where types differ the file is not even read
        assert f"{name}: " in told.out and "WRONG: " in told.out
        assert "before: y = " in told.out and 'module "instance"' in told.out


def test_an_exact_rule_keeps_signs_of_zero_and_nan() -> None:
    (rule,) = parse_rules("""rule "add-zero" exact "x + 0 = x."
      match %y = add(%x, 0.0)
      when float(%x)
      replace %y = %x""")
    verdict = check(rule, 400)
    assert verdict.wrong == "the bits differ" and verdict.example is not None
    x = verdict.example.inputs["x"]
    assert np.any((x == 0) & np.signbit(x))
    (right,) = parse_rules("""rule "add-zero" exact "x + -0 = x."
      match %y = add(%x, -0.0)
      when float(%x)
      replace %y = %x""")
    assert not check(right, 400).wrong
    text = """module "m" {
  input %x: tensor<4xf32>
  %z = constant {value = dense<float32, [0.0]>} : tensor<f32>
  %y = add(%x, %z) : tensor<4xf32>
  output "y" = %y
}
"""
    assert "add(" in print_module(apply_rules(parse_module(text), (right,)))


MEAN_OF_A_PRODUCT = """rule "mean" rounding "A mean is no sum."
  match   %y = matmul(%x, %w)
          %p = reduce_mean(%y) {axes = AXES}
  when    rank(%x, 3), rank(%w, 2)
  replace %s = reduce_sum(%x) {axes = AXES}
          %p = matmul(%s, %w)
"""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("axes", ["(1,)", "$a"])
def test_a_wrong_rule_of_products_is_caught(
    axes: str, seed: int, tmp_path: Path, capsys: Capture
) -> None:
    """With $a also where the axes are those of the columns, which the replacement cannot sum."""
    path = tmp_path / "mean.rules"
    path.write_text(MEAN_OF_A_PRODUCT.replace("AXES", axes), "utf-8")
    assert cli.run(["check-rule", str(path), "--seed", str(seed)]) == 1
    told = capsys.readouterr()
    assert told.out.startswith("mean: rounding, WRONG: ") and not told.err
    assert 'module "instance"' in told.out
    right = MEAN_OF_A_PRODUCT.replace("AXES", "(1,)").replace("sum(", "mean(")
    path.write_text(right, "utf-8")
    assert cli.run(["check-rule", str(path), "--seed", str(seed)]) == 0
    assert capsys.readouterr().out.startswith("mean: rounding, 200 models, ")


def ranks_of(text: str) -> Counter[tuple[int, ...]]:
    """Of the inputs, constants too, of 200 models with a pattern."""
    (rule,) = parse_rules(f'rule "r" rounding "None."\n{text}', check=False)
    made = list(instances(rule, 200))
    assert len(made) == 200
    return Counter(
        tuple(v.type.rank for v in m.body.ops[-1].operands) for m in made
    )


def test_products_of_the_usual_ranks_come_up_often() -> None:
    ranks = ranks_of("""  match   %y = matmul(%a, %b)
  replace %z = neg(%y)
          %y = neg(%z)""")
    assert ranks[3, 2] >= 40 and ranks[4, 4] >= 20 and ranks[2, 2] >= 20
    assert max(ranks, key=lambda r: ranks[r]) == (3, 2)


@pytest.mark.parametrize(
    "pattern",
    [
        "%t = transpose(%k) {perm = (0, 1, 3, 2)}\n%y = matmul(%q, %t)",
        "%s = matmul(%x, %a)\n%y = add(%s, %b)\nwhen rank(%b, 1), known(%b), rank(%x, 3)",
        "%l = matmul(%x, %a)\n%r = matmul(%x, %b)\n%y = add(%l, %r)\nwhen shape(%a, %b)",
        "%s = matmul(%x, %a)\n%t = matmul(%s, %b)\n%y = matmul(%t, %c)\nwhen rank(%x, 4)",
        "%s = matmul(%x, %x)\n%y = softmax(%s) {axis = $a}\nwhen last($a, %s)",
        "%s = reduce_max(%x) {axes = (3,)}\n%y = sub(%x, %s)",
        "%a = layer_norm(%x, %s, %b) {axis = $a, epsilon = $e}\n%y = mul(%a, %f)\n"
        "when same(%f, %a)",
        "%y = conv(%x, %w) {strides = $s, pads = $p, dilations = $d}\nwhen rank(%x, 4)",
        "%a = softmax(%x) {axis = $a}\n%y = log_softmax(%a) {axis = $b}\nwhen equal($a, $b)",
        "%y = add(%x, %b)\nwhen rank(%x, 6), size(%b, 7)\n",
    ],
)
def test_two_hundred_models_are_drawn_towards_a_pattern(pattern: str) -> None:
    """Also with conditions that types and attributes drawn without a look at them hardly meet."""
    ops, _, when = pattern.partition("when")
    last = ops.strip().splitlines()[-1].partition(" = ")[0]
    clause = f"when{when}\n" if when else ""
    ranks_of(f"match {ops}\n{clause}replace %z = neg({last})\n{last} = neg(%z)")


RARE = """rule "rare" rounding "1 / exp x = exp -x."
  match   %n = neg(%x)
          %y = exp(%n)
  when    size(%n, SIZE), rank(%x, 4)
  replace %e = exp(%x)
          %y = reciprocal(%e)
"""


def test_a_rule_that_is_hardly_tested_is_not_called_sound(
    tmp_path: Path, capsys: Capture
) -> None:
    """The size of an inner value is met by chance alone: 192 by 4 of 256 shapes."""
    path = tmp_path / "my_rare.py"
    text = "from spyrec.passes.pattern_text import parse_rules\n"
    path.write_text(f"{text}R = parse_rules({RARE.replace('SIZE', '192')!r}, check=False)", "utf-8")
    assert cli.run(["check-rule", str(path), "--count", "4000"]) == 1
    told = capsys.readouterr()
    found = re.match(r"rare: rounding, hardly tested: (\d+) of 4000 models, worst", told.out)
    assert found is not None and 0 < int(found[1]) < 1000
    assert "few have the pattern of rare; say under when" in told.err
    assert "EXAMPLES" not in told.err and "--load" not in told.err
    assert cli.run(["check-rule", str(path), "--count", found[1]]) == 0
    assert f"rare: rounding, {found[1]} models" in capsys.readouterr().out
    count = 2 * int(found[1])  # half of them is a share that will do, and is told
    assert cli.run(["check-rule", str(path), "--count", str(count)]) == 0
    told = capsys.readouterr()
    assert f"rare: rounding, {found[1]} of {count} models, worst" in told.out and not told.err


def test_the_advice_is_for_the_kind_of_file(tmp_path: Path, capsys: Capture) -> None:
    """A rule of which no model can be drawn, and that cannot be read as text therefore."""
    never = RARE.replace("SIZE", "251")
    path = tmp_path / "my_rare.py"
    text = "from spyrec.passes.pattern_text import parse_rules\n"
    path.write_text(f"{text}R = parse_rules({never!r}, check=False)", "utf-8")
    assert cli.run(["check-rule", str(path)]) == 1
    told = capsys.readouterr()
    assert told.out == "rare: rounding, not tested: no model with its pattern was drawn\n"
    assert "EXAMPLES" not in told.err and "few have the pattern of rare" in told.err
    rules = tmp_path / "my_rare.rules"
    rules.write_text(RARE.replace("SIZE", "192"), "utf-8")
    assert cli.run(["check-rule", str(rules), "--count", "4000"]) == 1
    told = capsys.readouterr()
    assert "EXAMPLES" not in told.err
    assert f"opt MODEL --load {rules} --passes my-rare --oracle-each tries it too" in told.err


PYTHON = '''from spyrec.passes.rule import Rule
from spyrec.passes.pattern_text import parse_rules


def build(op, e):
    inner = e.made_by(op.operands[0], "exp")
    return None if inner is None else inner.operands[0]


LOG_EXP = Rule("log-exp", "log", build, "rounding", "log exp x = x.")
MORE = parse_rules("""rule "not-not" exact "not not x = x."
  match %a = not(%x)
        %y = not(%a)
  replace %y = %x""")
EXAMPLES = {"log-exp": ["""module "m" {
  input %x: tensor<4x3xf64>
  %e = exp(%x) : tensor<4x3xf64>
  %y = log(%e) : tensor<4x3xf64>
  output "y" = %y
}"""]}
'''


def test_rules_written_in_python_are_tried_on_examples(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PYTHON, "utf-8")
    assert cli.run(["check-rule", str(path)]) == 0
    assert "log-exp: rounding, 200 models" in capsys.readouterr().out
    path.write_text(PYTHON.replace("f64", "f32"), "utf-8")
    assert cli.run(["check-rule", str(path), "log-exp"]) == 0
    capsys.readouterr()
    path.write_text(PYTHON.replace('"log-exp": [', '"log_exp": ['), "utf-8")
    assert cli.run(["check-rule", str(path)]) == 1
    assert (
        "EXAMPLES has an entry for 'log_exp', but no such rule; did you mean log-exp?"
    ) in capsys.readouterr().err
    path.write_text(PYTHON.replace("inner.operands[0]\n", "op.operands[0]\n"), "utf-8")
    assert cli.run(["check-rule", str(path), "log-exp"]) == 1
    assert "WRONG: the error is" in capsys.readouterr().out
    path.write_text("x = 1", "utf-8")
    assert cli.run(["check-rule", str(path)]) == 1
    assert "has no rule at its top level" in capsys.readouterr().err


def test_how_to_give_examples_is_told_as_it_has_to_be_written(
    tmp_path: Path, capsys: Capture
) -> None:
    """What is printed goes into the file, with a model in the place of TEXT."""
    path = tmp_path / "mine.py"
    rules, _, examples = PYTHON.partition("EXAMPLES = ")
    path.write_text(rules, "utf-8")
    assert cli.run(["check-rule", str(path)]) == 1
    told = capsys.readouterr()
    assert "log-exp: rounding, not tested: no example was given\n" in told.out
    assert f"add to {path}, at its top level:\n  EXAMPLES = {{\n" in told.err
    entry = dedent(told.err[told.err.index("  EXAMPLES"):told.err.index("each TEXT")])
    text = next(iter(eval(examples).values()))[0]
    path.write_text(rules + entry.replace("TEXT", repr(text)), "utf-8")
    assert cli.run(["check-rule", str(path)]) == 0
    assert capsys.readouterr().err == ""


def test_a_file_of_rules_is_a_pass(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "my_rules.rules").write_text(RULES, "utf-8")
    (tmp_path / "m.sir").write_text(CHAIN.replace("OUTPUT", ""), "utf-8")
    load = ["--load", str(tmp_path / "my_rules.rules")]
    assert cli.run(["opt", str(tmp_path / "m.sir"), *load, "--passes", "my-rules"]) == 0
    assert "perm = (1, 0, 2)" in capsys.readouterr().out
    assert cli.run(["passes", "my-rules", *load]) == 0
    assert "Applies twice, neg-neg, " in capsys.readouterr().out
    (tmp_path / "my_rules.rules").write_text("rule", "utf-8")
    assert cli.run(["opt", str(tmp_path / "m.sir"), *load]) == 1
    assert "my_rules.rules: rules, line 1" in capsys.readouterr().err


def test_conditions_of_ones_own_see_the_match() -> None:
    def wide(m: object, v: object) -> bool:
        return getattr(v, "type").shape[-1:] == (4,)  # noqa: B009

    text = """rule "wide" exact "x * 1 = x."
      match %y = mul(%x, 1.0)
      when wide(%x), float(%x)
      replace %y = %x"""
    conditions: dict[str, Callable[..., bool]] = {"wide": wide}
    (rule,) = parse_rules(text, conditions=conditions)
    assert all(m.body.results[0].type.shape[-1] == 4 for m in instances(rule, 10))


FUNCTION = """from spyrec.passes.rule import Rule


def build(op, e):
    STATEMENT


RULE = Rule("odd", "exp", build, "exact", "Does something wrong.")
EXAMPLES = {"odd": [LIST]}
"""
EXAMPLE = """module "m" {
  input %x: tensor<4xf32>
  %y = exp(%x) : tensor<4xf32>
  output "y" = %y
}"""


@pytest.mark.parametrize(
    ("statement", "given", "out", "err"),
    [
        ("raise KeyError('no')", repr(EXAMPLE), "odd: exact, WRONG: KeyError: 'no'\n", ""),
        ("raise SystemExit(0)", repr(EXAMPLE), "odd: exact, WRONG: SystemExit: 0\n", ""),
        ("return 5", repr(EXAMPLE), "odd: exact, WRONG: TypeError: 'int' object", ""),
        ("return None", "5", "", "EXAMPLES is no dict of rule name -> list of IR texts\n"),
        ("return None", "'x'", "", "EXAMPLES of odd: line 1, column 1: expected 'module'"),
    ],
)
def test_functions_that_do_something_else_are_told(
    tmp_path: Path, capsys: Capture, statement: str, given: str, out: str, err: str
) -> None:
    path = tmp_path / "odd.py"
    text = FUNCTION.replace("STATEMENT", statement).replace("LIST", given)
    path.write_text(text, "utf-8")
    assert cli.run(["check-rule", str(path)]) == 1
    told = capsys.readouterr()
    assert told.out.startswith(out) and bool(told.out) == bool(out)
    assert err in told.err and bool(told.err) == bool(err)
