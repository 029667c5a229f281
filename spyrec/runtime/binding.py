"""A program's symbolic addresses: corrections as the host computes them, and the program as the
device's prologue patches it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spyrec.sim.errors import SimulationError
from spyrec.sim.isa import Program

Words = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class Binding:
    """A program patched for certain addresses. ``corrections``: one word for each relocation of
    the object file, in its order, which is that of launches and their arguments. ``addresses``: of
    each buffer that launches name, as read back from them."""

    corrections: Words
    addresses: Mapping[str, int]


def corrections(program: Program, addresses: Mapping[str, int]) -> Words:
    """Step 1, on the host: the address of each buffer, and what each relocation adds to it."""
    return np.array(
        [addresses[name] + offset for launch in program.launches for name, offset in launch.args],
        np.uint64,
    )


def patched(program: Program, words: Words) -> Binding:
    """Step 3, on the device: where each buffer is, by the words in the program region.

    SimulationError when there are more or fewer than relocations, or two of them disagree about
    where a buffer is.
    """
    slots = [slot for launch in program.launches for slot in launch.args]
    if len(slots) != len(words):
        raise SimulationError(
            f"the program has {len(slots)} relocations, but {len(words)} corrections were copied"
        )
    found: dict[str, int] = {}
    for (name, offset), word in zip(slots, words.tolist(), strict=True):
        base = word - offset
        if found.setdefault(name, base) != base:
            raise SimulationError(
                f"buffer {name} is at {found[name]:#x} by one correction and at {base:#x} by "
                "another"
            )
    return Binding(words, found)


def bind(program: Program, addresses: Mapping[str, int], region: Words) -> Binding:
    """All three steps; ``region`` is the part of the program region that corrections are copied
    into."""
    region[:] = corrections(program, addresses)
    return patched(program, region.copy())
