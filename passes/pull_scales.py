"""pull-scales: the scale of a quantised factor multiplies the product instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spyrec.ir.core import Module, Op, Value

from .emit import Emit
from .manager import Target
from .rule import Rule, apply_rules
from .rules_reduce import int_attr, ints


@dataclass(frozen=True)
class PullScales:
    """(s a) b = s (a b): what the matrix unit then multiplies fits the narrow formats that
    legalize-dtypes keeps. Weights and fp8 tensors whose scale does not vary along the summed
    dimension and whose zero point is 0; the order of roundings changes.

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> before = parse_module('''module "m" {
    ...   input %x: tensor<4x2xf32>
    ...   %q = constant {value = dense<2x2xint8, [1, -2, 3, 4]>} : tensor<2x2xi8>
    ...   %s = constant {value = dense<2xfloat32, [0.5, 0.25]>} : tensor<2xf32>
    ...   %z = constant {value = dense<2xint8, splat 0>} : tensor<2xi8>
    ...   %w = dequantize_linear(%q, %s, %z) {axis = 1} : tensor<2x2xf32>
    ...   %y = matmul(%x, %w) : tensor<4x2xf32>
    ...   output "y" = %y
    ... }''')
    >>> print(print_module(pull_scales(before)), end="")
    module "m" {
      input %x: tensor<4x2xf32>
      %s = constant {value = dense<2xfloat32, [0.5, 0.25]>} : tensor<2xf32>
      %c = constant {value = dense<2x2xfloat32, [1.0, -2.0, 3.0, 4.0]>} : tensor<2x2xf32>
      %matmul = matmul(%x, %c) : tensor<4x2xf32>
      %mul = mul(%matmul, %s) : tensor<4x2xf32>
      output "y" = %mul
    }
    """

    name: ClassVar[str] = "pull-scales"
    summary: ClassVar[str] = "Scales products instead of their quantised factors."

    def run(self, module: Module, target: Target) -> Module:
        return pull_scales(module)


def pull_scales(module: Module) -> Module:
    """The module with the scales behind the products, without what became dead."""
    return apply_rules(module, (PULL_SCALE,))


@dataclass(frozen=True)
class _Scaled:
    """A factor that is ``quantised``, turned by ``perm``, times ``scale``."""

    quantised: Value
    scale: Value
    perm: tuple[int, ...]

    def wide(self, e: Emit) -> Value:
        return e.transpose(e.cast(self.quantised, self.scale.type.dtype), self.perm)


def _pull(op: Op, e: Emit) -> Value | None:
    factors = list(op.operands)
    found = [_scaled(v, v.type.rank - 2 + number, e) for number, v in enumerate(factors)]
    if op.attrs["to"] is not None or not any(found):
        return None
    wide = [s.wide(e) if s else v for s, v in zip(found, factors, strict=True)]
    y = e.op("matmul", *wide)
    for number, scaled in enumerate(found):
        if scaled:
            scale, rows = scaled.scale, number == 0 and scaled.scale.type.rank == 1
            y = e.mul(y, e.reshape(scale, (scale.type.size, 1)) if rows else scale)
    return y


def _scaled(v: Value, kept: int, e: Emit) -> _Scaled | None:
    """``v`` as such a factor, of which the dimension ``kept`` is that of the product."""
    turned = e.made_by(v, "transpose")
    perm = ints(turned, "perm") if turned else tuple(range(v.type.rank))
    op = e.made_by(turned.operands[0] if turned else v, "dequantize_linear")
    if op is None:
        return None
    quantised, scale, zero = op.operands
    narrow = quantised.type.dtype.name == "f8e4m3" or e.known(quantised) is not None
    along = scale.type.rank == 0 or perm.index(int_attr(op, "axis")) == kept
    return _Scaled(quantised, scale, perm) if narrow and along and e.splat(zero) == 0 else None


PULL_SCALE = Rule("pull-scale", "matmul", _pull, "rounding", "(s a) b = s (a b).")
