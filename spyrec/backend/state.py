"""What a program keeps from one run to the next: inputs that take the value of an output, and what
they hold at first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spyrec import runtime
from spyrec.sim.isa import STICK, Buffer

Kept = tuple[str, str, np.ndarray[Any, np.dtype[Any]]]
"""Name of an input, of the output that is its next value, and what it holds at first."""


def with_state(buffers: Sequence[Buffer], state: Iterable[Kept]) -> Iterator[Buffer]:
    """The buffers of a program; inputs that are state say so, and a constant beside them holds
    their first value unless that is all zero."""
    kept = {name: (new, first) for name, new, first in state}
    end = max((b.address + b.size for b in buffers), default=0)
    for buffer in buffers:
        if buffer.kind != "input" or buffer.name not in kept:
            yield buffer
            continue
        new, first = kept[buffer.name]
        if not first.any():
            yield replace(buffer, meta={**buffer.meta, "state": new})
            continue
        initial = f"{buffer.name}.first"
        yield replace(buffer, meta={**buffer.meta, "state": new, "first": initial})
        port = runtime.port_of(buffer)
        end = -(-end // STICK) * STICK
        data = runtime.pack(port, first)
        yield Buffer(initial, "const", buffer.size, end, data, {"dtype": port.stored})
        end += buffer.size
