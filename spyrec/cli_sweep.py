"""``spyrec sweep``: one figure after the other over a grid of machines, plans and models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from spyrec.cli_compile import parse_const
from spyrec.cli_passes import Places, pass_options
from spyrec.cli_path import NEW_FILE, Writing

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from spyrec.passes.manager import Registry
    from spyrec.sweep.grid import Axis
    from spyrec.sweep.point import Outcome, Task
    from spyrec.sweep.settings import Settings

FAILED, DEFECT = 1, 70
ERRORS_TOLD = 10
MODEL_FILES = (".onnx", ".pt2", ".sir")


def _completed(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Parameters of a device that begin so, else files; without the compiler, which takes long to
    load."""
    from click.shell_completion import CompletionItem

    from spyrec.sim.device_values import parameters

    names = [f"{n}=" for n in ("cores", *parameters()) if incomplete and n.startswith(incomplete)]
    return [CompletionItem(n) for n in names] or [CompletionItem(incomplete, type="file")]


@click.command("sweep", cls=Writing, short_help="Run models over a grid of machines and plans.")
@click.argument("what", metavar="[MODEL]... [KEY=VALUE,VALUE,...]...", nargs=-1,
                shell_complete=_completed)
@click.option("-o", "--output", required=True, type=NEW_FILE, metavar="FILE.csv|FILE.parquet",
              help="Where the rows go, one a point.")
@click.option("--points", type=click.Path(exists=True, dir_okay=False),
              metavar="FILE.csv|FILE.json",
              help="Points that are no grid: a column, or a key of each object, for each KEY.")
@click.option("--device", multiple=True, metavar="NAME|FILE.toml",
              help="A machine to start from; may be given several times.")
@click.option("--passes", multiple=True, metavar="SPEC",
              help="A pipeline to run instead of the usual one; may be given several times.")
@pass_options
@click.option("--const", multiple=True, metavar="INPUT=VALUE",
              help="Fix an input of the models to a number, a list, or the array in an .npy file.")
@click.option("-j", "--jobs", type=click.IntRange(min=1),
              help="Processes of this machine to use. Default: one a core.")
@click.option("--scheduler", metavar="ADDRESS",
              help="Use the Dask cluster with this scheduler instead, as tcp://host:8786.")
@click.option("--plot", type=NEW_FILE, metavar="FILE.svg", help="Draw the result, too.")
@click.option("--x", metavar="KEY", help="Along the picture. Default: the first with two values.")
@click.option("--y", metavar="COLUMN", default="total_us", show_default=True,
              help="What to draw: a column of the result.")
def sweep_command(
    what: Sequence[str], output: str, points: str | None, device: Sequence[str],
    passes: Sequence[str], loaded: Sequence[str], before: Places, after: Places,
    const: Sequence[str], jobs: int | None, scheduler: str | None,
    plot: str | None, x: str | None, y: str,
) -> int:
    """Compile and simulate each MODEL at every combination of values and write a row for each.

    KEY is a parameter of the device by its dotted name (cores is short for cores.count), bind.DIM,
    planner, numerics or plan-budget. A sweep that was stopped goes on where it was when it is
    started again.

    \b
    spyrec sweep model.onnx cores=8,16,32 ring.bytes_per_cycle=64,128 -o sweep.csv
    spyrec sweep a.onnx b.onnx planner=joint,baseline -o planners.csv --plot planners.svg
    """
    if jobs is not None and scheduler is not None:
        raise click.UsageError("--jobs is for this machine, --scheduler for a cluster")
    constants = parse_const(const)
    if jobs != 1 and scheduler is None:
        from spyrec.processes import process_context

        process_context("spyrec.sweep.point")  # loads what it needs while this process does
    from spyrec import files
    from spyrec.processes import usable_cores
    from spyrec.progress import progress_bar
    from spyrec.sweep import tables
    from spyrec.sweep.cluster import run_dask
    from spyrec.sweep.journal import Journal
    from spyrec.sweep.local import run_local
    from spyrec.sweep.plot import svg
    from spyrec.sweep.point import Own, compiler
    from spyrec.sweep.run import Runner, measured, prepare, rows_of
    from spyrec.workbench.plugins import known_passes, read_file

    own = Own(tuple(map(read_file, loaded)), tuple(before), tuple(after))
    grid = _points(what, points, device, passes, known_passes(own.files))
    along = _along(grid, x, y) if plot is not None else ""
    tables.check_result(output)
    runner: Runner = partial(run_local, jobs=jobs or usable_cores())
    if scheduler is not None:
        runner = partial(run_dask, address=scheduler)
    with progress_bar() as progress, Journal(output, compiler()) as journal:
        sweep = prepare(grid, constants, progress, own)
        _tell_passing(sum(not task.lasting for task in sweep.tasks))
        outcomes, n_known = measured(sweep, journal, runner, progress)
        rows = rows_of(sweep, outcomes)
        tables.write_rows(output, rows)
        if plot is not None:
            files.write_text(plot, svg(rows, along, y))
        kept = not all(outcome.lasting for outcome in outcomes.values())
        if not kept:
            journal.remove()
    n_points = f"{len(rows)} point{'s' if len(rows) != 1 else ''}"
    known = f", {n_known} from {journal.path}" if n_known else ""
    click.echo(f"{output}: {n_points}{known}")
    failed = [(t, outcomes[t.id]) for t in sweep.tasks if outcomes[t.id].error]
    _tell(failed, str(journal.path) if kept else None)
    if any(outcome.defect for _, outcome in failed):
        return DEFECT
    return FAILED if failed else 0


def _tell_passing(n: int) -> None:
    """What will not be there when the sweep is stopped."""
    if n:
        click.echo(
            f"note: {n} point{'s' if n != 1 else ''} with passes of which nobody can tell whether "
            "they are the same next time, as those of other distributions: if the sweep is stopped "
            "they are measured anew; a file given with --load that imports nothing else is known",
            err=True,
        )


def _points(
    what: Sequence[str], path: str | None, device: Sequence[str], passes: Sequence[str],
    known: Registry,
) -> tuple[Settings, ...]:
    """The grid. All that is wrong with it is told at once, as a matter of usage; SpyrecError for
    the file of points."""
    from spyrec.ir.errors import SpyrecError
    from spyrec.sweep.grid import MODEL, Refusals, grid_axis, option_axis, points_of, read_points

    refused = Refusals(known)
    models = [w for w in what if w.lower().endswith(MODEL_FILES) or "=" not in w]
    axes: list[Axis] = [tuple({MODEL: model} for model in models)] if models else []
    if twice := [m for i, m in enumerate(models) if m in models[:i]]:
        refused.say(f"model {twice[0]} is given twice")
    in_file = Refusals(known)
    if path is not None:
        axes.append(read_points(path, in_file))
    axes += [option_axis("device", device, refused)] if device else []
    axes += [option_axis("passes", passes, refused)] if passes else []
    axes += [grid_axis(w, refused) for w in what if w not in models]
    if in_file and not refused:
        raise SpyrecError(str(in_file))
    for sentence in in_file.said:
        refused.say(sentence)
    grid = points_of(axes, refused)
    if not refused and not all(MODEL in point for point in grid):
        refused.say("no model is given")
    if refused:
        raise click.UsageError(str(refused))
    return grid


def _along(grid: Sequence[Settings], x: str | None, y: str) -> str:
    """What to draw along the picture. click.UsageError when that, or ``y``, is no such column."""
    from spyrec.sweep.grid import MODEL, swept
    from spyrec.sweep.point import FIGURES
    from spyrec.sweep.settings import full_name

    if y not in FIGURES:
        raise click.UsageError(f"--y {y}: expected one of {', '.join(FIGURES)}")
    names = swept(grid)
    if x is not None:
        if full_name(x) not in names:
            raise click.UsageError(f"--x {x}: the sweep sets {', '.join(names)}")
        return full_name(x)
    several = [n for n in names if n != MODEL and len({point.get(n) for point in grid}) > 1]
    return several[0] if several else MODEL


def _tell(failed: Sequence[tuple[Task, Outcome]], kept: str | None) -> None:
    """The points without figures, on stderr."""
    for task, outcome in failed[:ERRORS_TOLD]:
        click.echo(f"{task.label}: {outcome.error}", err=True)
    if len(failed) > ERRORS_TOLD:
        click.echo(f"and {len(failed) - ERRORS_TOLD} more points without figures", err=True)
    if kept is not None:
        click.echo(f"finished points are kept in {kept}; the others may go better again", err=True)
