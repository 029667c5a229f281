"""``spyrec completion`` and ``spyrec man``: the command line told to a shell and to man."""

from __future__ import annotations

from pathlib import Path

import click

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", short_help="Completion for a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(shell: str) -> None:
    """Print what lets SHELL complete commands, options and their values.

    \b
    spyrec completion bash > ~/.local/share/bash-completion/completions/spyrec
    spyrec completion zsh > ~/.zfunc/_spyrec
    spyrec completion fish > ~/.config/fish/completions/spyrec.fish
    """
    from click.shell_completion import get_completion_class

    from spyrec.cli import cli

    of_shell = get_completion_class(shell)
    assert of_shell is not None
    click.echo(of_shell(cli, {}, "spyrec", "_SPYREC_COMPLETE").source())


@click.command("man", short_help="Write manual pages.")
@click.option("-o", "--output", required=True, type=click.Path(file_okay=False), metavar="FOLDER",
              help="Where they go; made when it is not there.")
def man_command(output: str) -> None:
    """Write a manual page for each command into FOLDER, for man.

    \b
    spyrec man -o ~/.local/share/man/man1
    """
    from spyrec.cli import cli
    from spyrec.files import write_text
    from spyrec.manual import pages

    Path(output).mkdir(parents=True, exist_ok=True)
    made = pages(cli, "spyrec")
    for name, text in made.items():
        write_text(str(Path(output, name)), text)
    click.echo(f"{output}: {len(made)} pages")
