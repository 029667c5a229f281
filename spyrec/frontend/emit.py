"""What every frontend works with while it converts: tensors that are known or made by ops, and ways
to emit tensor ops that fold by themselves when all operands are known."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from spyrec.ir.core import Attr, Builder, Loc, Op, Value
from spyrec.ir.interp import run_op
from spyrec.ir.ops import infer
from spyrec.ir.types import DTYPES, DType, TensorType

REARRANGING = ("transpose", "reshape", "cast")
FOLD_GROWTH_BYTES = 64 << 20  # a folded constant may be this much larger than what it is made of

I64, F32, F64, BOOL = DTYPES["i64"], DTYPES["f32"], DTYPES["f64"], DTYPES["bool"]


class Unsupported(Exception):
    """The operator is known but not in this form; the message completes "cannot be imported because
    ..."."""


@dataclass(frozen=True, eq=False)
class Known:
    """A tensor whose elements are known while importing. It becomes a constant op only where one is
    needed. ``absent``: a weight of which only the type is known; ``array`` has its shape and no
    meaning, and where it is needed it becomes an input."""

    name: str
    array: np.ndarray
    dtype: DType
    loc: Loc
    absent: bool = False

    @property
    def type(self) -> TensorType:
        return TensorType(tuple(int(d) for d in self.array.shape), self.dtype)


Handle = Value | Known


@dataclass(frozen=True, eq=False)
class Emitter:
    """Where ops go: the module's builder, the constant op of each known tensor that needed one, and
    the input of each absent one."""

    builder: Builder
    constants: dict[Known, Value] = field(default_factory=dict)
    weights: dict[Known, Value] = field(default_factory=dict)

    def value(self, handle: Handle) -> Value:
        """The SSA value of a handle; a known tensor gets a constant op on first use."""
        if isinstance(handle, Value):
            return handle
        if handle.absent:
            if handle not in self.weights:
                self.weights[handle] = self.builder.value(handle.name, handle.type)
            return self.weights[handle]
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
        if any(h.absent for h in known):
            if len(operands) == 1 and name in REARRANGING:
                return (self._rearranged(name, known[0], attrs, loc),)
        elif len(known) == len(operands):
            types = infer(name, [h.type for h in known], MappingProxyType(attrs), loc)
            if _bytes(types) <= _bytes([h.type for h in known]) + FOLD_GROWTH_BYTES:
                return _fold(name, known, types, attrs, loc, hint)
        values = [self.value(h) for h in operands]
        return self.builder.op(name, values, loc=loc, hint=hint, **attrs).results  # type: ignore[arg-type]


    def source(self, x: Handle, name: str) -> Value | None:
        """What the op called ``name`` made ``x`` of; None when another one did."""
        made = next((op for op in reversed(self.builder.ops) if x in op.results), None)
        return made.operands[0] if made is not None and made.name == name else None

    def _rearranged(self, name: str, x: Known, attrs: dict[str, Attr], loc: Loc) -> Known:
        """An absent weight in the shape or type that a reader wants it in: whoever provides it
        provides it so."""
        (type_,) = infer(name, [x.type], MappingProxyType(attrs), loc)
        return replace(x, array=unset(type_), dtype=type_.dtype)


def unset(type_: TensorType) -> np.ndarray:
    """An array of a shape that takes no room, for a weight that is absent."""
    return np.broadcast_to(np.zeros((), type_.dtype.np_dtype), type_.static_shape)


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
class Making:
    """A place in the user's model at which ops are made: where it stands, what to call them."""

    loc: Loc
    hint: str
    emitter: Emitter

    def emit(self, op: str, *operands: Handle, **attrs: Attr) -> Handle:
        """Emit an op with one result."""
        return self.emit_all(op, *operands, **attrs)[0]

    def emit_all(self, op: str, *operands: Handle, **attrs: Attr) -> tuple[Handle, ...]:
        return self.emitter.emit(op, operands, attrs, self.loc, self.hint)

    def const(self, value: Any, dtype: DType) -> Known:
        """A known tensor of this place's own, such as a scale or a zero."""
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


def shape_of(x: Handle) -> tuple[int, ...]:
    return x.type.static_shape


def matmul(at: Making, a: Handle, b: Handle) -> Handle:
    """numpy's matmul for ranks of one and more: vectors become a row or a column and lose it
    again."""
    sa, sb = shape_of(a), shape_of(b)
    if not sa or not sb:
        raise Unsupported("an operand is a scalar")
    product = at.emit(
        "matmul",
        at.reshape(a, (1, *sa)) if len(sa) == 1 else a,
        at.reshape(b, (*sb, 1)) if len(sb) == 1 else b,
    )
    shape = list(shape_of(product))
    if len(sb) == 1:
        del shape[-1]
    if len(sa) == 1:
        del shape[-2 if len(sb) > 1 else -1]
    return at.reshape(product, shape)


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
