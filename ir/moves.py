"""Affine data movement as data: maps, pieces and moves, and their canonical form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from .errors import SpyrecError

Row = tuple[int, tuple[int, ...]]
"""``offset + sum(coefs[k] * i[k])``: one coordinate as a function of the iteration point."""

Box = tuple[tuple[int, int], ...]
"""``(start, size)`` per dimension."""


@dataclass(frozen=True)
class AffineMap:
    """From iteration point to coordinate: one row per dimension of the target."""

    rows: tuple[Row, ...]

    def at(self, point: Sequence[int]) -> tuple[int, ...]:
        """The coordinate of one iteration point."""
        return tuple(o + sum(c * i for c, i in zip(cs, point, strict=True)) for o, cs in self.rows)

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(offset for offset, _ in self.rows)

    def step(self, k: int) -> tuple[int, ...]:
        """What one step of iteration dimension ``k`` adds to the coordinate."""
        return tuple(coefs[k] for _, coefs in self.rows)

    def after(self, inner: Sequence[Row], dims: int) -> AffineMap:
        """This map with iteration dimension k replaced by the row ``inner[k]`` over ``dims`` new
        dimensions."""
        return AffineMap(
            tuple(
                (
                    offset + sum(c * inner[k][0] for k, c in enumerate(coefs)),
                    tuple(
                        sum(c * inner[k][1][d] for k, c in enumerate(coefs)) for d in range(dims)
                    ),
                )
                for offset, coefs in self.rows
            )
        )

    def flat(self, shape: Sequence[int]) -> Row:
        """The row-major position in a tensor of ``shape`` as one row."""
        offset, coefs = 0, (0,) * (len(self.rows[0][1]) if self.rows else 0)
        for (o, cs), extent in zip(self.rows, shape, strict=True):
            offset = offset * extent + o
            coefs = tuple(a * extent + b for a, b in zip(coefs, cs, strict=True))
        return offset, coefs


def map_of(offsets: Sequence[int], steps: Sequence[Sequence[int]]) -> AffineMap:
    """The map that starts at ``offsets`` and moves by ``steps[k]`` with iteration dimension k."""
    return AffineMap(
        tuple((o, tuple(step[row] for step in steps)) for row, o in enumerate(offsets))
    )


@dataclass(frozen=True)
class Piece:
    """``result[dst(i)] = operands[operand][src(i)]`` for each i in the box ``counts``."""

    operand: int
    counts: tuple[int, ...]
    src: AffineMap
    dst: AffineMap

    @property
    def size(self) -> int:
        """Elements written."""
        return math.prod(self.counts)

    def attr(self) -> tuple[int, tuple[int, ...], tuple[Row, ...], tuple[Row, ...]]:
        """As it stands in the ``pieces`` attribute of a ``move`` op."""
        return self.operand, self.counts, self.src.rows, self.dst.rows


@dataclass(frozen=True)
class MoveSpec:
    """A result of ``shape`` full of ``fill``, then overwritten by ``pieces``, of which no two write
    the same element. ``operands`` are the shapes of the tensors read."""

    shape: tuple[int, ...]
    fill: float
    pieces: tuple[Piece, ...]
    operands: tuple[tuple[int, ...], ...]

    def attr(self) -> tuple[tuple[int, tuple[int, ...], tuple[Row, ...], tuple[Row, ...]], ...]:
        """The ``pieces`` attribute of a ``move`` op."""
        return tuple(piece.attr() for piece in self.pieces)

    @property
    def filled(self) -> int:
        """Elements of the result that no piece writes."""
        return math.prod(self.shape) - sum(piece.size for piece in self.pieces)


def windows(map_: AffineMap, box: Sequence[tuple[int, int]]) -> Box:
    """The smallest box of coordinates that holds the images of all points of the iteration box
    ``(start, size)``, halos included; sizes are 0 when the iteration box is empty."""
    empty = any(size < 1 for _, size in box)
    found = []
    for offset, coefs in map_.rows:
        low = offset + sum(c * start for c, (start, _) in zip(coefs, box, strict=True))
        reach = [c * (size - 1) for c, (_, size) in zip(coefs, box, strict=True)]
        low += 0 if empty else sum(r for r in reach if r < 0)
        found.append((low, 0 if empty else 1 + sum(abs(r) for r in reach)))
    return tuple(found)


def canonical(spec: MoveSpec) -> MoveSpec:
    """The same move with each piece tidy, pieces joined where they continue each other, in order of
    where they write; ``fill`` is 0 when nothing shows it."""
    pieces = _join([tidy(piece) for piece in spec.pieces if piece.size])
    pieces.sort(key=lambda piece: (piece.dst.offsets, piece.operand, piece.src.offsets))
    fill = spec.fill if spec.filled else 0.0
    return replace(spec, pieces=tuple(pieces), fill=fill)


def renumber(spec: MoveSpec, numbers: Sequence[int]) -> MoveSpec:
    """The same move with operand k called ``numbers[k]``: operands that are one tensor may share
    a number, and pieces that were apart only for that are joined. SpyrecError when the numbers
    skip one or tensors of different shapes share one."""
    shapes = dict(zip(numbers, spec.operands, strict=False))
    clash = any(shapes[k] != shape for k, shape in zip(numbers, spec.operands, strict=False))
    if len(numbers) != len(spec.operands) or sorted(shapes) != list(range(len(shapes))) or clash:
        raise SpyrecError(
            f"operands of shapes {', '.join(map(str, spec.operands))} cannot be numbered "
            f"{tuple(numbers)}: each needs a number, none left out, one shape for each"
        )
    pieces = tuple(replace(piece, operand=numbers[piece.operand]) for piece in spec.pieces)
    operands = tuple(shapes[k] for k in range(len(shapes)))
    return canonical(replace(spec, pieces=pieces, operands=operands))


def tidy(piece: Piece) -> Piece:
    """The same elements with iteration dimensions that write upwards, slowest first, neighbours
    that are one longer dimension merged, those of size 1 dropped."""
    start, src0, dst0 = [], piece.src.offsets, piece.dst.offsets
    for k, count in enumerate(piece.counts):
        src, dst = piece.src.step(k), piece.dst.step(k)
        if next((d for d in dst if d), 0) < 0:
            src0 = tuple(o + s * (count - 1) for o, s in zip(src0, src, strict=True))
            dst0 = tuple(o + d * (count - 1) for o, d in zip(dst0, dst, strict=True))
            src, dst = tuple(-s for s in src), tuple(-d for d in dst)
        if count != 1:
            start.append((count, src, dst))
    start.sort(key=lambda dim: tuple(-d for d in dim[2]))
    merged: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
    for count, src, dst in start:
        if merged:
            outer, outer_src, outer_dst = merged[-1]
            if outer_src + outer_dst == tuple(count * s for s in src + dst):
                merged[-1] = (outer * count, src, dst)
                continue
        merged.append((count, src, dst))
    return Piece(
        piece.operand,
        tuple(count for count, _, _ in merged),
        map_of(src0, [src for _, src, _ in merged]),
        map_of(dst0, [dst for _, _, dst in merged]),
    )


def _join(pieces: list[Piece]) -> list[Piece]:
    """Join pairs until none is left: those that continue each other before those that are alike."""
    numbers = list(range(len(pieces)))  # each piece has its own, so that no pair is tried twice
    apart: tuple[set[tuple[int, int]], set[tuple[int, int]]] = set(), set()
    following = len(pieces)
    while True:
        pair = _joinable(pieces, numbers, apart[0], _continued)
        pair = pair or _joinable(pieces, numbers, apart[1], _repeated)
        if pair is None:
            return pieces
        i, j, joined = pair
        pieces = [*(p for k, p in enumerate(pieces) if k not in (i, j)), tidy(joined)]
        numbers = [*(n for k, n in enumerate(numbers) if k not in (i, j)), following]
        following += 1


def _joinable(
    pieces: Sequence[Piece], numbers: Sequence[int], apart: set[tuple[int, int]],
    rule: Callable[[Piece, Piece], Piece | None],
) -> tuple[int, int, Piece] | None:
    """The first pair that ``rule`` makes one piece of; ``apart``: pairs of numbers of which it does
    not, to which the others that were tried are added."""
    for i, j in combinations(range(len(pieces)), 2):
        if (numbers[i], numbers[j]) in apart:
            continue
        a, b = sorted((pieces[i], pieces[j]), key=lambda piece: piece.dst.offsets)
        joined = rule(a, b) if a.operand == b.operand else None
        if joined is not None:
            return i, j, joined
        apart.add((numbers[i], numbers[j]))
    return None


def _steps(piece: Piece) -> list[tuple[int, ...]]:
    return [piece.src.step(k) + piece.dst.step(k) for k in range(len(piece.counts))]


def _gap(a: Piece, b: Piece) -> tuple[int, ...]:
    """From where ``a`` begins to where ``b`` begins, source coordinates first."""
    pairs = zip(a.src.offsets + a.dst.offsets, b.src.offsets + b.dst.offsets, strict=True)
    return tuple(q - p for p, q in pairs)


def _continued(a: Piece, b: Piece) -> Piece | None:
    """One piece for ``a`` followed by ``b`` along one iteration dimension, if it is so."""
    steps, gap = _steps(a), _gap(a, b)
    longer = a
    if len(b.counts) > len(a.counts):
        longer, steps = b, _steps(b)
    for k, step in enumerate(steps):
        sizes = []
        for piece in (a, b):
            rest = [i for i in range(len(longer.counts)) if i != k]
            if len(piece.counts) == len(longer.counts):
                same = all(piece.counts[i] == longer.counts[i] for i in rest)
                sizes.append(piece.counts[k] if same and _steps(piece) == steps else 0)
            else:
                same = piece.counts == tuple(longer.counts[i] for i in rest)
                sizes.append(1 if same and _steps(piece) == [steps[i] for i in rest] else 0)
        if all(sizes) and gap == tuple(sizes[0] * s for s in step):
            counts = (*longer.counts[:k], sum(sizes), *longer.counts[k + 1 :])
            return Piece(
                a.operand,
                counts,
                map_of(a.src.offsets, [longer.src.step(i) for i in range(len(counts))]),
                map_of(a.dst.offsets, [longer.dst.step(i) for i in range(len(counts))]),
            )
    return None


def _repeated(a: Piece, b: Piece) -> Piece | None:
    """One piece with a new dimension of size 2 for two equal pieces a straight step apart."""
    gap = _gap(a, b)
    src, dst = gap[: len(a.src.rows)], gap[len(a.src.rows) :]
    straight = sum(s != 0 for s in src) <= 1 and sum(d != 0 for d in dst) == 1
    if a.counts != b.counts or _steps(a) != _steps(b) or not straight:
        return None
    dims = range(len(a.counts))
    return Piece(
        a.operand,
        (2, *a.counts),
        map_of(a.src.offsets, [src, *(a.src.step(k) for k in dims)]),
        map_of(a.dst.offsets, [dst, *(a.dst.step(k) for k in dims)]),
    )


def is_view(spec: MoveSpec) -> bool:
    """Whether every element of the one operand is kept, in row-major order: a pure reshape."""
    if len(spec.operands) != 1 or spec.filled:
        return False
    if math.prod(spec.operands[0]) != math.prod(spec.shape):
        return False
    return all(
        piece.src.flat(spec.operands[0]) == piece.dst.flat(spec.shape)
        for piece in map(tidy, spec.pieces)
    )
