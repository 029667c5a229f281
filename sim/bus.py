"""The card's memory bus: one server all cores share, first come first served, in whole ticks."""

from __future__ import annotations

from .device import Hbm

BusState = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...], int, int, tuple[int, ...]]


class Bus:
    """A tick is the time one byte takes: ``bytes_per_cycle`` of them make a core cycle.

    A transfer holds the bus for its ticks; a write while reads are pending also for turning round
    and back, once for each batch. A read for one core also holds the link to its half of the ring,
    which is slower than the bus; one for several cores goes both ways round. The requests of the
    cores of a half pass one by one. Where the cores that take a load wait for one another, each
    takes part in one such load at a time.
    """

    def __init__(self, hbm: Hbm, cores: int) -> None:
        self._hbm = hbm
        self._rate = hbm.bytes_per_cycle
        self._free = 0  # tick at which the last transfer leaves the bus
        self._half = cores // 2  # the first core of the second half
        self._sides = [0, 0]  # as _free for the link of each half, in bytes of side_bytes_per_cycle
        self._asked = [0, 0]  # cycle in which the last request of each half has passed
        self._until = [0, 0]  # tick at which the last transfer of each half leaves the bus
        self._reading = 0  # tick at which the last read leaves the bus
        self._between = 0  # bytes of writes that pending reads may still come between
        self._taking = [0] * cores  # cycle in which each core has what several took
        self.read_bytes = 0
        self.write_bytes = 0
        self.busy_ticks = 0

    def transfer(
        self, now: int, core: int, nbytes: int, ticks: int, writes: bool, asks: int = 0
    ) -> int:
        """Queue a transfer at cycle ``now``; the cycle in which its last byte passes. ``ticks``
        are negative when several cores take it. ``asks``: cycles in which its requests pass."""
        lone, ticks = ticks > 0 and not writes, abs(ticks)
        tick = now * self._rate
        start = max(tick, self._free)
        side = core >= self._half
        if writes:
            self.write_bytes += nbytes
            turned = min(nbytes, self._between) if self._reading > tick else 0
            if turned:
                lone_side = self._until[not side] <= tick
                ticks += self._hbm.turnaround_ticks(turned, nbytes, lone_side)
                self._between -= turned
        else:
            self.read_bytes += nbytes
            waited = self._between if self._reading > tick else 0
            self._between = waited + nbytes
            self._reading = start + ticks
        self._free = self._until[side] = start + ticks
        self.busy_ticks += ticks
        self._asked[side] = max(self._asked[side], now) + asks
        end = max(-(-self._free // self._rate), self._asked[side] if asks else 0)
        if not lone:
            return end
        rate = self._hbm.side_bytes_per_cycle
        self._sides[side] = max(self._sides[side], start * rate // self._rate) + nbytes
        return max(end, -(-self._sides[side] // rate))

    def meet(self, now: int, end: int, waits: int, takers: tuple[int, ...]) -> int:
        """The cycle in which all ``takers`` have a load that comes to the first by cycle ``end``:
        they wait for one another for ``waits`` cycles, which begin when the last of them has what
        it took before."""
        begin = max(now, *[self._taking[core] for core in takers])
        end = max(end, begin + waits)
        for core in takers:
            self._taking[core] = end
        return end

    def passed(self) -> int:
        """The cycle in which the last byte of what was queued passes."""
        return -(-self._free // self._rate)

    def backlog(self, now: int) -> int:
        """Ticks of what is queued at cycle ``now``."""
        return max(0, self._free - now * self._rate)

    def relative(self, now: int) -> BusState:
        """What later transfers depend on, counted from cycle ``now``; 0 for what is past."""
        tick = now * self._rate
        side = self._hbm.side_bytes_per_cycle
        return (
            self.backlog(now),
            tuple(max(0, n - now * side) for n in self._sides),
            tuple(max(0, cycle - now) for cycle in self._asked),
            tuple(max(0, until - tick) for until in self._until),
            max(0, self._reading - tick),
            self._between if self._reading > tick else 0,
            tuple(max(0, cycle - now) for cycle in self._taking),
        )

    def resume(self, now: int, state: BusState) -> None:
        """Take over what ``relative`` gave, as of cycle ``now``."""
        tick = now * self._rate
        side = self._hbm.side_bytes_per_cycle
        free, sides, asked, until, reading, self._between, taking = state
        self._free = tick + free
        self._sides = [now * side + n for n in sides]
        self._asked = [now + cycles for cycles in asked]
        self._until = [tick + ticks for ticks in until]
        self._reading = tick + reading
        self._taking = [now + cycles for cycles in taking]
