"""How long a tensor really is where a bucket is longer: each axis as factors whose true extents
follow from the run-time sizes of the open dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

Sizes = Mapping[str, int]
"""What one import bound each open dimension to."""


@dataclass(frozen=True)
class Factor:
    """One mixed-radix factor of an axis.

    ``size``: its extent in the bucket. ``dim``: the open dimension it follows ("" when it is
    fixed); its true extent is then the dimension's true size plus ``add``. What lies at that index
    or beyond is padding. ``zero``: every element whose index is padding along this factor, and
    along no other, is zero.
    """

    size: int
    dim: str = ""
    add: int = 0
    zero: bool = False

    def true(self, sizes: Sizes) -> int:
        """Its extent when the open dimensions have these sizes."""
        return sizes[self.dim] + self.add if self.dim else self.size

    def __str__(self) -> str:
        return f"{self.dim}{self.add:+d}" if self.dim else str(self.size)


Axis = tuple[Factor, ...]
"""Outermost factor first; no fixed factor of 1, no two fixed factors side by side."""


@dataclass(frozen=True)
class Extents:
    """What is known of a value. ``finite``: no element is NaN or infinite as long as no input of
    the model is; ``low``: no element is less."""

    axes: tuple[Axis, ...]
    finite: bool = False
    low: float = -math.inf

    @property
    def padded(self) -> bool:
        return any(f.dim for axis in self.axes for f in axis)

    def with_axes(self, axes: Iterable[Axis]) -> Extents:
        return replace(self, axes=tuple(axes))


def axis_of(factors: Iterable[Factor]) -> Axis:
    """The factors in their one normal form."""
    out: list[Factor] = []
    for f in factors:
        if not f.dim and f.size == 1:
            continue
        if not f.dim and out and not out[-1].dim:
            out[-1] = Factor(out[-1].size * f.size)
        else:
            out.append(f)
    return tuple(out)


def fixed(size: int) -> Axis:
    return axis_of([Factor(size)])


def size_of(axis: Axis) -> int:
    return math.prod(f.size for f in axis)


def true_size(axis: Axis, sizes: Sizes) -> int:
    return math.prod(f.true(sizes) for f in axis)


def open_factors(axis: Axis) -> tuple[int, ...]:
    """The places of the factors that have padding."""
    return tuple(i for i, f in enumerate(axis) if f.dim)


def scattered(axis: Axis) -> bool:
    """Whether padding lies between true elements, whose indices then follow the size."""
    return any(place > 0 for place in open_factors(axis))


def same(a: Axis, b: Axis) -> bool:
    """Whether padding lies in the same places."""
    return plain(a) == plain(b)


def plain(axis: Axis) -> Axis:
    """The axis without what is known of its padding."""
    return tuple(replace(f, zero=False) for f in axis)


def spread(axes: Sequence[Axis], rank: int) -> list[Axis]:
    """Axes as numpy broadcasts them: missing leading ones are of size 1."""
    return [()] * (rank - len(axes)) + list(axes)


def with_zero(axis: Axis, zero: Sequence[bool]) -> Axis:
    return tuple(
        replace(f, zero=bool(f.dim) and z) for f, z in zip(axis, zero, strict=True)
    )


def seen(sizes: Sequence[Sizes], extents: Sequence[int]) -> Axis | None:
    """The axis whose extent under ``sizes[i]`` was ``extents[i]``, the bucket's own first: fixed,
    or an open dimension plus a number; None when it follows neither."""
    if len(set(extents)) == 1:
        return fixed(extents[0])
    for dim in sizes[0]:
        adds = {n - s[dim] for n, s in zip(extents, sizes, strict=True)}
        if len(adds) == 1:
            return (Factor(extents[0], dim, adds.pop()),)
    return None


def regrouped(axes: Sequence[Axis], shape: Sequence[int]) -> tuple[Axis, ...] | None:
    """The axes of the same elements in row-major order under another shape; None when an open
    factor would have to be cut."""
    left = [f for axis in axes for f in axis][::-1]
    out: list[Axis] = []
    for size in shape:
        taken: list[Factor] = []
        while size > 1 or (left and left[-1].dim and left[-1].size == 1):
            if not left:
                return None
            f = left.pop()
            if size % f.size == 0:
                taken.append(f)
                size //= f.size
            elif not f.dim and f.size % size == 0:
                taken.append(Factor(size))
                left.append(Factor(f.size // size))
                size = 1
            else:
                common = math.gcd(f.size, size)
                if f.dim or common == 1:
                    return None
                taken.append(Factor(common))
                left.append(Factor(f.size // common))
                size //= common
        out.append(axis_of(taken))
    return None if any(f.size > 1 or f.dim for f in left) else tuple(out)
