"""Kernels that go on in the launch of the kernel before: what it takes, when it is done, and that
nothing else changes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interleave import Interleaving
from small_machine import SMALL, Recorder, hbm, kernel, lx, op, program
from small_models import module, random_inputs

import spyrec
from spyrec import api, runtime
from spyrec.backend.joints import Joints, cuts
from spyrec.driver import compile_module
from spyrec.ir.core import Module
from spyrec.passes.manager import Target
from spyrec.passes.pipeline import PIPELINE
from spyrec.report import kernel_rows, run_totals
from spyrec.share import finished_code
from spyrec.sim.assembler import assemble
from spyrec.sim.check import find_hazards
from spyrec.sim.device import DeviceSpec, load_device
from spyrec.sim.encoding import encode_kernel
from spyrec.sim.errors import ObjectError, SimError
from spyrec.sim.functional import Functional
from spyrec.sim.isa import GO, UNITS, Instr, Kernel, Loop, MicroProgram, Program, Stream
from spyrec.sim.joint import code_bytes, meet_cycles, switches
from spyrec.sim.listing import disassemble
from spyrec.sim.memory import build_memory
from spyrec.sim.objfile import dump, loads
from spyrec.sim.run import run
from spyrec.sim.wellformed import Limits
from tests.graphs import inputs_for, modules

WIDE = load_device()
LIMITS = Limits(SMALL.cores.count, SMALL.launch.loop_max, SMALL.hbm.bytes)
ROOMY = replace(SMALL, lx=replace(SMALL.lx, bytes=1 << 17, reserved_bytes=1 << 16))
SWITCHING = replace(ROOMY, sfp=replace(SMALL.sfp, switch_cycles=30))
JOINED = tuple(p for p in PIPELINE if p.name != "merge-programs")
APART = tuple(p for p in JOINED if p.name != "share-launches")
MEET = 2 * (5 + 2 * 2)  # there and back: the start of a send, two of five stops at 2 cycles a hop


def shared(p: Program, device: DeviceSpec) -> Program:
    return finished_code(p, device, joins=True, merges=False)


def joined(p: Program, *numbers: int) -> Program:
    """The program with the kernels of these launches joined to those before."""
    launches = tuple(
        replace(launch, joint="meet") if i in numbers else launch
        for i, launch in enumerate(p.launches)
    )
    return replace(p, launches=launches)


def vector(*programs: int, cores: int = 1, where: int = 0) -> Kernel:
    """Vectors of 8 groups, 8 cycles each, one for each micro-program."""
    steps = [
        op("vec", (8,), (lx(100, 1), lx(0, 1)), imm={"program": i}, where=where)
        for i in range(len(programs))
    ]
    go = op("sync", waits=[GO])
    made = tuple(MicroProgram(1, (float(p),)) for p in programs)
    return replace(kernel(cores, (), sfp=(go, *steps)), programs=made)


def spans(p: Program, device: DeviceSpec) -> list[tuple[int, int]]:
    """Start and end of what each launch does after its GO, counted from that."""
    return [(s.go_cycle, s.end_cycle) for s in run(p, device, timing_only=True).launches]


def test_cores_meet_in_twice_the_time_of_the_farthest_send() -> None:
    assert meet_cycles(SMALL) == MEET
    p = program(*[vector(0)] * 3)
    assert spans(p, ROOMY) == [(50, 58), (108, 116), (166, 174)]
    assert spans(joined(p, 1, 2), ROOMY) == [
        (50, 58), (58 + MEET, 66 + MEET), (66 + 2 * MEET, 74 + 2 * MEET)
    ]  # fmt: skip
    assert spans(joined(p, 2), ROOMY) == [(50, 58), (108, 116), (116 + MEET, 124 + MEET)]


def test_all_cores_meet_before_one_goes_on() -> None:
    long = replace(op("vec", (80,), (lx(200, 1), lx(0, 1))), where=0b0100)
    uneven = vector(0, cores=4)
    uneven = replace(uneven, streams={"sfp": (*uneven.streams["sfp"], long)})
    seen = Recorder()
    run(joined(program(uneven, vector(0, cores=4)), 1), ROOMY, timing_only=True, observer=seen)
    slices = sorted((start, end, core) for core, _, _, start, end in seen.slices)
    ends = {core: end for _, end, core in slices[:-4]}
    assert ends == {0: 58, 1: 58, 2: 138, 3: 58}
    assert [start for start, _, _ in slices[-4:]] == [138 + MEET] * 4


@pytest.mark.parametrize(
    ("chain", "apart", "expected"),
    [
        ([(0,), (0,)], (), (False, False)),
        ([(0,), (1,)], (), (False, True)),
        ([(0, 1), (1,), (0,)], (), (False, False, True)),
        ([(0,), (), (1,)], (), (False, False, True)),  # what it ran last is still there
        ([(), (1,)], (), (False, False)),  # the first one comes with the launch
        ([(0,), (1,), (2,)], (1,), (False, False, True)),
    ],
)
def test_what_was_taken_up_last_is_there_in_the_next_kernel(
    chain: Sequence[Sequence[int]], apart: Sequence[int], expected: Sequence[bool]
) -> None:
    p = program(*(vector(*programs) for programs in chain))
    p = joined(p, *(i for i in range(1, len(chain)) if i not in apart))
    assert switches(p) == tuple(expected)
    took = [end - go for go, end in spans(p, SWITCHING)]
    alone = [end - go for go, end in spans(joined(p), SMALL)]
    inside = [30 * max(0, len(programs) - 1) for programs in chain]
    assert took == [a + i + 30 * s for a, i, s in zip(alone, inside, expected, strict=True)]


def test_a_switch_is_charged_on_the_cores_that_make_it() -> None:
    some = vector(1, cores=4, where=0b1010)
    seen = Recorder()
    run(joined(program(vector(0, cores=4), some), 1), SWITCHING, timing_only=True, observer=seen)
    later = [(core, end - start) for core, *_, start, end in seen.slices if start > 60]
    assert sorted(later) == [(1, 38), (3, 38)]


def test_a_joined_kernel_costs_as_much_as_if_both_were_one() -> None:
    first, second = vector(0, 1), vector(2, 2)
    both = vector(0, 1, 2, 2)
    both = replace(both, programs=(*both.programs[:3], both.programs[2]))
    body = [replace(i, imm={"program": min(i.imm["program"], 2)}) if i.imm else i  # type: ignore[type-var]
            for i in both.streams["sfp"] if isinstance(i, Instr)]  # fmt: skip
    (_, alone), = spans(program(replace(both, streams={"sfp": tuple(body)})), SWITCHING)
    second = replace(second, streams={"sfp": tuple(
        replace(i, imm={"program": 0}) if i.imm else i for i in second.streams["sfp"]  # type: ignore[union-attr,type-var]
    )})  # fmt: skip
    (_, _), (_, end) = spans(joined(program(first, second), 1), SWITCHING)
    assert end == alone + MEET


SIZES = st.lists(
    st.tuples(st.integers(1, 9), st.none() | st.integers(0, 9)), min_size=1, max_size=8
)


@given(SIZES, st.integers(0, 9), st.integers(1, 20))
@settings(deadline=None)
def test_no_other_way_to_cut_is_cheaper(
    kernels: list[tuple[int, int | None]], start: int, room: int
) -> None:
    sizes, costs = [size for size, _ in kernels], [cost for _, cost in kernels]

    def price(first: Sequence[int]) -> int | None:
        if 0 not in first:
            return None
        ends = (*first[1:], len(kernels))
        for low, end in zip(first, ends, strict=True):
            if sum(sizes[low:end]) > room and end - low > 1:
                return None
        joins = [costs[i] for i in range(len(kernels)) if i not in first]
        return None if None in joins else start * len(first) + sum(joins)  # type: ignore[arg-type]

    every = (c for n in range(len(kernels) + 1) for c in combinations(range(len(kernels)), n))
    found = price(sorted(cuts(sizes, costs, start, room)))
    assert found is not None
    assert found == min(p for p in map(price, every) if p is not None)


def test_a_launch_holds_what_the_program_region_holds() -> None:
    p = program(*[vector(0)] * 7)
    words = encode_kernel(vector(0), LIMITS).words.nbytes
    assert code_bytes(vector(0), SMALL) == words
    for room, launches in ((words * 7, 1), (words * 7 - 1, 2), (words * 3, 3), (words, 7), (1, 7)):
        device = replace(ROOMY, lx=replace(ROOMY.lx, reserved_bytes=room))
        made = shared(p, device)
        assert sum(not launch.joint for launch in made.launches) == launches
        assert not [f for f in find_hazards(made, device) if f.kind == "capacity"]
    tight = replace(ROOMY, lx=replace(ROOMY.lx, reserved_bytes=words * 3))
    found = find_hazards(joined(p, 1, 2, 4, 5, 6), tight)
    assert [f.text for f in found if f.kind == "capacity"] == [
        f"launches 3 to 6 are joined: their kernels take {4 * words} bytes of the program region, "
        f"there are {3 * words}; let one of them be a launch of its own"
    ]  # fmt: skip


def test_only_what_is_cheaper_is_joined() -> None:
    p = program(vector(0), vector(1), vector(1))
    for start, switch, kinds in (
        (50, 0, ["", "meet", "meet"]), (50, 31, ["", "meet", "meet"]),
        (50, 33, ["", "", "meet"]), (MEET, 0, ["", "", ""]), (0, 0, ["", "", ""]),
    ):  # fmt: skip
        device = replace(
            ROOMY, launch=replace(SMALL.launch, start_cycles=start),
            sfp=replace(SMALL.sfp, switch_cycles=switch),
        )
        assert [launch.joint for launch in shared(p, device).launches] == kinds


def test_a_start_up_that_hides_weights_is_kept_where_that_is_shorter() -> None:
    """While a launch starts up its weights come; joined, their cores wait for them all the same,
    and then for the switch."""
    bring = op("load", (64,), (lx(200, 1), hbm("x", 0, 1)), signals=[1])
    wait = op("sync", waits=[1, GO])
    turn = op("vec", (8,), (lx(100, 1), lx(0, 1)))
    late = replace(kernel(1, ("x",), ml=(bring,), sfp=(wait, turn)),
                   programs=(MicroProgram(1, (7.0,)),))  # fmt: skip
    p = program(vector(0), late, vector(0), vector(0))
    assert Joints(p, SWITCHING).priced()[1] < SWITCHING.launch.start_cycles
    made = shared(p, SWITCHING)
    assert [launch.joint for launch in made.launches] == ["", "", "meet", "meet"]
    chained = Joints(p, SWITCHING).chained
    assert cycles(made, SWITCHING) < cycles(chained, SWITCHING) < cycles(p, SWITCHING)


def cycles(p: Program, device: DeviceSpec) -> int:
    return run(p, device, timing_only=True).total_cycles


def test_launches_that_wait_for_others_are_not_joined() -> None:
    p = program(*[vector(0)] * 4)
    launches = list(p.launches)
    launches[2] = replace(launches[2], after=(0,))
    made = shared(replace(p, launches=tuple(launches)), ROOMY)
    assert [launch.joint for launch in made.launches] == ["", "meet", "", "meet"]
    wrong = replace(made, launches=(*made.launches[:2], replace(launches[2], joint="meet")))
    with pytest.raises(ObjectError, match=(
        r"^launch 2: it goes on from the launch before, so it waits for launch 1 alone; it waits "
        r"for \[0\]$"
    )):  # fmt: skip
        dump(wrong)
    first = replace(p, launches=(replace(p.launches[0], joint="meet"),))
    with pytest.raises(ObjectError, match=r"^launch 0: it goes on from the launch before"):
        dump(first)


def test_a_joined_program_is_written_and_read_back() -> None:
    p = replace(joined(program(*[vector(0)] * 3), 1, 2), device=ROOMY.text)
    stored = loads(dump(p))
    assert [launch.joint for launch in stored.launches] == ["", "meet", "meet"]
    text = disassemble(stored)
    assert text.count(" meet") == 2
    assert dump(assemble(text)) == dump(p)


def test_jobs_begin_with_launches_of_their_own() -> None:
    p = joined(program(*[vector(0)] * 4), 1, 2, 3)
    assert [x.joint for x in runtime.cut(p, 2).launches] == ["", "meet", "", "meet"]
    assert runtime.cut(p, 1) == p


def test_the_report_adds_up() -> None:
    p = joined(program(*[vector(0)] * 4), 1, 3)
    ran = run(p, ROOMY, timing_only=True)
    rows = kernel_rows(p, ROOMY, ran.launches)
    totals = run_totals(ran, rows, ROOMY)
    assert (totals.launches, totals.launch_cycles) == (2, 2 * 50)
    assert (totals.meetings, totals.meeting_cycles) == (2, 2 * MEET)
    kernels = sum(row.count * row.cycles for row in rows)
    assert kernels + totals.launch_cycles + totals.meeting_cycles == totals.cycles


def some_layers() -> Module:
    def make(g: Any, x: Any, *weights: Any) -> Any:
        for w in weights:
            h = g("matmul", g("softmax", x, axis=1), w)
            x = g("add", x, g("tanh", h))
        return [x]

    weights = ((f"w{i}", (192, 192), "f32") for i in range(3))
    return module(make, ("x", (70, 192), "f32"), *weights)


def packed(p: Program, inputs: Mapping[str, Any]) -> dict[str, bytes]:
    return {
        port.buffer.name: runtime.pack(port, inputs[port.name], True)
        for port in runtime.ports(p, "input")
    }


def outputs(p: Program, inputs: Mapping[str, Any]) -> dict[str, bytes]:
    return dict(run(p, WIDE, packed(p, inputs), poison=True).outputs)


def test_a_compiled_model_is_shorter_and_computes_the_same() -> None:
    m, target = some_layers(), Target(WIDE)
    apart = compile_module(m, target, pipeline=APART).program
    made = compile_module(m, target, pipeline=JOINED).program
    assert replace(made, launches=apart.launches) == apart  # no kernel and no buffer changed
    assert not any(launch.joint for launch in apart.launches)
    assert sum(bool(launch.joint) for launch in made.launches) > len(made.launches) // 2
    assert cycles(made, WIDE) < 0.95 * cycles(apart, WIDE)
    assert find_hazards(made, WIDE) == ()
    inputs = random_inputs(m)
    assert outputs(made, inputs) == outputs(apart, inputs)
    assert dump(compile_module(m, target, pipeline=JOINED).program) == dump(made)
    baseline = compile_module(m, target, planner="baseline").program
    assert not any(launch.joint for launch in baseline.launches)


@settings(
    max_examples=25, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(modules(smooth=True), st.integers(0, 99))
def test_random_graphs_compute_the_same_in_fewer_launches(m: Module, seed: int) -> None:
    target, inputs = Target(WIDE), inputs_for(m, seed)
    apart = compile_module(m, target, pipeline=APART).program
    made = shared(apart, WIDE)
    assert cycles(made, WIDE) < cycles(apart, WIDE) or made is apart
    chained = Joints(apart, WIDE).chained  # not only what is chosen
    for p in (made, chained):
        assert not [f for f in find_hazards(p, WIDE) if f.kind != "capacity"]
        assert outputs(p, inputs) == outputs(apart, inputs)


def without_go(stream: Stream) -> Stream:
    def free(item: Instr | Loop) -> Instr | Loop:
        if isinstance(item, Loop):
            return replace(item, body=without_go(item.body))
        return replace(item, waits=tuple(w for w in item.waits if w.token != GO))

    return tuple(map(free, stream))


def test_a_unit_that_does_not_wait_for_the_meeting_is_found() -> None:
    """Of each joined kernel and unit in turn: what changes an output in an order that the tokens
    leave open is a hazard that is told."""
    m = some_layers()
    p = compile_module(m, Target(WIDE)).program
    inputs = random_inputs(m)
    want, given_ = outputs(p, inputs), packed(p, inputs)
    wrong = found = 0
    for number in sorted({x.kernel for x in p.launches if x.joint}):
        k = p.kernels[number]
        for unit in (u for u in UNITS if u in k.streams):
            streams = {**k.streams, unit: without_go(k.streams[unit])}
            kernels = list(p.kernels)
            kernels[number] = replace(k, streams=streams)
            mutant = replace(p, kernels=tuple(kernels))
            told = bool(find_hazards(mutant, WIDE))
            memory = build_memory(mutant, WIDE, given_, True)
            try:
                Interleaving(mutant, WIDE, number, Functional(mutant, WIDE, memory)).run()
                got = {b.name: memory.output(b) for b in p.buffers if b.kind == "output"}
                same = got == want
            except SimError:
                same = False
            wrong, found = wrong + (not same), found + told
            assert same or told, f"kernel {number}, unit {unit}"
    assert wrong and found


def test_a_table_has_a_row_for_meetings() -> None:
    from rich.console import Console

    from spyrec.table import kernel_table

    p = joined(program(*[vector(0)] * 4), 1, 3)
    ran = run(p, ROOMY, timing_only=True)
    rows = kernel_rows(p, ROOMY, ran.launches)
    console = Console(file=io.StringIO(), width=200)
    console.print(kernel_table(rows, run_totals(ran, rows, ROOMY), 200))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split()[:5] for line in lines[-3:-1]] == [
        ["launch", "start-up", "2", "50", "0.1"], ["meeting", "of", "cores", "2", "18"]
    ]  # fmt: skip


def test_a_program_of_the_api_runs_joined() -> None:
    program_ = api.compile(some_layers())
    told = spyrec.simulate(program_, timing_only=True)
    facts = told.facts
    kernels = sum(k.count * k.cycles for k in told.kernels)
    assert facts.launch_cycles + facts.meeting_cycles + kernels == facts.total_cycles
    assert facts.meeting_cycles == told.totals.meetings * meet_cycles(WIDE) > 0
    assert np.isfinite(facts.total_us)
