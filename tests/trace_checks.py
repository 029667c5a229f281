"""What holds of any trace, and the sums that it has to share with the report."""

from __future__ import annotations

import io
import re
from collections import defaultdict
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest
from trace_reader import Event, events_of, nanoseconds, tables

from spyrec.sim.device import DeviceSpec
from spyrec.sim.isa import UNITS, Program
from spyrec.sim.run import run
from spyrec.sim.stats import RunResult
from spyrec.sim.trace import LAUNCHES, MOST_BYTES, ChromeTrace, Window
from spyrec.sim.trace_rates import BUCKET_CYCLES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "trace.md"
QUERIES = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
TOTALS, BY_KERNEL, BY_UNIT, BY_ARROW, MOST = QUERIES
WHOLE: Window = (0, inf)


def written(
    program: Program, device: DeviceSpec, window: Window | None = None, most: int = MOST_BYTES
) -> tuple[str, RunResult]:
    out = io.StringIO()
    trace = ChromeTrace(out, device, window, most)
    ran = run(program, device, timing_only=True, observer=trace)
    trace.close()
    return out.getvalue(), ran


def check_trace(
    program: Program, device: DeviceSpec, window: Window | None = None, most: int = MOST_BYTES
) -> tuple[list[Event], RunResult]:
    """Slices nest, arrows start and end in slices and never run backwards, and all sums are those
    of the run. Instructions take at most ``most`` bytes."""
    text, ran = written(program, device, window, most)
    events = events_of(text)
    db = tables(events)  # which checks that slices nest and that arrows have slices at their ends
    _check_arrows(db, events)
    _check_spans(events, ran, device)
    check_totals(db.execute(TOTALS).fetchone(), program, ran)
    launches = {e["args"]["launch"]: e for e in events if e.get("cat") == "launch"}
    assert len(launches) == len(ran.launches) == sum(e.get("cat") == "launch" for e in events)
    shown = {e["args"]["launch"] for e in events if e.get("cat") == "work"}
    busy: dict[tuple[int, str], tuple[int, int]] = {
        (launch, unit): (cycles, nbytes or 0)
        for launch, unit, cycles, nbytes in db.execute(BY_UNIT)
    }
    titles = ("memory load", "memory store", "ring send", "ring receive", "matrix", "vector")
    for stats in ran.launches:
        drawn = launches[stats.index]["args"]
        assert drawn["busy_cycles"] == dict(stats.busy_cycles)
        assert drawn["cycles"] == stats.cycles and drawn["go_cycle"] == stats.go_cycle
        if like := drawn.get("like launch"):
            assert like in shown or "left out" in drawn
            assert stats.index not in shown and window is None
        if stats.index not in shown or (window not in (None, WHOLE)):
            continue
        got = [busy.get((stats.index, title), (0, 0)) for title in titles]
        assert [cycles for cycles, _ in got] == [stats.busy_cycles[unit] for unit in UNITS]
        assert [nbytes for _, nbytes in got][:3] == [
            stats.hbm_read_bytes, stats.hbm_write_bytes, stats.ring_bytes
        ]
    if window is None:
        worked = {s.index for s in ran.launches if any(s.busy_cycles.values())}
        like = {i for i, e in launches.items() if "like launch" in e["args"]}
        left_out = {i for i, e in launches.items() if "left out" in e["args"]}
        assert worked - like - left_out == shown
        detail = re.findall(r'^\{"ph":"(?:[sf]|X".*"cat":"(?:work|loop))".*$', text, re.MULTILINE)
        assert sum(len(line.rstrip(",")) for line in detail) <= most
    _check_counters(events, ran, device, window == WHOLE)

    return events, ran


def check_totals(row: tuple[Any, ...], program: Program, ran: RunResult) -> None:
    """What the first query of docs/trace.md gave."""
    all_, kernels = ran.launches, [program.kernels[launch.kernel] for launch in program.launches]
    macs = [k.info.get("macs", s.padded_macs) for k, s in zip(kernels, all_, strict=True)]
    assert row == (
        ran.total_cycles, sum(not s.joint for s in all_), sum(map(int, macs)),
        sum(s.hbm_read_bytes for s in all_), sum(s.hbm_write_bytes for s in all_),
        sum(s.ring_bytes for s in all_), max(s.lx_peak_bytes for s in all_),
    )


def _check_spans(events: list[Event], ran: RunResult, device: DeviceSpec) -> None:
    """Instructions lie between the first of their launch and its end; launches where the report has
    them."""

    def at(cycle: int) -> int:
        return cycle * 1000 // device.clock_mhz

    for e in events:
        end = e["at"] + nanoseconds(e.get("dur", 0.0))
        if e.get("cat") == "work":
            stats = ran.launches[e["args"]["launch"]]
            assert at(stats.start_cycle) <= e["at"] <= end <= at(stats.end_cycle)
            assert abs((end - e["at"]) * device.clock_mhz / 1000 - e["args"]["cycles"]) <= 2
        elif e.get("cat") == "launch":
            stats = ran.launches[e["args"]["launch"]]
            assert (e["at"], end) == (at(stats.go_cycle), at(stats.end_cycle))
            assert e["name"] == stats.kernel


def _check_arrows(db: Any, events: list[Event]) -> None:
    ends = {p: {e["id"]: e for e in events if e["ph"] == p} for p in "sf"}
    assert set(ends["s"]) == set(ends["f"])
    assert len(ends["s"]) == sum(e["ph"] == "s" for e in events)
    for number, leaves in ends["s"].items():
        arrives = ends["f"][number]
        assert leaves["at"] <= arrives["at"]
        assert (leaves["pid"], leaves["tid"]) != (arrives["pid"], arrives["tid"])
    found = db.execute(
        "select giver.category, taker.category, giver.ts + giver.dur <= taker.ts, "
        "extract_arg(giver.arg_set_id, 'args.launch') = extract_arg(taker.arg_set_id, "
        "'args.launch') from flow join slice as giver on giver.id = slice_out join slice as taker "
        "on taker.id = slice_in"
    ).fetchall()
    assert sum(arrows for *_, arrows in db.execute(BY_ARROW)) == len(ends["s"])
    assert len(found) == len(ends["s"]) and set(found) <= {("work", "work", 1, 1)}


def _check_counters(events: list[Event], ran: RunResult, device: DeviceSpec, whole: bool) -> None:
    counters: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for e in events:
        if e["ph"] == "C":
            assert e["pid"] == LAUNCHES
            ((unit, value),) = e["args"].items()
            counters[f"{e['name']} {unit}"].append((e["ts"], value))
    for name, field in (
        ("hbm read bytes", "hbm_read_bytes"), ("hbm write bytes", "hbm_write_bytes"),
        ("ring bytes", "ring_bytes"),
    ):
        steps = counters[name]
        assert all(a[0] <= b[0] and a[1] < b[1] for a, b in pairwise(steps))
        total = sum(getattr(s, field) for s in ran.launches)
        assert (steps[-1][1] if steps else 0) == total
    assert max(v for _, v in counters["scratchpad of the fullest core bytes"]) == max(
        s.lx_peak_bytes for s in ran.launches
    )

    def integral(name: str) -> float:
        steps = counters[name]
        assert all(a[0] < b[0] and a[1] != b[1] and a[1] >= 0 for a, b in pairwise(steps))
        assert not steps or steps[-1][1] == 0
        return sum(v * (after - at) for (at, v), (after, _) in pairwise(steps))

    close = {"rel": 2e-3, "abs": 1e-3 * BUCKET_CYCLES}
    assert integral("memory read GB/s") * 1000 == pytest.approx(
        sum(s.hbm_read_bytes for s in ran.launches), **close
    )
    assert integral("memory written GB/s") * 1000 == pytest.approx(
        sum(s.hbm_write_bytes for s in ran.launches), **close
    )
    busy_us = device.us(sum(s.busy_cycles["pt"] for s in ran.launches))
    assert integral("matrix units busy %") / 100 * device.cores.count == pytest.approx(
        busy_us, rel=2e-3, abs=1e-6 * BUCKET_CYCLES
    )
    most = device.hbm.bytes_per_cycle * device.clock_mhz / 1000
    limits = {"matrix units busy %": 100, "ring load %": 100, "memory read GB/s": most,
              "memory written GB/s": most}  # fmt: skip
    for name, limit in limits.items() if whole else ():  # means of launches may overlap
        assert all(v <= limit * 1.005 for _, v in counters[name]), name
