"""Operands as numpy: from an operand's formula to the groups it reads or writes.

Strided windows serve regular operands, index arrays guarded ones; both check bounds and that what
is read was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .extent import core_value, padded
from .formats import decode, encode, format_of
from .isa import LANES, Guard, Instr, Num, Operand
from .memory import Image

Array = NDArray[Any]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Moment:
    """Which execution of an instruction is meant: the core, and the trip numbers of its loops."""

    core: int
    trip: tuple[int, ...]

    def offset(self, loops: Sequence[int]) -> int:
        return sum(step * trip for step, trip in zip(loops, self.trip, strict=False))


@dataclass(frozen=True)
class Grid:
    """Where an operand's elements are: ``base + sum(strides[d] * i[d])`` for i below
    ``counts``, those that ``mask`` (shaped to broadcast over counts) leaves in. None: all."""

    base: int
    strides: tuple[int, ...]
    counts: tuple[int, ...]
    mask: Mask | None = None

    def range(self) -> tuple[int, int]:
        """Lowest and highest address, the mask aside."""
        steps = [s * (c - 1) for s, c in zip(self.strides, self.counts, strict=True)]
        return self.base + sum(min(s, 0) for s in steps), self.base + sum(max(s, 0) for s in steps)

    def addresses(self) -> NDArray[np.int64]:
        """Address of each element, shaped like ``counts``."""
        total = np.full((1,) * len(self.counts), self.base, np.int64)
        for axis, stride in enumerate(self.strides):
            if stride:
                total = total + _along(self.counts, axis) * stride
        return np.broadcast_to(total, self.counts)

    def inside(self) -> Mask:
        """The mask at full shape."""
        everything = np.bool_(True) if self.mask is None else self.mask
        return np.broadcast_to(everything, self.counts)


def counts_of(instr: Instr, moment: Moment) -> tuple[int, ...]:
    """Effective counts of one execution."""
    counts = [core_value(count, moment.core) for count in instr.counts]
    for d, limit in enumerate(instr.limits):
        if limit is not None:
            left = core_value(limit.start, moment.core) - moment.offset(limit.loops)
            counts[d] = min(max(left, 0), counts[d])
    return tuple(counts)


def left_over(
    instr: Instr, dim: int, number: Num, moment: Moment, step: int = LANES
) -> int:
    """Of ``number`` elements along dimension ``dim``, ``step`` at a time, how many the trips before
    leave: the loops of the dimension's limit count them off. May be negative."""
    limit = instr.limits[dim] if 0 <= dim < len(instr.limits) else None
    done = moment.offset(limit.loops) if limit is not None else 0
    return core_value(number, moment.core) - done * step


def grid(
    operand: Operand, counts: tuple[int, ...], moment: Moment, dims: Sequence[int] | None = None
) -> Grid:
    """The operand over ``counts``. ``dims``: which of the instruction's dimensions those are
    (all, in order, unless given)."""
    base = core_value(operand.base, moment.core) + moment.offset(operand.loops)
    if operand.rotate is not None:
        rotate = operand.rotate
        base += moment.offset(rotate.loops) % rotate.depth * rotate.stride
    strides = pick(operand.strides, len(counts), dims)
    return Grid(base, strides, counts, guard_mask(operand.guards, counts, moment, dims))


def pick(
    strides: tuple[int, ...], rank: int, dims: Sequence[int] | None
) -> tuple[int, ...]:
    """The strides of ``dims``."""
    if dims is None:
        return padded(strides, rank)
    return tuple(strides[d] if d < len(strides) else 0 for d in dims)


def guard_mask(
    guards: Sequence[Guard], counts: tuple[int, ...], moment: Moment,
    dims: Sequence[int] | None = None,
) -> Mask | None:
    """Which points pass all guards, shaped to broadcast over ``counts``; None when all do."""
    mask: Mask | None = None
    for guard in guards:
        at = np.full(
            (1,) * len(counts), core_value(guard.origin, moment.core) + moment.offset(guard.loops)
        )
        for axis, stride in enumerate(pick(guard.strides, len(counts), dims)):
            if stride:
                at = at + _along(counts, axis) * stride
        ok = (at >= 0) & (at < core_value(guard.extent, moment.core))
        if not ok.all():
            mask = ok if mask is None else mask & ok
    return mask


def read_groups(
    image: Image, where: Grid, dtype: str, fill: int = 0, lanes: int = LANES
) -> Array:
    """The first ``lanes`` of each group, decoded: [*counts, lanes] or with 1 in place of a count
    nothing depends on.

    ``fill`` is the 32-bit pattern that what is masked out reads as (float32, or int32 for formats
    that decode to it).
    """
    where = _squeezed(where)
    kind = format_of(dtype)
    nbytes = lanes * kind.bits // 8
    if prod(where.counts) == 0:
        return np.zeros((*where.counts, lanes), kind.value)
    if where.mask is None:
        return _read_regular(image, where, dtype, nbytes)
    mask = where.inside()
    rows = where.addresses()[mask]
    pattern = np.array(fill, np.uint32).view(kind.value)
    out = np.full((*where.counts, lanes), pattern, kind.value)
    if len(rows):
        raw = read_rows(image, rows, nbytes).view(kind.storage)
        out[mask] = decode(raw, dtype)
    return out


def _read_regular(image: Image, where: Grid, dtype: str, nbytes: int) -> Array:
    check_read(image, where, -(-nbytes // image.unit))
    storage = np.dtype(format_of(dtype).storage)
    low, high = where.range()
    span = high + 1 - low
    if nbytes == image.unit and span < prod(where.counts):
        # Windows overlap: decode each stick once, then look at the numbers through the window.
        raw = image.view(storage, low * nbytes, (span, nbytes // storage.itemsize),
                         (nbytes, storage.itemsize))
        values = np.ascontiguousarray(decode(np.ascontiguousarray(raw), dtype))
        steps = tuple(s * values.strides[0] for s in where.strides)
        offset = (where.base - low) * values.strides[0]
        return np.ndarray((*where.counts, values.shape[1]), values.dtype, values, offset,
                          (*steps, values.itemsize))
    steps = tuple(s * image.unit for s in where.strides)
    raw = image.view(storage, where.base * image.unit,
                     (*where.counts, nbytes // storage.itemsize), (*steps, storage.itemsize))
    return decode(np.ascontiguousarray(raw), dtype)


def broadcast(values: Array, shape: tuple[int, ...]) -> Array:
    """``values`` at full shape; numpy takes its time to do nothing."""
    return values if values.shape == shape else np.broadcast_to(values, shape)


def write_groups(image: Image, where: Grid, values: Array, dtype: str) -> None:
    """Encode ``values`` ([*counts, 64], or what broadcasts to it) and write them."""
    bits = encode(values, dtype)
    write_bits(image, where, broadcast(bits, (*bits.shape[:-1], LANES)))


def write_bits(image: Image, where: Grid, bits: Array) -> None:
    """Write storage bits of groups; the last axis of ``bits`` is a group, the others broadcast."""
    image.check_writable()
    if prod(where.counts) == 0:
        return
    nbytes = bits.shape[-1] * bits.itemsize
    full = broadcast(bits, (*where.counts, bits.shape[-1]))
    if where.mask is not None:
        mask = where.inside()
        write_rows(image, where.addresses()[mask], np.ascontiguousarray(full[mask]).view(np.uint8))
        return
    units = -(-nbytes // image.unit)
    low, high = where.range()
    image.check_range(low, high + units)
    steps = tuple(s * image.unit for s in where.strides)
    image.view(bits.dtype, where.base * image.unit, full.shape, (*steps, bits.itemsize))[...] = full
    image.flags(where.base, (*where.counts, units), (*where.strides, 1))[...] = True


def check_read(image: Image, where: Grid, units: int) -> None:
    """Bounds and written-ness of unmasked groups of ``units`` units each."""
    low, high = where.range()
    image.check_range(low, high + units)
    flags = image.flags(where.base, (*where.counts, units), (*where.strides, 1))
    if not flags.all():
        at = np.unravel_index(int(np.argmin(flags)), flags.shape)
        steps = (*where.strides, 1)
        first = where.base + sum(int(i) * s for i, s in zip(at, steps, strict=True))
        image.check_written(flags, first)


def read_rows(image: Image, rows: NDArray[np.int64], nbytes: int) -> NDArray[np.uint8]:
    """``nbytes`` from each unit address in ``rows`` on: [rows, nbytes]."""
    units = -(-nbytes // image.unit)
    image.check_range(int(rows.min()), int(rows.max()) + units)
    spread = rows[:, None] + np.arange(units)
    flags = image.valid[spread]
    if not flags.all():
        image.check_written(flags, int(spread.reshape(-1)[np.argmin(flags)]))
    table = image.data.reshape(-1, image.unit)
    return np.ascontiguousarray(table[spread].reshape(len(rows), -1)[:, :nbytes])


def write_rows(image: Image, rows: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
    """Write ``data`` [rows, bytes] at unit addresses."""
    image.check_writable()
    if not len(rows):
        return
    nbytes = data.shape[1]
    units = -(-nbytes // image.unit)
    image.check_range(int(rows.min()), int(rows.max()) + units)
    spread = rows[:, None] + np.arange(units)
    table = image.data.reshape(-1, image.unit)
    if nbytes < image.unit:
        table[rows, :nbytes] = data
    else:
        table[spread] = data.reshape(len(rows), units, image.unit)
    image.valid[spread] = True


def _squeezed(where: Grid) -> Grid:
    """Dimensions along which nothing changes read once."""
    def still(axis: int) -> bool:
        varies = where.mask is not None and where.mask.shape[axis] > 1
        return not where.strides[axis] and not varies and where.counts[axis] > 1

    counts = tuple(1 if still(d) else c for d, c in enumerate(where.counts))
    return Grid(where.base, where.strides, counts, where.mask)


def _along(counts: tuple[int, ...], axis: int) -> NDArray[np.int64]:
    shape = [1] * len(counts)
    shape[axis] = counts[axis]
    return np.arange(counts[axis], dtype=np.int64).reshape(shape)
