"""Products of one tensor with weights: which there are, how several become one and one several."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spyrec.ir.core import Block, Builder, Loc, Module, Op, Value, names, remap, uses
from spyrec.ir.types import TensorType

from .rules_reduce import ints


@dataclass(frozen=True, eq=False)
class Product:
    """``matmul`` of x with a rank-2 ``weight``, then ``add`` of a rank-1 ``bias`` where there is
    one. Both are constants, or inputs that nobody has given a content. Nobody else reads the
    weight, which would be on the card twice."""

    matmul: Op
    add: Op | None = None

    @property
    def weight(self) -> Value:
        return self.matmul.operands[1]

    @property
    def bias(self) -> Value | None:
        if self.add is None:
            return None
        a, b = self.add.operands
        return b if a is self.matmul.result else a

    @property
    def result(self) -> Value:
        return (self.add or self.matmul).result

    @property
    def width(self) -> int:
        return self.weight.type.static_shape[1]


def products(module: Module) -> list[Product]:
    """All of them, in order."""
    known = {op.result for op in module.body.ops if op.name == "constant"}
    absent = set(absent_inputs(module))
    readers = uses(module.body)
    outputs = set(module.body.results)

    def ours(v: Value, rank: int) -> bool:
        alone = len(readers[v]) == 1
        given = alone or rank == 1 if v in known else alone and v.name in absent
        return v.type.rank == rank and given

    found = []
    for op in module.body.ops:
        if op.name != "matmul" or op.attrs.get("to") is not None:
            continue
        x, weight = op.operands
        if x in known or not ours(weight, 2):
            continue
        product = Product(op)
        after = readers.get(op.result, [])
        if len(after) == 1 and after[0][0].name == "add" and op.result not in outputs:
            biased = Product(op, after[0][0])
            bias = biased.bias
            if bias is not None and ours(bias, 1) and bias.type.shape == (product.width,):
                product = biased
        found.append(product)
    return found


def groups(module: Module) -> list[tuple[Product, ...]]:
    """Two products or more of one tensor each; no product is in two groups."""
    known = {op.result for op in module.body.ops if op.name == "constant"}
    by: dict[Hashable, list[Product]] = {}
    for p in products(module):
        x, weight = p.matmul.operands
        key = x, weight.type.dtype, weight in known, p.bias is None, p.bias in known
        by.setdefault(key, []).append(p)
    return [tuple(found) for found in by.values() if len(found) > 1]


def absent_inputs(module: Module) -> tuple[str, ...]:
    found = module.attrs.get("absent", ())
    assert isinstance(found, tuple)
    return tuple(str(name) for name in found)


def joined(module: Module, products: Sequence[Product]) -> Module:
    """The module with the products made as one, where the first of them stood."""
    builder = Builder(names(module))
    known = {op.result: op for op in module.body.ops if op.name == "constant"}
    weights, biases = [p.weight for p in products], [p.bias for p in products]
    args, absent = list(module.body.args), list(absent_inputs(module))
    first, loc = products[0].matmul.result, Loc.merge([o.loc for p in products for o in ops_of(p)])

    def one_of(parts: Sequence[Value]) -> Value:
        """The parts side by side: a constant, or an input in the place of the first."""
        kind, axis = parts[0].type.dtype, parts[0].type.rank - 1
        name = "_".join(p.name for p in parts)
        if parts[0] in known:
            arrays = [np.asarray(known[p].attrs["value"]) for p in parts]
            return builder.constant(np.concatenate(arrays, axis), kind, loc=loc, hint=name)
        width = sum(p.type.static_shape[axis] for p in parts)
        shape = (*parts[0].type.static_shape[:axis], width)
        made = builder.value(name, TensorType(shape, kind))
        args[args.index(parts[0])] = made
        absent[absent.index(parts[0].name)] = made.name
        for p in parts[1:]:
            args.remove(p)
            absent.remove(p.name)
        return made

    mapped: dict[Value, Value] = {}
    gone = {op.result for p in products for op in ops_of(p)}
    for op in module.body.ops:
        op = remap(op, mapped)
        if first in op.results:
            y = builder.op("matmul", [op.operands[0], one_of(weights)], loc=loc).result
            shared = [b for b in biases if b is not None]
            y = builder.op("add", [y, one_of(shared)], loc=loc).result if shared else y
            start = 0
            for p in products:
                starts = (*(0,) * (y.type.rank - 1), start)
                sizes = (*y.type.static_shape[:-1], p.width)
                mapped[p.result] = builder.op(
                    "slice", [y], loc=loc, starts=starts, sizes=sizes, steps=(1,) * y.type.rank
                ).result
                start += p.width
        if gone.isdisjoint(op.results):
            builder.add(op)
    body = Block(
        tuple(args), tuple(builder.ops), tuple(mapped.get(v, v) for v in module.body.results)
    )
    made = replace(module, body=body)
    return made.with_attrs(absent=tuple(absent)) if absent else made


def ops_of(p: Product) -> Iterator[Op]:
    yield p.matmul
    if p.add is not None:
        yield p.add


def fused(module: Module) -> list[tuple[Product, tuple[int, ...]]]:
    """Products that nothing reads but slices which cut the columns into two parts or more, and the
    columns of the parts."""
    found = []
    readers, outputs = uses(module.body), set(module.body.results)
    for product in products(module):
        y = product.result
        parts = [_columns(op) for op, _ in readers.get(y, [])]
        cuts = sorted({p for p in parts if p is not None})
        ends = [0, *(stop for _, stop in cuts)]
        whole = [start for start, _ in cuts] == ends[:-1] and ends[-1] == product.width
        if len(cuts) > 1 and None not in parts and whole and y not in outputs:
            found.append((product, tuple(stop - start for start, stop in cuts)))
    return found


def _columns(op: Op) -> tuple[int, int] | None:
    """First and last column (not included) of a slice of nothing but columns."""
    if op.name != "slice":
        return None
    (x,) = op.operands
    starts, sizes = ints(op, "starts"), ints(op, "sizes")
    steps = ints(op, "steps") if "steps" in op.attrs else (1,) * len(sizes)
    full = not any(starts[:-1]) and sizes[:-1] == x.type.static_shape[:-1]
    return (starts[-1], starts[-1] + sizes[-1]) if full and set(steps) == {1} else None


def parted(module: Module, product: Product, widths: Sequence[int]) -> Module:
    """The module with a product for each part of the columns in the place of one of all."""
    builder = Builder(names(module))
    known = {op.result: op for op in module.body.ops if op.name == "constant"}
    args, absent = list(module.body.args), list(absent_inputs(module))
    loc = Loc.merge([op.loc for op in ops_of(product)])

    def cut(whole: Value) -> list[Value]:
        stops = np.cumsum(widths)[:-1]
        if whole in known:
            arrays = np.split(np.asarray(known[whole].attrs["value"]), stops, axis=-1)
            kind, name = whole.type.dtype, whole.name
            return [builder.constant(a, kind, loc=loc, hint=name) for a in arrays]
        lead = whole.type.static_shape[:-1]
        made = [builder.value(whole.name, TensorType((*lead, w), whole.type.dtype)) for w in widths]
        at, place = args.index(whole), absent.index(whole.name)
        args[at : at + 1] = made
        absent[place : place + 1] = [v.name for v in made]
        return made

    mapped: dict[Value, Value] = {}
    of: dict[tuple[int, int], Value] = {}
    gone = {op.result for op in ops_of(product)}
    for op in module.body.ops:
        op = remap(op, mapped)
        if product.matmul.result in op.results:
            biases = cut(product.bias) if product.bias is not None else []
            start = 0
            for i, weight in enumerate(cut(product.weight)):
                y = builder.op("matmul", [op.operands[0], weight], loc=loc).result
                y = builder.op("add", [y, biases[i]], loc=loc).result if biases else y
                of[start, start + widths[i]] = y
                start += widths[i]
        columns = _columns(op) if product.result in op.operands else None
        if columns is not None:
            mapped[op.result] = of[columns]
        elif gone.isdisjoint(op.results):
            builder.add(op)
    results = tuple(mapped.get(v, v) for v in module.body.results)
    made = replace(module, body=Block(tuple(args), tuple(builder.ops), results))
    return made.with_attrs(absent=tuple(absent)) if absent else made
