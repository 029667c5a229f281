"""An ExportedProgram or a module in memory as the plain graph that a ``.pt2`` file holds. The
only file of the importer that needs torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from spyrec.ir.errors import ImportError_
from spyrec.ir.types import DType, TensorType

from .stored import Array, decode
from .torch_graph import Call, ExportGraph, read_graph
from .torch_import import Weights
from .torch_place import place_of, sparse_input, unsupported_sentences
from .torch_site import DTYPE_OF, element_dtype
from .torch_writes import packet_of


def is_exported(model: Any) -> bool:
    """Whether it is an ExportedProgram, without importing torch for that."""
    return _is(model, "torch.export", "ExportedProgram")


def is_module(model: Any) -> bool:
    """Whether it is a torch.nn.Module, as a GraphModule is too."""
    return _is(model, "torch.nn", "Module")


def _is(model: Any, module: str, name: str) -> bool:
    return any(c.__name__ == name and c.__module__.startswith(module) for c in type(model).__mro__)


def exported(model: Any, example: Sequence[Any] | None) -> Any:
    """The ExportedProgram of a module, traced with example inputs. ImportError_ when there are
    none, or torch cannot export it."""
    import torch

    if example is None:
        raise ImportError_(
            f"a module such as this {type(model).__name__} does not tell the shapes of its inputs; "
            "give example_inputs, or compile torch.export.export(module, example_inputs)"
        )
    try:
        return torch.export.export(model, tuple(example), strict=False)
    except Exception as error:  # torch raises many kinds, and each says what it met
        raise ImportError_(f"torch cannot export the {type(model).__name__}: {error}") from None


def read_exported(program: Any) -> tuple[ExportGraph, Weights]:
    """The graph of an ExportedProgram and how to get its tensors."""
    from torch._export.serde import serialize

    try:
        made = serialize.ExportedProgramSerializer().serialize(program)
        plain = serialize._dataclass_to_dict(made.exported_program)
        data = json.loads(json.dumps(plain, cls=serialize.EnumEncoder))
    except (RuntimeError, ValueError, LookupError, serialize.SerializeError) as error:
        found = _sparse(program)
        first = next(iter(str(error).splitlines()), "")
        if found is None:
            found = f"torch cannot write the exported program as data: {first}"
        raise ImportError_(found) from None
    graph = read_graph(data, "the exported program")
    return graph, {
        name: _type(tensor) if tensor.is_meta else partial(host_array, tensor)
        for name, tensor in {**program.constants, **program.state_dict}.items()
        if hasattr(tensor, "numpy")
    }


def _sparse(program: Any) -> str | None:
    """The sentence on the first tensor that is not dense: some kinds of these torch does not
    write."""
    import torch

    for node in program.graph.nodes:
        made = node.meta.get("val")
        if not isinstance(made, torch.Tensor) or made.layout is torch.strided:
            continue
        at = node if node.op == "call_function" else next(iter(node.users), node)
        call = Call(at.name, str(at.target), {}, (), at.meta.get("stack_trace") or "")
        if node.op != "call_function":
            return sparse_input(node.name, f" (first read by {place_of(call)})")
        kept = {(packet_of(call.target), "it makes a sparse tensor"): [place_of(call)]}
        return unsupported_sentences(kept)[0]
    return None


def _type(tensor: Any) -> TensorType:
    element = str(tensor.dtype).removeprefix("torch.")
    return TensorType(tuple(tensor.shape), element_dtype(element))


def host_array(tensor: Any) -> tuple[Array, DType]:
    """A tensor's elements as host numbers, and their format. ImportError_ when there is none."""
    import torch

    element = str(tensor.dtype).removeprefix("torch.")
    if element not in DTYPE_OF:
        raise ImportError_(f"a tensor has element type {element}, which cannot be imported")
    if tensor.layout is not torch.strided:
        raise ImportError_("a tensor is sparse; hand in a dense one, tensor.to_dense()")
    dtype = element_dtype(element)
    tensor = tensor.detach().cpu().contiguous()
    bits = {"bfloat16": torch.int16, "float8_e4m3fn": torch.uint8}.get(element)
    if bits is None:
        return tensor.numpy(), dtype
    flat = tensor.view(bits).numpy().reshape(-1)
    unsigned = flat.view(np.dtype(f"u{flat.itemsize}"))
    return decode(unsigned, dtype, flat.size).reshape(tuple(tensor.shape)), dtype
