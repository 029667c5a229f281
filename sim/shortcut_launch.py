"""Launches that repeat are simulated once.

From one completed launch to the next an engine does what follows from its state and from the
launches it opens on the way. Such a stretch is recorded. When the same state comes again with the
same launches ahead, clock, statistics and counters move on by what the record says and nothing is
simulated; where the records end the state is put back into the engine. The result is the same to
the cycle, because whatever the engine compares or rounds is part of the state.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .shortcut_state import (
    Opening,
    State,
    capture,
    counters,
    dependencies,
    grow,
    kind,
    put_back,
)
from .stats import LaunchStats

if TYPE_CHECKING:
    from .engine import Engine


@dataclass
class Node:
    """A state met, and the stretches that begin in it."""

    state: State
    stretches: list[Stretch] = field(default_factory=list)


@dataclass(frozen=True)
class Stretch:
    """``opens``: launches opened on the way; ``then_early``: of the one that was not, None when the
    program has no more. ``stats``: of launches that ended, in that order, indices and cycles
    counted from the start; ``grown``: by how much each counter."""

    opens: tuple[Opening, ...]
    then_early: bool | None
    cycles: int
    done: int
    stats: tuple[LaunchStats, ...]
    grown: tuple[int, ...]
    target: Node


@dataclass(frozen=True)
class Start:
    """Where a stretch began that is being recorded. ``ahead``: the launches it may open."""

    node: Node
    cycle: int
    done: int
    opened: int
    counters: tuple[int, ...]
    ahead: tuple[Opening, ...]


AHEAD = 4  # launches a stretch may open: more are not recorded


class Repeats:
    """Skips launches that an engine has done before."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._nodes: dict[State, Node] = {}
        self._start: Start | None = None
        self._first: dict[int, int] = {}  # kernel: its first launch
        self._last: dict[int, int] = {}
        for i, launch in enumerate(engine._program.launches):
            self._first.setdefault(launch.kernel, i)
            self._last[launch.kernel] = i

    def skip(self, now: int, finished: list[int]) -> int:
        """To be called when launches have ``finished`` and nothing is ready any more: the cycle it
        is when all that is known has been skipped."""
        if not self._may_repeat():
            self._start = None
            return now
        engine = self._engine
        node = self._node(capture(engine, now))
        if self._start is not None:
            self._record(self._start, finished, now, node)
        followed = 0
        while (stretch := self._known(node, now)) is not None:
            now = self._follow(stretch, now)
            node = stretch.target
            followed += 1
        if followed:
            put_back(engine, node.state, now)
        self._start = self._begin(node, now)
        return now

    def _may_repeat(self) -> bool:
        """Whether all kernels in flight and the next have run before, or all will run again."""
        engine = self._engine
        launches = engine._program.launches
        around = [flight.index for flight in engine.in_flight]
        if engine._opened < len(launches):
            around.append(engine._opened)
        kernels = [(i, launches[i].kernel) for i in around]
        return bool(kernels) and (
            all(self._first[k] < i for i, k in kernels)
            or all(i < self._last[k] for i, k in kernels)
        )

    def _node(self, state: State) -> Node:
        return self._nodes.setdefault(state, Node(state))

    def _begin(self, node: Node, now: int) -> Start:
        engine = self._engine
        ahead = tuple(
            self._opening(i, now)
            for i in range(engine._opened, min(engine._opened + AHEAD, len(engine.stats)))
        )  # fmt: skip
        return Start(node, now, engine._done, engine._opened, counters(engine), ahead)

    def _record(self, start: Start, finished: list[int], now: int, node: Node) -> None:
        """Keep the stretch from ``start`` to ``node``, in which launches ended."""
        engine = self._engine
        opened = engine._opened - start.opened
        if opened > len(start.ahead):
            return
        stats = (engine.stats[i] for i in finished)
        start.node.stretches.append(Stretch(
            start.ahead[:opened],
            self._early(engine._opened),
            now - start.cycle,
            engine._done - start.done,
            tuple(_moved(s, -start.done, -start.cycle) for s in stats if s is not None),
            tuple(b - a for a, b in zip(start.counters, counters(engine), strict=True)),
            node,
        ))  # fmt: skip

    def _known(self, node: Node, now: int) -> Stretch | None:
        """The stretch that comes now, if it is recorded."""
        first = self._engine._done + node.state.opened
        for stretch in node.stretches:
            following = first + len(stretch.opens)
            if following > len(self._engine.stats):
                continue
            early = self._early(following)
            if early is not None and early != stretch.then_early:
                continue
            if all(self._opening(i, now) == o for i, o in enumerate(stretch.opens, first)):
                return stretch
        return None

    def _early(self, index: int) -> bool | None:
        launches = self._engine._program.launches
        return launches[index].early if index < len(launches) else None

    def _opening(self, index: int, now: int) -> Opening:
        after = self._engine._program.launches[index].after
        return kind(self._engine, index), dependencies(self._engine, after, now)

    def _follow(self, stretch: Stretch, now: int) -> int:
        """Let the stretch have happened, but for the engine's state; the cycle at its end."""
        engine = self._engine
        for stats in stretch.stats:
            moved = _moved(stats, engine._done, now)
            engine._ended(moved)
            engine._forget(moved.index)
        engine._done += stretch.done
        engine.skipped_cycles += stretch.cycles
        grow(engine, stretch.grown)
        return now + stretch.cycles


def _moved(stats: LaunchStats, launches: int, cycles: int) -> LaunchStats:
    return replace(
        stats, index=stats.index + launches, start_cycle=stats.start_cycle + cycles,
        go_cycle=stats.go_cycle + cycles, end_cycle=stats.end_cycle + cycles,
    )  # fmt: skip
