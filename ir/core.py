"""SSA core: values, operations, blocks, modules, and the two ways to make new ones.

Everything is frozen. A pass never edits: it builds a new module, so the one before is still
there to be compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from .errors import VerifyError
from .types import DType, TensorType

# An attribute: scalars, strings, None, element types, numpy arrays (constant data) and tuples of
# these.
Attr = bool | int | float | str | None | DType | np.ndarray | tuple[Any, ...]


@dataclass(frozen=True)
class Loc:
    """Where an op came from: the names of the model's nodes, first the one it mainly is."""

    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join(self.nodes) if self.nodes else "unknown"

    @staticmethod
    def merge(locs: Iterable[Loc]) -> Loc:
        """The union in order of first appearance."""
        return Loc(tuple(dict.fromkeys(n for loc in locs for n in loc.nodes)))


@dataclass(frozen=True, eq=False)
class Value:
    """One SSA value: defined once, compared by identity. ``name`` is unique in its module."""

    name: str
    type: TensorType

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True, eq=False)
class Block:
    """Straight-line ops with arguments; ``results`` are the values it yields."""

    args: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Op:
    """One operation. ``name`` is a key of ``spyrec.ir.ops.OPS``."""

    name: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attrs: Mapping[str, Attr] = field(default_factory=lambda: MappingProxyType({}))
    regions: tuple[Block, ...] = ()
    loc: Loc = Loc()

    @property
    def result(self) -> Value:
        """The only result."""
        if len(self.results) != 1:
            raise VerifyError(
                f"{self.name} has {len(self.results)} results where one was asked for "
                f"(from {self.loc})"
            )
        return self.results[0]

    def with_attrs(self, **changes: Attr) -> Op:
        """The same op (same results) with some attributes replaced or added."""
        attrs = MappingProxyType({**self.attrs, **changes})
        return Op(self.name, self.operands, self.results, attrs, self.regions, self.loc)


@dataclass(frozen=True, eq=False)
class Module:
    """A model: ``body.args`` are its inputs, ``body.results`` its outputs, called ``output_names``.

    ``attrs`` holds what is true of the whole module: ``stage`` ("tensor", "device" or "tile"),
    ``device``, ``numerics``.
    """

    name: str
    body: Block
    output_names: tuple[str, ...]
    attrs: Mapping[str, Attr] = field(default_factory=lambda: MappingProxyType({"stage": "tensor"}))

    @property
    def stage(self) -> str:
        return str(self.attrs.get("stage", "tensor"))

    def with_attrs(self, **changes: Attr) -> Module:
        return replace(self, attrs=MappingProxyType({**self.attrs, **changes}))


def walk(block: Block) -> Iterator[Op]:
    """All ops of a block and of the regions inside it, in order."""
    for op in block.ops:
        yield op
        for region in op.regions:
            yield from walk(region)


def uses(block: Block) -> dict[Value, list[tuple[Op, int]]]:
    """Who reads each value: ``(op, operand index)`` in order, regions included."""
    table: dict[Value, list[tuple[Op, int]]] = {}
    for op in walk(block):
        for i, v in enumerate(op.operands):
            table.setdefault(v, []).append((op, i))
    return table


class Builder:
    """Collects ops in order and hands out unique names."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.ops: list[Op] = []
        self._taken = set(taken)
        self._counters: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """A name not used yet: ``hint`` itself, else ``hint_2``, ``hint_3``, ..."""
        if hint not in self._taken:
            self._taken.add(hint)
            return hint
        n = self._counters.get(hint, 1)
        name = hint
        while name in self._taken:
            n += 1
            name = f"{hint}_{n}"
        self._counters[hint] = n
        self._taken.add(name)
        return name

    def value(self, hint: str, type_: TensorType) -> Value:
        return Value(self.fresh(hint), type_)

    def add(self, op: Op) -> Op:
        """Append a finished op as it is."""
        self.ops.append(op)
        return op

    def op(
        self,
        name: str,
        operands: Sequence[Value] = (),
        *,
        loc: Loc = Loc(),
        hint: str | None = None,
        types: Sequence[TensorType] | None = None,
        regions: Sequence[Block] = (),
        **attrs: Attr,
    ) -> Op:
        """Append an op; result types come from the OPS table unless ``types`` gives them.

        Raises VerifyError when the operands or attributes break the op's rule.
        """
        from .ops import infer  # the table needs this module; a late import breaks the circle

        frozen = MappingProxyType(dict(attrs))
        if types is None:
            types = infer(name, [v.type for v in operands], frozen, loc)
        results = tuple(self.value(hint or name.rpartition(".")[2], t) for t in types)
        return self.add(Op(name, tuple(operands), results, frozen, tuple(regions), loc))

    def constant(
        self, array: np.ndarray, dtype_: DType, *, loc: Loc = Loc(), hint: str = "c"
    ) -> Value:
        """A constant tensor; ``array`` must hold values of ``dtype_`` (see DType.numpy)."""
        array = np.asarray(array)
        type_ = TensorType(tuple(int(d) for d in array.shape), dtype_)
        return self.op("constant", (), loc=loc, hint=hint, types=[type_], value=array).result


# A rewrite looks at one op (its operands already mapped) and either returns None: keep it, or the
# values that stand in for its results, having added what it needs to the builder.
Rewrite = Callable[[Op, Builder], Sequence[Value] | None]


def rewrite(module: Module, rule: Rewrite) -> Module:
    """Rebuild the module's top-level block, giving ``rule`` a say on each op in order."""
    builder = Builder(names(module))
    mapped: dict[Value, Value] = {}
    for op in module.body.ops:
        here = remap(op, mapped)
        replacement = rule(here, builder)
        if replacement is None:
            builder.add(here)
            continue
        if len(replacement) != len(op.results):
            raise VerifyError(
                f"the rule for {op.name} gave {len(replacement)} values for {len(op.results)} "
                "results"
            )
        mapped.update(zip(op.results, replacement, strict=True))
    results = tuple(mapped.get(v, v) for v in module.body.results)
    return replace(module, body=Block(module.body.args, tuple(builder.ops), results))


def remap(op: Op, mapped: Mapping[Value, Value]) -> Op:
    """The op with operands (also inside its regions) replaced as ``mapped`` says; itself, when it
    reads none of them."""
    regions = tuple([_remap_block(r, mapped) for r in op.regions])
    if regions == op.regions and not any(v in mapped for v in op.operands):
        return op
    operands = tuple([mapped.get(v, v) for v in op.operands])
    return Op(op.name, operands, op.results, op.attrs, regions, op.loc)


def _remap_block(block: Block, mapped: Mapping[Value, Value]) -> Block:
    ops = tuple([remap(op, mapped) for op in block.ops])
    if ops == block.ops and not any(v in mapped for v in block.results):
        return block
    return Block(block.args, ops, tuple([mapped.get(v, v) for v in block.results]))


def names(module: Module) -> set[str]:
    """All value names in use."""
    found = {v.name for v in module.body.args}
    for op in walk(module.body):
        found.update(v.name for v in op.results)
        for region in op.regions:
            found.update(v.name for v in region.args)
    return found
