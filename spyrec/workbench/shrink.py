"""Steps that make a module simpler, each as a stream of candidates: fewer ops, smaller sizes,
plainer constants and attributes. What a candidate computes may differ; that it shows what was
looked for is for its user to test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from types import MappingProxyType
from typing import Any

import numpy as np

from spyrec.ir.core import Attr, Block, Builder, Module, Op, Value
from spyrec.ir.errors import SpyrecError
from spyrec.ir.ops import OPS
from spyrec.ir.types import TensorType

from .part import bypassed, without_unread

SMALL = (1, 2, 3, 4, 8, 16, 32, 64)
"""Sizes that are tried in place of a larger one."""
MOST_SUBSETS = 64
"""Of the dimensions of one size that are made smaller without the others: some of a few are all
that there are."""
Place = tuple[Value, int]
"""A dimension of a value."""
NUMBERS = ("axes", "axis", "perm")
"""Attributes that hold numbers of dimensions, not sizes."""


def bypasses(module: Module) -> Iterator[Module]:
    """An op taken out, last ops first: who read it reads one of its operands of the same type."""
    for op in reversed(module.body.ops):
        if len(op.results) != 1 or op.name == "constant":
            continue
        for operand in dict.fromkeys(op.operands):
            if operand.type == op.result.type:
                yield bypassed(module, op, operand)


def one_output(module: Module) -> Iterator[Module]:
    """All outputs but one left out. What only the others needed is still there: see `part`."""
    if len(module.output_names) > 1:
        for name, value in zip(module.output_names, module.body.results, strict=True):
            block = replace(module.body, results=(value,))
            yield _living(replace(module, body=block, output_names=(name,)))


def _living(module: Module) -> Module:
    """The module without ops that no output needs."""
    needed = set(module.body.results)
    kept: list[Op] = []
    for op in reversed(module.body.ops):
        if needed.intersection(op.results):
            kept.append(op)
            needed.update(op.operands)
            for region in op.regions:
                needed.update(v for each in region.ops for v in each.operands)
                needed.update(region.results)
    return without_unread(replace(module, body=replace(module.body, ops=tuple(reversed(kept)))))


def smaller_sizes(module: Module) -> Iterator[Module]:
    """Every dimension of one size, and of its multiples, made smaller, the largest size first; at
    the tensor stage only, where types follow from those of the inputs."""
    for size, new in _sizes(module):
        for multiples in (False, True):
            yield from _resized(module, _Everywhere(size, new, multiples))


def some_smaller_sizes(module: Module) -> Iterator[Module]:
    """Some dimensions of one size made smaller without the others, of which one may have to stay:
    2x2x1 becomes 1x2x1. The largest size first; at the tensor stage only."""
    for size, new in _sizes(module):
        for places in islice(_some(module, size), MOST_SUBSETS):
            for attrs in ("", "there", "all"):
                yield from _resized(module, _Places(size, new, places, attrs))


def _sizes(module: Module) -> Iterator[tuple[int, int]]:
    """Each size of a dimension, with each that may take its place; none after the tensor stage."""
    if module.stage != "tensor":
        return
    values = [*module.body.args, *(v for op in module.body.ops for v in op.results)]
    for size in sorted({d for v in values for d in v.type.shape if isinstance(d, int)})[::-1]:
        for new in dict.fromkeys((*SMALL, size // 2)):
            if 0 < new < size:
                yield size, new


def _some(module: Module, size: int) -> Iterator[frozenset[Place]]:
    """Some of the dimensions of a size, of inputs and constants: few first, never all."""
    made = (op.result for op in module.body.ops if op.name == "constant")
    places = [
        (v, axis) for v in (*module.body.args, *made)
        for axis, d in enumerate(v.type.shape) if d == size
    ]
    for n in range(1, len(places)):
        yield from map(frozenset, combinations(places, n))


@dataclass(frozen=True)
class _Everywhere:
    """``new`` wherever a dimension is ``size``; with ``multiples`` those in proportion."""

    size: int
    new: int
    multiples: bool

    def shape(self, v: Value) -> tuple[Any, ...]:
        return tuple(map(self.attr, v.type.shape))

    def attr(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self.attr, value))
        if isinstance(value, int) and not isinstance(value, bool):
            if value == self.size:
                return self.new
            if self.multiples and self.size > 1 and value > self.size and value % self.size == 0:
                return value // self.size * self.new
        return value


@dataclass(frozen=True)
class _Places:
    """``new`` for ``size`` at some dimensions of inputs and constants. ``attrs``: in which numbers
    of attributes too: in none (""), in those that stand where such a dimension does ("there"), or
    in "all"."""

    size: int
    new: int
    places: frozenset[Place]
    attrs: str

    def shape(self, v: Value) -> tuple[Any, ...]:
        return tuple(
            self.new if (v, axis) in self.places else d for axis, d in enumerate(v.type.shape)
        )

    def attr(self, value: Any) -> Any:
        if self.attrs == "all":
            return _Everywhere(self.size, self.new, False).attr(value)
        if not self.attrs or not isinstance(value, tuple):
            return value
        axes = {axis for v, axis in self.places if v.type.rank == len(value)}
        return tuple(
            self.new if axis in axes and d == self.size else d for axis, d in enumerate(value)
        )


def _resized(module: Module, to: _Everywhere | _Places) -> Iterator[Module]:
    """The module with other sizes, none when its ops do not allow them. Constants lose what is too
    many."""
    builder = Builder()
    mapped: dict[Value, Value] = {}
    for v in module.body.args:
        mapped[v] = builder.value(v.name, TensorType(to.shape(v), v.type.dtype))
    args = tuple(mapped.values())
    try:
        for op in module.body.ops:
            if op.regions:
                return
            if op.name == "constant":
                array = np.asarray(op.attrs["value"])
                cut = array[tuple(slice(0, d) for d in to.shape(op.result))]
                value = builder.constant(cut, op.result.type.dtype, loc=op.loc, hint=op.result.name)
                mapped[op.result] = value
                continue
            attrs: dict[str, Any] = {
                k: v if k in NUMBERS else to.attr(v) for k, v in op.attrs.items()
            }
            operands = [mapped[v] for v in op.operands]
            made = builder.op(op.name, operands, loc=op.loc, hint=op.results[0].name, **attrs)
            mapped.update(zip(op.results, made.results, strict=True))
    except (SpyrecError, KeyError, ValueError, IndexError, TypeError):
        return
    block = Block(args, tuple(builder.ops), tuple(mapped[v] for v in module.body.results))
    yield replace(module, body=block)


def plainer_attributes(module: Module) -> Iterator[Module]:
    """An attribute of the module left out, or one of an op at its default, where it has one."""
    for key in module.attrs:
        if key != "stage":
            left = {k: v for k, v in module.attrs.items() if k != key}
            yield replace(module, attrs=MappingProxyType(left))
    for at, op in enumerate(module.body.ops):
        known = OPS[op.name].attrs if op.name in OPS else {}
        for key in op.attrs:
            if key in known and not OPS[op.name].open_attrs:
                rest = {k: v for k, v in op.attrs.items() if k != key}
                yield _with_op(module, at, rest)


def plainer_constants(module: Module) -> Iterator[Module]:
    """A constant of one value throughout: ones, else its first element."""
    for at, op in enumerate(module.body.ops):
        if op.name != "constant":
            continue
        array = np.asarray(op.attrs["value"])
        if array.size < 2 or bool((array == array.flat[0]).all()):
            continue
        for fill in (array.dtype.type(1), array.flat[0]):
            plain = np.full(array.shape, fill, array.dtype)
            yield _with_op(module, at, {**op.attrs, "value": plain})


def _with_op(module: Module, at: int, attrs: Mapping[str, Attr]) -> Module:
    ops: Sequence[Op] = module.body.ops
    changed = replace(ops[at], attrs=MappingProxyType(dict(attrs)))
    body = replace(module.body, ops=(*ops[:at], changed, *ops[at + 1 :]))
    return replace(module, body=body)
