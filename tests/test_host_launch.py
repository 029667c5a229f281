"""What the host adds to a launch: hand-computed timelines, the modes, jobs, the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from small_machine import SMALL, hbm, kernel, lx, op, program
from test_cli_simulate import doubling
from test_session import cached

import spyrec
from spyrec import cli, runtime
from spyrec.ir.errors import SpyrecError
from spyrec.runtime import Job, Lanes, Span
from spyrec.sim.device import load_device
from spyrec.sim.isa import Program
from spyrec.sim.run import run

# The small machine: 1000 cycles a us; graph 30 + 100 us, submit 10 us, 1 us a correction; a copy
# takes 2 us and 1 us for each 1000 bytes; the prologue 5 cycles a correction.


HOST = load_device().host
JOB_US = {
    "graph": HOST.transfer_graph_us + HOST.compute_graph_us + HOST.submit_us,
    "patched": HOST.compute_graph_us + HOST.submit_us,
    "bound": HOST.submit_us,
}


def steps(mode: str, *jobs: Job, ahead: int = 0) -> list[tuple[str, int, int]]:
    device = replace(SMALL, host=replace(SMALL.host, ahead_jobs=ahead))
    spans, _ = runtime.launch_steps(device, runtime.checked_mode(mode), jobs, Lanes())
    return [(s.lane, s.start_cycle, s.end_cycle) for s in spans]


def test_three_steps_in_order_on_one_clock() -> None:
    assert steps("graph", Job(700, 3)) == [
        ("host", 0, 143_000), ("up", 143_000, 145_024), ("device", 145_024, 145_739),
    ]
    assert steps("patched", Job(700, 3)) == [
        ("host", 0, 113_000), ("up", 113_000, 115_024), ("device", 115_024, 115_739),
    ]
    assert steps("bound", Job(700, 3)) == [("host", 0, 10_000), ("device", 10_000, 10_700)]


def test_the_host_prepares_no_job_while_the_device_works() -> None:
    assert steps("bound", Job(700, 3), Job(50_000, 0), Job(9, 0)) == [
        ("host", 0, 10_000), ("device", 10_000, 10_700),
        ("host", 10_700, 20_700), ("device", 20_700, 70_700),
        ("host", 70_700, 80_700), ("device", 80_700, 80_709),
    ]


def test_with_jobs_ahead_the_longer_of_both_counts() -> None:
    one = steps("bound", Job(700, 3), Job(50_000, 0), Job(9, 0), Job(9, 0), ahead=1)
    assert one == [
        ("host", 0, 10_000), ("device", 10_000, 10_700),
        ("host", 10_000, 20_000), ("device", 20_000, 70_000),
        ("host", 20_000, 30_000), ("device", 70_000, 70_009),
        ("host", 70_000, 80_000), ("device", 80_000, 80_009),
    ]


def test_the_times_of_a_launch_are_the_sums_of_its_spans() -> None:
    time = runtime.host_time(SMALL, "graph", [Job(700, 3), Job(300, 1)])
    assert (time.launch, time.jobs) == ("graph", 2)
    assert time.host_us == pytest.approx(2 * 140 + 4)
    assert time.copy_us == pytest.approx(2.024 + 2.008)
    assert time.device_us == pytest.approx(1 + 0.02)
    assert time.wall_us == pytest.approx(time.host_us + time.copy_us + time.device_us)


def test_a_job_more_costs_the_host_as_much_again_and_none_goes_faster_than_bound() -> None:
    wall = {
        (mode, n): runtime.host_time(SMALL, mode, [Job(1000 // n, 0)] * n).wall_us
        for mode in runtime.HOST_LAUNCHES for n in (1, 2, 4)
    }
    for mode in runtime.HOST_LAUNCHES:
        assert wall[mode, 4] - wall[mode, 2] == pytest.approx(2 * (wall[mode, 2] - wall[mode, 1]))
    assert all(wall["graph", n] > wall["patched", n] > wall["bound", n] for n in (1, 2, 4))


def early(launches: int) -> Program:
    copy = kernel(ml=(op("load", (4,), (lx(0, 1), hbm("x", 0, 1)), signals=(1,)),),
                  ms=(op("store", (4,), (hbm("y", 0, 1), lx(0, 1)), waits=(1,)),))  # fmt: skip
    return program(*[copy] * launches, early=True)


def test_cutting_keeps_every_launch_and_lets_none_begin_in_another_job() -> None:
    whole = early(5)
    made = runtime.cut(whole, 2)
    assert [launch.early for launch in made.launches] == [False, True, False, True, True]
    ran = run(made, SMALL, timing_only=True)
    jobs = runtime.jobs_of(made, 2, ran.launches)
    assert [job.corrections for job in jobs] == [2 * 2, 3 * 2]
    assert sum(job.cycles for job in jobs) == ran.total_cycles
    assert ran.total_cycles > run(whole, SMALL, timing_only=True).total_cycles
    with pytest.raises(SpyrecError) as caught:
        runtime.cut(whole, 6)
    assert str(caught.value) == (
        "the program has 5 launches, so it cannot be cut into 6 device jobs; say at most 5"
    )


def test_launch_spans_name_jobs_and_streams() -> None:
    spans, lanes = runtime.launch_steps(
        SMALL, "bound", [Job(5, 0)] * 2, Lanes(device=99_000), what="m", stream="s"
    )
    assert spans[0] == Span("host", "m 1/2", 0, 10_000, "s")
    assert spans[1] == Span("device", "m 1/2", 99_000, 99_005, "s")
    assert (lanes.host, lanes.device) == (109_005, 109_010)


@pytest.fixture
def spx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    spyrec.Program(doubling(3)).save("double.spx")
    return "double.spx"


@pytest.mark.parametrize("mode", runtime.HOST_LAUNCHES)
def test_the_command_tells_device_host_and_wall_time(
    spx: str, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["simulate", spx, "--timing-only", "--host-launch", mode, "--jobs", "2",
                    "--report", "r.json"]) == 0  # fmt: skip
    report = json.loads(Path("r.json").read_text("utf-8"))
    host = report["host"]
    corrections = 0 if mode == "bound" else 6
    assert host["host_us"] == pytest.approx(2 * JOB_US[mode] + 0.02 * corrections, abs=0.01)
    assert host["device_us"] == pytest.approx(report["total_us"] + 4 * corrections / 1100)
    assert host["copy_us"] == pytest.approx(2 * (mode != "bound") * 5, abs=0.01)
    assert host["wall_us"] == pytest.approx(
        host["host_us"] + host["copy_us"] + host["device_us"]
    )
    assert host["launch"] == mode and host["jobs"] == 2
    line = capsys.readouterr().out.splitlines()[-2]
    assert line == (
        f"launched as 2 device jobs, {mode}: device {host['device_us']:,.1f} us, host "
        f"{host['host_us']:,.1f} us, copies {host['copy_us']:,.1f} us, wall "
        f"{host['wall_us']:,.1f} us"
    )


def test_without_jobs_it_is_one_and_total_cycles_keep_their_meaning(spx: str) -> None:
    program_ = spyrec.load(spx)
    plain = spyrec.simulate(program_, timing_only=True)
    launched = spyrec.simulate(program_, timing_only=True, host_launch="graph")
    assert launched.total_cycles == plain.total_cycles
    assert launched.facts.host is not None and launched.facts.host.jobs == 1
    assert plain.facts.host is None


def test_what_cannot_be_asked(spx: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["simulate", spx, "--timing-only", "--jobs", "2"]) == 2
    assert "--jobs says how the host launches: say --host-launch too" in capsys.readouterr().err
    assert cli.run(["simulate", spx, "--timing-only", "--host-launch", "bound", "--jobs", "4"]) == 1
    assert "has 3 launches, so it cannot be cut into 4 device jobs" in capsys.readouterr().err
    with pytest.raises(SpyrecError, match="'lazy' is unknown; known: graph, patched, bound"):
        spyrec.simulate(spyrec.load(spx), timing_only=True, host_launch="lazy")
    with pytest.raises(SpyrecError, match="say host_launch too"):
        spyrec.simulate(spyrec.load(spx), timing_only=True, jobs=2)


def test_a_session_launches_as_it_is_told(tmp_path: Path) -> None:
    """The first launch constructs everything; later ones what the mode says."""
    program_ = spyrec.compile(cached(tmp_path / "m.pt2", 1))
    for mode in runtime.HOST_LAUNCHES:
        session = spyrec.Session(program_, host_launch=mode, jobs=3)
        hosts = [session.run(program_).facts.host for _ in range(3)]
        assert all(host is not None and host.jobs == 3 for host in hosts)
        times = [host.host_us for host in hosts if host is not None]
        assert times[0] == pytest.approx(3 * JOB_US["graph"], abs=1)
        assert times[1] == times[2] == pytest.approx(3 * JOB_US[mode], abs=1)
        assert [host.launch for host in hosts if host is not None] == ["graph", mode, mode]
