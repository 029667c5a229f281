"""How the cores of a K-split add up what each has accumulated: a chain along neighbours, one tile
on its way while the next is made.

A core passes its accumulators on when its own terms are in them, those of the cores before have
been added (token ``arrived``), and the neighbour's are there to be added to (token ``ready``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spyrec.ir.core import Op
from spyrec.sim.isa import Instr, Intent, Num, Signal, Wait

from .address import mask_of, num
from .claims import extents_of
from .places import Iteration, Path, Place, Places
from .tree import Body, Stmt


def psum_step(places: Places, op: Op, body: Body, path: Path) -> None:
    """Add the `psum` of a tile: what each unit does for it on the cores of a group."""
    ctx, acc = places.ctx, places.of[op.operands[0]]
    places.of[op.result] = acc
    assert acc.buffer is not None
    ready, arrived = ctx.token(), ctx.token()
    first, between, last = _chain(places)

    def sync(unit: str, cores: Sequence[int], **more: Any) -> Stmt:
        return Stmt(unit, Instr("sync", where=mask_of(cores, ctx.cores), **more))

    receivers = [*between, *last]
    told = (Signal(ready, 1, _to(receivers, -1, ctx.cores)),)
    body.items.append(sync("pt", receivers, signals=told))
    for cores, waits in ((first, [ready]), (between, [ready, arrived])):
        if cores:
            instr = _passed_on(places, op, path, cores)
            instr = replace(
                instr, waits=tuple(map(Wait, waits)),
                signals=(Signal(arrived, 1, instr.imm["cores"]),),
            )  # fmt: skip
            noted = places.noted(instr, f"%{op.result.name} = psum", op)
            body.items.append(Stmt("rs", noted, (acc.buffer,), ()))
    places.passed.add(acc.tensor)
    body.items.append(sync("sfp", last, waits=(Wait(arrived),)))


def _chain(places: Places) -> tuple[list[int], list[int], list[int]]:
    """The first cores of all groups, those between, and the last, where the sums will be."""
    terms = places.nest.terms
    busy = [c for c, ranges in enumerate(places.frame.ranges) if all(n for _, n in ranges)]
    first = [c for c in busy if c % terms == 0]
    last = [c for c in busy if c % terms == terms - 1]
    return first, [c for c in busy if 0 < c % terms < terms - 1], last


def _to(cores: Sequence[int], step: int, count: int) -> Num:
    """For each of ``cores`` the mask of the core ``step`` further; 0 for the others."""
    return num([1 << c + step if c in cores else 0 for c in range(count)])


def _passed_on(places: Places, op: Op, path: Path, cores: Sequence[int]) -> Instr:
    """The instruction in which ``cores`` pass a tile of accumulators on, without its tokens."""
    nest, acc = places.nest, places.of[op.result]
    dims = [d for d in sorted(nest.parallel) if nest.tile[d] > 1 or d == nest.stick or d in path]
    over = places.iteration(dims, path)
    operand = places.operand(acc, over, path, "f32")
    count = places.ctx.cores
    return Instr(
        "psum", over.counts, over.limits, (operand, operand), {"cores": _to(cores, 1, count)},
        where=mask_of(cores, count), intents=(_intent(places, acc, over, path),),
    )  # fmt: skip


def _intent(places: Places, acc: Place, over: Iteration, path: Path) -> Intent:
    """A core that is not the first of its group passes on what has been passed to it; the next one
    has added up its own terms."""
    assert acc.turns is not None
    own, terms = acc.turns.steps, places.nest.terms
    summed = num([own + (c % terms > 0) for c in range(places.ctx.cores)])
    here, there, made = (acc.turns.at(path, n) for n in (summed, own, own + 1))
    claim = places.claim(acc, over, path)
    claims = replace(claim, turn=there, made=made), replace(claim, turn=here)
    return Intent(claims, extents_of(places.frame, over.dims, path))
