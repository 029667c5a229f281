"""What an ONNX model says of its inputs: element types, sizes, and dimensions left open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spyrec.ir.errors import ImportError_
from spyrec.ir.types import TensorType

from .bind import MAX_DIM, MAX_RANK, FreeDim, Given, bind_dims
from .onnx_load import ELEMENT_TYPES, type_name


def bind_inputs(inputs: Sequence[Any], bind: Mapping[str, int]) -> dict[str, TensorType]:
    """Input name -> static type. ``inputs`` are ValueInfoProtos that are no initializers.

    ImportError_ lists at once what ``bind_dims`` finds, and every input that cannot be imported.
    """
    problems: list[str] = []
    read = [found for proto in inputs if (found := _read(proto, problems)) is not None]
    sizes = bind_dims(read, bind, problems)
    if problems:
        raise ImportError_(list(dict.fromkeys(problems)))
    return {
        i.name: TensorType(tuple(d if isinstance(d, int) else sizes[d] for d in i.dims), i.dtype)
        for i in read
    }


def _read(proto: Any, problems: list[str]) -> Given | None:
    kind = proto.type.WhichOneof("value")
    if kind != "tensor_type":
        what = (kind or "unknown").removesuffix("_type")
        problems.append(
            f"Input '{proto.name}' is of the kind {what}; only tensors can be imported."
        )
        return None
    tensor = proto.type.tensor_type
    if tensor.elem_type not in ELEMENT_TYPES:
        problems.append(
            f"Input '{proto.name}' has element type {type_name(tensor.elem_type)}, which cannot "
            f"be imported; supported: {', '.join(d.name for d in ELEMENT_TYPES.values())}."
        )
        return None
    if not tensor.HasField("shape"):
        problems.append(
            f"Input '{proto.name}' states no shape; export the model with the rank of its inputs "
            "known."
        )
        return None
    dims = tensor.shape.dim
    if len(dims) > MAX_RANK or any(d.dim_value > MAX_DIM for d in dims):
        problems.append(
            f"Input '{proto.name}' has dimensions {[d.dim_value for d in dims]}; expected at most "
            f"{MAX_RANK}, each up to {MAX_DIM}."
        )
        return None
    found = tuple(
        d.dim_value
        if d.dim_value > 0
        else FreeDim(proto.name, axis, _meaningful(d.dim_param), len(dims))
        for axis, d in enumerate(dims)
    )
    return Given(proto.name, ELEMENT_TYPES[tensor.elem_type], found)


def _meaningful(param: str) -> str:
    """The name, or "" for what exporters write when they know none: ?, -1, unk__12."""
    nameless = not param or param == "?" or param.startswith("unk__") or param.lstrip("-").isdigit()
    return "" if nameless else param
