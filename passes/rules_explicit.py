"""Attention that a model spells out, as ONNX exports and eager models do, becomes one op: heads are
shared and rows cut into blocks only while it is one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from spyrec.ir.core import Op, Value

from .attention_parts import HIDDEN
from .emit import Emit
from .rule import Rule
from .rules_reduce import int_attr, ints

SHARED = 4
"""A mask joined from several is a tensor of its own: it must be so many times smaller than the
scores, unless it is a constant."""


@dataclass(frozen=True)
class _Choice:
    """Scores stay where ``cond`` is ``keeps``; the others become ``fill``."""

    cond: Value
    keeps: bool
    fill: float

    def seen(self, e: Emit) -> Value:
        return self.cond if self.keeps else e.op("not", self.cond)


@dataclass(frozen=True)
class _Scores:
    """``product``, a matmul, times ``scale``, then ``masks`` in order: a value is added. ``ops``
    made them."""

    product: Op
    scale: float = 1.0
    masks: tuple[Value | _Choice, ...] = ()
    ops: tuple[Op, ...] = ()


@dataclass(frozen=True)
class _Shapes:
    """How dimensions before the last two become a batch and heads: the last of them (of three and
    more the last two) are the heads. ``groups``: heads of keys and values."""

    batch: tuple[int, ...]
    groups: int

    @staticmethod
    def of(q: Value, keys: Value, values: Value, scores: Value) -> _Shapes | None:
        """None where the op has no form for it: what broadcasts must be keys and values, along the
        last of these dimensions."""
        batch, own = scores.type.static_shape[:-2], keys.type.static_shape[:-2]
        shared = (*batch[:-1], 1)[: len(batch)]
        if q.type.static_shape[:-2] != batch or values.type.static_shape[:-2] != own:
            return None
        if own not in (batch, shared):
            return None
        return _Shapes(batch, math.prod(own[len(own) - _tail(batch) :]))

    @property
    def lead(self) -> int:
        return math.prod(self.batch[: len(self.batch) - _tail(self.batch)])

    def queries(self, q: Value) -> tuple[int, ...]:
        return (self.lead, math.prod(self.batch) // max(self.lead, 1), *q.type.static_shape[-2:])

    def keys(self, k: Value) -> tuple[int, ...]:
        return (self.lead, self.groups, *k.type.static_shape[-2:])

    def mask(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape of a mask that broadcasts to the scores; None when it varies along a part of
        the dimensions that become one."""
        if len(self.batch) < 3 or len(shape) <= 2:
            return shape
        full = (*(1,) * (len(self.batch) + 2 - len(shape)), *shape)
        cut = len(self.batch) - 2
        parts = []
        for own, every in (
            (full[:cut], self.batch[:cut]), (full[cut:-2], self.batch[cut:])
        ):  # fmt: skip
            if own != every and set(own) != {1}:
                return None
            parts.append(math.prod(own))
        return (*parts, *full[-2:])


def _tail(batch: tuple[int, ...]) -> int:
    return min(len(batch), 2 if len(batch) > 2 else 1)


def _explicit(op: Op, e: Emit) -> Value | None:
    weights, values = op.operands
    kind = op.result.type.dtype
    if op.attrs["to"] is not None or kind.kind != "float" or weights.type.size < 1:
        return None
    weights, guard = _guarded(e, weights)
    weights, narrowed = (weights, None) if guard else _cast_of(e, weights)
    softmax = e.made_by(weights, "softmax")
    if softmax is None or not (guard or e.read_once(weights)):
        return None
    scores, widened = _cast_of(e, softmax.operands[0])
    found = _scores(e, scores) if scores.type.dtype == kind else None
    last = int_attr(softmax, "axis") == weights.type.rank - 1
    if not last or found is None or found.product.attrs.get("to") is not None:
        return None
    if guard and not _each_sees_some(e, found.masks, scores.type.static_shape):
        return None
    q, keys = found.product.operands
    shapes = _Shapes.of(q, keys, values, scores)
    if shapes is None or not _joins(e, found.masks, shapes, scores):
        return None

    (q, by_q, ops_q), (keys, by_k, ops_k) = _unscaled(e, q), _unscaled(e, keys)
    others = (op for op in (widened, softmax, narrowed, *guard) if op is not None)
    e.absorb(*ops_q, *ops_k, *found.ops, *others)
    rank = keys.type.rank
    keys = e.transpose(keys, (*range(rank - 2), rank - 1, rank - 2))
    mask, hidden = _joined(e, found.masks, q)
    operands = [
        e.reshape(q, shapes.queries(q)),
        e.reshape(keys, shapes.keys(keys)),
        e.reshape(values, shapes.keys(values)),
    ]
    if mask is not None:
        shape = shapes.mask(mask.type.static_shape)
        assert shape is not None  # that of each part has one
        operands.append(e.reshape(mask, shape))
    attrs = {"scale": found.scale * by_q * by_k}
    if hidden != -math.inf:
        attrs["hidden"] = hidden
    made = e.op("attention", *operands, **attrs)
    return e.reshape(made, op.result.type.static_shape)


def _guarded(e: Emit, x: Value) -> tuple[Value, tuple[Op, ...]]:
    """y of ``where(isnan(y), 0, y)``, which nobody else reads, and these two ops; else ``x``."""
    choice = e.made_by(x, "where")
    if choice is None or not e.read_once(x) or e.splat(choice.operands[1]) != 0:
        return x, ()
    cond, _, y = choice.operands
    test = e.made_by(cond, "isnan")
    if test is None or test.operands[0] is not y or y.type != x.type or not e.read_once(cond):
        return x, ()
    return (y, (test, choice)) if e.facts.readers.get(y, 0) == 2 else (x, ())


def _cast_of(e: Emit, x: Value) -> tuple[Value, Op | None]:
    """What a cast between float formats is made from, and the cast; else ``x``."""
    cast = e.made_by(x, "cast")
    if cast is None or not e.read_once(x) or cast.operands[0].type.dtype.kind != "float":
        return x, None
    return cast.operands[0], cast


def _scores(e: Emit, x: Value) -> _Scores | None:
    """What ``x`` is made of; None when that is no product, scaled and then masked, each step of
    which is read by the next alone."""
    op = e.facts.producers.get(x)
    if op is None or not e.read_once(x):
        return None
    if op.name == "matmul":
        return _Scores(op, ops=(op,))
    if op.name in ("mul", "div"):
        inner, by = _scaled(e, op)
        made = None if inner is None else _scores(e, inner)
        if made is None or made.masks:
            return None
        return replace(made, scale=made.scale * by, ops=(*made.ops, op))
    for inner, mask in _masked(e, op):
        made = _scores(e, inner) if inner.type == x.type else None
        if made is not None:
            return replace(made, masks=(*made.masks, mask), ops=(*made.ops, op))
    return None


def _masked(e: Emit, op: Op) -> list[tuple[Value, Value | _Choice]]:
    """The ways to read the op as masking a value."""
    if op.name == "add":
        a, b = op.operands
        return [(a, b), (b, a)]
    if op.name != "where":
        return []
    cond, *sides = op.operands
    fills = [e.splat(side) for side in reversed(sides)]
    return [
        (side, _Choice(cond, keeps, float(fill)))
        for side, fill, keeps in zip(sides, fills, (True, False), strict=True)
        if fill is not None and not math.isnan(fill)
    ]


def _scaled(e: Emit, op: Op) -> tuple[Value | None, float]:
    """x and c of ``x c`` or ``x / (1/c)``, c a number; (None, 1) for any other op."""
    if op.name not in ("mul", "div"):
        return None, 1.0
    for x, by in (op.operands, op.operands[::-1])[: 2 if op.name == "mul" else 1]:
        number = e.splat(by)
        if number and math.isfinite(number) and x.type == op.result.type:
            return x, float(number) if op.name == "mul" else 1.0 / float(number)
    return None, 1.0


def _unscaled(e: Emit, x: Value) -> tuple[Value, float, tuple[Op, ...]]:
    """A factor of the product without the number it is multiplied by (before a transpose, too), the
    number and the ops that are left out."""
    turn = e.made_by(x, "transpose") if e.read_once(x) else None
    inner = x if turn is None else turn.operands[0]
    made = e.facts.producers.get(inner)
    if made is None or not e.read_once(inner):
        return x, 1.0, ()
    plain, by = _scaled(e, made)
    if plain is None:
        return x, 1.0, ()
    return (plain, by, (made,)) if turn is None else (
        e.transpose(plain, ints(turn, "perm")), by, (made, turn)
    )  # fmt: skip


def _each_sees_some(e: Emit, masks: tuple[Value | _Choice, ...], scores: tuple[int, ...]) -> bool:
    """Is it certain that each row has a score that is a number, so that no weight is NaN?"""
    seen = np.ones((1,) * len(scores), np.bool_)
    for mask in masks:
        if isinstance(mask, _Choice) and math.isfinite(mask.fill):
            continue
        array = e.known(mask.cond if isinstance(mask, _Choice) else mask)
        if array is None:
            return False
        seen = seen & (array == mask.keeps if isinstance(mask, _Choice) else np.isfinite(array))
    return bool(np.broadcast_to(seen, scores).any(axis=-1).all())


def _joins(e: Emit, masks: tuple[Value | _Choice, ...], shapes: _Shapes, scores: Value) -> bool:
    """Can the masks be one, and small? Several are joined where hiding a score twice, or adding to
    one that is hidden, leaves it hidden."""
    parts = [m.cond if isinstance(m, _Choice) else m for m in masks]
    if any(shapes.mask(p.type.static_shape) is None for p in parts):
        return False
    fills = {m.fill for m in masks if isinstance(m, _Choice)}
    if len(masks) < 2:
        return True
    joined = np.broadcast_shapes(*(p.type.static_shape for p in parts))
    known = all(e.known(p) is not None for p in parts)
    small = math.prod(joined) * SHARED <= scores.type.size
    alike = len(fills) == 1 and all(isinstance(m, _Choice) for m in masks)
    return (known or small) and (alike or all(fill <= HIDDEN for fill in fills))


def _joined(e: Emit, masks: tuple[Value | _Choice, ...], like: Value) -> tuple[Value | None, float]:
    """One mask for all, and what a score that a bool mask hides becomes."""
    choices = [m for m in masks if isinstance(m, _Choice)]
    if len(choices) == len(masks) > 0 and len({m.fill for m in choices}) == 1:
        seen, *others = (m.seen(e) for m in choices)
        for other in others:
            seen = e.op("and", seen, other)
        return seen, choices[0].fill
    total: Value | None = None
    for m in masks:
        if isinstance(m, _Choice):
            total = e.where(m.seen(e), e.scalar(0, like) if total is None else total, m.fill)
        else:
            total = m if total is None else e.add(total, m)
    return total, -math.inf


EXPLICIT_RULES = (
    Rule("attention-explicit", "matmul", _explicit, "rounding",
         "softmax(q k' s + mask) v is attention(q, k, v, mask): a bool mask where scores are "
         "chosen, numbers where they are added; s has the scales of q and k, too."),
)  # fmt: skip
