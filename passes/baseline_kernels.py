"""baseline-kernels: a kernel for each op that the published compiler has, and nothing fused beyond
that."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from spyrec.ir.core import Builder, Module, Op, Value, names, uses

from .fuse import kernels_of, own_outputs
from .groups import Group, Grouper
from .kernel_body import exact_scalars
from .manager import Target

LX_SHARE = 0.4
"""Of the scratchpad for one kernel's tile, as ``fuse`` has it."""


@dataclass(frozen=True)
class BaselineKernels:
    """Form kernels as the published compiler forms device ops: one op a kernel.

    Its ops are not all primitive here, so primitive ops that make up one of its ops share a kernel:
    mean, division, clip, silu, gelu, and the three parts of layer_norm (statistics, their scale,
    the normalisation) and the four of rms_norm. All else, a bias or a residual too, is a kernel of
    its own, and what passes between kernels is a tensor. See docs/baseline.md.

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.sim.device import load_device
    >>> before = parse_module('''module "m" {
    ...   input %x: tensor<256x128xdl16>
    ...   input %w: tensor<128x64xdl16>
    ...   input %b: tensor<64xdl16>
    ...   %y = matmul(%x, %w) : tensor<256x64xdl16>
    ...   %z = add(%y, %b) : tensor<256x64xdl16>
    ...   %s = sigmoid(%z) : tensor<256x64xdl16>
    ...   %o = mul(%z, %s) : tensor<256x64xdl16>
    ...   output "o" = %o
    ... }''')
    >>> after = BaselineKernels().run(before, Target(load_device()))
    >>> [str(op.attrs["name"]) for op in after.body.ops]
    ['k0_matmul', 'k1_add', 'k2_sigmoid_mul']
    """

    name: ClassVar[str] = "baseline-kernels"
    summary: ClassVar[str] = "Forms one kernel for each op of the published compiler."

    def run(self, module: Module, target: Target) -> Module:
        module = _centred_twice(own_outputs(exact_scalars(module)))
        budget = int(target.device.lx.usable_bytes * LX_SHARE)
        return kernels_of(module, _Grouper(module, budget).run())


class _Grouper(Grouper):
    """Joins an op to the kernel of the published op that it is a part of, if that is legal."""

    def __init__(self, module: Module, budget_bytes: int) -> None:
        super().__init__(module, budget_bytes)
        self.part_of = native_ops(module)
        self.made_for: dict[Group, Hashable] = {}

    def _start(self, op: Op) -> Group:
        group = super()._start(op)
        self.made_for[group] = self.part_of.get(op)
        return group

    def _join(self, op: Op) -> Group | None:
        part = self.part_of.get(op)
        if part is None:
            return None
        mine = [g for g in self._producers(op) if self.made_for[g] == part]
        for group in mine:
            others = [g for g in mine if g is not group and g.kind == "vec"]
            if group.kind == "vec":
                joined = self._join_vec(op, group, others)
            else:
                joined = self._join_head(op, group)
            if joined:
                return group
        return None


# Published ops that are several primitive ones ----------------------------------------------------


@dataclass(frozen=True)
class _Graph:
    """Who makes and who reads each value."""

    makers: dict[Value, Op]
    readers: dict[Value, list[Op]]
    outputs: frozenset[Value]

    @staticmethod
    def of(module: Module) -> _Graph:
        readers = {v: [op for op, _ in found] for v, found in uses(module.body).items()}
        makers = {r: op for op in module.body.ops for r in op.results}
        return _Graph(makers, readers, frozenset(module.body.results))

    def next(self, op: Op, *wanted: str) -> Op | None:
        """The only reader of the op's result, if it is one of those ``wanted``."""
        found = self.readers.get(op.result, [])
        if len(found) != 1 or op.result in self.outputs or found[0].name not in wanted:
            return None
        return found[0]

    def made_by(self, v: Value, *wanted: str) -> Op | None:
        op = self.makers.get(v)
        return op if op is not None and op.name in wanted else None

    def number(self, v: Value) -> bool:
        """Is it a constant of one element?"""
        op = self.makers.get(v)
        return op is not None and op.name == "constant" and v.type.size == 1

    def by_number(self, op: Op | None, *wanted: str) -> Value | None:
        """x of an op that takes x and a number."""
        if op is None or op.name not in wanted or len(op.operands) != 2:
            return None
        a, b = op.operands
        if self.number(b):
            return a
        return b if self.number(a) and op.name in ("add", "mul", "max", "min") else None


def native_ops(module: Module) -> dict[Op, Hashable]:
    """For each primitive op that is a part of a published op, which one: parts with equal values
    belong together."""
    g = _Graph.of(module)
    found: dict[Op, Hashable] = {}

    def together(ops: Sequence[Op]) -> None:
        if all(op not in found for op in ops):
            found.update(dict.fromkeys(ops, len(found)))

    for op in module.body.ops:
        if op.name == "rsqrt":
            for part in _norm(op, g):
                together(part)
    for op in module.body.ops:
        match op.name:
            case "reduce_sum":
                together(_mean(op, g))
            case "reciprocal":
                last = g.next(op, "mul")
                together([op, last] if last is not None else [op])
            case "max" | "min" if g.by_number(op, op.name) is not None:
                last = g.next(op, "min" if op.name == "max" else "max")
                if g.by_number(last, "min", "max") is not None:
                    together([op, last])  # type: ignore[list-item]
            case "sigmoid":
                last = g.next(op, "mul")
                if last is not None and op.operands[0] in last.operands:
                    together([op, last])
            case "erf":
                together(_gelu(op, g))
            case _:
                pass
    return found


def _mean(sum_: Op, g: _Graph) -> list[Op]:
    scaled = g.next(sum_, "mul")
    return [sum_, scaled] if scaled is not None and g.by_number(scaled, "mul") else [sum_]


def _norm(root: Op, g: _Graph) -> list[list[Op]]:
    """The parts of the layer_norm or rms_norm whose 1 / sqrt(var + epsilon) is ``root``."""
    shift = g.made_by(root.operands[0], "add")
    var = g.by_number(shift, "add")
    mean = g.made_by(var, "mul") if var is not None else None
    total = g.by_number(mean, "mul")
    summed = g.made_by(total, "reduce_sum") if total is not None else None
    if shift is None or mean is None or summed is None:
        return []
    square = g.made_by(summed.operands[0], "mul")
    if square is None or len(set(square.operands)) != 1:
        return []
    centred = g.made_by(square.operands[0], "sub")
    last = [op for op in g.readers[root.result] if op.name == "mul"]
    tail = _tail(last[0], g) if len(last) == 1 else []
    scale = [shift, root]
    if centred is None:
        return [[square], [summed, mean], scale, tail]
    first = g.made_by(centred.operands[1], "mul")
    first_sum = g.by_number(first, "mul")
    whole = g.made_by(first_sum, "reduce_sum") if first_sum is not None else None
    stats = [centred, square, summed, mean]
    if first is not None and whole is not None:
        stats = [whole, first, *stats]
    again = [g.makers[v] for op in last for v in op.operands if g.made_by(v, "sub")]
    return [stats, scale, [*again, *tail]]


def _tail(op: Op, g: _Graph) -> list[Op]:
    """The normalising product and the scale and bias behind it."""
    found = [op]
    for wanted in ("mul", "add"):
        after = g.next(found[-1], wanted)
        if after is not None and any(v.type.size < after.result.type.size for v in after.operands):
            found.append(after)
    return found


def _gelu(erf: Op, g: _Graph) -> list[Op]:
    """x / 2 (1 + erf(x / sqrt 2)), in whatever order it is spelled."""
    found = [erf]
    x = erf.operands[0]
    before = g.made_by(x, "mul", "div")
    inner = g.by_number(before, "mul", "div")
    if before is not None and inner is not None and g.next(before, "erf") is erf:
        found.insert(0, before)
        x = inner
    while True:
        after = g.next(found[-1], "add", "mul", "div")
        if after is None:
            return found
        (other,) = [v for v in after.operands if v is not found[-1].result] or [x]
        half = g.made_by(other, "mul", "div")
        if half is not None and g.by_number(half, "mul", "div") is x and g.next(half, after.name):
            found.insert(0, half)
        elif other is not x and not g.number(other):
            return found
        found.append(after)


def _centred_twice(module: Module) -> Module:
    """x - mean, which the statistics of a layer_norm and its normalisation both need, is computed
    in each: the published ops hand on the mean, and both read x."""
    g = _Graph.of(module)
    builder = Builder(names(module))
    again: dict[Op, tuple[Value, Op]] = {}  # the normalising product, what it reads, its maker
    for op in module.body.ops:
        if op.name != "rsqrt":
            continue
        for product in g.readers[op.result]:
            for v in product.operands:
                centred = g.made_by(v, "sub")
                square = [r for r in g.readers[v] if set(r.operands) == {v}]
                if centred is not None and square and product.name == "mul":
                    again[product] = v, centred
    for op in module.body.ops:
        if op in again:
            v, centred = again[op]
            made = builder.value(v.name, v.type)
            builder.add(replace(centred, results=(made,)))
            op = replace(op, operands=tuple(made if w is v else w for w in op.operands))
        builder.add(op)
    return replace(module, body=replace(module.body, ops=tuple(builder.ops)))
