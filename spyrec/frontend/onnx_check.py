"""Faults of a graph as a whole that need no conversion to be seen: damaged or clashing names, no
outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from spyrec.ir.errors import ImportError_


def check_graph(graph: Any, origin: str) -> None:
    """ImportError_ lists every fault of the GraphProto; ``origin`` is what messages call the
    model."""
    if not all(isinstance(name, str) for name in _names(graph)):
        raise ImportError_(f"{origin} holds names that are not UTF-8 text; the file is damaged.")
    problems = []
    if not graph.output:
        problems.append(f"{origin} has no outputs: there is nothing to compile.")
    if graph.sparse_initializer:
        names = ", ".join(f"'{s.values.name}'" for s in graph.sparse_initializer)
        problems.append(
            f"{origin} has sparse weights ({names}), which cannot be imported; store them densely."
        )
    inputs, outputs = ([v.name for v in values] for values in (graph.input, graph.output))
    weights = [t.name for t in graph.initializer]
    defined = weights + [name for n in graph.node for name in n.output if name]
    own_inputs = set(inputs) - set(weights)  # old models list their weights among the inputs
    problems += [f"{origin} lists the input '{name}' twice." for name in _repeated(inputs)]
    problems += [f"{origin} lists the output '{name}' twice." for name in _repeated(outputs)]
    problems += [
        f"{origin} defines '{name}' twice; every value must have a name of its own."
        for name in _repeated([*sorted(own_inputs), *defined])
    ]
    if problems:
        raise ImportError_(problems)


def _repeated(names: Iterable[str]) -> list[str]:
    """The names that occur more than once, each once."""
    seen: set[str] = set()
    repeated: dict[str, None] = {}
    for name in names:
        if name in seen:
            repeated[name] = None
        seen.add(name)
    return list(repeated)


def _names(graph: Any) -> Iterator[Any]:
    """Every name in a graph and its branches; a damaged one comes as bytes."""
    yield graph.name
    for value in (*graph.input, *graph.output):
        yield value.name
        yield from (d.dim_param for d in value.type.tensor_type.shape.dim)
    for tensor in graph.initializer:
        yield tensor.name
        yield from (text for e in tensor.external_data for text in (e.key, e.value))
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            if attribute.HasField("g"):
                yield from _names(attribute.g)
