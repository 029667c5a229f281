"""Whatever is rewritten, every model node stays named by the ops that carry it out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spyrec.ir.core import Builder, Loc, Module, Op, Value, walk
from spyrec.ir.parser import parse_module
from spyrec.passes.canonicalize import canonicalize
from spyrec.passes.cse import merge_equal
from spyrec.passes.dce import remove_dead
from spyrec.passes.decompose import decompose
from spyrec.passes.merge_moves import merge_moves
from spyrec.passes.rules_canonical import BROADCASTING
from tests.decompose_cases import CASES
from tests.decompose_draw import Draw, graph


def named(module: Module) -> Module:
    """The module without dead ops, each op at the top from a node of its own: n0, n1, ..."""
    live = remove_dead(module)
    ops = tuple(
        op if op.name == "constant" else replace(op, loc=Loc((f"n{i}",)))
        for i, op in enumerate(live.body.ops)
    )
    return replace(live, body=replace(live.body, ops=ops))


def nodes(module: Module) -> set[str]:
    return {node for op in walk(module.body) for node in op.loc.nodes}


def echoes(module: Module) -> bool:
    """Whether an output is an input: the ops that changed nothing stand nowhere."""
    return any(v in module.body.args for v in module.body.results)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_keeps_every_node(name: str) -> None:
    seen = 0

    @settings(max_examples=15, deadline=None, database=None)
    @given(st.data())
    def keeps(data: st.DataObject) -> None:
        nonlocal seen
        before = named(CASES[name](Draw(data)).module)
        after = decompose(before)
        if not echoes(after):
            seen += 1
            assert nodes(after) == nodes(before)

    keeps()
    assert seen > 0


def only(module: Module, name: str) -> Op:
    [op] = [op for op in module.body.ops if op.name == name]
    return op


@pytest.mark.parametrize(
    ("name", "op", "chain"),
    [
        ("batch-norm-into-conv", "conv", 2),
        ("batch-norm-into-matmul", "matmul", 2),
        ("scale-into-weights", "matmul", 2),
    ],
)
def test_what_a_weight_takes_in_comes_after_the_product(name: str, op: str, chain: int) -> None:
    seen = 0

    @settings(max_examples=15, deadline=None, database=None)
    @given(st.data())
    def names_both(data: st.DataObject) -> None:
        nonlocal seen
        before = named(CASES[name](Draw(data)).module)
        after = decompose(before)
        made = [o for o in before.body.ops if o.name == op]
        left = [o for o in after.body.ops if o.name == op]
        if len(made) == len(left) == 1 and len(nodes(before)) == chain:
            seen += 1
            assert left[0].loc.nodes[0] == made[0].loc.nodes[0]
            assert set(left[0].loc.nodes) == nodes(before)

    names_both()
    assert seen > 0


CHAINS = {
    "cast": "%a = cast(%x) {to = type f64} : tensor<4x6xf64> @ \"A\"\n"
            "  %y = cast(%a) {to = type f16} : tensor<4x6xf16> @ \"B\"",
    "transpose": "%a = exp(%x) : tensor<4x6xf32> @ \"A\"\n"
                 "  %b = transpose(%a) {perm = (1, 0)} : tensor<6x4xf32> @ \"B\"\n"
                 "  %c = reshape(%b) {shape = (1, 6, 4)} : tensor<1x6x4xf32> @ \"C\"\n"
                 "  %y = transpose(%c) {perm = (1, 0, 2)} : tensor<6x1x4xf32> @ \"D\"",
    "reshape": "%a = reshape(%x) {shape = (24,)} : tensor<24xf32> @ \"A\"\n"
               "  %y = reshape(%a) {shape = (2, 12)} : tensor<2x12xf32> @ \"B\"",
    "broadcast": "%a = broadcast_to(%x) {shape = (3, 4, 6)} : tensor<3x4x6xf32> @ \"A\"\n"
                 "  %y = broadcast_to(%a) {shape = (2, 3, 4, 6)} : tensor<2x3x4x6xf32> @ \"B\"",
    "slice": "%a = slice(%x) {starts = (1, 1), sizes = (3, 4), steps = (1, 1)} : "
             "tensor<3x4xf32> @ \"A\"\n"
             "  %y = slice(%a) {starts = (1, 0), sizes = (2, 2), steps = (1, 2)} : "
             "tensor<2x2xf32> @ \"B\"",
    "abs": "%a = neg(%x) : tensor<4x6xf32> @ \"A\"\n"
           "  %y = abs(%a) : tensor<4x6xf32> @ \"B\"",
}  # fmt: skip


def chain(text: str) -> Module:
    return parse_module(
        f'module "m" {{\n  input %x: tensor<4x6xf32>\n  {text}\n  output "y" = %y\n}}\n'
    )


@pytest.mark.parametrize("kind", CHAINS)
def test_merged_chains_keep_every_node(kind: str) -> None:
    before = chain(CHAINS[kind])
    after = canonicalize(before)
    assert len(after.body.ops) < len(before.body.ops)
    assert nodes(after) == nodes(before)


@pytest.mark.parametrize("name", [n for n in BROADCASTING if n in ("add", "max", "where")])
def test_a_dropped_broadcast_keeps_its_node(name: str) -> None:
    def make(b: Builder, v: list[Value]) -> tuple[Value, ...]:
        wide = b.op("broadcast_to", [v[0]], loc=Loc(("A",)), shape=(3, 4)).result
        cond = [b.op("lt", [wide, v[1]], loc=Loc(("C",))).result] if name == "where" else []
        return b.op(name, [*cond, wide, v[1]], loc=Loc(("B",))).results

    after = canonicalize(graph(make, np.ones(4), np.ones((3, 4))).module)
    assert "broadcast_to" not in [op.name for op in after.body.ops]
    assert set(only(after, name).loc.nodes) == {"A", "B"}


def test_equal_ops_keep_every_node() -> None:
    before = chain(
        '%a = exp(%x) : tensor<4x6xf32> @ "A"\n  %b = exp(%x) : tensor<4x6xf32> @ "B"\n'
        '  %y = add(%a, %b) : tensor<4x6xf32> @ "C"'
    )
    after = merge_equal(before)
    assert only(after, "exp").loc.nodes == ("A", "B")
    assert nodes(after) == nodes(before)


def test_composed_moves_keep_every_node() -> None:
    before = chain(CHAINS["transpose"])
    after = merge_moves(before)
    assert only(after, "move").loc.nodes == ("B", "C", "D")
    assert nodes(after) == nodes(before)
