"""Manual pages out of the command line itself: one for the group and one a command, in the man
macros of roff. They say what --help says, so there is nothing to keep in step."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from spyrec import __version__

VERBATIM = "\b"  # with which click marks a paragraph that keeps its lines: an example
EXIT_CODES = (
    ("0", "all is well"),
    ("1", "the model, program, data or a file is at fault, or what was looked for was found"),
    ("2", "usage"),
    ("70", "a defect of spyrec; a line says how to reproduce it"),
    ("130", "interrupted"),
)


def pages(group: click.Group, name: str) -> dict[str, str]:
    """The pages of a program called ``name``: ``{"spyrec.1": ..., "spyrec-compile.1": ...}``."""
    root = click.Context(group, info_name=name, **group.context_settings)
    commands = {c: group.get_command(root, c) for c in group.list_commands(root)}
    made = {f"{name}.1": _page(group, root, [f"{name}-{c}" for c in commands])}
    for command_name, command in commands.items():
        assert command is not None
        context = click.Context(command, info_name=command_name, parent=root)
        made[f"{name}-{command_name}.1"] = _page(command, context, [name])
    return made


def examples(command: click.Command) -> tuple[str, ...]:
    """The lines of the examples in a command's help."""
    told = (block for block in _paragraphs(command) if block.startswith(VERBATIM))
    return tuple(line for block in told for line in block.splitlines()[1:])


def _paragraphs(command: click.Command) -> list[str]:
    return re.split(r"\n\s*\n", inspect.cleandoc(command.help or ""))


def _page(command: click.Command, context: click.Context, others: list[str]) -> str:
    title = context.command_path.replace(" ", "-")
    lines = [
        f'.TH "{_plain(title.upper())}" 1 "" "spyrec {__version__}" "spyrec"',
        ".SH NAME",
        f"{_plain(title)} \\- {_plain(command.get_short_help_str(200).rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_plain(context.command_path)}",
        _plain(" ".join(command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
    ]
    for block in _paragraphs(command):
        if not block.startswith(VERBATIM):
            lines += [".PP", _plain(" ".join(block.split()))]
    lines += [".SH OPTIONS", *_options(command, context)]
    if isinstance(command, click.Group):
        lines += [".SH COMMANDS", *_commands(command, context)]
    if shown := examples(command):
        lines += [".SH EXAMPLES", ".nf", *map(_plain, shown), ".fi"]
    lines.append(".SH EXIT STATUS")
    for code, meaning in EXIT_CODES:
        lines += [".TP", f".B {code}", _plain(meaning)]
    lines += [".SH SEE ALSO", "\n".join(f".BR {_plain(other)} (1)" for other in others)]
    return "\n".join(lines) + "\n"


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if record is None or isinstance(option, click.Argument):  # the description tells of those
            continue
        left, right = record
        names, value = [], ""
        for part in left.split(", "):
            name, _, value_of_part = part.partition(" ")
            names.append(f"\\fB{_plain(name)}\\fR")
            value = value_of_part or value
        yield ".TP"
        yield ", ".join(names) + (f" \\fI{_plain(value)}\\fR" if value else "")
        yield _plain(right)


def _commands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield ".TP"
        yield f".B {_plain(name)}"
        yield _plain(command.get_short_help_str(200))


def _plain(text: str) -> str:
    """Text that roff takes for nothing but text."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return re.sub(r"^\.", r"\\&.", escaped, flags=re.MULTILINE)
