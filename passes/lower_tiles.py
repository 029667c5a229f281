"""lower-tiles: make the loops, loads, stores and tile computations of every kernel explicit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

from spyrec.ir.arrange import resized
from spyrec.ir.core import Attr, Block, Builder, Module, Op, Value, names
from spyrec.ir.layout import Layout
from spyrec.ir.ops import infer
from spyrec.ir.ops.tile import F32, working
from spyrec.ir.tiles import tile_shape
from spyrec.ir.types import TensorType

from .kernel import Map, Nest, rank1, spans
from .manager import Target
from .primitives import REDUCTIONS
from .rooms import taken_rooms
from .stages import Stage, reused, stages

IDENTITY = {
    "reduce_sum": 0.0,
    "reduce_max": float("-inf"),
    "reduce_min": float("inf"),
    "reduce_prod": 1.0,
    "max_pool": float("-inf"),
    "sum_pool": 0.0,
    "conv": 0.0,
    "matmul": 0.0,
}
COMBINE = {
    "reduce_sum": "add",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_prod": "mul",
    "max_pool": "max",
    "sum_pool": "add",
    "conv": "add",
    "matmul": "add",
}


@dataclass(frozen=True)
class LowerTiles:
    """Rewrite kernel bodies for one core and one tile at a time.

    Each core runs the body on its own part (``parts``, ``core_order``). A `load` fetches the window
    the current trip needs and fills what lies outside the tensor; what a tile holds beyond a tail
    is undefined. A `compute` works on floats in f32 and rounds once. Moves and gathers keep their
    bodies: their descriptors say it all.

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> before = parse_module('''module "m" {stage = "device"} {
    ...   input %x: tensor<8x128xdl16,
    ...     [shape 8x128 bits 16 | 1:2*64 mem, 0:8*1 mem, 1:64*1 lane | pad undefined], hbm>
    ...   input %w: tensor<128x64xdl16,
    ...     [shape 128x64 bits 16 | 1:1*64 mem, 0:128*1 mem, 1:64*1 lane | pad undefined], hbm>
    ...   %y = kernel(%x, %w) {name = "k0", kind = "contract", ops = "matmul", stick = 1, k = 2,
    ...     dims = (("m", 8), ("n", 64), ("k", 128)), tile = (4, 64, 64), loops = (0, 2),
    ...     maps = (((0, (1, 0, 0)), (0, (0, 0, 1))), ((0, (0, 0, 1)), (0, (0, 1, 0)))),
    ...     out_maps = (((0, (1, 0, 0)), (0, (0, 1, 0))),)} : tensor<8x64xdl16,
    ...     [shape 8x64 bits 16 | 1:1*64 mem, 0:8*1 mem, 1:64*1 lane | pad undefined], hbm> {
    ...     (%a: tensor<8x128xf32>, %b: tensor<128x64xf32>):
    ...     %p = matmul(%a, %b) : tensor<8x64xf32>
    ...     yield %p
    ...   }
    ...   output "y" = %y
    ... }''')
    >>> print(print_module(lower_kernels(before)))  # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
    module "m" {stage = "tile"} {
      ...
      %y = kernel(%x, %w) {name = "k0", ..., tiled = true} : tensor<8x64xdl16, ...> {
        (%a: tensor<8x128xdl16>, %b: tensor<128x64xdl16>):
        for {dim = 0} {
          ():
          %init = init {value = 0.0} : tensor<4x64xf32, ...>
          %sum_2 = for(%init) {dim = 2} : tensor<4x64xf32, ...> {
            (%acc: tensor<4x64xf32, ...>):
            %a_tile = load(%a) {operand = 0, fill = 0.0} : tensor<4x64xdl16, ...>
            %b_tile = load(%b) {operand = 1, fill = 0.0} : tensor<64x64xdl16, ...>
            %p_tile = compute(%a_tile, %b_tile, %acc) {unit = "pt", head = "matmul"} : ... {
              (%a_2: tensor<4x64xf32>, %b_2: tensor<64x64xf32>, %acc_2: tensor<4x64xf32>):
              %p_2 = matmul(%a_2, %b_2) : tensor<4x64xf32>
              %sum = add(%acc_2, %p_2) : tensor<4x64xf32>
              yield %sum
            }
            yield %p_tile
          }
          %p_tile_2 = compute(%sum_2) {unit = "sfp"} : tensor<4x64xdl16, ...> {
            (%acc_3: tensor<4x64xf32>):
            yield %acc_3
          }
          store(%p_tile_2) {result = 0}
          yield
        }
        yield
      }
      output "y" = %y
    }

    """

    name: ClassVar[str] = "lower-tiles"
    summary: ClassVar[str] = "Makes loops, loads, stores and tile computations explicit."

    def run(self, module: Module, target: Target) -> Module:
        return lower_kernels(module)


def lower_kernels(module: Module) -> Module:
    """The module at the tile stage."""
    builder = Builder(names(module))
    constants = {op.result for op in module.body.ops if op.name == "constant"}
    ops = []
    for op in module.body.ops:
        if op.name == "kernel" and op.attrs["kind"] in ("contract", "vec", "fold"):
            op = _Lowering(op, builder, constants).run()
        ops.append(op)
    return replace(module, body=replace(module.body, ops=tuple(ops))).with_attrs(stage="tile")


class _Lowering:
    """One kernel."""

    def __init__(self, op: Op, names_: Builder, constants: Collection[Value]) -> None:
        self.op = op
        self.nest = Nest(op)
        self.region = op.regions[0]
        self.names = names_
        self.constants = constants
        self.stages = stages(self.region, self._immediates(constants))
        self.head = self._head()
        self.taken = taken_rooms(self.nest, self.stages)
        self.loops = self.nest.loops
        self.folded = [
            d for d in self.loops if d not in self.nest.parallel and d not in self.nest.whole
        ]
        self.outer = [d for d in self.loops if d not in self.folded]
        self.maps = self._value_maps()
        self.type_of = dict(zip(self.region.results, (r.type for r in op.results), strict=True))
        self.sources = {
            a: Value(a.name, TensorType(a.type.shape, v.type.dtype))
            for a, v in zip(self.region.args, op.operands, strict=True)
        }
        self.at: dict[int, list[Op]] = {d: [] for d in range(len(self.loops) + 1)}
        self.tile_of: dict[Value, Value] = {}
        self.depth_of: dict[Value, int] = {}

    def _immediates(self, constants: Collection[Value]) -> set[Value]:
        """Arguments that are numbers known at compile time."""
        pairs = zip(self.region.args, self.op.operands, strict=True)
        return {a for a, v in pairs if v in constants and v.type.size == 1}

    def _head(self) -> Stage | None:
        """The stage that folds: the first of a matrix or window kernel, the one reduction of a
        vector kernel that holds no dimension whole."""
        if self.nest.kind == "vec":
            heads = [s for s in self.stages if s.head is not None]
            return heads[0] if heads and not self.nest.whole else None
        return self.stages[0] if self.stages and self.stages[0].head is not None else None

    def _value_maps(self) -> dict[Value, Map]:
        return dict(zip(self.region.args, self.nest.maps, strict=True)) | dict(
            zip(self.region.results, self.nest.out_maps, strict=True)
        )

    def run(self) -> Op:
        head = self.head
        first = self.stages.index(head) if head is not None else 0
        before, rest = self.stages[:first], self.stages[first + (head is not None) :]
        inside = [stage for stage in before if self._spans_folded(stage.result)]
        after = [self._made(stage) for stage in before if stage not in inside]
        if head is not None:
            after += self._inner(head, inside)
        if head is not None and self.nest.finish:
            after.append(self._finish(head))
        else:
            after += self._closing(rest)
        body = self._wrap(after)
        region = Block(tuple(self.sources.values()), tuple(body), ())
        return replace(self.op.with_attrs(tiled=True), regions=(region,))

    def _closing(self, rest: Sequence[Stage]) -> list[Op]:
        """What follows the folded part: terms of a K-split added up, the stages ``rest``, rounding
        and stores."""
        after: list[Op] = []
        head = self.head
        split = head is not None and self.nest.terms > 1
        if head is not None and split:
            after.append(self._psum(head))
        for stage in rest:
            for v in stage.inputs:
                if v in self.region.args:  # in a K-split only those who finish need them
                    self._load(v, 0.0, self.outer, after if split else None)
            after.append(self._compute(stage, None))
        for stage in self.stages:
            if stage.result in self.region.results and self._wide(stage):
                after.append(self._drain(stage))
        for i, r in enumerate(self.region.results):
            tile = self.tile_of[r]
            after.append(Op("store", (tile,), (), MappingProxyType({"result": i}), (), self.op.loc))
        return after

    def _finish(self, head: Stage) -> Op:
        """The inner elements that the loop leaves, piece by piece: a kernel of smaller tiles that
        goes on with the sums there are."""
        assert head.head is not None
        end = _Lowering(self.nest.pieces[0].op, self.names, self.constants)
        end.sources = self.sources
        assert end.head is not None
        acc = self.names.value("acc", end._tile_type(end.head))
        made = end._inner(end.head, (), acc)
        closing = end._closing(end.stages[1:])
        loads = [op for depth in range(len(end.outer) + 1) for op in end.at[depth]]
        block = Block((acc,), (*loads, *made, *closing), ())
        sums = self.tile_of[head.result]
        return Op("finish", (sums,), (), MappingProxyType({}), (block,), self.op.loc)

    def _load(
        self, v: Value, fill: float, order: Sequence[int], into: list[Op] | None = None
    ) -> None:
        """Fetch an operand, at the depth of the innermost loop of ``order`` that it varies with
        unless ``into`` says where."""
        if v in self.tile_of:
            return
        m = self.maps[v]
        depth = max((i + 1 for i, d in enumerate(order) if spans(m, d)), default=0)
        shape = tile_shape(m, self.nest.tile)
        outside = self.op.operands[self.region.args.index(v)].type.layout
        assert outside is not None
        source = self.sources[v]
        kind = source.type.dtype
        layout = resized(outside, shape)
        tile = self.names.value(f"{v.name}_tile", TensorType(shape, kind, layout, "lx"))
        index = self.region.args.index(v)
        (self.at[depth] if into is None else into).append(
            Op(
                "load",
                (source,),
                (tile,),
                MappingProxyType({"operand": index, "fill": fill}),
                (),
                self.op.loc,
            )
        )
        self.tile_of[v] = tile

    def _made(self, stage: Stage, fill: float = 0.0, carried: Value | None = None) -> Op:
        """The instruction of the folding stage, or of one that it reads; its operands are loaded
        where they vary."""
        for v in stage.inputs:
            if v in self.region.args:
                self._load(v, fill, self.loops)
        return self._compute(stage, carried)

    def _spans_folded(self, v: Value) -> bool:
        """Does a value of a vector kernel vary along a dimension that is folded in a loop?"""
        full = rank1(v.type)
        lead = self.nest.rank - len(full)
        return any(d >= lead and full[d - lead] > 1 for d in self.folded)

    def _inner(
        self, head: Stage, inside: Sequence[Stage], begun: Value | None = None
    ) -> list[Op]:
        """The folded part, after the stages ``inside`` that it reads: loops that carry the
        accumulator, from sums already ``begun`` if any; or one instruction when nothing is looped.
        """
        assert head.head is not None
        fill = IDENTITY[head.head.name]
        made = [self._made(stage) for stage in inside]
        if not self.folded:
            return [*made, self._made(head, fill)]
        type_ = self._tile_type(head)
        carried = self.names.value("acc", type_)
        first = begun or self.names.value("init", type_)
        init = Op("init", (), (first,), MappingProxyType({"value": fill}), (), self.op.loc)
        step = self._made(head, fill, carried)
        ops: list[Op] = [*made, step]
        inner = step.result
        n = len(self.outer)
        for i in range(len(self.folded) - 1, -1, -1):
            here = self.at[n + i + 1]
            block = Block((carried,), (*here, *ops), (inner,))
            out = self.names.value("sum", type_)
            start = first if i == 0 else self.names.value("acc", type_)
            loop = Op(
                "for",
                (start,),
                (out,),
                MappingProxyType({"dim": self.folded[i]}),
                (block,),
                self.op.loc,
            )
            ops, inner = [loop], out
            carried = start
        self.tile_of[head.result] = inner
        return ops if begun is not None else [init, *ops]

    def _psum(self, head: Stage) -> Op:
        """Add up the terms of the cores that divide a summed dimension; the last goes on alone."""
        terms = self.tile_of[head.result]
        layout = terms.type.layout
        assert layout is not None
        tile = self.names.value("sum", terms.type.with_(layout=layout.complete()))
        self.tile_of[head.result] = tile
        return Op("psum", (terms,), (tile,), MappingProxyType({}), (), self.op.loc)

    def _wide(self, stage: Stage) -> bool:
        """Is the stage's tile kept in fp32, and rounded apart if it is a result?"""
        if stage.head is None:
            return False
        if stage is self.head and self._accumulates():
            return True
        first = self.nest.kind != "vec" and stage is self.head
        kept = self.type_of.get(stage.result)
        if kept is None:
            return not first
        narrow = kept.dtype.kind == "float" and kept.dtype.bits < F32.bits
        return narrow and stage.head.name in REDUCTIONS and reused(stage, self.stages)

    def _accumulates(self) -> bool:
        """Does the head's tile live in fp32 accumulators until its last step?"""
        return self.nest.kind == "contract" or bool(self.folded)

    def _drain(self, stage: Stage) -> Op:
        """Round an fp32 tile to the result's own format."""
        acc = self.tile_of[stage.result]
        type_ = self._tile_type(stage, drained=True)
        arg = self.names.value("acc", working(acc.type))
        tile = self.names.value(f"{stage.result.name}_tile", type_)
        self.tile_of[stage.result] = tile
        return Op(
            "compute",
            (acc,),
            (tile,),
            MappingProxyType({"unit": "sfp"}),
            (Block((arg,), (), (arg,)),),
            self.op.loc,
        )

    def _tile_type(self, stage: Stage, drained: bool = False) -> TensorType:
        """Type of a stage's tile: results in their own format, accumulators and statistics in
        fp32."""
        v = stage.result
        m = self.maps.get(v)
        full = rank1(v.type)
        lead = self.nest.rank - len(full)
        shape = tile_shape(m, self.nest.tile) if m is not None else self._part(full)
        kind = self.type_of.get(v, v.type).dtype
        if v in self.taken:
            kind = self.tile_of[self.taken[v]].type.dtype
        elif self._wide(stage) and not drained and kind.kind == "float":
            kind = F32
        stick = max(0, self.nest.stick - lead)
        home = self.type_of[v].layout if v in self.type_of else None
        if home is not None and kind == self.type_of[v].dtype:
            laid = TensorType(shape, kind, resized(home, shape), "lx")
        else:
            laid = _laid(TensorType(shape, kind), stick if stick < len(shape) else len(shape) - 1)
        if self.nest.terms > 1 and stage is self.stages[0] and not drained:
            assert laid.layout is not None
            return laid.with_(layout=laid.layout.summed(self.nest.terms))
        return laid

    def _compute(self, stage: Stage, carried: Value | None) -> Op:
        """One instruction: the stage's ops on tiles, folded into the carried accumulator if there
        is one."""
        inner: dict[Value, Value] = {}
        args = []
        outer_args: list[Value] = []
        for v in stage.inputs:
            arg = self.names.value(v.name, working(self.tile_of[v].type))
            inner[v] = arg
            args.append(arg)
            outer_args.append(self.tile_of[v])
        ops: list[Op] = []
        for op in stage.ops:
            operands = tuple(inner[v] for v in op.operands)
            here = self._on_tiles(op, op is stage.head, operands)
            ops.append(here)
            inner[op.result] = here.result
        last = inner[stage.result]
        type_ = self._tile_type(stage)
        if carried is not None:
            assert stage.head is not None
            arg = self.names.value("acc", working(type_))
            args.append(arg)
            outer_args.append(carried)
            total = self.names.value("sum", working(type_))
            ops.append(
                Op(
                    COMBINE[stage.head.name],
                    (arg, last),
                    (total,),
                    MappingProxyType({}),
                    (),
                    self.op.loc,
                )
            )
            last = total
        unit = "pt" if stage.head is not None and self.nest.kind == "contract" else "sfp"
        result = self.names.value(f"{stage.result.name}_tile", type_)
        attrs2: dict[str, Attr] = {"unit": unit}
        if stage.head is not None:
            attrs2["head"] = stage.head.name
        if stage.result in self.taken:
            attrs2["room"] = stage.inputs.index(self.taken[stage.result])
        self.tile_of.setdefault(stage.result, result)
        return Op(
            "compute",
            tuple(outer_args),
            (result,),
            MappingProxyType(attrs2),
            (Block(tuple(args), tuple(ops), (last,)),),
            self.op.loc,
        )

    def _on_tiles(self, op: Op, is_head: bool, operands: tuple[Value, ...]) -> Op:
        """The op on tile-shaped operands, with floats in f32."""
        attrs = dict(op.attrs)
        if is_head and "pads" in attrs:
            attrs["pads"] = tuple(0 for _ in attrs["pads"])  # type: ignore[union-attr]  # the load filled the border
        if op.name == "conv" and int(attrs.get("group", 1)) > 1:  # type: ignore[arg-type]
            attrs["group"] = operands[0].type.static_shape[
                1
            ]  # depthwise: a group for each channel of the tile
        if op.name == "broadcast_to":
            attrs["shape"] = self._part(rank1(op.result.type))
        if op.name == "reshape":
            attrs["shape"] = self._reshaped(op, operands[0].type.static_shape)
        if op.name == "cast" and op.result.type.dtype.kind == "float":
            attrs["to"] = F32
        (type_,) = infer(op.name, [v.type for v in operands], attrs, op.loc)
        made = self.names.value(op.result.name, type_)
        return replace(op, operands=operands, results=(made,), attrs=MappingProxyType(attrs))

    def _reshaped(self, op: Op, tile: tuple[int, ...]) -> tuple[int, ...]:
        """What becomes of a tile: it loses a last dimension of extent 1 (see stick-layout), gets
        the groups of its lanes apart or, as a result, together (fold-groups)."""
        before, after = op.operands[0].type.static_shape, op.result.type.static_shape
        if before == (*after, 1):
            return tile[:-1]
        m = self.maps.get(op.result)
        return self._part(after) if m is None else tile_shape(m, self.nest.tile)

    def _part(self, full: Sequence[int]) -> tuple[int, ...]:
        """The shape of a tile of a value that is aligned with the last result dimensions."""
        lead = self.nest.rank - len(full)
        return tuple(
            self.nest.tile[lead + i] if e == self.nest.extents[lead + i] else 1
            for i, e in enumerate(full)
        )

    def _wrap(self, innermost: Sequence[Op]) -> list[Op]:
        """Put the loops around, each with the loads of its depth before what is inside."""
        ops = list(innermost)
        for i in range(len(self.outer), 0, -1):
            block = Block((), (*self.at[i], *ops), ())
            ops = [
                Op(
                    "for",
                    (),
                    (),
                    MappingProxyType({"dim": self.outer[i - 1]}),
                    (block,),
                    self.op.loc,
                )
            ]
        return [*self.at[0], *ops]


def _laid(type_: TensorType, stick: int) -> TensorType:
    return type_.with_(layout=Layout.stick(rank1(type_), type_.dtype.bits, stick), space="lx")
