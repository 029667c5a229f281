"""What decomposition cases are drawn with: random choices, and modules of one or a few ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from spyrec.ir.core import Block, Builder, Loc, Module, Value
from spyrec.ir.types import TensorType, tensor

Array = np.ndarray[Any, Any]



@dataclass(frozen=True)
class Const:
    """An operand that the rule may know."""

    array: Array


class Draw:
    """Random choices of one example: hypothesis draws sizes, a seed drives the numbers."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))

    def int(self, lo: int, hi: int) -> int:
        return self.data.draw(st.integers(lo, hi))

    def ints(self, lo: int, hi: int, n: int) -> tuple[int, ...]:
        return tuple(self.int(lo, hi) for _ in range(n))

    def pick(self, *choices: Any) -> Any:
        return self.data.draw(st.sampled_from(choices))

    def shape(self, lo: int = 1, hi: int = 4) -> tuple[int, ...]:
        return self.ints(1, 4, self.int(lo, hi))

    def array(self, *shape: int) -> Array:
        return self.rng.normal(0, 2, shape)

    def positive(self, *shape: int) -> Array:
        return self.rng.uniform(0.2, 3, shape)

    def whole(self, lo: int, hi: int, *shape: int) -> Array:
        return self.rng.integers(lo, hi, shape, dtype=np.int64)

    def maybe_const(self, array: Array) -> Array | Const:
        return Const(array) if self.data.draw(st.booleans()) else array


@dataclass(frozen=True)
class Case:
    module: Module
    inputs: dict[str, Array]


def type_of(array: Array) -> TensorType:
    names = {"float64": "f64", "float32": "f32", "float16": "f16", "int64": "i64", "int32": "i32",
             "int8": "i8", "uint8": "u8", "bool": "bool"}  # fmt: skip
    return tensor(array.shape, names[array.dtype.name])


def case(name: str, *operands: Array | Const, regions: Any = (), **attrs: Any) -> Case:
    """A module of one op; each plain operand is an input."""

    def make(b: Builder, v: list[Value]) -> Any:
        return b.op(name, v, loc=Loc(("node",)), regions=regions, **attrs).results

    return graph(make, *operands)


def graph(make: Callable[[Builder, list[Value]], Any], *operands: Array | Const) -> Case:
    builder, args, inputs, values = Builder(), [], {}, []
    for i, operand in enumerate(operands):
        if isinstance(operand, Const):
            kind = type_of(operand.array).dtype
            values.append(builder.constant(operand.array, kind))
            continue
        arg = Value(builder.fresh(f"in{i}"), type_of(operand))
        args.append(arg)
        values.append(arg)
        inputs[arg.name] = operand
    results = tuple(make(builder, values))
    names = tuple(f"out{i}" for i in range(len(results)))
    module = Module("case", Block(tuple(args), tuple(builder.ops), results), names)
    return Case(module, inputs)


def of_padding(d: Draw, name: str) -> Case:
    """A window op both of whose taps along one dimension of one element lie beside it."""
    x = d.array(1, 2, 1, d.int(2, 4))
    if d.pick(True, False):
        x = np.ascontiguousarray(np.swapaxes(x, 2, 3))
    high = int(x.shape[2] == 1)
    where = {"pads": (high, 1 - high) * 2, "dilations": (2, 2), "strides": (1, 1)}
    kernel = (1 + high, 2 - high)
    if name == "conv":
        return case(name, x, d.maybe_const(d.array(3, 2, *kernel)), **where)
    return case(name, x, kernel=kernel, **where)
