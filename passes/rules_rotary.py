"""A rule for rotary position embedding, x cos + rotate(x) sin, where rotate swaps the halves of
each head, or neighbours, and negates one of them: the signs go into the table of sines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spyrec.ir.core import Op, Value

from .emit import Array, Emit
from .rule import Rule
from .rules_reduce import int_attr, ints

SIGNS_MAX = 1 << 16
"""Elements of a table of signs that may be made."""


@dataclass(frozen=True)
class Signed:
    """The result of ``op`` (a concat, reshape or neg) as ``value * signs``: ``value`` has no
    negations, ``signs`` of 1 and -1 broadcasts to it. ``inner``: the same for each operand."""

    op: Op
    signs: Array
    inner: tuple[Signed | None, ...]


def signs_of(e: Emit, x: Value) -> Signed | None:
    """The negations that ``x`` holds parts of, or None when there are none to take out."""
    op = e.made_by(x, "concat", "reshape", "neg")
    if op is None or not e.read_once(x):
        return None
    if op.name == "neg":
        return Signed(op, np.full((1,) * x.type.rank, -1, np.int8), ())
    inner = tuple(signs_of(e, o) for o in op.operands)
    if not any(inner):
        return None
    plain = np.ones((1,) * op.operands[0].type.rank, np.int8)
    parts = [plain if s is None else s.signs for s in inner]
    signs = _joined(op, parts) if op.name == "concat" else _reshaped(op, parts[0])
    return None if signs is None else Signed(op, signs, inner)


def _joined(op: Op, parts: list[Array]) -> Array | None:
    axis = int_attr(op, "axis")
    common = np.broadcast_shapes(*((*p.shape[:axis], 1, *p.shape[axis + 1 :]) for p in parts))
    if np.prod(common) * op.result.type.static_shape[axis] > SIGNS_MAX:
        return None
    sizes = [o.type.static_shape[axis] for o in op.operands]
    wide = [
        np.broadcast_to(p, (*common[:axis], n, *common[axis + 1 :]))
        for p, n in zip(parts, sizes, strict=True)
    ]
    return np.concatenate(wide, axis=axis)


def _reshaped(op: Op, signs: Array) -> Array | None:
    """Leading dimensions that stay as they are and that the signs do not depend on stay 1."""
    source, target = op.operands[0].type.static_shape, op.result.type.static_shape
    same = 0
    while same < min(len(source), len(target)) and source[same] == target[same] and (
        signs.shape[same] == 1
    ):  # fmt: skip
        same += 1
    if np.prod(source[same:]) > SIGNS_MAX:
        return None
    full = np.broadcast_to(signs, (*(1,) * same, *source[same:]))
    return full.reshape((*(1,) * same, *target[same:]))


def _without_signs(e: Emit, x: Value, found: Signed | None) -> Value:
    if found is None:
        return x
    e.absorb(found.op)
    if found.op.name == "neg":
        return found.op.operands[0]
    pairs = zip(found.op.operands, found.inner, strict=True)
    operands = [_without_signs(e, o, s) for o, s in pairs]
    return e.op(found.op.name, *operands, **found.op.attrs)


def _signs_into_table(op: Op, e: Emit) -> Value | None:
    for x, table in (op.operands, op.operands[::-1]):
        found = signs_of(e, x)
        if found is None or found.op.name == "neg" or table.type.size > x.type.size:
            continue
        rank = table.type.rank
        signs, lead = found.signs, found.signs.ndim - rank
        if lead > 0 and any(n != 1 for n in signs.shape[:lead]):
            continue
        signs = signs.reshape(signs.shape[max(lead, 0) :])
        if np.broadcast_shapes(signs.shape, table.type.static_shape) != table.type.static_shape:
            continue  # the table would grow
        turned = e.mul(table, e.constant(signs, table.type.dtype))
        return e.mul(_without_signs(e, x, found), turned)
    return None


def _whole_heads(op: Op, e: Emit) -> Value | None:
    """concat(a c + b s, p) where a and p together are x."""
    axis, rank = int_attr(op, "axis"), op.result.type.rank
    if len(op.operands) != 2 or axis != rank - 1:
        return None
    turned, rest = op.operands
    total = e.made_by(turned, "add")
    if total is None or not e.read_once(turned):
        return None
    terms = [e.made_by(v, "mul") for v in total.operands]
    direct = swapped = None
    for term in terms:
        factors = () if term is None else (term.operands, term.operands[::-1])
        found = next((f for f in factors if _side_by_side(e, f[0], rest)), None)
        if found is not None and direct is None:
            direct = found
        elif term is not None:
            larger = sorted(term.operands, key=lambda v: v.type.size, reverse=True)
            swapped = (larger[0], larger[1])
    if direct is None or swapped is None:
        return None
    (a, cos), (b, sin) = direct, swapped
    width = a.type.shape[-1]
    small = all(2 * t.type.size <= a.type.size for t in (cos, sin))
    if not small or b.type != a.type or not cos.type.rank or not sin.type.rank:
        return None
    if cos.type.shape[-1] != width or sin.type.shape[-1] != width:
        return None
    # Tables made at run time are widened once for all who read them: for one it would not pay.
    if e.known(cos) is None and e.facts.readers.get(cos, 0) < 2:
        return None
    first = e.made_by(a, "slice")
    assert first is not None
    e.absorb(first, *(t for t in terms if t is not None), total)
    more = rest.type.static_shape[-1]
    x = first.operands[0]
    if x.type.shape != op.result.type.shape:
        shape = op.result.type.static_shape
        x = e.op("slice", x, starts=ints(first, "starts"), sizes=shape, steps=(1,) * rank)
    kept = e.mul(x, _widened(e, cos, more, 1.0))
    return e.add(kept, e.mul(e.concat((b, rest), axis), _widened(e, sin, more, 0.0)))


def _side_by_side(e: Emit, a: Value, rest: Value) -> bool:
    """Are they slices of one tensor, of which ``rest`` begins where ``a`` ends along the last
    dimension, and alike otherwise?"""
    first, second = e.made_by(a, "slice"), e.made_by(rest, "slice")
    if first is None or second is None or first.operands[0] is not second.operands[0]:
        return False
    *lead, start = ints(first, "starts")
    return (
        ints(second, "starts") == (*lead, start + a.type.static_shape[-1])
        and a.type.static_shape[:-1] == rest.type.static_shape[:-1]
        and {*ints(first, "steps"), *ints(second, "steps")} == {1}
    )


def _widened(e: Emit, table: Value, more: int, value: float) -> Value:
    still = (0,) * (table.type.rank - 1)
    return e.pad(table, (*still, 0), (*still, more), value)


ROTARY_RULES = (
    Rule("whole-heads", "concat", _whole_heads, "rounding",
         "concat(a c + b s, p) = x concat(c, 1) + concat(b, p) concat(s, 0) for x = concat(a, p): "
         "heads of which a part is rotated are not cut apart; finite x."),
    Rule("signs-into-table", "mul", _signs_into_table, "exact",
         "concat(-a, b) t = concat(a, b) (t concat(-1, 1)): what is left of a rotation of heads is "
         "one move instead of a slice, a negation and a concat."),
)  # fmt: skip
