"""Options that name a file to write or give a number, and text that goes to a file or stdout."""

from __future__ import annotations

import os
from math import isnan
from typing import Any

import click

from spyrec.ir.errors import SpyrecError


class NewFile(click.Path):
    """The path of a file in a folder that there is: that is found out before hours of work, not
    after. "-" is refused: what a command prints is not mixed with a file; and so is what another
    option writes, of which nothing would be left."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if value == "-":
            self.fail("'-' is no file name here; give the path of a file", param, ctx)
        folder = os.path.dirname(os.fspath(value))
        if folder and not os.path.isdir(folder):
            raise SpyrecError(f"{value}: there is no folder {folder}")
        if ctx is not None:
            for other in ctx.command.params:
                theirs = ctx.params.get(other.name or "")
                if isinstance(other.type, NewFile) and theirs and _one_file(theirs, value):
                    self.fail(f"{other.opts[-1]} writes to {value} too", param, ctx)
        return super().convert(value, param, ctx)


def _one_file(a: str, b: str) -> bool:
    """Whether writing to one takes what the other wrote; a device or pipe takes both."""
    device = os.path.exists(a) and not os.path.isfile(a)
    return os.path.realpath(a) == os.path.realpath(b) and not device


NEW_FILE = NewFile()


class Number(click.FloatRange):
    """A number in a range; NaN, which no comparison refuses, is none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


def write_out(text: str, output: str | None) -> None:
    """Write text to a file, or to stdout when there is none."""
    from spyrec.files import write_text

    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)
