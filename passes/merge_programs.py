"""merge-programs: the vector unit may run one micro-program in the place of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spyrec.ir.core import Module

from .manager import Target

MERGED = "merged_programs"
"""Attribute of a module whose vector programs may be merged, and taken up ahead of their work."""


@dataclass(frozen=True)
class MergePrograms:
    """Allows code generation to let the vector unit take up micro-programs before their data has
    come, and to put one program in the place of several between which it would switch for longer
    than it works. Which of them is decided there, by simulation. No kernel changes.

    Sets ``merged_programs`` on the module. Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.sim.device import load_device
    >>> before = parse_module('''module "m" {
    ...   input %x: tensor<4xf32>
    ...   output "y" = %x
    ... }''')
    >>> MergePrograms().run(before, Target(load_device())).attrs["merged_programs"]
    True
    """

    name: ClassVar[str] = "merge-programs"
    summary: ClassVar[str] = "Lets the vector unit run one micro-program in the place of several."

    def run(self, module: Module, target: Target) -> Module:
        return module.with_attrs(**{MERGED: True})
