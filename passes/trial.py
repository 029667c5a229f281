"""What a trial run tells the planner: passes cannot generate code, so whoever runs them hands in a
function that does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spyrec.ir.core import Attr, Module, Op

DECIDED = (
    "parts", "core_order", "grains", "why_parts", "tile", "loops", "keep", "finish", "ahead",
    "held", "why_tile", "buffers", "overlap",
)  # fmt: skip
"""Attributes of a kernel that core-allocation and tiling set or obey. A kernel that has them is
left as it is."""


@dataclass(frozen=True)
class KernelTrial:
    """One launch. ``cycles``: from GO to its end; ``floor_cycles``: what its matrix work and its
    bytes in card memory take at the least; ``decided``: those of DECIDED that the passes gave it;
    ``spaces``: where each result lives, "lx" or "hbm"."""

    cycles: int
    floor_cycles: int
    decided: Mapping[str, Attr]
    spaces: tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    """A simulated run: its ``cycles``, its kernels in their order, and in ``steps`` the work that
    it took (see STEPS_A_SECOND)."""

    cycles: int
    kernels: tuple[KernelTrial, ...]
    steps: int


Try = Callable[[Module], Trial | None]
"""Plans what is open in a laid-out module, generates code and runs it for time only. None when
that plan does not fit the machine."""

STEPS_A_SECOND = 100_000
"""A step is an event of the simulator or the like: building a kernel counts as ``BUILD_STEPS``. It
is work, not time, so a budget is spent alike on every machine."""
BUILD_STEPS = 1_000


def decided(op: Op) -> dict[str, Attr]:
    """Those of DECIDED that a kernel has."""
    return {key: op.attrs[key] for key in DECIDED if key in op.attrs}
