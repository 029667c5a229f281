"""``spyrec compile`` on a small model: what it writes, what its options change, how it fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import spyrec
from spyrec import cli, files
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import print_module
from spyrec.sim.assembler import assemble
from spyrec.sim.device import load_device
from spyrec.sim.objfile import dump

WEIGHT = (np.random.default_rng(7).standard_normal((64, 32)) / 8).astype(np.float32)


def model(batch: int | str = 4) -> onnx.ModelProto:
    """y = relu(x @ W) * gain"""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="/dense/MatMul"),
        helper.make_node("Relu", ["h"], ["r"], name="/dense/Relu"),
        helper.make_node("Mul", ["r", "gain"], ["y"], name="/dense/Mul"),
    ]
    graph = helper.make_graph(
        nodes,
        "dense",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 64]),
            helper.make_tensor_value_info("gain", TensorProto.FLOAT, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 32])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expected(x: np.ndarray, gain: float) -> np.ndarray:
    return np.maximum(x @ WEIGHT, 0) * gain


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    onnx.save(model(), "dense.onnx")
    onnx.save(model("batch"), "open.onnx")
    yield tmp_path


def run(*args: str) -> None:
    assert cli.run(list(args)) == 0


X = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)


@pytest.mark.parametrize(
    ("numerics", "tolerance"), [("dl16", 0.02), ("ieee16", 0.01), ("fp32", 1e-4)]
)
def test_the_compiled_model_computes_what_the_model_says(
    desk: Path, numerics: str, tolerance: float
) -> None:
    np.savez("in.npz", x=X, gain=np.array([2], np.float32))
    run("compile", "dense.onnx", "-o", "d.spx", "--numerics", numerics)
    run("simulate", "d.spx", "--inputs", "in.npz", "--outputs", "o.npz", "--report", "r.json")
    np.testing.assert_allclose(files.read_npz("o.npz")["y"], expected(X, 2), atol=tolerance)
    report = json.loads(Path("r.json").read_text("utf-8"))
    assert report["numerics"] == numerics
    assert report["model"] == "dense.onnx"
    sources = {s for k in report["kernels"] for s in k["source"]}
    assert "/dense/MatMul" in sources
    assert sum(k["macs"] for k in report["kernels"]) == 4 * 64 * 32


def test_verify_each_finds_nothing_wrong_says_so_and_changes_nothing(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("compile", "dense.onnx", "-o", "a.spx", "--verify-each")
    assert "verified: after each pass, no rule of the IR is broken" in capsys.readouterr().err
    run("compile", "dense.onnx", "-o", "b.spx")
    assert Path("a.spx").read_bytes() == Path("b.spx").read_bytes()


def test_the_usual_passes_may_be_named(desk: Path) -> None:
    run("compile", "dense.onnx", "-o", "a.spx", "--passes", "usual")
    run("compile", "dense.onnx", "-o", "b.spx")
    assert Path("a.spx").read_bytes() == Path("b.spx").read_bytes()


def test_the_object_file_is_named_after_the_model_and_repeatable(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("compile", "dense.onnx")
    assert capsys.readouterr().out.startswith("dense.spx: ")
    run("compile", "dense.onnx", "-o", "again.spx")
    assert Path("dense.spx").read_bytes() == Path("again.spx").read_bytes()


def test_emitted_ir_and_listing_read_back(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("compile", "dense.onnx", "--emit", "ir")
    text = capsys.readouterr().out
    assert print_module(parse_module(text)) == text
    run("compile", "dense.onnx", "--emit", "asm", "-o", "d.lst")
    run("compile", "dense.onnx", "-o", "d.spx")
    assert dump(assemble(Path("d.lst").read_text("utf-8"))) == Path("d.spx").read_bytes()


def test_the_emitted_plan_pins_every_decision(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    run("compile", "dense.onnx", "-o", "a.spx", "--emit-plan", "plan.json")
    assert capsys.readouterr().out == "a.spx: 1 kernel, 1 launch\nplan: plan.json\n"
    assert json.loads(Path("plan.json").read_text("utf-8"))
    run("compile", "dense.onnx", "-o", "b.spx", "--plan", "plan.json")
    assert Path("a.spx").read_bytes() == Path("b.spx").read_bytes()


def test_print_after_shows_ir_on_stderr(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("compile", "dense.onnx", "--print-after", "all")
    captured = capsys.readouterr()
    names = [line.split()[2] for line in captured.err.splitlines() if line.startswith("// after ")]
    assert len(names) >= 3
    assert "// after" not in captured.out
    run("compile", "dense.onnx", "--print-after", names[-1])
    again = capsys.readouterr().err
    assert again.count("// after ") == names.count(names[-1])
    assert "module" in again


def test_an_unknown_pass_to_print_after_is_a_fault(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["compile", "dense.onnx", "--print-after", "nosuch"]) == 1
    assert "no pass is called 'nosuch'" in capsys.readouterr().err


def test_open_dimensions_are_listed_with_the_flags_to_write(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["compile", "open.onnx"]) == 1
    assert "--bind batch=" in capsys.readouterr().err
    run("compile", "open.onnx", "--bind", "batch=4", "-o", "bound.spx")
    run("compile", "open.onnx", "--bind", "x:0=4", "-o", "by_place.spx")
    assert Path("bound.spx").read_bytes() == Path("by_place.spx").read_bytes()
    assert spyrec.load("bound.spx").inputs[0].shape == (4, 64)


def test_an_input_made_constant_is_no_input_any_more(desk: Path) -> None:
    run("compile", "dense.onnx", "--const", "gain=[3.0]", "-o", "c.spx")
    program = spyrec.load("c.spx")
    assert [p.name for p in program.inputs] == ["x"]
    got = spyrec.simulate(program, {"x": X}).outputs["y"]
    np.testing.assert_allclose(got, expected(X, 3), atol=0.05)


def test_ir_text_is_a_model_too(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("double.sir").write_text(
        'module "double" {\n  input %x : tensor<4x64xf32>\n'
        "  %y = add(%x, %x) : tensor<4x64xf32>\n"
        '  output "y" = %y\n}\n'
    )
    run("compile", "double.sir")
    got = spyrec.simulate(spyrec.load("double.spx"), {"x": X}).outputs["y"]
    np.testing.assert_allclose(got, 2 * X, atol=0.02)
    Path("bad.sir").write_text('module "m" { nonsense }')
    assert cli.run(["compile", "bad.sir"]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_machine_of_ones_own_is_compiled_for(desk: Path) -> None:
    text = load_device("spyre").text.replace("count = 32 ", "count = 4 ", 1)
    Path("small.toml").write_text(text.replace('"spyre"', '"small"', 1))
    run("compile", "dense.onnx", "--device", "small.toml", "-o", "s.spx")
    result = spyrec.simulate(spyrec.load("s.spx"), {"x": X, "gain": np.ones(1, np.float32)})
    assert result.report()["device"] == "small"
    assert max(k.cores for k in result.kernels) <= 4
    np.testing.assert_allclose(result.outputs["y"], expected(X, 1), atol=0.02)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["absent.onnx"], "absent.onnx"),
        (["dense.txt"], "its name must end in .onnx, .pt2 or .sir"),
        (["dense.onnx", "--plan", "absent.json"], "absent.json: No such file or directory"),
        (["dense.onnx", "--plan", "dense.onnx"], "plan dense.onnx is not valid JSON"),
        (["dense.onnx", "--device", "abacus"], "no device is called 'abacus'"),
        (["dense.onnx", "--bind", "nosuch=3"], "nosuch"),
        (["dense.onnx", "--const", "nosuch=3"], "no input has this name"),
        (["dense.onnx", "--passes", "nosuch"], "no pass is called 'nosuch'"),
        (["dense.onnx", "-o", "absent/d.spx"], "absent/d.spx: there is no folder absent"),
    ],
)
def test_faults_are_told_in_a_sentence(
    desk: Path, args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("dense.txt").write_text("not a model")
    assert cli.run(["compile", *args]) == 1
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert "Traceback" not in captured.err


def test_python_takes_a_model_in_memory(desk: Path) -> None:
    program = spyrec.compile(model("batch"), bind={"batch": 4})
    program.save("p.spx")
    inputs = {"x": X, "gain": np.ones(1, np.float32)}
    first = spyrec.simulate(program, inputs)
    again = spyrec.simulate(spyrec.load("p.spx"), inputs)
    np.testing.assert_array_equal(first.outputs["y"], again.outputs["y"])
    assert first.kernels == again.kernels
    with pytest.raises(spyrec.SpyrecError, match="a model of type int cannot be compiled"):
        spyrec.compile(3)
