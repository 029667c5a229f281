"""The end of a tile of sums, piece by piece: while one is multiplied by the last elements of the
inner dimension, those before it are drained and stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from spyrec.ir.core import Block, Op, Value
from spyrec.passes.attrs import whole_number
from spyrec.passes.kernel import spans
from spyrec.sim.isa import Instr

from .address import kernel_strides
from .places import Path, Piece, Place, Places
from .transfers import fetch, load
from .tree import Body, Buffer, LoopStmt, Stmt, statements


@dataclass
class Pieces:
    """The pieces of one `finish` op under the loops ``path``, which add statements to ``body``.

    ``factors``: the loads in the loop before. The last trips of it only load; the first piece then
    waits for each of these tiles and the last one frees it. The sums have two buffers: their own,
    which the vector unit frees when the last piece is drained, and one of which each piece is a
    production."""

    whole: Places
    op: Op
    body: Body
    path: Path
    factors: Sequence[Op]
    rooms: dict[str, Buffer] = field(default_factory=dict)
    once: dict[Value, Place] = field(default_factory=dict)

    @property
    def sums(self) -> Place:
        return self.whole.of[self.op.operands[0]]

    @property
    def streamed(self) -> list[Buffer]:
        """The buffers of factors that are not in the scratchpads as a whole."""
        places = [self.whole.of[op.result] for op in self.factors]
        return [p.buffer for p in places if p.boxes is None and p.buffer is not None]

    def load_last(self) -> None:
        """The tiles that the loop leaves come like all others."""
        nest, inner = self.whole.nest, Body()
        last = self.whole.within(nest.piece(0, nest.tile[nest.stick]), None)
        for op in self.factors:
            if self.whole.of[op.result].buffer in self.streamed:
                place = self._last(self.whole.of[op.result], 0)
                fetch(last, op, place, inner, (*self.path, nest.k))
        inner.scoped += self.streamed
        self.body.items.append(LoopStmt(nest.ending, inner))

    def opened(self, number: int, inner: Body) -> Places:
        """Where the values of a piece are, once its loads stand in ``inner``; those of what all
        pieces read, in front of the first."""
        region, nest = self.op.regions[0], self.whole.nest.pieces[number]
        piece = self.whole.within(nest, Piece(number, self.rooms))
        piece.of.update(self.once)
        piece.of[region.args[0]] = self._part(number, inner)
        for o in region.ops:
            if o.name == "load":
                varies = spans(nest.maps[whole_number(o, "operand")], nest.stick)
                if varies or not number:
                    load(piece, o, inner if varies else self.body, self.path)
                if not varies and o.result in piece.of:
                    self.once[o.result] = piece.of[o.result]
        loop = next(o for o in region.ops if o.name == "for")
        loads = [o for o in loop.regions[0].ops if o.name == "load"]
        for o, before in zip(loads, self.factors, strict=True):
            place = self.whole.of[before.result]
            piece.of[o.result] = place if place.boxes is not None else self._last(place, number)
        return piece

    def close(self, number: int, inner: Body) -> None:
        """Add a piece's statements."""
        assert self.sums.buffer is not None
        for loop in (item.body for item in inner.items if isinstance(item, LoopStmt)):
            for stmt in (s for s in statements(loop) if s.unit == "pt"):
                stmt.writes = (*stmt.writes, self.sums.buffer)
                streamed = [b for b in stmt.reads if b in self.streamed]
                if number == 0:
                    loop.takes += streamed
                elif number == len(self.whole.nest.pieces) - 1:
                    loop.gives += streamed
                else:
                    stmt.reads = tuple(b for b in stmt.reads if b not in streamed)
        self.body.items.append(LoopStmt(1, inner))

    def end(self) -> None:
        """The sums are drained when all pieces are."""
        assert self.sums.buffer is not None
        drained = Instr("sync", where=self.whole.frame.active)
        self.body.items.append(Stmt("sfp", drained, (self.sums.buffer,)))

    def _last(self, place: Place, number: int) -> Place:
        """The tiles of a factor that the loop has left, from the columns of a piece on."""
        nest = self.whole.nest
        slots = place.buffer.slots if place.buffer is not None else place.depth
        before = (nest.trips(nest.k) - nest.ending) % slots
        first = before * place.slot + number * self._width(place)
        return replace(place, address=place.address + first)

    def _part(self, number: int, inner: Body) -> Place:
        sums, nest = self.sums, self.whole.nest
        assert sums.buffer is not None
        name, slots = f"{sums.buffer.name}_part", sums.buffer.slots * len(nest.pieces)
        buffer = self.rooms.setdefault(name, Buffer(name, slots))
        inner.scoped.append(buffer)
        return replace(
            sums, address=sums.address + number * self._width(sums), buffer=buffer,
            depth=sums.buffer.slots, added=nest.trips(nest.k) - nest.ending,
        )  # fmt: skip

    def _width(self, place: Place) -> int:
        """Address units from one piece to the next."""
        nest = self.whole.nest
        step = [(nest.stick, nest.finish[nest.stick])]
        return kernel_strides(place.map, place.layout, step, place.along)[0]


def without_loads(region: Block) -> Block:
    """The region but for the loads of it, and of the loop over the inner dimension."""
    ops = [o for o in region.ops if o.name != "load"]
    for i, o in enumerate(ops):
        if o.name == "for":
            ops[i] = replace(o, regions=(without_loads(o.regions[0]),))
    return replace(region, ops=tuple(ops))
