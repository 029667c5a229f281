"""The trace of a compiled model: valid, without overlaps, and its sums are those of the report."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from real_models import MODELS, model_path

import spyrec
from examples.make_models import cnn
from spyrec.report import kernel_rows
from spyrec.sim.isa import UNITS
from spyrec.sim.run import run
from spyrec.sim.stats import RunResult
from spyrec.sim.trace import LAUNCHES, ChromeTrace

Event = dict[str, Any]
COUNTED = [
    ("hbm read bytes", "ml", "hbm_read_bytes"),
    ("hbm write bytes", "ms", "hbm_write_bytes"),
    ("ring bytes", "rs", "ring_bytes"),
]


def traced(program: spyrec.Program) -> tuple[list[Event], RunResult]:
    out = io.StringIO()
    trace = ChromeTrace(out, program.device)
    ran = run(program.code, program.device, timing_only=True, observer=trace)
    trace.close()
    return json.loads(out.getvalue(), parse_constant=pytest.fail)["traceEvents"], ran


def lanes_of(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    """The slices of each unit of each core, and of the launches, in order of time."""
    lanes: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append(event)
    return {lane: sorted(found, key=lambda e: e["ts"]) for lane, found in lanes.items()}


def check_trace(program: spyrec.Program) -> None:
    """Slices fit, units' busy cycles and launches are the run's, bytes and cycles the report's."""
    events, ran = traced(program)
    device = program.device
    lanes = lanes_of(events)
    assert {e["ph"] for e in events} == {"M", "X", "C"}
    assert all(e["ts"] >= 0 and e["dur"] > 0 for lane in lanes.values() for e in lane)
    for lane in lanes.values():
        assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(lane))

    def cycles(us: float) -> int:
        whole = round(us * device.clock_mhz)
        assert whole == pytest.approx(us * device.clock_mhz, abs=1e-3)
        return whole

    drawn = [e for (core, _), lane in lanes.items() if core == LAUNCHES for e in lane]
    launches = {e["args"]["launch"]: e for e in drawn}
    assert len(launches) == len(drawn) == len(ran.launches)
    busy: dict[tuple[int, str], int] = defaultdict(int)
    for (core, number), lane in lanes.items():
        for e in lane if core != LAUNCHES else []:
            around = launches[e["args"]["launch"]]
            assert e["args"]["kernel"] == around["name"]
            if UNITS[number] == "ml":  # weights may come while the launch before still runs
                began = ran.launches[e["args"]["launch"]].start_cycle
                assert began <= cycles(e["ts"])
            else:
                assert around["ts"] <= e["ts"]
            assert cycles(e["ts"] + e["dur"]) <= cycles(around["ts"] + around["dur"])
            busy[e["args"]["launch"], UNITS[number]] += cycles(e["dur"])
    for stats in ran.launches:
        drawn_busy = {unit: busy[stats.index, unit] for unit in UNITS}
        assert drawn_busy == dict(stats.busy_cycles), stats.kernel

    rows = kernel_rows(program.code, device, ran.launches)
    shown = {(e["name"], cycles(e["ts"]), cycles(e["dur"])) for e in drawn}
    assert all((row.name, row.start_cycle, row.cycles) in shown for row in rows)
    assert sum(cycles(e["dur"]) for e in drawn) == sum(r.cycles * r.count for r in rows)
    assert max(cycles(e["ts"] + e["dur"]) for e in drawn) == ran.total_cycles
    for counter, unit, field in COUNTED:
        steps = [e for e in events if e["name"] == counter]
        assert all(a["ts"] <= b["ts"] for a, b in pairwise(steps))
        assert all(a["args"]["bytes"] < b["args"]["bytes"] for a, b in pairwise(steps))
        total = steps[-1]["args"]["bytes"] if steps else 0
        assert total == sum(getattr(row, field) * row.count for row in rows)
        assert total == sum(
            e["args"]["bytes"]
            for (core, number), lane in lanes.items()
            if core != LAUNCHES and UNITS[number] == unit
            for e in lane
        )


def test_trace_of_the_example() -> None:
    check_trace(spyrec.compile(cnn()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["C02", "light_resnet50"])
def test_trace_of_a_real_model(name: str) -> None:
    check_trace(spyrec.compile(model_path(name), bind=MODELS[name].bind))
