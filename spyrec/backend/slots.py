"""Tile buffers of kernels whose tiles are unrolled: which of its slots a core uses when."""

from __future__ import annotations

from collections.abc import Iterable

from .tree import Buffer


class Slots:
    """``buffer`` of ``depth`` slots of ``sticks`` sticks each, the first at stick ``address``.

    Tokens count the productions of each core, so each core must go to its next slot with every
    production of its own, not with every tile: a tile may hold nothing for it.
    """

    def __init__(self, name: str, address: int, sticks: int, cores: int, depth: int) -> None:
        self.buffer = Buffer(name, depth)
        self._address, self._sticks = address, sticks
        self._turns = [0] * cores

    def take(self, users: Iterable[int]) -> tuple[int, ...]:
        """Stick address of each core's slot for a tile that the cores ``users`` produce."""
        depth = self.buffer.slots
        here = tuple(self._address + turn % depth * self._sticks for turn in self._turns)
        for core in users:
            self._turns[core] += 1
        return here
