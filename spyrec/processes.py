"""Work spread over processes of this machine, none of which outlives the command.

Not by concurrent.futures: its workers outlive a parent that is killed, and one that dies takes all
the others with it. All processes are forked off one server, which loads what they need while the
command that starts them still does so itself: having several costs no more time than having one.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, forkserver, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any, TypeVar

from spyrec.ir.errors import PluginWarning

Item = TypeVar("Item")
Result = TypeVar("Result")
Link = Connection


@dataclass(frozen=True)
class Lost:
    """In the place of a result: ``how`` the process that worked on it ended."""

    how: str


def usable_cores() -> int:
    """Of the machine, those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_context(loaded: str) -> ForkServerContext:
    """The context that makes such processes; starts the server if there is none, which then imports
    the module ``loaded``.

    Ctrl-C, which a terminal sends to all processes of a command, is the command's own: the server
    begins with SIGINT blocked, and so do all that come from it. They end with the command.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([loaded])
    resource_tracker.ensure_running()  # before: it unblocks the signal again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def spread(
    work: Callable[[Item], Result], items: Sequence[Item], jobs: int, loaded: str
) -> Generator[tuple[int, Result | Lost], None, None]:
    """``(i, work(items[i]))`` as they come, of ``jobs`` processes; with one, of this process
    itself. ``work``, what it takes and what it gives can be pickled.

    A process that ends in the middle of an item loses that item only. When the caller stops, for
    whatever reason, all end at once; when it is killed, they notice.
    """
    if min(jobs, len(items)) <= 1:
        for i, item in enumerate(items):
            yield i, work(item)
        return
    waiting = deque(range(len(items)))
    context = process_context(loaded)
    processes: dict[Link, ForkServerProcess] = {}
    given: dict[Link, int] = {}

    def give(link: Link) -> None:
        given[link] = waiting.popleft()
        with suppress(OSError):  # it is gone, which is noticed on receiving
            link.send(items[given[link]])

    try:
        for _ in range(min(jobs, len(waiting))):
            link, process = _started(context, work)
            processes[link] = process
            give(link)
        while given:
            for ready in connection.wait(list(given)):
                assert isinstance(ready, Connection)
                link, i = ready, given.pop(ready)
                done: Result | Lost
                try:
                    done = link.recv()
                except (EOFError, OSError):
                    gone = processes.pop(link)
                    gone.join()
                    done = Lost(f"the process that ran it ended with {_how(gone)}")
                    if waiting:
                        link, process = _started(context, work)
                        processes[link] = process
                if waiting:
                    give(link)
                yield i, done
    finally:
        for process in processes.values():
            process.kill()  # it holds nothing that could be half done
        for process in processes.values():
            process.join()


def _started(
    context: ForkServerContext, work: Callable[[Any], Any]
) -> tuple[Link, ForkServerProcess]:
    """A new process and the link to it."""
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(there, work), daemon=True)
    process.start()
    there.close()
    return here, process


def _work(link: Link, work: Callable[[Any], Any]) -> None:
    """What such a process does: work on what it is given, until nobody is there any more."""
    threading.Thread(target=_follow, daemon=True).start()
    warnings.simplefilter("ignore", PluginWarning)  # the command has told of it
    try:
        while True:
            item = link.recv()
            link.send(work(item))
    except (EOFError, OSError):
        return


def _follow() -> None:
    """End when the parent has, in the middle of an item too."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _how(process: ForkServerProcess) -> str:
    code = process.exitcode or 0
    return f"signal {-code}" if code < 0 else f"exit code {code}"
