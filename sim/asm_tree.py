"""Listing text to a syntax tree, and the tree's leaves to numbers, names and texts."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from .errors import AsmError, ObjectError
from .isa import Num

Node = Tree[Token]

_WORDS = {  # what a terminal of the grammar is called in a message
    "BUFFER": "%buffer", "FLOAT": "a number", "HEX": "0x..", "INT": "a whole number",
    "KERNEL": "@kernel", "KEY": "name=", "LINE": "| text", "PARAM": "$parameter",
    "REF": "x0, c0 or s0", "SET": "<0-3>", "STRING": '"text"', "TOKEN": "t0", "WORD": "a word",
    "$END": "the end",
}  # fmt: skip


@cache
def _parser() -> Lark:
    grammar = (resources.files(__package__) / "listing.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", propagate_positions=True)


def parse(text: str) -> Node:
    try:
        return _parser().parse(text)
    except UnexpectedToken as error:
        wanted = _choices(error.accepts or error.expected)
        got = "the listing ends" if error.token.type == "$END" else f"got {str(error.token)!r}"
        line = text.count("\n") + 1 if error.token.type == "$END" else error.line
        raise AsmError(f"expected {wanted}; {got}", line) from None
    except UnexpectedCharacters as error:
        wanted = _choices(error.allowed or set())
        raise AsmError(f"expected {wanted}; got {error.char!r}", error.line) from None


def _choices(terminals: set[str]) -> str:
    patterns = {t.name: t.pattern.value for t in _parser().terminals}
    shown = terminals - {"SPACE", "COMMENT"}
    return " or ".join(sorted(_WORDS.get(name) or patterns.get(name, name) for name in shown))


@contextmanager
def at(line: int) -> Iterator[None]:
    """A broken rule of the machine becomes an error of the listing at ``line``."""
    try:
        yield
    except ObjectError as error:
        raise AsmError(str(error), line) from None


def tokens_of(node: Node | None) -> list[Token]:
    return [child for child in node.children if isinstance(child, Token)] if node else []


def trees_of(node: Node | None) -> list[Node]:
    return [child for child in node.children if isinstance(child, Tree)] if node else []


def every(node: Node, kind: str) -> list[Node]:
    return [child for child in trees_of(node) if child.data == kind]


def only(node: Node | None, kind: str) -> Node | None:
    """The child of that kind, if there is one. AsmError if there are two."""
    found = every(node, kind) if node else []
    if len(found) > 1:
        raise AsmError(f"{kind} is given twice", line_of(found[1]))
    return found[0] if found else None


def line_of(node: Node) -> int:
    return int(getattr(node.meta, "line", 0))


def num_of(node: Node, cores: int) -> Num:
    match node.data:
        case "affine":
            start = integer(tokens_of(node)[0])
            steps = [_core_step(step, cores) for step in trees_of(node)]
            return _settled([start + sum(step[c] for step in steps) for c in range(cores)])
        case "each":
            return _settled(_runs(node, cores))
        case _:
            return value_of(tokens_of(node)[0])


def _core_step(node: Node, cores: int) -> list[int]:
    step, *folds = map(integer, tokens_of(node))
    if folds and folds[0] < 1:
        raise AsmError(f"cores cannot be folded by {folds[0]}; expected 1 or more", line_of(node))
    match node.data:
        case "within":
            return [step * (c % folds[0]) for c in range(cores)]
        case "across":
            return [step * (c // folds[0]) for c in range(cores)]
        case _:
            return [step * c for c in range(cores)]


def _runs(node: Node, cores: int) -> list[int]:
    values: list[int] = []
    for run in trees_of(node):
        *times, value = tokens_of(run)
        n = integer(times[0]) if times else 1
        if not 1 <= n <= cores - len(values):
            raise AsmError(
                f"the runs give more or less than one number for each of {cores} cores",
                line_of(run),
            )
        values += [value_of(value)] * n
    if len(values) != cores:
        raise AsmError(f"{len(values)} numbers are given for {cores} cores", line_of(node))
    return values


def _settled(values: list[int]) -> Num:
    """Equal on all cores is one number, as in ``encoding.canonical``."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def value_of(token: Token) -> int:
    if token.type == "HEX":
        return int(token, 16)
    return _bits(token) if token.type == "SET" else integer(token)


def _bits(token: Token) -> int:
    """``<0-3,7>`` as a bit mask."""
    mask = 0
    for part in filter(None, token[1:-1].split(",")):
        first, _, last = part.partition("-")
        low, high = (
            int(end) if end.isdecimal() and len(end) < 4 else 64 for end in (first, last or first)
        )
        if not low <= high < 64:
            raise AsmError(f"{token} is not a set of numbers 0..63", token.line or 0)
        mask |= (2 << high) - (1 << low)
    return mask


def integer(token: Token) -> int:
    try:
        return int(token)
    except ValueError:
        raise AsmError(
            f"a whole number of {len(token)} digits is too long", token.line or 0
        ) from None


def integers(node: Node | None) -> tuple[int, ...]:
    return tuple(map(integer, tokens_of(node)))


def floating(token: Token) -> float:
    if token.startswith("nan:"):
        return float(struct.unpack(">d", bytes.fromhex(token[4:]))[0])
    return float(token)


def name_of(token: Token) -> str:
    """A name without its sigil."""
    return text_of(token, 1) if token[1:2] == '"' else str(token[1:])


def text_of(token: Token, start: int = 0) -> str:
    try:
        return str(json.loads(token[start:], strict=False))
    except ValueError:
        raise AsmError(f"{token} is not a JSON string", token.line or 0) from None


def after_bar(token: Token) -> str:
    return str(token[2:] if token[1:2] == " " else token[1:])
