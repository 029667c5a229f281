"""Elementwise ops as a micro-program of the vector unit: fp32 registers, integers held exactly up
to 2^24."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import copysign
from typing import Literal

import numpy as np

from spyrec.ir.core import Op, Value
from spyrec.ir.errors import PassError
from spyrec.ir.types import DType
from spyrec.sim.isa import MicroOp, MicroProgram

SAME_NAME = (
    "neg", "abs", "sqrt", "rsqrt", "exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "floor",
    "ceil", "round", "sign", "isnan", "isinf", "not", "add", "sub", "mul", "div", "max", "min",
    "mod", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "where",
)  # fmt: skip
STEP_OF = {**{name: name for name in SAME_NAME}, "reciprocal": "recip"}
COPIES = frozenset(("identity", "broadcast_to", "reshape"))

Ref = tuple[Literal["in", "const", "step"], int]
"""An input, a constant or an earlier step of the program being built."""


class Micro:
    """Builds one program. ``inputs`` are the tensors the instruction reads; ``constants`` the
    scalars known at compile time. Integer sources are converted to fp32 on entry, an integer
    result on exit."""

    def __init__(
        self, inputs: Sequence[tuple[Value, DType]], constants: Mapping[Value, float]
    ) -> None:
        self._n_inputs = len(inputs)
        self._pool: list[float] = []
        self._steps: list[tuple[str, tuple[Ref, ...]]] = []
        self._value: dict[Value, Ref] = {}
        for i, (v, kind) in enumerate(inputs):
            self._value[v] = ("in", i)
            if kind.kind == "int":
                self._value[v] = self._step("i2f", ("in", i))
        for v, number in constants.items():
            self._value[v] = self._constant(number)

    def _constant(self, number: float) -> Ref:
        value = float(np.float32(number))
        if value == 0.0 and copysign(1.0, value) < 0:  # programs that compare equal are one
            return self._step("neg", self._constant(0.0))
        if value not in self._pool:
            self._pool.append(value)
        return ("const", self._pool.index(value))

    def _step(self, name: str, *args: Ref) -> Ref:
        self._steps.append((name, args))
        return ("step", len(self._steps) - 1)

    def add(self, op: Op) -> None:
        """Translate one op; PassError if the vector unit has no such step."""
        args = [self._value[v] for v in op.operands]
        into = op.result.type.dtype
        if op.name in COPIES:
            made = args[0]
        elif op.name == "cast":
            made = self._cast(args[0], op.operands[0].type.dtype, into)
        elif op.name == "div" and into.kind == "int":
            made = self._truncate(self._step("div", *args))
        elif op.name in STEP_OF:
            made = self._step(STEP_OF[op.name], *args)
        else:
            raise PassError(f"codegen: the vector unit has no step for {op.name} (from {op.loc})")
        self._value[op.result] = made

    def alias(self, v: Value, known: Value) -> None:
        """``v`` is what ``known`` is."""
        self._value[v] = self._value[known]

    def multiply(self, op: Op) -> None:
        """The product of the op's first two operands."""
        a, b = op.operands[:2]
        self._value[op.result] = self._step("mul", self._value[a], self._value[b])

    def _cast(self, x: Ref, source: DType, into: DType) -> Ref:
        if into.kind == "bool" and source.kind != "bool":
            return self._step("ne", x, self._constant(0.0))
        if into.kind == "int" and source.kind == "float":
            return self._truncate(x)
        return x

    def _truncate(self, x: Ref) -> Ref:
        """Toward zero: sign(x) * floor(|x|)."""
        sign = self._step("sign", x)
        return self._step("mul", sign, self._step("floor", self._step("abs", x)))

    def finish(self, result: Value, into: DType) -> MicroProgram:
        """The program whose last step (or, without steps, only input) is ``result``."""
        last = self._value[result]
        if into.kind == "int":
            last = self._step("f2i", last)
        only_input = last == ("in", 0) and not self._steps
        if not only_input and last != ("step", len(self._steps) - 1):
            self._step("copy", last)
        first = {"in": 0, "const": self._n_inputs, "step": self._n_inputs + len(self._pool)}
        steps = tuple(
            MicroOp(name, tuple(first[kind] + i for kind, i in args)) for name, args in self._steps
        )
        return MicroProgram(self._n_inputs, tuple(self._pool), steps)
