"""The rules that a well-formed module obeys, one function each, listed in RULES at the end.

Every rule walks the module on its own, so one fault does not hide another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from .core import Block, Module, Op, Value, walk
from .dense import element_texts
from .errors import SpyrecError
from .literals import quote, value_text
from .near import EVERY_OP, listed
from .ops import OPS, infer
from .printer import input_line, module_line, output_line, print_head
from .rounding import int_range, round_to
from .rules_kernel import Found, has_home, is_affine_nest, tiles_cover
from .rules_memory import apart_in_memory, apart_in_scratchpads
from .rules_module import said_attributes
from .types import DType, Sym, TensorType


@dataclass(frozen=True)
class Stage:
    """In the module's block stand ops of stage ``top``, in regions ops of the stages ``inside``."""

    top: str
    inside: frozenset[str]


STAGES: dict[str, Stage] = {
    "tensor": Stage("tensor", frozenset({"tensor"})),
    "device": Stage("device", frozenset({"tensor"})),
    "tile": Stage("tile", frozenset({"tile", "tensor"})),
}

DEVICE_TYPES = ("dl16", "f16", "bf16", "f32", "f8e4m3", "i32", "i8", "i4", "bool")
"""Element types of device memory; a truth value is kept as 0 or 1 in 16 bits."""

_SAMPLE = 1 << 16  # elements of a constant that are looked at one by one


@dataclass(frozen=True)
class Rule:
    """``sentence`` states it; ``check`` yields what breaks it, given the stage asked for."""

    number: int
    sentence: str
    check: Callable[[Module, str], Iterator[Found]]


def _stage_known(module: Module, stage: str) -> Iterator[Found]:
    here = module_line(module)
    if module.stage not in STAGES:
        yield here, f"{module.stage} is no stage; the stages are {', '.join(STAGES)}"
    elif stage not in STAGES:
        yield here, f"{stage} was asked for, which is no stage; they are {', '.join(STAGES)}"
    elif stage != module.stage:
        yield here, f"expected a module at the {stage} stage, got one at the {module.stage} stage"


def _definitions(module: Module) -> Iterator[tuple[Op | str, Value]]:
    for v in module.body.args:
        yield input_line(v), v
    for op in walk(module.body):
        for v in chain(op.results, *(r.args for r in op.regions)):
            yield op, v


def _unique_names(module: Module, _stage: str) -> Iterator[Found]:
    counts = Counter(v.name for _, v in _definitions(module))
    seen: set[str] = set()
    for where, value in _definitions(module):
        if value.name in seen:
            sentence = (
                f"{_show(value)} is defined {counts[value.name]} times; "
                f"give each value its own name{_from(where)}"
            )
            yield where, sentence
        seen.add(value.name)


def _defined_before_use(module: Module, _stage: str) -> Iterator[Found]:
    visible = set(module.body.args)
    yield from _undefined(module.body, visible)
    for i, v in enumerate(module.body.results):
        if v not in visible:
            yield output_line(module, i), f"{_show(v)} is not defined in the module's block"


def _undefined(block: Block, visible: set[Value]) -> Iterator[Found]:
    """Adds what ``block`` defines to ``visible``; what its regions define is taken out again."""
    for op in block.ops:
        for i, v in enumerate(op.operands):
            if v not in visible:
                yield op, f"operand {i}, {_show(v)}, is not defined before this op{_from(op)}"
        for i, region in enumerate(op.regions):
            own = {*region.args, *chain.from_iterable(o.results for o in region.ops)} - visible
            visible.update(region.args)
            yield from _undefined(region, visible)
            for v in region.results:
                if v not in visible:
                    yield op, f"region {i} yields {_show(v)}, which it does not see{_from(op)}"
            visible -= own
        visible.update(op.results)


def _known_ops(module: Module, _stage: str) -> Iterator[Found]:
    for op in walk(module.body):
        if op.name not in OPS:
            yield op, f"no op is called {op.name}; {listed(op.name, OPS, EVERY_OP)}{_from(op)}"


def _writable(module: Module, _stage: str) -> Iterator[Found]:
    for op in walk(module.body):
        try:
            print_head(op)
        except SpyrecError as error:
            yield op, f"{error}{_from(op)}"


def _inferred(op: Op) -> tuple[TensorType, ...]:
    types = [v.type for v in op.operands]
    declared = [v.type for v in op.results]
    return infer(op.name, types, op.attrs, op.loc, regions=op.regions, declared=declared)


def _operands_and_attrs(module: Module, _stage: str) -> Iterator[Found]:
    for op in walk(module.body):
        if op.name not in OPS:
            continue
        try:
            _inferred(op)
        except SpyrecError as error:
            yield op, str(error)


def _result_types(module: Module, _stage: str) -> Iterator[Found]:
    for op in walk(module.body):
        if op.name not in OPS:
            continue
        try:
            wanted = _inferred(op)
        except SpyrecError:
            continue  # rule 6 speaks of it
        if len(wanted) != len(op.results):
            yield op, f"expected {len(wanted)} results, got {len(op.results)}{_from(op)}"
        for v, want in zip(op.results, wanted, strict=False):
            if (v.type.shape, v.type.dtype) != (want.shape, want.dtype):
                expected = want.with_(layout=None, space=None)
                sentence = (
                    f"expected {_show(v)} of type {expected}, "
                    f"got {v.type.with_(layout=None, space=None)}{_from(op)}"
                )
                yield op, sentence


def _output_names(module: Module, _stage: str) -> Iterator[Found]:
    names, values = module.output_names, module.body.results
    if len(names) != len(values):
        sentence = (
            f"expected a name for each output, got {len(names)} names for {len(values)} outputs"
        )
        yield module_line(module), sentence
    for i, name in enumerate(names):
        if name in names[:i]:
            yield output_line(module, i), f"two outputs are called {quote(name)}; rename one"


def _legal_ops(module: Module, stage: str) -> Iterator[Found]:
    if stage not in STAGES:
        return
    for op in module.body.ops:
        if op.name in OPS and OPS[op.name].family == "tile":
            yield op, f"{op.name} may stand only inside a kernel{_from(op)}"
        elif op.name in OPS and STAGES[stage].top not in OPS[op.name].stages:
            sentence = (
                f"{op.name} may not stand at the {stage} stage, "
                f"only at: {', '.join(sorted(OPS[op.name].stages)) or 'none'}{_from(op)}"
            )
            yield op, sentence
        for inner in chain.from_iterable(map(walk, op.regions)):
            if inner.name in OPS and not STAGES[stage].inside & OPS[inner.name].stages:
                sentence = f"{inner.name} may not stand in a region at the {stage} stage"
                yield inner, sentence + _from(inner)


def _constants(module: Module, _stage: str) -> Iterator[Found]:
    for op in walk(module.body):
        value = op.attrs.get("value")
        if op.name != "constant" or not isinstance(value, np.ndarray) or len(op.results) != 1:
            continue
        dtype = op.result.type.dtype
        if value.dtype.name != dtype.numpy:
            continue  # rule 6 speaks of it
        wrong = _not_representable(value, dtype)
        if wrong is not None:
            yield op, f"{wrong} is no value of {dtype}; round the array first{_from(op)}"


def _not_representable(value: np.ndarray, dtype: DType) -> str | None:
    """An element that ``dtype`` does not have, of at most _SAMPLE evenly spaced ones."""
    sample = value.flat[:: value.size // _SAMPLE + 1]  # reads a splat without spreading it
    if dtype.kind == "int":
        low, high = int_range(dtype)
        wrong = (sample < low) | (sample > high)
    else:
        rounded = round_to(sample, dtype)
        wrong = (rounded != sample) & ~np.isnan(sample)
    return element_texts(sample[wrong][:1])[0] if wrong.any() else None


def _dimensions(module: Module, _stage: str) -> Iterator[Found]:
    bounds: dict[str, Sym] = {}
    for where, value in _definitions(module):
        for dim in value.type.shape:
            if isinstance(dim, int) and dim < 0:
                yield where, f"{_show(value)} has the negative dimension {dim}{_from(where)}"
            elif isinstance(dim, Sym) and bounds.setdefault(dim.name, dim) != dim:
                first = bounds[dim.name]
                sentence = (
                    f"{_show(value)} has the dimension {dim}, but the first {dim.name} "
                    f"is {first}{_from(where)}"
                )
                yield where, sentence


def _no_layouts_yet(module: Module, stage: str) -> Iterator[Found]:
    if stage != "tensor":
        return
    for where, value in _definitions(module):
        if value.type.layout is not None or value.type.space is not None:
            sentence = (
                f"{_show(value)} has a layout or a space; passes after fusion give it{_from(where)}"
            )
            yield where, sentence


def _kernel_values(module: Module, stage: str) -> Iterator[tuple[Op, Value]]:
    if stage == "tensor":
        return
    for op in module.body.ops:
        if op.name in OPS and OPS[op.name].family == "device":
            for value in dict.fromkeys((*op.operands, *op.results)):
                yield op, value


def _device_types(module: Module, stage: str) -> Iterator[Found]:
    for op, value in _kernel_values(module, stage):
        if value.type.dtype.name not in DEVICE_TYPES:
            sentence = (
                f"{_show(value)} is {value.type.dtype}, which the device does not have; "
                f"cast it to one of {', '.join(DEVICE_TYPES)}{_from(op)}"
            )
            yield op, sentence


def _laid_out(module: Module, stage: str) -> Iterator[Found]:
    if module.attrs.get("laid_out") is not True:
        return
    for op, value in _kernel_values(module, stage):
        if value.type.layout is None:
            yield op, f"{_show(value)} has no layout in a module that is laid out{_from(op)}"


def _layouts_fit(module: Module, _stage: str) -> Iterator[Found]:
    for where, value in _definitions(module):
        type_, layout = value.type, value.type.layout
        if layout is None:
            continue
        shape = type_.shape or (1,)  # a layout takes a scalar as one element
        if (layout.shape, layout.bits) != (shape, type_.dtype.bits):
            sentence = (
                f"expected a layout of shape {_shape(shape)} and {type_.dtype.bits} bits for "
                f"{_show(value)}, got shape {_shape(layout.shape)} and {layout.bits} bits"
                f"{_from(where)}"
            )
            yield where, sentence


def _show(value: Value) -> str:
    return value_text(value.name)


def _shape(shape: tuple[int | Sym, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _from(where: Op | str) -> str:
    return f" (from {where.loc})" if isinstance(where, Op) else ""


RULES: tuple[Rule, ...] = (
    Rule(1, "The module is at a stage that exists, and at the one asked for.", _stage_known),
    Rule(2, "Each value is defined once and has a name of its own.", _unique_names),
    Rule(3, "A value is defined before it is used; regions see outer values.", _defined_before_use),
    Rule(4, "Each op is in the OPS table.", _known_ops),
    Rule(5, "Each attribute is of a kind that has a text.", _writable),
    Rule(6, "Operands, attributes and regions are what the op asks for.", _operands_and_attrs),
    Rule(7, "Results have the types that the op's rule infers.", _result_types),
    Rule(8, "Each output has a name of its own.", _output_names),
    Rule(9, "An op stands only at a stage, and in a region, where it is legal.", _legal_ops),
    Rule(10, "The elements of a constant are values that its type has.", _constants),
    Rule(11, "No dimension is negative; a symbol has the same bounds everywhere.", _dimensions),
    Rule(12, "At the tensor stage no type has a layout or a space.", _no_layouts_yet),
    Rule(13, "Kernels read and write element types that the device has.", _device_types),
    Rule(14, "In a laid-out module all that kernels read or write has a layout.", _laid_out),
    Rule(15, "A layout has the shape and the element width of its tensor.", _layouts_fit),
    Rule(16, "A kernel's attributes describe an affine nest and its division.", is_affine_nest),
    Rule(17, "Each core holds what it reads of a tensor in the scratchpads.", has_home),
    Rule(18, "A tile body loads what varies and stores each result once.", tiles_cover),
    Rule(19, "What is needed at the same time lies apart in card memory.", apart_in_memory),
    Rule(20, "The same in the scratchpads, but for results in an operand's place.",
         apart_in_scratchpads),
    Rule(21, "What a module and its kernels say of themselves has the form that is read.",
         said_attributes),
)
