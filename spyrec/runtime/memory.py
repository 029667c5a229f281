"""Memory of a card: pieces with addresses, in segments, of which none is handed out twice."""

from __future__ import annotations

import hashlib
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spyrec.ir.errors import CapacityError, SpyrecError
from spyrec.sim.device import DeviceSpec
from spyrec.sim.isa import STICK

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(eq=False)
class Allocation:
    """A piece of card memory: ``size`` bytes from ``address`` on, whole sticks, in one segment.

    ``what`` names it in errors. ``users``: who still needs it; with the last it is freed.
    ``constant``: filled once, when it was made.
    """

    address: int
    size: int
    what: str
    users: int = 1
    constant: bool = False
    digest: bytes = field(default=b"", repr=False)
    _data: Bytes | None = field(default=None, repr=False)
    _valid: Flags | None = field(default=None, repr=False)

    @property
    def end(self) -> int:
        return self.address + self.size

    @property
    def freed(self) -> bool:
        return self.users == 0

    @property
    def data(self) -> Bytes:
        """Its bytes, which exist from when somebody looks at them."""
        if self._data is None:
            self._data = np.zeros(self.size, np.uint8)
        return self._data

    @property
    def valid(self) -> Flags:
        """Of each stick whether it was ever written."""
        if self._valid is None:
            self._valid = np.zeros(self.size // STICK, np.bool_)
        return self._valid


def data_segments(device: DeviceSpec) -> tuple[tuple[int, int], ...]:
    """First and end address of each segment that holds tensors."""
    step, end = device.hbm.segment_bytes, device.hbm.bytes
    return tuple((low, min(low + step, end)) for low in range(0, end, step))


def program_segment(device: DeviceSpec) -> tuple[int, int]:
    """The segment behind them, which holds programs and their corrections."""
    return device.hbm.bytes, device.hbm.bytes + device.hbm.segment_bytes


class CardMemory:
    """Hands out pieces of the ``segments``, each at the lowest address at which it fits; ``name``
    is what errors call it."""

    def __init__(self, name: str, segments: Sequence[tuple[int, int]]) -> None:
        self._name, self._segments = name, tuple(segments)
        self._live: list[Allocation] = []  # by address
        self._shared: dict[bytes, Allocation] = {}

    @property
    def used_bytes(self) -> int:
        return sum(a.size for a in self._live)

    @property
    def total_bytes(self) -> int:
        return sum(end - low for low, end in self._segments)

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """What is there, by address."""
        return tuple(self._live)

    def allocate(self, nbytes: int, what: str) -> Allocation:
        """A new piece of at least ``nbytes``, never written. CapacityError when no segment has
        room."""
        size = max(STICK, -(-nbytes // STICK) * STICK)
        for low, end in self._holes():
            if end - low >= size:
                made = Allocation(low, size, what)
                insort(self._live, made, key=lambda a: a.address)
                return made
        raise CapacityError(self._full(size, what))

    def share(self, content: bytes | memoryview, what: str) -> Allocation:
        """The piece that holds just these bytes and stays as it is; made when there is none."""
        digest = hashlib.sha256(content).digest()
        known = self._shared.get(digest)
        if known is not None:
            known.users += 1
            return known
        made = self.allocate(len(content), what)
        made.constant, made.digest = True, digest
        if len(content) == made.size:
            made._data = np.frombuffer(content, np.uint8)  # mapped, not copied
        else:
            made.data[: len(content)] = np.frombuffer(content, np.uint8)
        made._valid = np.ones(made.size // STICK, np.bool_)
        self._shared[digest] = made
        return made

    def free(self, piece: Allocation) -> None:
        """One user less. SpyrecError when there was none."""
        if piece.freed:
            raise SpyrecError(f"{piece.what} was already freed")
        piece.users -= 1
        if piece.freed:
            self._live.remove(piece)
            self._shared.pop(piece.digest, None)
            piece._data = piece._valid = None

    def at(self, address: int, nbytes: int) -> tuple[Allocation, int]:
        """The piece that holds these bytes, and at which offset. SpyrecError when no piece does:
        an address that was patched wrongly."""
        place = bisect_right(self._live, address, key=lambda a: a.address) - 1
        if place >= 0 and address + nbytes <= self._live[place].end:
            return self._live[place], address - self._live[place].address
        raise SpyrecError(f"nothing is allocated at {address:#x}..{address + nbytes:#x}")

    def _holes(self) -> Iterator[tuple[int, int]]:
        """Free ranges, by address; each lies in one segment."""
        pieces = iter([*self._live, None])
        piece = next(pieces)
        for low, end in self._segments:
            at = low
            while piece is not None and piece.address < end:
                if at < piece.address:
                    yield at, piece.address
                at = piece.end
                piece = next(pieces)
            if at < end:
                yield at, end

    def _full(self, size: int, what: str) -> str:
        largest = max((end - low for low, end in self._holes()), default=0)
        widest = max(end - low for low, end in self._segments)
        if size > widest:
            return (
                f"{self._name}: {what} needs {size} bytes; a piece lies in one segment, and the "
                f"largest has {widest}"
            )
        return (
            f"{self._name}: {what} needs {size} bytes; {self.used_bytes} of {self.total_bytes} are "
            f"taken and the largest free piece has {largest}; unload a program that is not needed"
        )
