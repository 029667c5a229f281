"""Parts of a module: some of its ops, with inputs in the place of what the others made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from spyrec.ir.core import Block, Module, Op, Value, remap
from spyrec.ir.types import TensorType


def part(module: Module, kept: Collection[Op]) -> Module:
    """The module with the ops of ``kept`` only (those of its top level), in their order, and the
    constants they read.

    A value they read and that is no longer made becomes an input. Outputs are those of the module
    that are left, and the results that had readers and have none now.
    """
    whole = set(kept)
    used = {v for op in module.body.ops if op in whole for v in reads(op)}
    ops = tuple(
        op for op in module.body.ops
        if op in whole or (op.name == "constant" and used.intersection(op.results))
    )
    made = {v for op in ops for v in op.results}
    used.update(v for v in module.body.results if v in made)
    order = [*module.body.args, *(v for op in module.body.ops for v in op.results)]
    args = tuple(v for v in order if v in used and v not in made)
    return in_memory(with_outputs(replace(module, body=Block(args, ops, ())), module))


def named_in(module: Module) -> Module:
    """The module, its attributes ``state`` and ``absent`` without what is no input or output any
    more; a state whose shape has changed is zero at first."""
    inputs = {v.name: v.type for v in module.body.args}
    outputs = dict(zip(module.output_names, (v.type for v in module.body.results), strict=True))
    attrs = dict(module.attrs)
    kept: Any = attrs.get("state", ())
    state = tuple(
        (name, new, first if np.shape(first) == inputs[name].shape else zeros_of(inputs[name]))
        for name, new, first in kept
        if name in inputs and new in outputs and inputs[name] == outputs[new]
    )
    given: Any = attrs.get("absent", ())
    absent = tuple(name for name in given if name in inputs)
    for key, left in (("state", state), ("absent", absent)):
        attrs.pop(key, None)
        if left:
            attrs[key] = left
    return replace(module, attrs=MappingProxyType(attrs))


def zeros_of(type_: TensorType) -> np.ndarray[Any, Any]:
    """What a state of this type holds when nothing else is said."""
    return np.zeros(type_.static_shape, type_.dtype.np_dtype)


HOMES = ("resident", "home_orders")
"""Attributes of a kernel with an entry for each result that stays in the scratchpads."""


def in_memory(module: Module) -> Module:
    """The module with inputs and outputs that were in the scratchpads in card memory, where those
    of a module are."""
    ends = (*module.body.args, *module.body.results)
    moved = {v: Value(v.name, v.type.with_(space="hbm")) for v in ends if v.type.space == "lx"}
    if not moved:
        return module

    def there(values: Iterable[Value]) -> tuple[Value, ...]:
        return tuple(moved.get(v, v) for v in values)

    ops = []
    for op in module.body.ops:
        gone = {i for i, v in enumerate(op.results) if v in moved}
        new = replace(remap(op, moved), results=there(op.results))
        if gone:
            attrs = {k: v for k, v in op.attrs.items() if k != "in_place"}
            for key in HOMES:
                entries = attrs.pop(key, ())
                assert isinstance(entries, tuple)
                if left := tuple(e for e in entries if e[0] not in gone):
                    attrs[key] = left
            new = replace(new, attrs=MappingProxyType(attrs))
        ops.append(new)
    body = Block(there(module.body.args), tuple(ops), there(module.body.results))
    return replace(module, body=body)


def with_outputs(made: Module, of: Module) -> Module:
    """``made``, whose results are not chosen yet, with those outputs of ``of`` that it has, and
    all that it makes and nobody reads."""
    at_hand = set(made.body.args) | {v for op in made.body.ops for v in op.results}
    read = {v for op in made.body.ops for v in reads(op)}
    chosen = {n: v for n, v in zip(of.output_names, of.body.results, strict=True) if v in at_hand}
    ends = set(chosen.values())
    for op in made.body.ops:
        for v in op.results:
            if v not in read and v not in ends:
                chosen[_free(v.name, chosen)] = v
    if not chosen:
        chosen = {_free(v.name, {}): v for v in made.body.args[:1]}
    block = replace(made.body, results=tuple(chosen.values()))
    return replace(made, body=block, output_names=tuple(chosen))


def _free(name: str, taken: Mapping[str, Value]) -> str:
    while name in taken:
        name += "_"
    return name


def bypassed(module: Module, op: Op, operand: Value) -> Module:
    """The module in which who read the only result of ``op`` reads ``operand`` instead."""
    mapped = {op.result: operand}
    ops = tuple(remap(o, mapped) for o in module.body.ops if o is not op)
    results = tuple(mapped.get(v, v) for v in module.body.results)
    return without_unread(replace(module, body=Block(module.body.args, ops, results)))


def without_unread(module: Module) -> Module:
    """The module without inputs and constants that nobody reads."""
    read = {v for op in module.body.ops for v in reads(op)} | set(module.body.results)
    ops = tuple(
        op for op in module.body.ops if op.name != "constant" or read.intersection(op.results)
    )
    args = tuple(v for v in module.body.args if v in read)
    return replace(module, body=replace(module.body, args=args, ops=ops))


def reads(op: Op) -> Iterator[Value]:
    """The values an op reads, also inside its regions, that it does not make there."""
    yield from op.operands
    for region in op.regions:
        inner = set(region.args)
        for each in region.ops:
            yield from (v for v in reads(each) if v not in inner)
            inner.update(each.results)
        yield from (v for v in region.results if v not in inner)


def weight(module: Module) -> int:
    """How many ops that are no constants stand at its top level."""
    return sum(op.name != "constant" for op in module.body.ops)
