"""The traces of compiled models: their sums are those of the report."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from real_models import MODELS, model_path
from trace_checks import BY_KERNEL, MOST, WHOLE, check_trace, written
from trace_reader import tables

import spyrec
from benchmarks.granite import decoder
from examples.make_models import cnn, encoder

LAYERS = 40
MOST_BYTES = 50e6
SAME_LAYERS = 4  # of a model that tests of both forms can afford


def check_model(program: spyrec.Program) -> None:
    events, _ = check_trace(program.code, program.device)
    db = tables(events)
    report = spyrec.simulate(program, timing_only=True)
    cycles: dict[str, int] = {}
    for row in report.kernels:
        cycles[row.name] = cycles.get(row.name, 0) + row.count * row.cycles
    assert {name: total for name, _, total, _ in db.execute(BY_KERNEL)} == cycles
    most = dict(db.execute(MOST).fetchall())
    assert most["scratchpad of the fullest core bytes"] == max(
        row.lx_peak_bytes for row in report.kernels
    )


@pytest.mark.parametrize("model", [cnn, encoder])
def test_trace_of_the_example(model: Callable[[], onnx.ModelProto]) -> None:
    program = spyrec.compile(model())
    check_model(program)
    _, ran = check_trace(program.code, program.device, WHOLE)
    middle = ran.total_cycles // 2
    check_trace(program.code, program.device, (middle, middle + 2000))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
def test_trace_of_a_real_model(name: str) -> None:
    check_model(spyrec.compile(model_path(name), bind=MODELS[name].bind))


@pytest.mark.slow
def test_layers_that_repeat_are_drawn_once() -> None:
    program = spyrec.compile(decoder(SAME_LAYERS, 128))
    folded, _ = check_trace(program.code, program.device)
    whole, _ = check_trace(program.code, program.device, WHOLE)
    like = [e for e in folded if "like launch" in e.get("args", {})]
    assert len(like) > len(program.code.launches) // 4
    drawn = [sum(e.get("cat") == "work" for e in events) for events in (folded, whole)]
    assert drawn[0] < drawn[1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_forty_layers_stay_small() -> None:
    program = spyrec.compile(decoder(LAYERS, 512))
    text, ran = written(program.code, program.device)
    assert len(text) < MOST_BYTES
    assert len(ran.launches) > LAYERS
