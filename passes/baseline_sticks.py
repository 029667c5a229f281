"""baseline-sticks: stick dimensions by the number of elements that have to be repacked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from spyrec.ir.core import Module, Op, Value

from .kernel import GROUP, Nest, padded, rank1
from .manager import Target
from .products import absent_inputs
from .sticks import (
    FACTOR_ARRANGEMENTS,
    contract_sticks,
    is_windowed,
    result_stick,
    tensor_dim,
    usable_stick,
)

Wants = tuple[tuple[Value, tuple[int, ...]], ...]
"""Operands with the stick dimensions that will do; those that any will do for are left out."""


@dataclass(frozen=True)
class _Way:
    """One way to lay out a kernel: what it asks of operands, and the sticks of its results."""

    wants: Wants
    sticks: tuple[int, ...]


@dataclass(frozen=True)
class _State:
    """A partial choice: ``at`` holds the stick of each tensor somebody still reads, ``copies`` the
    repacked forms of those. ``odd``: tensors whose stick is not the last dimension."""

    cost: int
    odd: int
    at: Mapping[Value, int]
    copies: frozenset[tuple[Value, int]]
    chosen: tuple[tuple[str, int], ...] | None
    before: _State | None = None

    @property
    def rank(self) -> tuple[int, int]:
        return self.cost, self.odd


@dataclass(frozen=True)
class BaselineSticks:
    """Set ``pin_sticks``: the sticks with which the fewest elements are repacked, padding counted.

    A beam of ``beam`` states goes through the kernels in order; states are merged when they agree
    on what is still read. Model inputs come with the last dimension along the lanes, weights that
    are inputs as their reader wants them. Time plays no part. Matrix kernels and windows have no
    choice, vector kernels take one dimension for all, data movement any.

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.sim.device import load_device
    >>> from spyrec.passes.baseline_kernels import BaselineKernels
    >>> target = Target(load_device())
    >>> before = BaselineKernels().run(parse_module('''module "m" {
    ...   input %x: tensor<256x128xdl16>
    ...   input %w: tensor<256x64xdl16>
    ...   %t = transpose(%x) {perm = (1, 0)} : tensor<128x256xdl16>
    ...   %e = exp(%t) : tensor<128x256xdl16>
    ...   %y = matmul(%e, %w) : tensor<128x64xdl16>
    ...   output "y" = %y
    ... }'''), target)
    >>> BaselineSticks().run(before, target).attrs["pin_sticks"]
    (('x', 1), ('w', 1), ('t_3', 1), ('e_3', 1), ('y_3', 1))
    """

    name: ClassVar[str] = "baseline-sticks"
    summary: ClassVar[str] = "Chooses stick dimensions by the elements to repack."
    beam: int = 200

    def run(self, module: Module, target: Target) -> Module:
        body = module.body
        known = {op.result for op in body.ops if op.name == "constant"}
        absent = set(absent_inputs(module))
        last_read = {v: op for op in body.ops if op.name == "kernel" for v in op.operands}
        given = [v for v in body.args if v.name not in absent and plain(v)]
        at = {v: len(rank1(v.type)) - 1 for v in given if v in last_read}
        pins = tuple((v.name, len(rank1(v.type)) - 1) for v in given)
        states = [_State(0, 0, at, frozenset(), None)]
        for op in body.ops:
            if op.name == "kernel":
                ways = list(_ways(op, known))
                gone = {v for v in op.operands if last_read[v] is op}
                gone |= {r for r in op.results if r not in last_read}
                states = self._step(states, op, ways, gone)
        chosen: list[tuple[str, int]] = []
        state: _State | None = min(states, key=lambda s: s.rank)
        while state is not None:
            chosen[:0] = state.chosen or ()
            state = state.before
        return module.with_attrs(pin_sticks=(*pins, *chosen))

    def _step(
        self, states: list[_State], op: Op, ways: list[_Way], gone: set[Value]
    ) -> list[_State]:
        """The best states after a kernel."""
        found: dict[tuple[frozenset[tuple[Value, int]], frozenset[tuple[Value, int]]], _State] = {}
        for state in states:
            for way in ways:
                new = _after(state, op, way, gone)
                key = frozenset(new.at.items()), new.copies
                if key not in found or new.rank < found[key].rank:
                    found[key] = new
        return sorted(found.values(), key=lambda s: s.rank)[: self.beam]


def _after(state: _State, op: Op, way: _Way, gone: set[Value]) -> _State:
    cost, copies = state.cost, set(state.copies)
    for v, wanted in way.wants:
        have = state.at.get(v)
        if have is None or have in wanted or any((v, s) in copies for s in wanted):
            continue
        copies.add((v, wanted[0]))
        cost += _elements(v, wanted[0])
    at = {v: s for v, s in state.at.items() if v not in gone}
    made = list(zip(op.results, way.sticks, strict=True))
    at.update((r, s) for r, s in made if r not in gone)
    odd = state.odd + sum(s != len(rank1(r.type)) - 1 for r, s in made)
    pins = tuple((r.name, s) for r, s in made) if all(map(plain, op.results)) else ()
    left = frozenset((v, s) for v, s in copies if v not in gone)
    return _State(cost, odd, at, left, pins, state)


def _elements(v: Value, stick: int) -> int:
    """What a repacked copy has, padding included."""
    shape = rank1(v.type)
    return prod(padded(n, GROUP) if d == stick else n for d, n in enumerate(shape))


def plain(v: Value) -> bool:
    """Is the layout a matter of sticks alone?"""
    return v.type.dtype.bits not in FACTOR_ARRANGEMENTS


def _ways(op: Op, known: set[Value]) -> Iterator[_Way]:
    """What a kernel can be, by its kind."""
    nest = Nest(op)
    match nest.kind:
        case "contract":
            n, k = contract_sticks(nest)
            yield _way(nest, n, [k] + [n] * (len(op.operands) - 1), known)
        case "fold" if is_windowed(nest):
            yield _way(nest, 1, [1] * len(op.operands), known)
        case "gather":
            last = len(nest.extents) - 1
            yield _way(nest, last, [last, -1], known)
        case "move":
            yield from (_Way((), (d,)) for d in reversed(range(len(rank1(op.results[0].type)))))
        case _:
            rank = max(len(m) for m in nest.out_maps + nest.maps)
            for d in reversed(range(min(rank, len(nest.extents)))):
                if usable_stick(nest, d):
                    yield _way(nest, d, [d] * len(op.operands), known)


def _way(nest: Nest, along: int, demands: list[int], known: set[Value]) -> _Way:
    wants = []
    for v, m, demand in zip(nest.op.operands, nest.maps, demands, strict=True):
        if v in known:
            continue
        dim = tensor_dim(m, demand) if demand >= 0 else len(m) - 1
        still = tuple(i for i, (_, coefs) in enumerate(m) if not any(coefs))
        wants.append((v, (dim,) if dim is not None else still[::-1] or (len(m) - 1,)))
    return _Way(tuple(wants), tuple(result_stick(m, along, nest.op) for m in nest.out_maps))
