"""Frontends: what turns a user's model into a tensor-stage module."""

from .onnx_import import import_onnx

__all__ = ["import_onnx"]
