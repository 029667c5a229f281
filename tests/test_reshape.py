"""The search for better sends of an exchange: never slower, the same twice, and each core has what
it needs afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.relayout_cases import Case, random_case
from benchmarks.relayouts import best_ends, faults, measure
from spyrec.ir.exchange import subtract
from spyrec.passes import exchange_plan
from spyrec.passes.exchange_beside import Around
from spyrec.passes.exchange_landing import ExchangePlan
from spyrec.passes.exchange_plan import plan_exchange
from spyrec.passes.exchange_reshape import groups_of, reshaped
from spyrec.passes.kernel import Box
from spyrec.passes.sends import Ends
from spyrec.sim.device import load_device

DEVICE = load_device()
EFFORT = 3000


@pytest.fixture
def unshaped() -> Iterator[None]:
    """Plans as they are before the search."""
    most, exchange_plan.RESHAPED_MOST = exchange_plan.RESHAPED_MOST, -1
    exchange_plan._planned.cache_clear()
    yield
    exchange_plan.RESHAPED_MOST = most
    exchange_plan._planned.cache_clear()


def begun(case: Case) -> tuple[Ends, ExchangePlan]:
    ends = best_ends(case, DEVICE)
    return ends, plan_exchange(case.source, case.dest, ends, DEVICE, True)


def left_over(boxes: list[Box], brought: list[Box]) -> list[Box]:
    """Of boxes what nobody brought."""
    for box in brought:
        boxes = [rest for b in boxes for rest in subtract(b, box)]
    return boxes


@pytest.mark.parametrize("seed", [114, 126, 189])
@pytest.mark.usefixtures("unshaped")
def test_better_sends_are_found(seed: int) -> None:
    case = random_case(seed)
    ends, plan = begun(case)
    better = reshaped(plan, case.source, Around(case.dest, ends, DEVICE), True, 30_000, 0.1)
    assert better.cycles < 0.99 * plan.cycles


@given(st.integers(0, 500))
@example(424)  # nothing is sent
@settings(max_examples=12, deadline=None)
def test_it_is_never_slower_and_all_is_brought(seed: int) -> None:
    case = random_case(seed)
    ends, plan = begun(case)
    around = Around(case.dest, ends, DEVICE)
    for beside in (False, True):
        made = reshaped(plan, case.source, around, beside, EFFORT, 0.1)
        assert made.cycles <= plan.cycles
        assert made == reshaped(plan, case.source, around, beside, EFFORT, 0.1)
        assert beside or made.room <= plan.room
        groups = groups_of(made, around)
        for core, box in enumerate(case.dest):
            parts = [b for g in groups for c, b in g.parts if c == core]
            parts += [s.box for s in made.copies if s.core == core]
            assert left_over([box] if all(n for _, n in box) else [], parts) == []
        for g in groups:
            assert subtract(g.box, case.source[g.core]) == []


@pytest.mark.parametrize("seed", [114, 126, 189])
def test_each_core_has_its_part_in_the_planned_time(seed: int) -> None:
    case = random_case(seed)
    assert [*faults(case, DEVICE)] == []
    line = measure(case, DEVICE)
    assert line.planned == line.cycles
    assert line.bound.floor_cycles <= line.cycles
