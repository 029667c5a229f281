"""Why nothing can happen any more: for each stuck unit what it waits for and who would give it."""

from __future__ import annotations

from .describe import place
from .engine import InFlight, Queue
from .isa import GO, UNITS

SHOWN = 4  # stuck units told in full
SIGNALLERS = 2  # and for each, instructions that would help


def explain_deadlock(in_flight: list[InFlight], cycle: int) -> str:
    """The report, one line a stuck unit."""
    stuck = [q for launch in in_flight for _, q in sorted(launch.queues.items())
             if q.next < q.size]
    lines = [
        f"deadlock at cycle {cycle}: {len(stuck)} units wait for tokens that nobody will signal"
    ]
    lines += [_stuck(queue) for queue in stuck[:SHOWN]]
    if len(stuck) > SHOWN:
        lines.append(f"and {len(stuck) - SHOWN} more units")
    return "\n".join(lines)


def _stuck(queue: Queue) -> str:
    waits = queue.steps[queue.next][0]
    token, need = next((t, n) for t, n, _ in waits if queue.tokens[t] < n)
    where = _place(queue, queue.next)
    has = queue.tokens[token]
    if token == GO:
        return f"  {where}: waits for GO, which its launch has not been given"
    helpers = _signallers(queue, token)
    known = "; ".join(helpers[:SIGNALLERS])
    if len(helpers) > SIGNALLERS:
        known += f"; and {len(helpers) - SIGNALLERS} more"
    would = f"would come from {known}" if helpers else "no instruction that is left signals it"
    return f"  {where}: waits for {need} of token {token}, has {has}; {would}"


def _signallers(stuck: Queue, token: int) -> list[str]:
    """Each unfinished instruction that would signal the stuck unit's core, once per unit."""
    found: dict[str, None] = {}
    for _, queue in sorted(stuck.launch.queues.items()):
        for number in range(queue.next, queue.size):
            for signal, _, cores in queue.steps[number][1]:
                reaches = queue.core == stuck.core if cores is None else stuck.core in cores
                if signal == token and reaches:
                    found.setdefault(_place(queue, number))
    return list(found)


def _place(queue: Queue, number: int) -> str:
    plan = queue.launch.plan
    site, _ = plan.units[queue.unit].at(queue.core, number)
    return place(
        plan.kernel, UNITS[queue.unit], site.instr, launch=queue.launch.index, core=queue.core
    )
