"""The affine pieces of a move kernel, clipped to what one core produces."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from spyrec.ir.core import Op
from spyrec.ir.errors import PassError

from .kernel import GROUP, Box, Map, Nest, clip, rank1, window
from .stick_layout import region_head


@dataclass(frozen=True)
class Piece:
    """``result[dst(i)] = operand[src(i)]`` for every i in the box ``counts``."""

    operand: int
    counts: tuple[int, ...]
    src: Map
    dst: Map


def pieces(op: Op) -> tuple[Piece, ...]:
    """The pieces of a move kernel, a scalar seen as one element."""
    found: tuple[tuple[int, tuple[int, ...], Map, Map], ...] = region_head(op).attrs["pieces"]  # type: ignore[assignment]
    return tuple(
        Piece(i, counts, src or ((0, (0,) * len(counts)),), dst or ((0, (0,) * len(counts)),))
        for i, counts, src, dst in found
    )


def clip_piece(piece: Piece, box: Box, where: str) -> Box:
    """Ranges of the piece's iteration dimensions that land inside ``box`` of the result.

    PassError when the box cuts through a run of digits (the allocation's grains prevent that).
    """
    ranges = [(0, n) for n in piece.counts]
    for (offset, coefs), (start, size) in zip(piece.dst, box, strict=True):
        digits = sorted(((abs(c), i) for i, c in enumerate(coefs) if c and piece.counts[i] > 1), reverse=True)
        if not digits:
            if not start <= offset < start + size:
                return tuple((0, 0) for _ in piece.counts)
            continue
        step, outer = digits[0]
        rest = 1 + sum(c * (piece.counts[i] - 1) for c, i in digits[1:])
        lo, hi = start - offset, start + size - offset  # result coordinates relative to the piece
        first = max(0, -(-(lo - rest + 1) // step))
        last = min(piece.counts[outer], -(-hi // step))
        if last <= first:
            return tuple((0, 0) for _ in piece.counts)
        if first * step < lo or (last - 1) * step + rest > hi:
            raise PassError(f"{where}: a division of the result cuts through a run of {rest} elements; pin other parts")
        old = ranges[outer]
        lo2, hi2 = max(old[0], first), min(old[0] + old[1], last)
        ranges[outer] = (lo2, max(0, hi2 - lo2))
    return tuple(ranges)


def move_needs(op: Op, operand: int, out_box: Box) -> Box | None:
    """Bounding box of what one core reads of an operand to produce ``out_box``; None when nothing."""
    shape = rank1(op.operands[operand].type)
    lo: list[int] | None = None
    hi: list[int] = []
    for piece in pieces(op):
        if piece.operand != operand:
            continue
        ranges = clip_piece(piece, out_box, str(op.attrs["name"]))
        if any(size == 0 for _, size in ranges):
            continue
        box = clip(window(piece.src, ranges), shape)
        if lo is None:
            lo, hi = [s for s, _ in box], [s + n for s, n in box]
        else:
            lo = [min(a, s) for a, (s, _) in zip(lo, box, strict=True)]
            hi = [max(a, s + n) for a, (s, n) in zip(hi, box, strict=True)]
    return None if lo is None else tuple((a, b - a) for a, b in zip(lo, hi, strict=True))


def needs(op: Op, operand: int) -> tuple[Box, ...]:
    """For each core the part of an operand it reads in the whole kernel (empty boxes where none)."""
    nest = Nest(op)
    shape = rank1(op.operands[operand].type)
    empty = tuple((0, 0) for _ in shape)
    if nest.kind == "move":
        boxes = [move_needs(op, operand, r) if all(s for _, s in r) else None for r in nest.core_ranges]
        return tuple(b if b is not None else empty for b in boxes)
    out = []
    for ranges in nest.core_ranges:
        box = clip(window(nest.maps[operand], ranges), shape)
        out.append(box if all(s for _, s in box) else empty)
    return tuple(out)


def tile_boxes(nest: Nest, tile: tuple[int, ...]) -> list[tuple[Box, ...]]:
    """For each tile of a move kernel, in order, what each core produces of the result (maybe nothing)."""
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
    """For each core the part of an operand, widened to whole groups of lanes, that its result box needs."""
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
        out.append((*need[:stick], (lo, hi - lo), *need[stick + 1:]))
    return tuple(out)


def source_window(op: Op, operand: int, tile: tuple[int, ...]) -> tuple[int, ...] | None:
    """Shape of a buffer that holds any core's window of an operand for any tile; None when it is never read."""
    shape: list[int] | None = None
    for boxes in tile_boxes(Nest(op), tile):
        for box in source_boxes(op, operand, boxes):
            if all(n for _, n in box):
                sizes = [n for _, n in box]
                shape = sizes if shape is None else [max(a, b) for a, b in zip(shape, sizes, strict=True)]
    return None if shape is None else tuple(shape)


def is_direct(op: Op) -> bool:
    """Can the move be done stick by stick? Every piece keeps lanes in place, and the pieces cover the result."""
    result, move = op.results[0], region_head(op)
    assert result.type.layout is not None
    out_stick, covered = result.type.layout.stick_dim, 0
    extent = rank1(result.type)[out_stick]
    for p in pieces(op):
        v = op.operands[p.operand]
        assert v.type.layout is not None
        if v.type.dtype.bits != result.type.dtype.bits:
            return False
        s_off, s_coefs = p.src[v.type.layout.stick_dim]
        d_off, d_coefs = p.dst[out_stick]
        lanes = [i for i, n in enumerate(p.counts) if n > 1 and (s_coefs[i] or d_coefs[i])]
        n = p.counts[lanes[0]] if lanes else 1
        if len(lanes) > 1 or s_off % GROUP or d_off % GROUP:
            return False
        if lanes and (s_coefs[lanes[0]] != 1 or d_coefs[lanes[0]] != 1):
            return False
        if n % GROUP and d_off + n != extent:
            return False
        size = 1
        for c in p.counts:
            size *= c
        covered += size
    total = 1
    for e in rank1(result.type):
        total *= e
    return covered == total and move.name == "move"
