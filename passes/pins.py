"""How planning passes read the decisions that a plan pins on a kernel; pin.py writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod

from .kernel import Nest

Counts = tuple[int, ...]
FREE = 0  # the entry of a dimension whose decision is not pinned


def pinned(nest: Nest, what: str) -> Counts:
    """The pinned ``"parts"`` or ``"tile"`` of each dimension, FREE where the pass decides."""
    pins: Counts = nest.op.attrs.get(f"pin_{what}", ())  # type: ignore[assignment]
    return pins or (FREE,) * len(nest.extents)


def pinned_cuts(
    nest: Nest, units: Counts, budget: int, search: Callable[[Counts, int], Iterable[Counts]]
) -> Iterator[Counts]:
    """The cuts ``search(units, budget)`` finds for the free dimensions, beside the pinned ones."""
    pins = pinned(nest, "parts")
    free = tuple(u if p == FREE else 1 for u, p in zip(units, pins, strict=True))
    for cut in search(free, budget // prod(p for p in pins if p != FREE)):
        yield tuple(c if p == FREE else p for c, p in zip(cut, pins, strict=True))


def pinned_core_order(nest: Nest, dims: Sequence[int]) -> Counts:
    """Divided dimensions in the pinned order; those it does not name come first, one that is summed
    over last: the cores that add up a result are neighbours."""
    place = _place(nest, "pin_order")
    return tuple(sorted(dims, key=lambda d: (d in nest.summed, place(d))))


def pinned_loops(nest: Nest, dims: Sequence[int]) -> Counts:
    """Looped dimensions in the pinned order; those it does not name come first, those that are
    summed over last."""
    place = _place(nest, "pin_loops")
    return tuple(sorted(dims, key=lambda d: (d in nest.summed, place(d))))


def pinned_keep(nest: Nest) -> Counts | None:
    """Factors of a matrix kernel that a plan keeps in the scratchpad; None when it does not say."""
    return nest.op.attrs.get("pin_keep")  # type: ignore[return-value]


def pinned_finish(nest: Nest) -> Counts | None:
    """Elements of (the inner dimension, columns) of the pieces in which a plan ends the tiles of a
    matrix kernel, FREE for as many as a tile has; () for none, None when it does not say."""
    return nest.op.attrs.get("pin_finish")  # type: ignore[return-value]


def pinned_ahead(nest: Nest) -> int:
    """Slots that a plan gives the factors of a matrix kernel, FREE when it does not say."""
    return int(nest.op.attrs.get("pin_ahead", FREE))  # type: ignore[arg-type]


def _place(nest: Nest, key: str) -> Callable[[int], int]:
    order: Counts = nest.op.attrs.get(key, ())  # type: ignore[assignment]
    place = {d: i for i, d in enumerate(order)}
    return lambda d: place.get(d, -1)
