"""Programs kept on disk: what is found is what would be compiled, whatever matters has another key,
and nothing that happens to the folder does harm."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import spyrec
from examples.make_models import cnn, encoder
from spyrec import api, cache_key, cli, driver
from spyrec.cache import Cache, default_cache, user_folder
from spyrec.frontend import torch_config
from spyrec.frontend.torch_config import ConfiguredModel
from spyrec.ir.core import Module
from spyrec.passes.manager import Hook, Target
from spyrec.passes.pipeline import PIPELINE, registry
from spyrec.sim.device import load_device, parse_device
from spyrec.sim.objfile import dump

ROOT = Path(__file__).resolve().parent.parent
SPYRE = load_device()


def dense(scale: float = 1.0, node: str = "/dense/MatMul") -> onnx.ModelProto:
    """y = x[batch, 64] @ W"""
    weight = np.linspace(-scale, scale, 64 * 32, dtype=np.float32).reshape(64, 32)
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name=node)], "dense",
        [tensor("x", TensorProto.FLOAT, ["batch", 64])],
        [tensor("y", TensorProto.FLOAT, ["batch", 32])], [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def compiled(cache: Cache, model: Any = None, **options: Any) -> spyrec.Program:
    """``dense`` for a batch of 4, or ``model``, through the cache."""
    if model is None:
        model, options = dense(), {"bind": {"batch": 4}, **options}
    return spyrec.compile(model, cache=cache, **options)


def names(cache: Cache) -> list[str]:
    return sorted(p.name for p in cache.folder.iterdir()) if cache.folder.exists() else []


@pytest.mark.parametrize("model", [cnn, encoder])
def test_what_is_found_is_what_would_be_compiled(cache: Cache, model: Any) -> None:
    first, second = (compiled(cache, model()) for _ in range(2))
    apart = spyrec.compile(model())
    assert [first.from_cache, second.from_cache, apart.from_cache] == [False, True, False]
    for program in (first, second):
        assert dump(program.code) == dump(apart.code)
        assert json.dumps(program.plan) == json.dumps(apart.plan)
        assert program.warnings == apart.warnings
    assert second.module is None


def test_a_program_from_the_cache_runs(cache: Cache) -> None:
    inputs = {"x": np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)}
    runs = [spyrec.simulate(compiled(cache), inputs) for _ in range(2)]
    assert runs[0].total_cycles == runs[1].total_cycles
    np.testing.assert_array_equal(runs[0].outputs["y"], runs[1].outputs["y"])


def test_warnings_are_kept(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "oddities", lambda module: ("é is odd",))
    assert [compiled(cache).warnings for _ in range(2)] == [("é is odd",)] * 2


@pytest.mark.parametrize(
    "change",
    [
        {"model": dense(2.0)}, {"model": dense(node="/other")}, {"bind": {"batch": 8}},
        {"const": {"x": [[0.5] * 64] * 4}}, {"numerics": "ieee16"}, {"numerics": "fp32"},
        {"device": parse_device(SPYRE.text + "\n")},
        {"device": dataclasses.replace(SPYRE, clock_mhz=SPYRE.clock_mhz * 2)},
        {"passes": ",".join(p.name for p in PIPELINE).replace("fuse", "fuse{join=false}")},
        {"planner": "baseline"}, {"plan": {}}, {"plan": {"kernels": {"k0_matmul": {"buffers": 1}}}},
    ],
)  # fmt: skip
def test_whatever_matters_is_compiled_anew(cache: Cache, change: dict[str, Any]) -> None:
    compiled(cache)
    other = {"model": dense(), "bind": {"batch": 4}, **change}
    assert [compiled(cache, **other).from_cache for _ in range(2)] == [False, True]
    assert compiled(cache).from_cache


def test_the_usual_passes_by_name_are_the_usual_passes(cache: Cache) -> None:
    compiled(cache)
    assert compiled(cache, passes=",".join(p.name for p in PIPELINE)).from_cache


@dataclasses.dataclass(frozen=True)
class Mine:
    """A pass of another distribution."""

    name: ClassVar[str] = "mine"
    summary: ClassVar[str] = "Does nothing."

    def run(self, module: Module, target: Target) -> Module:
        return module


def watching() -> Hook:
    return lambda step, before, after, seconds: None


@pytest.mark.parametrize(
    "options",
    [
        {"hook": watching()}, {"passes": PIPELINE},
        {"passes": ",".join(["mine", *(p.name for p in PIPELINE)])},
        {"plan": {"kernels": {"k0_matmul": {"why": float("nan")}}}},
    ],
)  # fmt: skip
def test_what_cannot_be_put_into_words_leaves_the_cache_out(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(driver, "registry", lambda: {**registry(), "mine": Mine})
    assert not any(compiled(cache, **options).from_cache for _ in range(2))
    assert names(cache) == []


def test_a_source_that_changed_since_it_was_loaded_leaves_the_cache_out(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = max(path.stat().st_mtime for _, path in cache_key._sources())
    monkeypatch.setattr(cache_key, "LOADED_AT", newest)
    assert not any(compiled(cache).from_cache for _ in range(2))
    assert names(cache) == []
    monkeypatch.setattr(cache_key, "LOADED_AT", newest + 1)
    assert [compiled(cache).from_cache for _ in range(2)] == [False, True]


def test_the_sources_are_all_of_spyrec() -> None:
    found = {name for name, _ in cache_key._sources()}
    for path in (*ROOT.glob("ir/**/*.py"), *ROOT.glob("passes/*.py"), *ROOT.glob("sim/*.py")):
        package, _, inner = path.relative_to(ROOT).as_posix().partition("/")
        assert f"spyrec.{package}:{inner}" in found
    assert {"spyrec:api.py", "spyrec:backend/kernels.py", "spyrec.ir:text.lark"} <= found


def test_any_change_of_a_source_changes_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a.py": "x = 1\n", "b.py": "y = 1\n"}
    monkeypatch.setattr(cache_key, "LOADED_AT", float("inf"))
    monkeypatch.setattr(cache_key, "_sources", lambda: [(p.name, p) for p in paths])
    digests = []
    for change in ({}, {"a.py": "x = 2\n"}, {"a.py": "x = 1\ny = 1\n", "b.py": ""}, {"c.py": ""}):
        paths = [tmp_path / name for name in {**files, **change}]
        for path in paths:
            path.write_text({**files, **change}[path.name])
        digests.append(cache_key.source_digest())
    assert None not in digests
    assert len(set(digests)) == len(digests)


def damages() -> list[Any]:
    """(what, suffix, the bytes in place of those that were written)"""
    return [
        pytest.param(suffix, change, id=f"{suffix}, {what}")
        for suffix in (".spx", ".json")
        for what, change in {
            "a flipped bit": lambda b: b[: len(b) // 2] + bytes([b[len(b) // 2] ^ 1])
            + b[len(b) // 2 + 1 :],
            "cut short": lambda b: b[:-9],
            "empty": lambda b: b"",
            "something else": lambda b: b"[" * 100_000,
        }.items()
    ]


@pytest.mark.parametrize(("suffix", "change"), damages())
def test_a_damaged_entry_is_compiled_anew_and_replaced(
    cache: Cache, suffix: str, change: Any
) -> None:
    whole = dump(compiled(cache).code)
    [path] = cache.folder.glob(f"*{suffix}")
    path.write_bytes(change(path.read_bytes()))
    again, after = compiled(cache), compiled(cache)
    assert [again.from_cache, after.from_cache] == [False, True]
    assert dump(again.code) == dump(after.code) == whole


@pytest.mark.parametrize("suffix", [".spx", ".json"])
def test_half_an_entry_is_none(cache: Cache, suffix: str) -> None:
    compiled(cache)
    [path] = cache.folder.glob(f"*{suffix}")
    path.unlink()
    assert [compiled(cache).from_cache for _ in range(2)] == [False, True]


def test_a_forged_entry_of_the_wrong_form_is_none(cache: Cache) -> None:
    compiled(cache)
    [path] = cache.folder.glob("*.json")
    for text in ("null", "{}", '{"sha256": "", "plan": [], "warnings": []}'):
        path.write_text(text)
        assert not compiled(cache).from_cache


def test_the_entries_used_last_stay(cache: Cache) -> None:
    compiled(cache)
    size = sum(p.stat().st_size for p in cache.folder.iterdir())
    small = Cache(cache.folder, limit_bytes=size * 9 // 2)  # four of them
    for batch in (1, 2, 3):
        compiled(small, dense(), bind={"batch": batch})
    kept = {p.stem: p for p in small.folder.glob("*.json")}
    for age, path in enumerate(sorted(kept.values(), key=lambda p: p.stat().st_mtime)):
        for one in (path, path.with_suffix(".spx")):
            os.utime(one, (1000 + age, 1000 + age))
    assert compiled(small).from_cache  # the oldest, which counts as used now
    compiled(small, dense(), bind={"batch": 5})
    assert [
        compiled(small, dense(), bind={"batch": batch}).from_cache for batch in (4, 2, 3, 5)
    ] == [True, True, True, True]
    assert not compiled(small, dense(), bind={"batch": 1}).from_cache
    assert sum(p.stat().st_size for p in small.folder.iterdir()) <= small.limit_bytes


def test_a_program_with_too_many_constants_is_not_kept(cache: Cache) -> None:
    constants = sum(b.size for b in compiled(cache).code.buffers if b.data is not None)
    for limit, kept in ((4 * constants - 1, False), (4 * constants + 3, True)):
        small = Cache(cache.folder / str(kept), limit_bytes=limit)
        compiled(small)
        assert bool(names(small)) == kept


def test_files_of_others_are_left_alone(cache: Cache) -> None:
    cache.folder.mkdir()
    others = ["notes.txt", "a.spx", ".hidden.tmp", "0" * 63 + ".json"]
    for name in others:
        (cache.folder / name).write_bytes(b"x" * 10_000)
    abandoned = cache.folder / f".{'0' * 64}.spx.01234567.tmp"
    fresh = cache.folder / f".{'1' * 64}.spx.01234567.tmp"
    for path in (abandoned, fresh):
        path.write_bytes(b"half")
    os.utime(abandoned, (1000, 1000))
    compiled(Cache(cache.folder, limit_bytes=40_000))
    assert set(others) <= set(names(cache))
    assert fresh.exists()
    assert not abandoned.exists()


def test_a_folder_that_only_others_may_change_is_read(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(cache)

    def refuse(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", refuse)
    assert compiled(cache).from_cache


def test_without_a_usable_folder_it_compiles(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert not any(compiled(Cache(tmp_path / "file")).from_cache for _ in range(2))


def test_processes_share_a_folder(cache: Cache, tmp_path: Path) -> None:
    """Several that compile one model at a time, whatever their hashes, write one entry."""
    onnx.save(dense(), tmp_path / "dense.onnx")
    made = []
    for seed in (0, 1):
        environment = {
            **os.environ, "SPYREC_CACHE": str(cache.folder), "PYTHONHASHSEED": str(seed),
            "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        args = ["compile", "dense.onnx", "--bind", "batch=4", "-o", f"{seed}.spx"]
        made.append(
            subprocess.Popen([sys.executable, "-m", "spyrec", *args], env=environment, cwd=tmp_path)
        )
    assert [process.wait() for process in made] == [0, 0]
    assert (tmp_path / "0.spx").read_bytes() == (tmp_path / "1.spx").read_bytes()
    assert len(names(cache)) == 2
    model = tmp_path / "dense.onnx"
    assert compiled(cache, model, bind={"batch": 4}).from_cache


def test_the_command_line_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPYREC_CACHE", str(tmp_path / "cache"))
    onnx.save(dense(), "dense.onnx")
    built: list[str] = []
    compile_module = driver.compile_module

    def counting(module: Module, *args: Any, **options: Any) -> Any:
        built.append(module.name)
        return compile_module(module, *args, **options)

    monkeypatch.setattr(driver, "compile_module", counting)
    args = ["compile", "dense.onnx", "--bind", "batch=4"]
    said, wrote = [], []
    for extra in ([], [], ["--no-cache"]):
        assert cli.run([*args, "--emit-plan", "plan.json", *extra]) == 0
        said.append(capsys.readouterr())
        wrote.append((Path("dense.spx").read_bytes(), Path("plan.json").read_bytes()))
    assert len(built) == 2
    assert said[0] == said[1] == said[2]
    assert wrote[0] == wrote[1] == wrote[2]
    for more in (["--emit", "ir"], ["--verify-each"], ["--print-after", "fuse"]):
        assert cli.run([*args, "-o", "out", *more]) == 0
    assert len(built) == 4  # IR alone does not need code
    assert cli.run([*args, "--emit", "asm", "-o", "out"]) == 0
    assert len(built) == 4


def test_on_a_terminal_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPYREC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    onnx.save(dense(), "dense.onnx")
    heard = []
    for _ in range(2):
        assert cli.run(["compile", "dense.onnx", "--bind", "batch=4"]) == 0
        heard.append("taken from the cache; --no-cache compiles anew" in capsys.readouterr().err)
    assert heard == [False, True]


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPYREC_CACHE", "off")
    assert default_cache() is None
    monkeypatch.setenv("SPYREC_CACHE", str(tmp_path))
    assert default_cache() == Cache(tmp_path)
    monkeypatch.setenv("SPYREC_CACHE", "")
    assert default_cache() == Cache(user_folder())
    for name in ("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    folders = []
    for platform in ("linux", "darwin"):
        monkeypatch.setattr(sys, "platform", platform)
        folders.append(user_folder())
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/users/me/local")
    folders.append(user_folder())
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    folders.append(user_folder())
    assert folders == [
        Path("/home/me/.cache/spyrec"), Path("/home/me/Library/Caches/spyrec"),
        Path("/users/me/local/spyrec/Cache"), Path("/elsewhere/spyrec"),
    ]  # fmt: skip


def test_without_being_asked_the_api_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPYREC_CACHE", str(tmp_path / "cache"))
    spyrec.compile(dense(), bind={"batch": 4})
    assert not (tmp_path / "cache").exists()
    runs = [spyrec.compile(dense(), bind={"batch": 4}, cache=True) for _ in range(2)]
    assert [p.from_cache for p in runs] == [False, True]


CARD = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 512,
}  # fmt: skip


def test_a_configuration_that_is_found_is_not_even_exported(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported: list[ConfiguredModel] = []

    def stand_in(model: ConfiguredModel, *_: Any) -> Module:
        exported.append(model)
        return import_model(dense(), {"batch": model.prompt or 1}, {})

    import_model = api.import_model
    monkeypatch.setattr(api, "import_model", stand_in)
    first = ConfiguredModel(CARD, prompt=8)
    others = [
        ConfiguredModel(CARD, prompt=16), ConfiguredModel(CARD, decode=8),
        ConfiguredModel(CARD, prompt=8, layers=1),
        ConfiguredModel({**CARD, "vocab_size": 1024}, prompt=8),
    ]  # fmt: skip
    for model in (first, *others):
        assert [compiled(cache, model).from_cache for _ in range(2)] == [False, True]
    assert exported == [first, *others]
    monkeypatch.setattr(torch_config, "versions", lambda names: "torch 3.0.0")
    assert not compiled(cache, first).from_cache


@pytest.mark.skipif(
    not (find_spec("torch") and find_spec("transformers")),
    reason="torch and transformers are extras; see docs/dependencies.md",
)
@pytest.mark.parametrize("phase", ["prompt", "decode"])
def test_a_language_model_from_the_cache(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    model = ConfiguredModel(CARD, **{phase: 64})
    first = compiled(cache, model)
    monkeypatch.delattr(torch_config, "exported_model")
    second = compiled(cache, model)
    assert [first.from_cache, second.from_cache] == [False, True]
    assert dump(first.code) == dump(second.code)
