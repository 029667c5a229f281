"""Progress bars: on a terminal only, always on stderr, so that piped output stays clean."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is (0: unknown)."""


def silent(what: str, done: int, total: int) -> None:
    """The progress callback that shows nothing."""


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A callback that draws one bar while stderr is a terminal, else ``silent``."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:

        task = bars.add_task("", visible=False)

        def show(what: str, done: int, total: int) -> None:
            bars.update(
                task, description=what, completed=done, total=total or None, visible=True
            )

        yield show
