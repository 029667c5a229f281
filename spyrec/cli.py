"""The command line: the list of commands, and what exit code each kind of failure gets.

0 fine; 1 the model, program, data or a file is at fault; 2 usage; 70 a defect of spyrec;
130 interrupted. Commands import what they need when they run, so that --help is instant.
"""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import TextIO

import click

from spyrec import __version__
from spyrec.ir.errors import PluginWarning, SpyrecError
from spyrec.ir.near import listed
from spyrec.sim.errors import SimError

FAULT, USAGE, DEFECT, INTERRUPTED = 1, 2, 70, 130

COMMANDS = {
    "compile": "cli_compile",
    "simulate": "cli_simulate",
    "report": "cli_report",
    "explain": "cli_explain",
    "disasm": "cli_asm",
    "asm": "cli_asm",
    "devices": "cli_lists",
    "passes": "cli_lists",
    "ops": "cli_lists",
    "validate": "cli_validate",
    "compare": "cli_compare",
    "sweep": "cli_sweep",
    "completion": "cli_shell",
    "man": "cli_shell",
    "opt": "cli_opt",
    "bisect": "cli_bisect",
    "reduce": "cli_bisect",
    "check-rule": "cli_check_rule",
}
"""Command -> the module that holds it, imported when the command is asked for."""


class Commands(click.Group):
    """A group that imports a command's module only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"spyrec.{COMMANDS[cmd_name]}")
        command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            told = listed(args[0], COMMANDS, "spyrec --help lists all")
            raise click.UsageError(f"{error.message.rstrip('.')}; {told}", ctx) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="spyrec")
@click.option("--debug", is_flag=True, help="Show the Python traceback of a failure.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Compile models for a Spyre-class dataflow accelerator and simulate them cycle by cycle."""


THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""What tells numpy's matrix library, before it is loaded, how many threads to use."""


STOPPING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that stop a command as Ctrl-C does, so that no half-written file stays behind."""


def _stop(number: int, frame: FrameType | None) -> None:
    for other in STOPPING:
        signal.signal(other, signal.SIG_IGN)  # cleaning up is not interrupted again
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code.

    The simulator multiplies many small matrices: one thread is as fast as several on an idle
    machine and several times faster on a busy one. A number the user has set is kept.
    """
    for name in THREADS:
        os.environ.setdefault(name, "1")
    _open_streams()
    for number in STOPPING:
        if signal.getsignal(number) == signal.SIG_DFL:  # not ignored, as under nohup
            signal.signal(number, _stop)
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def _open_streams() -> None:
    """Streams that were closed by who started us are empty, so that no file takes their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (open to the end)


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; failures are told on stderr."""
    args = list(argv)
    debug = "--debug" in args
    if debug:  # may stand anywhere on the line
        args.remove("--debug")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warned
            result = cli.main(args, prog_name="spyrec", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted; files that were being written are left as they were")
        return INTERRUPTED
    except BrokenPipeError:
        # the reader of our output went away; nothing is wrong, and nothing more can be said there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAULT
    except (SpyrecError, SimError) as error:
        notes = getattr(error, "__notes__", []) if debug else []  # where in the compiler it was
        return _fault("\n".join([str(error), *notes]), debug)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _fault(f"{name}{error.strerror or error}", debug)
    except MemoryError as error:
        return _fault(f"not enough memory: {str(error) or 'an allocation failed'}", debug)
    except Exception as error:
        _say(f"defect of spyrec: {type(error).__name__}: {error}")
        if debug:
            traceback.print_exc()
        _say(f"reproduce it with: {shlex.join(['spyrec', '--debug', *args])}")
        return DEFECT


def _fault(message: str, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    _say(message)
    return FAULT


def _warned(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:
    """In the place of ``warnings.showwarning``: ours are sentences for the user."""
    if issubclass(category, PluginWarning):
        _say(f"warning: {message}")
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        click.echo(text, nl=False, err=True)


def _say(message: str) -> None:
    for line in message.splitlines() or [""]:
        click.echo(f"spyrec: {line}" if not line.startswith((" ", "\t")) else line, err=True)
