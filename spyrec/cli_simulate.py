"""``spyrec simulate``: run an object file, print its kernels, write what was asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from spyrec.cli_compile import parse_sizes
from spyrec.cli_path import NEW_FILE, NewFile, Writing
from spyrec.sim.host import HOST_LAUNCHES

if TYPE_CHECKING:
    from spyrec.report import BucketUse

ENDLESS = 1000  # columns; a pipe has no width, so nothing is shortened to fit it


@click.command(
    "simulate", cls=Writing, short_help="Run a program: outputs, cycles, trace, hazards."
)
@click.argument("program", type=click.Path(dir_okay=False))
@click.option("--inputs", type=click.Path(dir_okay=False), help="Arrays by model input name, .npz.")
@click.option("--outputs", type=NewFile("inputs"), help="Where the outputs go, .npz.")
@click.option("--timing-only", is_flag=True, help="Count cycles without computing any number.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Of the random inputs that are made when --inputs is not given.")
@click.option("--check", is_flag=True,
              help="Look for races, undefined values and misused tokens first; find any and stop.")
@click.option("--trace", type=NEW_FILE, help="Where a Chrome trace goes, .json.")
@click.option("--trace-window", metavar="FROM:TO",
              help="Show all of that part of the run and nothing but launches of the rest. Each is "
              "a number followed by us or cycles (by nothing: us), or left out.")
@click.option("--report", type=NEW_FILE, help="Where the report goes, .json.")
@click.option("--host-launch", type=click.Choice(HOST_LAUNCHES),
              help="Tell what launching takes of the host too, when each launch constructs the job "
              "graph, only its compute side, or nothing.")
@click.option("--jobs", type=click.IntRange(min=1),
              help="Device jobs the host launches it as; by default those of the device file.")
@click.option("--bucket", multiple=True, metavar="DIM=INT",
              help="Of a program with buckets, the size to run. Default: the smallest that fits "
              "the inputs, without inputs the largest.")
@click.option("--device", metavar="NAME|FILE.toml",
              help="Machine to run on instead of the one the program was compiled for.")
def simulate_command(
    program: str,
    inputs: str | None,
    outputs: str | None,
    timing_only: bool,
    seed: int,
    check: bool,
    trace: str | None,
    trace_window: str | None,
    report: str | None,
    host_launch: str | None,
    jobs: int | None,
    bucket: Sequence[str],
    device: str | None,
) -> None:
    """Simulate PROGRAM.spx, compute its outputs and print one line per kernel.

    \b
    spyrec simulate model.spx --inputs in.npz --outputs out.npz
    spyrec simulate model.spx --timing-only --report report.json --trace trace.json
    """
    if timing_only and outputs:
        raise click.UsageError("--timing-only computes no numbers, so it has no --outputs to write")
    if jobs is not None and host_launch is None:
        raise click.UsageError("--jobs says how the host launches: say --host-launch too")
    if trace_window is not None and trace is None:
        raise click.UsageError("--trace-window says what a trace shows: say --trace too")
    sizes = parse_sizes("--bucket", bucket)
    from rich.console import Console

    from spyrec import api, files
    from spyrec.progress import progress_bar
    from spyrec.table import host_line, kernel_table

    loaded = api.load(program)
    arrays = None
    if inputs is not None:
        arrays = files.read_npz(inputs, lambda given: loaded.check(given, inputs))
    elif not timing_only:
        click.echo(f"inputs: none given, so random ones are made (seed {seed})", err=True)
    with progress_bar() as progress:
        result = api.simulate(
            loaded, arrays, timing_only=timing_only, seed=seed, device=device, trace=trace,
            trace_window=trace_window, check=check, host_launch=host_launch, jobs=jobs,
            progress=progress, bucket=sizes or None, detail=report is not None,
        )
    if result.facts.bucket is not None:
        click.echo(bucket_line(result.facts.bucket), err=True)
    if check:
        click.echo("check: no hazard found", err=True)
    for warning in result.warnings:
        click.echo(f"warning: {warning}", err=True)
    if outputs is not None:
        files.write_npz(outputs, result.outputs)
    if report is not None:
        files.write_text(report, result.facts.as_json())
    columns = Console().width if sys.stdout.isatty() else ENDLESS
    console = Console(width=ENDLESS)  # a terminal may break a line, but no number is cut
    with console.capture() as table:
        console.print(kernel_table(result.kernels, result.totals, columns))
    click.echo("\n".join(line.rstrip() for line in table.get().splitlines()))
    if result.facts.host is not None:
        click.echo(host_line(result.facts.host))
    for what, path in (("outputs", outputs), ("report", report), ("trace", trace)):
        if path is not None:
            click.echo(f"{what}: {path}")


def bucket_line(use: BucketUse) -> str:
    """``bucket: seq=64 for seq=50: 21.9% padding, 23.5% of the MACs``"""
    true = ",".join(f"{dim}={n}" for dim, n in use.true.items())
    return (
        f"bucket: {use.name} for {true}: {use.padding:.1%} padding, {use.macs_waste:.1%} of the "
        "MACs"
    )
