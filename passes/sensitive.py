"""Which tensors need fp32: those whose small elements a logarithm will look at."""

from __future__ import annotations

import numpy as np

from spyrec.ir.core import Module, Op, Value

from .primitives import MOVES, REDUCTIONS

LINEAR = frozenset(("matmul", "conv"))
ELEMENTWISE = frozenset((
    "add", "sub", "mul", "div", "neg", "abs", "sqrt", "reciprocal", "max", "min", "where",
))  # fmt: skip
WINDOWS = frozenset(("pad", "max_pool", "sum_pool"))
THROUGH = LINEAR | REDUCTIONS | (MOVES - {"broadcast_to"}) | ELEMENTWISE | WINDOWS
"""Ops that hand the relative error of a small element on to the result."""

HARMLESS = 2.0**-7
"""log(x + c) and log(max(x, c)) hardly see errors of x when c is at least this."""


def before_logarithms(module: Module) -> frozenset[Value]:
    """The float values between the inputs and a log that sees small elements: a power spectrum in
    decibels, say. Sums of products lose what is small beside their terms, and a log makes that loss
    large; so if such a sum (or an input) is among them, the whole path from the inputs is given.

    log(1 + e^x), log(sum e^x) and the like are not: nothing there is small or linear.
    """
    makers = {r: op for op in module.body.ops for r in op.results}
    found: set[Value] = set()
    for op in module.body.ops:
        if op.name == "log" and not _bounded(op.operands[0], makers):
            path = _path(op.operands[0], makers)
            if any(v not in makers or makers[v].name in LINEAR for v in path):
                found |= path
    return frozenset(found)


def _path(start: Value, makers: dict[Value, Op]) -> set[Value]:
    """Inputs of the module and results of THROUGH ops from which ``start`` is computed."""
    seen: set[Value] = set()
    stack = [start]
    while stack:
        v = stack.pop()
        op = makers.get(v)
        if v in seen or v.type.dtype.kind != "float" or (op is not None and op.name not in THROUGH):
            continue
        seen.add(v)
        stack.extend(op.operands if op is not None else ())
    return seen


def _bounded(v: Value, makers: dict[Value, Op]) -> bool:
    """Whether a constant keeps ``v`` from being small."""
    op = makers.get(v)
    if op is None or op.name not in ("add", "max"):
        return False
    return any(_least(makers.get(x)) >= HARMLESS for x in op.operands)


def _least(op: Op | None) -> float:
    """The least element of a constant, minus infinity for anything else."""
    if op is None or op.name != "constant" or op.result.type.size == 0:
        return -np.inf
    return float(np.min(np.asarray(op.attrs["value"])))
