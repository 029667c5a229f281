"""What instructions cost: one small function per opcode, evaluated for all loop trips and cores at
once. Costs depend on static fields, limits and guards, never on data or addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from .device import DeviceSpec, Lx
from .extent import (
    Counts,
    effective_counts,
    inside,
    left_over,
    padded,
    per_core,
    product,
    run_length,
)
from .isa import LANES, STICK, Instr, Kernel, Operand

SHARE = 1024  # parts a scratchpad port is divided into


def nothing() -> Counts:
    return np.zeros((1, 1), np.int64)


@dataclass(frozen=True)
class Cost:
    """Cost of an instruction, arrays of shape [trips or 1, cores or 1].

    ``work``: cycles (pt, sfp) or bytes (ml, ms, rs); an entry of 0 takes no time.
    ``extra``: share of the scratchpad port while it runs (pt, sfp), bus ticks (ml, ms), or
    the mask of destination cores (rs).
    ``macs``: multiply-accumulates of useful rows and inner elements, over 64 columns a group.
    """

    work: Counts = field(default_factory=nothing)
    extra: Counts = field(default_factory=nothing)
    macs: Counts = field(default_factory=nothing)


def cost_of(
    instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts
) -> Cost:
    """Cost of one instruction of ``kernel`` for each of ``trips`` ([loops, trips]) and each
    core."""
    return _COSTS[instr.op](instr, kernel, device, trips)


def _sync(instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts) -> Cost:
    return Cost()


def _sticks(
    instr: Instr, kernel: Kernel, trips: Counts, memory: Operand, skip: set[int]
) -> tuple[Counts, Counts]:
    """Sticks a transfer moves, and the length of its contiguous runs in ``memory``."""
    counts = effective_counts(instr, trips, kernel.cores)
    guards = [g for operand in instr.operands for g in operand.guards]
    own, factor, merged = inside(counts, guards, trips, kernel.cores)
    run = run_length(own, [padded(memory.strides, len(own))], merged | skip)
    return product(own) * factor, run


def _hbm(instr: Instr, device: DeviceSpec, sticks: Counts, run: Counts) -> Cost:
    return Cost(sticks * STICK, device.hbm.bus_ticks(sticks * STICK, run * STICK))


def _load(instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts) -> Cost:
    return _hbm(instr, device, *_sticks(instr, kernel, trips, instr.operands[1], set()))


def _gather(instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts) -> Cost:
    return _hbm(instr, device, *_sticks(instr, kernel, trips, instr.operands[1], {0}))


def _store(instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts) -> Cost:
    return _hbm(instr, device, *_sticks(instr, kernel, trips, instr.operands[0], set()))


def _send(instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts) -> Cost:
    sticks, _ = _sticks(instr, kernel, trips, instr.operands[1], set())
    mask = per_core(instr.imm.get("cores", 0), kernel.cores)
    return Cost(sticks * STICK * (mask != 0), mask)


def _mm(instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts) -> Cost:
    r0, r1, t0, t1, kc, n = effective_counts(instr, trips, kernel.cores)
    a, b = (operand.dtype for operand in instr.operands[1:3])
    left = left_over(instr, 4, instr.imm.get("k_valid", LANES), trips, kernel.cores)
    k = np.clip(left, 0, kc * LANES)
    rows, taps = r0 * r1, t0 * t1
    cycles = device.pt.mm_cycles(rows, taps, k, n, a, b)
    port = device.pt.mm_port_bytes(rows, taps, k, n, a, b)
    return replace(_compute(device, cycles, port), macs=rows * taps * k * n * LANES)


def _vec(instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts) -> Cost:
    counts = effective_counts(instr, trips, kernel.cores)
    axes = int(per_core(instr.imm.get("axes", 0), 1)[0, 0])
    reduces = bool(instr.imm.get("reduce", 0))
    kept = [c for d, c in enumerate(counts) if not axes >> d & 1] if reduces else counts
    results = product(kept) if reduces and instr.imm.get("lanes", 0) else None
    program = kernel.programs[int(per_core(instr.imm.get("program", 0), 1)[0, 0])]
    group = device.sfp.group_cycles((step.op for step in program.steps), reduces)
    cycles = device.sfp.vec_cycles(product(counts), group, results)
    port = product(kept) * _group_bytes(instr.operands[0])
    for source in instr.operands[1:]:
        read = [c for c, stride in zip(counts, source.strides, strict=False) if stride]
        port = port + product(read) * _group_bytes(source)
    return _compute(device, cycles, port)


def _shuf(instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts) -> Cost:
    counts = effective_counts(instr, trips, kernel.cores)
    run = run_length(counts, [padded(o.strides, len(counts)) for o in instr.operands])
    size = int(per_core(instr.imm.get("bits", 16), 1)[0, 0]) // 8
    nbytes = product(counts) * size
    sticks = _sticks_touched(counts, padded(instr.operands[0].strides, len(counts)), size)
    cycles = device.sfp.shuffle_cycles(nbytes, run * size, sticks)
    return _compute(device, cycles, nbytes * len(instr.operands))


def _compute(device: DeviceSpec, cycles: Counts, port: Counts) -> Cost:
    """Cost of work that takes ``cycles`` and moves ``port`` bytes between unit and scratchpad: no
    shorter than the port allows."""
    cycles = device.lx.stretched(cycles, port)
    width = np.maximum(cycles, 1) * device.lx.port_bytes_per_cycle
    return Cost(cycles, -(-port * SHARE // width))


def _sticks_touched(counts: list[Counts], strides: tuple[int, ...], size: int) -> Counts:
    """Sticks that elements of ``size`` bytes fall into, starting on a stick: steps shorter than a
    stick stay near, longer ones lead to others."""
    near, others = np.ones((1, 1), np.int64), np.ones((1, 1), np.int64)
    for count, stride in zip(counts, strides, strict=True):
        if abs(stride) * size < STICK:
            near = near + np.maximum(count - 1, 0) * abs(stride)
        else:
            others = others * count
    return -(-near * size // STICK) * others


def _group_bytes(operand: Operand) -> int:
    return Lx.group_bytes(operand.dtype) if operand.space == "lx" else 0


_COSTS: dict[str, Callable[[Instr, Kernel, DeviceSpec, Counts], Cost]] = {
    "sync": _sync,
    "recv": _sync,
    "load": _load,
    "gather": _gather,
    "store": _store,
    "send": _send,
    "mm": _mm,
    "vec": _vec,
    "shuf": _shuf,
    "fill": _shuf,
}
