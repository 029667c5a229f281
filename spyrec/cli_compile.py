"""``spyrec compile``: a model file becomes an object file, a listing or IR text."""

from __future__ import annotations

import ast
import gc
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spyrec.cli_passes import Places, chosen, pass_options
from spyrec.cli_path import NewFile, Writing, write_out

if TYPE_CHECKING:
    from spyrec import api
    from spyrec.ir.core import Module
    from spyrec.passes.manager import Hook

MOST_SECONDS = 86400
MAX_DIGITS = 18  # of a dimension's size: more than any machine counts to


def _pairs(name: str, values: Sequence[str]) -> dict[str, str]:
    """``KEY=VALUE`` options as a dict; the key may itself hold "=" no more than a name may."""
    found: dict[str, str] = {}
    for text in values:
        key, equals, value = text.rpartition("=")
        if not equals or not key or not value:
            raise click.UsageError(f"{name} {text!r}: expected the form KEY=VALUE")
        if key in found:
            raise click.UsageError(f"{name} {key} is given twice")
        found[key] = value
    return found


def parse_sizes(option: str, values: Sequence[str]) -> dict[str, int]:
    """``["batch=1", "x:0=4"]`` -> ``{"batch": 1, "x:0": 4}``; click.UsageError on anything else."""
    found = {}
    for key, value in _pairs(option, values).items():
        if not _is_size(value):
            raise click.UsageError(f"{option} {key}={value}: expected a whole number, 0 or more")
        found[key] = int(value)
    return found


def parse_buckets(values: Sequence[str]) -> dict[str, list[int]]:
    """``["seq=64,128"]`` -> ``{"seq": [64, 128]}``; click.UsageError on anything else."""
    found = {}
    for key, value in _pairs("--buckets", values).items():
        sizes = value.split(",")
        if not all(map(_is_size, sizes)):
            raise click.UsageError(
                f"--buckets {key}={value}: expected whole numbers with commas between them"
            )
        found[key] = list(map(int, sizes))
    return found


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def parse_const(values: Sequence[str]) -> dict[str, Any]:
    """``["flag=true", "k=[1, 2]"]`` -> numbers, truth values or nested lists of them.

    The value may also be the path of an ``.npy`` file. click.UsageError on anything else.
    """
    return {k: _const(k, v) for k, v in _pairs("--const", values).items()}


def parse_budget(text: str | None) -> float | None:
    """``"10s"`` or ``"0.5"`` -> seconds; click.UsageError on anything else."""
    if text is None:
        return None
    number = text.removesuffix("s")
    try:
        seconds = float(number) if number.isascii() and number.strip() == number else -1.0
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MOST_SECONDS:
        raise click.UsageError(
            f"--plan-budget {text}: expected seconds from 0 to {MOST_SECONDS}, as 10s"
        )
    return seconds


def _const(key: str, text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.endswith(".npy"):
        return _array(key, text)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    if not _numeric(value):
        raise click.UsageError(
            f"--const {key}={text}: expected a number, true, false, a list of them or a .npy file"
        )
    return value


def _array(key: str, path: str) -> Any:
    import numpy as np

    from spyrec.ir.errors import SpyrecError

    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        first = str(error).splitlines()[0] if str(error) else "it is cut short"
        raise SpyrecError(f"--const {key}: {path} is not a plain .npy array: {first}") from None


def _numeric(value: object) -> bool:
    if isinstance(value, list):
        return all(_numeric(v) for v in value)
    return isinstance(value, bool | int | float)


@click.command("compile", cls=Writing, short_help="A model becomes a program.")
@click.argument("model", type=click.Path(dir_okay=False), required=False)
@click.option("--from-config", metavar="NAME|FILE.json",
              help="In place of MODEL: a language model by its configuration, without weights.")
@click.option("--prompt", type=click.IntRange(min=1), metavar="TOKENS",
              help="With --from-config: read that many tokens.")
@click.option("--decode", type=click.IntRange(min=1), metavar="TOKENS",
              help="With --from-config: make the next token after that many.")
@click.option("--layers", type=click.IntRange(min=1),
              help="With --from-config: fewer layers than the model has.")
@click.option("-o", "--output", type=NewFile("model"),
              help="File to write. Default: MODEL's name with .spx, here; stdout for text.")
@click.option("--bind", multiple=True, metavar="DIM=INT",
              help="Size of a dynamic dimension, by its name or as INPUT:AXIS=INT.")
@click.option("--buckets", multiple=True, metavar="DIM=INT,INT,...",
              help="Sizes of a dynamic dimension to compile for in one program; shares weights.")
@click.option("--const", multiple=True, metavar="INPUT=VALUE",
              help="Fix an input to a number, a list, or the array in an .npy file.")
@click.option("--device", default="spyre", show_default=True, metavar="NAME|FILE.toml",
              help="Machine to compile for.")
@click.option("--passes", metavar="SPEC",
              help="Pipeline to run instead of the usual one, which 'usual' stands for in it.")
@pass_options
@click.option("--planner", type=click.Choice(["joint", "baseline"]), default="joint",
              show_default=True, help="Who decides: ours, or the published heuristics.")
@click.option("--plan", type=click.Path(dir_okay=False), help="Decisions to pin, .json.")
@click.option("--plan-budget", metavar="SECONDS",
              help="Nominal seconds to look for better plans by simulation, as 10s; 0 for none. "
              "Default: what suits the model.")
@click.option("--emit-plan", type=NewFile("plan"), help="Where to write the full plan.")
@click.option("--emit", type=click.Choice(["ir", "asm", "spx"]), default="spx", show_default=True,
              help="IR text after the last pass, assembler listing or object file.")
@click.option("--no-weights", is_flag=True,
              help="Leave long constants out of IR text and listing.")
@click.option("--print-after", metavar="PASS|all", help="Show the IR after a pass, on stderr.")
@click.option("--verify-each", is_flag=True, help="Check the IR's rules after every pass.")
@click.option("--no-cache", is_flag=True,
              help="Compile anew and keep nothing; see SPYREC_CACHE in docs/cache.md.")
@click.option("--numerics", type=click.Choice(["dl16", "ieee16", "fp32"]), default="dl16",
              show_default=True, help="Format tensors live in on the device.")
def compile_command(
    model: str | None,
    from_config: str | None,
    prompt: int | None,
    decode: int | None,
    layers: int | None,
    output: str | None,
    bind: Sequence[str],
    buckets: Sequence[str],
    const: Sequence[str],
    device: str,
    passes: str | None,
    loaded: Sequence[str],
    before: Places,
    after: Places,
    planner: str,
    plan: str | None,
    plan_budget: str | None,
    emit_plan: str | None,
    emit: str,
    no_weights: bool,
    print_after: str | None,
    verify_each: bool,
    no_cache: bool,
    numerics: Any,
) -> None:
    """Compile MODEL (.onnx, .pt2, or IR text in .sir) into a program for the simulated device.

    \b
    spyrec compile model.onnx --bind batch=1 -o model.spx
    spyrec compile model.onnx --buckets seq=64,128
    spyrec compile model.onnx --emit ir --print-after fuse
    """
    bindings, constants = parse_sizes("--bind", bind), parse_const(const)
    sizes = parse_buckets(buckets)
    if sizes and emit == "ir":
        raise click.UsageError("--emit ir shows the IR of one size; use --bind, not --buckets")
    if no_weights and emit == "spx":
        raise click.UsageError("--no-weights is for --emit ir and --emit asm; a program needs them")
    if passes is not None and planner != "joint":
        raise click.UsageError("--passes and --planner both choose the passes; leave one out")
    from spyrec import api, files
    from spyrec.progress import progress_bar

    aside = redirect_stdout(sys.stderr)  # what passes print is no part of IR or listing
    with aside:
        hook = _hook(print_after, verify_each, loaded)
        put_in = chosen(passes, planner, loaded, before, after)
    options: dict[str, Any] = {
        "bind": bindings, "const": constants, "device": device, "numerics": numerics, **put_in,
        "plan": plan, "plan_budget": parse_budget(plan_budget), "hook": hook,
    }
    source, stem, name = source_of(model, from_config, prompt, decode, layers)
    if emit == "ir" and emit_plan is None:  # any pipeline will do, also one that stops early
        with progress_bar() as progress, no_collections(), aside:
            module = api.lower(source, **options, progress=progress)
        _warn(api.oddities(module))
        _verified(verify_each)
        write_out(_ir(module, no_weights), output)
        return
    cached = not no_cache and emit != "ir"  # which needs what only compiling gives
    with progress_bar() as progress, no_collections(), aside:
        program = api.compile(
            source, **options, progress=progress, cache=cached, buckets=sizes or None
        )
    program = api.named(program, name)
    if program.from_cache and sys.stderr.isatty():
        click.echo("taken from the cache; --no-cache compiles anew", err=True)
    _warn(program.warnings)
    _verified(verify_each)
    if emit == "ir":
        assert program.module is not None
        write_out(_ir(program.module, no_weights), output)
    elif emit == "asm":
        from spyrec.sim.listing import disassemble

        write_out(disassemble(program.code, data=not no_weights), output)
    else:
        target = output or f"{stem}.spx"
        program.save(target)
        kernels = _counted(len(program.code.kernels), "kernel", "kernels")
        started = sum(not launch.joint for launch in program.code.launches)
        launches = _counted(started, "launch", "launches")
        click.echo(f"{target}: {kernels}, {launches}{_buckets(program)}")
    if emit_plan is not None:
        files.write_text(emit_plan, json.dumps(program.plan, indent=1) + "\n")
        click.echo(f"plan: {emit_plan}", err=emit != "spx" and output is None)


def _verified(each: bool) -> None:
    if each:
        click.echo("verified: after each pass, no rule of the IR is broken", err=True)


def source_of(
    model: str | None, config: str | None, prompt: int | None, decode: int | None,
    layers: int | None,
) -> tuple[Any, str, str]:
    """What to compile, what to call its file, and what to call it in reports. click.UsageError when
    that is none or more than one."""
    if (model is None) == (config is None):
        raise click.UsageError("expected either MODEL or --from-config")
    if config is None:
        assert model is not None
        if (prompt, decode, layers) != (None, None, None):
            raise click.UsageError("--prompt, --decode and --layers are for --from-config")
        return model, Path(model).stem, Path(model).name
    if (prompt is None) == (decode is None):
        raise click.UsageError("--from-config needs either --prompt or --decode")
    from spyrec.frontend.torch_config import ConfiguredModel, read_card

    source = ConfiguredModel(read_card(config), prompt, decode, layers)
    stem = f"{Path(config).name.removesuffix('.json')}-{'prompt' if prompt else 'decode'}"
    cut = f", {layers} layers" if layers else ""
    return source, stem, f"{stem} {prompt or decode}{cut}"


@contextmanager
def no_collections() -> Iterator[None]:
    """Without the collector of garbage in cycles: a compilation makes hardly any, and looking
    through millions of live objects again and again takes a tenth of its time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _counted(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def _buckets(program: api.Program) -> str:
    """What to say of a program's buckets."""
    if not program.buckets:
        return ""
    from spyrec.buckets import weight_bytes
    from spyrec.table import size

    shared, apart = weight_bytes(program.code)
    names = " ".join(b.name for b in program.code.buckets)
    told = f"{size(shared)} shared, {size(apart)} apart" if apart else f"{size(shared)}, all shared"
    return f"; buckets {names}: weights {told}" if shared + apart else f"; buckets {names}"


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def _ir(module: Module, no_weights: bool) -> str:
    from spyrec.ir.printer import print_module

    return print_module(module, data="elide" if no_weights else "full")


def _hook(print_after: str | None, verify_each: bool, loaded: Sequence[str]) -> Hook | None:
    from spyrec.ir.errors import PassError
    from spyrec.ir.near import EVERY_PASS, listed
    from spyrec.passes import manager
    from spyrec.workbench.plugins import known_passes

    parts = []
    if print_after is not None:
        known = known_passes(loaded)
        if print_after != "all" and print_after not in known:
            told = listed(print_after, sorted(known), EVERY_PASS)
            raise PassError(f"--print-after: no pass is called {print_after!r}; {told}")
        parts.append(manager.print_after(sys.stderr, print_after))
    if verify_each:
        parts.append(manager.verify_each())
    return manager.hooks(*parts) if parts else None
