"""The affine pieces of a move kernel, clipped to what one core produces."""

from __future__ import annotations

from collections.abc import Collection
from itertools import product
from math import prod

from spyrec.ir.core import Op
from spyrec.ir.moves import AffineMap, Piece

from .attrs import entries
from .kernel import GROUP, Box, Map, Nest, clip, rank1, window
from .sticks import region_head


def pieces(op: Op) -> tuple[Piece, ...]:
    """The pieces of a move kernel, a scalar seen as one element."""
    found = []
    for operand, counts, src, dst in entries(region_head(op), "pieces"):
        if not counts:  # one element: a dimension of one step, so that its range can be empty
            counts = (1,)
            src, dst = (tuple((at, (0,)) for at, _ in rows) for rows in (src, dst))
        only: Map = ((0, (0,) * len(counts)),)
        found.append(Piece(operand, counts, AffineMap(src or only), AffineMap(dst or only)))
    return tuple(found)


def repeats(op: Op, operands: Collection[int]) -> dict[Piece, tuple[Piece, ...]]:
    """The pieces of a divided move that read one of ``operands``, each with the others that write
    the same elements elsewhere: one reading serves all, as each core writes all of its part."""
    alike: dict[object, list[Piece]] = {}
    ranges = Nest(op).core_ranges
    for p in pieces(op):
        if p.operand in operands:
            mine = tuple(tuple(clip_piece(p, box)) for box in ranges)
            alike.setdefault((p.operand, p.counts, p.src, mine), []).append(p)
    return {first: tuple(others) for first, *others in alike.values() if others}


def leaves_gaps(op: Op) -> bool:
    """Are there elements of a move kernel's result that no piece writes?"""
    return sum(p.size for p in pieces(op)) < prod(rank1(op.results[0].type))


def clip_piece(piece: Piece, box: Box) -> list[Box]:
    """Ranges of the piece's iteration dimensions that land inside ``box`` of the result: none when
    nothing does, several where a side of the box cuts through a run of digits.

    A piece that writes 6 * i + j, clipped to 6..16:

    >>> rows = ((0, (6, 1)),)
    >>> clip_piece(Piece(0, (4, 6), AffineMap(rows), AffineMap(rows)), ((6, 10),))
    [((1, 1), (0, 6)), ((2, 1), (0, 4))]
    """
    found: list[dict[int, tuple[int, int]]] = [{}]
    for (offset, coefs), (start, size) in zip(piece.dst.rows, box, strict=True):
        moving = [(abs(c), i) for i, c in enumerate(coefs) if c and piece.counts[i] > 1]
        low = start - offset  # result coordinates relative to the piece
        parts = _digits_inside(sorted(moving, reverse=True), piece.counts, low, low + size)
        found = [_both(one, other) for one in found for other in parts]
    whole = [(0, n) for n in piece.counts]
    ranges = (tuple(f.get(i, side) for i, side in enumerate(whole)) for f in found)
    return [r for r in ranges if all(n for _, n in r)]


def _digits_inside(
    digits: list[tuple[int, int]], counts: tuple[int, ...], low: int, high: int
) -> list[dict[int, tuple[int, int]]]:
    """Where the sum of ``digits``, pairs (step, iteration dimension) with the largest step first,
    is in ``low..high - 1``: the steps of the first that lie inside with all of their run, then
    digit by digit those whose run a border cuts."""
    if not digits:
        return [{}] if low <= 0 < high else []
    (step, dim), inner = digits[0], digits[1:]
    n = counts[dim]
    run = 1 + sum(c * (counts[i] - 1) for c, i in inner)
    first, end = max(0, -(-(low - run + 1) // step)), min(n, -(-high // step))
    whole, stop = max(first, -(-low // step)), min(end, (high - run) // step + 1)
    found: list[dict[int, tuple[int, int]]] = []
    if whole < stop:
        found.append({dim: (whole, stop - whole)})
    else:
        whole = stop = end
    for at in (*range(first, whole), *range(stop, end)):
        rest = _digits_inside(inner, counts, low - at * step, high - at * step)
        found += [{dim: (at, 1), **ranges} for ranges in rest]
    return found


def _both(
    one: dict[int, tuple[int, int]], other: dict[int, tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """What is in the ranges of both; a dimension that is not named is whole."""
    joined = {**one, **other}
    for i in one.keys() & other.keys():
        start = max(one[i][0], other[i][0])
        joined[i] = start, max(0, min(sum(one[i]), sum(other[i])) - start)
    return joined


def clip_pieces(piece: Piece, boxes: tuple[Box, ...]) -> list[dict[int, Box]]:
    """``clip_piece`` for the cores' boxes: each core's first ranges, by core, then the second..."""
    found: list[dict[int, Box]] = []
    for core, box in enumerate(boxes):
        if all(n for _, n in box):
            for number, ranges in enumerate(clip_piece(piece, box)):
                if number == len(found):
                    found.append({})
                found[number][core] = ranges
    return found


def move_needs(op: Op, operand: int, out_box: Box) -> Box | None:
    """Bounding box of what one core reads of an operand to produce ``out_box``; None when
    nothing."""
    shape = rank1(op.operands[operand].type)
    found: list[Box] = []
    for piece in pieces(op):
        if piece.operand == operand:
            ranges = clip_piece(piece, out_box)
            found += [clip(window(piece.src.rows, r), shape) for r in ranges]
    if not found:
        return None
    low = [min(s for s, _ in dim) for dim in zip(*found, strict=True)]
    high = [max(s + n for s, n in dim) for dim in zip(*found, strict=True)]
    return tuple((a, b - a) for a, b in zip(low, high, strict=True))


def needs(op: Op, operand: int) -> tuple[Box, ...]:
    """For each core the part of an operand it reads in the whole kernel (empty boxes where
    none)."""
    nest = Nest(op)
    shape = rank1(op.operands[operand].type)
    empty = tuple((0, 0) for _ in shape)
    if nest.kind == "move":
        boxes = [
            move_needs(op, operand, r) if all(s for _, s in r) else None for r in nest.core_ranges
        ]
        return tuple(b if b is not None else empty for b in boxes)
    out = []
    for ranges in nest.reading(operand):
        box = clip(window(nest.maps[operand], ranges), shape)
        out.append(box if all(s for _, s in box) else empty)
    return tuple(out)


def tile_boxes(nest: Nest, tile: tuple[int, ...]) -> list[tuple[Box, ...]]:
    """For each tile of a move or gather kernel, in order, what each core produces of the result
    (maybe nothing)."""
    trips = [max(1, -(-n // t)) for n, t in zip(nest.local, tile, strict=True)]
    out = []
    for index in product(*(range(n) for n in trips)):
        boxes = []
        for ranges in nest.core_ranges:
            box = tuple(
                (start + i * t, max(0, min(t, size - i * t)))
                for i, t, (start, size) in zip(index, tile, ranges, strict=True)
            )
            boxes.append(box if all(n for _, n in box) else tuple((0, 0) for _ in box))
        out.append(tuple(boxes))
    return out


def source_boxes(op: Op, operand: int, boxes: tuple[Box, ...]) -> tuple[Box, ...]:
    """For each core the part of an operand, widened to whole groups of lanes, that its result box
    needs."""
    v = op.operands[operand]
    assert v.type.layout is not None
    shape, stick = rank1(v.type), v.type.layout.stick_dim
    out = []
    for box in boxes:
        need = move_needs(op, operand, box) if all(n for _, n in box) else None
        if need is None:
            out.append(tuple((0, 0) for _ in shape))
            continue
        start, size = need[stick]
        lo = start // GROUP * GROUP
        hi = min(shape[stick], -(-(start + size) // GROUP) * GROUP)
        out.append((*need[:stick], (lo, hi - lo), *need[stick + 1 :]))
    return tuple(out)


def source_window(op: Op, operand: int, tile: tuple[int, ...]) -> tuple[int, ...] | None:
    """Shape of a buffer that holds any core's window of an operand for any tile; None when it is
    never read."""
    windows = [
        [n for _, n in box]
        for boxes in tile_boxes(Nest(op), tile)
        for box in source_boxes(op, operand, boxes)
        if all(n for _, n in box)
    ]
    return tuple(max(sizes) for sizes in zip(*windows, strict=True)) if windows else None


def is_direct(op: Op) -> bool:
    """Can the move be done stick by stick? Every piece keeps lanes in place, and the pieces cover
    the result."""
    result = op.results[0]
    assert result.type.layout is not None
    stick = result.type.layout.stick_dim
    extent = rank1(result.type)[stick]
    if region_head(op).name != "move" or leaves_gaps(op):
        return False
    for p in pieces(op):
        v = op.operands[p.operand]
        assert v.type.layout is not None
        if v.type.dtype.bits != result.type.dtype.bits:
            return False
        s_off, s_coefs = p.src.rows[v.type.layout.stick_dim]
        d_off, d_coefs = p.dst.rows[stick]
        lanes = [i for i, n in enumerate(p.counts) if n > 1 and (s_coefs[i] or d_coefs[i])]
        n = p.counts[lanes[0]] if lanes else 1
        if len(lanes) > 1 or s_off % GROUP or d_off % GROUP:
            return False
        if lanes and (s_coefs[lanes[0]] != 1 or d_coefs[lanes[0]] != 1):
            return False
        if n % GROUP and d_off + n != extent:
            return False
    return True
