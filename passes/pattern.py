"""Rewrite rules that are declared: a pattern of ops, what stands in for it, and when. A declared
rule is a `Rule` like any other; since its pattern is data, instances of it can be made, and it can
be checked: see `pattern_instances`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from spyrec.ir.core import Attr, Op, Value
from spyrec.ir.errors import PassError
from spyrec.ir.near import EVERY_OP, listed
from spyrec.ir.ops import OPS, REQUIRED

from .emit import Emit
from .rule import Exactness, Rule

COMMUTATIVE = frozenset(("add", "mul", "max", "min", "and", "or", "xor", "eq", "ne"))


@dataclass(frozen=True)
class Var:
    """A value of a pattern, ``%name``."""

    name: str


@dataclass(frozen=True)
class AttrVar:
    """An attribute of a pattern that may have any value, ``$name``."""

    name: str


@dataclass(frozen=True)
class Computed:
    """An attribute of a replacement that a function of others gives, ``name($a, $b)``."""

    function: str
    arguments: tuple[AttrTerm, ...]


AttrTerm = AttrVar | Computed | Attr
Operand = Var | float | int | bool
"""A number is a constant scalar of the type of the op's first value."""


@dataclass(frozen=True)
class Node:
    """``%result = name(operands) {attrs}``. Attributes that are not named are at their defaults."""

    result: str
    name: str
    operands: tuple[Operand, ...]
    attrs: Mapping[str, AttrTerm]


@dataclass(frozen=True)
class Condition:
    """``name(arguments)``, which must hold."""

    name: str
    arguments: tuple[Any, ...]


def _same(a: float | None, b: float) -> bool:
    """Equal numbers, zeros of one sign."""
    return a is not None and a == b and math.copysign(1, a) == math.copysign(1, b)


class Match:
    """What a pattern was found to stand for: ``m["x"]`` is a value, ``m.attr("axis")`` an
    attribute, ``m.known("w")`` the array of a constant."""

    def __init__(self, e: Emit) -> None:
        self.e = e
        self.values: dict[str, Value] = {}
        self.attrs: dict[str, Attr] = {}
        self.inner: list[Op] = []

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def attr(self, name: str) -> Any:
        return self.attrs[name]

    def known(self, name: str) -> np.ndarray[Any, Any] | None:
        return self.e.known(self.values[name])

    def copy(self) -> Match:
        other = Match(self.e)
        other.values, other.attrs = dict(self.values), dict(self.attrs)
        other.inner = list(self.inner)
        return other


Holds = Callable[..., bool]
"""A condition of one's own: called with the Match and the condition's arguments, variables of the
pattern as values and attributes."""

CONDITIONS: Mapping[str, Holds] = MappingProxyType({
    "known": lambda m, v: m.e.known(v) is not None,
    "splat": lambda m, v, number: _same(m.e.splat(v), number),
    "rank": lambda m, v, number: v.type.rank == number,
    "size": lambda m, v, number: v.type.size == number,
    "float": lambda m, v: v.type.dtype.kind == "float",
    "int": lambda m, v: v.type.dtype.kind == "int",
    "same": lambda m, a, b: a.type == b.type,
    "shape": lambda m, a, b: a.type.shape == b.type.shape,
    "last": lambda m, axis, v: axis == v.type.rank - 1,
    "equal": lambda m, a, b: a == b,
})  # fmt: skip
"""What may stand behind ``when``. Of values: is it a constant, one of only this number, its rank
and size, the kind of its elements, two of the same type or shape. Of attributes: is an axis the
last of a value, are two equal."""

FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "after": lambda first, second: tuple(first[i] for i in second),
    "plus": lambda a, b: a + b,
    "times": lambda a, b: a * b,
})  # fmt: skip
"""What may compute attributes: of two permutations the one that does both, sums, products."""


@dataclass(frozen=True)
class Pattern:
    """``nodes``: in their order, the last one is the op that is replaced. ``shared``: inner values
    that others may read as well; what is not among them is read once, so that no work is done
    twice. ``made``: the replacement, the last node or ``result`` takes the place."""

    nodes: tuple[Node, ...]
    made: tuple[Node, ...]
    result: Operand
    conditions: tuple[Condition, ...] = ()
    shared: frozenset[str] = frozenset()

    @property
    def root(self) -> Node:
        return self.nodes[-1]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Values that the pattern reads and does not make, in order of appearance."""
        made = {n.result for n in self.nodes}
        read = (o.name for n in self.nodes for o in n.operands if isinstance(o, Var))
        return tuple(v for v in dict.fromkeys(read) if v not in made)


@dataclass(frozen=True)
class PatternRule(Rule):
    """A rule with its pattern. ``error``: allowed of an approximation. ``holds``: its conditions
    and ``functions``: what computes attributes, by name."""

    pattern: Pattern = field(default=Pattern((), (), 0))
    error: float = 0.0
    holds: Mapping[str, Holds] = field(default_factory=dict)
    functions: Mapping[str, Callable[..., Attr]] = field(default_factory=dict)


def pattern_rule(
    name: str, pattern: Pattern, exactness: Exactness, reason: str, *, error: float = 0.0,
    conditions: Mapping[str, Holds] | None = None,
    functions: Mapping[str, Callable[..., Attr]] | None = None,
) -> PatternRule:
    """A rule that looks for ``pattern``. PassError that lists what is wrong with it."""
    holds = {**CONDITIONS, **(conditions or {})}
    given = {**FUNCTIONS, **(functions or {})}
    wrong = list(problems(pattern, holds, given))
    if exactness == "approximation" and not error > 0:
        wrong.append("an approximation states its error")
    if wrong:
        raise PassError(f"rule {name}: {'; '.join(wrong)}")

    def build(op: Op, e: Emit) -> Value | None:
        found = next(_matches(pattern, op, e, holds), None)
        return None if found is None else _replaced(pattern, found, op, given)

    return PatternRule(
        name, pattern.root.name, build, exactness, reason, pattern, error, holds, given
    )


def problems(
    pattern: Pattern, holds: Mapping[str, Holds], functions: Mapping[str, Any]
) -> Iterator[str]:
    """What is wrong with a pattern, a sentence each."""
    if not pattern.nodes:
        yield "it matches no op"
        return
    values: set[str] = set(pattern.inputs)
    attrs: set[str] = set()
    for side, nodes in (("match", pattern.nodes), ("replace", pattern.made)):
        for node in nodes:
            known = OPS.get(node.name)
            if known is None or known.regions or (side == "match" and len(known.results) != 1):
                told = f"; {listed(node.name, OPS, EVERY_OP)}" if known is None else ""
                yield f"{side}: {node.name} is no op that a pattern can have{told}"
                continue
            yield from (f"{side}: {node.name} has no attribute {a}; {listed(a, known.attrs)}"
                        for a in node.attrs if a not in known.attrs)
            for key, spec in known.attrs.items():
                if spec.default is REQUIRED and key not in node.attrs:
                    yield f"{side}: {node.name} needs its attribute {key}, as {key} = ${key}"
            for o in node.operands:
                if isinstance(o, Var) and side == "replace" and o.name not in values:
                    yield f"replace: %{o.name} is not known there"
            terms = [t for a in node.attrs.values() for t in _terms(a)]
            names = {t.name for t in terms if isinstance(t, AttrVar)}
            if side == "match":
                attrs |= names
                if any(isinstance(t, Computed) for t in terms):
                    yield "match: an attribute is a value or a $name"
            else:
                yield from (f"replace: ${n} is not known there" for n in sorted(names - attrs))
                yield from (
                    f"replace: there is no function {t.function}; {listed(t.function, functions)}"
                    for t in terms if isinstance(t, Computed) and t.function not in functions
                )
            if node.result in values:
                yield f"{side}: %{node.result} is made twice"
            values.add(node.result)
    if isinstance(pattern.result, Var) and pattern.result.name not in values:
        yield f"replace: %{pattern.result.name} is not known there"
    read = {o.name for n in pattern.nodes for o in n.operands if isinstance(o, Var)}
    yield from (f"match: nothing reads %{n.result}"
                for n in pattern.nodes[:-1] if n.result not in read)
    for c in pattern.conditions:
        if c.name not in holds:
            yield f"when: there is no condition {c.name}; {listed(c.name, holds)}"
        for a in c.arguments:
            if isinstance(a, Var) and a.name not in values:
                yield f"when: %{a.name} is not known"
            if isinstance(a, AttrVar) and a.name not in attrs:
                yield f"when: ${a.name} is not known"


def _terms(term: AttrTerm) -> Iterator[AttrTerm]:
    yield term
    if isinstance(term, Computed):
        for a in term.arguments:
            yield from _terms(a)


def _matches(
    pattern: Pattern, op: Op, e: Emit, holds: Mapping[str, Holds]
) -> Iterator[Match]:
    """All ways in which the pattern stands for the op and what makes its operands."""
    nodes = {n.result: n for n in pattern.nodes}
    for found in _node(pattern, nodes, pattern.root, op, Match(e)):
        if all(_holds(c, found, holds) for c in pattern.conditions):
            yield found


def _node(
    pattern: Pattern, nodes: Mapping[str, Node], node: Node, op: Op, m: Match
) -> Iterator[Match]:
    if op.name != node.name or len(op.operands) != len(node.operands):
        return
    m = m.copy()
    for key, spec in OPS[op.name].attrs.items():
        term: Any = node.attrs.get(key, spec.default)
        value: Any = op.attrs.get(key, spec.default)
        if isinstance(term, AttrVar):
            if term.name in m.attrs and m.attrs[term.name] != value:
                return
            m.attrs[term.name] = value
        elif not _equal(term, value):
            return
    m.values[node.result] = op.result
    if node is not pattern.root:
        m.inner.append(op)
    orders: list[Sequence[Operand]] = [node.operands]
    if op.name in COMMUTATIVE and node.operands[0] != node.operands[1]:
        orders.append(node.operands[::-1])
    for order in orders:
        yield from _operands(pattern, nodes, list(zip(order, op.operands, strict=True)), m)


def _operands(
    pattern: Pattern, nodes: Mapping[str, Node], left: list[tuple[Operand, Value]], m: Match
) -> Iterator[Match]:
    if not left:
        yield m
        return
    (wanted, value), *rest = left
    if not isinstance(wanted, Var):
        number = m.e.splat(value)
        if number is not None and _same(number, wanted) and not value.type.shape:
            yield from _operands(pattern, nodes, rest, m)
        return
    if wanted.name in m.values:
        if m.values[wanted.name] is value:
            yield from _operands(pattern, nodes, rest, m)
        return
    if wanted.name not in nodes:
        m = m.copy()
        m.values[wanted.name] = value
        yield from _operands(pattern, nodes, rest, m)
        return
    node = nodes[wanted.name]
    op = m.e.made_by(value, node.name)
    reads = sum(
        isinstance(o, Var) and o.name == wanted.name for n in pattern.nodes for o in n.operands
    )
    alone = wanted.name in pattern.shared or m.e.facts.readers.get(value, 0) <= reads
    if op is not None and alone:
        for found in _node(pattern, nodes, node, op, m):
            yield from _operands(pattern, nodes, rest, found)


def _equal(a: object, b: object) -> bool:
    return type(a) is type(b) and bool(a == b) if isinstance(a, bool) else bool(a == b)


def _holds(c: Condition, m: Match, holds: Mapping[str, Holds]) -> bool:
    arguments = [
        m.values[a.name] if isinstance(a, Var) else m.attrs[a.name] if isinstance(a, AttrVar) else a
        for a in c.arguments
    ]
    return holds[c.name](m, *arguments)


def _replaced(
    pattern: Pattern, m: Match, op: Op, functions: Mapping[str, Callable[..., Attr]]
) -> Value | None:
    e = m.e
    e.absorb(*m.inner)

    def value(o: Operand, like: Value) -> Value:
        return m.values[o.name] if isinstance(o, Var) else e.scalar(o, like)

    def attr(term: AttrTerm) -> Attr:
        if isinstance(term, AttrVar):
            return m.attrs[term.name]
        if isinstance(term, Computed):
            return functions[term.function](*map(attr, term.arguments))
        return term

    for node in pattern.made:
        first = next((o for o in node.operands if isinstance(o, Var)), None)
        like = op.result if first is None else m.values[first.name]
        operands = [value(o, like) for o in node.operands]
        attrs = {k: attr(t) for k, t in node.attrs.items()}
        m.values[node.result] = e.op(node.name, *operands, **attrs)
    made = value(pattern.result, op.result)
    if isinstance(pattern.result, Var):
        return made
    return e.broadcast(made, op.result.type.static_shape)
