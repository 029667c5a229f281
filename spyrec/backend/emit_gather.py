"""Code for table look-ups: fetch a tile of indices, then the rows they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spyrec.ir.layout import Layout
from spyrec.passes.kernel import GROUP, Box, Nest, rank1
from spyrec.passes.pieces import tile_boxes
from spyrec.sim.isa import Instr, Intent, Operand

from .address import mask_of, num, strides_along
from .claims import Course
from .context import KernelContext
from .regions import Region, card_region, home_region, sticks
from .slots import Slots
from .tree import Body, LoopStmt, Stmt, restrain

INDEX_LANES = 32


class GatherEmitter:
    """out[i.., d] = table[index[i..], d]: rows in tiles of up to 64 along the last index dimension,
    whole sticks of indices."""

    def __init__(self, ctx: KernelContext) -> None:
        self.ctx = ctx
        self.nest = Nest(ctx.op)
        self.table, self.index = ctx.op.operands
        self.result = ctx.op.results[0]
        assert self.result.type.layout is not None
        self.tile = Layout.stick(
            self.nest.tile, self.result.type.dtype.bits, self.result.type.layout.stick_dim
        )
        self.home = home_region(ctx, self.result)
        rows = self.nest.tile[-2] if len(self.nest.tile) > 1 else 1
        self.idx = self._slots("idx", -(-rows // INDEX_LANES) + 1)
        self.dst = None if self.home is not None else self._slots("dst", self.tile.sticks)

    def _slots(self, role: str, sticks_: int) -> Slots:
        address, depth = self.ctx.addresses[f"{self.result.name}_{role}"]
        return Slots(role, address // 128, sticks_, self.ctx.cores, depth)

    def run(self) -> Body:
        root = Body()
        idle = tuple((0, 0) for _ in self.nest.extents)
        for mine in tile_boxes(self.nest, self.nest.tile):
            boxes = mine + (idle,) * (self.ctx.cores - len(mine))
            live = [c for c, b in enumerate(boxes) if all(n for _, n in b)]
            if live:
                body = Body()
                self._tile(body, boxes, live)
                root.items.append(LoopStmt(1, body))
        restrain(root, self.nest.buffers, self.nest.overlap)
        return root

    def _tile(self, body: Body, boxes: tuple[Box, ...], live: list[int]) -> None:
        """The busy cores fetch indices, gather rows and store them."""
        cores = self.ctx.cores
        where = mask_of(live, cores)
        last = len(self.nest.extents) - 1
        full = [b if c in live else boxes[live[0]] for c, b in enumerate(boxes)]
        rows = [b[last - 1][1] if last else 1 for b in full]
        near = num(self.idx.take(live))
        indices = self._indices(full)
        body.scoped.append(self.idx.buffer)
        body.items.append(Stmt("ml", Instr(
            "load", (num([-(-n // INDEX_LANES) for n in rows]),), (None,),
            (Operand("lx", near, (1,), "i32"),
             Operand("hbm", num([self._index_stick(b) for b in full]), (1,), "i32", "p1")),
            where=where, intents=(Intent((indices.claim(), indices.claim())),),
        ), (), (self.idx.buffer,)))  # fmt: skip
        out = self.home
        if out is None:
            assert self.dst is not None
            fmt = self.ctx.format(self.result.type.dtype)
            number = self.ctx.ledger.tensor(self.result)
            out = Region("lx", self.tile, fmt, self.dst.take(live), boxes, "", number)
            body.scoped.append(self.dst.buffer)
        table = card_region(self.ctx, self.table, "p0")
        counts = [num(rows), num([-(-b[last][1] // GROUP) for b in full])]
        starts = [tuple(s for s, _ in b) for b in full]
        tile_at = [out.at(c, starts[c]) if c in live else 0 for c in range(cores)]
        inner = [out.along[last - 1] if last else 0, out.along[last]]
        row, group = (tuple(n if t == d else 0 for t in range(last + 1))
                      for d, n in ((last - 1, min(last, 1)), (last, GROUP)))  # fmt: skip
        made = Course(out.tensor, tuple(starts), (row, group))
        taken = Course(table.tensor, tuple((0, s[last]) for s in starts), ((0, 0), (0, GROUP)))
        (fetch,) = sticks(
            "gather", counts, [s[last] // GROUP * table.along[1] for s in starts],
            [0, table.along[1]], tile_at, inner, table, out, where,
            (taken, made), {"stride": table.along[0] or 1, "rows": rank1(self.table.type)[0]},
        )  # fmt: skip
        index = Operand("lx", near, (0,) * len(fetch.counts), "i32")
        (intent,) = fetch.intents
        claim = replace(indices, steps=((0,) * len(indices.start[0]),) * len(fetch.counts)).claim()
        intent = replace(intent, claims=(*intent.claims, claim))
        fetch = replace(fetch, operands=(*fetch.operands, index), intents=(intent,))
        writes = (self.dst.buffer,) if self.dst is not None else ()
        body.items.append(Stmt("ml", fetch, (self.idx.buffer,), writes))
        if self.dst is None:
            return  # the rows are where their readers look for them
        card = card_region(self.ctx, self.result, "r0")
        outer = [card.along[last - 1] if last else 0, card.along[last]]
        start = [card.at(0, s) for s in starts]
        kept = replace(made, tensor=card.tensor)
        for instr in sticks(
            "store", counts, tile_at, inner, start, outer, out, card, where, (made, kept)
        ):
            body.items.append(Stmt("ms", instr, (self.dst.buffer,)))

    def _indices(self, boxes: Sequence[Box]) -> Course:
        """The indices of each core's tile, from the start of their first stick on."""
        layout = self.index.type.layout
        assert layout is not None
        lane, rank = layout.stick_dim, len(layout.shape)
        starts = []
        for box in boxes:
            at = [first for first, _ in box[:-1]][-rank:] or [0]
            at[lane] -= at[lane] % INDEX_LANES
            starts.append(tuple(at))
        step = tuple(INDEX_LANES if t == lane else 0 for t in range(rank))
        return Course(self.ctx.ledger.tensor(self.index), tuple(starts), (step,))

    def _index_stick(self, box: Box) -> int:
        """Stick of the first index of the tile: indices lie along the lanes of the index tensor."""
        layout = self.index.type.layout
        assert layout is not None
        along = strides_along(layout)
        lead = len(box) - 1 - len(along)
        at = 0
        for t, step in enumerate(along):
            start = box[t + lead][0] if t + lead >= 0 else 0
            if t == layout.stick_dim:
                at += start // GROUP * step + start % GROUP // INDEX_LANES
            else:
                at += start * step
        return at

