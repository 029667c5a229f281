"""Which memory one execution of an instruction reads and writes, as runs of whole addresses: sticks
of scratchpad and card memory, groups of accumulators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from .arrange import k_step, row_block, row_sticks
from .errors import SimulationError
from .extent import core_value
from .formats import format_of
from .functional_pt import A_DIMS, ACC_DIMS, B_DIMS, K_DIM
from .functional_vec import immediate, starts_anew
from .isa import LANES, STICK, Instr, Operand, Space
from .view import Grid, Moment, counts_of, grid, left_over

Runs = NDArray[np.int64]
"""Addresses as [runs, 2]: first and end of each, sorted and apart."""

At = slice | NDArray[np.int64]


@dataclass(frozen=True)
class Touch:
    """``core``: whose memory (the one that executes, for card memory). ``symbol``: the parameter
    card addresses are relative to. ``exact``: not only somewhere within the runs."""

    core: int
    space: Space
    runs: Runs
    writes: bool
    symbol: str = ""
    exact: bool = True
    odd: bool | None = None


def touches(instr: Instr, moment: Moment) -> Iterator[Touch]:
    """Everything one execution reads and then writes; a destination that is added to is both."""
    counts = counts_of(instr, moment)
    match instr.op:
        case "sync" | "recv" | "prog":
            return
        case "mm":
            yield from _mm(instr, counts, moment)
        case "vec":
            yield from _vec(instr, counts, moment)
        case "load" | "store" | "send":
            yield from _transfer(instr, counts, moment)
        case "psum":
            yield from _psum(instr, counts, moment)
        case "gather":
            yield from _gather(instr, counts, moment)
        case "shuf" | "fill":
            yield from _elements(instr, counts, moment)
        case other:
            raise SimulationError(f"the checker does not know what {other} reads and writes")


def _elements(instr: Instr, counts: tuple[int, ...], moment: Moment) -> Iterator[Touch]:
    """What the destination leaves out is not read either."""
    size = immediate(instr, "bits", 16) // 8
    kept = instr.operands[0].guards
    for number, operand in reversed(list(enumerate(instr.operands))):
        guarded = replace(operand, guards=operand.guards + kept) if number else operand
        at = runs_of(grid(guarded, counts, moment), 1) * size
        at = joined(at[:, 0] // STICK, -(-at[:, 1] // STICK))
        yield Touch(moment.core, "lx", at, number == 0)


def _transfer(instr: Instr, counts: tuple[int, ...], moment: Moment) -> Iterator[Touch]:
    guards = tuple(guard for operand in instr.operands for guard in operand.guards)
    mask = core_value(instr.imm.get("cores", 0), moment.core)
    if not mask and instr.op == "load":
        mask = 1 << moment.core
    targets = [core for core in range(mask.bit_length()) if mask >> core & 1]
    for number, operand in reversed(list(enumerate(instr.operands))):
        runs = runs_of(grid(replace(operand, guards=guards), counts, moment), 1)
        there = number == 0 and operand.space == "lx"
        for core in targets if there else [moment.core]:
            yield Touch(core, operand.space, runs, number == 0, operand.symbol)


def _gather(instr: Instr, counts: tuple[int, ...], moment: Moment) -> Iterator[Touch]:
    """The rows of the table are not known before the run: any of them."""
    if not prod(counts):
        return
    to, table, index = instr.operands
    guards = to.guards + table.guards
    core = moment.core
    yield Touch(core, "lx", runs_of(grid(replace(to, guards=guards), counts, moment), 1), True)
    base = grid(index, (), moment).base
    yield Touch(core, "lx", one_run(base, base - (-counts[0] * 4 // STICK)), False)
    runs = runs_of(grid(replace(table, guards=guards), counts, moment), 1)
    if len(runs):
        last = core_value(instr.imm.get("rows", 0), core) - 1
        reach = max(last, 0) * immediate(instr, "stride", 1)
        whole = one_run(int(runs[0, 0]), int(runs[-1, 1]) + reach)
        yield Touch(core, "hbm", whole, False, table.symbol, exact=False)


def _mm(instr: Instr, counts: tuple[int, ...], moment: Moment) -> Iterator[Touch]:
    r0, r1, t0, t1, kc, n = counts
    if r0 * r1 * n == 0:
        return
    target, a, b = instr.operands
    core, step, anew = moment.core, k_step(a.dtype), starts_anew(instr, moment)
    left = left_over(instr, K_DIM, instr.imm.get("k_valid", LANES), moment, step)
    k = max(min(kc * step, left), 0)
    where = runs_of(grid(target, (r0, r1, n), moment, ACC_DIMS), 1)
    if not anew and t0 * t1 * k:
        yield Touch(core, "acc", where, False)
    if anew or t0 * t1 * k:
        yield Touch(core, "acc", where, True)
    if not t0 * t1 * k:
        return
    blocks = (r0, -(-r1 // row_block(a.dtype)), t0, t1, -(-k // step))
    width = row_sticks(a.dtype, 1)[1]
    yield Touch(core, "lx", runs_of(grid(a, blocks, moment, A_DIMS), width), False)
    whole, rest = divmod(k, step)
    for first, many, rows in ((0, whole, step), (whole, 1, rest)):
        if many and rows:
            places, width = row_sticks(b.dtype, rows)
            at = grid(b, (t0, t1, many, places, n), moment, B_DIMS)
            base = at.base + first * at.strides[2]
            at = Grid(base, (*at.strides[:3], width, at.strides[4]), at.counts)
            yield Touch(core, "lx", runs_of(at, width), False)


def _psum(instr: Instr, counts: tuple[int, ...], moment: Moment) -> Iterator[Touch]:
    mask = core_value(instr.imm.get("cores", 0), moment.core)
    if not mask:
        return
    there, here = (runs_of(grid(operand, counts, moment), 1) for operand in instr.operands)
    yield Touch(moment.core, "acc", here, False)
    yield Touch(mask.bit_length() - 1, "acc", there, False)
    yield Touch(mask.bit_length() - 1, "acc", there, True)


def _vec(instr: Instr, counts: tuple[int, ...], moment: Moment) -> Iterator[Touch]:
    target, core = instr.operands[0], moment.core
    folds = bool(immediate(instr, "reduce"))
    axes = immediate(instr, "axes") if folds else 0
    kept = tuple(1 if axes >> d & 1 else c for d, c in enumerate(counts))
    if prod(counts):
        for source in instr.operands[1:]:
            odd = _odd(source, counts, moment)
            yield Touch(core, source.space, _groups(source, counts, moment), False, odd=odd)
            if source.splat:  # one lane of each group
                group = _groups(replace(source, splat=False), counts, moment)
                yield Touch(core, source.space, group, False, exact=False)
    if prod(kept) and (folds or prod(counts)):
        runs = _groups(target, kept, moment)
        if folds and not starts_anew(instr, moment):
            yield Touch(core, target.space, runs, False)
        yield Touch(core, target.space, runs, True, odd=_odd(target, kept, moment))


def _odd(operand: Operand, counts: tuple[int, ...], moment: Moment) -> bool | None:
    """Whether an operand's groups of two sticks start at odd addresses, see Touch."""
    if operand.space != "lx" or LANES * format_of(operand.dtype).bits != 2 * 8 * STICK:
        return None
    where = grid(operand, counts, moment)
    steps = (s for s, c in zip(where.strides, where.counts, strict=True) if c > 1)
    return None if any(s % 2 for s in steps) else bool(where.base % 2)


def _groups(operand: Operand, counts: tuple[int, ...], moment: Moment) -> Runs:
    """Groups of 64 lanes of the vector unit: of 8 bits they are half sticks."""
    where, bits = grid(operand, counts, moment), format_of(operand.dtype).bits
    if operand.space == "acc" or (operand.splat and bits > 8):
        return runs_of(where, 1)
    if bits == 8:
        halves = runs_of(where, 1)
        return joined(halves[:, 0] // 2, -(-halves[:, 1] // 2))
    return runs_of(where, max(1, LANES * bits // (8 * STICK)))


def runs_of(where: Grid, width: int) -> Runs:
    """The addresses of all elements, each ``width`` units long."""
    if where.mask is not None:
        starts = where.addresses()[where.inside()]
        return joined(starts, starts + width)
    if not prod(where.counts):
        return np.zeros((0, 2), np.int64)
    low, _ = where.range()
    starts, length = np.array([low], np.int64), width
    for stride, count in sorted(zip(map(abs, where.strides), where.counts, strict=True)):
        if stride <= length:
            length += stride * (count - 1)
        elif count > 1:
            starts = (starts + stride * np.arange(count)[:, None]).reshape(-1)
    return joined(starts, starts + length)


def one_run(low: int, end: int) -> Runs:
    return np.array([[low, end]], np.int64)


def joined(low: NDArray[np.int64], end: NDArray[np.int64]) -> Runs:
    """Runs in order, those that touch or overlap as one."""
    if len(low) > 1:
        order = np.argsort(low, kind="stable")
        low, end = low[order], np.maximum.accumulate(end[order])
        first = np.concatenate(([True], low[1:] > end[:-1]))
        low, end = low[first], end[np.concatenate((first[1:], [True]))]
    return np.stack((low, end), axis=1)


def addresses(runs: Runs) -> At:
    """Every address of the runs, to index a memory with."""
    if len(runs) == 1:
        return slice(int(runs[0, 0]), int(runs[0, 1]))
    sizes = runs[:, 1] - runs[:, 0]
    before = np.cumsum(sizes) - sizes
    return np.repeat(runs[:, 0] - before, sizes) + np.arange(int(sizes.sum()))
