"""Which box of a tensor each core makes and which it reads, found once for kernels that are alike.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from spyrec.ir.core import Op

from .allocate import owned_boxes
from .homes import Boxes, align, pad_boxes
from .kernel import Nest, rank1
from .pieces import needs
from .signature import signature


@dataclass
class Ownership:
    """Of kernels that are divided, on a machine with so many ``cores``: a box for each of them."""

    cores: int
    boxes: dict[Hashable, Boxes] = field(default_factory=dict)
    signatures: dict[Op, Hashable] = field(default_factory=dict)

    def owned(self, op: Op, index: int) -> Boxes:
        """What each core makes of a kernel's result."""
        key = self._signature(op), "result", index
        if key not in self.boxes:
            nest = Nest(op)
            made = owned_boxes(nest, nest.out_maps[index], rank1(op.results[index].type))
            self.boxes[key] = pad_boxes(made, self.cores)
        return self.boxes[key]

    def needed(self, op: Op, index: int) -> Boxes:
        """What each core reads of a kernel's operand, in whole groups of lanes."""
        key = self._signature(op), "operand", index
        if key not in self.boxes:
            type_ = op.operands[index].type
            assert type_.layout is not None
            stick, shape = type_.layout.stick_dim, rank1(type_)
            whole = tuple(align(box, stick, shape) for box in needs(op, index))
            self.boxes[key] = pad_boxes(whole, self.cores)
        return self.boxes[key]

    def _signature(self, op: Op) -> Hashable:
        if op not in self.signatures:
            self.signatures[op] = signature(op)
        return self.signatures[op]
