"""What the matrix unit computes: one matmul over window taps and inner elements, into fp32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .formats import format_of
from .functional_vec import starts_anew
from .isa import LANES, STICK, Instr, Operand
from .memory import Image, Memory
from .view import (
    Grid,
    Moment,
    broadcast,
    counts_of,
    grid,
    left_over,
    read_groups,
    write_groups,
)

Array = NDArray[Any]
K_DIM = 4  # kc
A_DIMS = (0, 1, 2, 3, 4)  # r0 r1 t0 t1 kc
B_DIMS = (2, 3, 4, 6, 5)  # t0 t1 kc row n; 6 is the row, which is not an iteration dimension
ACC_DIMS = (0, 1, 5)  # r0 r1 n


def mm(instr: Instr, memory: Memory, moment: Moment) -> None:
    r0, r1, t0, t1, kc, n = counts_of(instr, moment)
    if r0 * r1 * n == 0:
        return
    target, a, b = instr.operands
    own = memory.lx[moment.core]
    k = max(min(kc * LANES, left_over(instr, K_DIM, instr.imm.get("k_valid", LANES), moment)), 0)
    chunks = -(-k // LANES)
    inner = t0 * t1 * k
    where = grid(target, (r0, r1, n), moment, ACC_DIMS)
    acc = memory.acc[moment.core]
    anew = starts_anew(instr, moment)
    if inner == 0:
        if anew:
            write_groups(acc, where, np.zeros(LANES, np.float32), "f32")
        return
    left = read_groups(own, grid(a, (r0, r1, t0, t1, chunks), moment, A_DIMS), a.dtype)
    left = broadcast(left, (r0, r1, t0, t1, chunks, LANES))
    left = left.reshape(r0 * r1, t0 * t1, chunks * LANES)[:, :, :k].reshape(r0 * r1, inner)
    right = _factor(own, b, (t0, t1, k, n), moment).reshape(inner, n * LANES)
    with np.errstate(all="ignore"):
        total = left.astype(np.float32, copy=False) @ right.astype(np.float32, copy=False)
        total = total.reshape(r0, r1, n, LANES)
        if not anew:
            total = total + read_groups(acc, where, "f32")
    write_groups(acc, where, total, "f32")


def _factor(own: Image, b: Operand, size: tuple[int, int, int, int], moment: Moment) -> Array:
    """``b`` as [t0, t1, k, n, 64]: whole chunks of 64 rows, then the rows of the last one."""
    t0, t1, k, n = size
    whole, rest = divmod(k, LANES)
    parts = []
    if whole:
        rows = _rows(own, b, (t0, t1, whole, LANES, n), moment, 0)
        parts.append(rows.reshape(t0, t1, whole * LANES, n, LANES))
    if rest:
        parts.append(_rows(own, b, (t0, t1, 1, rest, n), moment, whole)[:, :, 0])
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)


def _rows(
    own: Image, b: Operand, counts: tuple[int, int, int, int, int], moment: Moment, chunk: int
) -> Array:
    """Rows of ``b`` from a chunk of 64 on: [t0, t1, chunks, rows, n, 64]."""
    at = grid(b, counts, moment, B_DIMS)
    row = max(1, LANES * format_of(b.dtype).bits // (8 * STICK))  # sticks from row to row
    strides = (*at.strides[:3], row, at.strides[4])
    where = Grid(at.base + chunk * at.strides[2], strides, counts)
    return broadcast(read_groups(own, where, b.dtype), (*counts, LANES))
