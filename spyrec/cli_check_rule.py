"""``spyrec check-rule``: rewrite rules against the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from spyrec.ir.core import Module
    from spyrec.passes.rule import Rule

WRONG = 1
Found = tuple["Mapping[str, Rule]", "Mapping[str, list[Module]]"]


@click.command("check-rule", short_help="Check rewrite rules against the interpreter.")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))
@click.argument("names", metavar="[RULE]...", nargs=-1)
@click.option("--count", type=click.IntRange(min=1), default=200, show_default=True,
              help="Models to try each rule on.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of models and inputs.")
def check_rule_command(file: str, names: Sequence[str], count: int, seed: int) -> int:
    """Try each RULE of FILE (all, unless named) on random small models that have its pattern, and
    compare what they compute before and after, as its class of exactness asks.

    FILE holds declared rules (.rules), or is Python with rules at its top level; those written as
    functions are tried on the IR texts that EXAMPLES = {"name": [text, ...]} gives.

    \b
    spyrec check-rule my.rules
    spyrec check-rule my_pass.py fold-scale --count 1000
    """
    from spyrec.ir.errors import PassError
    from spyrec.workbench.check_rule import check, text_of

    rules, examples = read_rules(Path(file))
    unknown = [n for n in names if n not in rules]
    if unknown:
        raise PassError(f"{file} has no rule {', '.join(unknown)}; it has: {', '.join(rules)}")
    wrong = 0
    for name in names or rules:
        verdict = check(rules[name], count, seed, examples.get(name, ()))
        kind = rules[name].exactness
        if not verdict.wrong:
            click.echo(f"{name}: {kind}, {verdict.checked} models, worst error {verdict.worst:.3g}")
            continue
        wrong += 1
        click.echo(f"{name}: {kind}, WRONG: {verdict.wrong}")
        if verdict.example is not None:
            for line in text_of(verdict.example):
                click.echo(f"  {line}")
    return WRONG if wrong else 0


def read_rules(path: Path) -> Found:
    """The rules of a file by name, and models to try those on that are written in Python."""
    from spyrec.ir.errors import PassError
    from spyrec.ir.parser import parse_module
    from spyrec.passes.pattern_text import parse_rules
    from spyrec.passes.rule import Rule
    from spyrec.workbench.plugins import RULES, import_file

    if path.suffix == RULES:
        if not path.is_file():
            raise PassError(f"{path}: there is no such file of rules")
        try:
            return {r.name: r for r in parse_rules(path.read_text("utf-8"))}, {}
        except (PassError, UnicodeDecodeError) as error:
            raise PassError(f"{path}: {error}") from None
    module = vars(import_file(path))
    found: dict[str, Rule] = {}
    for value in module.values():
        for rule in value if isinstance(value, tuple | list) else (value,):
            if isinstance(rule, Rule):
                found[rule.name] = rule
    if not found:
        raise PassError(f"{path} has no rule at its top level, alone or in a tuple")
    texts = module.get("EXAMPLES", {})
    if not isinstance(texts, dict):
        raise PassError(f"{path}: EXAMPLES is no dict of rule name -> list of IR texts")
    return found, {name: [parse_module(t) for t in given] for name, given in texts.items()}
