"""IR -> text. The form is the language of tests, dumps and error notes; ir/parser.py reads it back.

%scores = matmul(%q, %k) {transpose = true} : tensor<8x64xf32> @ "MatMul_7"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

import numpy as np

from .core import Attr, Block, Loc, Module, Op, Value, walk
from .dense import LIST_MAX, digest, element_texts, is_splat, pack
from .errors import SpyrecError
from .literals import (
    MAX_DEPTH,
    float_text,
    int_text,
    name_text,
    quote,
    value_text,
)
from .types import DTYPES, DType, Sym

Data = Literal["full", "elide"]
_ArrayText = Callable[[np.ndarray], str]  # how an array too long to list is written


def print_module(module: Module, data: Data = "full") -> str:
    """The module's text.

    ``data="full"`` keeps every constant, the long ones in a section at the end. ``"elide"`` names
    long ones by digest only; :func:`blobs` gives what is needed to read that back. SpyrecError if
    the module holds something the text has no form for.
    """
    outputs, names = module.body.results, module.output_names
    if len(outputs) != len(names):
        raise SpyrecError(
            f"module {module.name} has {len(names)} output names for {len(outputs)} outputs; "
            "give each output one name"
        )
    kept: dict[str, np.ndarray] = {}
    array_text = _keep_in(kept) if data == "full" else _elided
    head = f"module {quote(module.name)}{_attrs(module.attrs, array_text)} {{"
    lines = [head]
    lines += [f"  input {_declared(v)}" for v in module.body.args]
    lines += [line for op in module.body.ops for line in _op_lines(op, array_text, 1)]
    lines += [f"  output {quote(n)} = {_ref(v)}" for n, v in zip(names, outputs, strict=True)]
    lines.append("}")
    if kept:
        lines.append("resources {")
        lines += [f"  {quote(key)} = <\n{pack(array)}>" for key, array in kept.items()]
        lines.append("}")
    return "\n".join(lines) + "\n"


def print_op(op: Op) -> str:
    """The op's text with its regions, without a newline at the end. Long arrays are elided."""
    return "\n".join(_op_lines(op, _elided, 0))


def print_head(op: Op) -> str:
    """The op's first line, without regions: what error notes quote."""
    return _head(op, _brief)


def module_line(module: Module) -> str:
    """What error notes quote of a module."""
    return f"module {quote(module.name)}"


def input_line(value: Value) -> str:
    """The line of an input, as printed."""
    return f"input {_declared(value)}"


def output_line(module: Module, i: int) -> str:
    """The line of output number ``i``, as printed; a missing name or value is left out."""
    names, values = module.output_names[i : i + 1], module.body.results[i : i + 1]
    return f"output {''.join(map(quote, names))} = {''.join(value_text(v.name) for v in values)}"


def blobs(module: Module) -> dict[str, np.ndarray]:
    """The arrays that ``data="elide"`` leaves out, by digest: what the parser asks for."""
    found: dict[str, np.ndarray] = {}
    keep = _keep_in(found)
    _attrs(module.attrs, keep)
    for op in walk(module.body):
        _attrs(op.attrs, keep)
    return found


def _op_lines(op: Op, array_text: _ArrayText, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise SpyrecError(f"{op.name} stands in more than {MAX_DEPTH} regions (from {op.loc})")
    pad = "  " * depth
    line = pad + _head(op, array_text)
    for region in op.regions:
        yield line + " {"
        yield from _block_lines(region, array_text, depth + 1)
        line = pad + "}"
    yield line


def _block_lines(block: Block, array_text: _ArrayText, depth: int) -> Iterator[str]:
    pad = "  " * depth
    yield f"{pad}({', '.join(map(_declared, block.args))}):"
    for op in block.ops:
        yield from _op_lines(op, array_text, depth)
    yield f"{pad}yield {_refs(block.results)}".rstrip()


def _head(op: Op, array_text: _ArrayText) -> str:
    results = f"{_refs(op.results)} = " if op.results else ""
    operands = f"({_refs(op.operands)})" if op.operands else ""
    types = f" : {', '.join(str(v.type) for v in op.results)}" if op.results else ""
    attrs = _attrs(op.attrs, array_text)
    return f"{results}{name_text(op.name)}{operands}{attrs}{types}{_loc(op.loc)}"


def _loc(loc: Loc) -> str:
    return f" @ {', '.join(map(quote, loc.nodes))}" if loc.nodes else ""


def _ref(value: Value) -> str:
    return value_text(value.name)


def _refs(values: Iterable[Value]) -> str:
    return ", ".join(map(_ref, values))


def _declared(value: Value) -> str:
    return f"{_ref(value)}: {value.type}"


def _attrs(attrs: Mapping[str, Attr], array_text: _ArrayText) -> str:
    if not attrs:
        return ""
    return f" {{{', '.join(f'{name_text(k)} = {_attr(v, array_text)}' for k, v in attrs.items())}}}"


def _attr(value: Attr | Sym, array_text: _ArrayText, depth: int = 0) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return int_text(value)
        case float():
            return float_text(value)
        case str():
            return quote(value)
        case Sym():
            return str(value)
        case DType() if DTYPES.get(value.name) == value:
            return f"type {value.name}"
        case tuple() if depth < MAX_DEPTH:
            items = ", ".join(_attr(v, array_text, depth + 1) for v in value)
            return f"({items},)" if len(value) == 1 else f"({items})"
        case np.ndarray():
            return _array(value, array_text)
        case _:
            raise SpyrecError(
                f"the attribute value {str(value)[:80]} of type {type(value).__name__} has no "
                "text; use bool, int, float, str, None, a known element type, a symbolic "
                f"dimension, a numpy array, or tuples of these nested at most {MAX_DEPTH} deep"
            )


def _array(array: np.ndarray, array_text: _ArrayText) -> str:
    if array.size <= LIST_MAX:
        contents = f"[{', '.join(element_texts(array))}]"
    elif is_splat(array):
        contents = f"splat {element_texts(array.flat[0:1])[0]}"
    else:
        contents = array_text(array)
    dims = "".join(f"{d}x" for d in array.shape)
    return f"dense<{dims}{array.dtype.name}, {contents}>"


def _elided(array: np.ndarray) -> str:
    return f'elided "{digest(array)}"'


def _brief(array: np.ndarray) -> str:
    return "elided"


def _keep_in(kept: dict[str, np.ndarray]) -> _ArrayText:
    def text(array: np.ndarray) -> str:
        key = digest(array)
        kept[key] = array
        return f'resource "{key}"'

    return text
