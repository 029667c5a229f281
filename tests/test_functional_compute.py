"""The matrix and the vector unit against plain numpy and scalar models."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product as points

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_machine import SMALL, acc, blank_memory, kernel, lx, op, written

from spyrec.sim.cost import cost_of
from spyrec.sim.errors import SimulationError
from spyrec.sim.extent import trip_numbers
from spyrec.sim.formats import encode, quantize
from spyrec.sim.functional_pt import mm
from spyrec.sim.functional_vec import vec
from spyrec.sim.isa import MICRO_OPS, Guard, Instr, Kernel, Limit, MicroOp, MicroProgram
from spyrec.sim.memory import Memory
from spyrec.sim.micro import OPS, evaluate
from spyrec.sim.view import Moment

HERE = Moment(0, ())
F16 = {"dtype": "f16"}


def acc_values(memory: Memory) -> np.ndarray:
    return memory.acc[0].data.view(np.float32).reshape(-1, 64)


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 2)),
    st.integers(1, 3), st.integers(1, 2), st.integers(0, 200), st.integers(-2, 2), st.booleans(),
)
@settings(deadline=None)
def test_mm_is_its_formula(
    rows: tuple[int, int], taps: tuple[int, int], kc: int, n: int, k_valid: int, origin: int,
    poison: bool,
) -> None:
    memory = blank_memory(poison)
    sticks = written(memory)
    guard = Guard(origin, 2, (1, 0, 1, 0, 0, 0))
    a = lx(3, 2, 5, 3, 1, 7, 0, guards=(guard,), **F16)
    b = lx(100, 0, 0, 2, 66, 64, 128, **F16)
    target = acc(1, 9, 3, 0, 0, 0, 1)
    instr = op("mm", (*rows, *taps, kc, n), (target, a, b), imm={"k_valid": k_valid})
    total = np.zeros((*rows, n, 64))
    for r0, r1, t0, t1, c in points(*map(range, (*rows, *taps, kc))):
        if 0 <= origin + r0 + t0 < 2:
            left = sticks[3 + 2 * r0 + 5 * r1 + 3 * t0 + t1 + 7 * c]
            for k in range(min(64, max(k_valid - 64 * c, 0))):
                for g in range(n):
                    row = sticks[100 + 2 * t0 + 66 * t1 + 64 * c + 128 * g + k]
                    total[r0, r1, g] += left[k] * row
    mm(instr, memory, HERE)
    for r0, r1, g in points(range(rows[0]), range(rows[1]), range(n)):
        assert (acc_values(memory)[1 + 9 * r0 + 3 * r1 + g] == total[r0, r1, g]).all()


def test_mm_accumulates_over_loop_levels() -> None:
    memory = blank_memory()
    sticks = written(memory)
    instr = op("mm", (1, 1, 1, 1, 1, 1), (acc(0), lx(0, loops=(0, 1), **F16), lx(100, **F16)),
               imm={"acc_levels": 0b10})
    for trip in points(range(2), range(3)):
        mm(instr, memory, Moment(0, trip))
    expected = sticks[0:3].sum(axis=0) @ sticks[100:164]
    assert (acc_values(memory)[0] == expected).all()
    mm(replace(instr, imm={"acc_levels": 0b10, "init": 0}), memory, Moment(0, (0, 0)))
    assert (acc_values(memory)[0] == expected + sticks[0] @ sticks[100:164]).all()


def test_mm_with_nothing_to_add_clears() -> None:
    memory = blank_memory(poison=True)
    written(memory)
    instr = op("mm", (1, 1, 1, 1, 2, 1), (acc(0), lx(0), lx(100)), imm={"k_valid": 0})
    mm(instr, memory, HERE)
    assert (acc_values(memory)[0] == 0).all()


def test_mm_does_not_read_beyond_k() -> None:
    memory = blank_memory(poison=True)
    own = memory.lx[0]
    own.data[: 11 * 128].view(np.uint16)[:] = encode(np.ones(11 * 64, np.float32), "dl16")
    own.data[2:128].view(np.uint16)[9:] = 0x7FFF  # lanes 10 on of a
    own.valid[:11] = True  # a and ten rows of b
    instr = op("mm", (1, 1, 1, 1, 1, 1), (acc(0), lx(0), lx(1)), imm={"k_valid": 10})
    mm(instr, memory, HERE)
    assert (acc_values(memory)[0] == 10).all()


def test_mm_is_a_padded_strided_convolution() -> None:
    """3x3, stride 2, padding 1 on 7x6 with 40 channels: guards are the border, nothing is
    padded."""
    height, width, channels, outputs = 7, 6, 40, 64
    rng = np.random.default_rng(5)
    x = rng.integers(-3, 4, (height, width, channels)).astype(np.float32)
    w = rng.integers(-3, 4, (3, 3, channels, outputs)).astype(np.float32)
    oh, ow = (height + 1) // 2, (width + 1) // 2
    memory = memory_with(x, w)
    guards = (Guard(-1, height, (2, 0, 1, 0, 0, 0)), Guard(-1, width, (0, 2, 0, 1, 0, 0)))
    a = lx(-width - 1, 2 * width, 2, width, 1, 0, 0, guards=guards, **F16)
    b = lx(60, 0, 0, 3 * channels, channels, 0, 0, **F16)
    instr = op("mm", (oh, ow, 3, 3, 1, 1), (acc(0, ow, 1), a, b), imm={"k_valid": channels})
    mm(instr, memory, HERE)
    padded = np.zeros((height + 2, width + 2, channels), np.float32)
    padded[1:-1, 1:-1] = x
    expected = np.zeros((oh, ow, outputs), np.float32)
    for i, j in points(range(3), range(3)):
        expected += padded[i : i + 2 * oh - 1 : 2, j : j + 2 * ow - 1 : 2] @ w[i, j]
    assert (acc_values(memory)[: oh * ow].reshape(oh, ow, outputs) == expected).all()


def memory_with(x: np.ndarray, w: np.ndarray) -> Memory:
    memory = blank_memory(poison=True)
    own = memory.lx[0].data.view(np.uint16).reshape(-1, 64)
    pixels = x.reshape(-1, x.shape[-1])
    own[: len(pixels), : x.shape[-1]] = encode(pixels, "f16")
    filters = w.reshape(-1, 64)
    own[60 : 60 + len(filters)] = encode(filters, "f16")
    memory.lx[0].valid[: len(pixels)] = True
    memory.lx[0].valid[60 : 60 + len(filters)] = True
    return memory


@given(
    st.sampled_from(["f32", "f16"]), st.sampled_from(["f32", "f16"]), st.integers(1, 100),
    st.booleans(),
)
@settings(deadline=None)
def test_a_group_of_32_bit_factors_is_two_sticks(a: str, b: str, k: int, poison: bool) -> None:
    rows, groups = 3, 2
    rng = np.random.default_rng(k)
    x = rng.integers(-9, 10, (rows, k)).astype(np.float32)
    w = rng.integers(-9, 10, (k, groups * 64)).astype(np.float32)
    memory = blank_memory(poison)
    own = memory.lx[0]

    def put(at: int, values: np.ndarray, dtype: str) -> int:
        """Write rows of 64 one after the other; sticks a row takes."""
        bits = encode(values, dtype)
        own.data[at * 128 : at * 128 + bits.nbytes] = bits.reshape(-1).view(np.uint8)
        own.valid[at : at + bits.nbytes // 128] = True
        return bits.itemsize // 2

    chunks = -(-k // 64)
    left = np.zeros((chunks, rows, 64), np.float32)
    for c in range(chunks):
        left[c, :, : k - 64 * c] = x[:, 64 * c : 64 * c + 64]
    wide_a = put(0, left.reshape(-1, 64), a)
    for g in range(groups):
        wide_b = put(20 + 200 * g, w[:, 64 * g : 64 * g + 64], b)
    instr = op(
        "mm", (1, rows, 1, 1, chunks, groups),
        (acc(0, 0, 1, 0, 0, 0, rows), lx(0, 0, wide_a, 0, 0, rows * wide_a, 0, dtype=a),
         lx(20, 0, 0, 0, 0, 64 * wide_b, 200, dtype=b)),
        imm={"k_valid": k},
    )  # fmt: skip
    mm(instr, memory, HERE)
    got = acc_values(memory)[: rows * groups].reshape(groups, rows, 64)
    assert (np.concatenate(list(got), axis=1) == x @ w).all()


@given(st.integers(1, 400), st.integers(1, 3), st.booleans())
@settings(deadline=None)
def test_k_valid_counts_through_the_loops_of_the_limit(k: int, chunks: int, outer: bool) -> None:
    memory = blank_memory(poison=True)
    own = memory.lx[0]
    rng = np.random.default_rng(k)
    x, w = rng.integers(-9, 10, k), rng.integers(-9, 10, (k, 64))
    lanes = np.full(-(-k // 64) * 64, np.nan, np.float32)
    lanes[:k] = x
    own.data.view(np.float16).reshape(-1, 64)[: len(lanes) // 64] = lanes.reshape(-1, 64)
    own.data.view(np.float16).reshape(-1, 64)[10 : 10 + k] = w
    own.valid[: len(lanes) // 64] = own.valid[10 : 10 + k] = True
    loops = (0, chunks) if outer else (chunks,)
    limits = (None, None, None, None, Limit(-(-k // 64), loops), None)
    instr = replace(
        op("mm", (1, 1, 1, 1, chunks, 1),
           (acc(0), lx(0, 0, 0, 0, 0, 1, loops=loops, **F16),
            lx(10, 0, 0, 0, 0, 64, loops=tuple(64 * n for n in loops), **F16)),
           imm={"k_valid": k, "acc_levels": 1 << outer}),
        limits=limits,
    )  # fmt: skip
    trips = -(-len(lanes) // (64 * chunks)) + 1  # the last one has nothing left
    for trip in range(trips):
        mm(instr, memory, Moment(0, (5, trip) if outer else (trip,)))
    assert (acc_values(memory)[0] == x @ w).all()
    cost = cost_of(instr, kernel(), SMALL, trip_numbers((1, trips) if outer else (trips,)))
    assert int(cost.macs.sum()) == k * 64
    assert (cost.work[:-1] > 0).all() and cost.work[-1, 0] == 0


@given(st.integers(1, 400), st.integers(1, 3))
@settings(deadline=None)
def test_lane_valid_counts_through_the_loops_of_the_limit(count: int, groups: int) -> None:
    memory = blank_memory(poison=True)
    own = memory.lx[0]
    values = np.full(-(-count // 64) * 64, np.nan, np.float32)
    values[:count] = np.random.default_rng(count).integers(-9, 10, count)
    own.data.view(np.float16)[: len(values)] = values
    own.valid[: len(values) // 64] = True
    instr = replace(
        op("vec", (groups,), (lx(200, 0, dtype="f32"), lx(0, 1, loops=(groups,), **F16)),
           imm={"reduce": 1, "axes": 1, "lanes": 1, "lane_dim": 0, "lane_valid": count,
                "acc_levels": 1}),
        limits=(Limit(len(values) // 64, (groups,)),),
    )  # fmt: skip
    for trip in range(-(-len(values) // (64 * groups)) + 1):
        vec(instr, with_program(MicroProgram(1)), memory, Moment(0, (trip,)))
    assert own.data[200 * 128 :][:4].view(np.float32)[0] == values[:count].sum()


def with_program(program: MicroProgram) -> Kernel:
    return replace(kernel(), programs=(program,))


MULTIPLY_ADD = MicroProgram(2, (0.5,), (MicroOp("mul", (0, 1)), MicroOp("add", (3, 2))))
FOLDS = {1: np.sum, 2: np.max, 3: np.min, 4: np.prod}


@given(
    st.sampled_from([0, 1, 2, 3, 4]), st.integers(0, 7), st.booleans(), st.booleans(),
    st.sampled_from([-1, 0, 2]), st.integers(0, 150), st.integers(-1, 1), st.booleans(),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_vec_is_its_formula(
    reduce: int, axes: int, lanes: bool, splat: bool, lane_dim: int, lane_valid: int, origin: int,
    init: bool, poison: bool,
) -> None:
    counts, one = (2, 3, 2), np.float32(1.5)
    memory = blank_memory(poison)
    sticks = written(memory) / 8
    memory.lx[0].data.view(np.uint16)[:] = encode(sticks.reshape(-1), "f16")
    guard = Guard(origin, 2, (1, 1, 0))
    sources = (lx(0, 7, 2, 1, guards=(guard,), **F16), lx(50, 0, 3, 1, splat=splat, **F16))
    kept = [0 if reduce and axes >> d & 1 else s for d, s in enumerate((40, 10, 2))]
    instr = op(
        "vec", counts, (lx(200, *kept, dtype="f32"), *sources),
        imm={"reduce": reduce, "axes": axes, "lanes": int(lanes), "lane_dim": lane_dim,
             "lane_valid": lane_valid, "fill": int(one.view(np.uint32)), "init": int(init)},
    )
    held = np.random.default_rng(1).integers(1, 3, (100, 64)).astype(np.float32)
    memory.lx[0].data[200 * 128 :][: 100 * 256].view(np.float32)[:] = held.reshape(-1)
    value = np.zeros((*counts, 64), np.float32)
    for i, j, k in points(*map(range, counts)):
        x = sticks[7 * i + 2 * j + k] if 0 <= origin + i + j < 2 else np.full(64, one)
        y = sticks[50 + 3 * j + k]
        value[i, j, k] = x * (y[0] if splat else y) + np.float32(0.5)
    vec(instr, with_program(MULTIPLY_ADD), memory, HERE)
    got = memory.lx[0].data[200 * 128 :][: 100 * 256].view(np.float32).reshape(100, 64)
    _compare(value, got, held, instr, init, poison)


def _compare(
    value: np.ndarray, got: np.ndarray, held: np.ndarray, instr: Instr, init: bool, poison: bool
) -> None:
    imm = {k: int(str(v)) for k, v in instr.imm.items()}
    reduce, axes, lanes = imm["reduce"], imm["axes"], imm["lanes"]
    groups: dict[tuple[int, ...], list[tuple[int, np.ndarray]]] = {}
    for index in points(*map(range, value.shape[:3])):
        key = tuple(0 if reduce and axes >> d & 1 else i for d, i in enumerate(index))
        step = index[imm["lane_dim"]] if imm["lane_dim"] >= 0 else 0
        groups.setdefault(key, []).append((step, value[index]))
    neutral = {1: 0.0, 2: -np.inf, 3: np.inf, 4: 1.0}
    for key, members in groups.items():
        at = sum(s * i for s, i in zip((20, 5, 1), key, strict=True))
        if not reduce:
            assert (got[at] == members[0][1]).all()
            continue
        rows = np.array([row for _, row in members])
        if lanes and imm["lane_valid"] > 0:
            for row, (step, _) in zip(rows, members, strict=True):
                row[max(imm["lane_valid"] - 64 * step, 0) :] = neutral[reduce]
        folded = FOLDS[reduce](rows.astype(np.float64), axis=0)
        if lanes:
            folded = FOLDS[reduce](folded)[None]
        if not init:
            folded = FOLDS[reduce](np.array([held[at][: len(folded)], folded]), axis=0)
        with np.errstate(over="ignore"):  # a product beyond fp32 is infinite in it
            folded = folded.astype(np.float32)
        assert np.allclose(got[at][: len(folded)], folded, rtol=1e-5, atol=1e-6)
        if lanes:
            assert np.isnan(got[at][1:]).all() if poison else (got[at][1:] == 0).all()


def test_vec_folds_over_loop_levels_and_tails() -> None:
    memory = blank_memory()
    sticks = written(memory)
    instr = replace(
        op("vec", (4,), (lx(200, 0, dtype="f32"), lx(0, 1, loops=(4,), **F16)),
           imm={"reduce": 2, "axes": 1, "acc_levels": 1}),
        limits=(Limit(6, (4,)),),
    )
    for trip in range(3):  # 4, then 2, then nothing
        vec(instr, with_program(MicroProgram(1)), memory, Moment(0, (trip,)))
    got = memory.lx[0].data[200 * 128 :][:256].view(np.float32)
    assert (got == sticks[:6].max(axis=0)).all()


def test_vec_reads_the_accumulator_and_writes_each_format() -> None:
    for dtype in ("dl16", "f16", "bf16"):
        memory = blank_memory()
        values = np.linspace(-5, 5, 128, dtype=np.float32).reshape(2, 64)
        acc_values(memory)[3:5] = values
        memory.acc[0].valid[3:5] = True
        instr = op("vec", (2,), (lx(1, 1, dtype=dtype), acc(3, 1)))
        vec(instr, with_program(MicroProgram(1)), memory, HERE)
        bits = encode(values, dtype)
        own = memory.lx[0].data.reshape(-1, 128)[1:3, : 64 * bits.itemsize]
        assert (np.ascontiguousarray(own).view(bits.dtype) == bits).all()


def test_vec_packs_groups_into_interleaved_halves_of_sticks_and_takes_them_out() -> None:
    memory = blank_memory(poison=True)
    values = np.linspace(-5, 5, 3 * 64, dtype=np.float32).reshape(3, 64)
    acc_values(memory)[3:6] = values
    memory.acc[0].valid[3:6] = True
    pack = op("vec", (3,), (lx(5, 1, dtype="f8e4m3"), acc(3, 1)))  # from the second half of 2
    vec(pack, with_program(MicroProgram(1)), memory, HERE)
    stored = memory.lx[0].data.reshape(-1, 128)
    bits = encode(values, "f8e4m3")
    for group, row in enumerate(bits):
        stick, half = divmod(5 + group, 2)
        for lane in range(64):  # groups of eight in turn
            assert stored[stick, 16 * (lane // 8) + 8 * half + lane % 8] == row[lane]
    unpack = op("vec", (3,), (acc(9, 1), lx(5, 1, dtype="f8e4m3")))
    vec(unpack, with_program(MicroProgram(1)), memory, HERE)
    assert (acc_values(memory)[9:12] == quantize(values, "f8e4m3")).all()
    with pytest.raises(SimulationError, match="which nothing has written"):
        vec(op("vec", (1,), (acc(0), lx(8, dtype="f8e4m3"))), with_program(MicroProgram(1)),
            memory, HERE)  # fmt: skip
    outside = op("vec", (2,), (lx(2 * 512 - 1, 1, dtype="f8e4m3"), acc(3, 1)))
    with pytest.raises(SimulationError, match="512"):
        vec(outside, with_program(MicroProgram(1)), memory, HERE)


def test_vec_keeps_whole_numbers_whole() -> None:
    big = 2**24 + 1  # float32 cannot hold it
    memory = blank_memory()
    memory.lx[0].data[:256].view(np.int32)[:] = big
    memory.lx[0].valid[:2] = True
    program = MicroProgram(1, (3.0, 2.0), (MicroOp("mul", (0, 1)), MicroOp("sub", (3, 2))))
    instr = op("vec", (1,), (lx(2, dtype="i32"), lx(0, dtype="i32")))
    vec(instr, with_program(program), memory, HERE)
    assert (memory.lx[0].data[256:512].view(np.int32) == 3 * big - 2).all()


def test_vec_sums_whole_numbers() -> None:
    memory = blank_memory()
    memory.lx[0].data[:512].view(np.int32)[:] = np.arange(128) + 2**24
    memory.lx[0].valid[:4] = True
    instr = op("vec", (2,), (lx(4, 0, dtype="i32"), lx(0, 2, dtype="i32")),
               imm={"reduce": 1, "axes": 1, "lanes": 1, "lane_dim": 0, "lane_valid": 100})
    vec(instr, with_program(MicroProgram(1)), memory, HERE)
    assert memory.lx[0].data[512:516].view(np.int32)[0] == sum(range(100)) + 100 * 2**24


def test_destination_guard_is_not_written() -> None:
    memory = blank_memory()
    written(memory)
    before = memory.lx[0].data.copy()
    instr = op("vec", (4,), (lx(100, 1, guards=(Guard(0, 2, (1,)),), **F16), lx(0, 1, **F16)))
    vec(instr, with_program(MicroProgram(1)), memory, HERE)
    assert (memory.lx[0].data[100 * 128 : 102 * 128] == before[: 2 * 128]).all()
    assert (memory.lx[0].data[102 * 128 : 104 * 128] == before[102 * 128 : 104 * 128]).all()


floats = st.lists(
    st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=8
)
REFERENCE = {
    "copy": lambda x, y: x,
    "neg": lambda x, y: -x,
    "abs": lambda x, y: -x if x < 0 else x,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "max": lambda x, y: y if x < y else x,
    "min": lambda x, y: y if x > y else x,
    "eq": lambda x, y: x == y,
    "lt": lambda x, y: x < y,
    "ge": lambda x, y: x >= y,
    "isnan": lambda x, y: x != x,
    "isinf": lambda x, y: abs(x) == np.inf,
    "not": lambda x, y: x == 0,
    "and": lambda x, y: x != 0 and y != 0,
    "xor": lambda x, y: (x != 0) != (y != 0),
}


@pytest.mark.parametrize("name", sorted(REFERENCE))
@given(xs=floats, y=st.floats(width=32, allow_nan=False, allow_infinity=False))
@settings(max_examples=20, deadline=None)
def test_micro_ops_match_scalars(name: str, xs: list[float], y: float) -> None:
    program = MicroProgram(1, (y,), (MicroOp(name, (0, 1)[: MICRO_OPS[name]]),))
    x = np.array(xs, np.float32)
    got = evaluate(program, [x])
    assert got.dtype == np.float32
    with np.errstate(all="ignore"):
        expected = np.array([REFERENCE[name](v, np.float32(y)) for v in x], np.float32)
    assert np.array_equal(got, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("recip", 4.0, 0.25), ("sqrt", 9.0, 3.0), ("rsqrt", 4.0, 0.5), ("exp", 0.0, 1.0),
        ("log", 1.0, 0.0), ("tanh", 0.0, 0.0), ("sigmoid", 0.0, 0.5), ("sigmoid", -200.0, 0.0),
        ("sin", 0.0, 0.0), ("cos", 0.0, 1.0), ("round", 2.5, 2.0), ("round", -3.5, -4.0),
        ("sign", -2.0, -1.0), ("f2i", -2.9, -2), ("f2i", 3e9, 2**31 - 1), ("f2i", np.nan, 0),
        ("f2i", -np.inf, -(2**31)), ("floor", -1.5, -2.0), ("ceil", -1.5, -1.0),
    ],
)
def test_unary_micro_ops(name: str, x: float, expected: float) -> None:
    got = evaluate(MicroProgram(1, (), (MicroOp(name, (0,)),)), [np.array([x], np.float32)])
    assert got[0] == expected


@pytest.mark.parametrize(
    ("name", "x", "y", "expected"),
    [
        ("div", 7, -2, -3), ("div", -7, 2, -3), ("div", 5, 0, 0),
        ("mod", -7, 3, 2), ("mod", 7, -3, -2),
        ("max", 2**30 + 1, 2**30, 2**30 + 1), ("eq", 3, 3, 1), ("lt", 2**30, 2**30 + 1, 1),
    ],
)
def test_whole_micro_ops(name: str, x: int, y: int, expected: int) -> None:
    got = OPS[name](np.array([x], np.int32), np.array([y], np.int32))
    assert got.dtype == np.int32 and got[0] == expected


def test_erf_is_right_to_a_float32_everywhere() -> None:
    x = np.concatenate([np.linspace(-7, 7, 40_001), [np.inf, -np.inf, 1e30, np.nan]])
    x = x.astype(np.float32)
    got = evaluate(MicroProgram(1, (), (MicroOp("erf", (0,)),)), [x])
    want = np.array([math.erf(v) for v in x])
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=0, atol=1.2e-7)


def test_where_and_mixed_kinds() -> None:
    select = MicroProgram(3, (), (MicroOp("where", (0, 1, 2)),))
    test = np.array([1, 0], np.float32)
    whole = [np.array([5, 6], np.int32), np.array([7, 8], np.int32)]
    assert evaluate(select, [test, *whole]).tolist() == [5, 8]
    assert evaluate(select, [test, *whole]).dtype == np.int32
    half = MicroProgram(1, (0.5,), (MicroOp("add", (0, 1)),))
    assert evaluate(half, [whole[0]]).tolist() == [5.5, 6.5]


def test_every_micro_op_is_there() -> None:
    assert set(MICRO_OPS) - {"where"} == set(OPS)


