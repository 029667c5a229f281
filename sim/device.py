"""The machine as data. ``DeviceSpec`` is read from a TOML file; planner and simulator price time with the same numbers."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from .errors import DeviceError

MAX_TOML_BYTES = 1 << 20


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


@dataclass(frozen=True)
class Ring:
    bytes_per_cycle: int
    clock_mhz: int
    hop_cycles: int
    fragments_max: int
    start_cycles: int


@dataclass(frozen=True)
class Pt:
    macs_per_cycle: int
    rows: int
    k_step: int
    fill_cycles: int
    acc_groups: int


@dataclass(frozen=True)
class Sfp:
    groups_per_cycle: int
    start_cycles: int
    shuffle_bytes_per_cycle: int
    shuffle_run_cycles: int
    lane_reduce_cycles: int
    cycles: Mapping[str, int]


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


_SECTIONS: dict[str, type[Any]] = {
    "cores": Cores, "lx": Lx, "hbm": Hbm, "ring": Ring, "pt": Pt, "sfp": Sfp, "launch": Launching,
}


def builtin_devices() -> list[str]:
    """Names of the device files that ship with the package."""
    folder = resources.files(__package__) / "devices"
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))


def load_device(name: str = "spyre") -> DeviceSpec:
    """A built-in device by name, or a ``.toml`` file by path. DeviceError lists everything wrong with it."""
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
            f"no device is called {name!r}; built in: {', '.join(builtin_devices())}; or give a path that ends in .toml"
        )
    text = (resources.files(__package__) / "devices" / f"{name}.toml").read_text(encoding="utf-8")
    return parse_device(text, name)


def parse_device(text: str, origin: str = "device") -> DeviceSpec:
    """DeviceSpec from TOML text. DeviceError names every missing, unknown or non-positive parameter at once."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DeviceError(f"{origin}: not valid TOML: {error}") from None
    problems: list[str] = []
    name = data.pop("name", "")
    if not isinstance(name, str) or not name:
        problems.append("name is missing or not a string")
    clock = data.pop("clock_mhz", None)
    if not _whole(clock) or clock < 1:
        problems.append("clock_mhz is missing or not a positive whole number")
    sections = {key: _section(key, cls, data.pop(key, None), problems) for key, cls in _SECTIONS.items()}
    problems += [f"[{key}] is not a section of a device file" for key in data]
    if problems:
        raise DeviceError(f"{origin}: " + "; ".join(problems))
    return DeviceSpec(name=name, clock_mhz=clock, text=text, **sections)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _section(key: str, cls: type[Any], table: object, problems: list[str]) -> Any:
    if not isinstance(table, dict):
        problems.append(f"section [{key}] is missing")
        return None
    values: dict[str, Any] = {}
    for f in fields(cls):
        value = table.pop(f.name, None)
        if f.name == "cycles":
            ok = isinstance(value, dict) and all(_whole(v) and v >= 1 for v in value.values())
        else:
            ok = _whole(value) and value >= 0
        if not ok:
            problems.append(f"{key}.{f.name} is missing or not a whole number")
        values[f.name] = value
    problems += [f"{key}.{extra} is not a parameter" for extra in table]
    return None if problems else cls(**values)
