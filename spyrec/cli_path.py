"""Options that name a file to write or give a number, and text that goes to a file or stdout."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from math import isnan
from typing import Any

import click

from spyrec.ir.errors import SpyrecError

MODELS = (".onnx", ".pt2", ".sir")
READ = (*MODELS, ".toml", ".npy", ".json")
"""How the names of files end that parameters take beside other texts."""


class NewFile(click.Path):
    """The path of a file in a folder that there is: that is found out before hours of work, not
    after. "-" is refused: what a command prints is not mixed with a file; and so is what another
    option writes, of which nothing would be left. ``like``: names of parameters that read such a
    file, which it may take the place of."""

    def __init__(self, *like: str) -> None:
        super().__init__(dir_okay=False)
        self.like = like

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


class Writing(click.Command):
    """A command that writes files. None may be one that it reads, of another kind: a program
    written over its model leaves no model. That is a matter of usage, before anything is read."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for new in self.params:
            path = ctx.params.get(new.name or "")
            if not isinstance(new.type, NewFile) or path is None or ctx.resilient_parsing:
                continue
            for old in self.params:
                for read in _files_read(old, ctx.params.get(old.name or "")):
                    if _one_file(read, path) and not _replaces(new.type, old, read, ctx):
                        by = f"by {old.opts[-1]}" if isinstance(old, click.Option) else "as input"
                        raise click.BadParameter(
                            f"{path} is read {by} and would be overwritten by a file of another "
                            "kind; give another name", ctx, new
                        )
        return rest


def _files_read(param: click.Parameter, value: Any) -> Iterator[str]:
    """The files that a parameter names, by itself or as ``x=a.npy`` and ``device=a.toml,b.toml``.
    A text that may be a name of something else tells by its end that it is a file."""
    if isinstance(param.type, NewFile):
        return
    for text in value if isinstance(value, tuple | list) else (value,):
        if isinstance(text, str) and isinstance(param.type, click.Path):
            yield text
        elif isinstance(text, str):
            yield from (w for w in (text, *re.split("[=,]", text)) if w.lower().endswith(READ))


def _replaces(new: NewFile, old: click.Parameter, read: str, ctx: click.Context) -> bool:
    """Whether what is written is of the kind of what was read. Of models only IR text is: that is
    what a command writes that does not say otherwise."""
    text = read.lower().endswith(".sir") and ctx.params.get("emit", "ir") == "ir"
    return old.name in new.like and (text or not read.lower().endswith(MODELS))


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
