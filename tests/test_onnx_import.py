"""What the ONNX importer builds: names, folding, bound dimensions, constants, echoes, branches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from examples.make_models import MODELS, SEQUENCE, VOCABULARY
from spyrec.frontend import import_onnx
from spyrec.ir.core import Module
from spyrec.ir.interp import run
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import print_module
from spyrec.ir.same import difference
from spyrec.ir.verifier import verify

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def info(name: str, kind: int, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    weights: dict[str, Any] | None = None,
    opset: int = 17,
    ir_version: int = 8,
    **more: Any,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, **more)


def op_names(module: Module) -> list[str]:
    return [op.name for op in module.body.ops]


def example_inputs(name: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    if name == "cnn":
        return {"image": rng.standard_normal((1, 3, 64, 64), dtype=np.float32)}
    mask = np.ones((1, SEQUENCE), np.int64)
    mask[:, 40:] = 0
    return {"ids": rng.integers(0, VOCABULARY, (1, SEQUENCE)), "mask": mask}


@pytest.mark.parametrize("name", MODELS)
def test_example_agrees_with_onnxruntime(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.onnx"
    onnx.save(MODELS[name](seed=3), path)
    inputs = example_inputs(name)
    session = onnxruntime.InferenceSession(path)
    expected = dict(
        zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True)
    )
    module = import_onnx(path, {"seq": SEQUENCE} if name == "reader" else {})
    got = run(module, inputs)
    verify(module)
    assert difference(parse_module(print_module(module)), module) is None
    assert got.keys() == expected.keys()
    for output, want in expected.items():
        np.testing.assert_allclose(got[output], want, rtol=1e-4, atol=1e-5)


def test_examples_are_the_same_for_the_same_seed() -> None:
    assert MODELS["cnn"](5) == MODELS["cnn"](5)
    assert MODELS["cnn"](5) != MODELS["cnn"](6)


def test_names_types_and_origins_are_kept() -> None:
    proto = model(
        [
            helper.make_node("Add", ["in:0", "w"], ["sum/out"], name="first"),
            helper.make_node("Relu", ["sum/out"], ["out"]),
        ],
        [info("in:0", FLOAT, [2, 3])],
        [info("out", FLOAT, [2, 3])],
        {"w": np.ones(3, np.float32)},
    )
    module = import_onnx(proto)
    assert [v.name for v in module.body.args] == ["in:0"]
    assert module.output_names == ("out",)
    assert [(op.name, op.result.name, op.loc.nodes) for op in module.body.ops] == [
        ("constant", "w", ("w",)),
        ("add", "sum_out", ("first",)),
        ("relu", "out", ("out",)),
    ]
    assert module.stage == "tensor"
    assert module.attrs["warnings"] == ()


def test_shape_arithmetic_is_folded_away() -> None:
    proto = model(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "zero"], ["n"]),
            helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
            helper.make_node("Mul", ["n1", "two"], ["n2"]),
            helper.make_node("Concat", ["n2", "rest"], ["target"], axis=0),
            helper.make_node("Reshape", ["x", "target"], ["y"]),
        ],
        [info("x", FLOAT, ["batch", 6])],
        [info("y", FLOAT, None)],
        {
            "zero": np.array(0),
            "axes": np.array([0]),
            "two": np.array([2]),
            "rest": np.array([-1]),
        },
    )
    module = import_onnx(proto, bind={"batch": 4})
    assert op_names(module) == ["reshape"]
    assert module.body.results[0].type.shape == (8, 3)


def test_huge_fills_fold_without_memory_but_huge_tiles_do_not_fold() -> None:
    proto = model(
        [
            helper.make_node("ConstantOfShape", ["shape"], ["w"]),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
            helper.make_node("Tile", ["row", "repeats"], ["z"]),
        ],
        [info("x", FLOAT, [1, 30000])],
        [info("y", FLOAT, None), info("z", FLOAT, None)],
        {
            "shape": np.array([30000, 10000]),
            "row": np.ones((1, 1000), np.float32),
            "repeats": np.array([30000, 1]),
        },
    )
    module = import_onnx(proto)
    assert Counter(op_names(module)) == {"constant": 2, "matmul": 1, "tile": 1}
    fill = next(op for op in module.body.ops if op.result.type.shape == (30000, 10000))
    assert isinstance(fill.attrs["value"], np.ndarray)
    assert fill.attrs["value"].strides == (0, 0)


def test_weights_may_be_listed_as_inputs_and_old_ir_versions_read() -> None:
    proto = model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [info("x", FLOAT, [2]), info("w", FLOAT, [2])],
        [info("y", FLOAT, [2])],
        {"w": np.array([1, 2], np.float32)},
        opset=9,
        ir_version=3,
    )
    module = import_onnx(proto)
    assert [v.name for v in module.body.args] == ["x"]
    assert run(module, {"x": np.zeros(2, np.float32)})["y"].tolist() == [1.0, 2.0]


def test_outputs_may_echo_inputs_and_constants() -> None:
    proto = model(
        [
            helper.make_node("Identity", ["x"], ["same"]),
            helper.make_node("Constant", [], ["c"], value_ints=[1, 2]),
        ],
        [info("x", INT, [2])],
        [info("same", INT, [2]), info("c", INT, [2]), info("x", INT, [2])],
    )
    module = import_onnx(proto)
    assert op_names(module) == ["constant"]
    assert module.body.results[0] is module.body.results[2] is module.body.args[0]
    got = run(module, {"x": np.array([5, 6])})
    assert {k: v.tolist() for k, v in got.items()} == {"same": [5, 6], "c": [1, 2], "x": [5, 6]}


def test_unused_opset_imports_are_ignored() -> None:
    proto = model(
        [helper.make_node("Relu", ["x"], ["y"])], [info("x", FLOAT, [2])], [info("y", FLOAT, [2])]
    )
    proto.opset_import.extend([helper.make_opsetid("ai.onnx.ml", 2), helper.make_opsetid("z", 1)])
    assert op_names(import_onnx(proto)) == ["relu"]


DYNAMIC = [info("a", FLOAT, ["batch", "len", 4]), info("b", FLOAT, [None, "len", "unk__7"])]


def add_model() -> onnx.ModelProto:
    return model([helper.make_node("Add", ["a", "b"], ["y"])], DYNAMIC, [info("y", FLOAT, None)])


@pytest.mark.parametrize(
    "bind",
    [
        {"batch": 2, "len": 3, "b:0": 2, "b:2": 4},
        {"a:0": 2, "a:1": 3, "b:0": 2, "b:2": 4, "a:2": 4},
        {"batch": 2, "b:1": 3, "a:1": 3, "b:0": 2, "b:2": 4},
    ],
)
def test_dimensions_are_bound_by_name_or_by_place(bind: dict[str, int]) -> None:
    module = import_onnx(add_model(), bind=bind)
    assert [v.type.shape for v in module.body.args] == [(2, 3, 4), (2, 3, 4)]


def test_an_empty_cache_disappears() -> None:
    proto = model(
        [helper.make_node("Concat", ["past", "x"], ["y"], axis=0)],
        [info("past", FLOAT, ["past_len", 2]), info("x", FLOAT, [3, 2])],
        [info("y", FLOAT, None)],
    )
    module = import_onnx(proto, bind={"past_len": 0})
    assert op_names(module) == []
    assert module.body.results == (module.body.args[1],)


@pytest.mark.parametrize("value", [2, 2.0, np.array([2, 2]), [2, 2]])
def test_an_input_may_be_made_constant(value: Any) -> None:
    proto = model(
        [helper.make_node("Mul", ["x", "k"], ["y"])],
        [info("x", INT, [2]), info("k", INT, [2])],
        [info("y", INT, [2])],
    )
    module = import_onnx(proto, const={"k": value})
    assert [v.name for v in module.body.args] == ["x"]
    assert run(module, {"x": np.array([3, 4])})["y"].tolist() == [6, 8]


@pytest.mark.parametrize(("flag", "expected"), [(True, [2.0, 3.0]), (False, [-1.0, -2.0])])
def test_if_with_a_known_condition_becomes_its_branch(flag: bool, expected: list[float]) -> None:
    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    then = helper.make_graph(
        [helper.make_node("Add", ["x", "one"], ["r"])], "then", [], [info("r", FLOAT, [2])], [one]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["r"])], "else", [], [info("r", FLOAT, [2])]
    )
    proto = model(
        [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        [info("x", FLOAT, [2])],
        [info("y", FLOAT, [2])],
        {"c": np.array(flag)},
    )
    module = import_onnx(proto)
    assert run(module, {"x": np.array([1, 2], np.float32)})["y"].tolist() == expected


def test_functions_of_the_model_are_inlined() -> None:
    double = helper.make_function(
        "local",
        "Double",
        ["p"],
        ["q"],
        [helper.make_node("Add", ["p", "p"], ["q"])],
        [helper.make_opsetid("", 17)],
    )
    proto = model(
        [helper.make_node("Double", ["x"], ["y"], domain="local")],
        [info("x", FLOAT, [2])],
        [info("y", FLOAT, [2])],
        functions=[double],
    )
    proto.opset_import.append(helper.make_opsetid("local", 1))
    assert op_names(import_onnx(proto)) == ["add"]


def test_odd_but_legal_things_are_warned_about() -> None:
    proto = model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [info("x", FLOAT, [2])],
        [info("y", FLOAT, [3])],
        {"w": np.array([1, np.nan], np.float32), "unused": np.array([np.nan], np.float32)},
    )
    assert import_onnx(proto).attrs["warnings"] == (
        "The constant 'w' holds NaN; whatever reads it will too.",
        "The output 'y' is declared with shape [3] but has shape [2].",
    )


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (TensorProto.BFLOAT16, [1.0, -2.5, 0.0078125]),
        (TensorProto.FLOAT16, [1.0, -2.5, 0.0999755859375]),
        (TensorProto.FLOAT8E4M3FN, [1.0, -2.5, 448.0]),
        (TensorProto.INT4, [7, -8, 3]),
        (TensorProto.INT8, [7, -128, 3]),
        (TensorProto.UINT16, [7, 65535, 3]),
        (TensorProto.BOOL, [True, False, True]),
        (TensorProto.DOUBLE, [0.1, 1e300, -1.0]),
        (TensorProto.UINT64, [1, 2**63, 5]),
    ],
)
@pytest.mark.parametrize("raw", [False, True])
def test_every_element_type_is_decoded(kind: int, values: list[Any], raw: bool) -> None:
    tensor = helper.make_tensor("w", kind, [3], values)
    if raw:
        array = numpy_helper.to_array(tensor)
        tensor = numpy_helper.from_array(array, "w")
    proto = model([helper.make_node("Identity", ["w"], ["y"])], [], [info("y", kind, [3])])
    proto.graph.initializer.append(tensor)
    got = run(import_onnx(proto), {})["y"]
    assert got.tolist() == values


def test_external_data_is_read_at_its_offset(tmp_path: Path) -> None:
    proto = model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [info("x", FLOAT, [300])],
        [info("y", FLOAT, [300])],
        {"v": np.zeros(300, np.float32), "w": np.arange(300, dtype=np.float32)},
    )
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="data.bin", size_threshold=0)
    got = run(import_onnx(path), {"x": np.ones(300, np.float32)})["y"]
    np.testing.assert_array_equal(got, np.arange(300, dtype=np.float32) + 1)
