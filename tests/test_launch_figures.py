"""benchmarks/launch.py: the search for one cost, and the published ratios of Granite 3.3 8B."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from benchmarks import launch
from benchmarks.launch import PUBLISHED, TOLERANCE, Phase, Published
from spyrec import runtime
from spyrec.sim.device import load_device

SPYRE = load_device()
EVEN = launch.with_host(SPYRE, ahead_jobs=0, submit_us=100, correction_ns=0, link_us=0,
                        patch_cycles=0)  # fmt: skip


def phase(jobs: int, device_us: int, bound: float) -> Phase:
    """Jobs that are equally long, as (device and submits) / (device, submits and graphs)."""
    cycles = round(device_us * SPYRE.clock_mhz / jobs)
    one = (runtime.Job(cycles * jobs, 0),)
    return Phase(Published("p", jobs, 1.1, bound), (runtime.Job(cycles, 0),) * jobs, one)


def test_the_one_cost_that_explains_two_phases_is_found() -> None:
    # 100 jobs of 1000 us on the device and 100 us of the host: 700 us more are 1800/1100
    both = [phase(100, 100_000, 1800 / 1100), phase(200, 40_000, 1000 / 300)]
    cost, miss = launch.best_cost(EVEN, both)
    assert abs(cost - 700) <= 1 and miss < 0.001
    low, high = map(int, launch.costs_within(EVEN, both[0]).split("-"))
    assert low == pytest.approx((0.85 * 1800 / 1100 - 1) * 1100, abs=2)
    assert high == pytest.approx((1.15 * 1800 / 1100 - 1) * 1100, abs=2)


def test_phases_that_no_one_cost_explains_are_missed_alike() -> None:
    both = [phase(100, 100_000, 2.0), phase(100, 100_000, 1.5)]
    cost, miss = launch.best_cost(EVEN, both)
    offs = [launch.off(launch.with_host(EVEN, cost), p) for p in both]
    assert offs[0] == pytest.approx(-offs[1], abs=0.001)
    assert miss == pytest.approx(0.5 / 3.5, abs=0.001)


def test_with_jobs_ahead_short_host_work_is_hidden() -> None:
    long = phase(100, 300_000, 2.0)
    hidden = launch.with_host(EVEN, 1000, ahead_jobs=1)
    assert launch.ratios(hidden, long.many)[1] == pytest.approx(1, abs=0.01)
    assert launch.ratios(launch.with_host(EVEN, 1000), long.many)[1] == pytest.approx(4100 / 3100)


def test_another_cost_keeps_the_share_of_data_transfer() -> None:
    host = replace(SPYRE.host, transfer_graph_us=30, compute_graph_us=70)
    made = launch.with_host(replace(SPYRE, host=host), 1000).host
    assert (made.transfer_graph_us, made.compute_graph_us) == (300, 700)


def test_what_is_printed_holds_every_mode_of_both_phases() -> None:
    both = [phase(100, 100_000, 1.7), phase(200, 40_000, 2.4)]
    shown = list(launch.lines(EVEN, both))
    assert len([line for line in shown if line.startswith("p ")]) == 2 * 2 * 3
    assert len(shown) == 2 + 12 + 3 + 9


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    not (find_spec("torch") and find_spec("transformers")),
    reason="torch and transformers are extras; see docs/dependencies.md",
)
def test_published_ratios_from_one_host_cost() -> None:
    """Granite 3.3 8B, 1024 tokens, as many jobs as published; one job a phase removes the cost."""
    programs = launch.compiled()
    for program, told in zip(programs, PUBLISHED, strict=True):
        made = launch.phase_of(program, program.device, told)
        patched, bound = launch.ratios(program.device, made.many)
        assert 1 < patched < bound
        assert patched == pytest.approx(told.patched, rel=TOLERANCE)
        assert bound == pytest.approx(told.bound, rel=TOLERANCE)
        assert launch.ratios(program.device, made.one)[1] < 1.02
