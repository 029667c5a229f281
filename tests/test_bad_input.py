"""Bad input through the command line: the sentence on stderr, exit code 1, nothing written."""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from spyrec import cli, files
from spyrec.passes.pipeline import PIPELINE

WEIGHT = (np.random.default_rng(0).standard_normal((64, 32)) / 8).astype(np.float32)
X = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)


def save(
    name: str, nodes: list[Any], inputs: dict[str, Any], outputs: list[str],
    weights: dict[str, np.ndarray] | None = None, extra: tuple[Any, ...] = (),
) -> str:  # fmt: skip
    """Write a model of float32 inputs. Weights come as arrays or, in ``extra``, as protos."""
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [*(numpy_helper.from_array(a, n) for n, a in (weights or {}).items()), *extra],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), name)
    return name


def node(op: str, inputs: str, output: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], name=f"/{output}", **attrs)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with dense.onnx (y = relu(x @ w)) and dense.spx, whose old content stays."""
    monkeypatch.chdir(tmp_path)
    save("dense.onnx", [node("MatMul", "x w", "h"), node("Relu", "h", "y")], {"x": [4, 64]},
         ["y"], {"w": WEIGHT})  # fmt: skip
    assert cli.run(["compile", "dense.onnx", "-o", "dense.spx"]) == 0
    yield tmp_path


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Run a command line, check its exit code, and give the lines it wrote to stderr."""

    def run(*args: str, code: int = 1) -> list[str]:
        capsys.readouterr()
        before = {p: p.read_bytes() for p in Path.cwd().iterdir() if p.is_file()}
        assert cli.run(list(args)) == code
        if code:
            assert {p: p.read_bytes() for p in Path.cwd().iterdir() if p.is_file()} == before
        return capsys.readouterr().err.splitlines()

    return run


Run = Callable[..., list[str]]


# -- the model file ------------------------------------------------------------------------------


def test_not_a_model(desk: Path, stderr: Run) -> None:
    Path("text.onnx").write_text("this is no model\n")
    assert stderr("compile", "text.onnx") == [
        "spyrec: text.onnx is not an ONNX model or is cut short: its 17 bytes do not parse as a "
        "protobuf message."
    ]
    Path("empty.onnx").write_bytes(b"")
    assert stderr("compile", "empty.onnx") == [
        "spyrec: empty.onnx is not an ONNX model: it holds no graph."
    ]
    assert stderr("compile", "dense.spx") == [
        "spyrec: model dense.spx: its name must end in .onnx, .pt2 or .sir, which tells the kind "
        "of file"
    ]
    Path("weights.pth").write_bytes(b"x")
    assert stderr("compile", "weights.pth") == [
        "spyrec: model weights.pth: a .pth file is a pickle, which only torch can read (pip "
        "install 'spyrec[torch]'); load it there and write what torch.export.export gives "
        "of the model with torch.export.save to a .pt2 file"
    ]
    shutil.copy("dense.spx", "program.onnx")
    assert stderr("compile", "program.onnx") == [
        f"spyrec: program.onnx is not an ONNX model or is cut short: its "
        f"{os.path.getsize('program.onnx')} bytes do not parse as a protobuf message."
    ]


@pytest.mark.parametrize("command", ["opt", "compile"])
def test_what_is_no_file_says_what_it_is(desk: Path, stderr: Run, command: str) -> None:
    told = {
        os.devnull: "is a device or pipe, expected a regular file",
        "none.sir": "does not exist",
        "lost.sir": "is a link to what does not exist",
    }
    Path("lost.sir").symlink_to("nowhere.sir")
    for name, what in told.items():
        assert stderr(command, name) == [f"spyrec: model file {name} {what}"]
    Path("empty.sir").write_text("\n", "utf-8")
    assert stderr(command, "empty.sir") == [
        "spyrec: model empty.sir is empty, expected IR text that begins with 'module'"
    ]
    assert stderr("opt", "empty.sir", "--load", os.devnull) == [
        f"spyrec: the file of passes or rules {os.devnull} is a device or pipe, expected a regular "
        "file"
    ]


def test_truncated_model(desk: Path, stderr: Run) -> None:
    whole = Path("dense.onnx").read_bytes()
    Path("cut.onnx").write_bytes(whole[: len(whole) // 2])
    assert stderr("compile", "cut.onnx") == [
        f"spyrec: cut.onnx is not an ONNX model or is cut short: its {len(whole) // 2} bytes do "
        "not parse as a protobuf message."
    ]


def test_three_unsupported_operators_are_listed_at_once(desk: Path, stderr: Run) -> None:
    nodes = [node("LSTM", "x", "a"), node("NonZero", "x", "b"), node("Loop", "x x", "c")]
    assert stderr("compile", save("odd.onnx", nodes, {"x": [1, 1, 9]}, ["a", "b", "c"])) == [
        "spyrec: Operator LSTM cannot be imported: spyrec has no conversion for it (1 node: '/a').",
        "spyrec: Operator Loop cannot be imported: spyrec has no conversion for it (1 node: '/c').",
        "spyrec: Operator NonZero cannot be imported: the size of its result depends on the data "
        "(1 node: '/b').",
    ]


def test_unbound_dimension(desk: Path, stderr: Run) -> None:
    name = save("open.onnx", [node("Relu", "x", "y")], {"x": ["batch", 4]}, ["y"])
    assert stderr("compile", name) == [
        "spyrec: Input 'x' leaves the size of axis 0 ('batch') open; add --bind batch=1, or the "
        "size you need."
    ]
    assert stderr("compile", name, "--bind", "batch=2147483648")[0] == (
        "spyrec: --bind batch=2147483648: expected a whole number from 0 to 2147483647."
    )
    assert stderr("compile", name, "--bind", f"batch={'9' * 5000}", code=2)[-1] == (
        f"Error: --bind batch={'9' * 5000}: expected a whole number, 0 or more"
    )


def test_empty_graph(desk: Path, stderr: Run) -> None:
    assert stderr("compile", save("none.onnx", [], {"x": [1]}, [])) == [
        "spyrec: none.onnx has no outputs: there is nothing to compile."
    ]
    assert stderr("compile", save("void.onnx", [], {"x": [1]}, ["y"])) == [
        "spyrec: No node computes the output 'y'."
    ]
    twice = save("twice.onnx", [node("Relu", "x", "y")], {"x": [1]}, ["y", "y"])
    assert stderr("compile", twice) == ["spyrec: twice.onnx lists the output 'y' twice."]


def test_tensors_without_elements(desk: Path, stderr: Run) -> None:
    name = save("open.onnx", [node("Abs", "x", "y")], {"x": ["n", 4]}, ["y"])
    why = (
        "holds no element, so there is nothing to compute; give each dimension a size of 1 or more"
    )
    assert stderr("compile", name, "--bind", "n=0") == [
        f"spyrec: limits: %x (0x4 f32, from x) {why}",
    ]


def test_tensors_too_large_for_the_card(desk: Path, stderr: Run) -> None:
    """Refused at once: nothing of that size is ever allocated on the host."""
    side = 1 << 18
    name = save("big.onnx", [node("Abs", "x", "y")], {"x": [side, side]}, ["y"])
    why = (
        "needs at least 128.0 GiB, the card has 112.0 GiB; make the batch smaller or split the "
        "tensor in the model"
    )
    assert stderr("compile", name) == [
        f"spyrec: limits: %x ({side}x{side} f32, from x) {why}",
        f"spyrec: limits: %y ({side}x{side} f32, from /y) {why}",
    ]
    pads = {"p": np.array([1 << 40, 1 << 40])}
    name = save("pad.onnx", [node("Pad", "x p", "y")], {"x": [1]}, ["y"], pads)
    assert stderr("compile", name)[0] == (
        f"spyrec: limits: %y ({2 * (1 << 40) + 1} f32, from /y) needs at least 4096.0 GiB, the "
        "card has 112.0 GiB; make the batch smaller or split the tensor in the model"
    )


def test_a_trial_run_too_large_for_the_host_is_left_out(desk: Path, stderr: Run) -> None:
    name = save("long.onnx", [node("Relu", "x", "y")], {"x": [1 << 28]}, ["y"])
    assert stderr("compile", name, "-o", "long.spx", code=0) == [
        "warning: range-scale: magnitudes are unknown, a trial run would compute 5.4e+08 elements "
        "with 0 multiply-accumulates; values beyond dl16's 8.57e+09 will overflow"
    ]


# -- weights -------------------------------------------------------------------------------------


def external(name: str, location: str) -> Any:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def save_external(folder: str, *locations: str) -> str:
    """folder/m.onnx: y = x + w0 + w1 ..., the weights in files of their own."""
    os.makedirs(folder, exist_ok=True)
    nodes, last = [], "x"
    for i, _ in enumerate(locations):
        nodes.append(node("Add", f"{last} w{i}", f"s{i}"))
        last = f"s{i}"
    weights = tuple(external(f"w{i}", place) for i, place in enumerate(locations))
    return save(f"{folder}/m.onnx", nodes, {"x": [4]}, [last], extra=weights)


def test_external_data_beside_the_model_is_read(desk: Path, stderr: Run) -> None:
    np.full(4, 3, np.float32).tofile("w.bin")
    assert stderr("compile", save_external(".", "w.bin"), "-o", "m.spx", code=0) == []
    np.savez("in.npz", x=np.ones(4, np.float32))
    stderr("simulate", "m.spx", "--inputs", "in.npz", "--outputs", "out.npz", code=0)
    np.testing.assert_array_equal(files.read_npz("out.npz")["s0"], np.full(4, 4, np.float32))


def test_missing_external_data(desk: Path, stderr: Run) -> None:
    assert stderr("compile", save_external(".", "a.bin", "sub/b.bin")) == [
        "spyrec: The external data file 'a.bin' is missing; it must lie beside the model.",
        "spyrec: The external data file 'sub/b.bin' is missing; it must lie beside the model.",
    ]


def test_external_data_outside_the_folder_is_never_read(desk: Path, stderr: Run) -> None:
    np.ones(4, np.float32).tofile("secret.bin")
    os.makedirs("model")
    os.symlink("../secret.bin", "model/link.bin")
    places = ["../secret.bin", str(desk / "secret.bin"), "link.bin"]
    assert stderr("compile", save_external("model", *places)) == [
        f"spyrec: Initializer 'w{i}' keeps its data in '{place}', which leads out of the model's "
        "folder; only files in that folder are read."
        for i, place in enumerate(places)
    ]


def test_nan_weights_are_accepted_and_reported(desk: Path, stderr: Run) -> None:
    weight = WEIGHT.copy()
    weight[0, 0] = np.nan
    name = save("nan.onnx", [node("MatMul", "x w", "y")], {"x": [4, 64]}, ["y"], {"w": weight})
    assert stderr("compile", name, "-o", "nan.spx", code=0) == [
        "warning: The constant 'w' holds NaN; whatever reads it will too."
    ]
    np.savez("in.npz", x=X)
    assert stderr("simulate", "nan.spx", "--inputs", "in.npz", "--outputs", "o.npz", code=0) == [
        "warning: output 'y': 4 of 128 values are NaN or infinite: something overflowed dl16, or "
        "an input held such values"
    ]
    got = files.read_npz("o.npz")["y"]
    assert np.isnan(got[:, 0]).all()
    np.testing.assert_allclose(got[:, 1:], X @ WEIGHT[:, 1:], atol=0.05)


# -- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("x=[[1],[1,2]]", "--const x: a list whose parts differ in length or nest too deeply does "
         "not fit the input's type f32 and shape [4, 64]."),
        ("x=[1,2]", "--const x: an array of int64 with shape [2] does not fit the input's type f32 "
         "and shape [4, 64]."),
        ("x=object.npy", "--const x: object.npy is not a plain .npy array: Object arrays cannot be "
         "loaded when allow_pickle=False"),
        ("x=absent.npy", "absent.npy: No such file or directory"),
    ],
)  # fmt: skip
def test_constants_that_are_no_arrays(desk: Path, stderr: Run, value: str, sentence: str) -> None:
    np.save("object.npy", np.array([{}], dtype=object))
    assert stderr("compile", "dense.onnx", "--const", value) == [f"spyrec: {sentence}"]


def test_a_file_cut_short_is_no_constant(desk: Path, stderr: Run) -> None:
    np.save("x.npy", X)
    Path("x.npy").write_bytes(Path("x.npy").read_bytes()[:-8])
    [line] = stderr("compile", "dense.onnx", "--const", "x=x.npy")
    assert line.startswith("spyrec: --const x: x.npy is not a plain .npy array: ")


def test_plans_and_pipelines_nested_without_end(desk: Path, stderr: Run) -> None:
    Path("deep.json").write_text("[" * 100_000)
    [line] = stderr("compile", "dense.onnx", "--plan", "deep.json")
    assert line.startswith("spyrec: plan deep.json is not valid JSON: maximum recursion depth")
    assert stderr("compile", "dense.onnx", "--passes", "fold{limit=" + "(" * 10_000) == [
        "spyrec: a pipeline holds more than 100 tuples"
    ]


def test_pipelines_in_a_wrong_order(desk: Path, stderr: Run) -> None:
    order = (
        "fuse, stick-layout, core-allocation, ring-relayout, tiling, lower-tiles, scratchpad, hbm, "
        "share-launches"
    )
    assert stderr("compile", "dense.onnx", "--passes", "decompose,fuse,tiling") == [
        "spyrec: pass tiling builds on stick-layout, core-allocation, ring-relayout, which the "
        f"pipeline does not run before it; the order is {order}"
    ]
    assert stderr("compile", "dense.onnx", "--passes", "decompose,dce") == [
        "spyrec: the pipeline ends at the tensor stage without addresses, so there is no program "
        "to write; let it end as the usual one does (see spyrec passes), or look at its result "
        "with --emit ir"
    ]
    usual = [step.name for step in PIPELINE]
    shuffle = random.Random(0)
    for _ in range(10):
        text = ",".join(shuffle.sample(usual, len(usual)))
        assert stderr("compile", "dense.onnx", "--passes", text)[0].startswith("spyrec: pass ")


# -- inputs of a run -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrays", "sentences"),
    [
        ({"x": X[:3]}, ["input 'x': expected float32[4, 64], got float32[3, 64]"]),
        ({"x": X.astype(np.float64)}, ["input 'x': expected float32[4, 64], got float64[4, 64]"]),
        ({"x": X.astype(">f4")}, ["input 'x': expected float32[4, 64], got >f4[4, 64]"]),
        ({"x": np.zeros((0, 64), np.float32)},
         ["input 'x': expected float32[4, 64], got float32[0, 64]"]),
        ({}, ["input 'x' is missing; expected float32[4, 64]"]),
        ({"x": X, "z": X}, ["'z' is not an input of the model; its inputs are: x"]),
        ({"z": X}, ["input 'x' is missing; expected float32[4, 64]",
                    "'z' is not an input of the model; its inputs are: x"]),
        ({"x": np.array([{}], dtype=object)},
         ["array 'x' holds pickled Python objects, which are never loaded; store plain numbers"]),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit(
    desk: Path, stderr: Run, arrays: dict[str, np.ndarray], sentences: list[str]
) -> None:
    np.savez("in.npz", **arrays)  # type: ignore[arg-type]
    got = stderr("simulate", "dense.spx", "--inputs", "in.npz")
    assert got == [f"spyrec: in.npz: {s}" for s in sentences]


@pytest.mark.parametrize("name", ["dense.onnx", "dense.spx", "x.npy"])
def test_inputs_that_are_no_archive(desk: Path, stderr: Run, name: str) -> None:
    np.save("x.npy", X)
    assert stderr("simulate", "dense.spx", "--inputs", name) == [
        f"spyrec: {name} cannot be read as an .npz archive: File is not a zip file; write it with "
        "numpy.savez"
    ]


# -- programs ------------------------------------------------------------------------------------


def test_foreign_programs(desk: Path, stderr: Run) -> None:
    assert stderr("simulate", "dense.onnx") == [
        "spyrec: dense.onnx: this is not an ELF file, so not a spyrec program"
    ]
    shutil.copy(os.path.realpath(sys.executable), "python.spx")
    assert stderr("simulate", "python.spx") == [
        "spyrec: python.spx: this is an ELF file, but not a spyrec program: the file header differs"
    ]
    Path("empty.spx").write_bytes(b"")
    assert stderr("simulate", "empty.spx") == [
        "spyrec: empty.spx is empty, so not a spyrec program"
    ]


def test_truncated_programs(desk: Path, stderr: Run) -> None:
    whole = Path("dense.spx").read_bytes()
    for size in [1, 63, 64, *range(100, len(whole), len(whole) // 40), len(whole) - 1]:
        Path("cut.spx").write_bytes(whole[:size])
        for command in ("simulate", "disasm"):
            assert stderr(command, "cut.spx") == [
                "spyrec: cut.spx: this is not an ELF file, so not a spyrec program"
                if size < 64
                else "spyrec: cut.spx: the section headers do not end where the file does, at byte "
                f"{size}; the file is truncated or has something appended"
            ], size


def test_flipped_bits_are_noticed(desk: Path, stderr: Run) -> None:
    """One in the weights has its exact sentence; 200 drawn from the whole file are all refused."""
    whole = Path("dense.spx").read_bytes()
    middle = len(whole) // 2
    Path("flip.spx").write_bytes(
        whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    )
    assert stderr("simulate", "flip.spx") == [
        "spyrec: flip.spx: the checksum does not match: the file was damaged after it was written"
    ]
    draw = random.Random(0)
    for _ in range(200):
        at, bit = draw.randrange(len(whole)), draw.randrange(8)
        Path("flip.spx").write_bytes(
            whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
        )
        [line] = stderr("simulate", "flip.spx", "--timing-only")
        assert line.startswith("spyrec: flip.spx"), (at, bit)


# -- names and shapes that are odd but right -----------------------------------------------------

ODD = "a b/'\"$é日本:0;\n\t\\%@#{}"


def test_odd_names_work(desk: Path, stderr: Run) -> None:
    nodes = [helper.make_node("Neg", [ODD], ["../" + ODD], name=ODD)]
    save(f"{'odd name'}.onnx", nodes, {ODD: [2, 70]}, ["../" + ODD, ODD])
    stderr("compile", "odd name.onnx", code=0)
    files.write_npz("in.npz", {ODD: np.ones((2, 70), np.float32)})
    args = ["--inputs", "in.npz", "--outputs", "o.npz", "--report", "r.json", "--trace", "t.json"]
    assert stderr("simulate", "odd name.spx", *args, code=0) == []
    got = files.read_npz("o.npz")
    np.testing.assert_array_equal(got["../" + ODD], np.full((2, 70), -1, np.float32))
    np.testing.assert_array_equal(got[ODD], np.ones((2, 70), np.float32))


@pytest.mark.parametrize(
    ("nodes", "shape", "expected"),
    [
        ([node("Neg", "x", "y")], [], lambda x: -x),
        ([node("ReduceSum", "x", "y", keepdims=0)], [3, 70], lambda x: x.sum()),
        ([node("Neg", "x", "y")], [2, 1, 3, 2, 1, 2, 5], lambda x: -x),
        ([node("Transpose", "x", "y", perm=[6, 0, 5, 1, 4, 2, 3])], [2, 3, 3, 2, 3, 2, 5],
         lambda x: x.transpose(6, 0, 5, 1, 4, 2, 3)),
        ([node("MatMul", "x w", "y")], [1, 64], lambda x: x @ WEIGHT),
        ([node("MatMul", "x w", "y")], [64], lambda x: x @ WEIGHT),
        ([node("Identity", "x", "y")], [5, 7], lambda x: x),
        ([node("Relu", "w", "y")], [5, 7], lambda x: np.maximum(WEIGHT, 0)),
    ],
    ids=["scalar", "to-scalar", "rank7", "rank7-turned", "row", "vector", "echo", "constant"],
)  # fmt: skip
def test_odd_shapes_work(
    desk: Path, stderr: Run, nodes: list[Any], shape: list[int], expected: Callable[[Any], Any]
) -> None:
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    stderr("compile", save("odd.onnx", nodes, {"x": shape}, ["y"], {"w": WEIGHT}), code=0)
    files.write_npz("in.npz", {"x": np.asarray(x)})
    stderr("simulate", "odd.spx", "--inputs", "in.npz", "--outputs", "o.npz", code=0)
    got, want = files.read_npz("o.npz")["y"], np.asarray(expected(x), np.float32)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, atol=0.05)
