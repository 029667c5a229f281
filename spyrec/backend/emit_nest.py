"""Code for matrix, vector and window kernels: walk the tile body, one statement per load, computation or store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spyrec.ir.core import Block, Loc, Op, Value
from spyrec.ir.errors import CapacityError, PassError
from spyrec.ir.layout import Layout
from spyrec.ir.types import DType
from spyrec.passes.kernel import GROUP, Box, Map, Nest, rank1, spans
from spyrec.sim.device import DeviceSpec
from spyrec.sim.isa import Guard, Instr, Limit, MicroProgram, Note, Num, Operand, Rotate

from .address import (
    Frame,
    base,
    border,
    kernel_strides,
    limit,
    loop_strides,
    num,
    strides_along,
    unit_of,
    with_tails,
)
from .micro import Micro
from .streams import Body, Buffer, LoopStmt, Stmt

REDUCE_CODE = {"reduce_sum": 1, "sum_pool": 1, "conv": 1, "reduce_max": 2, "max_pool": 2, "reduce_min": 3, "reduce_prod": 4}
FILL_BITS = {"max_pool": 0xFF800000, "reduce_max": 0xFF800000, "reduce_min": 0x7F800000, "reduce_prod": 0x3F800000}


@dataclass(frozen=True)
class Place:
    """Where a value lies for the instructions of this kernel.

    ``space`` "lx" or "acc"; ``layout`` of the buffer; ``boxes``: per-core boxes when it is a tensor that lives in the scratchpad;
    else a tile buffer with ``buffer`` for tokens, produced under the loops ``path``.
    """

    space: str
    layout: Layout
    address: int  # sticks (lx) or groups (acc)
    boxes: tuple[Box, ...] | None
    buffer: Buffer | None
    path: tuple[int, ...]
    slot: int  # sticks or groups between slots
    map: Map


class Notes:
    """The provenance list of a kernel: each different (op, model nodes) once."""

    def __init__(self) -> None:
        self.list: list[Note] = []

    def add(self, name: str, nodes: tuple[str, ...]) -> int:
        note = Note(name, nodes)
        if note not in self.list:
            self.list.append(note)
        return self.list.index(note)


@dataclass
class KernelContext:
    """What code generation knows about one kernel beyond its op.

    ``formats``: dtype -> device format name; ``addresses``: tile value name -> (scratchpad byte address, slots);
    ``homes``: operand or result -> (address, boxes) of tensors that live in the scratchpad; ``scalars``:
    compile-time numbers; ``constants``: operands that are weights; ``early``: buffers that may be filled while
    the launch before still runs; ``arrivals``: operands that an exchange in this launch delivers.
    """

    op: Op
    device: DeviceSpec
    formats: Mapping[str, str]
    addresses: Mapping[str, tuple[int, int]]
    homes: Mapping[Value, tuple[int, tuple[Box, ...]]]
    scalars: Mapping[Value, float]
    constants: frozenset[Value]
    early: frozenset[str]
    cores: int
    programs: list[MicroProgram]
    arrivals: Mapping[Value, Buffer]
    notes: Notes

    def format(self, kind: DType) -> str:
        return self.formats.get(kind.name, kind.name)

    def program(self, p: MicroProgram) -> int:
        if p not in self.programs:
            self.programs.append(p)
        return self.programs.index(p)


class NestEmitter:
    """Builds the statement tree of one kernel."""

    def __init__(self, ctx: KernelContext) -> None:
        self.ctx = ctx
        self.op = ctx.op
        self.nest = Nest(ctx.op)
        self.frame = Frame(self.nest, ctx.cores)
        self.where = self.frame.active
        self.place: dict[Value, Place] = {}
        self.scalar: dict[Value, float] = {}
        for arg, v in zip(self.op.regions[0].args, self.op.operands, strict=True):
            if v in ctx.scalars:
                self.scalar[arg] = ctx.scalars[v]
        self.acc_next = 0

    def run(self) -> Body:
        root = Body()
        self._block(self.op.regions[0], root, ())
        return root

    def _block(self, block: Block, body: Body, path: tuple[int, ...]) -> None:
        stored = {op.operands[0]: int(op.attrs["result"]) for op in block.ops if op.name == "store"}  # type: ignore[arg-type]
        for op in block.ops:
            match op.name:
                case "load":
                    self._load(op, body, path)
                case "init":
                    pass  # the first trip overwrites
                case "for":
                    self._for(op, body, path)
                case "compute":
                    self._compute(op, body, path, stored.get(op.result))
                case "store":
                    self._store(op, body, path)
                case _:
                    raise PassError(f"codegen: {op.name} cannot stand in a tile body (from {op.loc})")

    def _for(self, op: Op, body: Body, path: tuple[int, ...]) -> None:
        dim = int(op.attrs["dim"])  # type: ignore[arg-type]
        inner = Body()
        region = op.regions[0]
        if op.results:
            self._carry(op, region, body, path)
        self._block(region, inner, (*path, dim))
        body.items.append(LoopStmt(self.nest.trips(dim), inner))

    def _carry(self, op: Op, region: Block, body: Body, path: tuple[int, ...]) -> None:
        """The accumulator a loop carries has one place from the outermost carried loop on."""
        place = self.place.get(op.operands[0])
        if place is None:
            place = self._tile_place(op.results[0], self.nest.out_maps[0], path, body, self._matrix(region))
        self.place[region.args[0]] = place
        self.place[op.results[0]] = place
        for inner in region.ops:
            for arg in inner.operands:
                if arg is region.args[0]:
                    for r in inner.results:
                        self.place[r] = place

    @staticmethod
    def _matrix(region: Block) -> bool:
        return any(o.attrs.get("unit") == "pt" or any(NestEmitter._matrix(r) for r in o.regions if o.name == "for") for o in region.ops)

    # Places -------------------------------------------------------------------------------

    def _tile_place(self, v: Value, m: Map, path: tuple[int, ...], body: Body, acc: bool) -> Place:
        assert v.type.layout is not None
        trips = int(np.prod([self.nest.trips(d) for d in path], dtype=np.int64))
        if acc:
            groups = v.type.layout.sticks // 2  # fp32: two sticks a group
            slots = 2 if trips > 1 and 2 * groups <= self.ctx.device.pt.acc_groups else 1
            if groups * slots > self.ctx.device.pt.acc_groups:
                raise CapacityError(
                    f"codegen: {self.nest.name} needs {groups} accumulator groups, the device has "
                    f"{self.ctx.device.pt.acc_groups} (from {self.op.loc})"
                )
            buffer = Buffer(v.name, slots)
            body.scoped.append(buffer)
            return Place("acc", v.type.layout, 0, None, buffer, path, groups, m)
        address, slots = self.ctx.addresses[v.name]
        buffer = Buffer(v.name, slots)
        body.scoped.append(buffer)
        return Place("lx", v.type.layout, address // 128, None, buffer, path, v.type.layout.sticks, m)

    def _resident(self, v: Value, m: Map) -> Place:
        """A tensor that lives in the scratchpads: each core's box of it."""
        address, boxes = self.ctx.homes[v]
        assert v.type.layout is not None
        shape = tuple(max(1, *(b[d][1] for b in boxes)) for d in range(len(boxes[0])))
        layout = Layout.stick(shape, v.type.dtype.bits, v.type.layout.stick_dim)
        return Place("lx", layout, address // 128, boxes, self.ctx.arrivals.get(v), (), 0, m)

    def _operand(self, place: Place, dims: Sequence[tuple[int, int]], path: tuple[int, ...], fmt: str, splat: bool = False,
                 guards: tuple[Guard, ...] = ()) -> Operand:
        """The place as an instruction operand that iterates ``dims`` (kernel dim, elements a step)."""
        along = strides_along(place.layout)
        scale = 1
        if place.space == "acc":
            along = tuple(s // 2 for s in along)
        strides = tuple(s * scale for s in kernel_strides(place.map, place.layout, dims, along))
        if place.boxes is not None:
            at = base(place.map, place.layout, self.frame, along, place.address, place.boxes)
            loops = loop_strides(place.map, place.layout, self.nest, path, along)
            return Operand("lx", at, strides, fmt, loops=loops if any(loops) else (), guards=guards, splat=splat)
        rotate = None
        assert place.buffer is not None
        if place.buffer.slots > 1:
            rotate = Rotate(self._linear(place.path, path), place.buffer.slots, place.slot)
        space = "acc" if place.space == "acc" else "lx"
        return Operand(space, place.address, strides, fmt, rotate=rotate, guards=guards, splat=splat)

    def _linear(self, scope: tuple[int, ...], path: tuple[int, ...]) -> tuple[int, ...]:
        """Coefficients that turn trip numbers into the running number of the scope's body."""
        coefs, weight = [0] * len(path), 1
        for i in range(len(scope) - 1, -1, -1):
            coefs[i] = weight
            weight *= self.nest.trips(scope[i])
        return tuple(coefs)

    # Loads and stores -----------------------------------------------------------------------

    def _load(self, op: Op, body: Body, path: tuple[int, ...]) -> None:
        i = int(op.attrs["operand"])  # type: ignore[arg-type]
        outside, m = self.op.operands[i], self.nest.maps[i]
        factor = self.nest.kind == "contract" and i < 2  # the matrix unit takes no immediates
        if outside in self.ctx.scalars and not factor:
            self.scalar[op.result] = self.ctx.scalars[outside]
            return
        if outside in self.ctx.homes:
            self.place[op.result] = self._resident(outside, m)
            return
        place = self._tile_place(op.result, m, path, body, False)
        groups = self._sharing(m)
        assert place.buffer is not None
        place.buffer.groups = groups
        self.place[op.result] = place
        instr = self._transfer("load", outside, place, m, path, f"p{i}", groups)
        early = outside in self.ctx.constants and op.result.name in self.ctx.early
        body.items.append(Stmt("ml", self._noted(instr, f"load %{outside.name}", op), (), (place.buffer,), early))

    def _sharing(self, m: Map) -> tuple[int, ...]:
        """Masks of cores that need the same tiles of an operand, at most ``multicast_max`` each; () when none do."""
        by_box: dict[object, list[int]] = {}
        for c, r in enumerate(self.frame.ranges):
            if all(n for _, n in r):
                key = tuple(r[d] for d in range(len(r)) if spans(m, d))
                by_box.setdefault(key, []).append(c)
        most = self.ctx.device.hbm.multicast_max
        groups = []
        for cores in by_box.values():
            parts = -(-len(cores) // most)
            size = -(-len(cores) // parts)
            for i in range(0, len(cores), size):
                groups.append(sum(1 << c for c in cores[i : i + size]))
        return tuple(groups) if any(g.bit_count() > 1 for g in groups) else ()

    def _transfer(self, name: str, tensor: Value, place: Place, m: Map, path: tuple[int, ...], symbol: str,
                  groups: tuple[int, ...]) -> Instr:
        """A load or store of one tile: iterate the tensor's own dimensions, outermost memory digit first."""
        layout = tensor.type.layout
        assert layout is not None
        far, near = strides_along(layout), strides_along(place.layout)
        order = sorted(range(len(m)), key=lambda t: -near[t])
        counts: list[Num] = []
        limits: list[Limit | None] = []
        dims: list[int] = []
        for t in order:
            unit = unit_of(layout, t)
            count = -(-place.layout.shape[t] // unit)
            tail = self._window_limit(m, t, count, unit, path)
            if count == 1 and tail is None:
                continue
            counts.append(count)
            limits.append(tail)
            dims.append(t)
        pair = layout.bits // 16 if layout.bits > 16 else 1
        if pair > 1:
            counts.append(pair)
            limits.append(None)
            dims.append(-1)
        guards = []
        for t in range(len(m)):
            if t != layout.stick_dim:
                guard = border(m, self.frame, t, layout.shape[t], dims, path, window=True)
                if guard is not None and t in dims:
                    guards.append(guard)
                elif guard is not None:
                    raise PassError(f"codegen: a border along a dimension of extent 1 in {self.nest.name} (from {self.op.loc})")
        outer = Operand(
            "hbm", base(m, layout, self.frame, far, 0, None), tuple(far[t] if t >= 0 else 1 for t in dims),
            self.ctx.format(tensor.type.dtype), symbol, loop_strides(m, layout, self.nest, path, far), guards=tuple(guards),
        )
        assert place.buffer is not None
        rotate = Rotate(self._linear(place.path, path), place.buffer.slots, place.slot) if place.buffer.slots > 1 else None
        local = Operand("lx", place.address, tuple(near[t] if t >= 0 else 1 for t in dims),
                        self.ctx.format(tensor.type.dtype), rotate=rotate)
        operands = (local, outer) if name == "load" else (outer, local)
        imm: dict[str, Num] = {}
        if groups:
            imm["cores"] = self._members(groups)
        return Instr(name, tuple(counts), tuple(limits), operands, imm, where=self.where)

    def _members(self, groups: tuple[int, ...]) -> Num:
        members = [1 << c for c in range(self.ctx.cores)]
        for mask in groups:
            members[(mask & -mask).bit_length() - 1] = mask
        return tuple(members)

    def _window_limit(self, m: Map, t: int, count: int, unit: int, path: tuple[int, ...]) -> Limit | None:
        """Tail of the window along one tensor dimension: as long as the iterations that are left need."""
        _, coefs = m[t]
        used = [d for d, c in enumerate(coefs) if c]
        if not used:
            return None
        moving = [d for d in used if self.nest.loops and d in path or len({r[d][1] for r in self.frame.ranges if r[d][1]}) > 1
                  or self.nest.local[d] != self.nest.tile[d]]
        if not moving:
            return None
        if len(used) == 1 and coefs[used[0]] == 1:
            return limit(self.frame, used[0], count, unit, path)
        d = moving[0]
        fixed = 1 + sum(abs(coefs[e]) * (self.nest.tile[e] - 1) for e in used if e != d)
        step = coefs[d] * self.nest.tile[d] if d in path else 0
        sizes = [coefs[d] * (r[d][1] - 1) + fixed if r[d][1] else 0 for r in self.frame.ranges]
        trips = self.nest.trips(d) if d in path else 1
        if all(s - step * (trips - 1) >= count for s in sizes if s):
            return None
        loops = tuple(step if e == d else 0 for e in path)
        return Limit(num(sizes), loops if any(loops) else ())

    def _store(self, op: Op, body: Body, path: tuple[int, ...]) -> None:
        i = int(op.attrs["result"])  # type: ignore[arg-type]
        r = self.op.results[i]
        if r in self.ctx.homes:
            return  # computed in place
        place = self.place[op.operands[0]]
        assert place.buffer is not None
        instr = self._transfer("store", r, place, self.nest.out_maps[i], path, f"r{i}", ())
        body.items.append(Stmt("ms", self._noted(instr, f"store %{r.name}", op), (place.buffer,), ()))

    def _noted(self, instr: Instr, what: str, op: Op) -> Instr:
        """The instruction with its provenance: the IR op and the model nodes it carries out."""
        inner = [o.loc for region in op.regions for o in region.ops]
        loc = Loc.merge(inner) if any(x.nodes for x in inner) else op.loc
        return replace(instr, note=self.ctx.notes.add(what, loc.nodes))

    # Computation ----------------------------------------------------------------------------

    def _compute(self, op: Op, body: Body, path: tuple[int, ...], stored: int | None) -> None:
        if op.attrs["unit"] == "pt":
            self._matrix_step(op, body, path)
        else:
            self._vector_step(op, body, path, stored)

    def _iteration(self, dims: Sequence[int], path: tuple[int, ...]) -> tuple[list[tuple[int, int]], list[Num], list[Limit | None]]:
        """(kernel dim, step) pairs, counts and limits of the dimensions an instruction iterates."""
        pairs, counts, limits = [], [], []
        for d in dims:
            unit = GROUP if d in (self.nest.stick, self.nest.k) else 1
            count = -(-self.nest.tile[d] // unit)
            pairs.append((d, unit))
            counts.append(count)
            limits.append(limit(self.frame, d, count, unit, path))
        return pairs, counts, limits

    def _matrix_step(self, op: Op, body: Body, path: tuple[int, ...]) -> None:
        nest = self.nest
        a, b = self.place[op.operands[0]], self.place[op.operands[1]]
        acc = self.place.get(op.result)
        if acc is None:
            acc = self._tile_place(op.result, nest.out_maps[0] if nest.out_maps else nest.maps[0], path, body, True)
            self.place[op.result] = acc
        acc = Place(acc.space, acc.layout, acc.address, None, acc.buffer, acc.path, acc.slot, self._result_map(op))
        self.place[op.result] = acc
        shared = [d for d in nest.parallel if d != nest.stick and nest.tile[d] > 1]
        rows = sorted(shared)[-2:]
        if len(shared) > 2:
            raise PassError(f"codegen: {nest.name} tiles more than two row dimensions (from {self.op.loc})")
        taps = sorted(d for d in range(len(nest.extents)) if d not in nest.parallel and d != nest.k)
        slots: list[int | None] = [None] * (2 - len(rows)) + [*rows] + [None] * (2 - len(taps)) + [*taps] + [nest.k, nest.stick]
        real = [d for d in slots if d is not None]
        pairs, counts, limits = self._iteration(real, path)
        put = {d: i for i, d in enumerate(real)}

        def spread(values: Sequence[int]) -> tuple[int, ...]:
            return tuple(values[put[d]] if d is not None else 0 for d in slots)

        guards = []
        for t in range(len(a.map)):
            extent = rank1(self.op.operands[0].type)[t]
            if t == a.layout.stick_dim:
                continue
            guard = border(a.map, self.frame, t, extent, [d if d is not None else -1 for d in slots], path)
            if guard is not None:
                guards.append(guard)
        operands = (
            self._spread(self._operand(acc, pairs, path, "f32"), spread),
            self._spread(self._operand(a, pairs, path, self.ctx.format(self.op.operands[0].type.dtype)), spread, tuple(guards)),
            self._spread(self._operand(b, pairs, path, self.ctx.format(self.op.operands[1].type.dtype)), spread),
        )
        folded = [i for i, d in enumerate(path) if d not in nest.parallel]
        imm: dict[str, Num] = {"k_valid": nest.extents[nest.k],
                               "acc_levels": sum(1 << i for i in folded), "init": 1}
        all_counts = tuple(counts[put[d]] if d is not None else 1 for d in slots)
        ends = with_tails(
            self.frame, [d for d in path if d in nest.parallel and d not in slots], all_counts,
            [limits[put[d]] if d is not None else None for d in slots], path, (0, 1, 5, 2, 3),
        )
        instr = Instr("mm", all_counts, tuple(ends), operands, imm, where=self.where)
        reads = tuple(p.buffer for p in (a, b) if p.buffer is not None)
        assert acc.buffer is not None
        what = f"%{op.result.name} = {op.attrs['head']}"
        body.items.append(Stmt("pt", self._noted(instr, what, op), reads, (acc.buffer,)))

    def _result_map(self, op: Op) -> Map:
        """The accumulator is indexed like the head's result, which all results of the kernel share."""
        return self.nest.out_maps[0]

    @staticmethod
    def _spread(operand: Operand, spread: object, guards: tuple[Guard, ...] = ()) -> Operand:
        return Operand(operand.space, operand.base, spread(operand.strides), operand.dtype, operand.symbol,  # type: ignore[operator]
                       operand.loops, operand.rotate, guards, operand.splat)

    def _vector_step(self, op: Op, body: Body, path: tuple[int, ...], stored: int | None) -> None:
        nest, region = self.nest, op.regions[0]
        head = str(op.attrs.get("head", ""))
        args = list(zip(region.args, op.operands, strict=True))
        carried = self.place.get(op.result) if head else None
        if carried is not None:
            args = args[:-1]
        ops = list(region.ops[:-1]) if carried is not None else list(region.ops)
        scalars = {a: self.scalar[v] for a, v in args if v in self.scalar}
        tensors = [(a, v) for a, v in args if v not in self.scalar]
        reducing = next((o for o in ops if o.name == head), None) if head else None
        place = carried or self._result_place(op, body, path, stored)
        self.place[op.result] = place
        dims, alone = self._vector_dims([self.place[v].map for _, v in tensors] + [place.map], path)
        pairs, counts, limits = self._iteration(dims, path)
        kept = [i for i, d in enumerate(dims) if spans(place.map, d) and d != nest.stick]
        limits = with_tails(self.frame, alone, counts, limits, path, kept)
        micro = Micro([(a, v.type.dtype) for a, v in tensors], scalars)
        for o in ops:
            if o is reducing and o.name == "conv":
                micro.value[o.result] = micro._step("mul", micro.value[o.operands[0]], micro.value[o.operands[1]])
            elif o is reducing:
                micro.value[o.result] = micro.value[o.operands[0]]
            else:
                micro.add(o)
        last = (ops[-1] if ops else None)
        final = last.result if last is not None else region.results[0]
        program = micro.finish(final, op.result.type.dtype)
        imm: dict[str, Num] = {"program": self.ctx.program(program)}
        if reducing is not None:
            self._reduce_imm(imm, reducing, dims, path, place)
        sources = []
        for _, v in tensors:
            p = self.place[v]
            splat = not spans(p.map, nest.stick) if nest.stick >= 0 else False
            guards: list[Guard] = []
            if reducing is not None and reducing.attrs.get("strides"):
                guards = self._window_guards(p, v, dims, path, imm, reducing)
            sources.append(self._operand(p, pairs, path, self._source_format(p, v), splat, tuple(guards)))
        target = self._operand(place, pairs, path, self.ctx.format(op.result.type.dtype))
        instr = Instr("vec", tuple(counts), tuple(limits), (target, *sources), imm, where=self.where)
        reads = tuple(p.buffer for p in (self.place[v] for _, v in tensors) if p.buffer is not None)
        writes = (place.buffer,) if place.buffer is not None else ()
        names = dict.fromkeys(o.name for o in ops) or {"copy": None}
        what = f"%{op.result.name} = {', '.join(list(names)[:4])}"
        body.items.append(Stmt("sfp", self._noted(instr, what, op), reads, writes))

    def _source_format(self, place: Place, v: Value) -> str:
        return "f32" if place.space == "acc" else self.ctx.format(v.type.dtype)

    def _vector_dims(self, maps: Sequence[Map], path: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """Kernel dimensions the instruction iterates: all that some operand varies along and a tile holds more
        than one of; lanes' dimension always. Looped ones of one step that end early on some core are iterated too
        while there is room, and given apart when there is none."""
        nest = self.nest
        used = {d for m in maps for d in range(len(nest.extents)) if spans(m, d)}
        dims = [d for d in sorted(used) if nest.tile[d] > 1 or d == nest.stick]
        if len(dims) > 6:
            raise PassError(f"codegen: {nest.name} iterates {len(dims)} dimensions at once, six exist (from {self.op.loc})")
        early = [d for d in sorted(used) if d not in dims and d in path and limit(self.frame, d, 1, 1, path) is not None]
        room = 6 - len(dims)
        return sorted(dims + early[:room]), early[room:]

    def _result_place(self, op: Op, body: Body, path: tuple[int, ...], stored: int | None) -> Place:
        if stored is not None and self.op.results[stored] in self.ctx.homes:
            return self._resident(self.op.results[stored], self.nest.out_maps[stored])
        m = self.nest.out_maps[stored] if stored is not None else self._inner_map(op.result)
        return self._tile_place(op.result, m, path, body, False)

    def _inner_map(self, v: Value) -> Map:
        """A temporary varies along the leading result dimensions in which its tile is not 1 wide."""
        n = len(self.nest.extents)
        rank = max(len(m) for m in self.nest.out_maps)
        shape = rank1(v.type)
        lead = rank - len(shape)
        return tuple(
            (0, tuple(int(d == lead + i and (e > 1 or self.nest.extents[d] == 1)) for d in range(n)))
            for i, e in enumerate(shape)
        )

    def _reduce_imm(self, imm: dict[str, Num], head: Op, dims: Sequence[int], path: tuple[int, ...], place: Place) -> None:
        nest = self.nest
        imm["reduce"] = REDUCE_CODE[head.name]
        gone = [i for i, d in enumerate(dims) if not spans(place.map, d)]
        imm["axes"] = sum(1 << i for i in gone)
        if nest.stick >= 0 and nest.stick in dims and dims.index(nest.stick) in gone:
            imm["lanes"] = 1
            imm["lane_dim"] = dims.index(nest.stick)
            imm["lane_valid"] = nest.extents[nest.stick]
        folded = [i for i, d in enumerate(path) if d not in nest.parallel and d not in nest.whole]
        imm["acc_levels"] = sum(1 << i for i in folded)

    def _window_guards(self, p: Place, v: Value, dims: Sequence[int], path: tuple[int, ...], imm: dict[str, Num],
                       head: Op) -> list[Guard]:
        guards = []
        index = next(i for i, m in enumerate(self.nest.maps) if m is p.map or m == p.map)
        shape = rank1(self.op.operands[index].type)
        for t in range(len(p.map)):
            if t != p.layout.stick_dim:
                guard = border(p.map, self.frame, t, shape[t], list(dims), path)
                if guard is not None:
                    guards.append(guard)
        if guards:
            imm["fill"] = FILL_BITS.get(head.name, 0)
        return guards

