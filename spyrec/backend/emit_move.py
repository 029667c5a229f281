"""Code for move kernels: whole sticks by the memory units where lanes stay in place, element shuffles else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from spyrec.ir.core import Value
from spyrec.ir.errors import PassError
from spyrec.ir.layout import Layout
from spyrec.passes.kernel import GROUP, Box, Nest, rank1
from spyrec.passes.pieces import Piece, clip_piece, is_direct, pieces, source_boxes, source_window, tile_boxes
from spyrec.passes.residency import local_layout
from spyrec.passes.stick_layout import region_head
from spyrec.sim.formats import encode
from spyrec.sim.isa import Instr, Num, Operand

from .address import num, strides_along, unit_of
from .emit_nest import KernelContext
from .shuffle import Copy, Side, copies
from .streams import Body, Buffer, LoopStmt, Stmt


@dataclass(frozen=True)
class Region:
    """A tensor, or each core's box of it, in one memory: addresses in sticks."""

    space: str
    layout: Layout
    address: int
    boxes: tuple[Box, ...] | None  # per core; None: the whole tensor at its own coordinates
    symbol: str = ""

    def start(self, core: int) -> tuple[int, ...]:
        """Coordinate of the first element of the core's part."""
        return tuple(s for s, _ in self.boxes[core]) if self.boxes is not None else (0,) * len(self.layout.shape)

    def at(self, core: int, point: Sequence[int]) -> int:
        """Stick address of an element whose lane is 0."""
        along = strides_along(self.layout)
        return self.address + sum(
            (p - s) // unit_of(self.layout, t) * along[t]
            for t, (p, s) in enumerate(zip(point, self.start(core), strict=True))
        )


class MoveEmitter:
    """Unrolls the tiles of one move kernel."""

    def __init__(self, ctx: KernelContext) -> None:
        self.ctx = ctx
        self.op = ctx.op
        self.nest = Nest(ctx.op)
        self.result = ctx.op.results[0]
        self.direct = is_direct(ctx.op)
        self.pieces = pieces(ctx.op)
        self.sources: dict[int, tuple[Buffer, Layout]] = {}
        prefix = f"{self.result.name}_"
        self.slot_at = {name.removeprefix(prefix): at for name, (at, _) in ctx.addresses.items() if name.startswith(prefix)}
        for i, v in enumerate(self.op.operands):
            if f"src{i}" in self.slot_at:
                shape = source_window(self.op, i, self.nest.tile)
                assert shape is not None and v.type.layout is not None
                layout = Layout.stick(shape, v.type.dtype.bits, v.type.layout.stick_dim)
                self.sources[i] = (Buffer(f"src{i}", 2), layout)
        assert self.result.type.layout is not None
        self.tile_layout = Layout.stick(self.nest.tile, self.result.type.dtype.bits, self.result.type.layout.stick_dim)
        self.dst_buffer = Buffer("dst", 2) if "dst" in self.slot_at else None
        self.cleared = Buffer("cleared")  # a home that was filled before the pieces come

    def run(self) -> Body:
        root = Body()
        if (home := self._home(self.result)) is not None:
            self._fill(root, home, (self.cleared,))
            root.scoped += [self.cleared] * bool(root.items)
        for t, mine in enumerate(tile_boxes(self.nest, self.nest.tile)):
            empty = tuple((0, 0) for _ in self.nest.extents)
            boxes = mine + (empty,) * (self.ctx.cores - len(mine))
            body = Body()
            if self.direct:
                self._direct(body, boxes, t % 2)
            else:
                self._shuffled(body, boxes, t % 2)
            root.items.append(LoopStmt(1, body))
        return root

    def _home(self, v: Value) -> Region | None:
        return home_region(self.ctx, v)

    def _card(self, v: Value, symbol: str) -> Region:
        assert v.type.layout is not None
        return Region("hbm", v.type.layout, 0, None, symbol)

    def _dst(self, boxes: tuple[Box, ...], slot: int) -> Region:
        at = self.slot_at["dst"] // 128 + slot * self.tile_layout.sticks
        return Region("lx", self.tile_layout, at, boxes)

    # Whole sticks ----------------------------------------------------------------------------

    def _direct(self, body: Body, boxes: tuple[Box, ...], slot: int) -> None:
        home = self._home(self.result)
        if self.dst_buffer is not None:
            body.scoped.append(self.dst_buffer)
        for p in self.pieces:
            v = self.op.operands[p.operand]
            ranges = [clip_piece(p, b, self.nest.name) if all(n for _, n in b) else tuple((0, 0) for _ in p.counts) for b in boxes]
            source = self._home(v) or self._card(v, f"p{p.operand}")
            out = home or self._card(self.result, "r0")
            if source.space == "lx" and out.space == "lx":
                self._shuffle(body, p, ranges, source, out, (), ())
            elif source.space == "lx":
                self._sticks(body, "ms", "store", p, ranges, source, out, (), ())
            elif out.space == "lx":
                self._sticks(body, "ml", "load", p, ranges, source, out, (self.cleared,), ())
            else:
                assert self.dst_buffer is not None
                mid = self._dst(boxes, slot)
                self._sticks(body, "ml", "load", p, ranges, source, mid, (), (self.dst_buffer,))
                self._sticks(body, "ms", "store", p, ranges, None, out, (self.dst_buffer,), (), mid)

    def _sticks(
        self, body: Body, unit: str, name: str, p: Piece, ranges: list[Box], source: Region | None, out: Region,
        reads: tuple[Buffer, ...], writes: tuple[Buffer, ...], mid: Region | None = None,
    ) -> None:
        """A strided transfer of whole sticks; with ``mid`` from the staging buffer laid out like the result."""
        first = source or mid
        assert first is not None
        src_map = p.src if source is not None else p.dst
        bits = out.layout.bits
        dims = [i for i in range(len(p.counts)) if any(r[i][1] > 1 for r in ranges)]
        lane = out.layout.stick_dim
        unit_steps = [GROUP if p.dst[lane][1][i] else 1 for i in dims]
        counts: list[Num] = [num([-(-r[i][1] // u) for r in ranges]) for i, u in zip(dims, unit_steps, strict=True)]
        src_strides = [self._along(src_map, first, i, u) for i, u in zip(dims, unit_steps, strict=True)]
        dst_strides = [self._along(p.dst, out, i, u) for i, u in zip(dims, unit_steps, strict=True)]
        if bits > 16:
            counts.append(bits // 16)
            src_strides.append(1)
            dst_strides.append(1)
        where = [c for c, r in enumerate(ranges) if all(n for _, n in r)]
        if not where:
            return
        src_at = num([first.at(c, self._point(src_map, r)) if c in where else 0 for c, r in enumerate(ranges)])
        dst_at = num([out.at(c, self._point(p.dst, r)) if c in where else 0 for c, r in enumerate(ranges)])
        fmt = self.ctx.format(self.result.type.dtype)
        if len(counts) > 6:
            raise PassError(f"codegen: {self.nest.name} moves sticks along {len(counts)} dimensions at once, six exist")
        operands = (
            Operand(out.space, dst_at, tuple(dst_strides), fmt, out.symbol),  # type: ignore[arg-type]
            Operand(first.space, src_at, tuple(src_strides), fmt, first.symbol),  # type: ignore[arg-type]
        )
        instr = Instr(name, tuple(counts), (None,) * len(counts), operands, where=self._mask(where))
        body.items.append(Stmt(unit, instr, reads, writes))

    @staticmethod
    def _along(m: Sequence[tuple[int, tuple[int, ...]]], region: Region, i: int, step: int) -> int:
        along = strides_along(region.layout)
        return sum(
            coefs[i] * step // unit_of(region.layout, t) * along[t] for t, (_, coefs) in enumerate(m) if coefs[i]
        )

    @staticmethod
    def _point(m: Sequence[tuple[int, tuple[int, ...]]], ranges: Box) -> tuple[int, ...]:
        return tuple(off + sum(c * s for c, (s, _) in zip(coefs, ranges, strict=True)) for off, coefs in m)

    def _mask(self, cores: Iterable[int]) -> int:
        mask = sum(1 << c for c in cores)
        return 0 if mask == (1 << self.ctx.cores) - 1 else mask

    # Element shuffles ------------------------------------------------------------------------

    def _shuffled(self, body: Body, boxes: tuple[Box, ...], slot: int) -> None:
        home = self._home(self.result)
        if home is None:
            assert self.dst_buffer is not None
            body.scoped.append(self.dst_buffer)
        out = home or self._dst(boxes, slot)
        writes = (self.dst_buffer,) if home is None and self.dst_buffer is not None else ()
        windows: dict[int, Region] = {}
        for i, v in enumerate(self.op.operands):
            if i in self.sources:
                windows[i] = self._fetch(body, i, v, boxes, slot)
        if home is None:
            self._fill(body, out, writes)
        for p in self.pieces:
            ranges = [clip_piece(p, b, self.nest.name) if all(n for _, n in b) else tuple((0, 0) for _ in p.counts) for b in boxes]
            source = self._home(self.op.operands[p.operand]) or windows.get(p.operand)
            if source is None:
                continue
            reads = (self.sources[p.operand][0],) if p.operand in self.sources else ()
            self._shuffle(body, p, ranges, source, out, reads, writes)
        if home is None:
            self._write(body, boxes, out)

    def _fetch(self, body: Body, i: int, v: Value, boxes: tuple[Box, ...], slot: int) -> Region:
        buffer, layout = self.sources[i]
        need = source_boxes(self.op, i, boxes)
        region = Region("lx", layout, self.slot_at[f"src{i}"] // 128 + slot * layout.sticks, need)
        body.scoped.append(buffer)
        self._box_transfer(body, "ml", "load", self._card(v, f"p{i}"), region, need, (), (buffer,))
        return region

    def _write(self, body: Body, boxes: tuple[Box, ...], out: Region) -> None:
        assert self.dst_buffer is not None
        self._box_transfer(body, "ms", "store", out, self._card(self.result, "r0"), boxes, (self.dst_buffer,), ())

    def _box_transfer(self, body: Body, unit: str, name: str, source: Region, out: Region, boxes: tuple[Box, ...],
                      reads: tuple[Buffer, ...], writes: tuple[Buffer, ...]) -> None:
        where = [c for c, b in enumerate(boxes) if all(n for _, n in b)]
        if not where:
            return
        near, far = strides_along(out.layout), strides_along(source.layout)
        counts: list[Num] = []
        dst, src = [], []
        for t in sorted(range(len(near)), key=lambda t: -max(near[t], far[t])):
            sizes = [-(-b[t][1] // unit_of(out.layout, t)) for b in boxes]
            if max(sizes) > 1:
                counts.append(num(sizes))
                dst.append(near[t])
                src.append(far[t])
        if out.layout.bits > 16:
            counts.append(out.layout.bits // 16)
            dst.append(1)
            src.append(1)
        points = [tuple(s for s, _ in b) for b in boxes]
        fmt = self.ctx.format(self.result.type.dtype)
        operands = (
            Operand(out.space, num([out.at(c, p) if c in where else 0 for c, p in enumerate(points)]), tuple(dst), fmt, out.symbol),  # type: ignore[arg-type]
            Operand(source.space, num([source.at(c, p) if c in where else 0 for c, p in enumerate(points)]), tuple(src), fmt, source.symbol),  # type: ignore[arg-type]
        )
        body.items.append(Stmt(unit, Instr(name, tuple(counts), (None,) * len(counts), operands, where=self._mask(where)), reads, writes))

    def _fill(self, body: Body, out: Region, writes: tuple[Buffer, ...]) -> None:
        """Before pieces that leave gaps, or that end before the last stick of a group of wide elements
        (which readers take whole): the whole region takes the fill value."""
        assert out.boxes is not None
        total = 1
        for e in rank1(self.result.type):
            total *= e
        covered = 0
        for p in self.pieces:
            size = 1
            for n in p.counts:
                size *= n
            covered += size
        stick = out.layout.stick_dim
        ragged = any(0 < (start + size) % GROUP <= out.layout.lanes and size for start, size in (b[stick] for b in out.boxes))
        if covered >= total and not (out.layout.bits > 16 and ragged):
            return
        value = float(region_head(self.op).attrs["fill"])  # type: ignore[arg-type]
        elements = out.layout.sticks * out.layout.lanes
        where = [c for c, b in enumerate(out.boxes) if all(n for _, n in b)]
        bits = out.layout.bits
        instr = Instr("fill", (elements,), (None,), (Operand("lx", out.address * out.layout.lanes, (1,)),),
                      {"bits": bits, "value": self._bits(value)}, where=self._mask(where))
        body.items.append(Stmt("sfp", instr, (), writes))

    def _bits(self, value: float) -> int:
        fmt = self.ctx.format(self.result.type.dtype)
        array = np.array([value], np.int32 if fmt == "i32" else np.float32)
        raw = encode(array, fmt)
        return int(raw.view(np.uint16 if raw.dtype.itemsize == 2 else np.uint32)[0])

    def _shuffle(self, body: Body, p: Piece, ranges: list[Box], source: Region, out: Region,
                 reads: tuple[Buffer, ...], writes: tuple[Buffer, ...]) -> None:
        """One ``shuf`` for each shape of strided copy, with every core's own bases and counts."""
        table: dict[tuple[object, ...], list[dict[int, Copy]]] = {}
        for c, r in enumerate(ranges):
            if not all(n for _, n in r):
                continue
            place: dict[tuple[object, ...], int] = {}
            for copy in copies([n for _, n in r], self._side(p.src, source, c, r), self._side(p.dst, out, c, r), self.nest.name):
                key = (copy.src_strides, copy.dst_strides)
                j = place.get(key, 0)
                place[key] = j + 1
                rows = table.setdefault(key, [])
                if j == len(rows):
                    rows.append({})
                rows[j][c] = copy
        bits = out.layout.bits
        fmt = self.ctx.format(self.result.type.dtype)
        for (src_strides, dst_strides), rows in table.items():
            for row in rows:
                some = next(iter(row.values()))
                full = [row.get(c, some) for c in range(self.ctx.cores)]
                counts = tuple(num([k.counts[i] for k in full]) for i in range(len(some.counts)))
                operands = (
                    Operand("lx", num([k.dst_base for k in full]), dst_strides, fmt),  # type: ignore[arg-type]
                    Operand("lx", num([k.src_base for k in full]), src_strides, fmt),  # type: ignore[arg-type]
                )
                instr = Instr("shuf", counts, (None,) * len(counts), operands, {"bits": bits}, where=self._mask(row))
                body.items.append(Stmt("sfp", instr, reads, writes))

    def _side(self, m: Sequence[tuple[int, tuple[int, ...]]], region: Region, core: int, ranges: Box) -> Side:
        layout = region.layout
        per_stick = 1024 // layout.bits
        along = strides_along(layout)
        start = tuple(p - s for p, s in zip(self._point(m, ranges), region.start(core), strict=True))
        steps = tuple(a * per_stick for a in along)
        return Side(layout.stick_dim, start, tuple(coefs for _, coefs in m), steps, region.address * per_stick)


def home_region(ctx: KernelContext, v: Value) -> Region | None:
    """Each core's box of a tensor that lives in the scratchpads; None when it is in card memory."""
    if v not in ctx.homes:
        return None
    address, boxes = ctx.homes[v]
    return Region("lx", local_layout(v.type, boxes), address // 128, boxes)
