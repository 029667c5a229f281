"""How far one core reaches in card memory: the span of each tensor it touches, which is limited."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spyrec.ir.core import Op, Value
from spyrec.ir.layout import Layout

from .kernel import Box, Nest, clip, rank1, window
from .pieces import needs

STICK_BYTES = 128


@dataclass(frozen=True)
class Reach:
    """``core`` reaches over ``nbytes`` of ``tensor`` in one launch, first stick to last."""

    tensor: Value
    core: int
    nbytes: int


def span_bytes(layout: Layout, box: Box) -> int:
    """Bytes from the first to the last stick of a box, 0 when it is empty."""
    if any(size == 0 for _, size in box):
        return 0
    sticks = max(1, layout.group // layout.lanes)
    for d, (start, size) in enumerate(box):
        step = layout.unit(d)
        steps = (start + size - 1) // step - start // step
        sticks += steps * layout.dim_stride(d) if steps else 0
    return sticks * STICK_BYTES


def reaches(op: Op, over: int = 0) -> Iterator[Reach]:
    """For each tensor of a kernel that lies in card memory and has more than ``over`` bytes: the
    core that reaches furthest."""
    nest = Nest(op)
    for i, v in enumerate(op.operands):
        if _in_card_memory(v, over):
            yield _furthest(v, _operand_boxes(op, nest, i))
    for r, m in zip(op.results, nest.out_maps, strict=True):
        if _in_card_memory(r, over):
            boxes = (clip(window(m, ranges), rank1(r.type)) for ranges in nest.finishing)
            yield _furthest(r, tuple(boxes))


def _in_card_memory(v: Value, over: int) -> bool:
    layout = v.type.layout
    return v.type.space == "hbm" and layout is not None and layout.sticks * STICK_BYTES > over


def _operand_boxes(op: Op, nest: Nest, operand: int) -> tuple[Box, ...]:
    boxes = needs(op, operand)
    if nest.kind == "gather" and operand == 0:  # any row may be looked up
        rows = rank1(op.operands[0].type)[0]
        return tuple(((0, rows), *box[1:]) for box in boxes)
    return boxes


def _furthest(v: Value, boxes: tuple[Box, ...]) -> Reach:
    layout = v.type.layout
    assert layout is not None
    spans = [span_bytes(layout, box) for box in boxes]
    core = max(range(len(spans)), key=spans.__getitem__)
    return Reach(v, core, spans[core])
