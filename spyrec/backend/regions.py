"""A tensor, or each core's box of it, in one memory, and strided transfers between two of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from spyrec.ir.core import Value
from spyrec.ir.layout import Layout
from spyrec.passes.kernel import Box, Map
from spyrec.passes.residency import local_layout
from spyrec.sim.isa import MAX_DIMS, Instr, Num, Operand

from .address import mask_of, num, strides_along, unit_of
from .context import KernelContext


@dataclass(frozen=True)
class Region:
    """``base``: stick address of each core's part (one entry for all cores when they agree).
    ``boxes``: each core's part of the tensor; None for the whole tensor at its own coordinates.
    ``fmt``: device format of its elements."""

    space: Literal["hbm", "lx"]
    layout: Layout
    fmt: str
    base: tuple[int, ...] = (0,)
    boxes: tuple[Box, ...] | None = None
    symbol: str = ""

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
    address, boxes = ctx.homes[v]
    fmt = ctx.format(v.type.dtype)
    return Region("lx", local_layout(v.type, boxes), fmt, (address // 128,), boxes)


def card_region(ctx: KernelContext, v: Value, symbol: str) -> Region:
    """A whole tensor in card memory."""
    assert v.type.layout is not None
    return Region("hbm", v.type.layout, ctx.format(v.type.dtype), symbol=symbol)


@dataclass(frozen=True)
class Hop:
    """One core's share of a transfer: a box at ``src`` and ``dst`` addresses (sticks)."""

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
    dst, src = [], []
    for t in sorted(range(len(out.along)), key=lambda t: -max(out.along[t], source.along[t])):
        sizes = [step[t] for step in steps]
        if max(sizes) > 1:
            counts.append(num(sizes))
            dst.append(out.along[t])
            src.append(source.along[t])
    return sticks(
        name, counts, [h.src for h in full], src, [h.dst for h in full], dst, source, out,
        mask_of(hops, cores), imm,
    )  # fmt: skip


def sticks(
    name: str, counts: Sequence[Num], src_at: Sequence[int], src: Sequence[int],
    dst_at: Sequence[int], dst: Sequence[int], source: Region, out: Region, where: int,
    imm: Mapping[str, Num] | None = None,
) -> list[Instr]:
    """A strided transfer of groups of lanes; wide elements fill several sticks a group. Several
    instructions when it takes more dimensions than one has."""
    dims = list(zip(counts, dst, src, strict=True))
    if out.layout.bits > 16:
        dims.append((out.layout.bits // 16, 1, 1))
    if len(dims) > MAX_DIMS:
        dims = _merged(dims)
    made = []
    for masked, dst_now, src_now, inner in _unrolled(dims, list(dst_at), list(src_at), where):
        full = tuple(n for n, _, _ in inner)
        operands = (
            Operand(out.space, num(dst_now), tuple(d for _, d, _ in inner), out.fmt, out.symbol),
            Operand(
                source.space, num(src_now), tuple(s for *_, s in inner), source.fmt, source.symbol
            ),
        )
        limits = (None,) * len(full)
        made.append(Instr(name, full, limits, operands, dict(imm or {}), where=masked))
    return made


Dim = tuple[Num, int, int]
"""Count, destination stride and source stride of an iteration dimension."""


def _merged(dims: Sequence[Dim]) -> list[Dim]:
    """Neighbours that continue each other at both ends as one dimension."""
    out: list[Dim] = []
    for n, dst, src in dims:
        if out and isinstance(n, int) and out[-1][1:] == (dst * n, src * n):
            before = out[-1][0]
            many = before * n if isinstance(before, int) else tuple(b * n for b in before)
            out[-1] = (many, dst, src)
        else:
            out.append((n, dst, src))
    return out


def _unrolled(
    dims: Sequence[Dim], dst_at: list[int], src_at: list[int], where: int
) -> Iterator[tuple[int, list[int], list[int], Sequence[Dim]]]:
    """(cores, destination and source address by core, dimensions) of each instruction; the shortest
    dimensions beyond MAX_DIMS are taken step by step."""
    if len(dims) <= MAX_DIMS:
        yield where, dst_at, src_at, dims
        return
    most = [n if isinstance(n, int) else max(n) for n, _, _ in dims]
    at = most.index(min(most))
    count, dst, src = dims[at]
    cores = len(dst_at)
    for i in range(most[at]):
        left = [c for c in range(cores) if (count if isinstance(count, int) else count[c]) > i]
        mask = sum(1 << c for c in left if not where or where >> c & 1)
        if mask:
            yield from _unrolled(
                [*dims[:at], *dims[at + 1 :]], [a + i * dst for a in dst_at],
                [a + i * src for a in src_at], 0 if mask == (1 << cores) - 1 else mask,
            )  # fmt: skip
