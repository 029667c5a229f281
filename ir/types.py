"""Value types: element formats, bounded symbolic dimensions, tensor types."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from .errors import SpyrecError
from .literals import int_text, symbol_text

if TYPE_CHECKING:
    from .layout import Layout

Kind = Literal["float", "int", "bool"]


@dataclass(frozen=True)
class DType:
    """An element format.

    ``bits`` is its width in device memory. ``numpy`` is the host array type that holds its
    values: formats numpy lacks (``dl16``, ``bf16``, ``f8e4m3``) are held as float32 arrays whose
    every element is representable in the format; ``i4`` is held as int8.
    """

    name: str
    bits: int
    kind: Kind
    numpy: str

    def __str__(self) -> str:
        return self.name

    @property
    def np_dtype(self) -> np.dtype[np.generic]:
        return np.dtype(self.numpy)


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("f64", 64, "float", "float64"),
        DType("f32", 32, "float", "float32"),
        DType("f16", 16, "float", "float16"),
        DType("bf16", 16, "float", "float32"),
        DType("dl16", 16, "float", "float32"),
        DType("f8e4m3", 8, "float", "float32"),
        DType("i64", 64, "int", "int64"),
        DType("i32", 32, "int", "int32"),
        DType("i16", 16, "int", "int16"),
        DType("i8", 8, "int", "int8"),
        DType("u64", 64, "int", "uint64"),
        DType("u32", 32, "int", "uint32"),
        DType("u16", 16, "int", "uint16"),
        DType("u8", 8, "int", "uint8"),
        DType("i4", 4, "int", "int8"),
        DType("bool", 16, "bool", "bool"),  # the device keeps a truth value as 0 or 1 in 16 bits
    )
}


def dtype(name: str) -> DType:
    """The element format called ``name``; SpyrecError if there is none."""
    if name not in DTYPES:
        raise SpyrecError(f"no element type is called {name!r}; known: {', '.join(DTYPES)}")
    return DTYPES[name]


@dataclass(frozen=True)
class Sym:
    """A symbolic dimension: some integer in ``lo..hi`` (inclusive), the same wherever the name
    stands."""

    name: str
    lo: int = 1
    hi: int = 2**31 - 1

    def __post_init__(self) -> None:
        if not 0 <= self.lo <= self.hi:
            raise SpyrecError(f"dimension {self.name}: the range {self.lo}..{self.hi} is empty")

    def __str__(self) -> str:
        """As IR text has it: ``batch[1..64]``."""
        return f"{symbol_text(self.name)}[{int_text(self.lo)}..{int_text(self.hi)}]"


Dim = int | Sym
Space = Literal["hbm", "lx"]


@dataclass(frozen=True)
class TensorType:
    """``shape`` (ints or Syms), element ``dtype`` and, from the device stage on, ``layout`` and
    ``space`` (which memory the tensor lives in)."""

    shape: tuple[Dim, ...]
    dtype: DType
    layout: Layout | None = None
    space: Space | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as ints; SpyrecError when a dimension is still symbolic."""
        free = [d.name for d in self.shape if isinstance(d, Sym)]
        if free:
            raise SpyrecError(f"dimension {', '.join(free)} has no value yet; bind it first")
        return tuple(d for d in self.shape if isinstance(d, int))

    @property
    def size(self) -> int:
        """Number of elements (1 for a scalar)."""
        n = 1
        for d in self.static_shape:
            n *= d
        return n

    def __str__(self) -> str:
        """As IR text has it: ``tensor<4x8xf32>``, with layout and space if it has them."""
        dims = "".join(f"{d if isinstance(d, Sym) else int_text(d)}x" for d in self.shape)
        extra = [str(part) for part in (self.layout, self.space) if part is not None]
        return f"tensor<{', '.join([dims + self.dtype.name, *extra])}>"

    def with_(self, **changes: object) -> TensorType:
        return replace(self, **changes)  # type: ignore[arg-type]


def tensor(shape: tuple[Dim, ...] | list[Dim], dtype_: DType | str) -> TensorType:
    """Shorthand: ``tensor((2, 3), "f32")``."""
    return TensorType(tuple(shape), dtype(dtype_) if isinstance(dtype_, str) else dtype_)
