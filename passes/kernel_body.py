"""The body of a kernel, typed as the machine computes it: fp32 registers between 16-bit tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from spyrec.ir.core import Attr, Block, Builder, Module, Op, Value, names
from spyrec.ir.ops.tile import F32, working
from spyrec.ir.types import DType, TensorType

from .dce import remove_dead
from .groups import MELTS
from .legalize_dtypes import is_exact_scalar, saturated
from .primitives import REDUCTIONS


def exact_scalars(module: Module) -> Module:
    """Elementwise ops read float scalars that legalize-dtypes kept in float32 (a constant and a
    cast) as they are: the vector unit has them as fp32 immediates. Other readers get a rounded
    constant.

    Until the ops stand in kernels the element types of such a reader's operands differ.
    """
    known = {op.result: op for op in module.body.ops if op.name == "constant"}
    builder = Builder(names(module))
    exact: dict[Value, Value] = {}
    rounded: dict[Value, Value] = {}
    for op in module.body.ops:
        if op.name == "cast" and op.operands[0] in known and is_exact_scalar(op):
            array = np.asarray(known[op.operands[0]].attrs["value"])
            kind, hint = op.result.type.dtype, op.result.name
            exact[op.result] = op.operands[0]
            rounded[op.result] = builder.constant(
                saturated(array, kind), kind, loc=op.loc, hint=hint
            )
            continue
        table = exact if op.name in MELTS else rounded
        builder.add(replace(op, operands=tuple(table.get(v, v) for v in op.operands)))
    results = tuple(rounded.get(v, v) for v in module.body.results)
    return remove_dead(replace(module, body=Block(module.body.args, tuple(builder.ops), results)))


def region(
    builder: Builder,
    ops: Sequence[Op],
    head: Sequence[Value],
    shared: Sequence[Value],
    results: Sequence[Value],
    accumulates: bool,
) -> Block:
    """The block that computes ``results`` by ``ops``, floats in f32.

    Its arguments are the first op's operands ``head``, in that op's order, then what the others
    read. A result that the kernel reads again is read as it was stored, rounded; not so the first
    op's if it ``accumulates``, which is read from the fp32 accumulators, nor a reduction's: it may
    be compared with what it was reduced from.
    """
    args = tuple(builder.value(v.name, working(v.type)) for v in (*head, *shared))
    inner: dict[Value, Value] = dict(zip(shared, args[len(head) :], strict=True))
    read = {v for op in ops for v in op.operands}
    yielded: dict[Value, Value] = {}
    body: list[Op] = []
    for op in ops:
        first = op is ops[0]
        operands = args[: len(head)] if head and first else [inner[v] for v in op.operands]
        made = tuple(builder.value(r.name, working(r.type)) for r in op.results)
        body.append(replace(op, operands=tuple(operands), results=made, attrs=_working_attrs(op)))
        for old, new in zip(op.results, made, strict=True):
            inner[old] = yielded[old] = new
            wide = (first and accumulates) or op.name in REDUCTIONS
            stored = old in results and old in read and not wide
            if stored and new.type.dtype != old.type.dtype:
                body += [_cast(builder, new, old.type.dtype)]
                body += [_cast(builder, body[-1].result, F32)]
                inner[old] = body[-1].result
    return Block(args, tuple(body), tuple(yielded[r] for r in results))


def _working_attrs(op: Op) -> Mapping[str, Attr]:
    if "to" not in op.attrs:
        return op.attrs
    return MappingProxyType({**op.attrs, "to": working(op.result.type).dtype})


def _cast(builder: Builder, v: Value, to: DType) -> Op:
    made = builder.value(v.name, TensorType(v.type.shape, to))
    return Op("cast", (v,), (made,), MappingProxyType({"to": to}))
