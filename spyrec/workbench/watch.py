"""Hooks that tell what each pass did: the lines it changed, the ops it added and removed, its
time."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.table import Table

from spyrec.ir.core import Module, walk
from spyrec.ir.printer import print_module
from spyrec.passes.manager import Hook, Pass, Timing

CONTEXT_LINES = 2


def print_changed(out: TextIO) -> Hook:
    """Write a unified diff of the module's text for each pass that changed it, and one line for
    each that did not; long constants by digest only."""

    def show(step: Pass, before: Module, after: Module, _seconds: float) -> None:
        lines = list(text_diff(before, after))
        if not lines:
            out.write(f"// {step.name} changed nothing\n")
            return
        out.write(f"// {step.name} changed\n")
        out.writelines(f"{line}\n" for line in lines)

    return show


def text_diff(before: Module, after: Module) -> Iterator[str]:
    """The lines of a unified diff of two modules' text, without the names of files."""
    old, new = (print_module(m, data="elide").splitlines() for m in (before, after))
    for line in difflib.unified_diff(old, new, n=CONTEXT_LINES, lineterm=""):
        if not line.startswith(("---", "+++")):
            yield line


@dataclass(frozen=True)
class Change:
    """What a pass did to the ops of a module, those inside kernels included."""

    name: str
    added: Counter[str]
    removed: Counter[str]
    ops: int

    @property
    def told(self) -> str:
        """``+2 add -1 sub``, or ``-``."""
        signed = [(self.added, "+"), (self.removed, "-")]
        words = [f"{sign}{n} {op}" for c, sign in signed for op, n in sorted(c.items())]
        return " ".join(words) or "-"


def change_into(record: list[Change]) -> Hook:
    """Append what each pass did."""

    def note(step: Pass, before: Module, after: Module, _seconds: float) -> None:
        old, new = op_counts(before), op_counts(after)
        record.append(Change(step.name, new - old, old - new, new.total()))

    return note


def op_counts(module: Module) -> Counter[str]:
    """How many ops of each name there are, those inside kernels included."""
    return Counter(op.name for op in walk(module.body))


def change_table(changes: Sequence[Change]) -> Table:
    """A row for each pass: the ops it left, and those it added and removed."""
    table = Table(pad_edge=False, box=None)
    table.add_column("pass")
    table.add_column("ops", justify="right")
    table.add_column("added and removed")
    for change in changes:
        table.add_row(change.name, f"{change.ops:,}", change.told)
    return table


def time_table(times: Sequence[Timing]) -> Table:
    """A row for each pass in the order they ran, and a total: seconds, share, ops it left."""
    table = Table(pad_edge=False, box=None)
    for heading in ("pass", "seconds", "share", "ops"):
        table.add_column(heading, justify="left" if heading == "pass" else "right")
    whole = sum(t.seconds for t in times)
    for t in times:
        share = f"{t.seconds / whole:.1%}" if whole else "-"
        table.add_row(t.name, f"{t.seconds:.3f}", share, f"{t.ops:,}")
    table.add_row("total", f"{whole:.3f}", "", "", style="bold")
    return table
