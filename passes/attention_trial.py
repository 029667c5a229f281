"""A way to compute an attention, tried out: alone, between kernels that make its operands and read
its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spyrec.ir.core import Block, Builder, Module, Op

from .canonicalize import canonicalize
from .dce import remove_dead
from .decompose import decompose
from .emit import Array
from .fold import Fold
from .fold_groups import FoldGroups
from .fuse import Fuse
from .legalize_dtypes import LegalizeDtypes
from .manager import Target
from .merge_moves import MergeMoves
from .stick_layout import StickLayout


def trial_cycles(
    op: Op, masks: Sequence[Array | None], rows: int, keys: int, target: Target
) -> int | None:
    """Simulated cycles of the attention with ``rows`` and ``keys`` at a time. None where nobody
    can run it or it does not fit the machine. ``masks``: arrays of its masks, None: an input."""
    if target.attempt is None:
        return None
    module = Fold().run(canonicalize(decompose(_alone(op, masks, rows, keys))), target)
    for step in (LegalizeDtypes(), MergeMoves(), Fuse(), StickLayout(), FoldGroups()):
        module = remove_dead(step.run(module, target))
    trial = target.attempt(module)
    return None if trial is None else trial.cycles


def _alone(op: Op, masks: Sequence[Array | None], rows: int, keys: int) -> Module:
    """The attention as a module with names of its own. Kernels make its operands and read its
    result, so that these may stay on the card as they may in a model."""
    b = Builder()
    args = [b.value("in", v.type) for v in op.operands[:3]]
    operands = [b.op("neg", [v]).result for v in args]
    for v, array in zip(op.operands[3:], masks, strict=True):
        if array is None:
            args.append(b.value("mask", v.type))
            operands.append(args[-1])
        else:
            operands.append(b.constant(array, v.type.dtype))
    attrs: dict[str, Any] = {**op.attrs, "rows": rows, "keys": keys}
    made = b.op("attention", operands, **attrs).result
    last = b.op("neg", [made]).result
    return Module("attention", Block(tuple(args), tuple(b.ops), (last,)), ("y",))
