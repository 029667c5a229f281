"""Mixed-radix digits: the factors a layout is made of, their text, and when a list is sound."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from .errors import ParseError, SpyrecError

Axis = Literal["core", "loop", "mem", "lane"]
Ints = npt.NDArray[np.int64]
Whole = TypeVar("Whole", int, Ints)
"""A whole number, or an array of them that stands for each of its elements."""

AXES: tuple[Axis, ...] = get_args(Axis)
STICK_BITS = 1024
COPY = -1
"""``dim`` of a core digit that counts copies: each of its cores holds the same elements."""
SUM = -2
"""``dim`` of a core digit that counts terms: each of its cores holds a term of the same elements,
and the last is where their sum will be."""
NAMED = {COPY: "copy", SUM: "sum"}


class LayoutError(SpyrecError):
    """A layout contradicts itself, or what is asked of it cannot be expressed exactly."""


@dataclass(frozen=True)
class Digit:
    """One mixed-radix factor of dimension ``dim``: index ``i < size`` adds ``i * stride`` elements
    to the coordinate. ``axis`` says which number of the machine the index is part of.

    A core or loop digit may be uneven: ``long`` of its parts hold ``stride + grain`` elements, the
    others ``stride`` (which may be 0: those parts are empty), so index i adds
    ``i * stride + longs(i) * grain``. With ``skip`` it is what is left when so many parts before
    the first are cut off.
    """

    dim: int
    size: int
    stride: int
    axis: Axis
    long: int = 0
    grain: int = 0
    skip: int = 0

    def __str__(self) -> str:
        dim = NAMED.get(self.dim, str(self.dim))
        uneven = f"+{self.long}x{self.grain}" if self.long or self.grain else ""
        uneven += f"-{self.skip}" if self.skip else ""
        return f"{dim}:{self.size}*{self.stride}{uneven} {self.axis}"

    @property
    def reach(self) -> int:
        """Elements all parts hold together."""
        return self.size * self.stride + self.long * self.grain

    @property
    def widest(self) -> int:
        """Elements of the largest part."""
        return self.stride + self.grain

    def start(self, index: Ints) -> Ints:
        """Coordinate at which part ``index`` begins."""
        start: Ints = index * self.stride + (self._longs(index) - self._longs(0)) * self.grain
        return start

    def width(self, index: Ints) -> Ints:
        """Elements part ``index`` holds."""
        return self.start(index + 1) - self.start(index)

    def part(self, index: int) -> tuple[int, int]:
        """``(start, width)`` of one part."""
        first, mine, next_ = (self._longs(i) for i in (0, index, index + 1))
        start = index * self.stride + (mine - first) * self.grain
        return start, self.stride + (next_ - mine) * self.grain

    def _longs(self, index: Whole) -> Whole:
        return longs(index + self.skip, self)

    def split(self, coordinate: Ints) -> tuple[Ints, Ints]:
        """The part each coordinate falls in, and the coordinate within that part."""
        if not self.long:
            index = coordinate // max(self.stride, 1)
        else:  # of parts that begin in one place the last is not empty
            starts = self.start(np.arange(self.size))
            index = np.searchsorted(starts, coordinate, side="right") - 1
        return index, coordinate - self.start(index)


def depth(digit: Digit) -> tuple[int, int]:
    """Sort key of the digits of one dimension, outermost first: core digits, loop digits, then
    memory and lane digits by falling stride (equal strides: as listed, so memory first)."""
    match digit.axis:
        case "core" | "loop":
            return AXES.index(digit.axis), 0
        case _:
            return 2, -digit.stride


def fault(shape: tuple[int, ...], bits: int, digits: tuple[Digit, ...]) -> str:
    """Why the digits do not give each element of ``shape`` exactly one place (the end of a
    sentence), empty when they do."""
    if not shape or any(n < 1 for n in shape):
        return "each dimension must have an element (rank 0 is laid out as shape (1,))"
    if math.prod(shape) >= 2**62 or math.prod(max(g.size, 1) for g in digits) >= 2**62:
        return "it has 2**62 slots or more"
    for digit in digits:
        problem = _digit_fault(digit, len(shape))
        if problem:
            return f"digit {digit} {problem}"
    places = [AXES.index(g.axis) for g in digits]
    if places != sorted(places):
        return "digits must be listed in the order core, loop, mem, lane"
    lane_bits = math.prod(g.size for g in digits if g.axis == "lane") * bits
    if lane_bits != STICK_BITS or digits[-1].axis != "lane":
        return f"its lanes take {lane_bits} bits where a stick has {STICK_BITS}"
    for dim, extent in enumerate(shape):
        problem = _cover_fault(dim, extent, sorted((g for g in digits if g.dim == dim), key=depth))
        if problem:
            return problem
    return ""


def _digit_fault(digit: Digit, rank: int) -> str:
    if digit.axis not in AXES:
        return f"has an unknown axis; known: {', '.join(AXES)}"
    if digit.size < 1 or digit.stride < 0 or not 0 <= digit.long <= digit.size:
        return "has a size, stride or count of long parts out of range"
    if not 0 <= digit.skip < digit.size or (digit.skip and not digit.long):
        return "skips parts, which needs an uneven digit of more parts than that"
    uneven = digit.long > 0
    if uneven != (digit.grain > 0) or (uneven and digit.axis in ("mem", "lane")):
        return "is uneven, which needs a core or loop digit with a grain and a long part"
    if digit.dim in NAMED:
        wrong = digit.axis != "core" or digit.stride != 0 or uneven
        counts = "copies" if digit.dim == COPY else "terms"
        return f"counts {counts}, which needs an even core digit of stride 0" if wrong else ""
    if not 0 <= digit.dim < rank:
        return f"is of no dimension of a shape of rank {rank}"
    return "has empty parts only" if digit.widest == 0 else ""


def _cover_fault(dim: int, extent: int, nest: Iterable[Digit]) -> str:
    span = extent
    for digit in nest:
        if digit.reach < span:
            return f"digit {digit} reaches {digit.reach} of the {span} elements it must cover"
        span = min(span, digit.widest)
    if span != 1:
        return f"dimension {dim} ends in parts of {span} elements; its last digit needs stride 1"
    return ""


def split_points(extent: int, parts: int, grain: int = 1) -> list[tuple[int, int]]:
    """``(start, size)`` of ``parts`` balanced parts of 0..extent-1 in multiples of ``grain``.

    Sizes differ by at most one grain; where long parts lie ``longs`` says. The last non-empty part
    may end early, empty ones begin at ``extent``. LayoutError when an argument is out of range.

    >>> split_points(10, 4)
    [(0, 3), (3, 3), (6, 2), (8, 2)]
    >>> split_points(40 * 64, 32, 64)[2:6]  # every fourth part has 2 grains, the others 1
    [(192, 64), (256, 64), (320, 128), (448, 64)]
    """
    part = balanced(extent, parts, grain)
    starts = [min(part.part(i)[0], extent) for i in range(parts + 1)]
    return [(a, b - a) for a, b in pairwise(starts)]


def balanced(extent: int, parts: int, grain: int) -> Digit:
    """The core digit (of dimension 0) of what ``split_points`` makes. LayoutError when an argument
    is out of range."""
    if extent < 0 or parts < 1 or grain < 1:
        raise LayoutError(f"cannot cut {extent} elements into {parts} parts in grains of {grain}")
    base, more = divmod(-(-extent // grain), parts)
    return Digit(0, parts, base * grain, "core", more, grain if more else 0)


SPREAD = 24
"""So many parts of columns are a core each or nearly so: were the long ones next to one another,
the cores of one half of a card would have more to load than those of the other, over a link of
their own."""


def longs(index: Whole, digit: Digit) -> Whole:
    """How many long parts come before part ``index``, from the first that was not cut off. They are
    spread evenly, the first being one, over ``SPREAD`` parts or more of grains of several elements;
    else all others come after them: of rows, ops that take every second, or one more, then mostly
    find theirs where they are."""
    if digit.grain > 1 and digit.size >= SPREAD and digit.stride:
        return -(-index * digit.long // digit.size)
    return min(index, digit.long) if isinstance(index, int) else np.minimum(index, digit.long)


_NUMBER = r"\d{1,18}"
_UNEVEN = rf"(?:\+({_NUMBER})x({_NUMBER})(?:-({_NUMBER}))?)?"
_DIGIT = re.compile(rf"(copy|sum|\d{{1,4}}):({_NUMBER})\*({_NUMBER}){_UNEVEN} (\w+)", re.ASCII)


def parse_digit(text: str) -> Digit:
    """The digit that prints as ``text``; ParseError when it is of another form."""
    match_ = _DIGIT.fullmatch(text)
    axis = next((axis for axis in AXES if match_ and axis == match_[7]), None)
    if match_ is None or axis is None:
        raise ParseError(f"layout digit {text[:80]!r} is not of the form '0:32*2+3x1 core'")
    named = {name: dim for dim, name in NAMED.items()}
    dim = named[match_[1]] if match_[1] in named else int(match_[1])
    size, stride, long, grain, skip = (int(n or 0) for n in match_.group(2, 3, 4, 5, 6))
    return Digit(dim, size, stride, axis, long, grain, skip)
