"""What data movement does: load, gather, store, send, and the element-granular shuf and fill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from .errors import SimulationError
from .extent import core_value
from .isa import STICK, Instr
from .memory import Image, Memory
from .view import (
    Grid,
    Mask,
    Moment,
    check_read,
    counts_of,
    grid,
    read_rows,
    write_bits,
    write_rows,
)

WORD = np.dtype(np.uint64)  # sticks are copied in words
Hbm = Callable[[int, Grid], tuple[Image, Grid]]
"""Operand number and grid -> image and grid of the bound buffer; notes what is touched."""


def load(instr: Instr, memory: Memory, moment: Moment, hbm: Hbm) -> None:
    counts = counts_of(instr, moment)
    if prod(counts) == 0:
        return
    to, source = _pair(instr, counts, moment)
    image, source = hbm(1, source)
    targets = _cores(instr, moment) or [moment.core]
    _copy(image, source, [memory.lx[core] for core in targets], to)


def store(instr: Instr, memory: Memory, moment: Moment, hbm: Hbm) -> None:
    counts = counts_of(instr, moment)
    if prod(counts) == 0:
        return
    to, source = _pair(instr, counts, moment)
    image, to = hbm(0, to)
    _copy(memory.lx[moment.core], source, [image], to)


def send(instr: Instr, memory: Memory, moment: Moment, hbm: Hbm) -> None:
    counts = counts_of(instr, moment)
    if prod(counts) == 0:
        return
    to, source = _pair(instr, counts, moment)
    targets = [memory.lx[core] for core in _cores(instr, moment)]
    _copy(memory.lx[moment.core], source, targets, to)


def gather(instr: Instr, memory: Memory, moment: Moment, hbm: Hbm) -> None:
    counts = counts_of(instr, moment)
    if prod(counts) == 0:
        return
    own = memory.lx[moment.core]
    to = grid(instr.operands[0], counts, moment)
    table = grid(instr.operands[1], counts, moment)
    mask = Grid(0, table.strides, counts, _joint(to.mask, table.mask)).inside()
    needed: Mask = np.any(mask.reshape(counts[0], -1), axis=1)
    if not needed.any():
        return
    rows = _indices(instr, own, counts[0], needed, moment)
    stride = int(core_value(instr.imm.get("stride", 1), moment.core))
    shape = (counts[0], *[1] * (len(counts) - 1))
    inside = (table.addresses() + (rows * stride).reshape(shape))[mask]
    low, high = int(inside.min()), int(inside.max())
    image, moved = hbm(1, Grid(low, (1,), (high - low + 1,)))
    data = read_rows(image, inside - low + moved.base, STICK)
    write_rows(own, to.addresses()[mask], data)


def _indices(
    instr: Instr, own: Image, count: int, needed: NDArray[np.bool_], moment: Moment
) -> NDArray[np.int64]:
    """The index list of a gather; entries no element needs are 0."""
    base = grid(instr.operands[2], (), moment).base
    sticks = -(-count * 4 // STICK)
    check_read(own, Grid(base, (1,), (sticks,)), 1)
    found = own.data[base * STICK : base * STICK + count * 4].view(np.int32).astype(np.int64)
    limit = core_value(instr.imm.get("rows", 0), moment.core)
    wrong = np.flatnonzero(needed & ((found < 0) | (found >= limit)))
    if len(wrong):
        raise SimulationError(
            f"index {found[wrong[0]]} at position {wrong[0]} is outside the table's 0..{limit - 1}"
        )
    return np.where(needed, found, 0)


def shuf(instr: Instr, memory: Memory, moment: Moment, hbm: Hbm) -> None:
    counts = counts_of(instr, moment)
    if prod(counts) == 0:
        return
    own, kind = memory.lx[moment.core], _element(instr)
    to, source = (grid(operand, counts, moment) for operand in instr.operands)
    values = np.zeros(counts, kind)
    taken, kept = source.inside(), to.inside()
    wanted = taken & kept
    at = source.addresses()[wanted]
    _check_elements(own, at, kind.itemsize, reads=True)
    values[wanted] = own.data.view(kind)[at]
    _write_elements(own, to.addresses()[kept], values[kept])


def fill(instr: Instr, memory: Memory, moment: Moment, hbm: Hbm) -> None:
    counts = counts_of(instr, moment)
    if prod(counts) == 0:
        return
    kind = _element(instr)
    to = grid(instr.operands[0], counts, moment)
    at = to.addresses()[to.inside()]
    value = core_value(instr.imm.get("value", 0), moment.core) & ((1 << kind.itemsize * 8) - 1)
    _write_elements(memory.lx[moment.core], at, np.full(at.shape, value, kind))


def _element(instr: Instr) -> np.dtype[np.unsignedinteger]:
    return np.dtype(f"u{int(core_value(instr.imm.get('bits', 16), 0)) // 8}")


def _check_elements(own: Image, at: NDArray[np.int64], size: int, *, reads: bool) -> None:
    if not len(at):
        return
    own.check_range(int(at.min()) * size // STICK, int(at.max()) * size // STICK + 1)
    if reads:
        sticks = at * size // STICK
        flags = own.valid[sticks]
        if not flags.all():
            own.check_written(flags, int(sticks[np.argmin(flags)]))


def _write_elements(own: Image, at: NDArray[np.int64], values: NDArray[np.unsignedinteger]) -> None:
    size = values.itemsize
    _check_elements(own, at, size, reads=False)
    own.data.view(values.dtype)[at] = values
    own.valid[at * size // STICK] = True


def _pair(instr: Instr, counts: tuple[int, ...], moment: Moment) -> tuple[Grid, Grid]:
    """Destination and source of a transfer, both with the guards of either."""
    to, source = (grid(operand, counts, moment) for operand in instr.operands)
    mask = _joint(to.mask, source.mask)
    return replace(to, mask=mask), replace(source, mask=mask)


def _joint(one: Mask | None, other: Mask | None) -> Mask | None:
    if one is None or other is None:
        return one if other is None else other
    return one & other


def _copy(source: Image, taken: Grid, targets: list[Image], to: Grid) -> None:
    """Copy sticks; both sides have the same mask, and what it leaves out is not transferred."""
    if taken.mask is not None:
        inside = taken.inside()
        rows, where = taken.addresses()[inside], to.addresses()[inside]
        if not len(rows):
            return
        data = read_rows(source, rows, STICK)
        for target in targets:
            write_rows(target, where, data)
        return
    check_read(source, taken, 1)
    words = STICK // WORD.itemsize
    steps = tuple(s * STICK for s in taken.strides)
    data = source.view(WORD, taken.base * STICK, (*taken.counts, words), (*steps, WORD.itemsize))
    for target in targets:
        write_bits(target, to, data)


def _cores(instr: Instr, moment: Moment) -> list[int]:
    mask = core_value(instr.imm.get("cores", 0), moment.core)
    return [core for core in range(mask.bit_length()) if mask >> core & 1]
