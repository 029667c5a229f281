"""Reads an assembler listing (grammar: listing.lark) into a Program; a fault is an AsmError with
its line."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count as numbering

from lark import Token

from .asm_instr import instr_of
from .asm_tree import (
    Node,
    after_bar,
    at,
    every,
    floating,
    integer,
    integers,
    line_of,
    name_of,
    only,
    parse,
    text_of,
    tokens_of,
    trees_of,
)
from .claim_file import with_claims
from .errors import AsmError
from .isa import (
    MAX_LOOPS,
    Bucket,
    Buffer,
    Instr,
    Joint,
    Kernel,
    Launch,
    Loop,
    MicroOp,
    MicroProgram,
    Note,
    Program,
    Stream,
)
from .wellformed import Limits, check_instr, check_kernel, check_program, check_trips, limits_of

LISTING_VERSION = 1
MAX_SPLAT_BYTES = 1 << 30
MAX_CLAIMS_BYTES = 1 << 28


def assemble(text: str) -> Program:
    """The program a listing describes. AsmError, with the line, when it is not in the grammar or
    what it says is not a well-formed program."""
    tree = parse(text)
    version = integer(tokens_of(tree)[0])
    if version != LISTING_VERSION:
        raise AsmError(
            f"the listing has version {version}; this spyrec reads {LISTING_VERSION}", line_of(tree)
        )
    items: dict[str, list[Node]] = {}
    for item in trees_of(tree):
        items.setdefault(item.data, []).append(item)
    device = _device(items.get("device", []))
    with at(0):
        limits = limits_of(device)
    buffers = tuple(_buffer(b) for b in items.get("buffer", []))
    kernels = tuple(_kernel(k, limits) for k in items.get("kernel", []))
    launches = tuple(_launch(node, kernels) for node in items.get("launch", []))
    buckets = tuple(map(_bucket, items.get("bucket", [])))
    program = Program(kernels, buffers, launches, device, _meta(items.get("meta", [])), buckets)
    for node in items.get("claims", []):
        with at(line_of(node)):
            program = with_claims(program, _unpacked(node, MAX_CLAIMS_BYTES))
    with at(0):
        check_program(program, limits)
    return program


def _device(nodes: Sequence[Node]) -> str:
    if len(nodes) > 1:
        raise AsmError("the device is described twice; drop one description", line_of(nodes[1]))
    if not nodes:
        return ""
    tokens = tokens_of(nodes[0])
    if tokens[0].type == "STRING":
        return text_of(tokens[0])
    return "\n".join(after_bar(token) for token in tokens)


def _meta(nodes: Sequence[Node]) -> dict[str, str]:
    meta: dict[str, str] = {}
    for node in nodes:
        key, value = map(text_of, tokens_of(node))
        if key in meta:
            raise AsmError(f"meta {key!r} is given twice", line_of(node))
        meta[key] = value
    return meta


def _buffer(node: Node) -> Buffer:
    kind, name, size, address = tokens_of(node)[:4]
    inside = trees_of(node)
    meta = _meta([child for child in inside if child.data == "meta"])
    datas = [child for child in inside if child.data != "meta"]
    if kind == "const" and not datas and integer(size):
        raise AsmError(f"constant {name} has no data; give splat or zlib", line_of(node))
    if kind != "const" and datas:
        raise AsmError(f"{name} has data, but only a const buffer has", line_of(node))
    data = b"" if kind == "const" else None
    if datas:
        data = _data(datas[0], integer(size))
    return Buffer(name_of(name), str(kind), integer(size), integer(address), data, meta)


def _data(node: Node, size: int) -> bytes:
    """Exactly ``size`` bytes, or an AsmError."""
    tokens = tokens_of(node)
    if node.data == "splat":
        digits = tokens[0][2:]
        unit = bytes.fromhex(digits) if len(digits) % 2 == 0 else b""
        if not unit or size % len(unit) or not 0 <= size <= MAX_SPLAT_BYTES:
            raise AsmError(
                f"{tokens[0]} cannot be repeated to fill {size} bytes (at most {MAX_SPLAT_BYTES})",
                line_of(node),
            )
        return unit * (size // len(unit))
    data = _unpacked(node, size)
    if len(data) != size:
        more = "more" if len(data) > size else f"{len(data)}"
        raise AsmError(f"the data hold {more} bytes, the buffer {size}", line_of(node))
    return data


def _unpacked(node: Node, most: int) -> bytes:
    """At most one byte more than ``most``."""
    tokens = tokens_of(node)
    try:
        packed = base64.b64decode("".join(after_bar(t).strip() for t in tokens), validate=True)
        unpacker = zlib.decompressobj()
        return unpacker.decompress(packed, max(most, 0) + 1)
    except (binascii.Error, zlib.error, ValueError, OverflowError) as error:
        raise AsmError(f"the data are not zlib in base64: {error}", line_of(node)) from None


def _launch(node: Node, kernels: Sequence[Kernel]) -> Launch:
    name = name_of(tokens_of(node)[0])
    number = next((i for i, k in enumerate(kernels) if k.name == name), None)
    if number is None:
        raise AsmError(f"no kernel is called {name!r}; define it in the listing", line_of(node))
    given: list[str] = []
    args: list[tuple[str, int]] = []
    for arg in every(node, "arg"):
        symbol, buffer, offset = tokens_of(arg)
        given.append(name_of(symbol))
        args.append((name_of(buffer), integer(offset)))
    if tuple(given) != kernels[number].params:
        raise AsmError(
            f"the launch binds ({', '.join(given)}), kernel @{name} has the parameters "
            f"({', '.join(kernels[number].params)})",
            line_of(node),
        )
    after = integers(only(node, "after"))
    early, meets = (only(node, word) is not None for word in ("early", "meet"))
    joint: Joint = "meet" if meets else ""
    return Launch(number, tuple(args), after, early, _notes(node), joint=joint)


def _bucket(node: Node) -> Bucket:
    name, launches = tokens_of(node)
    sizes: dict[str, int] = {}
    for size in every(node, "size"):
        dim, number = tokens_of(size)
        if text_of(dim) in sizes:
            raise AsmError(f"size {dim} is given twice", line_of(size))
        sizes[text_of(dim)] = integer(number)
    holds = tuple(name_of(tokens_of(held)[0]) for held in every(node, "holds"))
    return Bucket(text_of(name), sizes, integer(launches), holds, _meta(every(node, "meta")))


def _kernel(node: Node, limits: Limits) -> Kernel:
    name, cores, lx_bytes = tokens_of(node)[:3]
    params = only(node, "params")
    shell = Kernel(
        name=name_of(name),
        streams={},
        params=tuple(name_of(p) for p in tokens_of(params)),
        programs=tuple(_program(i, p) for i, p in enumerate(every(node, "program"))),
        notes=_notes(node),
        cores=integer(cores),
        lx_bytes=integer(lx_bytes),
        info=_info(every(node, "fact")),
    )
    with at(line_of(node)):
        check_kernel(shell, limits)
    streams: dict[str, Stream] = {}
    for stream in every(node, "stream"):
        unit = str(tokens_of(stream)[0])
        if unit in streams:
            raise AsmError(f"kernel @{shell.name} has two streams {unit}", line_of(stream))
        body = trees_of(stream)[0]
        streams[unit] = _body(body, shell, unit, limits, 0, numbering())
        with at(line_of(stream)):
            check_kernel(replace(shell, streams={unit: streams[unit]}), limits)
    return replace(shell, streams=streams)


def _info(nodes: Sequence[Node]) -> dict[str, int | str]:
    info: dict[str, int | str] = {}
    for node in nodes:
        key, value = tokens_of(node)
        if text_of(key) in info:
            raise AsmError(f"info {text_of(key)!r} is given twice", line_of(node))
        info[text_of(key)] = text_of(value) if value.type == "STRING" else integer(value)
    return info


def _notes(node: Node) -> tuple[Note, ...]:
    return tuple(_note(i, n) for i, n in enumerate(every(node, "note_text")))


def _note(number: int, node: Node) -> Note:
    index, op, *nodes = tokens_of(node)
    if integer(index) != number:
        raise AsmError(f"note {index} stands in the place of note {number}", line_of(node))
    return Note(text_of(op), tuple(map(text_of, nodes)))


def _program(number: int, node: Node) -> MicroProgram:
    index = tokens_of(node)[0]
    inputs, scalars, constants, steps = trees_of(node)
    if integer(index) != number:
        raise AsmError(f"program {index} stands in the place of program {number}", line_of(node))
    names: dict[str, int] = {}
    for i, token in enumerate(tokens_of(inputs)):
        _define(names, token, f"x{i}")
    values: list[float] = []
    for constant in trees_of(constants):
        token, value = tokens_of(constant)
        _define(names, token, f"c{len(values)}")
        values.append(floating(value))
    for i, token in enumerate(tokens_of(scalars)):
        _define(names, token, f"k{i}")
    ops: list[MicroOp] = []
    for step in trees_of(steps):
        token, op, *args = tokens_of(step)
        unknown = [arg for arg in args if arg not in names]
        if unknown:
            raise AsmError(f"{token} reads {unknown[0]}, which is not defined yet", line_of(step))
        _define(names, token, f"s{len(ops)}")
        ops.append(MicroOp(str(op), tuple(names[arg] for arg in args)))
    return MicroProgram(len(tokens_of(inputs)), tuple(values), tuple(ops), len(tokens_of(scalars)))


def _define(names: dict[str, int], token: Token, expected: str) -> None:
    if token != expected:
        raise AsmError(
            f"{token} stands in the place of {expected}; number them in order", token.line or 0
        )
    names[expected] = len(names)


def _body(
    node: Node, shell: Kernel, unit: str, limits: Limits, depth: int, number: Iterator[int]
) -> Stream:
    items: list[Instr | Loop] = []
    for child in trees_of(node):
        index = next(number)
        if child.data == "instr":
            instr = instr_of(child, shell.cores)
            with at(line_of(child)):
                check_instr(shell, unit, index, instr, depth)
            items.append(instr)
            continue
        if depth == MAX_LOOPS:
            raise AsmError(f"loops nest deeper than {MAX_LOOPS}", line_of(child))
        trips = integer(tokens_of(child)[0])
        with at(line_of(child)):
            check_trips(shell, unit, index, trips, limits)
        body = _body(trees_of(child)[0], shell, unit, limits, depth + 1, number)
        items.append(Loop(trips, body))
    return tuple(items)
