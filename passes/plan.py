"""The plan: the compiler's decisions as data, read from JSON to pin any of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from spyrec.ir.errors import PassError

KERNEL_KEYS = (
    "parts", "core_order", "buffers", "overlap", "tile", "loops", "keep", "finish",
    "ahead", "why",
)
TENSOR_KEYS = ("stick", "space", "why")
SPACES = ("hbm", "lx")
BUFFERS = (1, 2)
OVERLAPS = ("all", "loads")
FACTOR_LISTS: tuple[list[int], ...] = ([], [0], [1], [0, 1])
MAX_SHOWN = 60  # characters of what a message quotes


@dataclass(frozen=True)
class KernelPins:
    """Decisions for one kernel, dimensions by name. What is left out the passes decide.

    ``parts``: into how many parts a dimension is cut among cores; ``core_order``: divided
    dimensions, slowest core digit first; ``buffers``: slots a stream of tiles has; ``overlap``:
    what is done while another tile is worked on, "all" or "loads" only; ``tile``: elements of a
    dimension in one tile; ``loops``: dimensions with a loop over tiles, outermost first; ``keep``:
    factors of a matrix kernel, by number, whose tiles stay in the scratchpad; ``finish``: the last
    elements of its inner dimension, multiplied so many columns at a time, each piece drained and
    stored while the next is multiplied; with none the loops go to the end; ``ahead``: slots
    of the buffers that its factors stream through.
    """

    parts: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    core_order: tuple[str, ...] | None = None
    buffers: int | None = None
    overlap: str | None = None
    tile: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    loops: tuple[str, ...] | None = None
    keep: tuple[int, ...] | None = None
    finish: Mapping[str, int] | None = None
    ahead: int | None = None


@dataclass(frozen=True)
class TensorPins:
    """Decisions for one tensor: the dimension along the lanes, and the memory it lives in, "hbm"
    or "lx"."""

    stick: int | None = None
    space: str | None = None


@dataclass(frozen=True)
class Plan:
    """Pinned decisions by kernel name and by tensor name."""

    kernels: Mapping[str, KernelPins] = field(default_factory=lambda: MappingProxyType({}))
    tensors: Mapping[str, TensorPins] = field(default_factory=lambda: MappingProxyType({}))


NO_PLAN = Plan()


def parse_plan(data: Mapping[str, Any]) -> Plan:
    """A plan from what its JSON holds: ``{"kernels": {name: {...}}, "tensors": {name: {...}}}``,
    each part optional; ``"why"`` is for readers and ignored.

    PassError listing every place that is not of that form, one a line.
    """
    problems: list[str] = []
    _known_keys("the plan", data, ("kernels", "tensors", "why"), problems)
    kernels = {
        str(name): _kernel(str(name), pins, problems)
        for name, pins in _mapping("kernels", data.get("kernels", {}), problems).items()
    }
    tensors = {
        str(name): _tensor(str(name), pins, problems)
        for name, pins in _mapping("tensors", data.get("tensors", {}), problems).items()
    }
    if problems:
        raise PassError("\n".join(f"plan: {p}" for p in problems))
    return Plan(kernels, tensors)


def _kernel(name: str, data: object, problems: list[str]) -> KernelPins:
    where = f"kernel {name}"
    pins = _mapping(where, data, problems)
    _known_keys(where, pins, KERNEL_KEYS, problems)
    buffers = pins.get("buffers")
    if buffers is not None and not (_whole(buffers, 1) and buffers in BUFFERS):
        problems.append(f"{where}, buffers: expected 1 or 2, got {buffers!r}")
        buffers = None
    overlap = pins.get("overlap")
    if overlap is not None and overlap not in OVERLAPS:
        problems.append(f'{where}, overlap: expected "all" or "loads", got {overlap!r}')
        overlap = None
    ahead = pins.get("ahead")
    if ahead is not None and not _whole(ahead, 2):
        problems.append(f"{where}, ahead: expected a whole number from 2 on, got {ahead!r}")
        ahead = None
    return KernelPins(
        _counts(f"{where}, parts", pins.get("parts", {}), problems),
        _names(f"{where}, core_order", pins.get("core_order"), problems),
        buffers,
        overlap,
        _counts(f"{where}, tile", pins.get("tile", {}), problems),
        _names(f"{where}, loops", pins.get("loops"), problems),
        _factors(f"{where}, keep", pins.get("keep"), problems),
        _counts(f"{where}, finish", pins["finish"], problems) if "finish" in pins else None,
        ahead,
    )


def _tensor(name: str, data: object, problems: list[str]) -> TensorPins:
    where = f"tensor {name}"
    pins = _mapping(where, data, problems)
    _known_keys(where, pins, TENSOR_KEYS, problems)
    stick, space = pins.get("stick"), pins.get("space")
    if stick is not None and not _whole(stick, 0):
        problems.append(
            f"{where}, stick: expected the number of a dimension, counted from 0, got {stick!r}"
        )
        stick = None
    if space is not None and space not in SPACES:
        problems.append(f'{where}, space: expected "lx" or "hbm", got {space!r}')
        space = None
    return TensorPins(stick, space)


def _mapping(where: str, data: object, problems: list[str]) -> Mapping[str, Any]:
    if isinstance(data, Mapping):
        return data
    got = repr(data)
    shown = got if len(got) <= MAX_SHOWN else f"a {type(data).__name__}"
    problems.append(f"{where}: expected an object, got {shown}")
    return {}


def _known_keys(
    where: str, data: Mapping[str, Any], known: tuple[str, ...], problems: list[str]
) -> None:
    for key in data:
        if key not in known:
            problems.append(f"{where} has no part {key!r}; known: {', '.join(known)}")


def _counts(where: str, data: object, problems: list[str]) -> dict[str, int]:
    found = {}
    for dim, n in _mapping(where, data, problems).items():
        if _whole(n, 1):
            found[str(dim)] = int(n)
        else:
            problems.append(f"{where}, {dim}: expected a whole number, 1 or more, got {n!r}")
    return found


def _names(where: str, data: object, problems: list[str]) -> tuple[str, ...] | None:
    if data is None:
        return None
    if not isinstance(data, list | tuple) or not all(isinstance(n, str) for n in data):
        problems.append(f"{where}: expected a list of dimension names, got {data!r}")
        return None
    if len(set(data)) != len(data):
        problems.append(f"{where}: a dimension is named twice in {list(data)}")
        return None
    return tuple(data)


def _factors(where: str, data: object, problems: list[str]) -> tuple[int, ...] | None:
    if data is None:
        return None
    if isinstance(data, list | tuple) and list(data) in FACTOR_LISTS:
        return tuple(data)
    shown = ", ".join(map(str, FACTOR_LISTS))
    problems.append(f"{where}: expected one of {shown}, got {data!r}")
    return None


def _whole(n: object, least: int) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and least <= n < 2**31
