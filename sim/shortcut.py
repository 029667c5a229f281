"""What an engine need not simulate because it has done the same before."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal, get_args

from .shortcut_launch import Repeats
from .shortcut_loop import Loops

if TYPE_CHECKING:
    from .engine import Engine, Queue


Shortcut = Literal["launches", "loops"]
SHORTCUTS: tuple[Shortcut, ...] = get_args(Shortcut)


class Shortcuts:
    """``due``: ``skip`` is to be called as soon as nothing is ready; ``anchor``: the queue whose
    beginning work makes it due, beside launches that end."""

    def __init__(self, engine: Engine, which: Collection[Shortcut]) -> None:
        self.due = True
        self.anchor: Queue | None = None
        self._finished: list[int] = []
        self._repeats = Repeats(engine) if "launches" in which else None
        self._loops = Loops(engine) if "loops" in which else None

    def finished(self, launch: int) -> None:
        """A launch has ended."""
        self._finished.append(launch)
        self.due = True

    def skip(self, now: int) -> int:
        """The cycle it is when all that can be has been skipped."""
        self.due = False
        finished, self._finished = self._finished, []
        if self._repeats is not None and finished:
            now = self._repeats.skip(now, finished)
        if self._loops is not None:
            if self.anchor is None or finished:
                self.anchor = self._loops.watch()
            else:
                now = self._loops.skip(now)
        return now
