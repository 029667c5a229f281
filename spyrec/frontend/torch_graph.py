"""An exported PyTorch graph as plain data, read from its JSON form.

Both doors end here: a ``.pt2`` file holds this JSON, and torch turns an ExportedProgram in memory
into the same (``torch_live``). Nothing in this file needs torch. Field names are those of torch's
export schema, major version 8 (torch/_export/serde/schema.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spyrec.ir.errors import ImportError_

SCHEMA_MAJOR = 8
MAX_RANK = 32
MAX_DIM = 2**31 - 1

ELEMENTS = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32",
    8: "float64", 9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16",
    28: "uint16", 29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz", 33: "float8_e8m0fnu", 34: "uint32", 35: "uint64",
}  # fmt: skip
"""The schema's numbers of element types."""

STRIDED = 7  # the schema's number of the layout that is not sparse


@dataclass(frozen=True)
class Ref:
    """A tensor or a number that an input or a call made, by its name in the graph."""

    name: str


@dataclass(frozen=True)
class Element:
    """An element type, by torch's name without the prefix: "float32"."""

    name: str


@dataclass(frozen=True)
class Other:
    """An argument that says nothing about values (a device, a memory format), or that cannot be
    expressed here (an object); ``kind`` is the schema's word for it."""

    kind: str


@dataclass(frozen=True, eq=False)
class Nested:
    """A graph that a call carries out, such as the body of a context manager."""

    inputs: tuple[Arg, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Arg, ...]
    tensors: Mapping[str, TensorMeta]
    numbers: Mapping[str, int | float | bool | str]


Arg = Ref | Element | Other | Nested | None | bool | int | float | str | tuple[Any, ...]


@dataclass(frozen=True)
class TensorMeta:
    """``sizes``: numbers, and expressions over symbols as text. ``strided``: not sparse."""

    element: str
    sizes: tuple[int | str, ...]
    strided: bool = True
    strides: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class Call:
    """``target`` is the operator ("aten.linear.default", "_operator.mul"), ``args`` by the names of
    its schema, those left out not in it; one without a name is called _0, _1, ... ``outputs``: the
    names of its results, None for one that is not used. ``trace``: the Python that made the call,
    outermost first, as torch records it."""

    name: str
    target: str
    args: Mapping[str, Arg]
    outputs: tuple[str | None, ...]
    trace: str = ""


@dataclass(frozen=True)
class Input:
    """``kind``: "user", "weight" (parameter, buffer or constant tensor called ``of``), "constant"
    (``value``), or another word of the schema, which is not supported."""

    name: str
    kind: str
    of: str = ""
    value: Arg = None


@dataclass(frozen=True)
class Output:
    """``kind``: "user", "state" (the new value of the buffer or parameter ``of``), "input" (of the
    user input ``of``), or another word of the schema. ``value``: a Ref or a constant."""

    kind: str
    value: Arg
    of: str = ""


@dataclass(frozen=True)
class ExportGraph:
    """``tensors`` and ``numbers``: what is known of each name before running; numbers are values or
    expressions. ``ranges``: least and greatest value of each symbol, None when open.
    ``output_names``: of the user outputs, from the structure of what the model returns."""

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    calls: tuple[Call, ...]
    tensors: Mapping[str, TensorMeta]
    numbers: Mapping[str, int | float | bool | str]
    ranges: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    output_names: tuple[str, ...] = ()


class Malformed(Exception):
    """The JSON is not what the schema says; the message completes "is not a valid graph: "."""


def read_graph(data: Any, origin: str) -> ExportGraph:
    """The graph of an exported program's JSON. ImportError_ when it is of another version or
    malformed."""
    try:
        version = _get(data, "schema_version", dict).get("major")
        if version != SCHEMA_MAJOR:
            raise ImportError_(
                f"{origin} is written in version {version} of torch's export schema; version "
                f"{SCHEMA_MAJOR} can be read; export it again with torch 2.9 or later."
            )
        return _graph(data)
    except RecursionError:
        raise ImportError_(
            f"{origin} is not a valid exported program: its graphs nest too deeply."
        ) from None
    except Malformed as error:
        raise ImportError_(f"{origin} is not a valid exported program: {error}.") from None


def _graph(data: Any) -> ExportGraph:
    module = _get(data, "graph_module", dict)
    graph = _get(module, "graph", dict)
    signature = _get(module, "signature", dict)
    outputs = tuple(map(_output, _get(signature, "output_specs", list)))
    shown = [o for o in outputs if o.kind == "user"]
    names = output_names(_out_spec(module), len(shown)) or _plain_names(shown)
    return ExportGraph(
        tuple(map(_input, _get(signature, "input_specs", list))),
        outputs,
        tuple(_call(node) for node in _get(graph, "nodes", list)),
        {name: _meta(t) for name, t in _get(graph, "tensor_values", dict).items()},
        dict(_numbers(graph)),
        {name: _range(name, r) for name, r in _get(data, "range_constraints", dict).items()},
        names,
    )


def _get(data: Any, key: str, kind: type[Any]) -> Any:
    if not isinstance(data, dict) or not isinstance(data.get(key), kind):
        raise Malformed(f"{key!r} is missing or is no {kind.__name__}")
    return data[key]


def _only(data: Any, what: str) -> tuple[str, Any]:
    """The one filled-in field of a union."""
    if not isinstance(data, dict) or len(data) != 1:
        raise Malformed(f"{what} has not exactly one kind")
    return next(iter(data.items()))


def _input(spec: Any) -> Input:
    kind, body = _only(spec, "an input")
    if kind == "user_input":
        value = argument(_get(body, "arg", dict))
        if isinstance(value, Ref):
            return Input(value.name, "user")
        return Input("", "constant", "", value)
    if kind == "constant_input":
        value = argument(_get(body, "value", dict))
        return Input(_get(body, "name", str), "constant", "", value)
    if kind in ("parameter", "buffer", "tensor_constant"):
        name = _get(_get(body, "arg", dict), "name", str)
        return Input(name, "weight", _get(body, f"{kind}_name", str))
    return Input("", kind)


def _output(spec: Any) -> Output:
    kind, body = _only(spec, "an output")
    value = _get(body, "arg", dict)
    if kind == "user_output":
        return Output("user", argument(value))
    ref = Ref(_get(value, "name", str))
    if kind in ("buffer_mutation", "parameter_mutation"):
        return Output("state", ref, _get(body, kind.replace("mutation", "name"), str))
    if kind == "user_input_mutation":
        return Output("input", ref, _get(body, "user_input_name", str))
    return Output(kind, ref)


def _call(node: Any) -> Call:
    args = {}
    for position, named in enumerate(_get(node, "inputs", list)):
        args[_get(named, "name", str) or f"_{position}"] = argument(_get(named, "arg", dict))
    outputs = tuple(o for out in _get(node, "outputs", list) for o in _results(out))
    metadata = node.get("metadata")
    trace = metadata.get("stack_trace", "") if isinstance(metadata, dict) else ""
    target = _get(node, "target", str).removeprefix("torch.ops.")
    name = node.get("name") or next((o for o in outputs if o), target)
    return Call(str(name), target, args, outputs, str(trace or ""))


def _results(out: Any) -> Iterator[str | None]:
    found = argument(out)
    for one in found if isinstance(found, tuple) else (found,):
        yield one.name if isinstance(one, Ref) else None


def argument(data: Any) -> Arg:
    """One argument of the schema's union."""
    kind, body = _only(data, "an argument")
    match kind:
        case "as_none":
            return None
        case "as_tensor" | "as_custom_obj":
            return Ref(_get(body, "name", str))
        case "as_tensors":
            return tuple(Ref(_get(t, "name", str)) for t in _listed(body))
        case "as_optional_tensor":
            return argument(body)
        case "as_optional_tensors" | "as_nested_tensors":
            return tuple(argument(t) if isinstance(t, dict) else _refs(t) for t in _listed(body))
        case "as_sym_int" | "as_sym_float" | "as_sym_bool":
            return _symbolic(body)
        case "as_sym_ints" | "as_sym_floats" | "as_sym_bools":
            return tuple(_symbolic(one) for one in _listed(body))
        case "as_scalar_type":
            return Element(_element(body))
        case "as_int" | "as_float" | "as_bool" | "as_string":
            return _scalar(body)
        case "as_ints" | "as_floats" | "as_bools" | "as_strings":
            return tuple(_scalar(one) for one in _listed(body))
        case "as_int_lists" | "as_float_lists":
            return tuple(tuple(_scalar(n) for n in _listed(one)) for one in _listed(body))
        case "as_graph":
            return _nested(_get(body, "graph", dict))
        case "as_expr":
            return str(_get(body, "expr_str", str))
        case _:
            return Other(kind.removeprefix("as_"))


def _nested(graph: Any) -> Nested:
    return Nested(
        tuple(map(argument, _get(graph, "inputs", list))),
        tuple(map(_call, _get(graph, "nodes", list))),
        tuple(map(argument, _get(graph, "outputs", list))),
        {name: _meta(t) for name, t in _get(graph, "tensor_values", dict).items()},
        dict(_numbers(graph)),
    )


def _refs(names: Any) -> tuple[Arg, ...]:
    return tuple(Ref(_get(t, "name", str)) for t in _listed(names))


def _listed(body: Any) -> Sequence[Any]:
    if not isinstance(body, list):
        raise Malformed("an argument that should be a list is none")
    return body


def _scalar(body: Any) -> Arg:
    """JSON has no infinities: torch writes them as text."""
    if isinstance(body, str) and body in ("Infinity", "-Infinity", "NaN"):
        return float(body)
    scalar: bool | int | float | str | None = body
    if scalar is None or isinstance(scalar, bool | int | float | str):
        return scalar
    raise Malformed("an argument that should be a number or text is neither")


def _symbolic(body: Any) -> Arg:
    kind, value = _only(body, "a symbolic argument")
    return Ref(str(value)) if kind == "as_name" else _scalar(value)


def _meta(data: Any) -> TensorMeta:
    sizes = _get(data, "sizes", list)
    if len(sizes) > MAX_RANK:
        raise Malformed(f"a tensor has {len(sizes)} dimensions, more than {MAX_RANK}")
    element = _element(data.get("dtype"))
    strides = data.get("strides")
    steps = tuple(map(_step, strides)) if isinstance(strides, list) else ()
    return TensorMeta(element, tuple(map(_size, sizes)), data.get("layout") == STRIDED, steps)


def _step(data: Any) -> int | str:
    value = argument(data)
    return value if isinstance(value, int | str) else "unknown"


def _element(number: Any) -> str:
    if isinstance(number, bool) or not isinstance(number, int):
        raise Malformed("an element type is no number")
    return ELEMENTS.get(number, f"number {number}")


def _size(data: Any) -> int | str:
    value = argument(data)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise Malformed("a size is neither a number nor an expression")
    if isinstance(value, int) and not 0 <= value <= MAX_DIM:
        raise Malformed(f"a size is {value}, not from 0 to {MAX_DIM}")
    return value


def _numbers(graph: Any) -> Iterator[tuple[str, int | float | bool | str]]:
    for table in ("sym_int_values", "sym_bool_values", "sym_float_values"):
        listed = graph.get(table) or {}
        if not isinstance(listed, dict):
            raise Malformed(f"{table!r} is no dict")
        for name, data in listed.items():
            value = argument(data)
            if not isinstance(value, bool | int | float | str):
                raise Malformed(f"the number {name!r} has no value")
            yield name, value


def _range(name: str, data: Any) -> tuple[int | None, int | None]:
    if not isinstance(data, dict):
        raise Malformed(f"the range of {name!r} is malformed")
    return _bound(data.get("min_val")), _bound(data.get("max_val"))


def _bound(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# Names of outputs -------------------------------------------------------------------------------


def _out_spec(module: Any) -> Any:
    """The tree of what the model returns, None when it is not told."""
    entries = module.get("module_call_graph")
    if not isinstance(entries, list):
        return None
    root = next((e for e in entries if isinstance(e, dict) and e.get("fqn") == ""), None)
    signature = root.get("signature") if root else None
    try:
        return json.loads(signature["out_spec"])[1] if signature else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def output_names(tree: Any, count: int) -> tuple[str, ...]:
    """A name for each leaf of a returned structure: keys and positions, "logits",
    "past_key_values.0.1"; "output" for a lone tensor, "output_0" for those of a tuple. Empty when
    the tree is not understood or has another number of leaves than ``count``."""
    try:
        names = tuple(_leaves(tree, ()))
    except (ValueError, LookupError, TypeError, RecursionError):
        return ()
    return names if len(names) == count and len({*names}) == count else ()


def _leaves(tree: Any, path: tuple[str, ...]) -> Iterator[str]:
    children = tree["children_spec"]
    if tree["type"] is None:
        name = ".".join(path) or "output"
        yield f"output_{name}" if name[0].isdigit() else name
        return
    context = json.loads(tree["context"]) if tree["context"] else None
    keys = context if isinstance(context, list) and len(context) == len(children) else None
    for i, child in enumerate(children):
        yield from _leaves(child, (*path, str(keys[i]) if keys else str(i)))


def _plain_names(shown: Sequence[Output]) -> tuple[str, ...]:
    return ("output",) if len(shown) == 1 else tuple(f"output_{i}" for i in range(len(shown)))
