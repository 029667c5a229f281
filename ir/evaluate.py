"""One tensor op on arrays: its entry in the OPS table, and results as their types hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .core import Op
from .errors import SpyrecError
from .ops import OPS, attributes
from .ops.elementwise import wrap_i4
from .ops.shapes import show
from .rounding import round_to
from .types import TensorType

Array = np.ndarray[Any, np.dtype[Any]]
Evaluator = Callable[[Sequence[Array], Sequence[TensorType]], Sequence[Array]]


def evaluator(op: Op) -> Evaluator:
    """What the op computes from operand arrays and result types without Syms, before rounding.

    VerifyError if the op is unknown or its attributes break its rule; SpyrecError if its meaning
    is not a function of arrays.
    """
    full = attributes(op)
    evaluate = OPS[op.name].eval
    if evaluate is None:
        raise SpyrecError(f"{op.name} has no meaning outside a compiled program (from {op.loc})")
    known = evaluate

    def call(arrays: Sequence[Array], types: Sequence[TensorType]) -> Sequence[Array]:
        wide = [a.astype(np.float32) if a.dtype == np.float16 else a for a in arrays]
        return known(wide, full, types)

    return call


def conform(array: Array, type_: TensorType) -> Array:
    """A result as its type holds it: rounded, or wrapped to four bits. ValueError when it is of
    another shape."""
    array = np.asarray(array)
    if array.shape != type_.static_shape:
        raise ValueError(f"the result has shape {show(array.shape)}, not {show(type_.shape)}")
    if type_.dtype.kind == "float" and type_.dtype.bits <= 16:
        return np.asarray(round_to(array, type_.dtype))
    if type_.dtype.name == "i4":
        return wrap_i4(array)
    return array.astype(type_.dtype.np_dtype, copy=False)
