"""Options that name a file to write, and text that goes there or to stdout."""

from __future__ import annotations

import os
from typing import Any

import click


class NewFile(click.Path):
    """The path of a file. "-" is refused: what a command prints is not mixed with a file."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if value == "-":
            self.fail("'-' is no file name here; give the path of a file", param, ctx)
        return super().convert(value, param, ctx)


NEW_FILE = NewFile()


def write_out(text: str, output: str | None) -> None:
    """Write text to a file, or to stdout when there is none."""
    from spyrec.files import write_text

    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)
