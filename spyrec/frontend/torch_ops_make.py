"""Tensors made from nothing: ranges and constants."""

from __future__ import annotations

import numpy as np

from .emit import Handle, Known, Unsupported
from .torch_ops_elementwise import first
from .torch_site import Converter, Site, Table

MAX_BYTES = 4 << 30  # of a tensor that is one repeated value
MAX_MADE_BYTES = 1 << 30  # of one whose elements differ


def _bounded(s: Site, most: int = MAX_MADE_BYTES) -> None:
    if s.type.size * s.dtype.np_dtype.itemsize > most:
        raise Unsupported(f"it makes a tensor of more than {most} bytes, {list(s.shape)}")


def _filled(s: Site, value: bool | int | float) -> Handle:
    """One value in the type and shape of the result, held as one element."""
    _bounded(s, MAX_BYTES)
    element = np.asarray(s.const(value, s.dtype).array)
    return Known(s.hint, np.broadcast_to(element, s.shape), s.dtype, s.loc)


def _full(s: Site) -> Handle:
    value = s.get("fill_value" if s.has("fill_value") else "s" if s.has("s") else "value")
    if isinstance(value, bool | int | float):
        return _filled(s, value)
    return s.fit(s.tensor("fill_value"))


def _constant(value: float) -> Converter:
    return lambda s: _filled(s, value)


def _arange(s: Site) -> Handle:
    start, step = (s.get(n, d) for n, d in (("start", 0), ("step", 1)))
    if not all(isinstance(n, bool | int | float) for n in (start, step)):
        raise Unsupported("where it begins is computed at run time")
    _bounded(s)
    array = start + step * np.arange(s.shape[0])
    return Known(s.hint, array.astype(s.dtype.np_dtype), s.dtype, s.loc)


def _linspace(s: Site) -> Handle:
    _bounded(s)
    array = np.linspace(s.float_("start"), s.float_("end"), s.shape[0])
    return Known(s.hint, array.astype(s.dtype.np_dtype), s.dtype, s.loc)


def _eye(s: Site) -> Handle:
    _bounded(s)
    return Known(s.hint, np.eye(*s.shape, dtype=s.dtype.np_dtype), s.dtype, s.loc)


def _meshgrid(s: Site) -> list[Handle]:
    parts = s.tensors("tensors")
    sizes = [p.type.size for p in parts]
    if s.str_("indexing", "ij") == "xy" and len(parts) > 1:
        grids = []
        order = [1, 0, *range(2, len(parts))]
        shape = [sizes[i] for i in order]
        for i, part in enumerate(parts):
            row = [1] * len(parts)
            row[order.index(i)] = sizes[i]
            grids.append(s.broadcast(s.reshape(part, row), shape))
        return grids
    return [
        s.broadcast(s.reshape(p, [n if i == j else 1 for j, n in enumerate(sizes)]), sizes)
        for i, p in enumerate(parts)
    ]


def _like(s: Site) -> Handle:
    """A new tensor with what another holds."""
    return s.rounded(s.tensor(first(s)))


MAKE: Table = {
    "full": _full, "full_like": _full, "new_full": _full, "scalar_tensor": _full,
    **{name: _constant(0) for name in (
        "zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_permuted",
        "empty_strided", "new_empty_strided",
    )},
    **{name: _constant(1) for name in ("ones", "ones_like", "new_ones")},
    "arange": _arange, "linspace": _linspace, "eye": _eye, "meshgrid": _meshgrid,
    "_tensor_constant": _like,
}  # fmt: skip
