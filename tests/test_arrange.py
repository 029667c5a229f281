"""Lane arrangements of narrow formats, each against its formula written out lane by lane, and the
matrix unit on factors arranged so."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from spyrec.sim.arrange import LEFT, RIGHT, k_step
from spyrec.sim.errors import SimulationError
from spyrec.sim.formats import FORMATS, encode
from spyrec.sim.functional_pt import mm
from spyrec.sim.isa import Guard
from spyrec.sim.legal import check_kernel
from spyrec.sim.view import Moment
from tests.small_machine import SMALL, acc, blank_memory, kernel, lx, op

Lane = Callable[[int], tuple[int, int]]
ARRANGED: dict[tuple[str, str], Lane] = {
    ("a", "f8e4m3"): lambda p: (0, 8 * (p // 16) + 64 * (p % 16 // 8) + p % 8),
    ("a", "i8"): lambda p: (0, 8 * (p // 16) + 64 * (p % 16 // 8) + p % 8),
    ("a", "i4"): lambda p: (p // 8 % 2, 8 * (p // 16) + p % 8),
    ("b", "f8e4m3"): lambda p: (p // 64, p % 64),
    ("b", "i8"): lambda p: (p // 64, p % 64),
    ("b", "i4"): lambda p: (p // 64, p % 64),
}
"""(across, along) of lane p. fp8 activations interleave two 64-column halves in groups of eight;
weights are blocks of [2, 64] and [4, 64]; int4 activations of [16, 2, 8]."""


@pytest.mark.parametrize(("side", "fmt"), ARRANGED)
def test_each_lane_holds_what_the_formula_says(side: str, fmt: str) -> None:
    block = {"a": LEFT, "b": RIGHT}[side][fmt]
    lanes = FORMATS[fmt].per_stick
    blocks = block.blocks(np.arange(lanes))
    assert blocks.size == lanes and blocks.shape == block.block
    for lane in range(lanes):
        assert blocks[ARRANGED[side, fmt](lane)] == lane
    many = np.arange(3 * 5 * lanes).reshape(3, 5, lanes)
    assert (block.sticks(block.blocks(many)) == many).all()


def numbers(fmt: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 8, shape).astype(np.float32)


def packed(side: str, fmt: str, matrix: np.ndarray) -> np.ndarray:
    """Sticks of a matrix (rows x k of a, k x columns of b) as one instruction reads them, put there
    element by element: a in [row block, step], b in [column group, row block]."""
    lanes = FORMATS[fmt].per_stick
    lane_of: Lane = ARRANGED.get((side, fmt), lambda p: (0, p))
    places = [lane_of(p) for p in range(lanes)]
    across, along = (max(x) + 1 for x in zip(*places, strict=True))
    rows, columns = (-(-n // b) for n, b in zip(matrix.shape, (across, along), strict=True))
    full = np.full((rows * across, columns * along), 7, np.float32)  # junk beyond the matrix
    full[: matrix.shape[0], : matrix.shape[1]] = matrix
    order = range(rows * columns)
    spots = [(i // columns, i % columns) if side == "a" else (i % rows, i // rows) for i in order]
    sticks = np.zeros((len(spots), lanes), np.float32)
    for stick, (row, column) in enumerate(spots):
        for lane, (i, j) in enumerate(places):
            sticks[stick, lane] = full[row * across + i, column * along + j]
    return encode(sticks, fmt).view(np.uint8)


@pytest.mark.parametrize("a_fmt", ["f8e4m3", "i8", "i4", "dl16"])
@pytest.mark.parametrize("b_fmt", ["f8e4m3", "i8", "i4", "dl16"])
@pytest.mark.parametrize("k", [1, 127, 128, 200])
def test_mm_multiplies_factors_in_their_arrangement(a_fmt: str, b_fmt: str, k: int) -> None:
    rows, groups, step = 5, 2, k_step(a_fmt)
    left, right = numbers(a_fmt, (rows, k), 1), numbers(b_fmt, (k, 64 * groups), 2)
    whole = {a_fmt, b_fmt} <= {"i8", "i4"}
    memory = blank_memory(poison=True)
    data = memory.lx[0].data.reshape(-1, 128)
    a, b = packed("a", a_fmt, left), packed("b", b_fmt, right)
    data[: len(a)], data[50 : 50 + len(b)] = a, b
    memory.lx[0].valid[: len(a)] = True
    memory.lx[0].valid[50 : 50 + len(b)] = True
    steps = -(-k // step)
    per_step = step // (RIGHT[b_fmt].block[0] if b_fmt in RIGHT else 1)
    instr = op(
        "mm", (1, rows, 1, 1, steps, groups),
        (acc(0, 0, groups, 0, 0, 0, 1, dtype="i32" if whole else "f32"),
         lx(0, 0, steps, 0, 0, 1, 0, dtype=a_fmt),
         lx(50, 0, 0, 0, 0, per_step, len(b) // groups, dtype=b_fmt)),
        imm={"k_valid": k},
    )  # fmt: skip
    check_kernel(kernel(pt=(instr,)), SMALL)
    mm(instr, memory, Moment(0, ()))
    kind = np.int32 if whole else np.float32
    got = memory.acc[0].data.view(kind)[: rows * groups * 64].reshape(rows, groups * 64)
    assert (got == left.astype(np.int64) @ right.astype(np.int64)).all()


def test_whole_sums_are_exact_beyond_fp32_and_saturate() -> None:
    memory = blank_memory()
    own = memory.lx[0]
    own.data[: 128] = 127
    own.data[128 : 65 * 128] = 127
    own.valid[:65] = True
    instr = op("mm", (1, 1, 1, 1, 1, 1), (acc(0, dtype="i32"), lx(0, dtype="i8"),
               lx(1, dtype="i8")), imm={"k_valid": 128, "init": 0})  # fmt: skip
    memory.acc[0].valid[0] = True
    held = memory.acc[0].data.view(np.int32)
    held[:64] = 2**24 + 1
    mm(instr, memory, Moment(0, ()))
    assert (held[:64] == 2**24 + 1 + 128 * 127 * 127).all()
    held[:64] = 2**31 - 5
    mm(instr, memory, Moment(0, ()))
    assert (held[:64] == 2**31 - 1).all()


@pytest.mark.parametrize(
    ("target", "a", "b", "problem"),
    [
        ("i32", {"dtype": "i8"}, {"dtype": "f8e4m3"},
         "acc is i32 but the factors are i8 and f8e4m3; give it whole numbers"),
        ("dl16", {}, {}, "an acc operand is of format dl16; the accumulator holds f32 or i32"),
        ("f32", {"dtype": "i4", "guards": (Guard(0, 3, (0, 1, 0, 0, 0, 0)),)}, {"dtype": "i4"},
         "operand a is i4, two rows a stick, and has a guard along r1"),
    ],
)  # fmt: skip
def test_what_the_matrix_unit_refuses(
    target: str, a: dict[str, object], b: dict[str, object], problem: str
) -> None:
    counts = (1, 4, 1, 1, 1, 1)
    instr = op("mm", counts, (acc(0, 0, 1, dtype=target), lx(0, 0, 1, **a), lx(9, **b)))
    with pytest.raises(SimulationError, match=problem):
        check_kernel(kernel(pt=(instr,)), SMALL)


def test_a_psum_of_whole_sums_is_refused() -> None:
    instr = op("psum", (1,), (acc(0, 1, dtype="i32"), acc(0, 1, dtype="i32")), imm={"cores": 2})
    with pytest.raises(SimulationError, match="it adds i32; the partial-sum ring adds f32"):
        check_kernel(kernel(2, rs=(instr,)), SMALL)


def test_every_block_is_a_permutation() -> None:
    for block in (*LEFT.values(), *RIGHT.values()):
        across, along = block.block
        spots = {tuple(np.argwhere(block.blocks(np.arange(across * along)) == p)[0])
                 for p in range(across * along)}  # fmt: skip
        assert spots == set(product(range(across), range(along)))
