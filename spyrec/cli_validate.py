"""``spyrec validate``: simulated kernel times against measured ones, and what was not built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from spyrec.cli_path import NEW_FILE, Writing

if TYPE_CHECKING:
    from spyrec.validate import Outcome, Summary, Validation

HEADINGS = ("rows", "built", "RMS %", "mean %", "worst", "ratio", "Spearman")
IDS = 12  # rows a reason names; the JSON file has all of them


@click.command("validate", cls=Writing, short_help="Measured kernel times against simulated ones.")
@click.argument("measurements", type=click.Path(dir_okay=False))
@click.option("--json", "json_file", type=NEW_FILE, metavar="FILE",
              help="Where all figures go, with one record a row.")
@click.option("--device", default="spyre", show_default=True, metavar="NAME|FILE.toml",
              help="Machine to validate.")
def validate_command(measurements: str, json_file: str | None, device: str) -> None:
    """Compile and time each kernel of MEASUREMENTS.csv and compare with its measured time.

    Figures are of log(predicted / measured): root mean square and mean in percent, the row that is
    farthest off and its predicted over measured time, and the rank correlation.

    \b
    spyrec validate measurements.csv --json figures.json
    """
    from spyrec import files
    from spyrec.progress import progress_bar
    from spyrec.sim.device import load_device
    from spyrec.validate import validate
    from spyrec.validate_rows import read_rows

    spec = load_device(device)
    rows = read_rows(measurements)
    with progress_bar() as progress:
        done = validate(rows, spec.text, progress)
    if json_file is not None:
        files.write_text(json_file, done.as_json())
    click.echo("\n".join(report(done)))
    if json_file is not None:
        click.echo(f"json: {json_file}")


def report(done: Validation) -> Iterator[str]:
    """The lines the command prints: classes, then ops and variants, then what was built otherwise
    than measured, then what was not built."""
    built = len(done.outcomes) - len(done.unbuilt)
    yield f"{len(done.outcomes)} rows, {built} built, device {done.device}"
    yield from ("", *_table("class", done.classes))
    yield from ("", *_table("op variant", done.kinds))
    changed = [o for o in done.outcomes if o.remark]
    if changed:
        yield from ("", f"{len(changed)} rows built with another tile than measured:")
        yield from _reasons((o.remark, o) for o in changed)
    if done.unbuilt:
        yield from ("", f"{len(done.unbuilt)} rows not built:")
        yield from _reasons((o.reason, o) for o in done.unbuilt)


def _table(name: str, summaries: Sequence[Summary]) -> Iterator[str]:
    cells = [("stack", name, *HEADINGS), *map(_cells, summaries)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        left = [c.ljust(w) for c, w in zip(row[:2], widths[:2], strict=True)]
        right = [c.rjust(w) for c, w in zip(row[2:], widths[2:], strict=True)]
        yield "  ".join(left + right).rstrip()


def _cells(s: Summary) -> tuple[str, ...]:
    return (
        s.stack, s.name, str(s.rows), str(s.built), _number(s.rms_percent, ".1f"),
        _number(s.mean_percent, "+.1f"), s.worst_id or "-", _number(s.worst_ratio, ".2f"),
        _number(s.spearman, ".3f"),
    )  # fmt: skip


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _reasons(told: Iterator[tuple[str, Outcome]]) -> Iterator[str]:
    """Each reason once, with the stacks and rows it is of."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for reason, o in told:
        by_reason.setdefault((o.stack, reason), []).append(o.id)
    for (stack, reason), ids in by_reason.items():
        more = f" and {len(ids) - IDS} more" if len(ids) > IDS else ""
        yield f"  {stack}: {len(ids)} x {reason}: {', '.join(ids[:IDS])}{more}"
