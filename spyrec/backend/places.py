"""Where the values of a tile body lie, and how instructions address them there."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Literal

from spyrec.ir.core import Loc, Op, Value
from spyrec.ir.errors import CapacityError
from spyrec.ir.layout import Layout
from spyrec.passes.kernel import Box, Map, Nest, spans
from spyrec.sim.isa import Claim, Guard, Instr, Limit, Operand, Rotate

from .address import Frame, base, kernel_strides, limit, loop_strides, strides_along
from .claims import Turns, place_of
from .context import KernelContext
from .tree import Body, Buffer

Path = tuple[int, ...]
"""Kernel dimensions of the loops around a statement, outermost first."""


@dataclass(frozen=True)
class Place:
    """Either a tile buffer, produced anew in every trip of the loops ``path``, whose ``buffer``
    keeps the units in step, or each core's box (``boxes``) of a tensor that lives in the
    scratchpads.

    ``address`` and ``slot`` (the distance between slots) count sticks in "lx", 64-lane groups in
    "acc". ``map``: kernel dimensions to coordinates of the value, which claims call ``tensor``;
    ``turns``: of a value that only this kernel knows. ``trips``: of the loops ``path``. ``depth``:
    slots that these go through, 0 for all that the buffer has; ``added``: steps of sums that came
    before those of this place.
    """

    space: Literal["lx", "acc"]
    layout: Layout
    address: int
    boxes: tuple[Box, ...] | None
    buffer: Buffer | None
    path: Path
    slot: int
    map: Map
    tensor: int
    turns: Turns | None = None
    trips: tuple[int, ...] = ()
    depth: int = 0
    added: int = 0

    @cached_property
    def along(self) -> tuple[int, ...]:
        """Address units per step of each dimension."""
        sticks = strides_along(self.layout)
        return tuple(s // 2 for s in sticks) if self.space == "acc" else sticks


@dataclass(frozen=True)
class Piece:
    """One of the pieces in which a tile of results is ended; ``rooms``: the buffers of all."""

    number: int
    rooms: dict[str, Buffer]


@dataclass(frozen=True)
class Iteration:
    """What an instruction iterates: ``(kernel dimension, elements a step)``, counts and tails."""

    dims: tuple[tuple[int, int], ...]
    counts: tuple[int, ...]
    limits: tuple[Limit | None, ...]


class Places:
    """The places of one kernel's values. ``of``: the tensor or tile value's place; ``scalar``:
    values that are one number known at compile time."""

    def __init__(self, ctx: KernelContext) -> None:
        self.ctx = ctx
        self.op = ctx.op
        self.nest = Nest(ctx.op)
        self.frame = Frame(self.nest, ctx.cores)
        self.of: dict[Value, Place] = {}
        self.passed: set[int] = set()  # tensors whose sums have come from all cores of a K-split
        self.piece: Piece | None = None
        self.leads = [0] * ctx.cores  # groups of cores that each core loads something for
        self.scalar: dict[Value, float] = {
            arg: ctx.scalars[v]
            for arg, v in zip(ctx.op.regions[0].args, ctx.op.operands, strict=True)
            if v in ctx.scalars
        }

    def tile(
        self, v: Value, m: Map, path: Path, body: Body, of: Value | None = None, steps: int = 1
    ) -> Place:
        """A tile buffer in the scratchpad, produced in ``body`` in so many ``steps``. ``of``: the
        tensor that it holds a tile of; None when only this kernel knows the value."""
        assert v.type.layout is not None
        address, slots = self.ctx.addresses[v.name]
        sticks = v.type.layout.sticks
        number, turns = self._claimed(v, m, path, of, steps)
        first, depth = address // 128, 0
        if self.piece is not None and spans(m, self.nest.stick):
            buffer = self.piece.rooms.setdefault(v.name, Buffer(v.name, slots))
            body.scoped.append(buffer)
            first += self.piece.number % slots * sticks
            depth = 1
        else:
            buffer = self._buffer(v, slots, body)
        return Place(
            "lx", v.type.layout, first, None, buffer, path, sticks, m, number, turns,
            self._trips(path), depth,
        )  # fmt: skip

    def found(self, v: Value, m: Map, path: Path, of: Value) -> Place:
        """Where the kernel before has left all tiles of the tensor ``of``."""
        assert v.type.layout is not None
        address, slots = self.ctx.addresses[v.name]
        number, _ = self._claimed(v, m, path, of, 1)
        return Place(
            "lx", v.type.layout, address // 128, None, None, path, v.type.layout.sticks, m, number,
            None, self._trips(path), slots,
        )  # fmt: skip

    def within(self, nest: Nest, piece: Piece | None) -> Places:
        """The places as a piece of the kernel finds them; what it adds stays there."""
        inside = copy(self)
        inside.nest, inside.piece = nest, piece
        inside.frame = replace(self.frame, nest=nest)
        inside.of = dict(self.of)
        return inside

    def accumulator(
        self, v: Value, m: Map, path: Path, body: Body, steps: int = 1
    ) -> Place:
        """A tile of fp32 sums in the matrix unit: as many slots as tiles stream through where they
        fit, so that one drains while the other fills. CapacityError when not even one fits."""
        assert v.type.layout is not None
        groups = v.type.layout.sticks // 2
        most = self.ctx.device.pt.acc_groups
        if groups > most:
            raise CapacityError(
                f"codegen: {self.nest.name} needs {groups} accumulator groups for one tile, the "
                f"device has {most}; pin a smaller tile (from {self.op.loc})"
            )
        slots = min(self.nest.buffers, most // groups) if self.trips(path) > 1 else 1
        buffer = self._buffer(v, slots, body)
        number, turns = self._claimed(v, m, path, None, steps)
        return Place(
            "acc", v.type.layout, 0, None, buffer, path, groups, m, number, turns, self._trips(path)
        )

    def _claimed(
        self, v: Value, m: Map, path: Path, of: Value | None, steps: int
    ) -> tuple[int, Turns | None]:
        if of is not None:
            return self.ctx.ledger.tensor(of), None
        assert v.type.layout is not None
        number = self.ctx.ledger.tile(v.type.layout, m, self.nest.extents)
        return number, Turns(path, self._trips(path), steps)

    @staticmethod
    def _buffer(v: Value, slots: int, body: Body) -> Buffer:
        buffer = Buffer(v.name, slots)
        body.scoped.append(buffer)
        return buffer

    def resident(self, v: Value, m: Map) -> Place:
        """A tensor that lives in the scratchpads: each core's box of it."""
        address, boxes, layout = self.ctx.homes[v]
        arrival = self.ctx.arrivals.get(v)
        number = self.ctx.ledger.tensor(v)
        return Place("lx", layout, address // 128, boxes, arrival, (), 0, m, number)

    def trips(self, path: Path) -> int:
        """How often the body under the loops ``path`` runs."""
        return prod(self._trips(path))

    def _trips(self, path: Path) -> tuple[int, ...]:
        return tuple(self.nest.trips(d) for d in path)

    def iteration(self, dims: Sequence[int], path: Path) -> Iteration:
        """A tile's extent along kernel dimensions; those along lanes in groups of 64."""
        steps, counts, limits = [], [], []
        for d in dims:
            unit = self.nest.step(d)
            count = -(-self.nest.tile[d] // unit)
            steps.append((d, unit))
            counts.append(count)
            limits.append(limit(self.frame, d, count, unit, path))
        return Iteration(tuple(steps), tuple(counts), tuple(limits))

    def operand(
        self, place: Place, over: Iteration, path: Path, fmt: str, *, splat: bool = False,
        guards: Sequence[Guard] = (), parts: int = 1,
    ) -> Operand:
        """The place as an operand of an instruction that iterates ``over``. ``parts``: how many
        addresses the instruction counts in a stick, of a place that is a tile buffer."""
        along = place.along if parts == 1 else strides_along(place.layout, parts)
        strides = kernel_strides(place.map, place.layout, over.dims, along, parts)
        if place.boxes is not None:
            return Operand(
                place.space,
                base(place.map, place.layout, self.frame, place.along, place.address, place.boxes),
                strides, fmt, loops=loop_strides(
                    place.map, place.layout, self.nest, path, place.along
                ),
                guards=tuple(guards), splat=splat,
            )  # fmt: skip
        rotate = self.rotate(place, path)
        if rotate is not None:
            rotate = replace(rotate, stride=rotate.stride * parts)
        return Operand(
            place.space, place.address * parts, strides, fmt, rotate=rotate,
            guards=tuple(guards), splat=splat,
        )  # fmt: skip

    def claim(self, place: Place, over: Iteration, path: Path, *, made: bool = False) -> Claim:
        """What the place is in an instruction that iterates ``over``. ``made``: it makes the place
        or, in loops within those of the place, adds to it."""
        at = place_of(place.map, self.frame, over.dims, path)
        if place.turns is None:
            return Claim(place.tensor, at)
        if made:
            inner = tuple(self.nest.trips(d) for d in path[len(place.path) :])
            before, after = (place.turns.at(path, place.added + n, inner) for n in (0, 1))
            return Claim(place.tensor, at, before, after)
        steps = place.turns.steps + (place.tensor in self.passed)
        return Claim(place.tensor, at, place.turns.at(path, steps))

    def rotate(self, place: Place, path: Path) -> Rotate | None:
        """Which slot a trip of the loops ``path`` uses; None when there is one slot."""
        depth = place.depth or (place.buffer.slots if place.buffer is not None else 1)
        if depth == 1:
            return None
        coefs, weight = [0] * len(path), 1
        for i in reversed(range(len(place.path))):
            coefs[i] = weight
            weight *= place.trips[i]
        return Rotate(tuple(coefs), depth, place.slot)

    def noted(self, instr: Instr, what: str, op: Op) -> Instr:
        """The instruction with its provenance: the IR op and the model nodes it carries out."""
        inner = [o.loc for region in op.regions for o in region.ops]
        loc = Loc.merge(inner) if any(x.nodes for x in inner) else op.loc
        return replace(instr, note=self.ctx.notes.add(what, loc.nodes))


