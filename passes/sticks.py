"""Facts about lanes: which dimension of a kernel or tensor may run along them, and what else that
decides."""

from __future__ import annotations

from spyrec.ir.arrange import arranged
from spyrec.ir.core import Op
from spyrec.ir.errors import PassError
from spyrec.ir.layout import Layout
from spyrec.ir.types import TensorType

from .groups import is_depthwise
from .kernel import GROUP, Map, Nest, padded, rank1, spans

FACTOR_ARRANGEMENTS = {8: ("qfp8ch", "qfp8wt"), 4: ("qint4ch", "qint4wt")}
"""Bits of an element -> how the matrix unit wants its first and its second factor arranged, where
it does not take them in order."""


def laid(type_: TensorType, stick: int, order: tuple[int, ...] | None = None) -> TensorType:
    """The type with the standard layout for that stick dimension, in card memory."""
    layout = Layout.stick(rank1(type_), type_.dtype.bits, stick, order)
    return TensorType(type_.shape, type_.dtype, layout, "hbm")


def laid_as_factor(
    type_: TensorType, number: int, nest: Nest, packed: bool = False
) -> TensorType:
    """The type of factor ``number`` (0 or 1) of a matrix kernel, as the matrix unit wants it.

    ``packed``: by the vector unit, whose strides want neighbouring groups in neighbouring halves of
    sticks.
    """
    n, k = contract_sticks(nest)
    m = nest.maps[number]
    along, across = (tensor_dim(m, d) for d in ((k, n) if number == 0 else (n, k)))
    assert along is not None
    name = FACTOR_ARRANGEMENTS[type_.dtype.bits][number]
    shape = rank1(type_)
    order = (*(d for d in range(len(shape)) if d != along), along) if packed else None
    layout = arranged(name, shape, along, -1 if across is None else across, order)
    return TensorType(type_.shape, type_.dtype, layout, "hbm")


def fullest(shape: tuple[int, ...]) -> int:
    """The last dimension, unless another fills its lanes much better."""

    def waste(d: int) -> float:
        return padded(shape[d], GROUP) / max(1, shape[d])

    last = len(shape) - 1
    best = min(range(len(shape)), key=lambda d: (waste(d), -d))
    return last if waste(last) <= 1.5 * waste(best) else best


def usable_stick(nest: Nest, s: int) -> bool:
    """Each result needs a dimension for the lanes: s itself or one of extent 1."""
    return all(spans(m, s) or any(not any(c) for _, c in m) for m in nest.out_maps)


def result_stick(m: Map, s: int, op: Op) -> int:
    """The result's dimension at s; when it does not vary along s, the dimension of extent 1 in its
    place. PassError when there is neither."""
    dim = tensor_dim(m, s)
    if dim is not None:
        return dim
    still = [i for i, (_, coefs) in enumerate(m) if not any(coefs)]
    if not still:
        raise PassError(
            f"stick-layout: a result of {op.attrs['name']} has no dimension for the lanes: none "
            f"varies with kernel dimension {s} and none has extent 1 (from {op.loc})"
        )
    return s if s in still and s < len(m) else still[-1]


def region_head(op: Op) -> Op:
    """The op a kernel was formed around."""
    return op.regions[0].ops[0]


def is_windowed(nest: Nest) -> bool:
    """Pooling and depthwise convolution: channels run along the lanes."""
    return nest.kind == "fold" and region_head(nest.op).name in ("max_pool", "sum_pool", "conv")


def contract_sticks(nest: Nest) -> tuple[int, int]:
    """(n, k) of a matrix kernel: the last kernel dimension is k; n is the result's column or
    channel dimension."""
    head = region_head(nest.op)
    if head.name == "conv" and not is_depthwise(head):
        return 1, 6
    return len(nest.extents) - 2, len(nest.extents) - 1


def tensor_dim(m: Map, kernel_dim: int) -> int | None:
    """The first tensor dimension that varies with a kernel dimension."""
    for i, (_, coefs) in enumerate(m):
        if coefs[kernel_dim]:
            return i
    return None


def moved_by(m: Map, dim: int) -> int | None:
    """The first kernel dimension a tensor dimension varies with."""
    coefs = m[dim][1]
    return next((d for d, c in enumerate(coefs) if c), None)
