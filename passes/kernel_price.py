"""What a kernel costs by which of its tensors are on chip and by the scratchpad left for its tiles:
prices that decide who stays on chip."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod

import numpy as np

from spyrec.ir.core import Op, Value
from spyrec.ir.digits import Ints
from spyrec.ir.errors import CapacityError
from spyrec.sim.device import DeviceSpec

from .allocate import busy_cycles
from .contract_price import options
from .kernel import Nest
from .pins import Counts
from .signature import signature
from .tile_ways import Floats, Tilings, tilings
from .tiling import UNREAD, Tiling, contract_bytes, move_buffers

TRIP_CYCLES = 40  # of a trip beside its work, as contract_price has it


@dataclass
class PricedTiles:
    """Tiles of a matrix kernel, the cheapest first, and their ``cycles``. Their bytes are counted
    when they are asked for."""

    ways: Tilings
    cycles: Floats
    counted: dict[bool, tuple[Ints, Ints]] = field(default_factory=dict)

    def least(self, lean: bool, budget: int, room: int) -> float | None:
        """Of those that stream into ``budget``, with the factors that stay into ``room`` bytes;
        None when there is none."""
        if lean not in self.counted:
            self.counted[lean] = contract_bytes(self.ways, lean)
        streamed, total = self.counted[lean]
        fits = (streamed <= budget) & (total <= max(budget, room))
        return float(self.cycles[fits.argmax()]) if fits.any() else None


Key = tuple[int, Counts, Counts]  # number of the signature, operands and results on chip
MOST_KNOWN = 4096  # signatures that are remembered


@dataclass
class Known:
    """Prices by key, as far as they were asked for. ``tried``: of a kernel without products
    (budget, bytes of its tile, cycles): any budget between the two gives the same tile."""

    numbers: dict[Hashable, int] = field(default_factory=dict)
    prices: dict[tuple[Key, int, int], float] = field(default_factory=dict)
    tried: dict[Key, list[tuple[int, int, float]]] = field(default_factory=dict)
    tiles: dict[Key, PricedTiles] = field(default_factory=dict)
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

    @cached_property
    def limits(self) -> tuple[int, int]:
        """Bytes that tiles take at most: what streams, and with the factors that stay."""
        usable = self.device.lx.usable_bytes
        return int(usable * self.tiling.share), int(usable * self.tiling.kept)

    def number(self, op: Op) -> int:
        """The same for kernels that are alike."""
        if op not in self.signatures:
            self.signatures[op] = self.known.number(op)
        return self.signatures[op]

    def price(
        self, op: Op, operands: Collection[int], results: Collection[int], left: int
    ) -> float:
        """Cycles of a kernel that has ``left`` bytes of the scratchpad for its tiles, when these of
        its operands and results are there and the others in card memory; infinite when no tile
        fits."""
        most, most_kept = self.limits
        budget, room = min(most, left), min(most_kept, left)
        key = self.number(op), tuple(sorted(operands)), tuple(sorted(results))
        asked, prices = (key, budget, room), self.known.prices
        if asked not in prices:
            prices[asked] = self._price(op, key, budget, room)
        return prices[asked]

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
                cycles = found.least(lean, budget, room)
                if cycles is not None:
                    return cycles
            return math.inf
        tried = known.tried.setdefault(key, [])
        for most, least, cycles in tried:
            if least <= budget <= most:
                return cycles
        least, cycles = self._streamed(nest, budget)
        tried.append((budget, least, cycles))
        return cycles

    def _tiles(self, nest: Nest) -> PricedTiles:
        """The tiles of a matrix kernel with the smallest steps of its sum."""
        room = int(self.device.lx.usable_bytes * self.tiling.kept)
        every = tilings(nest, self.device, coarse=True).with_kept(room)
        ways, cycles = options(every, self.device, self.tiling.ahead)
        order = np.argsort(cycles, kind="stable")
        return PricedTiles(ways.take(order), cycles[order])

    def _streamed(self, nest: Nest, budget: int) -> tuple[int, float]:
        """(bytes of its tile, cycles) of a kernel without products: the longer of its work and its
        transfers, half of the shorter, and what every trip costs. (0, infinite) when no tile
        fits."""
        try:
            tile, *_, why = self.tiling.tiled(nest, budget, budget, self.device)
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
