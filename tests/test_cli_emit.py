"""``spyrec compile --emit ir``: the result of any pipeline, with weights or without, and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_models import module

import spyrec
from spyrec import cli
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import print_module
from spyrec.passes.pipeline import PIPELINE
from spyrec.passes.pipeline_text import print_pipeline


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with dense.sir, y = relu(x @ w)."""
    monkeypatch.chdir(tmp_path)
    dense = module(
        lambda g, x: [g("relu", g("matmul", x, g.weight(64, 32)))], ("x", (4, 64), "f32")
    )
    Path("dense.sir").write_text(print_module(dense), "utf-8")


def emitted(capsys: pytest.CaptureFixture[str], *options: str, model: str = "dense.sir") -> str:
    capsys.readouterr()
    assert cli.run(["compile", model, *options]) == 0
    return capsys.readouterr().out


def prefix(name: str) -> str:
    """The usual pipeline up to the pass called ``name``, as text."""
    return print_pipeline(PIPELINE[: [p.name for p in PIPELINE].index(name) + 1])


def suffix(name: str) -> str:
    return print_pipeline(PIPELINE[[p.name for p in PIPELINE].index(name) + 1 :])


@pytest.mark.parametrize(
    ("passes", "stage"),
    [("", "tensor"), ("decompose", "tensor"), (prefix("fuse"), "device"),
     (prefix("tiling"), "device"), (prefix("lower-tiles"), "tile")],
    ids=["nothing", "decompose", "fuse", "tiling", "lower-tiles"],
)  # fmt: skip
def test_any_pipeline_shows_its_result(
    passes: str, stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = emitted(capsys, "--emit", "ir", "--passes", passes)
    assert parse_module(text).stage == stage
    assert not list(Path().glob("*.spx"))


@pytest.mark.parametrize("last", ["fuse", "tiling"])
def test_a_module_that_was_written_on_the_way_goes_on_from_there(
    last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    emitted(capsys, "--emit", "ir", "--passes", prefix(last), "-o", "half.sir")
    emitted(capsys, "--passes", suffix(last), "-o", "half.spx", model="half.sir")
    emitted(capsys, "-o", "whole.spx")
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    half, whole = (spyrec.simulate(spyrec.load(f"{n}.spx"), {"x": x}) for n in ("half", "whole"))
    np.testing.assert_array_equal(half.outputs["o0"], whole.outputs["o0"])
    assert half.total_cycles == whole.total_cycles


@pytest.mark.parametrize(("last", "stage"), [("fuse", "device"), ("lower-tiles", "tile")])
def test_the_usual_pipeline_begins_at_the_tensor_stage(
    last: str, stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    emitted(capsys, "--emit", "ir", "--passes", prefix(last), "-o", "half.sir")
    assert cli.run(["compile", "half.sir"]) == 1
    assert capsys.readouterr().err == (
        f"spyrec: module 'small' is at the {stage} stage; expected stage tensor, where the usual "
        "pipeline begins; name the passes that are left with --passes\n"
    )


def test_a_pipeline_that_ends_early_is_no_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["compile", "dense.sir", "--passes", "decompose"]) == 1
    assert "so there is no program to write" in capsys.readouterr().err


def test_weights_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    full = emitted(capsys, "--emit", "ir")
    short = emitted(capsys, "--emit", "ir", "--no-weights")
    assert "resources {" in full
    assert "resources {" not in short and 'elided "sha256:' in short
    assert len(short) < len(full) / 2
    emitted(capsys, "--emit", "ir", "-o", "full.sir")
    assert Path("full.sir").read_text("utf-8") == full
    listing = emitted(capsys, "--emit", "asm", "--no-weights")
    assert "# data left out" in listing and "zlib" not in listing
    assert "zlib" in emitted(capsys, "--emit", "asm")


def test_ir_and_plan_can_be_had_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    text = emitted(capsys, "--emit", "ir", "--emit-plan", "plan.json")
    assert text == emitted(capsys, "--emit", "ir")
    assert Path("plan.json").exists()


def test_print_after_names_weights_by_digest(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.run(["compile", "dense.sir", "--print-after", "decompose"]) == 0
    shown = capsys.readouterr().err
    assert 'elided "sha256:' in shown
    assert "resources {" not in shown


def test_text_without_its_weights_is_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    emitted(capsys, "--emit", "ir", "--passes", "", "--no-weights", "-o", "bare.sir")
    assert cli.run(["compile", "bare.sir"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("spyrec: model bare.sir: line 3, column ")
    assert "is elided" in shown
