"""One kernel op, with the exchanges that feed it, becomes one kernel of the object program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from spyrec.ir.core import Op, Value
from spyrec.ir.errors import CapacityError
from spyrec.passes.kernel import GROUP, Box, Nest
from spyrec.passes.span import reaches
from spyrec.sim.device import DeviceSpec
from spyrec.sim.isa import Instr, Kernel, Loop

from .emit_gather import GatherEmitter
from .emit_move import MoveEmitter
from .emit_nest import KernelContext, NestEmitter, Notes
from .emit_relayout import RelayoutEmitter
from .streams import Body, Buffer, Streams, statements

Home = tuple[int, tuple[Box, ...]]


@dataclass(frozen=True)
class Surroundings:
    """What all kernels of a program share."""

    device: DeviceSpec
    formats: Mapping[str, str]
    homes: Mapping[Value, Home]
    scalars: Mapping[Value, float]
    constants: frozenset[Value]


def build_kernel(op: Op, exchanges: Sequence[Op], around: Surroundings) -> tuple[Kernel, tuple[Value, ...]]:
    """The kernel and, for each of its formal parameters, the tensor in card memory it stands for.

    CapacityError when a core would reach over more of a tensor than the device's span.
    """
    nest = Nest(op)
    span = _checked_span(op, around.device)
    cores = around.device.cores.count if exchanges else nest.cores
    notes = Notes()
    notes.add(nest.name, op.loc.nodes)
    root, arrivals = Body(), {}
    for token, exchange in enumerate(exchanges, start=1):
        emitter = RelayoutEmitter(
            exchange, around.homes[exchange.operands[0]], around.homes[exchange.result], around.device, cores,
            around.formats.get(exchange.result.type.dtype.name, exchange.result.type.dtype.name),
        )
        emitter.emit(root, token)
        note = notes.add(f"relayout %{exchange.operands[0].name}", exchange.loc.nodes)
        for stmt in root.items:
            if stmt.instr.note == 0:  # type: ignore[union-attr]
                stmt.instr = replace(stmt.instr, note=note)  # type: ignore[union-attr]
        arrivals[exchange.result] = emitter.arrived
        root.scoped.append(emitter.arrived)
    ctx = KernelContext(
        op, around.device, around.formats,
        {str(n): (int(a), int(s)) for n, a, s in op.attrs["lx"]},  # type: ignore[union-attr]
        around.homes, around.scalars, around.constants, frozenset(op.attrs["early"]), cores, [], arrivals, notes,  # type: ignore[arg-type]
    )
    body = _emit(nest, ctx)
    _await(body, arrivals, ctx)
    root.items += body.items
    root.scoped += [b for b in body.scoped if b not in root.scoped]
    streams = Streams(root, cores, used=len(exchanges)).build()
    params = _params(op, streams)
    kernel = Kernel(
        nest.name, streams, tuple(n for n, _ in params), tuple(ctx.programs), tuple(notes.list), cores,
        int(op.attrs["lx_bytes"]), _info(nest, span),  # type: ignore[arg-type]
    )
    return kernel, tuple(v for _, v in params)


def _emit(nest: Nest, ctx: KernelContext) -> Body:
    if nest.kind == "move":
        return MoveEmitter(ctx).run()
    if nest.kind == "gather":
        return GatherEmitter(ctx).run()
    return NestEmitter(ctx).run()


def _await(body: Body, arrivals: Mapping[Value, Buffer], ctx: KernelContext) -> None:
    """Moves read tensors in place without naming a buffer; let them wait for what arrives in this launch."""
    if Nest(ctx.op).kind != "move":
        return
    here = tuple(b for v, b in arrivals.items() if v in ctx.op.operands)
    for stmt in statements(body):
        if stmt.unit in ("sfp", "ms"):
            stmt.reads = (*stmt.reads, *here)


def _params(op: Op, streams: Mapping[str, Sequence[Instr | Loop]]) -> list[tuple[str, Value]]:
    used: set[str] = set()

    def visit(items: Sequence[Instr | Loop]) -> None:
        for item in items:
            if isinstance(item, Loop):
                visit(item.body)
            else:
                used.update(o.symbol for o in item.operands if o.symbol)

    for stream in streams.values():
        visit(stream)
    named = [(f"p{i}", v) for i, v in enumerate(op.operands)] + [(f"r{i}", v) for i, v in enumerate(op.results)]
    return [(n, v) for n, v in named if n in used]


def _checked_span(op: Op, device: DeviceSpec) -> int:
    """Largest span in bytes, over the tensors in card memory, that one core reaches over."""
    widest = 0
    for reach in reaches(op):
        if reach.nbytes > device.hbm.span_bytes:
            raise CapacityError(
                f"codegen: core {reach.core} of {op.attrs['name']} reaches over {reach.nbytes / 2**20:.2f} MiB of "
                f"%{reach.tensor.name}, a core reaches over {device.hbm.span_bytes / 2**20:.2f} MiB of one tensor at most "
                f"(from {op.loc}); no cut among the cores keeps within that, so split the tensor in the model"
            )
        widest = max(widest, reach.nbytes)
    return widest


def _info(nest: Nest, span: int) -> dict[str, int | str]:
    """Facts for the report. ``cores``: how many have a part of the work; those that only help to exchange tensors
    do not count."""
    busy = sum(all(size for _, size in ranges) for ranges in nest.core_ranges)
    info: dict[str, int | str] = {"ops": str(nest.op.attrs["ops"]), "kind": nest.kind, "parts": "x".join(map(str, nest.parts)),
                                  "tile": "x".join(map(str, nest.tile)), "dims": ",".join(
                                      f"{n}={e}" for n, e in zip(nest.dim_names, nest.extents, strict=True)),
                                  "cores": busy, "span_bytes": span}
    if nest.kind == "contract":
        rows = prod(e for d, e in enumerate(nest.extents) if d in nest.parallel and d != nest.stick)
        info["macs"] = prod(nest.extents)
        info["tiles"] = -(-rows // 8) * -(-nest.extents[nest.stick] // GROUP)
    return info

