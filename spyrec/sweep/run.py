"""A sweep from its points to the rows of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from spyrec.ir.errors import SpyrecError
from spyrec.progress import Progress
from spyrec.sim.errors import SimError
from spyrec.sweep.grid import MODEL, swept
from spyrec.sweep.journal import Journal
from spyrec.sweep.local import Outcomes, Sources
from spyrec.sweep.point import (
    FIGURES,
    NOTHING,
    Outcome,
    Own,
    Source,
    Task,
    import_source,
    shown,
    task_of,
)
from spyrec.sweep.settings import BIND, Settings
from spyrec.sweep.tables import Row

Runner = Callable[[Sequence[Task], Sources], Outcomes]
"""Measures tasks and gives their outcomes in any order; tidies up when it is closed."""


@dataclass(frozen=True)
class Sweep:
    """Points, and of each the task that measures it. Points that are the same run share one."""

    points: tuple[Settings, ...]
    tasks: tuple[Task, ...]
    sources: Sources


def prepare(
    points: Sequence[Settings], const: Mapping[str, Any], progress: Progress, own: Own = NOTHING
) -> Sweep:
    """Import every model with every binding of its dimensions, which takes its time for large ones.
    ``own``: passes of the user's. SpyrecError tells all that cannot be imported or has a wrong
    option."""
    found: dict[Any, Source | None] = {}
    tasks: list[Task] = []
    problems: dict[str, None] = {}
    for number, point in enumerate(points):
        bind = {n.removeprefix(BIND): int(v) for n, v in point.items() if n.startswith(BIND)}
        key = point[MODEL], *sorted(bind.items())
        try:
            if key not in found:
                progress("reading models", number, len(points))
                found[key] = None
                found[key] = import_source(str(point[MODEL]), bind, const)
            source = found[key]
            if source is not None:
                tasks.append(task_of(point, source, own))
        except (SpyrecError, SimError, OSError) as error:
            problems[str(error)] = None
    if problems:
        raise SpyrecError("\n".join(problems))
    sources = {source.digest: source for source in found.values() if source is not None}
    return Sweep(tuple(points), tuple(tasks), sources)


def measured(
    sweep: Sweep, journal: Journal, runner: Runner, progress: Progress
) -> tuple[dict[str, Outcome], int]:
    """The outcomes by id, and how many of them were in the journal. The others are measured, and
    written there as they come if another try would give the same."""
    tasks = {task.id: task for task in sweep.tasks}
    done = {
        key: journal.finished[key] for key, task in tasks.items()
        if task.lasting and key in journal.finished
    }
    n_known = len(done)
    left = [task for key, task in tasks.items() if key not in done]
    progress("points", len(done), len(tasks))
    with closing(runner(left, sweep.sources)) as outcomes:
        for outcome in outcomes:
            if outcome.lasting and tasks[outcome.id].lasting:
                journal.add(outcome)
            done[outcome.id] = outcome
            progress("points", len(done), len(tasks))
    return done, n_known


def rows_of(sweep: Sweep, outcomes: Mapping[str, Outcome]) -> list[Row]:
    """A row a point, in the order of the grid: what it sets, the figures, the error, the id."""
    names = swept(sweep.points)
    rows: list[Row] = []
    for settings, task in zip(sweep.points, sweep.tasks, strict=True):
        outcome = outcomes[task.id]
        rows.append({
            **shown(settings, task, names),
            **{name: outcome.figures.get(name) for name in FIGURES},
            "error": outcome.error or None, "id": task.id,
        })  # fmt: skip
    return rows
