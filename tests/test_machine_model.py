"""docs/machine-model.md says what the device file and the pricing methods say."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from spyrec.sim import device
from spyrec.sim.device import DeviceSpec, load_device

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "machine-model.md").read_text("utf-8")
FILE = (resources.files("spyrec.sim") / "devices" / "spyre.toml").read_text("utf-8")
ROW = re.compile(r"^\| `([\w.]+)` \| (\d+) \| (.+) \| ([^|]+) \|$", re.MULTILINE)
SETTING = re.compile(r"^(\w+) = (\d+) *(?:#(.*))?$")
PRICING = re.compile(r"_(cycles|ticks|bytes)$|^to_|^stretched$")
OTHER = {"usable_bytes"}  # capacity, not a price


def parameters(table: dict[str, object], prefix: str = "") -> Iterator[tuple[str, int]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from parameters(value, f"{prefix}{key}.")
        elif isinstance(value, int):
            yield prefix + key, value


def tags(text: str) -> set[str]:
    return set(re.findall(r"\b(TS|F|I|free)\b", text))


def test_the_table_is_the_device_file() -> None:
    rows = {name: int(value) for name, value, _, _ in ROW.findall(PAGE)}
    assert rows == dict(parameters(tomllib.loads(FILE)))
    assert list(rows) == [name for name, _ in parameters(tomllib.loads(FILE))]


def test_sources_are_those_of_the_device_file() -> None:
    section, wrong = "", []
    listed = {name: tags(source) for name, _, _, source in ROW.findall(PAGE)}
    for line in FILE.splitlines():
        if line.startswith("["):
            section = line[1 : line.index("]")] + "."
        elif (found := SETTING.match(line)) and found[3]:
            name = section + found[1]
            if tags(found[3]) != listed[name]:
                wrong.append(f"{name}: {tags(found[3])} in the file, {listed[name]} on the page")
    assert wrong == []
    assert all(listed.values())


def test_every_pricing_method_has_its_formula() -> None:
    classes = [c for _, c in inspect.getmembers(device, inspect.isclass)
               if c.__module__ == device.__name__]  # fmt: skip
    methods = {
        f"{c.__name__}.{name}"
        for c in classes for name in vars(c) if PRICING.search(name) and name not in OTHER
        and not isinstance(inspect.getattr_static(c, name), (int, property))
    }  # fmt: skip
    methods -= {f"{c.__name__}.{f}" for c in classes for f in getattr(c, "__annotations__", {})}
    assert len(methods) >= 14
    named = set(re.findall(r"`(\w+\.\w+)`", PAGE))
    assert methods - named == set()


def test_the_turned_block_of_the_page() -> None:
    spec: DeviceSpec = load_device()
    block = 64 * 64 * 2
    cycles = spec.sfp.shuffle_cycles(block, 2, 64) - spec.sfp.start_cycles
    # 32 cores turn faster than the bus brings blocks in and takes them out again
    assert block / cycles * spec.cores.count > spec.hbm.bytes_per_cycle / 2
