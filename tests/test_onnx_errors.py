"""Models that cannot be imported: each fault has its sentence, and all of them come at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from examples.make_models import cnn
from spyrec import cli
from spyrec.frontend import import_onnx
from spyrec.ir.errors import ImportError_

FLOAT = TensorProto.FLOAT


def info(name: str, shape: Any, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[Any], inputs: list[Any], outputs: list[str], *weights: Any, opset: int = 17
) -> Any:
    results = [helper.make_empty_tensor_value_info(o) for o in outputs]
    graph = helper.make_graph(nodes, "g", inputs, results, list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def problems(
    source: Any, bind: Mapping[str, int] | None = None, const: Mapping[str, Any] | None = None
) -> list[str]:
    with pytest.raises(ImportError_) as caught:
        import_onnx(source, bind or {}, const or {})
    return caught.value.problems


RELU = [node("Relu", "x", "y")]


# -- the file ------------------------------------------------------------------------------------


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "none.onnx"
    assert problems(path) == [f"{path} does not exist or is not a file."]
    assert problems(str(tmp_path)) == [f"{tmp_path} does not exist or is not a file."]


def test_not_a_model(tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("this is no model\n")
    assert problems(path) == [
        f"{path} is not an ONNX model or is cut short: its 17 bytes do not parse as a protobuf "
        "message."
    ]


def test_truncated_file(tmp_path: Path) -> None:
    whole = cnn().SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(whole[: len(whole) // 2])
    assert problems(path) == [
        f"{path} is not an ONNX model or is cut short: its {len(whole) // 2} bytes do not parse as "
        "a protobuf message."
    ]


def test_empty_file_and_model_without_graph(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.write_bytes(b"")
    assert problems(path) == [f"{path} is not an ONNX model: it holds no graph."]


def test_opset_out_of_range_or_absent() -> None:
    assert problems(model(RELU, [info("x", [1])], ["y"], opset=99)) == [
        "g uses opset 99; opsets 7 to 28 can be imported; export it again or convert it with "
        "onnx.version_converter."
    ]
    bare = model(RELU, [info("x", [1])], ["y"])
    del bare.opset_import[:]
    assert problems(bare) == [
        "g imports no standard operators: its opset_import has no entry for domain ''."
    ]


# -- the graph -----------------------------------------------------------------------------------


def test_empty_graph() -> None:
    assert problems(model([], [info("x", [1])], [])) == [
        "g has no outputs: there is nothing to compile."
    ]
    assert problems(model([], [info("x", [1])], ["y"])) == ["No node computes the output 'y'."]


def test_names_defined_twice_or_never() -> None:
    twice = model([*RELU, node("Neg", "x", "y")], [info("x", [1])], ["y"])
    assert problems(twice) == ["g defines 'y' twice; every value must have a name of its own."]
    inputs = [info("x", [1]), info("x", [1])]
    assert problems(model([node("Relu", "x", "x"), *RELU], inputs, ["y", "y"])) == [
        "g lists the input 'x' twice.",
        "g lists the output 'y' twice.",
        "g defines 'x' twice; every value must have a name of its own.",
    ]
    assert problems(model([node("Add", "x nowhere", "y")], [info("x", [1])], ["y"])) == [
        "Operator Add cannot be imported: it reads 'nowhere', which nothing before it defines "
        "(1 node: 'y')."
    ]


def test_all_unsupported_operators_are_listed_at_once() -> None:
    graph = [
        *(node("LSTM", "x", f"l{i}", name=f"lstm_{i}") for i in range(5)),
        node("Fancy", "l0", "f", domain="com.acme"),
        node("Relu", "f", "r"),
        node("NonZero", "x", "z", name="nz"),
        node("AveragePool", "x", "a", kernel_shape=[2], dilations=[2]),
        node("Neg", "x", "y"),
    ]
    assert problems(model(graph, [info("x", [1, 1, 9])], ["y", "r", "z"], opset=19)) == [
        "Operator AveragePool cannot be imported: its dilations are [2] (1 node: 'a').",
        "Operator LSTM cannot be imported: spyrec has no conversion for it (5 nodes: 'lstm_0', "
        "'lstm_1', 'lstm_2', ...).",
        "Operator NonZero cannot be imported: the size of its result depends on the data "
        "(1 node: 'nz').",
        "Operator com.acme::Fancy cannot be imported: spyrec has no conversion for it "
        "(1 node: 'f').",
    ]


def test_known_operators_in_unknown_forms() -> None:
    graph = [
        node("Reshape", "x s", "r", name="shape_at_run_time"),
        node("MaxPool", "x", "m where", kernel_shape=[2], name="with_indices"),
        node("Relu", "where", "i", name="reads_indices"),
        node("Loop", "n c", "l", name="loop"),
    ]
    inputs = [info("x", [1, 1, 4]), info("s", [2], TensorProto.INT64)]
    weights = [numpy_helper.from_array(np.array(v), n) for n, v in (("n", 3), ("c", True))]
    assert problems(model(graph, inputs, ["r", "m", "i", "l"], *weights)) == [
        "Operator Loop cannot be imported: spyrec has no conversion for it (1 node: 'loop').",
        "Operator Relu cannot be imported: it reads output 1 of a MaxPool node ('with_indices'), "
        "which is not computed (1 node: 'reads_indices').",
        "Operator Reshape cannot be imported: its shape is computed at run time "
        "(1 node: 'shape_at_run_time').",
    ]


def test_if_with_a_condition_computed_at_run_time() -> None:
    branch = helper.make_graph([node("Neg", "x", "r")], "b", [], [info("r", [1])])
    graph = [node("If", "c", "y", then_branch=branch, else_branch=branch, name="choose")]
    inputs = [info("x", [1]), info("c", [1], TensorProto.BOOL)]
    assert problems(model(graph, inputs, ["y"])) == [
        "Operator If cannot be imported: its condition is computed at run time (1 node: 'choose')."
    ]


def test_shapes_that_do_not_fit_name_the_node() -> None:
    graph = [
        node("MatMul", "a b", "m", name="bad_product"),
        node("Add", "a c", "s", name="bad_sum"),
        node("Add", "m s", "y"),
    ]
    inputs = [info("a", [2, 3]), info("b", [2, 3]), info("c", [4])]
    assert problems(model(graph, inputs, ["y"])) == [
        "Node 'bad_product' (MatMul) is malformed: matmul: expected the last dimension of a to "
        "equal the last but one of b, got [2, 3] and [2, 3] (from bad_product).",
        "Node 'bad_sum' (Add) is malformed: add: expected shapes that broadcast, got [2, 3] and "
        "[4] (from bad_sum).",
    ]


def test_inputs_of_other_kinds() -> None:
    sequence = helper.make_tensor_sequence_value_info("q", FLOAT, [1])
    text = info("t", [1], TensorProto.STRING)
    shapeless = helper.make_tensor_value_info("u", FLOAT, None)
    graph = model(RELU, [info("x", [1]), sequence, text, shapeless], ["y"])
    assert problems(graph) == [
        "Input 'q' is of the kind sequence; only tensors can be imported.",
        "Input 't' has element type STRING, which cannot be imported; supported: f32, u8, i8, u16, "
        "i16, i32, i64, bool, f16, f64, u32, u64, bf16, f8e4m3, i4.",
        "Input 'u' states no shape; export the model with the rank of its inputs known.",
    ]


# -- bindings ------------------------------------------------------------------------------------


def open_model() -> Any:
    return model(
        [node("Add", "a b", "y")],
        [
            info("a", ["batch", "sequence", 4]),
            info("b", [None, 1, "?"]),
            info("c", ["batch", 3, "unk__1", -1]),
        ],
        ["y"],
    )


def test_all_open_dimensions_are_listed_with_their_flags() -> None:
    assert problems(open_model()) == [
        "Input 'a' leaves the size of axis 0 ('batch') open; add --bind batch=1, or the size you "
        "need.",
        "Input 'a' leaves the size of axis 1 ('sequence') open; add --bind sequence=128, or the "
        "size you need.",
        "Input 'b' leaves the size of axis 0 open; add --bind b:0=1, or the size you need.",
        "Input 'b' leaves the size of axis 2 open; add --bind b:2=128, or the size you need.",
        "Input 'c' leaves the size of axis 2 open; add --bind c:2=640, or the size you need.",
        "Input 'c' leaves the size of axis 3 open; add --bind c:3=640, or the size you need.",
    ]


def test_bindings_that_are_wrong() -> None:
    bind = {
        "batch": 2,
        "sequence": 3,
        "b:0": 2,
        "b:2": 4,
        "c:2": 1,
        "c:3": -5,
        "a:0": 3,
        "a:2": 5,
        "lenght": 7,
        "b:9": 1,
    }
    known = "those left open are batch, sequence, b:0, b:2, c:2, c:3"
    assert problems(open_model(), bind) == [
        "--bind c:3=-5: expected a whole number from 0 to 2147483647.",
        "--bind a:0=3 contradicts --bind batch=2: both are one dimension.",
        "--bind a:2=5: the model fixes this dimension at 4.",
        f"--bind lenght=7: no input has a dimension called 'lenght'; {known}.",
        f"--bind b:9=1: no input has a dimension called 'b:9'; {known}.",
        "Input 'c' leaves the size of axis 3 open; add --bind c:3=640, or the size you need.",
    ]
    assert problems(model(RELU, [info("x", [1])], ["y"]), {"n": 1}) == [
        "--bind n=1: no input has a dimension called 'n'; all dimensions of this model are fixed."
    ]


def test_constants_that_do_not_fit() -> None:
    graph = model(RELU, [info("x", [2]), info("k", [2], TensorProto.INT64)], ["y"])
    assert problems(graph, const={"z": 1, "k": 0.5, "x": np.zeros((3, 2))}) == [
        "--const z: no input has this name; the inputs are x, k.",
        "--const k: 0.5 does not fit the input's type i64 and shape [2].",
        "--const x: an array of float64 with shape [3, 2] does not fit the input's type f32 and "
        "shape [2].",
    ]


# -- weights -------------------------------------------------------------------------------------


def raw(name: str, dims: list[int], data: bytes, kind: int = FLOAT) -> Any:
    tensor = TensorProto(name=name, data_type=kind, raw_data=data)
    tensor.dims.extend(dims)
    return tensor


def test_weights_whose_size_is_wrong_are_all_listed() -> None:
    field = TensorProto(name="f", data_type=TensorProto.INT8, dims=[2, 2], int32_data=[1, 2, 3])
    weights = [
        raw("w", [2, 3], b"\0" * 20),
        raw("huge", [1 << 28, 1 << 28], b""),
        raw("endless", [0, 1 << 30, 1 << 30], b""),
        raw("negative", [-1, 4], b"\0" * 16),
        field,
        raw("text", [1], b"", TensorProto.STRING),
    ]
    sane = "; expected at most 32 numbers from 0 to 2147483647, and fewer than 2**59 elements."
    spoilt = "; the file is damaged or was written wrongly."
    assert problems(model(RELU, [info("x", [1])], ["y"], *weights)) == [
        f"Initializer 'w' of shape [2, 3] and type f32 needs 24 bytes but holds 20{spoilt}",
        f"Initializer 'huge' of shape {[1 << 28] * 2} and type f32 needs {1 << 58} bytes "
        f"but holds 0{spoilt}",
        f"Initializer 'endless' has dimensions {[0, 1 << 30, 1 << 30]}{sane}",
        f"Initializer 'negative' has dimensions [-1, 4]{sane}",
        f"Initializer 'f' of shape [2, 2] and type i8 needs 4 entries but holds 3{spoilt}",
        "Initializer 'text' has element type STRING, which cannot be imported; supported: f32, u8, "
        "i8, u16, i16, i32, i64, bool, f16, f64, u32, u64, bf16, f8e4m3, i4.",
    ]


def external(name: str, **entries: Any) -> Any:
    tensor = TensorProto(name=name, data_type=FLOAT, data_location=TensorProto.EXTERNAL)
    tensor.dims.extend([4])
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def saved(folder: Path, *weights: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "m.onnx"
    onnx.save(model(RELU, [info("x", [1])], ["y"], *weights), path)
    return path


def test_missing_external_files_are_all_listed_once(tmp_path: Path) -> None:
    weights = [external("a", location="a.bin"), external("b", location="a.bin", offset=16)]
    assert problems(saved(tmp_path, *weights, external("c", location="sub/c.bin"))) == [
        "The external data file 'a.bin' is missing; it must lie beside the model.",
        "The external data file 'sub/c.bin' is missing; it must lie beside the model.",
    ]


def test_external_data_never_leaves_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(b"\0" * 16)
    folder = tmp_path / "model"
    folder.mkdir()
    os.symlink(tmp_path / "secret.bin", folder / "link.bin")
    os.symlink(tmp_path, folder / "up")
    places = ["../secret.bin", str(tmp_path / "secret.bin"), "link.bin", "up/secret.bin"]
    weights = [external(f"w{i}", location=place) for i, place in enumerate(places)]
    assert problems(saved(folder, *weights)) == [
        f"Initializer 'w{i}' keeps its data in '{place}', which leads out of the model's folder; "
        "only files in that folder are read."
        for i, place in enumerate(places)
    ]


def test_external_data_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = np.ones(4, np.float32).tobytes()
    (tmp_path / "w.bin").write_bytes(data)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", FLOAT, [4])],
        [helper.make_tensor_value_info("y", FLOAT, [4])], [external("w", location="w.bin")],
    )  # fmt: skip
    path = tmp_path / "m.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    for option in ("-o", "--emit-plan"):
        more = ["-o", str(tmp_path / "m.spx")] if option == "--emit-plan" else []
        code = cli.run(["compile", str(path), *more, option, str(tmp_path / "w.bin")])
        assert code == 1
        assert "w.bin holds weights of the model and would be" in capsys.readouterr().err
        assert (tmp_path / "w.bin").read_bytes() == data


def test_external_sizes_and_offsets_are_checked(tmp_path: Path) -> None:
    (tmp_path / "d.bin").write_bytes(b"\0" * 20)
    weights = [
        external("late", location="d.bin", offset=8),
        external("far", location="d.bin", offset=10**17),
        external("odd", location="d.bin", offset="-4"),
        external("absurd", location="d.bin", offset="9" * 40),
        external("short", location="d.bin", length=12),
        external("nameless"),
    ]
    wrong = "which has only 20 bytes; the data file is cut short or belongs to another model."
    assert problems(saved(tmp_path, *weights)) == [
        f"Initializer 'late' lies at bytes 8 to 24 of 'd.bin', {wrong}",
        f"Initializer 'far' lies at bytes {10**17} to {10**17 + 16} of 'd.bin', {wrong}",
        "Initializer 'odd' has the external data offset '-4'; expected a non-negative number of "
        "bytes.",
        f"Initializer 'absurd' has the external data offset '{'9' * 40}'; expected a non-negative "
        "number of bytes.",
        "Initializer 'short' of shape [4] and type f32 needs 16 bytes but holds 12; the file is "
        "damaged or was written wrongly.",
        "Initializer 'nameless' keeps its data outside the model but names no file.",
    ]


def test_external_data_of_a_model_given_in_memory() -> None:
    graph = model(RELU, [info("x", [1])], ["y"], external("w", location="d.bin"))
    assert problems(graph) == [
        "Initializer 'w' keeps its data in the file 'd.bin', but the model was given in memory, "
        "without a folder; give the model's path, or load it with its external data."
    ]


def test_sparse_weights() -> None:
    graph = model(RELU, [info("x", [1])], ["y"])
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "i")
    graph.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [9]))
    assert problems(graph) == [
        "g has sparse weights ('s'), which cannot be imported; store them densely."
    ]


# -- damage --------------------------------------------------------------------------------------

WHOLE = cnn().SerializeToString()
SKELETON = model(
    [
        node("Conv", "x w", "c", pads=[1, 1], strides=[2]),
        node("Slice", "c from to", "s"),
        node("Softmax", "s", "y", axis=1),
        node("Transpose", "y", "t", perm=[0, 2, 1]),
        node("Gather", "t from", "g", axis=1),
    ],
    [info("x", [1, 2, 9])],
    ["y", "g"],
    numpy_helper.from_array(np.ones((3, 2, 3), np.float32), "w"),
    numpy_helper.from_array(np.array([0, 1]), "from"),
    numpy_helper.from_array(np.array([2, 3]), "to"),
).SerializeToString()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_model_is_imported_or_refused_but_never_crashes(data: st.DataObject) -> None:
    spoilt = bytearray(SKELETON)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(spoilt) - 1))
        spoilt[place] = data.draw(st.integers(0, 255))
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(bytes(spoilt))
    except Exception:
        return  # test_truncated_file and the next test go through the file
    try:
        import_onnx(proto)
    except ImportError_ as error:
        assert all(sentence.endswith(".") for sentence in error.problems)


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, len(WHOLE) - 1))
def test_a_file_cut_anywhere_is_refused(cut: int, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("cut") / "m.onnx"
    path.write_bytes(WHOLE[:cut])
    assert len(problems(path)) >= 1


def test_a_dimension_bound_to_nothing_gets_one_sentence() -> None:
    nodes = [node("Conv", "x w", "c", name="/c"), node("Conv", "c w", "y", name="/y")]
    weight = numpy_helper.from_array(np.ones((3, 3, 3, 3), np.float32), "w")
    empty = model(nodes, [info("x", ["batch", 3, "height", 9])], ["y"], weight)
    assert problems(empty, bind={"batch": 1, "height": 0}) == [
        "--bind height=0: with a dimension of size 0 this model cannot be imported; bind a size of "
        "1 or more."
    ]
    assert problems(empty, bind={"batch": 1, "height": 1})[0].startswith("Node '/c' (Conv) is mal")
