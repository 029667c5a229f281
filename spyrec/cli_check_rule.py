"""``spyrec check-rule``: rewrite rules against the interpreter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from spyrec.ir.core import Module
    from spyrec.passes.rule import Rule
    from spyrec.workbench.check_rule import Verdict

NOT_SOUND = 1
ENOUGH = 0.25
"""Share of the models asked for; a declared rule that fewer were drawn of is not called sound."""
Found = tuple["Mapping[str, Rule]", "Mapping[str, list[Module]]"]


@click.command("check-rule", short_help="Check rewrite rules against the interpreter.")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))
@click.argument("names", metavar="[RULE]...", nargs=-1)
@click.option("--count", type=click.IntRange(min=1), default=200, show_default=True,
              help="Models to try each rule on.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Of models and inputs.")
def check_rule_command(file: str, names: Sequence[str], count: int, seed: int) -> int:
    """Try each RULE of FILE (all, unless named) on random small models that have its pattern, and
    compare what they compute before and after, as its class of exactness asks.

    FILE holds declared rules (.rules), or is Python with rules at its top level; those written as
    functions are tried on the IR texts that EXAMPLES = {"name": [text, ...]} gives.

    Exit code 0: all were tried and are right; 1: one is wrong, or no model had its pattern, or
    fewer than a quarter of --count could be drawn.

    \b
    spyrec check-rule my.rules
    spyrec check-rule my_pass.py fold-scale --count 1000
    """
    from spyrec.ir.errors import PassError
    from spyrec.ir.near import listed
    from spyrec.passes.pattern import PatternRule
    from spyrec.workbench.check_rule import check, text_of

    rules, examples = read_rules(Path(file))
    for name in names:
        if name not in rules:
            raise PassError(f"{file} has no rule {name}; {listed(name, rules)}")
    sound = True
    untried: list[str] = []
    rare: list[str] = []
    for name in names or rules:
        rule, given = rules[name], examples.get(name, ())
        verdict = check(rule, count, seed, given)
        declared = isinstance(rule, PatternRule)
        few = verdict.checked < (count * ENOUGH if declared else 1) and not verdict.wrong
        sound &= not verdict.wrong and not few
        told = _of_drawn(verdict, count, few) if declared else _told(verdict, len(given))
        click.echo(f"{name}: {rule.exactness}, {told}")
        if few and (declared or not given):
            (rare if declared else untried).append(name)
        if verdict.example is not None:
            for line in text_of(verdict.example):
                click.echo(f"  {line}")
    if untried:
        click.echo(_how_to_give(file, untried), err=True)
    if rare:
        click.echo(_how_to_draw(file, rare), err=True)
    return 0 if sound else NOT_SOUND


def _how_to_give(file: str, names: Sequence[str]) -> str:
    """What to write into a file whose rules, written as functions, have no examples."""
    entries = "\n".join(f"      {json.dumps(name)}: [TEXT]," for name in names)
    return (
        f"a rule written as a function is tried on the models it is given; add to {file}, at its "
        f"top level:\n  EXAMPLES = {{\n{entries}\n  }}\n"
        "each TEXT is a string of IR text in which the rule applies, from 'module \"m\" {' to '}'; "
        "spyrec opt MODEL prints such text"
    )


def _how_to_draw(file: str, names: Sequence[str]) -> str:
    """What to do where few models have the pattern of a declared rule."""
    path = Path(file)
    of_yours = (
        f"; on a model of yours, spyrec opt MODEL --load {file} --passes "
        f"{path.stem.replace('_', '-')} --oracle-each tries it too"
    ) * (path.suffix == ".rules")
    return (
        "models are drawn from a rule's ops and conditions, and few have the pattern of "
        f"{', '.join(names)}; say under when which ranks it is for, as rank(%x, 3), write numbers "
        f"for attributes in the place of $names, or try another --seed{of_yours}"
    )


def _of_drawn(verdict: Verdict, count: int, few: bool) -> str:
    """Of a declared rule: how many of ``count`` models were drawn and run."""
    if verdict.wrong:
        return f"WRONG: {verdict.wrong}"
    if not verdict.checked:
        return "not tested: no model with its pattern was drawn"
    of = f"of {count} " * (verdict.checked < count)
    hardly = "hardly tested: " * few
    return f"{hardly}{verdict.checked} {of}models, worst error {verdict.worst:.3g}"


def _told(verdict: Verdict, examples: int) -> str:
    """Of a rule written as a function."""
    if verdict.wrong:
        return f"WRONG: {verdict.wrong}"
    if not verdict.checked:
        return f"not tested: {'no example matched' if examples else 'no example was given'}"
    left = f", {verdict.unmatched} of {examples} examples did not match" * bool(verdict.unmatched)
    return f"{verdict.checked} models, worst error {verdict.worst:.3g}{left}"


def read_rules(path: Path) -> Found:
    """The rules of a file by name, and models to try those on that are written in Python."""
    from spyrec.ir.errors import ParseError, PassError
    from spyrec.ir.near import listed
    from spyrec.ir.parser import parse_module
    from spyrec.passes.rule import Rule
    from spyrec.workbench.plugins import module_of, read_file, rules_of

    file = read_file(path)
    if file.rules:
        return {r.name: r for r in rules_of(file)}, {}
    module = vars(module_of(file))
    found: dict[str, Rule] = {}
    for value in module.values():
        for rule in value if isinstance(value, tuple | list) else (value,):
            if isinstance(rule, Rule):
                found[rule.name] = rule
    if not found:
        raise PassError(f"{path} has no rule at its top level, alone or in a tuple")
    texts = module.get("EXAMPLES", {})
    lists = texts.values() if isinstance(texts, dict) else (None,)
    if not all(isinstance(g, list | tuple) and all(isinstance(t, str) for t in g) for g in lists):
        raise PassError(f"{path}: EXAMPLES is no dict of rule name -> list of IR texts")
    for name in texts:
        if name not in found:
            told = listed(str(name), found)
            raise PassError(f"{path}: EXAMPLES has an entry for {name!r}, but no such rule; {told}")
    models: dict[str, list[Module]] = {}
    for name, given in texts.items():
        try:
            models[name] = [parse_module(text) for text in given]
        except ParseError as error:
            raise ParseError(f"{path}: EXAMPLES of {name}: {error}") from None
    return found, models
