"""What becomes of a value on its way: groups are read as they were written, results are read."""

from __future__ import annotations

from dataclasses import replace

from small_machine import SMALL, kernel, lx, op
from test_check import double, load, store, whole

from spyrec.sim.check import find_hazards
from spyrec.sim.isa import Kernel, Operand


def wide(base: int) -> Operand:
    """Two groups of 64 lanes of 32 bits: sticks ``base`` to ``base`` + 3."""
    return replace(lx(base, 2), dtype="f32")


def findings(made: Kernel) -> list[str]:
    """But for the stores, to a buffer that nothing reads."""
    texts = [str(finding) for finding in find_hazards(whole([made]), SMALL)]
    return [text for text in texts if "unit ms" not in text.partition("writes")[0]]


def widened(read_at: int) -> Kernel:
    widen = op("vec", (2,), (wide(8), lx(0, 1)), waits=(1,), note=0)
    narrow = op("vec", (2,), (lx(4, 1), wide(read_at)), signals=(2,), note=1)
    stores = (store(4, waits=(2,)), store(5))
    return kernel(ml=(load(0), load(1, signals=(1,))), sfp=(widen, narrow), ms=stores)


def test_a_wide_group_is_read_as_it_was_written() -> None:
    assert findings(widened(8)) == []
    text = next(text for text in findings(widened(9)) if text.startswith("mixed"))
    assert text == (
        "mixed: launch 0, kernel k, core 0, unit sfp, `vec 2 lx[4], lx[9]` of %z = add (from "
        "Add_1, Add_2) reads 9 of the scratchpad of core 0 as part of another group than the one "
        "launch 0, kernel k, core 0, unit sfp, `vec 2 lx[8], lx[0]` of %y = matmul (from MatMul_7) "
        "wrote"
    )


def prepared(at: int, sticks: int) -> Kernel:
    """A fill prepares some sticks, elements are copied to two of which one is stored."""
    ends = (lx(4 * 64, 1), lx(0, 1))
    ready = op("fill", (64 * sticks,), (lx(at * 64, 1),), imm={"bits": 16})
    pair = op("shuf", (128,), ends, imm={"bits": 16}, waits=(1,), signals=(2,))
    loads = (load(0), load(1, signals=(1,)))
    return kernel(ml=loads, sfp=(ready, pair), ms=(store(4, waits=(2,)),))


def test_elements_copied_beyond_a_prepared_tile_are_lost() -> None:
    """All of a tile may be more than is read, but nothing lies beyond it."""
    assert findings(prepared(4, 2)) == findings(prepared(8, 2)) == []
    assert findings(prepared(3, 2)) == [
        "lost: launch 0, kernel k, core 0, unit sfp, `shuf 128 lx[256], lx[0]` of %y = matmul "
        "(from MatMul_7) writes 5 of the scratchpad of core 0, which nothing reads"
    ]


def test_a_transfer_may_bring_more_than_is_read() -> None:
    copy = double(4, 0, waits=(1,), signals=(2,))
    loads = (load(0), load(1, signals=(1,)))
    made = kernel(ml=loads, sfp=(copy,), ms=(store(4, waits=(2,)),))
    assert [text[:5] for text in findings(made)] == ["lost:"]  # all that the second load brings
    box = replace(load(0, signals=(1,)), counts=(2,))
    assert findings(replace(made, streams={**made.streams, "ml": (box,)})) == []
