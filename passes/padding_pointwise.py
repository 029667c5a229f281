"""What padding does to ops that look at one element at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .extents import (
    Axis,
    Extents,
    same,
    spread,
    with_zero,
)
from .padding import Refused, Rule, Site


def aligned(s: Site) -> list[list[Axis]]:
    """For each axis of the result the operands' axes there, () where one broadcasts. Refused when
    padding of two operands lies in different places."""
    rank = s.op.result.type.rank
    rows = [spread(k.axes, rank) for k in s.known]
    columns = [list(column) for column in zip(*rows, strict=True)]
    for a, column in enumerate(columns):
        there = [x for x in column if x]
        if any(not same(there[0], x) for x in there[1:]):
            shown = " and ".join("*".join(map(str, x)) for x in there)
            raise Refused(f"joins {shown} along axis {a}: their padding lies in different places")
    return columns


def joined(s: Site, how: str, weigh: Sequence[int] | None = None) -> list[Axis]:
    """The axes of an elementwise result. ``how``: padding is zero where it is in "all" operands, in
    "any" (of which the others are finite), or "never"."""
    known = s.known
    which = range(len(known)) if weigh is None else weigh
    out: list[Axis] = []
    for column in aligned(s):
        shape = next((x for x in column if x), ())
        zero = []
        for j in range(len(shape)):
            zeros = [bool(column[i]) and column[i][j].zero for i in which]
            if how == "any":
                others = [all(k.finite for o, k in enumerate(known) if o != i) for i in which]
                zero.append(all(zeros) or any(
                    z and fine for z, fine in zip(zeros, others, strict=True)))
            else:
                zero.append(how == "all" and all(zeros))
        out.append(with_zero(shape, zero))
    return out


KEEP_ZERO = frozenset((
    "neg", "abs", "sign", "square", "identity", "relu", "sqrt", "sin", "tanh", "erf", "floor",
    "ceil", "round", "softsign", "silu", "mish", "hard_swish", "selu", "gelu", "leaky_relu", "elu",
    "celu", "cast",
))  # fmt: skip
"""Unary ops with f(0) = 0."""

LOW_ZERO = frozenset(("square", "abs", "relu", "sigmoid", "sqrt", "exp", "softplus", "isnan",
                      "isinf", "not", "hard_sigmoid"))  # fmt: skip
"""Unary ops that are never negative."""

NEEDS_POSITIVE = frozenset(("log", "reciprocal", "rsqrt"))
UNBOUNDED = frozenset(("exp", "softplus", "mod"))
"""Of finite numbers they may be infinite, or not a number."""


def _unary(s: Site) -> Sequence[Extents]:
    (x,), name = s.known, s.op.name
    zero = name in KEEP_ZERO
    low = 0.0 if name in LOW_ZERO else -math.inf
    finite = x.finite and name not in UNBOUNDED
    if name in NEEDS_POSITIVE:
        finite = x.finite and x.low > 0
        low = 0.0 if x.low > 0 and name != "log" else -math.inf
    elif name == "sqrt":
        finite = x.finite and x.low >= 0
        low = math.sqrt(x.low) if 0 < x.low < math.inf else 0.0
    elif name in ("identity", "cast", "relu"):
        low = max(low, x.low) if name == "relu" else x.low
        if name == "cast" and s.op.result.type.dtype.kind == "int":
            low = math.floor(low) if math.isfinite(low) else low
    elif name == "clip":
        least, most = s.attr("min"), s.attr("max")
        zero = (least is None or least <= 0) and (most is None or most >= 0)
        low = x.low if least is None else max(x.low, least)
        low = low if most is None else min(low, most)
    return [Extents(tuple(joined(s, "all" if zero else "never")), finite, low)]


def _add(s: Site) -> Sequence[Extents]:
    low = sum(k.low for k in s.known)
    return [Extents(tuple(joined(s, "all")), all(k.finite for k in s.known), low)]


def _sub(s: Site) -> Sequence[Extents]:
    return [Extents(tuple(joined(s, "all")), all(k.finite for k in s.known))]


def _mul(s: Site) -> Sequence[Extents]:
    square = s.values[0] is s.values[1]
    low = 0.0 if square or all(k.low >= 0 for k in s.known) else -math.inf
    if not square and all(0 < k.low < math.inf for k in s.known):
        low = s.known[0].low * s.known[1].low
    return [Extents(tuple(joined(s, "any")), all(k.finite for k in s.known), low)]


def _div(s: Site) -> Sequence[Extents]:
    x, y = s.known
    safe = y.finite and y.low > 0
    low = 0.0 if safe and x.low >= 0 else -math.inf
    axes = joined(s, "all" if safe else "never", [0])
    return [Extents(tuple(axes), x.finite and safe, low)]


def _pow(s: Site) -> Sequence[Extents]:
    x, _ = s.known
    power = s.walk.arrays.get(s.values[1])
    number = float(power.reshape(-1)[0]) if power is not None and power.size == 1 else None
    fine = number is not None and number > 0 and (number == int(number) or x.low >= 0)
    even = fine and number is not None and number % 2 == 0
    low = 0.0 if even or (fine and x.low >= 0) else -math.inf
    axes = joined(s, "all" if fine else "never", [0])
    return [Extents(tuple(axes), x.finite and fine, low)]


def _min_max(s: Site) -> Sequence[Extents]:
    pick = max if s.op.name == "max" else min
    low = float(pick(k.low for k in s.known))
    return [Extents(tuple(joined(s, "all")), all(k.finite for k in s.known), low)]


def _truth(s: Site) -> Sequence[Extents]:
    how = {"and": "any", "or": "all"}.get(s.op.name, "never")
    return [Extents(tuple(joined(s, how)), True, 0.0)]


def _where(s: Site) -> Sequence[Extents]:
    _, x, y = s.known
    axes = []
    both, chosen = joined(s, "all", [1, 2]), joined(s, "all", [0, 2])
    for a, b in zip(both, chosen, strict=True):
        axes.append(tuple(replace(f, zero=f.zero or g.zero) for f, g in zip(a, b, strict=True)))
    return [Extents(tuple(axes), x.finite and y.finite, min(x.low, y.low))]


def _pointwise(s: Site) -> Sequence[Extents]:
    """Any other op that looks at one element at a time."""
    return [Extents(tuple(joined(s, "never")))]


POINTWISE: Mapping[str, Rule] = {
    **dict.fromkeys(sorted(KEEP_ZERO | LOW_ZERO | NEEDS_POSITIVE), _unary),
    **dict.fromkeys(("cos", "clip"), _unary),
    **dict.fromkeys(("thresholded_relu", "mod", "prelu"), _pointwise),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor"), _truth),
    "add": _add, "sub": _sub, "mul": _mul, "div": _div, "pow": _pow, "min": _min_max,
    "max": _min_max, "where": _where,
}  # fmt: skip
