"""What an ONNX conversion function works with: one node with its operands and attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from spyrec.ir.types import DType

from .emit import Handle, Known, Making, Results, Unsupported, axis_of, shape_of
from .onnx_load import load_tensor


@dataclass(frozen=True, eq=False)
class Node(Making):
    """One ONNX node: operands (None: left out), attributes (bytes already decoded to str), where it
    stands.

    The getters raise Unsupported when what they are asked for is missing or of another kind.
    """

    op_type: str
    operands: tuple[Handle | None, ...]
    attrs: dict[str, Any]
    opset: int
    outputs: int
    folder: Path | None

    # -- operands
    # ------------------------------------------------------------------------------------

    def arg(self, i: int) -> Handle:
        """Operand i, which must be there."""
        found = self.opt(i)
        if found is None:
            raise Unsupported(f"its input {i} is missing")
        return found

    def opt(self, i: int) -> Handle | None:
        """Operand i, or None when it is left out."""
        return self.operands[i] if i < len(self.operands) else None

    def ranked(self, i: int, low: int, high: int = 99) -> Handle:
        """Operand i, whose rank must be ``low`` to ``high``."""
        found = self.arg(i)
        if not low <= found.type.rank <= high:
            raise Unsupported(f"its input {i} has shape {list(shape_of(found))}")
        return found

    def args(self) -> list[Handle]:
        """All operands; none may be left out."""
        return [self.arg(i) for i in range(max(1, len(self.operands)))]

    def known(self, i: int, what: str) -> np.ndarray | None:
        """The elements of operand i (None when left out); it must not depend on the model's
        inputs."""
        found = self.opt(i)
        if found is None:
            return None
        if not isinstance(found, Known):
            raise Unsupported(f"its {what} is computed at run time")
        return found.array

    def known_ints(self, i: int, what: str) -> tuple[int, ...] | None:
        """Operand i as whole numbers (a scalar counts as one), or None when left out."""
        array = self.known(i, what)
        return None if array is None else tuple(int(v) for v in array.reshape(-1))

    # -- attributes
    # ------------------------------------------------------------------------------------

    def int_(self, name: str, default: int) -> int:
        return int(self._attr(name, int, default))

    def float_(self, name: str, default: float) -> float:
        return float(self._attr(name, float, default))

    def str_(self, name: str, default: str) -> str:
        return str(self._attr(name, str, default))

    def ints(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...] | None:
        found = self._attr(name, list, None)
        if found is None:
            return None if default is None else tuple(default)
        if not all(isinstance(v, int) for v in found):
            raise Unsupported(f"its attribute '{name}' is not a list of whole numbers")
        return tuple(found)

    def _attr(self, name: str, kind: type[Any], default: Any) -> Any:
        value = self.attrs.get(name, default)
        if name in self.attrs and not isinstance(value, kind):
            raise Unsupported(f"its attribute '{name}' is not of type {kind.__name__}")
        return value

    def tensor(self, name: str) -> tuple[np.ndarray, DType]:
        """The elements and the element type of a tensor attribute, which must be there."""
        self.need(name)
        return load_tensor(self._attr(name, onnx.TensorProto, None), self.folder, "Tensor")

    def need(self, name: str) -> Any:
        """An attribute that has no default."""
        if name not in self.attrs:
            raise Unsupported(f"its attribute '{name}' is missing")
        return self.attrs[name]

    def axis(self, name: str, default: int, rank: int, *, end: bool = False) -> int:
        """An axis attribute as a non-negative number below ``rank`` (``end``: may be equal to
        it)."""
        return axis_of(self.int_(name, default), rank, end=end)


Converter = Callable[[Node], Results]
Table = dict[str, Converter]
