"""The card's memory bus: one server all cores share, first come first served, in whole ticks."""

from __future__ import annotations

from collections import deque

from .device import Hbm


class Bus:
    """A tick is the time one byte takes: ``bytes_per_cycle`` of them make a core cycle.

    A transfer holds the bus for its ticks, plus turnarounds when transfers of the other direction
    are still pending; it also holds its core's link, which is slower than the bus.
    """

    def __init__(self, hbm: Hbm, cores: int) -> None:
        self._hbm = hbm
        self._rate = hbm.bytes_per_cycle
        self._free = 0  # tick at which the last transfer leaves the bus
        self._links = [0] * cores  # the same for each core's link, in bytes of core_bytes_per_cycle
        self._waiting: deque[tuple[int, int]] = deque()  # (end tick, bytes not yet paired)
        self._writing = False  # direction of what is waiting
        self.read_bytes = 0
        self.write_bytes = 0
        self.busy_ticks = 0

    def transfer(self, now: int, core: int, nbytes: int, ticks: int, writes: bool) -> int:
        """Queue a transfer at cycle ``now``; the cycle in which its last byte passes."""
        tick = now * self._rate
        start = max(tick, self._free)
        spent = ticks + self._hbm.turnaround_ticks(self._pair(tick, nbytes, writes, start + ticks))
        self._free = start + spent
        self.busy_ticks += spent
        if writes:
            self.write_bytes += nbytes
        else:
            self.read_bytes += nbytes
        link = self._hbm.core_bytes_per_cycle
        self._links[core] = max(self._links[core], start * link // self._rate) + nbytes
        return max(-(-self._free // self._rate), -(-self._links[core] // link))

    def _pair(self, tick: int, nbytes: int, writes: bool, end: int) -> int:
        """Bytes of the new transfer that alternate with waiting ones of the other direction;
        the rest of it waits in turn. What has passed by now waits no longer."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= tick:
            waiting.popleft()
        left = nbytes
        if waiting and self._writing != writes:
            while waiting and left:
                until, size = waiting.popleft()
                size = min(size, until - tick)
                matched = min(size, left)
                left -= matched
                if matched < size:
                    waiting.appendleft((until, size - matched))
        if left:
            self._writing = writes
            waiting.append((end, left))
        return nbytes - left
