"""Which tensors of a graph are written in place, found before anything is converted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .torch_graph import Call, Nested, Ref, TensorMeta
from .torch_state import RESHAPES, base_target, is_view


def packet_of(target: str) -> str:
    """"aten.add.Tensor" -> "aten.add": the operator without its overload."""
    parts = target.split(".")
    packet = ".".join(parts[:2]) if parts[0] not in ("torch", "math", "_operator") else target
    return RESHAPES.get(packet, packet)


def written_tensors(
    calls: Sequence[Call], tensors: Mapping[str, TensorMeta],
    outside: Mapping[str, str] = MappingProxyType({}),
) -> set[str]:  # fmt: skip
    """The names of the tensors that some call writes in place, by what they were first called:
    views lead back to what they are views of, and so do the inputs of a nested graph."""
    roots = dict(outside)
    found = set()
    for call in calls:
        packet = packet_of(call.target)
        for body in (a for a in call.args.values() if isinstance(a, Nested)):
            given = [a for a in flat(call.args.values()) if isinstance(a, Ref)]
            pairs = [(i.name, g.name) for i, g in zip(body.inputs, given, strict=False)
                     if isinstance(i, Ref)]  # fmt: skip
            inside = {i: roots.get(g, g) for i, g in pairs}
            found |= written_tensors(body.calls, body.tensors, inside)
        source = next(iter(call.args.values()), None)
        if not isinstance(source, Ref):
            continue
        if base_target(packet) is not None:
            found.add(roots.get(source.name, source.name))
        elif not gives_view(tensors, call, packet):
            continue
        for name in call.outputs:
            if name:
                roots[name] = roots.get(source.name, source.name)
    return found


def gives_view(tensors: Mapping[str, TensorMeta], call: Call, packet: str) -> bool:
    source, made = next(iter(call.args.values()), None), next(iter(call.outputs), None)
    given = tensors.get(source.name) if isinstance(source, Ref) else None
    return is_view(packet, given, tensors.get(made or ""))


def flat(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        if isinstance(item, tuple):
            yield from flat(item)
        else:
            yield item
