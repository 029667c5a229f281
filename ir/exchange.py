"""From one ownership or layout to another: which core sends what to whom, and which slot becomes
which. Both are worked out by intersecting what layouts say, never by listing elements twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from .digits import Ints
from .layout import Box, Layout, LayoutError


@dataclass(frozen=True)
class Piece:
    """The elements of ``box`` go from ``src_core`` to ``dst_core`` (which may be the same core)."""

    src_core: int
    dst_core: int
    box: Box


def exchange(
    src: Layout, dst_boxes: Sequence[Box | None], stops: int | None = None
) -> list[Piece]:
    """Give each destination core the elements of its box, out of what the cores of ``src`` own.

    See ``exchange_boxes``. LayoutError when a box reaches outside the tensor.
    """
    return exchange_boxes(src.boxes(), dst_boxes, stops)


def exchange_boxes(
    src_boxes: Sequence[Box | None], dst_boxes: Sequence[Box | None], stops: int | None = None,
    spread: bool = False,
) -> list[Piece]:
    """Exact cover of each destination's box by what the sources hold: each of its elements comes
    once, from the core itself when it holds a copy, else from the nearest core that does.

    ``src_boxes[c]`` and ``dst_boxes[c]`` belong to core c, None or an empty box for nothing; both
    may overlap (copies, halos). Near is meant on a ring of ``stops`` stops (default: as many as
    there are cores), the lower core number first on a tie. Pieces come by destination, then by
    distance. ``spread``: of several that hold it, the one that has given least to others so far,
    the nearest on a tie.
    LayoutError when some element is held nowhere.
    """
    ring = max(stops or 0, len(src_boxes), len(dst_boxes))
    holders = [(core, box) for core, box in enumerate(src_boxes) if box and not is_empty(box)]
    pieces: list[Piece] = []
    given = dict.fromkeys((core for core, _ in holders), 0)
    for core, wanted in enumerate(dst_boxes):
        if not wanted or is_empty(wanted):
            continue
        missing = [wanted]
        far = {holder: ring_distance(holder, core, ring) for holder, _ in holders}
        for holder, held in sorted(
            holders, key=lambda h: (far[h[0]] > 0, spread and given[h[0]], far[h[0]])
        ):
            left: list[Box] = []
            for box in missing:
                common = intersect(box, held)
                if common is None:
                    left.append(box)
                    continue
                pieces.append(Piece(holder, core, common))
                given[holder] += (holder != core) * prod(n for _, n in common)
                left += _around(box, common)
            missing = left
            if not missing:
                break
        if missing:
            raise LayoutError(
                f"core {core} needs elements {missing[0]} (start, size per dimension), which no "
                f"core holds; give them an owner or make its box smaller"
            )
    return pieces


def ring_distance(a: int, b: int, stops: int) -> int:
    """Hops between two stops of a bidirectional ring, the short way."""
    return min((a - b) % stops, (b - a) % stops)


def is_empty(box: Box) -> bool:
    """Whether the box holds no point."""
    return any(size < 1 for _, size in box)


def intersect(a: Box, b: Box) -> Box | None:
    """The points in both boxes, None when there are none. LayoutError when the ranks differ."""
    if len(a) != len(b):
        raise LayoutError(f"boxes {a} and {b} have different ranks")
    common = []
    for (p, n), (q, m) in zip(a, b, strict=True):
        start, size = max(p, q), min(p + n, q + m) - max(p, q)
        if size < 1:
            return None
        common.append((start, size))
    return tuple(common)


def subtract(a: Box, b: Box) -> list[Box]:
    """Disjoint boxes that hold the points of ``a`` which are not in ``b``."""
    common = intersect(a, b)
    return [a] if common is None else _around(a, common)


def _around(a: Box, common: Box) -> list[Box]:
    """``subtract`` for a box ``common`` that lies inside ``a``."""
    rest: list[Box] = []
    for dim, ((start, size), (begin, length)) in enumerate(zip(a, common, strict=True)):
        before = (start, begin - start)
        after = (begin + length, start + size - begin - length)
        rest += [
            (*common[:dim], side, *a[dim + 1 :]) for side in (before, after) if side[1] > 0
        ]
    return rest


@dataclass(frozen=True)
class SlotMap:
    """The exact map from the slots of layout ``a`` to those of layout ``b`` of the same tensor."""

    a: Layout
    b: Layout

    def __call__(
        self,
        core: npt.ArrayLike,
        loop: npt.ArrayLike,
        stick: npt.ArrayLike,
        lane: npt.ArrayLike,
    ) -> Ints:
        """Slots of ``a`` (arguments broadcast) -> ``[..., 4]`` (core, loop, stick, lane) of
        ``b``; rows of -1 for slots that hold no element. Of copies in ``b`` the first is named."""
        coords = self.a.element(core, loop, stick, lane)
        alive = coords[..., 0] >= 0
        slots = np.full((*coords.shape[:-1], 4), -1, dtype=np.int64)
        slots[alive] = np.stack(self.b.locate(coords[alive]), axis=-1)
        return slots

    def table(self) -> Ints:
        """The whole map: ``[a.cores, a.loops, a.sticks, a.lanes, 4]``."""
        a = self.a
        return self(*np.indices((a.cores, a.loops, a.sticks, a.lanes)))

    def inverse(self) -> SlotMap:
        """From ``b`` to ``a``."""
        return SlotMap(self.b, self.a)

    def is_identity(self) -> bool:
        """Whether every slot holds the same element in both, so that the change moves nothing."""
        a, b = self.a, self.b
        ours, theirs = ((x.cores, x.loops, x.sticks, x.lanes) for x in (a, b))
        slots = np.indices([max(pair) for pair in zip(ours, theirs, strict=True)])
        return np.array_equal(a.element(*slots), b.element(*slots))


def compose(a: Layout, b: Layout) -> SlotMap:
    """The slot map from ``a`` to ``b``: find the element, then find its place. LayoutError when
    the two are not layouts of one shape."""
    if a.shape != b.shape:
        raise LayoutError(f"layouts {a} and {b} are not of one shape")
    return SlotMap(a, b)
