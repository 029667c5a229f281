"""The ring: a stop for each core and one for memory, a lane of segments in each direction, and
beside each a narrower one for partial sums."""

from __future__ import annotations

from itertools import accumulate
from operator import add

from .device import Ring as RingSpec

UP, DOWN = 0, 1

Cores = tuple[int, ...]
RingState = tuple[tuple[int, ...], ...]
Row = tuple[int, int, int]
"""Neighbouring segments: first, the one after the last, and from their gate to when a payload that
finds them free just then began to leave its core."""
Way = tuple[list[int], list[int], int, list[Row]]
"""Of a send one way round: Ring._gates and Ring._more of its direction, ticks of all its hops, and
the segments it passes."""


class Ring:
    """Wormhole traffic: a payload occupies each segment on its way for its length, one hop
    later than the segment before. Segment s lies between stop s and stop s + 1 (the last closes
    the ring).

    Times are kept in ticks of which both clocks' cycles are whole numbers, so that a send takes
    equally long whenever it starts.

    ``link_bytes[direction][segment]`` counts what passed, ``psum_bytes`` the same of the rings of
    partial sums.

    A payload passes a row of segments, each one hop after the one before. So what is kept of a
    segment is not when it is free but its *gate*: that less the hops from stop 0 (plus them,
    downwards). One payload leaves the same gate on all of its row, and may start when the latest
    gate of its row allows. Likewise bytes are kept as what more passes a segment than the one
    before it.
    """

    def __init__(self, spec: RingSpec, cores: int, core_mhz: int) -> None:
        self._spec = spec
        self._core_ticks, self._ring_ticks = spec.clock_mhz, core_mhz  # ticks in a cycle
        self.stops = cores + 1
        hop = spec.hop_cycles * self._ring_ticks
        up = [segment * hop for segment in range(self.stops)]
        self._delays = [up, [-ticks for ticks in up]]  # from gate to when a segment is free
        self._gates = [[-ticks for ticks in lane] for lane in self._delays]
        self._more = [[0] * (self.stops + 1), [0] * (self.stops + 1)]
        self._psum_free = [[0] * self.stops, [0] * self.stops]
        self.psum_bytes = [[0] * self.stops, [0] * self.stops]
        self._routes: dict[tuple[int, int, Cores | None], list[Way]] = {}

    @property
    def link_bytes(self) -> list[list[int]]:
        return [list(accumulate(lane[:-1])) for lane in self._more]

    def send(
        self, now: int, core: int, nbytes: int, mask: int, far: Cores | None = None
    ) -> tuple[int, int]:
        """Send from ``core`` to the cores of ``mask``, those ``far`` the longer way round, issued
        at core cycle ``now``.

        Returns the core cycles in which the last byte has left and has arrived everywhere. A
        copy to the sender itself takes no segment.
        """
        core_ticks = self._core_ticks
        earliest = (now + self._spec.start_cycles) * core_ticks
        length = self._spec.payload_cycles(nbytes) * self._ring_ticks
        left = arrived = earliest + length
        for gates, more, hops_ticks, rows in self._route(core, mask, far):
            start = earliest
            for low, high, delay in rows:
                free = max(gates[low:high]) + delay
                if start < free:
                    start = free
            end = start + length
            for low, high, delay in rows:
                gates[low:high] = [end - delay] * (high - low)
                more[low] += nbytes
                more[high] -= nbytes
            if left < end:
                left = end
            if arrived < end + hops_ticks:
                arrived = end + hops_ticks
        return -(-left // core_ticks), -(-arrived // core_ticks)

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
        """The counts of bytes as they are kept, a list for each direction of each ring."""
        return (*self._more, *self.psum_bytes)

    def relative(self, now: int) -> RingState:
        """When each segment is free, in ticks after core cycle ``now``; 0 when it is already."""
        tick = now * self._core_ticks
        free = (map(add, *lane) for lane in zip(self._gates, self._delays, strict=True))
        return tuple(tuple(max(0, t - tick) for t in lane) for lane in (*free, *self._psum_free))

    def resume(self, now: int, state: RingState) -> None:
        """Take over what ``relative`` gave, as of ``now``."""
        tick = now * self._core_ticks
        *links, up, down = state
        for gates, after, delays in zip(self._gates, links, self._delays, strict=True):
            gates[:] = [tick + ticks - delay for ticks, delay in zip(after, delays, strict=True)]
        for lane, after in zip(self._psum_free, (up, down), strict=True):
            lane[:] = [tick + ticks for ticks in after]

    def _route(self, core: int, mask: int, far: Cores | None) -> list[Way]:
        route = self._routes.get((core, mask, far))
        if route is None:
            hop = self._spec.hop_cycles * self._ring_ticks
            route = self._routes[core, mask, far] = [
                (self._gates[way], self._more[way], hops * hop,
                 [(low, high, delay * hop) for low, high, delay in self.rows(core, way, hops)])
                for way, hops in enumerate(self.reach(core, mask, far or ())) if hops
            ]  # fmt: skip
        return route

    def reach(self, core: int, mask: int, far: Cores = ()) -> tuple[int, int]:
        """How many hops a send goes up and down to come to every core of the mask, each by its
        shorter way (up when both are equal) but those ``far`` by the longer."""
        stops = self.stops
        apart = self._apart(core, mask)
        short_up = (2 << stops // 2) - 1  # the shorter way is up
        up = apart & (short_up ^ self._apart(core, sum(1 << c for c in far)) & ~1)
        down = apart & ~up & ~1
        return max(0, up.bit_length() - 1), down and stops + 1 - (down & -down).bit_length()

    def _apart(self, core: int, mask: int) -> int:
        """The mask as seen from ``core``: bit n for the core n stops up."""
        return mask >> core | (mask & (1 << core) - 1) << self.stops - core

    def rows(self, core: int, direction: int, hops: int) -> list[Row]:
        """The segments passed, two rows where they go round the end of the numbers; delays in hops
        (down they are negative, as numbers fall on the way)."""
        stops = self.stops
        if direction == UP:
            end = core + hops
            rows = [(core, min(end, stops), core), (0, end - stops, core - stops)]
        else:
            end = core - hops
            rows = [(max(0, end), core, 1 - core), (end + stops, stops, 1 - core - stops)]
        return [row for row in rows if row[0] < row[1]]
