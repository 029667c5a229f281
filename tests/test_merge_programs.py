"""Vector programs taken up ahead of their work, and several merged into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spyrec.backend.ahead import taken_ahead
from spyrec.backend.merge_programs import fewer_switches
from spyrec.backend.switching import Costs, grouped, switch_counts, turns, whole_costs
from spyrec.backend.united import shape_of, unite
from spyrec.driver import compile_module
from spyrec.ir.core import Module
from spyrec.passes.manager import Target
from spyrec.passes.pipeline import PIPELINE
from spyrec.share import finished_code
from spyrec.sim.check import find_hazards
from spyrec.sim.device import load_device
from spyrec.sim.isa import (
    GO,
    MICRO_OPS,
    SCALARS,
    Instr,
    Kernel,
    Loop,
    MicroOp,
    MicroProgram,
    Program,
    Stream,
    instructions,
)
from spyrec.sim.listing import disassemble
from spyrec.sim.micro import evaluate
from spyrec.sim.objfile import dump
from spyrec.sim.run import run
from tests.graphs import inputs_for, modules
from tests.small_machine import SMALL, hbm, kernel, lx, op, program
from tests.test_joined_launches import cycles, outputs, some_layers

WIDE = load_device()
SWITCHING = replace(SMALL, sfp=replace(SMALL.sfp, switch_cycles=30))
PLAIN = tuple(p for p in PIPELINE if p.name not in ("share-launches", "merge-programs"))
FLOATING = [name for name in MICRO_OPS if name not in ("i2f", "f2i")]

# y = relu(a + b), y = 3 * (a + b) + 1, y = 5 * (a + b) + 2, y = a
RELU = MicroProgram(2, (0.0,), (MicroOp("add", (0, 1)), MicroOp("max", (3, 2))))
THREE, FIVE = (
    MicroProgram(
        2, values, (MicroOp("add", (0, 1)), MicroOp("mul", (4, 2)), MicroOp("add", (5, 3)))
    )
    for values in ((3.0, 1.0), (5.0, 2.0))
)
COPY = MicroProgram(1)


# One program for several -----------------------------------------------------------------------


def running(*programs: MicroProgram, **streams: Stream) -> Kernel:
    """A kernel on one core."""
    return replace(kernel(**streams), programs=programs)


def listing(p: MicroProgram) -> str:
    return next(
        line.strip() for line in disassemble(program(running(p))).splitlines()
        if line.startswith("  program 0")
    )  # fmt: skip


def test_constants_that_differ_are_scalars_and_what_is_common_is_computed_once() -> None:
    united = unite([THREE, FIVE])
    assert united is not None
    assert listing(united.program) == (
        "program 0 (x0, x1; k0, k1) { s0 = add x0 x1; s1 = mul s0 k0; s2 = add s1 k1 }"
    )
    assert united.scalars == {THREE: (3.0, 1.0), FIVE: (5.0, 2.0)}
    united = unite([RELU, THREE, COPY, FIVE])
    assert united is not None
    assert listing(united.program) == (
        "program 0 (x0, x1; k0, k1, k2) const c0 = 0.0, c1 = 1.0, c2 = 2.0 { s0 = add x0 x1; "
        "s1 = max s0 c0; s2 = mul s0 k1; s3 = add s2 k2; s4 = eq k0 c1; s5 = where s4 s3 s1; "
        "s6 = eq k0 c2; s7 = where s6 x0 s5 }"
    )
    assert united.scalars == {
        RELU: (0.0,), THREE: (1.0, 3.0, 1.0), FIVE: (1.0, 5.0, 2.0), COPY: (2.0,),
    }  # fmt: skip


def scaled(*values: float) -> MicroProgram:
    """x * v0 * v1 * ..."""
    n = len(values)
    steps = [MicroOp("mul", (0 if i == 0 else n + i, 1 + i)) for i in range(n)]
    return MicroProgram(1, values, tuple(steps))


def test_more_scalars_than_an_instruction_gives_are_not_united() -> None:
    few, many = len(SCALARS), len(SCALARS) + 1
    first, other = (scaled(*(2.0 * i + odd for i in range(few))) for odd in (1, 2))
    assert unite([first, other]) is not None
    assert unite([first, other, RELU]) is None  # one is needed to choose
    first, other = (scaled(*(2.0 * i + odd for i in range(many))) for odd in (1, 2))
    assert unite([first, other]) is None
    alike = [scaled(*(2.0 * i for i in range(many - 1)), last) for last in (0.5, 0.25)]
    assert unite([*alike, RELU]) is not None  # a constant that is the same in all stays one


@st.composite
def micro_programs(draw: st.DrawFn) -> MicroProgram:
    n_inputs = draw(st.integers(1, 3))
    numbers = st.sampled_from([0.0, 1.0, 0.5, -3.0, 1e30, float("inf")])
    constants = tuple(draw(st.lists(numbers, max_size=3)))
    steps: list[MicroOp] = []
    for _ in range(draw(st.integers(0, 5))):
        known = st.integers(0, n_inputs + len(constants) + len(steps) - 1)
        name = draw(st.sampled_from(FLOATING))
        steps.append(MicroOp(name, tuple(draw(known) for _ in range(MICRO_OPS[name]))))
    return MicroProgram(n_inputs, constants, tuple(steps))


def bits(values: Any) -> bytes:
    """NaNs alike: which of two comes out of an operation is not said."""
    values = np.broadcast_to(np.asarray(values, np.float32), (8,))
    return np.where(np.isnan(values), np.float32(np.nan), values).tobytes()


@given(st.lists(micro_programs(), min_size=2, max_size=5, unique=True), st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_united_program_computes_what_each_did(
    programs: list[MicroProgram], data: st.DataObject
) -> None:
    other = [
        replace(p, constants=tuple(c + 1 for c in p.constants)) for p in programs if p.constants
    ]
    programs = list(dict.fromkeys([*programs, *other]))
    united = unite(programs)
    if united is None:
        return
    assert united.program.n_scalars <= len(SCALARS)
    for p in programs:
        lanes = st.lists(st.floats(width=32), min_size=8, max_size=8)
        inputs = [np.array(data.draw(lanes), np.float32) for _ in range(p.n_inputs)]
        none = [0.0] * united.program.n_scalars
        scalars = (*united.scalars[p], *none)[: len(none)]
        got = evaluate(united.program, inputs, scalars)
        assert bits(got) == bits(evaluate(p, inputs))


def test_the_shape_leaves_out_no_more_than_constants() -> None:
    assert shape_of(THREE)[0] == shape_of(FIVE)[0] != shape_of(RELU)[0]
    assert shape_of(THREE)[1] == (3.0, 1.0)


# Ahead of the work -----------------------------------------------------------------------------


def vec(number: int, waits: Sequence[int] = (), **more: Any) -> Instr:
    return replace(op("vec", (1,), (lx(64), lx(0)), waits), imm={"program": number}, **more)


def said(stream: Stream) -> str:
    """Each instruction as its op and its program."""
    parts = []
    for item in stream:
        if isinstance(item, Loop):
            parts.append(f"{item.count}({said(item.body)})")
        else:
            parts.append(f"{item.op}{item.imm.get('program', '')}")
    return " ".join(parts)


def test_programs_are_taken_up_before_what_waits_for_data() -> None:
    free, go = op("sync", signals=[3]), op("sync", waits=[GO])
    for stream, expected in (
        ((free, go, vec(0), vec(0)), "sync prog0 sync vec0 vec0"),
        ((vec(0), vec(1), vec(1, [2])), "vec0 vec1 vec1"),  # nothing is waited for
        ((vec(0), vec(1, [2])), "vec0 prog1 vec1"),
        ((vec(0), op("sync", waits=[2]), vec(1)), "vec0 prog1 sync vec1"),
        ((vec(0), op("sync", waits=[2], signals=[4]), vec(1)), "vec0 sync vec1"),  # nor delayed
        ((go, Loop(3, (vec(0, [2]),))), "prog0 sync 3(vec0)"),
        ((go, Loop(3, (vec(0, [2]), vec(1, [4])))), "sync 3(prog0 vec0 prog1 vec1)"),
        ((go, Loop(3, (vec(0, [2]), vec(1, [4]), vec(0)))), "prog0 sync 3(vec0 prog1 vec1 vec0)"),
        ((vec(0), Loop(2, (op("sync", waits=[2]),)), vec(0, [2])), "vec0 2(sync) vec0"),
    ):
        assert said(taken_ahead(stream)) == expected


def test_a_program_taken_up_ahead_is_there_when_the_data_comes() -> None:
    late = op("load", (40,), (lx(0, 1), hbm("x", 0, 1)), signals=[1])

    def took(*stream: Instr | Loop) -> int:
        p = program(running(COPY, RELU, ml=(late,), sfp=stream))
        return run(p, SWITCHING, timing_only=True).total_cycles

    same, other = (vec(0), vec(0, [1])), (vec(0), vec(1, [1]))
    assert took(*other) == took(*same) + 30
    assert took(*taken_ahead(other)) == took(*same)
    ready = replace(op("prog"), imm={"program": 0})
    assert took(vec(0), ready, vec(0, [1])) == took(*same)  # it is there already


def test_what_does_nothing_takes_up_nothing() -> None:
    nothing = replace(vec(1), counts=(0,))

    def took(*stream: Instr) -> int:
        p = program(running(COPY, RELU, sfp=stream))
        return run(p, SWITCHING, timing_only=True).total_cycles

    assert took(vec(0), nothing, vec(0)) == took(vec(0), vec(0))
    assert took(vec(0), vec(1), vec(0)) > took(vec(0), vec(0), vec(0)) + 2 * 30 - 1


# Which are merged ------------------------------------------------------------------------------


def test_turns_count_what_comes_after_what() -> None:
    a, b = (0, 0), (1, 0)
    assert turns((op("sync"),)) is None
    stream = (vec(0), Loop(4, (vec(1), Loop(2, (vec(0), vec(1))))), vec(1))
    assert turns(stream) == (a, b, {(a, b): 1 + 4 * 2, (b, a): 4 * 2})


def chain(*numbers: int, points: int = 1) -> Program:
    """A kernel for each number, which runs that program."""
    programs = (COPY, RELU, THREE)
    kernels = []
    for n in numbers:
        sources = [lx(0)] * programs[n].n_inputs
        made = replace(op("vec", (points,), (lx(64), *sources)), imm={"program": 0})
        kernels.append(running(programs[n], sfp=(made,)))
    return program(*kernels)


@pytest.mark.parametrize(
    ("numbers", "points", "together"),
    [
        ((0, 1), 1, {0, 1}),
        ((0, 1), 40, set()),  # computing both takes longer than switching
        ((0, 0, 0), 1, set()),  # they are the same
        ((0, 2, 0, 2, 0), 10, {0, 1, 2, 3, 4}),
    ],
)
def test_programs_are_merged_where_switching_takes_longer(
    numbers: Sequence[int], points: int, together: set[int]
) -> None:
    p = chain(*numbers, points=points)
    found = grouped(p, SWITCHING.sfp, whole_costs(p, SWITCHING.sfp))
    assert {kernel for kernel, _ in found} == together


@pytest.mark.parametrize("constant", [-0.0, 1e39])
def test_constants_that_float32_does_not_tell_apart_stay_where_they_are(constant: float) -> None:
    p = chain(0, 2)
    odd = replace(THREE, constants=(constant, 1.0))
    p = replace(p, kernels=(p.kernels[0], replace(p.kernels[1], programs=(odd,))))
    assert not grouped(p, SWITCHING.sfp, whole_costs(p, SWITCHING.sfp))


def test_programs_that_are_united_are_not_again() -> None:
    p = chain(0, 1, 0)
    costs = whole_costs(p, SWITCHING.sfp)
    once = fewer_switches(p, SWITCHING, costs)
    assert once != fewer_switches(p, SWITCHING)
    assert not grouped(once, SWITCHING.sfp, costs)


def test_what_a_switch_costs_is_counted_for_each_launch() -> None:
    p = chain(0, 1, 0, 2)
    assert switch_counts(p) == ((False, 0), (True, 0), (True, 0), (True, 0))
    found = grouped(p, SWITCHING.sfp, Costs([0, 0, 0, 30], [0] * 4))
    assert {kernel for kernel, _ in found} == {2, 3}


def test_merging_never_makes_a_run_longer() -> None:
    for numbers in ((0, 1, 2, 0, 1, 2), (0, 0, 1), (1,), (2, 1, 2, 1)):
        p = chain(*numbers)
        apart = finished_code(p, SWITCHING, joins=True, merges=False)
        made = finished_code(p, SWITCHING, joins=True, merges=True)
        assert cycles(made, SWITCHING) <= cycles(apart, SWITCHING)


# Compiled --------------------------------------------------------------------------------------


def test_a_compiled_model_is_shorter_and_computes_the_same() -> None:
    m, target = some_layers(), Target(WIDE)
    apart = compile_module(m, target, pipeline=PLAIN).program
    joined = finished_code(apart, WIDE, joins=True, merges=False)
    made = compile_module(m, target).program
    assert cycles(made, WIDE) < 0.9 * cycles(joined, WIDE)
    assert find_hazards(made, WIDE) == ()
    inputs = inputs_for(m, 0)
    assert outputs(made, inputs) == outputs(apart, inputs)
    assert dump(compile_module(m, target).program) == dump(made)
    baseline = compile_module(m, target, planner="baseline").program
    assert not any(
        instr.op == "prog" or instr.imm.keys() & {*SCALARS} for instr in vector_work(baseline)
    )


def vector_work(p: Program) -> list[Instr]:
    return [i for k in p.kernels for i, _ in instructions(k.streams.get("sfp", ()))]


@settings(
    max_examples=25, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(modules(smooth=True), st.integers(0, 99))
def test_random_graphs_compute_the_same_whatever_is_merged(m: Module, seed: int) -> None:
    apart = compile_module(m, Target(WIDE), pipeline=PLAIN).program
    slow = replace(WIDE, sfp=replace(WIDE.sfp, switch_cycles=10**6))  # merge all that can be
    merged = fewer_switches(apart, slow, whole_costs(apart, slow.sfp))
    inputs = inputs_for(m, seed)
    assert not [f for f in find_hazards(merged, WIDE) if f.kind != "capacity"]
    assert outputs(merged, inputs) == outputs(apart, inputs)
