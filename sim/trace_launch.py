"""A launch in full: a slice for each instruction, slices around the trips of loops, arrows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from operator import itemgetter

from .describe import text
from .isa import UNITS
from .trace_file import EventFile
from .trace_loops import Nest
from .trace_tokens import N_UNITS, Flight, Work

TITLES = ("memory load", "memory store", "ring send", "ring receive", "matrix", "vector")
ROWS = 10  # numbers of rows that each process has


def rows(core: int) -> tuple[int, int]:
    """The process of a core and the row of its first unit. Neither is 0 nor are they equal, which
    means idle, or the main thread, to readers."""
    return core + 1, (core + 1) * ROWS


def inside(args: Mapping[str, object]) -> str:
    """JSON of an object without its braces."""
    return json.dumps(args, separators=(",", ":"))[1:-1]


class LaunchSlices:
    """The instructions of a launch, the trips of loops around them and the arrows."""

    def __init__(self, file: EventFile, index: int, flight: Flight) -> None:
        self._file, self._index, self._flight = file, index, flight
        self._kernel = flight.plan.kernel
        self._nests = {
            unit: Nest(plan, self._kernel.streams[UNITS[unit]])
            for unit, plan in flight.plan.units.items()
        }
        self._said: dict[tuple[int, int, int], str] = {}
        self._cores: list[int] = []  # that have events

    def write(self, events: list[str]) -> None:
        """Put ``events`` into the file, behind the names of their rows."""
        for core in self._cores:
            self._file.named(core + 1, f"core {core}", dict(enumerate(TITLES, rows(core)[1])))
        self._file.put(events)

    def events(self, since: float, until: float) -> list[str]:
        """What overlaps the cycles from ``since`` to ``until``, in the order of the file."""

        def shown(start: int, end: int) -> bool:
            return start < until and end > since

        file, works = self._file, self._flight.works
        arrived: dict[tuple[int, int], int] = {}
        for slot in sorted(works):
            for w in works[slot]:
                cause = w.cause
                if cause is None or not shown(w.start, w.end) or not shown(cause.start, cause.end):
                    continue
                arrived[slot, w.number] = arrow = file.arrow()
                cause.arrows.append(arrow)
        events: list[tuple[int, int, str]] = []  # cycle, kind (slice, head, tail), text
        for slot in sorted(works):
            core, unit = divmod(slot, N_UNITS)
            process, row = rows(core)
            row += unit
            around = self._loops(slot)
            before = len(events)
            for w in works[slot]:
                for start, end, name in around.get(w.number, ()):
                    if shown(start, end):
                        loop = file.slice("loop", name, process, row, start, end)
                        events.append((start, 0, loop))
                if not shown(w.start, w.end):
                    continue
                op, args = self._args(core, unit, w)
                slice_ = file.slice("work", op, process, row, w.start, w.end, args)
                events.append((w.start, 0, slice_))
                if (slot, w.number) in arrived:
                    head = file.arrives(arrived[slot, w.number], process, row, w.start)
                    events.append((w.start, 1, head))
                events += [
                    (w.end - 1, 2, file.leaves(arrow, process, row, w.end)) for arrow in w.arrows
                ]
            if len(events) > before and core not in self._cores:
                self._cores.append(core)
        events.sort(key=itemgetter(0, 1))  # stable: slices around others stay before them
        return [event for _, _, event in events]

    def _loops(self, slot: int) -> dict[int, list[tuple[int, int, str]]]:
        """By number of the first work: the trips that begin with it, those around others first."""
        core, unit = divmod(slot, N_UNITS)
        works = self._flight.works[slot]
        found: dict[int, list[tuple[int, int, str]]] = {}
        for first, last, name in self._nests[unit].spans(list(self._places(core, unit, works))):
            found.setdefault(first, []).append((works[first].start, works[last].end, name))
        return found

    def _places(self, core: int, unit: int, works: list[Work]) -> Iterator[tuple[int, int]]:
        plan = self._flight.plan.units[unit]
        kept = plan.kept[core]
        for w in works:
            at = w.step if kept is None else int(kept[w.step])
            yield int(plan.order[at]), int(plan.trip[at])

    def _args(self, core: int, unit: int, work: Work) -> tuple[str, str]:
        plan = self._flight.plan.units[unit]
        kept = plan.kept[core]
        site = int(plan.order[work.step if kept is None else int(kept[work.step])])
        instr = plan.sites[site].instr
        said = self._said.get((core, unit, site))
        if said is None:
            facts: dict[str, object] = {"launch": self._index, "instr": text(instr, core)}
            if 0 <= instr.note < len(self._kernel.notes):
                facts["op"] = self._kernel.notes[instr.note].op
            said = self._said[core, unit, site] = inside(facts)
        moved = f',"bytes":{work.nbytes}' if work.nbytes else ""
        return instr.op, f'{said},"cycles":{work.end - work.start}{moved}'
