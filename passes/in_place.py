"""Results that take over the scratchpad room of an operand nobody needs any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spyrec.ir.core import Op, Value

from .kernel import Box, Nest
from .stages import stages

Boxes = tuple[Box, ...]
Uses = Mapping[Value, Sequence[tuple[Op, int]]]


def replaced_operands(
    op: Op, index: int, own: Boxes, homes: Mapping[Value, Boxes], readers: Uses,
    position: Mapping[Op, int],
) -> Iterator[int]:
    """The operands whose room the ``index``-th result, held as ``own`` boxes, may have.

    Each element must be read by the instruction that writes its successor and by none after it: the
    kernel is one elementwise instruction a tile, reads the operand once, as it lies, and is its
    last reader.
    """
    nest = Nest(op)
    if nest.kind != "vec":
        return
    steps = stages(op.regions[0])
    if len(steps) != 1 or steps[0].head is not None:
        return
    result = op.results[index]
    for i, v in enumerate(op.operands):
        once = [use for use in readers.get(v, ()) if position[use[0]] >= position[op]] == [(op, i)]
        alike = homes.get(v) == own and v.type.layout == result.type.layout
        if once and alike and nest.maps[i] == nest.out_maps[index]:
            yield i


def reused_rooms(ops: Sequence[Op]) -> Iterator[tuple[Value, Value]]:
    """(result, operand whose room it has), in program order."""
    for op in ops:
        pairs: Any = op.attrs.get("in_place", ())
        for result, operand in pairs:
            yield op.results[result], op.operands[operand]
