"""What a sweep is asked for: axes, files of points, parameters of devices, and every refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spyrec import cli
from spyrec.ir.errors import SpyrecError
from spyrec.sim.device import load_device, parse_device
from spyrec.sim.device_file import Whole
from spyrec.sim.device_values import changed, device_of, parameters, toml, value_at, values_of
from spyrec.sim.errors import DeviceError
from spyrec.sweep.grid import Refusals, grid_axis, option_axis, points_of, read_points, swept
from spyrec.sweep.point import Source, task_of
from spyrec.sweep.settings import names
from tests.small_machine import SMALL

SOURCE = Source("d" * 64, "m.onnx", {}, {})


@pytest.mark.parametrize("device", [load_device(), SMALL])
def test_a_device_survives_being_values_and_text(device: Any) -> None:
    values = values_of(device)
    again = device_of(values, "device")
    assert values_of(again) == values == values_of(parse_device(again.text))


@given(st.text(min_size=1, max_size=20).filter(lambda t: t.isprintable() or t in '\t\n"\\\x7f'))
def test_any_name_of_a_device_can_be_written(name: str) -> None:
    values = values_of(SMALL) | {"name": name}
    assert parse_device(toml(values)).name == name


@given(st.sampled_from(sorted(parameters())), st.data())
def test_a_parameter_is_changed_alone(name: str, data: st.DataObject) -> None:
    rule = parameters()[name]
    value = data.draw(st.integers(rule.least, rule.most))
    before = values_of(load_device())
    after = changed(before, {name: value})
    assert value_at(after, name) == value
    assert changed(after, {name: value_at(before, name)} if value_at(before, name) else {}) == (
        before if value_at(before, name) else after
    )
    assert before == values_of(load_device())


def test_every_parameter_of_the_device_file_can_be_set_but_the_hosts() -> None:
    numbers = {n for n, rule in names().items() if isinstance(rule, Whole)}
    assert {"clock_mhz", "cores.count", "pt.mac_eighths.i4", "sfp.cycles.exp"} <= numbers
    assert not any(n.startswith("host.") for n in names())
    assert "name" not in names()


def test_a_contradiction_names_no_line() -> None:
    values = changed(values_of(load_device()), {"pt.macs_per_cycle": 256})
    with pytest.raises(DeviceError) as told:
        device_of(values, "here")
    assert str(told.value) == (
        "here: pt.ksplit_macs_per_cycle is 512, more than the 256 of all corelets"
    )


def test_a_grid_is_the_product_in_order() -> None:
    refused = Refusals()
    axes = [
        grid_axis("cores=8,16", refused), grid_axis("planner=joint,baseline", refused),
        grid_axis("bind.seq=4", refused), grid_axis("plan-budget=0,1.5s", refused),
    ]
    points = points_of(axes, refused)
    assert not refused
    assert len(points) == 8
    assert points[0] == {"cores.count": 8, "planner": "joint", "bind.seq": 4, "plan-budget": 0}
    assert points[1] == {**points[0], "plan-budget": 1.5}
    assert points[2] == {**points[0], "planner": "baseline"}
    assert points[4]["cores.count"] == 16
    assert swept(points) == ["model", "cores.count", "planner", "bind.seq", "plan-budget"]


def test_pipelines_are_an_axis_of_their_own() -> None:
    refused = Refusals()
    specs = ["decompose,fuse", "decompose,fuse{max-ops=4}"]
    axis = option_axis("passes", specs[:1], refused)
    assert axis == ({"passes": specs[0]},)
    assert not refused
    option_axis("passes", ["no-such-pass"], refused)
    assert "no-such-pass" in refused.said[0]


def points_file(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, "utf-8")
    return str(folder / name)


def test_points_of_a_file_need_not_be_a_grid(tmp_path: Path) -> None:
    refused = Refusals()
    expected = ({"model": "a.onnx", "cores.count": 8}, {"model": "b.onnx", "numerics": "fp32"})
    table = "model,cores,numerics\na.onnx,8,\n\nb.onnx, ,fp32\n"
    assert read_points(points_file(tmp_path, "p.csv", table), refused) == expected
    objects = [
        {"model": "a.onnx", "cores": 8, "numerics": None}, {"model": "b.onnx", "numerics": "fp32"}
    ]
    assert read_points(points_file(tmp_path, "p.json", json.dumps(objects)), refused) == expected
    assert not refused
    times = points_of([expected, ({"hbm.burst_bytes": 1}, {"hbm.burst_bytes": 2})], refused)
    assert len(times) == 4


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("p.txt", "", "the name must end in .csv or .json"),
        ("p.json", "{", "Expecting property name"),
        ("p.json", "{}", "expected a JSON list of objects"),
        ("p.json", "[3]", "entry 1 is a JSON int, expected an object"),
        ("p.json", '[{"cores": [8]}]', "entry 1: cores must be a number or a string"),
        ("p.json", "[]", "there is no point in it"),
        ("p.csv", "cores,cores\n1,2\n", "two columns are called 'cores'"),
        ("p.csv", "cores\n1,2\n", "line 2 has 2 cells, the header 1"),
        ("p.csv", "cores\n", "there is no point in it"),
    ],
)
def test_a_file_of_points_that_is_none(
    tmp_path: Path, name: str, text: str, sentence: str
) -> None:
    path = points_file(tmp_path, name, text)
    with pytest.raises(SpyrecError) as told:
        read_points(path, Refusals())
    assert str(told.value).startswith(f"points {path}: {sentence}")


def test_all_refusals_of_a_command_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    points_file(tmp_path, "p.csv", "hbm.burst_bytes\n0\n")
    args = [
        "m.onnx", "cors=8", "ring.bytes_per_cycle=0,64,64", "planner=jont", "nothing=", "cores=8",
        "cores.count=16", "passes=dce", "plan-budget=-1", "bind.x=-3", "--device", "nope.toml",
        "--points", "p.csv", "host.jobs=2",
    ]  # fmt: skip
    assert cli.run(["sweep", *args, "-o", "out.csv", "-j", "1"]) == 2
    said = capsys.readouterr().err
    told = said[said.index("Error: ") + 7 :].splitlines()
    assert told[:-1] == [
        "device=nope.toml: device file nope.toml does not exist",
        "cors cannot be set; did you mean cores?",
        "ring.bytes_per_cycle=0: expected a whole number from 1 to 1048576 (bytes a ring cycle)",
        "ring.bytes_per_cycle=64: is there twice",
        "planner=jont: expected joint or baseline",
        "'nothing=': expected a model file, or KEY=VALUE,VALUE,...",
        "passes=: give passes with --passes SPEC, once for each",
        "plan-budget=-1: expected seconds from 0 to 86400, as 10s",
        "bind.x=-3: expected a whole number, 0 or more",
        "host.jobs cannot be set",
        "p.csv, line 2: hbm.burst_bytes=0: expected a whole number from 1 to 1048576 (bytes)",
        "cores.count is given 2 times",
    ]
    assert told[-1].startswith("what can be set: bind.DIM, cores, device, passes, planner, ")
    assert "ring.hop_cycles" in told[-1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.csv"]


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (["cores=8", "-o", "o.csv"], 2, "no model is given"),
        (["m.onnx", "m.onnx", "-o", "o.csv"], 2, "model m.onnx is given twice"),
        (["m.onnx", "-o", "o.txt"], 1, "o.txt: the name of the result must end in"),
        (["m.onnx", "-o", "no/o.csv"], 1, "no/o.csv: there is no folder no"),
        (["m.onnx", "n.sir", "-o", "o.csv"], 1, "model file n.sir does not exist"),
        (["m.onnx", "-o", "o.csv", "--scheduler", "tcp://h:1", "-j", "1"], 2, "--jobs is for"),
        (["m.onnx", "-o", "o.csv", "--plot", "o.svg", "--y", "speed"], 2, "--y speed: expected"),
        (["m.onnx", "-o", "o.csv", "--plot", "o.svg", "--x", "cores"], 2, "--x cores: the sweep"),
    ],
)
def test_other_refusals(
    args: list[str], code: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    jobs = [] if "--scheduler" in args else ["-j", "1"]
    assert cli.run(["sweep", *args, *jobs]) == code
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_too_many_points_are_refused() -> None:
    refused = Refusals()
    axes = [tuple({name: i} for i in range(400)) for name in ("cores.count", "bind.x")]
    assert points_of(axes, refused) == ()
    assert refused.said == ["the grid has 160,000 points, more than the 100,000 it may have"]


def test_an_id_is_of_what_is_run_not_of_how_it_is_spelt(tmp_path: Path) -> None:
    copy = tmp_path / "copy.toml"
    copy.write_text("# mine\n" + load_device().text, "utf-8")
    plain = task_of({"model": "m.onnx"}, SOURCE).id
    assert task_of({"model": "n.onnx", "device": str(copy), "cores.count": 32}, SOURCE).id == plain
    assert task_of({"model": "m.onnx", "planner": "joint"}, SOURCE).id == plain
    others = [
        {"cores.count": 31}, {"planner": "baseline"}, {"numerics": "fp32"}, {"plan-budget": 1},
        {"passes": "decompose"}, {"passes": "decompose,fuse"},
    ]
    ids = {task_of(settings, SOURCE).id for settings in others} | {plain}
    assert len(ids) == len(others) + 1
    assert task_of({}, Source("e" * 64, "m.onnx", {}, {})).id not in ids
