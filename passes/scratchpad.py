"""scratchpad: addresses of everything that lives in a core's scratchpad, from lifetimes in launch
order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

from spyrec.ir.core import Block, Loc, Module, Op, Value, uses, walk
from spyrec.ir.errors import CapacityError
from spyrec.sim.device import DeviceSpec

from .attrs import whole_number
from .exchange_plan import plan_exchange
from .finish import piece_slots
from .homes import buffer_bytes, home, home_layout
from .in_place import reused_rooms
from .intervals import Span, peak, tops
from .kernel import Nest
from .manager import Target
from .packing import place
from .runs import STICK, buffer_sticks
from .sends import Ends
from .tiling import move_buffers

MIB = 2**20
INDEX_LANES = 32  # indices in a stick


@dataclass(frozen=True)
class Scratchpad:
    """Give every resident tensor and tile buffer an address, the same on all cores.

    A tensor lives from its producer to its last reader, a tile buffer during its kernel; weight
    buffers that can be filled while the kernel before still runs (``prefetch``) live one launch
    longer. Sets ``lx`` = ((name, address, slots), ...), ``early`` = names of the prefetched buffers
    and ``lx_bytes`` on each kernel, ``lx`` = address on each relayout and ``beside`` = that of the
    room beside its buffers, where its exchange is faster with one and there is room left.

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> before = parse_module('''module "m" {stage = "tile"} {
    ...   input %x: tensor<8x64xdl16,
    ...     [shape 8x64 bits 16 | 1:1*64 mem, 0:8*1 mem, 1:64*1 lane | pad undefined], hbm>
    ...   %y = kernel(%x) {name = "k0", kind = "vec", ops = "exp", stick = 1, tiled = true,
    ...     dims = (("d0", 8), ("d1", 64)), tile = (4, 64), loops = (0,),
    ...     maps = (((0, (1, 0)), (0, (0, 1))),), out_maps = (((0, (1, 0)), (0, (0, 1))),)} :
    ...     tensor<8x64xdl16,
    ...       [shape 8x64 bits 16 | 1:1*64 mem, 0:8*1 mem, 1:64*1 lane | pad undefined], hbm> {
    ...     (%a: tensor<8x64xdl16>):
    ...     for {dim = 0} {
    ...       ():
    ...       %in = load(%a) {operand = 0, fill = 0.0} : tensor<4x64xdl16,
    ...         [shape 4x64 bits 16 | 1:1*64 mem, 0:4*1 mem, 1:64*1 lane | pad undefined], lx>
    ...       %out = compute(%in) {unit = "sfp"} : tensor<4x64xdl16,
    ...         [shape 4x64 bits 16 | 1:1*64 mem, 0:4*1 mem, 1:64*1 lane | pad undefined], lx> {
    ...         (%e: tensor<4x64xf32>):
    ...         %f = exp(%e) : tensor<4x64xf32>
    ...         yield %f
    ...       }
    ...       store(%out) {result = 0}
    ...       yield
    ...     }
    ...     yield
    ...   }
    ...   output "y" = %y
    ... }''')
    >>> after = place_buffers(before, 2**20, prefetch=True)
    >>> print(print_module(after))  # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
    module "m" {stage = "tile"} {
      ...
      %y = kernel(%x) {name = "k0", ...,
        lx = (("in", 0, 2), ("out", 1024, 2)), early = (), lx_bytes = 2048} : ... {
      ...
    """

    name: ClassVar[str] = "scratchpad"
    summary: ClassVar[str] = "Places tensors and tile buffers in the scratchpad by lifetime."
    prefetch: bool = True
    beside: bool = True  # room beside the buffers of exchanges

    def run(self, module: Module, target: Target) -> Module:
        device = target.device
        room = device.lx.usable_bytes
        return place_buffers(module, room, self.prefetch, device if self.beside else None)


def place_buffers(
    module: Module, room: int, prefetch: bool, device: DeviceSpec | None = None
) -> Module:
    """The module with scratchpad addresses below ``room`` bytes. Exchanges get more room, where
    nothing else is, when the ``device`` is told.

    Where it is tight, kernels whose buffers meet what does not fit give up their prefetch.
    CapacityError, naming the kernel, when that is not enough.
    """
    plan = _Plan(module)
    wanted = plan.prefetchable if prefetch else frozenset()
    while True:
        spans = plan.spans(wanted)
        where, top = place(spans, 0, room=room)
        if top <= room:
            beside = plan.beside(where, wanted, room, device) if device else {}
            return plan.apply(where, wanted, beside)
        over = [s for s in spans if where[s.name] + s.size > room]
        met = {
            plan.kernel_of.get(s.name)
            for s in spans
            if any(s.first <= o.last and o.first <= s.last for o in over)
        }
        dropped = frozenset(n for n in wanted if plan.kernel_of[n] in met)
        if not dropped:
            worst = over[0]
            raise CapacityError(
                f"scratchpad: {worst.name} needs {worst.size / MIB:.2f} MiB beside what else is "
                f"alive, the peak is {peak(spans) / MIB:.2f} MiB, the device has "
                f"{room / MIB:.2f} MiB a core (from {plan.loc_of[worst.name]}); pin smaller tiles, "
                "or tensors to card memory",
                plan.running(over), top - room,
            )
        wanted -= dropped


def lifetimes(module: Module, early: Collection[str] = ()) -> list[Span]:
    """What needs room in the scratchpad of a module whose tiles are lowered, and at which launches;
    the buffers named in ``early`` one launch longer."""
    return _Plan(module).spans(frozenset(early))


@dataclass(frozen=True)
class TileBuffer:
    """A kernel's buffer for tiles: ``slots`` of ``size`` bytes. ``weight``: it holds tiles of a
    constant, or of a factor that no kernel makes."""

    name: str
    size: int
    slots: int
    weight: bool = False


class _Plan:
    """What needs room, when, and to whom the addresses belong."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.fixed: list[Span] = []
        self.tiles: list[tuple[TileBuffer, int]] = []  # with the launch
        self.kernel_of: dict[str, int] = {}
        self.loc_of: dict[str, Loc] = {}
        constants = {op.result for op in module.body.ops if op.name == "constant"}
        kept: Any = module.attrs.get("state", ())  # inputs that a kernel may write
        given = {v for v in module.body.args if all(v.name != name for name, *_ in kept)}
        early: set[str] = set()
        self.launch = _launches(module)
        readers = uses(module.body)
        self.room_of: dict[Value, Value] = {}  # whose room a tensor has, where not its own
        for v, operand in reused_rooms(module.body.ops):
            self.room_of[v] = self.room_of.get(operand, operand)
        self.found: list[tuple[TileBuffer, str, int]] = []  # left there by the kernel before
        self.until: dict[str, int] = {}  # last launch of a buffer that is found again
        left: dict[Value, str] = {}
        lasts: dict[Value, int] = {}
        for v in (r for op in module.body.ops for r in op.results):
            owner = self.room_of.get(v, v)
            last = max((self.launch[u] for u, _ in readers.get(v, [])), default=0)
            lasts[owner] = max(lasts.get(owner, 0), last)
        for op in module.body.ops:
            at = self.launch[op]
            for i, v in enumerate(op.results):
                boxes = home(op, i)
                if boxes is not None and v not in self.room_of:
                    last = max(at, lasts[v])
                    self.fixed.append(Span(v.name, buffer_bytes(v.type, boxes), at, last))
                    self.loc_of[v.name] = op.loc
            if op.name != "kernel":
                continue
            nest, loads = Nest(op), factor_tiles(op)
            there = {loads[i]: left[op.operands[i]] for i in nest.held}
            left = {op.operands[i]: there.get(loads[i], loads[i]) for i in nest.keep}
            for buffer in kernel_buffers(op, constants, given):
                if buffer.name in there:
                    self.found.append((buffer, there[buffer.name], at))
                    self.until[there[buffer.name]] = at
                    continue
                self.tiles.append((buffer, at))
                self.kernel_of[buffer.name] = at
                self.loc_of[buffer.name] = op.loc
                if buffer.weight and at > 0:
                    early.add(buffer.name)
        self.prefetchable = frozenset(early)

    def spans(self, early: frozenset[str]) -> list[Span]:
        """Everything with its lifetime in launches, those in ``early`` one longer."""
        return self.fixed + [
            Span(b.name, b.size * b.slots, at - (b.name in early), self.until.get(b.name, at))
            for b, at in self.tiles
        ]

    def running(self, spans: Sequence[Span]) -> list[str]:
        """Kernels that run while one of the spans is alive, by name."""
        return [
            str(op.attrs["name"]) for op, at in self.launch.items()
            if op.name == "kernel" and any(s.first <= at <= s.last for s in spans)
        ]

    def beside(
        self, where: Mapping[str, int], early: frozenset[str], room: int, device: DeviceSpec
    ) -> dict[Op, tuple[int, int]]:
        """For exchanges that are faster with room beside their buffers, where nothing lies while
        they run, from where on it is free and for how many bytes."""
        found: dict[Op, tuple[int, int]] = {}
        made = {v: (op, i) for op in self.module.body.ops for i, v in enumerate(op.results)}
        for op in self.module.body.ops:
            if op.name != "relayout":
                continue
            source, at = made[op.operands[0]], self.launch[op]
            own, need = home(*source), home(op, 0)
            here, there = home_layout(*source), home_layout(op, 0)
            assert own and need and here and there
            size = plan_exchange(own, need, Ends(here, there), device, True).room * STICK
            taken = [
                (where[s.name], where[s.name] + s.size)
                for s in self.spans(early) if s.first <= at <= s.last
            ]
            taken += [gap for other, gap in found.items() if self.launch[other] == at]
            start = 0
            for low, high in sorted(taken):
                start = max(start, high) if low < start + size else start
            if 0 < size <= room - start:
                found[op] = start, start + size
        return found

    def apply(
        self, where: dict[str, int], early: frozenset[str], beside: Mapping[Op, tuple[int, int]]
    ) -> Module:
        """The module with the addresses ``where``, of exchanges also those ``beside``."""
        where = where | {v.name: where[owner.name] for v, owner in self.room_of.items()}
        ops = []
        top = dict(tops(self.spans(early), where, self.launch.values()))
        for op, (_, end) in beside.items():
            top[self.launch[op]] = max(top[self.launch[op]], end)
        mine: dict[int, list[TileBuffer]] = {}
        for buffer, at in self.tiles:
            mine.setdefault(at, []).append(buffer)
        for op in self.module.body.ops:
            if op.name == "relayout":
                start = {"beside": beside[op][0]} if op in beside else {}
                op = op.with_attrs(lx=where[op.result.name], **start)
            elif op.name == "kernel":
                at = self.launch[op]
                tiles = [(b.name, where[b.name], b.slots) for b in mine.get(at, [])]
                here = ((b, n) for b, n, launch in self.found if launch == at)
                tiles += [(b.name, where[n], b.slots) for b, n in here]
                rooms = shared_rooms(op.regions[0])
                slots = {name: n for name, _, n in tiles}
                tiles += [(name, where[owner], slots[owner]) for name, owner in rooms.items()]
                homes = [(r.name, where[r.name], 1) for r in op.results if r.name in where]
                op = op.with_attrs(
                    lx=(*tiles, *homes),
                    early=tuple(name for name, _, _ in tiles if name in early),
                    lx_bytes=top[at],
                )
            ops.append(op)
        return replace(self.module, body=replace(self.module.body, ops=tuple(ops)))


def _launches(module: Module) -> dict[Op, int]:
    """Launch number of each op: an exchange runs in the launch of the kernel after it."""
    out, n = {}, 0
    for op in module.body.ops:
        out[op] = n
        n += op.name == "kernel"
    return out


def kernel_buffers(
    op: Op, constants: set[Value], given: Collection[Value] = ()
) -> list[TileBuffer]:
    """The tile buffers of a kernel: several slots where tiles stream through. ``given``: inputs
    that no kernel writes, which as factors of a product are as good as weights."""
    nest = Nest(op)
    match nest.kind:
        case "move":
            result = op.results[0].name
            parts = move_buffers(op, nest.tile)
            return [TileBuffer(f"{result}_{role}", size, nest.buffers) for role, size in parts]
        case "gather":
            return _gather_buffers(op, nest)
    return list(_block_buffers(op.regions[0], nest, constants, given, (), False))


def factor_tiles(op: Op) -> dict[int, str]:
    """The buffers of a matrix kernel's factors by number."""
    found: dict[int, str] = {}
    for o in walk(op.regions[0]) if op.attrs.get("kind") == "contract" else ():
        if o.name == "load":
            found.setdefault(whole_number(o, "operand"), o.result.name)
    return found


def _finish_buffers(block: Block, nest: Nest, constants: set[Value]) -> Iterator[TileBuffer]:
    """Those of the pieces in which a kernel ends its tiles, beside its factors'."""
    stored = {o.operands[0]: whole_number(o, "result") for o in block.ops if o.name == "store"}
    for o in block.ops:
        slots = 1
        if o.name == "load":
            index = whole_number(o, "operand")
            source = nest.op.operands[index]
            if source.type.space == "lx" or (source in constants and source.type.size == 1):
                continue
            slots = piece_slots(nest, nest.maps[index])
        elif o.name == "compute" and o.attrs["unit"] == "sfp" and "room" not in o.attrs:
            kept = stored.get(o.result)
            if kept is not None and nest.op.results[kept].type.space == "lx":
                continue
            slots = 1 if kept is None else piece_slots(nest, nest.out_maps[kept])
        else:
            continue
        yield TileBuffer(o.result.name, _tile_bytes(o.result), slots)


def _block_buffers(
    block: Block, nest: Nest, constants: set[Value], given: Collection[Value],
    path: tuple[int, ...], carried: bool,
) -> Iterator[TileBuffer]:
    """Those of one block of a tile body under the loops ``path``; ``carried``: an accumulator
    comes in."""
    stored = {o.operands[0]: whole_number(o, "result") for o in block.ops if o.name == "store"}
    slots = nest.buffers if prod(nest.trips(d) for d in path) > 1 else 1
    for o in block.ops:
        match o.name:
            case "load":
                index = whole_number(o, "operand")
                source = nest.op.operands[index]
                # a constant of one element is an immediate, but not for the matrix unit
                factor = nest.kind == "contract" and index < 2
                fetched = factor or source not in constants or source.type.size > 1
                if fetched and source.type.space != "lx":
                    weight = source in constants or (factor and source in given)
                    staying, _ = nest.kept(index)
                    deep = staying or (nest.ahead if factor and slots > 1 else slots)
                    yield TileBuffer(o.result.name, _tile_bytes(o.result), deep, weight)
            case "for":
                if o.results and not carried and not uses_matrix(o.regions[0]):
                    yield TileBuffer(o.result.name, _tile_bytes(o.result), slots)
                inner = (*path, whole_number(o, "dim"))
                holds = carried or bool(o.results)
                yield from _block_buffers(o.regions[0], nest, constants, given, inner, holds)
            case "finish":
                yield from _finish_buffers(o.regions[0], nest, constants)
            case "compute" if o.attrs["unit"] == "sfp":
                if (carried and o.result in block.results) or "room" in o.attrs:
                    continue  # it is the accumulator, or in another's place
                kept = stored.get(o.result)
                if kept is None:  # made and used by one unit
                    yield TileBuffer(o.result.name, _tile_bytes(o.result), 1)
                elif nest.op.results[kept].type.space != "lx":
                    yield TileBuffer(o.result.name, _tile_bytes(o.result), slots)


def shared_rooms(block: Block) -> dict[str, str]:
    """Tile -> the tile with a buffer whose place it takes, by name."""
    found: dict[str, str] = {}
    for o in block.ops:
        if o.name in ("for", "finish"):
            found |= shared_rooms(o.regions[0])
        elif "room" in o.attrs:
            before = o.operands[whole_number(o, "room")].name
            found[o.result.name] = found.get(before, before)
    return found


def _tile_bytes(v: Value) -> int:
    assert v.type.layout is not None
    return v.type.layout.sticks * 128


def uses_matrix(block: Block) -> bool:
    """Is the accumulator of these loops the matrix unit's?"""
    return any(
        o.attrs.get("unit") == "pt" or any(uses_matrix(r) for r in o.regions if o.name == "for")
        for o in block.ops
    )


def _gather_buffers(op: Op, nest: Nest) -> list[TileBuffer]:
    """Indices of a tile, to whole sticks at both ends, and its rows unless they go where their
    readers look for them."""
    r = op.results[0]
    assert r.type.layout is not None
    rows = nest.local[-2] if len(nest.extents) > 1 else 1
    indices = TileBuffer(f"{r.name}_idx", max(1, -(-rows // INDEX_LANES)) * 128 + 256, nest.buffers)
    if r.type.space == "lx":
        return [indices]
    sticks = buffer_sticks(nest.tile, r.type.layout)
    return [indices, TileBuffer(f"{r.name}_dst", sticks * 128, nest.buffers)]
