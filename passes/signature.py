"""When two kernels are the same: models repeat their layers, and what one kernel is decided to do
holds for all that look like it."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence

import numpy as np

from spyrec.ir.core import Block, Op, Value


def signature(op: Op, without: Collection[str] = ()) -> Hashable:
    """Equal for two kernels that differ in names and origin only: the same attributes (but for
    those in ``without``), types of operands and results, operands that are one tensor, and ops
    inside.

    Equal numbers of different kinds (1, 1.0, True; 0.0, -0.0) count as different.
    """
    return structure(op, {}, ("name", *without))


def structure(op: Op, numbers: dict[Value, int], without: Collection[str]) -> Hashable:
    """The op with each value by the number of its first appearance; ``numbers`` is added to, so
    that several ops can be numbered together."""
    return tuple(_parts(op, numbers, without))


def _parts(op: Op, numbers: dict[Value, int], without: Collection[str]) -> Iterator[Hashable]:
    yield op.name
    yield tuple((_number(v, numbers), v.type) for v in op.operands)
    yield tuple((_number(v, numbers), v.type) for v in op.results)
    yield tuple((key, exact(value)) for key, value in op.attrs.items() if key not in without)
    for region in op.regions:
        yield tuple(_block(region, numbers))


def _block(block: Block, numbers: dict[Value, int]) -> Iterator[Hashable]:
    yield tuple((_number(v, numbers), v.type) for v in block.args)
    for op in block.ops:
        yield structure(op, numbers, ())
    yield tuple(_number(v, numbers) for v in block.results)


def _number(value: Value, numbers: dict[Value, int]) -> int:
    return numbers.setdefault(value, len(numbers))


def exact(value: object) -> Hashable:
    """An attribute's value so that only the very same value is equal to it."""
    match value:
        case tuple():
            return value if _plain(value) else tuple(map(exact, value))
        case np.ndarray():
            return value.dtype.str, value.shape, value.tobytes()
        case bool() | float():
            return type(value).__name__, repr(value)
        case _:
            return value  # int, str, None, an element type


PLAIN = frozenset((int, str, type(None), tuple))


def _plain(value: tuple[object, ...]) -> bool:
    """Is it of ints, strings and None, however deep? Then ``exact`` of it is the tuple itself. Most
    are, of thousands of numbers, so it is looked through a level at a time."""
    level: Sequence[object] = value
    while True:
        kinds = set(map(type, level))
        if not kinds <= PLAIN:
            return False
        if tuple not in kinds:
            return True
        level = [inner for part in level if type(part) is tuple for inner in part]
