"""Reads a ``.pt2`` file (an exported PyTorch program) without torch: an uncompressed zip of JSON
and raw tensors. Members that torch would unpickle are never opened."""

from __future__ import annotations

import errno
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spyrec.ir.errors import ImportError_
from spyrec.ir.types import DType

from .stored import Array, decode, stored_as
from .torch_graph import ELEMENTS, ExportGraph, read_graph
from .torch_site import DTYPE_OF, element_dtype

MAX_FILE_BYTES = 64 << 30
MAX_JSON_BYTES = 512 << 20
MAX_TENSOR_BYTES = 16 << 30
MAX_REPEATED_BYTES = 64 << 20  # of a tensor that is larger than its storage: strides of zero
MAX_RANK = 32


@dataclass(frozen=True)
class Stored:
    """A tensor of an archive: ``member`` holds its storage, of which it is a strided part."""

    path: Path
    member: str
    element: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def __call__(self) -> tuple[Array, DType]:
        """Its elements in the order of its shape, as host numbers, and their format."""
        dtype = element_dtype(self.element)
        raw = np.frombuffer(_bytes(self.path, self.member), np.uint8)
        size = stored_as(dtype).itemsize
        data = raw[: raw.size // size * size].view(stored_as(dtype))
        steps = tuple(
            s * size if n > 1 else 0 for n, s in zip(self.shape, self.strides, strict=True)
        )
        view = np.lib.stride_tricks.as_strided(
            data[self.offset :], self.shape, steps, writeable=False
        )
        return decode(np.ascontiguousarray(view), dtype, view.size).reshape(self.shape), dtype


@dataclass(frozen=True)
class Archive:
    """``weights``: by the names of parameters, buffers and constants; calling one reads it."""

    graph: ExportGraph
    weights: Mapping[str, Stored]


def read_pt2(path: str | Path) -> Archive:
    """The graph and the tensors of a ``.pt2`` file; tensors stay in the file until they are asked
    for. ImportError_ with everything that is wrong with it, OSError when it cannot be opened."""
    path = Path(path)
    if not path.is_file():
        raise ImportError_(f"{path} does not exist or is not a file.")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ImportError_(f"{path} is larger than {MAX_FILE_BYTES} bytes, the most that is read.")
    path.open("rb").close()  # a file that may not be read is not a damaged one
    try:
        with zipfile.ZipFile(path) as archive:
            listed = archive.infolist()
    except DAMAGE as error:
        raise _damaged(path, error) from None
    return _read(listed, path)


DAMAGE = (zipfile.BadZipFile, EOFError, OSError, RuntimeError, ValueError, IndexError, struct.error,
          zlib.error)  # fmt: skip
"""What zipfile raises on damaged files: RuntimeError for a member that is encrypted, or
(NotImplementedError, which is one) of a compression or version it does not know; EOFError and
zlib.error for data that ends early or cannot be unpacked; ValueError, IndexError and struct.error
for damaged directories; OSError for one that points before the file's beginning."""


def _damaged(path: Path, error: BaseException) -> BaseException:
    """The error to raise in its place; an OSError that is the system's, and no seek to where
    nothing can be, is itself: such a file may be sound."""
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
        return error
    what = str(error) or "it ends too early"
    return ImportError_(
        f"{path} is not a .pt2 file or is cut short: {what}; write one with torch.export.save."
    )


def _bytes(path: Path, member: str) -> bytes:
    """What a member holds; its size has been checked."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(member)
    except (*DAMAGE, KeyError) as error:
        raise _damaged(path, error) from None


def _fault(info: zipfile.ZipInfo, path: Path) -> str:
    """What keeps a member from being read as it is, "" when nothing does."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        return "is compressed, which torch does not do"
    if info.file_size != info.compress_size or info.file_size > path.stat().st_size:
        return f"claims {info.file_size} bytes, more than the file has"
    return ""


def _read(listed: Sequence[zipfile.ZipInfo], path: Path) -> Archive:
    members: dict[str, zipfile.ZipInfo] = {}
    for info in listed:
        if info.filename in members:
            raise ImportError_(f"{path} holds two members called {info.filename}.")
        members[info.filename] = info
    models = [n for n in members if n.endswith("models/model.json")]
    if len(models) != 1:
        raise ImportError_(
            f"{path} holds {len(models)} models called models/model.json where one is expected; "
            "write it with torch.export.save of torch 2.9 or later."
        )
    root = models[0].removesuffix("models/model.json")
    order = members.get(root + "byteorder")
    if order is not None and order.file_size < 16 and _bytes(path, order.filename) != b"little":
        raise ImportError_(f"{path} was written on a machine of the other byte order.")
    graph = read_graph(_json(members[models[0]], path), str(path))
    weights: dict[str, Stored] = {}
    problems: list[str] = []
    for folder, config in (("weights", "model_weights"), ("constants", "model_constants")):
        config_file = members.get(f"{root}data/{folder}/{config}_config.json")
        table = _json(config_file, path).get("config") if config_file else {}
        if not isinstance(table, dict):
            problems.append(f"{path}: the configuration of its {folder} lists no tensors.")
            continue
        for name, payload in table.items():
            where = f"{root}data/{folder}/"
            found = _stored(path, members, where, name, payload, problems)
            if found is not None:
                weights[name] = found
    if problems:
        raise ImportError_(problems)
    return Archive(graph, weights)


def _json(info: zipfile.ZipInfo, path: Path) -> dict[str, Any]:
    if fault := _fault(info, path):
        raise ImportError_(f"{path}: {info.filename} {fault}.")
    if info.file_size > MAX_JSON_BYTES:
        raise ImportError_(f"{path}: {info.filename} has more than {MAX_JSON_BYTES} bytes.")
    try:
        data = json.loads(_bytes(path, info.filename))
    except (ValueError, RecursionError) as error:
        raise ImportError_(f"{path}: {info.filename} is not valid JSON: {error}.") from None
    if not isinstance(data, dict):
        raise ImportError_(f"{path}: {info.filename} holds no JSON object.")
    return data


def _stored(
    path: Path,
    members: Mapping[str, zipfile.ZipInfo],
    where: str,
    name: str,
    payload: Any,
    problems: list[str],
) -> Stored | None:
    """A tensor as its entry describes it, or None: it is an object that only unpickling would
    give, or a problem."""
    try:
        if payload["use_pickle"]:
            return None
        meta, member = payload["tensor_meta"], where + payload["path_name"]
        element = ELEMENTS.get(meta["dtype"], "unknown")
        shape, strides = (tuple(_whole(s) for s in meta[k]) for k in ("sizes", "strides"))
        offset = _whole(meta["storage_offset"])
    except (KeyError, TypeError, ValueError):
        problems.append(f"{path}: the entry of the tensor '{name}' is malformed.")
        return None
    if element not in DTYPE_OF:
        problems.append(
            f"{path}: the tensor '{name}' has element type {element}, which cannot be imported."
        )
        return None
    size = stored_as(element_dtype(element)).itemsize
    info, bytes_ = members.get(member), math.prod(shape) * size
    if len(shape) != len(strides) or len(shape) > MAX_RANK or bytes_ > MAX_TENSOR_BYTES:
        problems.append(f"{path}: the tensor '{name}' has an impossible shape, {list(shape)}.")
        return None
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n > 1)
    if info is None:
        problems.append(f"{path}: the tensor '{name}' is not in the archive ({member}).")
    elif fault := _fault(info, path):
        problems.append(f"{path}: the tensor '{name}' {fault}.")
    elif bytes_ and (last + 1) * size > info.file_size:
        problems.append(
            f"{path}: the tensor '{name}' needs {(last + 1) * size} bytes, {member} has "
            f"{info.file_size}."
        )
    elif bytes_ > info.file_size + MAX_REPEATED_BYTES:
        problems.append(f"{path}: the tensor '{name}' makes {bytes_} bytes of {info.file_size}.")
    else:
        return Stored(path, member, element, shape, strides, offset)
    return None


def _whole(size: Any) -> int:
    number = size["as_int"]
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(number)
    return number
