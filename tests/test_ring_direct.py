"""Proofs that no exchange without relays is as quick as asked: by hand, beside all plans of small
exchanges, and beside the plans of random ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.relayout_cases import CORES, ELEMENT_BYTES, Case, random_case
from benchmarks.relayouts import measure
from benchmarks.ring_direct import ruled_out
from spyrec.passes.ring_order import Order, Timing
from spyrec.passes.ring_ways import Fragment, choices
from spyrec.sim.device import load_device

DEVICE = load_device()
NOTHING = ((0, 0),)
RATE = 128 * 1300 / 1100  # bytes of a segment in a core cycle
SET_UP = 20 + 9
LANES, STICK = 64, 128


def scattered(sizes: Sequence[int], to: Sequence[int]) -> Case:
    """Core 0 holds a row, of which each of the cores ``to`` wants so many sticks."""
    starts = [sum(sizes[:i]) * LANES for i in range(len(sizes))]
    dest = [NOTHING] * CORES
    for core, start, n in zip(to, starts, sizes, strict=True):
        dest[core] = ((start, n * LANES),)
    whole = ((0, sum(sizes) * LANES),)
    return Case("scattered", (whole[0][1],), 0, (whole, *[NOTHING] * (CORES - 1)), tuple(dest))


def never(case: Case, cycles: float) -> bool:
    return ruled_out(case.source, case.dest, case.stick, ELEMENT_BYTES, DEVICE, cycles)


def test_a_sender_takes_its_bytes_and_a_set_up() -> None:
    case = scattered([100, 100], [3, 20])
    least = SET_UP + 2 * 100 * STICK / RATE
    assert never(case, least - 1)
    assert not never(case, least + SET_UP + 20)  # two sends, each in its place


def test_few_sends_go_to_many_who_copy() -> None:
    """Thirty sends of 200 sticks in their places take 870 cycles of set-up. Half the time is enough
    for fewer, if these land beside, and all bytes come to many cores."""
    case = scattered([200] * 30, [*range(1, 31)])
    sent = 30 * 200 * STICK / RATE
    assert never(case, sent + 1 * SET_UP - 1)
    assert not never(case, sent + 30 * SET_UP + 40)


def test_one_send_cannot_land_in_place_in_two_boxes() -> None:
    """Core 1 wants 1,000 sticks and core 2 the last 999 of them. In place that is one send each;
    one for both lands beside, and core 1 copies for 2,000 cycles."""
    row = ((0, 64_000),)
    dest = (NOTHING, row, ((64, 63_936),), *[NOTHING] * 29)
    case = Case("shifted", (64_000,), 0, (row, *[NOTHING] * 31), dest)
    once = SET_UP + 1000 * STICK / RATE
    assert never(case, 0.75 * once)
    same = (NOTHING, row, row, *[NOTHING] * 29)
    assert not never(Case("same", (64_000,), 0, case.source, same), once + 10)
    assert never(case, once + 10)


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    first, *rest = items
    for found in partitions(rest):
        yield [[first], *found]
        for i, some in enumerate(found):
            yield [*found[:i], [first, *some], *found[i + 1 :]]


def quickest(sizes: Sequence[int], to: Sequence[int]) -> float:
    """Core cycles of the best of all plans in which every receiver gets its part in one send."""
    best = float("inf")
    for groups in partitions(range(len(to))):
        fragments = []
        for some in groups:
            tails = [(to[i], 16 + sizes[i] * 2) for i in some] if len(some) > 1 else []
            mask = sum(1 << to[i] for i in some)
            nbytes = sum(sizes[i] for i in some) * STICK
            fragments.append(Fragment(0, mask, nbytes, tails=tuple(tails)))
        timing = Timing(fragments, DEVICE)
        for hops in product(*(choices(f, timing.stops) for f in fragments)):
            for numbers in permutations(range(len(fragments))):
                best = min(best, timing.cycles(Order(numbers, hops)))
    return best


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_no_plan_of_a_small_exchange_is_ruled_out(data: st.DataObject) -> None:
    to = data.draw(st.lists(st.integers(1, CORES - 1), min_size=2, max_size=4, unique=True))
    sizes = data.draw(st.lists(st.integers(1, 60), min_size=len(to), max_size=len(to)))
    case, best = scattered(sizes, to), quickest(sizes, to)
    assert not never(case, best)
    assert never(case, SET_UP + sum(sizes) * STICK / RATE - 1) and best > 29


@given(st.integers(1000, 100000))
@settings(max_examples=12, deadline=None)
def test_no_plan_is_ruled_out(seed: int) -> None:
    line = measure(random_case(seed), DEVICE)
    assert not never(line.case, line.cycles)


@pytest.mark.parametrize("seed", [28, 115, 303, 307])
def test_misses_that_only_relays_could_avoid(seed: int) -> None:
    """The floor that relays obey too does not rule these out."""
    line = measure(random_case(seed), DEVICE)
    assert line.misses and line.bound.floor_cycles < 1.3 * line.bound.cycles
    assert never(line.case, 1.3 * line.bound.cycles)


def test_nothing_to_move_is_not_ruled_out() -> None:
    row = ((0, 640),)
    idle = [NOTHING] * 31
    assert not ruled_out((row, *idle), (row, *idle), 0, ELEMENT_BYTES, DEVICE, 0.0)
