"""Boxes of a tensor on their way over the ring, and the buffers between which they go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod

from spyrec.ir.exchange import exchange_boxes
from spyrec.ir.layout import Layout
from spyrec.sim.device import DeviceSpec

from .homes import Boxes
from .kernel import Box, memory_order
from .ring_ways import Fragment
from .runs import STICK

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Send:
    """A box of the tensor from one core to the cores of a mask, where it lands at the same place
    in each: in their buffers, or ``beside`` them, so many sticks from where the room for that
    begins and packed in the order in which it lies at its sender."""

    core: int
    box: Box
    offset: tuple[int, ...]  # of the box in the receivers' boxes, when it lands in their buffers
    cores: int
    beside: int | None = None

    @property
    def sizes(self) -> Sizes:
        return tuple(n for _, n in self.box)

    @property
    def stays(self) -> bool:
        """Does it go nowhere but to another place of its own core?"""
        return self.cores == 1 << self.core


def plan_sends(
    own: Sequence[Box], need: Sequence[Box], stops: int, spread: bool = False
) -> tuple[Send, ...]:
    """Give every core exactly the elements it needs, each once, from the nearest owner on a ring of
    ``stops`` stops or, ``spread``, from the one that has given least so far; equal pieces for
    several cores become one multicast.

    LayoutError when nobody owns what a core needs.
    """
    return _sends(tuple(own), tuple(need), stops, spread)


@lru_cache(maxsize=1024)
def _sends(own: Boxes, need: Boxes, stops: int, spread: bool) -> tuple[Send, ...]:
    grouped: dict[tuple[int, Box, tuple[int, ...]], int] = {}
    for piece in exchange_boxes(own, need, stops, spread):
        there = need[piece.dst_core]
        offset = tuple(p - b for (p, _), (b, _) in zip(piece.box, there, strict=True))
        key = (piece.src_core, piece.box, offset)
        grouped[key] = grouped.get(key, 0) | 1 << piece.dst_core
    return tuple(Send(src, box, offset, mask) for (src, box, offset), mask in grouped.items())


def steps_and_strides(layout: Layout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Elements in one step along each dimension, and sticks from one to the next (0 where there is
    only one)."""
    units = tuple(layout.unit(t) for t in range(len(layout.shape)))
    return units, tuple(
        layout.dim_stride(t) if layout.shape[t] > unit else 0 for t, unit in enumerate(units)
    )


@dataclass(frozen=True)
class Ends:
    """The buffers between which boxes are moved, of the cores before and after."""

    source: Layout
    target: Layout

    @cached_property
    def _steps(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        units, here = steps_and_strides(self.source)
        _, there = steps_and_strides(self.target)
        inner = sorted(range(len(units)), key=lambda t: -max(here[t], there[t]))[::-1]
        return units, here, there, tuple(inner)

    @property
    def source_strides(self) -> tuple[int, ...]:
        return self._steps[1]

    def counts(self, sizes: Sizes) -> list[int]:
        """Steps of a box along each dimension."""
        return [-(-n // unit) for n, unit in zip(sizes, self._steps[0], strict=True)]

    @cached_property
    def _sizes(self) -> dict[Sizes, tuple[int, int]]:
        return {}

    @cached_property
    def _packed(self) -> dict[Sizes, Ends]:
        return {}

    def bytes_and_runs(self, sizes: Sizes) -> tuple[int, int]:
        """Bytes of a box of those sizes and in how many pieces contiguous at both ends they go."""
        found = self._sizes.get(sizes)
        if found is None:
            found = self._sizes[sizes] = self._bytes_and_runs(sizes)
        return found

    def _bytes_and_runs(self, sizes: Sizes) -> tuple[int, int]:
        _, here, there, inner = self._steps
        counts = self.counts(sizes)
        wide = max(1, self.source.bits // 16)
        run = wide
        for t in inner:
            if counts[t] > 1:
                if not here[t] == there[t] == run:
                    break
                run *= counts[t]
        sticks = prod(counts) * wide
        return sticks * STICK, sticks // run

    @cached_property
    def dims(self) -> int:
        """Iteration dimensions that a transfer may have: those of more than one stick, and the
        sticks of a group of wide elements."""
        longest = zip(self.source.shape, self.target.shape, self._steps[0], strict=True)
        return sum(max(n, m) > unit for n, m, unit in longest) + (self.target.bits > 16)

    def packed(self, sizes: Sizes) -> Ends:
        """The same source, and as target the room of a box that lands beside the buffers."""
        found = self._packed.get(sizes)
        if found is None:
            like = self.source
            room = Layout.stick(sizes, like.bits, like.stick_dim, memory_order(like))
            found = self._packed[sizes] = Ends(like, room)
        return found

    def fragment(self, send: Send) -> Fragment:
        sizes = send.sizes
        ends = self if send.beside is None else self.packed(sizes)
        return Fragment(send.core, send.cores, *ends.bytes_and_runs(sizes))


def copy_cycles(copies: Sequence[Send], ends: Ends, device: DeviceSpec) -> int:
    """Cycles in which the vector units bring what stays on its core to its new place."""
    busy: dict[int, int] = {}
    for s in copies:
        nbytes, _ = ends.bytes_and_runs(s.sizes)
        took = int(device.sfp.shuffle_cycles(nbytes, STICK, nbytes // STICK))
        busy[s.core] = busy.get(s.core, 0) + took
    return max(busy.values(), default=0)


PARTS, PART_BYTES = 4, 4096  # into how many, of at least so much


def divided(send: Send, ends: Ends, parts: int = PARTS) -> Iterator[Send]:
    """The parts of a send along the dimension that is outermost where it comes from."""
    counts = ends.counts(send.sizes)
    nbytes, _ = ends.bytes_and_runs(send.sizes)
    t = max(range(len(counts)), key=lambda t: (counts[t] > 1) * ends.source_strides[t])
    n = min(parts, counts[t], max(1, nbytes // PART_BYTES))
    unit, (start, size) = ends.source.unit(t), send.box[t]
    cuts = [counts[t] * i // n * unit for i in range(n)] + [size]
    for a, b in pairwise(cuts):
        box = (*send.box[:t], (start + a, b - a), *send.box[t + 1 :])
        offset = (*send.offset[:t], send.offset[t] + a, *send.offset[t + 1 :])
        yield Send(send.core, box, offset, send.cores)
