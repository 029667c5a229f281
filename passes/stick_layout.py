"""stick-layout: choose for every tensor the dimension that runs along the lanes, and repack where
two kernels cannot agree."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from spyrec.ir.core import Attr, Block, Builder, Loc, Module, Op, Value, names, uses
from spyrec.ir.errors import PassError
from spyrec.ir.ops import infer
from spyrec.ir.types import Dim, TensorType

from .attrs import entries
from .kernel import GROUP, Map, Nest, identity_map, padded, rank1, spans
from .manager import Target
from .sticks import (
    FACTOR_ARRANGEMENTS,
    contract_sticks,
    fullest,
    is_windowed,
    laid,
    laid_as_factor,
    moved_by,
    region_head,
    result_stick,
    tensor_dim,
    usable_stick,
)

FEW = 8  # lanes of 64: below, loading the padding costs more than repacking on chip
SMALL = 1 << 16  # bytes, padding included, from which that is worth a launch


@dataclass(frozen=True)
class StickLayout:
    """Give every tensor a stick dimension and insert `restickify` kernels.

    Matrix kernels demand: first operand along k, second and result along n. Vector kernels demand
    one kernel dimension for all; it is chosen to repack the fewest elements and waste the fewest
    lanes. Tensors with no demand take what their first reader wants.

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> from spyrec.passes.fuse import Fuse
    >>> from spyrec.sim.device import load_device
    >>> target = Target(load_device())
    >>> before = Fuse().run(parse_module('''module "m" {
    ...   input %x: tensor<1x64x8x64xdl16>
    ...   input %w: tensor<64x32xdl16>
    ...   %s = max_pool(%x) {kernel = (2, 2), strides = (2, 2), pads = (0, 0, 0, 0),
    ...     dilations = (1, 1)} : tensor<1x64x4x32xdl16>
    ...   %y = matmul(%x, %w) : tensor<1x64x8x32xdl16>
    ...   output "s" = %s
    ...   output "y" = %y
    ... }'''), target)
    >>> after = StickLayout().run(before, target)
    >>> print(print_module(after))  # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
    module "m" {stage = "device", laid_out = true} {
      input %x: tensor<1x64x8x64xdl16, [... 1:64*1 lane | pad undefined], hbm>
      ...
      %s... = kernel(%x) {name = "k0_max_pool", ..., stick = 1} : ...
      %x_restick = kernel(%x) {name = "r0_restickify", kind = "move", stick = 3, ...} : ...
      %y... = kernel(%x_restick, %w) {name = "k1_matmul", ..., stick = 3, k = 4} : ...
    """

    name: ClassVar[str] = "stick-layout"
    summary: ClassVar[str] = (
        "Chooses the dimension along the lanes of every tensor, repacking where needed."
    )
    input_share: float = 0.2  # of all scratchpads, for an input that is repacked on arrival

    def run(self, module: Module, target: Target) -> Module:
        device = target.device
        room = int(device.lx.usable_bytes * device.cores.count * self.input_share)
        return _Sticks(module, room).run().with_attrs(laid_out=True)


@dataclass
class _Sticks:
    source: Module
    room: int  # bytes of all scratchpads that a repacked input may take
    stored: set[Value] = field(default_factory=set)  # constants, as laid out
    wanted_memo: dict[Value, int | None] = field(default_factory=dict)
    stick: dict[Value, int] = field(default_factory=dict)
    repacked: dict[tuple[Value, tuple[int, ...], int], Value] = field(default_factory=dict)

    def run(self) -> Module:
        self.uses = uses(self.source.body)
        self.constants = {op.result: op for op in self.source.body.ops if op.name == "constant"}
        self.builder = Builder(names(self.source))
        self.mapped: dict[Value, Value] = {}
        self.count = 0
        self.pinned: dict[str, int] = dict(self.source.attrs.get("pin_sticks", ()))  # type: ignore[arg-type]
        args = tuple(self._typed(v, self._input(v)) for v in self.source.body.args)
        for op in self.source.body.ops:
            if op.name != "constant":
                self._kernel(op)
        results = tuple(self._result(v) for v in self.source.body.results)
        return replace(self.source, body=Block(args, tuple(self.builder.ops), results))

    def _result(self, v: Value) -> Value:
        if v in self.constants and v not in self.mapped:
            self._constant(v, rank1(v.type), len(rank1(v.type)) - 1)
        return self.mapped[v]

    def _typed(self, v: Value, stick: int) -> Value:
        """The value with its layout; remembered as v's stand-in."""
        made = Value(v.name, self._laid(v, v.type, stick))
        assert made.type.layout is not None
        self.stick[made] = made.type.layout.stick_dim
        self.mapped[v] = made
        return made

    def _laid(
        self, v: Value, type_: TensorType, stick: int, order: tuple[int, ...] | None = None
    ) -> TensorType:
        """The layout of ``v``, as ``type_``: the standard one, but that of a factor when narrow."""
        if v.type.dtype.bits not in FACTOR_ARRANGEMENTS:
            return laid(type_, stick, order)
        reader, number = self.uses[v][0]
        made_here = v not in self.source.body.args and v not in self.constants
        return laid_as_factor(type_, number, Nest(reader), packed=made_here)

    # What readers would like ------------------------------------------------------------------

    def _want(self, v: Value) -> int:
        """The stick dimension a plan pins or a reader demands, else the last."""
        if v.name in self.pinned:
            return self.pinned[v.name]
        found = self._asked(v)
        return found if found is not None else fullest(rank1(v.type))

    def _input(self, v: Value) -> int:
        """An image of three channels is mostly padding in the layout its convolution reads; when
        that fits on chip it comes densely and is repacked there.
        """
        stick, shape = self._want(v), rank1(v.type)
        dense = fullest(shape)
        narrow = v.type.dtype.bits in FACTOR_ARRANGEMENTS
        if v.name in self.pinned or shape[stick] > FEW or prod(shape) == 0 or narrow:
            return stick
        size = prod(shape) // shape[stick] * GROUP * v.type.dtype.bits // 8
        return dense if SMALL < size <= self.room and shape[dense] >= GROUP // 2 else stick

    def _asked(self, v: Value) -> int | None:
        if v in self.wanted_memo:
            return self.wanted_memo[v]
        self.wanted_memo[v] = None
        for op, i in self.uses.get(v, []):
            if op.name != "kernel" or i >= len(op.operands) or op.operands[i] is not v:
                continue
            nest = Nest(op)
            dim: int | None = None
            if nest.kind == "contract":
                n, k = contract_sticks(nest)
                dim = tensor_dim(nest.maps[i], k if i == 0 else n)
            elif is_windowed(nest):
                dim = tensor_dim(nest.maps[i], 1)
            elif nest.kind in ("vec", "fold"):
                dim = self._asked_through(nest, i)
            if dim is not None:
                self.wanted_memo[v] = dim
                return dim
        return None

    def _asked_through(self, nest: Nest, i: int) -> int | None:
        for r, m in zip(nest.op.results, nest.out_maps, strict=True):
            asked = self._asked(r)
            if asked is not None:
                kernel_dim = moved_by(m, asked)
                if kernel_dim is not None:
                    return tensor_dim(nest.maps[i], kernel_dim)
        return None

    # Kernels ----------------------------------------------------------------------------------

    def _kernel(self, op: Op) -> None:
        nest = Nest(op)
        inner: dict[str, Attr] = {}
        match nest.kind:
            case "contract":
                along, k = contract_sticks(nest)
                inner = {"k": k}
                demands = [k] + [along] * (len(op.operands) - 1)
            case "fold" if is_windowed(nest):
                along = 1
                demands = [along] * len(op.operands)
            case "vec" | "fold":
                along = self._choose(nest)
                demands = [along] * len(op.operands)
            case "gather":
                along = len(nest.extents) - 1
                demands = [along, -1]
            case _:
                return self._move(op)
        operands, maps = [], []
        for i, (v, m, demand) in enumerate(zip(op.operands, nest.maps, demands, strict=True)):
            weight = i == 1 and nest.kind == "contract" and region_head(op).name == "conv"
            got, new_map = self._require(v, m, demand, nest, rows_last=weight)
            operands.append(got)
            maps.append(new_map)
        sticks = [result_stick(m, along, op) for m in nest.out_maps]
        self._emit(op, tuple(operands), tuple(maps), {"stick": along, **inner}, sticks)

    def _move(self, op: Op) -> None:
        operands = []
        for v in op.operands:
            if v in self.constants and v not in self.mapped:
                self._constant(v, rank1(v.type), len(rank1(v.type)) - 1)
            operands.append(self.mapped[v])
        stick = self._want(op.results[0])
        nest = Nest(op)
        self._emit(op, tuple(operands), nest.maps, {"stick": stick}, [stick])

    def _emit(
        self,
        op: Op,
        operands: tuple[Value, ...],
        maps: tuple[Map, ...],
        attrs: dict[str, Attr],
        sticks: list[int],
    ) -> None:
        results = tuple(self._typed(r, s) for r, s in zip(op.results, sticks, strict=True))
        weights = tuple(i for i, v in enumerate(operands) if v in self.stored)
        region = op.regions[0]
        retyped = self._region(region, operands, max(len(m) for m in Nest(op).out_maps))
        self.builder.add(
            replace(
                op,
                operands=operands,
                results=results,
                regions=(retyped,),
                attrs=MappingProxyType({**op.attrs, "maps": maps, "weights": weights, **attrs}),
            )
        )

    def _region(self, region: Block, operands: tuple[Value, ...], rank: int) -> Block:
        """The region on operands of which some have gained a dimension of extent 1: in front where
        they broadcast to ``rank`` dimensions, else at the end, where a reshape takes it off
        again."""
        changes: dict[Value, Value] = {}
        args, ops = [], []
        for a, v in zip(region.args, operands, strict=True):
            arg = a
            if v.type.shape != a.type.shape:
                arg = changes[a] = Value(a.name, TensorType(v.type.shape, a.type.dtype))
                if a.type.rank >= rank:
                    changes[a] = self.builder.value(a.name, a.type)
                    attrs = MappingProxyType[str, Attr]({"shape": a.type.shape})
                    loc = region.ops[0].loc
                    ops.append(Op("reshape", (arg,), (changes[a],), attrs, (), loc))
            args.append(arg)
        if not changes:
            return region
        for op in region.ops:
            here = replace(op, operands=tuple(changes.get(v, v) for v in op.operands))
            if here.operands != op.operands:
                here = _shifted_axes(here, op.operands[0].type.shape)
                (type_,) = infer(op.name, [v.type for v in here.operands], here.attrs, op.loc)
                if type_.shape != op.result.type.shape:
                    changes[op.result] = Value(op.result.name, type_)
                    here = replace(here, results=(changes[op.result],))
            ops.append(here)
        return Block(tuple(args), tuple(ops), tuple(changes.get(v, v) for v in region.results))

    def _choose(self, nest: Nest) -> int:
        """The lane dimension of a vector kernel that costs least: elements to repack plus lanes
        wasted."""
        rank = max(len(m) for m in nest.out_maps + nest.maps)
        wanted = [self._asked(r) for r in nest.op.results]

        def cost(s: int) -> tuple[float, int]:
            waste = padded(nest.extents[s], GROUP) / nest.extents[s]
            total = 0.0
            for v, m in zip(nest.op.operands, nest.maps, strict=True):
                size = v.type.size
                if v in self.constants:
                    continue
                have = self.stick[self.mapped[v]]
                need = tensor_dim(m, s)
                moved = any(m[have][1]) if need is None else have != need
                total += size * (waste + (3 if moved else 0))
            for r, m, want in zip(nest.op.results, nest.out_maps, wanted, strict=True):
                moved = want is not None and tensor_dim(m, s) != want and spans(m, s)
                total += r.type.size * (waste + (3 if moved else 0))
            return total, -s

        choices = [d for d in range(min(rank, len(nest.extents))) if usable_stick(nest, d)]
        choices = [d for d in choices if self._as_factors(nest, d)]
        return min([d for d in choices if self._as_pinned(nest, d)] or choices, key=cost)

    def _as_factors(self, nest: Nest, s: int) -> bool:
        """Would lanes along s give narrow results as the matrix unit reads them?"""
        return all(
            tensor_dim(m, s) == self._asked(r)
            for r, m in zip(nest.op.results, nest.out_maps, strict=True)
            if r.type.dtype.bits in FACTOR_ARRANGEMENTS
        )

    def _as_pinned(self, nest: Nest, s: int) -> bool:
        """Would lanes along s give the results the stick dimensions a plan pins?"""
        return all(
            self.pinned.get(r.name) in (None, result_stick(m, s, nest.op))
            for r, m in zip(nest.op.results, nest.out_maps, strict=True)
        )

    # Operands ---------------------------------------------------------------------------------

    def _require(
        self, v: Value, m: Map, s: int, nest: Nest, rows_last: bool = False
    ) -> tuple[Value, Map]:
        """The value laid out so that its lanes run along kernel dimension s (or hold it in lane 0).

        ``rows_last``: convolution weights, whose input channels must be the innermost memory
        dimension.
        """
        shape = rank1(v.type)
        dim = tensor_dim(m, s) if s >= 0 else len(shape) - 1
        if dim is None:
            still = [i for i, (_, coefs) in enumerate(m) if not any(coefs)]
            if not still:
                row = (0, (0,) * len(nest.extents))
                if len(shape) < max(len(r) for r in nest.out_maps):
                    # it broadcasts: one more leading 1 changes nothing
                    shape, m, still = (1, *shape), (row, *m), [0]
                else:
                    shape, m, still = (*shape, 1), (*m, row), [len(shape)]
            dim = still[-1]
        if v in self.constants:
            return self._constant(v, shape, dim, (0, 2, 3, 1) if rows_last else None), m
        if rows_last:
            raise PassError(
                f"stick-layout: convolution weights {v} must be constant (from {self._loc(v)})"
            )
        here = self.mapped[v]
        if shape == rank1(v.type) and self.stick[here] == dim:
            return here, m
        return self._repack(here, shape, dim), m

    def _constant(
        self, v: Value, shape: tuple[int, ...], stick: int, order: tuple[int, ...] | None = None
    ) -> Value:
        """Constants are stored as their reader wants them: one copy for each form asked for."""
        key = (v, shape, stick if order is None else stick + 100)
        if key not in self.repacked:
            op = self.constants[v]
            array = np.asarray(op.attrs["value"]).reshape(
                shape if v.type.shape or shape != (1,) else ()
            )
            type_ = TensorType(tuple(array.shape), v.type.dtype)
            first = v not in self.mapped
            name = v.name if first else self.builder.fresh(v.name)
            made = Value(name, self._laid(v, type_, stick, order))
            self.builder.add(
                replace(op, results=(made,), attrs=MappingProxyType({**op.attrs, "value": array}))
            )
            self.stick[made] = stick
            self.stored.add(made)
            self.repacked[key] = made
            self.mapped.setdefault(v, made)
        return self.repacked[key]

    def _repack(self, v: Value, shape: tuple[int, ...], stick: int) -> Value:
        """A move kernel that changes the lane dimension (and may add a dimension of extent 1 at
        either end)."""
        key = (v, shape, stick)
        if key not in self.repacked:
            n = len(shape)
            counts = rank1(v.type)
            eye = tuple(
                (0, tuple(int(i == j) for j in range(len(counts)))) for i in range(len(counts))
            )
            still = ((0, (0,) * len(counts)),) if n > len(counts) else ()
            dst = (*still, *eye) if shape[n - len(counts) :] == counts else (*eye, *still)
            type_ = TensorType(shape, v.type.dtype)
            arg = self.builder.value(v.name, TensorType(v.type.shape, v.type.dtype))
            inner = self.builder.value(v.name, type_)
            piece = (0, counts, eye if v.type.rank else (), dst)
            what = MappingProxyType[str, Attr]({"shape": shape, "fill": 0.0, "pieces": (piece,)})
            body = Op("move", (arg,), (inner,), what)
            made = Value(self.builder.fresh(f"{v.name}_restick"), laid(type_, stick))
            attrs: dict[str, Attr] = {
                "name": f"r{self.count}_restickify",
                "kind": "move",
                "stick": stick,
                "dims": tuple((f"d{i}", e) for i, e in enumerate(shape)),
                "maps": ((),),
                "ops": "restickify",
                "out_maps": (identity_map(shape, shape, n),),
            }
            self.count += 1
            region = Block((arg,), (body,), (inner,))
            frozen = MappingProxyType(attrs)
            self.builder.add(Op("kernel", (v,), (made,), frozen, (region,), self._loc(v)))
            self.stick[made] = stick
            self.repacked[key] = made
        return self.repacked[key]

    def _loc(self, v: Value) -> Loc:
        for op in reversed(self.builder.ops):
            if v in op.results:
                return op.loc
        return Loc((v.name,))


def _shifted_axes(op: Op, before: tuple[Dim, ...]) -> Op:
    """A reduction whose operand had shape ``before`` and may have gained leading dimensions."""
    after = op.operands[0].type.shape
    gained = len(after) - len(before)
    if "axes" not in op.attrs or not gained or after[gained:] != before:
        return op
    return op.with_attrs(axes=tuple(a + gained for a in entries(op, "axes")))
