"""legalize-dtypes: every tensor gets an element type the machine has.

The host converts at the border, as the module attribute ``host_types`` tells it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from spyrec.ir.core import Block, Builder, Loc, Module, Op, Value
from spyrec.ir.errors import PassError
from spyrec.ir.rounding import FORMATS, int_range, round_to
from spyrec.ir.types import DTYPES, DType

from .bounds import bounds
from .emit import Array, Emit, Facts
from .manager import Numerics, Target
from .narrow import narrow_factors
from .primitives import is_primitive
from .sensitive import before_logarithms

FLOAT: dict[Numerics, DType] = {
    "dl16": DTYPES["dl16"],
    "ieee16": DTYPES["f16"],
    "fp32": DTYPES["f32"],
}
F32 = DTYPES["f32"]
I32 = DTYPES["i32"]
SMALL_FACTOR = 1023  # what 8-bit integers less a zero point never exceed
EXACT_SUM = 1 << 24  # fp32 holds all whole numbers up to here


@dataclass(frozen=True)
class LegalizeDtypes:
    """Floats become the target's format, integers i32; bool stays. What only the matrix unit reads
    is kept in 8 or 4 bits when it is fp8, or a constant of which that loses nothing (see
    ``narrow``): products are exact, sums fp32. Other fp8 tensors are kept in the wider format, not
    rounded to theirs. Model inputs and outputs keep their names; their
    host types are noted in the module attribute ``host_types`` as ``((name, dtype name), ...)``,
    inputs first.

    Float constants are rounded; what lies beyond the 16-bit format (infinities too: the card has
    none) becomes its largest finite value, and a scalar that would round to zero its smallest
    one, so that an epsilon still keeps a division from failing. With ``exact_scalars`` float
    scalars keep their fraction: they stay f32, with a cast behind that ``fuse`` drops where the
    reader is elementwise, as the vector unit has its scalars as fp32 immediates.

    With ``exact_logs`` what lies between the inputs and a logarithm of small numbers stays f32
    (see ``sensitive``): 16 bits would lose what the logarithm then shows.

    Integer matrix products and convolutions go through fp32: exact while their sums stay within
    2^24, rounded to 24 bits beyond. Their factors must be known to be small, as 8-bit integers are.

    Integer casts that would wrap in the model's narrow type wrap here too, by arithmetic,
    unless their range is known to fit.

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> before = parse_module('''module "m" {
    ...   input %x: tensor<2xf32>
    ...   input %i: tensor<2xi64>
    ...   %f = cast(%i) {to = type f32} : tensor<2xf32>
    ...   %c = constant {value = dense<2xfloat32, [0.1, -inf]>} : tensor<2xf32>
    ...   %a = add(%x, %f) : tensor<2xf32>
    ...   %y = add(%a, %c) : tensor<2xf32>
    ...   output "y" = %y
    ... }''')
    >>> print(print_module(legalize(before, "dl16")), end="")
    module "m" {host_types = (("x", "f32"), ("i", "i64"), ("y", "f32")), numerics = "dl16"} {
      input %x: tensor<2xdl16>
      input %i: tensor<2xi32>
      %f = cast(%i) {to = type dl16} : tensor<2xdl16>
      %c = constant {value = dense<2xfloat32, [0.099975586, -8.5731574e+09]>} : tensor<2xdl16>
      %a = add(%x, %f) : tensor<2xdl16>
      %y = add(%a, %c) : tensor<2xdl16>
      output "y" = %y
    }
    """

    name: ClassVar[str] = "legalize-dtypes"
    summary: ClassVar[str] = "Gives every tensor an element type that the machine has."
    exact_scalars: bool = True
    exact_logs: bool = True

    def run(self, module: Module, target: Target) -> Module:
        legal = legalize(module, target.numerics, self.exact_scalars, self.exact_logs)
        return legal.with_attrs(device=target.device.name)


def legalize(
    module: Module, numerics: Numerics, exact_scalars: bool = False, exact_logs: bool = False
) -> Module:
    """The module with element types of the machine.

    PassError if an op is not primitive, or an integer constant does not fit 32 bits.
    """
    left = sorted({op.name for op in module.body.ops if not is_primitive(op)})
    if left:
        raise PassError(f"legalize-dtypes: {', '.join(left)} is not primitive; run decompose first")
    narrow = FLOAT[numerics].bits == 16
    exact = before_logarithms(module) if exact_logs and narrow else frozenset()
    made = _Legalizer(module, FLOAT[numerics], exact_scalars, exact).run()
    return made.with_attrs(host_types=_host_types(module), numerics=numerics)


def _host_types(module: Module) -> tuple[tuple[str, str], ...]:
    inputs = [(v.name, v.type.dtype.name) for v in module.body.args]
    outputs = [
        (name, v.type.dtype.name)
        for name, v in zip(module.output_names, module.body.results, strict=True)
    ]
    return (*inputs, *outputs)


class _Legalizer:
    """One walk over the module; ``mapped`` holds what stands for each value."""

    def __init__(
        self, module: Module, float_: DType, exact_scalars: bool, exact: frozenset[Value]
    ) -> None:
        self.module = module
        self.float = float_
        self.exact_scalars = exact_scalars and float_.bits == 16
        self.exact = exact
        self.narrow = narrow_factors(module)
        self.constants = {op.result: op for op in module.body.ops if op.name == "constant"}
        self.makers = {r: op for op in module.body.ops for r in op.results}
        self.typed: dict[tuple[Value, DType], Value] = {}
        self.builder = Builder()
        self.facts = Facts()
        self.mapped: dict[Value, Value] = {}

    def run(self) -> Module:
        args = tuple(
            self.builder.value(v.name, v.type.with_(dtype=self.device_type(v)))
            for v in self.module.body.args
        )
        self.mapped.update(zip(self.module.body.args, args, strict=True))
        for op in self.module.body.ops:
            self.mapped[op.result] = self.convert(op)
        results = tuple(self.mapped[v] for v in self.module.body.results)
        return replace(self.module, body=Block(args, tuple(self.builder.ops), results))

    def device_type(self, v: Value) -> DType:
        if v in self.narrow:
            return self.narrow[v]
        if v.type.dtype.kind == "float":
            return F32 if v in self.exact else self.float
        return {"int": I32, "bool": v.type.dtype}[v.type.dtype.kind]

    def convert(self, op: Op) -> Value:
        match op.name:
            case "constant":
                return self.constant(op)
            case "cast" if op.operands[0] in self.narrow:
                return self.mapped[op.operands[0]]  # its readers take it as it is
            case "cast":
                return self.cast(op, self.mapped[op.operands[0]])
            case "matmul" if any(self.mapped[v].type.dtype.bits < 16 for v in op.operands):
                return self.narrow_product(op)
            case "log" if op.operands[0] in self.exact:
                log = self.emit(op, "log", [self.mapped[op.operands[0]]], {})
                return self.emit(op, "cast", [log], {"to": self.device_type(op.result)})
            case "matmul" | "conv" if op.result.type.dtype.kind == "int":
                return self.whole_product(op)
        kind = F32 if op.result in self.exact else self.float
        operands = [self.read(v, kind) for v in op.operands]
        return self.emit(op, op.name, operands, dict(op.attrs))

    def narrow_product(self, op: Op) -> Value:
        """Factors of 8 and 4 bits are multiplied as they are, each product exact."""
        to = self.device_type(op.result)
        factors = (
            here if (here := self.mapped[v]).type.dtype.bits < 16 else self.read(v, to)
            for v in op.operands
        )
        return self.emit(op, "matmul", tuple(factors), {"to": to})

    def whole_product(self, op: Op) -> Value:
        """Integers go through the matrix unit as fp32, which holds the factors exactly."""
        largest = [max(map(abs, bounds(v, self.makers.get))) for v in op.operands]
        a, b = (v.type for v in op.operands)
        terms = b.static_shape[-2] if op.name == "matmul" else b.size // b.static_shape[0]
        if max(largest) > SMALL_FACTOR and terms * largest[0] * largest[1] > EXACT_SUM:
            number = largest.index(max(largest))
            raise PassError(
                f"legalize-dtypes: {op.name} %{op.result.name} multiplies integers, and nothing "
                f"keeps its operand %{op.operands[number].name} ({(a, b)[number].dtype}) within "
                f"+-{SMALL_FACTOR} (from {op.loc}); the matrix unit works in fp32, so give it "
                "8-bit integers or clip them, or let the model multiply floats"
            )
        factors = [self._retyped(v, self.mapped[v], F32) for v in op.operands]
        product = self.emit(op, op.name, factors, dict(op.attrs))
        return self.emit(op, "cast", [product], {"to": I32})

    def read(self, v: Value, kind: DType) -> Value:
        """What stands for ``v``; a float in the format ``kind``."""
        here = self.mapped[v]
        if v.type.dtype.kind != "float" or here.type.dtype == kind:
            return here
        if (v, kind) not in self.typed:
            self.typed[v, kind] = self._retyped(v, here, kind)
        return self.typed[v, kind]

    def _retyped(self, v: Value, here: Value, kind: DType) -> Value:
        if v not in self.constants:
            maker = self.facts.producers.get(here)
            loc = Loc((v.name,)) if maker is None else maker.loc
            made = self.builder.op("cast", [here], loc=loc, hint=v.name, to=kind)
            self.facts.note(made)
            return made.result
        op = self.constants[v]
        return self.add_constant(op, saturated(np.asarray(op.attrs["value"]), kind), kind)

    def emit(self, op: Op, name: str, operands: Sequence[Value], attrs: dict[str, Any]) -> Value:
        value = attrs.get("value")
        if name == "pad" and isinstance(value, float) and operands[0].type.dtype.bits == 16:
            attrs["value"] = float(saturated(np.array(value), operands[0].type.dtype))
        if name == "pad" and operands[0].type.dtype.kind == "int":
            _check_range(op, "padding of", np.array(value))
        made = self.builder.op(name, operands, loc=op.loc, hint=op.result.name, **attrs)
        self.facts.note(made)
        return made.result

    def constant(self, op: Op) -> Value:
        array, dtype = op.attrs["value"], self.device_type(op.result)
        assert isinstance(array, np.ndarray)
        if dtype.kind == "int":
            _check_range(op, "constant", array)
        if dtype == self.float and self.exact_scalars and array.size == 1:
            exact = np.asarray(within(array, self.float), np.float32)
            wide = self.add_constant(op, exact, F32)
            return self.emit(op, "cast", [wide], {"to": self.float})
        legal = saturated(array, dtype) if dtype.kind == "float" else array.astype(dtype.np_dtype)
        return self.add_constant(op, legal, dtype)

    def add_constant(self, op: Op, array: Array, dtype: DType) -> Value:
        value = self.builder.constant(array, dtype, loc=op.loc, hint=op.result.name)
        self.facts.note(self.builder.ops[-1])
        return value

    def cast(self, op: Op, x: Value) -> Value:
        source, to = op.operands[0].type.dtype, op.result.type.dtype
        emit = Emit(self.builder, self.facts, op.loc)
        if to.kind == "int" and to.bits < 32:
            match source.kind:
                case "float":
                    x = self._saturate(emit, x, to)
                case "int":
                    x = self._wrap(emit, x, source, to)
        kind = self.device_type(op.result)
        return x if x.type.dtype == kind else self.emit(op, "cast", [x], {"to": kind})

    def _saturate(self, e: Emit, x: Value, to: DType) -> Value:
        """A float cast to a narrow integer stops at its ends."""
        low, high = int_range(to)
        return x if _fits(e, x, low, high) else e.min(e.max(x, float(low)), float(high))

    def _wrap(self, e: Emit, x: Value, source: DType, to: DType) -> Value:
        """An integer cast to a narrower one keeps its low bits."""
        (a, b), (low, high) = int_range(source), int_range(to)
        if (low <= a and b <= high) or _fits(e, x, low, high):
            return x
        shifted = e.sub(x, low) if low else x
        kept = e.op("mod", shifted, e.scalar(high - low + 1, x))
        return e.add(kept, low) if low else kept


def _fits(e: Emit, x: Value, low: int, high: int) -> bool:
    """Whether a max and a min with constants, maybe cast since, keep ``x`` in low..high."""
    above, below = False, False
    while (op := e.made_by(x, "cast", "min", "max")) is not None:
        x = op.operands[0]
        if op.name == "cast":
            continue
        bound = e.splat(op.operands[1])
        if bound is None or not low <= bound <= high:
            break
        above |= op.name == "max"
        below |= op.name == "min"
    return above and below


def saturated(array: Array, dtype: DType) -> Array:
    """Values of a float format; infinities and what is too large become the largest finite value of
    a 16-bit format, a scalar that is not zero stays so. NaN stays."""
    if dtype.bits > 16:
        return np.asarray(round_to(array, dtype))
    return np.asarray(round_to(within(array, dtype), dtype))


def within(array: Array, dtype: DType) -> Array:
    """The array in float64, its magnitudes at most the largest of a 16-bit format; that of a scalar
    other than zero at least the smallest."""
    largest, smallest = float_limits(dtype)
    inside = np.asarray(np.clip(array.astype(np.float64), -largest, largest))
    if array.size == 1 and np.any(inside):
        inside = np.copysign(np.maximum(np.abs(inside), smallest), inside)
    return np.asarray(inside)


def is_exact_scalar(cast: Op) -> bool:
    """Whether the cast rounds one float32 number to a 16-bit format."""
    to, source = cast.result.type, cast.operands[0].type
    return (
        to.size == 1
        and source.dtype.name == "f32"
        and to.dtype.kind == "float"
        and to.dtype.bits == 16
    )


def float_limits(dtype: DType) -> tuple[float, float]:
    """Largest and smallest positive finite value of a 16-bit format."""
    if dtype.name in FORMATS:
        return FORMATS[dtype.name].largest, FORMATS[dtype.name].smallest
    info = np.finfo(np.float16)
    return float(info.max), float(info.smallest_subnormal)


def _check_range(op: Op, what: str, array: Array) -> None:
    low, high = int_range(I32)
    if array.size and (int(array.min()) < low or int(array.max()) > high):
        worst = array.min() if int(array.min()) < low else array.max()
        raise PassError(
            f"legalize-dtypes: {what} %{op.result.name} ({op.result.type.dtype}) holds {worst}, "
            f"which does not fit the device's 32-bit integers (from {op.loc}); keep such values "
            "out of run-time arithmetic or clip them in the model"
        )
