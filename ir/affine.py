"""The algebra of data movement: which tensor ops are affine moves, and as which pieces. Maps and
moves themselves are in ``moves``, how they compose in ``chain``; all can be imported from here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, product
from typing import Any

import numpy as np

from .chain import MAX_PIECES, compose, inverse_if_permutation, writes_once
from .core import Op
from .errors import SpyrecError
from .moves import (
    AffineMap,
    Box,
    MoveSpec,
    Piece,
    Row,
    canonical,
    is_view,
    map_of,
    renumber,
    windows,
)

__all__ = [
    "MAX_PIECES",
    "MOVES",
    "AffineMap",
    "Box",
    "MoveSpec",
    "Piece",
    "Row",
    "as_move",
    "canonical",
    "compose",
    "inverse_if_permutation",
    "is_view",
    "renumber",
    "reshape_via_flat",
    "windows",
]

MOVES = frozenset({
    "identity", "reshape", "transpose", "broadcast_to", "concat", "slice", "split", "reverse",
    "pad", "tile", "space_to_depth", "depth_to_space", "move",
})  # fmt: skip
"""The ops that only move data, each element to a place that does not depend on data."""

Shape = tuple[int, ...]
Run = tuple[int, int, int, int]
"""``(count, source start, source step, result start)`` of a run along one dimension."""


def as_move(op: Op, result: int = 0) -> MoveSpec | None:
    """The move that makes result number ``result`` of ``op``, its operands in the op's order.

    None when the op is none of ``MOVES`` or not one affine move: a reshape between shapes without a
    common refinement (see ``reshape_via_flat``), an interior pad whose zeros differ from its
    border, a ``move`` that may write an element twice. SpyrecError while a dimension is symbolic.
    """
    if op.name not in MOVES:
        return None
    sources = tuple(v.type.static_shape for v in op.operands)
    target = op.results[result].type.static_shape
    fill, pieces = 0.0, _pieces(op, sources, target, result)
    match op.name:
        case "pad":
            fill = float(op.attrs.get("value", 0.0))  # type: ignore[arg-type]
            holes = any(_ints(op, "interior", ())) and str(fill) != "0.0"
            pieces = None if holes else pieces
        case "move":
            fill = float(op.attrs.get("fill", 0.0))  # type: ignore[arg-type]
    if pieces is None:
        return None
    spec = MoveSpec(target, fill, tuple(p for p in pieces if p.size), sources)
    return canonical(spec) if op.name != "move" or writes_once(spec) else None


def reshape_via_flat(source: Sequence[int], target: Sequence[int]) -> tuple[MoveSpec, MoveSpec]:
    """A reshape as two moves that always exist: to one dimension, and from there. SpyrecError when
    the shapes hold different numbers of elements."""
    flat = (math.prod(source),)
    if math.prod(target) != flat[0]:
        raise SpyrecError(
            f"shape {tuple(source)} cannot become {tuple(target)}: {flat[0]} elements are not "
            f"{math.prod(target)}"
        )
    down, up = _reshape(tuple(source), flat), _reshape(flat, tuple(target))
    return (
        canonical(MoveSpec(flat, 0.0, tuple(down or ()), (tuple(source),))),
        canonical(MoveSpec(tuple(target), 0.0, tuple(up or ()), (flat,))),
    )


def _pieces(
    op: Op, sources: tuple[Shape, ...], target: Shape, result: int
) -> list[Piece] | None:
    """The pieces of an op; None when it has none to offer."""
    source = sources[0] if sources else ()
    rank = len(source)
    match op.name:
        case "identity" | "reshape":
            return _reshape(source, target)
        case "transpose":
            reads = [(p, 1) for p in _ints(op, "perm")]
            return [_digits(source, target, target, reads, _each(rank))]
        case "broadcast_to":
            lead = len(target) - rank
            spread = [
                (d - lead, 1) if d >= lead and source[d - lead] != 1 else None
                for d in range(len(target))
            ]
            return [_digits(source, target, target, spread, _each(len(target)))]
        case "concat":
            return _concat(sources, target, _int(op, "axis"))
        case "slice":
            taken = zip(target, _ints(op, "starts"), _ints(op, "steps"), strict=True)
            return _grid(target, [[(n, start, step, 0)] for n, start, step in taken])
        case "split":
            start = sum(_ints(op, "sizes")[:result])
            starts = [start if d == _int(op, "axis") else 0 for d in range(rank)]
            return _grid(target, [[(n, o, 1, 0)] for n, o in zip(target, starts, strict=True)])
        case "reverse":
            ends = [n - 1 if d in _ints(op, "axes") else 0 for d, n in enumerate(target)]
            runs = [[(n, end, -1 if end else 1, 0)] for n, end in zip(target, ends, strict=True)]
            return _grid(target, runs)
        case "pad":
            return _pad(op, source, target)
        case "tile":
            return _tile(source, target, _ints(op, "repeats"))
        case "space_to_depth" | "depth_to_space":
            return _blocks(op, source, target)
        case "move":
            raw: Any = op.attrs["pieces"]
            return [Piece(k, n, AffineMap(src), AffineMap(dst)) for k, n, src, dst in raw]
        case _:
            return None


def _ints(op: Op, name: str, default: Shape | None = None) -> Shape:
    value: Any = op.attrs[name] if default is None else op.attrs.get(name, default)
    return tuple(int(n) for n in value)


def _int(op: Op, name: str) -> int:
    value: Any = op.attrs[name]
    return int(value)


def _each(rank: int) -> list[tuple[int, int] | None]:
    return [(d, 1) for d in range(rank)]


def _digits(
    source: Shape,
    target: Shape,
    counts: Sequence[int],
    reads: Sequence[tuple[int, int] | None],
    writes: Sequence[tuple[int, int] | None],
) -> Piece:
    """One piece whose iteration dimension k moves ``(dimension, step)`` of ``reads`` in the source
    and of ``writes`` in the result (None: stays)."""

    def unit(rank: int, at: tuple[int, int] | None) -> Shape:
        return tuple(at[1] if at is not None and d == at[0] else 0 for d in range(rank))

    return Piece(
        0,
        tuple(counts),
        map_of((0,) * len(source), [unit(len(source), at) for at in reads]),
        map_of((0,) * len(target), [unit(len(target), at) for at in writes]),
    )


def _reshape(source: Shape, target: Shape) -> list[Piece] | None:
    """One piece over the common refinement of the two shapes, found from the innermost dimension
    out; None when an extent on one side straddles one on the other."""
    if not math.prod(source):
        return []
    counts: list[int] = []
    reads: list[tuple[int, int] | None] = []
    writes: list[tuple[int, int] | None] = []
    d, e = len(source) - 1, len(target) - 1
    step_d = step_e = 1
    left_d, left_e = (source[d] if source else 1), (target[e] if target else 1)
    while d >= 0 and e >= 0:
        count = min(left_d, left_e)
        if left_d % count or left_e % count:
            return None
        if count > 1:
            counts.append(count)
            reads.append((d, step_d))
            writes.append((e, step_e))
        left_d, left_e = left_d // count, left_e // count
        step_d, step_e = step_d * count, step_e * count
        if left_d == 1:
            d -= 1
            left_d, step_d = source[d] if d >= 0 else 1, 1
        if left_e == 1:
            e -= 1
            left_e, step_e = target[e] if e >= 0 else 1, 1
    return [_digits(source, target, counts[::-1], reads[::-1], writes[::-1])]


def _grid(target: Shape, runs: Sequence[Sequence[Run]]) -> list[Piece]:
    """One piece for each way to pick a run along every dimension."""
    rank = len(target)
    pieces = []
    for picked in product(*runs):
        src = [tuple(run[2] * (d == k) for d in range(rank)) for k, run in enumerate(picked)]
        dst = [tuple(int(d == k) for d in range(rank)) for k in range(rank)]
        pieces.append(
            Piece(
                0,
                tuple(run[0] for run in picked),
                map_of([run[1] for run in picked], src),
                map_of([run[3] for run in picked], dst),
            )
        )
    return pieces


def _concat(sources: tuple[Shape, ...], target: Shape, axis: int) -> list[Piece]:
    starts = [0, *accumulate(shape[axis] for shape in sources)]
    pieces = []
    for k, shape in enumerate(sources):
        runs = [[(n, 0, 1, starts[k] if d == axis else 0)] for d, n in enumerate(shape)]
        pieces += [Piece(k, p.counts, p.src, p.dst) for p in _grid(target, runs)]
    return pieces


def _pad(op: Op, source: Shape, target: Shape) -> list[Piece] | None:
    """Constant pads spread and shift each dimension; other modes read runs of the source again."""
    lo, hi = _ints(op, "lo"), _ints(op, "hi")
    gaps = _ints(op, "interior", ()) or (0,) * len(source)
    mode = op.attrs.get("mode", "constant")
    if mode != "constant":
        sides = zip(source, lo, hi, strict=True)
        return _grid(target, [_padded_runs(n, low, high, str(mode)) for n, low, high in sides])
    counts, src, dst, steps = [], [], [], []
    for n, low, gap, extent in zip(source, lo, gaps, target, strict=True):
        first = max(-(low // (gap + 1)), 0)
        end = min((extent - 1 - low) // (gap + 1) + 1, n)
        counts.append(max(end - first, 0))
        src.append(first)
        dst.append(low + first * (gap + 1))
        steps.append(gap + 1)
    rank = len(source)
    units = [tuple(int(d == k) for d in range(rank)) for k in range(rank)]
    spread = [tuple(steps[k] * u for u in unit) for k, unit in enumerate(units)]
    return [Piece(0, tuple(counts), map_of(src, units), map_of(dst, spread))]


def _padded_runs(n: int, low: int, high: int, mode: str) -> list[Run]:
    """The source index of each result index of a padded dimension, cut into runs of equal step."""
    kept = np.arange(max(-low, 0), n - max(-high, 0))
    index = np.pad(kept, (max(low, 0), max(high, 0)), mode=mode).tolist()  # type: ignore[call-overload]
    runs: list[Run] = []
    at = 0
    while at < len(index):
        step = index[at + 1] - index[at] if at + 1 < len(index) else 1
        end = at + 1
        while end < len(index) and index[end] - index[end - 1] == step:
            end += 1
        runs.append((end - at, index[at], step, at))
        at = end
    return runs


def _tile(source: Shape, target: Shape, repeats: Shape) -> list[Piece]:
    counts: list[int] = []
    reads: list[tuple[int, int] | None] = []
    writes: list[tuple[int, int] | None] = []
    for d, (n, times) in enumerate(zip(source, repeats, strict=True)):
        counts += [times, n]
        reads += [None, (d, 1)]
        writes += [(d, n), (d, 1)]
    return [_digits(source, target, counts, reads, writes)]


def _blocks(op: Op, source: Shape, target: Shape) -> list[Piece]:
    """Space to depth and back: block rows and columns are outer digits of the channels, or for mode
    CRD inner ones. ``deep`` and ``wide`` name the side with more channels and the other."""
    block = _int(op, "block")
    forward = op.name == "space_to_depth"
    deep, wide = (target, source) if forward else (source, target)
    batch, channels, height, width = wide[0], wide[1], deep[2], deep[3]
    inner = not forward and op.attrs.get("mode", "DCR") == "CRD"
    row, column, channel = (block, 1, block * block) if inner else (block * channels, channels, 1)
    counts = (batch, block, block, channels, height, width)
    in_deep = [(0, 1), (1, row), (1, column), (1, channel), (2, 1), (3, 1)]
    in_wide = [(0, 1), (2, 1), (3, 1), (1, 1), (2, block), (3, block)]
    reads, writes = (in_wide, in_deep) if forward else (in_deep, in_wide)
    return [_digits(source, target, counts, reads, writes)]
