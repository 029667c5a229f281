"""Code for table look-ups: fetch a tile of indices, then the rows they name."""

from __future__ import annotations

from itertools import product

from spyrec.ir.layout import Layout
from spyrec.passes.kernel import GROUP, Nest, rank1
from spyrec.sim.isa import Instr, Num, Operand

from .address import num, strides_along
from .emit_move import home_region
from .emit_nest import KernelContext
from .streams import Body, Buffer, LoopStmt, Stmt

INDEX_LANES = 32


class GatherEmitter:
    """out[i.., d] = table[index[i..], d]: rows in tiles of up to 64 along the last index dimension, whole
    sticks of indices."""

    def __init__(self, ctx: KernelContext) -> None:
        self.ctx = ctx
        self.nest = Nest(ctx.op)
        self.table, self.index = ctx.op.operands
        self.result = ctx.op.results[0]
        prefix = f"{self.result.name}_"
        self.at = {name.removeprefix(prefix): at // 128 for name, (at, _) in ctx.addresses.items() if name.startswith(prefix)}
        assert self.result.type.layout is not None
        self.tile = Layout.stick(self.nest.tile, self.result.type.dtype.bits, self.result.type.layout.stick_dim)
        self.idx = Buffer("idx", 2)
        self.dst = Buffer("dst", 2)

    def run(self) -> Body:
        root = Body()
        nest = self.nest
        trips = [max(1, -(-n // t)) for n, t in zip(nest.local, nest.tile, strict=True)]
        for step, index in enumerate(product(*(range(n) for n in trips))):
            body = Body(scoped=[self.idx, self.dst])
            self._tile(body, index, step % 2)
            root.items.append(LoopStmt(1, body))
        return root

    def _tile(self, body: Body, index: tuple[int, ...], slot: int) -> None:
        nest, cores = self.nest, self.ctx.cores
        ranges = nest.core_ranges + (tuple((0, 0) for _ in nest.extents),) * (cores - len(nest.core_ranges))
        boxes = [
            tuple((s + i * t, max(0, min(t, n - i * t))) for i, t, (s, n) in zip(index, nest.tile, r, strict=True)) for r in ranges
        ]
        live = [c for c, b in enumerate(boxes) if all(n for _, n in b)]
        if not live:
            return
        where = sum(1 << c for c in live)
        where = 0 if where == (1 << cores) - 1 else where
        last = len(nest.extents) - 1
        rows = [b[last - 1][1] if c in live and last else 1 for c, b in enumerate(boxes)]
        index_at = [self._index_stick(b) if c in live else 0 for c, b in enumerate(boxes)]
        sticks = [-(-n // INDEX_LANES) for n in rows]
        near = self.at["idx"] + slot * self._idx_slot()
        body.items.append(Stmt("ml", Instr(
            "load", (num(sticks),), (None,),
            (Operand("lx", near, (1,), "i32"), Operand("hbm", num(index_at), (1,), "i32", "p1")), where=where), (), (self.idx,)))
        assert self.table.type.layout is not None and self.result.type.layout is not None
        table = strides_along(self.table.type.layout)
        here = home_region(self.ctx, self.result)
        mine = strides_along(here.layout if here is not None else self.tile)
        groups = [-(-b[last][1] // GROUP) if c in live else 0 for c, b in enumerate(boxes)]
        fmt = self.ctx.format(self.result.type.dtype)
        pair = self.result.type.dtype.bits // 16
        base = [b[last][0] // GROUP * table[1] for b in boxes]
        tile_at: Num = self.at["dst"] + slot * self.tile.sticks if here is None else num(
            [here.at(c, tuple(s for s, _ in b)) if c in live else 0 for c, b in enumerate(boxes)])
        counts: list[Num] = [num(rows), num(groups)]
        to, frm = [mine[last - 1] if last else 0, mine[last]], [0, table[1]]
        if pair > 1:
            counts.append(pair)
            to.append(1)
            frm.append(1)
        none = (None,) * len(counts)
        body.items.append(Stmt("ml", Instr(
            "gather", tuple(counts), none,
            (Operand("lx", tile_at, tuple(to), fmt), Operand("hbm", num(base), tuple(frm), fmt, "p0"), Operand("lx", near, (0,) * len(counts), "i32")),
            {"stride": table[0] or 1, "rows": rank1(self.table.type)[0]}, where=where), (self.idx,), (self.dst,)))
        if here is not None:
            return  # the rows are where their readers look for them
        far = strides_along(self.result.type.layout)
        start = [sum(b[t][0] // (GROUP if t == last else 1) * far[t] for t in range(last + 1)) for b in boxes]
        out = [far[last - 1] if last else 0, far[last]] + [1] * (len(counts) - 2)
        body.items.append(Stmt("ms", Instr(
            "store", tuple(counts), none, (Operand("hbm", num(start), tuple(out), fmt, "r0"), Operand("lx", tile_at, tuple(to), fmt)),
            where=where), (self.dst,), ()))

    def _idx_slot(self) -> int:
        rows = self.nest.tile[-2] if len(self.nest.tile) > 1 else 1
        return -(-rows // INDEX_LANES) + 1

    def _index_stick(self, box: tuple[tuple[int, int], ...]) -> int:
        """Stick of the first index of the tile: indices lie along the lanes of the index tensor."""
        layout = self.index.type.layout
        assert layout is not None
        shape = rank1(self.index.type)
        along = strides_along(layout)
        lead = len(box) - 1 - len(shape)
        at = 0
        for t in range(len(shape)):
            start = box[t + lead][0] if t + lead >= 0 else 0
            if t == layout.stick_dim:
                at += start // GROUP * along[t] + start % GROUP // INDEX_LANES
            else:
                at += start * along[t]
        return at
