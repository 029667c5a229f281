"""What can be changed of a kernel's plan: its cut, the order of its cores, its tile, its buffers,
where its results live, and cuts that neighbours share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import prod
from types import MappingProxyType
from typing import Any

from spyrec.ir.core import Attr, Op, Value

from .allocate import core_order, divisions, factorisations
from .cut_out import Window
from .kernel import Map, Nest, padded
from .pins import Counts

Attrs = Mapping[str, Attr]

CUTS = 4
"""Cuts by price that are tried of a kernel, beside those of its neighbours."""
ORDERS = 6
"""Divided dimensions in every order, that many at most."""
LIKELY, MAYBE, HARDLY = 1.0, 0.3, 0.05
"""Odds of moves: about what a try gains, as seen in ten models."""
CLOSE, NEAR = 1.1, 1.6
"""Times the price of what was taken: runners-up that often are better, and sometimes."""


@dataclass(frozen=True)
class Move:
    """``what`` it is, for the record; by position in the window the attributes that take the place
    of what was ``decided`` there; ``spaces``: where tensors shall live ("" lets the pass choose);
    ``odds``: how likely it is to gain, one of the numbers above.
    """

    what: str
    changes: Mapping[int, Attrs] = field(default_factory=lambda: MappingProxyType({}))
    spaces: Mapping[Value, str] = field(default_factory=lambda: MappingProxyType({}))
    odds: float = HARDLY


def moves(
    window: Window, plan: Sequence[Attrs], spaces: Mapping[Value, str], cores: int,
    fixed: frozenset[Op],
) -> list[Move]:
    """The moves for the kernel at the window's target, the likeliest to gain first. ``plan``: what
    is decided of each kernel; ``spaces``: where each result lives; ``fixed``: kernels that a plan
    pins, which stay as they are. Kernels whose tensors go elsewhere get their tiles anew."""
    found = []
    for move in _moves(window, plan, spaces, cores, fixed):
        changes = dict(move.changes)
        for place, op in enumerate(window.ops):
            moved = any(v in move.spaces for v in (*op.operands, *op.results))
            if moved and place not in changes and op not in fixed:
                changes[place] = _cut_only(plan[place])
        found.append(replace(move, changes=changes))
    return sorted(found, key=lambda move: -move.odds)


def _by_price(price: float | None, taken: float | None) -> float:
    """Odds of a runner-up with that price, when what was ``taken`` has the other."""
    if not price or not taken:
        return HARDLY
    return LIKELY if price < CLOSE * taken else MAYBE if price < NEAR * taken else HARDLY


def _moves(
    window: Window, plan: Sequence[Attrs], spaces: Mapping[Value, str], cores: int,
    fixed: frozenset[Op],
) -> Iterator[Move]:
    at, op = window.target, window.op
    nests = [Nest(o.with_attrs(**a)) for o, a in zip(window.ops, plan, strict=True)]
    nest = nests[at]
    seen = {_cut_of(nest)}
    shared: list[Move] = []
    for other, cut in _neighbours_cuts(window, nests, cores):
        if _key(nest, cut) not in seen:
            seen.add(_key(nest, cut))
            shared.append(Move(f"cut as {other}", {at: _pinned(cut)}))
    yield from shared
    ranked: list[Move] = []
    why: Any = plan[at].get("why_parts", (None, ()))
    prices = dict(why[1])
    most = LIKELY if nest.kind == "move" else MAYBE  # what moves cost is mostly their exchange
    for parts in _ranked(nest, plan[at], cores):
        cut = parts, core_order(nest, parts)
        if _key(nest, cut) not in seen:
            seen.add(_key(nest, cut))
            odds = max(HARDLY, most * _by_price(prices.get(parts), why[0]))
            ranked.append(Move(f"cut {_named(nest, parts)}", {at: _pinned(cut)}, odds=odds))
    following = [_followed(window, nests, cores, fixed, move) for move in (Move("", {}), *ranked)]
    yield from (m for m in following[:1] if m is not None)
    for alone, together in zip(ranked, following[1:], strict=True):
        yield alone
        if together is not None:
            yield together
    yield from _spaces(op, spaces)
    yield from _agreed(window, nests, spaces, cores, fixed)
    for here, there, said in (("lx", "hbm", "through memory"), ("hbm", "lx", "on chip")):
        others = {v: there for v in op.operands if spaces.get(v) == here}
        for move in ranked if others else ():
            yield Move(f"{move.what}, operands {said}", move.changes, others)
    yield from _tiles(at, nest, plan[at])
    yield from _orders(at, nest, plan[at])


def _cut_only(plan: Attrs) -> Attrs:
    """What is decided of a kernel but for its tile."""
    tiled = ("tile", "loops", "keep", "finish", "ahead", "held", "why_tile")
    return {k: v for k, v in plan.items() if k not in tiled}


Cut = tuple[Counts, Counts]  # parts, core order


def _pinned(cut: Cut) -> Attrs:
    """Attributes that pin a cut and leave the tile open."""
    return {"pin_parts": cut[0], "pin_order": cut[1]}


def _key(nest: Nest, cut: Cut) -> Cut:
    """The cut with the order of those dimensions only that are divided."""
    parts, order = cut
    return parts, tuple(d for d in order if parts[d] > 1)


def _cut_of(nest: Nest) -> Cut:
    return _key(nest, (nest.parts, nest.core_order))


def _named(nest: Nest, parts: Counts) -> str:
    cut = [f"{n}={p}" for n, p in zip(nest.dim_names, parts, strict=True) if p > 1]
    return " ".join(cut) or "whole"


def _ranked(nest: Nest, plan: Attrs, cores: int) -> list[Counts]:
    """Other cuts: those that core-allocation priced as the next best, then those that leave the
    fullest core the least work."""
    why: Any = plan.get("why_parts", ())
    found = [parts for parts, _ in why[1]] if why else []
    units, grains = divisions(nest)
    whole = tuple(1 if d in nest.summed else u for d, u in enumerate(units))

    def fullest(parts: Counts) -> tuple[int, Counts]:
        sizes = zip(nest.extents, parts, grains, strict=True)
        return prod(padded(-(-e // p), g) for e, p, g in sizes), parts

    cuts = sorted(factorisations(whole, cores), key=fullest)
    for parts in cuts:
        if len(found) >= CUTS:
            break
        if parts not in found and parts != nest.parts:
            found.append(parts)
    return found[:CUTS]


# Cuts that neighbours share ---------------------------------------------------------------------


def _neighbours_cuts(
    window: Window, nests: Sequence[Nest], cores: int
) -> Iterator[tuple[str, Cut]]:
    """The cuts under which the target needs of a tensor, or makes of it, what a neighbour has."""
    nest = nests[window.target]
    for other in nests:
        for i, v in enumerate(nest.op.operands):
            if v in other.op.results and nest.maps[i]:
                r = other.op.results.index(v)
                cut = carried(other, other.out_maps[r], nest, nest.maps[i], cores)
                if cut is not None:
                    yield other.name, cut
        for i, v in enumerate(other.op.operands if other is not nest else ()):
            ends = [*zip(nest.op.results, nest.out_maps, strict=True)]
            ends += zip(nest.op.operands, nest.maps, strict=True)  # what reads the same
            here = next((m for end, m in ends if end is v), ())
            cut = carried(other, other.maps[i], nest, here, cores) if other.maps[i] else None
            if cut is not None:
                yield other.name, cut


def carried(source: Nest, source_map: Map, nest: Nest, to_map: Map, cores: int) -> Cut | None:
    """The cut of ``nest`` under which its cores hold of a tensor what those of ``source`` hold;
    None when there is none, or one of the maps is more than a choice of dimensions."""
    if not source_map or len(source_map) != len(to_map):
        return None
    units, _ = divisions(nest)
    parts = [1] * len(nest.extents)
    became: dict[int, int] = {}
    for (_, from_row), (_, to_row) in zip(source_map, to_map, strict=True):
        a, b = _only(from_row), _only(to_row)
        if a is None or source.parts[a] == 1:
            continue
        if b is None or source.parts[a] > units[b] or parts[b] > 1 or b in nest.summed:
            return None
        parts[b] = source.parts[a]
        became[a] = b
    if prod(parts) == 1 or prod(parts) > cores:
        return None
    return tuple(parts), tuple(became[d] for d in source.core_order if d in became)


def _only(coefs: Sequence[int]) -> int | None:
    """The one dimension that a row of a map takes as it is."""
    used = [d for d, c in enumerate(coefs) if c]
    return used[0] if len(used) == 1 and coefs[used[0]] == 1 else None


def _followed(
    window: Window, nests: Sequence[Nest], cores: int, fixed: frozenset[Op], move: Move
) -> Move | None:
    """The move with all neighbours that can be cut as the target will be; None when none can."""
    at = window.target
    nest = nests[at]
    if move.changes:
        nest = Nest(nest.op.with_attrs(
            parts=move.changes[at]["pin_parts"], core_order=move.changes[at]["pin_order"]
        ))  # fmt: skip
    changes = dict(move.changes)
    for place, other in enumerate(nests):
        if place == at or window.ops[place] in fixed:
            continue
        cut = _following(nest, other, cores)
        if cut is not None and _key(other, cut) != _cut_of(other):
            changes[place] = _pinned(cut)
    if len(changes) == len(move.changes):
        return None
    return Move(f"{move.what} with neighbours" if move.what else "neighbours follow", changes)


def _agreed(
    window: Window, nests: Sequence[Nest], spaces: Mapping[Value, str], cores: int,
    fixed: frozenset[Op],
) -> Iterator[Move]:
    """The readers of a result cut alike, so that one copy on chip serves all."""
    for v in window.op.results:
        readers = {
            place: other.op.operands.index(v) for place, other in enumerate(nests)
            if v in other.op.operands
        }  # fmt: skip
        to_chip = {} if spaces.get(v) == "lx" else {v: "lx"}
        for place, i in readers.items():
            changes: dict[int, Attrs] = {}
            for at, j in readers.items():
                if at == place or window.ops[at] in fixed:
                    continue
                cut = carried(nests[place], nests[place].maps[i], nests[at], nests[at].maps[j],
                              cores)  # fmt: skip
                if cut is not None and _key(nests[at], cut) != _cut_of(nests[at]):
                    changes[at] = _pinned(cut)
            if changes:
                said = ", on chip" if to_chip else ""
                what = f"readers cut as {nests[place].name}{said}"
                yield Move(what, changes, to_chip, odds=LIKELY)


def _following(nest: Nest, other: Nest, cores: int) -> Cut | None:
    """How ``other`` is cut to have of a tensor that it shares with ``nest`` the same parts."""
    for i, v in enumerate(other.op.operands):
        if v in nest.op.results and other.maps[i]:
            r = nest.op.results.index(v)
            return carried(nest, nest.out_maps[r], other, other.maps[i], cores)
    for i, v in enumerate(nest.op.operands):
        if v in other.op.results and nest.maps[i]:
            r = other.op.results.index(v)
            return carried(nest, nest.maps[i], other, other.out_maps[r], cores)
    return None


# Spaces, tiles, orders --------------------------------------------------------------------------


def _spaces(op: Op, spaces: Mapping[Value, str]) -> Iterator[Move]:
    """A result to card memory, or to the scratchpads."""
    for v in op.results:
        to = "hbm" if spaces.get(v) == "lx" else "lx"
        yield Move(f"{v.name} to {to}", {}, {v: to}, odds=MAYBE)


def _tiles(at: int, nest: Nest, plan: Attrs) -> Iterator[Move]:
    """Other tiles: those that tiling priced, halves and doubles of the present one, and one slot
    in the place of two."""
    cut = _cut_only(plan)
    why: Any = plan.get("why_tile", ())
    for tile, loops, price in why[3] if why else ():
        pins, odds = {"pin_tile": tile, "pin_loops": loops}, _by_price(price, why[2])
        yield Move(f"tile {_sizes(nest, tile)}", {at: {**cut, **pins}}, odds=odds)
    if nest.kind in ("vec", "fold", "move"):
        for d, size in enumerate(nest.tile):
            if d in nest.whole | nest.summed:
                continue
            for other in (min(nest.local[d], 2 * size), _half(size, nest.grain(d))):
                if other != size and other > 0:
                    tile = tuple(other if i == d else 0 for i in range(len(nest.tile)))
                    said = f"tile {nest.dim_names[d]}={other}"
                    rest = tuple(n if t == 0 else t for n, t in zip(nest.tile, tile, strict=True))
                    yield Move(said, {at: {**cut, "pin_tile": rest}})
    if nest.buffers == 2 and nest.loops and nest.kind != "gather":
        yield Move("one slot", {at: {**cut, "buffers": 1}})


def retiled(op: Op, plan: Attrs) -> Iterator[Move]:
    """The moves of a kernel alone to another tile, with what is decided of it."""
    return _tiles(0, Nest(op.with_attrs(**plan)), plan)


def _half(size: int, grain: int) -> int:
    return -(-size // (2 * grain)) * grain


def _sizes(nest: Nest, tile: Counts) -> str:
    return " ".join(f"{n}={t}" for n, t in zip(nest.dim_names, tile, strict=True))


def _orders(at: int, nest: Nest, plan: Attrs) -> Iterator[Move]:
    """Other orders of the divided dimensions; what is summed over stays the fastest."""
    last = tuple(d for d in nest.core_order if d in nest.summed)
    free = tuple(d for d in nest.core_order if d not in nest.summed)
    for order in list(permutations(free))[:ORDERS]:
        if order != free:
            said = " ".join(nest.dim_names[d] for d in (*order, *last))
            changes = {at: {**plan, "core_order": (*order, *last)}}
            yield Move(f"cores by {said}", changes, odds=MAYBE)
