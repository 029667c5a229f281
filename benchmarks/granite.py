"""Writes Granite 3.3 8B's decoder layers as ONNX, weights as inputs. Run:
python -m benchmarks.granite MODEL.onnx [--layers 40] [--tokens 512]

Sizes are those of the model's published configuration. Weights are inputs because only time is
asked for: 40 layers of them are 16 GB.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 23
IR_VERSION = 11
HIDDEN, HEADS, KV_HEADS, HEAD, INNER = 4096, 32, 8, 128, 12800
EPSILON, THETA = 1e-5, 1e7
ATTENTION_SCALE, RESIDUAL_SCALE = 0.0078125, 0.22


@dataclass
class Graph:
    """Nodes, weights and constants as they are written down."""

    nodes: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def input(self, name: str, *shape: int) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape))
        return name

    def constant(self, name: str, values: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(values, np.float16), name))
        return name

    def node(self, op: str, inputs: Sequence[str], output: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attrs))
        return output


def decoder(layers: int, tokens: int) -> onnx.ModelProto:
    """x[1, tokens, 4096] through ``layers`` layers with a causal mask: y[1, tokens, 4096]."""
    g = Graph()
    x = g.input("x", 1, tokens, HIDDEN)
    angles = np.outer(np.arange(tokens), THETA ** (-np.arange(HEAD // 2) / (HEAD // 2)))
    caches = [g.constant(f.__name__, f(angles)[np.newaxis]) for f in (np.cos, np.sin)]
    g.constant("residual_scale", RESIDUAL_SCALE)
    for i in range(layers):
        x = _layer(g, f"layer{i}", x, caches)
    output = helper.make_tensor_value_info(x, TensorProto.FLOAT16, (1, tokens, HIDDEN))
    graph = helper.make_graph(g.nodes, "granite", g.inputs, [output], g.constants)
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return model


def _layer(g: Graph, name: str, x: str, caches: Sequence[str]) -> str:
    normed = _norm(g, f"{name}_input_norm", x)
    turned = [
        g.node("RotaryEmbedding", [_linear(g, f"{name}_{part}", normed, HIDDEN, heads * HEAD),
                                   *caches], f"{name}_{part}_turned", num_heads=heads)
        for part, heads in (("query", HEADS), ("key", KV_HEADS))
    ]  # fmt: skip
    value = _linear(g, f"{name}_value", normed, HIDDEN, KV_HEADS * HEAD)
    mixed = g.node(
        "Attention", [*turned, value], f"{name}_attention", is_causal=1, scale=ATTENTION_SCALE,
        q_num_heads=HEADS, kv_num_heads=KV_HEADS,
    )  # fmt: skip
    x = _add_scaled(g, name, x, _linear(g, f"{name}_project", mixed, HIDDEN, HIDDEN))

    normed = _norm(g, f"{name}_inner_norm", x)
    gate = _linear(g, f"{name}_gate", normed, HIDDEN, INNER)
    opened = g.node("Mul", [gate, g.node("Sigmoid", [gate], f"{name}_sigmoid")], f"{name}_silu")
    up = _linear(g, f"{name}_up", normed, HIDDEN, INNER)
    inner = g.node("Mul", [opened, up], f"{name}_inner")
    return _add_scaled(g, f"{name}_inner", x, _linear(g, f"{name}_down", inner, INNER, HIDDEN))


def _norm(g: Graph, name: str, x: str) -> str:
    scale = g.input(f"{name}_scale", HIDDEN)
    return g.node("RMSNormalization", [x, scale], name, axis=-1, epsilon=EPSILON)


def _linear(g: Graph, name: str, x: str, wide_in: int, wide_out: int) -> str:
    return g.node("MatMul", [x, g.input(f"{name}_weight", wide_in, wide_out)], f"{name}_out")


def _add_scaled(g: Graph, name: str, x: str, change: str) -> str:
    scaled = g.node("Mul", [change, "residual_scale"], f"{name}_scaled")
    return g.node("Add", [x, scaled], f"{name}_residual")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="where to write the ONNX file")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    onnx.save(decoder(options.layers, options.tokens), options.model)


if __name__ == "__main__":
    main()
