"""hbm: byte addresses in card memory for inputs, outputs, weights and what spills."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from spyrec.ir.core import Loc, Module, Value, uses
from spyrec.ir.errors import CapacityError

from .intervals import Span, place
from .manager import Target


@dataclass(frozen=True)
class HbmPlan:
    """Weights, inputs and outputs get addresses of their own; intermediate tensors share a pool by
    lifetime.

    Sets ``hbm`` = ((value name, address, bytes), ...) on the module. CapacityError when a tensor or
    the sum does not fit the card.
    """

    name: ClassVar[str] = "hbm"
    summary: ClassVar[str] = "places tensors in card memory"

    def run(self, module: Module, target: Target) -> Module:
        device = target.device
        readers = uses(module.body)
        outputs = set(module.body.results)
        end = len(module.body.ops)
        spans: list[Span] = []
        for v in module.body.args:
            spans.append(Span(v.name, size_bytes(v), 0, end))
        for i, op in enumerate(module.body.ops):
            for v in op.results:
                if v.type.space == "lx":
                    continue
                if op.name == "constant" or v in outputs:
                    spans.append(Span(v.name, size_bytes(v), 0, end))
                else:
                    at = [module.body.ops.index(u) for u, _ in readers.get(v, [])]
                    spans.append(Span(v.name, size_bytes(v), i, max(at, default=i)))
        card = gib(device.hbm.bytes)
        too_large = [
            f"hbm: {_described(module, s)}, the card has {card}; split the tensor in the model"
            for s in spans if s.size > device.hbm.bytes
        ]
        if too_large:
            raise CapacityError("\n".join(too_large))
        fixed = [s for s in spans if (s.first, s.last) == (0, end)]
        where, top = place_in_a_row(fixed)
        pool, top = place([s for s in spans if (s.first, s.last) != (0, end)], top)
        if top > device.hbm.bytes:
            largest = max(spans, key=lambda s: s.size)
            raise CapacityError(
                f"hbm: the program needs {gib(top)}, the card has {card}; its largest tensor "
                f"{_described(module, largest)}; make the batch smaller"
            )
        where |= pool
        table = tuple((s.name, where[s.name], s.size) for s in spans)
        return replace(module, attrs={**module.attrs, "hbm": table})


def size_bytes(v: object) -> int:
    """Bytes of a laid-out tensor in card memory."""
    layout = v.type.layout  # type: ignore[attr-defined]
    return int(layout.sticks) * 128


def _described(module: Module, span: Span) -> str:
    """``%y (3x4 dl16, from /MatMul) needs 1.0 GiB``"""
    where: dict[str, tuple[Value, Loc]] = {v.name: (v, Loc((v.name,))) for v in module.body.args}
    where |= {v.name: (v, op.loc) for op in module.body.ops for v in op.results}
    v, loc = where[span.name]
    shape = "x".join(map(str, v.type.static_shape)) or "scalar"
    return f"%{v.name} ({shape} {v.type.dtype}, from {loc}) needs {gib(span.size)}"


def gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 / 2 else f"{nbytes / 2**20:.2f} MiB"


def place_in_a_row(spans: list[Span]) -> tuple[dict[str, int], int]:
    out, at = {}, 0
    for s in spans:
        out[s.name] = at
        at += -(-s.size // 128) * 128
    return out, at
