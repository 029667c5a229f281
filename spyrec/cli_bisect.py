"""``spyrec bisect`` and ``spyrec reduce``: which pass broke a model, and the smallest model that
shows it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spyrec.cli_compile import parse_const, parse_sizes
from spyrec.cli_opt import read_module
from spyrec.cli_passes import Places, pass_options
from spyrec.cli_path import NewFile, Number, Writing

if TYPE_CHECKING:
    from spyrec.ir.core import Module
    from spyrec.passes.manager import Pipeline
    from spyrec.workbench.bisect import Finding

FOUND = 1


@click.command("bisect", cls=Writing, short_help="Find the pass that breaks a model.")
@click.argument("model", type=click.Path(dir_okay=False))
@click.option("--bind", multiple=True, metavar="DIM=INT",
              help="Size of a dynamic dimension, by its name or as INPUT:AXIS=INT.")
@click.option("--const", multiple=True, metavar="INPUT=VALUE",
              help="Fix an input to a number, a list, or the array in an .npy file.")
@click.option("--passes", metavar="SPEC",
              help="Pipeline to run instead of the usual one, which 'usual' stands for in it.")
@pass_options
@click.option("--inputs", type=click.Path(dir_okay=False), metavar="IN.npz",
              help="Inputs to compare results with. Default: random ones.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Of random inputs.")
@click.option("--tolerance", type=Number(min=0),
              help="Allowed error of results. Default: by the formats of the module.")
@click.option("--no-reduce", is_flag=True, help="Name the pass only.")
@click.option("--tries", type=click.IntRange(min=1), default=2000, show_default=True,
              help="Most smaller models to try.")
@click.option("-o", "--output", type=NewFile("model"),
              help="Where to write the smallest model. Default: MODEL's name with .bisect.sir.")
@click.option("--device", default="spyre", show_default=True, metavar="NAME|FILE.toml",
              help="Machine to compile for.")
@click.option("--numerics", type=click.Choice(["dl16", "ieee16", "fp32"]), default="dl16",
              show_default=True, help="Format tensors live in on the device.")
def bisect_command(
    model: str, bind: Sequence[str], const: Sequence[str], passes: str | None,
    loaded: Sequence[str], before: Places, after: Places, inputs: str | None, seed: int,
    tolerance: float | None, no_reduce: bool, tries: int, output: str | None, device: str,
    numerics: Any,
) -> int:
    """Find the first pass after which MODEL fails, is not well formed, or computes something else,
    and the smallest model that shows it. Code generation counts as the last pass: the program is
    simulated.

    Exit code 0: nothing is wrong; 1: a pass is named.

    \b
    spyrec bisect model.onnx --load my_pass.py --after fuse my-pass
    """
    from spyrec import files
    from spyrec.api import import_model, target_of
    from spyrec.driver import check_beginning, with_budget
    from spyrec.ir.printer import print_module
    from spyrec.progress import progress_bar
    from spyrec.workbench import part, plugins
    from spyrec.workbench.bisect import Bisection
    from spyrec.workbench.states import told_faint

    target = target_of(device, numerics)
    known = plugins.known_passes(loaded)
    pipeline = with_budget(plugins.pipeline_of(passes, known, before, after), None)
    module = import_model(Path(model), parse_sizes("--bind", bind), parse_const(const))
    if passes is None:
        check_beginning(module)
    given = None if inputs is None else _inputs(module, inputs)
    with progress_bar() as progress:
        search = Bisection(pipeline, target, tolerance, seed, progress)
        outcome = search.search(module, given)
        found = outcome.finding
        if found is None:
            click.echo(f"{len(pipeline)} passes and none of them breaks {Path(model).name}")
            if small := told_faint(outcome.faint, "give --inputs that make it larger, or scale it"):
                click.echo(small)
            return 0
    _tell(found, pipeline)  # before the reduction, which takes longer and may be stopped
    if outcome.rounding:
        click.echo(
            "no pass breaks the model under --numerics fp32, so this may be rounding to 16 bits "
            "alone: look for other faults with --numerics fp32, allow more with --tolerance, or "
            "give inputs of the usual size with --inputs"
        )
    if not no_reduce:
        with progress_bar() as progress:
            reduced = replace(search, progress=progress).smallest(module, found, tries)
        path = output or f"{Path(model).stem}.bisect.sir"
        files.write_text(path, print_module(reduced))
        n = part.weight(reduced)
        click.echo(f"smallest model that shows it, {n} {'op' if n == 1 else 'ops'}, in {path}:")
        click.echo(print_module(reduced, data="elide"), nl=False)
    return FOUND


def _tell(found: Finding, passes: Pipeline) -> None:
    what = {
        "fails": "fails", "malformed": "leaves a malformed module", "differs": "changes results",
    }
    of = f"pass {found.number} of {len(passes)}, " if found.number <= len(passes) else ""
    click.echo(f"{of}{found.step}, {what[found.kind]}: {found.told}")
    if planned := found.carries_out(passes):
        click.echo(
            f"{found.step} carries out what {', '.join(planned)} decided, and results do not show "
            "that before: the fault may be theirs"
        )


def _inputs(module: Module, path: str) -> dict[str, Any]:
    from spyrec import files
    from spyrec.ir.errors import SpyrecError

    read = files.read_npz(path)
    missing = [v.name for v in module.body.args if v.name not in read]
    if missing:
        raise SpyrecError(f"{path} lacks the inputs {', '.join(missing)}")
    return dict(read)


@click.command("reduce", cls=Writing, short_help="Shrink a model that makes a command fail.")
@click.argument("source", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--test", "command", required=True, metavar="CMD",
              help="Command that fails; {} stands for the candidate's file, which else comes last.")
@click.option("--match", metavar="TEXT", help="What the command must print when it fails.")
@click.option("--timeout", type=Number(0.1, 86400), default=60.0, show_default=True,
              metavar="SECONDS", help="A command that takes longer has not failed.")
@click.option("--tries", type=click.IntRange(min=1), default=2000, show_default=True,
              help="Most candidates to try.")
@click.option("-o", "--output", type=NewFile("source"),
              help="Where to write. Default: FILE's name with .reduced.sir.")
def reduce_command(
    source: str, command: str, match: str | None, timeout: float, tries: int, output: str | None
) -> None:
    """Drop ops of FILE (IR text, or another model), shrink its sizes, simplify attributes and
    constants, as long as CMD still fails as it does with FILE: with the same exit code.

    \b
    spyrec reduce model.sir --test "spyrec opt {} --passes usual --oracle-each -o out.sir"
    """
    from spyrec import files
    from spyrec.ir.printer import print_module
    from spyrec.progress import progress_bar
    from spyrec.workbench import part
    from spyrec.workbench.probe import Probe
    from spyrec.workbench.reduce import Reduction

    try:
        words = shlex.split(command)
    except ValueError as error:
        raise click.UsageError(f"--test {command}: {error}") from None
    if not words:
        raise click.UsageError("--test: expected a command")
    module = read_module(source)
    with Probe(words, match, timeout) as probe, progress_bar() as progress:
        probe.expect(module)
        reduction = Reduction(probe, progress, tries)
        small = reduction.run(module)
    stem = "stdin" if source == "-" else Path(source).stem
    path = output or f"{stem}.reduced.sir"
    files.write_text(path, print_module(small))
    counts = [part.weight(m) for m in (module, small)]
    stopped = "; stopped at --tries" if reduction.tries >= tries else ""
    click.echo(
        f"{path}: {counts[0]} ops -> {counts[1]}, {reduction.tries} candidates tried{stopped}",
    )
