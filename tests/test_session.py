"""Programs with state: what a run leaves is there in the next, from memory and from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pt2_files import Draft

import spyrec
from spyrec import runtime

Array = np.ndarray[Any, Any]
ROWS, WIDTH = 8, 64
START = np.linspace(1, 2, WIDTH, dtype=np.float32)


def cached(path: Path, count: int, rows: int = ROWS) -> Path:
    """A file of a model that writes ``count`` rows of a cache where positions say, adds one to a
    counter, and gives the cache's sum over rows times the counter."""
    d = Draft()
    cache = d.weight("cache", np.zeros((1, rows, WIDTH), np.float32), "buffer")
    counter = d.weight("counter", START, "buffer")
    x = d.input("x", "float32", 1, count, WIDTH)
    at = d.input("at", "int64", count)
    written = d.call("aten.index_copy_", "float32", (1, rows, WIDTH), self=cache, dim=1, index=at,
                     source=x)  # fmt: skip
    more = d.call("aten.add_.Tensor", "float32", (WIDTH,), self=counter, other=1)
    total = d.call("aten.sum.dim_IntList", "float32", (1, WIDTH), self=written, dim=[1])
    y = d.call("aten.mul.Tensor", "float32", (1, WIDTH), self=total, other=more)
    return d.returns(y).save(path)


class Reference:
    def __init__(self) -> None:
        self.cache, self.counter = np.zeros((ROWS, WIDTH), np.float32), START

    def run(self, x: Array, at: Array) -> Array:
        self.cache[at] = x[0]
        self.counter = self.counter + 1
        result: Array = self.cache.sum(0, keepdims=True) * self.counter
        return result


def close(got: Array, want: Array) -> None:
    np.testing.assert_allclose(got, want, rtol=0.01, atol=0.02)


def test_state_outlives_a_run_also_through_a_file(tmp_path: Path) -> None:
    program = spyrec.compile(cached(tmp_path / "m.pt2", 1))
    program.save(tmp_path / "m.spx")
    loaded = spyrec.load(tmp_path / "m.spx")
    assert runtime.state_of(program.code) == {"cache": "cache.next", "counter": "counter.next"}
    sessions = spyrec.Session(program), spyrec.Session(loaded)
    reference, rng = Reference(), np.random.default_rng(0)
    for at in (0, 3, 3, 7):
        x, where = rng.standard_normal((1, 1, WIDTH)).astype(np.float32), np.array([at])
        want = reference.run(x, where)
        for session, code in zip(sessions, (program, loaded), strict=True):
            result = session.run(code, {"x": x, "at": where})
            close(result.outputs["output"], want)
    close(sessions[1].state["cache"][0], reference.cache)
    sessions[0].reset()
    np.testing.assert_array_equal(sessions[0].state["cache"], 0)
    close(sessions[0].state["counter"], START)


def test_programs_share_state_by_name(tmp_path: Path) -> None:
    """Three rows at once, then one by one: prefill and decode."""
    prefill = spyrec.compile(cached(tmp_path / "a.pt2", 3))
    decode = spyrec.compile(cached(tmp_path / "b.pt2", 1))
    session, reference = spyrec.Session(prefill, decode), Reference()
    rng = np.random.default_rng(1)
    for program, at in ((prefill, [0, 1, 5]), (decode, [6]), (decode, [2])):
        x, where = rng.standard_normal((1, len(at), WIDTH)).astype(np.float32), np.array(at)
        result = session.run(program, {"x": x, "at": where})
        close(result.outputs["output"], reference.run(x, where))


def test_state_is_changed_by_a_run_alone(tmp_path: Path) -> None:
    program = spyrec.compile(cached(tmp_path / "m.pt2", 1))
    session = spyrec.Session(program)
    with pytest.raises(TypeError):
        session.state["counter"] = START * 0  # type: ignore[index]
    x, at = np.zeros((1, 1, WIDTH), np.float32), np.array([0])
    session.run(program, {"x": x, "at": at, "counter": START * 0})
    np.testing.assert_array_equal(session.state["counter"], 1)


def test_a_run_for_time_leaves_the_state(tmp_path: Path) -> None:
    program = spyrec.compile(cached(tmp_path / "m.pt2", 1))
    session = spyrec.Session(program)
    before = session.run(program, timing_only=True).total_cycles
    np.testing.assert_array_equal(session.state["cache"], 0)
    assert before == spyrec.simulate(program, timing_only=True).total_cycles


def test_simulate_begins_with_the_first_state(tmp_path: Path) -> None:
    program = spyrec.compile(cached(tmp_path / "m.pt2", 1))
    x, at = np.ones((1, 1, WIDTH), np.float32), np.array([2])
    result = spyrec.simulate(program, {"x": x, "at": at})
    close(result.outputs["counter.next"], START + 1)
    close(result.outputs["output"], START[np.newaxis] + 1)


def test_programs_that_do_not_belong_together(tmp_path: Path) -> None:
    one = spyrec.compile(cached(tmp_path / "a.pt2", 1))
    other = spyrec.compile(cached(tmp_path / "b.pt2", 1, rows=4))
    with pytest.raises(spyrec.SpyrecError, match="two programs keep 'cache', one as float32"):
        spyrec.Session(one, other)
    with pytest.raises(spyrec.SpyrecError, match="not one of this session"):
        spyrec.Session(one).run(other)
