"""Structural equality of modules: what values and ops, compared by identity, do not have."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

import numpy as np

from .core import Attr, Block, Module, Op, Value
from .dense import bits_equal


def same(a: Module, b: Module) -> bool:
    """Whether two modules agree in names, types, layouts, ops, attributes, regions and locs.

    Values correspond when they have the same name and are defined at the same place. The order of
    attributes does not count. Floats are equal when their bits are.
    """
    return difference(a, b) is None


def difference(a: Module, b: Module) -> str | None:
    """The first difference as a sentence, or None if there is none."""
    return next(_module(a, b), None)


def same_attr(a: Attr, b: Attr) -> bool:
    """Same kind and same bits: 1 differs from 1.0 and True, a NaN equals itself."""
    match a, b:
        case np.ndarray(), np.ndarray():
            return bits_equal(a, b)
        case tuple(), tuple():
            return len(a) == len(b) and all(map(same_attr, a, b))
        case float(), float():
            return struct.pack("<d", a) == struct.pack("<d", b)
        case (bool(), bool()) | (str(), str()):
            return a == b
        case int(), int():
            return isinstance(a, bool) == isinstance(b, bool) and a == b
        case _:
            return type(a) is type(b) and bool(a == b)


def _module(a: Module, b: Module) -> Iterator[str]:
    if a.name != b.name:
        yield f"the modules are called {a.name!r} and {b.name!r}"
    yield from _attrs("the module", a.attrs, b.attrs)
    yield from _block("the module", a.body, b.body, {})
    if a.output_names != b.output_names:
        yield f"the outputs are called {a.output_names} and {b.output_names}"


def _block(where: str, a: Block, b: Block, known: dict[Value, Value]) -> Iterator[str]:
    yield from _defined(f"the arguments of {where}", a.args, b.args, known)
    for i, (x, y) in enumerate(zip_longest(a.ops, b.ops)):
        if x is None or y is None:
            yield f"{where} has {len(a.ops)} and {len(b.ops)} ops"
            return
        yield from _op(f"op {i} ({x.name}) of {where}", x, y, known)
    yield from _used(f"the results of {where}", a.results, b.results, known)


def _op(where: str, a: Op, b: Op, known: dict[Value, Value]) -> Iterator[str]:
    if a.name != b.name:
        yield f"{where} is {a.name} and {b.name}"
    yield from _used(f"the operands of {where}", a.operands, b.operands, known)
    yield from _attrs(where, a.attrs, b.attrs)
    if a.loc != b.loc:
        yield f"{where} comes from {a.loc} and from {b.loc}"
    if len(a.regions) != len(b.regions):
        yield f"{where} has {len(a.regions)} and {len(b.regions)} regions"
    for i, (x, y) in enumerate(zip(a.regions, b.regions, strict=False)):
        yield from _block(f"region {i} of {where}", x, y, known)
    yield from _defined(f"the results of {where}", a.results, b.results, known)


def _defined(
    what: str, a: Sequence[Value], b: Sequence[Value], known: dict[Value, Value]
) -> Iterator[str]:
    if len(a) != len(b):
        yield f"{what} are {len(a)} and {len(b)}"
    for x, y in zip(a, b, strict=False):
        known[x] = y
        if x.name != y.name:
            yield f"{what} are called {x!r} and {y!r}"
        if x.type != y.type:
            yield f"{what} differ in the type of {x!r}: {x.type} and {y.type}"


def _used(
    what: str, a: Sequence[Value], b: Sequence[Value], known: Mapping[Value, Value]
) -> Iterator[str]:
    if len(a) != len(b):
        yield f"{what} are {len(a)} and {len(b)}"
    for x, y in zip(a, b, strict=False):
        # A value defined nowhere can only be compared by name.
        if known[x] is not y if x in known else x.name != y.name:
            yield f"{what} are {x!r} and {y!r}"


def _attrs(where: str, a: Mapping[str, Attr], b: Mapping[str, Attr]) -> Iterator[str]:
    for key in dict.fromkeys((*a, *b)):
        if key not in a or key not in b:
            yield f"only one of the two has attribute {key!r} of {where}"
        elif not same_attr(a[key], b[key]):
            yield f"attribute {key!r} of {where} is {a[key]!r} and {b[key]!r}"
