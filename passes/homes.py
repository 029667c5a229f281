"""What tensors that live in the scratchpads take, where they are held, and who can read them."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from spyrec.ir.core import Module, Op, Value
from spyrec.ir.layout import Layout
from spyrec.ir.types import TensorType

from .kernel import GROUP, Box, padded

Boxes = tuple[Box, ...]
Order = tuple[int, ...]
"""Dimensions of a buffer, outermost first."""


def align(box: Box, stick: int, shape: tuple[int, ...]) -> Box:
    """The box widened to whole groups of lanes along the stick dimension."""
    start, size = box[stick]
    if size == 0:
        return box
    lo = start // GROUP * GROUP
    hi = min(shape[stick], padded(start + size, GROUP))
    return (*box[:stick], (lo, hi - lo), *box[stick + 1 :])


def local_layout(like: Layout, boxes: Boxes, order: Order | None = None) -> Layout:
    """Layout of the scratchpad buffer that holds any one of the boxes of a tensor laid out ``like``
    this. ``order``: its dimensions outermost first; that of ``Layout.stick`` unless given."""
    return _buffer(_widest(boxes), like.bits, like.stick_dim, order)


@lru_cache(maxsize=1 << 12)
def _widest(boxes: Boxes) -> tuple[int, ...]:
    """The shape that holds any one of them."""
    return tuple(max(1, *(size for _, size in sides)) for sides in zip(*boxes, strict=True))


@lru_cache(maxsize=1 << 12)
def _buffer(shape: tuple[int, ...], bits: int, stick_dim: int, order: Order | None) -> Layout:
    return Layout.stick(shape, bits, stick_dim, order)


def buffer_bytes(type_: TensorType, boxes: Boxes) -> int:
    """Scratchpad bytes a core sets aside for its box."""
    assert type_.layout is not None
    return local_layout(type_.layout, boxes).sticks * 128


def contains(outer: Box, inner: Box) -> bool:
    return prod(s for _, s in inner) == 0 or all(
        a <= s and s + n <= a + m for (a, m), (s, n) in zip(outer, inner, strict=True)
    )


def resident_bytes(module: Module) -> dict[Op, int]:
    """What tensors that stay on chip take of a core's scratchpad while each kernel runs, and while
    its operands are exchanged: both happen in one launch, so what is exchanged stays until the
    kernel's end."""
    ops = module.body.ops
    last: dict[Value, int] = {}
    launch = len(ops) - 1
    for i in reversed(range(len(ops))):
        launch = i if ops[i].name == "kernel" else launch
        for v in ops[i].operands:
            last.setdefault(v, launch)
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


def held_bytes(module: Module) -> dict[str, int]:
    """Kernel name -> bytes of a core's scratchpad to hold free while it runs: what its buffers
    lacked when this module was planned before (``held`` = ((name, bytes), ...), which the driver
    sets and tiling, the last to ask, takes off)."""
    return dict(module.attrs.get("held", ()))  # type: ignore[arg-type]


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


def home_layout(op: Op, index: int) -> Layout | None:
    """Layout of the buffer that holds any core's box of a resident result of a kernel or relayout;
    None when it lives in card memory."""
    boxes, layout = home(op, index), op.results[index].type.layout
    if boxes is None:
        return None
    assert layout is not None
    ordered: Any = op.attrs.get("home_orders", ())
    order = op.attrs.get("order") if op.name == "relayout" else dict(ordered).get(index)
    return local_layout(layout, boxes, order)  # type: ignore[arg-type]
