"""Hazards of a program, found without running it: races over all timings, reads of what nothing has
written, tokens misused, memories and spans exceeded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .check_order import Order, Thread
from .check_race import Access, Clash, Races
from .check_token import Tokens
from .describe import place
from .device import DeviceSpec
from .errors import HazardError, SimulationError
from .expand import KernelPlan, expand
from .isa import UNITS, Instr, Kernel, Program, launched
from .joint import code_bytes, shared
from .wellformed import Limits, check_program
from .work import check_work

SHOWN = 20  # findings that a message tells


@dataclass(frozen=True)
class Finding:
    """``kind``: "race", "uninitialised", "mixed", "astray", "lost", "token", "deadlock",
    "capacity", "fan-in", "span", "constant" or "rule" (one the machine refuses at once). ``text``
    names the instructions, their cores, IR ops and model nodes."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class Checked:
    """A program that was looked at: what was found, and who wrote what."""

    findings: tuple[Finding, ...]
    _program: Program
    _races: Races | None = None

    def writer(self, buffer: str, stick: int) -> str:
        """The instruction that is the last to write a stick of a buffer, "" for none."""
        access = self._races.last_writer(buffer, stick) if self._races else None
        return _place(access, self._program) if access else ""


def find_hazards(program: Program, device: DeviceSpec) -> tuple[Finding, ...]:
    """Every hazard, each pair of instructions once; see ``examine``."""
    return examine(program, device).findings


def examine(program: Program, device: DeviceSpec) -> Checked:
    """Look for hazards without running the program, up to the first launch that cannot finish.

    ObjectError: the program is malformed. SimulationError: it is too much work.
    """
    check_program(program, Limits(device.cores.count, device.launch.loop_max, device.hbm.bytes))
    check_work(program, device)
    plans: dict[int, KernelPlan] = {}
    refused = []
    for number, kernel in enumerate(program.kernels):
        try:
            plans[number] = expand(kernel, device)
        except SimulationError as error:
            refused.append(Finding("rule", str(error)))
    if refused:
        return Checked(tuple(refused), program)
    races = Races(program, device)
    findings = tuple(dict.fromkeys(_hazards(program, device, plans, races)))
    return Checked(findings, program, races)


def refuse(findings: tuple[Finding, ...]) -> None:
    """HazardError unless there are no findings."""
    if findings:
        told = [str(finding) for finding in findings]
        lines = told[:SHOWN]
        if len(told) > SHOWN:
            lines.append(f"and {len(told) - SHOWN} more findings")
        raise HazardError("\n".join(lines), tuple(told))


def _hazards(
    program: Program, device: DeviceSpec, plans: dict[int, KernelPlan], races: Races
) -> Iterator[Finding]:
    yield from _too_long(program, device)
    stuck = False
    order = Order(device.cores.count, list(plans.values()), races.visit)
    for index, launch in enumerate(program.launches):
        kernel = launched(program.kernels[launch.kernel], launch)
        yield from _declared(kernel, device)
        races.begin(launch)
        counters, active = order.launch(index, launch, plans[launch.kernel])
        races.end()

        def name(thread: Thread, instr: Instr, kernel: Kernel = kernel, index: int = index) -> str:
            return place(kernel, UNITS[thread.unit], instr, launch=index, core=thread.core)

        tokens = Tokens(counters, active, device, name)
        yield from (Finding(kind, text) for kind, text in tokens.problems())
        stuck = bool(tokens.stuck)
        if stuck:
            break
    yield from (_told(clash, program) for clash in races.found.values())
    if not stuck:
        for missing in races.unwritten_outputs():
            yield Finding("uninitialised", missing)
        lost: dict[tuple[int, int], tuple[Access, str]] = {}  # one core stands for the others
        for access, what in races.lost():
            lost.setdefault(access.site, (access, what))
        for access, what in lost.values():
            yield Finding("lost", f"{_place(access, program)} writes {what}")


def _too_long(program: Program, device: DeviceSpec) -> Iterator[Finding]:
    """Launches of several kernels that the program region does not hold."""
    known: dict[int, int] = {}
    room = device.lx.reserved_bytes
    for first, launches in shared(program):
        if len(launches) == 1:
            continue
        for number in {launch.kernel for launch in launches} - known.keys():
            known[number] = code_bytes(program.kernels[number], device)
        taken = sum(known[launch.kernel] for launch in launches)
        if taken > room:
            yield Finding(
                "capacity",
                f"launches {first} to {first + len(launches) - 1} are joined: their kernels take "
                f"{taken} bytes of the program region, there are {room}; let one of them be a "
                "launch of its own",
            )


def _declared(kernel: Kernel, device: DeviceSpec) -> Iterator[Finding]:
    if kernel.lx_bytes > device.lx.usable_bytes:
        yield Finding(
            "capacity",
            f"kernel {kernel.name} plans {kernel.lx_bytes} bytes of scratchpad a core, there are "
            f"{device.lx.usable_bytes}",
        )


def _told(clash: Clash, program: Program) -> Finding:
    text = f"{_place(clash.access, program)} {clash.does}"
    others = [_place(other, program) for other in clash.others]
    if clash.kind == "race":
        text += f"; nothing keeps it apart from {others[0]}, which {clash.other_does} it"
    elif clash.others and clash.other_does == "wrote":
        text += f" {others[0]} wrote"
    elif clash.kind == "mixed":
        text += f"; one was written by {others[0]}, the other by {others[1]}"
    return Finding(clash.kind, text)


def _place(access: Access, program: Program) -> str:
    thread, index = access.event.thread, access.event.launch
    launch = program.launches[index]
    kernel = launched(program.kernels[launch.kernel], launch)
    return place(kernel, UNITS[thread.unit], access.instr, launch=index, core=thread.core)
