"""Data movement against element-by-element models of the ISA's formulas."""

from __future__ import annotations

from dataclasses import replace
from itertools import product as points

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_machine import SMALL, blank_memory, hbm, kernel, lx, op, program, written

from spyrec.sim.errors import SimulationError
from spyrec.sim.functional_move import fill, gather, shuf
from spyrec.sim.isa import Guard, Instr, Limit, Loop, Operand, Program, Rotate, Signal, Wait
from spyrec.sim.memory import Image
from spyrec.sim.run import run
from spyrec.sim.view import Grid, Moment

LOOPS = (2, 3)
small = st.integers(-2, 2)


def no_hbm(number: int, at: Grid) -> tuple[Image, Grid]:
    raise AssertionError("this instruction has no operand in memory")


@st.composite
def operands(draw: st.DrawFn, space: str, dims: int, symbol: str = "") -> Operand:
    strides = tuple(draw(st.integers(-3, 3)) for _ in range(dims))
    guard = st.builds(
        Guard, small, st.integers(1, 6), st.tuples(*[small] * dims), st.tuples(small, small)
    )
    rotate = st.builds(
        Rotate, st.tuples(st.integers(0, 2), st.integers(0, 2)), st.integers(1, 3),
        st.integers(0, 9),
    )
    return Operand(
        "hbm" if space == "hbm" else "lx", draw(st.integers(40, 60)), strides, symbol=symbol,
        loops=(draw(small), draw(small)), rotate=draw(st.one_of(st.none(), rotate)),
        guards=tuple(draw(st.lists(guard, max_size=2))),
    )


def address(o: Operand, index: tuple[int, ...], trip: tuple[int, ...]) -> int:
    at = int(str(o.base)) + sum(s * i for s, i in zip(o.strides, index, strict=True))
    at += sum(s * t for s, t in zip(o.loops, trip, strict=True))
    if o.rotate is not None:
        turns = sum(s * t for s, t in zip(o.rotate.loops, trip, strict=True))
        at += turns % o.rotate.depth * o.rotate.stride
    return at


def inside(o: Operand, index: tuple[int, ...], trip: tuple[int, ...]) -> bool:
    for g in o.guards:
        at = int(str(g.origin)) + sum(s * i for s, i in zip(g.strides, index, strict=True))
        at += sum(s * t for s, t in zip(g.loops, trip, strict=True))
        if not 0 <= at < int(str(g.extent)):
            return False
    return True


def effective(instr: Instr, trip: tuple[int, ...]) -> list[range]:
    ranges = []
    for count, limit in zip(instr.counts, instr.limits, strict=True):
        value = int(str(count))
        if limit is not None:
            left = int(str(limit.start)) - sum(
                s * t for s, t in zip(limit.loops, trip, strict=True)
            )
            value = min(max(left, 0), value)
        ranges.append(range(value))
    return ranges


@st.composite
def copies(draw: st.DrawFn) -> Instr:
    """A load (or, turned round, a store) whose destinations do not collide."""
    dims = draw(st.integers(0, 3))
    counts = tuple(draw(st.integers(0, 3)) for _ in range(dims))
    limit = st.one_of(
        st.none(), st.builds(Limit, st.integers(-1, 4), st.tuples(small, small))
    )
    limits = tuple(draw(limit) for _ in range(dims))
    target = draw(operands("lx", dims))
    target = replace(target, strides=(16, 4, 1)[3 - dims :])
    return Instr("load", counts, limits, (target, draw(operands("hbm", dims, "x"))))


@given(copies())
@settings(max_examples=150, deadline=None)
def test_load_and_store_move_what_the_formula_says(instr: Instr) -> None:
    sticks = 128
    source = np.random.default_rng(1).integers(0, 255, (sticks, 128)).astype(np.uint8)
    wanted = np.zeros((sticks, 128), np.uint8)
    for trip in points(*map(range, LOOPS)):
        for index in points(*effective(instr, trip)):
            target, origin = instr.operands
            if inside(target, index, trip) and inside(origin, index, trip):
                wanted[address(target, index, trip)] = source[address(origin, index, trip)]

    clear = op("fill", (sticks * 64,), (lx(0, 1),), signals=[1])
    load = replace(instr, signals=(Signal(2),))
    out = op("store", (sticks,), (hbm("y", 0, 1), lx(0, 1)))
    k = kernel(
        sfp=(clear,),
        ml=(op("sync", waits=[1]), Loop(2, (Loop(3, (load,)),))),
        ms=(replace(out, waits=(Wait(2, 6),)),),
    )
    result = run(program(k, size=sticks * 128), SMALL, {"x": source.tobytes()})
    assert result.outputs["y"] == wanted.tobytes()


def test_store_mirrors_load() -> None:
    """Out and back through swapped strides is a transpose of sticks."""
    load = op("load", (4, 8), (lx(0, 8, 1), hbm("x", 0, 8, 1)), signals=[1])
    store = op("store", (8, 4), (hbm("y", 0, 4, 1), lx(0, 1, 8)), [1])
    data = np.random.default_rng(2).integers(0, 255, (4, 8, 128)).astype(np.uint8)
    result = run(
        program(kernel(ml=(load,), ms=(store,)), size=4096), SMALL, {"x": data.tobytes()}
    )
    assert result.outputs["y"] == data.transpose(1, 0, 2).tobytes()


def test_multicast_and_send_arrive_on_every_core_of_the_mask() -> None:
    data = np.arange(512, dtype=np.uint8)
    load = op("load", (4,), (lx(0, 1), hbm("x", 0, 1)), imm={"cores": 0b0110}, where=1)
    load = replace(load, signals=(Signal(1, cores=0b0010),))
    send = op("send", (4,), (lx(8, 1), lx(0, 1)), [1], imm={"cores": 0b1001}, where=0b0010)
    send = replace(send, signals=(Signal(2, cores=0b1001),))
    recv = op("recv", waits=[2], signals=[3], where=0b1001)
    store = op("store", (4,), (hbm("y", (0, 0, 0, 4), 1), lx(8, 1)), [3], where=0b1001)  # type: ignore[arg-type]
    k = kernel(4, ml=(load,), rs=(send,), rr=(recv,), ms=(store,))
    p = program(k, size=1024)
    result = run(p, SMALL, {"x": bytes(data) * 2})
    assert result.outputs["y"] == bytes(data) * 2


def gathered(index: list[int], rows: int) -> None:
    """Gather two-stick rows of x by an index list that is a second input's stick."""
    count = len(index)
    fetch = op("load", (1,), (lx(100, 1), hbm("i", 0, 1)), signals=[1])
    g = op("gather", (count, 2), (lx(0, 2, 1), hbm("x", 0, 0, 1), lx(100)), [1], [2],
           imm={"stride": 2, "rows": rows})
    store = op("store", (count * 2,), (hbm("y", 0, 1), lx(0, 1)), [2])
    k = kernel(params=("x", "y", "i"), ml=(fetch, g), ms=(store,))
    p = program(kernel(), size=2048)
    buffers = (*p.buffers, replace(p.buffers[0], name="i", size=128, address=8192))
    buffers = (buffers[0], replace(buffers[1], size=count * 256, address=4096), buffers[2])
    launch = replace(p.launches[0], args=(("x", 0), ("y", 0), ("i", 0)))
    table = np.random.default_rng(3).integers(0, 255, (8, 256)).astype(np.uint8)
    packed = np.zeros(32, np.int32)
    packed[:count] = index
    result = run(Program((k,), buffers, (launch,)), SMALL,
                 {"x": table.tobytes(), "i": packed.tobytes()})
    found = np.frombuffer(result.outputs["y"], np.uint8).reshape(count, 256)
    assert (found == table[index]).all()


def test_gather_fetches_rows_by_index() -> None:
    gathered([3, 0, 7, 7, 2], 8)


@pytest.mark.parametrize("bad", [8, -1, 2**31 - 1])
def test_gather_checks_its_indices(bad: int) -> None:
    with pytest.raises(SimulationError, match=f"index {bad} at position 1 is outside the table"):
        gathered([3, bad], 8)


@st.composite
def shuffles(draw: st.DrawFn) -> tuple[Instr, tuple[int, int]]:
    dims = draw(st.integers(1, 3))
    counts = tuple(draw(st.integers(0, 4)) for _ in range(dims))
    source, target = draw(operands("lx", dims)), draw(operands("lx", dims))
    target = replace(target, strides=(20, 5, 1)[3 - dims :], base=200)
    bits = draw(st.sampled_from([8, 16, 32]))
    instr = Instr("shuf", counts, (None,) * dims, (target, source), {"bits": bits})
    return instr, (draw(st.integers(0, 1)), draw(st.integers(0, 2)))


@given(shuffles())
@settings(deadline=None)
def test_shuf_copies_elements(case: tuple[Instr, tuple[int, int]]) -> None:
    instr, trip = case
    memory = blank_memory()
    written(memory)
    kind = np.dtype(f"u{int(str(instr.imm['bits'])) // 8}")
    before = memory.lx[0].data.view(kind).copy()
    wanted = before.copy()
    target, source = instr.operands
    for index in points(*effective(instr, trip)):
        if inside(target, index, trip):
            ok = inside(source, index, trip)
            value = before[address(source, index, trip)] if ok else 0
            wanted[address(target, index, trip)] = value
    shuf(instr, memory, Moment(0, trip), no_hbm)
    assert (memory.lx[0].data.view(kind) == wanted).all()


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=3), st.sampled_from([8, 16, 32]),
    st.integers(0, 2**32 - 1), st.integers(0, 3), st.integers(1, 8),
)
@settings(deadline=None)
def test_fill_writes_a_pattern(
    counts: list[int], bits: int, value: int, origin: int, extent: int
) -> None:
    dims = len(counts)
    guard = Guard(origin, extent, (1,) * dims)
    target = Operand("lx", 7, (31, 6, 1)[3 - dims :], guards=(guard,))
    instr = Instr("fill", tuple(counts), (), (target,), {"bits": bits, "value": value})
    memory = blank_memory()
    fill(instr, memory, Moment(0, ()), no_hbm)
    kind = np.dtype(f"u{bits // 8}")
    wanted = np.zeros(memory.lx[0].data.size // kind.itemsize, kind)
    touched = set()
    for index in points(*map(range, counts)):
        if 0 <= origin + sum(index) < extent:
            at = 7 + sum(s * i for s, i in zip(target.strides, index, strict=True))
            wanted[at] = value & ((1 << bits) - 1)
            touched.add(at * kind.itemsize // 128)
    assert (memory.lx[0].data.view(kind) == wanted).all()
    assert set(np.flatnonzero(memory.lx[0].valid)) == touched


@pytest.mark.parametrize(("origin", "extent"), [(0, 1), (0, 4), (0, 9), (2, 4), (3, 3)])
def test_gather_guards_leave_rows_alone(origin: int, extent: int) -> None:
    """A guarded-out element neither needs a valid index nor is written."""
    memory, other = blank_memory(), blank_memory()
    written(other)
    table = other.lx[0]
    inside = range(max(min(extent - origin, 4), 0))
    memory.lx[0].data[:16].view(np.int32)[:] = [i if i in inside else 2**30 for i in range(4)]
    memory.lx[0].valid[0] = True
    guard = Guard(origin, extent, (1,))
    instr = op("gather", (4,), (lx(10, 1, guards=(guard,)), hbm("x", 0, 0), lx(0)),
               imm={"stride": 1, "rows": 4})
    gather(instr, memory, Moment(0, ()), lambda number, at: (table, at))
    assert set(np.flatnonzero(memory.lx[0].valid)) == {0, *(10 + i for i in inside)}
    for i in inside:
        assert (memory.lx[0].data.reshape(-1, 128)[10 + i] == table.data.reshape(-1, 128)[i]).all()
