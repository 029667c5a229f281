"""Which sticks of the scratchpads and which accumulator groups one execution of an instruction
touches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from spyrec.sim.extent import core_value
from spyrec.sim.formats import format_of
from spyrec.sim.functional_vec import immediate, starts_anew
from spyrec.sim.isa import LANES, STICK, Instr, Operand
from spyrec.sim.view import Moment, counts_of, grid, left_over

Addresses = np.ndarray[Any, np.dtype[np.int64]]
A_DIMS, B_DIMS, ACC_DIMS, K_DIM = (0, 1, 2, 3, 4), (2, 3, 4, 5), (0, 1, 5), 4


@dataclass(frozen=True)
class Touch:
    """``at``: addresses in sticks ("lx") or groups ("acc") of one core."""

    core: int
    space: str
    at: Addresses
    writes: bool


def touches(instr: Instr, moment: Moment) -> Iterator[Touch]:
    """Everything on chip that one execution reads or writes."""
    counts = counts_of(instr, moment)
    core = moment.core
    match instr.op:
        case "sync" | "recv":
            return
        case "mm":
            yield from _mm(instr, counts, moment)
        case "vec":
            yield from _vec(instr, counts, moment)
        case "load" | "store" | "send":
            if prod(counts) == 0:
                return
            mask = core_value(instr.imm.get("cores", 0), core) or 1 << core
            guards = instr.operands[0].guards + instr.operands[1].guards
            for number, operand in enumerate(instr.operands):
                if operand.space != "lx":
                    continue
                at = _sticks(Operand(
                    "lx", operand.base, operand.strides, loops=operand.loops,
                    rotate=operand.rotate, guards=guards,
                ), counts, moment, 1)  # fmt: skip
                targets = [c for c in range(mask.bit_length()) if mask >> c & 1]
                for target in targets if number == 0 else [core]:
                    yield Touch(target, "lx", at, number == 0)
        case "gather":
            if prod(counts):
                yield Touch(core, "lx", _sticks(instr.operands[0], counts, moment, 1), True)
                base = grid(instr.operands[2], (), moment).base
                rows = -(-counts[0] * 4 // STICK)
                yield Touch(core, "lx", np.arange(base, base + rows), False)
        case _:  # shuf and fill count elements
            size = immediate(instr, "bits", 16) // 8
            for number, operand in enumerate(instr.operands):
                at = _sticks(operand, counts, moment, 1)
                yield Touch(core, "lx", np.unique(at * size // STICK), number == 0)


def _mm(instr: Instr, counts: Sequence[int], moment: Moment) -> Iterator[Touch]:
    r0, r1, t0, t1, kc, n = counts
    if r0 * r1 * n == 0:
        return
    target, a, b = instr.operands
    core = moment.core
    k = max(min(kc * LANES, left_over(instr, K_DIM, instr.imm.get("k_valid", LANES), moment)), 0)
    chunks = -(-k // LANES)
    where = _sticks(target, (r0, r1, n), moment, 1, ACC_DIMS)
    yield Touch(core, "acc", where, True)
    if not starts_anew(instr, moment):
        yield Touch(core, "acc", where, False)
    left = _sticks(a, (r0, r1, t0, t1, chunks), moment, _width(a), A_DIMS)
    yield Touch(core, "lx", left, False)
    row = _width(b)
    for chunk in range(chunks):
        rows = min(LANES, k - chunk * LANES)
        at = _sticks(b, (t0, t1, 1, n), moment, row, B_DIMS) + chunk * b.strides[K_DIM]
        yield Touch(core, "lx", np.unique(at[:, None] + np.arange(rows) * row), False)


def _vec(instr: Instr, counts: Sequence[int], moment: Moment) -> Iterator[Touch]:
    target = instr.operands[0]
    kept = tuple(
        1 if immediate(instr, "axes") >> d & 1 else c for d, c in enumerate(counts)
    )
    if prod(kept):
        at = _sticks(target, kept, moment, _width(target))
        yield Touch(moment.core, target.space, at, True)
        if immediate(instr, "reduce") and not starts_anew(instr, moment):
            yield Touch(moment.core, target.space, at, False)
    for source in instr.operands[1:]:
        at = _sticks(source, tuple(counts), moment, 1 if source.splat else _width(source))
        yield Touch(moment.core, source.space, at, False)


def _width(operand: Operand) -> int:
    """Address units of a group of 64 lanes."""
    if operand.space == "acc":
        return 1
    return max(1, LANES * format_of(operand.dtype).bits // (8 * STICK))


def _sticks(
    operand: Operand, counts: tuple[int, ...], moment: Moment, width: int,
    dims: Sequence[int] | None = None,
) -> Addresses:
    where = grid(operand, counts, moment, dims)
    first = where.addresses()[where.inside()]
    return np.unique(first[:, None] + np.arange(width))
