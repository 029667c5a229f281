"""One kernel op, with the exchanges that feed it, becomes one kernel of the object program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from spyrec.ir.core import Op, Value
from spyrec.ir.errors import CapacityError
from spyrec.ir.layout import Layout
from spyrec.passes.attrs import entries, whole_number
from spyrec.passes.kernel import GROUP, Box, Nest
from spyrec.passes.scratchpad import kernel_buffers
from spyrec.passes.span import reaches
from spyrec.sim.device import DeviceSpec
from spyrec.sim.isa import STICK, Kernel, Stream, instructions

from .claims import Ledger
from .context import KernelContext, Notes
from .emit_gather import GatherEmitter
from .emit_move import MoveEmitter
from .emit_nest import NestEmitter
from .emit_relayout import RelayoutEmitter
from .places import Places
from .regions import home_region
from .streams import Streams
from .tree import Body, Buffer, statements

Home = tuple[int, tuple[Box, ...], Layout]
"""Byte address, what each core holds, layout of the buffer."""


@dataclass(frozen=True)
class Surroundings:
    """What all kernels of a program share."""

    device: DeviceSpec
    formats: Mapping[str, str]
    homes: Mapping[Value, Home]
    scalars: Mapping[Value, float]
    constants: frozenset[Value]


def build_kernel(
    op: Op, exchanges: Sequence[Op], around: Surroundings
) -> tuple[Kernel, tuple[Value, ...], tuple[Value, ...]]:
    """The kernel, for each of its formal parameters the tensor in card memory it stands for, and
    the tensors that its claims number.

    CapacityError when a core would reach over more of a tensor than the device's span, or a loop
    has more trips than the device counts.
    """
    nest = Nest(op)
    span = _checked_span(op, around.device)
    cores = around.device.cores.count if exchanges else nest.cores
    notes = Notes()
    notes.add(nest.name, op.loc.nodes)
    arrivals: dict[Value, Buffer] = {}
    ctx = KernelContext(
        op, around.device, around.formats, {n: (a, slots) for n, a, slots in entries(op, "lx")},
        around.homes, around.scalars, around.constants, frozenset(entries(op, "early")), cores, [],
        arrivals, notes, Ledger(),
    )  # fmt: skip
    root = Body()
    for exchange in exchanges:
        arrivals[exchange.result] = _exchange(exchange, root, ctx)
    body = _emit(nest, ctx)
    _await(body, arrivals, ctx)
    root.items += body.items
    root.scoped += body.scoped
    streams = Streams(root, cores, used=ctx.tokens).build()
    _check_trips(op, streams, around.device.launch.loop_max)
    params = _params(op, streams)
    kernel = Kernel(
        nest.name, streams, tuple(n for n, _ in params), tuple(ctx.programs), tuple(notes.list),
        cores, whole_number(op, "lx_bytes"), _info(nest, span, around.constants),
        tuple(ctx.ledger.tiles),
    )  # fmt: skip
    return kernel, tuple(v for _, v in params), tuple(ctx.ledger.bound)


def _exchange(exchange: Op, root: Body, ctx: KernelContext) -> Buffer:
    """Add a relayout to the kernel; the buffer that its readers wait for."""
    source = home_region(ctx, exchange.operands[0])
    target = home_region(ctx, exchange.result)
    assert source is not None and target is not None
    beside = whole_number(exchange, "beside") // STICK if "beside" in exchange.attrs else None
    emitter = RelayoutEmitter(exchange, source, target, ctx.device, ctx.cores, beside)
    body = Body()
    emitter.emit(body, ctx.token)
    note = ctx.notes.add(f"relayout %{exchange.operands[0].name}", exchange.loc.nodes)
    for stmt in statements(body):
        stmt.instr = replace(stmt.instr, note=note)
    root.items += body.items
    root.scoped += body.scoped
    return emitter.arrived


def _emit(nest: Nest, ctx: KernelContext) -> Body:
    match nest.kind:
        case "move":
            return MoveEmitter(ctx).run()
        case "gather":
            return GatherEmitter(ctx).run()
    return NestEmitter(Places(ctx)).run()


def _await(body: Body, arrivals: Mapping[Value, Buffer], ctx: KernelContext) -> None:
    """Moves read tensors in place without naming a buffer; let them wait for what arrives in this
    launch."""
    if Nest(ctx.op).kind != "move":
        return
    here = tuple(b for v, b in arrivals.items() if v in ctx.op.operands)
    for stmt in statements(body):
        if stmt.unit in ("sfp", "ms"):
            stmt.reads = (*stmt.reads, *here)


def _params(op: Op, streams: Mapping[str, Stream]) -> list[tuple[str, Value]]:
    """The op's tensors in card memory that some instruction addresses."""
    used = {
        operand.symbol
        for stream in streams.values()
        for instr, _ in instructions(stream)
        for operand in instr.operands
    }
    named = [(f"p{i}", v) for i, v in enumerate(op.operands)]
    named += [(f"r{i}", v) for i, v in enumerate(op.results)]
    return [(n, v) for n, v in named if n in used]


def _checked_span(op: Op, device: DeviceSpec) -> int:
    """Largest span in bytes, over the tensors in card memory, that one core reaches over."""
    widest = 0
    for reach in reaches(op):
        if reach.nbytes > device.hbm.span_bytes:
            raise CapacityError(
                f"codegen: core {reach.core} of {op.attrs['name']} reaches over "
                f"{reach.nbytes / 2**20:.2f} MiB of %{reach.tensor.name}, a core reaches over "
                f"{device.hbm.span_bytes / 2**20:.2f} MiB of one tensor at most (from {op.loc}); "
                "no cut among the cores keeps within that, so split the tensor in the model"
            )
        widest = max(widest, reach.nbytes)
    return widest


def _check_trips(op: Op, streams: Mapping[str, Stream], most: int) -> None:
    loops = (trips for s in streams.values() for _, around in instructions(s) for trips in around)
    if (longest := max(loops, default=0)) > most:
        raise CapacityError(
            f"codegen: a loop of {op.attrs['name']} has {longest} trips, the device counts {most} "
            f"at most (from {op.loc}); pin larger tiles or split the tensor in the model"
        )


def _info(nest: Nest, span: int, constants: Collection[Value]) -> dict[str, int | str]:
    """Facts for the report. ``cores``: how many have a part of the work; those that only help to
    exchange tensors do not count. ``tile_bytes``: what its tiles take of a core's scratchpad."""
    dims = zip(nest.dim_names, nest.extents, strict=True)
    info: dict[str, int | str] = {
        "ops": str(nest.op.attrs["ops"]),
        "kind": nest.kind,
        "parts": "x".join(map(str, nest.parts)),
        "tile": "x".join(map(str, nest.tile)),
        "dims": ",".join(f"{n}={e}" for n, e in dims),
        "cores": sum(all(size for _, size in ranges) for ranges in nest.core_ranges),
        "span_bytes": span,
        "tile_bytes": sum(b.size * b.slots for b in kernel_buffers(nest.op, set(constants))),
    }
    if nest.kind == "contract":
        kept = [e for d, e in enumerate(nest.extents) if d in nest.parallel and d != nest.stick]
        info["macs"] = prod(nest.extents)
        info["tiles"] = -(-prod(kept) // 8) * -(-nest.extents[nest.stick] // GROUP)
    return info
