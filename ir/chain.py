"""Composing data movements: two moves in a row as one, and a permutation of elements undone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

from .errors import SpyrecError
from .moves import AffineMap, MoveSpec, Piece, Row, canonical
from .refine import Cell, Side, Term, solve

MAX_PIECES = 16


def compose(
    first: MoveSpec, second: MoveSpec, operand: int = 0, limit: int = MAX_PIECES
) -> MoveSpec | None:
    """One canonical move equal to ``second`` with ``first`` as its operand number ``operand``.

    The operands of ``first`` take the place of that operand. None when it takes more than ``limit``
    pieces, when two different fill values would show, or when a piece runs along a diagonal.
    SpyrecError when the shapes do not fit.
    """
    if not 0 <= operand < len(second.operands) or second.operands[operand] != first.shape:
        raise SpyrecError(
            f"a move that makes shape {first.shape} cannot be operand {operand} of a move that "
            f"reads {', '.join(map(str, second.operands))}"
        )
    pieces: list[Piece] = []
    hidden = 0
    for outer in canonical(second).pieces:
        if outer.operand != operand:
            shift = len(first.operands) - 1 if outer.operand > operand else 0
            pieces.append(replace(outer, operand=outer.operand + shift))
            continue
        found = _read_through(first, outer, 4 * limit)
        if found is None or len(pieces) + len(found) > 4 * limit:
            return None
        pieces += [replace(piece, operand=piece.operand + operand) for piece in found]
        hidden += outer.size - sum(piece.size for piece in found)
    if hidden and second.filled and not _same_number(first.fill, second.fill):
        return None
    before, after = second.operands[:operand], second.operands[operand + 1 :]
    fill = first.fill if hidden else second.fill
    one = canonical(
        MoveSpec(second.shape, fill, tuple(pieces), (*before, *first.operands, *after))
    )
    return one if len(one.pieces) <= limit else None


def inverse_if_permutation(spec: MoveSpec) -> MoveSpec | None:
    """The move that brings every element back, when ``spec`` only permutes those of its one operand
    (each is read exactly once); else None."""
    if len(spec.operands) != 1 or spec.filled or not math.prod(spec.shape):
        return None
    sources = [Piece(0, piece.counts, piece.dst, piece.src) for piece in spec.pieces]
    back = MoveSpec(spec.operands[0], 0.0, tuple(sources), (spec.shape,))
    if back.filled or not writes_once(back):
        return None
    return canonical(back)


def writes_once(spec: MoveSpec) -> bool:
    """Whether it is plain that no element of the result is written twice. False also for maps that
    are too irregular to tell."""
    return all(_injective(piece.dst, piece.counts) for piece in spec.pieces) and all(
        _apart(a, b) for a, b in combinations(spec.pieces, 2)
    )


def _same_number(a: float, b: float) -> bool:
    """Equal to the sign of zero; NaN equals NaN."""
    return repr(float(a)) == repr(float(b))


def _read_through(first: MoveSpec, outer: Piece, limit: int) -> list[Piece] | None:
    """``outer`` reading the operands of ``first`` directly, without what it reads of the fill."""
    pieces: list[Piece] = []
    for inner in canonical(first).pieces:
        found = _meet(inner, outer, limit)
        if found is None:
            return None
        pieces += found
    return pieces


def _meet(inner: Piece, outer: Piece, limit: int) -> list[Piece] | None:
    """The part of ``outer`` that reads what ``inner`` wrote."""
    written = _terms(inner.dst, inner.counts)
    read = _terms(outer.src, outer.counts)
    if written is None or read is None or len(_used(written)) < sum(n > 1 for n in inner.counts):
        return None
    choices: list[list[Cell]] = []
    for (a, left), (b, right) in zip(written, read, strict=True):
        cells = solve(b - a, left, right, limit)
        if cells is None:
            return None
        choices.append(cells)
    if math.prod(len(cells) for cells in choices) > limit:
        return None
    free = [k for k, n in enumerate(outer.counts) if n > 1 and k not in _used(read)]
    return [_piece(inner, outer, combination, free) for combination in product(*choices)]


def _piece(inner: Piece, outer: Piece, cells: Sequence[Cell], free: Sequence[int]) -> Piece:
    """The piece for one cell per dimension; ``free`` dimensions of ``outer`` repeat a read."""
    shared = [index for cell in cells for index in cell.shared]
    counts = (*(index.count for index in shared), *(outer.counts[k] for k in free))
    fixed = [constant for cell in cells for constant in cell.fixed]

    def row(side: Side, var: int, count: int, negative: bool) -> Row:
        sign = -1 if negative else 1
        offset = sum(amount for s, v, amount in fixed if (s, v) == (side, var))
        coefs = [
            sign * (i.left_scale if side == "left" else i.right_scale)
            if (i.left if side == "left" else i.right) == var
            else 0
            for i in shared
        ]
        repeats = [int(side == "right" and k == var) for k in free]
        return (count - 1 - offset if negative else offset, (*coefs, *repeats))

    left = [
        row("left", k, n, min(inner.dst.step(k), default=0) < 0)
        for k, n in enumerate(inner.counts)
    ]
    right = [
        row("right", k, n, min(outer.src.step(k), default=0) < 0)
        for k, n in enumerate(outer.counts)
    ]
    dims = len(counts)
    return Piece(inner.operand, counts, inner.src.after(left, dims), outer.dst.after(right, dims))


def _terms(map_: AffineMap, counts: Sequence[int]) -> list[tuple[int, list[Term]]] | None:
    """Per row the least value and the terms above it, where a dimension that counts down is turned
    round; None when a dimension moves along a diagonal."""
    rows = []
    for offset, coefs in map_.rows:
        moving = [(k, c, n) for k, (c, n) in enumerate(zip(coefs, counts, strict=True)) if c]
        low = offset + sum(c * (n - 1) for _, c, n in moving if c < 0)
        rows.append((low, [Term(abs(c), n, k) for k, c, n in moving if n > 1]))
    names = [term.var for _, terms in rows for term in terms]
    return rows if len(set(names)) == len(names) else None


def _used(rows: Sequence[tuple[int, Sequence[Term]]]) -> set[int]:
    return {term.var for _, terms in rows for term in terms}


def _injective(map_: AffineMap, counts: Sequence[int]) -> bool:
    """Whether each row is a mixed-radix number, so that no two points have one coordinate."""
    rows = _terms(map_, counts)
    if rows is None or len(_used(rows)) < sum(n > 1 for n in counts):
        return False
    for _, terms in rows:
        below = 0
        for term in sorted(terms, key=lambda term: term.stride):
            if term.stride <= below:
                return False
            below += term.stride * (term.count - 1)
    return True


def _apart(a: Piece, b: Piece) -> bool:
    """Whether two pieces write different elements: along some dimension they never meet."""
    rows_a, rows_b = _terms(a.dst, a.counts), _terms(b.dst, b.counts)
    if rows_a is None or rows_b is None:
        return False
    return any(
        solve(q - p, left, right, 1) == []
        for (p, left), (q, right) in zip(rows_a, rows_b, strict=True)
    )
