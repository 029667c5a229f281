"""Elementwise ops as a micro-program of the vector unit: fp32 registers, integers held exactly up to 2^24."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from spyrec.ir.core import Op, Value
from spyrec.ir.errors import PassError
from spyrec.ir.types import DType
from spyrec.sim.isa import MicroOp, MicroProgram

DIRECT = {
    "neg": "neg", "abs": "abs", "reciprocal": "recip", "sqrt": "sqrt", "rsqrt": "rsqrt", "exp": "exp", "log": "log",
    "tanh": "tanh", "sigmoid": "sigmoid", "sin": "sin", "cos": "cos", "floor": "floor", "ceil": "ceil", "round": "round",
    "sign": "sign", "isnan": "isnan", "isinf": "isinf", "not": "not", "add": "add", "sub": "sub", "mul": "mul", "div": "div",
    "max": "max", "min": "min", "mod": "mod", "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
    "and": "and", "or": "or", "xor": "xor", "where": "where",
}
COPIES = frozenset(("identity", "broadcast_to"))


class Micro:
    """Builds one program. ``inputs`` are the tensors the instruction reads; ``constants`` the scalars known at
    compile time. Integer sources are converted to fp32 on entry, an integer result on exit."""

    def __init__(self, inputs: Sequence[tuple[Value, DType]], constants: Mapping[Value, float]) -> None:
        self.n_inputs = len(inputs)
        self.pool: list[float] = []
        self.pending: list[tuple[str, tuple[object, ...]]] = []
        self.value: dict[Value, object] = {}
        for i, (v, kind) in enumerate(inputs):
            self.value[v] = ("in", i)
            if kind.kind == "int":
                self.value[v] = self._step("i2f", ("in", i))
        for v, number in constants.items():
            self.value[v] = self._constant(number)

    def _constant(self, number: float) -> object:
        bits = np.float32(number).tobytes()
        for i, known in enumerate(self.pool):
            if np.float32(known).tobytes() == bits:
                return ("const", i)
        self.pool.append(float(np.float32(number)))
        return ("const", len(self.pool) - 1)

    def _step(self, name: str, *args: object) -> object:
        self.pending.append((name, args))
        return ("step", len(self.pending) - 1)

    def add(self, op: Op) -> None:
        """Translate one op; PassError if the vector unit has no such step."""
        args = [self.value[v] for v in op.operands]
        into = op.result.type.dtype
        if op.name in COPIES:
            made = args[0]
        elif op.name == "cast":
            made = self._cast(args[0], op.operands[0].type.dtype, into)
        elif op.name == "div" and into.kind == "int":
            made = self._truncate(self._step("div", *args))
        elif op.name in DIRECT:
            made = self._step(DIRECT[op.name], *args)
        else:
            raise PassError(f"codegen: the vector unit has no step for {op.name} (from {op.loc})")
        self.value[op.result] = made

    def _cast(self, x: object, source: DType, into: DType) -> object:
        if into.kind == "bool" and source.kind != "bool":
            return self._step("ne", x, self._constant(0.0))
        if into.kind == "int" and source.kind == "float":
            return self._truncate(x)
        return x

    def _truncate(self, x: object) -> object:
        """Toward zero: sign(x) * floor(|x|)."""
        return self._step("mul", self._step("sign", x), self._step("floor", self._step("abs", x)))

    def finish(self, result: Value, into: DType) -> MicroProgram:
        """The program whose last step (or only input) is ``result``."""
        last = self.value[result]
        if into.kind == "int":
            last = self._step("f2i", last)
        if last not in (("in", 0),) and last != ("step", len(self.pending) - 1):
            last = self._step("copy", last)
        base = {"in": 0, "const": self.n_inputs, "step": self.n_inputs + len(self.pool)}

        def number(ref: object) -> int:
            kind, i = ref  # type: ignore[misc]
            return base[kind] + i  # type: ignore[no-any-return]

        steps = tuple(MicroOp(name, tuple(number(a) for a in args)) for name, args in self.pending)
        if last == ("in", 0):
            steps = () if not steps else (*steps, MicroOp("copy", (0,)))
        return MicroProgram(self.n_inputs, tuple(self.pool), steps)
