"""What happens in fp32 accumulators: one matmul over window taps and inner elements, and sums
passed on to a neighbour's."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrange import LEFT, RIGHT, k_step, row_block, row_sticks
from .extent import core_value
from .functional_vec import starts_anew
from .isa import LANES, Instr, Operand
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
    step = k_step(a.dtype)
    left = left_over(instr, K_DIM, instr.imm.get("k_valid", LANES), moment, step)
    k = max(min(kc * step, left), 0)
    inner = t0 * t1 * k
    where = grid(target, (r0, r1, n), moment, ACC_DIMS)
    acc = memory.acc[moment.core]
    anew = starts_anew(instr, moment)
    if inner == 0:
        if anew:
            write_groups(acc, where, np.zeros(LANES, np.float32), target.dtype)
        return
    rows = _left(own, a, (r0, r1, t0, t1, -(-k // step)), moment)[..., :k]
    columns = _right(own, b, (t0, t1, k, n), step, moment)
    kind = np.float64 if target.dtype == "i32" else np.float32  # exact for int8 and int4
    with np.errstate(all="ignore"):
        total = rows.reshape(r0 * r1, inner).astype(kind, copy=False) @ columns.reshape(
            inner, n * LANES
        ).astype(kind, copy=False)
        total = total.reshape(r0, r1, n, LANES)
        if not anew:
            total = total + read_groups(acc, where, target.dtype)
    write_groups(acc, where, total if kind == np.float32 else total.astype(np.int64), target.dtype)


def psum(instr: Instr, memory: Memory, moment: Moment) -> None:
    counts = counts_of(instr, moment)
    mask = core_value(instr.imm.get("cores", 0), moment.core)
    if prod(counts) == 0 or not mask:
        return
    target, source = (grid(operand, counts, moment) for operand in instr.operands)
    there = memory.acc[mask.bit_length() - 1]
    sent = read_groups(memory.acc[moment.core], source, "f32")
    with np.errstate(all="ignore"):
        total = read_groups(there, target, "f32") + sent
    write_groups(there, target, total, "f32")


def _left(
    own: Image, a: Operand, size: tuple[int, int, int, int, int], moment: Moment
) -> Array:
    """``a`` as [r0, r1, taps, steps * k_step]."""
    r0, r1, t0, t1, steps = size
    block = LEFT.get(a.dtype)
    counts = (r0, -(-r1 // row_block(a.dtype)), t0, t1, steps)
    lanes = block.lanes.size if block else LANES
    values = read_groups(own, grid(a, counts, moment, A_DIMS), a.dtype, lanes=lanes)
    values = broadcast(values, (*counts, lanes))
    if block:
        values = np.moveaxis(block.blocks(values), -2, 2)
        values = values.reshape(r0, -1, *values.shape[3:])[:, :r1]
    return values.reshape(r0, r1, t0 * t1, -1)


def _right(
    own: Image, b: Operand, size: tuple[int, int, int, int], step: int, moment: Moment
) -> Array:
    """``b`` as [t0, t1, k, n, 64]: whole steps of kc, then the rows of the last one."""
    t0, t1, k, n = size
    whole, rest = divmod(k, step)
    parts = []
    if whole:
        rows = _rows(own, b, (t0, t1, whole, step, n), moment, 0)
        parts.append(rows.reshape(t0, t1, whole * step, n, LANES))
    if rest:
        parts.append(_rows(own, b, (t0, t1, 1, rest, n), moment, whole)[:, :, 0])
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)


def _rows(
    own: Image, b: Operand, size: tuple[int, int, int, int, int], moment: Moment, first: int
) -> Array:
    """Rows of ``b`` from the step ``first`` of kc on: [t0, t1, steps, rows, n, 64]."""
    *taps, steps, rows, n = size
    places, width = row_sticks(b.dtype, rows)
    counts = (*taps, steps, places, n)
    at = grid(b, counts, moment, B_DIMS)
    where = Grid(
        at.base + first * at.strides[2], (*at.strides[:3], width, at.strides[4]), counts
    )
    block = RIGHT.get(b.dtype)
    lanes = block.lanes.size if block else LANES
    values = broadcast(read_groups(own, where, b.dtype, lanes=lanes), (*counts, lanes))
    if block:
        values = np.moveaxis(block.blocks(values), -2, 4)
    return values.reshape(*taps, steps, -1, n, LANES)[:, :, :, :rows]
