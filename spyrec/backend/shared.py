"""Equal kernels are built once: code generation sees a kernel under names that do not tell where it
stands, and what it makes serves all that look the same then."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from spyrec.ir.core import Attr, Block, Loc, Op, Value, walk
from spyrec.ir.errors import SpyrecError
from spyrec.passes.attrs import entries
from spyrec.passes.signature import exact, structure
from spyrec.sim.isa import Kernel, Note

from .kernels import Surroundings, build_kernel

ANY = "@"  # the name that every kernel is built under
NAMED = re.compile(r"%(\d+)")  # a value in a note's text
TABLES = ("lx", "early")  # attributes that hold names of values
REASONS = (
    "why_parts", "why_tile", "why_away", "why_memory", "why_division", "improved",
)  # that no code depends on


@dataclass(frozen=True)
class Made:
    """``index`` of the kernel in the program; its notes under neutral names; the numbers of the
    values that its parameters stand for, and of those that its claims name."""

    index: int
    notes: tuple[Note, ...]
    params: tuple[int, ...]
    claimed: tuple[int, ...]


@dataclass(frozen=True)
class Placed:
    """What a launch needs: the kernel's ``index``, provenance, the tensors of its parameters in
    card memory, and those that its claims name."""

    index: int
    notes: tuple[Note, ...]
    params: tuple[Value, ...]
    claimed: tuple[Value, ...]


Built = tuple[Kernel, tuple[int, ...], tuple[int, ...]]
"""A kernel under neutral names; the numbers of its parameters' values, and its claims'."""


class SharedKernels:
    """The kernels of a program, each different code once; the name and the facts of equal ones are
    the first's. ``built``: what was built for programs of the same target before, added to."""

    def __init__(
        self, around: Surroundings, built: dict[Hashable, Built] | None = None
    ) -> None:
        self.around = around
        self.built: dict[Hashable, Built] = {} if built is None else built
        self.kernels: list[Kernel] = []
        self.made: dict[Hashable, Made] = {}

    def add(self, op: Op, exchanges: Sequence[Op]) -> Placed:
        """The kernel op with the exchanges that feed it. SpyrecError as ``build_kernel``."""
        numbers: dict[Value, int] = {}
        ops = (*exchanges, op)
        shape = tuple(structure(o, numbers, ("name", *TABLES, *REASONS)) for o in ops)
        names = _Names(str(op.attrs["name"]), op, tuple(numbers), _nodes(ops))
        key = shape, names.tables(), names.origins(ops), tuple(self._facts(ops))
        if key not in self.made:
            if key not in self.built:
                self.built[key] = self._build(op, exchanges, names)
            kernel, *numbered = self.built[key]
            self.made[key] = Made(self._index(kernel, names), kernel.notes, *numbered)
        made = self.made[key]
        params, claimed = (
            tuple(names.values[n] for n in numbered) for numbered in (made.params, made.claimed)
        )
        return Placed(made.index, tuple(map(names.real, made.notes)), params, claimed)

    def _facts(self, ops: Sequence[Op]) -> Iterator[Hashable]:
        """What is known of the tensors that the ops read and make."""
        around = self.around
        for v in (v for op in ops for v in (*op.operands, *op.results)):
            yield around.homes.get(v), exact(around.scalars.get(v)), v in around.constants

    def _build(self, op: Op, exchanges: Sequence[Op], names: _Names) -> Built:
        neutral = [names.neutral(o) for o in (*exchanges, op)]
        try:
            kernel, params, claimed = build_kernel(neutral[-1], neutral[:-1], self._known_as(names))
        except SpyrecError:
            build_kernel(op, exchanges, self.around)  # which says it in the model's own names
            raise
        return kernel, tuple(int(v.name) for v in params), tuple(int(v.name) for v in claimed)

    def _known_as(self, names: _Names) -> Surroundings:
        stand_in = names.stand_ins
        return replace(
            self.around,
            homes={stand_in[v]: home for v, home in self.around.homes.items() if v in stand_in},
            scalars={stand_in[v]: x for v, x in self.around.scalars.items() if v in stand_in},
            constants=frozenset(s for v, s in stand_in.items() if v in self.around.constants),
        )

    def _index(self, kernel: Kernel, names: _Names) -> int:
        """Where the same code is in the list, at the end if it was not there."""
        for i, known in enumerate(self.kernels):
            same = replace(kernel, name=known.name, info=known.info, notes=known.notes)
            if len(known.notes) == len(kernel.notes) and same == known:
                return i
        notes = tuple(map(names.real, kernel.notes))
        self.kernels.append(replace(kernel, name=names.kernel, notes=notes))
        return len(self.kernels) - 1


class _Names:
    """Neutral names of a kernel's values and model nodes, their numbers, and the way back.

    The real names differ wherever the neutral ones do, so notes are equal under both or neither.
    """

    def __init__(
        self, kernel: str, op: Op, values: tuple[Value, ...], nodes: Mapping[str, int]
    ) -> None:
        self.kernel = kernel
        self.op = op
        self.values = values
        self.nodes = nodes
        self.node_names = tuple(nodes)
        self.numbers = {v.name: n for n, v in enumerate(values)}
        self._stand_ins: dict[Value, Value] = {}

    @property
    def stand_ins(self) -> dict[Value, Value]:
        if not self._stand_ins:
            self._stand_ins = {v: Value(str(n), v.type) for n, v in enumerate(self.values)}
        return self._stand_ins

    def tables(self) -> tuple[Hashable, ...]:
        """The op's TABLES with neutral names."""
        return tuple(self._table(key) for key in TABLES)

    def _table(self, key: str) -> tuple[Attr, ...]:
        return tuple(
            self._buffer(x) if isinstance(x, str) else (self._buffer(x[0]), *x[1:])
            for x in entries(self.op, key)
        )

    def _buffer(self, name: str) -> str:
        """Tile buffers are called as a value, or as the result with what they are for."""
        if name in self.numbers:
            return str(self.numbers[name])
        result = self.op.results[0].name
        if name.startswith(f"{result}_"):
            return f"{self.numbers[result]}{name.removeprefix(result)}"
        return name

    def origins(self, ops: Sequence[Op]) -> tuple[Hashable, ...]:
        """The model nodes of every op by number."""
        return tuple(tuple(self.nodes[n] for n in loc.nodes) for loc in _locs(ops))

    def neutral(self, op: Op) -> Op:
        """An op under neutral names."""
        attrs = dict(op.attrs)
        if op is self.op:
            attrs |= {"name": ANY, **{key: self._table(key) for key in TABLES}}
        return Op(
            op.name, self._known(op.operands), self._known(op.results), MappingProxyType(attrs),
            tuple(self._block(r) for r in op.regions),
            Loc(tuple(str(self.nodes[n]) for n in op.loc.nodes)),
        )  # fmt: skip

    def _block(self, block: Block) -> Block:
        return Block(
            self._known(block.args), tuple(map(self.neutral, block.ops)), self._known(block.results)
        )

    def _known(self, values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(self.stand_ins[v] for v in values)

    def real(self, note: Note) -> Note:
        """A note under the real names."""
        said = NAMED.sub(lambda found: f"%{self.values[int(found[1])].name}", note.op)
        nodes = tuple(self.node_names[int(n)] for n in note.nodes)
        return Note(self.kernel if note.op == ANY else said, nodes)


def _locs(ops: Sequence[Op]) -> Iterator[Loc]:
    for op in ops:
        yield op.loc
        for region in op.regions:
            yield from (inner.loc for inner in walk(region))


def _nodes(ops: Sequence[Op]) -> dict[str, int]:
    """The model nodes by the number of their first appearance."""
    found = dict.fromkeys(node for loc in _locs(ops) for node in loc.nodes)
    return {node: i for i, node in enumerate(found)}
