"""The machine as data. ``DeviceSpec`` is read from a TOML file; planner and simulator price time
with the same numbers and the same methods.

The pricing methods take ints or int64 arrays (elementwise) and stay in whole numbers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from .errors import DeviceError
from .formats import FORMATS, format_of
from .isa import LANES, MICRO_OPS, STICK

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = TypeVar("Ints", int, NDArray[np.int64])

MAX_TOML_BYTES = 1 << 20

MOST: dict[str, int] = {
    "cores.count": 63, "cores.corelets": 1 << 10,
    "lx.bytes": 1 << 26, "lx.reserved_bytes": 1 << 26, "pt.acc_groups": 1 << 20,
    "hbm.bytes": 1 << 48, "hbm.span_bytes": 1 << 48, "hbm.multicast_max": 63,
    "ring.fragments_max": 1 << 10, "launch.loop_max": (1 << 31) - 1,
}
"""The greatest value of a parameter, where it is not MOST_ELSE. A mask of cores is the
non-negative half of 64 bits; the others keep products of parameters far inside 64 bits."""

MOST_ELSE = 1 << 20


@dataclass(frozen=True)
class Cores:
    count: int
    corelets: int


@dataclass(frozen=True)
class Lx:
    bytes: int
    reserved_bytes: int
    port_bytes_per_cycle: int

    @property
    def usable_bytes(self) -> int:
        return self.bytes - self.reserved_bytes

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
    bytes: int
    bytes_per_cycle: int
    core_bytes_per_cycle: int
    burst_bytes: int
    turnaround_cycles: int
    latency_cycles: int
    request_cycles: int
    span_bytes: int
    multicast_max: int

    def bus_ticks(self, nbytes: Ints, run_bytes: Ints) -> Ints:
        """Bus time of a transfer in ticks, ``bytes_per_cycle`` of which make a core cycle.

        A tick carries one byte. Each contiguous run of ``run_bytes`` (at least 1) that is shorter
        than a burst costs ``request_cycles`` more.
        """
        requests: Ints = -(-nbytes // run_bytes) * (run_bytes < self.burst_bytes)
        return nbytes + requests * (self.request_cycles * self.bytes_per_cycle)

    def turnaround_ticks(self, nbytes: Ints) -> Ints:
        """Bus ticks lost when ``nbytes`` of one direction alternate, burst by burst, with as many
        of the other: there and back for each burst."""
        return -(-nbytes * 2 * self.turnaround_cycles * self.bytes_per_cycle // self.burst_bytes)

    def core_cycles(self, nbytes: Ints) -> Ints:
        """Least cycles in which one core moves ``nbytes``, however idle the bus is."""
        return -(-nbytes // self.core_bytes_per_cycle)

    def bus_cycles(self, read_ticks: int, write_ticks: int) -> int:
        """Cycles the bus needs for a mix of reads and writes that are pending together (their
        ticks from ``bus_ticks``; the payload dominates, so ticks stand for bytes here)."""
        turns = self.turnaround_ticks(min(read_ticks, write_ticks))
        return -(-(read_ticks + write_ticks + turns) // self.bytes_per_cycle)


@dataclass(frozen=True)
class Ring:
    bytes_per_cycle: int
    clock_mhz: int
    hop_cycles: int
    fragments_max: int
    start_cycles: int

    def payload_cycles(self, nbytes: Ints) -> Ints:
        """Ring cycles that ``nbytes`` occupy each segment they pass."""
        return -(-nbytes // self.bytes_per_cycle)

    def to_ring(self, core_cycle: int, core_mhz: int) -> int:
        """The first ring cycle that begins no earlier than the core cycle."""
        return -(-core_cycle * self.clock_mhz // core_mhz)

    def to_core(self, ring_cycle: int, core_mhz: int) -> int:
        """The first core cycle that begins no earlier than the ring cycle."""
        return -(-ring_cycle * core_mhz // self.clock_mhz)

    def send_cycles(self, nbytes: int, hops: int, core_mhz: int) -> int:
        """Core cycles from issue to the arrival of the last byte ``hops`` stops away, on an idle
        ring."""
        ring_cycles = self.payload_cycles(nbytes) + hops * self.hop_cycles
        return self.start_cycles + self.to_core(ring_cycles, core_mhz)


@dataclass(frozen=True)
class Pt:
    macs_per_cycle: int
    rows: int
    k_step: int
    fill_cycles: int
    acc_groups: int
    mac_eighths: Mapping[str, int]

    def mm_cycles(
        self, rows: Ints, taps: Ints, k: Ints, n: Ints, a: str = "dl16", b: str = "dl16"
    ) -> Ints:
        """Cycles of one ``mm``: ``rows`` output rows (rounded up to passes), ``taps`` window
        positions, ``k`` inner elements a tap (rounded up to ``k_step``), ``n`` groups of 64 output
        columns.

        ``a``, ``b``: formats of the factors; the dearer one sets the rate. KeyError for a format
        that ``mac_eighths`` does not name. Nothing to do takes no time.
        """
        rows_up = -(-rows // self.rows) * self.rows
        k_up = -(-k // self.k_step) * self.k_step
        macs = rows_up * taps * k_up * n * LANES
        eighths = max(self.mac_eighths[a], self.mac_eighths[b])
        return -(-macs * eighths // (8 * self.macs_per_cycle)) + (macs > 0) * self.fill_cycles

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
    groups_per_cycle: int
    start_cycles: int
    shuffle_bytes_per_cycle: int
    shuffle_run_cycles: int
    shuffle_stick_cycles: int
    lane_reduce_cycles: int
    cycles: Mapping[str, int]

    def group_cycles(self, ops: Iterable[str], reduces: bool = False) -> int:
        """Cycles one corelet spends on a 64-lane group: the micro-ops' costs, and one for the fold
        of a reduction; at least 1."""
        return max(1, sum(self.cycles.get(op, 1) for op in ops) + reduces)

    def vec_cycles(self, points: Ints, group_cycles: int, results: Ints | None = None) -> Ints:
        """Cycles of one ``vec`` over ``points`` groups of ``group_cycles`` each.

        ``results``: for a reduction over the lanes, how many groups are folded into one lane each.
        Nothing to do takes no time.
        """
        work = points * group_cycles
        if results is not None:
            work = work + results * self.lane_reduce_cycles
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
    start_cycles: int
    loop_max: int


@dataclass(frozen=True)
class DeviceSpec:
    """All numbers of one machine; see devices/spyre.toml for unit, meaning and source of each."""

    name: str
    clock_mhz: int
    cores: Cores
    lx: Lx
    hbm: Hbm
    ring: Ring
    pt: Pt
    sfp: Sfp
    launch: Launching
    text: str  # the TOML it was read from, kept so that a program can carry its machine

    def us(self, cycles: float) -> float:
        """Core cycles -> microseconds."""
        return cycles / self.clock_mhz

    def mm_total_cycles(
        self, rows: Ints, taps: Ints, k: Ints, n: Ints, a: str = "dl16", b: str = "dl16"
    ) -> Ints:
        """Cycles one ``mm`` holds the matrix unit when nothing else uses the scratchpad port: with
        few rows reading ``b`` takes longer than the arithmetic. Arguments as ``Pt.mm_cycles``."""
        port = self.pt.mm_port_bytes(rows, taps, k, n, a, b)
        return self.lx.stretched(self.pt.mm_cycles(rows, taps, k, n, a, b), port)

    def vec_total_cycles(
        self, points: Ints, group_cycles: int, port_bytes: Ints, results: Ints | None = None
    ) -> Ints:
        """Cycles one ``vec`` holds the vector unit when nothing else uses the scratchpad port.

        ``port_bytes``: what it reads and writes there, for each operand (those of an epilogue too)
        the groups it really visits times ``Lx.group_bytes``; accumulators have their own port.
        The rest as ``Sfp.vec_cycles``.
        """
        return self.lx.stretched(self.sfp.vec_cycles(points, group_cycles, results), port_bytes)


_SECTIONS: dict[str, type[Any]] = {
    "cores": Cores, "lx": Lx, "hbm": Hbm, "ring": Ring, "pt": Pt, "sfp": Sfp, "launch": Launching,
}

_TABLES: dict[str, Iterable[str]] = {"cycles": MICRO_OPS, "mac_eighths": FORMATS}
"""Parameters that are tables, and the keys they may have."""


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
            raise DeviceError(f"device file {name} is not UTF-8 text: {error}") from None
        return parse_device(text, name)
    if name not in builtin_devices():
        raise DeviceError(
            f"no device is called {name!r}; built in: {', '.join(builtin_devices())}; or give a "
            "path that ends in .toml"
        )
    text = (resources.files(__package__) / "devices" / f"{name}.toml").read_text(encoding="utf-8")
    return parse_device(text, name)


def parse_device(text: str, origin: str = "device") -> DeviceSpec:
    """DeviceSpec from TOML text. DeviceError names every missing, unknown or impossible parameter
    at once: times may be 0, all else is at least 1, and nothing exceeds its entry in MOST."""
    try:
        data = tomllib.loads(text)
    except ValueError as error:  # a syntax error, or a number of too many digits
        raise DeviceError(f"{origin}: not valid TOML: {error}") from None
    except RecursionError:
        raise DeviceError(f"{origin}: not valid TOML: its brackets nest too deep") from None
    problems: list[str] = []
    name = data.pop("name", "")
    if not isinstance(name, str) or not name:
        problems.append("name is missing or not a string")
    clock = data.pop("clock_mhz", None)
    if not _whole(clock) or clock < 1:
        problems.append("clock_mhz is missing or not a positive whole number")
    elif clock > MOST_ELSE:
        problems.append(_beyond("clock_mhz", clock, MOST_ELSE))
    sections = {
        key: _section(key, cls, data.pop(key, None), problems) for key, cls in _SECTIONS.items()
    }
    problems += [f"[{key}] is not a section of a device file" for key in data]
    lx = sections["lx"]
    if isinstance(lx, Lx) and lx.usable_bytes < STICK:
        problems.append(
            f"lx.reserved_bytes is {lx.reserved_bytes} of {lx.bytes} bytes, which leaves no stick"
        )
    if problems:
        raise DeviceError(f"{origin}: " + "; ".join(problems))
    return DeviceSpec(name=name, clock_mhz=clock, text=text, **sections)


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _section(key: str, cls: type[Any], table: object, problems: list[str]) -> Any:
    if not isinstance(table, dict):
        problems.append(f"section [{key}] is missing")
        return None
    values: dict[str, Any] = {}
    for f in fields(cls):
        value = table.pop(f.name, None)
        least = 0 if f.name.endswith("_cycles") or f.name == "reserved_bytes" else 1
        if f.name in _TABLES:
            problems += _table_problems(f"{key}.{f.name}", value, _TABLES[f.name])
        elif not _whole(value) or value < least:
            problems.append(f"{key}.{f.name} is missing or not a whole number of at least {least}")
        elif value > (most := MOST.get(f"{key}.{f.name}", MOST_ELSE)):
            problems.append(_beyond(f"{key}.{f.name}", value, most))
        values[f.name] = value
    problems += [f"{key}.{extra} is not a parameter" for extra in table]
    return None if problems else cls(**values)


def _table_problems(name: str, table: object, known: Iterable[str]) -> list[str]:
    if not isinstance(table, dict):
        return [f"{name} is missing or not a table of whole numbers"]
    names = tuple(known)
    wrong = [f"{name}.{k} is none of {', '.join(names)}" for k in table if k not in names]
    for k, v in table.items():
        if not _whole(v) or v < 1:
            wrong.append(f"{name}.{k} is not a whole number of at least 1")
        elif v > MOST_ELSE:
            wrong.append(_beyond(f"{name}.{k}", v, MOST_ELSE))
    return wrong


def _beyond(name: str, value: int, most: int) -> str:
    shown = value if value < 1 << 128 else "a number of more than 38 digits"
    return f"{name} is {shown}, the most that is simulated is {most}"
