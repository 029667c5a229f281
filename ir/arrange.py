"""Lane arrangements: which elements of a tensor share a stick, and in what order, where they do not
simply stand one behind the other.

The narrow factors of the matrix unit and a widened tensor are laid out so. The arrangements are
those the published compiler calls QFP8CH, QFP8WT and DL16-to-FP32 (torch-spyre), and their int4
kin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, Literal

from .digits import Axis, Digit, LayoutError, Whole
from .layout import LaneState, Layout

Side = Literal["along", "across"]


@dataclass(frozen=True)
class Arrangement:
    """The innermost digits of a layout, as ``(side, size, stride, axis)``: along the stick
    dimension, or across it along another one."""

    bits: int
    digits: tuple[tuple[Side, int, int, Axis], ...]

    def block(self, side: Side) -> int:
        """Elements that stay together along one side."""
        return prod(size for s, size, _, _ in self.digits if s == side)

    def inner(self, stick_dim: int, across: int) -> tuple[Digit, ...]:
        """The digits of a tensor."""
        dims = {"along": stick_dim, "across": across}
        return tuple(Digit(dims[s], size, stride, axis) for s, size, stride, axis in self.digits)


ARRANGEMENTS: dict[str, Arrangement] = {
    "qfp8ch": Arrangement(
        8, (("along", 8, 8, "lane"), ("along", 2, 64, "lane"), ("along", 8, 1, "lane"))
    ),
    "qfp8wt": Arrangement(8, (("across", 2, 1, "lane"), ("along", 64, 1, "lane"))),
    "qint4ch": Arrangement(
        4, (("along", 16, 8, "lane"), ("across", 2, 1, "lane"), ("along", 8, 1, "lane"))
    ),
    "qint4wt": Arrangement(4, (("across", 4, 1, "lane"), ("along", 64, 1, "lane"))),
    "widened": Arrangement(
        32, (("along", 2, 4, "mem"), ("along", 8, 8, "lane"), ("along", 4, 1, "lane"))
    ),
}
"""By name. ``qfp8ch``, ``qfp8wt``: first and second factor in fp8 and int8 (two halves of 64
interleaved in groups of eight; two rows of 64). ``qint4ch``, ``qint4wt``: in int4 (two rows
interleaved in groups of eight; four rows of 64). ``widened``: fp32 made from 64 lanes of 16 bits,
groups of four in turn in either of two sticks."""


def arranged(
    name: str,
    shape: Sequence[int],
    stick_dim: int,
    across: int = -1,
    order: Sequence[int] | None = None,
    pad: LaneState = "undefined",
) -> Layout:
    """One undivided buffer in the arrangement ``name``, padded to whole blocks. ``across``: the
    dimension that shares sticks with ``stick_dim``, if the arrangement has one; ``order`` as in
    ``Layout.stick``. LayoutError for a wrong argument."""
    if name not in ARRANGEMENTS:
        raise LayoutError(f"no arrangement is called {name!r}; known: {', '.join(ARRANGEMENTS)}")
    what = ARRANGEMENTS[name]
    plain = Layout.stick(shape, what.bits, stick_dim, order, pad)
    if what.block("across") > 1 and (across == stick_dim or not 0 <= across < len(plain.shape)):
        raise LayoutError(
            f"arrangement {name} needs a second dimension beside {stick_dim} of {plain.shape}, "
            f"got {across}"
        )
    units = {stick_dim: what.block("along"), across: what.block("across")}
    outer = dict.fromkeys(g.dim for g in plain.digits if g.axis == "mem")
    digits = [Digit(d, -(-plain.shape[d] // units.get(d, 1)), units.get(d, 1), "mem")
              for d in outer]  # fmt: skip
    return replace(plain, digits=(*digits, *what.inner(stick_dim, across)))


def arrangement_of(layout: Layout) -> str:
    """The name of the layout's arrangement; "" when its lanes stand in order."""
    for name, what in ARRANGEMENTS.items():
        tail = layout.digits[len(layout.digits) - len(what.digits) :]
        across = {g.dim for g in tail} - {layout.stick_dim} or {-1}
        if layout.bits == what.bits and tail == what.inner(layout.stick_dim, min(across)):
            return name
    return ""


def resized(layout: Layout, shape: Sequence[int]) -> Layout:
    """The undivided layout of a tensor of another shape (rank kept) with the same dimension order,
    stick dimension and arrangement."""
    digits = [g for g in layout.digits if g.axis in ("mem", "lane")]
    for dim, extent in enumerate(shape):
        at = next(i for i, g in enumerate(digits) if g.dim == dim and g.axis == "mem")
        digits[at] = replace(digits[at], size=-(-extent // digits[at].stride))
    return replace(layout, shape=tuple(shape), digits=tuple(digits))


def resized_sticks(layout: Layout, shape: Sequence[Whole]) -> Whole:
    """``resized(layout, shape).sticks``."""
    units, inner = _blocks(layout)
    sticks: Any = inner
    for n, unit in zip(shape, units, strict=True):
        sticks = sticks * -(-n // unit)
    return sticks  # type: ignore[no-any-return]


@lru_cache(maxsize=1 << 12)
def _blocks(layout: Layout) -> tuple[tuple[int, ...], int]:
    """Elements along each dimension for which a buffer has the same sticks, and how many it has for
    one such block."""
    outer: dict[int, Digit] = {}
    inner = 1
    for digit in layout.digits:
        if digit.axis == "mem" and outer.setdefault(digit.dim, digit) is not digit:
            inner *= digit.size
    return tuple(outer[d].stride for d in range(len(layout.shape))), inner
