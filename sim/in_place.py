"""Whether a program may write a buffer into the place of another that it reads: in every run,
whatever its timing, each stick is read for the last time before it is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .check_order import Event, Order
from .check_race import Access, CardAccesses, overlaps
from .check_touch import touches
from .device import DeviceSpec
from .expand import KernelPlan, expand
from .isa import STICK, Launch, Program
from .view import Moment

Pair = tuple[str, str]
"""Names of the buffer that is read and of the one that is to take its place."""


def overwritable(program: Program, device: DeviceSpec, pairs: Iterable[Pair]) -> frozenset[Pair]:
    """Those of the pairs for which that is certain.

    No launch after the first that writes the new buffer reads the old one; nor does the one before
    it, when that first one may start early. When it reads the old one itself, each read of a stick
    has surely happened when the stick is written, by the vector clocks of ``check_order``. Launches
    of one kernel with the two buffers as the same arguments are looked at once.
    """
    proofs = _Proofs(program, device)
    return frozenset(pair for pair in pairs if proofs.holds(*pair))


class _Proofs:
    def __init__(self, program: Program, device: DeviceSpec) -> None:
        self._program, self._device = program, device
        self._plans: dict[int, KernelPlan] = {}
        self._known: dict[tuple[object, ...], bool] = {}
        self._named: dict[str, list[int]] = {}  # launches that name a buffer
        for index, launch in enumerate(program.launches):
            for name in dict.fromkeys(name for name, _ in launch.args):
                self._named.setdefault(name, []).append(index)

    def holds(self, old: str, new: str) -> bool:
        reads, writes = self._named.get(old, []), self._named.get(new, [])
        if not writes:
            return False  # nothing is written, so nothing takes its place
        launch = self._program.launches[writes[0]]
        late = writes[0] - 1 if launch.early else writes[0]
        if any(index > writes[0] or late <= index < writes[0] for index in reads):
            return False
        return writes[0] not in reads or self._within(launch, old, new)

    def _within(self, launch: Launch, old: str, new: str) -> bool:
        """Whether a launch that reads the one and writes the other reads first."""
        roles = tuple((name == old) - (name == new) for name, _ in launch.args)
        offsets = tuple(offset for name, offset in launch.args if name in (old, new))
        key = (launch.kernel, roles, offsets)
        if key not in self._known:
            self._known[key] = self._reads_first(launch, old, new)
        return self._known[key]

    def _reads_first(self, launch: Launch, old: str, new: str) -> bool:
        kernel = self._program.kernels[launch.kernel]
        plan = self._plans.setdefault(launch.kernel, expand(kernel, self._device))
        args = dict(zip(kernel.params, launch.args, strict=True))
        accesses: list[Access] = []
        card = CardAccesses()

        def visit(event: Event) -> None:
            site, execution = event.thread.at(event.step)
            if site.instr.op not in ("load", "gather", "store"):
                return
            moment = Moment(event.thread.core, site.trip(execution))
            for touch in touches(site.instr, moment):
                if touch.space != "hbm" or args[touch.symbol][0] not in (old, new):
                    continue
                accesses.append(Access(event, site.instr, launch.kernel))
                base = args[touch.symbol][1] // STICK
                for low, end in (touch.runs + base).tolist():
                    card.runs.append((low, end))
                    card.number.append(len(accesses) - 1)
                    card.writes.append(touch.writes)

        order = Order(self._device.cores.count, [plan], visit)
        _, active = order.launch(0, replace(launch, after=(), early=False), plan)
        if any(thread.step < len(thread.steps) for thread in active):
            return False  # it gets stuck
        for one, other, _ in overlaps(card, card):
            if card.writes[one] or not card.writes[other]:
                continue  # each pair of a read and a write comes in both orders
            read, write = accesses[card.number[one]], accesses[card.number[other]]
            if card.number[one] >= card.number[other] or not read.has_read(write.event):
                return False
        return True
