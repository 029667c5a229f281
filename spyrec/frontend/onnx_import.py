"""Walks an ONNX graph and builds the tensor-stage module: bind dimensions, fold what is known,
convert each node through one table, and report everything that cannot be converted at once."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx

from spyrec.ir.core import Block, Builder, Loc, Module, Value
from spyrec.ir.errors import ImportError_, SpyrecError
from spyrec.ir.types import DType

from .bind import ConstValue, const_inputs
from .emit import Emitter, Handle, Known, Results, Unsupported, clean
from .onnx_bind import bind_inputs
from .onnx_check import check_graph
from .onnx_load import LoadedModel, load_model, load_tensors
from .onnx_node import Node, Table
from .onnx_ops_attention import ATTENTION
from .onnx_ops_contract import CONTRACT
from .onnx_ops_elementwise import ELEMENTWISE
from .onnx_ops_index import INDEX
from .onnx_ops_norm import NORM
from .onnx_ops_quant import QUANT
from .onnx_ops_reduce import REDUCE
from .onnx_ops_shape import SHAPE
from .onnx_ops_window import WINDOW

CONVERTERS: Table = {
    **ELEMENTWISE,
    **REDUCE,
    **CONTRACT,
    **WINDOW,
    **NORM,
    **ATTENTION,
    **SHAPE,
    **INDEX,
    **QUANT,
}
"""Operator of the standard domain -> conversion. ``If`` is handled by the walk itself."""

NODES_NAMED = 3  # in a message about an operator that cannot be imported
STANDARD = ("", "ai.onnx")


@dataclass(frozen=True)
class Absent:
    """Stands where a result should: of a node that could not be converted (reason "", already
    reported), or one its conversion does not compute."""

    reason: str = ""


Scope = ChainMap[str, Handle | Absent]


@dataclass(frozen=True, eq=False)
class _Walk:
    """One import under way. ``unsupported``: (operator, reason) -> nodes; ``problems``: whole
    sentences."""

    model: LoadedModel
    emitter: Emitter
    unsupported: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def import_onnx(
    source: str | Path | onnx.ModelProto,
    bind: Mapping[str, int] = MappingProxyType({}),
    const: Mapping[str, ConstValue] = MappingProxyType({}),
) -> Module:
    """The tensor-stage module of an ONNX model.

    ``bind`` gives open dimensions of the inputs a size: by name, or ``INPUT:AXIS``. ``const`` turns
    inputs into constants. What is odd but allowed (weights that are NaN, outputs declared otherwise
    than computed) is in ``module.attrs["warnings"]``, a tuple of sentences. ImportError_ lists
    everything that stands in the way.
    """
    model = load_model(source)
    graph = model.proto.graph
    check_graph(graph, model.origin)
    weights = load_tensors(graph.initializer, model)
    types = bind_inputs([i for i in graph.input if i.name not in weights], bind)
    fixed = const_inputs(types, const)

    args = {name: Value(name, type_) for name, type_ in types.items() if name not in fixed}
    known = weights | {name: (array, types[name].dtype) for name, array in fixed.items()}
    scope: Scope = ChainMap(_known_tensors(known), dict(args))
    walk = _Walk(model, Emitter(Builder(args)))
    _convert_nodes(walk, graph.node, scope)
    results = _outputs(walk, graph.output, scope)
    problems = _unsupported_sentences(walk.unsupported) + walk.problems
    if problems:
        empty = [f"--bind {key}={size}" for key, size in bind.items() if size == 0]
        raise ImportError_([_empty_sentence(empty)] if empty else list(dict.fromkeys(problems)))
    return Module(
        graph.name or "model",
        Block(tuple(args.values()), tuple(walk.emitter.builder.ops), results),
        tuple(o.name for o in graph.output),
        MappingProxyType(
            {"stage": "tensor", "warnings": (*_odd_weights(walk), *_odd_outputs(graph, results))}
        ),
    )


def _empty_sentence(binds: Sequence[str]) -> str:
    """Instead of what the nodes have to say about shapes without elements."""
    return (
        f"{' '.join(binds)}: with a dimension of size 0 this model cannot be imported; "
        "bind a size of 1 or more."
    )


def _known_tensors(
    tensors: Mapping[str, tuple[np.ndarray, DType]],
) -> dict[str, Handle | Absent]:
    return {
        name: Known(name, array, dtype, Loc((name,))) for name, (array, dtype) in tensors.items()
    }


def _convert_nodes(walk: _Walk, nodes: Sequence[Any], scope: Scope) -> None:
    for proto in nodes:
        for name, result in zip(proto.output, _convert(walk, proto, scope), strict=False):
            if name:
                scope[name] = result


def _convert(walk: _Walk, proto: Any, scope: Scope) -> list[Handle | Absent]:
    """The results of a node, one for each of its outputs."""
    label = proto.name or next((o for o in proto.output if o), "?")
    failed: list[Handle | Absent] = [Absent()] * len(proto.output)
    operator = proto.op_type if proto.domain in STANDARD else f"{proto.domain}::{proto.op_type}"
    inlined = operator == "If"
    if operator not in CONVERTERS and not inlined:
        reason = "spyrec has no conversion for it"
        walk.unsupported.setdefault((operator, reason), []).append(label)
        return failed
    try:
        operands = _operands(proto, scope)
        if operands is None:
            return failed
        if inlined:
            return _branch(walk, proto, operands, scope)
        node = _node(walk, proto, operands, label)
        results = _as_list(CONVERTERS[operator](node))
    except Unsupported as why:
        walk.unsupported.setdefault((operator, str(why)), []).append(label)
        return failed
    except SpyrecError as error:
        sentence = str(error).rstrip(".")
        walk.problems.append(f"Node '{label}' ({operator}) is malformed: {sentence}.")
        return failed
    missing = [
        Absent(f"it reads output {i} of a {operator} node ('{label}'), which is not computed")
        for i in range(len(results), len(proto.output))
    ]
    return [*results, *missing]


def _operands(proto: Any, scope: Scope) -> list[Handle | None] | None:
    """The node's operands, or None when one comes from a node that has already been reported."""
    found: list[Handle | None] = []
    for name in proto.input:
        value = scope.get(name) if name else None
        if name and value is None:
            raise Unsupported(f"it reads '{name}', which nothing before it defines")
        if isinstance(value, Absent):
            if not value.reason:
                return None
            raise Unsupported(value.reason)
        found.append(value)
    return found


def _node(walk: _Walk, proto: Any, operands: list[Handle | None], label: str) -> Node:
    attrs = {a.name: _attribute(a) for a in proto.attribute}
    hint = clean(next((o for o in proto.output if o), label))
    return Node(
        Loc((label,)), hint, walk.emitter, proto.op_type, tuple(operands), attrs,
        walk.model.opset, len(proto.output), walk.model.folder,
    )  # fmt: skip


def _attribute(attribute: Any) -> Any:
    try:
        value = onnx.helper.get_attribute_value(attribute)
    except ValueError:
        value = None
    if value is None:
        raise Unsupported(f"its attribute '{attribute.name}' has no known type")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _as_list(results: Results) -> list[Handle | Absent]:
    return [results] if isinstance(results, Value | Known) else list(results)


def _branch(
    walk: _Walk, proto: Any, operands: list[Handle | None], scope: Scope
) -> list[Handle | Absent]:
    """If with a known condition: the nodes of the branch taken, in place of the node."""
    condition = operands[0] if operands else None
    if not isinstance(condition, Known) or condition.array.size != 1:
        raise Unsupported("its condition is computed at run time")
    taken = "then_branch" if bool(condition.array.reshape(())) else "else_branch"
    graph = next((a.g for a in proto.attribute if a.name == taken), None)
    if graph is None or len(graph.output) != len(proto.output):
        raise Unsupported(f"its {taken} is missing or has another number of outputs")
    weights = load_tensors(graph.initializer, walk.model)
    inner = scope.new_child(_known_tensors(weights))
    _convert_nodes(walk, graph.node, inner)
    return [
        inner.get(o.name, Absent(f"the {taken} of an If does not define '{o.name}'"))
        for o in graph.output
    ]


def _outputs(walk: _Walk, outputs: Sequence[Any], scope: Scope) -> tuple[Value, ...]:
    """The module's results: of a node, or an input or constant handed through."""
    results: list[Value] = []
    for output in outputs:
        handle = scope.get(output.name)
        if isinstance(handle, Value | Known):
            results.append(walk.emitter.value(handle))
        elif handle is None or handle.reason:
            why = f": {handle.reason}" if handle else ""
            walk.problems.append(f"No node computes the output '{output.name}'{why}.")
    return tuple(results)


def _unsupported_sentences(unsupported: Mapping[tuple[str, str], Sequence[str]]) -> list[str]:
    sentences = []
    for (operator, reason), labels in sorted(unsupported.items()):
        named = ", ".join(f"'{label}'" for label in labels[:NODES_NAMED])
        nodes = "1 node" if len(labels) == 1 else f"{len(labels)} nodes"
        more = ", ..." if len(labels) > NODES_NAMED else ""
        sentences.append(
            f"Operator {operator} cannot be imported: {reason} ({nodes}: {named}{more})."
        )
    return sentences


def _odd_weights(walk: _Walk) -> list[str]:
    """Warnings about constants that hold NaN. The minimum of an array is NaN if any element is."""
    return [
        f"The constant '{known.name}' holds NaN; whatever reads it will too."
        for known in walk.emitter.constants
        if known.dtype.kind == "float" and known.array.size and np.isnan(known.array.min())
    ]


def _odd_outputs(graph: Any, results: Sequence[Value]) -> list[str]:
    """Warnings about outputs whose declared sizes are not those computed."""
    sentences = []
    for output, value in zip(graph.output, results, strict=True):
        tensor = output.type.tensor_type
        declared = [d.dim_value for d in tensor.shape.dim]
        computed = value.type.static_shape
        fits = len(declared) == len(computed) and all(
            d <= 0 or d == c for d, c in zip(declared, computed, strict=True)
        )
        if tensor.HasField("shape") and not fits:
            sentences.append(
                f"The output '{output.name}' is declared with shape {_dims(tensor)} but has shape "
                f"{list(computed)}."
            )
    return sentences


def _dims(tensor: Any) -> str:
    return (
        "["
        + ", ".join(
            d.dim_param or (str(d.dim_value) if d.dim_value > 0 else "?") for d in tensor.shape.dim
        )
        + "]"
    )
