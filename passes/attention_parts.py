"""Which keys the rows of an attention see, in blocks: what its mask hides from all rows of a block
is not computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spyrec.ir.core import Op

from .emit import Array
from .kernel import GROUP, padded
from .rules_elementwise import number


@dataclass(frozen=True)
class Block:
    """Query rows ``first`` to ``last`` and the keys ``start`` to ``stop`` that they see (ends not
    included); ``all``: none of these is hidden from any of the rows; ``each``: each row sees one of
    them, as far as known when compiled."""

    first: int
    last: int
    start: int
    stop: int
    all: bool
    each: bool


def blocks_of(rows: int, columns: int, height: int, seen: Array | None) -> tuple[Block, ...]:
    """Blocks of ``height`` rows (the last may be lower); 0: all in one.

    ``seen``: which keys each row sees, [.., rows, columns] (either may be 1), None: not known when
    compiled. Keys are left out in whole groups of lanes, and only where each row sees some: what
    attention gives for a row that sees none is not a matter of which keys are there.

    >>> blocks_of(128, 128, 64, np.tri(128, dtype=bool))
    (Block(first=0, last=64, start=0, stop=64, all=False, each=True), \
Block(first=64, last=128, start=0, stop=128, all=False, each=True))
    """
    blocks = []
    for first in range(0, rows, height or rows):
        last = min(first + (height or rows), rows)
        block = Block(first, last, 0, columns, False, False)
        if seen is not None:
            flat = _seen_in(block, seen, rows, columns)
            some = np.flatnonzero(flat.any(axis=0))
            if flat.any(axis=1).all():
                start = int(some[0]) // GROUP * GROUP
                stop = min(padded(int(some[-1]) + 1, GROUP), columns)
                block = Block(first, last, start, stop, bool(flat[:, start:stop].all()), True)
        blocks.append(block)
    return tuple(blocks)


def parts_of(
    block: Block, width: int, rows: int, columns: int, seen: Array | None
) -> tuple[Block, ...]:
    """The block by ``width`` keys at a time, counted from the first of all keys so that blocks have
    parts in common. What is hidden from all its rows is left out where each row sees some key.

    >>> band = np.tri(192, dtype=bool) & ~np.tri(192, k=-100, dtype=bool)
    >>> (block,) = blocks_of(192, 192, 192, band)
    >>> [(p.start, p.stop, p.all, p.each) for p in parts_of(block, 128, 192, 192, band)]
    [(0, 128, False, True), (128, 192, False, False)]
    """
    parts = []
    for first in range(0, block.stop, width):
        start, stop = max(first, block.start), min(first + width, block.stop)
        if start >= stop:
            continue
        part = replace(block, start=start, stop=stop)
        if seen is not None:
            flat = _seen_in(part, seen, rows, columns)
            if block.each and not flat.any():
                continue
            part = replace(part, all=bool(flat.all()), each=bool(flat.any(axis=1).all()))
        parts.append(part)
    return tuple(parts)


def _seen_in(b: Block, seen: Array, rows: int, columns: int) -> Array:
    """Of the keys of a block, those that each of its rows sees, for all heads: [any, keys]."""
    every = np.broadcast_to(seen, (*seen.shape[:-2], rows, columns))
    flat: Array = every[..., b.first : b.last, b.start : b.stop].reshape(-1, b.stop - b.start)
    return flat


def seen_by(op: Op, masks: Sequence[Array | None]) -> Array | None:
    """Which keys each query row sees; None when the mask is not a constant. A number hides a key
    when it is -inf, or so low that it stands for that; so does the number of what is not seen."""
    rows, columns = op.operands[0].type.static_shape[2], op.operands[1].type.static_shape[2]
    seen: Array = np.tri(rows, columns, dtype=np.bool_) if op.attrs["causal"] else np.ones((), bool)
    for mask in masks:
        if mask is None:
            return None
        seen = seen & (mask if mask.dtype == np.bool_ else mask > hidden_from(mask.dtype))
    return np.atleast_2d(seen) if number(op, "hidden") <= HIDDEN else None


HIDDEN = -1e30
"""A mask that is added hides from here down: no score of 32 bits and less comes near."""


def hidden_from(kind: np.dtype[Any]) -> float:
    """The same for numbers of ``kind``: those of 16 bits do not reach so far, and there the lowest
    one stands for -inf."""
    return max(HIDDEN, float(np.finfo(kind).min))
