"""A functional run refuses what the machine cannot do, and says where and what would mend it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_machine import SMALL, acc, blank_memory, hbm, kernel, lx, op, program

from spyrec.sim.errors import SimulationError
from spyrec.sim.isa import Buffer, Guard, Instr, Kernel, Launch, Loop, Program, Wait
from spyrec.sim.memory import build_memory
from spyrec.sim.run import run

LX = "the scratchpad of core 0 has sticks 0..511, but the access is to "
ACC = "the accumulator of core 0 has groups 0..63, but the access is to "
UNWRITTEN = "the scratchpad of core 0 is read at stick 64, which nothing has written"
ZEROS = {"x": bytes(16384)}
FILL = op("fill", (64 * 64,), (lx(0, 1),), signals=[1])
LOAD = op("load", (8,), (lx(0, 1), hbm("x", 0, 1)))


def after_fill(unit: str, instr: Instr, cores: int = 1) -> Kernel:
    """The instruction once sticks 0..63 of the scratchpad are written."""
    waiting = replace(instr, waits=(Wait(1),))
    if unit == "sfp":
        return kernel(cores, sfp=(FILL, waiting))
    return kernel(cores, **{"sfp": (FILL,), unit: (waiting,)})


def test_the_whole_sentence() -> None:
    with pytest.raises(SimulationError) as error:
        run(program(kernel(2, ml=(replace(LOAD, note=1, where=2, operands=(
            lx((0, 508), 1), hbm("x", 0, 1))),))), SMALL, ZEROS)  # type: ignore[arg-type]
    assert str(error.value) == (
        "launch 0, kernel k, core 1, unit ml, `load 8 lx[508], hbm[x+0]` of %z = add (from Add_1, "
        "Add_2): the scratchpad of core 1 has sticks 0..511, but the access is to sticks "
        "508..515, beyond its end"
    )


@pytest.mark.parametrize(
    ("unit", "instr", "message"),
    [
        ("ml", replace(LOAD, operands=(lx(0, 1), hbm("x", 121, 1))),
         "input buffer x has sticks 0..127, but the access is to sticks 121..128, beyond its end"),
        ("ml", replace(LOAD, operands=(lx(0, 1), hbm("x", 6, -1))),
         "input buffer x has sticks 0..127, but the access is to sticks -1..6, before its start"),
        ("ms", op("store", (2,), (hbm("y", 127, 1), lx(0, 1))),
         "output buffer y has sticks 0..127, but the access is to sticks 127..128, beyond its end"),
        ("sfp", op("vec", (2,), (lx(0, 1), lx(-1, 1))),
         LX + "sticks -1..0, before its start"),
        ("pt", op("mm", (2, 1, 1, 1, 1, 1), (acc(63, 1), lx(0, 1), lx(0))),
         ACC + "groups 63..64, beyond its end"),
        ("sfp", op("shuf", (4,), (lx(0, 1), lx(512 * 64 - 2, 1))),
         LX + "sticks 511..512, beyond its end"),
        ("sfp", op("vec", (1,), (lx(600), lx(0))),
         LX + "stick 600, beyond its end"),
        ("sfp", op("vec", (2,), (lx(0, 1), lx(63, 1))),
         UNWRITTEN),
        ("sfp", op("vec", (2,), (lx(0, 1), lx(62, 1, guards=(Guard(1, 3, (1,)),), dtype="f32"))),
         UNWRITTEN),
        ("sfp", op("vec", (2,), (lx(0, 1), acc(5, 1))),
         "the accumulator of core 0 is read at group 5, which nothing has written"),
        ("sfp", op("shuf", (4,), (lx(0, 1), lx(64 * 64 - 2, 1))),
         UNWRITTEN),
        ("pt", op("mm", (1, 1, 1, 1, 1, 1), (acc(0), lx(0), lx(1))),
         UNWRITTEN),
        ("pt", op("mm", (1, 1, 1, 1, 1, 1), (acc(0), lx(0), lx(0)), imm={"init": 0}),
         "the accumulator of core 0 is read at group 0, which nothing has written"),
        ("ms", op("store", (2,), (hbm("y", 0, 1), lx(63, 1))),
         UNWRITTEN),
        ("rs", op("send", (2,), (lx(0, 1), lx(63, 1)), imm={"cores": 1}),
         UNWRITTEN),
        ("ml", op("load", (2,), (lx(0, 1), hbm("y", 3, 1))),
         "output buffer y is read at stick 3, which nothing has written"),
        ("ml", op("gather", (1,), (lx(0, 1), hbm("x", 0, 0), lx(64)), imm={"rows": 1}),
         UNWRITTEN),
        ("ms", op("store", (1,), (hbm("x", 200, 1, guards=(Guard(0, 0, (1,)),)), lx(64, 1))),
         "output buffer y is incomplete: 128 of 128 sticks were never written, the first is 0"),
    ],
)
def test_bounds_and_unwritten_reads(unit: str, instr: Instr, message: str) -> None:
    with pytest.raises(SimulationError) as error:
        run(program(after_fill(unit, instr)), SMALL, ZEROS)
    assert str(error.value).endswith(message), str(error.value)
    if "incomplete" not in message:  # that is the run's own finding, not an instruction's
        assert str(error.value).startswith(f"launch 0, kernel k, core 0, unit {unit}, `")


def test_span_of_a_core_over_a_launch() -> None:
    size = 2 * SMALL.hbm.span_bytes
    far = replace(LOAD, operands=(lx(0, 1), hbm("x", 0, 1, loops=(505,))))
    p = program(kernel(ml=(Loop(2, (far,)),)), size=size)
    with pytest.raises(SimulationError) as error:
        run(p, SMALL, {"x": bytes(size)})
    assert str(error.value).endswith(
        ": core 0 reaches over sticks 0..512 of buffer x, 65664 bytes; its span is 65536 bytes, so "
        "divide the tensor among more cores"
    )
    # Two cores that reach half as far each, or two launches, are fine.
    near = replace(LOAD, operands=(lx(0, 1), hbm("x", (0, 505), 1)))  # type: ignore[arg-type]
    fill_y = Buffer("y", "temp", 128, size * 2)
    ok = Program(
        (kernel(2, ml=(near,)), replace(kernel(ml=(LOAD,)), name="again")),
        (p.buffers[0], fill_y),
        (Launch(0, (("x", 0), ("y", 0))), Launch(1, (("x", 505 * 128), ("y", 0)), (0,))),
    )
    assert run(ok, SMALL, {"x": bytes(size)}).outputs == {}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input x is missing"),
        ({"x": bytes(16)}, "input x has 16 bytes; the buffer holds 16384"),
        ({"x": bytes(16384), "z": b""}, "z is not an input of the program"),
    ],
)
def test_inputs_are_checked(inputs: dict[str, bytes], message: str) -> None:
    with pytest.raises(SimulationError, match=f"^{message}$"):
        run(program(kernel()), SMALL, inputs)


def test_constants_are_not_written_and_share_no_memory() -> None:
    weights = Buffer("w", "const", 128, 0, bytes(128))
    k = kernel(params=("w",), sfp=(FILL,), ms=(op("store", (1,), (hbm("w", 0, 1), lx(0, 1)), [1]),))
    p = Program((k,), (weights,), (Launch(0, (("w", 0),)),))
    with pytest.raises(SimulationError, match=r": const buffer w is a constant, but it is"):
        run(p, SMALL, {})
    clash = Program((), (weights, Buffer("t", "temp", 256, 0)), ())
    with pytest.raises(SimulationError) as error:
        run(clash, SMALL, {})
    assert str(error.value) == (
        "constant buffer w shares card memory with t; give them addresses apart"
    )


def test_buffers_at_the_same_address_share_their_bytes() -> None:
    p = Program((), (Buffer("a", "temp", 256, 0), Buffer("b", "temp", 256, 128)), ())
    memory = build_memory(p, SMALL, {}, False)
    memory.hbm["a"].data[128] = 7
    memory.hbm["a"].valid[1] = True
    assert memory.hbm["b"].data[0] == 7 and memory.hbm["b"].valid.tolist() == [True, False]


def test_poison_fills_what_was_never_written_and_padding() -> None:
    p = Program((), (Buffer("a", "input", 130, 0), Buffer("c", "const", 4, 256, b"abcd")), ())
    memory = build_memory(p, SMALL, {"a": bytes(130)}, True)
    assert memory.hbm["a"].data[128:].tobytes() == bytes(2) + b"\xff\x7f" * 63
    assert memory.hbm["c"].data.tobytes() == b"abcd" + b"\xff\x7f" * 62
    assert memory.lx[0].data[:4].tobytes() == b"\xff\x7f" * 2
    assert not blank_memory().lx[0].data.any()


def test_scratchpad_and_outputs_survive_between_launches() -> None:
    """What one launch leaves in the scratchpad the next may read."""
    load = replace(LOAD, counts=(128,))
    store = op("store", (128,), (hbm("y", 0, 1), lx(0, 1)))
    data = bytes(i % 251 for i in range(16384))
    result = run(program(kernel(ml=(load,)), kernel(ms=(store,))), SMALL, {"x": data})
    assert result.outputs["y"] == data


def test_timing_does_not_depend_on_data() -> None:
    load = replace(LOAD, counts=(128,))
    store = op("store", (128,), (hbm("y", 0, 1), lx(0, 1)))
    p = program(kernel(ml=(load,)), kernel(ms=(store,)))
    full, quick = run(p, SMALL, ZEROS), run(p, SMALL, timing_only=True)
    assert replace(full, outputs={}) == quick
