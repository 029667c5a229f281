"""ring-relayout: keep intermediate tensors in the scratchpads, and move them over the ring between
kernels that are cut differently.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

from spyrec.ir.core import Attr, Block, Builder, Module, Op, Value, names, remap, uses

from .exchange_plan import best_orders, plan_exchange
from .exchange_price import memory_cycles, ring_cycles
from .homes import Boxes, Order, buffer_bytes, contains, held_bytes, local_layout, readable
from .in_place import replaced_operands
from .kernel_price import KernelPrices
from .manager import Target
from .onchip import Candidate, OnChip, Use
from .ownership import Ownership
from .runs import STICK
from .sends import Ends
from .sticks import FACTOR_ARRANGEMENTS


@dataclass(frozen=True)
class RingRelayout:
    """Decide for every intermediate tensor: scratchpad or card memory.

    A tensor stays on chip when its owners' parts, and for each reader that is cut differently a
    `relayout` copy, fit into ``share`` of the scratchpad for as long as they are needed, unless its
    exchanges would take longer than storing and loading it (``why_memory`` = ((result, cycles of
    the exchanges, through memory), ...)). Readers that need the same parts share one copy. An
    elementwise result takes over the room of an operand that nobody reads afterwards
    (``in_place``). Dimensions of the buffers are ordered so that what an exchange moves lies in
    long runs, where readers do not mind (``home_orders``, ``order``).

    Whatever is alive only where everything fits beside tiles of the usual size stays. Where it is
    tight, all tensors of the tight stretch are decided together: by what the kernels that make and
    read them then cost, with the scratchpad that is left for their tiles, and the exchanges (see
    onchip.py). ``why_away`` = ((result, cycles), ...) on a kernel: how much dearer each of these
    would be on chip, infinitely where there is no room.

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> from spyrec.sim.device import load_device
    >>> from spyrec.passes.allocate import CoreAllocation
    >>> from spyrec.passes.fuse import Fuse
    >>> from spyrec.passes.stick_layout import StickLayout
    >>> target = Target(load_device())
    >>> before = CoreAllocation().run(StickLayout().run(Fuse().run(parse_module('''module "m" {
    ...   input %x: tensor<64x2048xdl16>
    ...   input %v: tensor<2048x256xdl16>
    ...   input %w: tensor<256x2048xdl16>
    ...   %y = matmul(%x, %v) : tensor<64x256xdl16>
    ...   %z = matmul(%y, %w) : tensor<64x2048xdl16>
    ...   output "z" = %z
    ... }'''), target), target), target)
    >>> print(print_module(RingRelayout().run(before, target)))
    ... # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
    module "m" {stage = "device", laid_out = true, cores = 32} {
      ...
      %y... = kernel(%x, %v) {name = "k0_matmul", ..., resident = ((0, (((0, ...} : ..., lx> {
      ...
      %y..._there = relayout(%y...) {boxes = (((0, ...)} : ..., lx>
      %z... = kernel(%y..._there, %w) {name = "k1_matmul", ...} : ..., hbm> {
      ...
    """

    name: ClassVar[str] = "ring-relayout"
    summary: ClassVar[str] = (
        "Keeps tensors on chip and exchanges them over the ring where ownership differs."
    )
    share: float = 0.9  # of the scratchpad that may hold tensors between kernels
    enable: bool = True
    reorder: bool = True  # order the dimensions of buffers for long runs

    def run(self, module: Module, target: Target) -> Module:
        if not self.enable:
            return module
        return _Residency(module, target, self.share, self.reorder).run()


def candidates(module: Module, target: Target, away: Collection[str] = ()) -> list[Candidate]:
    """The tensors of a divided module that can stay on chip, but for those named in ``away``."""
    return _Residency(module, target, 1.0, False).candidates(away)


def any_order(use: Use) -> bool:
    """Can this operand be read whatever the order of its buffer's dimensions? (The matrix unit
    wants the rows of its second factor one after the other.)
    """
    op, index = use
    return op.attrs["kind"] != "contract" or index == 0


DOUBTED = 4.0  # times what the way through memory takes: prices up to it are checked by a plan
ROOM_SHARE = 0.05  # of the scratchpad, which an exchange will surely find free


@dataclass
class _Orders:
    """Of the buffers of tensors and of copies for readers, where it is not the usual one."""

    homes: dict[Value, Order] = field(default_factory=dict)
    copies: dict[tuple[Value, Boxes], Order] = field(default_factory=dict)


@dataclass
class _Residency:
    source: Module
    target: Target
    share: float
    reorder: bool

    def __post_init__(self) -> None:
        ops = self.source.body.ops
        self.parts = Ownership(self.target.device.cores.count)
        self.position = {op: i for i, op in enumerate(ops)}
        self.uses = uses(self.source.body)
        self.why_memory: dict[Op, list[tuple[int, float, float]]] = {}

    def run(self) -> Module:
        ops = self.source.body.ops
        pins: dict[str, str] = dict(self.source.attrs.get("pin_spaces", ()))  # type: ignore[arg-type]
        possible = self.candidates({name for name, space in pins.items() if space == "hbm"})
        found = [c for c in possible if c.value.name in pins or not self._cheaper_in_memory(c)]
        pinned = [c for c in found if c.value.name in pins]
        usable = self.target.device.lx.usable_bytes
        held = held_bytes(self.source)
        room = [usable - held.get(str(op.attrs.get("name")), 0) for op in ops]
        prices = KernelPrices(self.target.device)
        choice = OnChip(
            ops, found, room, int(usable * self.share), self.target.device, prices
        )
        kept = choice.choose(choice.fitting(pinned, usable), {c.value for c in pinned})
        self.dearer = choice.dearer(kept)
        staying = [c for c in found if c.value in kept]
        rooms = {c.value: next((v for v in c.over if v in kept), None) for c in staying}
        orders = self._orders(staying, rooms) if self.reorder else _Orders()
        return self._rebuild(staying, rooms, orders)

    def _cheaper_in_memory(self, c: Candidate) -> bool:
        """Would storing and loading a result take less than the exchanges for its readers?"""
        like, device = c.value.type.layout, self.target.device
        assert like is not None
        moved = sum(ring_cycles(like, c.own, need, device) for need in c.copies)
        if not moved or moved <= (stored := memory_cycles(like, c.own, [*c.copies], device)):
            return False
        if moved <= DOUBTED * stored:  # there may be a better way than the price knows
            moved = sum(min(self._planned(c, need), moved) for need in c.copies)
            if moved <= stored:
                return False
        self.why_memory.setdefault(c.op, []).append((c.index, float(moved), float(stored)))
        return True

    def _planned(self, c: Candidate, need: Boxes) -> float:
        """Cycles of the plan of an exchange, infinitely many when it asks for much room beside the
        buffers, which may not be there."""
        like, device = c.value.type.layout, self.target.device
        assert like is not None
        ends = Ends(local_layout(like, c.own), local_layout(like, need))
        plan = plan_exchange(c.own, need, ends, device, beside=True)
        fits = plan.room * STICK <= ROOM_SHARE * device.lx.usable_bytes
        return plan.cycles if fits else float("inf")

    def _orders(
        self, staying: Sequence[Candidate], rooms: Mapping[Value, Value | None]
    ) -> _Orders:
        """The dimensions of buffers in orders that suit the exchanges. What takes over an operand's
        room has that one's order."""
        found = _Orders()
        for c in staying:
            v, room_of = c.value, rooms[c.value]
            if room_of is not None and room_of in found.homes:
                found.homes[v] = found.homes[room_of]
            copied = {use for who in c.copies.values() for use in who}
            direct = [use for use in self.uses[v] if use not in copied]
            plain = v.type.dtype.bits == 16
            home_free = room_of is None and plain and all(map(any_order, direct))
            free = [plain and all(map(any_order, who)) for who in c.copies.values()]
            if not c.copies or not (home_free or any(free)) or v in found.homes:
                continue
            assert v.type.layout is not None
            home, there = best_orders(
                v.type.layout, c.own, [*c.copies], self.target.device, home_free, free
            )
            if home is not None:
                found.homes[v] = home
            for need, order in zip(c.copies, there, strict=True):
                if order is not None:
                    found.copies[v, need] = order
        return found

    def candidates(self, away: Collection[str]) -> list[Candidate]:
        """See the function."""
        found: list[Candidate] = []
        homes: dict[Value, Boxes] = {}
        for op in self.source.body.ops:
            for index, v in enumerate(op.results if op.name == "kernel" else ()):
                possible = v.name not in away and v.type.dtype.bits not in FACTOR_ARRANGEMENTS
                if possible and v not in self.source.body.results and self._readable(v):
                    found.append(self._candidate(op, index, homes))
                    homes[v] = found[-1].own
        return found

    def _readable(self, v: Value) -> bool:
        readers = self.uses.get(v, [])
        return bool(readers) and all(readable(u) for u, _ in readers)

    def _candidate(self, op: Op, index: int, homes: Mapping[Value, Boxes]) -> Candidate:
        """``homes``: of the candidates before it."""
        v, own = op.results[index], self.parts.owned(op, index)
        copies: dict[Boxes, list[Use]] = {}
        direct = []
        for reader, i in self.uses[v]:
            need = self.parts.needed(reader, i)
            if need == own or all(contains(o, n) for o, n in zip(own, need, strict=True)):
                direct.append(self.position[reader])
            else:
                copies.setdefault(need, []).append((reader, i))
        spans = []
        for need, who in copies.items():
            at = [self.position[u] for u, _ in who]
            spans.append((min(at), max(at), buffer_bytes(v.type, need)))
        # the original is needed until the last copy is made or the last direct reader has run
        last = max(direct + [s[0] for s in spans])
        over = replaced_operands(op, index, own, homes, self.uses, self.position)
        return Candidate(
            op, index, v, own, self.position[op], last, copies, tuple(spans),
            tuple(op.operands[i] for i in over),
        )

    def _rebuild(
        self, kept: Sequence[Candidate], rooms: Mapping[Value, Value | None], orders: _Orders
    ) -> Module:
        builder = Builder(names(self.source))
        mapped: dict[Value, Value] = {}
        homes = {c.value: c.own for c in kept}
        before: dict[int, list[tuple[Value, Boxes, Sequence[Use]]]] = {}
        replaced: dict[Op, list[tuple[int, int]]] = {}
        for c in kept:
            for (need, who), (first, _, _) in zip(c.copies.items(), c.spans, strict=True):
                before.setdefault(first, []).append((c.value, need, who))
            over = rooms[c.value]
            if over is not None:
                replaced.setdefault(c.op, []).append((c.index, c.op.operands.index(over)))
        swaps: dict[tuple[Op, int], Value] = {}
        for position, op in enumerate(self.source.body.ops):
            for v, need, who in before.get(position, []):
                here = mapped[v]
                made = Value(builder.fresh(f"{v.name}_there"), here.type)
                there: dict[str, Attr] = {"boxes": need}
                if (v, need) in orders.copies:
                    there["order"] = orders.copies[v, need]
                builder.add(Op("relayout", (here,), (made,), MappingProxyType(there), (), op.loc))
                for use in who:
                    swaps[use] = made
            new = remap(op, mapped)
            operands = tuple(swaps.get((op, i), w) for i, w in enumerate(new.operands))
            results = tuple(
                Value(r.name, r.type.with_(space="lx")) if r in homes else r for r in op.results
            )
            mapped.update({a: b for a, b in zip(op.results, results, strict=True) if a is not b})
            new = replace(new, operands=operands, results=results)
            resident = tuple((i, homes[r]) for i, r in enumerate(op.results) if r in homes)
            if resident:
                new = new.with_attrs(resident=resident)
            ordered = tuple(
                (i, orders.homes[r]) for i, r in enumerate(op.results) if r in orders.homes
            )
            if ordered:
                new = new.with_attrs(home_orders=ordered)
            if op in self.why_memory:
                new = new.with_attrs(why_memory=tuple(self.why_memory[op]))
            if op in replaced:
                new = new.with_attrs(in_place=tuple(replaced[op]))
            away = tuple(
                (i, self.dearer[r]) for i, r in enumerate(op.results) if r in self.dearer
            )
            if away:
                new = new.with_attrs(why_away=away)
            builder.add(new)
        block = Block(self.source.body.args, tuple(builder.ops), self.source.body.results)
        return replace(self.source, body=block)
