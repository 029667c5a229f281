"""The fit: parameters by name, a search that finds what it should, and shapes it did not see."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fit_device import (
    PARAMETERS,
    Floats,
    Search,
    candidates,
    get,
    log_ratios,
    rms_by_group,
    samples,
    unseen,
    with_value,
)
from spyrec.sim.device import DeviceSpec, load_device
from spyrec.validate import predict
from spyrec.validate_rows import COLUMNS, read_rows

DEVICE = load_device()
START = tuple(get(DEVICE, name) for name in PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_is_changed_alone(name: str) -> None:
    changed = with_value(DEVICE, name, get(DEVICE, name) + 7)
    assert get(changed, name) == get(DEVICE, name) + 7
    assert [n for n in PARAMETERS if get(changed, n) != get(DEVICE, n)] == [name]
    assert with_value(changed, name, get(DEVICE, name)) == DEVICE


def test_candidates_stay_possible() -> None:
    assert candidates("hbm.request_cycles", 0) == [1]
    assert candidates("hbm.request_cycles", 2) == [1, 3, 4]
    assert candidates("hbm.bytes_per_cycle", 1) == [2]
    assert candidates("lx.port_bytes_per_cycle", 100) == [50, 80, 90, 99, 101, 110, 125, 200]


def bowl(spec: DeviceSpec) -> Floats:
    """Four rows that are right when the bus has 120 bytes and the start-up 900 cycles; nothing
    else matters."""
    bus = math.log(get(spec, "hbm.bytes_per_cycle") / 120)
    start = math.log(get(spec, "launch.start_cycles") / 900)
    return np.array([bus, 2 * bus, start, bus + start])


def test_the_search_finds_the_bottom_and_leaves_the_rest() -> None:
    search = Search(DEVICE, np.array(["a", "a", "b", "b"]), bowl)
    use = np.ones(4, np.bool_)
    fitted = dict(zip(PARAMETERS, search.fit(use, 10, lambda _: None), strict=True))
    assert abs(fitted["hbm.bytes_per_cycle"] - 120) <= 1
    assert abs(fitted["launch.start_cycles"] / 900 - 1) < 0.06
    moved = [n for n, v in zip(PARAMETERS, START, strict=True) if fitted[n] != v]
    assert sorted(moved) == ["hbm.bytes_per_cycle", "launch.start_cycles"]


def test_the_loss_gives_each_class_the_same_weight() -> None:
    logs = np.array([0.1, 0.1, 0.1, 0.5])
    search = Search(DEVICE, np.array(["a", "a", "a", "b"]), lambda _: logs)
    assert search.loss(START, np.ones(4, np.bool_)) == pytest.approx(0.3)
    assert search.loss(START, np.array([True, True, True, False])) == pytest.approx(0.1)
    assert rms_by_group(search.logs(START), search.groups) == pytest.approx({"a": 10, "b": 50})


def test_a_shape_left_out_does_not_help_to_fit_itself() -> None:
    """Row 0 alone would want another bus; fitted without it, it stays wrong by as much."""
    now = get(DEVICE, "hbm.bytes_per_cycle")

    def timed(spec: DeviceSpec) -> Floats:
        bus = get(spec, "hbm.bytes_per_cycle")
        return np.array([math.log(bus / n) for n in (2 * now, now, now)])

    search = Search(DEVICE, np.array(["a", "b", "b"]), timed)
    logs = unseen(search, np.array(["s0", "s1", "s1"]), folds=2, rounds=5)
    assert logs[0] == pytest.approx(math.log(0.5))
    assert logs[1] == logs[2] == pytest.approx(math.log(2))


def test_samples_are_timed_as_validate_times_them(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    some = dict.fromkeys(COLUMNS, "") | {
        "id": "a", "op": "pointwise", "variant": "add", "rows": "256", "cols": "512",
        "dtype": "fp16", "cores": "8", "time_us": "12", "stack": "H",
    }  # fmt: skip
    other = some | {"id": "b", "cores": "4"}
    odd = some | {"id": "c", "variant": "unheard"}
    lines = [",".join(COLUMNS), *(",".join(r.values()) for r in (some, other, odd))]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    rows = read_rows(path)
    found = samples(rows, DEVICE)
    assert [(s.id, s.group, s.shape) for s in found] == [
        (i, "pointwise", "pointwise rows256 cols512") for i in ("a", "b")
    ]
    want = [predict(row, DEVICE).log_ratio for row in rows[:2]]
    assert log_ratios(DEVICE, found) == pytest.approx(want)
    slower = with_value(DEVICE, "hbm.bytes_per_cycle", 70)
    assert all(x > y for x, y in zip(log_ratios(slower, found), want, strict=True))
