"""Gives every dimension of the model's inputs a number: what the model states, else what ``--bind``
says; and inputs that are to be constants their values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spyrec.ir.errors import ImportError_
from spyrec.ir.rounding import round_to
from spyrec.ir.types import DType, TensorType

MAX_RANK = 32
MAX_DIM = 2**31 - 1

ConstValue = bool | int | float | Sequence[Any] | np.ndarray


@dataclass(frozen=True)
class FreeDim:
    """A dimension the model leaves open. ``key`` is what ``--bind`` calls it: its name, or
    INPUT:AXIS."""

    input: str
    axis: int
    name: str  # "" when it has none that means anything
    rank: int
    low: int = 0
    high: int = MAX_DIM
    generated: bool = False  # the name is an exporter's own

    @property
    def place(self) -> str:
        return f"{self.input}:{self.axis}"

    @property
    def key(self) -> str:
        return self.name or self.place

    @property
    def example(self) -> int:
        """A plausible size for the error message."""
        return min(max(self._usual, self.low), self.high)

    @property
    def _usual(self) -> int:
        if self.axis == 0 or "batch" in self.name.lower():
            return 1
        return 640 if self.rank == 4 and self.axis >= 2 else 128


@dataclass(frozen=True)
class Given:
    """An input as the model states it."""

    name: str
    dtype: DType
    dims: tuple[int | FreeDim, ...]


def bind_dims(
    read: Sequence[Given], bind: Mapping[str, int], problems: list[str]
) -> dict[FreeDim, int]:
    """The size of each dimension left open.

    ``bind`` keys: a dimension's name, or ``INPUT:AXIS``. Added to ``problems``: every dimension
    that stays open (with the flag to write), every unknown key, and every value out of range or at
    odds with another.
    """
    free = [d for i in read for d in i.dims if isinstance(d, FreeDim)]
    sizes = _sizes(read, free, bind, problems)
    open_: dict[str, FreeDim] = {}
    for d in free:
        if d not in sizes:
            open_.setdefault(d.key, d)
    problems += [_open_sentence(d) for d in open_.values()]
    return sizes


def _open_sentence(d: FreeDim) -> str:
    called = f" ('{d.name}')" if d.name else ""
    return (
        f"Input '{d.input}' leaves the size of axis {d.axis}{called} open; "
        f"add --bind {d.place if d.generated else d.key}={d.example}, or the size you need."
    )


def _sizes(
    read: Sequence[Given], free: Sequence[FreeDim], bind: Mapping[str, int], problems: list[str]
) -> dict[FreeDim, int]:
    places = {f"{i.name}:{axis}": d for i in read for axis, d in enumerate(i.dims)}
    chosen: dict[str, tuple[str, int]] = {}  # canonical key -> (the key as written, value)
    for key, value in bind.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | np.integer)
            or not 0 <= value <= MAX_DIM
        ):
            problems.append(f"--bind {key}={value}: expected a whole number from 0 to {MAX_DIM}.")
            continue
        dim = places.get(key)
        if isinstance(dim, int):
            if dim != value:
                problems.append(f"--bind {key}={value}: the model fixes this dimension at {dim}.")
            continue
        canonical = dim.key if dim else key
        if canonical not in {d.key for d in free}:
            problems.append(
                f"--bind {key}={value}: no input has a dimension called '{key}'; {_known(free)}."
            )
            continue
        before = chosen.setdefault(canonical, (key, int(value)))
        if before[1] != value:
            problems.append(
                f"--bind {key}={value} contradicts --bind {before[0]}={before[1]}: both are one "
                "dimension."
            )
    for d in {d.key: d for d in free if d.key in chosen}.values():
        key, value = chosen[d.key]
        if not d.low <= value <= d.high:
            problems.append(
                f"--bind {key}={value}: the model takes {d.low} to {d.high} for this dimension."
            )
    return {d: chosen[d.key][1] for d in free if d.key in chosen}


def _known(free: Sequence[FreeDim]) -> str:
    keys = list(dict.fromkeys(d.key for d in free))
    return (
        f"those left open are {', '.join(keys)}"
        if keys
        else "all dimensions of this model are fixed"
    )


def const_inputs(
    types: Mapping[str, TensorType], const: Mapping[str, ConstValue]
) -> dict[str, np.ndarray]:
    """Input name -> array of the input's type and shape, for the inputs that are given a constant
    value.

    A value is a number or an array that broadcasts to the shape. ImportError_ lists every unknown
    input and every value that does not fit.
    """
    problems: list[str] = []
    arrays: dict[str, np.ndarray] = {}
    for name, value in const.items():
        if name not in types:
            problems.append(
                f"--const {name}: no input has this name; the inputs are "
                f"{', '.join(types) or 'none'}."
            )
            continue
        try:
            arrays[name] = _as_type(value, types[name])
        except (ValueError, TypeError, OverflowError):
            shape = list(types[name].static_shape)
            problems.append(
                f"--const {name}: {_brief(value)} does not fit the input's type "
                f"{types[name].dtype} and shape {shape}."
            )
    if problems:
        raise ImportError_(problems)
    return arrays


def _as_type(value: ConstValue, type_: TensorType) -> np.ndarray:
    given = np.asarray(value)
    if given.dtype.kind not in "biuf":
        raise TypeError("not numeric")
    cast = given != 0 if type_.dtype.kind == "bool" else round_to(given, type_.dtype)
    if type_.dtype.kind != "float" and not np.array_equal(cast.astype(given.dtype), given):
        raise ValueError("not representable")
    shape = type_.static_shape
    return np.broadcast_to(cast, shape) if math.prod(shape) else np.zeros(shape, cast.dtype)


def _brief(value: ConstValue) -> str:
    try:
        given = np.asarray(value)
    except ValueError:
        return "a list whose parts differ in length or nest too deeply"
    return (
        repr(given.item())
        if given.ndim == 0
        else f"an array of {given.dtype} with shape {list(given.shape)}"
    )
