"""Points measured by processes of this machine.

Not by concurrent.futures: its workers outlive a parent that is killed, and one that dies takes all
the others with it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess

from spyrec.sweep.point import Outcome, Source, Task, lost, measure
from spyrec.sweep.processes import process_context

Sources = Mapping[str, Source]
"""By digest."""

Outcomes = Generator[Outcome, None, None]

Link = Connection


def usable_cores() -> int:
    """Of the machine, those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_local(tasks: Sequence[Task], sources: Sources, jobs: int) -> Outcomes:
    """The outcomes, as they come, of ``jobs`` processes; with one, of this process itself.

    A process that ends in the middle of a point loses that point only. When the caller stops, for
    whatever reason, all end at once; when it is killed, they notice.
    """
    if min(jobs, len(tasks)) <= 1:
        for task in tasks:
            yield measure(task, sources[task.source])
        return
    waiting = deque(tasks)
    context = process_context()
    processes: dict[Link, ForkServerProcess] = {}
    given: dict[Link, Task] = {}

    def give(link: Link) -> None:
        given[link] = waiting.popleft()
        with suppress(OSError):  # it is gone, which is noticed on receiving
            link.send(given[link])

    try:
        for _ in range(min(jobs, len(waiting))):
            link, process = _started(context, sources)
            processes[link] = process
            give(link)
        while given:
            for ready in connection.wait(list(given)):
                assert isinstance(ready, Connection)
                link, task = ready, given.pop(ready)
                try:
                    outcome: Outcome = link.recv()
                except (EOFError, OSError):
                    gone = processes.pop(link)
                    gone.join()
                    outcome = lost(task, f"the process that ran it ended with {_how(gone)}")
                    if waiting:
                        link, process = _started(context, sources)
                        processes[link] = process
                if waiting:
                    give(link)
                yield outcome
    finally:
        for process in processes.values():
            process.kill()  # it holds nothing that could be half done
        for process in processes.values():
            process.join()


def _started(context: ForkServerContext, sources: Sources) -> tuple[Link, ForkServerProcess]:
    """A new process and the link to it."""
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(there, sources), daemon=True)
    process.start()
    there.close()
    return here, process


def _work(link: Link, sources: Sources) -> None:
    """What such a process does: measure what it is given, until nobody is there any more."""
    threading.Thread(target=_follow, daemon=True).start()
    try:
        while True:
            task: Task = link.recv()
            link.send(measure(task, sources[task.source]))
    except (EOFError, OSError):
        return


def _follow() -> None:
    """End when the parent has, in the middle of a point too."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _how(process: ForkServerProcess) -> str:
    code = process.exitcode or 0
    return f"signal {-code}" if code < 0 else f"exit code {code}"
