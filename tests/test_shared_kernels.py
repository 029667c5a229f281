"""Equal layers share their kernels: code once, provenance for each launch."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import spyrec
from spyrec.sim import listing, objfile
from spyrec.sim.isa import Program, launched

LAYERS, SIZE = 8, 256


def layers() -> spyrec.Program:
    """Square matmuls and exponentials, each layer with weights of its own."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for i in range(LAYERS):
        values = rng.standard_normal((SIZE, SIZE)).astype(np.float32) / SIZE
        weights.append(numpy_helper.from_array(values, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [x, f"w{i}"], [f"y{i}"], name=f"matmul{i}"))
        nodes.append(helper.make_node("Softmax", [f"y{i}"], [f"z{i}"], name=f"softmax{i}", axis=-1))
        x = f"z{i}"
    values_of = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "layers", [values_of("x", TensorProto.FLOAT, [SIZE, SIZE])],
        [values_of(x, TensorProto.FLOAT, [SIZE, SIZE])], weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    return spyrec.compile(model)


def sources(code: Program) -> list[set[str]]:
    """The model nodes of each launch."""
    kernels = [launched(code.kernels[x.kernel], x) for x in code.launches]
    return [{node for note in k.notes for node in note.nodes} for k in kernels]


def test_layers_share_code_and_keep_their_own_nodes() -> None:
    program = layers()
    code = program.code
    assert len(code.launches) > len(code.kernels)
    named = set().union(*sources(code))
    assert named == {f"{op}{i}" for op in ("matmul", "softmax") for i in range(LAYERS)}
    stored = objfile.loads(objfile.dump(code))
    assert stored.launches == code.launches
    assert listing.assemble(listing.disassemble(stored)) == stored


def test_a_report_row_names_the_nodes_of_all_its_launches() -> None:
    program = layers()
    rows = spyrec.simulate(program, timing_only=True).kernels
    assert sum(row.count for row in rows) == len(program.code.launches)
    assert set().union(*(row.source for row in rows)) == set().union(*sources(program.code))
    assert any(row.count > 1 for row in rows)
