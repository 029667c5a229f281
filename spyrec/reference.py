"""Pages of docs/ as text: the ops of the IR, the ONNX operators that can be imported; and what
there is to say of a pass. All are printed from what the compiler itself reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from itertools import groupby
from typing import Any

from spyrec.ir.ops import OPS, REQUIRED, OpDef, Operand

STAGES = ("tensor", "device", "tile")

HELP_WIDTH = 100
CLI_HEAD = """\
# Command line

Printed by the commands themselves (`spyrec COMMAND --help`). Exit codes: 0 fine; 1 the model,
program or data is at fault, or a comparison or search found something; 2 usage; 70 a defect of
spyrec; 130 interrupted. `--debug` anywhere shows the traceback of a failure. Files are written
whole or not at all, and none in the place of a file of another kind that the command reads.
"""

OPS_HEAD = """\
# Ops of the IR

Printed by `spyrec ops` from the table that verifier, parser, interpreter and passes read.

Each line is `name(operands; attributes) -> results`. A `?` marks an operand that may be left out, a
`*` one of which there may be any number; an attribute without a default is required. Elementwise
ops broadcast as numpy does. Axes count from 0. A result has the element type of the first operand
unless the op says otherwise.
"""

ONNX_HEAD = """\
# ONNX operators

Printed by `spyrec ops --onnx` from the frontend's table. Models of opset {first} to {last} of the
standard domain are read, external data included; what an operator cannot do is said in a sentence
that names the node.

* Operators whose operands are all constant are computed on import.
* `If` is resolved on import, so its condition must be known by then: see `--const`.
* `NonZero` and other operators whose result size depends on data must have constant operands.
* Control flow by `Loop` and `Scan`, sequences, strings and other domains are not imported.
* Attention that is spelled out (`MatMul`, `Mul` or `Div`, `Add` or `Where`, `Softmax`, `MatMul`) is
  compiled like `Attention`.

| operator | since opset |
|---|---|
"""


EMIT_HEAD = """\
# What a rule may use

Printed from the docstrings of `passes/emit.py`. The function of a `Rule` is called with an op and
an `Emit`, here `e`; [first-pass.md](first-pass.md) writes one. It asks first, and returns None
without having made anything when the rule does not apply.
"""


def emit_reference() -> str:
    """The page of what `Emit` offers: each method with what its docstring says, in the order of the
    source."""
    from spyrec.passes.emit import Emit

    rows = [
        (f"`e.{name}({_arguments(method)})`", " ".join((inspect.getdoc(method) or "").split()))
        for name, method in vars(Emit).items()
        if inspect.isfunction(method) and not name.startswith("_")
    ]
    table = "".join(f"| {call} | {told.replace('``', '`')} |\n" for call, told in rows)
    about = " ".join((inspect.getdoc(Emit) or "").split()).replace("``", "`")
    return f"{EMIT_HEAD}\n{about}\n\n| | |\n|---|---|\n{table}"


def _arguments(method: Callable[..., Any]) -> str:
    """``x, axis, start, size, step=1``"""
    _, *own = inspect.signature(method).parameters.values()
    return ", ".join(str(p.replace(annotation=p.empty)) for p in own)


def pass_options(make: Callable[..., Any]) -> list[str]:
    """``["limit=1024"]``: the options of a pass with their defaults, spelled as in a pipeline; the
    name alone of one without."""
    options = fields(make) if isinstance(make, type) and is_dataclass(make) else ()
    return [
        f.name.replace("_", "-") + ("" if f.default is MISSING else f"={f.default}")
        for f in options
    ]


def pass_reference(name: str, make: Callable[..., Any]) -> str:
    """All about one pass: what it does, its options, where it stands in which pipeline, and the
    text of its class, which has an example."""
    from spyrec.passes.pipeline import PLANNERS

    text = [f"{name}: {getattr(make, 'summary', '')}"]
    text += [f"  option {option}" for option in pass_options(make)]
    for planner, passes in PLANNERS.items():
        steps = [p.name for p in passes]
        places = [f"{i + 1}" for i, step in enumerate(steps) if step == name]
        if places:
            told = f"pass {' and '.join(places)} of {len(steps)}"
            text.append(f"  {told} of the usual pipeline with --planner {planner}")
    about = inspect.getdoc(make) or ""
    if not about.startswith(f"{make.__name__}("):  # what a dataclass says that has no text
        text += ["", about]
    return "\n".join(text).rstrip() + "\n"


def cli_reference() -> str:
    """The page of commands: what each prints with --help, in the order of `spyrec --help`."""
    import click

    from spyrec.cli import cli

    root = click.Context(cli, info_name="spyrec", terminal_width=HELP_WIDTH)
    parts = [CLI_HEAD, f"```text\n{cli.get_help(root).rstrip()}\n```\n"]
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        assert command is not None
        own = click.Context(command, info_name=name, parent=root, terminal_width=HELP_WIDTH)
        parts.append(f"## {name}\n\n```text\n{command.get_help(own).rstrip()}\n```\n")
    return "\n".join(parts)


def op_reference() -> str:
    """The page of ops, by family; within one in the table's order."""
    ops = sorted(OPS.values(), key=lambda op: op.family)  # stable
    parts = [OPS_HEAD]
    for family, found in groupby(ops, key=lambda op: op.family):
        members = list(found)
        stages = [s for s in STAGES if any(s in op.stages for op in members)]
        lines = [line for op in members for line in (signature(op), f"    {op.summary}")]
        parts.append(
            f"## {family} (stage {', '.join(stages)})\n\n```text\n" + "\n".join(lines) + "\n```\n"
        )
    return "\n".join(parts)


def signature(op: OpDef) -> str:
    """``matmul(a, b) -> result``; optional operands end in ?, repeated ones in *."""
    attrs = [
        f"{name}: {'|'.join(spec.choices) or spec.kind}"
        + ("" if spec.default is REQUIRED else f" = {spec.default}")
        for name, spec in op.attrs.items()
    ]
    inside = ", ".join(_operand(o) for o in op.operands)
    if attrs:
        inside += ("; " if inside else "") + ", ".join(attrs)
    return f"{op.name}({inside}) -> {', '.join(op.results)}"


def _operand(operand: Operand) -> str:
    return operand.name + {"one": "", "optional": "?", "variadic": "*"}[operand.how]


def onnx_reference() -> str:
    """The page of operators. Since when one exists is asked of the installed onnx package; "-" for
    one it does not know."""
    from onnx import defs

    from spyrec.frontend.onnx_import import CONVERTERS
    from spyrec.frontend.onnx_load import OPSETS

    since: dict[str, int] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "":
            version = max(schema.since_version, OPSETS[0])
            since[schema.name] = min(version, since.get(schema.name, version))
    rows = [f"| `{name}` | {since.get(name, '-')} |\n" for name in sorted([*CONVERTERS, "If"])]
    return ONNX_HEAD.format(first=OPSETS[0], last=OPSETS[-1]) + "".join(rows)


def torch_reference() -> str:
    """The table of the PyTorch operators that can be imported, by family, and of those that are
    refused, by reason."""
    from spyrec.frontend.torch_ops import FAMILIES, REFUSED

    rows = {family: list(table) for family, table in FAMILIES.items()}
    for name, reason in REFUSED.items():
        rows.setdefault(f"refused: {reason}", []).append(name.removeprefix("aten."))
    lines = [
        f"| {family} | {', '.join(f'`{name}`' for name in sorted(names))} |\n"
        for family, names in rows.items()
    ]
    return "| family | operators |\n|---|---|\n" + "".join(lines)
