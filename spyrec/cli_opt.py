"""``spyrec opt``: IR in, passes, IR out, with everything a pass author wants to see in between."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spyrec.cli_compile import no_collections
from spyrec.cli_passes import Places, pass_options
from spyrec.cli_path import NewFile, Number, Writing, write_out

if TYPE_CHECKING:
    from spyrec.ir.core import Module
    from spyrec.passes.manager import Compared, Hook, Timing
    from spyrec.workbench.watch import Change

STDIN = "-"


@click.command("opt", cls=Writing, short_help="Run passes over IR text.")
@click.argument("source", metavar="IN.sir", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--passes", metavar="SPEC",
              help="Passes to run, as 'canonicalize,fold{limit=64}'; 'usual' stands for the usual "
              "ones. Default: the usual ones with --before, --after or --until, else none: IN is "
              "checked and printed.")
@pass_options
@click.option("--until", metavar="PASS", help="Stop after this pass.")
@click.option("-o", "--output", type=NewFile("source"), help="Where to write. Default: stdout.")
@click.option("--no-weights", is_flag=True, help="Leave long constants out of the text.")
@click.option("--print-after", metavar="PASS|all", help="Show the IR after a pass, on stderr.")
@click.option("--print-changed", is_flag=True, help="Show what each pass changed, on stderr.")
@click.option("--verify-each", is_flag=True, help="Check the IR's rules after every pass.")
@click.option("--oracle-each", is_flag=True,
              help="Interpret the module before and after every pass and compare the results.")
@click.option("--tolerance", type=Number(min=0),
              help="Error that --oracle-each allows. Default: by the formats of the module.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Of the random inputs of --oracle-each.")
@click.option("--time-passes", is_flag=True, help="Show the seconds of each pass, on stderr.")
@click.option("--stats", is_flag=True, help="Show the ops each pass added and removed, on stderr.")
@click.option("--device", default="spyre", show_default=True, metavar="NAME|FILE.toml",
              help="Machine to compile for.")
@click.option("--numerics", type=click.Choice(["dl16", "ieee16", "fp32"]), default="dl16",
              show_default=True, help="Format tensors live in on the device.")
def opt_command(
    source: str, passes: str | None, loaded: Sequence[str], before: Places, after: Places,
    until: str | None, output: str | None, no_weights: bool, print_after: str | None,
    print_changed: bool, verify_each: bool, oracle_each: bool, tolerance: float | None, seed: int,
    time_passes: bool, stats: bool, device: str, numerics: Any,
) -> None:
    """Run passes over IN.sir (a model of another kind will do; - reads IR text from stdin) and
    print the IR they leave.

    \b
    spyrec compile model.onnx --emit ir --passes "" -o model.sir
    spyrec opt model.sir --passes decompose,canonicalize --print-changed --oracle-each
    spyrec opt model.sir --passes usual --until fuse | filecheck fuse.txt
    spyrec opt model.sir --load my_pass.py --passes my-pass
    """
    from spyrec.api import target_of
    from spyrec.driver import lower_module
    from spyrec.ir.errors import PassError
    from spyrec.ir.near import EVERY_PASS, listed
    from spyrec.ir.printer import print_module
    from spyrec.passes import manager
    from spyrec.progress import progress_bar
    from spyrec.workbench import plugins, states, watch

    target = target_of(device, numerics)
    with redirect_stdout(sys.stderr):  # whatever a file of passes prints
        known = plugins.known_passes(loaded)
    if passes is None:
        passes = plugins.USUAL if before or after or until is not None else ""
    pipeline = plugins.pipeline_of(passes, known, before, after)
    if until is not None:
        pipeline = plugins.until(pipeline, until)
    module = read_module(source)
    hooks: list[Hook] = []
    compared: list[Compared] = []
    if print_after is not None:
        if print_after != "all" and print_after not in known:
            told = listed(print_after, sorted(known), EVERY_PASS)
            raise PassError(f"--print-after: no pass is called {print_after!r}; {told}")
        hooks.append(manager.print_after(sys.stderr, print_after))
    if print_changed:
        hooks.append(watch.print_changed(sys.stderr))
    if verify_each:
        hooks.append(manager.verify_each())
    if oracle_each:
        inputs = manager.random_inputs(module, seed)
        limit = states.allowed if tolerance is None else tolerance
        hooks.append(manager.oracle(inputs, limit, compared))
    times: list[Timing] = []
    changes: list[Change] = []
    hooks += [manager.time_into(times), watch.change_into(changes)]
    with progress_bar() as progress, no_collections(), redirect_stdout(sys.stderr):
        module = lower_module(
            module, target, pipeline=pipeline, hook=manager.hooks(*hooks), progress=progress
        )
    if time_passes:
        _show(watch.time_table(times))
    if stats:
        _show(watch.change_table(changes))
    if verify_each:
        click.echo(f"verified: {_passes(len(changes))}, no rule of the IR is broken", err=True)
    if oracle_each:
        text = f"{_largest(compared)}{_unseen(compared)}"
        click.echo(f"compared: {_passes(len(compared))}{text}", err=True)
    write_out(print_module(module, data="elide" if no_weights else "full"), output)


def read_module(source: str) -> Module:
    """The module of a file, or of IR text on stdin for "-". SpyrecError when it is faulty."""
    from spyrec.api import import_model

    if source != STDIN:
        return import_model(Path(source), {}, {})
    from spyrec.ir.errors import ParseError
    from spyrec.ir.parser import parse_module
    from spyrec.ir.verifier import verify

    try:
        module = parse_module(sys.stdin.buffer.read().decode("utf-8"))
        verify(module)
    except UnicodeDecodeError as error:
        raise ParseError(f"stdin is not UTF-8 text: {error}") from None
    except ParseError as error:
        raise ParseError(f"stdin: {error}") from None
    return module


def _passes(n: int) -> str:
    return f"{n} {'pass' if n == 1 else 'passes'}"


def _largest(compared: Sequence[Compared]) -> str:
    """What was farthest off, of the error that was allowed there."""
    far = max(compared, key=lambda c: c.error, default=None)
    if far is None:
        return ""
    if not far.error:
        return ", all results equal"
    return (
        f", the largest error is {far.error:.3g}, of output {far.output} after {far.name}, allowed "
        f"is {far.allowed:.3g}"
    )


def _unseen(compared: Sequence[Compared]) -> str:
    """The outputs that are so small that errors in them are allowed, where they are not equal."""
    from spyrec.workbench.states import Faint, told_faint

    if not any(c.error for c in compared):
        return ""
    found: dict[str, Faint] = {}
    for i, c in enumerate(compared):
        for name, largest in c.faint.items():
            found.setdefault(name, Faint(name, largest, c.allowed, c.name if i else ""))
    told = told_faint(tuple(found.values()), "scale it, or give a smaller --tolerance")
    return f"; {told}" * bool(told)


def _show(table: Any) -> None:
    from rich.console import Console

    Console(stderr=True).print(table)
