"""A tensor, or each core's box of it, in one memory, and strided transfers between two of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from spyrec.ir.core import Value
from spyrec.ir.layout import Layout
from spyrec.passes.kernel import Box, Map
from spyrec.sim.isa import MAX_DIMS, Instr, Intent, Num, Operand

from .address import mask_of, num, strides_along, unit_of
from .claims import Course, counted, second_stick
from .context import KernelContext


@dataclass(frozen=True)
class Region:
    """``base``: stick address of each core's part (one entry for all cores when they agree).
    ``boxes``: each core's part of the tensor; None for the whole tensor at its own coordinates.
    ``fmt``: device format of its elements. ``tensor``: what claims call the whole."""

    space: Literal["hbm", "lx"]
    layout: Layout
    fmt: str
    base: tuple[int, ...] = (0,)
    boxes: tuple[Box, ...] | None = None
    symbol: str = ""
    tensor: int = 0

    @cached_property
    def units(self) -> tuple[int, ...]:
        """Elements in one address step along each dimension."""
        return tuple(unit_of(self.layout, t) for t in range(len(self.layout.shape)))

    @cached_property
    def along(self) -> tuple[int, ...]:
        """Sticks per address step along each dimension."""
        return strides_along(self.layout)

    def start(self, core: int) -> tuple[int, ...]:
        """Coordinate of the first element of the core's part."""
        if self.boxes is None:
            return (0,) * len(self.layout.shape)
        return tuple(s for s, _ in self.boxes[core])

    def address(self, core: int) -> int:
        """Stick address of the core's part."""
        return self.base[core if len(self.base) > 1 else 0]

    def at(self, core: int, point: Sequence[int]) -> int:
        """Stick address of an element whose lane is 0."""
        places = zip(point, self.start(core), self.units, self.along, strict=True)
        return self.address(core) + sum((p - s) // unit * step for p, s, unit, step in places)

    def stride(self, m: Map, dim: int, amount: int) -> int:
        """Sticks from one iteration to the one ``amount`` further along iteration dimension
        ``dim``, coordinates being ``m`` of it."""
        places = zip(m, self.units, self.along, strict=True)
        return sum(
            coefs[dim] * amount // unit * step for (_, coefs), unit, step in places if coefs[dim]
        )


def home_region(ctx: KernelContext, v: Value) -> Region | None:
    """Each core's box of a tensor that lives in the scratchpads; None when it is in card memory."""
    if v not in ctx.homes:
        return None
    address, boxes, layout = ctx.homes[v]
    fmt = ctx.format(v.type.dtype)
    number = ctx.ledger.tensor(v)
    return Region("lx", layout, fmt, (address // 128,), boxes, "", number)


def card_region(ctx: KernelContext, v: Value, symbol: str) -> Region:
    """A whole tensor in card memory."""
    assert v.type.layout is not None
    fmt, number = ctx.format(v.type.dtype), ctx.ledger.tensor(v)
    return Region("hbm", v.type.layout, fmt, symbol=symbol, tensor=number)


@dataclass(frozen=True)
class Hop:
    """One core's share of a transfer: the box of the tensor at ``start``, at ``src`` and ``dst``
    addresses (sticks)."""

    start: tuple[int, ...]
    sizes: tuple[int, ...]
    src: int
    dst: int


def box_transfer(
    name: str, hops: Mapping[int, Hop], source: Region, out: Region, cores: int,
    imm: Mapping[str, Num] | None = None,
) -> list[Instr]:
    """Whole sticks of a box for each core in ``hops``, which is not empty; both regions have the
    tensor's dimensions, iterated outermost memory digit first."""
    some = next(iter(hops.values()))
    full = [hops.get(c, some) for c in range(cores)]
    steps = [
        [-(-n // unit) for n, unit in zip(hop.sizes, out.units, strict=True)] for hop in full
    ]
    counts: list[Num] = []
    dst, src, moves = [], [], []
    for t in sorted(range(len(out.along)), key=lambda t: -max(out.along[t], source.along[t])):
        sizes = [step[t] for step in steps]
        if max(sizes) > 1:
            counts.append(num(sizes))
            dst.append(out.along[t])
            src.append(source.along[t])
            moves.append(tuple(out.units[t] if t == d else 0 for d in range(len(out.along))))
    start = tuple(hop.start for hop in full)
    courses = (Course(end.tensor, start, tuple(moves)) for end in (source, out))
    return sticks(
        name, counts, [h.src for h in full], src, [h.dst for h in full], dst, source, out,
        mask_of(hops, cores), tuple(courses), imm,
    )  # fmt: skip


def sticks(
    name: str, counts: Sequence[Num], src_at: Sequence[int], src: Sequence[int],
    dst_at: Sequence[int], dst: Sequence[int], source: Region, out: Region, where: int,
    courses: tuple[Course, ...], imm: Mapping[str, Num] | None = None,
) -> list[Instr]:
    """A strided transfer of groups of lanes; wide elements fill several sticks a group. Several
    instructions when it takes more dimensions than one has. ``courses``: which coordinates of the
    source and of the result they are."""
    dims = [Dim(n, d, s, (n,)) for n, d, s in zip(counts, dst, src, strict=True)]
    if out.layout.bits > 16:
        more = out.layout.bits // 16
        dims.append(Dim(more, 1, 1, (more,)))
        courses = tuple(
            replace(course, steps=(*course.steps, second_stick(end.layout)))
            for course, end in zip(courses, (source, out), strict=True)
        )
    if len(dims) > MAX_DIMS:
        dims = _merged(dims)
    whole = Part(where, tuple(dst_at), tuple(src_at), courses, tuple(dims))
    made = []
    for part in _unrolled(whole):
        operands = (
            Operand(
                out.space, num(part.dst_at), tuple(d.dst for d in part.dims), out.fmt, out.symbol
            ),
            Operand(
                source.space, num(part.src_at), tuple(d.src for d in part.dims), source.fmt,
                source.symbol,
            ),
        )  # fmt: skip
        read, written = part.courses
        full = tuple(d.count for d in part.dims)
        extents = counted([n for d in part.dims for n in d.counts])
        intent = Intent((written.claim(), read.claim()), extents)
        made.append(Instr(
            name, full, (None,) * len(full), operands, dict(imm or {}), where=part.where,
            intents=(intent,),
        ))  # fmt: skip
    return made


@dataclass(frozen=True)
class Dim:
    """Count, destination stride and source stride of an iteration dimension; ``counts`` of those it
    was merged from, outermost first."""

    count: Num
    dst: int
    src: int
    counts: tuple[Num, ...]


def _merged(dims: Sequence[Dim]) -> list[Dim]:
    """Neighbours that continue each other at both ends as one dimension."""
    out: list[Dim] = []
    for dim in dims:
        n = dim.count
        before = out[-1] if out else None
        if before and isinstance(n, int) and (before.dst, before.src) == (dim.dst * n, dim.src * n):
            many = before.count
            many = many * n if isinstance(many, int) else tuple(b * n for b in many)
            out[-1] = Dim(many, dim.dst, dim.src, before.counts + dim.counts)
        else:
            out.append(dim)
    return out


@dataclass(frozen=True)
class Part:
    """A transfer on the cores ``where``, with each core's addresses. ``courses`` have a step for
    each of the dimensions' ``counts``."""

    where: int
    dst_at: tuple[int, ...]
    src_at: tuple[int, ...]
    courses: tuple[Course, ...]
    dims: tuple[Dim, ...]


def _unrolled(part: Part) -> Iterator[Part]:
    """The parts of a transfer, of at most MAX_DIMS dimensions; the shortest beyond are taken step
    by step."""
    dims, where = part.dims, part.where
    if len(dims) <= MAX_DIMS:
        yield part
        return
    most = [dim.count if isinstance(dim.count, int) else max(dim.count) for dim in dims]
    at = most.index(min(most))
    count, first = dims[at].count, sum(len(dim.counts) for dim in dims[:at])
    cores = len(part.dst_at)
    for i in range(most[at]):
        left = [c for c in range(cores) if (count if isinstance(count, int) else count[c]) > i]
        mask = sum(1 << c for c in left if not where or where >> c & 1)
        if mask:
            index = _indices(i, dims[at].counts)
            yield from _unrolled(Part(
                0 if mask == (1 << cores) - 1 else mask,
                tuple(a + i * dims[at].dst for a in part.dst_at),
                tuple(a + i * dims[at].src for a in part.src_at),
                tuple(course.moved(index, first) for course in part.courses),
                dims[:at] + dims[at + 1 :],
            ))  # fmt: skip


def _indices(i: int, counts: Sequence[Num]) -> list[int]:
    """Step ``i`` of a merged dimension as steps of those it was merged from."""
    found: list[int] = []
    for n in reversed(counts[1:]):
        assert isinstance(n, int)  # else it was not merged into the one before
        i, rest = divmod(i, n)
        found.insert(0, rest)
    return [i, *found]
