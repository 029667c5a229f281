"""What a tiled kernel means: each core runs the body on its own part, tile by tile, in numpy.

Tiles have the shape their types say. What lies beyond a core's range is NaN where the type has one,
so a result that depends on it shows; so does an element of a result that no core stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .core import Block, Op, Value
from .errors import SpyrecError
from .evaluate import Array, Evaluator, conform, evaluator
from .ops import attributes
from .ops.reduce import greatest_of, least_of
from .tiles import Box, Nest, clip, window
from .types import TensorType

Observer = Callable[[Op, tuple[Array, ...]], None]


def run_tiled(op: Op, arrays: Sequence[Array], observe: Observer | None = None) -> list[Array]:
    """The results of a kernel with ``tiled = true`` on its operands' arrays.

    ``observe`` sees every tile op, and the ops inside computations, as often as they run.
    SpyrecError when the body does not fit the kernel's maps and tiles.
    """
    kernel = _Kernel(op, arrays, observe)
    for core, ranges in enumerate(kernel.nest.core_ranges):
        if all(size for _, size in ranges):
            kernel.place = core % kernel.nest.terms
            kernel.block(op.regions[0], {}, ranges)
    return [r.reshape(v.type.static_shape) for r, v in zip(kernel.results, op.results, strict=True)]


@dataclass(frozen=True, eq=False)
class _Step:
    """One op of a computation, looked up once for all tiles."""

    op: Op
    evaluate: Evaluator
    types: tuple[TensorType, ...]


class _Kernel:
    """One kernel being run: its operands, the results as far as they are stored."""

    def __init__(self, op: Op, arrays: Sequence[Array], observe: Observer | None) -> None:
        self.nest = Nest(op)
        self.arrays = [a.reshape(a.shape or (1,)) for a in arrays]
        self.results = [_unwritten(v.type.static_shape or (1,), v.type) for v in op.results]
        self.observe = observe
        self.steps: dict[Op, list[_Step]] = {}
        self.fills: dict[Op, float] = {}
        self.place = 0  # of the core among those that hold terms of the same results
        self.passed_on: dict[Box, Array] = {}

    def block(self, block: Block, env: dict[Value, Array], here: Box) -> None:
        """Run tile ops on the ranges ``here`` of the kernel dimensions."""
        for op in block.ops:
            results: tuple[Array, ...] = ()
            match op.name:
                case "load":
                    results = (self._load(op, here),)
                case "init":
                    results = (_full(op.result.type, _number(op, "value")),)
                case "compute":
                    results = (self._compute(op, [env[v] for v in op.operands], here),)
                case "for":
                    results = self._for(op, env, here)
                case "finish":
                    self._finish(op, env, here)
                case "store":
                    self._store(op, env[op.operands[0]], here)
                case "psum":
                    total = self._psum(env[op.operands[0]], here)
                    if total is None:
                        return
                    results = (total,)
                case _:
                    raise SpyrecError(f"{op.name} cannot stand in a tiled kernel (from {op.loc})")
            env.update(zip(op.results, results, strict=True))
            if self.observe is not None:
                self.observe(op, results)

    def _for(self, op: Op, env: dict[Value, Array], here: Box) -> tuple[Array, ...]:
        dim, region = _index(op, "dim"), op.regions[0]
        tile, (start, size) = self.nest.tile[dim], here[dim]
        if self.nest.finish and dim == self.nest.k:
            size -= self.nest.finish[dim]
        carried = tuple(env[v] for v in op.operands)
        for at in range(0, size, tile):
            env.update(zip(region.args, carried, strict=True))
            part = (start + at, min(tile, size - at))
            self.block(region, env, (*here[:dim], part, *here[dim + 1 :]))
            carried = tuple(env[v] for v in region.results)
        return carried

    def _finish(self, op: Op, env: dict[Value, Array], here: Box) -> None:
        """The region on each piece of the columns, for the inner elements that are left."""
        whole, region, sums = self.nest, op.regions[0], env[op.operands[0]]
        stick, k = whole.stick, whole.k
        (start, size), (first, inner) = here[stick], here[k]
        width, left = whole.finish[stick], whole.finish[k]
        (axis,) = (t for t, (_, coefs) in enumerate(whole.out_maps[0]) if coefs[stick])
        piece = region.args[0].type
        self.nest = whole.pieces[0]
        for at in range(0, size, width):
            cut = list(here)
            cut[stick] = (start + at, min(width, size - at))
            cut[k] = (first + inner - left, left)
            acc = _unwritten(piece.static_shape, piece)
            part = sums[(slice(None),) * axis + (slice(at, at + width),)]
            acc[(slice(None),) * axis + (slice(0, part.shape[axis]),)] = part
            env[region.args[0]] = acc
            self.block(region, env, tuple(cut))
        self.nest = whole

    def _psum(self, term: Array, here: Box) -> Array | None:
        """The sum over the cores of a group, which come one after the other; None for all but the
        last, which pass on what they have so far."""
        key = tuple(here[d] for d in sorted(self.nest.parallel))
        if self.place:
            term = self.passed_on.pop(key) + term
        if self.place == self.nest.terms - 1:
            return term
        self.passed_on[key] = term
        return None

    def _load(self, op: Op, here: Box) -> Array:
        """Folded dimensions are filled up to the tile; parallel ones end where the range does."""
        index, nest = _index(op, "operand"), self.nest
        array, shape = self.arrays[index], op.result.type.static_shape
        wanted = tuple(
            (start, size if d in nest.parallel else max(size, nest.tile[d]))
            for d, (start, size) in enumerate(here)
        )
        box = window(nest.maps[index], wanted)
        if any(size > n for (_, size), n in zip(box, shape, strict=True)):
            raise SpyrecError(
                f"load: the window of operand {index} is {[n for _, n in box]} here, its tile is "
                f"{list(shape)}; load it inside the loops it varies with (from {nest.op.loc})"
            )
        divided = window(nest.maps[index], here) if nest.terms > 1 else box  # the rest is others'
        inside = clip(divided, array.shape)
        found = array[_slices(inside)]
        if found.shape == shape:
            return found
        tile = _unwritten(shape, op.result.type)
        tile[tuple(slice(0, size) for _, size in box)] = _limited(self._fill(op), tile.dtype)
        if found.size:
            offsets = tuple((a - b, n) for (a, n), (b, _) in zip(inside, box, strict=True))
            tile[_slices(offsets)] = found
        return tile

    def _fill(self, op: Op) -> float:
        if op not in self.fills:
            self.fills[op] = float(attributes(op)["fill"])  # type: ignore[arg-type]
        return self.fills[op]

    def _store(self, op: Op, tile: Array, here: Box) -> None:
        index = _index(op, "result")
        box = window(self.nest.out_maps[index], here)
        result = self.results[index]
        result[_slices(box)] = tile[tuple(slice(0, size) for _, size in box)]

    def _compute(self, op: Op, arrays: Sequence[Array], here: Box) -> Array:
        region = op.regions[0]
        if op not in self.steps:
            self.steps[op] = [
                _Step(o, evaluator(o), tuple(v.type for v in o.results)) for o in region.ops
            ]
        env = {
            v: a.astype(v.type.dtype.np_dtype, copy=False)
            for v, a in zip(region.args, arrays, strict=True)
        }
        for step in self.steps[op]:
            values = [env[v] for v in step.op.operands]
            if self.nest.kind == "vec" and step.op.name == op.attrs.get("head"):
                values = [self._inside(v, here) for v in values]
            found = step.evaluate(values, step.types)
            results = tuple(conform(a, t) for a, t in zip(found, step.types, strict=True))
            env.update(zip(step.op.results, results, strict=True))
            if self.observe is not None:
                self.observe(step.op, results)
        return conform(env[region.results[0]], op.result.type)


    def _inside(self, tile: Array, here: Box) -> Array:
        """What a reduction of a vector kernel folds: no more than the range has."""
        lead = len(here) - tile.ndim
        ends = (
            slice(0, here[d][1]) if d in self.nest.summed else slice(None)
            for d in range(lead, len(here))
        )
        return tile[tuple(ends)]


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, start + size) for start, size in box)


def _index(op: Op, name: str) -> int:
    return int(op.attrs[name])  # type: ignore[arg-type]


def _number(op: Op, name: str) -> float:
    return float(op.attrs[name])  # type: ignore[arg-type]


def _full(type_: TensorType, number: float) -> Array:
    kind = type_.dtype.np_dtype
    return np.full(type_.static_shape, _limited(number, kind), kind)


def _limited(number: float, kind: np.dtype[Any]) -> float | int | bool:
    """An infinity as the extreme value of a type without one."""
    if np.isinf(number) and kind.kind != "f":
        return greatest_of(kind) if number > 0 else least_of(kind)
    return number


def _unwritten(shape: tuple[int, ...], type_: TensorType) -> Array:
    """NaN where the type has one, else its least value."""
    kind = type_.dtype.np_dtype
    return np.full(shape, np.nan if kind.kind == "f" else least_of(kind), kind)
