"""Traces of programs written by hand: what is drawn, what is left out, and that all of it fits."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from io import StringIO
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_machine import SMALL, acc, hbm, kernel, lx, op, program
from test_cli_simulate import doubling
from test_engine_random import programs
from trace_checks import WHOLE, check_trace, written
from trace_reader import Event, events_of, tables

from spyrec import api, cli
from spyrec.ir.errors import SpyrecError
from spyrec.sim.device import load_device
from spyrec.sim.isa import Launch, Loop, Program, Signal
from spyrec.sim.run import run
from spyrec.sim.trace import ChromeTrace
from spyrec.tracing import left_out, parse_window

SPYRE = load_device("spyre")


def slices(events: list[Event], kind: str) -> list[Event]:
    return [e for e in events if e.get("cat") == kind]


def arrows(events: list[Event]) -> set[tuple[str, str]]:
    """Core and instruction at both ends."""
    db = tables(events)
    where = "process.name || ' ' || slice.name"
    ends = (
        f"(select {where} from slice join thread using (utid) join process using (upid) "
        "where slice.id = {end})"
    )
    joined = "(select *, track_id as utid from slice)"
    ends = ends.replace("from slice", f"from {joined} as slice")
    query = f"select {ends.format(end='slice_out')}, {ends.format(end='slice_in')} from flow"
    return set(db.execute(query).fetchall())


@given(programs(), st.data())
@settings(max_examples=60, deadline=None)
def test_any_trace_fits_and_sums_up(p: Program, data: st.DataObject) -> None:
    folded, ran = check_trace(p, SMALL)
    whole, _ = check_trace(p, SMALL, WHOLE)
    assert len(slices(folded, "work")) <= len(slices(whole, "work"))
    since = data.draw(st.integers(0, ran.total_cycles + 1))
    until = data.draw(st.integers(since + 1, ran.total_cycles + 2))
    part, _ = check_trace(p, SMALL, (since, until))
    check_trace(p, SMALL, most=data.draw(st.integers(0, 10_000)))

    def keys(events: list[Event]) -> set[tuple[Any, ...]]:
        return {
            (e["pid"], e["tid"], e["ts"], e["dur"], json.dumps(e["args"]))
            for e in slices(events, "work")
        }

    at = {since: since / 1000, until: until / 1000}  # us: a cycle is a nanosecond here
    inside = {k for k in keys(whole) if k[2] < at[until] and round(k[2] + k[3], 6) > at[since]}
    assert keys(part) == inside


def test_the_same_run_is_drawn_the_same_twice() -> None:
    p = doubling(3)
    assert written(p, SPYRE)[0] == written(p, SPYRE)[0]


def test_arrows_follow_the_tokens() -> None:
    events, _ = check_trace(doubling(), SPYRE)
    assert arrows(events) == {("core 0 load", "core 0 vec"), ("core 0 vec", "core 0 store")}


def test_arrows_go_where_loads_and_sends_deliver() -> None:
    """Core 0 loads for cores 0 to 2, which multiply; core 1 sends to core 3, which takes delivery
    and stores."""
    load = op("load", (1,), (lx(0, 1), hbm("x", 0, 1)), imm={"cores": 7})
    load = replace(load, where=1, signals=(Signal(1, 1, 7),))
    mm = replace(op("mm", (1, 1, 1, 1, 1, 1), (acc(0), lx(0), lx(0)), [1]), where=7)
    done = replace(mm, signals=(Signal(2),), where=2)
    only = replace(mm, where=5)
    send = op("send", (1,), (lx(9, 1), lx(9, 1)), [2], imm={"cores": 8})
    send = replace(send, where=2, signals=(Signal(3, 1, 8),))
    recv = replace(op("recv", (), (), [3], [4]), where=8)
    store = replace(op("store", (1,), (hbm("y", 0, 1), lx(9, 1)), [4]), where=8)
    p = program(kernel(4, ml=(load,), pt=(done, only), rs=(send,), rr=(recv,), ms=(store,)))
    events, _ = check_trace(p, SMALL)
    assert arrows(events) == {
        ("core 0 load", "core 0 mm"), ("core 0 load", "core 1 mm"), ("core 0 load", "core 2 mm"),
        ("core 1 mm", "core 1 send"), ("core 1 send", "core 3 store"),
    }


def test_trips_of_loops_are_drawn_around_their_instructions() -> None:
    """A trip of one instruction has no slice, nor has a loop of one trip."""
    zero = op("fill", (64,), (lx(0, 1),), imm={"bits": 16, "value": 0})
    p = program(kernel(1, sfp=(Loop(2, (zero, Loop(2, (zero,)))), Loop(3, (zero,)))))
    events, _ = check_trace(p, SMALL)
    drawn = [e["name"] for e in slices(events, "loop")]
    assert drawn == ["loop 0 trip 0 of 2", "loop 0 trip 1 of 2"]
    p = program(kernel(1, sfp=(Loop(2, (zero, Loop(2, (zero, zero)), Loop(1, (zero, zero)))),)))
    events, _ = check_trace(p, SMALL)
    around = ["loop 1 trip 0 of 2", "loop 1 trip 1 of 2"]
    assert [e["name"] for e in slices(events, "loop")] == [
        "loop 0 trip 0 of 2", *around, "loop 0 trip 1 of 2", *around
    ]
    for e in slices(events, "loop"):
        held = [w for w in slices(events, "work") if e["at"] <= w["at"] < e["at"] + e["dur"] * 1000]
        assert len(held) == (2 if e["name"].startswith("loop 1") else 7)
        assert held[0]["at"] == e["at"]


def test_launches_that_repeat_are_drawn_once() -> None:
    folded, ran = check_trace(doubling(6), SPYRE)
    whole, _ = check_trace(doubling(6), SPYRE, WHOLE)
    like = [e["args"].get("like launch") for e in slices(folded, "launch")]
    assert like == [None, 0, 0, 0, 0, 0]
    assert len(slices(folded, "work")) * 6 == len(slices(whole, "work"))
    assert not any("like launch" in e["args"] for e in slices(whole, "launch"))
    fifth = ran.launches[4]
    part, _ = check_trace(doubling(6), SPYRE, (fifth.go_cycle, fifth.end_cycle))
    assert {e["args"]["launch"] for e in slices(part, "work")} == {4}
    assert len(slices(part, "work")) == 3
    assert len(slices(part, "launch")) == 6


def test_what_is_too_much_is_left_out_launch_by_launch() -> None:
    """The second of three kernels has most instructions, and no room with them."""
    zero = op("fill", (64,), (lx(0, 1),), imm={"bits": 16, "value": 0})
    kernels = [
        replace(kernel(1, sfp=(Loop(n, (zero,)),)), name=f"k{n}") for n in (3, 50, 4)
    ]
    p = program(*kernels)
    whole, _ = check_trace(p, SMALL)
    assert not any("left out" in e["args"] for e in slices(whole, "launch"))
    part, _ = check_trace(p, SMALL, most=4000)
    assert ["left out" in e["args"] for e in slices(part, "launch")] == [False, True, False]
    assert {e["args"]["launch"] for e in slices(part, "work")} == {0, 2}
    check_trace(p, SMALL, most=0)
    trace = ChromeTrace(StringIO(), SMALL, most_bytes=4000)
    run(p, SMALL, timing_only=True, observer=trace)
    assert left_out(trace) == (
        "the trace leaves out the instructions of 1 launch, beyond 40 MB of them; --trace-window "
        "FROM:TO shows those of a part of the run",
    )
    assert left_out(ChromeTrace(StringIO(), SMALL)) == left_out(None) == ()


def test_kernels_that_share_a_launch_have_a_slice_around_them() -> None:
    p = doubling(4)
    joined = tuple(replace(run, joint="meet" if i in (2, 3) else "") for i, run in
                   enumerate(p.launches))
    events, ran = check_trace(replace(p, launches=joined), SPYRE)
    (shared,) = slices(events, "shared")
    assert shared["name"] == "3 kernels in one launch"
    assert shared["args"]["cycles"] == ran.launches[3].end_cycle - ran.launches[1].go_cycle
    assert [e["args"]["joint"] for e in slices(events, "launch")] == ["no", "no", "meet", "meet"]


def test_a_launch_that_is_over_before_it_begins_counts() -> None:
    """What it did was done early: it has no cycles, but bytes."""
    load = op("load", (1,), (lx(0, 1), hbm("x", 0, 1)))
    long = op("fill", (32 * 64,), (lx(100, 1),), imm={"bits": 16, "value": 0})
    p = program(kernel(1, sfp=(Loop(50, (long,)),)), kernel(1, ml=(load,)))
    both = (("x", 0), ("y", 0))
    launches = (Launch(0, both), Launch(1, both, (0,), early=True))
    p = replace(p, launches=launches)
    _, ran = check_trace(p, SMALL)
    assert ran.launches[1].hbm_read_bytes == 128


@pytest.mark.parametrize(
    ("text", "cycles"),
    [
        ("20us:35us", (22_000, 38_500)), ("20:35", (22_000, 38_500)), ("1.5us:2", (1650, 2200)),
        ("1000cycles:2500cycles", (1000, 2500)), ("0.001:0.002", (1, 3)), ("20:", (22_000, inf)),
        (":1us", (0, 1100)), (":", (0, inf)),
    ],
)  # fmt: skip
def test_windows(text: str, cycles: tuple[int, float]) -> None:
    assert parse_window(text).cycles(SPYRE) == cycles


@pytest.mark.parametrize("text", ["", "20", "20:x", "-1:5", "1ms:2ms", "1:2:3", "1e3:2", "nan:1"])
def test_windows_that_are_none(text: str) -> None:
    with pytest.raises(SpyrecError, match=r"^trace window '.*' is not FROM:TO in us or cycles"):
        parse_window(text)


def test_the_command_shows_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    p = doubling(3)
    api.Program(p).save("double.spx")
    _, ran = written(p, SPYRE)
    line = ["simulate", "double.spx", "--timing-only", "--trace", "t.json", "--trace-window"]
    second = ran.launches[1]
    assert cli.run([*line, f"{second.go_cycle}cycles:{second.end_cycle}cycles"]) == 0
    events = events_of(Path("t.json").read_text("utf-8"))
    assert {e["args"]["launch"] for e in slices(events, "work")} == {1}
    Path("t.json").unlink()
    capsys.readouterr()
    assert cli.run([*line, "5:4"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "spyrec: the trace's window ends in cycle 4400, which is not after cycle 5500, in which it "
        "begins; give a later end"
    )
    assert cli.run([*line, "soon"]) == 1
    assert cli.run(["simulate", "double.spx", "--trace-window", "1:2"]) == 2
    assert os.listdir() == ["double.spx"]


def test_a_window_needs_a_trace() -> None:
    with pytest.raises(SpyrecError, match=r"^a trace window says what of a trace is shown: "):
        api.simulate(api.Program(doubling()), timing_only=True, trace_window="1:2")
