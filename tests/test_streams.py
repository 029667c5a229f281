"""Tokens between units: no deadlock, no race, nothing lost, whatever the timing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import test_end_to_end as end_to_end
from hypothesis import given, settings
from hypothesis import strategies as st
from interleave import Interleaving
from random_trees import X_STICKS, Case, cases
from small_machine import SMALL

from spyrec.backend.program import emit_program
from spyrec.backend.streams import Streams
from spyrec.backend.tree import Body, Buffer, LoopStmt, Stmt
from spyrec.driver import compile_module
from spyrec.ir.errors import CapacityError, PassError
from spyrec.passes.kernel import Nest
from spyrec.passes.lower_tiles import LowerTiles
from spyrec.passes.manager import Target, run_pipeline
from spyrec.passes.pipeline import PIPELINE
from spyrec.sim.check import find_hazards
from spyrec.sim.device import load_device
from spyrec.sim.engine import Engine
from spyrec.sim.functional import Functional
from spyrec.sim.isa import GO, Instr, Kernel, Loop, Program, Signal, Stream, Wait, instructions
from spyrec.sim.memory import Memory, build_memory

DEVICE = load_device()


def memory_of(program: Program) -> Memory:
    values = np.random.default_rng(0).integers(-8, 9, X_STICKS * 64).astype(np.float16)
    return build_memory(program, SMALL, {"x": values.tobytes()}, True)


@given(cases(), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_any_timing_gives_what_the_order_of_the_tree_gives(case: Case, seed: int) -> None:
    program = case.program()
    want = memory_of(program)
    case.in_order(want)
    for late in (False, True):
        got = memory_of(program)
        effects = Functional(program, SMALL, got)
        if late:
            Interleaving(program, SMALL, seed, effects).run()
        else:
            engine = Engine(program, SMALL, effects)
            engine.run()
            assert not engine.in_flight
        assert np.array_equal(got.hbm["y"].valid, want.hbm["y"].valid)
        assert np.array_equal(got.hbm["y"].data, want.hbm["y"].data)


@given(cases(), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_in_the_end_every_slot_is_free_and_none_is_full(case: Case, seed: int) -> None:
    streams = case.streams()
    run = Interleaving(case.program(), SMALL, seed)
    run.run()
    left: dict[int, int] = {}
    for (_, token), held in run.flights[0].tokens.items():
        left[token] = left.get(token, 0) + held
    for link, token in streams.full.items():
        assert left.get(token, 0) == 0, f"{link} is full"
    for (buffer, unit), first in streams.free.items():
        members = max((mask.bit_count() for mask in buffer.groups), default=1)
        free = sum(left.get(first + i, 0) for i in range(members))
        assert free == buffer.slots * case.cores, f"{unit} keeps slots of {buffer.name}"


@given(cases())
@settings(max_examples=60, deadline=None)
def test_streams_have_no_hazard(case: Case) -> None:
    """But that random trees compute what they do not use."""
    assert {finding.kind for finding in find_hazards(case.program(), SMALL)} <= {"lost"}


def uneven_transpose() -> Program:
    """Tiles of which some hold nothing for some cores, so that cores change slots at their own
    pace."""
    target = Target(DEVICE)
    road = end_to_end.module(
        lambda g, x: [g("transpose", x, perm=(1, 0))], ("x", (320, 1200), "f32")
    )
    at = PIPELINE.index(LowerTiles())
    planned = run_pipeline(road, PIPELINE[:at], target)
    (op,) = planned.body.ops
    op = op.with_attrs(parts=(16, 2), core_order=(0, 1), tile=(50, 64))
    assert [r[1][1] for r in Nest(op).core_ranges[:2]] == [192, 128]
    cut = replace(planned, body=replace(planned.body, ops=(op,)))
    return emit_program(run_pipeline(cut, PIPELINE[at:], target), target)


def test_cores_change_slots_at_their_own_pace() -> None:
    program = uneven_transpose()
    masks = {
        instr.where for k in program.kernels for instr, _ in instructions(k.streams["ms"])
        if instr.op == "store"
    }  # fmt: skip
    assert len(masks) > 1, "every tile is there on every core, so nothing is tested"
    assert find_hazards(program, DEVICE) == ()


def without(stream: Stream, token: int) -> Stream:
    """The stream with no wait for ``token``."""
    return tuple(
        Loop(item.count, without(item.body, token))
        if isinstance(item, Loop)
        else replace(item, waits=tuple(w for w in item.waits if w.token != token))
        for item in stream
    )


def spent(stream: Stream, trips: int = 1) -> dict[int, int]:
    """How often each token is waited for on a core."""
    found: dict[int, int] = {}
    for item in stream:
        inner = (
            spent(item.body, trips * item.count)
            if isinstance(item, Loop)
            else {w.token: trips * w.n for w in item.waits}
        )
        for token, n in inner.items():
            found[token] = found.get(token, 0) + n
    return found


def given_at_the_start(kernel: Kernel) -> dict[int, int]:
    """Credits that the first instruction of a stream hands out."""
    found: dict[int, int] = {}
    for stream in kernel.streams.values():
        first = stream[0]
        if isinstance(first, Instr) and first.op == "sync":
            for signal in first.signals:
                tokens = signal.token if isinstance(signal.token, tuple) else (signal.token,)
                found |= dict.fromkeys(tokens, signal.n)
    return found


def test_each_token_is_needed() -> None:
    """Without any one of the waits for more than the credits given at the start there is a race: no
    wait is there for nothing, and the checker finds one that is missing."""
    whole = {"kernels": {"k0_matmul": {"parts": {"k": 1}}}}  # a chain of sums orders more
    program = compile_module(
        end_to_end.long_inner_dimension(), Target(DEVICE), plan=whole
    ).program
    kernel = next(k for k in program.kernels if "pt" in k.streams)
    launch = replace(program.launches[program.kernels.index(kernel)], after=(), early=False)
    credits = given_at_the_start(kernel)
    broken = 0
    for unit, stream in kernel.streams.items():
        for token, n in spent(stream).items():
            if token == GO or n <= credits.get(token, 0):
                continue
            streams = {**kernel.streams, unit: without(stream, token)}
            changed = replace(
                program, kernels=(replace(kernel, streams=streams),),
                launches=(replace(launch, kernel=0),),
            )  # fmt: skip
            assert "race" in {finding.kind for finding in find_hazards(changed, DEVICE)}
            broken += 1
    assert broken >= 8


def stmt(unit: str, reads: tuple[Buffer, ...] = (), writes: tuple[Buffer, ...] = ()) -> Stmt:
    return Stmt(unit, Instr({"ml": "load", "sfp": "vec", "ms": "store"}[unit]), reads, writes)


def test_streams_of_a_double_buffered_copy() -> None:
    a = Buffer("a", 2)
    step = Body([stmt("ml", (), (a,)), stmt("ms", (a,))], [a])
    streams = Streams(Body([LoopStmt(5, step)]), 1).build()
    load = Instr("load", waits=(Wait(0, 0), Wait(2)), signals=(Signal(1),))
    store = Instr("store", waits=(Wait(1),), signals=(Signal(2),))
    assert streams == {
        "ml": (Loop(5, (load,)),),
        "ms": (Instr("sync", signals=(Signal(2, 2),)), Instr("sync", waits=(Wait(0, 0),)),
               Loop(5, (store,))),
    }  # fmt: skip


def test_each_member_of_a_group_reports_on_its_own_counter() -> None:
    a = Buffer("a", 2, (0b0111, 0b1000))
    root = Body([stmt("ml", (), (a,)), stmt("sfp", (a,))], [a])
    streams = Streams(root, 4).build()
    members = (0b0111, 2, 4, 0b1000)
    assert streams["ml"] == (
        Instr("load", waits=(Wait(0, 0), Wait(2)), signals=(Signal(1, 1, members),), where=0b1000),
        Instr("load", waits=(Wait(0, 0), Wait(2), Wait(3), Wait(4)),
              signals=(Signal(1, 1, members),), where=0b0001),
    )  # fmt: skip
    first, _, read = streams["sfp"]
    assert isinstance(first, Instr) and isinstance(read, Instr)
    assert first.signals == (Signal((2, 3, 4, 2), 2, (1, 1, 1, 8)),)
    assert read.signals == (Signal((2, 3, 4, 2), 1, (1, 1, 1, 8)),)


A, B = Buffer("a"), Buffer("b")
SHARED = Buffer("s", 2, (0b11,))
BROKEN: list[tuple[Body, str]] = [
    (Body([stmt("ms", (A,))], [A]),
     "codegen: buffer a is written by no unit, expected one unit"),
    (Body([stmt("ml", (), (A,)), stmt("sfp", (), (A,)), stmt("ms", (A,))], [A]),
     "codegen: buffer a is written by ml, sfp, expected one unit"),
    (Body([stmt("ml", (), (A,)), stmt("ms", (A,))]),
     "codegen: buffer a is touched outside the bodies it is scoped to"),
    (Body([LoopStmt(2, Body([stmt("ml", (), (A,)), stmt("ms", (A,))], [A]))], [A]),
     "codegen: buffer a is touched in two scopes at once"),
    (Body([stmt("ml", (), (A,)), stmt("sfp", (A,), (B,)), stmt("ml", (B,), (A,))], [A, B]),
     "codegen: buffer a is read before ml has written it; in each trip of its scope all writes "
     "must come first"),
    (Body([LoopStmt(2, Body([stmt("ml", (), (SHARED,))])), stmt("ms", (SHARED,))], [SHARED]),
     "codegen: buffer s is shared by groups of cores, so it needs one load directly in the body it "
     "is scoped to, got 1 writes"),
]  # fmt: skip


@pytest.mark.parametrize(("root", "message"), BROKEN, ids=range(len(BROKEN)))
def test_trees_that_tokens_cannot_keep_in_step(root: Body, message: str) -> None:
    with pytest.raises(PassError) as caught:
        Streams(root, 2)
    assert str(caught.value) == message


def test_too_many_tokens() -> None:
    buffers = [Buffer(f"b{i}") for i in range(128)]
    items: list[Stmt | LoopStmt] = [stmt("ml", (), (b,)) for b in buffers]
    items += [stmt("ms", (b,)) for b in buffers]
    with pytest.raises(CapacityError) as caught:
        Streams(Body(items, buffers), 1)
    assert str(caught.value) == "codegen: a kernel needs more than 255 tokens; pin a coarser tile"
