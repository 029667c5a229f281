"""baseline-residency: the published rule of which tensors stay in the scratchpads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from spyrec.ir.core import Module, Op, Value, uses

from .homes import Boxes, buffer_bytes, contains, held_bytes, readable
from .in_place import replaced_operands
from .manager import Target
from .ownership import Ownership
from .sticks import FACTOR_ARRANGEMENTS

EXCHANGED = "its readers are divided in another way"
NO_ROOM = "no room"


@dataclass(frozen=True)
class BaselineResidency:
    """Set ``pin_spaces`` of every tensor between kernels.

    A tensor stays in the scratchpads from its producer to its last reader when each reader needs on
    each core what that core made, nothing reads it at an offset (data movement) or by index, it is
    no output, and there is room in ``share`` of the scratchpad: first fit, in program order. There
    is no exchange over the ring: what a reader wants elsewhere goes through card memory. A result
    takes over the room of an operand that dies in its kernel. What a plan pins stays.

    ``why_space`` on the module tells the reason of those that do not stay: ((tensor, reason), ...).

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.sim.device import load_device
    >>> from spyrec.passes.allocate import CoreAllocation
    >>> from spyrec.passes.baseline_division import BaselineDivision
    >>> from spyrec.passes.baseline_kernels import BaselineKernels
    >>> from spyrec.passes.stick_layout import StickLayout
    >>> module = parse_module('''module "m" {
    ...   input %x: tensor<64x2048xdl16>
    ...   input %w: tensor<2048x256xdl16>
    ...   %e = exp(%x) : tensor<64x2048xdl16>
    ...   %f = neg(%e) : tensor<64x2048xdl16>
    ...   %y = matmul(%f, %w) : tensor<64x256xdl16>
    ...   output "y" = %y
    ... }''')
    >>> target = Target(load_device())
    >>> for step in (BaselineKernels(), StickLayout(), BaselineDivision(), CoreAllocation()):
    ...     module = step.run(module, target)
    >>> after = BaselineResidency().run(module, target)
    >>> after.attrs["pin_spaces"], after.attrs["why_space"]
    ((('e_3', 'lx'), ('f_3', 'hbm')), (('f_3', 'its readers are divided in another way'),))
    """

    name: ClassVar[str] = "baseline-residency"
    summary: ClassVar[str] = "Keeps tensors on chip where all kernels are divided alike."
    share: float = 0.8  # of the scratchpad: 0.2 is left to the tiles of kernels

    def run(self, module: Module, target: Target) -> Module:
        usable, held = target.device.lx.usable_bytes, held_bytes(module)
        limits = [
            min(int(usable * self.share), usable - held.get(str(op.attrs.get("name")), 0))
            for op in module.body.ops
        ]
        return _Rule(module, limits, Ownership(target.device.cores.count)).run()


@dataclass
class _Rule:
    module: Module
    limits: Sequence[int]  # bytes of a core, while each op runs
    parts: Ownership

    def run(self) -> Module:
        body = self.module.body
        self.position = {op: i for i, op in enumerate(body.ops)}
        self.uses = uses(body)
        self.used = [0] * len(body.ops)
        pins: Mapping[str, str] = dict(self.module.attrs.get("pin_spaces", ()))  # type: ignore[arg-type]
        homes: dict[Value, Boxes] = {}
        spaces: list[tuple[str, str]] = list(pins.items())
        why: list[tuple[str, str]] = []
        for op in body.ops:
            if op.name != "kernel":
                continue
            for index, v in enumerate(op.results):
                if v.name in pins or v in body.results:
                    continue
                reason = self._against(op, index, v, homes)
                spaces.append((v.name, "hbm" if reason else "lx"))
                if reason:
                    why.append((v.name, reason))
        return self.module.with_attrs(pin_spaces=tuple(spaces), why_space=tuple(why))

    def _against(self, op: Op, index: int, v: Value, homes: dict[Value, Boxes]) -> str:
        """Why a result does not stay; "" when it does, and then it has its room."""
        readers = self.uses.get(v, [])
        if not readers:
            return "nothing reads it"
        if v.type.dtype.bits in FACTOR_ARRANGEMENTS:
            return "its lanes are arranged for the matrix unit"
        if not all(readable(u) for u, _ in readers):
            return "it is looked up"
        if any(u.attrs["kind"] == "move" for u, _ in readers):
            return "it is moved through card memory"
        own = self.parts.owned(op, index)
        for reader, i in readers:
            need = self.parts.needed(reader, i)
            if not all(contains(o, n) for o, n in zip(own, need, strict=True)):
                return EXCHANGED
        taken = next(replaced_operands(op, index, own, homes, self.uses, self.position), None)
        first = self.position[op] + (taken is not None)
        last = max(self.position[u] for u, _ in readers)
        size = buffer_bytes(v.type, own)
        if any(self.used[at] + size > self.limits[at] for at in range(first, last + 1)):
            return NO_ROOM
        for at in range(first, last + 1):
            self.used[at] += size
        homes[v] = own
        return ""
