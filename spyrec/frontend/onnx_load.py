"""Reads an ONNX file and its tensors without trusting them: every size, offset and path is checked
before a byte is used, and all faults are reported at once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]

from spyrec.files import hold
from spyrec.ir.errors import ImportError_
from spyrec.ir.types import DTYPES, DType

from .bind import MAX_DIM, MAX_RANK
from .stored import decode, stored_as

MAX_FILE_BYTES = 4 << 30
OPSETS = range(7, 29)  # 7 is where numpy broadcasting became the rule; 28 the newest we know

# TensorProto.DataType -> our element format. What is missing (strings, complex, ...) cannot be
# imported.
ELEMENT_TYPES: dict[int, DType] = {
    number: DTYPES[name]
    for number, name in {
        1: "f32", 2: "u8", 3: "i8", 4: "u16", 5: "i16", 6: "i32", 7: "i64", 9: "bool", 10: "f16",
        11: "f64", 12: "u32", 13: "u64", 16: "bf16", 17: "f8e4m3", 22: "i4",
    }.items()
}  # fmt: skip

# The repeated field that holds a tensor's elements when raw_data does not.
_FIELDS = {
    "f32": "float_data", "f64": "double_data", "i64": "int64_data",
    "u32": "uint64_data", "u64": "uint64_data",
}  # fmt: skip

@dataclass(frozen=True)
class LoadedModel:
    """``proto`` as read; ``origin`` is what messages call it; ``folder`` is where external data may
    lie (None: nowhere, the model was handed over in memory); ``opset`` of the standard
    operators."""

    proto: Any
    origin: str
    folder: Path | None
    opset: int


def load_model(source: str | Path | Any) -> LoadedModel:
    """The model at a path, or a ``ModelProto``. External data is checked to be there but not read
    yet.

    ImportError_ when the file is missing, too large, not an ONNX model, cut short or of an opset
    out of range.
    """
    if isinstance(source, onnx.ModelProto):
        return _checked(source, source.graph.name or "the given model", None)
    path = Path(source)
    if not path.is_file():
        raise ImportError_(f"{path} does not exist or is not a file.")
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ImportError_(
            f"{path} has {size} bytes; a model file may have at most {MAX_FILE_BYTES}; save its "
            "weights as external data."
        )
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError:
        raise ImportError_(
            f"{path} is not an ONNX model or is cut short: its {size} bytes do not parse as a "
            "protobuf message."
        ) from None
    return _checked(proto, str(path), path.resolve().parent)


def _checked(proto: Any, origin: str, folder: Path | None) -> LoadedModel:
    if not proto.HasField("graph"):
        raise ImportError_(f"{origin} is not an ONNX model: it holds no graph.")
    versions = [o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")]
    if not versions:
        raise ImportError_(
            f"{origin} imports no standard operators: its opset_import has no entry for domain ''."
        )
    if versions[0] not in OPSETS:
        raise ImportError_(
            f"{origin} uses opset {versions[0]}; opsets {OPSETS[0]} to {OPSETS[-1]} can be "
            "imported; export it again or convert it with onnx.version_converter."
        )
    if proto.functions:
        proto = _inlined(proto, origin)
    return LoadedModel(proto, origin, folder, versions[0])


def _inlined(proto: Any, origin: str) -> Any:
    """Calls of functions that the model itself defines, replaced by their bodies."""
    import onnx.inliner

    try:
        return onnx.inliner.inline_local_functions(proto)
    except (RuntimeError, ValueError, EncodeError) as error:
        raise ImportError_(
            f"{origin}: its model-local functions cannot be inlined: {error}."
        ) from None


def load_tensors(tensors: Iterable[Any], model: LoadedModel) -> dict[str, tuple[np.ndarray, DType]]:
    """Name -> (array, element type) of each initializer. Large external tensors stay on disk
    (memory-mapped).

    ImportError_ lists every tensor that is damaged and every data file that is missing or out of
    bounds.
    """
    loaded: dict[str, tuple[np.ndarray, DType]] = {}
    problems: dict[str, None] = {}  # a set that keeps its order
    for tensor in tensors:
        try:
            loaded[tensor.name] = load_tensor(tensor, model.folder)
        except ImportError_ as error:
            problems.update(dict.fromkeys(error.problems))
    if problems:
        raise ImportError_(list(problems))
    return loaded


def load_tensor(
    tensor: Any, folder: Path | None, what: str = "Initializer"
) -> tuple[np.ndarray, DType]:
    """One tensor as a host array (see ``DType.numpy``) and its element type. ImportError_ when it
    is damaged."""
    label = f"{what} '{tensor.name}'"
    dtype = ELEMENT_TYPES.get(tensor.data_type)
    if dtype is None:
        raise ImportError_(
            f"{label} has element type {type_name(tensor.data_type)}, which cannot be imported; "
            f"supported: {', '.join(d.name for d in ELEMENT_TYPES.values())}."
        )
    shape = tuple(int(d) for d in tensor.dims)
    sane = all(0 <= d <= MAX_DIM for d in shape) and math.prod(d or 1 for d in shape) < 2**59
    if not sane or len(shape) > MAX_RANK:
        raise ImportError_(
            f"{label} has dimensions {list(shape)}; expected at most {MAX_RANK} numbers from 0 to "
            f"{MAX_DIM}, and fewer than 2**59 elements."
        )
    count = math.prod(shape)
    entries = (count + 1) // 2 if dtype.name == "i4" else count
    stored = stored_as(dtype)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        flat = _external(tensor, folder, label, stored, entries)
    elif tensor.HasField("raw_data"):
        _expect_size(label, shape, dtype, entries * stored.itemsize, len(tensor.raw_data), "bytes")
        flat = np.frombuffer(tensor.raw_data, stored)
    else:
        field = getattr(tensor, _FIELDS.get(dtype.name, "int32_data"))
        _expect_size(label, shape, dtype, entries, len(field), "entries")
        flat = _from_field(np.asarray(field), stored)
    return decode(flat, dtype, count).reshape(shape), dtype


def type_name(number: int) -> str:
    """FLOAT, STRING, ...: what ONNX calls an element type."""
    names = {v: k for k, v in onnx.TensorProto.DataType.items()}
    return str(names.get(number, f"number {number}"))


def _expect_size(
    label: str, shape: tuple[int, ...], dtype: DType, want: int, got: int, unit: str
) -> None:
    if want != got:
        raise ImportError_(
            f"{label} of shape {list(shape)} and type {dtype} needs {want} {unit} but holds {got};"
            " the file is damaged or was written wrongly."
        )


def _from_field(values: np.ndarray, stored: np.dtype[Any]) -> np.ndarray:
    if stored.kind == "f" and stored.itemsize == 2:  # half floats are kept as their bits
        return values.astype("<u2").view(stored)
    return values.astype(stored)


def _external(
    tensor: Any, folder: Path | None, label: str, stored: np.dtype[Any], entries: int
) -> np.ndarray:
    info = {e.key: e.value for e in tensor.external_data}
    location = info.get("location", "")
    if folder is None:
        raise ImportError_(
            f"{label} keeps its data in the file '{location}', but the model was given in memory, "
            "without a folder; give the model's path, or load it with its external data."
        )
    path = _data_file(folder, location, label)
    hold(path)
    offset, want = _number(info, "offset", 0, label), entries * stored.itemsize
    length, size = _number(info, "length", want, label), path.stat().st_size
    if length != want:
        _expect_size(
            label, tuple(tensor.dims), ELEMENT_TYPES[tensor.data_type], want, length, "bytes"
        )
    if offset + length > size:
        raise ImportError_(
            f"{label} lies at bytes {offset} to {offset + length} of '{location}', which has only "
            f"{size} bytes; the data file is cut short or belongs to another model."
        )
    if entries == 0:
        return np.zeros(0, stored)
    return np.asarray(np.memmap(path, stored, "r", offset, (entries,)))


def _data_file(folder: Path, location: str, label: str) -> Path:
    if not location or "\0" in location:
        raise ImportError_(f"{label} keeps its data outside the model but names no file.")
    path = (folder / location).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ImportError_(
            f"{label} keeps its data in '{location}', which leads out of the model's folder; only "
            "files in that folder are read."
        )
    if not path.is_file():
        raise ImportError_(
            f"The external data file '{location}' is missing; it must lie beside the model."
        )
    return path


def _number(info: dict[str, str], key: str, default: int, label: str) -> int:
    text = info.get(key, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ImportError_(
            f"{label} has the external data {key} '{text}'; expected a non-negative number of "
            "bytes."
        )
    return int(text)
