"""Writes small ONNX models with seeded random weights: encoder.onnx, one transformer encoder block;
reader.onnx, the same for texts of any length up to 512, with their mean vector; and cnn.onnx, a
residual convolutional classifier. Run: python examples/make_models.py FOLDER
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

OPSET = 17
IR_VERSION = 8
SEQUENCE, HIDDEN, HEADS, INNER, VOCABULARY = 64, 256, 4, 1024, 1000
LONGEST = 512
IMAGE, CLASSES = 64, 10


@dataclass
class Graph:
    """Nodes and weights as they are written down, one after the other."""

    rng: np.random.Generator
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    def weight(self, name: str, values: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def random(self, name: str, *shape: int, fan_in: int) -> str:
        """Normal weights whose products with unit-variance inputs have unit variance."""
        values = self.rng.standard_normal(shape) / np.sqrt(fan_in)
        return self.weight(name, values.astype(np.float32))

    def node(self, op: str, inputs: Sequence[str], output: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attrs))
        return output

    def model(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, name, inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        onnx.checker.check_model(model)
        return model


def encoder(seed: int = 0) -> onnx.ModelProto:
    """ids[1, 64] and mask[1, 64], int64 -> hidden[1, 64, 256]."""
    g = Graph(np.random.default_rng(seed))
    _encode(g, SEQUENCE)
    return g.model("encoder", *_ports(SEQUENCE))


def reader(seed: int = 0) -> onnx.ModelProto:
    """ids[1, seq] and mask[1, seq], int64 -> hidden[1, seq, 256], mean[1, 256] over seq."""
    g = Graph(np.random.default_rng(seed))
    g.node("ReduceMean", [_encode(g, -1)], "mean", axes=[1], keepdims=0)
    inputs, outputs = _ports("seq")
    mean = helper.make_tensor_value_info("mean", TensorProto.FLOAT, [1, HIDDEN])
    return g.model("reader", inputs, [*outputs, mean])


def _ports(sequence: int | str) -> tuple[list[Any], list[Any]]:
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, [1, sequence])
        for name in ("ids", "mask")
    ]
    shape = [1, sequence, HIDDEN]
    return inputs, [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, shape)]


def _encode(g: Graph, sequence: int) -> str:
    """The encoder block; a ``sequence`` of -1 is as long as ids."""
    words = g.node("Gather", [g.random("words", VOCABULARY, HIDDEN, fan_in=1), "ids"], "word")
    places = _places(g, sequence)
    x = _layer_norm(g, "embedding", g.node("Add", [words, places], "embedded"))

    heads = {}
    for name in ("query", "key", "value"):
        heads[name] = _split_heads(g, name, _linear(g, name, x, HIDDEN, HIDDEN), sequence)
    keys = g.node("Transpose", [heads["key"]], "keys_t", perm=[0, 1, 3, 2])
    scores = g.node("MatMul", [heads["query"], keys], "scores")
    scale = g.weight("scale", np.float32(1 / np.sqrt(HIDDEN // HEADS)))
    scaled = g.node("Mul", [scores, scale], "scaled")
    masked = g.node("Add", [scaled, _mask_bias(g)], "masked")
    weights = g.node("Softmax", [masked], "attention", axis=-1)
    mixed = g.node("MatMul", [weights, heads["value"]], "mixed")
    merged = g.node("Transpose", [mixed], "merged_t", perm=[0, 2, 1, 3])
    shape = g.weight("merged_shape", np.array([1, sequence, HIDDEN], np.int64))
    projected = _linear(g, "project", g.node("Reshape", [merged, shape], "merged"), HIDDEN, HIDDEN)
    x = _layer_norm(g, "attended", g.node("Add", [projected, x], "attention_residual"))

    widened = _gelu(g, _linear(g, "widen", x, HIDDEN, INNER))
    narrowed = _linear(g, "narrow", widened, INNER, HIDDEN)
    return _layer_norm(g, "hidden", g.node("Add", [narrowed, x], "inner_residual"))


def _places(g: Graph, sequence: int) -> str:
    """A vector for each place, as many as ids has."""
    if sequence >= 0:
        return g.random("places", sequence, HIDDEN, fan_in=1)
    every = g.random("places", LONGEST, HIDDEN, fan_in=1)
    length = g.node("Shape", ["ids"], "length", start=1)
    first = g.weight("first", np.array([0], np.int64))
    return g.node("Slice", [every, first, length, first], "places_used")


def _linear(g: Graph, name: str, x: str, wide_in: int, wide_out: int) -> str:
    weight = g.random(f"{name}_weight", wide_in, wide_out, fan_in=wide_in)
    bias = g.random(f"{name}_bias", wide_out, fan_in=100)
    return g.node("Add", [g.node("MatMul", [x, weight], f"{name}_matmul"), bias], f"{name}_out")


def _layer_norm(g: Graph, name: str, x: str) -> str:
    scale = g.weight(f"{name}_scale", np.ones(HIDDEN, np.float32))
    bias = g.random(f"{name}_shift", HIDDEN, fan_in=100)
    return g.node("LayerNormalization", [x, scale, bias], name, axis=-1, epsilon=1e-5)


def _split_heads(g: Graph, name: str, x: str, sequence: int) -> str:
    """[1, S, H*D] -> [1, H, S, D]"""
    sizes = np.array([1, sequence, HEADS, HIDDEN // HEADS], np.int64)
    split = g.node("Reshape", [x, g.weight(f"{name}_shape", sizes)], f"{name}_split")
    return g.node("Transpose", [split], f"{name}_heads", perm=[0, 2, 1, 3])


def _mask_bias(g: Graph) -> str:
    """0 where mask is 1, -10000 where it is 0, as [1, 1, 1, S]."""
    seen = g.node("Cast", ["mask"], "mask_float", to=TensorProto.FLOAT)
    hidden = g.node("Sub", [g.weight("one", np.float32(1)), seen], "mask_hidden")
    bias = g.node("Mul", [hidden, g.weight("far", np.float32(-10000))], "mask_flat")
    axes = g.weight("mask_axes", np.array([1, 2], np.int64))
    return g.node("Unsqueeze", [bias, axes], "mask_bias")


def _gelu(g: Graph, x: str) -> str:
    """x / 2 * (1 + erf(x / sqrt(2)))"""
    scaled = g.node("Div", [x, g.weight("root_two", np.float32(np.sqrt(2)))], "gelu_scaled")
    erf = g.node("Erf", [scaled], "gelu_erf")
    raised = g.node("Add", [erf, g.weight("gelu_one", np.float32(1))], "gelu_raised")
    gated = g.node("Mul", [x, raised], "gelu_gated")
    return g.node("Mul", [gated, g.weight("half", np.float32(0.5))], "gelu")


def cnn(seed: int = 0) -> onnx.ModelProto:
    """image[1, 3, 64, 64] -> logits[1, 10]. Strided, depthwise and pointwise convolutions."""
    g = Graph(np.random.default_rng(seed))
    x = _conv(g, "stem", "image", 3, 32, kernel=3, stride=2)
    x = g.node("MaxPool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = _block(g, "block1", x, 32, 32, stride=1)
    x = _block(g, "block2", x, 32, 64, stride=2)
    x = g.node("GlobalAveragePool", [x], "mean")
    x = g.node("Flatten", [x], "features", axis=1)
    weight = g.random("classify_weight", CLASSES, 64, fan_in=64)
    bias = g.random("classify_bias", CLASSES, fan_in=100)
    g.node("Gemm", [x, weight, bias], "logits", transB=1)
    return g.model(
        "cnn",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, IMAGE, IMAGE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, CLASSES])],
    )


def _block(g: Graph, name: str, x: str, before: int, after: int, *, stride: int) -> str:
    """Depthwise, then pointwise, plus the input (through a strided convolution if the size
    changes)."""
    y = _conv(g, f"{name}_depth", x, before, before, kernel=3, stride=stride, group=before)
    y = _conv(g, f"{name}_point", y, before, after, kernel=1, relu=False)
    if stride != 1 or before != after:
        x = _conv(g, f"{name}_skip", x, before, after, kernel=1, stride=stride, relu=False)
    return g.node("Relu", [g.node("Add", [x, y], f"{name}_sum")], name)


def _conv(
    g: Graph,
    name: str,
    x: str,
    before: int,
    after: int,
    *,
    kernel: int,
    stride: int = 1,
    group: int = 1,
    relu: bool = True,
) -> str:
    """Convolution, batch normalisation and, unless told not to, relu."""
    fan_in = before // group * kernel * kernel
    weight = g.random(f"{name}_weight", after, before // group, kernel, kernel, fan_in=fan_in)
    attrs = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "group": group}
    y = g.node("Conv", [x, weight], f"{name}_conv", pads=[kernel // 2] * 4, **attrs)
    params = [
        g.weight(f"{name}_scale", g.rng.uniform(0.8, 1.2, after).astype(np.float32)),
        g.random(f"{name}_shift", after, fan_in=100),
        g.random(f"{name}_mean", after, fan_in=100),
        g.weight(f"{name}_variance", g.rng.uniform(0.5, 1.5, after).astype(np.float32)),
    ]
    y = g.node("BatchNormalization", [y, *params], f"{name}_norm")
    return g.node("Relu", [y], f"{name}_relu") if relu else y


MODELS = {"encoder": encoder, "reader": reader, "cnn": cnn}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write the models")
    parser.add_argument("--seed", type=int, default=0, help="of the random weights")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, make in MODELS.items():
        path = options.folder / f"{name}.onnx"
        onnx.save(make(options.seed), path)
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
