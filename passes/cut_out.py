"""A kernel with its neighbours as a module of its own, and which kernels have equal neighbours."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np

from spyrec.ir.core import Attr, Block, Module, Op, Value, uses

from .signature import exact, signature

NEIGHBOURS = 4
"""Producers, and readers, of a kernel that a window holds at most: the first of them."""
SIBLINGS = 2
"""And of other readers of its operands, with which it may share copies on chip."""
BEFORE, AFTER, LONGEST = 3, 3, 16
"""Launches before and after a window, and launches in all, that confirm a move."""
KEPT = ("stage", "laid_out", "numerics", "device")
"""Attributes of the module that a cut-out has too."""


@dataclass(frozen=True)
class Window:
    """Kernels in their order, around the one at ``target``."""

    ops: tuple[Op, ...]
    target: int

    @property
    def op(self) -> Op:
        return self.ops[self.target]


@dataclass
class Graph:
    """A laid-out module with what finding windows needs."""

    module: Module
    ids: dict[Hashable, int] = field(default_factory=dict)

    @cached_property
    def kernels(self) -> tuple[Op, ...]:
        return tuple(op for op in self.module.body.ops if op.name == "kernel")

    @cached_property
    def position(self) -> dict[Op, int]:
        return {op: i for i, op in enumerate(self.kernels)}

    @cached_property
    def maker(self) -> dict[Value, Op]:
        return {v: op for op in self.kernels for v in op.results}

    @cached_property
    def readers(self) -> dict[Value, list[tuple[Op, int]]]:
        return uses(self.module.body)

    @cached_property
    def constants(self) -> dict[Value, Op]:
        return {op.result: op for op in self.module.body.ops if op.name == "constant"}

    @cached_property
    def results(self) -> frozenset[Value]:
        return frozenset(self.module.body.results)

    def window(self, op: Op) -> Window:
        """The kernel, what makes its operands, what reads its results, and what else reads its
        operands."""
        before = dict.fromkeys(self.maker[v] for v in op.operands if v in self.maker)
        after = dict.fromkeys(
            u for v in op.results for u, _ in self.readers.get(v, []) if u.name == "kernel"
        )
        beside = dict.fromkeys(
            u for v in op.operands if v in self.maker for u, _ in self.readers[v]
            if u.name == "kernel" and u is not op and u not in before and u not in after
        )
        near = {op, *list(before)[:NEIGHBOURS], *list(after)[:NEIGHBOURS], *list(beside)[:SIBLINGS]}
        ops = tuple(sorted(near, key=self.position.__getitem__))
        return Window(ops, ops.index(op))

    def stretch(self, ops: Sequence[Op]) -> tuple[Op, ...]:
        """The launches from the first to the last of ``ops`` and a few around, LONGEST at most:
        what is read again later, exchanges of the readers' readers and weights that come early
        count there too."""
        places = sorted(self.position[op] for op in ops)
        first = max(0, places[0] - BEFORE)
        last = min(len(self.kernels), places[-1] + 1 + AFTER)
        if last - first > LONGEST:
            middle = places[len(places) // 2]
            first = max(0, middle - LONGEST // 2)
            last = min(len(self.kernels), first + LONGEST)
        return self.kernels[first:last]

    def cut_out(
        self, ops: Sequence[Op], attrs: Sequence[Mapping[str, Attr]], spaces: Mapping[Value, str]
    ) -> Module:
        """The kernels ``ops`` as a module, with the attributes ``attrs`` added. What they read of
        others are its inputs; its outputs are what others alone read. ``spaces`` pins tensors.

        A tensor that kernels inside and outside read is no output, so it may stay on chip.
        """
        made = {v for op in ops for v in op.results}
        read = dict.fromkeys(v for op in ops for v in op.operands)
        inside = [self.constants[v] for v in read if v in self.constants]
        args = tuple(v for v in read if v not in made and v not in self.constants)
        ends = tuple(
            v for op in ops for v in op.results if v not in read or v in self.results
        )
        changed = (op.with_attrs(**more) for op, more in zip(ops, attrs, strict=True))
        pins = tuple((v.name, space) for v, space in spaces.items() if v in made and v not in ends)
        facts = {key: self.module.attrs[key] for key in KEPT if key in self.module.attrs}
        return Module(
            "window", Block(args, (*inside, *changed), ends),
            tuple(f"o{i}" for i in range(len(ends))),
            MappingProxyType({**facts, "pin_spaces": pins}),
        )  # fmt: skip

    def alike(self, facts: Mapping[Op, Hashable]) -> dict[Hashable, list[Op]]:
        """The kernels by what they, their producers and their readers are, ``facts`` included."""
        looks = {
            op: self._id((signature(op), self._scalars(op), facts[op])) for op in self.kernels
        }
        found: dict[Hashable, list[Op]] = {}
        for op in self.kernels:
            before = tuple(self._source(v, looks) for v in op.operands)
            after = tuple(
                (v in self.results, *((looks[u], i) for u, i in self.readers.get(v, [])))
                for v in op.results
            )
            found.setdefault((looks[op], before, after), []).append(op)
        return found

    def _scalars(self, op: Op) -> Hashable:
        return tuple(
            exact(np.asarray(self.constants[v].attrs["value"]))
            for v in op.operands if v in self.constants and v.type.size == 1
        )  # fmt: skip

    def _source(self, v: Value, looks: Mapping[Op, int]) -> Hashable:
        op = self.maker.get(v)
        return None if op is None else (looks[op], op.results.index(v))

    def _id(self, key: Hashable) -> int:
        return self.ids.setdefault(key, len(self.ids))
