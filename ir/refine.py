"""Where two mixed-radix ways of counting meet: the points of one that are points of the other, as
boxes on which both counts are affine. This is what composing data movements comes down to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Side = Literal["left", "right"]


@dataclass(frozen=True)
class Term:
    """``stride * t``, t in 0..count-1 and stride > 0; t adds ``scale * t`` to the index ``var``."""

    stride: int
    count: int
    var: int
    scale: int = 1


@dataclass(frozen=True)
class Shared:
    """A new index in 0..count-1 that moves index ``left`` by ``left_scale`` a step, and index
    ``right`` by ``right_scale``."""

    count: int
    left: int
    left_scale: int
    right: int
    right_scale: int


@dataclass(frozen=True)
class Cell:
    """A box of solutions: the indices it runs over, constants ``(side, var, amount)`` to add."""

    shared: tuple[Shared, ...]
    fixed: tuple[tuple[Side, int, int], ...]


@dataclass(frozen=True)
class _Open:
    """``sum(left) == delta + sum(right)``, still to be solved, inside the cell built so far."""

    delta: int
    left: tuple[Term, ...]
    right: tuple[Term, ...]
    cell: Cell

    def flip(self) -> _Open:
        other: dict[Side, Side] = {"left": "right", "right": "left"}
        shared = tuple(
            Shared(s.count, s.right, s.right_scale, s.left, s.left_scale) for s in self.cell.shared
        )
        fixed = tuple((other[side], var, amount) for side, var, amount in self.cell.fixed)
        return _Open(-self.delta, self.right, self.left, Cell(shared, fixed))

    def fix(self, side: Side, var: int, amount: int) -> _Open:
        fixed = (*self.cell.fixed, (side, var, amount))
        return replace(self, cell=replace(self.cell, fixed=fixed))


_STEPS_PER_CELL = 64


def solve(
    delta: int, left: Sequence[Term], right: Sequence[Term], limit: int
) -> list[Cell] | None:
    """All solutions of ``sum(left) == delta + sum(right)`` as disjoint cells; None when they take
    more than ``limit`` cells or too long to find."""
    work = [_Open(delta, tuple(left), tuple(right), Cell((), ()))]
    cells: list[Cell] = []
    for _ in range((limit + 1) * _STEPS_PER_CELL):
        if not work:
            return cells
        here = _drop_constants(work.pop())
        if here.delta > _span(here.left) or here.delta + _span(here.right) < 0:
            continue
        if not here.left and not here.right:
            cells.append(here.cell)
            if len(cells) > limit:
                return None
            continue
        branches = _branch(here, limit)
        if branches is None:
            return None
        work += reversed(branches)
    return None


def _span(terms: Sequence[Term]) -> int:
    return sum(term.stride * (term.count - 1) for term in terms)


def _drop_constants(here: _Open) -> _Open:
    """Without terms that have one value, the coarsest terms first."""
    left, right = (
        tuple(sorted((t for t in side if t.count > 1), key=lambda t: -t.stride))
        for side in (here.left, here.right)
    )
    return replace(here, left=left, right=right)


def _branch(here: _Open, limit: int) -> list[_Open] | None:
    """Disjoint smaller problems with the same solutions; None when they are more than ``limit``."""
    coarse = here.left[0].stride if here.left else 0
    fine = here.right[0].stride if here.right else 0
    if coarse < fine:
        flipped = _branch(here.flip(), limit)
        return None if flipped is None else [branch.flip() for branch in flipped]
    if coarse == fine:
        return _pair(here, limit)
    if fine and coarse % fine == 0:
        chunks = _cut(here)
        if len(chunks) > 1 or len(chunks[0].right) > len(here.right):
            return chunks
    return _try_each(here, limit)


def _pair(here: _Open, limit: int) -> list[_Open] | None:
    """Both coarsest terms step alike: i - j is one of few constants q, and they run together."""
    (a, *left), (b, *right) = here.left, here.right
    low = -((_span(left) - here.delta) // a.stride)
    high = (here.delta + _span(right)) // a.stride
    low, high = max(low, 1 - b.count), min(high, a.count - 1)
    if high - low >= limit:
        return None
    branches = []
    for q in range(low, high + 1):
        first, end = max(0, -q), min(b.count, a.count - q)
        shared = Shared(end - first, a.var, a.scale, b.var, b.scale)
        cell = replace(here.cell, shared=(*here.cell.shared, shared))
        rest = _Open(here.delta - q * a.stride, tuple(left), tuple(right), cell)
        rest = rest.fix("left", a.var, a.scale * (first + q)).fix("right", b.var, b.scale * first)
        branches.append(rest)
    return branches


def _cut(here: _Open) -> list[_Open]:
    """The coarsest right term cut where it passes a step of the left one: a start, whole steps
    (which become two terms) and an end."""
    a, (b, *right) = here.left[0], here.right
    ratio = a.stride // b.stride
    start = min(-(here.delta // b.stride) % ratio, b.count)
    whole, end = divmod(b.count - start, ratio)

    def chunk(first: int, *terms: Term) -> _Open:
        part = replace(here, delta=here.delta + b.stride * first, right=(*terms, *right))
        return part.fix("right", b.var, b.scale * first)

    chunks = []
    if start:
        chunks.append(chunk(0, replace(b, count=start)))
    if whole:
        steps = Term(a.stride, whole, b.var, b.scale * ratio)
        inside = replace(b, count=ratio)
        chunks.append(chunk(start, *((steps, inside) if whole > 1 else (inside,))))
    if end:
        chunks.append(chunk(start + whole * ratio, replace(b, count=end)))
    return chunks


def _try_each(here: _Open, limit: int) -> list[_Open] | None:
    """One problem for each value the coarsest left term can have."""
    a, *left = here.left
    low = -((_span(left) - here.delta) // a.stride)
    high = (here.delta + _span(here.right)) // a.stride
    low, high = max(low, 0), min(high, a.count - 1)
    if high - low >= limit:
        return None
    return [
        replace(here, delta=here.delta - a.stride * value, left=tuple(left)).fix(
            "left", a.var, a.scale * value
        )
        for value in range(low, high + 1)
    ]
