"""What a report holds beside its figures, for views: when each launch ran, which core was busy with
it, what went over each piece of the ring, and who holds what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spyrec.ir.errors import SpyrecError
from spyrec.sim.device import DeviceSpec
from spyrec.sim.isa import UNITS, Holding, Program
from spyrec.sim.link_load import LinkLoad, link_load
from spyrec.sim.stats import LaunchStats

Lane = tuple[int, ...]


@dataclass(frozen=True)
class Machine:
    """``macs_per_cycle``: 16-bit multiply-accumulates of all cores; ``scratchpad_bytes``: of one
    core, what the program may use."""

    cores: int
    macs_per_cycle: int
    hbm_bytes_per_cycle: int
    scratchpad_bytes: int


@dataclass(frozen=True)
class CoreCycles:
    """Core cycles each unit of each core was occupied, as UnitCycles is their sum."""

    memory_load: Lane
    memory_store: Lane
    ring_send: Lane
    ring_receive: Lane
    matrix: Lane
    vector: Lane


@dataclass(frozen=True)
class KernelDetail:
    """Of a kernel row. ``tile_bytes``: what its tiles take of a core's scratchpad; ``core_busy``:
    of its first launch; ``links``: None of what sends nothing over the ring."""

    tile_bytes: int
    core_busy: CoreCycles
    links: LinkLoad | None


@dataclass(frozen=True)
class LaunchTime:
    """``kernel``: number of its row; cycles as in LaunchStats."""

    kernel: int
    start_cycle: int
    go_cycle: int
    end_cycle: int


@dataclass(frozen=True)
class HeldLayout:
    """How tensors are dealt out. ``boxes``: for each core, first element and count along each
    dimension, one after the other; no elements on cores that hold nothing. ``core_bytes``: set
    aside on each core."""

    shape: Lane
    dtype: str
    stick_dim: int
    core_bytes: int
    boxes: tuple[Lane, ...]


@dataclass(frozen=True)
class HeldTensor:
    """A tensor in the scratchpads. ``layout``: number of its layout; ``address``: where it begins
    in each scratchpad; ``launches``: the one that makes it, then those that read it."""

    name: str
    layout: int
    address: int
    launches: Lane


@dataclass(frozen=True)
class CardBuffer:
    """A tensor in card memory. ``kind``: input, output, const or temp; ``shape``: empty when the
    program does not tell; ``launches``: those that read or write it."""

    name: str
    kind: str
    bytes: int
    shape: Lane
    stick_dim: int
    launches: Lane


@dataclass(frozen=True)
class Detail:
    """``kernels``: of each row of the report; ``launches``: of the whole run, in order."""

    machine: Machine
    kernels: tuple[KernelDetail, ...]
    launches: tuple[LaunchTime, ...]
    layouts: tuple[HeldLayout, ...]
    held: tuple[HeldTensor, ...]
    buffers: tuple[CardBuffer, ...]


def detail_of(
    program: Program, device: DeviceSpec, launches: Sequence[LaunchStats], rows: Sequence[int]
) -> Detail:
    """``launches``: of a run of ``program`` on ``device``; ``rows``: number of each one's row."""
    first: dict[int, LaunchStats] = {}
    for stats, row in zip(launches, rows, strict=True):
        first.setdefault(row, stats)
    loads: dict[int, LinkLoad] = {}
    layouts: dict[HeldLayout, int] = {}
    held = [
        HeldTensor(
            program.tensors[h.tensor].name, layouts.setdefault(_layout(program, h), len(layouts)),
            h.address, h.launches,
        )
        for h in program.holdings
    ]
    return Detail(
        Machine(
            device.cores.count, device.pt.macs_per_cycle * device.cores.count,
            device.hbm.bytes_per_cycle, device.lx.usable_bytes,
        ),
        tuple(_kernel(program, device, first[row], loads) for row in sorted(first)),
        tuple(
            LaunchTime(row, s.start_cycle, s.go_cycle, s.end_cycle)
            for s, row in zip(launches, rows, strict=True)
        ),
        tuple(layouts), tuple(held), _buffers(program),
    )  # fmt: skip


def _kernel(
    program: Program, device: DeviceSpec, stats: LaunchStats, loads: dict[int, LinkLoad]
) -> KernelDetail:
    number = program.launches[stats.index].kernel
    kernel = program.kernels[number]
    if stats.ring_bytes and number not in loads:
        loads[number] = link_load(kernel, device)
    return KernelDetail(
        int(kernel.info.get("tile_bytes", 0)),
        CoreCycles(*(stats.core_busy_cycles[unit] for unit in UNITS)),
        loads.get(number),
    )


def _layout(program: Program, h: Holding) -> HeldLayout:
    tensor = program.tensors[h.tensor]
    boxes = tuple(tuple(n for pair in box for n in pair) for box in h.boxes)
    return HeldLayout(tensor.shape, h.dtype, tensor.stick_dim, h.size, boxes)


def _buffers(program: Program) -> tuple[CardBuffer, ...]:
    tensors = {t.name: t for t in program.tensors}
    users: dict[str, list[int]] = {}
    for i, launch in enumerate(program.launches):
        for name in dict.fromkeys(name for name, _ in launch.args):
            users.setdefault(name, []).append(i)
    found = []
    for b in program.buffers:
        tensor = tensors.get(b.name)
        shape, stick = (tensor.shape, tensor.stick_dim) if tensor is not None else ((), 0)
        found.append(
            CardBuffer(b.name, b.kind, b.size, shape, stick, tuple(users.get(b.name, ())))
        )
    return tuple(found)


MOST_CORES = 63  # as many as a core mask has bits


def check_detail(detail: Detail, rows: int) -> None:
    """SpyrecError at the first part that does not fit a report of so many ``rows``: a file may say
    anything."""
    cores, launches = detail.machine.cores, len(detail.launches)
    lanes = [lane for k in detail.kernels for lane in vars(k.core_busy).values()]
    links = [lane for k in detail.kernels if k.links for lane in vars(k.links).values()]
    used = [(t.name, t.launches) for t in detail.held] + [
        (b.name, b.launches) for b in detail.buffers
    ]
    wrong = [
        *([f"{cores} cores"] if not 1 <= cores <= MOST_CORES else []),
        *([f"{len(detail.kernels)} kernels"] if len(detail.kernels) != rows else []),
        *("busy cycles of too many cores" for lane in lanes if len(lane) > cores),
        *(f"{len(lane)} pieces of the ring" for lane in links if len(lane) != cores + 1),
        *(f"a launch of kernel {x.kernel}" for x in detail.launches if not 0 <= x.kernel < rows),
        *(f"layout {i} of {h.shape}" for i, h in enumerate(detail.layouts) if not _fits(h, cores)),
        *(f"a layout {t.layout}" for t in detail.held if not 0 <= t.layout < len(detail.layouts)),
        *(f"{t.name} without a launch" for t in detail.held if not t.launches),
        *(f"launches of {name}" for name, x in used if x and not 0 <= min(x) <= max(x) < launches),
    ]
    if wrong:
        raise SpyrecError(
            f"the report's detail does not fit the report: it has {wrong[0][:60]}, for {rows} "
            f"kernels, {launches} launches and {cores} cores; write it anew with simulate --report"
        )


def _fits(layout: HeldLayout, cores: int) -> bool:
    rank = len(layout.shape)
    return (
        0 <= layout.stick_dim < rank
        and len(layout.boxes) <= cores
        and all(len(box) == 2 * rank and min(box) >= 0 for box in layout.boxes)
    )
