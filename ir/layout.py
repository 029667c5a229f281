"""Where each element of a tensor lives: on which core, in which loop trip, stick and lane.
Every pass that asks about ownership or addresses asks here; none works them out again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from . import lanes
from .digits import (
    AXES,
    COPY,
    STICK_BITS,
    SUM,
    Axis,
    Digit,
    Ints,
    LayoutError,
    balanced,
    depth,
    fault,
    parse_digit,
    split_points,
)
from .errors import ParseError

__all__ = [
    "AXES",
    "COPY",
    "GROUP",
    "LANE_STATES",
    "STICK_BITS",
    "SUM",
    "Axis",
    "Box",
    "Digit",
    "LaneState",
    "Layout",
    "LayoutError",
    "parse_layout",
    "split_points",
]

LaneState = Literal["undefined", "zero", "-inf", "+inf", "replicated"]
LANE_STATES: tuple[LaneState, ...] = get_args(LaneState)

Box = tuple[tuple[int, int], ...]
"""A range of coordinates: ``(start, size)`` per dimension."""

GROUP = 64
"""Elements the vector unit takes at once; the stick dimension is padded to whole groups."""


@dataclass(frozen=True)
class Layout:
    """A tensor of ``shape`` with ``bits`` an element, laid out over cores, trips, sticks and lanes.

    ``digits`` stand in the order core, loop, mem, lane; within an axis the first is the most
    significant. Digits of one dimension nest (see ``digits.depth``), each dividing the largest part
    of the one outside it: memory digits count within the buffer of one core and one trip. ``pad``
    is what slots that hold no element contain. LayoutError when an element has no place.
    """

    shape: tuple[int, ...]
    bits: int
    digits: tuple[Digit, ...]
    pad: LaneState = "undefined"

    def __post_init__(self) -> None:
        problem = fault(self.shape, self.bits, self.digits)
        if self.pad not in LANE_STATES:
            problem = f"pad state {self.pad!r} is unknown; known: {', '.join(LANE_STATES)}"
        if problem:
            raise LayoutError(f"layout {self}: {problem}")

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        digits = ", ".join(map(str, self.digits))
        return f"[shape {shape} bits {self.bits} | {digits} | pad {self.pad}]"

    @staticmethod
    def stick(
        shape: Sequence[int],
        bits: int,
        stick_dim: int,
        order: Sequence[int] | None = None,
        pad: LaneState = "undefined",
    ) -> Layout:
        """One undivided buffer with sticks along ``stick_dim``, padded there to whole groups of 64
        elements (formats of 8 bits and fewer: to whole sticks). Rank 0 is taken as shape (1,).

        ``order`` lists all dimensions outermost first; the place of ``stick_dim`` is that of its
        groups. Default: the groups just outside the last dimension but one when the stick
        runs along the last, else all dimensions as they come. LayoutError for a wrong argument.
        """
        shape = tuple(shape) or (1,)
        rank = len(shape)
        if not 0 <= stick_dim < rank:
            raise LayoutError(
                f"stick dimension {stick_dim} is not in 0..{rank - 1}, the dimensions of {shape}"
            )
        if bits < 1 or STICK_BITS % bits:
            raise LayoutError(f"elements of {bits} bits do not fill a stick of {STICK_BITS} evenly")
        if order is None:
            order = list(range(rank))
            if stick_dim == rank - 1 > 0:
                order[-2:] = rank - 1, rank - 2
        if sorted(order) != list(range(rank)):
            raise LayoutError(f"order {tuple(order)} does not list each of {rank} dimensions once")
        lane_count = STICK_BITS // bits
        group = max(GROUP, lane_count)
        digits = [Digit(d, shape[d], 1, "mem") for d in order]
        groups = Digit(stick_dim, -(-shape[stick_dim] // group), group, "mem")
        digits[list(order).index(stick_dim)] = groups
        if group > lane_count:
            digits.append(Digit(stick_dim, group // lane_count, lane_count, "mem"))
        digits.append(Digit(stick_dim, lane_count, 1, "lane"))
        return Layout(shape, bits, tuple(digits), pad)

    # Facts

    @cached_property
    def nests(self) -> tuple[tuple[int, ...], ...]:
        """For each dimension the positions of its digits in ``digits``, outermost first."""
        return tuple(
            tuple(
                sorted(
                    (k for k, g in enumerate(self.digits) if g.dim == dim),
                    key=lambda k: depth(self.digits[k]),
                )
            )
            for dim in range(len(self.shape))
        )

    @cached_property
    def _weights(self) -> tuple[int, ...]:
        """For each digit what one step of its index adds to the number of its axis."""
        return tuple(
            math.prod(g.size for g in self.digits[k + 1 :] if g.axis == digit.axis)
            for k, digit in enumerate(self.digits)
        )

    def nest(self, dim: int, *axes: Axis) -> tuple[Digit, ...]:
        """The digits of ``dim`` on the given axes (on all when none is given), outermost first."""
        inside = (self.digits[k] for k in self.nests[dim])
        return tuple(g for g in inside if not axes or g.axis in axes)

    def _count(self, axis: Axis) -> int:
        return math.prod(g.size for g in self.digits if g.axis == axis)

    @property
    def cores(self) -> int:
        """How many cores share the tensor, copies included; 1 when it is not divided."""
        return self._count("core")

    @property
    def terms(self) -> int:
        """Of how many cores' terms each element is the sum; 1 when the elements are there."""
        return math.prod(g.size for g in self.digits if g.dim == SUM)

    @property
    def loops(self) -> int:
        """How many loop trips the parts are cut into."""
        return self._count("loop")

    @property
    def sticks(self) -> int:
        """Sticks of the buffer of one core (and one trip)."""
        return self._count("mem")

    @property
    def lanes(self) -> int:
        """Elements of one stick."""
        return STICK_BITS // self.bits

    @property
    def group(self) -> int:
        """Elements along the stick dimension that stay together: 64, or a stick if longer."""
        return self.unit(self.stick_dim)

    def unit(self, dim: int) -> int:
        """Elements along a dimension that stay together: those in one stick, and at least 64 along
        the stick dimension."""
        return self.units[dim]

    @cached_property
    def units(self) -> tuple[int, ...]:
        """``unit`` of each dimension."""
        lanes = [math.prod(g.size for g in self.nest(d, "lane")) for d in range(len(self.shape))]
        return tuple(max(GROUP, n) if d == self.stick_dim else n for d, n in enumerate(lanes))

    @property
    def stick_dim(self) -> int:
        """The dimension whose neighbours lie in neighbouring lanes."""
        return self.digits[-1].dim

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Extents of the largest part a core owns."""
        return tuple(self._widest(d, "core") for d in range(len(self.shape)))

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """Extents of the largest part a core holds in one loop trip."""
        return tuple(self._widest(d, "core", "loop") for d in range(len(self.shape)))

    def _widest(self, dim: int, *axes: Axis) -> int:
        return min([self.shape[dim], *(g.widest for g in self.nest(dim, *axes))])

    def dim_stride(self, dim: int) -> int:
        """Sticks from one coordinate along ``dim`` to the next; for the stick dimension from one
        group to the next. LayoutError when that differs by place or is less than a stick.
        """
        unit = self.unit(dim)
        outer = [k for k in self.nests[dim] if self.digits[k].stride >= unit]
        inner = [k for k in outer if self.digits[k].axis in ("mem", "lane")]
        lane = any(self.digits[k].axis == "lane" and self.digits[k].size > 1 for k in inner)
        mem = [k for k in inner if self.digits[k].axis == "mem"]
        if lane or not any(self.digits[k].stride == unit for k in mem):
            raise LayoutError(f"layout {self}: a step along dimension {dim} is less than a stick")
        moving = [k for k in mem if self.digits[k].size > 1] or mem
        steps = {Fraction(self._weights[k] * unit, self.digits[k].stride) for k in moving}
        step = steps.pop()
        if steps or step.denominator != 1:
            raise LayoutError(
                f"layout {self}: steps along dimension {dim} differ; give it one memory digit"
            )
        return int(step)

    # Ownership

    def box(self, core: int) -> Box:
        """What ``core`` owns; all sizes are 0 when it owns nothing, as a core does that holds terms
        of what another will own. LayoutError for a core that is not one of ``cores``."""
        box = self.term_box(core)
        sums = bool(self._last_terms(np.int64(core)))
        return box if sums else tuple((start, 0) for start, _ in box)

    def term_box(self, core: int) -> Box:
        """What ``core`` holds elements or terms of; all sizes are 0 when it is nothing. LayoutError
        for a core that is not one of ``cores``."""
        if not 0 <= core < self.cores:
            raise LayoutError(f"core {core} is not one of the {self.cores} of layout {self}")
        box = []
        for dim, extent in enumerate(self.shape):
            start, size = 0, extent
            for k in self.nests[dim]:
                digit = self.digits[k]
                if digit.axis == "core":
                    offset, width = digit.part(core // self._weights[k] % digit.size)
                    start, size = start + min(offset, size), max(min(width, size - offset), 0)
            box.append((start, size))
        empty = any(size == 0 for _, size in box)
        return tuple((start, 0 if empty else size) for start, size in box)

    def boxes(self) -> list[Box]:
        """``box`` of each core in order."""
        return [self.box(core) for core in range(self.cores)]

    def owned(
        self,
        parts: Mapping[int, int],
        core_order: Sequence[int],
        grains: Mapping[int, int] | None = None,
    ) -> Layout:
        """The same tensor divided among cores: dimension d into ``parts[d]`` balanced parts.

        Parts are multiples of ``grains[d]`` (default: the group along the stick dimension, else 1)
        and differ by at most one grain; the last may end early. ``core_order`` names the divided
        dimensions, the last changes fastest from core to core. Memory digits then describe the
        buffer of the largest part. LayoutError when it is divided already or arguments contradict.
        """
        if any(g.axis in ("core", "loop") for g in self.digits):
            raise LayoutError(f"layout {self} is divided already; start from its whole()")
        split = {dim for dim, count in parts.items() if count != 1}
        if len(set(core_order)) != len(core_order) or not split <= set(core_order) <= set(parts):
            raise LayoutError(
                f"core order {tuple(core_order)} does not name each divided dimension "
                f"({', '.join(map(str, sorted(split)))}) once"
            )
        digits = []
        for dim in core_order:
            grain = self._grain(dim, (grains or {}).get(dim), "grain")
            if parts[dim] < 1:
                raise LayoutError(f"dimension {dim} cannot be cut into {parts[dim]} parts")
            if parts[dim] > 1:
                digits.append(replace(balanced(self.shape[dim], parts[dim], grain), dim=dim))
        return self._inside(tuple(digits))

    def copied(self, copies: int) -> Layout:
        """The same division with ``copies`` neighbouring cores holding each part."""
        cores = tuple(g for g in self.digits if g.axis == "core")
        rest = self.digits[len(cores) :]
        return replace(self, digits=(*cores, Digit(COPY, copies, 0, "core"), *rest))

    def summed(self, terms: int) -> Layout:
        """The same division with ``terms`` neighbouring cores holding a term of each part, of which
        the last will own the sum."""
        cores = tuple(g for g in self.digits if g.axis == "core")
        rest = self.digits[len(cores) :]
        return replace(self, digits=(*cores, Digit(SUM, terms, 0, "core"), *rest))

    def complete(self) -> Layout:
        """The layout of the sums, among the cores that own them."""
        return replace(self, digits=tuple(g for g in self.digits if g.dim != SUM))

    def _last_terms(self, core: Ints | np.int64) -> npt.NDArray[np.bool_]:
        """Which of the core numbers are the last of those that hold terms of the same."""
        counts = [k for k, g in enumerate(self.digits) if g.dim == SUM]
        last = np.ones(np.shape(core), np.bool_)
        for k in counts:
            size = self.digits[k].size
            last &= core // self._weights[k] % size == size - 1
        return last

    def tiled(self, tiles: Mapping[int, int], loop_order: Sequence[int]) -> Layout:
        """Each core's part cut into loop trips of ``tiles[d]`` elements along each dimension of
        ``loop_order`` (outermost loop first); memory digits then describe the buffer of one trip.
        LayoutError when the layout is tiled already or the arguments contradict each other."""
        if sorted(loop_order) != sorted(tiles) or any(g.axis == "loop" for g in self.digits):
            raise LayoutError(
                f"layout {self} is tiled already, or loop order {tuple(loop_order)} does not name "
                f"each tiled dimension ({', '.join(map(str, sorted(tiles)))}) once"
            )
        digits = [g for g in self.digits if g.axis == "core"]
        for dim in loop_order:
            tile = self._grain(dim, tiles[dim], "tile")
            digits.append(Digit(dim, -(-self.local_shape[dim] // tile), tile, "loop"))
        return self._inside(tuple(digits))

    def whole(self) -> Layout:
        """The undivided, untiled layout with the same memory order."""
        return self._inside(())

    def _inside(self, outer: tuple[Digit, ...]) -> Layout:
        """This layout's memory and lane digits inside ``outer``, sized for its largest part."""
        digits = list(self.digits)
        for dim, nest in enumerate(self.nests):
            inner = [k for k in nest if digits[k].axis in ("mem", "lane")]
            top = digits[inner[0]] if inner else None
            if top and top.axis == "mem":
                widest = min([self.shape[dim], *(g.widest for g in outer if g.dim == dim)])
                digits[inner[0]] = replace(top, size=-(-widest // top.stride))
        kept = (g for g in digits if g.axis in ("mem", "lane"))
        return replace(self, digits=(*outer, *kept))

    def _grain(self, dim: int, asked: int | None, what: str) -> int:
        if not 0 <= dim < len(self.shape):
            raise LayoutError(f"{dim} is not a dimension of shape {self.shape}")
        atom = self.unit(dim)
        grain = atom if asked is None else asked
        if grain < 1 or grain % atom:
            raise LayoutError(
                f"{what} {grain} of dimension {dim} is not a multiple of {atom}, the number of "
                f"elements that stay together there"
            )
        return grain

    # Elements and slots

    def locate(self, coords: npt.ArrayLike) -> tuple[Ints, Ints, Ints, Ints]:
        """``(core, loop, stick, lane)`` of each row of ``coords`` [n, rank]; of copies the first,
        of terms the last, where the sum will be.

        LayoutError when a coordinate lies outside the shape.
        """
        points = np.asarray(coords, dtype=np.int64).reshape(-1, len(self.shape))
        if np.any(points < 0) or np.any(points >= np.array(self.shape)):
            raise LayoutError(f"layout {self}: a coordinate to locate lies outside the shape")
        number = {axis: np.zeros(len(points), dtype=np.int64) for axis in AXES}
        for digit, weight in zip(self.digits, self._weights, strict=True):
            if digit.dim == SUM:
                number["core"] += (digit.size - 1) * weight
        for dim, nest in enumerate(self.nests):
            rest: Ints = points[:, dim]
            for k in nest:
                index, rest = self.digits[k].split(rest)
                number[self.digits[k].axis] += index * self._weights[k]
        return number["core"], number["loop"], number["mem"], number["lane"]

    def element(
        self,
        core: npt.ArrayLike,
        loop: npt.ArrayLike,
        stick: npt.ArrayLike,
        lane: npt.ArrayLike,
    ) -> Ints:
        """The inverse of ``locate``: coordinates [..., rank] of what lives in each slot (arguments
        broadcast), rows of -1 where nothing does."""
        slot = (np.asarray(x, dtype=np.int64) for x in (core, loop, stick, lane))
        number = dict(zip(AXES, np.broadcast_arrays(*slot), strict=True))
        shape = number["core"].shape
        alive = self._last_terms(number["core"])
        for axis in AXES:
            alive &= (number[axis] >= 0) & (number[axis] < self._count(axis))
        coords = np.empty((*shape, len(self.shape)), dtype=np.int64)
        for dim, nest in enumerate(self.nests):
            inner: Ints = np.zeros(shape, dtype=np.int64)
            for k in reversed(nest):
                digit = self.digits[k]
                index = number[digit.axis] // self._weights[k] % digit.size
                alive &= inner < digit.width(index)
                inner = digit.start(index) + inner
            alive &= inner < self.shape[dim]
            coords[..., dim] = inner
        coords[~alive] = -1
        return coords

    def slice(self, box: Box) -> Layout:
        """The layout of the sub-tensor ``box`` as it lies in this one, its slots counted from its
        first element's: ``locate(start + x) - locate(start)`` is ``slice(box).locate(x) -
        slice(box).locate(0)`` for each x in all four numbers.

        LayoutError where there is none: the box is empty or outside, begins inside a part that it
        also leaves, or not at the start of a stick.
        """
        if len(box) != len(self.shape) or any(
            start < 0 or size < 1 or start + size > extent
            for (start, size), extent in zip(box, self.shape, strict=True)
        ):
            raise LayoutError(f"box {box} is empty or does not lie inside shape {self.shape}")
        digits = list(self.digits)
        for dim, (start, size) in enumerate(box):
            where = f"layout {self}: range {start}:{start + size} of dimension {dim}"
            first, last = np.array([start]), np.array([start + size - 1])
            crossed: Digit | None = None
            for k in self.nests[dim]:
                digit = digits[k]
                begin, first = digit.split(first)
                end, last = digit.split(last)
                if crossed and begin[0]:
                    raise LayoutError(
                        f"{where} begins inside a part of digit {crossed} and ends in another; "
                        f"begin it where a part begins, or repack"
                    )
                if digit.axis == "lane" and begin[0]:
                    raise LayoutError(f"{where} begins inside a stick; repack to begin in lane 0")
                if not crossed and begin[0] != end[0]:
                    crossed = digit
                skip = (digit.skip + int(begin[0])) % digit.size if digit.long else 0
                digits[k] = replace(digit, skip=skip)
        return replace(self, shape=tuple(size for _, size in box), digits=tuple(digits))

    # Host arrays

    def pack(self, array: npt.NDArray[Any], fill: float = 0) -> npt.NDArray[Any]:
        """Host array of ``shape`` -> ``[cores, loops * sticks, lanes]``; empty slots get ``fill``.

        LayoutError when shape or item size do not fit (4-bit elements come one to a byte).
        """
        self._require_host(array, self.shape)
        return lanes.pack(self, array.reshape(self.shape), fill)

    def unpack(self, packed: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The inverse of ``pack``: ``[cores, loops * sticks, lanes]`` -> array of ``shape``."""
        self._require_host(packed, (self.cores, self.loops * self.sticks, self.lanes))
        return lanes.unpack(self, packed)

    def _require_host(self, array: npt.NDArray[Any], want: tuple[int, ...]) -> None:
        if (array.shape or (1,)) != want:
            raise LayoutError(
                f"layout {self}: expected a host array of shape {want}, got {array.shape}"
            )
        if array.dtype.itemsize != max(self.bits // 8, 1):
            raise LayoutError(
                f"layout {self}: host items of type {array.dtype} are not {self.bits} bits wide"
            )


_LAYOUT = re.compile(
    r"\[shape (\d{1,18}(?:x\d{1,18})*) bits (\d{1,4}) \| (.*) \| pad (\S+)\]", re.ASCII
)
_MAX_DIGITS = 64


def parse_layout(text: str) -> Layout:
    """The layout that prints as ``text``. ParseError when it is of another form, LayoutError when
    the layout contradicts itself."""
    found = _LAYOUT.fullmatch(text)
    if found is None:
        raise ParseError(
            f"layout {text[:200]!r} is not of the form '[shape 2x3 bits 16 | digits | pad zero]'"
        )
    pieces = found[3].split(", ")
    if len(pieces) > _MAX_DIGITS:
        raise ParseError(f"a layout has {len(pieces)} digits; at most {_MAX_DIGITS} are read")
    pad = next((state for state in LANE_STATES if state == found[4]), None)
    if pad is None:
        raise ParseError(f"pad state {found[4][:80]!r} is unknown; known: {', '.join(LANE_STATES)}")
    shape = tuple(int(n) for n in found[1].split("x"))
    return Layout(shape, int(found[2]), tuple(map(parse_digit, pieces)), pad)
