"""The rule on what a module and its kernels say of memory and the machine: attributes that no op's
table describes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np

from .core import Module, Op, Value
from .literals import quote
from .printer import module_line

WORDS: Mapping[str, type] = MappingProxyType({
    "stage": str, "device": str, "numerics": str, "cores": int, "laid_out": bool,
    "one_image": bool, "merged_programs": bool, "shared_launches": bool,
})  # fmt: skip
"""Attributes that are one word, number or truth value."""

LISTS: Mapping[str, tuple[type, ...]] = MappingProxyType({
    "warnings": (str,), "absent": (str,), "settled": (str,), "searched": (int,),
    "host_types": (str, str), "pin_spaces": (str, str), "why_space": (str, str),
    "pin_sticks": (str, int), "held": (str, int), "hbm": (str, int, int),
    "state": (str, str, np.ndarray),
})  # fmt: skip
"""Attributes that are a tuple: of words or numbers, or of tuples of these kinds."""

PLACES: Mapping[str, tuple[type, ...]] = MappingProxyType({
    "lx": (str, int, int), "early": (str,), "in_place": (int, int),
})  # fmt: skip
"""The same of a kernel: a buffer's name, address and slots; buffers that are filled early; results
and operands, by number, in whose place they are."""

SPELT = {str: "string", int: "number", np.ndarray: "array"}


def said_attributes(module: Module, _stage: str) -> Iterator[tuple[Op | str, str]]:
    """The line of a module, or a kernel, and what is wrong with an attribute of it."""
    line = module_line(module)
    for name, kind in WORDS.items():
        if name in module.attrs and not _is(module.attrs[name], kind):
            spelt = "true or false" if kind is bool else f"a {SPELT[kind]}"
            yield line, f"expected its {name} to be {spelt}, got {_brief(module, name)}"
    for sentence in _list_problems(module, LISTS):
        yield line, sentence
    if is_list(module.attrs.get("state", 0), LISTS["state"]):
        for sentence in _state_problems(module):
            yield line, sentence
    for op in module.body.ops:
        for sentence in _op_problems(op):
            yield op, f"{sentence} (from {op.loc})"


def _op_problems(op: Op) -> Iterator[str]:
    numbers: tuple[str, ...] = ()
    if op.name == "kernel":
        yield from _list_problems(op, PLACES)
        yield from _in_place_problems(op)
        numbers = "stick", "k"
        kept = op.attrs.get("resident", ())
        if not isinstance(kept, tuple) or not all(
            isinstance(entry, tuple) and len(entry) == 2 and _is(entry[0], int)
            and 0 <= entry[0] < len(op.results) and _are_boxes(entry[1], op.results[entry[0]])
            for entry in kept
        ):  # fmt: skip
            yield (
                "expected its resident to be a tuple of (result, boxes of (first, count)), got "
                f"{_brief(op, 'resident')}"
            )
    elif op.name == "relayout":
        numbers = ("lx",)
        if not _are_boxes(op.attrs.get("boxes", ()), op.results[0]):
            yield f"expected its boxes to be of (first, count), got {_brief(op, 'boxes')}"
    for name in numbers:
        if not _is(op.attrs.get(name, 0), int):
            yield f"expected its {name} to be a number, got {_brief(op, name)}"


def _are_boxes(value: object, of: Value) -> bool:
    """Whether it is a box for each of some cores: first element and count along each dimension."""
    rank = max(1, of.type.rank)
    return isinstance(value, tuple) and all(
        isinstance(box, tuple) and len(box) == rank and is_list(box, (int, int)) for box in value
    )


def _list_problems(
    of: Module | Op, lists: Mapping[str, tuple[type, ...]]
) -> Iterator[str]:
    for name, kinds in lists.items():
        if name in of.attrs and not is_list(of.attrs[name], kinds):
            entry = ", ".join(SPELT[kind] for kind in kinds)
            yield (
                f"expected its {name} to be a tuple of {f'({entry})' if len(kinds) > 1 else entry}"
                f"{'s' * (len(kinds) == 1)}, got {_brief(of, name)}"
            )


def _in_place_problems(op: Op) -> Iterator[str]:
    """Results and operands that it does not have."""
    pairs = op.attrs.get("in_place", ())
    if not is_list(pairs, PLACES["in_place"]):
        return
    assert isinstance(pairs, tuple)
    for result, operand in pairs:
        if not (0 <= result < len(op.results) and 0 <= operand < len(op.operands)):
            yield (
                f"its result {result} is in the place of its operand {operand}, but it has "
                f"{len(op.results)} and {len(op.operands)}"
            )


def is_list(value: object, kinds: tuple[type, ...]) -> bool:
    """Whether it is a tuple of what ``LISTS`` says."""
    if not isinstance(value, tuple):
        return False
    entries = value if len(kinds) > 1 else [(entry,) for entry in value]
    return all(
        isinstance(entry, tuple) and len(entry) == len(kinds) and all(map(_is, entry, kinds))
        for entry in entries
    )


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _state_problems(module: Module) -> Iterator[str]:
    """Each state is an input, takes the value of an output of its type, and begins with an array of
    its shape."""
    inputs = {v.name: v.type for v in module.body.args}
    outputs = dict(zip(module.output_names, (v.type for v in module.body.results), strict=False))
    kept = module.attrs["state"]
    assert isinstance(kept, tuple)
    for name, new, first in kept:
        if name not in inputs or new not in outputs:
            what = f"input {quote(name)}" if name not in inputs else f"output {quote(new)}"
            yield f"its state {quote(name)} is kept in {quote(new)}, but there is no {what}"
        elif inputs[name].shape != outputs[new].shape:
            yield (
                f"its state {quote(name)} is {inputs[name]}, but its next value, {quote(new)}, is "
                f"{outputs[new]}"
            )
        elif all(isinstance(d, int) for d in inputs[name].shape) and (
            first.shape != inputs[name].shape
        ):
            yield f"its state {quote(name)} of {inputs[name]} begins with shape {first.shape}"


def _brief(of: Module | Op, name: str) -> str:
    return repr(of.attrs[name])[:80]
