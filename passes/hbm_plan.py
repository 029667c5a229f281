"""hbm: byte addresses in card memory for inputs, outputs, weights and what spills."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from spyrec.ir.core import Module, uses
from spyrec.ir.errors import CapacityError

from .intervals import Span, place
from .manager import Target


@dataclass(frozen=True)
class HbmPlan:
    """Weights, inputs and outputs get addresses of their own; intermediate tensors share a pool by lifetime.

    Sets ``hbm`` = ((value name, address, bytes), ...) on the module. CapacityError when a tensor or the sum
    does not fit the card.
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
        for s in spans:
            if s.size > device.hbm.bytes:
                raise CapacityError(
                    f"hbm: %{s.name} needs {s.size / 2**30:.1f} GiB, the card has {device.hbm.bytes / 2**30:.1f} GiB"
                )
        fixed = [s for s in spans if (s.first, s.last) == (0, end)]
        where, top = place_in_a_row(fixed)
        pool, top = place([s for s in spans if (s.first, s.last) != (0, end)], top)
        if top > device.hbm.bytes:
            raise CapacityError(
                f"hbm: the program needs {top / 2**30:.1f} GiB, the card has {device.hbm.bytes / 2**30:.1f} GiB"
            )
        where |= pool
        table = tuple((s.name, where[s.name], s.size) for s in spans)
        return replace(module, attrs={**module.attrs, "hbm": table})


def size_bytes(v: object) -> int:
    """Bytes of a laid-out tensor in card memory."""
    layout = v.type.layout  # type: ignore[attr-defined]
    return int(layout.sticks) * 128


def place_in_a_row(spans: list[Span]) -> tuple[dict[str, int], int]:
    out, at = {}, 0
    for s in spans:
        out[s.name] = at
        at += -(-s.size // 128) * 128
    return out, at
