"""Declared rules as text::

    rule "twice" exact "x + x = 2 x."
      match   %y = add(%x, %x)
      when    float(%x)
      replace %y = mul(%x, 2.0)

    rule "neg-neg" exact "-(-x) = x."
      match   %a = neg(%x)
              %y = neg(%a)
      replace %y = %x

The last op of ``match`` is replaced by what ``replace`` calls by its name. ``$name`` is an
attribute of any value, ``shared %a`` lets others read an inner value too, ``error 1e-3`` goes with
an approximation, ``//`` starts a comment. See `pattern` for the conditions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from lark import Lark, Token, Transformer, UnexpectedInput
from lark.exceptions import VisitError

from spyrec.ir.core import Attr
from spyrec.ir.errors import PassError

from .pattern import (
    AttrVar,
    Computed,
    Condition,
    Holds,
    Node,
    Pattern,
    PatternRule,
    Var,
    pattern_rule,
)

GRAMMAR = r"""
start: rule*
rule: "rule" STRING EXACTNESS STRING part*
part: "match" node+ -> match
    | "replace" line+ -> replace
    | "when" condition ("," condition)* -> when
    | "shared" VALUE ("," VALUE)* -> shared
    | "error" NUMBER -> error

?line: node | alias
node: VALUE "=" NAME "(" (_operand ("," _operand)*)? ")" attrs?
alias: VALUE "=" _operand
_operand: value | number
value: VALUE
attrs: "{" attr ("," attr)* "}"
attr: NAME "=" _term
_term: ATTR | computed | literal
computed: NAME "(" (_term ("," _term)*)? ")"
condition: NAME "(" (_argument ("," _argument)*)? ")"
_argument: VALUE | ATTR | literal
literal: number | STRING | WORD | several
several: "(" (literal ("," literal)* ","?)? ")"
number: NUMBER

EXACTNESS: "exact" | "rounding" | "approximation"
WORD.2: /(true|false|none)\b/
VALUE: /%[A-Za-z0-9_]+/
ATTR: /\$[A-Za-z_][A-Za-z0-9_]*/
NAME: /[A-Za-z_][A-Za-z0-9_]*/
STRING: /"[^"\\\n]*(?:\\.[^"\\\n]*)*"/
NUMBER: /-?(?:inf|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)/
COMMENT: /\/\/[^\n]*/
%import common.WS
%ignore WS
%ignore COMMENT
"""
WORDS: Mapping[str, Attr] = {"true": True, "false": False, "none": None}


def parse_rules(
    text: str, *, conditions: Mapping[str, Holds] | None = None,
    functions: Mapping[str, Callable[..., Attr]] | None = None, check: bool = True,
) -> tuple[PatternRule, ...]:
    """The rules of a text. ``conditions`` and ``functions`` of one's own can be named in it.

    ``check``: make instances of each pattern and see that its replacement has the same type
    (`pattern_instances.check_types`). PassError that names rule and line.
    """
    try:
        found = _Reader(conditions, functions).transform(_grammar().parse(text))
    except UnexpectedInput as error:
        where = f"rules, line {error.line}, column {error.column}"
        raise PassError(f"{where}: {_near(error, text)}") from None
    except VisitError as error:
        if isinstance(error.orig_exc, PassError):
            raise error.orig_exc from None
        raise
    rules: tuple[PatternRule, ...] = found
    names = [r.name for r in rules]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise PassError(f"two rules are called {', '.join(twice)}")
    if check:
        from .pattern_instances import check_types

        for rule in rules:
            check_types(rule)
    return rules


@cache
def _grammar() -> Lark:
    return Lark(GRAMMAR, parser="lalr", maybe_placeholders=False)


def _near(error: UnexpectedInput, text: str) -> str:
    rest = text[error.pos_in_stream or 0 :].split("\n", 1)[0].strip()
    return f"{rest[:30]!r} was not expected" if rest else "the text ends too early"


class _Reader(Transformer[Token, Any]):
    """Rules from the tree."""

    def __init__(
        self, conditions: Mapping[str, Holds] | None,
        functions: Mapping[str, Callable[..., Attr]] | None,
    ) -> None:
        super().__init__()
        self.conditions, self.functions = conditions, functions

    def start(self, rules: list[PatternRule]) -> tuple[PatternRule, ...]:
        return tuple(rules)

    def number(self, tokens: list[Token]) -> int | float:
        text = str(tokens[0])
        return int(text) if text.lstrip("-").isdigit() else float(text)

    def literal(self, items: list[Any]) -> Any:
        (item,) = items
        if isinstance(item, Token):
            return WORDS[str(item)] if item.type == "WORD" else json.loads(str(item))
        return item

    def several(self, items: list[Any]) -> tuple[Any, ...]:
        return tuple(items)

    def VALUE(self, token: Token) -> Var:
        return Var(str(token)[1:])

    def ATTR(self, token: Token) -> AttrVar:
        return AttrVar(str(token)[1:])

    def value(self, items: list[Var]) -> Var:
        return items[0]

    def computed(self, items: list[Any]) -> Computed:
        return Computed(str(items[0]), tuple(items[1:]))

    def attr(self, items: list[Any]) -> tuple[str, Any]:
        return str(items[0]), items[1]

    def attrs(self, items: list[tuple[str, Any]]) -> dict[str, Any]:
        return dict(items)

    def node(self, items: list[Any]) -> Node:
        result, name, *rest = items
        attrs = rest.pop() if rest and isinstance(rest[-1], dict) else {}
        return Node(result.name, str(name), tuple(rest), attrs)

    def alias(self, items: list[Any]) -> tuple[str, Any]:
        return items[0].name, items[1]

    def condition(self, items: list[Any]) -> Condition:
        return Condition(str(items[0]), tuple(items[1:]))

    def match(self, items: list[Node]) -> tuple[str, Any]:
        return "match", tuple(items)

    def replace(self, items: list[Any]) -> tuple[str, Any]:
        return "replace", tuple(items)

    def when(self, items: list[Condition]) -> tuple[str, Any]:
        return "when", tuple(items)

    def shared(self, items: list[Var]) -> tuple[str, Any]:
        return "shared", frozenset(v.name for v in items)

    def error(self, items: list[Token]) -> tuple[str, Any]:
        return "error", float(items[0])

    def rule(self, items: list[Any]) -> PatternRule:
        name, exactness, reason = json.loads(items[0]), str(items[1]), json.loads(items[2])
        parts = dict(items[3:])
        if len(parts) < len(items) - 3:
            raise PassError(f"rule {name}: a part is given twice")
        missing = [p for p in ("match", "replace") if p not in parts]
        if missing:
            raise PassError(f"rule {name}: {' and '.join(missing)} is missing")
        nodes: tuple[Node, ...] = parts["match"]
        made, result = self._replacement(name, nodes[-1].result, parts["replace"])
        pattern = Pattern(
            nodes, made, result, parts.get("when", ()), parts.get("shared", frozenset())
        )
        return pattern_rule(
            name, pattern, exactness, reason,  # type: ignore[arg-type]  # the grammar's words
            error=parts.get("error", 0.0), conditions=self.conditions, functions=self.functions,
        )

    def _replacement(
        self, rule: str, root: str, lines: tuple[Any, ...]
    ) -> tuple[tuple[Node, ...], Any]:
        """The nodes, with the last one's result renamed, and what takes the place."""
        *first, last = lines
        if any(not isinstance(line, Node) for line in first):
            raise PassError(f"rule {rule}: only the last line of replace may be a name or a number")
        called = last.result if isinstance(last, Node) else last[0]
        if called != root:
            raise PassError(f"rule {rule}: the last line of replace gives %{root}, not %{called}")
        if not isinstance(last, Node):
            return tuple(first), last[1]
        new = f"{root}'"
        return (*first, Node(new, last.name, last.operands, last.attrs)), Var(new)
