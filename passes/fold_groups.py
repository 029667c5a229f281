"""fold-groups: rows are folded group by group first, and lane by lane once a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

from spyrec.ir.core import Attr, Block, Builder, Module, Op, Value, names
from spyrec.ir.ops import infer
from spyrec.ir.types import TensorType
from spyrec.sim.device import DeviceSpec

from .attrs import entries
from .groups import MAX_WHOLE
from .kernel import GROUP, Map, Nest
from .manager import Target
from .primitives import REDUCTIONS
from .recompute import recomputed
from .tiling import RANK
from .vector_price import VectorPrice

WIN = 0.95
"""Of its vector unit's time, what splitting a kernel must promise: tiles are not known yet."""


@dataclass(frozen=True)
class FoldGroups:
    """Split the lane dimension of vector kernels that fold it: groups of 64, and the lanes in them.

    Folding 64 lanes into one, and spreading one over 64, costs many times what an elementwise step
    does, and a reduction along the lanes does it for every group that it reads. In a kernel that
    holds its rows whole (softmax, norms) the groups of a row are folded one onto the other first,
    lanes apart; what is left is one group a row, whose lanes are folded. What is then used along
    the row is spread over the lanes once a row too. Maxima are the same; sums are added up in
    another order, in fp32 as before.

    Only where that is priced lower: there are a few more instructions, and few or short rows take
    little time. And only rows of whole groups: lanes beyond the end of another row hold no number.

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> from spyrec.passes.fuse import Fuse
    >>> from spyrec.passes.stick_layout import StickLayout
    >>> from spyrec.sim.device import load_device
    >>> target = Target(load_device())
    >>> before = StickLayout().run(Fuse().run(parse_module('''module "m" {
    ...   input %x: tensor<4096x256xdl16>
    ...   %top = reduce_max(%x) {axes = (1,)} : tensor<4096x1xdl16>
    ...   %y = sub(%x, %top) : tensor<4096x256xdl16>
    ...   output "y" = %y
    ... }'''), target), target)
    >>> print(print_module(FoldGroups().run(before, target)))
    ... # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
    module "m" {stage = "device", laid_out = true} {
      input %x: ...
      %y... = kernel(%x) {name = "k0_reduce_max_sub", kind = "vec",
        dims = (("d0", 4096), ("d1", 4), ("d1_lanes", 64)),
        maps = (((0, (1, 0, 0)), (0, (0, 64, 1))),),
        out_maps = (((0, (1, 0, 0)), (0, (0, 64, 1))),), ..., whole = (1, 2), ..., stick = 2}
        : ... {
        (%x_2: tensor<4096x256xf32>):
        %x..._groups = reshape(%x_2) {shape = (4096, 4, 64)} : tensor<4096x4x64xf32>
        %top..._lanes = reduce_max(%x..._groups) {axes = (1,)} : tensor<4096x1x64xf32>
        %top... = reduce_max(%top..._lanes) {axes = (2,)} : tensor<4096x1x1xf32>
        %top..._spread = broadcast_to(%top...) {shape = (4096, 1, 64)} : tensor<4096x1x64xf32>
        %y... = sub(%x..._groups, %top..._spread) : tensor<4096x4x64xf32>
        %y... = reshape(%y...) {shape = (4096, 256)} : tensor<4096x256xf32>
        yield %y...
      }
      output "y" = ...
    }
    <BLANKLINE>
    """

    name: ClassVar[str] = "fold-groups"
    summary: ClassVar[str] = "Folds the groups of a row before its lanes, in vector kernels."

    def run(self, module: Module, target: Target) -> Module:
        builder = Builder(names(module))
        ops = [
            _better(op, builder, target.device) if splits(op) else op for op in module.body.ops
        ]
        return replace(module, body=replace(module.body, ops=tuple(ops)))


def _better(op: Op, builder: Builder, device: DeviceSpec) -> Op:
    """The kernel with its lanes split, where that takes less by the device's formulas."""
    split = recomputed(_Split(op, builder).run(), builder, device)
    before, after = (VectorPrice(o, device).cycles() for o in (op, split))
    return split if after < WIN * before else op


def splits(op: Op) -> bool:
    """Is it a vector kernel that folds whole rows of several whole groups along the lanes?"""
    if op.name != "kernel" or op.attrs["kind"] != "vec" or "tile" in op.attrs:
        return False
    nest, region = Nest(op), op.regions[0]
    d = nest.stick
    rank = len(nest.extents)
    if d not in nest.whole or len(nest.whole) >= MAX_WHOLE:
        return False
    if sum(n > 1 for n in nest.extents) >= RANK:  # an instruction has no dimension left
        return False
    aligned = all(v.type.rank <= rank for o in region.ops for v in (*o.operands, *o.results))
    plain = all(o.name != "reshape" for o in region.ops)
    rows = max(len(m) for m in nest.out_maps) == rank and nest.extents[d] % GROUP == 0
    return aligned and plain and rows and nest.extents[d] > GROUP and any(
        o.name in REDUCTIONS and _folds(o, rank, d) for o in region.ops
    )


def _folds(op: Op, rank: int, d: int) -> bool:
    """Does a reduction in a kernel of ``rank`` dimensions fold more than one element of ``d``?"""
    shape = op.operands[0].type.static_shape
    axis = d - rank + len(shape)
    return axis in entries(op, "axes") and shape[axis] > 1


@dataclass
class _Split:
    """One kernel whose lane dimension becomes two."""

    op: Op
    builder: Builder

    def __post_init__(self) -> None:
        self.nest = Nest(self.op)
        self.along = self.nest.stick
        self.rank = len(self.nest.extents)
        self.groups = self.nest.extents[self.along] // GROUP
        self.ops: list[Op] = []
        self.inner: dict[Value, Value] = {}
        self.spread: dict[Value, Value] = {}

    def run(self) -> Op:
        nest, d = self.nest, self.along
        dims = [*zip(nest.dim_names, nest.extents, strict=True)]
        dims[d : d + 1] = [(dims[d][0], self.groups), (f"{dims[d][0]}_lanes", GROUP)]
        whole = {w + (w > d) for w in nest.whole} | {d + 1}
        attrs: dict[str, Attr] = {
            "dims": tuple(dims), "maps": tuple(map(self._map, nest.maps)),
            "out_maps": tuple(map(self._map, nest.out_maps)), "whole": tuple(sorted(whole)),
            "stick": d + 1,
        }  # fmt: skip
        return replace(self.op.with_attrs(**attrs), regions=(self._region(),))

    def _map(self, m: Map) -> Map:
        d = self.along
        return tuple((at, (*c[:d], GROUP * c[d], *c[d:])) for at, c in m)

    def _region(self) -> Block:
        block = self.op.regions[0]
        results = set(block.results)
        read = {v for op in block.ops for v in op.operands}
        flat: dict[Value, Value] = {}
        for a in block.args:
            shape = self._shape(a) if a.type.size > 1 else a.type.static_shape
            self.inner[a] = self._reshaped(a, shape, f"{a.name}_groups")
        for op in block.ops:
            operands = [self.inner[v] for v in op.operands]
            made = self._made(op, operands)
            self.inner[op.result] = made
            if op.result in results:
                flat[op.result] = self._reshaped(made, op.result.type.static_shape, op.result.name)
                if op.name not in REDUCTIONS and op.result in read:  # as it is stored
                    self.inner[op.result] = self._reshaped(
                        flat[op.result], self._shape(op.result), f"{op.result.name}_groups"
                    )
        return Block(block.args, tuple(self.ops), tuple(flat.get(r, r) for r in block.results))

    def _made(self, op: Op, operands: Sequence[Value]) -> Value:
        if op.name in REDUCTIONS:
            return self._reduced(op, operands[0])
        shape = self._shape(op.result)
        attrs = dict(op.attrs)
        if op.name == "broadcast_to":
            attrs["shape"] = shape
        if self._axis(op.result) >= 0 and shape[self._axis(op.result)] > 1:
            operands = [self._spread(v) for v in operands]
        return self._emit(op, operands, attrs, op.result.name)

    def _reduced(self, op: Op, x: Value) -> Value:
        """Along the groups and whatever else is folded first, then along the lanes."""
        at = self._axis(op.result)
        axes = sorted(a + (at >= 0 and a > at) for a in entries(op, "axes"))
        if not _folds(op, self.rank, self.along):
            return self._emit(op, [x], {**op.attrs, "axes": tuple(axes)}, op.result.name)
        part = self._emit(
            op, [x], {**op.attrs, "axes": tuple(axes)}, f"{op.result.name}_lanes"
        )
        return self._emit(op, [part], {**op.attrs, "axes": (at + 1,)}, op.result.name)

    def _spread(self, v: Value) -> Value:
        """What the kernel has one of for a row, over all lanes of a group."""
        at = self.along + v.type.rank - self.rank - 1
        shape = v.type.static_shape
        made = v in {o.result for o in self.ops}
        if not made or at < 0 or (shape[at], shape[at + 1]) != (1, 1):
            return v
        if v not in self.spread:
            wide = (*shape[: at + 1], GROUP, *shape[at + 2 :])
            attrs: dict[str, Attr] = {"shape": wide}
            self.spread[v] = self._add("broadcast_to", [v], attrs, f"{v.name}_spread")
        return self.spread[v]

    def _axis(self, v: Value) -> int:
        """Of the lane dimension in a value of the kernel as it was; negative when it has none."""
        return self.along - self.rank + v.type.rank

    def _shape(self, v: Value) -> tuple[int, ...]:
        shape, at = v.type.static_shape, self._axis(v)
        if at < 0:
            return shape
        parts = (self.groups, GROUP) if shape[at] > 1 else (1, 1)
        return (*shape[:at], *parts, *shape[at + 1 :])

    def _reshaped(self, v: Value, shape: tuple[int, ...], hint: str) -> Value:
        return v if v.type.shape == shape else self._add("reshape", [v], {"shape": shape}, hint)

    def _emit(self, op: Op, operands: Sequence[Value], attrs: dict[str, Any], hint: str) -> Value:
        return self._add(op.name, operands, attrs, hint, op)

    def _add(
        self, name: str, operands: Sequence[Value], attrs: dict[str, Attr], hint: str,
        of: Op | None = None,
    ) -> Value:
        loc = self.op.loc if of is None else of.loc
        (type_,) = infer(name, [v.type for v in operands], attrs, loc)
        made = self.builder.value(hint, TensorType(type_.shape, type_.dtype))
        self.ops.append(Op(name, tuple(operands), (made,), MappingProxyType(attrs), (), loc))
        return made
