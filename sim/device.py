"""The machine as data. ``DeviceSpec`` is read from a TOML file; planner and simulator price time
with the same numbers and the same methods.

The pricing methods take ints or int64 arrays (elementwise) and stay in whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from .device_file import Table, Whole, Word, read_spec
from .errors import DeviceError
from .formats import FORMATS, format_of
from .host import Host
from .isa import LANES, MICRO_OPS, STICK

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = TypeVar("Ints", int, NDArray[np.int64])

MAX_TOML_BYTES = 1 << 20
SPREAD_STEPS = 1 << 12  # parts of the way from near to far
NEAR_EASES = 2  # what a request is divided by when the next run lies in the same burst
MASK_BITS = 63  # of a mask of cores: the non-negative half of 64 bits

Cycles = Annotated[int, Whole("core cycles", least=0)]
ByteRate = Annotated[int, Whole("bytes a cycle")]
Mhz = Annotated[int, Whole("MHz")]


@dataclass(frozen=True)
class Cores:
    count: Annotated[int, Whole("cores", most=MASK_BITS)]
    corelets: Annotated[int, Whole("corelets of a core", most=1 << 10)]


@dataclass(frozen=True)
class Lx:
    bytes: Annotated[int, Whole("bytes", most=1 << 26)]
    reserved_bytes: Annotated[int, Whole("bytes", least=0, most=1 << 26)]
    port_bytes_per_cycle: ByteRate

    @property
    def usable_bytes(self) -> int:
        return self.bytes - self.reserved_bytes

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if self.usable_bytes < STICK:
            whole = f"{self.reserved_bytes} of {self.bytes} bytes"
            yield "reserved_bytes", f"is {whole}, which leaves no stick of {STICK} bytes"

    @staticmethod
    def group_bytes(dtype: str) -> int:
        """Bytes of one group of 64 elements of a format."""
        return format_of(dtype).bits * LANES // 8

    def port_cycles(self, nbytes: Ints) -> Ints:
        """Least cycles in which ``nbytes`` pass the core's scratchpad port."""
        return -(-nbytes // self.port_bytes_per_cycle)

    def stretched(self, cycles: Ints, nbytes: Ints) -> Ints:
        """Cycles of work that by itself takes ``cycles`` and moves ``nbytes`` through the port: the
        longer of the two. Nothing to do takes no time."""
        port = self.port_cycles(nbytes)
        return cycles + (port - cycles) * (port > cycles) * (cycles > 0)


@dataclass(frozen=True)
class Hbm:
    bytes: Annotated[int, Whole("bytes", most=1 << 48)]
    segment_bytes: Annotated[int, Whole("bytes", least=STICK, most=1 << 48)]
    bytes_per_cycle: ByteRate
    write_bytes_per_cycle: ByteRate
    again_bytes_per_cycle: ByteRate
    side_bytes_per_cycle: ByteRate
    burst_bytes: Annotated[int, Whole("bytes")]
    granule_bytes: Annotated[int, Whole("bytes")]
    batch_bytes: Annotated[int, Whole("bytes")]
    turnaround_cycles: Cycles
    side_turn_cycles: Cycles
    latency_cycles: Cycles
    window_bytes: Annotated[int, Whole("bytes")]
    request_cycles: Cycles
    side_request_cycles: Cycles
    shared_run_cycles: Cycles
    together_max: Annotated[int, Whole("cores", most=MASK_BITS)]
    near_bytes: Annotated[int, Whole("bytes")]
    far_bytes: Annotated[int, Whole("bytes")]
    far_cycles: Cycles
    bank_bytes: Annotated[int, Whole("bytes")]
    span_bytes: Annotated[int, Whole("bytes", most=1 << 48)]
    multicast_max: Annotated[int, Whole("cores", most=MASK_BITS)]

    def bus_ticks(
        self,
        nbytes: Ints,
        run_bytes: Ints,
        writes: bool = False,
        gap_bytes: int | None = None,
        apart_bytes: int = 0,
    ) -> Ints:
        """Bus time of a transfer in ticks, ``bytes_per_cycle`` of which make a core cycle.

        A tick carries one byte that is read; a byte that is written takes longer. Each contiguous
        run of ``run_bytes`` (at least 1) shorter than a burst costs the part of ``request_cycles``
        that it falls short of one; half of it when the next begins in the same burst, ``gap_bytes``
        on, and less when it begins in the same granule. Of a granule that is split every part costs
        what all do.
        """
        requests: Ints = self._short_runs(nbytes, run_bytes) * self.request_cycles
        idle = self.burst_bytes - run_bytes  # of a burst; not used when there is none
        if writes:
            nbytes = -(-nbytes * self.bytes_per_cycle // self.write_bytes_per_cycle)
        near = gap_bytes is not None and gap_bytes < self.burst_bytes
        granules = self.granule_bytes * (NEAR_EASES if near else 1)
        opened = self._opened(gap_bytes)
        if self.splits(gap_bytes, apart_bytes):
            opened = opened * self.granule_bytes // apart_bytes
        lost: Ints = requests * self.bytes_per_cycle * opened * idle
        return nbytes + lost // (granules * self.burst_bytes)

    def splits(self, gap_bytes: int | None, apart_bytes: int) -> bool:
        """Whether cores whose places are ``apart_bytes`` from one another, 0 for the same place,
        read parts of the same granules, each walking from burst to burst, ``gap_bytes`` at a time:
        one opens anew what another has just left."""
        far = gap_bytes is not None and gap_bytes >= self.burst_bytes
        return far and 0 < apart_bytes < self.granule_bytes

    def _opened(self, gap_bytes: int | None) -> int:
        """Bytes of granules that memory opens for a short run: those up to the next one, at most a
        whole granule."""
        return min(self.granule_bytes, gap_bytes or self.granule_bytes)

    def _short_runs(self, nbytes: Ints, run_bytes: Ints) -> Ints:
        """Contiguous runs shorter than a burst."""
        return -(-nbytes // run_bytes) * (run_bytes < self.burst_bytes)

    def again_ticks(self, nbytes: Ints, run_bytes: Ints) -> Ints:
        """Bus ticks that a read of ``nbytes`` takes longer when the kernel's loops have read the
        same before. Runs shorter than a burst are requested one by one and lose nothing more."""
        slower = max(0, self.bytes_per_cycle - self.again_bytes_per_cycle)
        whole: Ints = nbytes * (run_bytes >= self.burst_bytes)
        return -(-whole * slower // self.again_bytes_per_cycle)

    @property
    def takers_max(self) -> int:
        """Cores that one passage over the bus can serve."""
        return min(self.multicast_max, self.together_max)

    @property
    def core_bytes_per_cycle(self) -> int:
        """What one core moves one way in a cycle at most, however idle the bus is."""
        return max(1, min(self.bytes_per_cycle, self.window_bytes // max(1, self.latency_cycles)))

    def spread_ticks(self, nbytes: Ints, apart_bytes: int, readers: int, cores: int) -> Ints:
        """Bus ticks that a read of ``nbytes`` loses because ``readers`` of the card's ``cores`` are
        at it, ``apart_bytes`` from one another.

        Cores that read close together share open memory rows. Up to ``near_bytes`` nothing is lost,
        from ``far_bytes`` on ``far_cycles`` a burst if all cores read, between them in proportion
        to the logarithm.
        """
        most = self.far_cycles * self.bytes_per_cycle * readers
        lost: Ints = nbytes * most * self.spread(apart_bytes)
        return lost // (SPREAD_STEPS * self.burst_bytes * cores)

    def spread(self, apart_bytes: int) -> int:
        """How far apart, from 0 (near) to SPREAD_STEPS (far)."""
        reach = _log2(self.far_bytes) - _log2(self.near_bytes)
        beyond = min(_log2(apart_bytes) - _log2(self.near_bytes), reach)
        return SPREAD_STEPS * max(0, beyond) // max(1, reach)

    def turnaround_ticks(
        self, nbytes: Ints, batch_bytes: Ints | None = None, lone_side: bool = False
    ) -> Ints:
        """Bus ticks lost when ``nbytes`` of one direction alternate with as many of the other:
        there and back for each batch.

        ``batch_bytes``: what is moved one way at a time; the controller gathers a burst at least
        and moves ``self.batch_bytes`` at most before it turns. ``lone_side``: only cores of one
        half of the ring wait, so that nothing passes while the link to them turns.
        """
        batch = self.batch_bytes if batch_bytes is None else batch_bytes
        batch = batch + (self.burst_bytes - batch) * (batch < self.burst_bytes)
        batch = batch - (batch - self.batch_bytes) * (batch > self.batch_bytes)
        turns = 2 * self.turnaround_cycles + lone_side * self.side_turn_cycles
        return -(-nbytes * turns * self.bytes_per_cycle // batch)

    def held_cycles(self, nbytes: Ints) -> Ints:
        """Cycles a memory unit is still occupied when ``nbytes`` have left the bus: a core has
        ``window_bytes`` on their way, each for ``latency_cycles``, after which all have come."""
        held: Ints = nbytes * self.latency_cycles // self.window_bytes
        return held - (held - self.latency_cycles) * (held > self.latency_cycles)

    def asking_cycles(self, nbytes: Ints, run_bytes: Ints, gap_bytes: int | None = None) -> Ints:
        """Cycles for which the requests of a transfer take the request link of their half of the
        ring: one for each short run. Runs that are near are asked for together, as bursts are, at
        no cost worth counting."""
        near = gap_bytes is not None and gap_bytes < self.near_bytes
        runs: Ints = self._short_runs(nbytes, run_bytes) * (not near)
        return runs * self.side_request_cycles

    def turns(self, cores: Ints) -> Ints:
        """How often a load for ``cores`` passes the bus, which ``together_max`` take at once."""
        return -(-cores // self.together_max)

    def shared_cycles(
        self, nbytes: Ints, run_bytes: Ints, cores: Ints, gap_bytes: int | None = None
    ) -> Ints:
        """Least cycles of a load that several ``cores`` take: for each short run all of a turn must
        be ready. Runs that begin in the same granule are one."""
        runs: Ints = self._short_runs(nbytes, run_bytes) * self.turns(cores)
        return runs * self.shared_run_cycles * self._opened(gap_bytes) // self.granule_bytes

    def split_cycles(
        self, nbytes: Ints, run_bytes: Ints, gap_bytes: int | None, apart_bytes: int
    ) -> Ints:
        """Least cycles of a load from granules of which other cores read other parts: a latency for
        each short run, because none is asked for before the last has come."""
        split = self.splits(gap_bytes, apart_bytes)
        return self._short_runs(nbytes, run_bytes) * (self.latency_cycles * split)

    def bank_cycles(self, nbytes: Ints, run_bytes: Ints, gap_bytes: int | None) -> Ints:
        """Least cycles of a load whose runs begin whole multiples of ``bank_bytes`` apart: each is
        asked for when the one before has come, so that it takes its time on the link of its half
        and a latency. 0 for other loads, and for runs shorter than a burst, which have their own
        requests."""
        alone = gap_bytes is not None and gap_bytes % self.bank_bytes == 0
        runs = -(-nbytes // run_bytes)
        cycles: Ints = nbytes // self.side_bytes_per_cycle + runs * self.latency_cycles
        return cycles * alone * (run_bytes >= self.burst_bytes)

    def bus_cycles(self, read_ticks: int, write_ticks: int) -> int:
        """Cycles the bus needs for a mix of reads and writes that are pending together (their
        ticks from ``bus_ticks``; the payload dominates, so ticks stand for bytes here)."""
        turns = self.turnaround_ticks(min(read_ticks, write_ticks))
        return -(-(read_ticks + write_ticks + turns) // self.bytes_per_cycle)


@dataclass(frozen=True)
class Ring:
    bytes_per_cycle: Annotated[int, Whole("bytes a ring cycle")]
    clock_mhz: Mhz
    hop_cycles: Annotated[int, Whole("ring cycles", least=0)]
    fragments_max: Annotated[int, Whole("fragments", most=1 << 10)]
    start_cycles: Cycles
    run_cycles: Cycles
    psum_bytes_per_cycle: Annotated[int, Whole("bytes a ring cycle")]

    def held_cycles(self, nbytes: Ints, run_bytes: Ints) -> Ints:
        """Core cycles that a send of ``nbytes`` in contiguous runs takes beside its bytes."""
        return -(-nbytes // run_bytes) * self.run_cycles

    def payload_cycles(self, nbytes: Ints) -> Ints:
        """Ring cycles that ``nbytes`` occupy each segment they pass."""
        return -(-nbytes // self.bytes_per_cycle)

    def psum_payload_cycles(self, nbytes: Ints) -> Ints:
        """Ring cycles that ``nbytes`` of partial sums occupy the segment to a neighbour."""
        return -(-nbytes // self.psum_bytes_per_cycle)

    def to_core(self, ring_cycle: Ints, core_mhz: int) -> Ints:
        """The first core cycle that begins no earlier than the ring cycle."""
        return -(-ring_cycle * core_mhz // self.clock_mhz)

    def send_cycles(self, nbytes: int, hops: int, core_mhz: int) -> int:
        """Core cycles from issue to the arrival of the last byte ``hops`` stops away, on an idle
        ring."""
        ring_cycles = self.payload_cycles(nbytes) + hops * self.hop_cycles
        return self.start_cycles + self.to_core(ring_cycles, core_mhz)

    def psum_cycles(self, nbytes: Ints, core_mhz: int) -> Ints:
        """Core cycles from issue until ``nbytes`` of partial sums are added on the neighbouring
        core, on an idle ring."""
        ring_cycles = self.psum_payload_cycles(nbytes) + self.hop_cycles
        return self.start_cycles + self.to_core(ring_cycles, core_mhz)


@dataclass(frozen=True)
class Pt:
    macs_per_cycle: Annotated[int, Whole("16-bit multiply-accumulates a cycle")]
    rows: Annotated[int, Whole("output rows of a pass")]
    k_step: Annotated[int, Whole("inner elements")]
    fill_cycles: Cycles
    acc_groups: Annotated[int, Whole("groups of 64 lanes", most=1 << 20)]
    ksplit_macs_per_cycle: Annotated[int, Whole("16-bit multiply-accumulates a cycle")]
    mac_eighths: Annotated[
        Mapping[str, int], Table(Whole("eighths of a 16-bit multiply-accumulate"), tuple(FORMATS))
    ]

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if self.ksplit_macs_per_cycle > self.macs_per_cycle:
            yield "ksplit_macs_per_cycle", (
                f"is {self.ksplit_macs_per_cycle}, more than the {self.macs_per_cycle} of all "
                "corelets"
            )

    def mm_cycles(
        self,
        rows: Ints,
        taps: Ints,
        k: Ints,
        n: Ints,
        a: str = "dl16",
        b: str = "dl16",
        partial: bool = False,
    ) -> Ints:
        """Cycles of one ``mm``: ``rows`` output rows (rounded up to passes), ``taps`` window
        positions, ``k`` inner elements a tap (rounded up to ``k_step``), ``n`` groups of 64 output
        columns.

        ``a``, ``b``: formats of the factors; the dearer one sets the rate. ``partial``: its sums go
        on over a partial-sum ring, which fewer corelets reach. KeyError for a format that
        ``mac_eighths`` does not name. Nothing to do takes no time.
        """
        rows_up = -(-rows // self.rows) * self.rows
        k_up = -(-k // self.k_step) * self.k_step
        macs = rows_up * taps * k_up * n * LANES
        eighths = max(self.mac_eighths[a], self.mac_eighths[b])
        rate = self.ksplit_macs_per_cycle if partial else self.macs_per_cycle
        fills = taps * -(-k // LANES) * n * (rows > 0)
        return -(-macs * eighths // (8 * rate)) + fills * self.fill_cycles

    def mm_port_bytes(
        self, rows: Ints, taps: Ints, k: Ints, n: Ints, a: str = "dl16", b: str = "dl16"
    ) -> Ints:
        """Scratchpad bytes one ``mm`` reads: ``a`` is streamed once for each group of columns,
        ``b`` is read once and stays in the array."""
        a_groups = rows * taps * -(-k // LANES) * n
        bits = a_groups * format_of(a).bits + taps * k * n * format_of(b).bits
        return bits * LANES // 8


@dataclass(frozen=True)
class Sfp:
    groups_per_cycle: Annotated[int, Whole("groups of 64 lanes a cycle")]
    start_cycles: Cycles
    switch_cycles: Cycles
    shuffle_bytes_per_cycle: ByteRate
    shuffle_run_cycles: Cycles
    shuffle_stick_cycles: Cycles
    lane_reduce_cycles: Cycles
    lane_spread_cycles: Cycles
    cycles: Annotated[Mapping[str, int], Table(Whole("cycles a group"), tuple(MICRO_OPS))]

    def group_cycles(self, ops: Iterable[str], reduces: bool = False) -> int:
        """Cycles one corelet spends on a 64-lane group: the micro-ops' costs, and one for the fold
        of a reduction; at least 1."""
        return max(1, sum(self.cycles.get(op, 1) for op in ops) + reduces)

    def vec_cycles(
        self, points: Ints, group_cycles: int, folds: bool = False, spreads: int = 0,
        chain: Ints | int = 0,
    ) -> Ints:
        """Cycles of one ``vec`` over ``points`` groups of ``group_cycles`` each.

        ``folds``: each group is folded into one lane; ``spreads``: operands of which one lane is
        spread over all 64 for each group; ``chain``: groups that are reduced into one, each when
        the one before has left the pipeline. Nothing to do takes no time.
        """
        lanes = folds * self.lane_reduce_cycles + spreads * self.lane_spread_cycles
        work, waits = points * (group_cycles + lanes), chain * self.start_cycles
        work = work + (waits - work) * (waits > work)
        return -(-work // self.groups_per_cycle) + (points > 0) * self.start_cycles

    def shuffle_cycles(self, nbytes: Ints, run_bytes: Ints, sticks: Ints) -> Ints:
        """Cycles of one ``shuf`` or ``fill`` of ``nbytes`` in contiguous runs of ``run_bytes`` (at
        least 1) that land in ``sticks`` destination sticks.

        Each run shorter than a stick costs ``shuffle_run_cycles`` more, but the unit holds a block
        of sticks and turns it, so no destination stick costs more than ``shuffle_stick_cycles``.
        """
        runs: Ints = -(-nbytes // run_bytes) * (run_bytes < STICK) * self.shuffle_run_cycles
        turned: Ints = sticks * self.shuffle_stick_cycles
        short: Ints = runs - (runs - turned) * (runs > turned)
        start: Ints = (nbytes > 0) * self.start_cycles
        return -(-nbytes // self.shuffle_bytes_per_cycle) + short + start


@dataclass(frozen=True)
class Launching:
    start_cycles: Cycles
    loop_max: Annotated[int, Whole("trips", most=(1 << 31) - 1)]


@dataclass(frozen=True)
class DeviceSpec:
    """All numbers of one machine; see devices/spyre.toml for unit, meaning and source of each."""

    name: Annotated[str, Word("what the device is called")]
    clock_mhz: Mhz
    cores: Cores
    lx: Lx
    hbm: Hbm
    ring: Ring
    pt: Pt
    sfp: Sfp
    launch: Launching
    host: Host
    text: str  # the TOML it was read from, kept so that a program can carry its machine

    def us(self, cycles: float) -> float:
        """Core cycles -> microseconds."""
        return cycles / self.clock_mhz

    def host_cycles(self, ns: int) -> int:
        """Nanoseconds of the host -> core cycles begun in them."""
        return -(-ns * self.clock_mhz // 1000)

    def mm_total_cycles(
        self,
        rows: Ints,
        taps: Ints,
        k: Ints,
        n: Ints,
        a: str = "dl16",
        b: str = "dl16",
        partial: bool = False,
    ) -> Ints:
        """Cycles one ``mm`` holds the matrix unit when nothing else uses the scratchpad port: with
        few rows reading ``b`` takes longer than the arithmetic. Arguments as ``Pt.mm_cycles``."""
        port = self.pt.mm_port_bytes(rows, taps, k, n, a, b)
        return self.lx.stretched(self.pt.mm_cycles(rows, taps, k, n, a, b, partial), port)

    def vec_total_cycles(
        self,
        points: Ints,
        group_cycles: int,
        port_bytes: Ints,
        folds: bool = False,
        spreads: int = 0,
        chain: Ints | int = 0,
    ) -> Ints:
        """Cycles one ``vec`` holds the vector unit when nothing else uses the scratchpad port.

        ``port_bytes``: what it reads and writes there, for each operand (those of an epilogue too)
        the groups it really visits times ``Lx.group_bytes``; accumulators have their own port.
        The rest as ``Sfp.vec_cycles``.
        """
        cycles = self.sfp.vec_cycles(points, group_cycles, folds, spreads, chain)
        return self.lx.stretched(cycles, port_bytes)


def _log2(value: int) -> int:
    """1024 log2(value), straight between powers of two; whole numbers on every machine."""
    exponent = max(1, value).bit_length() - 1
    return (exponent << 10) + ((max(1, value) << 10 >> exponent) - (1 << 10))


def builtin_devices() -> list[str]:
    """Names of the device files that ship with the package."""
    folder = resources.files(__package__) / "devices"
    names = (path.name for path in folder.iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def load_device(name: str = "spyre") -> DeviceSpec:
    """A built-in device by name, or a ``.toml`` file by path. DeviceError lists everything wrong
    with it."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise DeviceError(f"device file {name} does not exist")
        if path.stat().st_size > MAX_TOML_BYTES:
            raise DeviceError(f"device file {name} is larger than {MAX_TOML_BYTES} bytes")
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise DeviceError(f"{name}, line {line}: is not UTF-8 text: {error.reason}") from None
        return parse_device(text, name)
    if name not in builtin_devices():
        raise DeviceError(
            f"no device is called {name!r}; built in: {', '.join(builtin_devices())}; or give a "
            "path that ends in .toml"
        )
    text = (resources.files(__package__) / "devices" / f"{name}.toml").read_text(encoding="utf-8")
    return parse_device(text, name)


def parse_device(text: str, origin: str = "device") -> DeviceSpec:
    """DeviceSpec from TOML text. DeviceError tells every missing, unknown or impossible parameter
    at once, with its unit and line."""
    return read_spec(DeviceSpec, text, origin, {"text": text})
