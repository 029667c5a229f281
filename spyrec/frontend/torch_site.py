"""What a PyTorch conversion function works with: one call with its arguments by name, and the type
that torch gave its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spyrec.ir.core import Value
from spyrec.ir.types import DTYPES, DType, TensorType

from .emit import Handle, Known, Making, Unsupported, axis_of, shape_of
from .torch_graph import Element, Other

DTYPE_OF = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64",
    "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "uint16": "u16", "uint32": "u32",
    "uint64": "u64", "bool": "bool", "float8_e4m3fn": "f8e4m3",
}  # fmt: skip
"""Element types that can be imported."""

Number = bool | int | float
Item = Handle | Number | str | Element | Other | None | tuple[Any, ...]
"""What stands for an argument or a result: tensors as handles, sizes as numbers."""

_MISSING = object()


def element_dtype(name: str) -> DType:
    """The format of torch's element type. Unsupported when there is none."""
    if name not in DTYPE_OF:
        raise Unsupported(f"it works on {name} tensors")
    return DTYPES[DTYPE_OF[name]]


@dataclass(frozen=True, eq=False)
class Site(Making):
    """One call: ``args`` by schema name, names already replaced by what they stand for; ``results``
    the static types of its results, as torch found them (empty when they are numbers).

    The getters raise Unsupported when what they are asked for is missing or of another kind.
    """

    target: str
    args: Mapping[str, Item]
    results: tuple[TensorType, ...]

    @property
    def type(self) -> TensorType:
        """Of the first result."""
        if not self.results:
            raise Unsupported("torch does not tell the type of its result")
        return self.results[0]

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.static_shape

    # -- arguments

    def has(self, name: str) -> bool:
        return self.args.get(name) is not None

    def get(self, name: str, default: Any = _MISSING) -> Any:
        found = self.args.get(name)
        if found is None:
            if default is _MISSING:
                raise Unsupported(f"its argument '{name}' is missing")
            return default
        return found

    def tensor(self, name: str) -> Handle:
        found = self.get(name)
        if isinstance(found, bool | int | float):
            return Known(self.hint, np.asarray(found), scalar_dtype(found), self.loc)
        if not isinstance(found, Value | Known):
            raise Unsupported(f"its argument '{name}' is no tensor")
        return found

    def opt(self, name: str) -> Handle | None:
        return self.tensor(name) if self.has(name) else None

    def tensors(self, name: str) -> list[Handle]:
        found = self.get(name)
        if not isinstance(found, tuple) or not all(isinstance(t, Value | Known) for t in found):
            raise Unsupported(f"its argument '{name}' is no list of tensors")
        return list(found)

    def operand(self, name: str, dtype: DType) -> Handle:
        """A tensor or a number, as a tensor of ``dtype``."""
        found = self.get(name)
        if isinstance(found, bool | int | float):
            return self.const(found, dtype)
        return self.cast(self.tensor(name), dtype)

    def int_(self, name: str, default: Any = _MISSING) -> int:
        found = self._number(name, default)
        if found != int(found):
            raise Unsupported(f"its argument '{name}' is {found}, no whole number")
        return int(found)

    def float_(self, name: str, default: Any = _MISSING) -> float:
        return float(self._number(name, default))

    def bool_(self, name: str, default: bool = False) -> bool:
        return bool(self._number(name, default))

    def str_(self, name: str, default: str) -> str:
        return str(self.get(name, default))

    def ints(self, name: str, default: Any = _MISSING) -> tuple[int, ...]:
        """A list of whole numbers; a lone one counts as a list."""
        found = self.get(name, default)
        items = found if isinstance(found, tuple | list) else (found,)
        return tuple(self._whole(name, i) for i in items)

    def dim(self, name: str, rank: int, default: Any = _MISSING, *, end: bool = False) -> int:
        """A dimension as a non-negative number."""
        return axis_of(self.int_(name, default), max(rank, 1), end=end)

    def dims(self, name: str, rank: int) -> tuple[int, ...]:
        """Dimensions as non-negative numbers, all of them when none are named."""
        named = self.ints(name, ())
        return tuple(axis_of(d, max(rank, 1)) for d in named) if named else tuple(range(rank))

    def element(self, name: str) -> DType | None:
        """An element type, None when left out."""
        found = self.args.get(name)
        if found is None:
            return None
        if not isinstance(found, Element):
            raise Unsupported(f"its argument '{name}' is no element type")
        return element_dtype(found.name)

    def _whole(self, name: str, found: Any) -> int:
        if isinstance(found, Known) and found.array.size == 1:
            found = found.array.item()
        if isinstance(found, Value):
            raise Unsupported(f"its argument '{name}' is computed at run time")
        if not isinstance(found, int | float) or found != int(found):
            raise Unsupported(f"its argument '{name}' is no whole number")
        return int(found)

    def _number(self, name: str, default: Any) -> Number:
        found = self.get(name, default)
        if isinstance(found, Known) and found.array.size == 1:
            found = found.array.item()
        if isinstance(found, Value):
            raise Unsupported(f"its argument '{name}' is computed at run time")
        if not isinstance(found, bool | int | float):
            raise Unsupported(f"its argument '{name}' is no number")
        return found

    # -- results

    def fit(self, x: Handle) -> Handle:
        """``x`` in the type and shape of the first result."""
        return self.broadcast(self.cast(x, self.dtype), self.shape)

    def rounded(self, x: Handle) -> Handle:
        return self.cast(x, self.dtype)

    def slice(self, x: Handle, dim: int, start: int, size: int, step: int = 1) -> Handle:
        """Every ``step``-th element along a dimension."""
        shape = shape_of(x)
        if (start, size, step) == (0, shape[dim], 1):
            return x
        if not size:
            nothing = np.zeros(_at(shape, dim, None, 0), x.type.dtype.np_dtype)
            return Known(self.hint, nothing, x.type.dtype, self.loc)
        return self.emit(
            "slice", x, starts=_at(shape, dim, 0, start), sizes=_at(shape, dim, None, size),
            steps=_at(shape, dim, 1, step),
        )  # fmt: skip

    def splice(self, whole: Handle, part: Handle, dim: int, start: int) -> Handle:
        """``whole`` with ``part`` in place of what stands from ``start`` on along a dimension."""
        size, end = shape_of(whole)[dim], start + shape_of(part)[dim]
        pieces = [self.slice(whole, dim, 0, start), part, self.slice(whole, dim, end, size - end)]
        kept = [piece for piece in pieces if shape_of(piece)[dim]]
        if not kept:
            return whole
        return kept[0] if len(kept) == 1 else self.emit("concat", *kept, axis=dim)


def _at(shape: Sequence[int], dim: int, other: int | None, here: int) -> tuple[int, ...]:
    return tuple(
        here if d == dim else (n if other is None else other) for d, n in enumerate(shape)
    )


def scalar_dtype(value: Number) -> DType:
    """What torch takes a Python number for."""
    kind = "bool" if isinstance(value, bool) else "i64" if isinstance(value, int) else "f32"
    return DTYPES[kind]


Result = Item | Sequence[Item]
Converter = Callable[[Site], Result]
Table = dict[str, Converter]
