"""Makes a model that was imported at a bucket's size give what the true size would give: every op
that would mix padding into a result sees it masked by run-time lengths, or the model is refused.

The proof is by induction over the ops. Claim: a value, cropped to its true extents, is the value of
the model imported at the true sizes. Where padding lies in each value, and which attributes and
constants follow the size, is read off from imports at other sizes (``probes``), whose graphs must
be the same op by op; how each op hands the claim on is its rule in ``padding_rules``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from spyrec.ir.core import Block, Builder, Module, Op, Value
from spyrec.ir.errors import PassError
from spyrec.ir.ops import attributes
from spyrec.ir.types import DTYPES, DType, TensorType

from .extents import (
    Axis,
    Extents,
    Sizes,
    fixed,
    open_factors,
    plain,
    seen,
    size_of,
    true_size,
)
from .rule import apply_rules
from .rules_attention import ATTENTION_RULES
from .rules_control import CONTROL_RULES
from .rules_norm import NORM_RULES

Array = np.ndarray[Any, Any]
Probe = tuple[Sizes, Module]
Term = tuple[int, tuple[tuple[str, int], ...]]
"""A product: a number and, of each open dimension it grows with, its name and what is added."""

UNFOLDED = (*CONTROL_RULES, *(r for r in (*NORM_RULES, *ATTENTION_RULES) if r.op in (
    "attention", "instance_norm", "group_norm")))  # fmt: skip
"""Ops that are written out first, since their parts have rules of their own."""

FOLLOWING = {
    "reshape": {"shape"}, "broadcast_to": {"shape"}, "slice": {"starts", "sizes"},
    "iota": {"shape"}, "constant": {"value"},
}  # fmt: skip
"""Attributes whose rule looks at all sizes; any other must not follow the size."""


Kind = Literal["valid", "size", "share", "index"]


@dataclass(frozen=True)
class Made:
    """An input that is filled, in row-major order, from the true size n of ``dim``.

    ``valid``: of each element whether its index is below n + add, the index being its number
    divided by ``inner``, modulo ``size``; ``size``: the number n + add; ``share``: 1 / (n + add);
    ``index``: the whole numbers from n + add on.
    """

    name: str
    kind: Kind
    dim: str
    add: int
    size: int = 1
    inner: int = 1


@dataclass(frozen=True)
class Padded:
    """A module that may be fed with padding (zeros). ``inputs`` and ``outputs``: the axes of those
    of the model; ``made``: the inputs it has besides; ``macs``: multiply-accumulates of matrix
    products and convolutions, as a sum of terms; ``masks``: (op that needed one, where it is
    from)."""

    module: Module
    inputs: Mapping[str, tuple[Axis, ...]]
    outputs: Mapping[str, tuple[Axis, ...]]
    made: tuple[Made, ...]
    macs: tuple[Term, ...]
    masks: tuple[tuple[str, str], ...]


class OtherGraph(PassError):
    """Two sizes give two graphs."""


class Refused(Exception):
    """The rule of an op cannot make it right; the message completes "it ..."."""


@dataclass(frozen=True)
class Tail:
    """A value that is what lies in ``whole`` from dim's size + ``add`` on along an axis: it moves
    with the size, so only a concat that puts it back in its place may read it."""

    whole: Value
    axis: int
    dim: str
    add: int


@dataclass
class Walk:
    """One module under way.

    ``sizes``: of the bucket, then of each probe. Of the new values: what is ``known``; ``arrays``,
    the elements of constants; ``twins``, the elements in each import of what is known there;
    ``better``, the same value with zeros for padding; ``tails``. ``made``: the inputs added;
    ``masked``: (value, axis, factor, fill) -> the value so hidden; ``macs`` and ``masks`` as in
    Padded.
    """

    builder: Builder
    sizes: tuple[Sizes, ...]
    known: dict[Value, Extents] = field(default_factory=dict)
    arrays: dict[Value, Array] = field(default_factory=dict)
    twins: dict[Value, tuple[Array, ...]] = field(default_factory=dict)
    better: dict[Value, Value] = field(default_factory=dict)
    made: dict[Made, Value] = field(default_factory=dict)
    masked: dict[tuple[Any, ...], Value] = field(default_factory=dict)
    tails: dict[Value, Tail] = field(default_factory=dict)
    macs: Counter[tuple[tuple[str, int], ...]] = field(default_factory=Counter)
    masks: list[tuple[str, str]] = field(default_factory=list)

    def given(self, kind: Kind, dim: str, add: int, shape: tuple[int, ...], dtype: DType,
              size: int = 1, inner: int = 1) -> Value:
        """The input that holds a run-time length (see Made)."""
        type_ = TensorType(shape, dtype)
        for made, value in self.made.items():
            if replace(made, name="") == Made("", kind, dim, add, size, inner) and (
                value.type == type_
            ):
                return value
        name = f"{dim}.{kind}{f'{add:+d}' if add else ''}"
        value = self.builder.value(name, type_)
        self.made[Made(value.name, kind, dim, add, size, inner)] = value
        # A number that sums are divided by is that of true elements: 1 or more.
        self.known[value] = Extents(tuple(fixed(n) for n in shape), True, 0.0)
        return value


@dataclass
class Site:
    """An op about to be emitted: its operands in the new module, what is known of them, and the
    same op as each probe has it."""

    op: Op
    walk: Walk
    values: list[Value]
    ops: tuple[Op, ...]  # of the bucket, then of each probe

    @property
    def known(self) -> list[Extents]:
        return [self.walk.known[v] for v in self.values]

    def axis(self, operand: int, axis: int) -> Axis:
        return self.known[operand].axes[axis]

    def attr(self, name: str) -> Any:
        return attributes(self.op)[name]

    def attrs(self, name: str) -> list[Any]:
        """The attribute in the bucket, then in each probe."""
        return [attributes(op)[name] for op in self.ops]

    def seen(self, axis: int, result: int = 0) -> Axis:
        """The axis of a result by its extents in all imports. Refused when it follows no rule."""
        extents = [op.results[result].type.static_shape[axis] for op in self.ops]
        found = seen(self.walk.sizes, extents)
        if found is None:
            raise Refused(
                f"makes axis {axis} as long as {', '.join(map(str, extents))} for "
                f"{'; '.join(_sizes(s) for s in self.walk.sizes)}, which is no dimension plus a "
                "number"
            )
        return found

    def emit(self, name: str, operands: Sequence[Value], known: Extents, **attrs: Any) -> Value:
        """An op besides the one at hand, and what is known of its result."""
        value = self.walk.builder.op(name, operands, loc=self.op.loc, **attrs).result
        self.walk.known[value] = known
        return value

    def constant(self, array: Any, dtype: DType, axes: Sequence[Axis] | None = None) -> Value:
        """A constant that counts as finite; its axes are fixed unless given."""
        held = np.asarray(array, dtype.np_dtype)
        value = self.walk.builder.constant(held, dtype, loc=self.op.loc)
        low = float(held.min()) if held.size else 0.0
        known = tuple(fixed(n) for n in held.shape) if axes is None else tuple(axes)
        self.walk.known[value] = Extents(known, True, low)
        return value

    def hide(self, value: Value, axes: Sequence[int], fill: float) -> Value:
        """The value with ``fill`` in all padding along these axes."""
        for axis in axes:
            for place in open_factors(self.walk.known[value].axes[axis]):
                value = self._hidden(value, axis, place, fill)
        return value

    def hide_operand(self, operand: int, axes: Sequence[int], fill: float) -> None:
        self.values[operand] = self.hide(self.values[operand], axes, fill)

    def _hidden(self, value: Value, axis: int, place: int, fill: float) -> Value:
        walk = self.walk
        key = (value, axis, place, fill)
        if key in walk.masked:
            return walk.masked[key]
        known = walk.known[value]
        valid = self._valid(known.axes, axis, place)
        rest = self.constant(fill, value.type.dtype)
        factors = tuple(
            replace(f, zero=fill == 0 if i == place else f.zero and fill == 0)
            for i, f in enumerate(known.axes[axis])
        )
        axes = tuple(
            factors if a == axis else plain(x) if fill else x for a, x in enumerate(known.axes)
        )
        low = min(known.low, fill) if math.isfinite(fill) else known.low
        hidden = Extents(axes, known.finite, low)
        walk.masked[key] = made = self.emit("where", [valid, value, rest], hidden)
        if fill == 0:
            walk.better[value] = made
        walk.masks.append((self.op.name, str(self.op.loc)))
        return made

    def _valid(self, axes: Sequence[Axis], axis: int, place: int) -> Value:
        """Truth values that broadcast over the axes: which indices along a factor are no
        padding."""
        f = axes[axis][place]
        shape = tuple(size_of(x) if a == axis else 1 for a, x in enumerate(axes))
        inner = size_of(axes[axis][place + 1:])
        return self.walk.given("valid", f.dim, f.add, shape, DTYPES["bool"], f.size, inner)

    def count_macs(self, axes: Sequence[Axis]) -> None:
        """Note a product of all these extents as work of the matrix unit."""
        factors = [f for axis in axes for f in axis]
        number = math.prod(f.size for f in factors if not f.dim)
        self.walk.macs[tuple(sorted((f.dim, f.add) for f in factors if f.dim))] += number


Rule = Callable[[Site], Sequence[Extents] | Value]
"""What is known of the op's results, or a value that stands in for the only one. Refused when
nothing would make it right."""


def prepared(module: Module) -> Module:
    """The module as the walk wants it: composed ops whose parts have rules are written out."""
    return apply_rules(module, UNFOLDED)


def pad_safely(
    module: Module, sizes: Sizes, probes: Sequence[Probe], rules: Mapping[str, Rule]
) -> Padded:
    """The module of a bucket, imported at ``sizes``, made right for every true size from the
    smallest among the probes on. All modules are ``prepared``. PassError names each op that stands
    in the way and where it is from."""
    modules = (module, *(m for _, m in probes))
    walk = Walk(Builder(_names(module)), (sizes, *(s for s, _ in probes)))
    _check_alike(modules, walk.sizes)
    problems: list[str] = []
    mapped = _inputs(walk, modules, problems)
    args = tuple(mapped[v] for v in module.body.args)
    for ops in zip(*(m.body.ops for m in modules), strict=True):
        op = ops[0]
        values = [_latest(walk, mapped[v]) for v in op.operands if v in mapped]
        if len(values) < len(op.operands):
            continue  # it reads what could not be made right: told already
        site = Site(op, walk, values, ops)
        try:
            results = _step(site, rules)
        except Refused as why:
            problems.append(f"{op.name} %{op.results[0].name}: it {why} (from {op.loc})")
            continue
        mapped.update(zip(op.results, results, strict=True))
    if problems:
        raise PassError("\n".join(f"buckets: {p}" for p in dict.fromkeys(problems)))
    results = tuple(mapped[v] for v in module.body.results)
    body = Block((*args, *walk.made.values()), tuple(walk.builder.ops), results)
    outputs = zip(module.output_names, results, strict=True)
    return Padded(
        replace(module, body=body),
        {v.name: walk.known[v].axes for v in args},
        {name: walk.known[v].axes for name, v in outputs},
        tuple(walk.made), tuple((n, dims) for dims, n in walk.macs.items()), tuple(walk.masks),
    )


def _latest(walk: Walk, value: Value) -> Value:
    while value in walk.better:
        value = walk.better[value]
    return value


def _names(module: Module) -> set[str]:
    return {v.name for v in module.body.args} | {
        v.name for op in module.body.ops for v in op.results
    }


def _sizes(sizes: Sizes) -> str:
    return ", ".join(f"{dim}={n}" for dim, n in sizes.items())


def _inputs(walk: Walk, modules: Sequence[Module], problems: list[str]) -> dict[Value, Value]:
    kept: Any = modules[0].attrs.get("state", ())
    state = {name for name, _, _ in kept}
    mapped = {}
    for args in zip(*(m.body.args for m in modules), strict=True):
        v = args[0]
        axes = []
        for a in range(v.type.rank):
            found = seen(walk.sizes, [x.type.static_shape[a] for x in args])
            if found is None or (found and found[0].dim and v.name in state):
                what = "state may not grow" if found else "its length is no dimension plus a number"
                problems.append(f"input {v.name!r}, axis {a}: {what}")
                found = fixed(v.type.static_shape[a])
            axes.append(tuple(replace(f, zero=bool(f.dim)) for f in found))
        low = 0.0 if v.type.dtype.kind == "bool" else -math.inf
        walk.known[v] = Extents(tuple(axes), True, low)
        mapped[v] = v
    return mapped


def _step(site: Site, rules: Mapping[str, Rule]) -> Sequence[Value]:
    """Emit an op as its rule says; the values that stand for its results."""
    op, walk = site.op, site.walk
    for name in attributes(op):
        if name not in FOLLOWING.get(op.name, ()) and not _all_equal(site.attrs(name)):
            raise Refused(f"has the {name} {', '.join(map(str, site.attrs(name)))} for "
                          f"{'; '.join(map(_sizes, walk.sizes))}, so it follows the size")
    open_ = any(k.padded for k in site.known) or any(
        len({o.results[i].type.shape for o in site.ops}) > 1 for i in range(len(op.results))
    )
    if op.name != "concat" and any(v in walk.tails for v in site.values):
        raise Refused("reads a part whose beginning follows the size")
    if op.regions:
        raise Refused("has branches or a loop that take their course at run time")
    rule = rules.get(op.name)
    if rule is None:
        if open_:
            raise Refused("has no rule that says what padding does to it")
        answer: Sequence[Extents] | Value = [
            Extents(tuple(fixed(n) for n in r.type.static_shape)) for r in op.results
        ]
    else:
        answer = rule(site)
    if isinstance(answer, Value):
        results: Sequence[Value] = (answer,)
    else:
        results = _emitted(site, answer)
    for i, value in enumerate(results):
        if value not in walk.tails:
            _check_shape(site, i, walk.known[value])
    return results


def _emitted(site: Site, answer: Sequence[Extents]) -> Sequence[Value]:
    """The op on its operands as they are now."""
    op, walk = site.op, site.walk
    made = walk.builder.add(replace(op, operands=tuple(site.values)))
    for value, known in zip(made.results, answer, strict=True):
        walk.known[value] = known
    if op.name == "constant":
        walk.arrays[made.result] = np.asarray(op.attrs["value"])
        walk.twins[made.result] = tuple(np.asarray(o.attrs["value"]) for o in site.ops)
    return made.results


def _check_shape(site: Site, index: int, known: Extents) -> None:
    """Refused unless the extents that were derived are those of every import."""
    for sizes, op in zip(site.walk.sizes, site.ops, strict=True):
        shape = op.results[index].type.static_shape
        derived = tuple(true_size(axis, sizes) for axis in known.axes)
        if derived != shape:
            raise Refused(
                f"has the shape {list(shape)} for {_sizes(sizes)}, where its operands lead one to "
                f"expect {list(derived)}"
            )


def _all_equal(values: Sequence[Any]) -> bool:
    first = values[0]
    if isinstance(first, np.ndarray):
        return all(np.array_equal(first, v) for v in values[1:])
    return all(first == v for v in values[1:])


def _check_alike(modules: Sequence[Module], sizes: Sequence[Sizes]) -> None:
    """OtherGraph at the first op that is not the same in all imports."""
    first = modules[0]
    for other, at in zip(modules[1:], sizes[1:], strict=True):
        where = f"for {_sizes(sizes[0])} and for {_sizes(at)}"
        if [v.name for v in first.body.args] != [v.name for v in other.body.args]:
            raise OtherGraph(f"buckets: the model has other inputs {where}")
        numbers = ({v: i for i, v in enumerate(m.body.args)} for m in (first, other))
        mine, theirs = numbers
        for a, b in zip(first.body.ops, other.body.ops, strict=False):
            wires = [[n.get(v, -1) for v in op.operands] for n, op in ((mine, a), (theirs, b))]
            if a.name != b.name or wires[0] != wires[1] or len(a.results) != len(b.results):
                raise OtherGraph(
                    f"buckets: the model is another graph {where}: {a.name} (from {a.loc}) "
                    f"stands where {b.name} (from {b.loc}) does; a bucket needs one graph"
                )
            for x, y in zip(a.results, b.results, strict=True):
                mine[x] = theirs[y] = len(mine)
        if len(first.body.ops) != len(other.body.ops):
            raise OtherGraph(
                f"buckets: the model is another graph {where}: {len(first.body.ops)} ops and "
                f"{len(other.body.ops)}; a bucket needs one graph"
            )
        ends = [[n.get(v) for v in m.body.results]
                for n, m in ((mine, first), (theirs, other))]  # fmt: skip
        if ends[0] != ends[1] or first.output_names != other.output_names:
            raise OtherGraph(f"buckets: the model has other outputs {where}")

