"""The ops that are left after decomposition: what kernels are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spyrec.ir.core import Op
from spyrec.ir.ops import attributes

from .rules_conv import is_depthwise
from .rules_index import is_table_lookup
from .rules_reduce import int_attr, ints

ELEMENTWISE = frozenset((
    "neg", "abs", "reciprocal", "sqrt", "rsqrt", "exp", "log", "tanh", "sigmoid", "erf", "sin",
    "cos", "floor", "ceil", "round", "sign", "isnan", "isinf", "not", "identity", "cast",
    "add", "sub", "mul", "div", "max", "min", "mod", "eq", "ne", "lt", "le", "gt", "ge",
    "and", "or", "xor", "where",
))  # fmt: skip
REDUCTIONS = frozenset(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"))
MOVES = frozenset(("reshape", "transpose", "broadcast_to", "concat", "slice"))


def _always(op: Op) -> bool:
    return True


def _keeps_dims(op: Op) -> bool:
    return bool(op.attrs["keepdims"])


def _plain_conv(op: Op) -> bool:
    dense = int_attr(op, "group") == 1
    return len(op.operands) == 2 and op.operands[0].type.rank == 4 and (dense or is_depthwise(op))


def _plain_pool(op: Op) -> bool:
    return op.operands[0].type.rank == 4 and not op.attrs.get("ceil_mode")


def _plain_pad(op: Op) -> bool:
    constant = op.attrs["mode"] == "constant"
    return constant and min(*ints(op, "lo"), *ints(op, "hi"), 0) >= 0


def _floored(op: Op) -> bool:
    return not op.attrs["fmod"]


def _plain_matmul(op: Op) -> bool:
    return min(v.type.rank for v in op.operands) >= 2


PRIMITIVES: dict[str, Callable[[Op], bool]] = {
    "constant": _always,
    **dict.fromkeys(sorted(ELEMENTWISE), _always),
    **dict.fromkeys(sorted(REDUCTIONS), _keeps_dims),
    **dict.fromkeys(sorted(MOVES), _always),
    "matmul": _plain_matmul,
    "mod": _floored,
    "conv": _plain_conv,
    "max_pool": _plain_pool,
    "sum_pool": _plain_pool,
    "pad": _plain_pad,
    "gather": is_table_lookup,
}
"""Op -> whether this form of it is primitive: reductions keep dimensions; conv is 2-D, without
bias, dense or depthwise; mod has the sign of its divisor; pools are 2-D in floor mode; pad is
constant and only adds; gather picks rows of a matrix, and at run time its indices must not be
negative."""


def is_primitive(op: Op) -> bool:
    if op.name not in PRIMITIVES:
        return False
    return PRIMITIVES[op.name](replace(op, attrs=attributes(op)))
