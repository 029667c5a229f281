"""range-scale: tensors too large or too small for 16 bits are kept times a power of two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from spyrec.ir.core import Module, Op, Value
from spyrec.ir.errors import SpyrecError
from spyrec.ir.interp import run
from spyrec.ir.rounding import round_to
from spyrec.ir.types import DType, Sym

from .legalize_dtypes import FLOAT, float_limits
from .manager import Array, Target
from .scaling import Range, Scaled, scale_module

INFINITE = 2.0**100
"""Magnitudes from here on stand for infinity (masks are often -3.4e38) and are not measured."""

SHOWN = 3
TRIAL_ELEMENTS, TRIAL_MACS = 2**28, 2**35  # the host runs what computes no more than this
KEPT_BINADES = 10  # below its largest element a tensor needs so many powers of two to be accurate


@dataclass(frozen=True)
class RangeScale:
    """Find each tensor's magnitude by one run of the interpreter on seeded inputs; where it leaves
    the 16-bit format, store the tensor times an exact power of two and undo that where it matters.

    ``margin``: a tensor is left alone while 2^margin times its magnitude is in range. ``seed``
    draws the inputs: magnitudes of normal floats, so that weights of one sign show their worst,
    integers 0 and 1. ``calibrate`` = false switches the pass off. fp32 numerics need none of it.

    Exactness: exact short of under- and overflow. A power of two commutes with products, sums of
    operands of one scale, max, pooling and all data movement, bit for bit, and constants take it
    without rounding; log(2^e x) = log x + e log 2 alone is rounded. Before exp, tanh and sigmoid
    what lies beyond the format is clipped to where they have long saturated. Small tensors are
    scaled up only if nothing but such ops lies between them and the inputs: what a sigmoid makes
    tiny on one input may be 1 on another.

    A module in range comes back as it is. The attribute ``warnings`` gains a sentence when a tensor
    of its own is at the limits, one that merely takes on the scale of another is not told of.

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> from spyrec.passes.decompose import decompose
    >>> from spyrec.sim.device import load_device
    >>> before = parse_module('''module "m" {
    ...   input %x: tensor<1x2xf32>
    ...   %w = constant {value = dense<2x1xfloat32, [3.0e10, 0.0]>} : tensor<2x1xf32>
    ...   %a = matmul(%x, %w) : tensor<1x1xf32>
    ...   %b = relu(%a) : tensor<1x1xf32>
    ...   %y = tanh(%b) : tensor<1x1xf32>
    ...   output "y" = %y
    ... }''').with_attrs(warnings=())
    >>> after = RangeScale().run(decompose(before), Target(load_device()))
    >>> print(print_module(after.with_attrs(warnings=())), end="")
    module "m" {warnings = ()} {
      input %x: tensor<1x2xf32>
      %c_2 = constant {value = dense<2x1xfloat32, [13.969839, 0.0]>} : tensor<2x1xf32>
      %a_scaled = matmul(%x, %c_2) : tensor<1x1xf32>
      %c_3 = constant {value = dense<float32, [0.0]>} : tensor<f32>
      %max_scaled = max(%a_scaled, %c_3) : tensor<1x1xf32>
      %c_4 = constant {value = dense<float32, [-2.0]>} : tensor<f32>
      %max_2 = max(%max_scaled, %c_4) : tensor<1x1xf32>
      %c_5 = constant {value = dense<float32, [2.0]>} : tensor<f32>
      %min = min(%max_2, %c_5) : tensor<1x1xf32>
      %c_6 = constant {value = dense<float32, [1.0737418e+09]>} : tensor<f32>
      %mul = mul(%min, %c_6) : tensor<1x1xf32>
      %c_7 = constant {value = dense<float32, [2.0]>} : tensor<f32>
      %mul_2 = mul(%mul, %c_7) : tensor<1x1xf32>
      %y_scaled = tanh(%mul_2) : tensor<1x1xf32>
      output "y" = %y_scaled
    }
    """

    name: ClassVar[str] = "range-scale"
    summary: ClassVar[str] = (
        "Keeps tensors that leave the 16-bit format's range times a power of two."
    )
    seed: int = 0
    margin: int = 2
    calibrate: bool = True

    def run(self, module: Module, target: Target) -> Module:
        kind = FLOAT[target.numerics]
        if not self.calibrate or kind.bits > 16 or not _bound(module):
            return module
        if module.attrs.get("absent"):  # weights whose values nobody knows
            return module
        largest, smallest = float_limits(kind)
        elements, macs = trial_work(module)
        if elements > TRIAL_ELEMENTS or macs > TRIAL_MACS:
            return _warned(
                module,
                f"range-scale: magnitudes are unknown, a trial run would compute {elements:.2g} "
                f"elements with {macs:.2g} multiply-accumulates; values beyond {kind}'s "
                f"{largest:.3g} will overflow",
            )
        try:
            sizes = magnitudes(module, calibration_inputs(module, self.seed))
        except SpyrecError as error:
            return _warned(
                module, f"range-scale: magnitudes are unknown, the trial run failed: {error}"
            )
        least, most = math.log2(smallest), math.log2(largest)
        span = Range(least, least + KEPT_BINADES, most - self.margin, math.floor(most))
        done = scale_module(module, sizes, span)
        if not done.scaled and not done.beyond:
            return module
        sentence = _sentence(done, sizes, span, kind, module)
        return _warned(done.module, sentence) if sentence else done.module


def calibration_inputs(module: Module, seed: int) -> dict[str, Array]:
    """Seeded inputs in the module's own types: |normal| floats, integers 0 and 1, coin flips."""
    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for v in module.body.args:
        shape, kind = v.type.static_shape, v.type.dtype
        array = (
            np.abs(rng.normal(size=shape)) if kind.kind == "float" else rng.integers(0, 2, shape)
        )
        made[v.name] = round_to(np.asarray(array), kind)
    return made


def magnitudes(module: Module, inputs: dict[str, Array]) -> dict[Value, float]:
    """The largest finite magnitude of each float value the module computes or holds."""
    found = {v: _largest(inputs[v.name]) for v in module.body.args if v.type.dtype.kind == "float"}

    def observe(op: Op, results: tuple[Array, ...]) -> None:
        for value, array in zip(op.results, results, strict=True):
            if value.type.dtype.kind == "float":
                found[value] = _largest(array)

    run(module, inputs, observe=observe)
    return found


def trial_work(module: Module) -> tuple[int, int]:
    """Elements and multiply-accumulates that one run of the interpreter computes."""
    computed = [op for op in module.body.ops if op.name != "constant"]
    elements = sum(v.type.size for v in module.body.args)
    elements += sum(v.type.size for op in computed for v in op.results)
    macs = 0
    for op in computed:
        if op.name == "matmul":
            macs += op.result.type.size * op.operands[0].type.static_shape[-1]
        elif op.name == "conv":
            macs += op.result.type.size * math.prod(op.operands[1].type.static_shape[1:])
    return elements, macs


def _largest(array: Array) -> float:
    if array.size == 0:
        return 0.0
    top = max(float(array.max()), -float(array.min()))
    if top < INFINITE:
        return top
    sizes = np.abs(array).astype(np.float64)  # NaN or something infinite: look at the rest
    return float(np.max(sizes, where=sizes < INFINITE, initial=0.0))


def _bound(module: Module) -> bool:
    return not any(isinstance(d, Sym) for v in module.body.args for d in v.type.shape)


def _sentence(
    done: Scaled, sizes: dict[Value, float], span: Range, kind: DType, module: Module
) -> str:
    """Of the old module's tensors that are at the limits themselves; nothing when none is."""
    makers = {r: op for op in module.body.ops for r in op.results}

    def told(v: Value) -> str:
        """Its magnitude and the model node that makes it, or its own name."""
        nodes = makers[v].loc.nodes if v in makers else ()
        return f"{sizes[v]:.3g} ({nodes[0] if nodes else f'%{v.name}'})"

    largest, smallest = float_limits(kind)
    measured = {v: math.log2(s) for v, s in sizes.items() if s > 0}
    outside = [
        v for v in dict.fromkeys((*done.scaled, *done.beyond))
        if v in measured and not span.low <= measured[v] <= span.high
    ]  # fmt: skip
    if not outside:
        return ""
    low, high = (pick(outside, key=lambda v: sizes[v]) for pick in (min, max))
    text = (
        f"range-scale: {len(done.scaled)} tensors are kept times a power of two: on seeded inputs "
        f"{kind}, which reaches from {smallest:.3g} to {largest:.3g}, is too narrow for "
        f"magnitudes from {told(low)} to {told(high)}"
    )
    if not done.beyond:
        return text
    named = ", ".join(map(told, done.beyond[:SHOWN]))
    more = ", ..." if len(done.beyond) > SHOWN else ""
    return f"{text}; out of reach and likely to overflow: {named}{more}"


def _warned(module: Module, sentence: str) -> Module:
    known = module.attrs.get("warnings", ())
    assert isinstance(known, tuple)
    return module.with_attrs(warnings=(*known, sentence))
