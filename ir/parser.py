"""Text -> IR: the grammar is in ir/text.lark, what is written is described in ir/printer.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn, cast

import numpy as np
from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput, UnexpectedToken

from .core import Attr, Block, Loc, Module, Op, Value
from .dense import digest, parse_elements, parse_splat, size_bytes, unpack
from .errors import ParseError, SpyrecError
from .literals import MAX_DEPTH, bare, parse_int, parse_number, unquote
from .types import DTYPES, Dim, Space, Sym, TensorType, dtype

if TYPE_CHECKING:
    from .layout import Layout

_SHOWN_CHARS = 60  # of a long line, on each side of the place an error points at

_SPELLED = {
    "$END": "the end of the text", "VALUE": "a %value", "NAME": "a name", "STRING": "a string",
    "NUMBER": "a number", "DIM": "a dimension", "SYM": "a symbolic dimension",
    "SYMBOL": "a symbolic dimension", "LAYOUT": "a layout", "DATA": "<base64 data>",
}  # fmt: skip

Scope = dict[str, Value]


def parse_module(text: str, blobs: Mapping[str, np.ndarray] | None = None) -> Module:
    """The module that ``text`` describes.

    ``blobs`` holds arrays by digest, for text in which they are elided. ParseError gives line,
    column and the offending line; it also covers names defined twice or not at all, while types
    and attributes are left to the verifier.
    """
    return _Reader(text, blobs or {}).module(_tree(text, "start"))


def parse_type(text: str) -> TensorType:
    """The type whose ``str`` is ``text``; ParseError as above."""
    return _Reader(text, {}).type(_trees(_tree(text, "type_alone"))[0])


@cache
def _grammar() -> Lark:
    text = (resources.files(__package__) / "text.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", lexer="contextual", start=["start", "type_alone"])


def _tree(text: str, start: str) -> Tree[Token]:
    try:
        return _grammar().parse(text, start=start)
    except UnexpectedInput as error:
        line, column = error.line, error.column
        if _at_end(error):
            lines = text.rstrip().split("\n")
            line, column = len(lines), len(lines[-1]) + 1
        raise ParseError(_note(text, line, column, _unexpected(error, text))) from None


def _at_end(error: UnexpectedInput) -> bool:
    return isinstance(error, UnexpectedToken) and error.token.type == "$END"


def _unexpected(error: UnexpectedInput, text: str) -> str:
    if isinstance(error, UnexpectedToken):
        wanted = error.accepts or error.expected
        got = "the end of the text" if _at_end(error) else repr(str(error.token)[:40])
    else:
        wanted = getattr(error, "allowed", None) or set()
        got = repr(text[error.pos_in_stream or 0 :][:1])
    expected = sorted(map(_spelled, wanted))
    bare = got[1:-1] in DTYPES and "'type'" in expected
    hint = f"; an element type is written 'type {got[1:-1]}'" if bare else ""
    return f"expected {' or '.join(expected)}, got {got}{hint}"


def _spelled(terminal: str) -> str:
    if terminal in _SPELLED:
        return _SPELLED[terminal]
    pattern = next((t.pattern for t in _grammar().terminals if t.name == terminal), None)
    return f"'{pattern.value}'" if pattern is not None else terminal


def _note(text: str, line: int, column: int, sentence: str) -> str:
    whole = text.split("\n")[line - 1]
    start = max(0, column - 1 - _SHOWN_CHARS)
    shown = whole[start : column - 1 + _SHOWN_CHARS].rstrip("\r")
    return f"line {line}, column {column}: {sentence}\n  {shown}\n  {' ' * (column - 1 - start)}^"


def _trees(tree: Tree[Token]) -> list[Tree[Token]]:
    return [c for c in tree.children if isinstance(c, Tree)]


def _tokens(tree: Tree[Token], kind: str | None = None) -> list[Token]:
    return [c for c in tree.children if isinstance(c, Token) and kind in (None, c.type)]


def _child(tree: Tree[Token], rule: str) -> Tree[Token]:
    """The child made by ``rule``, or an empty one where the text leaves it out."""
    return next((c for c in _trees(tree) if c.data == rule), Tree(rule, []))


class _Reader:
    """One text being read: its resources, the names taken so far, and what errors quote."""

    def __init__(self, text: str, blobs: Mapping[str, np.ndarray]) -> None:
        self.text = text
        self.blobs = blobs
        self.packed: dict[str, Token] = {}
        self.unpacked: dict[str, np.ndarray] = {}
        self.taken: dict[str, int] = {}  # value name -> line that defines it

    def fail(self, at: Token, sentence: str) -> NoReturn:
        raise ParseError(_note(self.text, at.line or 1, at.column or 1, sentence))

    def module(self, tree: Tree[Token]) -> Module:
        for entry in _trees(_child(tree, "resources")):
            key, data = _tokens(entry)
            self.packed[self.string(key)] = data
        scope: Scope = {}
        args: list[Value] = []
        ops: list[Op] = []
        outputs: list[tuple[str, Value]] = []
        for item in _trees(tree):
            match item.data:
                case "input":
                    args.append(self.declare(item, scope))
                case "op":
                    ops.append(self.op(item, scope, 1))
                case "output":
                    called, value = _tokens(item)
                    outputs.append((self.string(called), self.used(value, scope)))
        body = Block(tuple(args), tuple(ops), tuple(v for _, v in outputs))
        name = self.string(_tokens(tree)[0])
        attrs = self.attrs(_child(tree, "attrs"))
        return Module(name, body, tuple(n for n, _ in outputs), attrs)

    def op(self, tree: Tree[Token], scope: Scope, depth: int) -> Op:
        name = _tokens(_child(tree, "name"))[0]
        if depth > MAX_DEPTH:
            self.fail(name, f"this op stands in more than {MAX_DEPTH} regions")
        operands = tuple(self.used(t, scope) for t in _tokens(_child(tree, "operands")))
        attrs = self.attrs(_child(tree, "attrs"))
        nodes = tuple(self.string(t) for t in _tokens(_child(tree, "locs")))
        blocks = [c for c in _trees(tree) if c.data == "block"]
        regions = tuple(self.block(b, scope, depth + 1) for b in blocks)
        targets = _tokens(_child(tree, "results"))
        types = [self.type(t) for t in _trees(_child(tree, "types"))]
        if len(targets) != len(types):
            self.fail(name, f"{len(targets)} results are named, but {len(types)} types are given")
        results = tuple(self.define(t, y, scope) for t, y in zip(targets, types, strict=True))
        return Op(self.name(name), operands, results, attrs, regions, Loc(nodes))

    def block(self, tree: Tree[Token], scope: Scope, depth: int) -> Block:
        outside = len(scope)
        args = tuple(self.declare(arg, scope) for arg in _trees(_child(tree, "args")))
        ops = tuple(self.op(c, scope, depth) for c in _trees(tree) if c.data == "op")
        results = tuple(self.used(t, scope) for t in _tokens(_child(tree, "yield_")))
        while len(scope) > outside:  # names are unique, so the last ones are this block's own
            scope.popitem()
        return Block(args, ops, results)

    def declare(self, tree: Tree[Token], scope: Scope) -> Value:
        return self.define(_tokens(tree)[0], self.type(_trees(tree)[0]), scope)

    def define(self, token: Token, type_: TensorType, scope: Scope) -> Value:
        value = Value(self.name(token, skip=1), type_)
        if value.name in self.taken:
            line = self.taken[value.name]
            self.fail(token, f"{token} is already defined in line {line}; give it another name")
        self.taken[value.name] = token.line or 1
        scope[value.name] = value
        return value

    def used(self, token: Token, scope: Scope) -> Value:
        name = self.name(token, skip=1)
        if name in scope:
            return scope[name]
        where = "has been defined so far" if name not in self.taken else "is visible here"
        self.fail(token, f"no value {token} {where}; a value is defined before it is used")

    def string(self, token: Token) -> str:
        return self.name(token)

    def name(self, token: Token, skip: int = 0) -> str:
        try:
            return bare(str(token)[skip:])
        except SpyrecError as error:
            self.fail(token, str(error))

    def type(self, tree: Tree[Token]) -> TensorType:
        shape = tuple(self.dim(t) for t in _tokens(tree) if t.type in ("DIM", "SYM"))
        element, *space = _tokens(tree, "NAME")
        try:
            found = TensorType(shape, dtype(str(element)))
        except SpyrecError as error:
            self.fail(element, str(error))
        for token in _tokens(tree, "LAYOUT"):
            found = found.with_(layout=self.layout(token))
        if not space:
            return found
        if space[0] not in ("hbm", "lx"):
            self.fail(space[0], f"{space[0]} is no memory a tensor can live in; use hbm or lx")
        return found.with_(space=cast(Space, str(space[0])))

    def layout(self, token: Token) -> Layout:
        from .layout import parse_layout  # most texts have no layouts

        try:
            return parse_layout(str(token))
        except (SpyrecError, ValueError) as error:  # int() refuses thousands of digits
            self.fail(token, str(error))

    def dim(self, token: Token) -> Dim:
        """``64x``, ``batch[1..64]x`` (in a type) or ``batch[1..64]`` (an attribute)."""
        try:
            if token.type == "DIM":
                return parse_int(token[:-1])
            name, _, bounds = token.removesuffix("x")[:-1].rpartition("[")
            lo, _, hi = bounds.partition("..")
            return Sym(bare(name), parse_int(lo), parse_int(hi))
        except SpyrecError as error:
            self.fail(token, str(error))

    def attrs(self, tree: Tree[Token]) -> Mapping[str, Attr]:
        found: dict[str, Attr] = {}
        for item in _trees(tree):
            key = _tokens(_child(item, "name"))[0]
            if self.name(key) in found:
                self.fail(key, f"attribute {key} is given twice")
            found[self.name(key)] = self.attr(item.children[1], key, 0)
        return MappingProxyType(found)

    def attr(self, node: Token | Tree[Token], key: Token, depth: int) -> Attr:
        match node:
            case Tree(data="tuple") if depth < MAX_DEPTH:
                return tuple(self.attr(c, key, depth + 1) for c in node.children)
            case Tree(data="tuple"):
                self.fail(key, f"attribute {key} is nested more than {MAX_DEPTH} deep")
            case Tree(data="array"):
                return self.array(node)
            case Tree():
                return self.dtype(_tokens(node)[0])
            case Token(type="STRING"):
                return self.string(node)
            case Token(type="NUMBER"):
                return self.number(node)
            case Token(type="SYMBOL"):
                return cast(Attr, self.dim(node))  # stands only in tuples such as a shape
            case Token(type="NONE"):
                return None
            case _:
                return node.type == "TRUE"

    def number(self, token: Token) -> int | float:
        try:
            return parse_number(str(token))
        except SpyrecError as error:
            self.fail(token, str(error))

    def dtype(self, token: Token) -> Attr:
        if token not in DTYPES:
            self.fail(token, f"no element type is called {token}; known: {', '.join(DTYPES)}")
        return DTYPES[token]

    def array(self, tree: Tree[Token]) -> np.ndarray:
        element = _tokens(tree, "NAME")[0]
        contents = _trees(tree)[0]
        items = _tokens(contents)
        try:
            shape = tuple(parse_int(t[:-1]) for t in _tokens(tree, "DIM"))
            match contents.data:
                case "elements":
                    return parse_elements(items, shape, str(element))
                case "splat":
                    return parse_splat(items[0], shape, str(element))
                case "resource":
                    return self.resource(items[0], shape, str(element))
                case _:
                    return self.elided(items[0], shape, str(element))
        except ParseError:
            raise
        except SpyrecError as error:
            self.fail(element, str(error))

    def resource(self, token: Token, shape: tuple[int, ...], dtype_name: str) -> np.ndarray:
        key = unquote(token)
        if key not in self.packed:
            self.fail(token, f"the text has no resource {token}; its data stands after the module")
        if key not in self.unpacked:
            array = unpack(self.packed[key][1:-1], shape, dtype_name)
            if digest(array) != key:
                self.fail(token, f"the data of resource {token} does not have that digest")
            self.unpacked[key] = array
        return self.checked(self.unpacked[key], token, shape, dtype_name)

    def elided(self, token: Token, shape: tuple[int, ...], dtype_name: str) -> np.ndarray:
        key = unquote(token)
        if key not in self.blobs:
            self.fail(token, f"the array {token} is elided and not in blobs; print it in full")
        return self.checked(self.blobs[key], token, shape, dtype_name)

    def checked(
        self, array: np.ndarray, token: Token, shape: tuple[int, ...], dtype_name: str
    ) -> np.ndarray:
        size_bytes(shape, dtype_name)
        if array.shape != shape or array.dtype.name != dtype_name:
            self.fail(
                token,
                f"the array {token} is {array.dtype.name} of shape {array.shape}, "
                f"but {dtype_name} of shape {shape} is asked for",
            )
        return array
