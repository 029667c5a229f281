"""One-node models across opsets: the interpreter on the imported module against onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from spyrec.frontend import import_onnx
from spyrec.frontend.onnx_import import CONVERTERS
from spyrec.ir.interp import run
from spyrec.ir.verifier import verify

F32, I64, BOOL = np.float32, np.int64, np.bool_


@dataclass(frozen=True)
class Weight:
    """An operand that is an initializer of the model; other arrays are its inputs."""

    array: Any


@dataclass(frozen=True)
class Case:
    op: str
    opset: int
    operands: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    tolerance: float = 1e-5

    def __str__(self) -> str:
        attrs = ",".join(f"{k}={v}" for k, v in self.attrs.items() if k != "value")
        return f"{self.op}-{self.opset}({attrs})"


def case(
    op: str, opset: int, *operands: Any, outputs: int = 1, tol: float = 1e-5, **attrs: Any
) -> Case:
    return Case(op, opset, operands, attrs, outputs, tol)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(hash(shape) % 1000).standard_normal(shape).astype(F32)


def positive(*shape: int) -> np.ndarray:
    return np.abs(normal(*shape)) + F32(0.1)


def whole(low: int, high: int, *shape: int, dtype: Any = I64) -> np.ndarray:
    return np.random.default_rng(hash(shape) % 1000).integers(low, high, shape).astype(dtype)


def truth(*shape: int) -> np.ndarray:
    return whole(0, 2, *shape).astype(BOOL)


def ints(*values: int) -> Weight:
    return Weight(np.array(values, I64))


def floats(*values: float) -> Weight:
    return Weight(np.array(values, F32))


def number(value: float, dtype: Any = F32) -> Weight:
    return Weight(np.array(value, dtype))


X23 = normal(2, 3)
X4 = normal(1, 3, 8, 8)

UNARY = [
    case(op, opset, x)
    for op, opset, x in [
        ("Neg", 13, X23), ("Neg", 13, whole(-5, 5, 4)), ("Abs", 9, X23), ("Sign", 13, X23),
        ("Exp", 13, X23), ("Log", 13, positive(2, 3)), ("Sqrt", 9, positive(2, 3)),
        ("Reciprocal", 13, positive(2, 3)), ("Sin", 9, X23), ("Cos", 9, X23), ("Tan", 9, X23 / 3),
        ("Sinh", 9, X23), ("Cosh", 9, X23), ("Asinh", 9, X23), ("Acosh", 9, positive(2, 3) + 1),
        ("Atanh", 9, X23 / 4), ("Tanh", 13, X23), ("Sigmoid", 13, X23), ("Erf", 13, X23),
        ("Relu", 14, X23), ("Softplus", 9, X23), ("Softsign", 9, X23), ("Floor", 13, X23 * 3),
        ("Ceil", 13, X23 * 3), ("Round", 11, np.array([0.5, 1.5, -0.5, 2.4], F32)),
        ("Not", 9, truth(2, 3)), ("IsNaN", 13, np.array([1, np.nan, np.inf], F32)),
        ("Mish", 18, X23), ("HardSwish", 14, X23 * 4), ("Identity", 14, X23),
        ("Elu", 9, X23), ("LeakyRelu", 16, X23), ("Selu", 9, X23), ("HardSigmoid", 9, X23 * 3),
        ("ThresholdedRelu", 10, X23), ("Celu", 12, X23), ("Shrink", 9, X23), ("Gelu", 20, X23),
        ("IsInf", 10, np.array([1, np.nan, np.inf, -np.inf], F32)),
    ]
]  # fmt: skip

UNARY_ATTRS = [
    case("Elu", 9, X23, alpha=0.3),
    case("LeakyRelu", 9, X23, alpha=0.2),
    case("Selu", 9, X23, alpha=1.5, gamma=2.0),
    case("HardSigmoid", 9, X23, alpha=0.5, beta=0.1),
    case("Celu", 12, X23, alpha=0.5),
    case("Shrink", 9, X23, bias=0.2, lambd=0.4),
    case("Gelu", 20, X23, approximate="tanh"),
    case("IsInf", 10, np.array([1, np.inf, -np.inf], F32), detect_negative=0),
    case("IsInf", 10, np.array([1, np.inf, -np.inf], F32), detect_positive=0),
    case("Cast", 13, X23 * 3, to=TensorProto.INT64),
    case("Cast", 9, X23, to=TensorProto.BOOL),
    case("Cast", 13, truth(2, 3), to=TensorProto.FLOAT),
    case("Cast", 13, X23, to=TensorProto.FLOAT16),
    case("CastLike", 15, X23, Weight(np.zeros(1, np.float64))),
    case("Clip", 9, X23, min=-0.5, max=0.5),
    case("Clip", 9, X23, min=-0.5),
    case("Clip", 13, X23, number(-0.5), number(0.5)),
    case("Clip", 13, X23, None, number(0.5)),
    case("Clip", 13, X23, np.array(-0.5, F32), np.array(0.2, F32)),
    case("Clip", 13, whole(-9, 9, 6), number(-3, I64), number(4, I64)),
    case("Dropout", 9, X23, ratio=0.5),
    case("Dropout", 13, X23, number(0.5), number(False, BOOL), outputs=2),
    case("PRelu", 9, X4, Weight(normal(3, 1, 1))),
]

BINARY = [
    case(op, opset, a, b)
    for op, opset, a, b in [
        ("Add", 14, X23, normal(3)), ("Sub", 7, X23, normal(2, 1)), ("Mul", 13, X23, X23),
        ("Div", 14, X23, positive(2, 3)), ("Div", 14, whole(-9, 9, 6), whole(1, 4, 6)),
        ("Pow", 13, positive(2, 3), X23), ("Pow", 13, X23, number(2, I64)),
        ("Pow", 15, whole(1, 5, 4), number(2.0)),
        ("And", 7, truth(2, 3), truth(3)), ("Or", 7, truth(2, 3), truth(3)),
        ("Xor", 7, truth(2, 3), truth(3)),
        ("Equal", 13, whole(0, 3, 6), whole(0, 3, 2, 6)), ("Equal", 13, truth(4), truth(1)),
        ("Less", 9, X23, normal(3)), ("LessOrEqual", 12, X23, X23),
        ("Greater", 13, X23, normal(3)), ("GreaterOrEqual", 16, X23, X23),
        ("Mod", 13, whole(-9, 9, 6), whole(1, 5, 6)),
    ]
]  # fmt: skip

SEVERAL = [
    case("Mod", 13, X23 * 4, positive(2, 3), fmod=1, tol=1e-4),
    case("Where", 16, truth(2, 3), X23, normal(3)),
    case("Sum", 13, X23, normal(3), normal(2, 1)),
    case("Max", 13, X23, normal(3), normal(2, 1)),
    case("Min", 8, X23, normal(3)),
    case("Mean", 13, X23, normal(3), normal(2, 1)),
    case("Max", 13, X23),
]

REDUCE = [
    *(
        case(f"Reduce{kind}", opset, positive(2, 3, 4), axes=[1], keepdims=0)
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
        for opset in (11, 13)
    ),
    case("ReduceSum", 11, normal(2, 3, 4), axes=[-1, 0]),
    case("ReduceSum", 13, normal(2, 3, 4), ints(-1, 0)),
    case("ReduceSum", 13, normal(2, 3, 4)),
    case("ReduceSum", 13, normal(2, 3, 4), ints(), noop_with_empty_axes=1),
    case("ReduceMean", 18, normal(2, 3, 4), ints(1), keepdims=0),
    case("ReduceMax", 18, whole(-9, 9, 3, 4), ints(0)),
    case("ArgMax", 13, normal(2, 5), axis=-1),
    case("ArgMin", 13, normal(2, 5), axis=0, keepdims=0),
    case("ArgMax", 13, whole(0, 2, 3, 5).astype(F32), axis=1, select_last_index=1),
    case("CumSum", 14, normal(2, 5), number(1, np.int32)),
    case("CumSum", 11, normal(2, 5), number(-1, I64), exclusive=1, reverse=1),
    case("GlobalAveragePool", 9, X4),
    case("GlobalMaxPool", 9, X4),
]

CONTRACT = [
    case("MatMul", 13, normal(2, 3, 4), normal(4, 5)),
    case("MatMul", 9, normal(4), normal(4, 5)),
    case("MatMul", 13, normal(2, 3, 4), normal(4)),
    case("MatMul", 13, normal(4), normal(4)),
    case("MatMul", 13, normal(4), normal(2, 4, 5)),
    case("Gemm", 13, normal(3, 4), normal(4, 5), normal(5)),
    case("Gemm", 9, normal(4, 3), Weight(normal(5, 4)), normal(3, 1), transA=1, transB=1),
    case("Gemm", 11, normal(3, 4), normal(4, 5), normal(1), alpha=0.5, beta=2.0),
    case("Gemm", 13, normal(3, 4), normal(4, 5)),
    case("Einsum", 12, normal(2, 3, 4), normal(2, 4, 5), equation="bij, bjk -> bik"),
    case("Conv", 11, X4, normal(6, 3, 3, 3), normal(6), pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
    case("Conv", 11, X4, normal(6, 3, 3, 3), strides=[2, 2], pads=[0, 1, 2, 1]),
    case("Conv", 11, X4, normal(6, 1, 3, 3), group=3, dilations=[2, 1]),
    case("Conv", 9, X4, normal(6, 3, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
    case("Conv", 9, X4, normal(6, 3, 2, 2), auto_pad="SAME_LOWER"),
    case("Conv", 11, X4, normal(6, 3, 3, 3), auto_pad="VALID"),
    case("Conv", 11, normal(2, 3, 9), normal(4, 3, 3), strides=[2]),
    case("Conv", 11, normal(1, 2, 4, 5, 6), normal(3, 2, 2, 2, 2)),
    case("ConvTranspose", 11, normal(1, 3, 5, 5), normal(3, 4, 3, 3), normal(4)),
    case("ConvTranspose", 11, normal(1, 3, 5, 5), normal(3, 4, 2, 2), strides=[2, 2]),
    case("ConvTranspose", 11, normal(1, 4, 5, 5), normal(4, 2, 3, 3), strides=[2, 2], group=2,
         pads=[1, 0, 0, 1], output_padding=[1, 0]),
    case("ConvTranspose", 11, normal(1, 3, 5, 5), normal(3, 4, 3, 3), strides=[2, 2],
         auto_pad="SAME_UPPER"),
    case("ConvTranspose", 11, normal(1, 3, 5, 5), normal(3, 4, 3, 3), strides=[2, 2],
         output_shape=[10, 10]),
    case("MatMulInteger", 10, whole(0, 255, 3, 4, dtype=np.uint8),
         whole(-99, 99, 4, 5, dtype=np.int8), number(7, np.uint8), number(-3, np.int8)),
    case("ConvInteger", 10, whole(0, 255, 1, 2, 5, 5, dtype=np.uint8),
         whole(0, 255, 3, 2, 3, 3, dtype=np.uint8), number(9, np.uint8), number(4, np.uint8),
         pads=[1, 1, 1, 1]),
]  # fmt: skip

WINDOW = [
    case("MaxPool", 12, X4, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    case("MaxPool", 12, X4, kernel_shape=[3, 2], ceil_mode=1, strides=[3, 3]),
    case("MaxPool", 11, X4, kernel_shape=[2, 2], dilations=[2, 2]),
    case("MaxPool", 9, X4, kernel_shape=[3, 3], auto_pad="SAME_UPPER", strides=[2, 2]),
    case("MaxPool", 12, normal(1, 2, 9), kernel_shape=[2]),
    case("AveragePool", 11, X4, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    case("AveragePool", 9, X4, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    case("AveragePool", 19, X4, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("LRN", 13, normal(1, 6, 3, 3), size=3, alpha=0.5, beta=0.7, bias=1.5),
    case("LRN", 9, normal(1, 6, 3, 3), size=5),
    case("Upsample", 9, X4, floats(1, 1, 2, 2), mode="nearest"),
    case("Upsample", 9, X4, floats(1, 1, 2, 3), mode="linear"),
    case("Resize", 10, X4, floats(1, 1, 2, 2), mode="nearest"),
    case("Resize", 10, X4, floats(1, 1, 0.5, 0.5), mode="nearest"),
    case("Resize", 10, X4, floats(1, 1, 2, 2), mode="linear"),
    *(
        case("Resize", 13, X4, floats(), floats(1, 1, 1.7, 2), mode=mode,
             coordinate_transformation_mode=how)
        for mode in ("nearest", "linear", "cubic")
        for how in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    ),
    *(
        case("Resize", 11, X4, floats(), floats(1, 1, 1.5, 0.75), nearest_mode=how)
        for how in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    ),
    case("Resize", 13, X4, floats(), floats(), ints(1, 3, 5, 13), mode="linear"),
    case("Resize", 18, X4, None, None, ints(5, 13), axes=[2, 3], mode="linear"),
    case("Resize", 18, X4, None, floats(2, 0.5), axes=[3, 2], mode="nearest"),
    case("Resize", 18, X4, None, None, ints(6, 12), axes=[2, 3],
         keep_aspect_ratio_policy="not_larger", mode="linear"),
    case("Resize", 11, X4, floats(), floats(1, 1, 2, 2), mode="nearest", nearest_mode="floor",
         coordinate_transformation_mode="tf_half_pixel_for_nn"),
]  # fmt: skip

C3 = [Weight(positive(3)), Weight(normal(3)), Weight(normal(3) / 3), Weight(positive(3))]

NORM = [
    case("Softmax", 13, normal(2, 3, 4)),
    case("Softmax", 13, normal(2, 3, 4), axis=1),
    case("Softmax", 9, normal(2, 3, 4)),
    case("Softmax", 11, normal(2, 3, 4), axis=0),
    case("Softmax", 11, normal(2, 3, 1, 1), axis=1),
    case("LogSoftmax", 13, normal(2, 3, 4), axis=-2),
    case("LogSoftmax", 11, normal(2, 3, 4)),
    case("Hardmax", 13, normal(2, 3, 4)),
    case("Hardmax", 11, normal(2, 3, 4), axis=1),
    case("LayerNormalization", 17, normal(2, 3, 4), Weight(positive(4)), Weight(normal(4))),
    case("LayerNormalization", 17, normal(2, 3, 4), Weight(positive(3, 4)), axis=1, epsilon=0.1),
    case("RMSNormalization", 23, normal(2, 3, 4), Weight(positive(4))),
    case("BatchNormalization", 9, X4, *C3, epsilon=0.01),
    case("BatchNormalization", 15, X4, *C3),
    case("InstanceNormalization", 9, X4, *C3[:2]),
    case("GroupNormalization", 21, normal(2, 6, 4), Weight(positive(6)), Weight(normal(6)),
         num_groups=3),
    case("GroupNormalization", 18, normal(2, 6, 4), Weight(positive(3)), Weight(normal(3)),
         num_groups=3),
    case("MeanVarianceNormalization", 13, normal(2, 3, 4, 4)),
    case("LpNormalization", 9, normal(2, 5), axis=-1, p=2),
    case("LpNormalization", 9, normal(2, 5), axis=0, p=1),
]  # fmt: skip

HEADS = (normal(1, 4, 5, 8), normal(1, 2, 5, 8), normal(2, 5, 8)[None])
PACKED = (normal(1, 5, 32), normal(1, 6, 16), normal(6, 16)[None])
PAST = (normal(1, 2, 3, 8), normal(2, 3, 8)[None])
ANGLES = (Weight(np.cos(normal(9, 4))), Weight(np.sin(normal(9, 4))))
PLACES = ints(0, 1, 2, 3, 4).array.reshape(1, 5)

ATTENTION = [
    case("Attention", 23, *HEADS),
    case("Attention", 23, *HEADS, is_causal=1),
    case("Attention", 23, *HEADS, truth(5, 5) | np.eye(5, dtype=BOOL)),
    case("Attention", 23, *PACKED, normal(5, 6), q_num_heads=4, kv_num_heads=2, scale=0.3),
    case("Attention", 23, *HEADS, None, *PAST, is_causal=1, outputs=3),
    case("Attention", 23, *HEADS, normal(5, 8), *PAST, is_causal=1, outputs=3),
    case("RotaryEmbedding", 23, HEADS[0], *ANGLES, PLACES),
    case("RotaryEmbedding", 23, normal(1, 5, 32), *ANGLES, PLACES, num_heads=4, interleaved=1),
    case("RotaryEmbedding", 23, normal(1, 2, 5, 12), *ANGLES, PLACES, rotary_embedding_dim=8),
    case("RotaryEmbedding", 23, normal(1, 2, 5, 8), normal(1, 5, 4), normal(5, 4)[None]),
]

SHAPE = [
    case("Shape", 13, X4),
    case("Shape", 15, X4, start=1, end=-1),
    case("Size", 13, X4),
    case("Reshape", 13, normal(2, 3, 4), ints(0, -1)),
    case("Reshape", 14, normal(2, 3, 4), ints(4, 3, 2), allowzero=1),
    case("Flatten", 13, normal(2, 3, 4)),
    case("Flatten", 11, normal(2, 3, 4), axis=-1),
    case("Flatten", 9, normal(2, 3, 4), axis=0),
    case("Squeeze", 11, normal(1, 3, 1), axes=[0]),
    case("Squeeze", 13, normal(1, 3, 1), ints(-1)),
    case("Squeeze", 13, normal(1, 3, 1)),
    case("Unsqueeze", 11, X23, axes=[0, 3]),
    case("Unsqueeze", 13, X23, ints(-1, 1)),
    case("Transpose", 13, normal(2, 3, 4), perm=[2, 0, 1]),
    case("Transpose", 13, normal(2, 3, 4)),
    case("Concat", 13, X23, normal(2, 1), axis=-1),
    case("Concat", 13, X23, Weight(np.zeros((2, 0), F32)), axis=1),
    case("Split", 11, normal(6, 2), axis=0, outputs=3),
    case("Split", 11, normal(6, 2), split=[1, 5], outputs=2),
    case("Split", 13, normal(2, 6), ints(2, 4), axis=-1, outputs=2),
    case("Split", 18, normal(2, 7), axis=1, num_outputs=3, outputs=3),
    case("Slice", 9, normal(4, 5), starts=[1, -3], ends=[9, -1], axes=[0, 1]),
    case("Slice", 13, normal(4, 5), ints(3, 4), ints(-9, 0), ints(0, 1), ints(-1, -2)),
    case("Slice", 11, normal(4, 5), ints(-2), ints(2**63 - 1), ints(1)),
    case("Slice", 13, normal(4, 5), ints(3), ints(1), ints(0)),
    case("Expand", 13, normal(3, 1), ints(2, 1, 4)),
    case("Tile", 13, X23, ints(2, 3)),
    case("Pad", 9, X23, pads=[1, 0, 0, 2], value=1.5),
    case("Pad", 11, X4, ints(0, 0, 2, 1, 0, 0, 1, 3), mode="reflect"),
    case("Pad", 13, X23, ints(0, 1, 2, -1), number(2.5)),
    case("Pad", 18, X4, ints(1, 2), None, ints(3), mode="edge"),
    case("Pad", 19, X4, ints(1, 2), None, ints(-1), mode="wrap"),
    case("DepthToSpace", 13, normal(1, 8, 2, 3), blocksize=2),
    case("DepthToSpace", 11, normal(1, 8, 2, 3), blocksize=2, mode="CRD"),
    case("SpaceToDepth", 13, X4, blocksize=2),
    case("Trilu", 14, normal(3, 4)),
    case("Trilu", 14, normal(3, 4), number(-1, I64), upper=0),
    case("NonZero", 13, Weight(np.array([[1, 0], [0, 2]], F32))),
]

INDEX = [
    case("Gather", 13, normal(4, 3), ints(-1, 0)),
    case("Gather", 13, normal(4, 3), whole(0, 3, 2, 2), axis=1),
    case("Gather", 11, normal(4, 3), number(1, I64)),
    case("GatherND", 13, normal(2, 3, 4), ints(0, 1)),
    case("GatherND", 12, normal(2, 3, 4), Weight(np.array([[1], [0]], I64)), batch_dims=1),
    case("GatherElements", 13, normal(3, 4), whole(-3, 3, 2, 4), axis=0),
    case("ScatterND", 11, normal(4, 3), Weight(np.array([[1], [3]], I64)), normal(2, 3)),
    case("ScatterND", 16, normal(4), Weight(np.array([[1], [1]], I64)), normal(2), reduction="add"),
    case("ScatterElements", 11, normal(3, 4), whole(0, 3, 1, 4), normal(1, 4)),
    case("ScatterElements", 16, normal(3, 4), whole(0, 3, 2, 4), normal(2, 4), reduction="add"),
    case("Scatter", 9, normal(3, 4), whole(0, 3, 1, 4), normal(1, 4)),
    case("TopK", 9, normal(2, 6), k=3, outputs=2),
    case("TopK", 11, normal(2, 6), ints(2), axis=0, largest=0, outputs=2),
    case("OneHot", 11, whole(-2, 4, 5), number(4, I64), floats(-1, 2)),
    case("OneHot", 11, whole(0, 4, 2, 3), number(4, I64), ints(0, 1), axis=0),
    case("Range", 11, number(1, I64), number(9, I64), number(3, I64)),
    case("Range", 11, number(1.0), number(-0.4), number(-0.5)),
    case("ConstantOfShape", 9, ints(2, 3), value=numpy_helper.from_array(np.array([7], I64))),
    case("ConstantOfShape", 9, ints(2, 3)),
    case("EyeLike", 9, normal(3, 4), k=1),
]

SCALE = number(0.05)

QUANT = [
    case("QuantizeLinear", 10, X23, SCALE, number(128, np.uint8)),
    case("QuantizeLinear", 13, X4, Weight(positive(3)), Weight(np.array([0, 5, -7], np.int8)),
         axis=1),
    case("QuantizeLinear", 13, X23, SCALE),
    case("DequantizeLinear", 10, whole(0, 255, 2, 3, dtype=np.uint8), SCALE, number(128, np.uint8)),
    case("DequantizeLinear", 13, whole(-99, 99, 2, 3, dtype=np.int8), Weight(positive(3)), axis=-1),
    case("DequantizeLinear", 13, whole(-9999, 9999, 2, 3, dtype=np.int32), SCALE),
    case("DynamicQuantizeLinear", 11, normal(4, 5), outputs=3),
    case("QLinearMatMul", 10, whole(0, 255, 3, 4, dtype=np.uint8), SCALE, number(120, np.uint8),
         whole(0, 255, 4, 5, dtype=np.uint8), number(0.02), number(131, np.uint8),
         number(0.5), number(127, np.uint8)),
    # Weights of 7 bits: on processors without VNNI onnxruntime adds pairs of uint8 x int8 products
    # in 16 bits, which saturate when weights use all 8; its quantisation guide has reduce_range.
    case("QLinearConv", 10, whole(0, 255, 1, 3, 6, 6, dtype=np.uint8), SCALE,
         number(120, np.uint8), Weight(whole(-64, 63, 4, 3, 3, 3, dtype=np.int8)),
         Weight(positive(4) / 50), Weight(np.zeros(4, np.int8)), number(0.9), number(127, np.uint8),
         Weight(whole(-999, 999, 4, dtype=np.int32))),
]  # fmt: skip

CASES = [
    *UNARY, *UNARY_ATTRS, *BINARY, *SEVERAL, *REDUCE, *CONTRACT, *WINDOW, *NORM, *ATTENTION, *SHAPE,
    *INDEX, *QUANT,
]  # fmt: skip


def model_of(c: Case) -> tuple[Any, dict[str, np.ndarray]]:
    """A model with the one node, and its inputs."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(c.operands)]
    weights, inputs = {}, {}
    for name, operand in zip(names, c.operands, strict=True):
        if isinstance(operand, Weight):
            weights[name] = operand.array
        elif operand is not None:
            inputs[name] = operand
    outputs = [f"y{i}" for i in range(c.outputs)]
    node = helper.make_node(c.op, names, outputs, name="the_node", **c.attrs)
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(n) for n in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    opsets = [helper.make_opsetid("", c.opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), inputs


def test_every_conversion_has_a_case() -> None:
    """Swish and SwiGLU are newer than onnxruntime; the next test has them."""
    elsewhere = {"Constant", "Swish", "SwiGLU"}
    assert set(CONVERTERS) - {c.op for c in CASES} == elsewhere


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_swish_and_swiglu(alpha: float) -> None:
    swish = X23 / (1 + np.exp(-alpha * X23))
    linear = normal(3, 2).T
    for op, operands, want in [("Swish", [X23], swish), ("SwiGLU", [X23, linear], swish * linear)]:
        model, inputs = model_of(case(op, 28, *operands, alpha=alpha))
        np.testing.assert_allclose(run(import_onnx(model), inputs)["y0"], want, rtol=1e-5)


@pytest.mark.parametrize("c", CASES, ids=str)
def test_one_node_agrees_with_onnxruntime(c: Case) -> None:
    model, inputs = model_of(c)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, inputs)
    module = import_onnx(model)
    got = run(module, inputs)
    assert tuple(got) == tuple(f"y{i}" for i in range(c.outputs))
    for want, have in zip(expected, got.values(), strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        if want.dtype.kind == "f":
            np.testing.assert_allclose(have, want, rtol=c.tolerance, atol=c.tolerance)
        elif c.op.startswith("QLinear"):  # a tie may fall either way
            assert np.abs(have.astype(int) - want.astype(int)).max() <= 1
        else:
            np.testing.assert_array_equal(have, want)
    verify(module)
    assert all(op.loc.nodes for op in module.body.ops)
