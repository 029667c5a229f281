"""One instruction of a listing: syntax tree to Instr. What the words mean is checked after."""

from __future__ import annotations

from collections.abc import Sequence

from .asm_tree import (
    Node,
    every,
    integer,
    integers,
    line_of,
    name_of,
    num_of,
    only,
    tokens_of,
    trees_of,
    value_of,
)
from .errors import AsmError
from .isa import GO, OPCODES, Guard, Instr, Limit, Num, Operand, Rotate, Signal, Wait


def instr_of(node: Node, cores: int) -> Instr:
    op = str(tokens_of(node)[0])
    if op not in OPCODES:
        raise AsmError(f"no opcode is called {op!r}; known: {', '.join(OPCODES)}", line_of(node))
    dims = trees_of(only(node, "dims"))
    limits = tuple(_limit(dim, cores) for dim in dims)
    where, note = only(node, "where"), only(node, "note")
    return Instr(
        op=op,
        counts=tuple(num_of(trees_of(dim)[0], cores) for dim in dims),
        limits=limits if any(limits) else (),
        operands=tuple(_operand(o, op, i, cores) for i, o in enumerate(every(node, "operand"))),
        imm=_imms(every(node, "imm"), cores),
        waits=tuple(map(_wait, trees_of(only(node, "waits")))),
        signals=tuple(_signal(s, cores) for s in trees_of(only(node, "signals"))),
        note=integer(tokens_of(note)[0]) if note else 0,
        where=value_of(tokens_of(where)[0]) if where else 0,
    )


def _limit(dim: Node, cores: int) -> Limit | None:
    nodes = trees_of(dim)
    if len(nodes) == 1:
        return None
    return Limit(num_of(nodes[1], cores), integers(only(only(dim, "minus_trips"), "trips")))


def _operand(node: Node, op: str, index: int, cores: int) -> Operand:
    key, space, dtype = tokens_of(node)[:3]
    names = OPCODES[op].operands
    if names and key[:-1] != names[min(index, len(names) - 1)].rstrip("*"):
        raise AsmError(
            f"operand {index} of {op} is called {key[:-1]}, expected {', '.join(names)} in order",
            line_of(node),
        )
    address = trees_of(node)[0]
    symbols = tokens_of(address)
    return Operand(
        space=str(space),  # type: ignore[arg-type]  # the check that follows knows the spaces
        base=num_of(trees_of(address)[0], cores),
        strides=integers(only(address, "steps_of")),
        dtype=str(dtype),
        symbol=name_of(symbols[0]) if symbols else "",
        loops=integers(only(address, "trips")),
        rotate=_rotate(only(address, "rotate")),
        guards=tuple(_guard(g, cores) for g in every(node, "guard")),
        splat=len(tokens_of(node)) == 4,
    )


def _rotate(node: Node | None) -> Rotate | None:
    if node is None:
        return None
    stride, depth = map(integer, tokens_of(node))
    return Rotate(integers(only(node, "trips")), depth, stride)


def _guard(node: Node, cores: int) -> Guard:
    nodes = trees_of(node)
    return Guard(
        origin=num_of(nodes[0], cores),
        extent=num_of(nodes[-1], cores),
        strides=integers(only(node, "steps_of")),
        loops=integers(only(node, "trips")),
    )


def _imms(nodes: Sequence[Node], cores: int) -> dict[str, Num]:
    imms: dict[str, Num] = {}
    for node in nodes:
        name = tokens_of(node)[0][:-1]
        if name in imms:
            raise AsmError(f"{name} is given twice", line_of(node))
        imms[name] = num_of(trees_of(node)[0], cores)
    return imms


def _wait(node: Node) -> Wait:
    if node.data == "go":
        return Wait(GO, 0)
    token = int(tokens_of(node)[0][1:])
    return Wait(token, 0) if node.data == "level" else Wait(token, _times(node))


def _signal(node: Node, cores: int) -> Signal:
    numbers = [num_of(child, cores) for child in trees_of(node) if child.data != "times"]
    token = numbers.pop(0) if node.data == "signal_each" else int(tokens_of(node)[0][1:])
    return Signal(token, _times(node), numbers[0] if numbers else 0)


def _times(node: Node) -> int:
    times = only(node, "times")
    return integer(tokens_of(times)[0]) if times else 1
