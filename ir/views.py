"""Graph views of a block: dataflow, levels, critical path, lifetimes and what is alive at once.

Positions are indices into ``block.ops``. Arguments are defined at -1; results of the block are
read at ``len(block.ops)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import networkx as nx

from .core import Block, Op, Value, walk

Weight = Callable[[Op], float]
Size = Callable[[Value], int]


@dataclass(frozen=True)
class Live:
    """``value`` is defined at ``start`` and last read at ``end``, both inclusive.

    A value nobody reads ends where it starts.
    """

    value: Value
    start: int
    end: int


@dataclass(frozen=True)
class Path:
    """A chain of ops, each reading a result of the one before; ``weight`` is the sum of theirs."""

    ops: tuple[Op, ...]
    weight: float


@dataclass(frozen=True)
class Cut:
    """What is alive at one position, in order of definition; ``bytes`` is their sum."""

    position: int
    bytes: int
    values: tuple[Value, ...]


def reads(op: Op) -> Iterator[Value]:
    """What an op reads from outside itself, each once: operands, then what its regions see."""
    inner = {v for region in op.regions for v in _defined_in(region)}
    seen = dict.fromkeys(op.operands)
    for region in op.regions:
        for v in _used_in(region):
            if v not in inner:
                seen[v] = None
    yield from seen


def _defined_in(block: Block) -> Iterator[Value]:
    yield from block.args
    for op in walk(block):
        yield from op.results
        for region in op.regions:
            yield from region.args


def _used_in(block: Block) -> Iterator[Value]:
    for op in walk(block):
        yield from op.operands
        for region in op.regions:
            yield from region.results
    yield from block.results


def dataflow(block: Block) -> nx.MultiDiGraph:
    """The block's own ops as nodes, in program order; an edge for each value one op makes and
    another reads, the value being the edge's key and its attribute ``value``."""
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(block.ops)
    makers = {v: op for op in block.ops for v in op.results}
    for op in block.ops:
        for v in reads(op):
            if v in makers:
                graph.add_edge(makers[v], op, key=v, value=v)
    return graph


def generations(block: Block) -> list[list[Op]]:
    """Levels of ops that depend only on earlier levels, each op in the first one it can be in."""
    order = {op: i for i, op in enumerate(block.ops)}
    levels = nx.topological_generations(dataflow(block))
    return [sorted(level, key=order.__getitem__) for level in levels]


def critical_path(block: Block, weight: Weight) -> Path:
    """The heaviest chain of ops; of equals the one that ends, and turns, earliest in program order.

    ``weight`` gives each op's own cost, 0 or more.
    """
    makers = {v: op for op in block.ops for v in op.results}
    longest: dict[Op, float] = {}
    before: dict[Op, Op | None] = {}
    for op in block.ops:
        sources = [makers[v] for v in reads(op) if v in makers]
        best = max(sources, key=longest.__getitem__, default=None)
        before[op] = best
        longest[op] = weight(op) + (longest[best] if best is not None else 0)
    at = max(block.ops, key=longest.__getitem__, default=None)
    total = longest[at] if at is not None else 0
    chain: list[Op] = []
    while at is not None:
        chain.append(at)
        at = before[at]
    return Path(tuple(reversed(chain)), total)


def liveness(block: Block) -> dict[Value, Live]:
    """The lifetime of each value the block defines, in order of definition."""
    start = dict.fromkeys(block.args, -1)
    end: dict[Value, int] = {}
    for i, op in enumerate(block.ops):
        start.update(dict.fromkeys(op.results, i))
        end.update(dict.fromkeys(reads(op), i))
    end.update(dict.fromkeys(block.results, len(block.ops)))
    return {v: Live(v, s, end.get(v, s)) for v, s in start.items()}


def overlap(a: Live, b: Live) -> bool:
    """Whether there is a position at which both are alive, so they cannot share memory."""
    return a.start <= b.end and b.start <= a.end


def live_at(block: Block, position: int) -> tuple[Value, ...]:
    """Values alive while the op at ``position`` runs: its operands and results are, and all that
    passes by."""
    return tuple(v for v, live in liveness(block).items() if live.start <= position <= live.end)


def packed_bytes(value: Value) -> int:
    """Bytes of the elements side by side, rounded up; SpyrecError if a dimension is symbolic."""
    return -(-value.type.size * value.type.dtype.bits // 8)


def peak(block: Block, size_bytes: Size = packed_bytes) -> Cut:
    """The first position at which the values alive have the most bytes."""
    lives = liveness(block)
    change = [0] * (len(block.ops) + 3)  # positions -1 .. len(ops), and one past them
    for v, live in lives.items():
        size = size_bytes(v)
        change[live.start + 1] += size
        change[live.end + 2] -= size
    best, most, now = -1, 0, 0
    for position, delta in enumerate(change[:-1], start=-1):
        now += delta
        if now > most:
            best, most = position, now
    alive = tuple(v for v, live in lives.items() if live.start <= best <= live.end)
    return Cut(best, most, alive)
