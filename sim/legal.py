"""Rules of the machine that a well-formed kernel can still break on a given device: asked once
before a run, so that engine and numerics need not ask again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .arrange import row_block
from .describe import place
from .device import DeviceSpec
from .errors import SimulationError
from .formats import format_of
from .isa import GO, Instr, Kernel, Num, instructions

_UNIFORM = (
    "program", "reduce", "axes", "lanes", "lane_dim", "acc_levels", "init", "partial", "bits",
    "stride",
)
ACC_FORMATS = ("f32", "i32")


def check_kernel(kernel: Kernel, device: DeviceSpec) -> None:
    """SimulationError on the first rule the kernel breaks, naming instruction and origin."""
    for unit, stream in kernel.streams.items():
        for instr, _ in instructions(stream):
            for problem in _problems(instr, device):
                raise SimulationError(f"{place(kernel, unit, instr)}: {problem}")


def _problems(instr: Instr, device: DeviceSpec) -> Iterator[str]:
    for operand in instr.operands:
        if (operand.space == "hbm") != bool(operand.symbol):
            yield f"an {operand.space} operand has symbol {operand.symbol!r}; hbm needs one"
        if operand.space == "acc" and operand.dtype not in ACC_FORMATS:
            held = " or ".join(ACC_FORMATS)
            yield f"an acc operand is of format {operand.dtype}; the accumulator holds {held}"
    for signal in instr.signals:
        if GO in _each(signal.token):
            yield "it signals token 0, which only the launch itself raises; use another token"
    varying = [k for k in _UNIFORM if isinstance(instr.imm.get(k, 0), tuple)]
    if varying:
        yield f"{', '.join(varying)} differs from core to core; it must be the same on all"
        return
    match instr.op:
        case "load":
            yield from _multicast(instr, device)
        case "recv":
            yield from _fragments(instr, device)
        case "mm":
            yield from _factors(instr, device)
        case "vec":
            yield from _reduction(instr)
        case "prog" if max(_each(instr.imm.get("reduce", 0))) not in range(5):
            yield f"reduce is {instr.imm['reduce']}; 0 to 4 exist"
        case "psum" if any(operand.guards for operand in instr.operands):
            yield "its operands have guards; partial sums have no border"
        case "psum" if any(operand.dtype != "f32" for operand in instr.operands):
            yield "it adds i32; the partial-sum ring adds f32"
        case "shuf" | "fill" if instr.imm.get("bits", 16) not in (8, 16, 32):
            yield f"its elements have {instr.imm['bits']} bits; 8, 16 and 32 exist"


def _reduction(instr: Instr) -> Iterator[str]:
    dims = len(instr.counts)
    kind, axes, lane_dim = (
        max(_each(instr.imm.get(key, default)))
        for key, default in (("reduce", 0), ("axes", 0), ("lane_dim", -1))
    )
    if kind not in range(5):
        yield f"reduce is {kind}; 0 to 4 exist"
    if not 0 <= axes < 1 << dims:
        yield f"axes is {axes}, a bit set of the dimensions to fold; it has {dims}"
    target = instr.operands[0]
    if any(_each(instr.imm.get("lanes", 0))) and format_of(target.dtype).bits == 8:
        yield f"it folds lanes into {target.dtype}, which has no stick of its own for a group"
    if not -1 <= lane_dim < dims:
        yield f"lane_dim is {lane_dim}; -1 for none or one of its {dims} dimensions is expected"


def _multicast(instr: Instr, device: DeviceSpec) -> Iterator[str]:
    most = max(mask.bit_count() for mask in _each(instr.imm.get("cores", 0)))
    if most > device.hbm.multicast_max:
        yield f"it delivers to {most} cores; one load reaches at most {device.hbm.multicast_max}"


def _fragments(instr: Instr, device: DeviceSpec) -> Iterator[str]:
    most = max(_each(instr.imm.get("fragments", 1)))
    if most > device.ring.fragments_max:
        yield (
            f"it takes {most} fragments; a core takes at most {device.ring.fragments_max} in one "
            "exchange, so split it"
        )


def _factors(instr: Instr, device: DeviceSpec) -> Iterator[str]:
    for name, operand, absent in (("a", instr.operands[1], (5,)), ("b", instr.operands[2], (0, 1))):
        for strides in (operand.strides, *(guard.strides for guard in operand.guards)):
            moving = [d for d in absent if d < len(strides) and strides[d]]
            if any(max(_each(instr.counts[d])) > 1 for d in moving):
                yield f"operand {name} has a stride along dimension {moving[0]}, which it lacks"
        if operand.dtype not in device.pt.mac_eighths:
            known = ", ".join(device.pt.mac_eighths)
            yield f"operand {name} is {operand.dtype}; the matrix unit multiplies {known}"
    acc, a, b = instr.operands
    if b.guards:
        yield "operand b has guards; only a may reach over a border"
    if acc.dtype == "i32" and any(format_of(f.dtype).value is not np.int32 for f in (a, b)):
        yield f"acc is i32 but the factors are {a.dtype} and {b.dtype}; give it whole numbers"
    if row_block(a.dtype) > 1 and any(g.strides[1:2] != (0,) for g in a.guards):
        yield f"operand a is {a.dtype}, two rows a stick, and has a guard along r1"


def _each(number: Num) -> tuple[int, ...]:
    return (number,) if isinstance(number, int) else number
