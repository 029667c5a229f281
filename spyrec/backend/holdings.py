"""Who holds what in the scratchpads, and from which launch to which: what a report draws."""

from __future__ import annotations

from collections.abc import Mapping

from spyrec.ir.core import Module, Value
from spyrec.passes.homes import buffer_bytes
from spyrec.sim.isa import Holding

from .kernels import Home


def holdings(
    module: Module, homes: Mapping[Value, Home], numbers: Mapping[Value, int]
) -> tuple[Holding, ...]:
    """A holding of each value that lies in the scratchpads, in the order in which they are made.
    ``homes``: address, boxes and layout of each; ``numbers``: index of each that claims name. What
    is exchanged is made by the launch that reads it first, as the exchange is its opening."""
    at = 0
    launches: dict[Value, set[int]] = {}
    for op in module.body.ops:
        for v in (*op.operands, *op.results):
            if v in homes:
                launches.setdefault(v, set()).add(at)
        at += op.name == "kernel"
    return tuple(
        Holding(
            numbers[v], v.type.dtype.name, homes[v][0], buffer_bytes(v.type, homes[v][1]),
            tuple(sorted(found)), homes[v][1],
        )
        for v, found in launches.items() if v in numbers
    )
