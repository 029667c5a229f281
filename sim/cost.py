"""What instructions cost: one small function per opcode, evaluated for all loop trips and cores at
once. Costs depend on static fields, limits and guards, never on data or addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from .arrange import k_step
from .device import DeviceSpec, Lx
from .extent import (
    Counts,
    effective_counts,
    inside,
    left_over,
    padded,
    per_core,
    product,
    run_gap,
    run_length,
)
from .isa import LANES, STICK, Instr, Kernel, Num, Operand

SHARE = 1024  # parts a scratchpad port is divided into


def nothing() -> Counts:
    return np.zeros((1, 1), np.int64)


@dataclass(frozen=True)
class Cost:
    """Cost of an instruction, arrays of shape [trips or 1, cores or 1].

    ``work``: cycles (pt, sfp) or bytes (ml, ms, rs); an entry of 0 takes no time.
    ``extra``: share of the scratchpad port while it runs (pt, sfp), bus ticks (ml, ms; negative
    when several cores take them), or the mask of destination cores (rs; negative when they take
    partial sums).
    ``held``: cycles for which the requests of a transfer take the link of their half or, negative,
    its unit is occupied at least (ml, ms); or the unit is after the ring is done (rs).
    ``takers``: mask of the cores that wait for one another in a load (ml), or of those that a send
    reaches the longer way round (rs).
    ``macs``: multiply-accumulates of useful rows and inner elements, over 64 columns a group.
    """

    work: Counts = field(default_factory=nothing)
    extra: Counts = field(default_factory=nothing)
    held: Counts = field(default_factory=nothing)
    takers: Counts = field(default_factory=nothing)
    macs: Counts = field(default_factory=nothing)


def cost_of(
    instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts,
    scattered: frozenset[str] = frozenset(),
) -> Cost:
    """Cost of one instruction of ``kernel`` for each of ``trips`` ([loops, trips]) and core.
    ``scattered``: symbols of the tensors that a core does not read in one piece."""
    cost = _COSTS[instr.op](instr, kernel, device, trips)
    if instr.op == "load" and instr.operands[1].symbol in scattered:
        return _spread(cost, instr.operands[1], device)
    return cost


def _sync(instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts) -> Cost:
    return Cost()


def _runs(
    instr: Instr, kernel: Kernel, trips: Counts, memory: Operand, skip: set[int]
) -> tuple[Counts, Counts, int | None]:
    """Bytes a transfer moves, of its contiguous runs in ``memory``, and from the start of one run
    to that of the next."""
    counts = effective_counts(instr, trips, kernel.cores)
    guards = [g for operand in instr.operands for g in operand.guards]
    own, factor, merged = inside(counts, guards, trips, kernel.cores)
    strides = padded(memory.strides, len(own))
    run = run_length(own, [strides], merged | skip)
    gap = None if skip else run_gap(own, strides)
    return product(own) * factor * STICK, run * STICK, gap and gap * STICK


def _load(instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts) -> Cost:
    source, hbm = instr.operands[1], device.hbm
    nbytes, run, gap = _runs(instr, kernel, trips, source, set())
    apart = _apart(source.base) * STICK
    ticks = hbm.bus_ticks(nbytes, run, gap_bytes=gap, apart_bytes=apart)
    ticks = ticks + _again(source, trips) * hbm.again_ticks(nbytes, run)
    masks = per_core(instr.imm.get("cores", 0), kernel.cores)
    takers = _bits(masks)
    several = takers > 0
    ticks = ticks * np.maximum(1, hbm.turns(takers))
    asked = np.where(several, 0, hbm.asking_cycles(nbytes, run, gap))
    shared = hbm.shared_cycles(nbytes, run, takers, gap)
    waits = np.maximum(shared, hbm.split_cycles(nbytes, run, gap, apart))
    waits = np.maximum(waits, hbm.bank_cycles(nbytes, run, gap))
    held = np.where(waits > asked, -waits, asked)
    return Cost(nbytes, np.where(several, -ticks, ticks), held, masks * (shared > 0))


def _spread(cost: Cost, source: Operand, device: DeviceSpec) -> Cost:
    """The load's bus ticks with what cores lose that read far apart; one that several cores take is
    spared."""
    apart, readers = _apart(source.base) * STICK, len(_places(source.base))
    if not apart:
        return cost
    lost = device.hbm.spread_ticks(cost.work, apart, readers, device.cores.count)
    return replace(cost, extra=cost.extra + (cost.extra >= 0) * lost)


def _bits(masks: Counts) -> Counts:
    """[1, cores or 1]: how many cores a mask names; 0 when a core loads for itself."""
    return np.array([[int(mask).bit_count() for mask in masks[0]]], np.int64)


def _again(source: Operand, trips: Counts) -> Counts:
    """[trips, 1]: whether a load in these loops fetches what it fetched before."""
    strides = padded(source.loops, len(trips))
    later = [t > 0 for s, t in zip(strides, trips, strict=True) if not s]
    again: Counts = np.any([np.zeros(trips.shape[-1:], np.bool_), *later], axis=0)[:, None]
    return again


def _apart(base: Num) -> int:
    """Sticks between neighbouring cores' places in a tensor; 0 when all read the same."""
    return min((b - a for a, b in pairwise(_places(base))), default=0)


def _places(base: Num) -> list[int]:
    """Where in a tensor the cores start, when that differs."""
    return sorted({*base}) if isinstance(base, tuple) else []


def _gather(instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts) -> Cost:
    nbytes, run, _ = _runs(instr, kernel, trips, instr.operands[1], {0})
    hbm = device.hbm
    return Cost(nbytes, hbm.bus_ticks(nbytes, run), hbm.asking_cycles(nbytes, run))


def _store(instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts) -> Cost:
    nbytes, run, gap = _runs(instr, kernel, trips, instr.operands[0], set())
    hbm = device.hbm
    return Cost(nbytes, hbm.bus_ticks(nbytes, run, True), hbm.asking_cycles(nbytes, run, gap))


def _send(instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts) -> Cost:
    there, here = instr.operands
    nbytes, run, _ = _runs(instr, kernel, trips, here, set())
    _, run_there, _ = _runs(instr, kernel, trips, there, set())
    mask = per_core(instr.imm.get("cores", 0), kernel.cores)
    nbytes = nbytes * (mask != 0)
    held = device.ring.held_cycles(nbytes, np.minimum(run, run_there))
    return Cost(nbytes, mask, held, per_core(instr.imm.get("far", 0), kernel.cores) * (nbytes > 0))


def _psum(instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts) -> Cost:
    groups = product(effective_counts(instr, trips, kernel.cores))
    mask = per_core(instr.imm.get("cores", 0), kernel.cores)
    return Cost(groups * Lx.group_bytes("f32") * (mask != 0), -mask)


def _mm(instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts) -> Cost:
    r0, r1, t0, t1, kc, n = effective_counts(instr, trips, kernel.cores)
    a, b = (operand.dtype for operand in instr.operands[1:3])
    step = k_step(a)
    left = left_over(instr, 4, instr.imm.get("k_valid", LANES), trips, kernel.cores, step)
    k = np.clip(left, 0, kc * step)
    rows, taps = r0 * r1, t0 * t1
    partial = bool(instr.imm.get("partial", 0))
    cycles = device.pt.mm_cycles(rows, taps, k, n, a, b, partial)
    port = device.pt.mm_port_bytes(rows, taps, k, n, a, b)
    return replace(_compute(device, cycles, port), macs=rows * taps * k * n * LANES)


def _vec(instr: Instr, kernel: Kernel, device: DeviceSpec, trips: Counts) -> Cost:
    counts = effective_counts(instr, trips, kernel.cores)
    axes = int(per_core(instr.imm.get("axes", 0), 1)[0, 0])
    reduces = bool(instr.imm.get("reduce", 0))
    kept = [c for d, c in enumerate(counts) if not axes >> d & 1] if reduces else counts
    folds = reduces and bool(instr.imm.get("lanes", 0))
    spreads = sum(source.splat for source in instr.operands[1:])
    program = kernel.programs[int(per_core(instr.imm.get("program", 0), 1)[0, 0])]
    group = device.sfp.group_cycles((step.op for step in program.steps), reduces)
    chain = product([c for d, c in enumerate(counts) if reduces and axes >> d & 1])
    cycles = device.sfp.vec_cycles(product(counts), group, folds, spreads, chain * reduces)
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
    "prog": _sync,
    "load": _load,
    "gather": _gather,
    "store": _store,
    "send": _send,
    "psum": _psum,
    "mm": _mm,
    "vec": _vec,
    "shuf": _shuf,
    "fill": _shuf,
}
