"""Whether the maps of a matrix kernel mean what its ops do. The interpreter runs the ops; only when
tiles are lowered do maps say what is multiplied with what, so a wrong one would show there, long
after the pass that made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from spyrec.ir.core import Module, Op, Value
from spyrec.ir.tiles import FACTORS, Nest
from spyrec.passes.sticks import region_head

Array = np.ndarray[Any, Any]
MapOf = Sequence[tuple[int, Sequence[int]]]
"""An offset and a coefficient for each dimension of a kernel, for each dimension of a tensor."""

POINTS, MOST_PRODUCTS = 64, 1 << 21
"""Results of a kernel that are looked at, and products that are taken for them."""


class MapCheck:
    """An observer of the interpreter. ``wrong`` tells of the first kernel of which some result is
    not the sum of products that its maps say, by more than ``limit`` of its largest result."""

    def __init__(self, module: Module, inputs: Mapping[str, Array], limit: float) -> None:
        self.limit, self.wrong = limit, ""
        self.heads: dict[Op, Op] = {}
        for op in module.body.ops:
            if op.name == "kernel" and op.attrs["kind"] == "contract" and "tiled" not in op.attrs:
                self.heads[op] = region_head(op)
        wanted = {v for op in self.heads for v in op.operands[:FACTORS]}
        wanted.update(head.result for head in self.heads.values())
        self.wanted = wanted
        self.arrays = {v: np.asarray(inputs[v.name]) for v in module.body.args if v in wanted}

    def observe(self, op: Op, results: tuple[Array, ...]) -> None:
        for value, array in zip(op.results, results, strict=True):
            if value in self.wanted:
                self.arrays[value] = array
        if op in self.heads and not self.wrong:
            self.wrong = self._checked(op, self.heads[op].result)

    def _checked(self, op: Op, made: Value) -> str:
        """What is wrong with the maps of a kernel, "" when nothing is."""
        nest, result = Nest(op), self.arrays.pop(made)
        if len(nest.out_maps[0]) != result.ndim or result.size == 0:
            return ""
        factors = [self.arrays[v] for v in op.operands[:FACTORS]]
        limit = self.limit * max(1.0, float(np.max(np.abs(result))))
        for point in _points(nest):
            first = _indices(nest.out_maps[0], [along[:1] for along in point])
            where = tuple(int(i) for i in first.reshape(-1))
            parts = [_read(a, m, point) for a, m in zip(factors, nest.maps[:FACTORS], strict=True)]
            got = float(np.sum(parts[0] * parts[1]))
            if not abs(got - float(result[where])) <= limit:
                return (
                    f"by the maps of kernel {nest.name} element {where} of {made} is {got:.3g}, by "
                    f"its ops {float(result[where]):.3g}"
                )
        return ""


def _points(nest: Nest) -> list[list[Array]]:
    """Of some results the indices along each dimension: one of those that index a result, all of
    those that are summed over. The first and the last result, and others at random."""
    summed = prod(n for d, n in enumerate(nest.extents) if d not in nest.parallel)
    count = max(2, min(POINTS, MOST_PRODUCTS // max(1, summed)))
    rng = np.random.default_rng(0)
    drawn = rng.random((count, len(nest.extents)))
    drawn[0], drawn[1] = 0.0, np.nextafter(1.0, 0.0)
    return [
        [
            np.array([int(share * n)]) if d in nest.parallel else np.arange(n)
            for d, (share, n) in enumerate(zip(row, nest.extents, strict=True))
        ]
        for row in drawn
    ]


def _indices(map_: MapOf, point: Sequence[Array]) -> Array:
    """For each dimension of a tensor its index at every combination of a point's."""
    grid = np.meshgrid(*point, indexing="ij")
    return np.stack([
        offset + sum((c * g for c, g in zip(coefs, grid, strict=True)), np.zeros_like(grid[0]))
        for offset, coefs in map_
    ])  # fmt: skip


def _read(array: Array, map_: MapOf, point: Sequence[Array]) -> Array:
    """The elements of a factor, 0 beyond its borders."""
    at = _indices(map_, point)
    sizes = np.array(array.shape).reshape(-1, *[1] * (at.ndim - 1))
    inside = np.all((at >= 0) & (at < sizes), axis=0)
    found = array[tuple(np.where(inside, at, 0))]
    return np.where(inside, found, 0).astype(np.float64)
