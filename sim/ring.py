"""The ring: a stop for each core and one for memory, a lane of segments in each direction, and
beside each a narrower one for partial sums."""

from __future__ import annotations

from collections.abc import Iterable

from .device import Ring as RingSpec

UP, DOWN = 0, 1

RingState = tuple[tuple[int, ...], ...]


class Ring:
    """Wormhole traffic: a payload occupies each segment on its way for its length, one hop
    later than the segment before. Segment s lies between stop s and stop s + 1 (the last closes
    the ring).

    Times are kept in ticks of which both clocks' cycles are whole numbers, so that a send takes
    equally long whenever it starts.

    ``link_bytes[direction][segment]`` counts what passed, ``psum_bytes`` the same of the rings of
    partial sums.
    """

    def __init__(self, spec: RingSpec, cores: int, core_mhz: int) -> None:
        self._spec = spec
        self._core_ticks, self._ring_ticks = spec.clock_mhz, core_mhz  # ticks in a cycle
        self.stops = cores + 1
        self._free = [[0] * self.stops, [0] * self.stops]  # tick in which each segment is free
        self.link_bytes = [[0] * self.stops, [0] * self.stops]
        self._psum_free = [[0] * self.stops, [0] * self.stops]
        self.psum_bytes = [[0] * self.stops, [0] * self.stops]
        self._routes: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}

    def send(self, now: int, core: int, nbytes: int, mask: int) -> tuple[int, int]:
        """Send from ``core`` to the cores of ``mask``, issued at core cycle ``now``.

        Returns the core cycles in which the last byte has left and has arrived everywhere. A
        copy to the sender itself takes no segment.
        """
        earliest = (now + self._spec.start_cycles) * self._core_ticks
        length = self._spec.payload_cycles(nbytes) * self._ring_ticks
        hop = self._spec.hop_cycles * self._ring_ticks
        left = arrived = earliest + length
        for direction, path in self._route(core, mask):
            free = self._free[direction]
            start = max([earliest, *(free[s] - i * hop for i, s in enumerate(path))])
            for i, segment in enumerate(path):
                free[segment] = start + i * hop + length
                self.link_bytes[direction][segment] += nbytes
            left = max(left, start + length)
            arrived = max(arrived, start + length + len(path) * hop)
        return self._core_cycle(left), self._core_cycle(arrived)

    def pass_on(self, now: int, core: int, nbytes: int, mask: int) -> tuple[int, int]:
        """Send partial sums from ``core`` to the neighbour that is the one core of ``mask``, issued
        at core cycle ``now``.

        Returns the core cycles in which the last byte has left and has been added.
        """
        spec = self._spec
        direction = UP if mask >> core > 1 else DOWN
        segment = core if direction == UP else core - 1
        free = self._psum_free[direction]
        start = max((now + spec.start_cycles) * self._core_ticks, free[segment])
        left = free[segment] = start + spec.psum_payload_cycles(nbytes) * self._ring_ticks
        self.psum_bytes[direction][segment] += nbytes
        added = left + spec.hop_cycles * self._ring_ticks
        return self._core_cycle(left), self._core_cycle(added)

    def _core_cycle(self, tick: int) -> int:
        """The first core cycle that begins no earlier than the tick."""
        return -(-tick // self._core_ticks)

    def counted(self) -> tuple[list[int], ...]:
        """The counts of bytes, a list for each direction of each ring."""
        return (*self.link_bytes, *self.psum_bytes)

    def relative(self, now: int) -> RingState:
        """When each segment is free, in ticks after core cycle ``now``; 0 when it is already."""
        tick = now * self._core_ticks
        lanes = (*self._free, *self._psum_free)
        return tuple(tuple(max(0, free - tick) for free in lane) for lane in lanes)

    def resume(self, now: int, state: RingState) -> None:
        """Take over what ``relative`` gave, as of ``now``."""
        tick = now * self._core_ticks
        for lane, after in zip((*self._free, *self._psum_free), state, strict=True):
            lane[:] = [tick + ticks for ticks in after]

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
