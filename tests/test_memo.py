"""Trial runs on disk: the same answer with and without, and nothing but legal plans is believed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from test_improve import REDUCED, laid, layers, trials

from benchmarks import exhaustive
from spyrec import memo as memos
from spyrec.driver import compile_module
from spyrec.ir.core import Module
from spyrec.memo import Memo
from spyrec.sim.objfile import dump


@pytest.fixture
def memo(tmp_path: Path) -> Memo:
    return Memo(tmp_path / "trials", "here", 4)


def kept(memo: Memo, m: Module) -> Path:
    """The only entry, of that module's trial."""
    memo.store(memo.key(m), trials()(m))
    (path,) = memo.folder.iterdir()
    return path


def test_a_trial_comes_back_as_it_was(memo: Memo) -> None:
    m = laid(layers(3))
    kept(memo, m)
    assert memo.load(memo.key(m), m) == (True, trials()(m))


def test_one_that_did_not_fit_is_known_too(memo: Memo) -> None:
    m = laid(layers(1))
    assert memo.load(memo.key(m), m) == (False, None)
    memo.store(memo.key(m), None)
    assert memo.load(memo.key(m), m) == (True, None)


def test_names_do_not_matter_and_shapes_pins_and_surroundings_do(memo: Memo) -> None:
    m, other = laid(layers(2)), laid(layers(3))
    key = memo.key(m)
    assert memo.key(laid(layers(2))) == key
    assert memo.key(other) != key
    tensor = next(op for op in m.body.ops if op.name == "kernel").result.name
    assert memo.key(m.with_attrs(pin_spaces=((tensor, "hbm"),))) != key
    assert Memo(memo.folder, "there", 4).key(m) != key


def damaged(data: dict[str, Any], what: str) -> None:
    trial, decided = data["trial"], data["trial"]["kernels"][0]["decided"]
    match what:
        case "parts":
            decided["parts"] = [4] * len(decided["parts"])
        case "grains":
            decided["grains"] = [1] * len(decided["grains"])
        case "tile":
            decided["tile"][0] = 1 << 40
        case "no tile":
            del decided["tile"]
        case "text":
            decided["parts"] = "abc"
        case "keep":
            decided["keep"] = [7]
        case "held":
            decided["held"] = [2]
        case "finish":
            decided["finish"] = [1] * len(decided["tile"])
        case "ahead":
            decided["ahead"] = 0
        case "order":
            decided["core_order"] = [17]
        case "count":
            trial["cycles"] = -1
        case "index":
            trial["order"][0] = 99
        case "short":
            trial["order"].pop()
        case "space":
            trial["kernels"][0]["spaces"] = ["moon"]


@pytest.mark.parametrize(
    "what",
    ["parts", "grains", "tile", "text", "order", "count", "index", "short", "space", "no tile",
     "keep", "held", "finish", "ahead"],
)
def test_a_plan_that_breaks_a_rule_is_not_believed(memo: Memo, what: str) -> None:
    m = laid(layers(1))
    path = kept(memo, m)
    data = json.loads(path.read_bytes())
    damaged(data, what)
    data["sha256"] = hashlib.sha256(json.dumps(data["trial"]).encode()).hexdigest()
    path.write_text(json.dumps(data))
    assert memo.load(memo.key(m), m) == (False, None)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"trial": 3}', "[" * 100_000, "\xff"])
def test_what_is_no_entry_is_none(memo: Memo, text: str) -> None:
    m = laid(layers(1))
    kept(memo, m).write_bytes(text.encode("latin-1"))
    assert memo.load(memo.key(m), m) == (False, None)


def test_a_bit_that_flipped_is_seen(memo: Memo) -> None:
    m = laid(layers(1))
    path = kept(memo, m)
    path.write_text(path.read_text().replace('"cycles": ', '"cycles": 1', 1))
    assert memo.load(memo.key(m), m) == (False, None)


def test_a_file_that_is_too_large_is_not_read(memo: Memo, monkeypatch: pytest.MonkeyPatch) -> None:
    m = laid(layers(1))
    kept(memo, m)
    monkeypatch.setattr(memos, "LARGEST_BYTES", 100)
    assert memo.load(memo.key(m), m) == (False, None)


def test_the_oldest_entries_go(memo: Memo, monkeypatch: pytest.MonkeyPatch) -> None:
    memo.folder.mkdir(parents=True)
    for i in range(4):
        memo.store(f"{i:064x}", None)
        path = memo.folder / f"{i:064x}.trial.json"
        os.utime(path, (1000 + i, 1000 + i))
    (memo.folder / "mine.txt").write_text("stays")
    monkeypatch.setattr(memos, "LIMIT_BYTES", 2 * path.stat().st_size)
    memo.trim()
    left = sorted(p.name for p in memo.folder.iterdir())
    assert left == [f"{i:064x}.trial.json" for i in (2, 3)] + ["mine.txt"]


def test_no_folder_is_no_error() -> None:
    nowhere = Memo(Path(os.devnull) / "x", "here", 4)
    m = laid(layers(1))
    nowhere.store(nowhere.key(m), None)
    nowhere.trim()
    assert nowhere.load(nowhere.key(m), m) == (False, None)


def test_with_and_without_is_the_same_program(tmp_path: Path) -> None:
    m = exhaustive.random_graph(1018)
    apart, cold, warm = (
        compile_module(m, REDUCED, plan_budget=0.5, memo=folder)
        for folder in (None, tmp_path, tmp_path)
    )
    assert dump(apart.program) == dump(cold.program) == dump(warm.program)
    assert json.dumps(apart.plan) == json.dumps(cold.plan) == json.dumps(warm.plan)
