"""A machine of four cores with round numbers, and shorthands for programs written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from spyrec.sim.device import DeviceSpec, parse_device
from spyrec.sim.isa import (
    Buffer,
    Instr,
    Kernel,
    Launch,
    MicroProgram,
    Note,
    Operand,
    Program,
    Signal,
    Stream,
    Wait,
)
from spyrec.sim.memory import Memory, build_memory
from spyrec.sim.stats import LaunchStats

TOML = """
name = "small"
clock_mhz = 1000
[cores]
count = 4
corelets = 2
[lx]
bytes = 65536
reserved_bytes = 0
port_bytes_per_cycle = 256
[hbm]
bytes = 1048576
segment_bytes = 524288
bytes_per_cycle = 128
write_bytes_per_cycle = 128
again_bytes_per_cycle = 128
side_bytes_per_cycle = 128
burst_bytes = 1024
granule_bytes = 128
batch_bytes = 1024
turnaround_cycles = 10
side_turn_cycles = 0
latency_cycles = 100
window_bytes = 12800
request_cycles = 3
side_request_cycles = 0
shared_run_cycles = 0
together_max = 3
near_bytes = 1024
far_bytes = 4096
far_cycles = 0
bank_bytes = 1048576
span_bytes = 65536
multicast_max = 3
[ring]
bytes_per_cycle = 128
clock_mhz = 1000
hop_cycles = 2
fragments_max = 2
start_cycles = 5
run_cycles = 0
psum_bytes_per_cycle = 32
[pt]
macs_per_cycle = 1024
rows = 8
k_step = 8
fill_cycles = 10
acc_groups = 64
ksplit_macs_per_cycle = 512
[pt.mac_eighths]
f32 = 16
dl16 = 8
f16 = 8
bf16 = 8
f8e4m3 = 4
i8 = 2
i4 = 1
[sfp]
groups_per_cycle = 2
start_cycles = 4
switch_cycles = 0
shuffle_bytes_per_cycle = 64
shuffle_run_cycles = 2
shuffle_stick_cycles = 32
lane_reduce_cycles = 12
lane_spread_cycles = 0
[sfp.cycles]
exp = 6
[launch]
start_cycles = 50
loop_max = 1000
[host]
jobs = 1
ahead_jobs = 0
transfer_graph_us = 30
compute_graph_us = 100
submit_us = 10
correction_ns = 1000
patch_cycles = 5
link_us = 2
link_bytes_per_us = 1000
"""
SMALL: DeviceSpec = parse_device(TOML)
COPY = MicroProgram(1)
NOTES = (Note("%y = matmul", ("MatMul_7",)), Note("%z = add", ("Add_1", "Add_2")))


def lx(base: int, *strides: int, **more: object) -> Operand:
    return replace(Operand("lx", base, strides), **more)  # type: ignore[arg-type]


def hbm(symbol: str, base: int, *strides: int, **more: object) -> Operand:
    return replace(Operand("hbm", base, strides, symbol=symbol), **more)  # type: ignore[arg-type]


def acc(base: int, *strides: int, **more: object) -> Operand:
    return replace(Operand("acc", base, strides, dtype="f32"), **more)  # type: ignore[arg-type]


def op(
    name: str, counts: tuple[int, ...] = (), operands: tuple[Operand, ...] = (),
    waits: Sequence[int] = (), signals: Sequence[int] = (), **more: object,
) -> Instr:
    """An instruction that waits for and signals one of each token listed."""
    instr = Instr(
        name, counts, operands=operands, waits=tuple(Wait(t) for t in waits),
        signals=tuple(Signal(t) for t in signals),
    )
    return padded(replace(instr, **more))  # type: ignore[arg-type]


def padded(instr: Instr) -> Instr:
    """Strides that were left out are 0 (a gather's index has none)."""
    dims = len(instr.counts)
    operands = [
        o if instr.op == "gather" and number == 2
        else replace(o, strides=(*o.strides, *[0] * (dims - len(o.strides))))
        for number, o in enumerate(instr.operands)
    ]
    return replace(instr, operands=tuple(operands))


def kernel(cores: int = 1, params: tuple[str, ...] = ("x", "y"), **streams: Stream) -> Kernel:
    return Kernel("k", streams, params, (COPY,), NOTES, cores)


def program(
    *kernels: Kernel, size: int = 16384, early: bool = False, chained: bool = True
) -> Program:
    """Launches the kernels in turn on an input x and an output y of ``size`` bytes; each depends on
    the one before when ``chained``."""
    buffers = (Buffer("x", "input", size, 0), Buffer("y", "output", size, size))
    launches = tuple(
        Launch(i, tuple((p, 0) for p in k.params), (i - 1,) if i and chained else (), early)
        for i, k in enumerate(kernels)
    )
    named = tuple(replace(k, name=k.name + (str(i) if i else "")) for i, k in enumerate(kernels))
    return Program(named, buffers, launches)


def blank_memory(poison: bool = False, device: DeviceSpec = SMALL) -> Memory:
    return build_memory(Program((), (), ()), device, {}, poison)


def written(memory: Memory, core: int = 0, seed: int = 0) -> np.ndarray:
    """Fill a core's scratchpad with random small numbers and return it as float16 patterns'
    bytes."""
    image = memory.lx[core]
    rng = np.random.default_rng(seed)
    values = rng.integers(-8, 9, image.data.size // 2).astype(np.float16)
    image.data[:] = values.view(np.uint8)
    image.valid[:] = True
    return values.astype(np.float32).reshape(-1, 64)


class Recorder:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.slices: list[tuple[int, str, str, int, int]] = []  # core, unit, op, start, end
        self.opened: list[tuple[int, int]] = []
        self.done: list[LaunchStats] = []

    def started(self, launch: int, kernel: Kernel, cycle: int) -> None:
        self.opened.append((launch, cycle))

    def worked(
        self, launch: int, kernel: Kernel, core: int, unit: str, instr: Instr,
        start: int, end: int, nbytes: int,
    ) -> None:
        self.slices.append((core, unit, instr.op, start, end))

    def finished(self, stats: LaunchStats) -> None:
        self.done.append(stats)
