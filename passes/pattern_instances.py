"""Instances of a pattern: small modules in which it occurs, drawn at random (`pattern_draw`) until
the rule changes them. With them a rule's types are checked when it is registered, and its meaning
by the interpreter (``spyrec check-rule``)."""

from __future__ import annotations

import random
from collections.abc import Iterator

from spyrec.ir.core import Module
from spyrec.ir.errors import PassError, SpyrecError

from .pattern import PatternRule
from .pattern_draw import drawn
from .rule import apply_rules

DTYPE_WEIGHTS = {"f32": 6, "i32": 2, "bool": 2, "f16": 1}
WIDE = {"f64": 6, "i32": 2, "bool": 2}
TRIES_EACH = 400
CHECKED = 12
"""Instances with which types are checked."""


def instances(
    rule: PatternRule, count: int, seed: int = 0, wide: bool = False
) -> Iterator[Module]:
    """Up to ``count`` modules that the rule changes, or cannot although its pattern is there; fewer
    when they are hard to find. The same seed gives the same. ``wide``: floats of 64 bits in the
    place of 32."""
    rng = random.Random(seed)
    for _ in range(count):
        for _ in range(TRIES_EACH):
            module = drawn(rule.pattern, rng, WIDE if wide else DTYPE_WEIGHTS, not wide)
            if module is not None and _applies(rule, module):
                yield module
                break
        else:
            return


def _applies(rule: PatternRule, module: Module) -> bool:
    before = [op.name for op in module.body.ops]
    last = module.body.ops[-1]
    try:
        after = apply_rules(module, (rule,))
    except SpyrecError:  # who applies it is told
        return True
    return [op.name for op in after.body.ops] != before or after.body.ops[-1] is not last


def check_types(rule: PatternRule) -> None:
    """PassError when the replacement has another type than what it replaces in some instance, when
    its ops do not take their operands, or when no instance is found."""
    found = 0
    try:
        for module in instances(rule, CHECKED):
            apply_rules(module, (rule,))
            found += 1
    except SpyrecError as error:
        told = str(error).removeprefix(f"rule {rule.name}: ")
        raise PassError(f"rule {rule.name}: {told}") from error
    if not found:
        raise PassError(
            f"rule {rule.name}: of {TRIES_EACH} drawn models none has its pattern, so it cannot be "
            "checked; is a condition too narrow, or an attribute impossible?"
        )
