"""Instances of a pattern: small modules in which it occurs, with types and attributes drawn at
random until the ops allow them. With them a rule's types are checked when it is registered, and
its meaning by the interpreter (``spyrec check-rule``)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from spyrec.ir.core import Attr, Block, Builder, Loc, Module, Value
from spyrec.ir.errors import PassError, SpyrecError
from spyrec.ir.ops import OPS
from spyrec.ir.rounding import round_to
from spyrec.ir.types import DTYPES, DType, tensor

from .pattern import AttrVar, Node, Operand, Pattern, PatternRule, Var
from .rule import apply_rules

DTYPE_WEIGHTS = {"f32": 6, "i32": 2, "bool": 2, "f16": 1}
WIDE = {"f64": 6, "i32": 2, "bool": 2}
SIZES = (1, 2, 3, 4)
FLOATS = (0.5, 1.0, 2.0, -1.5, 1e-5, 0.0)
TRIES_EACH = 400
CHECKED = 12
"""Instances with which types are checked."""


def instances(
    rule: PatternRule, count: int, seed: int = 0, wide: bool = False
) -> Iterator[Module]:
    """Up to ``count`` modules that the rule changes; fewer when they are hard to find. The same
    seed gives the same. ``wide``: floats of 64 bits in the place of 32."""
    rng = random.Random(seed)
    for _ in range(count):
        for _ in range(TRIES_EACH):
            module = _drawn(rule.pattern, rng, WIDE if wide else DTYPE_WEIGHTS)
            if module is not None and _applies(rule, module):
                yield module
                break
        else:
            return


def _applies(rule: PatternRule, module: Module) -> bool:
    before = [op.name for op in module.body.ops]
    last = module.body.ops[-1]
    after = apply_rules(module, (rule,))
    return [op.name for op in after.body.ops] != before or after.body.ops[-1] is not last


def check_types(rule: PatternRule) -> None:
    """PassError when the replacement has another type than what it replaces in some instance, when
    its ops do not take their operands, or when no instance is found."""
    found = 0
    try:
        for _ in instances(rule, CHECKED):
            found += 1
    except SpyrecError as error:
        told = str(error).removeprefix(f"rule {rule.name}: ")
        raise PassError(f"rule {rule.name}: {told}") from error
    if not found:
        raise PassError(
            f"rule {rule.name}: of {TRIES_EACH} drawn models none has its pattern, so it cannot be "
            "checked; is a condition too narrow, or an attribute impossible?"
        )


def _drawn(
    pattern: Pattern, rng: random.Random, weights: Mapping[str, int]
) -> Module | None:
    """A module with the pattern's ops on inputs and constants of random types; None when the ops do
    not allow them."""
    builder = Builder()
    values: dict[str, Value] = {}
    attrs: dict[str, Attr] = {}
    args: list[Value] = []
    base = tuple(rng.choice(SIZES) for _ in range(rng.randint(0, 4)))
    kind = rng.choices(list(weights), list(weights.values()))[0]
    constants = {
        a.name for c in pattern.conditions if c.name in ("known", "splat")
        for a in c.arguments if isinstance(a, Var)
    }
    splats = {
        c.arguments[0].name: c.arguments[1] for c in pattern.conditions if c.name == "splat"
    }
    for name in pattern.inputs:
        own = kind if rng.random() < 0.8 else rng.choice(list(weights))
        type_ = tensor(_shape(base, rng), own)
        if name in constants or rng.random() < 0.1:
            array = numbers(
                type_.static_shape, type_.dtype, rng.randrange(1 << 30), weights is not WIDE
            )
            if name in splats:
                array = np.full_like(array, splats[name])
            values[name] = builder.constant(array, type_.dtype, hint=name)
        else:
            values[name] = builder.value(name, type_)
            args.append(values[name])
    try:
        for node in pattern.nodes:
            given: dict[str, Any] = {
                k: _attr(node, k, t, attrs, base, rng) for k, t in node.attrs.items()
            }
            operands = _operands(node, values, builder)
            op = builder.op(
                node.name, operands, loc=Loc((node.result,)), hint=node.result, **given
            )
            values[node.result] = op.result
    except (SpyrecError, ValueError, TypeError, IndexError, OverflowError):
        return None
    result = values[pattern.root.result]
    if result.type.size > 4096:
        return None
    return Module("instance", Block(tuple(args), tuple(builder.ops), (result,)), ("y",))


def _operands(node: Node, values: Mapping[str, Value], builder: Builder) -> list[Value]:
    first = next((values[o.name] for o in node.operands if isinstance(o, Var)), None)

    def value(o: Operand) -> Value:
        if isinstance(o, Var):
            return values[o.name]
        dtype = DTYPES["f32"] if first is None else first.type.dtype
        return builder.constant(np.array(o, dtype.np_dtype), dtype)

    return [value(o) for o in node.operands]


def _shape(base: tuple[int, ...], rng: random.Random) -> tuple[int, ...]:
    """The base, what broadcasts to it, a turned one, or another."""
    draw = rng.random()
    if draw < 0.6:
        return base
    if draw < 0.75:
        return tuple(d if rng.random() < 0.5 else 1 for d in base)
    if draw < 0.85:
        return base[rng.randint(0, len(base)) :]
    return tuple(rng.choice(SIZES) for _ in range(rng.randint(0, 4)))


def _attr(
    node: Node, key: str, term: Any, attrs: dict[str, Attr], base: tuple[int, ...],
    rng: random.Random,
) -> Attr:
    if not isinstance(term, AttrVar):
        fixed: Attr = term
        return fixed
    if term.name not in attrs:
        attrs[term.name] = _random_attr(node, key, base, rng)
    return attrs[term.name]


def _random_attr(node: Node, key: str, base: tuple[int, ...], rng: random.Random) -> Attr:
    spec = OPS[node.name].attrs[key]
    rank = len(base)
    match spec.kind:
        case "bool":
            return rng.random() < 0.5
        case "int":
            return rng.randint(0, max(rank - 1, 0)) if rng.random() < 0.8 else rng.randint(0, 4)
        case "float":
            return rng.choice(FLOATS)
        case "str":
            return rng.choice(spec.choices) if spec.choices else "x"
        case "dtype":
            return DTYPES[rng.choice(list(DTYPE_WEIGHTS))]
        case "ints" if key == "perm":
            return tuple(rng.sample(range(rank), rank))
        case "ints" if key == "axes":
            return tuple(sorted(rng.sample(range(rank), rng.randint(0, rank))))
        case "ints":
            return tuple(rng.randint(0, 3) for _ in range(rank))
        case "dims":
            return base if rng.random() < 0.5 else tuple(rng.sample(base, rank))
        case "floats":
            return tuple(rng.choice(FLOATS) for _ in range(rank))
        case _:
            raise ValueError(f"no values are drawn for attributes of kind {spec.kind}")


def numbers(
    shape: tuple[int, ...], dtype: DType, seed: int, special: bool = True
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
