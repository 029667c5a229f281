"""Decomposition of einsum into diagonals, transposes, sums and a matmul for each operand pair."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from spyrec.ir.core import Op, Value
from spyrec.ir.errors import PassError

from .emit import Emit
from .rule import Rule


@dataclass(frozen=True)
class Term:
    """A value and one label for each of its axes."""

    value: Value
    labels: tuple[str, ...]

    def size(self, label: str) -> int:
        return self.value.type.static_shape[self.labels.index(label)]


def parse_equation(
    equation: str, ranks: list[int]
) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Labels of each operand and of the result; an ellipsis becomes labels ``.0``, ``.1``, ...

    >>> parse_equation("...ij,jk->...ik", [3, 2])
    ([('.0', 'i', 'j'), ('j', 'k')], ('.0', 'i', 'k'))
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    dots = max(
        (r - (len(t) - 3) for t, r in zip(texts, ranks, strict=True) if "..." in t), default=0
    )
    inputs = [
        _labels(t, r - (len(t) - 3) if "..." in t else 0, dots)
        for t, r in zip(texts, ranks, strict=True)
    ]
    if arrow:
        return inputs, _labels(right, dots if "..." in right else 0, dots)
    counts = Counter(label for labels in inputs for label in labels)
    once = tuple(sorted(x for x, n in counts.items() if n == 1 and not x.startswith(".")))
    return inputs, (*(f".{i}" for i in range(dots)), *once)


def _labels(text: str, own: int, dots: int) -> tuple[str, ...]:
    """Labels of one operand whose ellipsis stands for ``own`` of the ``dots`` axes (the last)."""
    before, found, after = text.partition("...")
    middle = tuple(f".{i}" for i in range(dots - own, dots)) if found else ()
    return (*before, *middle, *after)


def _einsum(op: Op, e: Emit) -> Value:
    equation = str(op.attrs["equation"])
    inputs, output = parse_equation(equation, [v.type.rank for v in op.operands])
    terms = [_diagonals(e, Term(v, ls)) for v, ls in zip(op.operands, inputs, strict=True)]
    sizes: dict[str, int] = {}
    for term in terms:
        for label in term.labels:
            sizes[label] = max(sizes.get(label, 1), term.size(label))
    terms = [_without_ones(e, t, sizes) for t in terms]
    total = terms[0]
    for i, term in enumerate(terms[1:], start=1):
        later = {label for t in terms[i + 1 :] for label in t.labels}
        total = _contract(e, total, term, later | set(output))
    total = _summed(e, total, set(output))
    missing = [label for label in output if label not in total.labels]
    if any(sizes.get(label, 0) != 1 for label in missing):
        raise PassError(
            f"einsum {equation!r}: the result has labels no operand has (from {op.loc})"
        )
    perm = [total.labels.index(label) for label in output if label in total.labels]
    return e.reshape(e.transpose(total.value, perm), op.result.type.static_shape)


def _diagonals(e: Emit, term: Term) -> Term:
    """Where a label stands twice, take the diagonal: a strided slice of the merged axes."""
    repeated = [label for label, n in Counter(term.labels).items() if n > 1]
    for label in repeated:
        while term.labels.count(label) > 1:
            a = term.labels.index(label)
            b = term.labels.index(label, a + 1)
            others = [i for i in range(len(term.labels)) if i not in (a, b)]
            n = term.size(label)
            value = e.transpose(term.value, (*others, a, b))
            rest = value.type.static_shape[:-2]
            flat = e.reshape(value, (*rest, n * n))
            value = e.slice_axis(flat, len(rest), 0, n, n + 1)
            term = Term(value, (*(term.labels[i] for i in others), label))
    return term


def _without_ones(e: Emit, term: Term, sizes: dict[str, int]) -> Term:
    """Drop axes of size 1: they only broadcast, or are put back by the last reshape."""
    keep = [i for i, n in enumerate(term.value.type.static_shape) if n != 1]
    shape = [term.value.type.static_shape[i] for i in keep]
    return Term(e.reshape(term.value, shape), tuple(term.labels[i] for i in keep))


def _summed(e: Emit, term: Term, needed: set[str]) -> Term:
    """Sum over the labels nobody needs."""
    gone = [i for i, label in enumerate(term.labels) if label not in needed]
    if not gone:
        return term
    kept = [i for i in range(len(term.labels)) if i not in gone]
    value = e.reduce("sum", term.value, gone)
    shape = [term.value.type.static_shape[i] for i in kept]
    return Term(e.reshape(value, shape), tuple(term.labels[i] for i in kept))


def _contract(e: Emit, a: Term, b: Term, needed: set[str]) -> Term:
    """One pair as a batched matmul [batch.., left, sum] @ [batch.., sum, right]."""
    a = _summed(e, a, needed | set(b.labels))
    b = _summed(e, b, needed | set(a.labels))
    shared = [label for label in a.labels if label in b.labels]
    batch = [label for label in shared if label in needed]
    inner = [label for label in shared if label not in needed]
    left = [label for label in a.labels if label not in shared]
    right = [label for label in b.labels if label not in shared]
    if not inner:
        return _product(e, a, b, batch, left, right)
    rows = math.prod(a.size(label) for label in left)
    depth = math.prod(a.size(label) for label in inner)
    columns = math.prod(b.size(label) for label in right)
    sizes = [a.size(label) for label in batch]
    lhs = e.reshape(_ordered(e, a, [*batch, *left, *inner]), (*sizes, rows, depth))
    rhs = e.reshape(_ordered(e, b, [*batch, *inner, *right]), (*sizes, depth, columns))
    value = e.op("matmul", lhs, rhs)
    shape = (*sizes, *(a.size(x) for x in left), *(b.size(x) for x in right))
    return Term(e.reshape(value, shape), (*batch, *left, *right))


def _product(
    e: Emit, a: Term, b: Term, batch: list[str], left: list[str], right: list[str]
) -> Term:
    """Nothing to sum: an elementwise product with broadcasting."""
    lhs = _ordered(e, a, [*batch, *left])
    rhs = _ordered(e, b, [*batch, *right])
    sizes = [a.size(label) for label in batch]
    lhs = e.reshape(lhs, (*sizes, *(a.size(x) for x in left), *(1 for _ in right)))
    rhs = e.reshape(rhs, (*sizes, *(1 for _ in left), *(b.size(x) for x in right)))
    return Term(e.op("mul", lhs, rhs), (*batch, *left, *right))


def _ordered(e: Emit, term: Term, order: list[str]) -> Value:
    return e.transpose(term.value, [term.labels.index(label) for label in order])


EINSUM_RULES = (
    Rule("einsum", "einsum", _einsum, "rounding",
         "Pairs from left to right, each a transpose, a batched matmul and a reshape."),
)  # fmt: skip
