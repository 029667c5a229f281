"""What a rewrite rule may ask and do: facts about values, and an emitter that folds as it goes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spyrec.ir.core import Builder, Loc, Module, Op, Value, walk
from spyrec.ir.interp import run_op
from spyrec.ir.rounding import round_to
from spyrec.ir.types import DTYPES, DType

Array = np.ndarray[Any, Any]

FOLD_LIMIT = 1 << 20
"""Elements of a folded result that are always fine; a larger one must not outgrow its operands."""


@dataclass
class Facts:
    """What is known while a module is rebuilt: constants and producers of the values seen so far,
    how often each value of the module before is read, and which of them are rounded to whole
    numbers."""

    constants: dict[Value, Array] = field(default_factory=dict)
    producers: dict[Value, Op] = field(default_factory=dict)
    readers: Mapping[Value, int] = field(default_factory=dict)
    rounded: Collection[Value] = ()

    def note(self, op: Op) -> None:
        """Learn about an op that stands in the new module."""
        if op.name == "constant":
            value = op.attrs["value"]
            assert isinstance(value, np.ndarray)
            self.constants[op.result] = value
        for result in op.results:
            self.producers[result] = op


def facts_of(module: Module) -> Facts:
    """Fresh facts with the reader counts of ``module`` (its own results count as a read)."""
    counts = Counter(v for op in walk(module.body) for v in op.operands)
    counts.update(module.body.results)
    rounded = {op.operands[0] for op in walk(module.body) if op.name == "round"}
    return Facts(readers=counts, rounded=rounded)


def may_fold(op: Op, limit: int = FOLD_LIMIT) -> bool:
    """Whether the result is small enough to be kept as a constant.

    Up to ``limit`` elements, or as many bytes' worth of elements as its operands already hold:
    re-arranging a large weight is fine, broadcasting a scalar to a gigabyte is not.
    """
    grown = sum(r.type.size for r in op.results)
    return grown <= max(limit, sum(v.type.size for v in op.operands))


class Emit:
    """Adds the ops of one rule to a builder: all get ``loc``, and what is constant is folded. Where
    a value is expected as the second operand of arithmetic, a number will do."""

    def __init__(self, builder: Builder, facts: Facts, loc: Loc) -> None:
        self.builder = builder
        self.facts = facts
        self.loc = loc

    # --- asking -----------------------------------------------------------------------------

    def known(self, value: Value) -> Array | None:
        """The array a value is known to hold, or None."""
        return self.facts.constants.get(value)

    def splat(self, value: Value) -> float | int | None:
        """The one number a constant is filled with, or None."""
        array = self.known(value)
        if array is None or array.size == 0:
            return None
        first = array.reshape(-1)[0]
        same = array.size == 1 or bool(np.all(array == first))
        return first.item() if same else None

    def made_by(self, value: Value, *names: str) -> Op | None:
        """The op that makes ``value`` if it has one of these names."""
        op = self.facts.producers.get(value)
        return op if op is not None and op.name in names else None

    def read_once(self, value: Value) -> bool:
        """Whether one op, or one output, reads a value of the module before, once."""
        return self.facts.readers.get(value, 0) == 1

    def rounded(self, value: Value) -> bool:
        """Is a value of the module before rounded to whole numbers?"""
        return value in self.facts.rounded

    # --- doing ------------------------------------------------------------------------------

    def absorb(self, *ops: Op) -> None:
        """What is emitted from here on carries out these ops too: their model nodes come first."""
        self.loc = Loc.merge([*(op.loc for op in ops), self.loc])

    def ops(self, name: str, *operands: Value, **attrs: Any) -> tuple[Value, ...]:
        """Emit an op; its results. Operands that are all constant make it a constant."""
        made = self.builder.op(name, operands, loc=self.loc, **attrs)
        arrays = [self.known(v) for v in operands]
        if operands and all(a is not None for a in arrays) and may_fold(made):
            self.builder.ops.pop()
            values = run_op(made, [a for a in arrays if a is not None])
            return tuple(
                self.constant(np.asarray(v), r.type.dtype)
                for v, r in zip(values, made.results, strict=True)
            )
        self.facts.note(made)
        return made.results

    def op(self, name: str, *operands: Value, **attrs: Any) -> Value:
        """``ops`` for an op with one result."""
        (result,) = self.ops(name, *operands, **attrs)
        return result

    def constant(self, array: Array, dtype: DType) -> Value:
        """A constant; the values are rounded to ``dtype`` when numpy has no such format."""
        array = np.ascontiguousarray(array).reshape(array.shape).astype(dtype.np_dtype, copy=False)
        if dtype.kind == "float" and dtype.name not in _NUMPY_FLOATS:
            array = np.asarray(round_to(array, dtype))
        value = self.builder.constant(array, dtype, loc=self.loc)
        self.facts.note(self.builder.ops[-1])
        return value

    def scalar(self, number: float, like: Value) -> Value:
        """A rank-0 constant with the element type of ``like``."""
        return self.constant(np.array(number), like.type.dtype)

    def _operand(self, y: Value | float, like: Value) -> Value:
        return y if isinstance(y, Value) else self.scalar(y, like)

    def add(self, x: Value, y: Value | float) -> Value:
        """``x + y``; shapes broadcast as numpy does, here and below."""
        return self.op("add", x, self._operand(y, x))

    def sub(self, x: Value, y: Value | float) -> Value:
        """``x - y``."""
        return self.op("sub", x, self._operand(y, x))

    def mul(self, x: Value, y: Value | float) -> Value:
        """``x * y``."""
        return self.op("mul", x, self._operand(y, x))

    def div(self, x: Value, y: Value | float) -> Value:
        """``x / y``."""
        return self.op("div", x, self._operand(y, x))

    def max(self, x: Value, y: Value | float) -> Value:
        """The larger of both, element by element."""
        return self.op("max", x, self._operand(y, x))

    def min(self, x: Value, y: Value | float) -> Value:
        """The smaller of both, element by element."""
        return self.op("min", x, self._operand(y, x))

    def test(self, name: str, x: Value, y: Value | float) -> Value:
        """A comparison with a number or a value: ``name`` is eq, ne, lt, le, gt or ge."""
        return self.op(name, x, self._operand(y, x))

    def where(self, cond: Value, x: Value | float, y: Value | float) -> Value:
        """``x`` where ``cond`` is true, else ``y``. At least one of these is a value, and gives the
        other its element type."""
        like = x if isinstance(x, Value) else y
        assert isinstance(like, Value)
        return self.op("where", cond, self._operand(x, like), self._operand(y, like))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """``x`` itself when it has the shape already."""
        if x.type.shape == tuple(shape):
            return x
        return self.op("reshape", x, shape=tuple(int(d) for d in shape))

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """``x`` itself when ``perm`` changes nothing."""
        if tuple(perm) == tuple(range(x.type.rank)):
            return x
        return self.op("transpose", x, perm=tuple(int(p) for p in perm))

    def broadcast(self, x: Value, shape: Sequence[int]) -> Value:
        """``x`` itself when it has the shape already."""
        if x.type.shape == tuple(shape):
            return x
        return self.op("broadcast_to", x, shape=tuple(int(d) for d in shape))

    def cast(self, x: Value, to: DType | str) -> Value:
        """``x`` itself when that is its element type."""
        to = DTYPES[to] if isinstance(to, str) else to
        return x if x.type.dtype == to else self.op("cast", x, to=to)

    def reduce(self, name: str, x: Value, axes: Sequence[int]) -> Value:
        """A reduction that keeps its dimensions; ``name`` without the ``reduce_``."""
        return self.op(f"reduce_{name}", x, axes=tuple(sorted(axes)), keepdims=True)

    def mean(self, x: Value, axes: Sequence[int]) -> Value:
        """The mean over ``axes``, kept as size 1: a sum times a constant."""
        count = math.prod(x.type.static_shape[a] for a in axes)
        return self.mul(self.reduce("sum", x, axes), 1.0 / max(count, 1))

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        """Parts one after the other along an axis; a single part is itself."""
        return parts[0] if len(parts) == 1 else self.op("concat", *parts, axis=axis)

    def slice_axis(self, x: Value, axis: int, start: int, size: int, step: int = 1) -> Value:
        """``size`` elements along one axis, first ``start``; ``x`` itself when that is all."""
        shape = x.type.static_shape
        if start == 0 and size == shape[axis] and (step == 1 or size == 1):
            return x
        starts = tuple(start if d == axis else 0 for d in range(len(shape)))
        sizes = tuple(size if d == axis else n for d, n in enumerate(shape))
        steps = tuple(step if d == axis else 1 for d in range(len(shape)))
        return self.op("slice", x, starts=starts, sizes=sizes, steps=steps)

    def pad(
        self,
        x: Value,
        lo: Sequence[int],
        hi: Sequence[int],
        value: float = 0.0,
        interior: Sequence[int] = (),
    ) -> Value:
        """Constant padding; ``x`` itself when there is none."""
        if not any(lo) and not any(hi) and not any(interior):
            return x
        return self.op(
            "pad", x, lo=tuple(lo), hi=tuple(hi), mode="constant", value=value,
            interior=tuple(interior),
        )  # fmt: skip


_NUMPY_FLOATS = ("f64", "f32", "f16")
