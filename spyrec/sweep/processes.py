"""Processes for sweeps: all are forked off one server, which loads the compiler while the command
that needs them still does so itself. So having several costs no more time than having one."""

from __future__ import annotations

import signal
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.context import ForkServerContext

LOADED = ("spyrec.sweep.point",)


def process_context() -> ForkServerContext:
    """The context that makes such processes; starts the server if there is none.

    Ctrl-C, which a terminal sends to all processes of a command, is the command's own: the server
    begins with SIGINT blocked, and so do all that come from it. They end with the command.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(list(LOADED))
    resource_tracker.ensure_running()  # before: it unblocks the signal again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context
