"""What the vector unit computes: a micro-program per lane, then an optional reduction."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .extent import core_value
from .formats import encode
from .half_sticks import read_vector, write_vector
from .isa import LANES, SCALARS, Instr, Kernel, Operand
from .memory import POISON, Image, Memory
from .micro import evaluate
from .view import (
    Grid,
    Moment,
    counts_of,
    grid,
    left_over,
    write_bits,
)

Array = NDArray[Any]


@dataclass(frozen=True)
class Fold:
    """A reduction: the ufunc and what an element left out counts as, for floats and for ints."""

    combine: np.ufunc
    neutral: float
    neutral_int: int


FOLDS: dict[int, Fold] = {
    1: Fold(np.add, 0.0, 0),
    2: Fold(np.maximum, -np.inf, -(2**31)),
    3: Fold(np.minimum, np.inf, 2**31 - 1),
    4: Fold(np.multiply, 1.0, 1),
}


def vec(instr: Instr, kernel: Kernel, memory: Memory, moment: Moment) -> None:
    counts = counts_of(instr, moment)
    if prod(counts) == 0 and not immediate(instr, "reduce"):
        return
    pattern = core_value(instr.imm.get("fill", 0), moment.core) & 0xFFFFFFFF
    sources = [_source(s, memory, counts, moment, pattern) for s in instr.operands[1:]]
    program = kernel.programs[immediate(instr, "program")]
    scalars = [_scalar(instr, name, moment.core) for name in SCALARS[: program.n_scalars]]
    value = evaluate(program, sources, scalars)
    target = instr.operands[0]
    image = image_of(target, memory, moment.core)
    fold = FOLDS.get(immediate(instr, "reduce"))
    if fold is None:
        write_vector(image, grid(target, counts, moment), value, target.dtype)
        return
    full = np.broadcast_to(value, (*counts, LANES))
    axes = [d for d in range(len(counts)) if immediate(instr, "axes") >> d & 1]
    kept = tuple(1 if d in axes else c for d, c in enumerate(counts))
    if prod(kept) == 0:
        return
    lanes = bool(immediate(instr, "lanes"))
    if lanes:
        full = _valid_lanes(instr, full, fold, moment)
        axes.append(len(counts))
    with np.errstate(all="ignore"):
        result = _reduce(fold, full, tuple(axes))
        where = grid(target, kept, moment)
        if not starts_anew(instr, moment):
            held = read_vector(image, where, target.dtype)
            result = fold.combine(*_same_kind(held[..., :1] if lanes else held, result))
    if lanes:
        _write_first_lane(image, where, result, target.dtype, memory.poison)
    else:
        write_vector(image, where, result, target.dtype)


def _scalar(instr: Instr, name: str, core: int) -> float:
    """A scalar of the micro-program, which the instruction gives as a bit pattern."""
    pattern = core_value(instr.imm.get(name, 0), core) & 0xFFFFFFFF
    return float(np.array(pattern, np.uint32).view(np.float32))


def starts_anew(instr: Instr, moment: Moment) -> bool:
    """Whether the destination is overwritten rather than added to."""
    levels = immediate(instr, "acc_levels")
    at_zero = all(trip == 0 for level, trip in enumerate(moment.trip) if levels >> level & 1)
    return bool(immediate(instr, "init", 1)) and at_zero


def immediate(instr: Instr, name: str, default: int = 0) -> int:
    """An immediate that is the same on all cores."""
    return core_value(instr.imm.get(name, default), 0)


def image_of(operand: Operand, memory: Memory, core: int) -> Image:
    return memory.acc[core] if operand.space == "acc" else memory.lx[core]


def _source(
    operand: Operand, memory: Memory, counts: tuple[int, ...], moment: Moment, pattern: int
) -> Array:
    image = image_of(operand, memory, moment.core)
    lanes = 1 if operand.splat else LANES
    return read_vector(image, grid(operand, counts, moment), operand.dtype, pattern, lanes)


def _valid_lanes(instr: Instr, full: Array, fold: Fold, moment: Moment) -> Array:
    """Lanes beyond ``lane_valid`` replaced by what does not count."""
    dim = immediate(instr, "lane_dim", -1)
    exist = instr.imm.get("lane_valid", 0)
    valid = left_over(instr, dim, exist, moment)
    if core_value(exist, moment.core) <= 0 or (dim >= 0 and full.shape[dim] * LANES <= valid):
        return full
    element = np.arange(LANES)
    if dim >= 0:
        shape = [1] * full.ndim
        shape[dim], shape[-1] = full.shape[dim], LANES
        element = (np.arange(full.shape[dim])[:, None] * LANES + element).reshape(shape)
    neutral = fold.neutral_int if full.dtype == np.int32 else np.float32(fold.neutral)
    return np.where(element < valid, full, full.dtype.type(neutral))


def _reduce(fold: Fold, full: Array, axes: tuple[int, ...]) -> Array:
    neutral = fold.neutral_int if full.dtype == np.int32 else fold.neutral
    if not axes:
        return full
    # numpy takes initial for every fold, so an empty reduction gives the neutral element.
    result = fold.combine.reduce(
        full, axis=axes, keepdims=True, dtype=full.dtype, initial=full.dtype.type(neutral)
    )
    return np.asarray(result)


def _same_kind(one: Array, other: Array) -> tuple[Array, Array]:
    kind = np.int32 if one.dtype == other.dtype == np.int32 else np.float32
    return one.astype(kind, copy=False), other.astype(kind, copy=False)


def _write_first_lane(
    image: Image, where: Grid, result: Array, dtype: str, poison: bool
) -> None:
    """Lane 0 of each group; the other lanes are undefined, so a poisoned run makes them NaN."""
    groups = np.zeros((*where.counts, LANES), result.dtype)
    groups[..., :1] = result
    bits = encode(groups, dtype)
    if poison:
        size = bits.itemsize
        pattern = int.from_bytes(POISON.to_bytes(2, "little") * 2, "little")
        junk = (pattern >> (32 - 8 * size)) & ((1 << 8 * size) - 1)
        bits[..., 1:] = junk
    write_bits(image, where, bits)
