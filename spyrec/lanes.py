"""Undefined lanes that reach an output: a program runs twice; what nothing has written (padding,
scratchpad, accumulators, card memory) holds zeros once and NaNs once. Elements that come out with
other bits depend on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from spyrec import runtime
from spyrec.ir import lanes
from spyrec.sim.check import Checked, Finding
from spyrec.sim.device import DeviceSpec
from spyrec.sim.isa import Program
from spyrec.sim.run import run

Array = np.ndarray[Any, Any]


def undefined_outputs(
    program: Program, device: DeviceSpec, given: Mapping[str, Array], clean: Mapping[str, bytes],
    checked: Checked,
) -> Iterator[Finding]:
    """A finding for each output that differs from ``clean``, the bytes of a run with zeros, when
    everything is poisoned. ``given``: the inputs of both runs by model name.

    SimulationError when the poisoned run breaks a rule that the other kept.
    """
    packed = {
        port.buffer.name: runtime.pack(port, given[port.name], poison=True)
        for port in runtime.ports(program, "input")
    }
    poisoned = run(program, device, packed, poison=True).outputs
    for port in runtime.ports(program, "output"):
        if port.layout is None:
            continue
        one, other = (runtime.unpack(port, r[port.buffer.name]) for r in (clean, poisoned))
        differs = _bits(one) != _bits(other)
        if not differs.any():
            continue
        first = int(np.argmax(differs))
        at = [int(i) for i in np.unravel_index(first, port.shape)]
        writer = checked.writer(port.buffer.name, _stick(port, first))
        yield Finding(
            "uninitialised",
            f"output {port.name}: {np.count_nonzero(differs)} of {differs.size} elements depend on "
            f"lanes that nothing has written, the first is {at}"
            + (f", stored by {writer}" if writer else ""),
        )


def _bits(array: Array) -> Array:
    """Its elements as patterns, so that NaNs and signs of zeros compare."""
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def _stick(port: runtime.Port, element: int) -> int:
    """The stick of the port's buffer that holds an element, counted in order."""
    layout = port.layout
    assert layout is not None
    slots = (layout.cores, layout.loops * layout.sticks, layout.lanes)
    numbers = np.arange(int(np.prod(slots)), dtype=np.int64).reshape(slots)
    return int(lanes.unpack(layout, numbers).reshape(-1)[element]) // layout.lanes
