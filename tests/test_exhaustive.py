"""The planner against the best of all plans, on random graphs and a reduced device."""

from __future__ import annotations

import pytest

from benchmarks.exhaustive import NEAR, cases, reduced
from spyrec.sim.device import load_device

DEVICE = reduced(load_device())


def within(count: int, first: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Share of the cases in which the default budget comes near the best plan."""
    monkeypatch.delenv("SPYREC_PLAN_BUDGET")
    found = list(cases(count, DEVICE, first))
    assert all(c.planned <= c.greedy for c in found)
    return sum(c.ratio <= NEAR for c in found) / count


def test_10_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert within(10, 4000, monkeypatch) >= 0.9


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_200_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert within(200, 0, monkeypatch) >= 0.95
