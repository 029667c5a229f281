"""Which tiles of a kernel take over the room of another that nobody reads any more."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from spyrec.ir.core import Value

from .kernel import Nest
from .stages import Stage


def taken_rooms(nest: Nest, parts: Sequence[Stage]) -> dict[Value, Value]:
    """Stage result -> the operand or earlier result, as the body names it, whose tile it replaces.

    Only where tiles have one slot, or only loads overlap, so that a load into a room waits for the
    stores from there: both go to card memory. Each element is read by the instruction that writes
    its successor and by none after it, so that is an elementwise one, and both are as large as the
    kernel. What takes an operand's room is kept in its format.
    """
    apart = nest.buffers == 1 or nest.overlap == "loads"
    if not apart or nest.kind != "vec" or any(r.type.space == "lx" for r in nest.op.results):
        return {}
    block = nest.op.regions[0]
    bits = {
        a: v.type.dtype.bits
        for a, v in zip(block.args, nest.op.operands, strict=True)
        if v.type.space != "lx" and v.type.dtype.kind == "float"
    }
    kept = {v: r.type.dtype.bits for v, r in zip(block.results, nest.op.results, strict=True)}
    taken: dict[Value, Value] = {}
    whole = prod(nest.extents)
    for i, stage in enumerate(parts):
        result = stage.result
        if stage.head is not None or result.type.size != whole:
            continue
        later = {v for other in parts[i + 1 :] for v in other.inputs}
        for v in stage.inputs:
            over = v not in later and v not in kept and v.type.size == whole
            if over and v in bits and kept.get(result, bits[v]) == bits[v]:
                taken[result], bits[result] = v, bits[v]
                break
    return taken
