"""A device as plain values, so that some can be changed by their dotted names; and back to a
device, with TOML text that says the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .device import DeviceSpec
from .device_file import Rule, Section, Table, Whole, read_values

ROOT = Section(DeviceSpec)


def parameters() -> dict[str, Whole]:
    """Every number that a device file may hold, by its dotted name, in the order of the file:
    ``{"clock_mhz": ..., "cores.count": ..., "sfp.cycles.exp": ...}``."""
    return dict(_numbers(ROOT, ""))


def _numbers(rule: Rule, prefix: str) -> Iterator[tuple[str, Whole]]:
    inner: Mapping[str, Rule] = {}
    if isinstance(rule, Section):
        inner = rule.rules
    elif isinstance(rule, Table):
        inner = dict.fromkeys(rule.keys, rule.each)
    elif isinstance(rule, Whole):
        yield prefix, rule
    for name, each in inner.items():
        yield from _numbers(each, f"{prefix}.{name}" if prefix else name)


def values_of(device: DeviceSpec) -> dict[str, Any]:
    """What the device's file holds: values, and dicts of them for sections and tables."""
    return _values(ROOT, device)


def _values(section: Section, spec: object) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, rule in section.rules.items():
        value = getattr(spec, name)
        if isinstance(rule, Section):
            found[name] = _values(rule, value)
        else:
            found[name] = dict(value) if isinstance(rule, Table) else value
    return found


def value_at(values: Mapping[str, Any], name: str) -> Any:
    """The value with that dotted name; None for an entry that a table does not have."""
    at: Any = values
    for key in name.split("."):
        at = at.get(key)
    return at


def changed(values: Mapping[str, Any], changes: Mapping[str, int]) -> dict[str, Any]:
    """The values with others for some, by dotted names that ``parameters`` has."""
    new = _copy(values)
    for name, value in changes.items():
        *path, last = name.split(".")
        at = new
        for key in path:
            at = at[key]
        at[last] = value
    return new


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copy(v) if isinstance(v, Mapping) else v for k, v in values.items()}


def device_of(values: Mapping[str, Any], origin: str) -> DeviceSpec:
    """The device with these values. DeviceError, naming ``origin``, tells all that is impossible
    or contradicts each other."""
    return read_values(DeviceSpec, values, origin, {"text": toml(values)})


def toml(values: Mapping[str, Any]) -> str:
    """The values as TOML text, without comments."""
    return "".join(f"{line}\n" for line in _lines(values, ""))


def _lines(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    if prefix:
        yield f"[{prefix}]"
    for key, value in values.items():
        if not isinstance(value, Mapping):
            yield f"{key} = {_quoted(value) if isinstance(value, str) else value}"
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _lines(value, f"{prefix}.{key}" if prefix else key)


def _quoted(text: str) -> str:
    escaped = (f"\\u{ord(c):04x}" if c in '"\\' or c < " " or c == "\x7f" else c for c in text)
    return f'"{"".join(escaped)}"'
