"""Code for ring exchanges: who sends what to whom, in rounds of at most eight incoming fragments a
core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spyrec.ir.core import Op
from spyrec.ir.errors import PassError
from spyrec.ir.exchange import exchange_boxes
from spyrec.passes.kernel import Box
from spyrec.sim.device import DeviceSpec
from spyrec.sim.isa import Instr, Signal, Wait

from .address import mask_of, num
from .regions import Hop, Region, box_transfer
from .tree import Body, Buffer, Stmt


@dataclass(frozen=True)
class Send:
    """A box of the tensor from one core to the cores of a mask, where it lands at the same place
    in each."""

    core: int
    box: Box
    offset: tuple[int, ...]  # of the box in the receivers' boxes
    cores: int


def plan_sends(own: Sequence[Box], need: Sequence[Box], stops: int) -> list[Send]:
    """Give every core exactly the elements it needs, each once, from the nearest owner on a ring of
    ``stops`` stops; equal pieces for several cores become one multicast.

    LayoutError when nobody owns what a core needs.
    """
    grouped: dict[tuple[int, Box, tuple[int, ...]], int] = {}
    for piece in exchange_boxes(own, need, stops):
        there = need[piece.dst_core]
        offset = tuple(p - b for (p, _), (b, _) in zip(piece.box, there, strict=True))
        key = (piece.src_core, piece.box, offset)
        grouped[key] = grouped.get(key, 0) | 1 << piece.dst_core
    return [Send(src, box, offset, mask) for (src, box, offset), mask in grouped.items()]


class RelayoutEmitter:
    """Statements that fill the receivers' buffer. ``source`` and ``target``: each core's box of the
    tensor before and after; ``arrived`` is the buffer its readers wait for."""

    def __init__(
        self, op: Op, source: Region, target: Region, device: DeviceSpec, cores: int
    ) -> None:
        self.op, self.source, self.target = op, source, target
        self.device, self.cores = device, cores
        self.arrived = Buffer(f"{op.result.name}_arrived")

    def emit(self, body: Body, token: int) -> None:
        """Add the sends, each of which raises ``token`` where it lands, and the deliveries that
        wait for them."""
        assert self.source.boxes is not None and self.target.boxes is not None
        sends = plan_sends(self.source.boxes, self.target.boxes, self.device.cores.count + 1)
        for row in self._rows(sends):
            to = num([row[c].cores if c in row else 0 for c in range(self.cores)])
            *ahead, last = self._send(row)
            signals = (Signal(token, 1, to),)
            if ahead:  # some cores may have no part in the last: let them signal on their own
                ahead.append(last)
                last = Instr("sync", where=mask_of(row, self.cores))
            body.items += [Stmt("rs", instr) for instr in ahead]
            body.items.append(Stmt("rs", replace(last, signals=signals)))
        left = [sum(s.cores >> c & 1 for s in sends) for c in range(self.cores)]
        while any(left):
            take = [min(n, self.device.ring.fragments_max) for n in left]
            for n in sorted(set(take) - {0}):
                where = mask_of((c for c, t in enumerate(take) if t == n), self.cores)
                instr = Instr("recv", imm={"fragments": n}, waits=(Wait(token, n),), where=where)
                body.items.append(Stmt("rr", instr, (), (self.arrived,)))
            left = [a - b for a, b in zip(left, take, strict=True)]
        body.scoped.append(self.arrived)

    def _rows(self, sends: Sequence[Send]) -> list[dict[int, Send]]:
        """Sends of one shape, one for each core, share an instruction."""
        shapes: dict[tuple[bool, ...], list[dict[int, Send]]] = {}
        seen: dict[tuple[int, tuple[bool, ...]], int] = {}
        for s in sends:
            sizes = zip(s.box, self.source.units, strict=True)
            key = tuple(n > unit for (_, n), unit in sizes)
            j = seen[s.core, key] = seen.get((s.core, key), -1) + 1
            rows = shapes.setdefault(key, [])
            if j == len(rows):
                rows.append({})
            rows[j][s.core] = s
        return [row for rows in shapes.values() for row in rows]

    def _send(self, row: dict[int, Send]) -> list[Instr]:
        """One send for each core in ``row``, all of one shape."""
        some = next(iter(row.values()))
        masks = num([row.get(c, some).cores for c in range(self.cores)])
        hops = {c: self._hop(s) for c, s in row.items()}
        return box_transfer(
            "send", hops, self.source, self.target, self.cores, {"cores": masks}
        )

    def _hop(self, send: Send) -> Hop:
        start = [s for s, _ in send.box]
        lane = self.source.layout.stick_dim
        if send.offset[lane] % self.source.units[lane]:
            raise PassError(
                f"codegen: relayout of %{self.op.operands[0].name} cuts a stick at element "
                f"{start[lane]} of dimension {lane}; pin other parts (from {self.op.loc})"
            )
        units = zip(send.offset, self.target.units, self.target.along, strict=True)
        there = self.target.address(0) + sum(o // unit * step for o, unit, step in units)
        sizes = tuple(n for _, n in send.box)
        return Hop(sizes, self.source.at(send.core, start), there)
