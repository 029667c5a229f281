"""share-launches: kernels may go on in the launch of the kernel before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spyrec.ir.core import Module

from .manager import Target

SHARED = "shared_launches"
"""Attribute of a module whose kernels may share launches."""


@dataclass(frozen=True)
class ShareLaunches:
    """Allows code generation to put successive kernels into one launch of the device. Which of them
    it does depends on how long their code is, so it is decided there. No kernel changes.

    Sets ``shared_launches`` on the module. Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.sim.device import load_device
    >>> before = parse_module('''module "m" {
    ...   input %x: tensor<4xf32>
    ...   output "y" = %x
    ... }''')
    >>> ShareLaunches().run(before, Target(load_device())).attrs["shared_launches"]
    True
    """

    name: ClassVar[str] = "share-launches"
    summary: ClassVar[str] = "Lets kernels go on in the launch of the kernel before."

    def run(self, module: Module, target: Target) -> Module:
        return module.with_attrs(**{SHARED: True})
