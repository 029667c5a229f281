"""``spyrec compare``: two reports, kernel by kernel."""

from __future__ import annotations

import json

import click

from spyrec.cli_path import NEW_FILE, Writing, write_out

SLOWER = 1


def percent(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """``"5%"`` or ``"5"`` -> 0.05."""
    if value is None:
        return None
    text = value.strip().removesuffix("%").strip()
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1e6:
        raise click.BadParameter(f"{value}: expected a percentage from 0, as 5%", ctx, param)
    return number / 100


@click.command("compare", cls=Writing, short_help="Two runs, kernel by kernel.")
@click.argument("before", metavar="A.json", type=click.Path(exists=True, dir_okay=False))
@click.argument("after", metavar="B.json", type=click.Path(exists=True, dir_okay=False))
@click.option("--threshold", metavar="PERCENT", callback=percent,
              help="Exit code 1 when a kernel, or the whole run, takes so much longer, as 5%.")
@click.option("--least", type=click.IntRange(min=0), default=0, show_default=True,
              metavar="CYCLES", help="A difference of fewer cycles is not slower.")
@click.option("--all", "every", is_flag=True, help="Show kernels that did not change, too.")
@click.option("--json", "as_json", type=NEW_FILE, help="Where all figures go.")
@click.option("-o", "--output", type=NEW_FILE, help="Where the table goes. Default: stdout.")
def compare_command(
    before: str, after: str, threshold: float | None, least: int, every: bool,
    as_json: str | None, output: str | None,
) -> int:
    """Compare two reports of `spyrec simulate --report`, A before and B after a change, as
    markdown that suits a pull request. Kernels are paired by the model nodes they carry out.

    \b
    spyrec simulate old.spx --timing-only --report a.json
    spyrec simulate new.spx --timing-only --report b.json
    spyrec compare a.json b.json --threshold 2%
    """
    from spyrec import files
    from spyrec.compare import compare
    from spyrec.compare_text import markdown
    from spyrec.report_file import read_report

    found = compare(read_report(before), read_report(after))
    write_out(markdown(found, threshold, least, every), output)
    if as_json is not None:
        files.write_text(as_json, json.dumps(found.as_dict(), indent=1) + "\n")
    if threshold is None:
        return 0
    slower = found.slower(threshold, least)
    for pair in slower:
        click.echo(
            f"slower by more than {threshold:.2%}: {pair.names[1]}, {pair.before:,} -> "
            f"{pair.after:,} cycles", err=True,
        )
    if found.total_slower(threshold, least):
        a, b = found.cycles
        click.echo(f"slower by more than {threshold:.2%}: the run, {a:,} -> {b:,}", err=True)
        return SLOWER
    return SLOWER if slower else 0
