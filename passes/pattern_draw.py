"""One small model with a pattern's ops, drawn at random towards what the ops and the pattern's
conditions take: an operand is drawn when the op that reads it is made, an attribute when the first
operand is there. Now and then both are drawn blindly, so that what nobody thought of occurs too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from spyrec.ir.core import Attr, Block, Builder, Loc, Module, Value
from spyrec.ir.errors import SpyrecError
from spyrec.ir.ops import OPS
from spyrec.ir.rounding import round_to
from spyrec.ir.types import DTYPES, DType, tensor

from .pattern import AttrVar, Node, Operand, Pattern, Var

Shape = tuple[int, ...]
SIZES = (1, 2, 3, 4)
LARGEST = 4096
"""Elements of a result."""
FLOATS = (0.5, 1.0, 2.0, -1.5, 1e-5, 0.0)
PRODUCTS: Mapping[tuple[int, int], int] = {
    (3, 2): 6, (4, 4): 3, (2, 2): 3, (3, 3): 1, (4, 2): 1, (2, 3): 1,
}  # fmt: skip
"""Ranks of the operands of a product and how often they are drawn. [B, S, K] x [K, N], a layer of
a language model, is the commonest, then its heads, all of rank 4."""


def drawn(
    pattern: Pattern, rng: random.Random, weights: Mapping[str, int], special: bool
) -> Module | None:
    """A module with the pattern's ops on inputs and constants of random types; None when the ops do
    not allow them. ``weights``: how often an element type is drawn; ``special``: constants hold
    infinities and the like, see ``numbers``."""
    try:
        return _Draw(pattern, rng, weights, special).module()
    except (SpyrecError, ValueError, TypeError, IndexError, OverflowError):
        return None


class _Draw:
    def __init__(
        self, pattern: Pattern, rng: random.Random, weights: Mapping[str, int], special: bool
    ) -> None:
        self.pattern, self.rng, self.special = pattern, rng, special
        self.builder = Builder()
        self.values: dict[str, Value] = {}
        self.attrs: dict[str, Attr] = {}
        self.args: list[Value] = []
        self.ranks = {v: n for v, n in self._said("rank") if isinstance(n, int)}
        self.base = tuple(rng.choice(SIZES) for _ in range(self._base_rank()))
        self.width = rng.choice(SIZES)  # columns of products, so that two of them can be added
        self.weights = weights
        for kind in ("float", "int"):  # of an inner value too: it is mostly that of what it reads
            if any(c.name == kind for c in pattern.conditions) and self._aims():
                left = {n: w for n, w in self.weights.items() if DTYPES[n].kind == kind}
                self.weights = left or self.weights
        self.kind = rng.choices(list(self.weights), list(self.weights.values()))[0]

    def module(self) -> Module | None:
        for node in self.pattern.nodes:
            self._make(node)
        result = self.values[self.pattern.root.result]
        if result.type.size > LARGEST:
            return None
        block = Block(tuple(self.args), tuple(self.builder.ops), (result,))
        return Module("instance", block, ("y",))

    def _aims(self) -> bool:
        return self.rng.random() < 0.85

    def _said(self, condition: str) -> Iterator[tuple[str, Any]]:
        """What the conditions of that name say of values: the name, the second argument."""
        for c in self.pattern.conditions:
            if c.name == condition and len(c.arguments) == 2 and isinstance(c.arguments[0], Var):
                yield c.arguments[0].name, c.arguments[1]

    def _base_rank(self) -> int:
        """Ranks that conditions name, that attributes need, or that products have."""
        if not self._aims():
            return self.rng.randint(0, 4)
        least = max((_least_rank(n) for n in self.pattern.nodes), default=0)
        ranks = [0, 1, 2, 3, 4]
        if self.ranks:
            ranks = list(self.ranks.values())
        elif any(n.name == "matmul" for n in self.pattern.nodes):
            ranks = [2, 3, 3, 3, 4]
        return self.rng.choice([r for r in ranks if r >= least] or [least])

    def _make(self, node: Node) -> None:
        """Add the op of a node, and before it what it reads."""
        named = [o.name for o in node.operands if isinstance(o, Var)]
        for name in named[:1]:
            self._have(node, name)
        first = self.values[named[0]].type.static_shape if named else self.base
        attrs: dict[str, Any] = {k: self._attr(node, k, first) for k in node.attrs}
        for name in named[1:]:
            self._have(node, name, attrs)
        like = self.values[named[0]].type.dtype if named else DTYPES["f32"]
        operands = [self._operand(o, like) for o in node.operands]
        op = self.builder.op(
            node.name, operands, loc=Loc((node.result,)), hint=node.result, **attrs
        )
        self.values[node.result] = op.result

    def _operand(self, o: Operand, like: DType) -> Value:
        if isinstance(o, Var):
            return self.values[o.name]
        return self.builder.constant(np.array(o, like.np_dtype), like)

    def _have(self, node: Node, name: str, attrs: Mapping[str, Any] | None = None) -> None:
        """Draw an input of the pattern for the first op that reads it."""
        if name in self.values:
            return
        shape = self._of_rank(name, self._shape(node, name, attrs or {}))
        own = self.kind if self.rng.random() < 0.8 else self.rng.choice(list(self.weights))
        type_ = tensor(shape, own)
        of = [c for c in self.pattern.conditions if Var(name) in c.arguments]
        if any(c.name in ("known", "splat") for c in of) or self.rng.random() < 0.1:
            array = numbers(shape, type_.dtype, self.rng.randrange(1 << 30), self.special)
            for value, number in self._said("splat"):
                if value == name:
                    array = np.full_like(array, number)
            self.values[name] = self.builder.constant(array, type_.dtype, hint=name)
        else:
            self.values[name] = self.builder.value(name, type_)
            self.args.append(self.values[name])

    def _shape(self, node: Node, name: str, attrs: Mapping[str, Any]) -> Shape:
        """What a condition says, else what suits the op."""
        if not self._aims():
            return self._loose(self.base)
        for value, size in self._said("size"):
            if value == name and isinstance(size, int):
                ones = (1,) * self.rng.randint(0, max(len(self.base) - 1, 0))
                return ones if size == 1 else (*ones, size)
        for condition in ("same", "shape"):
            for a, b in self._said(condition):
                other = b.name if isinstance(b, Var) and a == name else a
                if name in (a, getattr(b, "name", "")) and other in self.values:
                    return self.values[other].type.static_shape
        seen = [
            self.values[o.name].type.static_shape
            for o in node.operands if isinstance(o, Var) and o.name in self.values
        ]
        if node.name == "matmul":
            return self._factor(node, name, seen[0] if seen else None)
        if node.name in ("conv", "conv_transpose") and len(seen) == 1:
            taps = (self.rng.choice((1, 2)) for _ in seen[0][2:])
            return (self.rng.choice(SIZES), seen[0][1], *taps)
        if node.name in ("layer_norm", "rms_norm") and seen and isinstance(attrs.get("axis"), int):
            return seen[0][attrs["axis"] :]
        if node.name in ("batch_norm", "instance_norm", "group_norm") and seen:
            return seen[0][1:2]
        if seen:
            return self._loose(seen[0])
        least = _least_rank(node)
        if least > len(self.base) or isinstance(node.attrs.get("perm"), Sequence):
            return self._ranked(self.base, least)
        return self._loose(self.base)

    def _factor(self, node: Node, name: str, seen: Shape | None) -> Shape:
        """An operand of a product, the first of the two or what fits the other."""
        both = [o.name if isinstance(o, Var) else "" for o in node.operands]
        left = both[0] == name
        if both[0] == both[1]:
            size = self.rng.choice(SIZES)
            return (*self.base[:-2], size, size)
        wanted = [self.ranks.get(v) for v in both]
        if seen is not None:
            wanted[left] = len(seen)
        pairs = {
            p: w for p, w in PRODUCTS.items()
            if all(r in (None, n) for r, n in zip(wanted, p, strict=True))
        }
        pair = wanted
        if pairs:
            pair = list(self.rng.choices(list(pairs), list(pairs.values()))[0])
        rank = pair[not left] or max(len(self.base), 2)
        if seen is None:
            self.ranks.setdefault(both[left], pair[left] or rank)
            return self._ranked(self.base, rank)
        batch = tuple(d if self.rng.random() < 0.85 else 1 for d in seen[:-2])
        batch = self._ranked(batch, rank - 2)
        width = self.width if self.rng.random() < 0.7 else self.rng.choice(SIZES)
        return (*batch, width, seen[-2]) if left else (*batch, seen[-1], width)

    def _of_rank(self, name: str, shape: Shape) -> Shape:
        rank = self.ranks.get(name)
        return shape if rank is None else self._ranked(shape, rank)

    def _ranked(self, shape: Shape, rank: int) -> Shape:
        """Its last dimensions, others before them where there are too few."""
        short = rank - len(shape)
        more = SIZES if rank <= 4 else SIZES[:2]
        return (*(self.rng.choice(more) for _ in range(short)), *shape[max(-short, 0) :])

    def _loose(self, like: Shape) -> Shape:
        """That shape, what broadcasts to it, its last dimensions, or another."""
        draw = self.rng.random()
        if draw < 0.6:
            return like
        if draw < 0.75:
            return tuple(d if self.rng.random() < 0.5 else 1 for d in like)
        if draw < 0.85:
            return like[self.rng.randint(0, len(like)) :]
        return tuple(self.rng.choice(SIZES) for _ in range(self.rng.randint(0, 4)))

    def _attr(self, node: Node, key: str, shape: Shape) -> Attr:
        """An attribute of an op whose first operand has that shape."""
        term: Any = node.attrs[key]
        if not isinstance(term, AttrVar):
            fixed: Attr = term
            return fixed
        if term.name not in self.attrs:
            given = self._equal(term)
            if given is None:
                given = self._drawn_attr(node, key, term, shape)
            self.attrs[term.name] = given
        return self.attrs[term.name]

    def _equal(self, term: AttrVar) -> Attr:
        """What a condition says that the attribute is equal to, None where that is not drawn."""
        for c in self.pattern.conditions:
            if c.name == "equal" and term in c.arguments:
                for other in c.arguments:
                    if other != term:
                        return self.attrs.get(other.name) if isinstance(other, AttrVar) else other
        return None

    def _drawn_attr(self, node: Node, key: str, term: AttrVar, shape: Shape) -> Attr:
        spec, rng, rank = OPS[node.name].attrs[key], self.rng, len(shape)
        match spec.kind:
            case "bool":
                return rng.random() < 0.5
            case "int" if key == "axis" and rank and self._aims():
                of = [c.name for c in self.pattern.conditions if term in c.arguments]
                return rank - 1 if "last" in of else rng.randrange(rank)
            case "int":
                return rng.randint(0, max(rank - 1, 0)) if rng.random() < 0.8 else rng.randint(0, 4)
            case "float":
                return rng.choice(FLOATS)
            case "str":
                return rng.choice(spec.choices) if spec.choices else "x"
            case "dtype":
                return DTYPES[rng.choice(("f32", "i32", "bool", "f16"))]
            case "ints" if key == "perm":
                return tuple(rng.sample(range(rank), rank))
            case "ints" if key == "axes":
                many = 1 if rank and rng.random() < 0.5 else rng.randint(0, rank)
                return tuple(sorted(rng.sample(range(rank), many)))
            case "ints" if OPS[node.name].family in ("contract", "window"):
                return self._of_windows(key, max(rank - 2, 0))
            case "ints":
                return tuple(rng.randint(0, 3) for _ in range(rank))
            case "dims":
                return shape if rng.random() < 0.5 else tuple(rng.sample(shape, rank))
            case "floats":
                return tuple(rng.choice(FLOATS) for _ in range(rank))
            case _:
                raise ValueError(f"no values are drawn for attributes of kind {spec.kind}")

    def _of_windows(self, key: str, rank: int) -> tuple[int, ...]:
        """Of a convolution or a pool over so many dimensions."""
        if key == "pads":
            return tuple(self.rng.choice((0, 0, 1)) for _ in range(2 * rank))
        if key == "output_padding":
            return (0,) * rank
        return tuple(self.rng.choice((1, 1, 2)) for _ in range(rank))


def _least_rank(node: Node) -> int:
    """The rank that the attributes of an op ask of its first operand."""
    perm, axes, axis = (node.attrs.get(key) for key in ("perm", "axes", "axis"))
    if isinstance(perm, Sequence):
        return len(perm)
    if isinstance(axes, Sequence):
        return max((a for a in axes if isinstance(a, int)), default=-1) + 1
    return axis + 1 if isinstance(axis, int) else 0


def numbers(
    shape: Shape, dtype: DType, seed: int, special: bool = True
) -> np.ndarray[Any, Any]:
    """Random values of an element type; ``special``: some of them zeros of both signs, infinities,
    NaN, very large and very small, where the type has them."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return rng.random(shape) < 0.5
    if dtype.kind == "int":
        return rng.integers(-3, 4, shape).astype(dtype.np_dtype)
    array = rng.normal(0, 2, shape)
    if special:
        odd = rng.choice([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3e4, 1e-6], shape)
        array = np.where(rng.random(shape) < 0.15, odd, array)
    return np.asarray(round_to(array.astype(np.float64), dtype)).astype(dtype.np_dtype)
