"""Claims as bytes: section .claims of an object file, block ``claims`` of a listing.

Who holds what comes with them, if a program has any of it in the scratchpads.

A tree of whole numbers, texts and tuples. Before each stands a number, seven bits a byte: its two
low bits are the kind, the others a whole number (its sign in the lowest), the length of a text or
of a tuple, or which of the tuples before, in order of their ends, stands here again.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from .errors import ObjectError
from .isa import (
    Affine,
    Claim,
    Extent,
    Holding,
    Instr,
    Intent,
    Kernel,
    Loop,
    Num,
    Program,
    Stream,
    Tensor,
    instructions,
)

Tree: TypeAlias = "int | str | tuple[Tree, ...]"
Boxes: TypeAlias = tuple[tuple[tuple[int, int], ...], ...]
INT, TEXT, TUPLE, AGAIN = range(4)
DEPTH = 16
NODES = 1 << 26
"""Of a tree, what stands in it again counted again: beyond any program, and soon read."""


def pack_claims(program: Program) -> bytes:
    """All claims of a program; empty when it has none."""
    if not program.tensors:
        return b""
    kernels: list[Tree] = [
        (
            tuple(map(_tensor, kernel.tiles)),
            tuple(tuple(map(_intent, instr.intents)) for instr in _instrs(kernel)),
        )
        for kernel in program.kernels
    ]
    held = (tuple(map(_holding, program.holdings)),) if program.holdings else ()
    tree: Tree = (
        tuple(map(_tensor, program.tensors)),
        tuple(kernels),
        tuple(launch.tensors for launch in program.launches),
        *held,
    )
    return bytes(_Writer().tree(tree).out)


def with_claims(program: Program, data: bytes | memoryview) -> Program:
    """The program with the claims that ``data`` hold. ObjectError: they are none, or not of a
    program like this; whether what they say can be is for ``check_program``."""
    if not len(data):
        return program
    reader = _Reader(bytes(data))
    tree = _many(reader.tree())
    tensors, kernels, launches, *held = _fields(tree, 4 if len(tree) > 3 else 3)
    if reader.at != len(reader.data):
        raise ObjectError(f"claims: {len(reader.data) - reader.at} bytes are left over")
    made = zip(program.kernels, _many(kernels, len(program.kernels)), strict=True)
    bound = zip(program.launches, _many(launches, len(program.launches)), strict=True)
    return replace(
        program,
        tensors=tuple(map(_read_tensor, _many(tensors))),
        kernels=tuple(_with(kernel, tree) for kernel, tree in made),
        launches=tuple(replace(launch, tensors=_ints(tree)) for launch, tree in bound),
        holdings=_read_holdings(held[0]) if held else (),
    )


def without_claims(program: Program) -> Program:
    """The program as if nobody had said what it is meant to do."""
    def bare(stream: Stream) -> Stream:
        return tuple(
            replace(item, body=bare(item.body)) if isinstance(item, Loop)
            else replace(item, intents=()) for item in stream
        )  # fmt: skip

    kernels = (
        replace(k, streams={unit: bare(s) for unit, s in k.streams.items()}, tiles=())
        for k in program.kernels
    )
    launches = (replace(launch, tensors=()) for launch in program.launches)
    return replace(
        program, kernels=tuple(kernels), launches=tuple(launches), tensors=(), holdings=()
    )


def _instrs(kernel: Kernel) -> Iterator[Instr]:
    return (instr for _, s in sorted(kernel.streams.items()) for instr, _ in instructions(s))


def _tensor(t: Tensor) -> Tree:
    return t.name, t.shape, t.stick_dim, t.digits, t.lanes


def _holding(h: Holding) -> Tree:
    return h.tensor, h.dtype, h.address, h.size, h.launches, h.boxes


def _intent(intent: Intent) -> Tree:
    return (
        tuple(
            (c.tensor, tuple(map(_affine, c.at)), _affine(c.turn), _affine(c.made))
            for c in intent.claims
        ),
        tuple((e.left, e.step, e.most, e.loops) for e in intent.extents),
        intent.where,
    )


def _affine(a: Affine) -> Tree:
    return a.start, a.steps, a.loops


def _with(kernel: Kernel, tree: Tree) -> Kernel:
    tiles, given = _fields(tree, 2)
    count = sum(1 for _ in _instrs(kernel))
    if not isinstance(given, tuple) or len(given) != count:
        raise ObjectError(
            f"claims: they are not of the {count} instructions of kernel @{kernel.name}; drop them"
        )
    each = iter(given)
    known: dict[Tree, tuple[Intent, ...]] = {}

    def told(stream: Stream) -> Stream:
        return tuple(
            replace(item, body=told(item.body)) if isinstance(item, Loop)
            else replace(item, intents=_intents(next(each), known)) for item in stream
        )  # fmt: skip

    streams = {unit: told(stream) for unit, stream in sorted(kernel.streams.items())}
    ordered = {unit: streams[unit] for unit in kernel.streams}
    return replace(kernel, streams=ordered, tiles=tuple(map(_read_tensor, _many(tiles))))


def _intents(tree: Tree, known: dict[Tree, tuple[Intent, ...]]) -> tuple[Intent, ...]:
    if tree not in known:
        known[tree] = tuple(map(_read_intent, _many(tree)))
    return known[tree]


def _read_tensor(tree: Tree) -> Tensor:
    name, shape, stick_dim, digits, lanes = _fields(tree, 5)
    if not isinstance(name, str):
        raise _odd(name)
    return Tensor(name, _ints(shape), _int(stick_dim), _digits(digits), _digits(lanes))


def _read_holdings(tree: Tree) -> tuple[Holding, ...]:
    found = []
    known: dict[Tree, Boxes] = {}
    for item in _many(tree):
        tensor, dtype, address, size, launches, boxes = _fields(item, 6)
        if not isinstance(dtype, str):
            raise _odd(dtype)
        if boxes not in known:
            known[boxes] = tuple(tuple(map(_pair, _many(box))) for box in _many(boxes))
        found.append(Holding(
            _int(tensor), dtype, _int(address), _int(size), _ints(launches), known[boxes],
        ))  # fmt: skip
    return tuple(found)


def _pair(tree: Tree) -> tuple[int, int]:
    first, count = _fields(tree, 2)
    return _int(first), _int(count)


def _digits(tree: Tree) -> tuple[tuple[int, int, int, int], ...]:
    found = []
    for digit in _many(tree):
        dim, size, stride, weight = map(_int, _fields(digit, 4))
        found.append((dim, size, stride, weight))
    return tuple(found)


def _read_intent(tree: Tree) -> Intent:
    claims, extents, where = _fields(tree, 3)
    return Intent(
        tuple(map(_read_claim, _many(claims))), tuple(map(_read_extent, _many(extents))),
        _int(where),
    )  # fmt: skip


def _read_claim(tree: Tree) -> Claim:
    tensor, at, turn, made = _fields(tree, 4)
    read = map(_read_affine, _many(at))
    return Claim(_int(tensor), tuple(read), _read_affine(turn), _read_affine(made))


def _read_affine(tree: Tree) -> Affine:
    start, steps, loops = _fields(tree, 3)
    return Affine(_num(start), _ints(steps), _ints(loops))


def _read_extent(tree: Tree) -> Extent:
    left, step, most, loops = _fields(tree, 4)
    return Extent(_num(left), _int(step), _int(most), _ints(loops))


def _fields(tree: Tree, count: int) -> tuple[Tree, ...]:
    return _many(tree, count)



def _many(tree: Tree, count: int = -1) -> tuple[Tree, ...]:
    if not isinstance(tree, tuple) or count not in (-1, len(tree)):
        raise _odd(tree)
    return tree


def _ints(tree: Tree) -> tuple[int, ...]:
    return tuple(map(_int, _many(tree)))


def _num(tree: Tree) -> Num:
    return tree if isinstance(tree, int) else _ints(tree)


def _int(tree: Tree) -> int:
    if not isinstance(tree, int):
        raise _odd(tree)
    return tree


def _odd(tree: Tree) -> ObjectError:
    return ObjectError(f"claims: {reprlib.repr(tree)[:60]} stands where something else should")


@dataclass
class _Writer:
    out: bytearray = field(default_factory=bytearray)
    known: dict[Tree, int] = field(default_factory=dict)

    def tree(self, tree: Tree) -> _Writer:
        if isinstance(tree, int):
            self._head(INT, 2 * tree if tree >= 0 else -2 * tree - 1)
        elif isinstance(tree, str):
            raw = tree.encode()
            self._head(TEXT, len(raw))
            self.out += raw
        elif tree in self.known:
            self._head(AGAIN, self.known[tree])
        else:
            self._head(TUPLE, len(tree))
            for item in tree:
                self.tree(item)
            self.known[tree] = len(self.known)
        return self

    def _head(self, kind: int, value: int) -> None:
        left = value << 2 | kind
        while left > 127:
            self.out.append(left & 127 | 128)
            left >>= 7
        self.out.append(left)


@dataclass(frozen=True)
class _Known:
    """A tuple that was read, how many nodes it has and how deep they stand."""

    tree: Tree
    nodes: int
    height: int


@dataclass
class _Reader:
    data: bytes
    at: int = 0
    known: list[_Known] = field(default_factory=list)

    def tree(self, depth: int = 0) -> Tree:
        return self._read(depth).tree

    def _read(self, depth: int) -> _Known:
        head = self._head()
        kind, value = head & 3, head >> 2
        if kind == INT:
            return _Known(-(value + 1 >> 1) if value & 1 else value >> 1, 1, 0)
        if kind == AGAIN:
            if value >= len(self.known):
                raise self.error(f"tuple {value} is not one of the {len(self.known)} before")
            known = self.known[value]
            if depth + known.height > DEPTH:
                raise self.error(f"tuple {value} stands too deep")
            return known
        if value > len(self.data) - self.at or depth == DEPTH:
            raise self.error(f"{value} items cannot fit, or stand too deep")
        if kind == TEXT:
            self.at += value
            try:
                return _Known(self.data[self.at - value : self.at].decode(), 1, 0)
            except UnicodeDecodeError:
                raise self.error("a name is not UTF-8 text") from None
        items = [self._read(depth + 1) for _ in range(value)]
        nodes = 1 + sum(item.nodes for item in items)
        if nodes > NODES:
            raise self.error(f"there are more than {NODES} numbers and texts")
        height = 1 + max((item.height for item in items), default=0)
        made = _Known(tuple(item.tree for item in items), nodes, height)
        self.known.append(made)
        return made

    def _head(self) -> int:
        value = shift = 0
        while True:
            if self.at == len(self.data) or shift > 63:
                raise self.error("a number does not end")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def error(self, problem: str) -> ObjectError:
        return ObjectError(f"claims, byte {self.at}: {problem}; the file is damaged")
