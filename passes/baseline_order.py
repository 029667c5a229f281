"""baseline-order: the published order of the dimensions that do not run along the lanes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from spyrec.ir.core import Block, Module, Value
from spyrec.ir.layout import Layout

from .baseline_sticks import plain
from .kernel import rank1
from .manager import Target
from .sticks import region_head


@dataclass(frozen=True)
class BaselineOrder:
    """Order the dimensions in card memory: all others outermost as they come, then the groups of
    lanes, then one dimension next to the lanes.

    ``beside``: "largest", as the published compiler has it since mid-2026, or "first", as before:
    dimension 0, or the first of more than one element. Weights of a convolution and operands of 8
    bits and fewer have forms of their own.

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.sim.device import load_device
    >>> before = parse_module('''module "m" {stage = "device"} {
    ...   input %x: tensor<2x8x64xdl16,
    ... [shape 2x8x64 bits 16 | 0:2*1 mem, 2:1*64 mem, 1:8*1 mem, 2:64*1 lane | pad undefined], hbm>
    ...   output "x" = %x
    ... }''')
    >>> after = BaselineOrder("first").run(before, Target(load_device()))
    >>> print(after.body.args[0].type.layout)
    [shape 2x8x64 bits 16 | 1:8*1 mem, 2:1*64 mem, 0:2*1 mem, 2:64*1 lane | pad undefined]
    """

    name: ClassVar[str] = "baseline-order"
    summary: ClassVar[str] = "Orders the dimensions of tensors as the published compiler does."
    beside: str = "largest"

    def run(self, module: Module, target: Target) -> Module:
        kept = {
            op.operands[1] for op in module.body.ops
            if op.name == "kernel" and region_head(op).name == "conv"
        }  # fmt: skip
        mapped: dict[Value, Value] = {}

        def new(v: Value) -> Value:
            if v not in mapped:
                mapped[v] = v if v in kept else replace(v, type=v.type.with_(layout=self._laid(v)))
            return mapped[v]

        ops = tuple(
            replace(op, operands=tuple(map(new, op.operands)), results=tuple(map(new, op.results)))
            for op in module.body.ops
        )
        body = module.body
        args, results = tuple(map(new, body.args)), tuple(map(new, body.results))
        return replace(module, body=Block(args, ops, results))

    def _laid(self, v: Value) -> Layout | None:
        layout = v.type.layout
        shape = rank1(v.type)
        if layout is None or not plain(v) or len(shape) < 3:
            return layout
        stick = layout.stick_dim
        others = [d for d in range(len(shape)) if d != stick]
        if self.beside == "largest":
            beside = max(others, key=lambda d: (shape[d], d))
        else:
            beside = next((d for d in others if shape[d] > 1), others[0])
        order = (*(d for d in others if d != beside), stick, beside)
        return Layout.stick(shape, v.type.dtype.bits, stick, order)
