"""Whether each operand is what the compiler means it to be: translation validation of addresses.

Beside its race shadow every stick of scratchpad and group of accumulators has a tag: which stick of
which value it holds. A write puts down what its claim says, a read must find what its claim says.
Card memory needs no tags: there a value has one layout, so that the claimed coordinates say which
stick of which buffer must be addressed. Claims have no addresses and come from other parts of the
compiler than these do, so that the two agree only when both are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrange import RIGHT, k_step, row_block, row_sticks
from .claim_points import (
    ROW,
    Origin,
    Shape,
    Walk,
    domain_fault,
    inside,
    k_elements,
    meant_counts,
    nth,
    points,
    sticks_of,
    where,
)
from .device import DeviceSpec
from .extent import core_value
from .formats import format_of
from .functional_pt import A_DIMS, ACC_DIMS, B_DIMS, K_DIM
from .functional_vec import immediate, starts_anew
from .isa import (
    LANES,
    STICK,
    Claim,
    Instr,
    Intent,
    Launch,
    Operand,
    Program,
    Space,
    Tensor,
)
from .view import Grid, Moment, counts_of

Ints = NDArray[np.int64]
TAG_BITS = 40
"""Sticks and turns of one value stay below 2 ** TAG_BITS, its number stands above."""
TRANSFERS = ("load", "store", "send")
HALF = 2  # parts of a stick that 8-bit operands of the vector unit count


@dataclass(frozen=True)
class Look:
    """Addresses of one operand, ``at`` in the memory of each of ``cores``, and the tags that must
    be there (``want``) or, of what is written, come there."""

    cores: tuple[int, ...]
    operand: Operand
    tensor: Tensor
    at: Ints
    want: Ints
    writes: bool


@dataclass
class Claims:
    """Is told every execution in order. ``begin`` stands before those of a launch."""

    program: Program
    device: DeviceSpec
    holds: dict[tuple[Space, int], Ints] = field(default_factory=dict)
    names: list[str] = field(default_factory=lambda: [""])
    _args: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    _bound: tuple[tuple[int, Tensor], ...] = ()
    _tiles: tuple[tuple[int, Tensor], ...] = ()
    _shapes: dict[tuple[object, ...], Shape] = field(default_factory=dict)
    _known: dict[tuple[object, ...], tuple[Ints, Ints] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names += [tensor.name for tensor in self.program.tensors]
        if self.program.tensors:
            for core in range(self.device.cores.count):
                self.holds["lx", core] = np.zeros(self.device.lx.usable_bytes // STICK, np.int64)
                self.holds["acc", core] = np.zeros(self.device.pt.acc_groups, np.int64)

    def begin(self, launch: Launch) -> None:
        kernel = self.program.kernels[launch.kernel]
        self._args = dict(zip(kernel.params, launch.args, strict=True))
        self._bound = tuple((n + 1, self.program.tensors[n]) for n in launch.tensors)
        self._tiles = tuple(enumerate(kernel.tiles, len(self.names)))
        self.names += [f"a tile of kernel {kernel.name}"] * len(kernel.tiles)

    def visit(self, instr: Instr, moment: Moment) -> Iterator[str]:
        """What is wrong with one execution, as a sentence's verb and object; then note what it
        writes."""
        core = moment.core
        intent = next((i for i in instr.intents if not i.where or i.where >> core & 1), None)
        if intent is None:
            return
        if problem := domain_fault(instr, intent, moment):
            yield problem
            return
        looks: list[Look] = []
        for found in self._looks(instr, intent, moment):
            if isinstance(found, str):
                yield found
            else:
                looks.append(found)
        for look in looks:
            if look.operand.space == "hbm":
                yield from self._in_card(look)
            elif not look.writes:
                yield from self._found(look)
        for look in looks:
            if look.operand.space != "hbm" and look.writes:
                for there in look.cores:
                    memory = self.holds[look.operand.space, there]
                    inside = (look.at >= 0) & (look.at < len(memory))
                    memory[look.at[inside]] = look.want[inside]

    def forget(self, space: Space, core: int, at: Any) -> None:
        """Something was written there of which nobody says what it is."""
        if self.holds:
            self.holds[space, core][at] = 0

    def _in_card(self, look: Look) -> Iterator[str]:
        name, offset = self._args[look.operand.symbol]
        does = "writes" if look.writes else "reads"
        if name != look.tensor.name:
            yield f"{does} buffer {name} in place of {_value(look.tensor.name)}"
            return
        have, want = look.at + offset // STICK, look.want & (1 << TAG_BITS) - 1
        off = have != want
        if off.any():
            i = int(np.argmax(off))
            yield f"{does} stick {have[i]} of buffer {name} in place of {want[i]}"

    def _found(self, look: Look) -> Iterator[str]:
        for core in look.cores:
            memory = self.holds[look.operand.space, core]
            inside = (look.at >= 0) & (look.at < len(memory))
            at, want = look.at[inside], look.want[inside]
            have = memory[at]
            off = (have != want) & (have != 0)  # of what nobody has written others tell
            if off.any():
                i = int(np.argmax(off))
                where = "accumulators" if look.operand.space == "acc" else "scratchpad"
                yield (
                    f"reads {at[i]} of the {where} of core {core}, which holds "
                    f"{self._told(int(have[i]))} in place of {self._told(int(want[i]))}"
                )

    def _told(self, tag: int) -> str:
        number, stick = tag >> TAG_BITS, tag & (1 << TAG_BITS) - 1
        if not 0 <= number < len(self.names):
            return "a stick of no value"  # claims that count beyond all sticks
        return f"stick {stick} of {_value(self.names[number])}"

    def _tensor(self, claim: Claim) -> tuple[int, Tensor]:
        return self._bound[claim.tensor] if claim.tensor >= 0 else self._tiles[-1 - claim.tensor]

    # Which instruction looks where ------------------------------------------------------------

    def _looks(self, instr: Instr, intent: Intent, moment: Moment) -> Iterator[Look | str]:
        counts, here = counts_of(instr, moment), (moment.core,)
        there = _cores(core_value(instr.imm.get("cores", 0), moment.core))
        if instr.op == "mm":
            yield from self._mm(instr, intent, counts, moment)
            return
        if instr.op == "vec":
            yield from self._vec(instr, intent, counts, moment)
            return
        if not prod(counts):
            return
        meant = meant_counts(intent, moment)[0] if intent.extents else counts
        parts = STICK * 8 // immediate(instr, "bits", 16) if instr.op in ("shuf", "fill") else 1
        walk = Walk(counts, parts=parts, meant=meant)
        to, *sources = intent.claims
        if instr.op == "gather":
            yield from self._table(instr, intent, counts, moment)
            sources = []
        for i, claim in enumerate(sources, 1):
            yield self._look(instr, i, claim, moment, here, walk)
        if instr.op == "psum":
            yield self._look(instr, 0, to, moment, there, walk)
        far = there and instr.operands[0].space != "hbm"
        yield self._look(instr, 0, to, moment, there if far else here, walk, made=True)

    def _mm(
        self, instr: Instr, intent: Intent, counts: tuple[int, ...], moment: Moment
    ) -> Iterator[Look | str]:
        r0, r1, t0, t1, kc, n = counts
        if r0 * r1 * n == 0:
            return
        _, a, b = instr.operands
        here, step, anew = (moment.core,), k_step(a.dtype), starts_anew(instr, moment)
        k = k_elements(instr, kc, moment)
        some = bool(t0 * t1 * k)
        to, left, right = intent.claims
        if some:
            steps, rows = -(-k // step), row_block(a.dtype)
            blocks, width = (r0, -(-r1 // rows), t0, t1, steps), row_sticks(a.dtype, 1)[1]
            over = Walk(blocks, A_DIMS, (1, rows, 1, 1, 1), width)
            yield self._look(instr, 1, left, moment, here, over)
            together = RIGHT[b.dtype].block[0] if b.dtype in RIGHT else 1
            row = tuple(nth(c.steps, K_DIM) // step * together for c in right.at)
            whole, rest = divmod(k, step)
            for first, many, of in ((0, whole, step), (whole, 1, rest)):
                if many and of:
                    places, width = row_sticks(b.dtype, of)
                    over = Walk((t0, t1, many, places, n), B_DIMS, (1,) * 5, width, 1, (width, row))
                    on = b
                    by = tuple(first * nth(c.steps, K_DIM) for c in right.at)
                    if first:
                        on = _moved(b, first * nth(b.strides, K_DIM), moment)
                    yield self._look(instr, 2, right, moment, here, over, on, by)
        over = Walk((r0, r1, n), ACC_DIMS)
        if not anew:
            yield self._look(instr, 0, to, moment, here, over)
        # a trip with nothing to add is one step further too
        yield self._look(instr, 0, to, moment, here, over, made=True)

    def _vec(
        self, instr: Instr, intent: Intent, counts: tuple[int, ...], moment: Moment
    ) -> Iterator[Look | str]:
        folds = bool(immediate(instr, "reduce"))
        axes = immediate(instr, "axes") if folds else 0
        kept: tuple[int, ...] = tuple(1 if axes >> d & 1 else c for d, c in enumerate(counts))
        here, (to, *sources) = (moment.core,), intent.claims
        for i, claim in enumerate(sources, 1):
            if prod(counts):
                over = _groups(instr.operands[i], counts)
                yield self._look(instr, i, claim, moment, here, over)
        if 0 in kept or (0 in counts and not folds):
            return
        over = _groups(instr.operands[0], kept)
        if folds and not starts_anew(instr, moment):
            yield self._look(instr, 0, to, moment, here, over)
        yield self._look(instr, 0, to, moment, here, over, made=True)

    def _table(
        self, instr: Instr, intent: Intent, counts: tuple[int, ...], moment: Moment
    ) -> Iterator[Look | str]:
        """Of the table what the first and the last row would be; and the indices."""
        _, table, index = instr.operands
        _, of_table, of_index = intent.claims
        here, (_, tensor) = (moment.core,), self._tensor(of_table)
        last = tensor.shape[0] - 1
        given = core_value(instr.imm.get("rows", 0), moment.core) - 1
        if given != last:
            yield f"takes indices up to {given} into the {last + 1} rows of {_value(tensor.name)}"
        for row in (0, last):
            on = _moved(table, row * immediate(instr, "stride", 1), moment)
            by = (row, *[0] * (len(of_table.at) - 1))
            yield self._look(instr, 1, of_table, moment, here, Walk(counts), on, by)
        lanes, (_, tensor) = STICK * 8 // format_of(index.dtype).bits, self._tensor(of_index)
        by = tuple(lanes if t == tensor.stick_dim else 0 for t in range(len(tensor.shape)))
        over = Walk((-(-counts[0] // lanes),), (ROW,), (1,), row=(1, by))
        yield self._look(instr, 2, of_index, moment, here, over)

    # From an operand and its claim to addresses and tags --------------------------------------

    def _look(
        self, instr: Instr, i: int, claim: Claim, moment: Moment, cores: tuple[int, ...],
        walk: Walk, operand: Operand | None = None, by: tuple[int, ...] = (), made: bool = False,
    ) -> Look | str:
        """``operand``, which begins at coordinates ``by`` further, in place of the instruction's
        own. ``made``: what it holds once it is written."""
        number, tensor = self._tensor(claim)
        operand = operand or instr.operands[i]
        if instr.op in TRANSFERS and any(o.guards for o in instr.operands):
            # what one end leaves out the other does too
            operand = replace(operand, guards=tuple(g for o in instr.operands for g in o.guards))
        at = walk.grid(operand, moment)
        first = tuple(where(c, moment) for c in claim.at)
        origin = Origin.of(tensor, tuple(map(add, first, by)) if by else first)
        what = id(claim), i, walk.counts, walk.meant
        if what not in self._shapes:
            self._shapes[what] = Shape.of(claim, walk)
        shape = self._shapes[what]
        mask = None if at.mask is None else at.inside().reshape(-1)
        whole = instr.op == "fill"  # all there is room for
        within = None if whole else inside(tensor, origin.at, shape)
        if (mask is None) != (within is None) or (
            mask is not None and within is not None and (mask != within).any()
        ):
            size = "x".join(map(str, tensor.shape))
            return f"takes operand {i} for other than {_value(tensor.name)} of shape {size} inside"
        begin = at.base % walk.parts
        key = *what, id(tensor), origin.rest, begin, at.strides, mask is None
        if key not in self._known:
            flat = Grid(begin, at.strides, at.counts).addresses().reshape(-1)
            found = points(tensor, origin.rest, shape)
            self._known[key] = _matched(flat, found, walk.parts, mask is None)
        known = self._known[key]
        if known is None:
            return f"takes other lanes than those of {_value(tensor.name)} as operand {i}"
        have = known[0] + (at.base - begin) // walk.parts
        turn = where(claim.made if made else claim.turn, moment) * sticks_of(tensor)
        want = known[1] + ((number << TAG_BITS) + _within_bits(turn + origin.stick))
        if mask is not None:
            have, want = have[mask], want[mask]
        if walk.width > 1:
            more = np.arange(walk.width)
            have, want = ((x[:, None] + more).reshape(-1) for x in (have, want))
        return Look(cores, operand, tensor, have, want, made)


def _matched(
    at: Ints, found: tuple[Ints, Ints, Ints], parts: int, distinct: bool
) -> tuple[Ints, Ints] | None:
    """Addresses of sticks and the sticks they stand for; None when the part of a stick at an
    address is not the one. ``distinct``: each pair once."""
    sticks, lanes, groups = found
    if parts > 1:
        if (at % parts != (groups % HALF if parts == HALF else lanes)).any():
            return None
        at = at // parts
    if distinct:
        pairs = np.unique(np.stack((at, sticks)), axis=1)
        at, sticks = pairs[0], pairs[1]
    return at, sticks


def _groups(operand: Operand, counts: tuple[int, ...]) -> Walk:
    """How the vector unit goes over an operand, in groups of 64 lanes."""
    bits = format_of(operand.dtype).bits
    if operand.space != "acc" and bits == 8:
        return Walk(counts, parts=HALF)
    one = operand.space == "acc" or operand.splat
    return Walk(counts, width=1 if one else max(1, LANES * bits // (8 * STICK)))


def _moved(operand: Operand, by: int, moment: Moment) -> Operand:
    return replace(operand, base=core_value(operand.base, moment.core) + by)


def _within_bits(stick: int) -> int:
    """As it is, below 0 too where a window begins in a border; far ones come round, so that a tag
    has 64 bits whatever claims say."""
    half = 1 << TAG_BITS - 1
    return (stick + half) % (2 * half) - half


def _cores(mask: int) -> tuple[int, ...]:
    return tuple(core for core in range(mask.bit_length()) if mask >> core & 1)


def _value(name: str) -> str:
    return f"%{name}" if name and " " not in name else name or "a tile"
