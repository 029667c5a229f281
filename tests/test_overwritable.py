"""Whether an output may take the place of an input: by proof, and by a run in which it does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_machine import SMALL, hbm, kernel, lx, op, program

from spyrec.sim.in_place import overwritable
from spyrec.sim.isa import Kernel, Launch, Loop, Program, Signal, Stream, Wait
from spyrec.sim.run import run

STICKS = 16
SIZE = STICKS * 128
GO = Wait(0, 0)
LOADED, FREE = 1, 2


def stepwise(shift: int = 0, ordered: bool = True, count: int = STICKS, again: int = 0) -> Kernel:
    """Stick i of y from stick i - ``shift`` of x, one after the other. ``ordered``: no load before
    the store ahead of it is done, else each has a stick of scratchpad of its own. ``again``: as
    many sticks of x are read once more in the end."""
    local = lx(0, 1) if ordered else lx(0, 1, loops=(1,))
    x = hbm("x", max(0, -shift), 1, loops=(1,))
    y = hbm("y", max(0, shift), 1, loops=(1,))
    free = (FREE,) if ordered else ()
    load = op("load", (1,), (local, x), signals=(LOADED,), waits=free)
    store = op("store", (1,), (y, local), signals=free, waits=(LOADED,))
    last = op("load", (again,), (lx(64, 1), hbm("x", 0, 1)), waits=free)
    first = replace(op("sync"), waits=(GO,), signals=tuple(map(Signal, free)))
    loads: Stream = (first, Loop(count, (load,)), *([last] if again else []))
    return kernel(ml=loads, ms=(Loop(count, (store,)),))


def bulk() -> Kernel:
    """All of x is read before any of y is written, backwards."""
    load = op("load", (STICKS,), (lx(0, 1), hbm("x", 0, 1)), signals=(LOADED,))
    store = op("store", (STICKS,), (hbm("y", STICKS - 1, -1), lx(0, 1)), waits=(LOADED,))
    return kernel(ml=(replace(load, waits=(GO,)),), ms=(store,))


def halves(apart: bool) -> Kernel:
    """Two cores copy half each; unless ``apart``, each the half that the other has read."""
    low, high = (0, STICKS // 2), (STICKS // 2, 0)
    load = op("load", (STICKS // 2,), (lx(0, 1), hbm("x", 0, 1)), signals=(LOADED,))
    load = replace(load, operands=(load.operands[0], replace(load.operands[1], base=low)),
                   waits=(GO,))  # fmt: skip
    store = op("store", (STICKS // 2,), (hbm("y", 0, 1), lx(0, 1)), waits=(LOADED,))
    target = replace(store.operands[0], base=low if apart else high)
    return kernel(2, ml=(load,), ms=(replace(store, operands=(target, store.operands[1])),))


CASES = {
    "the same stick, one after the other": (stepwise(), True),
    "the next stick, which is still to be read": (stepwise(1, count=STICKS - 1), False),
    "the stick before, which was read": (stepwise(-1, count=STICKS - 1), True),
    "the same stick, loads running ahead": (stepwise(ordered=False), True),
    "the next stick, loads running ahead": (stepwise(1, False, STICKS - 1), False),
    "sticks that are read again in the end": (stepwise(again=3), False),
    "all read before anything is written": (bulk(), True),
    "two cores, each its own part": (halves(True), True),
    "two cores, each the other's part": (halves(False), False),
}


def aliased(p: Program) -> Program:
    """With y in the place of x."""
    x, y = p.buffers
    return replace(p, buffers=(x, replace(y, address=x.address)))


def outputs(p: Program) -> bytes:
    data = np.random.default_rng(0).integers(0, 2**14, SIZE // 2).astype(np.uint16)
    return run(p, SMALL, {"x": data.tobytes()}).outputs["y"]


@pytest.mark.parametrize("case", CASES)
def test_a_launch_that_reads_and_writes(case: str) -> None:
    made, safe = CASES[case]
    p = program(made, size=SIZE)
    assert overwritable(p, SMALL, [("x", "y")]) == ({("x", "y")} if safe else frozenset())
    written = safe and "stick before" not in case
    if written:
        assert outputs(aliased(p)) == outputs(p)


def test_what_is_found_unsafe_would_be_wrong() -> None:
    """The run in place gives other numbers, so the finding is no mere caution."""
    shifted = program(stepwise(1, count=STICKS - 1), size=SIZE)
    x, y = shifted.buffers
    fill = kernel(ml=(op("load", (1,), (lx(0, 1), hbm("x", 0, 1)), signals=(1,)),),
                  ms=(op("store", (1,), (hbm("y", 0, 1), lx(0, 1)), waits=(1,)),))  # fmt: skip
    both = (replace(fill, name="first"), *shifted.kernels)
    launches = (Launch(0, (("x", 0), ("y", 0))), Launch(1, (("x", 0), ("y", 0)), (0,)))
    p = Program(both, (x, y), launches)
    assert overwritable(p, SMALL, [("x", "y")]) == frozenset()
    assert outputs(aliased(p)) != outputs(p)


def in_turn(*named: tuple[str, str], early: bool = False) -> Program:
    """Launches of a kernel that copies, with other buffers as x and y."""
    p = program(bulk(), size=SIZE)
    x, y = p.buffers
    buffers = (x, y, replace(x, name="z", address=4 * SIZE),
               replace(y, name="t", kind="temp", address=6 * SIZE))  # fmt: skip
    launches = tuple(
        Launch(0, tuple((name, 0) for name in names), (i - 1,) if i else (), early and i > 0)
        for i, names in enumerate(named)
    )
    return replace(p, buffers=buffers, launches=launches)


@pytest.mark.parametrize(
    ("named", "early", "safe"),
    [
        ((("x", "t"), ("t", "y")), False, True),  # x is read in the launch before
        ((("x", "t"), ("t", "y")), True, False),  # which may still be reading
        ((("z", "y"), ("x", "t")), False, False),  # x is read later
        ((("x", "y"), ("x", "t")), False, False),
        ((("x", "t"), ("z", "t"), ("z", "y")), True, True),  # the one before is complete
        ((("z", "t"), ("x", "y")), True, True),
        ((("x", "t"),), False, False),  # y is never written
    ],
)
def test_launches_in_turn(
    named: tuple[tuple[str, str], ...], early: bool, safe: bool
) -> None:
    found = overwritable(in_turn(*named, early=early), SMALL, [("x", "y")])
    assert found == ({("x", "y")} if safe else frozenset())
