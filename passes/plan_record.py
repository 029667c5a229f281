"""The full plan of a compiled module: every decision, with the numbers behind each choice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from spyrec.ir.core import Module, Op, Value, uses

from .allocate import owned_boxes
from .homes import buffer_bytes, home, readable, resident_bytes
from .kernel import Nest, rank1
from .pins import FREE, pinned
from .sticks import FACTOR_ARRANGEMENTS

Numbers = dict[str, Any]
OUTPUT = "model output"


def full_plan(module: Module, room_bytes: int = 0) -> Numbers:
    """``{"kernels": ..., "tensors": ...}`` of a module that all passes have run on, in program
    order. What it says can be pinned again (see plan.py) and then gives the same program.
    ``room_bytes``: of a core's scratchpad, to tell it where it did not suffice; 0: not told.
    """
    kernels = [op for op in module.body.ops if op.name == "kernel" and "tile" in op.attrs]
    spaces: Mapping[str, str] = dict(module.attrs.get("pin_spaces", ()))  # type: ignore[arg-type]
    for name in module.attrs.get("settled", ()):  # type: ignore[union-attr]
        spaces = {k: v for k, v in spaces.items() if k != name}  # no plan pins that one
    sticks: Mapping[str, int] = dict(module.attrs.get("pin_sticks", ()))  # type: ignore[arg-type]
    reasons: Mapping[str, str] = dict(module.attrs.get("why_space", ()))  # type: ignore[arg-type]
    readers = {v: [op for op, _ in found] for v, found in uses(module.body).items()}
    live = _Live(module, room_bytes)
    settled: tuple[str, ...] = module.attrs.get("settled", ())  # type: ignore[assignment]
    tensors: Numbers = {}
    for v in module.body.args:
        tensors[v.name] = _tensor(v, "model input", sticks, spaces)
    for op in kernels:
        for i, v in enumerate(op.results):
            place = _place(module, op, i, readers.get(v, []), live)
            pinned = v.name in spaces and v.name not in reasons
            if pinned and place != OUTPUT and isinstance(place, str):
                place = "pinned there"
            if v.name in settled and v.type.space == "hbm":
                place = "faster there, as simulated"
            tensors[v.name] = _tensor(v, place, sticks, spaces)
    plan: Numbers = {"kernels": {str(op.attrs["name"]): _kernel(op) for op in kernels}}
    plan["tensors"] = tensors
    searched: tuple[int, ...] = module.attrs.get("searched", ())  # type: ignore[assignment]
    if searched:
        keys = ("first_cycles", "cycles", "tried", "steps", "budget_steps")
        plan["why"] = {"improve": dict(zip(keys, searched, strict=True))}
    return plan


def _kernel(op: Op) -> Numbers:
    nest = Nest(op)
    return {
        "parts": _by_name(nest, nest.parts),
        "core_order": [nest.dim_names[d] for d in nest.core_order],
        "buffers": nest.buffers,
        "overlap": nest.overlap,
        "tile": _by_name(nest, nest.tile),
        "loops": [nest.dim_names[d] for d in nest.loops],
        "keep": sorted(nest.keep),
        "finish": _finish(nest),
        **({"ahead": nest.ahead} if nest.kind == "contract" else {}),
        "why": {"parts": _why_parts(nest), "tile": _why_tile(nest), **_why_improved(op)},
    }


def _finish(nest: Nest) -> dict[str, int]:
    ends = sorted((nest.stick, nest.k)) if nest.finish else ()
    return {nest.dim_names[d]: nest.finish[d] for d in ends}


def _why_improved(op: Op) -> Numbers:
    """How many moves were tried in the simulator, and those that were made, each with the cycles
    of its cut-out before and after."""
    why: tuple[Any, ...] = op.attrs.get("improved", ())  # type: ignore[assignment]
    if not why:
        return {}
    tried, made = why
    moves = [{"move": what, "cycles": before, "then": after} for what, before, after in made]
    return {"improve": {"tried": tried, "made": moves}}


def _by_name(nest: Nest, values: Sequence[int]) -> dict[str, int]:
    return dict(zip(nest.dim_names, values, strict=True))


def _pins(nest: Nest, what: str) -> list[str]:
    return [name for name, n in zip(nest.dim_names, pinned(nest, what), strict=True) if n != FREE]


def _why_parts(nest: Nest) -> Numbers:
    """The price of the cut and of the next best: cycles of the fullest core, bus and ring."""
    out: Numbers = {"cores": nest.cores}
    why: tuple[Any, ...] = nest.op.attrs.get("why_parts", ())  # type: ignore[assignment]
    if why:
        cost, rejected = why
        out["cost_cycles"] = round(float(cost), 1)
        out["rejected"] = []
        for parts, price in rejected:
            if parts == nest.parts:  # it was, until the search found it to be better
                continue
            other = {"parts": _by_name(nest, parts), "cost_cycles": round(float(price), 1)}
            if other["cost_cycles"] < out["cost_cycles"]:
                other["ruled_out"] = _ruled_out(nest, parts)
            out["rejected"].append(other)
    if _pins(nest, "parts"):
        out["pinned"] = _pins(nest, "parts")
    return out


def _ruled_out(nest: Nest, parts: Sequence[int]) -> str:
    """Why a cut was not taken though its price is lower: core-allocation leaves it out before."""
    if prod(parts[d] for d in nest.summed) > prod(nest.parts[d] for d in nest.summed):
        return "more cores add up one result, for hardly less"
    if prod(parts) < nest.cores:
        return f"it leaves cores without work, {prod(parts)} of {nest.cores} have some"
    return "its fullest core has much more to do than that of other cuts"


def _why_tile(nest: Nest) -> Numbers:
    """Scratchpad bytes of the tile against the budget; for matrix kernels also the prices."""
    out: Numbers = {}
    why: tuple[Any, ...] = nest.op.attrs.get("why_tile", ())  # type: ignore[assignment]
    if why:
        nbytes, budget, cost, rejected = why
        out |= {"bytes": nbytes, "budget_bytes": budget}
        if cost is not None:
            out["cost_cycles"] = round(float(cost), 1)
        out["rejected"] = [
            {"tile": _by_name(nest, tile), "loops": [nest.dim_names[d] for d in loops]}
            | ({} if other is None else {"cost_cycles": round(float(other), 1)})
            for tile, loops, other in rejected
        ]
    if _pins(nest, "tile"):
        out["pinned"] = _pins(nest, "tile")
    return out


@dataclass(frozen=True)
class _Live:
    """What lives in a core's scratchpad while each op runs, and how much there is in all."""

    module: Module
    room_bytes: int

    @cached_property
    def bytes(self) -> list[int]:
        live = resident_bytes(self.module)
        return [live.get(op, 0) for op in self.module.body.ops]

    @cached_property
    def position(self) -> dict[Op, int]:
        return {op: i for i, op in enumerate(self.module.body.ops)}

    def beside(self, maker: Op, readers: Sequence[Op]) -> int:
        """The most that other tensors take between a tensor's maker and its last reader."""
        last = max(self.position[op] for op in readers)
        return max(self.bytes[self.position[maker]: last + 1])


def _tensor(
    v: Value, place: str | int, sticks: Mapping[str, int], spaces: Mapping[str, str]
) -> Numbers:
    assert v.type.layout is not None
    why: Numbers = {"bytes": v.type.layout.sticks * 128}
    why |= {"core_bytes": place} if isinstance(place, int) else {"card_memory": place}
    chosen = [what for what, pins in (("stick", sticks), ("space", spaces)) if v.name in pins]
    if chosen:
        why["pinned"] = chosen
    return {"stick": v.type.layout.stick_dim, "space": v.type.space, "why": why}


def _place(
    module: Module, op: Op, index: int, readers: Sequence[Op], live: _Live
) -> str | int:
    """Scratchpad bytes a core keeps of a resident result, or why the result is in card memory."""
    v = op.results[index]
    boxes = home(op, index)
    if boxes is not None:
        return buffer_bytes(v.type, boxes)
    if v in module.body.results:
        return OUTPUT
    reasons: Mapping[str, str] = dict(module.attrs.get("why_space", ()))  # type: ignore[arg-type]
    if v.name in reasons:
        return reasons[v.name]
    if not readers:
        return "never read"
    look_ups = [str(u.attrs.get("name", u.name)) for u in readers if not readable(u)]
    if look_ups:
        return f"read by a look-up, {', '.join(look_ups)}, which reads card memory only"
    if v.type.dtype.bits in FACTOR_ARRANGEMENTS:
        return f"{v.type.dtype.name} is kept in card memory, as the matrix unit reads it"
    slower: Any = op.attrs.get("why_memory", ())
    for i, moved, stored in slower:
        if i == index:
            return f"about {moved:.0f} cycles over the ring, {stored:.0f} through card memory"
    nest = Nest(op)
    away: tuple[Any, ...] = op.attrs.get("why_away", ())  # type: ignore[assignment]
    dearer = dict(away).get(index, math.inf)
    if dearer < math.inf:
        return f"on chip, all in all, it would take {round(dearer)} cycles more"
    wanted = buffer_bytes(v.type, owned_boxes(nest, nest.out_maps[index], rank1(v.type)))
    there = f" of {live.room_bytes}" if live.room_bytes else ""
    return (
        f"no room: needs {wanted} bytes a core, and copies for its readers, beside "
        f"{live.beside(op, readers)} that others take meanwhile{there}"
    )
