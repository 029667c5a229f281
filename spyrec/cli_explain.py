"""``spyrec explain``: what was decided for each kernel, what was not, and what would help."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from spyrec.cli_compile import (
    compile_command,
    no_collections,
    parse_budget,
    parse_const,
    parse_sizes,
    source_of,
)
from spyrec.cli_passes import Places, chosen
from spyrec.cli_path import NEW_FILE, Writing
from spyrec.cli_simulate import ENDLESS

OF_MODELS = (
    "bind", "const", "device", "passes", "loaded", "before", "after", "planner", "plan_budget",
    "numerics",
)  # fmt: skip
COMPILED_WITH = ("model", "from_config", "prompt", "decode", "layers", "plan", *OF_MODELS)
"""Parameters that mean here what they mean to ``spyrec compile``; the first are of no use to a
program that is compiled."""


@click.command(
    "explain", cls=Writing, short_help="Why each kernel takes its time, and what would help.",
    params=[p for p in compile_command.params if p.name in COMPILED_WITH],
)
@click.option("--kernel", multiple=True, metavar="NAME",
              help="Tell of kernels called so: part of the name, or a pattern with * and ?.")
@click.option("--top", type=click.IntRange(min=1),
              help="How many kernels to tell of, the longest first. Default: 5, with --kernel all.")
@click.option("--try", "tries", is_flag=True,
              help="Pin each alternative of these kernels, compile and simulate it.")
@click.option("--json", "json_file", type=NEW_FILE, metavar="FILE",
              help="Where all figures of all kernels go.")
def explain_command(
    model: str | None,
    from_config: str | None,
    prompt: int | None,
    decode: int | None,
    layers: int | None,
    bind: Sequence[str],
    const: Sequence[str],
    device: str,
    passes: str | None,
    loaded: Sequence[str],
    before: Places,
    after: Places,
    plan: str | None,
    planner: str,
    plan_budget: str | None,
    numerics: Any,
    kernel: Sequence[str],
    top: int | None,
    tries: bool,
    json_file: str | None,
) -> None:
    """Compile MODEL, simulate its time, and tell of each kernel what was decided, what was given up
    at what price, which floor it runs into, and what would make it faster.

    MODEL may be a program (.spx); with --plan, the file that --emit-plan wrote beside it.

    \b
    spyrec explain model.onnx --bind batch=1
    spyrec explain model.onnx --kernel matmul --try
    spyrec explain model.onnx --kernel 'k1?_*' --top 20 --json explained.json
    spyrec explain model.spx --plan plan.json
    """
    if passes is not None and planner != "joint":
        raise click.UsageError("--passes and --planner both choose the passes; leave one out")
    bindings, constants = parse_sizes("--bind", bind), parse_const(const)
    source, _, name = source_of(model, from_config, prompt, decode, layers)
    options: dict[str, Any] = {
        "bind": bindings, "const": constants, "device": device, "numerics": numerics,
        "plan_budget": parse_budget(plan_budget),
    }  # fmt: skip
    compiled = isinstance(source, str) and source.lower().endswith(".spx")
    if compiled:
        _only_for_models(tries)
    from rich.console import Console

    from spyrec import api, files
    from spyrec.explain_model import explain, shown
    from spyrec.explain_table import explained
    from spyrec.progress import progress_bar

    if compiled:
        source, options = api.load(source), {}
    else:
        options |= chosen(passes, planner, loaded, before, after)
    with progress_bar() as progress, no_collections():
        told = explain(
            source, kernel=kernel, tries=tries, top=top, plan=plan, progress=progress, **options
        )
    if from_config is not None:
        told = replace(told, model=name)
    if json_file is not None:
        files.write_text(json_file, told.as_json())
    columns = Console().width if sys.stdout.isatty() else ENDLESS
    console = Console(width=ENDLESS)
    with console.capture() as text:
        for piece in explained(told, shown(kernel, top), columns):
            console.print(piece)
    click.echo("\n".join(line.rstrip() for line in text.get().splitlines()))
    if json_file is not None:
        click.echo(f"json: {json_file}")


def _only_for_models(tries: bool) -> None:
    """UsageError when an option was given that a program has no use for."""
    context = click.get_current_context()
    told = click.core.ParameterSource.COMMANDLINE
    given = [
        p.opts[0] for p in context.command.params
        if p.name in OF_MODELS and context.get_parameter_source(p.name) is told
    ]
    given += ["--try"] * tries
    if given:
        raise click.UsageError(f"{', '.join(given)}: for a model; a program is compiled already")
