"""Chrome trace events as text. Times are microseconds on a grid of whole nanoseconds, which is what
Perfetto keeps: slices that touch or nest in cycles do so there too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TextIO

from .device import DeviceSpec


class EventFile:
    """Makes events and writes them to ``out``; ``close`` ends the file. What begins in the same
    nanosecond is read in the order of the file. So a row's slices must be written in order of time,
    those around others first, an arrow's ends after the slices they are in, and its tail first."""

    def __init__(self, out: TextIO, device: DeviceSpec) -> None:
        self._out, self._clock_mhz = out, device.clock_mhz
        self._first = True
        self._rows: set[tuple[int, int]] = set()
        self._arrows = 0
        out.write('{"displayTimeUnit":"ns","traceEvents":[\n')

    def named(self, process: int, title: str, rows: Mapping[int, str]) -> None:
        """Names of a process and its rows, once. A row's number is of one process alone."""
        if (process, -1) not in self._rows:
            self._rows.add((process, -1))
            self._meta("process_name", process, min(rows), title)
        for row, name in rows.items():
            if (process, row) not in self._rows:
                self._rows.add((process, row))
                self._meta("thread_name", process, row, name)

    def slice(
        self, kind: str, name: str, process: int, row: int, start: int, end: int, args: str = ""
    ) -> str:
        """Cycles ``start`` to ``end``; ``args`` is the inside of a JSON object."""
        ts, until = self._ns(start), self._ns(end)
        rest = f',"args":{{{args}}}' if args else ""
        return (
            f'{{"ph":"X","pid":{process},"tid":{row},"ts":{_us(ts)},"dur":{_us(until - ts)},'
            f'"cat":"{kind}","name":{json.dumps(name)}{rest}}}'
        )

    def arrow(self) -> int:
        """The number of a new arrow."""
        self._arrows += 1
        return self._arrows

    def leaves(self, arrow: int, process: int, row: int, end: int) -> str:
        """An arrow leaves the slice that ends at cycle ``end``: in its last cycle, since at its end
        it is over."""
        return self._flow(f'"ph":"s","id":{arrow}', process, row, end - 1)

    def arrives(self, arrow: int, process: int, row: int, start: int) -> str:
        return self._flow(f'"ph":"f","bp":"e","id":{arrow}', process, row, start)

    def count(self, process: int, row: int, counter: str, cycle: int, value: float) -> str:
        """A counter's value from ``cycle`` on; its name ends in the unit."""
        name, _, unit = counter.rpartition(" ")  # Perfetto puts them together again
        return (
            f'{{"ph":"C","pid":{process},"tid":{row},"ts":{_us(self._ns(cycle))},'
            f'"name":{json.dumps(name)},"args":{{{json.dumps(unit)}:{json.dumps(value)}}}}}'
        )

    def put(self, events: Iterable[str]) -> None:
        for event in events:
            self._out.write(event if self._first else f",\n{event}")
            self._first = False

    def close(self) -> None:
        self._out.write("\n]}\n")

    def _flow(self, what: str, process: int, row: int, cycle: int) -> str:
        at = _us(self._ns(cycle))
        return f'{{{what},"pid":{process},"tid":{row},"ts":{at},"name":"token"}}'

    def _meta(self, kind: str, process: int, row: int, title: str) -> None:
        name = json.dumps(title)
        args = f'{{"name":{name}}}'
        self.put([f'{{"name":"{kind}","ph":"M","pid":{process},"tid":{row},"args":{args}}}'])

    def _ns(self, cycle: int) -> int:
        return cycle * 1000 // self._clock_mhz


def _us(nanoseconds: int) -> str:
    """Microseconds that are as many nanoseconds when a reader multiplies and cuts off the rest,
    whether it takes the number as one or what follows the point by itself."""
    whole, rest = divmod(nanoseconds, 1000)
    short = int(nanoseconds / 1000 * 1000) < nanoseconds or int(rest / 1000 * 1000) < rest
    return f"{whole}.{rest:03}{'0001' if short else ''}"
