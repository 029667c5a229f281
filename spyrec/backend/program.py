"""The whole object program: buffers with their bytes, kernels, launches in order."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from spyrec.ir.core import Module, Op, Value
from spyrec.ir.layout import Layout
from spyrec.passes.attrs import entries, whole_number
from spyrec.passes.homes import home, home_layout
from spyrec.passes.manager import Target
from spyrec.runtime import stored_bytes
from spyrec.sim.isa import Buffer, Launch, Program, Tensor

from .claims import tensor_of
from .holdings import holdings
from .kernels import Home, Surroundings
from .shared import Built, SharedKernels
from .state import with_state

Table = Mapping[str, tuple[int, int]]
"""Value name -> byte address in card memory, bytes."""

FORMATS = {"dl16": {"bool": "dl16"}, "ieee16": {"bool": "f16"}, "fp32": {"bool": "dl16"}}


def emit_program(
    module: Module, target: Target, *, built: dict[Hashable, Built] | None = None,
    weights: bool = True,
) -> Program:
    """Code for a module of the tile stage whose tensors all have addresses. ``built``: kernels of
    programs for the same target, to be used and added to. Without ``weights`` the constants are
    zeros, for runs that only ask for time."""
    formats = FORMATS[target.numerics]
    constants = {op.result: op for op in module.body.ops if op.name == "constant"}
    outputs = set(module.body.results)
    scalars = {
        v: float(np.asarray(op.attrs["value"]).reshape(-1)[0])
        for v, op in constants.items()
        if v.type.size == 1
    }
    around = Surroundings(target.device, formats, _homes(module), scalars, frozenset(constants))
    shared = SharedKernels(around, built)
    launches: list[Launch] = []
    buffer_of = _buffer_names(module)
    used: set[Value] = set()
    tensors: dict[Value, int] = {}
    waiting: list[Op] = []
    for op in module.body.ops:
        if op.name == "relayout":
            waiting.append(op)
        elif op.name == "kernel":
            made = shared.add(op, waiting)
            waiting = []
            used.update(made.params)
            after = (len(launches) - 1,) if launches else ()
            args = tuple((buffer_of[v], 0) for v in made.params)
            notes = () if shared.kernels[made.index].notes == made.notes else made.notes
            for v in made.claimed:
                tensors.setdefault(v, len(tensors))
            claimed = tuple(tensors[v] for v in made.claimed)
            launches.append(
                Launch(made.index, args, after, bool(op.attrs["early"]), notes, claimed)
            )
    placed: Any = module.attrs["hbm"]
    table: Table = {name: (address, size) for name, address, size in placed}
    hosts = dict(module.attrs.get("host_types", ()))  # type: ignore[arg-type]
    buffers = [_port(v, v.name, "input", table, hosts, formats) for v in module.body.args]
    for v, op in constants.items():
        if v in used and v not in outputs:
            address, size = table[v.name]
            data = _packed(v, op, formats) if weights else bytes(size)
            dtype = formats.get(v.type.dtype.name, v.type.dtype.name)
            buffers.append(Buffer(v.name, "const", size, address, data, {"dtype": dtype}))
    for op in module.body.ops:
        for v in op.results:
            if v in used and v not in constants and v not in outputs:
                address, size = table[v.name]
                buffers.append(Buffer(v.name, "temp", size, address))
    for name, v in zip(module.output_names, module.body.results, strict=True):
        buffers.append(_port(v, name, "output", table, hosts, formats, label=buffer_of[v]))
    kept: Any = module.attrs.get("state", ())
    buffers = [*with_state(buffers, kept)]
    meta = {"model": module.name, "numerics": target.numerics}
    return Program(
        tuple(shared.kernels), tuple(buffers), tuple(launches), target.device.text, meta,
        tensors=tuple(map(_tensor, tensors)), holdings=holdings(module, around.homes, tensors),
    )


def _tensor(v: Value) -> Tensor:
    assert v.type.layout is not None
    return tensor_of(v.name, v.type.layout)


def _buffer_names(module: Module) -> dict[Value, str]:
    """Buffers are named as their values."""
    names: dict[Value, str] = {v: v.name for v in module.body.args}
    for op in module.body.ops:
        for v in op.results:
            names[v] = v.name
    return names


def _homes(module: Module) -> dict[Value, Home]:
    where: dict[Value, int] = {}
    out: dict[Value, Home] = {}
    for op in module.body.ops:
        if op.name == "relayout":
            where[op.result] = whole_number(op, "lx")
        elif op.name == "kernel":
            table = {name: address for name, address, _ in entries(op, "lx")}
            for r in op.results:
                if r.name in table:
                    where[r] = table[r.name]
        for i, v in enumerate(op.results):
            boxes, layout = home(op, i), home_layout(op, i)
            if boxes is not None and layout is not None:
                out[v] = where[v], boxes, layout
    return out


def _port(
    v: Value, name: str, kind: str, table: Table, hosts: Mapping[str, str],
    formats: Mapping[str, str], label: str | None = None,
) -> Buffer:
    address, size = table[v.name]
    kept = v.type.dtype.name
    meta = {
        "name": name,
        "dtype": str(hosts.get(name, kept)),
        "shape": "x".join(map(str, v.type.static_shape)),
        "device_dtype": formats.get(kept, kept),
        "layout": str(v.type.layout),
    }
    return Buffer(label or v.name, kind, size, address, None, meta)


def _packed(v: Value, op: Op, formats: Mapping[str, str]) -> bytes:
    """A constant in the layout its readers want. Padding is zero."""
    layout = v.type.layout
    assert isinstance(layout, Layout)
    array = np.ascontiguousarray(np.asarray(op.attrs["value"]))
    numbers = array.astype(np.float32) if array.dtype == np.bool_ else array
    return stored_bytes(numbers, layout, formats.get(v.type.dtype.name, v.type.dtype.name))
