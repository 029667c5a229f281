"""One step of the matrix unit: accumulate the product of two tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spyrec.ir.core import Op
from spyrec.ir.errors import PassError
from spyrec.passes.kernel import Nest, rank1
from spyrec.sim.isa import Claim, Guard, Instr, Intent, Num, Operand

from .address import border, num, with_tails
from .claims import ONCE, extents_of
from .places import Path, Place, Places
from .tree import Body, Stmt

FREE = (0, 1, 5, 2, 3)  # places whose limit may end a loop: rows, lanes of the result, then taps


def matrix_step(places: Places, op: Op, body: Body, path: Path) -> None:
    """Add the `mm` of a compute op. Its six dimensions are (r0, r1, t0, t1, kc, n): rows of the
    result, taps of a convolution, groups along k and along the result's lanes."""
    nest, ctx = places.nest, places.ctx
    (a_value, b_value), (a_type, b_type) = op.operands[:2], places.op.operands[:2]
    a, b = places.of[a_value], places.of[b_value]
    acc = places.of.get(op.result) or places.accumulator(op.result, nest.out_maps[0], path, body)
    # the accumulator is indexed like the head's result, which all results of the kernel share
    acc = replace(acc, map=nest.out_maps[0])
    places.of[op.result] = acc
    slots = _slots(nest, op)
    over = places.iteration([d for d in slots if d is not None], path)
    put = {d: i for i, (d, _) in enumerate(over.dims)}

    def spread(operand: Operand, guards: Sequence[Guard] = ()) -> Operand:
        strides = tuple(operand.strides[put[d]] if d is not None else 0 for d in slots)
        return replace(operand, strides=strides, guards=tuple(guards))

    operands = (
        spread(places.operand(acc, over, path, "f32")),
        spread(
            places.operand(a, over, path, ctx.format(a_type.type.dtype)),
            _borders(places, a, rank1(a_type.type), slots, path),
        ),
        spread(places.operand(b, over, path, ctx.format(b_type.type.dtype))),
    )
    summed = sum(1 << i for i, d in enumerate(path) if d not in nest.parallel)
    valid = num([r[nest.k][1] or nest.local[nest.k] for r in places.frame.ranges])
    anew = int(not acc.added)
    imm: dict[str, Num] = {"k_valid": valid, "acc_levels": summed, "init": anew}
    if nest.terms > 1:
        imm["partial"] = 1
    counts = tuple(over.counts[put[d]] if d is not None else 1 for d in slots)
    limits = tuple(over.limits[put[d]] if d is not None else None for d in slots)
    alone = [d for d in path if d in nest.parallel and d not in slots]
    limits = with_tails(places.frame, alone, counts, limits, path, FREE)
    dims = [(d, nest.step(d)) for d in slots if d is not None]
    meant = dict(zip(dims, extents_of(places.frame, dims, path), strict=True))

    def claim(place: Place, made: bool = False) -> Claim:
        found = places.claim(place, over, path, made=made)
        return replace(found, at=tuple(
            replace(a, steps=tuple(a.steps[put[d]] if d is not None else 0 for d in slots))
            for a in found.at
        ))  # fmt: skip

    extents = [meant[d, nest.step(d)] if d is not None else ONCE for d in slots]
    ends = extents_of(places.frame, [(d, nest.tile[d]) for d in alone], path)
    intent = Intent((claim(acc, True), claim(a), claim(b)), (*extents, *ends))
    instr = Instr(
        "mm", counts, limits, operands, imm, where=places.frame.active, intents=(intent,)
    )
    assert acc.buffer is not None
    reads = tuple(p.buffer for p in (a, b) if p.buffer is not None)
    what = f"%{op.result.name} = {op.attrs['head']}"
    body.items.append(Stmt("pt", places.noted(instr, what, op), reads, (acc.buffer,)))


def _slots(nest: Nest, op: Op) -> tuple[int | None, ...]:
    """The kernel dimension in each of the six places of the instruction."""
    rows = sorted(d for d in nest.parallel if d != nest.stick and nest.tile[d] > 1)
    taps = sorted(d for d in range(len(nest.extents)) if d not in nest.parallel and d != nest.k)
    if len(rows) > 2 or len(taps) > 2:
        raise PassError(
            f"codegen: {nest.name} iterates {len(rows)} row and {len(taps)} tap dimensions in one "
            f"instruction, the matrix unit has two of each; pin tiles of 1 (from {op.loc})"
        )
    empty = (None, None)
    return (*empty[len(rows) :], *rows, *empty[len(taps) :], *taps, nest.k, nest.stick)


def _borders(
    places: Places, a: Place, shape: tuple[int, ...], slots: Sequence[int | None], path: Path
) -> list[Guard]:
    found = []
    for t, row in enumerate(a.map):
        strides = [row[1][d] if d is not None else 0 for d in slots]
        guard = border(row, places.frame, shape[t], strides, path)
        if t != a.layout.stick_dim and guard is not None:
            found.append(guard)
    return found
