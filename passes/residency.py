"""ring-relayout: keep intermediate tensors in the scratchpads, and move them over the ring between
kernels that are cut differently.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import Any, ClassVar

from spyrec.ir.core import Block, Builder, Module, Op, Value, names, remap, uses
from spyrec.ir.layout import Layout
from spyrec.ir.types import TensorType

from .allocate import owned_boxes
from .in_place import replaced_operand
from .kernel import GROUP, Box, Nest, padded, rank1
from .manager import Target
from .pieces import needs
from .signature import signature
from .sticks import FACTOR_ARRANGEMENTS

Boxes = tuple[Box, ...]


@dataclass(frozen=True)
class RingRelayout:
    """Decide for every intermediate tensor: scratchpad or card memory.

    A tensor stays on chip when its owners' parts, and for each reader that is cut differently a
    `relayout` copy, fit into ``share`` of the scratchpad for as long as they are needed. Readers
    that need the same parts share one copy. An elementwise result takes over the room of an operand
    that nobody reads afterwards (``in_place``).

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> from spyrec.sim.device import load_device
    >>> from spyrec.passes.allocate import CoreAllocation
    >>> from spyrec.passes.fuse import Fuse
    >>> from spyrec.passes.stick_layout import StickLayout
    >>> target = Target(load_device())
    >>> before = CoreAllocation().run(StickLayout().run(Fuse().run(parse_module('''module "m" {
    ...   input %x: tensor<64x2048xdl16>
    ...   input %v: tensor<2048x256xdl16>
    ...   input %w: tensor<256x2048xdl16>
    ...   %y = matmul(%x, %v) : tensor<64x256xdl16>
    ...   %z = matmul(%y, %w) : tensor<64x2048xdl16>
    ...   output "z" = %z
    ... }'''), target), target), target)
    >>> print(print_module(RingRelayout().run(before, target)))
    ... # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
    module "m" {stage = "device", laid_out = true, cores = 32} {
      ...
      %y... = kernel(%x, %v) {name = "k0_matmul", ..., resident = ((0, (((0, ...} : ..., lx> {
      ...
      %y..._there = relayout(%y...) {boxes = (((0, ...)} : ..., lx>
      %z... = kernel(%y..._there, %w) {name = "k1_matmul", ...} : ..., hbm> {
      ...
    """

    name: ClassVar[str] = "ring-relayout"
    summary: ClassVar[str] = (
        "Keeps tensors on chip and exchanges them over the ring where ownership differs."
    )
    share: float = 0.9  # of the scratchpad that may hold tensors between kernels
    enable: bool = True

    def run(self, module: Module, target: Target) -> Module:
        if not self.enable:
            return module
        most = target.device.lx.usable_bytes
        return _Residency(module, int(most * self.share), most, target.device.cores.count).run()


def align(box: Box, stick: int, shape: tuple[int, ...]) -> Box:
    """The box widened to whole groups of lanes along the stick dimension."""
    start, size = box[stick]
    if size == 0:
        return box
    lo = start // GROUP * GROUP
    hi = min(shape[stick], padded(start + size, GROUP))
    return (*box[:stick], (lo, hi - lo), *box[stick + 1 :])


def local_layout(type_: TensorType, boxes: Boxes) -> Layout:
    """Layout of the scratchpad buffer that holds any one of the boxes."""
    assert type_.layout is not None
    shape = tuple(max(1, *(b[d][1] for b in boxes)) for d in range(len(boxes[0])))
    return Layout.stick(shape, type_.dtype.bits, type_.layout.stick_dim)


def buffer_bytes(type_: TensorType, boxes: Boxes) -> int:
    """Scratchpad bytes a core sets aside for its box."""
    return local_layout(type_, boxes).sticks * 128


def contains(outer: Box, inner: Box) -> bool:
    return prod(s for _, s in inner) == 0 or all(
        a <= s and s + n <= a + m for (a, m), (s, n) in zip(outer, inner, strict=True)
    )


@dataclass
class _Residency:
    source: Module
    limit: int
    most: int  # what tensors that a plan pins to the scratchpad may take
    cores: int
    boxes: dict[Hashable, Boxes] = field(default_factory=dict)  # equal kernels' are found once
    signatures: dict[Op, Hashable] = field(default_factory=dict)

    def run(self) -> Module:
        body = self.source.body
        self.position = {op: i for i, op in enumerate(body.ops)}
        self.uses = uses(body)
        self.used = [0] * len(body.ops)
        copies: dict[tuple[Value, Boxes], tuple[int, list[tuple[Op, int]]]] = {}
        homes: dict[Value, Boxes] = {}
        self.in_place: dict[Op, list[tuple[int, int]]] = {}
        pins: dict[str, str] = dict(self.source.attrs.get("pin_spaces", ()))  # type: ignore[arg-type]
        made = [
            (op, i, v) for op in body.ops if op.name == "kernel" for i, v in enumerate(op.results)
            if v.type.dtype.bits not in FACTOR_ARRANGEMENTS
        ]
        for op, i, v in made:
            if pins.get(v.name) == "lx":
                self._place(op, i, v, homes, copies, self.most)
        for op, i, v in made:
            if v.name not in pins:
                self._place(op, i, v, homes, copies, self.limit)
        return self._rebuild(homes, copies)

    def _place(
        self,
        op: Op,
        index: int,
        v: Value,
        homes: dict[Value, Boxes],
        copies: dict[tuple[Value, Boxes], tuple[int, list[tuple[Op, int]]]],
        limit: int,
    ) -> None:
        readers = self.uses.get(v, [])
        if v in self.source.body.results or not readers or any(not readable(u) for u, _ in readers):
            return
        assert v.type.layout is not None
        own = self._owned(op, index)
        wanted: dict[Boxes, list[tuple[Op, int]]] = {}
        direct = []
        for reader, i in readers:
            need = self._needed(reader, i)
            if all(contains(o, n) for o, n in zip(own, need, strict=True)):
                direct.append(reader)
            else:
                wanted.setdefault(need, []).append((reader, i))
        spans = [
            (
                self.position[op],
                max(self.position[u] for u, _ in readers),
                buffer_bytes(v.type, own),
            )
        ]
        for need, who in wanted.items():
            at = [self.position[u] for u, _ in who]
            spans.append((min(at), max(at), buffer_bytes(v.type, need)))
        # the original is needed until the last copy is made or the last direct reader has run
        last = max(
            [self.position[u] for u in direct] + [s[0] for s in spans[1:]], default=spans[0][1]
        )
        taken = replaced_operand(op, index, own, homes, self.uses, self.position)
        spans[0] = (spans[0][0] + (taken is not None), last, spans[0][2])
        if not self._room(spans, limit):
            return
        homes[v] = own
        if taken is not None:
            self.in_place.setdefault(op, []).append((index, taken))
        for need, who in wanted.items():
            copies[v, need] = (min(self.position[u] for u, _ in who), who)

    def _owned(self, op: Op, index: int) -> Boxes:
        """What each core makes of a kernel's result."""
        key = self._signature(op), "result", index
        if key not in self.boxes:
            nest = Nest(op)
            made = owned_boxes(nest, nest.out_maps[index], rank1(op.results[index].type))
            self.boxes[key] = pad_boxes(made, self.cores)
        return self.boxes[key]

    def _needed(self, op: Op, index: int) -> Boxes:
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

    def _room(self, spans: list[tuple[int, int, int]], limit: int) -> bool:
        extra: dict[int, int] = {}
        for first, last, size in spans:
            for i in range(first, last + 1):
                extra[i] = extra.get(i, 0) + size
        if any(self.used[i] + n > limit for i, n in extra.items()):
            return False
        for i, n in extra.items():
            self.used[i] += n
        return True

    def _rebuild(
        self,
        homes: dict[Value, Boxes],
        copies: dict[tuple[Value, Boxes], tuple[int, list[tuple[Op, int]]]],
    ) -> Module:
        builder = Builder(names(self.source))
        mapped: dict[Value, Value] = {}
        before: dict[int, list[tuple[Value, Boxes, list[tuple[Op, int]]]]] = {}
        for (v, need), (at, who) in copies.items():
            before.setdefault(at, []).append((v, need, who))
        swaps: dict[tuple[Op, int], Value] = {}
        for position, op in enumerate(self.source.body.ops):
            for v, need, who in before.get(position, []):
                here = mapped[v]
                made = Value(builder.fresh(f"{v.name}_there"), here.type)
                builder.add(
                    Op("relayout", (here,), (made,), MappingProxyType({"boxes": need}), (), op.loc)
                )
                for use in who:
                    swaps[use] = made
            new = remap(op, mapped)
            operands = tuple(swaps.get((op, i), w) for i, w in enumerate(new.operands))
            results = tuple(
                Value(r.name, r.type.with_(space="lx")) if r in homes else r for r in op.results
            )
            mapped.update({a: b for a, b in zip(op.results, results, strict=True) if a is not b})
            new = replace(new, operands=operands, results=results)
            resident = tuple((i, homes[r]) for i, r in enumerate(op.results) if r in homes)
            if resident:
                new = new.with_attrs(resident=resident)
            if op in self.in_place:
                new = new.with_attrs(in_place=tuple(self.in_place[op]))
            builder.add(new)
        return replace(
            self.source,
            body=Block(self.source.body.args, tuple(builder.ops), self.source.body.results),
        )


def resident_bytes(module: Module) -> dict[Op, int]:
    """What tensors that stay on chip take of a core's scratchpad while each kernel runs, and while
    its operands are exchanged."""
    ops = module.body.ops
    last = {v: i for i, op in enumerate(ops) for v in op.operands}
    change = [0] * (len(ops) + 1)
    for i, op in enumerate(ops):
        taken = dict(op.attrs.get("in_place", ()))  # type: ignore[arg-type]
        for index, v in enumerate(op.results):
            boxes = home(op, index)
            if boxes is not None:
                size = buffer_bytes(v.type, boxes)
                change[i + (index in taken)] += size
                change[max(last.get(v, i), i) + 1] -= size
    found, total = {}, 0
    for op, delta in zip(ops, change, strict=False):
        total += delta
        found[op] = total
    return found


def readable(op: Op) -> bool:
    """Can this op read a tensor that lives in the scratchpads? (A gather's table and indices are in
    card memory.)
    """
    return op.name == "kernel" and op.attrs["kind"] != "gather"


def pad_boxes(boxes: Boxes, cores: int) -> Boxes:
    """One box for every core of the machine, empty beyond the kernel's own cores."""
    empty = tuple((0, 0) for _ in boxes[0])
    return boxes + (empty,) * (cores - len(boxes))


def home(op: Op, index: int) -> Boxes | None:
    """The boxes of a resident result of a kernel or relayout; None when it lives in card memory."""
    held: Any = op.attrs.get("resident", ())
    if op.name == "relayout":
        held = ((0, op.attrs["boxes"]),)
    return next((boxes for i, boxes in held if i == index), None)
