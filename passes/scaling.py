"""The walk behind range-scale: carries powers of two through a module of primitive ops.

Each new value has an exponent e: it holds the old value times 2^-e.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spyrec.ir.core import Attr, Block, Builder, Module, Op, Value, names, remap, uses

from .dce import remove_dead
from .emit import Emit, Facts

SAME = frozenset((
    "neg", "abs", "identity", "reshape", "transpose", "broadcast_to", "slice", "reduce_max",
    "reduce_min", "max_pool", "pad", "gather",
))  # fmt: skip
SUMS = frozenset(("reduce_sum", "sum_pool"))
PRODUCTS = frozenset(("mul", "matmul", "conv"))
ALIGNED = frozenset((
    "add", "sub", "max", "min", "concat", "where", "eq", "ne", "lt", "le", "gt", "ge",
))  # fmt: skip
POWERS = {"sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}
BLIND = frozenset(("sign", "isnan", "isinf"))  # the scale does not show in the result
SATURATING = frozenset(("exp", "tanh", "sigmoid", "erf"))

LARGE_AT = 4.0  # log2 of where the largest element of a tensor that was too large is put
SMALL_ABOVE = 10.0  # and, above the least magnitude, of one that was too small


@dataclass(frozen=True)
class Range:
    """log2 of magnitudes: a tensor's largest element may lie in ``low``..``high``, one number not
    below ``least``; 2^``top`` is a number of the format."""

    least: float
    low: float
    high: float
    top: int

    @property
    def step(self) -> int:
        """2^step and 2^-step are numbers of the format."""
        return self.top - 2


@dataclass(frozen=True)
class Scaled:
    """``scaled``: old values now kept with another scale; ``beyond``: those still out of range."""

    module: Module
    scaled: tuple[Value, ...]
    beyond: tuple[Value, ...]


def scale_module(module: Module, sizes: Mapping[Value, float], span: Range) -> Scaled:
    """The module with its float tensors brought into ``span`` as far as exact powers of two can.

    ``sizes``: largest magnitude of each float value. Inputs and outputs keep their scale.
    """
    return _Scaler(module, sizes, span).run()


class _Scaler:
    """``exponent`` and ``size`` (log2, missing for all zeros) speak of values of the new module."""

    def __init__(self, module: Module, sizes: Mapping[Value, float], span: Range) -> None:
        self.module = module
        self.span = span
        self.log = {v: math.log2(s) for v, s in sizes.items() if s > 0}
        self.size = {v: self.log[v] for v in module.body.args if v in self.log}
        self.exponent: dict[Value, int] = {}
        self.wild: set[Value] = set()  # made by ops whose result may grow by orders on other inputs
        self.readers = uses(module.body)
        self.outputs = set(module.body.results)
        self.facts = Facts()
        self.builder = Builder(names(module))
        self.brought: dict[tuple[Value, int], Value] = {}
        self.scaled: list[Value] = []
        self.beyond: list[Value] = []

    def run(self) -> Scaled:
        mapped: dict[Value, Value] = {}
        for op in self.module.body.ops:
            here = remap(op, mapped)
            self.emit = Emit(self.builder, self.facts, op.loc)
            made, exponent = self.step(here)
            for old, new in zip(op.results, made, strict=True):
                mapped[old] = new
                self.note(old, new, exponent if old.type.dtype.kind == "float" else 0)
            if _is_wild(op) or any(v in self.wild for v in here.operands):
                self.wild.update(made)
        results = tuple(self.bring(mapped.get(v, v), 0) for v in self.module.body.results)
        self.beyond += [v for v in dict.fromkeys(self.module.body.results) if self.too_large(v, 0)]
        body = Block(self.module.body.args, tuple(self.builder.ops), results)
        made_module = remove_dead(replace(self.module, body=body))
        return Scaled(made_module, tuple(self.scaled), tuple(dict.fromkeys(self.beyond)))

    def note(self, old: Value, new: Value, exponent: int) -> None:
        if exponent:
            self.exponent[new] = exponent
            self.scaled.append(old)
        if old in self.log:
            self.size[new] = self.log[old]
            if self.too_large(old, exponent) and old not in self.facts.constants:
                self.beyond.append(old)

    def too_large(self, old: Value, exponent: int) -> bool:
        return self.log.get(old, -math.inf) - exponent > self.span.high

    # --- one op ------------------------------------------------------------------------------

    def step(self, op: Op) -> tuple[tuple[Value, ...], int]:
        """The op's new results and their exponent."""
        if op.name in PRODUCTS:
            return self.product(op)
        if op.name == "div":
            return self.quotient(op)
        if op.name in POWERS:
            return self.power(op, POWERS[op.name])
        if op.name in SUMS:
            return self.sum(op)
        if op.name in ALIGNED:
            return self.aligned(op)
        if not any(self.e(v) for v in op.operands):
            return self.put(op, op.operands), 0
        if op.name in SAME or (op.name == "cast" and op.result.type.dtype.kind == "float"):
            return self.same(op)
        if op.name in BLIND or (op.name == "cast" and op.result.type.dtype.kind == "bool"):
            return self.put(op, op.operands), 0
        if op.name == "log":
            return self.logarithm(op)
        return self.put(op, [self.undone(v, op.name in SATURATING) for v in op.operands]), 0

    def product(self, op: Op) -> tuple[tuple[Value, ...], int]:
        x, y = (self.tamed(v) for v in op.operands)
        natural = self.e(x) + self.e(y)
        shift = self.wish(op, natural) - natural
        if shift and x is y:
            half = self.shifted(x, -(-shift // 2) if shift > 0 else shift // 2)
            return self.put(op, (half, half)), 2 * self.e(half)
        first, second = (y, x) if self.known(y) else (x, y)
        if not self.known(first) and shift * (self.stored(second) - self.stored(first)) > 0:
            first, second = second, first  # the one farther out moves first
        one = self.moved(first, shift)
        two = self.moved(second, shift - one)
        new = {first: self.shifted(first, one), second: self.shifted(second, two)}
        return self.put(op, (new[x], new[y])), natural + one + two

    def quotient(self, op: Op) -> tuple[tuple[Value, ...], int]:
        x, y = op.operands
        natural = self.e(x) - self.e(y)
        shift = self.wish(op, natural) - natural
        one = self.moved(x, shift)
        two = 0 if x is y else self.moved(y, one - shift)
        made = self.put(op, (self.shifted(x, one), self.shifted(y, two)))
        return made, natural + one - two

    def power(self, op: Op, p: float) -> tuple[tuple[Value, ...], int]:
        (x,) = op.operands
        if abs(p) < 1 and self.e(x) % 2:
            x = self.shifted(x, 1)
        natural = round(self.e(x) * p)
        shift = self.moved(x, round((self.wish(op, natural) - natural) / p))
        shift -= shift % 2 if abs(p) < 1 else 0
        return self.put(op, (self.shifted(x, shift),)), natural + round(shift * p)

    def sum(self, op: Op) -> tuple[tuple[Value, ...], int]:
        (x,) = op.operands
        shift = self.moved(x, self.wish(op, self.e(x)) - self.e(x))
        return self.put(op, (self.shifted(x, shift),)), self.e(x) + shift

    def aligned(self, op: Op) -> tuple[tuple[Value, ...], int]:
        """Operands of one scale: that of the largest, unless the result asks for another."""
        skip = op.name == "where"
        terms = op.operands[skip:]
        floats = [v for v in terms if v.type.dtype.kind == "float" and not self.known(v)]
        if not floats:
            return self.put(op, op.operands), 0
        natural = self.e(max(floats, key=lambda v: self.size.get(v, -math.inf)))
        at_least = max(self.size.get(v, -math.inf) for v in terms)
        exponent = self.wish(op, natural, at_least)
        new = [self.bring(v, exponent) for v in terms]
        return self.put(op, (*op.operands[:skip], *new)), exponent

    def same(self, op: Op) -> tuple[tuple[Value, ...], int]:
        exponent = self.e(op.operands[0])
        attrs = dict(op.attrs)
        if op.name == "pad":
            attrs["value"] = float(np.ldexp(float(attrs.get("value", 0.0)), -exponent))  # type: ignore[arg-type]
        return self.put(op, op.operands, attrs), exponent

    def logarithm(self, op: Op) -> tuple[tuple[Value, ...], int]:
        (x,) = op.operands
        (made,) = self.put(op, op.operands)
        return (self.emit.add(made, self.e(x) * math.log(2.0)),), 0

    def put(
        self, op: Op, operands: Sequence[Value], attrs: Mapping[str, Attr] | None = None
    ) -> tuple[Value, ...]:
        """The op itself if nothing changed, else one like it on other operands."""
        if attrs is None and tuple(operands) == op.operands:
            self.facts.note(self.builder.add(op))
            return op.results
        fields: dict[str, Any] = dict(op.attrs if attrs is None else attrs)
        hint = f"{op.results[0].name}_scaled"
        made = self.builder.op(op.name, operands, loc=op.loc, hint=hint, **fields)
        self.facts.note(made)
        return made.results

    # --- scales ------------------------------------------------------------------------------

    def e(self, v: Value) -> int:
        return self.exponent.get(v, 0)

    def known(self, v: Value) -> bool:
        return v in self.facts.constants

    def stored(self, v: Value) -> float:
        return self.size.get(v, -math.inf) - self.e(v)

    def wish(self, op: Op, natural: int, at_least: float = -math.inf) -> int:
        """The exponent the op's result should have; ``natural`` unless that leaves the range."""
        result = op.results[0]
        size = max(self.log.get(result, -math.inf), at_least)
        if size == -math.inf:
            return natural
        if size - natural > self.span.high:
            return math.ceil(size - LARGE_AT)
        if max(size, self._needed(result)) - natural >= self.span.low:
            return natural
        wanted = math.ceil(size - self.span.low - SMALL_ABOVE)
        wild = _is_wild(op) or any(v in self.wild for v in op.operands)
        return max(wanted, min(natural, 0)) if wild else wanted

    def _needed(self, v: Value) -> float:
        """log2 of the least sum ``v`` goes into: beside a large one it need not be accurate."""
        readers = [op for op, _ in self.readers.get(v, [])]
        if v in self.outputs or any(op.name not in ("add", "sub") for op in readers):
            return -math.inf
        return min((self.log.get(op.result, -math.inf) for op in readers), default=-math.inf)

    def moved(self, v: Value, shift: int) -> int:
        """As much of the shift as ``v`` can take and stay in range."""
        stored = self.stored(v)
        if stored == -math.inf:
            return shift
        if shift > 0:
            return min(shift, max(0, math.floor(stored - self.span.low)))
        return max(shift, min(0, -math.floor(self.span.high - stored)))

    def shifted(self, v: Value, shift: int) -> Value:
        return self.bring(v, self.e(v) + shift)

    def bring(self, v: Value, exponent: int) -> Value:
        """``v`` with another exponent: a constant is scaled now, anything else by products."""
        if self.e(v) == exponent or v.type.dtype.kind != "float":
            return v
        key = v, exponent
        if key not in self.brought:
            new = self._constant(v, exponent) if self.known(v) else self._multiplied(v, exponent)
            self.brought[key] = new
            if v in self.size:
                self.size[new] = self.size[v]
            if exponent:
                self.exponent[new] = exponent
            if v in self.wild:
                self.wild.add(new)
        return self.brought[key]

    def _constant(self, v: Value, exponent: int) -> Value:
        array = self.facts.constants[v]
        info = np.finfo(np.float32)
        scaled = np.ldexp(array.astype(np.float64), self.e(v) - exponent)
        finite = np.isfinite(array)
        scaled = np.where(finite, np.clip(scaled, -info.max, info.max), scaled)
        if array.size == 1 and array.any():  # an epsilon keeps a division from failing
            scaled = np.copysign(np.maximum(np.abs(scaled), info.tiny), scaled)
        scaled = scaled.astype(array.dtype)
        if np.array_equal(scaled, array, equal_nan=True):
            scaled = array
        return self.emit.constant(scaled, v.type.dtype)

    def _multiplied(self, v: Value, exponent: int) -> Value:
        left = self.e(v) - exponent
        while left:
            part = max(-self.span.step, min(self.span.step, left))
            v = self.emit.mul(v, 2.0**part)
            left -= part
        return v

    def tamed(self, v: Value) -> Value:
        """``v``; a constant that is out of range itself comes with another scale."""
        if not self.known(v) or v not in self.size:
            return v
        size = self.size[v]
        if (self.span.least if v.type.size == 1 else self.span.low) <= size <= self.span.high:
            return v
        return self.bring(v, math.ceil(size - LARGE_AT))

    def undone(self, v: Value, saturates: bool) -> Value:
        """``v`` with its own scale; clipped if that may leave the format and its reader
        saturates."""
        e = self.e(v)
        if saturates and self.size.get(v, -math.inf) > self.span.high:
            bound = 2.0 ** (self.span.top - e)
            clipped = self.emit.min(self.emit.max(v, -bound), bound)
            self.exponent[clipped] = e
            v = clipped
        return self.bring(v, 0)


def _is_wild(op: Op) -> bool:
    """Whether the result does not grow in proportion to the operands."""
    proportional = SAME | SUMS | PRODUCTS | ALIGNED | {"div", "constant", *POWERS}
    return op.name not in proportional
