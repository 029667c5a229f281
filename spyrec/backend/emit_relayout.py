"""Code for ring exchanges: who sends what to whom, in rounds of at most eight incoming fragments a
core."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from spyrec.ir.core import Op
from spyrec.ir.errors import PassError
from spyrec.ir.exchange import exchange_boxes
from spyrec.passes.kernel import Box
from spyrec.sim.device import DeviceSpec
from spyrec.sim.isa import Instr, Signal, Wait

from .address import mask_of, num
from .regions import Hop, Region, box_transfer
from .rounds import Rounds
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


Key = TypeVar("Key", bound=Hashable)


def _grouped(of: Mapping[int, Key]) -> dict[Key, list[int]]:
    """The cores that have the same value."""
    found: dict[Key, list[int]] = {}
    for core, key in sorted(of.items()):
        found.setdefault(key, []).append(core)
    return found


class RelayoutEmitter:
    """Statements that fill the receivers' buffer. ``source`` and ``target``: each core's box of the
    tensor before and after; ``arrived`` is the buffer its readers wait for."""

    def __init__(
        self, op: Op, source: Region, target: Region, device: DeviceSpec, cores: int
    ) -> None:
        self.op, self.source, self.target = op, source, target
        self.device, self.cores = device, cores
        self.arrived = Buffer(f"{op.result.name}_arrived")

    def emit(self, body: Body, fresh: Callable[[], int]) -> None:
        """Add the sends, each of which raises a token where it lands, and the deliveries that wait
        for them. ``fresh`` gives tokens that nothing else uses."""
        assert self.source.boxes is not None and self.target.boxes is not None
        sends = plan_sends(self.source.boxes, self.target.boxes, self.device.cores.count + 1)
        rounds = Rounds(sends, self.device.ring.fragments_max)
        landed = fresh()
        ready = [fresh() if number else landed for number in range(len(rounds.sends))]
        for number, now in enumerate(rounds.sends):
            for n, cores in _grouped(rounds.waits(number)).items():
                wait = (Wait(ready[number], n),)
                body.items.append(Stmt("rs", Instr("sync", waits=wait, where=self._mask(cores))))
            for row in self._rows(now):
                body.items += [Stmt("rs", instr) for instr in self._sends(row, landed)]
            body.items += self._deliveries(rounds, number, landed, ready)
        body.scoped.append(self.arrived)

    def _mask(self, cores: Iterable[int]) -> int:
        return mask_of(cores, self.cores)

    def _sends(self, row: Mapping[int, Send], landed: int) -> list[Instr]:
        """One send for each core in ``row``, all of one shape; the last raises ``landed``."""
        to = num([row[c].cores if c in row else 0 for c in range(self.cores)])
        *ahead, last = self._send(row)
        if ahead:  # some cores may have no part in the last: let them signal on their own
            ahead.append(last)
            last = Instr("sync", where=self._mask(row))
        return [*ahead, replace(last, signals=(Signal(landed, 1, to),))]

    def _deliveries(
        self, rounds: Rounds[Send], number: int, landed: int, ready: Sequence[int]
    ) -> Iterator[Stmt]:
        """What takes the fragments of a round and tells the senders of the next one."""
        takes = {
            c: (n, rounds.following(c, number) > 0) for c, n in rounds.fragments[number].items()
        }
        for (n, more), cores in sorted(_grouped(takes).items()):
            after = [rounds.following(c, number) if c in cores else 0 for c in range(self.cores)]
            to = num([rounds.senders(c, after[c]) if c in cores else 0 for c in range(self.cores)])
            told = (Signal(num([ready[a] for a in after]), 1, to),) if more else ()
            instr = Instr(
                "recv", imm={"fragments": n}, waits=(Wait(landed, n),), signals=told,
                where=self._mask(cores),
            )  # fmt: skip
            yield Stmt("rr", instr, (), (self.arrived,))

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

    def _send(self, row: Mapping[int, Send]) -> list[Instr]:
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
        return Hop(tuple(start), sizes, self.source.at(send.core, start), there)
