"""Options that several commands share: passes from files, and passes put in by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
Places = Sequence[tuple[str, str]]

_OPTIONS = (
    click.option("--load", "loaded", multiple=True, type=click.Path(dir_okay=False),
                 metavar="FILE.py", help="Passes of your own; their names can then be used."),
    click.option("--before", multiple=True, type=(str, str), metavar="PASS SPEC",
                 help="Put passes before the first PASS of the pipeline."),
    click.option("--after", multiple=True, type=(str, str), metavar="PASS SPEC",
                 help="Put passes after the last PASS of the pipeline."),
)  # fmt: skip


def pass_options(command: Command) -> Command:
    """Adds ``--load``, ``--before`` and ``--after`` to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chosen(
    passes: str | None, planner: str, loaded: Sequence[str], before: Places, after: Places
) -> dict[str, Any]:
    """What ``spyrec.compile`` takes as ``passes`` and ``planner``: both as they are when nothing is
    put in (then the program may come from the cache), else passes. PassError when a name is
    unknown."""
    put_in = bool(loaded or before or after)
    if not put_in and passes is None:
        return {"passes": None, "planner": planner}
    from spyrec.passes.pipeline import PLANNERS
    from spyrec.workbench.plugins import known_passes, pipeline_of, spelt_out

    if not put_in:
        return {"passes": passes and spelt_out(passes), "planner": planner}
    known = known_passes(loaded)
    return {"passes": pipeline_of(passes, known, before, after, base=PLANNERS[planner])}
