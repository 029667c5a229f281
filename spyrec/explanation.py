"""Why a model takes the time it takes: for each kernel what was decided, what was given up, how far
from its floor it runs and what would help, all of it read from the plan or simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spyrec.plain_json import AsJson


@dataclass(frozen=True)
class Gain:
    """A run with one thing changed. ``cycles``: what it takes then, the whole run or one launch
    alone; ``gain_cycles``: how many fewer that are, negative when more; ``gain``: the same as a
    share of what it takes as it is."""

    name: str
    cycles: int
    gain_cycles: int
    gain: float


@dataclass(frozen=True)
class WhatIf(Gain):
    """``device``: the changed parameters of the device file with their new values."""

    device: Mapping[str, int]


@dataclass(frozen=True)
class Trial:
    """The model compiled and simulated with one alternative pinned, all else decided anew.

    ``kernel_cycles``: of all launches of the kernel; ``total_cycles``: of the run; ``gain_cycles``:
    how many fewer than as planned, for the run. ``refused``: why it cannot be, the numbers are 0
    then."""

    kernel_cycles: int
    total_cycles: int
    gain_cycles: int
    refused: str = ""


@dataclass(frozen=True)
class Alternative:
    """A decision that was given up. ``kind``: "cut" or "tile"; ``decision``: parts by dimension, or
    elements of a tile by dimension; ``loops``: of a tile, outermost first.

    ``predicted_cycles``: the planner's price, to be compared with that of what it chose; None where
    it has none. ``ruled_out``: why it was left out before prices counted, "" when they decided.
    ``pins``: the plan that takes it. ``trial``: None when it was not tried."""

    kind: str
    decision: Mapping[str, int]
    loops: tuple[str, ...]
    predicted_cycles: float | None
    pins: Mapping[str, Any]
    ruled_out: str = ""
    trial: Trial | None = None


@dataclass(frozen=True)
class Choice:
    """What the plan has of a kernel; see docs/plan.md. ``predicted_cut_cycles`` and
    ``predicted_tile_cycles``: the planner's prices of cut and tile, None where it has none.
    ``tile_bytes`` of ``budget_bytes``: scratchpad that the tiles' buffers take, None when unknown.
    ``pinned``: what a plan decided, as ``parts m``."""

    parts: Mapping[str, int]
    core_order: tuple[str, ...]
    cores: int
    tile: Mapping[str, int]
    loops: tuple[str, ...]
    buffers: int | None
    overlap: str | None
    predicted_cut_cycles: float | None
    predicted_tile_cycles: float | None
    tile_bytes: int | None
    budget_bytes: int | None
    pinned: tuple[str, ...]


@dataclass(frozen=True)
class TensorPlace:
    """An operand or a result. ``role``: "operand" or "result"; ``stick``: the dimension along the
    lanes; ``space``: "hbm" or "lx"; ``bytes``: in card memory, ``core_bytes``: a core keeps in its
    scratchpad (0 in card memory). ``why``: the reason, in words. ``relayout``: it is exchanged over
    the ring just before, because it was made in other parts than it is read."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    stick: int
    space: str
    bytes: int
    core_bytes: int
    why: str
    relayout: bool


@dataclass(frozen=True)
class KernelExplained:
    """A kernel, or several that are equal but for names and addresses.

    ``launches``: the names of all; ``cycles``, ``us`` and floors are of all together. ``share``: of
    the run. ``alone_cycles``: of one launch when nothing overlaps it, with its start-up, during
    which it may already load weights. ``bound``: as in the report; ``floors``: cycles by "compute",
    "memory", "vector" and "ring": multiply-accumulates at the peak rate of the card, bytes at the
    rate of the bus, and what the busiest core's vector unit and ring sender worked.
    ``floor_cycles``: that of ``bound``, the highest when that is "latency"; ``over_floor``:
    ``cycles`` over it, None when it is 0.
    ``what_ifs``: of one launch alone, the largest gain first; in the run neighbours take bus time
    from one another, so that what one gains another may lose.
    """

    name: str
    launches: tuple[str, ...]
    count: int
    ops: tuple[str, ...]
    source: tuple[str, ...]
    dims: str
    cycles: int
    us: float
    share: float
    alone_cycles: int
    bound: str
    floors: Mapping[str, int]
    floor_cycles: int
    over_floor: float | None
    choice: Choice
    tensors: tuple[TensorPlace, ...]
    alternatives: tuple[Alternative, ...]
    what_ifs: tuple[Gain, ...]

    @property
    def each_cycles(self) -> float:
        """Cycles of one launch, the mean if they differ."""
        return self.cycles / self.count


@dataclass(frozen=True)
class Explanation(AsJson):
    """A model. ``launch_cycles``, ``meeting_cycles``: as in the report; ``launches``: how many the
    device starts, ``runs``: of kernels, in these launches; ``bounds``: share of the run by what
    bounds the kernels, "start-up" and "meeting"; ``what_ifs``: of the whole run, the largest gain
    first; ``kernels``: the longest first."""

    model: str
    device: str
    numerics: str
    clock_mhz: int
    total_cycles: int
    total_us: float
    launch_cycles: int
    meeting_cycles: int
    launches: int
    runs: int
    bounds: Mapping[str, float]
    what_ifs: tuple[WhatIf, ...]
    kernels: tuple[KernelExplained, ...]
