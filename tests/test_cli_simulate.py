"""``spyrec simulate`` and the Python API on a program written by hand: y = x + x on one core."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spyrec
from spyrec import api, cli, files
from spyrec.ir.layout import Layout
from spyrec.sim.device import load_device
from spyrec.sim.isa import (
    Buffer,
    Instr,
    Kernel,
    Launch,
    MicroOp,
    MicroProgram,
    Note,
    Operand,
    Program,
    Signal,
    Wait,
)

SHAPE = (3, 70)
LAYOUT = Layout.stick(SHAPE, 16, 1)
STICKS = LAYOUT.sticks


def buffer(name: str, kind: str, address: int) -> Buffer:
    meta = {
        "name": name, "dtype": "f32", "shape": "3x70", "device_dtype": "dl16", "layout": str(LAYOUT)
    }
    return Buffer(f"buf_{name}", kind, STICKS * 128, address, meta=meta)


def doubling(launches: int = 1) -> Program:
    """Load, add to itself, store; ``launches`` of the same kernel in a row."""
    counts, stride = (STICKS,), (1,)
    here, there = Operand("lx", 0, stride), Operand("lx", STICKS, stride)
    x, y = Operand("hbm", 0, stride, symbol="x"), Operand("hbm", 0, stride, symbol="y")
    kernel = Kernel(
        "double",
        {
            "ml": (Instr("load", counts, (), (here, x), {}, (Wait(0, 0),), (Signal(1),)),),
            "sfp": (
                Instr("vec", counts, (), (there, here, here), {}, (Wait(1),), (Signal(2),)),
            ),
            "ms": (Instr("store", counts, (), (y, there), {}, (Wait(2),)),),
        },
        ("x", "y"),
        (MicroProgram(2, (), (MicroOp("add", (0, 1)),)),),
        (Note("add", ("/double/Add",)),),
        cores=1,
        lx_bytes=2 * STICKS * 128,
        info={"ops": "add"},
    )
    buffers = (buffer("x", "input", 0), buffer("y", "output", 4096))
    runs = tuple(
        Launch(0, (("buf_x", 0), ("buf_y", 0)), (i - 1,) if i else ()) for i in range(launches)
    )
    meta = {"model": "double.onnx", "numerics": "dl16"}
    return Program((kernel,), buffers, runs, load_device("spyre").text, meta)


@pytest.fixture
def spx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    api.Program(doubling()).save("double.spx")
    return "double.spx"


X = np.arange(210, dtype=np.float32).reshape(SHAPE)


def test_outputs_are_what_the_device_computes(spx: str) -> None:
    np.savez("in.npz", x=X)
    assert cli.run(["simulate", spx, "--inputs", "in.npz", "--outputs", "out.npz"]) == 0
    out = files.read_npz("out.npz")
    assert list(out) == ["y"]
    assert out["y"].dtype == np.float32
    np.testing.assert_array_equal(out["y"], 2 * X)


def test_the_table_shows_the_kernel_and_totals(
    spx: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["simulate", spx]) == 0
    captured = capsys.readouterr()
    assert captured.err == "inputs: none given, so random ones are made (seed 0)\n"
    heading, row, *rest = captured.out.splitlines()
    assert heading.split()[:4] == ["kernel", "count", "cycles", "us"]
    assert row.split()[:2] == ["double", "1"]
    assert any(line.startswith("total") for line in rest)


def test_the_report_has_exactly_the_promised_fields(spx: str) -> None:
    assert cli.run(["simulate", spx, "--report", "report.json"]) == 0
    report = json.loads(Path("report.json").read_text("utf-8"))
    assert list(report) == [
        "spyrec", "model", "device", "numerics", "total_cycles", "total_us", "clock_mhz",
        "functional", "wall_s", "events", "launch_cycles", "meeting_cycles",
        "kernels", "host", "bucket", "detail",
    ]
    assert report["host"] is None
    again = spyrec.simulate(spyrec.load(spx), detail=True).report()
    assert {**again, "wall_s": 0} == {**report, "wall_s": 0}
    plain = spyrec.simulate(spyrec.load(spx)).report()
    assert {**plain, "wall_s": 0} == {**report, "wall_s": 0, "detail": None}
    [kernel] = report["kernels"]
    assert list(kernel) == [
        "name", "ops", "source", "count", "start_cycle", "cycles", "us", "cores", "macs",
        "pt_utilisation", "hbm_read_bytes", "hbm_write_bytes", "ring_bytes", "lx_peak_bytes",
        "compute_floor_us", "memory_floor_us", "bound",
        "tiles", "span_bytes", "dims", "parts", "tile", "prefetch_us",
        "busy_cycles", "bus_busy_cycles",
    ]
    assert (report["model"], report["device"], report["numerics"]) == (
        "double.onnx", "spyre", "dl16"
    )
    assert report["functional"] is True
    assert report["total_us"] == pytest.approx(report["total_cycles"] / 1100)
    assert kernel["name"] == "double"
    assert kernel["ops"] == ["add"]
    assert kernel["source"] == ["/double/Add"]
    assert kernel["cores"] == 1
    assert kernel["hbm_read_bytes"] == kernel["hbm_write_bytes"] == STICKS * 128
    assert kernel["lx_peak_bytes"] == 2 * STICKS * 128
    bus = load_device("spyre").hbm.bytes_per_cycle
    assert kernel["memory_floor_us"] == pytest.approx(2 * STICKS * 128 / bus / 1100)
    assert 0 < kernel["cycles"] <= report["total_cycles"]
    assert kernel["bound"] in ("compute", "memory", "ring", "vector", "latency")
    assert report["launch_cycles"] + kernel["cycles"] == report["total_cycles"]
    assert list(kernel["busy_cycles"]) == [
        "memory_load", "memory_store", "ring_send", "ring_receive", "matrix", "vector",
    ]
    assert kernel["busy_cycles"]["vector"] > 0 == kernel["busy_cycles"]["matrix"]
    assert kernel["bus_busy_cycles"] >= 2 * STICKS * 128 / 140


def test_timing_only_gives_the_same_cycles_and_no_outputs(spx: str) -> None:
    program = spyrec.load(spx)
    full, timed = spyrec.simulate(program), spyrec.simulate(program, timing_only=True)
    assert timed.kernels == full.kernels
    assert timed.total_cycles == full.total_cycles > 0
    assert timed.total_us == full.total_us
    assert timed.outputs == {}
    assert timed.report()["functional"] is False


def test_equal_launches_are_one_row_and_unequal_ones_are_not() -> None:
    many = spyrec.simulate(api.Program(doubling(4)), timing_only=True)
    assert sum(k.count for k in many.kernels) == 4
    assert len({(k.cycles, k.hbm_read_bytes) for k in many.kernels}) == len(many.kernels)
    starts = [k.start_cycle for k in many.kernels]
    assert starts == sorted(starts)
    assert max(k.count for k in many.kernels) >= 3
    assert many.total_cycles >= sum(k.cycles * k.count for k in many.kernels)


def test_the_seed_decides_the_inputs(spx: str) -> None:
    program = spyrec.load(spx)
    one, same, other = (spyrec.simulate(program, seed=s).outputs["y"] for s in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_the_trace_is_chrome_json(spx: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["simulate", spx, "--trace", "trace.json"]) == 0
    events = json.loads(Path("trace.json").read_text("utf-8"))["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert {e["name"] for e in slices} >= {"load", "vec", "store"}
    assert all(e["dur"] >= 0 for e in slices)
    assert capsys.readouterr().out.splitlines()[-1] == "trace: trace.json"


def test_a_device_file_replaces_the_program_s_machine(spx: str) -> None:
    slow = load_device("spyre").text.replace("clock_mhz = 1100 ", "clock_mhz = 550 ")
    Path("slow.toml").write_text(slow.replace('"spyre"', '"slow"'))
    assert cli.run(["simulate", spx, "--device", "slow.toml", "--report", "slow.json"]) == 0
    report = json.loads(Path("slow.json").read_text("utf-8"))
    assert (report["device"], report["clock_mhz"]) == ("slow", 550)
    assert report["total_us"] == pytest.approx(report["total_cycles"] / 550)


def test_a_machine_with_too_few_cores_says_what_to_do(
    spx: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program = doubling()
    two = replace(program.kernels[0], cores=2)
    api.Program(replace(program, kernels=(two,))).save("two.spx")
    text = load_device("spyre").text.replace("count = 32 ", "count = 1 ", 1)
    Path("one.toml").write_text(text)
    assert cli.run(["simulate", "two.spx", "--device", "one.toml"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "spyrec: the program runs on 2 cores, the device one.toml has 1; compile again with "
        "--device one.toml"
    )
    assert cli.run(["simulate", spx, "--device", "one.toml", "--timing-only"]) == 0


def test_wrong_inputs_are_refused_before_anything_runs(
    spx: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez("in.npz", z=X, x=X.astype(np.float64))
    assert cli.run(["simulate", spx, "--inputs", "in.npz", "--outputs", "out.npz"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "spyrec: in.npz: input 'x': expected float32[3, 70], got float64[3, 70]",
        "spyrec: in.npz: 'z' is not an input of the model; its inputs are: x",
    ]
    assert not Path("out.npz").exists()


def test_overflow_and_nan_are_warned_of(spx: str, capsys: pytest.CaptureFixture[str]) -> None:
    x = X.copy()
    x[0, 0] = 1e30
    np.savez("in.npz", x=x)
    assert cli.run(["simulate", spx, "--inputs", "in.npz"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "warning: input 'x': 1 of 210 values are beyond the range of dl16 and become its largest",
        "warning: output 'y': 1 of 210 values are NaN or infinite: something overflowed dl16, or "
        "an input held such values",
    ]


def test_damaged_programs_are_faults_of_the_file(
    spx: str, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = Path(spx).read_bytes()
    for broken in (b"", raw[: len(raw) // 2], raw[:-1] + bytes([raw[-1] ^ 1]), b"not ours"):
        Path("bad.spx").write_bytes(broken)
        assert cli.run(["simulate", "bad.spx"]) == 1
        assert capsys.readouterr().err.startswith("spyrec: bad.spx")


def test_a_program_that_breaks_the_machine_s_rules_is_a_fault(
    spx: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program = doubling()
    [load] = program.kernels[0].streams["ml"]
    assert isinstance(load, Instr)
    stuck = {**program.kernels[0].streams, "ml": (replace(load, signals=()),)}
    kernel = replace(program.kernels[0], streams=stuck)
    api.Program(replace(program, kernels=(kernel,))).save("stuck.spx")
    assert cli.run(["simulate", "stuck.spx", "--trace", "t.json"]) == 1
    assert "double" in capsys.readouterr().err
    assert not Path("t.json").exists()


@pytest.mark.parametrize("flag", ["--outputs", "--report", "--trace"])
@pytest.mark.parametrize(
    ("error", "code"),
    [(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1), (KeyboardInterrupt(), 130)],
)
def test_a_write_that_fails_leaves_the_old_file(
    spx: str, flag: str, error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Path("old.npz" if flag == "--outputs" else "old.json")
    target.write_text("old")
    before = sorted(os.listdir())

    def fail(_: Any) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    assert cli.run(["simulate", spx, flag, str(target)]) == code
    assert target.read_text() == "old"
    assert sorted(os.listdir()) == before


def test_nothing_but_the_table_goes_to_a_pipe(
    spx: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["simulate", spx, "--timing-only"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "\x1b" not in captured.out
