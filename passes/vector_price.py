"""What the instructions of a vector kernel take, before it is divided or tiled, by the device's own
formulas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from spyrec.ir.core import Op, Value
from spyrec.ir.ops.tile import F32
from spyrec.sim.device import DeviceSpec

from .kernel import GROUP, Map, Nest, spans
from .primitives import REDUCTIONS
from .stages import Stage, stages

STEPS = {"reciprocal": "recip"}
"""Steps of a micro-program that are not called as the op is."""
FREE = frozenset(("identity", "cast", "broadcast_to", "reshape"))
"""Ops that are no step: floats are fp32 in the vector unit."""


@dataclass(frozen=True)
class VectorPrice:
    """Prices of one vector kernel whose lanes are known, all cores sharing its rows evenly."""

    op: Op
    device: DeviceSpec
    maps: Mapping[Value, Map] = field(init=False)
    bits: Mapping[Value, int] = field(init=False)

    def __post_init__(self) -> None:
        block, nest = self.op.regions[0], Nest(self.op)
        maps = [*zip(block.args, nest.maps, strict=True)]
        maps += zip(block.results, nest.out_maps, strict=True)
        ends = [*zip(block.args, self.op.operands, strict=True)]
        ends += zip(block.results, self.op.results, strict=True)
        object.__setattr__(self, "maps", dict(maps))
        object.__setattr__(self, "bits", {v: kept.type.dtype.bits for v, kept in ends})

    def cycles(self) -> int:
        """All instructions once, and what turning from one micro-program to another takes."""
        steps = stages(self.op.regions[0], [v for v in self.maps if v.type.size == 1])
        total, last = 0, None
        for s in steps:
            total += self.instruction(s.ops, s.inputs, s.result)
            if self._finishes(s):
                continue
            program = (tuple(o.name for o in s.ops if o.name not in FREE | REDUCTIONS), _fold(s))
            total += self.device.sfp.switch_cycles * (last is not None and program != last)
            last = program
        return total

    def instruction(self, ops: Iterable[Op], reads: Sequence[Value], result: Value) -> int:
        """Cycles of one that computes ``result`` of what it ``reads`` by these ops."""
        names = [o.name for o in ops]
        folds = any(n in REDUCTIONS for n in names)
        work = self.device.sfp.group_cycles(
            (STEPS.get(n, n) for n in names if n not in FREE | REDUCTIONS), folds
        )
        used = [v for v in dict.fromkeys((*reads, result)) if v.type.size > 1]
        points = max((self._groups(v) for v in used), default=1)
        nbytes = sum(self._groups(v) * self.bits.get(v, F32.bits) * GROUP // 8 for v in used)
        along = any(self._along_lanes(v) for v in reads)
        return int(self.device.vec_total_cycles(
            self._share(points), work, self._share(nbytes),
            folds and along and not self._along_lanes(result),
            sum(v.type.size > 1 and not self._along_lanes(v) for v in reads),
        ))  # fmt: skip

    def _share(self, n: int) -> int:
        """Of a core, of what all have together."""
        nest = Nest(self.op)
        rows = prod(n for d, n in enumerate(nest.extents) if d not in nest.whole | {nest.stick})
        most = -(-rows // self.device.cores.count)
        return -(-n * most // max(1, rows))

    def _finishes(self, stage: Stage) -> bool:
        """Does it only work on single lanes of what was folded?"""
        return not _fold(stage) and not any(self._along_lanes(v) for v in stage.inputs)

    def _along_lanes(self, v: Value) -> bool:
        nest = Nest(self.op)
        if v in self.maps:
            return spans(self.maps[v], nest.stick)
        axis = nest.stick - nest.rank + v.type.rank
        return axis >= 0 and v.type.static_shape[axis] > 1

    def _groups(self, v: Value) -> int:
        if not self._along_lanes(v):
            return v.type.size
        lanes = Nest(self.op).extents[Nest(self.op).stick]
        return v.type.size // lanes * -(-lanes // GROUP)


def _fold(stage: Stage) -> str:
    return next((o.name for o in stage.ops if o.name in REDUCTIONS), "")
