"""What a kernel costs by which of its tensors are on chip and by the scratchpad left for its tiles:
prices that decide who stays on chip."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod

from spyrec.ir.core import Op, Value
from spyrec.ir.errors import CapacityError
from spyrec.sim.device import DeviceSpec

from .allocate import busy_cycles
from .contract_price import contract_candidates, contract_cost, keepable, kept_bytes
from .kernel import Nest
from .pins import Counts
from .signature import signature
from .tiling import UNREAD, Tiling, move_buffers, tile_bytes

TRIP_CYCLES = 40  # of a trip beside its work, as contract_price has it


@dataclass
class PricedTile:
    """A tile of a matrix kernel, and which factors stay. Its bytes are counted when they are asked
    for."""

    cycles: float
    tile: Counts
    loops: Counts
    keep: Counts
    counted: dict[bool, tuple[int, int]] = field(default_factory=dict)

    def fits(self, nest: Nest, lean: bool, budget: int, room: int) -> bool:
        """What streams into ``budget``, with the factors that stay into ``room`` bytes?"""
        if lean not in self.counted:
            size = tile_bytes(nest, self.tile, lean, self.keep)
            kept = sum(kept_bytes(nest, self.tile, self.loops, i) for i in self.keep)
            self.counted[lean] = size, size + kept
        streamed, every = self.counted[lean]
        return streamed <= budget and every <= max(budget, room)


Key = tuple[int, Counts, Counts]  # number of the signature, operands and results on chip
MOST_KNOWN = 4096  # signatures that are remembered


@dataclass
class Known:
    """Prices by key, as far as they were asked for. ``tried``: of a kernel without products
    (budget, bytes of its tile, cycles): any budget between the two gives the same tile."""

    numbers: dict[Hashable, int] = field(default_factory=dict)
    prices: dict[tuple[Key, int, int], float] = field(default_factory=dict)
    tried: dict[Key, list[tuple[int, int, float]]] = field(default_factory=dict)
    tiles: dict[Key, list[PricedTile]] = field(default_factory=dict)
    placed: dict[Key, Nest] = field(default_factory=dict)

    def number(self, op: Op) -> int:
        """The same for kernels that are alike. A number is looked up faster than a signature."""
        return self.numbers.setdefault(signature(op, without=UNREAD), len(self.numbers))

    def forget(self) -> None:
        for table in (self.numbers, self.prices, self.tried, self.tiles, self.placed):
            table.clear()


@lru_cache(maxsize=2)
def _known(device: str, tiling: Tiling) -> Known:
    return Known()


@dataclass
class KernelPrices:
    """Prices of kernels that are divided over cores but not tiled yet; equal kernels are priced
    once."""

    device: DeviceSpec
    tiling: Tiling = field(default_factory=Tiling)
    signatures: dict[Op, int] = field(default_factory=dict)

    @cached_property
    def known(self) -> Known:
        """What was found out before, for other modules too."""
        known = _known(repr(self.device), self.tiling)
        if len(known.numbers) > MOST_KNOWN:
            known.forget()
        return known

    def price(
        self, op: Op, operands: Collection[int], results: Collection[int], left: int
    ) -> float:
        """Cycles of a kernel that has ``left`` bytes of the scratchpad for its tiles, when these of
        its operands and results are there and the others in card memory; infinite when no tile
        fits."""
        usable = self.device.lx.usable_bytes
        budget, room = (
            min(int(usable * n), left) for n in (self.tiling.share, self.tiling.kept)
        )
        if op not in self.signatures:
            self.signatures[op] = self.known.number(op)
        key = self.signatures[op], (*sorted(operands),), (*sorted(results),)
        asked = key, budget, room
        if asked not in self.known.prices:
            self.known.prices[asked] = self._price(op, key, budget, room)
        return self.known.prices[asked]

    def _price(self, op: Op, key: Key, budget: int, room: int) -> float:
        known, (_, operands, results) = self.known, key
        if key not in known.placed:
            known.placed[key] = Nest(_with_spaces(op, operands, results))
        nest = known.placed[key]
        if nest.kind == "contract":
            if key not in known.tiles:
                known.tiles[key] = self._tiles(nest)
            found = known.tiles[key]
            for lean in (False, True):  # as tiling counts: with room for the next kernel's weights
                for tile in found:
                    if tile.fits(nest, lean, budget, room):
                        return tile.cycles
            return math.inf
        tried = known.tried.setdefault(key, [])
        for most, least, cycles in tried:
            if least <= budget <= most:
                return cycles
        least, cycles = self._streamed(nest, budget)
        tried.append((budget, least, cycles))
        return cycles

    def _tiles(self, nest: Nest) -> list[PricedTile]:
        """The tiles of a matrix kernel with the smallest steps of its sum, the cheapest first."""
        room = int(self.device.lx.usable_bytes * self.tiling.kept)
        found = (
            PricedTile(
                contract_cost(nest, tile, loops, self.device, keep=keep), tile, loops, keep
            )
            for tile, loops in contract_candidates(nest, self.device, coarse=True)
            for keep in keepable(nest, tile, loops, room)
        )
        return sorted(found, key=lambda t: (t.cycles, t.keep, t.tile))

    def _streamed(self, nest: Nest, budget: int) -> tuple[int, float]:
        """(bytes of its tile, cycles) of a kernel without products: the longer of its work and its
        transfers, half of the shorter, and what every trip costs. (0, infinite) when no tile
        fits."""
        try:
            tile, _, _, why = self.tiling.tiled(nest, budget, budget, self.device)
        except CapacityError:
            return 0, math.inf
        assert isinstance(why[0], int | None)
        trips = prod(-(-n // t) for n, t in zip(nest.local, tile, strict=True))
        busy = 0.0
        if nest.kind != "move":
            grains = tuple(nest.grain(d) for d in range(len(nest.extents)))
            busy = busy_cycles(nest, grains, self.device)(nest.parts)
        bus = self._bus_cycles(nest)
        if nest.kind == "move":  # each trip reads all between its first and last element
            windows = sum(n for role, n in move_buffers(nest.op, tile) if role != "dst")
            bus = max(bus, windows * trips * nest.cores / self.device.hbm.bytes_per_cycle)
        waits = self.device.hbm.latency_cycles * (bus > 0)
        cycles = max(busy, bus) + 0.5 * min(busy, bus) + waits + TRIP_CYCLES * trips
        return why[0] or 0, cycles

    def _bus_cycles(self, nest: Nest) -> float:
        """Of what the kernel reads from card memory, each stick once, and writes there."""
        hbm = self.device.hbm
        read = sum(map(_bytes, {v for v in nest.op.operands if v.type.size > 1}))
        return read / hbm.bytes_per_cycle + sum(map(_bytes, nest.op.results)) / (
            hbm.write_bytes_per_cycle
        )


def _bytes(v: Value) -> int:
    """Of a tensor in card memory."""
    if v.type.space == "lx":
        return 0
    assert v.type.layout is not None
    return v.type.layout.sticks * 128


def _with_spaces(op: Op, operands: Collection[int], results: Collection[int]) -> Op:
    """The kernel with these of its tensors in the scratchpads. An operand that comes in twice stays
    one value."""
    moved: dict[Value, Value] = {}

    def there(v: Value, lx: bool) -> Value:
        return moved.setdefault(v, Value(v.name, v.type.with_(space="lx"))) if lx else v

    return replace(
        op,
        operands=tuple(there(v, i in operands) for i, v in enumerate(op.operands)),
        results=tuple(there(v, i in results) for i, v in enumerate(op.results)),
    )
