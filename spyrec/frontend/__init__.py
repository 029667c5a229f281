"""Frontends: what turns a user's model into a tensor-stage module."""

from .onnx_import import import_onnx
from .torch_door import import_torch, is_torch

__all__ = ["import_onnx", "import_torch", "is_torch"]
