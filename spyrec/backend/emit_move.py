"""Code for move kernels: whole sticks by the memory units where lanes stay in place, element
shuffles else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from spyrec.ir.core import Value
from spyrec.ir.layout import Layout
from spyrec.ir.moves import AffineMap, Piece
from spyrec.passes.kernel import GROUP, Box, Nest
from spyrec.passes.pieces import (
    clip_pieces,
    is_direct,
    leaves_gaps,
    pieces,
    repeats,
    source_boxes,
    source_window,
    tile_boxes,
)
from spyrec.passes.sticks import region_head
from spyrec.sim.formats import encode
from spyrec.sim.isa import Instr, Intent, Num, Operand

from .address import mask_of, num
from .claims import Course, counted
from .context import KernelContext
from .regions import Hop, Region, box_transfer, card_region, home_region, sticks
from .shuffle import Copy, Part, Side, copies
from .slots import Slots
from .tree import Body, Buffer, LoopStmt, Stmt, restrain

Ranges = Mapping[int, Box]
"""For each core that takes part the ranges of a piece's iteration dimensions."""


class MoveEmitter:
    """Unrolls the tiles of one move kernel."""

    def __init__(self, ctx: KernelContext) -> None:
        self.ctx = ctx
        self.op = ctx.op
        self.nest = Nest(ctx.op)
        self.result = ctx.op.results[0]
        self.fmt = ctx.format(self.result.type.dtype)
        self.home = home_region(ctx, self.result)
        staged = [i for i, v in enumerate(self.op.operands) if v not in ctx.homes]
        through = is_direct(self.op) and self.home is None  # the tile buffer
        self.again = repeats(self.op, staged) if through else {}
        more = {q for others in self.again.values() for q in others}
        self.pieces = [p for p in pieces(self.op) if p not in more]
        self.tile_layout = self._layout(self.result, self.nest.tile)
        self.dst = self._slots("dst", self.tile_layout)
        self.cleared: tuple[Buffer, ...] = ()  # stands for a home that is filled before pieces come
        self.sources: dict[int, tuple[Slots, Layout]] = {}
        for i, v in enumerate(self.op.operands):
            shape = source_window(self.op, i, self.nest.tile)
            layout = self._layout(v, shape) if shape is not None else None
            slots = self._slots(f"src{i}", layout) if layout is not None else None
            if slots is not None and layout is not None:
                self.sources[i] = slots, layout

    @staticmethod
    def _layout(v: Value, shape: tuple[int, ...]) -> Layout:
        assert v.type.layout is not None
        return Layout.stick(shape, v.type.dtype.bits, v.type.layout.stick_dim)

    def _slots(self, role: str, layout: Layout) -> Slots | None:
        """The tile buffer the scratchpad plan made for a role; None when it made none."""
        found = self.ctx.addresses.get(f"{self.result.name}_{role}")
        if found is None:
            return None
        address, depth = found
        return Slots(role, address // 128, layout.sticks, self.ctx.cores, depth)

    def run(self) -> Body:
        root = Body()
        direct = is_direct(self.op)
        if self.home is not None and self._shows_fill(self.home):
            self.cleared = (Buffer("cleared"),)
            root.scoped += self.cleared
            root.items.append(Stmt("sfp", self._fill(self.home), (), self.cleared))
        for mine in tile_boxes(self.nest, self.nest.tile):
            idle = tuple((0, 0) for _ in self.nest.extents)
            boxes = mine + (idle,) * (self.ctx.cores - len(mine))
            body = Body()
            if direct:
                self._direct(body, boxes)
            else:
                self._shuffled(body, boxes)
            root.items.append(LoopStmt(1, body))
        restrain(root, self.nest.buffers, self.nest.overlap)
        return root

    def _ranges(self, boxes: tuple[Box, ...]) -> list[tuple[Piece, Ranges]]:
        """The pieces of which the tile holds something, more than once if its sides cut runs."""
        return [(p, ranges) for p in self.pieces for ranges in clip_pieces(p, boxes)]

    # Whole sticks ----------------------------------------------------------------------------

    def _direct(self, body: Body, boxes: tuple[Box, ...]) -> None:
        """From card memory to card memory by way of the tile buffer, else in one step."""
        out = self.home or card_region(self.ctx, self.result, "r0")
        staged: list[tuple[Piece, Ranges]] = []
        for p, ranges in self._ranges(boxes):
            v = self.op.operands[p.operand]
            source = home_region(self.ctx, v) or card_region(self.ctx, v, f"p{p.operand}")
            match source.space, out.space:
                case "lx", "lx":
                    self._shuffle(body, p, ranges, source, out, (), ())
                case "lx", "hbm":
                    made = self._sticks("store", p, ranges, p.src, source, out)
                    body.items += [Stmt("ms", instr) for instr in made]
                case "hbm", "lx":
                    made = self._sticks("load", p, ranges, p.src, source, out)
                    body.items += [Stmt("ml", instr, self.cleared) for instr in made]
                case _:
                    staged.append((p, ranges))
        if not staged:
            return
        assert self.dst is not None
        base = self.dst.take({c for _, ranges in staged for c in ranges})
        buffer = self.dst.buffer
        mid = Region("lx", self.tile_layout, self.fmt, base, boxes, "", out.tensor)
        body.scoped.append(buffer)
        for p, ranges in staged:
            source = card_region(self.ctx, self.op.operands[p.operand], f"p{p.operand}")
            made = self._sticks("load", p, ranges, p.src, source, mid)
            body.items += [Stmt("ml", instr, (), (buffer,)) for instr in made]
        for p, ranges in staged:
            for place in (p, *self.again.get(p, ())):
                made = self._sticks("store", place, ranges, p.dst, mid, out)
                body.items += [Stmt("ms", instr, (buffer,)) for instr in made]

    def _sticks(
        self, name: str, p: Piece, ranges: Ranges, src_map: AffineMap, source: Region, out: Region
    ) -> list[Instr]:
        """A strided transfer of whole sticks of one piece, read at ``src_map``."""
        lane = out.layout.stick_dim
        some = next(iter(ranges.values()))
        full = [ranges.get(c, some) for c in range(self.ctx.cores)]
        dims = [i for i in range(len(p.counts)) if any(r[i][1] > 1 for r in full)]
        steps = {i: GROUP if p.dst.rows[lane][1][i] else 1 for i in dims}
        card, rows = (source, src_map.rows) if source.space == "hbm" else (out, p.dst.rows)
        dims.sort(key=lambda i: -abs(card.stride(rows, i, steps[i])))  # its runs are the longest
        at = {c: tuple(s for s, _ in r) for c, r in ranges.items()}
        cores = range(self.ctx.cores)
        courses = tuple(
            Course(
                end.tensor, tuple(m.at(tuple(s for s, _ in r)) for r in full),
                tuple(tuple(steps[i] * n for n in m.step(i)) for i in dims),
            )
            for end, m in ((source, src_map), (out, p.dst))
        )  # fmt: skip
        return sticks(
            name,
            [num([-(-r[i][1] // steps[i]) for r in full]) for i in dims],
            [source.at(c, src_map.at(at[c])) if c in at else 0 for c in cores],
            [source.stride(src_map.rows, i, steps[i]) for i in dims],
            [out.at(c, p.dst.at(at[c])) if c in at else 0 for c in cores],
            [out.stride(p.dst.rows, i, steps[i]) for i in dims],
            source, out, mask_of(ranges, self.ctx.cores), courses,
        )  # fmt: skip

    # Element shuffles ------------------------------------------------------------------------

    def _shuffled(self, body: Body, boxes: tuple[Box, ...]) -> None:
        """Fetch what the tile needs, shuffle it into place, write the tile where it belongs."""
        busy = [c for c, b in enumerate(boxes) if all(n for _, n in b)]
        if not busy:
            return
        out = self.home
        writes: tuple[Buffer, ...] = ()
        if out is None:
            assert self.dst is not None
            number = self.ctx.ledger.tensor(self.result)
            base = self.dst.take(busy)
            out = Region("lx", self.tile_layout, self.fmt, base, boxes, "", number)
            writes = (self.dst.buffer,)
            body.scoped.append(self.dst.buffer)
        windows = {i: self._fetch(body, i, boxes) for i in self.sources}
        if writes and self._shows_fill(out):
            body.items.append(Stmt("sfp", self._fill(out), (), writes))
        for p, ranges in self._ranges(boxes):
            source = home_region(self.ctx, self.op.operands[p.operand]) or windows[p.operand]
            reads = (self.sources[p.operand][0].buffer,) if p.operand in self.sources else ()
            self._shuffle(body, p, ranges, source, out, reads, writes)
        if self.dst is not None and writes:
            card = card_region(self.ctx, self.result, "r0")
            made = self._boxes("store", boxes, out, card)
            body.items += [Stmt("ms", instr, writes) for instr in made]

    def _fetch(self, body: Body, i: int, boxes: tuple[Box, ...]) -> Region:
        """The window of an operand in card memory that each core's tile needs."""
        slots, layout = self.sources[i]
        v = self.op.operands[i]
        need = source_boxes(self.op, i, boxes)
        users = [c for c, b in enumerate(need) if all(n for _, n in b)]
        region = Region(
            "lx", layout, self.ctx.format(v.type.dtype), slots.take(users), need, "",
            self.ctx.ledger.tensor(v),
        )  # fmt: skip
        if users:
            body.scoped.append(slots.buffer)
            made = self._boxes("load", need, card_region(self.ctx, v, f"p{i}"), region)
            body.items += [Stmt("ml", instr, (), (slots.buffer,)) for instr in made]
        return region

    def _boxes(self, name: str, boxes: tuple[Box, ...], source: Region, out: Region) -> list[Instr]:
        """A transfer of each core's box between its own place and card memory."""
        hops = {}
        for c, box in enumerate(boxes):
            if all(n for _, n in box):
                start = tuple(s for s, _ in box)
                sizes = tuple(n for _, n in box)
                hops[c] = Hop(start, sizes, source.at(c, start), out.at(c, start))
        return box_transfer(name, hops, source, out, self.ctx.cores)

    def _shows_fill(self, out: Region) -> bool:
        """Do the pieces leave gaps, or end before the last stick of a group of wide elements
        (which readers take whole)?"""
        assert out.boxes is not None
        parts = [box[out.layout.stick_dim] for box in out.boxes]
        ragged = any(
            0 < (start + size) % GROUP <= out.layout.lanes for start, size in parts if size
        )
        return leaves_gaps(self.op) or (out.layout.bits > 16 and ragged)

    def _fill(self, out: Region) -> Instr:
        """The whole region takes the fill value."""
        assert out.boxes is not None
        busy = (c for c, box in enumerate(out.boxes) if all(n for _, n in box))
        where = mask_of(busy, self.ctx.cores)
        lanes = out.layout.lanes
        at = num([out.address(c) * lanes for c in range(self.ctx.cores)])
        value = np.array(
            [region_head(self.op).attrs["fill"]], np.int32 if self.fmt == "i32" else np.float32
        )
        raw = encode(value, self.fmt)
        bits = int(raw.view(np.uint16 if raw.dtype.itemsize == 2 else np.uint32)[0])
        imm: dict[str, Num] = {"bits": out.layout.bits, "value": bits}
        elements = out.layout.sticks * lanes
        digits = [g for axis in ("mem", "lane") for g in out.layout.digits if g.axis == axis]
        rank = range(len(out.layout.shape))
        course = Course(
            out.tensor, tuple(out.start(c) for c in range(self.ctx.cores)),
            tuple(tuple(g.stride if t == g.dim else 0 for t in rank) for g in digits),
        )  # fmt: skip
        intent = Intent((course.claim(),), counted([g.size for g in digits]))
        return Instr(
            "fill", (elements,), (None,), (Operand("lx", at, (1,)),), imm, where=where,
            intents=(intent,),
        )  # fmt: skip

    def _shuffle(
        self, body: Body, p: Piece, ranges: Ranges, source: Region, out: Region,
        reads: tuple[Buffer, ...], writes: tuple[Buffer, ...],
    ) -> None:
        """One ``shuf`` for each shape of strided copy, with every core's own bases and counts."""
        table: dict[tuple[object, ...], list[dict[int, Copy]]] = {}
        for c, r in ranges.items():
            sides = side_of(p.src, source, c, r), side_of(p.dst, out, c, r)
            used: dict[tuple[object, ...], int] = {}
            for copy in copies([n for _, n in r], *sides, self.nest.name):
                key = (copy.src_strides, copy.dst_strides)
                j = used[key] = used.get(key, -1) + 1
                rows = table.setdefault(key, [])
                if j == len(rows):
                    rows.append({})
                rows[j][c] = copy
        for rows in table.values():
            for row in rows:
                intents = self._intents(row, source, out)
                instr = replace(self._shuf(row, out.layout.bits), intents=intents)
                body.items.append(Stmt("sfp", instr, reads, writes))

    def _intents(self, row: dict[int, Copy], source: Region, out: Region) -> tuple[Intent, ...]:
        """What the copies mean: those that were joined from other dimensions are told apart."""
        alike: dict[tuple[Part, ...], list[int]] = {}
        for core, copy in row.items():
            alike.setdefault(copy.flat, []).append(core)
        made = []
        for parts, cores in alike.items():
            using = [c if c in cores else cores[0] for c in range(self.ctx.cores)]
            src = tuple(_plus(row[c].src_start, source.start(c)) for c in using)
            dst = tuple(_plus(row[c].dst_start, out.start(c)) for c in using)
            claims = (
                Course(out.tensor, dst, tuple(part.dst for part in parts)).claim(),
                Course(source.tensor, src, tuple(part.src for part in parts)).claim(),
            )
            extents = counted([part.count for part in parts])
            made.append(Intent(claims, extents, mask_of(cores, self.ctx.cores)))
        return tuple(made)

    def _shuf(self, row: dict[int, Copy], bits: int) -> Instr:
        """One copy for each core in ``row``, all of one shape."""
        some = next(iter(row.values()))
        full = [row.get(c, some) for c in range(self.ctx.cores)]
        counts = tuple(num([k.counts[i] for k in full]) for i in range(len(some.counts)))
        operands = (
            Operand("lx", num([k.dst_base for k in full]), some.dst_strides, self.fmt),
            Operand("lx", num([k.src_base for k in full]), some.src_strides, self.fmt),
        )
        where = mask_of(row, self.ctx.cores)
        return Instr("shuf", counts, (None,) * len(counts), operands, {"bits": bits}, where=where)


def _plus(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def side_of(m: AffineMap, region: Region, core: int, ranges: Box) -> Side:
    """A core's end of a copy over ``ranges`` of a piece's iteration dimensions."""
    lanes = region.layout.lanes
    point = m.at(tuple(s for s, _ in ranges))
    return Side(
        region.layout.stick_dim,
        tuple(p - s for p, s in zip(point, region.start(core), strict=True)),
        tuple(coefs for _, coefs in m.rows),
        tuple(step * lanes for step in region.along),
        region.address(core) * lanes,
    )
