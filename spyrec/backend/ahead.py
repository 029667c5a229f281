"""Micro-programs taken up before there is work for them, while the vector unit waits for it."""

from __future__ import annotations

from spyrec.sim.expand import taken_up
from spyrec.sim.isa import Instr, Loop, Stream

from .switching import Taken, turns


def taken_ahead(stream: Stream) -> Stream:
    """The vector unit's stream, with a ``prog`` in front of all that waits before it runs another
    micro-program than what ran last."""
    return tuple(_ahead(stream, None)[0])


def _ahead(stream: Stream, last: Taken | None) -> tuple[list[Instr | Loop], Taken | None]:
    """And what ran last; None when that may differ from trip to trip, or nothing has."""
    out: list[Instr | Loop] = []
    idle = 0  # what comes from there on only waits: nobody waits for it
    for item in stream:
        if isinstance(item, Loop):
            ends = turns(item.body)
            if ends is not None and ends[0] == ends[1] != last:
                last = ends[0]
                out.insert(idle, _prog(last))
            inner, _ = _ahead(item.body, last if ends is None or ends[1] == last else None)
            out.append(Loop(item.count, tuple(inner)))
            last, idle = last if ends is None else ends[1], len(out)
            continue
        taken = taken_up(item)
        if taken not in (None, last):
            if item.waits or any(isinstance(x, Instr) and x.waits for x in out[idle:]):
                out.insert(idle, _prog(taken, item))
            last = taken
        out.append(item)
        idle = idle if item.op == "sync" and not item.signals else len(out)
    return out, last


def _prog(taken: Taken, ahead_of: Instr | None = None) -> Instr:
    program, reduce = taken
    instr = Instr("prog", imm={"program": program, "reduce": reduce})
    if ahead_of is None:
        return instr
    return Instr("prog", imm=instr.imm, note=ahead_of.note, where=ahead_of.where)
