"""Code for ring exchanges: who sends what to whom, in rounds of at most eight incoming fragments a core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spyrec.ir.core import Op
from spyrec.ir.layout import Layout
from spyrec.passes.kernel import Box
from spyrec.passes.residency import local_layout
from spyrec.sim.device import DeviceSpec
from spyrec.sim.isa import Instr, Num, Operand, Signal, Wait

from .address import num, strides_along, unit_of
from .streams import Body, Buffer, Stmt


@dataclass(frozen=True)
class Send:
    """A box of the tensor from one core to the cores of a mask, where it lands at the same place in each."""

    core: int
    box: Box
    offset: tuple[int, ...]  # of the box in the receivers' boxes
    cores: int


def plan_sends(own: Sequence[Box], need: Sequence[Box]) -> list[Send]:
    """Cover every core's need from the owners' boxes; equal pieces for several cores become one multicast."""
    grouped: dict[tuple[int, Box, tuple[int, ...]], int] = {}
    for dst, box in enumerate(need):
        if not all(n for _, n in box):
            continue
        for src, have in enumerate(own):
            part = intersect(have, box)
            if part is None:
                continue
            offset = tuple(p - b for (p, _), (b, _) in zip(part, box, strict=True))
            key = (src, part, offset)
            grouped[key] = grouped.get(key, 0) | 1 << dst
    return [Send(src, box, offset, mask) for (src, box, offset), mask in grouped.items()]


def intersect(a: Box, b: Box) -> Box | None:
    out = []
    for (s, n), (t, m) in zip(a, b, strict=True):
        lo, hi = max(s, t), min(s + n, t + m)
        if hi <= lo:
            return None
        out.append((lo, hi - lo))
    return tuple(out)


class RelayoutEmitter:
    """Statements that fill the receivers' buffer. ``arrived`` is the buffer its readers wait for."""

    def __init__(self, op: Op, source: tuple[int, tuple[Box, ...]], target: tuple[int, tuple[Box, ...]], device: DeviceSpec,
                 cores: int, fmt: str) -> None:
        self.op, self.device, self.cores, self.fmt = op, device, cores, fmt
        self.source_at, self.own = source
        self.target_at, self.need = target
        self.arrived = Buffer(f"{op.result.name}_arrived")
        self.src_layout = local_layout(op.operands[0].type, self.own)
        self.dst_layout = local_layout(op.result.type, self.need)

    def emit(self, body: Body, token: int) -> None:
        """Add the sends, each of which raises ``token`` where it lands, and the deliveries that wait for them."""
        sends = plan_sends(self.own, self.need)
        for row in self._rows(sends):
            cores = num([row[c].cores if c in row else 0 for c in range(self.cores)])
            instr = self._send(row)
            body.items.append(Stmt("rs", replace(instr, signals=(Signal(token, 1, cores),))))
        left = [sum(s.cores >> c & 1 for s in sends) for c in range(self.cores)]
        while any(left):
            take = [min(n, self.device.ring.fragments_max) for n in left]
            for n in sorted(set(take) - {0}):
                mask = sum(1 << c for c, t in enumerate(take) if t == n)
                where = 0 if mask == (1 << self.cores) - 1 else mask
                instr = Instr("recv", imm={"fragments": n}, waits=(Wait(token, n),), where=where)
                body.items.append(Stmt("rr", instr, (), (self.arrived,)))
            left = [a - b for a, b in zip(left, take, strict=True)]

    def _rows(self, sends: Sequence[Send]) -> list[dict[int, Send]]:
        """Sends of one shape, one for each core, share an instruction."""
        shapes: dict[tuple[bool, ...], list[dict[int, Send]]] = {}
        seen: dict[tuple[int, tuple[bool, ...]], int] = {}
        for s in sends:
            key = tuple(n > 1 for n in self._steps(s.box))
            j = seen.get((s.core, key), 0)
            seen[s.core, key] = j + 1
            rows = shapes.setdefault(key, [])
            if j == len(rows):
                rows.append({})
            rows[j][s.core] = s
        return [row for rows in shapes.values() for row in rows]

    def _steps(self, box: Box) -> list[int]:
        return [-(-n // unit_of(self.src_layout, t)) for t, (_, n) in enumerate(box)]

    def _send(self, row: dict[int, Send]) -> Instr:
        some = next(iter(row.values()))
        full = [row.get(c, some) for c in range(self.cores)]
        near, far = strides_along(self.src_layout), strides_along(self.dst_layout)
        counts: list[Num] = []
        src, dst = [], []
        for t in sorted(range(len(near)), key=lambda t: -max(near[t], far[t])):
            sizes = [self._steps(s.box)[t] for s in full]
            if max(sizes) > 1:
                counts.append(num(sizes))
                src.append(near[t])
                dst.append(far[t])
        if self.src_layout.bits > 16:
            counts.append(self.src_layout.bits // 16)
            src.append(1)
            dst.append(1)
        src_at = num([self._at(self.src_layout, self.source_at, near, [p - b for (p, _), (b, _) in zip(s.box, self.own[s.core], strict=True)])
                      for s in full])
        dst_at = num([self._at(self.dst_layout, self.target_at, far, list(s.offset)) for s in full])
        mask = sum(1 << c for c in row)
        where = 0 if mask == (1 << self.cores) - 1 else mask
        operands = (Operand("lx", dst_at, tuple(dst), self.fmt), Operand("lx", src_at, tuple(src), self.fmt))
        return Instr("send", tuple(counts), (None,) * len(counts), operands, {"cores": num([s.cores for s in full])}, where=where)

    @staticmethod
    def _at(layout: Layout, start: int, along: Sequence[int], point: Sequence[int]) -> int:
        return start // 128 + sum(p // unit_of(layout, t) * along[t] for t, p in enumerate(point))
