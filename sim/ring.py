"""The ring: a stop for each core and one for memory, a lane of segments in each direction."""

from __future__ import annotations

from collections.abc import Iterable

from .device import Ring as RingSpec

UP, DOWN = 0, 1


class Ring:
    """Wormhole traffic: a payload occupies each segment on its way for its length, one hop
    later than the segment before. Segment s lies between stop s and stop s + 1 (the last closes
    the ring).

    ``link_bytes[direction][segment]`` counts what passed.
    """

    def __init__(self, spec: RingSpec, cores: int, core_mhz: int) -> None:
        self._spec = spec
        self._mhz = core_mhz
        self.stops = cores + 1
        self._free = [[0] * self.stops, [0] * self.stops]  # ring cycle each segment is free
        self.link_bytes = [[0] * self.stops, [0] * self.stops]
        self._routes: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}

    def send(self, now: int, core: int, nbytes: int, mask: int) -> tuple[int, int]:
        """Send from ``core`` to the cores of ``mask``, issued at core cycle ``now``.

        Returns the core cycles in which the last byte has left and has arrived everywhere. A
        copy to the sender itself takes no segment.
        """
        spec = self._spec
        earliest = spec.to_ring(now + spec.start_cycles, self._mhz)
        length = spec.payload_cycles(nbytes)
        left = arrived = earliest + length
        for direction, path in self._route(core, mask):
            free = self._free[direction]
            start = max(
                [earliest, *(free[s] - i * spec.hop_cycles for i, s in enumerate(path))]
            )
            for i, segment in enumerate(path):
                free[segment] = start + i * spec.hop_cycles + length
                self.link_bytes[direction][segment] += nbytes
            left = max(left, start + length)
            arrived = max(arrived, start + length + len(path) * spec.hop_cycles)
        return spec.to_core(left, self._mhz), spec.to_core(arrived, self._mhz)

    def _route(self, core: int, mask: int) -> list[tuple[int, list[int]]]:
        """Direction and segments of each way a send takes."""
        route = self._routes.get((core, mask))
        if route is None:
            hops = enumerate(self.reach(core, mask))
            route = [(way, self.path(core, way, far)) for way, far in hops if far]
            self._routes[core, mask] = route
        return route

    def reach(self, core: int, mask: int) -> tuple[int, int]:
        """How many hops a send goes up and down to come to every core of the mask, each by its
        shorter way (up when both are equal)."""
        up = down = 0
        for target in _bits(mask):
            distance = (target - core) % self.stops
            if 2 * distance <= self.stops:
                up = max(up, distance)
            else:
                down = max(down, self.stops - distance)
        return up, down

    def path(self, core: int, direction: int, hops: int) -> list[int]:
        """Segments passed, in order."""
        if direction == UP:
            return [(core + i) % self.stops for i in range(hops)]
        return [(core - 1 - i) % self.stops for i in range(hops)]


def _bits(mask: int) -> Iterable[int]:
    return (bit for bit in range(mask.bit_length()) if mask >> bit & 1)
