"""scratchpad: addresses of everything that lives in a core's scratchpad, from lifetimes in launch order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from spyrec.ir.core import Block, Module, Op, Value, uses
from spyrec.ir.errors import CapacityError

from .intervals import Span, peak, place
from .kernel import Nest
from .manager import Target
from .residency import buffer_bytes, home
from .tiling import buffer_sticks, move_buffers


@dataclass(frozen=True)
class Scratchpad:
    """Give every resident tensor and tile buffer an address, the same on all cores.

    A tensor lives from its producer to its last reader, a tile buffer during its kernel; weight buffers
    that can be filled while the kernel before still runs (``prefetch``) live one launch longer. Sets
    ``lx`` = ((name, address, slots), ...), ``early`` = names of the prefetched buffers and ``lx_bytes`` on
    each kernel, ``lx`` = address on each relayout.
    """

    name: ClassVar[str] = "scratchpad"
    summary: ClassVar[str] = "places tensors and tile buffers in the scratchpad by lifetime"
    prefetch: bool = True

    def run(self, module: Module, target: Target) -> Module:
        lx = target.device.lx
        plan = _Plan(module)
        wanted = plan.prefetchable if self.prefetch else frozenset()
        # each kernel whose buffers do not fit beside its neighbours' gives up its prefetch first
        while True:
            spans = plan.spans(wanted)
            where, top = place(spans, 0)
            if top <= lx.usable_bytes:
                return plan.apply(where, wanted)
            over = [s for s in spans if where[s.name] + s.size > lx.usable_bytes]
            blamed = {
                plan.kernel_of.get(s.name)
                for s in spans
                if any(s.first <= o.last and o.first <= s.last for o in over)
            } - {None}
            dropped = frozenset(n for n in wanted if plan.kernel_of[n] in blamed)
            if not dropped:
                worst = over[0]
                raise CapacityError(
                    f"scratchpad: {worst.name} needs {worst.size / 2**20:.2f} MiB beside what else is alive, the peak is "
                    f"{peak(spans) / 2**20:.2f} MiB, the device has {lx.usable_bytes / 2**20:.2f} MiB a core"
                )
            wanted -= dropped


class _Plan:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.fixed: list[Span] = []
        self.tiles: list[tuple[str, int, int]] = []  # name, bytes, launch
        self.slots: dict[str, int] = {}
        self.kernel_of: dict[str, int] = {}
        self.constants = {op.result for op in module.body.ops if op.name == "constant"}
        early: set[str] = set()
        launch = self._launches()
        readers = uses(module.body)
        for op in module.body.ops:
            for i, v in enumerate(op.results):
                boxes = home(op, i)
                if boxes is not None:
                    last = max([launch[u] for u, _ in readers.get(v, [])], default=launch[op])
                    self.fixed.append(Span(v.name, buffer_bytes(v.type, boxes), launch[op], last))
            if op.name == "kernel":
                for name, size, slots, weight in kernel_buffers(op, self.constants):
                    self.tiles.append((name, size * slots, launch[op]))
                    self.slots[name] = slots
                    self.kernel_of[name] = launch[op]
                    if weight and launch[op] > 0:
                        early.add(name)
        self.prefetchable = frozenset(early)

    def _launches(self) -> dict[Op, int]:
        """Launch number of each op: an exchange runs in the launch of the kernel after it."""
        out, n = {}, 0
        for op in self.module.body.ops:
            out[op] = n
            n += op.name == "kernel"
        return out

    def spans(self, early: frozenset[str]) -> list[Span]:
        return self.fixed + [Span(n, size, at - (n in early), at) for n, size, at in self.tiles]

    def apply(self, where: dict[str, int], early: frozenset[str]) -> Module:
        ops = []
        live = self.spans(early)
        launch = self._launches()
        for op in self.module.body.ops:
            if op.name == "relayout":
                op = op.with_attrs(lx=where[op.result.name])
            elif op.name == "kernel":
                at = launch[op]
                mine = [n for n, _, k in self.tiles if k == at]
                top = max(
                    (where[s.name] + s.size for s in live if s.first <= at <= s.last), default=0
                )
                homes = tuple((r.name, where[r.name]) for r in op.results if r.name in where)
                op = op.with_attrs(
                    lx=tuple((n, where[n], self.slots[n]) for n in mine)
                    + tuple((n, a, 1) for n, a in homes),
                    early=tuple(n for n in mine if n in early),
                    lx_bytes=top,
                )
            ops.append(op)
        return replace(self.module, body=replace(self.module.body, ops=tuple(ops)))


def kernel_buffers(op: Op, constants: set[Value]) -> list[tuple[str, int, int, bool]]:
    """(name, bytes of a slot, slots, is a weight) of each tile buffer of a kernel."""
    nest = Nest(op)
    if nest.kind == "move":
        return _move_buffers(op, nest)
    if nest.kind == "gather":
        return _gather_buffers(op, nest)
    out: list[tuple[str, int, int, bool]] = []

    def size(v: Value) -> int:
        assert v.type.layout is not None
        return v.type.layout.sticks * 128

    def slots(path: tuple[int, ...]) -> int:
        return 2 if prod(nest.trips(d) for d in path) > 1 else 1

    def visit(block: Block, path: tuple[int, ...], carried: bool) -> None:
        stored = {o.operands[0]: int(o.attrs["result"]) for o in block.ops if o.name == "store"}  # type: ignore[arg-type]
        for o in block.ops:
            match o.name:
                case "load":
                    index = int(o.attrs["operand"])  # type: ignore[arg-type]
                    source = op.operands[index]
                    factor = (
                        nest.kind == "contract" and index < 2
                    )  # all else takes a constant of one element as a number
                    if source.type.space != "lx" and (
                        factor or source not in constants or source.type.size > 1
                    ):
                        out.append(
                            (o.result.name, size(o.result), slots(path), source in constants)
                        )
                case "for":
                    if o.results and not carried and not uses_matrix(o.regions[0]):
                        out.append((o.result.name, size(o.result), slots(path), False))
                    visit(o.regions[0], (*path, int(o.attrs["dim"])), carried or bool(o.results))  # type: ignore[arg-type]
                case "compute" if o.attrs["unit"] == "sfp" and not (
                    carried and o.result in block.results
                ):
                    kept = stored.get(o.result)
                    if kept is None or op.results[kept].type.space != "lx":
                        out.append(
                            (
                                o.result.name,
                                size(o.result),
                                slots(path) if kept is not None else 1,
                                False,
                            )
                        )

    visit(op.regions[0], (), False)
    return out


def uses_matrix(block: Block) -> bool:
    """Is the accumulator of these loops the matrix unit's?"""
    return any(
        o.attrs.get("unit") == "pt" or any(uses_matrix(r) for r in o.regions if o.name == "for")
        for o in block.ops
    )


def _move_buffers(op: Op, nest: Nest) -> list[tuple[str, int, int, bool]]:
    return [
        (f"{op.results[0].name}_{role}", size, 2, False)
        for role, size in move_buffers(op, nest.tile)
    ]


def _gather_buffers(op: Op, nest: Nest) -> list[tuple[str, int, int, bool]]:
    r = op.results[0]
    assert r.type.layout is not None
    tile = buffer_sticks(nest.tile, r.type.dtype.bits, r.type.layout.stick_dim) * 128
    rows = -(-nest.local[-2] // 32) if len(nest.extents) > 1 else 1
    out = [(f"{r.name}_idx", max(1, rows) * 128 + 256, 2, False)]
    return out if r.type.space == "lx" else [*out, (f"{r.name}_dst", tile, 2, False)]
