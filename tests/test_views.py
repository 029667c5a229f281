"""Graph views against hand-made answers and against brute force on random graphs."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spyrec.ir.core import Block, Op, Value
from spyrec.ir.errors import SpyrecError
from spyrec.ir.parser import parse_module
from spyrec.ir.types import tensor
from spyrec.ir.views import (
    Live,
    critical_path,
    dataflow,
    generations,
    live_at,
    liveness,
    overlap,
    packed_bytes,
    peak,
    reads,
)

DIAMOND = parse_module("""
module "diamond" {
  input %x: tensor<8xf32>
  %a = neg(%x) : tensor<8xf32>
  %b = abs(%a) : tensor<8xf32>
  %c = cast(%a) {to = type f16} : tensor<8xf16>
  %d = add(%b, %b) : tensor<8xf32>
  %e = exp(%x) : tensor<8xf32>
  output "d" = %d
  output "c" = %c
}
""").body

CAPTURE = parse_module("""
module "capture" {
  input %on: tensor<bool>
  input %x: tensor<8xf32>
  %a = neg(%x) : tensor<8xf32>
  %r = if(%on) : tensor<8xf32> {
    ():
    %t = abs(%a) : tensor<8xf32>
    %u = if(%on) : tensor<8xf32> {
      ():
      yield %t
    } {
      ():
      yield %x
    }
    yield %u
  } {
    ():
    yield %a
  }
  output "r" = %r
}
""").body


def test_dataflow_edges_carry_values() -> None:
    graph = dataflow(DIAMOND)
    a, b, c, d, e = DIAMOND.ops
    assert list(graph.nodes) == [a, b, c, d, e]
    edges = {(u, v, data["value"]) for u, v, data in graph.edges(data=True)}
    assert edges == {(a, b, a.result), (a, c, a.result), (b, d, b.result)}


def test_what_regions_read_counts_as_read_by_the_op() -> None:
    a, branch = CAPTURE.ops
    on, x = CAPTURE.args
    assert list(reads(branch)) == [on, a.result, x]
    assert dataflow(CAPTURE).has_edge(a, branch)
    assert liveness(CAPTURE)[x] == Live(x, -1, 1)


def test_generations_keep_program_order() -> None:
    a, b, c, d, e = DIAMOND.ops
    assert generations(DIAMOND) == [[a, e], [b, c], [d]]


def test_critical_path_follows_the_weights() -> None:
    a, b, c, d, e = DIAMOND.ops
    path = critical_path(DIAMOND, lambda op: 1)
    assert path.ops == (a, b, d) and path.weight == 3
    assert critical_path(DIAMOND, lambda op: 9 if op is e else 1).ops == (e,)
    assert critical_path(DIAMOND, lambda op: 9 if op is c else 1).ops == (a, c)
    assert critical_path(Block((), (), ()), lambda op: 1).ops == ()


def test_liveness_ends_at_the_last_read() -> None:
    (x,) = DIAMOND.args
    a, b, c, d, e = (op.result for op in DIAMOND.ops)
    assert list(liveness(DIAMOND).values()) == [
        Live(x, -1, 4), Live(a, 0, 2), Live(b, 1, 3), Live(c, 2, 5), Live(d, 3, 5), Live(e, 4, 4),
    ]  # fmt: skip


def test_peak_is_the_first_widest_cut() -> None:
    (x,) = DIAMOND.args
    a, b, c, d, e = (op.result for op in DIAMOND.ops)
    cut = peak(DIAMOND)
    assert (cut.position, cut.bytes, cut.values) == (2, 32 + 32 + 32 + 16, (x, a, b, c))
    assert live_at(DIAMOND, 4) == (x, c, d, e)
    assert peak(DIAMOND, lambda v: 1000 if v is e else 1).position == 4
    assert peak(Block((), (), ())).bytes == 0


def test_packed_bytes_rounds_up() -> None:
    assert packed_bytes(Value("v", tensor((3,), "i4"))) == 2
    assert packed_bytes(Value("v", tensor((), "bool"))) == 2
    with pytest.raises(SpyrecError, match="dimension n has no value yet"):
        packed_bytes(parse_module('module "m" { input %x: tensor<n[1..2]xf32> }').body.args[0])


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    names = (f"v{i}" for i in range(1000))
    args = tuple(Value(next(names), tensor((draw(st.integers(0, 9)),), "f32")) for _ in range(2))
    seen = list(args)
    ops = []
    for _ in range(draw(st.integers(0, 8))):
        operands = tuple(draw(st.lists(st.sampled_from(seen), max_size=3)))
        count = draw(st.integers(0, 2))
        results = tuple(
            Value(next(names), tensor((draw(st.integers(0, 9)),), "f32")) for _ in range(count)
        )
        ops.append(Op("op", operands, results))
        seen += results
    return Block(args, tuple(ops), tuple(draw(st.lists(st.sampled_from(seen), max_size=2))))


def _paths(block: Block) -> list[tuple[Op, ...]]:
    """Every chain of ops, by enumeration."""
    found: list[tuple[Op, ...]] = [(op,) for op in block.ops]
    for path in found:
        for op in block.ops:
            if any(v in op.operands for v in path[-1].results):
                found.append((*path, op))
    return found


@settings(max_examples=100, deadline=None)
@given(blocks(), st.lists(st.integers(0, 5), min_size=8, max_size=8))
def test_critical_path_is_the_heaviest_of_all_chains(block: Block, weights: list[int]) -> None:
    cost = dict(zip(block.ops, weights, strict=False))
    path = critical_path(block, cost.__getitem__)
    sums = [sum(cost[op] for op in p) for p in _paths(block)]
    assert path.weight == max(sums, default=0) == sum(cost[op] for op in path.ops)
    assert path.ops in [(), *_paths(block)]


@settings(max_examples=100, deadline=None)
@given(blocks())
def test_lifetimes_and_peak_match_a_walk_over_positions(block: Block) -> None:
    def alive(value: Value, position: int) -> bool:
        defined = -1 if value in block.args else next(
            i for i, op in enumerate(block.ops) if value in op.results
        )  # fmt: skip
        later = [i for i, op in enumerate(block.ops) if value in op.operands]
        later += [len(block.ops)] if value in block.results else []
        return defined <= position <= max([defined, *later])

    lives = liveness(block)
    positions = range(-1, len(block.ops) + 1)
    sums = []
    for p in positions:
        expected = tuple(v for v in lives if alive(v, p))
        assert live_at(block, p) == expected
        sums.append(sum(packed_bytes(v) for v in expected))
    cut = peak(block)
    assert cut.bytes == max(sums) == sums[cut.position + 1]
    assert sums.index(max(sums)) == cut.position + 1
    assert cut.values == live_at(block, cut.position)
    for a in lives.values():
        for b in lives.values():
            shared = any(alive(a.value, p) and alive(b.value, p) for p in positions)
            assert overlap(a, b) == shared


@settings(max_examples=50, deadline=None)
@given(blocks())
def test_generations_are_longest_distances_from_a_source(block: Block) -> None:
    graph = dataflow(block)
    assert nx.is_directed_acyclic_graph(graph)
    level = {op: max(len(p) for p in _paths(block) if p[-1] is op) - 1 for op in block.ops}
    wanted = [
        [op for op in block.ops if level[op] == n]
        for n in range(max(level.values(), default=-1) + 1)
    ]
    assert generations(block) == wanted
