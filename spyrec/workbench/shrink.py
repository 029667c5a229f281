"""Steps that make a module simpler, each as a stream of candidates: fewer ops, smaller sizes,
plainer constants and attributes. What a candidate computes may differ; that it shows what was
looked for is for its user to test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
    if module.stage != "tensor":
        return
    values = [*module.body.args, *(v for op in module.body.ops for v in op.results)]
    sizes = sorted({d for v in values for d in v.type.shape if isinstance(d, int)}, reverse=True)
    for size in sizes:
        for new in dict.fromkeys((*(s for s in SMALL if s < size), size // 2)):
            if new:
                for multiples in (False, True):
                    made = _resized(module, size, new, multiples)
                    if made is not None:
                        yield made


def _resized(module: Module, size: int, new: int, multiples: bool) -> Module | None:
    """The module with ``new`` wherever a dimension is ``size``; None when its ops do not allow it.
    Constants lose what is too many."""

    def fit(d: Any) -> Any:
        if isinstance(d, int) and not isinstance(d, bool):
            if d == size:
                return new
            if multiples and size > 1 and d > size and d % size == 0:
                return d // size * new
        return d

    def refit(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(refit, value))
        return fit(value)

    builder = Builder()
    mapped: dict[Value, Value] = {}
    for v in module.body.args:
        type_ = TensorType(tuple(fit(d) for d in v.type.shape), v.type.dtype)
        mapped[v] = builder.value(v.name, type_)
    args = tuple(mapped.values())
    try:
        for op in module.body.ops:
            if op.regions:
                return None
            if op.name == "constant":
                array = np.asarray(op.attrs["value"])
                cut = array[tuple(slice(0, fit(d)) for d in array.shape)]
                value = builder.constant(cut, op.result.type.dtype, loc=op.loc, hint=op.result.name)
                mapped[op.result] = value
                continue
            attrs: dict[str, Any] = {
                k: v if k in NUMBERS else refit(v) for k, v in op.attrs.items()
            }
            operands = [mapped[v] for v in op.operands]
            made = builder.op(op.name, operands, loc=op.loc, hint=op.results[0].name, **attrs)
            mapped.update(zip(op.results, made.results, strict=True))
    except (SpyrecError, KeyError, ValueError, IndexError, TypeError):
        return None
    block = Block(args, tuple(builder.ops), tuple(mapped[v] for v in module.body.results))
    return replace(module, body=block)


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
