"""Streams: work of a card in order; events: order between streams. Work is handed in first and
carried out when the card is asked to be in step (``Card.synchronize``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from spyrec.ir.errors import SpyrecError

from .ports import Array


@dataclass(eq=False)
class Event:
    """A point in one stream that others can wait for. ``cycle``: when it was reached, None
    before. It is recorded once."""

    name: str
    recorded_by: str = ""
    cycle: int | None = None


@dataclass(eq=False)
class Fetched:
    """An output on its way to the host; ``value`` when the card is in step."""

    what: str
    array: Array | None = None

    @property
    def value(self) -> Array:
        if self.array is None:
            raise SpyrecError(f"{self.what} has not arrived yet; call synchronize() on the card")
        return self.array


@dataclass(frozen=True)
class Command:
    """Work in a stream. ``run`` is told the cycle from which the stream is free and gives the one
    when the work is done. ``waits``: for which event it stands; ``records``: which it raises."""

    number: int
    run: Callable[[int], int]
    waits: Event | None = None
    records: Event | None = None


@dataclass(eq=False)
class Stream:
    """Commands that are carried out in order; ``free_cycle``: when those so far are done."""

    name: str
    commands: deque[Command] = field(default_factory=deque)
    free_cycle: int = 0

    def ready_cycle(self) -> int | None:
        """When its next command may begin; None while that waits for an event or there is none."""
        if not self.commands:
            return None
        event = self.commands[0].waits
        if event is None:
            return self.free_cycle
        return None if event.cycle is None else max(self.free_cycle, event.cycle)


def drain(streams: Sequence[Stream]) -> None:
    """Carry out all commands: always the one that may begin first, of those the one handed in
    first. SpyrecError when streams wait for one another or for what never comes. When a command
    fails, those behind it in all streams are dropped."""
    while any(stream.commands for stream in streams):
        ready = [
            (cycle, stream.commands[0].number, stream)
            for stream in streams if (cycle := stream.ready_cycle()) is not None
        ]
        if not ready:
            raise SpyrecError("\n".join(_stuck(streams)))
        cycle, _, stream = min(ready, key=lambda r: r[:2])
        command = stream.commands.popleft()
        try:
            stream.free_cycle = command.run(cycle)
        except Exception:
            for other in streams:
                other.commands.clear()
            raise
        if command.records is not None:
            command.records.cycle = stream.free_cycle


def _stuck(streams: Sequence[Stream]) -> Iterator[str]:
    """A sentence for each circle of waits, and for each wait for what never comes."""
    waiting = {s: s.commands[0].waits for s in streams if s.commands}
    told: set[Any] = set()
    for stream, event in waiting.items():
        assert event is not None
        recorder = next((s for s in streams if _records(s, event)), None)
        if recorder is None:
            yield f"stream {stream.name} waits for event {event.name}, which no stream records"
            continue
        path = [stream]
        while recorder is not None and recorder not in path:
            path.append(recorder)
            recorder = next((s for s in streams if _records(s, waiting[path[-1]])), None)
        circle = path[path.index(recorder):] if recorder is not None else []
        if circle and not told & {*circle}:
            told |= {*circle}
            yield "streams wait for one another: " + "; ".join(_wait(s, streams) for s in circle)


def _wait(stream: Stream, streams: Sequence[Stream]) -> str:
    event = stream.commands[0].waits
    assert event is not None
    recorder = next(s for s in streams if _records(s, event))
    where = "itself" if recorder is stream else f"stream {recorder.name}"
    return f"stream {stream.name} for event {event.name}, which {where} records only later"


def _records(stream: Stream, event: Event | None) -> bool:
    return any(c.records is event for c in stream.commands)
