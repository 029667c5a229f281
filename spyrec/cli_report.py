"""``spyrec report``: a report as a page for a browser."""

from __future__ import annotations

import click

from spyrec.cli_path import NEW_FILE, Writing


@click.command("report", cls=Writing, short_help="A report as an HTML page.")
@click.argument("report", metavar="REPORT.json", type=click.Path(exists=True, dir_okay=False))
@click.option("-o", "--output", required=True, type=NEW_FILE, help="Where the page goes, .html.")
@click.option("--plan", type=click.Path(exists=True, dir_okay=False),
              help="What --emit-plan wrote when the program was compiled: shows what was decided, "
              "why, and the best that was rejected.")
@click.option("--against", metavar="BEFORE.json", type=click.Path(exists=True, dir_okay=False),
              help="The report of another run, to compare this one with.")
def report_command(report: str, output: str, plan: str | None, against: str | None) -> None:
    """Write a report of `spyrec simulate --report` as one HTML page that needs no network: figures,
    timeline, roofline, scratchpads, ring, layouts, decisions and model nodes.

    \b
    spyrec compile model.onnx -o model.spx --emit-plan plan.json
    spyrec simulate model.spx --timing-only --report report.json
    spyrec report report.json -o report.html --plan plan.json
    """
    from spyrec import files
    from spyrec.api import read_plan
    from spyrec.compare import compare
    from spyrec.decision_log import decision_log
    from spyrec.html_report import html_report
    from spyrec.report_file import read_report

    run = read_report(report)
    log = None if plan is None else decision_log(run, read_plan(plan))
    changes = None if against is None else compare(read_report(against), run)
    files.write_text(output, html_report(run, log, changes))
    click.echo(f"page: {output}")
