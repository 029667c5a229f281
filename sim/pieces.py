"""Which tensors a core reads in one piece of memory: it stays in the rows that it opened, wherever
other cores read."""

from __future__ import annotations

from collections.abc import Iterable

from .isa import Instr, Num

Read = tuple[Instr, tuple[int, ...]]
"""A load and the trip counts of the loops around it."""


def scattered(reads: Iterable[Read]) -> frozenset[str]:
    """Symbols of the tensors of which the first core, over all its loads and their loops, reads
    more than one piece."""
    found: dict[str, list[tuple[int, int]]] = {}
    apart = set()
    for instr, loops in reads:
        symbol = instr.operands[1].symbol
        piece = _piece(instr, loops)
        if piece is None:
            apart.add(symbol)
        else:
            found.setdefault(symbol, []).append(piece)
    return frozenset(apart | {symbol for symbol, pieces in found.items() if not _touch(pieces)})


def _piece(instr: Instr, loops: tuple[int, ...]) -> tuple[int, int] | None:
    """First stick of what a load reads, in whatever order, and the one behind it; None when sticks
    are left out."""
    source = instr.operands[1]
    walked = [*zip(map(_most, instr.counts), source.strides, strict=False)]
    walked += zip(loops, source.loops, strict=False)
    reach, low = 1, _first(source.base)
    for stride, n in sorted(((s, n) for n, s in walked if n > 1), key=lambda walk: abs(walk[0])):
        if abs(stride) > reach:
            return None
        reach += (n - 1) * abs(stride)
        low += min(0, (n - 1) * stride)
    return low, low + reach


def _touch(pieces: list[tuple[int, int]]) -> bool:
    """Whether pieces leave no gap."""
    end = min(pieces)[0]
    for low, behind in sorted(pieces):
        if low > end:
            return False
        end = max(end, behind)
    return True


def _first(number: Num) -> int:
    return number if isinstance(number, int) else number[0]


def _most(number: Num) -> int:
    return number if isinstance(number, int) else max(number)
