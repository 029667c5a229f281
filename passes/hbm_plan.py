"""hbm: byte addresses in card memory for inputs, outputs, weights and what spills."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from spyrec.ir.core import Loc, Module, Value, uses
from spyrec.ir.errors import CapacityError

from .intervals import Span
from .manager import Target
from .packing import place


@dataclass(frozen=True)
class HbmPlan:
    """Weights, inputs and outputs get addresses of their own; intermediate tensors share a pool by
    lifetime.

    Sets ``hbm`` = ((value name, address, bytes), ...) on the module. CapacityError when a tensor or
    the sum does not fit the card.

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> before = parse_module('''module "m" {
    ...   input %x: tensor<1x64xdl16,
    ...     [shape 1x64 bits 16 | 1:1*64 mem, 0:1*1 mem, 1:64*1 lane | pad undefined], hbm>
    ...   %a = exp(%x) : tensor<1x64xdl16,
    ...     [shape 1x64 bits 16 | 1:1*64 mem, 0:1*1 mem, 1:64*1 lane | pad undefined], hbm>
    ...   %b = neg(%a) : tensor<1x64xdl16,
    ...     [shape 1x64 bits 16 | 1:1*64 mem, 0:1*1 mem, 1:64*1 lane | pad undefined], hbm>
    ...   output "y" = %b
    ... }''')
    >>> after = place_tensors(before, 2**20)
    >>> print(print_module(after))  # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
    module "m" {hbm = (("x", 0, 128), ("a", 256, 128), ("b", 128, 128))} {
    ...
    """

    name: ClassVar[str] = "hbm"
    summary: ClassVar[str] = "Places tensors in card memory."

    def run(self, module: Module, target: Target) -> Module:
        return place_tensors(module, target.device.hbm.bytes)


def place_tensors(module: Module, room: int) -> Module:
    """The module with card addresses below ``room`` bytes. CapacityError, naming every tensor that
    alone is too large, or the largest when all together are."""
    end = len(module.body.ops)
    spans = list(lifetimes(module))
    card = gib(room)
    too_large = [
        f"hbm: {_described(module, s)}, the card has {card}; split the tensor in the model"
        for s in spans
        if s.size > room
    ]
    if too_large:
        raise CapacityError("\n".join(too_large))
    fixed = [s for s in spans if (s.first, s.last) == (0, end)]
    where, top = place_in_a_row(fixed)
    pool, top = place([s for s in spans if (s.first, s.last) != (0, end)], top, room=room)
    if top > room:
        largest = max(spans, key=lambda s: s.size)
        raise CapacityError(
            f"hbm: the program needs {gib(top)}, the card has {card}; its largest tensor "
            f"{_described(module, largest)}; make the batch smaller"
        )
    where |= pool
    return module.with_attrs(hbm=tuple((s.name, where[s.name], s.size) for s in spans))


def lifetimes(module: Module) -> Iterator[Span]:
    """Of every tensor in card memory, in ops: inputs, outputs and constants stay for all of the
    run."""
    body = module.body
    position = {op: i for i, op in enumerate(body.ops)}
    readers, outputs, end = uses(body), set(body.results), len(body.ops)
    for v in body.args:
        yield Span(v.name, size_bytes(v), 0, end)
    for i, op in enumerate(body.ops):
        for v in op.results:
            if v.type.space == "lx":
                continue
            if op.name == "constant" or v in outputs:
                yield Span(v.name, size_bytes(v), 0, end)
            else:
                last = max([position[u] for u, _ in readers.get(v, [])], default=i)
                yield Span(v.name, size_bytes(v), i, last)


def size_bytes(v: Value) -> int:
    """Bytes of a laid-out tensor in card memory."""
    assert v.type.layout is not None
    return v.type.layout.sticks * 128


def _described(module: Module, span: Span) -> str:
    """``%y (3x4 dl16, from /MatMul) needs 1.0 GiB``"""
    where: dict[str, tuple[Value, Loc]] = {v.name: (v, Loc((v.name,))) for v in module.body.args}
    where |= {v.name: (v, op.loc) for op in module.body.ops for v in op.results}
    v, loc = where[span.name]
    shape = "x".join(map(str, v.type.static_shape)) or "scalar"
    return f"%{v.name} ({shape} {v.type.dtype}, from {loc}) needs {gib(span.size)}"


def gib(nbytes: int) -> str:
    """The size as text: in GiB from half of one on, in MiB, or in bytes when it is small."""
    if nbytes < 2**20 // 100:
        return f"{nbytes} bytes"
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 / 2 else f"{nbytes / 2**20:.2f} MiB"


def place_in_a_row(spans: list[Span]) -> tuple[dict[str, int], int]:
    """Addresses one after the other in whole sticks, and the first that is left."""
    out, at = {}, 0
    for s in spans:
        out[s.name] = at
        at += -(-s.size // 128) * 128
    return out, at
