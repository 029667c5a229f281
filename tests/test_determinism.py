"""The same command gives the same bytes and cycles; readelf reads them; listings give them back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import pytest
from real_models import MODELS, model_path

import spyrec
from examples.make_models import cnn, encoder
from spyrec import cli

ROOT = Path(__file__).resolve().parent.parent
REAL = ["C02", "light_resnet50"]


def spyrec_command(args: list[str], hash_seed: int) -> str:
    """stdout of a spyrec process of its own; AssertionError when it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        [sys.executable, "-m", "spyrec", *args],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_repeatable(model: str, folder: Path, bind: Mapping[str, int]) -> None:
    """Two processes whose hashes differ write the same object files, tables and outputs."""
    flags = [part for name, size in bind.items() for part in ("--bind", f"{name}={size}")]
    tables = []
    for seed in (1, 2):
        spx, out = str(folder / f"{seed}.spx"), str(folder / f"{seed}.npz")
        spyrec_command(["compile", model, "-o", spx, *flags], seed)
        table = spyrec_command(["simulate", spx, "--outputs", out], seed)
        tables.append(table.replace(out, "OUT"))
    assert tables[0] == tables[1]
    for kind in ("spx", "npz"):
        first, second = (folder / f"{seed}.{kind}" for seed in (1, 2))
        assert first.read_bytes() == second.read_bytes(), kind


def assert_equal_cycles(program: spyrec.Program) -> None:
    """Running twice, and running without numbers, takes the same cycles in every kernel."""
    first, again = spyrec.simulate(program), spyrec.simulate(program)
    timed = spyrec.simulate(program, timing_only=True)
    assert first.total_cycles == again.total_cycles == timed.total_cycles > 0
    assert first.kernels == again.kernels == timed.kernels
    assert first.facts.events == again.facts.events == timed.facts.events


def assert_readable(spx: Path) -> None:
    """``readelf -a`` has no complaint, and disassembling and assembling gives the same bytes."""
    listing, again = spx.with_suffix(".lst"), spx.with_suffix(".again")
    listing.write_text(spyrec_command(["disasm", str(spx)], 0), "utf-8")
    assert cli.run(["asm", str(listing), "-o", str(again)]) == 0
    assert again.read_bytes() == spx.read_bytes()
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not installed; the disassembly did round-trip")
    seen = subprocess.run(["readelf", "-aW", spx], capture_output=True, text=True, check=False)
    assert (seen.returncode, seen.stderr) == (0, "")
    assert "<corrupt" not in seen.stdout


def saved(model: onnx.ModelProto, folder: Path) -> str:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return str(path)


def test_encoder_is_repeatable_in_processes_of_other_hash_seeds(tmp_path: Path) -> None:
    assert_repeatable(saved(encoder(), tmp_path), tmp_path, {})


def test_cnn_is_repeatable_in_processes_of_other_hash_seeds(tmp_path: Path) -> None:
    assert_repeatable(saved(cnn(), tmp_path), tmp_path, {})


@pytest.mark.parametrize("make", [cnn, encoder], ids=lambda make: make.__name__)
def test_cycles_do_not_depend_on_the_run_or_on_the_numbers(
    make: Callable[[], onnx.ModelProto],
) -> None:
    assert_equal_cycles(spyrec.compile(make()))


def test_readelf_and_the_assembler_read_the_encoder(tmp_path: Path) -> None:
    spyrec.compile(encoder()).save(tmp_path / "encoder.spx")
    assert_readable(tmp_path / "encoder.spx")


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_model_is_repeatable(name: str, tmp_path: Path) -> None:
    assert_repeatable(str(model_path(name)), tmp_path, MODELS[name].bind)


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_cycles_of_a_real_model_do_not_depend_on_the_numbers(name: str) -> None:
    assert_equal_cycles(spyrec.compile(model_path(name), bind=MODELS[name].bind))


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_readelf_and_the_assembler_read_a_real_model(name: str, tmp_path: Path) -> None:
    spx = tmp_path / "real.spx"
    spyrec.compile(model_path(name), bind=MODELS[name].bind).save(spx)
    assert_readable(spx)
