"""Vector micro-programs on numpy: registers are float32 arrays, or int32 where all that goes in is.

An operation on whole numbers stays whole (a constant counts as whole when it is); anything else is
computed in float32. Truth values are 1 and 0 of the operands' kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .isa import MicroProgram

Array = NDArray[Any]
INT_MIN, INT_MAX = -(2**31), 2**31 - 1


def evaluate(
    program: MicroProgram, inputs: Sequence[Array], scalars: Sequence[float] = ()
) -> Array:
    """The program's result for every lane; inputs broadcast against each other, the last may be
    left out."""
    registers: list[Array] = list(inputs)
    absent = (0.0,) * (program.n_inputs - len(inputs))
    given = (*absent, *program.constants, *scalars)
    registers += [np.asarray(value, np.float32) for value in given]
    constant = range(len(inputs), len(registers))
    with np.errstate(all="ignore"):
        for step in program.steps:
            args = [(registers[i], i in constant) for i in step.args]
            if step.op == "where":
                x, y = _alike(args[1:])
                registers.append(np.where(args[0][0] != 0, x, y))
            else:
                registers.append(OPS[step.op](*_alike(args)))
    return registers[-1] if program.steps else registers[0]


def _alike(args: Sequence[tuple[Array, bool]]) -> list[Array]:
    """Arguments (value, is it a constant) brought to one kind."""
    if any(value.dtype == np.int32 for value, _ in args) and all(
        value.dtype == np.int32 or (constant and _whole(float(value))) for value, constant in args
    ):
        return [value.astype(np.int32, copy=False) for value, _ in args]
    return [value.astype(np.float32, copy=False) for value, _ in args]


def _whole(value: float) -> bool:
    return value.is_integer() and INT_MIN <= value <= INT_MAX


def to_int(value: Array) -> Array:
    """Toward zero, saturating; NaN is 0."""
    if value.dtype == np.int32:
        return value
    wide = np.nan_to_num(value.astype(np.float64), nan=0.0, posinf=INT_MAX, neginf=INT_MIN)
    return np.clip(np.trunc(wide), INT_MIN, INT_MAX).astype(np.int32)


def _truth(test: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *args: test(*args).astype(args[0].dtype)


def _float(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: function(x.astype(np.float32, copy=False)).astype(np.float32, copy=False)


ERF = (
    1.1283797054e00, 1.0276548194e-01, -1.8438504433e-04, -6.2571813926e-04,
    8.9711920104e-05, -5.9855546940e-06, 1.5895038930e-07,
)  # fmt: skip
"""erf(x) = tanh(x * P(x^2)) with |error| <= 5.8e-8 for all x, P by rising powers.

P is a degree-6 fit of atanh(erf(x)) / x in x^2 on [0, 3.6], minimax in erf by Lawson's reweighted
least squares. Beyond x^2 = 16 it is held at its value there (tanh is 1 by then).
"""


def _erf(x: Array) -> Array:
    wide = x.astype(np.float64)
    slope = np.polynomial.polynomial.polyval(np.minimum(wide * wide, 16.0), ERF)
    return np.asarray(np.tanh(wide * slope))


def _divide(x: Array, y: Array) -> Array:
    if x.dtype != np.int32:
        return np.asarray(x / y)
    wide = np.trunc(x.astype(np.float64) / np.where(y == 0, 1, y))
    return np.where(y == 0, 0, np.clip(wide, INT_MIN, INT_MAX)).astype(np.int32)


OPS: dict[str, Callable[..., Array]] = {
    "copy": lambda x: x,
    "neg": np.negative,
    "abs": np.abs,
    "recip": _float(lambda x: np.float32(1) / x),
    "sqrt": _float(np.sqrt),
    "rsqrt": _float(lambda x: np.float32(1) / np.sqrt(x)),
    "exp": _float(np.exp),
    "log": _float(np.log),
    "tanh": _float(np.tanh),
    "sigmoid": _float(lambda x: np.float32(1) / (np.float32(1) + np.exp(-x))),
    "erf": _float(_erf),
    "sin": _float(np.sin),
    "cos": _float(np.cos),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sign": np.sign,
    "isnan": _truth(np.isnan),
    "isinf": _truth(np.isinf),
    "not": _truth(lambda x: x == 0),
    "i2f": lambda x: x.astype(np.float32, copy=False),
    "f2i": to_int,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "max": np.maximum,
    "min": np.minimum,
    "mod": np.mod,
    "eq": _truth(np.equal),
    "ne": _truth(np.not_equal),
    "lt": _truth(np.less),
    "le": _truth(np.less_equal),
    "gt": _truth(np.greater),
    "ge": _truth(np.greater_equal),
    "and": _truth(lambda x, y: (x != 0) & (y != 0)),
    "or": _truth(lambda x, y: (x != 0) | (y != 0)),
    "xor": _truth(lambda x, y: (x != 0) ^ (y != 0)),
}
