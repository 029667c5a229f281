"""Points measured by processes of this machine."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial

from spyrec.processes import Lost, spread
from spyrec.sweep.point import Outcome, Source, Task, lost, measure

Sources = Mapping[str, Source]
"""By digest."""

Outcomes = Generator[Outcome, None, None]

LOADED = "spyrec.sweep.point"


def run_local(tasks: Sequence[Task], sources: Sources, jobs: int) -> Outcomes:
    """The outcomes, as they come, of ``jobs`` processes; see ``spread``. A point whose process dies
    is lost until the next time."""
    for i, done in spread(partial(_measured, sources), tasks, jobs, LOADED):
        yield lost(tasks[i], done.how) if isinstance(done, Lost) else done


def _measured(sources: Sources, task: Task) -> Outcome:
    return measure(task, sources[task.source])
