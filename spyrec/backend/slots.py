"""Tile buffers of kernels whose tiles are unrolled: which of its two slots a core uses when."""

from __future__ import annotations

from collections.abc import Iterable

from .tree import Buffer

DEPTH = 2


class Slots:
    """``buffer`` of two slots of ``sticks`` sticks each, the first at stick ``address``.

    Tokens count the productions of each core, so each core must go to its other slot with every
    production of its own, not with every tile: a tile may hold nothing for it.
    """

    def __init__(self, name: str, address: int, sticks: int, cores: int) -> None:
        self.buffer = Buffer(name, DEPTH)
        self._address, self._sticks = address, sticks
        self._turns = [0] * cores

    def take(self, users: Iterable[int]) -> tuple[int, ...]:
        """Stick address of each core's slot for a tile that the cores ``users`` produce."""
        here = tuple(self._address + turn % DEPTH * self._sticks for turn in self._turns)
        for core in users:
            self._turns[core] += 1
        return here
