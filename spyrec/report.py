"""What a run tells its reader: one row per distinct kernel launch, totals, and both as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spyrec.plain_json import AsJson
from spyrec.report_detail import Detail
from spyrec.runtime.jobs import HostTime
from spyrec.sim.device import DeviceSpec
from spyrec.sim.isa import UNITS, Kernel, Program, launched
from spyrec.sim.stats import LaunchStats, RunResult


@dataclass(frozen=True)
class UnitCycles:
    """Core cycles each kind of unit was occupied in one launch, summed over the cores. A memory
    unit's turn on the bus counts."""

    memory_load: int = 0
    memory_store: int = 0
    ring_send: int = 0
    ring_receive: int = 0
    matrix: int = 0
    vector: int = 0


@dataclass(frozen=True)
class KernelRow:
    """One kernel as launched; launches equal in kernel and in every number are one row.

    ``count``: how many launches the row stands for. ``start_cycle``: of the first of them. All
    other numbers are of one launch. ``macs``: useful multiply-accumulates, all cores together;
    ``compute_floor_us``: the time they take at the peak rate of all the card's cores;
    ``pt_utilisation``: that over ``us``; ``memory_floor_us``: HBM bytes, both ways, over the bus
    rate; ``lx_peak_bytes``: of the fullest core. ``bound``: what was busy longest for it ("compute"
    is the matrix unit; weights that came early count), "latency" when nothing was for half of its
    cycles.

    ``cores``: those with a part of the work. ``tiles``: pieces of 8 rows by 64 columns the matrix
    unit has to do, 0 for kernels without matrix work; ``span_bytes``: the most that one core
    reaches over of one tensor in HBM; ``dims``, ``parts`` and ``tile``: the iteration space as
    ``name=extent``, into how many parts each dimension is cut, and how long one tile is along it
    ("" in programs that do not say). ``prefetch_us``: how long before its start it was loading
    weights, while the kernel before ran; its HBM bytes are part of the kernel's, so
    ``memory_floor_us`` may exceed ``us`` by as much. ``busy_cycles``: of its units;
    ``bus_busy_cycles``: core cycles the memory bus was taken by it, turning round included.
    """

    name: str
    ops: tuple[str, ...]
    source: tuple[str, ...]
    count: int
    start_cycle: int
    cycles: int
    us: float
    cores: int
    macs: int
    pt_utilisation: float
    hbm_read_bytes: int
    hbm_write_bytes: int
    ring_bytes: int
    lx_peak_bytes: int
    compute_floor_us: float
    memory_floor_us: float
    bound: str
    tiles: int = 0
    span_bytes: int = 0
    dims: str = ""
    parts: str = ""
    tile: str = ""
    prefetch_us: float = 0.0
    busy_cycles: UnitCycles = UnitCycles()
    bus_busy_cycles: int = 0


@dataclass(frozen=True)
class Totals:
    """The run as a whole, first start to last end; ``pt_utilisation`` as in KernelRow.

    ``launches``: how many the device started; ``launch_cycles``: core cycles in which no kernel ran
    because the next one was starting up; ``meetings``: kernels that went on in the launch of the
    one before, ``meeting_cycles``: those in which none ran because the cores were meeting. These
    cycles and the kernels' own make up ``cycles`` unless kernels overlap.
    """

    cycles: int
    us: float
    pt_utilisation: float
    launches: int = 0
    launch_cycles: int = 0
    launch_us: float = 0.0
    meetings: int = 0
    meeting_cycles: int = 0
    meeting_us: float = 0.0


@dataclass(frozen=True)
class BucketUse:
    """Which bucket a run took, and what padding cost.

    ``true`` and ``padded``: open dimension -> the size that was asked for, and the bucket's.
    ``padding``: share of the bucket's index space that is padding, 1 - product of true / padded.
    ``macs``: multiply-accumulates of the model's matrix products and convolutions at the true
    sizes, ``padded_macs`` at the bucket's; ``macs_waste``: 1 - macs / padded_macs. What a program
    for the true sizes would take is not among these: that is known only by compiling it.
    """

    name: str
    true: dict[str, int]
    padded: dict[str, int]
    padding: float
    macs: int
    padded_macs: int
    macs_waste: float


@dataclass(frozen=True)
class Report(AsJson):
    """A run: what ran where, its totals and its kernels in launch order.

    ``launch_cycles``, ``meeting_cycles``: as in Totals. ``wall_s``: seconds the simulation
    itself took; ``events``: those the engine handled. ``host``: what launching takes beside, when
    that was asked for. ``bucket``: None of a program without buckets. ``detail``: what views draw,
    when it was asked for.
    """

    spyrec: str
    model: str
    device: str
    numerics: str
    total_cycles: int
    total_us: float
    clock_mhz: int
    functional: bool
    wall_s: float
    events: int
    launch_cycles: int
    meeting_cycles: int
    kernels: tuple[KernelRow, ...]
    host: HostTime | None = None
    bucket: BucketUse | None = None
    detail: Detail | None = None


def kernel_rows(
    program: Program, device: DeviceSpec, launches: Sequence[LaunchStats]
) -> tuple[KernelRow, ...]:
    """The rows of a run, by the first launch of each."""
    return rows_and_places(program, device, launches)[0]


def rows_and_places(
    program: Program, device: DeviceSpec, launches: Sequence[LaunchStats]
) -> tuple[tuple[KernelRow, ...], tuple[int, ...]]:
    """The rows of a run, by the first launch of each, and for each launch the number of its row."""
    places: list[int] = []
    numbers: dict[tuple[int, KernelRow], int] = {}
    rows: dict[tuple[int, KernelRow], KernelRow] = {}
    for stats in launches:
        index = program.launches[stats.index].kernel
        kernel = launched(program.kernels[index], program.launches[stats.index])
        row = _row(kernel, device, stats)
        key = (index, replace(row, start_cycle=0, source=()))
        seen = rows.get(key)
        if seen is not None:
            source = dict.fromkeys((*seen.source, *row.source))
            row = replace(seen, count=seen.count + 1, source=tuple(source))
        rows[key] = row
        places.append(numbers.setdefault(key, len(numbers)))
    return tuple(rows.values()), tuple(places)


def run_totals(result: RunResult, kernels: Sequence[KernelRow], device: DeviceSpec) -> Totals:
    """Totals over all launches."""
    floor_us = sum(k.compute_floor_us * k.count for k in kernels)
    us = device.us(result.total_cycles)
    starting, meeting = _idle_cycles(result.launches)
    joined = sum(bool(stats.joint) for stats in result.launches)
    return Totals(
        result.total_cycles, us, floor_us / us if us else 0.0, len(result.launches) - joined,
        starting, device.us(starting), joined, meeting, device.us(meeting),
    )


def _idle_cycles(launches: Sequence[LaunchStats]) -> tuple[int, int]:
    """Cycles up to the last end that lie in no launch's span from GO to end: before launches that
    the device started, and before those that were joined to one."""
    starting = meeting = until = 0
    for stats in sorted(launches, key=lambda s: s.go_cycle):
        idle = max(0, stats.go_cycle - until)
        if stats.joint:
            meeting += idle
        else:
            starting += idle
        until = max(until, stats.end_cycle)
    return starting, meeting


def _row(kernel: Kernel, device: DeviceSpec, stats: LaunchStats) -> KernelRow:
    macs = int(kernel.info.get("macs", stats.padded_macs))
    us = device.us(stats.cycles)
    compute_us = device.us(macs / (device.pt.macs_per_cycle * device.cores.count))
    moved = stats.hbm_read_bytes + stats.hbm_write_bytes
    return KernelRow(
        name=kernel.name,
        ops=_ops(kernel),
        source=tuple(dict.fromkeys(node for note in kernel.notes for node in note.nodes)),
        count=1,
        start_cycle=stats.go_cycle,
        cycles=stats.cycles,
        us=us,
        cores=int(kernel.info.get("cores", stats.cores_used)),
        macs=macs,
        pt_utilisation=compute_us / us if us else 0.0,
        hbm_read_bytes=stats.hbm_read_bytes,
        hbm_write_bytes=stats.hbm_write_bytes,
        ring_bytes=stats.ring_bytes,
        lx_peak_bytes=stats.lx_peak_bytes,
        compute_floor_us=compute_us,
        memory_floor_us=device.us(moved / device.hbm.bytes_per_cycle),
        bound=stats.bound,
        tiles=int(kernel.info.get("tiles", 0)),
        span_bytes=int(kernel.info.get("span_bytes", 0)),
        dims=str(kernel.info.get("dims", "")),
        parts=str(kernel.info.get("parts", "")),
        tile=str(kernel.info.get("tile", "")),
        prefetch_us=device.us(stats.prefetch_cycles),
        busy_cycles=UnitCycles(*(stats.busy_cycles[unit] for unit in UNITS)),
        bus_busy_cycles=stats.bus_busy_cycles,
    )


def _ops(kernel: Kernel) -> tuple[str, ...]:
    """The IR ops a kernel carries out: as the code generator lists them, else from its notes."""
    listed = str(kernel.info.get("ops", "")).replace(",", " ").split()
    return tuple(listed or dict.fromkeys(note.op for note in kernel.notes if note.op))
