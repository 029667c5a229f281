"""What a conversion function works with: one node with its operands, and ways to emit tensor ops
that fold by themselves when all operands are known."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx

from spyrec.ir.core import Attr, Builder, Loc, Op, Value
from spyrec.ir.interp import run_op
from spyrec.ir.ops import infer
from spyrec.ir.types import DTYPES, DType, TensorType

from .onnx_load import load_tensor

FOLD_GROWTH_BYTES = 64 << 20  # a folded constant may be this much larger than what it is made of

I64, F32, BOOL = DTYPES["i64"], DTYPES["f32"], DTYPES["bool"]


class Unsupported(Exception):
    """The operator is known but not in this form; the message completes "cannot be imported because
    ..."."""


@dataclass(frozen=True, eq=False)
class Known:
    """A tensor whose elements are known while importing. It becomes a constant op only where one is
    needed."""

    name: str
    array: np.ndarray
    dtype: DType
    loc: Loc

    @property
    def type(self) -> TensorType:
        return TensorType(tuple(int(d) for d in self.array.shape), self.dtype)


Handle = Value | Known


@dataclass(frozen=True, eq=False)
class Emitter:
    """Where ops go: the module's builder, and the constant op of each known tensor that needed
    one."""

    builder: Builder
    constants: dict[Known, Value] = field(default_factory=dict)

    def value(self, handle: Handle) -> Value:
        """The SSA value of a handle; a known tensor gets a constant op on first use."""
        if isinstance(handle, Value):
            return handle
        if handle not in self.constants:
            self.constants[handle] = self.builder.constant(
                handle.array, handle.dtype, loc=handle.loc, hint=clean(handle.name)
            )
        return self.constants[handle]

    def emit(
        self, name: str, operands: Sequence[Handle], attrs: dict[str, Attr], loc: Loc, hint: str
    ) -> tuple[Handle, ...]:
        """Append an op, or compute it now when all operands are known and the result is not out of
        proportion."""
        known = [h for h in operands if isinstance(h, Known)]
        if len(known) == len(operands):
            types = infer(name, [h.type for h in known], MappingProxyType(attrs), loc)
            if _bytes(types) <= _bytes([h.type for h in known]) + FOLD_GROWTH_BYTES:
                return _fold(name, known, types, attrs, loc, hint)
        values = [self.value(h) for h in operands]
        return self.builder.op(name, values, loc=loc, hint=hint, **attrs).results  # type: ignore[arg-type]


def _bytes(types: Sequence[TensorType]) -> int:
    return sum(t.size * t.dtype.np_dtype.itemsize for t in types)


def _fold(
    name: str,
    known: Sequence[Known],
    types: Sequence[TensorType],
    attrs: dict[str, Attr],
    loc: Loc,
    hint: str,
) -> tuple[Handle, ...]:
    operands = tuple(Value(f"x{i}", h.type) for i, h in enumerate(known))
    results = tuple(Value(f"y{i}", t) for i, t in enumerate(types))
    op = Op(name, operands, results, MappingProxyType(attrs), loc=loc)
    with np.errstate(all="ignore"):
        arrays = run_op(op, [h.array for h in known])
    return tuple(
        Known(hint, np.asarray(a), t.dtype, loc) for a, t in zip(arrays, types, strict=True)
    )


def clean(name: str) -> str:
    """A model's name without the characters that IR text would have to quote."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", name).strip("_") or "v"


@dataclass(frozen=True, eq=False)
class Node:
    """One ONNX node: operands (None: left out), attributes (bytes already decoded to str), where it
    stands.

    The getters raise Unsupported when what they are asked for is missing or of another kind.
    """

    op_type: str
    operands: tuple[Handle | None, ...]
    attrs: dict[str, Any]
    opset: int
    loc: Loc
    hint: str
    outputs: int
    folder: Path | None
    emitter: Emitter

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

    # -- results
    # ------------------------------------------------------------------------------------

    def emit(self, op: str, *operands: Handle, **attrs: Attr) -> Handle:
        """Emit an op with one result."""
        return self.emit_all(op, *operands, **attrs)[0]

    def emit_all(self, op: str, *operands: Handle, **attrs: Attr) -> tuple[Handle, ...]:
        return self.emitter.emit(op, operands, attrs, self.loc, self.hint)

    def const(self, value: Any, dtype: DType) -> Known:
        """A known tensor of this node's own, such as a scale or a zero."""
        try:
            array = np.asarray(value, dtype.np_dtype)
        except (ValueError, OverflowError):
            raise Unsupported(f"it needs the value {value} in the type {dtype}") from None
        return Known(self.hint, array, dtype, self.loc)

    def cast(self, x: Handle, to: DType) -> Handle:
        return x if x.type.dtype == to else self.emit("cast", x, to=to)

    def reshape(self, x: Handle, shape: Sequence[int]) -> Handle:
        return x if x.type.shape == tuple(shape) else self.emit("reshape", x, shape=tuple(shape))

    def transpose(self, x: Handle, perm: Sequence[int]) -> Handle:
        return (
            x
            if tuple(perm) == tuple(range(len(perm)))
            else self.emit("transpose", x, perm=tuple(perm))
        )

    def broadcast(self, x: Handle, shape: Sequence[int]) -> Handle:
        return (
            x if x.type.shape == tuple(shape) else self.emit("broadcast_to", x, shape=tuple(shape))
        )

    def scale(self, x: Handle, factor: float) -> Handle:
        return x if factor == 1.0 else self.emit("mul", x, self.const(factor, x.type.dtype))


Results = Handle | Sequence[Handle]
Converter = Callable[[Node], Results]
Table = dict[str, Converter]


def shape_of(x: Handle) -> tuple[int, ...]:
    return x.type.static_shape


def axis_of(axis: int, rank: int, *, end: bool = False) -> int:
    """A possibly negative axis as a non-negative one. Unsupported when it is outside the rank."""
    if not -rank <= axis < rank + end:
        raise Unsupported(f"its axis {axis} is outside a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


def axes_of(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes made non-negative and sorted. Unsupported when one is named twice."""
    found = tuple(sorted(axis_of(a, rank) for a in axes))
    if len(set(found)) != len(found):
        raise Unsupported(f"its axes {list(axes)} name one dimension twice")
    return found


def elements(shape: Sequence[int]) -> int:
    return math.prod(shape)
