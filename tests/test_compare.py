"""``spyrec compare``: kernels are paired by what they carry out, and a slower one is told."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import spyrec
from examples.make_models import encoder
from spyrec import cli
from spyrec.compare import compare, paired
from spyrec.report import KernelRow
from spyrec.report_file import read_report
from spyrec.sim.device import load_device

Capture = pytest.CaptureFixture[str]


def row(name: str, source: str, cycles: int, **more: Any) -> KernelRow:
    given: dict[str, Any] = {
        "ops": ("add",), "count": 1, "start_cycle": 0, "us": 0.0, "cores": 32, "macs": 0,
        "pt_utilisation": 0.0, "hbm_read_bytes": 0, "hbm_write_bytes": 0, "ring_bytes": 0,
        "lx_peak_bytes": 0, "compute_floor_us": 0.0, "memory_floor_us": 0.0, "bound": "memory",
    }
    return KernelRow(name=name, source=tuple(source), cycles=cycles, **(given | more))


def names(pairs: list[tuple[tuple[KernelRow, ...], tuple[KernelRow, ...]]]) -> list[str]:
    return [" ".join("+".join(k.name for k in side) or "-" for side in pair) for pair in pairs]


def test_renumbered_kernels_are_still_the_same() -> None:
    a = (row("k0_add", "x", 10), row("k1_add", "y", 20, start_cycle=10))
    b = (row("k0_add", "y", 20), row("k1_add", "x", 10, start_cycle=20))
    assert names(paired(a, b)) == ["k1_add k0_add", "k0_add k1_add"]


def test_what_fusion_joins_and_parts_is_one_group() -> None:
    a = (row("a0", "x", 1), row("a1", "y", 2, start_cycle=1), row("a2", "z", 3, start_cycle=3))
    b = (row("b0", "xy", 2), row("b1", "w", 5, start_cycle=2))
    assert names(paired(a, b)) == ["a0+a1 b0", "- b1", "a2 -"]


def test_equal_kernels_are_paired_in_their_order() -> None:
    a = tuple(row(f"a{i}", "x", 10 + i, start_cycle=i) for i in range(3))
    b = tuple(row(f"b{i}", "x", 20 + i, start_cycle=i) for i in range(2))
    assert names(paired(a, b)) == ["a0 b0", "a1 b1", "a2 -"]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two planners, and of the joint one with one kernel cut otherwise, with one tensor
    stored, and on half a machine."""
    folder = tmp_path_factory.mktemp("reports")
    joint = spyrec.compile(encoder())
    product = next(n for n in joint.plan["kernels"] if n.endswith("_matmul_add_mul"))
    pins = {"kernels": {product: {"parts": {"m": 32}}}}
    stored = {"tensors": {"gelu_3": {"space": "hbm"}}}
    text, n = re.subn(r"(?m)^count = 32\b", "count = 16", load_device("spyre").text)
    assert n == 1
    smaller = folder / "smaller.toml"
    smaller.write_text(text, "utf-8")
    programs = {
        "joint": joint, "baseline": spyrec.compile(encoder(), planner="baseline"),
        "pinned": spyrec.compile(encoder(), plan=pins),
        "stored": spyrec.compile(encoder(), plan=stored),
        "smaller": spyrec.compile(encoder(), device=str(smaller)),
    }  # fmt: skip
    for name, program in programs.items():
        result = spyrec.simulate(program, timing_only=True, detail=True)
        (folder / f"{name}.json").write_text(json.dumps(result.report()), "utf-8")
    return folder


def test_a_report_is_read_back_as_it_was(reports: Path) -> None:
    report = read_report(reports / "joint.json")
    assert json.loads(report.as_json()) == json.loads((reports / "joint.json").read_text("utf-8"))


def run(folder: Path, a: str, b: str, *more: str) -> int:
    return cli.run(["compare", str(folder / f"{a}.json"), str(folder / f"{b}.json"), *more])


def test_a_run_is_not_slower_than_itself(reports: Path, capsys: Capture) -> None:
    assert run(reports, "joint", "joint", "--threshold", "0") == 0
    out = capsys.readouterr().out
    assert "17 kernels unchanged." in out and "| kernel |" not in out
    assert run(reports, "joint", "joint", "--all") == 0
    assert "| kernel |" in capsys.readouterr().out


def test_a_kernel_that_is_cut_worse_is_named(reports: Path, capsys: Capture) -> None:
    assert run(reports, "joint", "pinned", "--threshold", "2%") == 1
    told = capsys.readouterr()
    slow = [line for line in told.out.splitlines() if "_matmul_add_mul**" in line]
    assert len(slow) == 1 and "-> m=32" in slow[0] and " %** |" in slow[0]
    assert "slower by more than 2.00%: k" in told.err and ": the run, " in told.err
    assert run(reports, "pinned", "joint", "--threshold", "2%") in (0, 1)
    assert run(reports, "joint", "pinned") == 0
    assert run(reports, "joint", "pinned", "--threshold", "2%", "--least", "10000000") == 0


def test_a_tensor_that_is_stored_shows_in_the_bytes(reports: Path, capsys: Capture) -> None:
    """No cut and no tile is another one, so what the pin comes to is told."""
    assert run(reports, "joint", "stored") == 0
    [row] = [line for line in capsys.readouterr().out.splitlines() if "_matmul_add_mul |" in line]
    assert re.search(r"\| (read .* -> .*; )?written - -> 128\.0 KiB", row), row


def test_two_machines_of_one_name_are_told_apart(reports: Path, capsys: Capture) -> None:
    assert run(reports, "joint", "smaller") == 0
    assert "two machines are called spyre, cores: 32 and 16" in capsys.readouterr().out


def test_all_kernels_of_a_row_are_named(reports: Path, capsys: Capture) -> None:
    """One kernel does now what several did: the names of all of them are shown."""
    assert run(reports, "baseline", "joint") == 0
    out = capsys.readouterr().out
    found = compare(*(read_report(reports / f"{n}.json") for n in ("baseline", "joint")))
    several = [p.names[0].split("+") for p in found.pairs if "+" in p.names[0]]
    assert several and all(f"| {' + '.join(names)} -> " in out for names in several)
    assert " more" not in out


def test_every_cycle_is_in_some_row(reports: Path) -> None:
    a, b = (read_report(reports / f"{n}.json") for n in ("baseline", "joint"))
    found = compare(a, b)
    for side, report in enumerate((a, b)):
        whole = sum(k.cycles * k.count for k in report.kernels)
        assert sum((p.before, p.after)[side] for p in found.pairs) == whole
        told = [n for p in found.pairs for n in p.names[side].split("+") if n != "-"]
        assert sorted(told) == sorted(k.name for k in report.kernels)
    assert found.cycles == (a.total_cycles, b.total_cycles)
    assert found.runs == (45, 17)


def test_all_figures_as_json(reports: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    assert run(reports, "baseline", "joint", "--json", str(path), "-o", str(tmp_path / "c.md")) == 0
    data = json.loads(path.read_text("utf-8"))
    assert data["cycles"][1] == read_report(reports / "joint.json").total_cycles
    assert (tmp_path / "c.md").read_text("utf-8").startswith("**")


def test_runs_that_cannot_be_compared_are_told(reports: Path, tmp_path: Path) -> None:
    a = read_report(reports / "joint.json")
    data = {**a.as_dict(), "device": "other", "clock_mhz": 900}
    (tmp_path / "b.json").write_text(json.dumps(data), "utf-8")
    found = compare(a, read_report(tmp_path / "b.json"))
    assert found.warnings == ("device differs: spyre and other", "clock differs: 1100 and 900")


def wrong(**changes: object) -> Mapping[str, object]:
    return changes


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"total_cycles": "7"}, 'total_cycles is "7", expected int'),
        ({"total_cycles": True}, "total_cycles is true, expected int"),
        ({"kernels": {}}, "kernels is {}, expected a list"),
        ({"kernels": [3]}, "kernels[0] is 3, expected an object"),
        ({"kernels": [{}]}, "kernels[0].name is missing; "),
        ({"host": 3}, "host is 3, expected an object"),
    ],
)
def test_what_is_no_report_is_refused(
    reports: Path, tmp_path: Path, change: dict[str, object], told: str, capsys: Capture
) -> None:
    data = json.loads((reports / "joint.json").read_text("utf-8")) | change
    (tmp_path / "b.json").write_text(json.dumps(data), "utf-8")
    args = ["compare", str(reports / "joint.json"), str(tmp_path / "b.json")]
    assert cli.run(args) == 1
    assert told in capsys.readouterr().err
    (tmp_path / "b.json").write_bytes(b"\x7fELF and more")
    assert cli.run(args) == 1
    assert "is a program, not a report" in capsys.readouterr().err
    for text in ("", "[", "3", "[]", "\xff", "[" * 100_000):
        (tmp_path / "b.json").write_bytes(text.encode("latin-1"))
        assert cli.run(args) == 1
        assert "is no report" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["x", "-1", "nan%", ""])
def test_a_threshold_is_a_percentage(reports: Path, text: str) -> None:
    assert run(reports, "joint", "joint", "--threshold", text) == cli.USAGE


def test_names_of_strangers_are_one_cell_of_plain_text(
    reports: Path, tmp_path: Path, capsys: Capture
) -> None:
    data = json.loads((reports / "joint.json").read_text("utf-8"))
    data["model"] = "a|b\n# `c` <img src=x> \x1b[31mred"
    data["kernels"][0]["name"] = "k0_[x](y)|*z*"
    (tmp_path / "b.json").write_text(json.dumps(data), "utf-8")
    assert cli.run(["compare", str(reports / "joint.json"), str(tmp_path / "b.json"), "--all"]) == 0
    out = capsys.readouterr().out
    shown = r"a\|b \# \`c\` \<img src=x>  \[31mred"
    assert out.splitlines()[0].endswith(f", encoder -> {shown}")
    assert f"> model differs: encoder and {shown}" in out
    before = json.loads((reports / "joint.json").read_text("utf-8"))["kernels"][0]["name"]
    assert f"| {before} -> " + r"k0\_\[x\](y)\|\*z\* | " in out


def test_a_report_may_come_through_a_pipe(reports: Path, tmp_path: Path) -> None:
    pipe, content = tmp_path / "pipe", (reports / "joint.json").read_bytes()
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    assert read_report(pipe) == read_report(reports / "joint.json")
    writer.join()
