"""Masks that hide nothing."""

from __future__ import annotations

from spyrec.ir.core import Op, Value

from .emit import Emit
from .rule import Rule


def _hides_nothing(e: Emit, mask: Value) -> bool:
    number = e.splat(mask)
    return number is not None and number == (mask.type.dtype.kind == "bool")


def _softmax_of_sum(op: Op, e: Emit) -> Value | None:
    total = e.made_by(op.operands[0], "add")
    if total is None:
        return None
    for x, mask in (total.operands, total.operands[::-1]):
        if x.type == total.result.type and _hides_nothing(e, mask):
            e.absorb(total)
            return e.op("softmax", x, **op.attrs)
    return None


def _attention(op: Op, e: Emit) -> Value | None:
    q, k, v, *masks = op.operands
    if not masks or not _hides_nothing(e, masks[0]):
        return None
    return e.op("attention", q, k, v, **op.attrs)


MASK_RULES = (
    Rule("softmax-no-mask", "softmax", _softmax_of_sum, "exact",
         "softmax(x + 0) = softmax(x), which does not see the sign of a zero."),
    Rule("attention-no-mask", "attention", _attention, "exact",
         "A mask that is true or 0 everywhere hides nothing."),
)  # fmt: skip
