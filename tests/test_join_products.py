"""Projections of one tensor as one product or several: the same numbers, never more cycles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import Graph, module, random_inputs, run_binary

from spyrec.driver import compile_module
from spyrec.ir.core import Loc, Module, Value
from spyrec.ir.interp import run
from spyrec.ir.types import dtype
from spyrec.ir.verifier import verify
from spyrec.passes.join_products import JoinProducts, price, trial_of
from spyrec.passes.manager import Target
from spyrec.passes.pipeline import PIPELINE
from spyrec.passes.products import fused, groups, joined, parted
from spyrec.sim.device import load_device
from spyrec.sim.run import run as run_card

TARGET = Target(load_device())
WITHOUT = [p for p in PIPELINE if p.name != "join-products"]


def projections(*widths: int, k: int = 8, rows: int = 3, bias: bool = False) -> Module:
    def make(g: Graph, x: Value) -> list[Value]:
        found = []
        for n in widths:
            y = g("matmul", x, g.weight(k, n))
            y = g("add", y, g.weight(n)) if bias else y
            found.append(g("silu", y))
        return found

    return module(make, ("x", (1, rows, k), "f32"))


def one_product(*widths: int, k: int = 8, rows: int = 3, bias: bool = False) -> Module:
    def make(g: Graph, x: Value) -> list[Value]:
        y = g("matmul", x, g.weight(k, sum(widths)))
        y = g("add", y, g.weight(sum(widths))) if bias else y
        return [g("silu", _columns(g, y, s, w)) for s, w in _runs(widths)]

    return module(make, ("x", (1, rows, k), "f32"))


def _runs(widths: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(sum(widths[:i]), w) for i, w in enumerate(widths)]


def _columns(g: Graph, y: Value, start: int, width: int) -> Value:
    *lead, _ = y.type.static_shape
    zeros, ones = (0,) * len(lead), (1,) * len(lead)
    return g("slice", y, starts=(*zeros, start), sizes=(*lead, width), steps=(*ones, 1))


def absent(m: Module) -> Module:
    """The constants as inputs that nobody has given a content."""
    consts = [op for op in m.body.ops if op.name == "constant" and op.result.type.rank]
    args = (*m.body.args, *(op.result for op in consts))
    ops = tuple(op for op in m.body.ops if op not in consts)
    made = replace(m, body=replace(m.body, args=args, ops=ops))
    return made.with_attrs(absent=tuple(op.result.name for op in consts))


def macs(m: Module) -> int:
    return sum(op.name == "matmul" for op in m.body.ops)


@settings(max_examples=40, deadline=None, database=None)
@given(st.lists(st.integers(1, 70), min_size=2, max_size=4), st.booleans(), st.data())
def test_joined_and_parted_give_the_same(
    widths: list[int], bias: bool, data: st.DataObject
) -> None:
    m = projections(*widths, bias=bias)
    (group,) = groups(m)
    some = data.draw(st.lists(st.sampled_from(group), min_size=2, unique=True))
    one = joined(m, sorted(some, key=group.index))
    verify(one)
    assert macs(one) == 1 + len(widths) - len(some)
    whole = one_product(*widths, bias=bias)
    (found,) = fused(whole)
    assert found[1] == tuple(widths)
    several = parted(whole, *found)
    verify(several)
    assert macs(several) == len(widths)
    for before, after in ((m, one), (whole, several)):
        inputs = random_inputs(before)
        want, got = run(before, inputs), run(after, inputs)
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array)


def test_absent_weights_are_joined_as_inputs() -> None:
    m = absent(projections(5, 7, bias=True))
    (group,) = groups(m)
    one = joined(m, group)
    verify(one)
    shapes = {v.name: v.type.static_shape for v in one.body.args}
    names: Any = one.attrs["absent"]
    assert [shapes[n] for n in names] == [(8, 12), (12,)]
    assert len(shapes) == 3
    whole = absent(one_product(5, 7))
    apart = parted(whole, *fused(whole)[0])
    verify(apart)
    names = apart.attrs["absent"]
    assert [v.type.static_shape for v in apart.body.args if v.name in names] == [(8, 5), (8, 7)]


def test_inputs_with_a_content_are_left_alone() -> None:
    def make(g: Graph, x: Value, a: Value, b: Value) -> list[Value]:
        return [g("matmul", x, a), g("matmul", x, b)]

    shapes = {"x": (3, 8), "a": (8, 4), "b": (8, 4)}
    assert groups(module(make, *((n, s, "f32") for n, s in shapes.items()))) == []


def test_a_weight_with_two_readers_is_left_alone() -> None:
    def make(g: Graph, x: Value, a: Value) -> list[Value]:
        return [g("matmul", x, a), g("matmul", g("exp", x), a)]

    m = module(make, ("x", (3, 8), "f32"), ("a", (8, 4), "f32")).with_attrs(absent=("a",))
    assert groups(m) == []


def test_a_constant_that_several_read() -> None:
    """A bias is put into the joined one, and stays; a weight would be on the card twice."""

    def make(g: Graph, x: Value) -> list[Value]:
        bias = g.weight(384)
        y, z = (g("add", g("matmul", x, g.weight(1024, 384)), bias) for _ in range(2))
        return [y, z, bias]

    m = module(make, ("x", (1, 1024), "f32"))
    (group,) = groups(m)
    assert macs(joined(m, group)) == 1
    (trial,) = groups(trial_of(m, group))
    assert trial[0].bias is not trial[1].bias
    assert run_binary(m).worst >= 0.9999
    twice = module(lambda g, x: [g("matmul", y, w) for w in [g.weight(8, 8)] for y in (x, w)],
                   ("x", (8, 8), "f32"))  # fmt: skip
    assert groups(twice) == []


def test_columns_that_are_read_otherwise_stay_one_product() -> None:
    def make(g: Graph, x: Value) -> list[Value]:
        y = g("matmul", x, g.weight(8, 6))
        return [_columns(g, y, 0, 3), _columns(g, y, 2, 4)]

    assert fused(module(make, ("x", (3, 8), "f32"))) == []
    part = module(lambda g, x: [_columns(g, g("matmul", x, g.weight(8, 6)), 0, 3)],
                  ("x", (3, 8), "f32"))  # fmt: skip
    assert fused(part) == []


def cycles(m: Module, passes: Any = PIPELINE) -> int:
    program = compile_module(m, TARGET, pipeline=passes).program
    return run_card(program, TARGET.device, timing_only=True).total_cycles


def test_columns_that_spread_badly_are_joined() -> None:
    """17 groups of columns twice on 32 cores: alone their sums are divided, as one they are not."""
    m = projections(1088, 1088, k=1024, rows=1)
    assert macs(JoinProducts().run(m, TARGET)) == 1
    assert cycles(m) < 0.95 * cycles(m, WITHOUT)


def test_columns_that_are_not_even_may_stay_apart() -> None:
    """48 groups twice: a core loads 1 or 2, in turns, so both halves of the ring load alike."""
    m = projections(3072, 3072, k=1024, rows=1)
    assert macs(JoinProducts().run(m, TARGET)) == 2
    assert cycles(m) < 1.01 * cycles(one_product(3072, 3072, k=1024, rows=1), WITHOUT)


def gated(fused_weights: bool) -> Module:
    def make(g: Graph, x: Value) -> list[Value]:
        if fused_weights:
            both = g("matmul", x, g.weight(256, 2048))
            a, b = (_columns(g, both, s, 1024) for s in (0, 1024))
        else:
            a, b = (g("matmul", x, g.weight(256, 1024)) for _ in range(2))
        return [g("mul", g("silu", a), b)]

    return module(make, ("x", (1, 512, 256), "f32"))


def test_a_gate_stays_or_becomes_two_products() -> None:
    """Each is finished where it is summed; as one they would be cut apart by moves."""
    assert macs(JoinProducts().run(gated(False), TARGET)) == 2
    assert macs(JoinProducts().run(gated(True), TARGET)) == 2
    assert cycles(gated(True)) < cycles(gated(True), WITHOUT)
    assert run_binary(gated(True)).worst >= 0.9999


def heads(bias: bool) -> Module:
    """Queries, keys and values of MiniLM."""

    def make(g: Graph, x: Value) -> list[Value]:
        found = []
        for _ in range(3):
            y = g("matmul", x, g.weight(384, 384))
            y = g("add", y, g.weight(384)) if bias else y
            y = g("reshape", y, shape=(1, 128, 6, 64))
            found.append(g("transpose", y, perm=(0, 2, 1, 3)))
        return [g("attention", *found)]

    return module(make, ("x", (1, 128, 384), "f32"))


@pytest.mark.parametrize("bias", [False, True])
def test_queries_keys_and_values_on_the_device(bias: bool) -> None:
    m = heads(bias)
    assert macs(JoinProducts().run(m, TARGET)) == 1
    assert run_binary(m).worst >= 0.9999
    assert cycles(m) < cycles(m, WITHOUT)


def test_what_is_not_worth_it_is_left_alone() -> None:
    m = heads(True)
    assert macs(JoinProducts(worth=0.99).run(m, TARGET)) == 3
    keeps_state = m.with_attrs(state=(("cache", "cache_next", None),))
    assert macs(JoinProducts().run(keeps_state, TARGET)) == 3
    assert macs(JoinProducts(worth=0.99, worth_state=0).run(keeps_state, TARGET)) == 1


def test_programs_with_one_image_of_weights_are_left_alone() -> None:
    m = projections(3072, 3072, k=1024, rows=1).with_attrs(one_image=True)
    assert JoinProducts().run(m, TARGET) is m


def test_equal_surroundings_have_equal_trials_and_origins_are_kept() -> None:
    def make(g: Graph, x: Value) -> list[Value]:
        for _ in range(2):
            y, z = (g("matmul", x, g.weight(64, 64)) for _ in range(2))
            x = g("exp", g("matmul", g("mul", y, z), g.constant(np.eye(64, dtype="f4"),
                                                                dtype("f32"))))  # fmt: skip
        return [x]

    m = module(make, ("x", (1, 64), "f32"))
    trials = [trial_of(m, g) for g in groups(m)]
    prices = [price(t, TARGET) for t in trials]
    assert len(trials) == 2 and prices[0] == prices[1]
    ops = tuple(
        replace(op, loc=Loc((f"n{i}",))) if op.name == "matmul" else op
        for i, op in enumerate(m.body.ops)
    )
    m = replace(m, body=replace(m.body, ops=ops))
    first, second = groups(m)
    one = joined(joined(m, first), second)
    places = [op.loc.nodes for op in one.body.ops if op.name == "slice"]
    assert [len(p) for p in places] == [2, 2, 2, 2] and len(set(places)) == 2
