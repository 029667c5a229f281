"""What the op tests share: one op on arrays, and the same in onnxruntime as the other opinion."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from hypothesis import settings

from spyrec.ir.core import Loc, Op, Value
from spyrec.ir.interp import run_op
from spyrec.ir.ops import infer
from spyrec.ir.types import TensorType, dtype

Array = np.ndarray[Any, np.dtype[Any]]

patient = settings(deadline=None)  # a busy machine is no failure


def every(name: str, *arrays: Array, types: str = "", **attrs: Any) -> tuple[Array, ...]:
    """All results of an op; ``types`` names the element types where the arrays do not tell."""
    names = types.split() or [HOST_NAME[a.dtype] for a in arrays]
    values = [
        Value(f"x{i}", TensorType(a.shape, dtype(n)))
        for i, (a, n) in enumerate(zip(arrays, names, strict=True))
    ]
    frozen = MappingProxyType(attrs)
    inferred = infer(name, [v.type for v in values], frozen, Loc(("node",)))
    results = tuple(Value(f"r{i}", t) for i, t in enumerate(inferred))
    return run_op(Op(name, tuple(values), results, frozen, (), Loc(("node",))), arrays)


def one(name: str, *arrays: Array, types: str = "", **attrs: Any) -> Array:
    """The only result of an op."""
    (result,) = every(name, *arrays, types=types, **attrs)
    return result


def onnx_run(op_type: str, *arrays: Array | None, outputs: int = 1, **attrs: Any) -> list[Array]:
    """A one-node model of opset 21 run by onnxruntime; None stands for an operand left out."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    given = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
    infos = [
        onnx.helper.make_tensor_value_info(
            n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), list(a.shape)
        )
        for n, a in given.items()
    ]
    results = [f"y{i}" for i in range(outputs)]
    node = onnx.helper.make_node(op_type, names, results, **attrs)
    graph = onnx.helper.make_graph(
        [node], "one", infos, [onnx.ValueInfoProto(name=r) for r in results]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    model.ir_version = 10
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options)
    return list(session.run(None, given))


HOST_NAME = {
    np.dtype(n): short
    for n, short in (
        ("float64", "f64"), ("float32", "f32"), ("float16", "f16"), ("int64", "i64"),
        ("int32", "i32"), ("int16", "i16"), ("int8", "i8"), ("uint64", "u64"),
        ("uint32", "u32"), ("uint16", "u16"), ("uint8", "u8"), ("bool", "bool"),
    )
}  # fmt: skip


def noise(*shape: int, seed: int = 0) -> Array:
    """Normal float32 numbers, the same for the same shape and seed."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def close(got: Array, want: Array, tolerance: float = 1e-5) -> None:
    """Same shape and type, and equal but for ``tolerance`` (relative and absolute)."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def same(got: Array, want: Array) -> None:
    """Same shape, type and elements; NaN equals NaN."""
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want, strict=True)
