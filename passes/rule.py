"""Rewrite rules as data, and the driver that applies a table of them until nothing changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from spyrec.ir.core import Builder, Module, Op, Value, rewrite
from spyrec.ir.errors import PassError
from spyrec.ir.ops import attributes

from .dce import remove_dead
from .emit import Emit, facts_of

Exactness = Literal["exact", "rounding", "approximation"]

Build = Callable[[Op, Emit], Value | Sequence[Value] | None]
"""Replacement values of an op's results, or None (having emitted nothing) when the rule does
not apply to this op. The op has all its attributes, defaults filled in."""

ROUNDS_MAX = 200


@dataclass(frozen=True)
class Rule:
    """One rewrite of the op called ``op``.

    ``exactness``: "exact" gives the same bits, "rounding" the same real-number formula evaluated
    in another order, "approximation" another formula with a stated error. ``reason`` is one
    sentence: the equation, why it is wanted, and the error where there is one.
    """

    name: str
    op: str
    build: Build
    exactness: Exactness
    reason: str


def apply_rules(
    module: Module, rules: Iterable[Rule], counts: Counter[str] | None = None
) -> Module:
    """Rewrite the module's top-level ops until no rule applies; earlier rules come first. Ops that
    nobody reads go as well.

    ``counts`` gains how often each rule was used. PassError if a rule changes a type or the rules
    do not come to rest (a defect of the rules).
    """
    by_op: dict[str, list[Rule]] = {}
    for rule in rules:
        by_op.setdefault(rule.op, []).append(rule)
    used: Counter[str] = Counter() if counts is None else counts
    for _ in range(ROUNDS_MAX):
        before = sum(used.values())
        # What a rule left unread must go, or it would count as a reader in the next round.
        module = remove_dead(_one_round(module, by_op, used))
        if sum(used.values()) == before:
            return module
    raise PassError(
        f"the rules did not come to rest in {ROUNDS_MAX} rounds; most used: "
        + ", ".join(f"{name} {n}x" for name, n in used.most_common(3))
    )


def _one_round(module: Module, by_op: dict[str, list[Rule]], used: Counter[str]) -> Module:
    facts = facts_of(module)

    def step(op: Op, builder: Builder) -> Sequence[Value] | None:
        rules = by_op.get(op.name, ())
        full = replace(op, attrs=MappingProxyType(attributes(op))) if rules else op
        for rule in rules:
            made = rule.build(full, Emit(builder, facts, op.loc))
            if made is None:
                continue
            results = (made,) if isinstance(made, Value) else tuple(made)
            _check_types(rule, op, results)
            used[rule.name] += 1
            return results
        facts.note(op)
        return None

    return rewrite(module, step)


def _check_types(rule: Rule, op: Op, results: Sequence[Value]) -> None:
    for old, new in zip(op.results, results, strict=True):
        if old.type != new.type:
            raise PassError(
                f"rule {rule.name}: the replacement of {op.name} %{old.name} has type {new.type}, "
                f"expected {old.type} (from {op.loc}); this is a defect of the rule"
            )
