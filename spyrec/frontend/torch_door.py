"""PyTorch models in any form that is understood: a ``.pt2`` file, an ExportedProgram, a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from spyrec.ir.core import Module

from .bind import ConstValue
from .torch_import import import_exported
from .torch_live import exported, is_exported, is_module, read_exported
from .torch_pt2 import read_pt2


def is_torch(model: Any) -> bool:
    """Whether it is something of torch that ``import_torch`` takes."""
    return is_exported(model) or is_module(model)


def import_torch(
    model: Any,
    bind: Mapping[str, int] = MappingProxyType({}),
    const: Mapping[str, ConstValue] = MappingProxyType({}),
    example: Sequence[Any] | None = None,
) -> Module:
    """The tensor-stage module of a ``.pt2`` file (a path; torch is not needed), an ExportedProgram,
    or a torch.nn.Module with ``example`` inputs. ImportError_ lists everything that stands in the
    way."""
    if isinstance(model, str | Path):
        archive = read_pt2(model)
        return import_exported(archive.graph, archive.weights, Path(model).stem, bind, const)
    if is_module(model):
        model = exported(model, example)
    graph, weights = read_exported(model)
    return import_exported(graph, weights, "model", bind, const)
