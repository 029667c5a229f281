"""join-products: projections of one tensor are one product or several, as the planner's price
says."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from spyrec.ir.core import Block, Builder, Loc, Module, Op, Value, uses
from spyrec.ir.ops import OPS
from spyrec.ir.printer import print_module

from .allocate import CoreAllocation
from .canonicalize import canonicalize
from .dce import remove_dead
from .decompose import decompose
from .fold import Fold
from .fuse import Fuse
from .kernel import Nest
from .legalize_dtypes import LegalizeDtypes
from .manager import Target
from .merge_moves import MergeMoves
from .products import Product, fused, groups, joined, ops_of, parted
from .stick_layout import StickLayout

ALIKE = 0.9
"""Of a price of products: what another must promise to be less. One between is as much: how
unevenly columns are spread costs less than the price says, because weights come while the kernel
before still runs."""
DEAR = 6.0
"""Times what `core-allocation` expects, vector kernels and moves take: its price ranks cuts. Chosen
for the seven model cards, 512 tokens read and one made: no choice then makes one slower."""
FOLLOWING = ("elementwise", "move", "norm", "reduce")
ENDS = ("attention", "softmax", "log_softmax")
FOLLOWERS_MAX = 64
KEPT_ELEMENTS = 64
"""A constant of more elements is an input of a trial, which depends on no number."""

Cut = tuple[tuple[int, ...], ...]
"""Which products become one: their numbers, each once, in their order."""


@dataclass(frozen=True)
class JoinProducts:
    """x A and x B are slices of x [A B]: one launch in the place of two, x is read once, and all
    columns together spread more evenly over the cores. Against that the slices may need moves of
    their own, and what followed each product on its accumulators runs by itself.

    So both ways are planned, with all that follows up to the next product, and what the planner
    expects them to take decides (its attribute ``why_parts``, and a launch for each kernel). Equal
    surroundings, as in the layers of a model, are planned once. What the model has as one product
    is taken apart by the same price.

    ``worth``: the least share of the surroundings' time that must be gained. Programs that are
    loaded together share the weights that they store alike, so a change that one of them makes and
    another does not costs memory. ``worth_state``: the same for modules with state, which come in
    pairs, prefill and decode; with 1 they are left alone. Programs with buckets, whose weights are
    one image, always are.

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.sim.device import load_device
    >>> before = parse_module('''module "m" {
    ...   input %x: tensor<512x1024xf16>
    ...   %a = constant {value = dense<1024x96xfloat16, splat 0.5>} : tensor<1024x96xf16>
    ...   %b = constant {value = dense<1024x32xfloat16, splat 0.25>} : tensor<1024x32xf16>
    ...   %y = matmul(%x, %a) : tensor<512x96xf16>
    ...   %z = matmul(%x, %b) : tensor<512x32xf16>
    ...   output "y" = %y
    ...   output "z" = %z
    ... }''')
    >>> after = JoinProducts().run(before, Target(load_device()))
    >>> [op.name for op in after.body.ops]
    ['constant', 'matmul', 'slice', 'slice']
    """

    name: ClassVar[str] = "join-products"
    summary: ClassVar[str] = "Joins products of one tensor, or parts them, where that is faster."
    worth: float = 0.01
    worth_state: float = 1.0

    def run(self, module: Module, target: Target) -> Module:
        if module.attrs.get("one_image"):
            return module
        choose = _Chooser(self.worth_state if module.attrs.get("state") else self.worth, target)
        for product, widths in fused(module):
            if choose.apart(trial_of(module, [product])):
                module = parted(module, product, widths)
        for group in groups(module):
            for part in choose.cut(trial_of(module, group)):
                if len(part) > 1:
                    module = joined(module, [group[i] for i in part])
        return remove_dead(module)


# What both ways are expected to take --------------------------------------------------------------


def trial_of(module: Module, group: Sequence[Product]) -> Module:
    """The products and what follows them up to other products, attention and softmax, as a module
    with names of its own, so that equal surroundings give equal text. What it reads of the model
    are inputs, of which those of the products are absent."""
    b = Builder()
    mapped: dict[Value, Value] = {}
    args: list[Value] = []
    absent: list[str] = []
    constants = {op.result: op for op in module.body.ops if op.name == "constant"}
    own = {v for p in group for v in (p.weight, p.bias) if v is not None}

    def of(v: Value) -> Value:
        if v in own:  # one that several products share, like a bias of zeros, is several
            args.append(b.value("weight", v.type))
            absent.append(args[-1].name)
            return args[-1]
        if v not in mapped and v in constants and v.type.size <= KEPT_ELEMENTS:
            mapped[v] = b.constant(np.asarray(constants[v].attrs["value"]), v.type.dtype)
        elif v not in mapped:
            mapped[v] = b.value("in", v.type)
            args.append(mapped[v])
        return mapped[v]

    members = {op.result for p in group for op in ops_of(p)}
    (x,) = {op.operands[0] for op in module.body.ops if op.results == group[0].matmul.results}
    before = b.value("x", x.type)
    args.append(before)
    mapped[x] = b.op("neg", [before]).result  # made by a kernel, so that it may stay on the card
    inside: dict[Value, None] = {}
    taken: set[Op] = set()
    for op in module.body.ops:
        follows = any(v in inside for v in op.operands) and _follows(op)
        if not members.isdisjoint(op.results) or (follows and len(taken) < FOLLOWERS_MAX):
            made = [b.value("v", r.type) for r in op.results]
            b.add(replace(op, operands=tuple(map(of, op.operands)), results=tuple(made), loc=Loc()))
            mapped.update(zip(op.results, made, strict=True))
            inside.update(dict.fromkeys(op.results))
            taken.add(op)
    readers, outputs = uses(module.body), set(module.body.results)
    ends = [
        mapped[v] for v in inside
        if v in outputs or not all(op in taken for op, _ in readers.get(v, []))
    ]  # fmt: skip
    body = Block(tuple(args), tuple(b.ops), tuple(ends))
    trial = Module("trial", body, tuple(f"o{i}" for i in range(len(ends))))
    return trial.with_attrs(absent=tuple(absent))


def _follows(op: Op) -> bool:
    return OPS[op.name].family in FOLLOWING and op.name not in ENDS and not op.regions


@dataclass(frozen=True)
class Price:
    """What the planner expects, in cycles: of ``products`` alone, and of the ``rest``: the start of
    every launch, and vector kernels and moves at ``DEAR`` times its estimate. ``split``: some
    product divides what it sums over, whose price is off by more."""

    products: float
    rest: float
    split: bool

    @property
    def total(self) -> float:
        return self.products + self.rest

    def gain(self, now: Price) -> float:
        """Cycles that are gained for certain when this takes the place of ``now``."""
        alike = ALIKE * now.products <= self.products <= now.products
        if alike and self.split:
            return 0.0
        return now.total - self.rest - (now.products if alike else self.products)


class _Chooser:
    """Prices both ways, once for equal surroundings."""

    def __init__(self, worth: float, target: Target) -> None:
        self.worth, self.target = worth, target
        self.cuts: dict[Hashable, Cut] = {}
        self.parts: dict[Hashable, bool] = {}

    def cut(self, trial: Module) -> Cut:
        key = print_module(trial)
        if key not in self.cuts:
            self.cuts[key] = self._cut(trial)
        return self.cuts[key]

    def apart(self, trial: Module) -> bool:
        key = print_module(trial)
        if key not in self.parts:
            now = price(trial, self.target)
            gains = [price(parted(trial, *f), self.target).gain(now) for f in fused(trial)]
            self.parts[key] = max(gains, default=0.0) > self.worth * now.total
        return self.parts[key]

    def _cut(self, trial: Module) -> Cut:
        """Of the products of the trial all by themselves, all in one, and all but the widest in
        one: what is expected to take the least time."""
        (group,) = groups(trial)
        every = tuple(range(len(group)))
        widest = max(every, key=lambda i: group[i].width)
        options: list[Cut] = [(every,)]
        if len(group) > 2:
            options.append(((widest,), tuple(i for i in every if i != widest)))
        best: Cut = tuple((i,) for i in every)
        now = price(trial, self.target)
        least = self.worth * now.total
        for cut in options:
            module = trial
            for part in cut:
                if len(part) > 1:
                    module = joined(module, [group[i] for i in part])
            gain = price(module, self.target).gain(now)
            if gain > least:
                best, least = cut, gain
        return best


def price(module: Module, target: Target) -> Price:
    """What the planner expects of the kernels, one after the other."""
    module = Fold().run(canonicalize(decompose(module)), target)
    for step in (LegalizeDtypes(), MergeMoves(), Fuse(), StickLayout(), CoreAllocation()):
        module = remove_dead(step.run(module, target))
    products = rest = 0.0
    split = False
    for op in module.body.ops:
        if op.name == "kernel":
            why = op.attrs["why_parts"]
            assert isinstance(why, tuple) and isinstance(why[0], float)
            if op.attrs["kind"] == "contract":
                products += why[0]
                split |= Nest(op).terms > 1
            else:
                rest += DEAR * why[0]
            rest += target.device.launch.start_cycles
    return Price(products, rest, split)
