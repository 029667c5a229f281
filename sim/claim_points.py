"""From a claim to the sticks and lanes it speaks of, by the tensor's own digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from .arrange import k_step
from .extent import core_value, padded
from .functional_pt import K_DIM
from .functional_vec import immediate
from .isa import LANES, Affine, Claim, Instr, Intent, Operand, Tensor
from .view import Grid, Moment, counts_of, grid, left_over

Ints = NDArray[np.int64]
Steps = tuple[tuple[int, ...], ...]
"""For each dimension of a tensor what a step along each iteration dimension adds."""


@dataclass(frozen=True)
class Origin:
    """Coordinates of the first point as ``stick``, the number of a stick, and what ``rest`` of each
    coordinate that is not yet in: so that all that follows depends on ``rest`` alone."""

    at: tuple[int, ...]
    stick: int
    rest: tuple[int, ...]

    @staticmethod
    def of(tensor: Tensor, at: tuple[int, ...]) -> Origin:
        stick, rest = 0, list(at)
        for t, (stride, sticks) in enumerate(outermost(tensor)):
            whole, rest[t] = divmod(at[t], stride)
            stick += whole * sticks
        return Origin(at, stick, tuple(rest))


def outermost(tensor: Tensor) -> list[tuple[int, int]]:
    """Stride and sticks of the outermost digit of each dimension; it counts on past its size, for
    what is beyond the end."""
    found = [(1, 0)] * len(tensor.shape)
    for dim, _, stride, sticks in reversed(tensor.digits):
        found[dim] = (stride, sticks) if stride >= found[dim][0] else found[dim]
    return found


def sticks_of(tensor: Tensor) -> int:
    return prod(size for _, size, _, _ in tensor.digits)


def where(affine: Affine, moment: Moment) -> int:
    """Its value at the first point of an execution."""
    return core_value(affine.start, moment.core) + moment.offset(affine.loops)


ROW = 6  # in place of an iteration dimension: rows of b within a step of kc, sticks of indices


@dataclass(frozen=True)
class Walk:
    """An operand's iteration: ``counts`` along the instruction's dimensions ``dims`` (all in order
    unless given), of which the claim's steps are ``scale`` times as long; ``row``: address step and
    coordinate steps of ROW. Every point reaches over ``width`` sticks, or is one of the ``parts``
    of one. ``meant``: the claim's own counts, if it has dimensions of its own: its points, in
    order, are the operand's."""

    counts: tuple[int, ...]
    dims: tuple[int, ...] | None = None
    scale: tuple[int, ...] = ()
    width: int = 1
    parts: int = 1
    row: tuple[int, tuple[int, ...]] = (0, ())
    meant: tuple[int, ...] | None = None

    def grid(self, operand: Operand, moment: Moment) -> Grid:
        made = grid(operand, self.counts, moment, self.dims)
        if self.dims is None or not self.row[0]:
            return made
        pairs = zip(self.dims, made.strides, strict=True)
        return replace(made, strides=tuple(self.row[0] if d == ROW else s for d, s in pairs))


@dataclass(frozen=True)
class Shape:
    """How a claim's coordinates move over ``counts``: for each its ``steps`` and how far below and
    above the first point's it comes."""

    counts: tuple[int, ...]
    steps: Steps
    reach: tuple[tuple[int, int], ...]

    @staticmethod
    def of(claim: Claim, walk: Walk) -> Shape:
        counts = walk.counts if walk.meant is None else walk.meant
        steps = steps_of(claim.at, len(counts), walk.dims, walk.scale or (1,) * len(counts))
        if walk.dims is not None and walk.row[0]:
            steps = tuple(
                tuple(by if d == ROW else n for d, n in zip(walk.dims, own, strict=True))
                for own, by in zip(steps, walk.row[1], strict=True)
            )
        far = [[s * (n - 1) for s, n in zip(own, counts, strict=True)] for own in steps]
        reach = ((sum(n for n in f if n < 0), sum(n for n in f if n > 0)) for f in far)
        return Shape(counts, steps, tuple(reach))


def points(tensor: Tensor, rest: Sequence[int], shape: Shape) -> tuple[Ints, Ints, Ints]:
    """Of every point in order: its stick, counted from the origin's, its lane, and which group of
    64 lanes of a stick that is."""
    counts, steps = shape.counts, shape.steps
    sticks = np.zeros((1,) * len(counts), np.int64)
    lanes, groups = sticks, sticks
    tops = outermost(tensor)
    for t, first in enumerate(rest):
        along = _along(first, steps[t], counts)
        for dim, size, stride, weight in tensor.digits:
            if dim == t:
                index = along // stride
                sticks = sticks + (index if stride == tops[t][0] else index % size) * weight
        for dim, size, stride, weight in tensor.lanes:
            if dim == t:
                lanes = lanes + along // stride % size * weight
        if t == tensor.stick_dim:
            groups = groups + along // LANES
    flat = (np.broadcast_to(x, counts).reshape(-1) for x in (sticks, lanes, groups))
    a, b, c = flat
    return a, b, c


def inside(tensor: Tensor, at: Sequence[int], shape: Shape) -> NDArray[np.bool_] | None:
    """Which points lie within the tensor, padding along its lanes included; None when all do."""
    mask: NDArray[np.bool_] | None = None
    for t, first in enumerate(at):
        low, high = shape.reach[t]
        if t == tensor.stick_dim or (first + low >= 0 and first + high < tensor.shape[t]):
            continue
        along = _along(first, shape.steps[t], shape.counts)
        ok = (along >= 0) & (along < tensor.shape[t])
        mask = ok if mask is None else mask & ok
    return None if mask is None else np.broadcast_to(mask, shape.counts).reshape(-1)


def _along(first: int, steps: Sequence[int], counts: tuple[int, ...]) -> Ints:
    total = np.full((1,) * len(counts), first, np.int64)
    for axis, step in enumerate(steps):
        if step:
            shape = [1] * len(counts)
            shape[axis] = counts[axis]
            total = total + step * np.arange(counts[axis], dtype=np.int64).reshape(shape)
    return total


def meant_counts(intent: Intent, moment: Moment) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Points along each dimension of an intent, and elements."""
    elements = tuple(
        min(max(core_value(e.left, moment.core) - moment.offset(e.loops), 0), e.most)
        for e in intent.extents
    )
    return tuple(-(-n // e.step) for n, e in zip(elements, intent.extents, strict=True)), elements


def k_elements(instr: Instr, kc: int, moment: Moment) -> int:
    """How many rows of b an ``mm`` multiplies."""
    step = k_step(instr.operands[1].dtype)
    left = left_over(instr, K_DIM, instr.imm.get("k_valid", LANES), moment, step)
    return max(min(kc * step, left), 0)


def domain_fault(instr: Instr, intent: Intent, moment: Moment) -> str:
    """How an execution iterates otherwise than it is meant to, as verb and object; "" if it does
    not."""
    if not intent.extents:
        return ""
    own = counts_of(instr, moment)
    meant, elements = meant_counts(intent, moment)
    if prod(own) == prod(meant) == 0:
        return ""
    here, ends = meant[: len(own)], meant[len(own) :]
    if instr.op not in ("mm", "vec"):
        if prod(own) == prod(meant):
            return ""
    elif own == here and all(ends):
        return _lane_fault(instr, own, elements, moment)
    return f"iterates {_by(own)} in place of {_by(here if all(ends) else (0,))}"


def _lane_fault(
    instr: Instr, own: tuple[int, ...], elements: tuple[int, ...], moment: Moment
) -> str:
    """How many elements along a folded lane dimension count."""
    if instr.op == "mm":
        have, want = k_elements(instr, own[K_DIM], moment), elements[K_DIM]
    elif immediate(instr, "reduce") and immediate(instr, "lanes"):
        dim = immediate(instr, "lane_dim", -1)
        if not 0 <= dim < len(own):
            return ""
        have, want = own[dim] * LANES, elements[dim]
        if valid := instr.imm.get("lane_valid", 0):
            have = max(min(have, left_over(instr, dim, valid, moment)), 0)
    else:
        return ""
    return "" if have == want else f"folds {have} elements in place of {want}"


def steps_of(
    affine: Sequence[Affine], rank: int, dims: Sequence[int] | None, scale: Sequence[int]
) -> Steps:
    """Of each coordinate the steps along ``dims``, ``scale`` times as long."""
    if dims is None:
        return tuple(padded(a.steps[:rank], rank) for a in affine)
    return tuple(
        tuple(nth(a.steps, d) * n for d, n in zip(dims, scale, strict=True)) for a in affine
    )


def nth(steps: Sequence[int], dim: int) -> int:
    return steps[dim] if dim < len(steps) else 0


def _by(counts: Sequence[int]) -> str:
    return "x".join(map(str, counts)) or "1"
