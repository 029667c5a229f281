"""``spyrec bisect`` against defects that are known: each line of ``tests/miscompiles.py`` is broken
in a copy of the compiler, and must be found there, by name, with a model of a few ops that shows
it. Run in processes of their own, since a module that is imported already would stay as it was."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import pytest

from spyrec import cli
from spyrec.ir.parser import parse_module
from spyrec.ir.verifier import verify
from spyrec.workbench.part import weight
from tests.miscompiles import MODELS, SEEDS, Seed

ROOT = Path(__file__).parent.parent
SOURCES = ("ir", "passes", "sim", "spyrec")
MOST_SECONDS = 60.0  # of the child's own time: other processes may share the machine
MOST_OPS = 5
slow = pytest.mark.slow
quick_models = {seed.model for seed in SEEDS if seed.quick}


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the compiler, compiled to bytecode once; it is what a child imports."""
    folder = tmp_path_factory.mktemp("compiler")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    script = "import spyrec.cli_bisect, spyrec.ir, spyrec.passes.pipeline as p, spyrec.sim as s\n"
    script += "print(spyrec.__file__, spyrec.ir.__file__, p.__file__, s.__file__, sep='\\n')"
    subprocess.run([sys.executable, "-m", "compileall", "-q", "."], cwd=folder, check=True)
    told = _python(folder, folder, "-c", script).stdout.split()
    assert len(told) == len(SOURCES)
    assert all(Path(path).is_relative_to(folder) for path in told)
    return folder


@contextmanager
def broken(tree: Path, seed: Seed) -> Iterator[None]:
    """The seed's line in the copy, as long as the block runs. No bytecode of the file stays: its
    time stamp is too coarse to tell the two texts apart."""
    path = tree / seed.file
    sound = path.read_text("utf-8")
    assert sound.count(seed.old) == 1
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()
    path.write_text(sound.replace(seed.old, seed.new), "utf-8")
    try:
        yield
    finally:
        path.write_text(sound, "utf-8")


def _python(tree: Path, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1",
        "SPYREC_PLAN_BUDGET": "0", "SPYREC_CACHE": "off",
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, *args], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


def bisect(tree: Path, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return _python(tree, folder, "-m", "spyrec", "bisect", *args)


def model_file(name: str, folder: Path) -> str:
    model = MODELS[name]
    if isinstance(model, str):
        (folder / f"{name}.sir").write_text(model, "utf-8")
        return f"{name}.sir"
    onnx.save(model(), folder / f"{name}.onnx")
    return f"{name}.onnx"


def _children_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def test_the_list_fits_the_sources() -> None:
    """Lines that were rewritten since must be chosen anew."""
    assert len(SEEDS) >= 30
    assert len({seed.name for seed in SEEDS}) == len(SEEDS)
    for seed in SEEDS:
        assert (ROOT / seed.file).read_text("utf-8").count(seed.old) == 1, seed.name
        assert seed.model in MODELS
    assert set(MODELS) == {seed.model for seed in SEEDS}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in quick_models else slow) for n in MODELS]
)
def test_without_a_seed_nothing_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["bisect", model_file(name, tmp_path)]) == 0
    assert "none of them breaks" in capsys.readouterr().out


@pytest.mark.parametrize(
    "seed", [pytest.param(s, id=s.name, marks=() if s.quick else slow) for s in SEEDS]
)
def test_a_seeded_miscompile_is_found(seed: Seed, tree: Path, tmp_path: Path) -> None:
    model = model_file(seed.model, tmp_path)
    with broken(tree, seed):
        before = _children_seconds()
        done = bisect(tree, tmp_path, model, "-o", "small.sir")
        seconds = _children_seconds() - before
        assert done.returncode == 1, done.stdout + done.stderr
        assert f", {seed.guilty}, " in done.stdout.splitlines()[0]
        assert seconds <= MOST_SECONDS
        small = parse_module((tmp_path / "small.sir").read_text("utf-8"))
        verify(small)
        assert weight(small) <= MOST_OPS
        again = bisect(tree, tmp_path, "small.sir", "--no-reduce")
        assert again.returncode == 1, again.stdout + again.stderr
        assert f", {seed.guilty}, " in again.stdout.splitlines()[0]
