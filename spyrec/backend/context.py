"""What code generation knows about one kernel beyond its op, and what it collects on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spyrec.ir.core import Op, Value
from spyrec.ir.layout import Layout
from spyrec.ir.types import DType
from spyrec.passes.kernel import Box
from spyrec.sim.device import DeviceSpec
from spyrec.sim.isa import MicroProgram, Note

from .claims import Ledger
from .tree import Buffer


class Notes:
    """The provenance list of a kernel: each different (op, model nodes) once."""

    def __init__(self) -> None:
        self.list: list[Note] = []

    def add(self, name: str, nodes: tuple[str, ...]) -> int:
        """The note's number."""
        note = Note(name, nodes)
        if note not in self.list:
            self.list.append(note)
        return self.list.index(note)


@dataclass
class KernelContext:
    """``formats``: dtype -> device format name; ``addresses``: tile value name -> (scratchpad byte
    address, slots); ``homes``: operand or result -> (byte address, box of each core, layout of the
    buffer) of tensors that live in the scratchpads; ``scalars``: compile-time numbers;
    ``constants``: operands that are weights; ``early``: buffers that may be filled while the launch
    before still runs;
    ``arrivals``: operands that an exchange in this launch delivers; ``ledger``: what claims name;
    ``tokens``: how many are taken,
    from 1 on."""

    op: Op
    device: DeviceSpec
    formats: Mapping[str, str]
    addresses: Mapping[str, tuple[int, int]]
    homes: Mapping[Value, tuple[int, tuple[Box, ...], Layout]]
    scalars: Mapping[Value, float]
    constants: frozenset[Value]
    early: frozenset[str]
    cores: int
    programs: list[MicroProgram]
    arrivals: Mapping[Value, Buffer]
    notes: Notes
    ledger: Ledger
    tokens: int = 0

    def token(self) -> int:
        """A token that nothing else in the kernel uses yet."""
        self.tokens += 1
        return self.tokens

    def format(self, kind: DType) -> str:
        """The device's name of an element format."""
        return self.formats.get(kind.name, kind.name)

    def program(self, p: MicroProgram) -> int:
        """The number of a micro-program in the kernel's list."""
        if p not in self.programs:
            self.programs.append(p)
        return self.programs.index(p)
