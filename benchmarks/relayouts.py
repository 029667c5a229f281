"""How long exchanges over the ring take, beside what no exchange can beat. Run:
python -m benchmarks.relayouts [--random 500] [--far] [--only R06 '#17'] [--no-room]
[--check] [--prove]
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log, sqrt
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.relayout_cases import CORES, ELEMENT_BYTES, Case, patterns, random_case
from benchmarks.ring_bound import Bound, ring_bound
from benchmarks.ring_direct import ruled_out
from spyrec.backend.claims import tensor_of
from spyrec.backend.emit_relayout import RelayoutEmitter
from spyrec.backend.regions import Hop, Region, box_transfer
from spyrec.backend.streams import Streams
from spyrec.backend.tree import Body, Stmt
from spyrec.ir.core import Op, Value
from spyrec.ir.exchange import is_empty
from spyrec.ir.layout import Layout
from spyrec.ir.types import TensorType, dtype
from spyrec.passes.exchange_plan import best_orders, plan_exchange
from spyrec.passes.exchange_price import memory_cycles, ring_cycles
from spyrec.passes.homes import local_layout
from spyrec.passes.kernel import GROUP, Box
from spyrec.passes.sends import Ends
from spyrec.sim.check import find_hazards
from spyrec.sim.device import DeviceSpec, load_device
from spyrec.sim.isa import Buffer, Kernel, Launch, Program, Stream
from spyrec.sim.run import run

DL16 = dtype("dl16")
STICK = 128
Words = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Built:
    """Three launches: each core loads its part, the exchange, each core stores its new part.
    ``places``: byte offset of each core's new part in the output, and its layout. ``planned``:
    cycles that the exchange is planned to take."""

    case: Case
    program: Program
    places: dict[int, tuple[int, Layout]]
    planned: int


def build(case: Case, device: DeviceSpec, room: bool = True) -> Built:
    """The program of a case. ``room``: sends may land beside the receivers' buffers too."""
    type_ = TensorType(case.shape, DL16, Layout.stick(case.shape, DL16.bits, case.stick), "lx")
    x, y = Value("x", type_), Value("y", type_)
    op = Op("relayout", (x,), (y,), MappingProxyType({"boxes": case.dest}))
    ends = best_ends(case, device)
    before, after = ends.source, ends.target
    plan = plan_exchange(case.source, case.dest, ends, device, room)
    used = {send.core for send in (*plan.sends, *plan.copies)}
    source = Region("lx", before, "dl16", (0,), case.source)
    target = Region("lx", after, "dl16", (before.sticks,), case.dest)
    root = Body()
    tokens = iter(range(1, 1 << 20))
    beside = before.sticks + after.sticks if room else None
    emitter = RelayoutEmitter(op, source, target, device, CORES, beside)
    emitter.emit(root, lambda: next(tokens))
    streams = Streams(root, CORES, used=next(tokens) - 1).build()
    lx_bytes = (before.sticks + after.sticks + plan.room) * STICK
    places, size = _places(case)
    whole = Region("hbm", type_.layout or before, "dl16", symbol="x")
    kernels = (
        Kernel("load", _loads(case, whole, source, used), ("x",), cores=CORES, lx_bytes=lx_bytes),
        Kernel("exchange", streams, cores=CORES, lx_bytes=lx_bytes),
        Kernel("store", _stores(case, target, places), ("y",), cores=CORES, lx_bytes=lx_bytes),
    )
    sticks = whole.layout.sticks * STICK
    buffers = (Buffer("x", "input", sticks, 0), Buffer("y", "output", size, 1 << 30))
    launches = (
        Launch(0, (("x", 0),), (), tensors=(0,)),
        Launch(1, (), (0,), tensors=(0,)),
        Launch(2, (("y", 0),), (1,)),
    )
    tensors = (tensor_of("x", whole.layout),)
    return Built(
        case, Program(kernels, buffers, launches, device.text, {}, tensors=tensors), places,
        plan.cycles,
    )


def best_ends(case: Case, device: DeviceSpec) -> Ends:
    """The buffers of both sides, their dimensions ordered as the compiler would order them."""
    whole = Layout.stick(case.shape, DL16.bits, case.stick)
    home, (there,) = best_orders(whole, case.source, [case.dest], device)
    return Ends(
        local_layout(whole, case.source, home), local_layout(whole, case.dest, there)
    )


def _places(case: Case) -> tuple[dict[int, tuple[int, Layout]], int]:
    places, size = {}, 0
    for core, box in enumerate(case.dest):
        if not is_empty(box):
            layout = Layout.stick([n for _, n in box], DL16.bits, case.stick)
            places[core] = size, layout
            size += layout.sticks * STICK
    return places, size


def _waiting(unit: str, instrs: Sequence[Any]) -> dict[str, Stream]:
    root = Body([Stmt(unit, instr) for instr in instrs])
    return Streams(root, CORES).build()


def _loads(
    case: Case, whole: Region, source: Region, used: Collection[int]
) -> dict[str, Stream]:
    """What the cores have before, of those that somebody takes from."""
    hops = {
        c: Hop(_start(b), _sizes(b), whole.at(0, _start(b)), source.address(c))
        for c, b in enumerate(case.source) if c in used
    }  # fmt: skip
    return _waiting("ml", box_transfer("load", hops, whole, source, CORES))


def _stores(
    case: Case, target: Region, places: dict[int, tuple[int, Layout]]
) -> dict[str, Stream]:
    instrs = []
    for layout in dict.fromkeys(layout for _, layout in places.values()):
        out = Region("hbm", layout, "dl16", symbol="y")
        hops = {
            c: Hop(_start(case.dest[c]), _sizes(case.dest[c]), target.address(c), at // STICK)
            for c, (at, like) in places.items() if like == layout
        }  # fmt: skip
        instrs += box_transfer("store", hops, target, out, CORES)
    return _waiting("ms", [replace(instr, intents=()) for instr in instrs])


def _start(box: Box) -> tuple[int, ...]:
    return tuple(s for s, _ in box)


def _sizes(box: Box) -> tuple[int, ...]:
    return tuple(n for _, n in box)


# Data -----------------------------------------------------------------------------------------


def sticks_of(words: Words, stick: int) -> bytes:
    """An array, whole groups of lanes along ``stick``, as it lies in an undivided buffer."""
    rank = words.ndim
    order = list(range(rank))
    if stick == rank - 1 > 0:
        order[-2:] = rank - 1, rank - 2
    split = words.reshape(*words.shape[:stick], -1, GROUP, *words.shape[stick + 1 :])
    axes = [d + (d > stick) for d in order]
    return np.ascontiguousarray(split.transpose(*axes, stick + 1)).tobytes()


def wrong_cores(built: Built, device: DeviceSpec) -> list[int]:
    """Cores that do not hold exactly what they should after a run on poisoned scratchpads."""
    case = built.case
    padded = [-(-n // GROUP) * GROUP if d == case.stick else n for d, n in enumerate(case.shape)]
    words = np.random.default_rng(0).integers(0, 1 << 16, padded, np.uint16)
    given = {"x": sticks_of(words, case.stick)}
    found = run(built.program, device, given, poison=True).outputs["y"]
    wrong = []
    for core, (at, layout) in built.places.items():
        ends = [(s, s + n) for s, n in case.dest[core]]
        start, end = ends[case.stick]
        ends[case.stick] = start, start - (start - end) // GROUP * GROUP
        part = words[tuple(slice(*e) for e in ends)]
        if found[at : at + layout.sticks * STICK] != sticks_of(part, case.stick):
            wrong.append(core)
    return wrong


# Time -----------------------------------------------------------------------------------------


def exchange_cycles(built: Built, device: DeviceSpec) -> int:
    """From the cycle in which the launch may start until the last byte has arrived."""
    stats = run(built.program, device, timing_only=True).launches[1]
    return stats.end_cycle - stats.go_cycle


@dataclass(frozen=True)
class Line:
    """Cycles of a case: simulated, planned, the planner's price, through card memory at the rate of
    the bus, and what no exchange can beat. ``never``: it is proved that no exchange without relays
    is as near to the bound as is asked."""

    case: Case
    cycles: int
    planned: int
    price: float
    memory: float
    bound: Bound
    never: bool = False

    @property
    def misses(self) -> bool:
        return self.case.nbytes > SMALL_BYTES and self.ratio > NEAR

    @property
    def ratio(self) -> float:
        return self.cycles / self.bound.cycles if self.bound.cycles else 1.0


def measure(case: Case, device: DeviceSpec, room: bool = True) -> Line:
    """Simulate an exchange, without data."""
    built = build(case, device, room)
    whole = Layout.stick(case.shape, DL16.bits, case.stick)
    return Line(
        case, exchange_cycles(built, device), built.planned,
        ring_cycles(whole, case.source, case.dest, device),
        memory_cycles(whole, case.source, [case.dest], device),
        ring_bound(case.source, case.dest, case.stick, ELEMENT_BYTES, device),
    )  # fmt: skip


def proved(line: Line, device: DeviceSpec) -> Line:
    """With the proof tried where a large tensor misses what is asked."""
    case, cycles = line.case, NEAR * line.bound.cycles
    never = line.misses and (
        line.bound.floor_cycles > cycles
        or ruled_out(case.source, case.dest, case.stick, ELEMENT_BYTES, device, cycles)
    )
    return replace(line, never=never)


def faults(case: Case, device: DeviceSpec) -> Iterator[str]:
    """What is wrong with an exchange: cores that do not hold what they should, and hazards."""
    built = build(case, device)
    if wrong := wrong_cores(built, device):
        yield f"cores {wrong} hold other data than they should"
    yield from map(str, find_hazards(built.program, device))


def print_line(line: Line) -> None:
    case = line.case
    print(
        f"{case.name:<5} {'x'.join(map(str, case.shape)):<18} {case.nbytes:>9,} "
        f"{line.bound.segment_bytes:>11,.0f} {line.bound.cycles:>8,.0f} "
        f"{line.bound.floor_cycles:>8,.0f} {line.cycles:>8,} {line.ratio:>6.2f} "
        f"{line.price:>8,.0f} {line.memory:>9,.0f} {'never' if line.never else '':<5}".rstrip(),
        flush=True,
    )  # fmt: skip


def summary(lines: Sequence[Line], device: DeviceSpec) -> Iterator[str]:
    """How many are near the bound, and how good the price is."""
    def near(some: Sequence[Line]) -> str:
        return f"{sum(x.ratio <= NEAR for x in some)} of {len(some)} within {NEAR} x the bound"

    moving = [x for x in lines if x.bound.cycles]
    large = [x for x in moving if x.case.nbytes > SMALL_BYTES]
    busy = [x for x in large if x.bound.segment_bytes > SMALL_BYTES]
    segment = [x for x in large if x.bound.segment_bytes >= x.bound.port_bytes]
    small = [x for x in lines if x not in large]
    yield f"tensors above 64 KiB: {near(large)}"
    yield f"of these, bound by the busiest segment and not by a sender: {near(segment)}"
    yield f"more than 64 KiB over the busiest segment: {near(busy)}"
    missed = [x for x in large if x.misses]
    never = sum(x.bound.floor_cycles > NEAR * x.bound.cycles for x in missed)
    yield f"above 64 KiB and not within {NEAR} x the bound: {len(missed)}; no plan can be: {never}"
    if without := sum(x.never for x in missed):
        yield f"of these, none without relays can be: {without}"
    over = sorted(x.cycles / x.bound.floor_cycles for x in large) or [1.0]
    yield f"above 64 KiB, cycles over the floor: median {over[len(over) // 2]:.2f}"
    if small:
        yield f"all {len(small)} others: {max(device.us(x.cycles) for x in small):.2f} us at most"
    logs = [log(x.price / x.cycles) for x in moving]
    rms = sqrt(sum(e * e for e in logs) / len(logs))
    rank = spearman([x.price for x in moving], [x.cycles for x in moving])
    yield f"price of the planner: {100 * rms:.1f} % RMS, Spearman {rank:.3f}"
    faster = [x.memory < x.cycles for x in moving]
    said = [x.memory < x.price for x in moving]
    right = sum(a == b for a, b in zip(faster, said, strict=True))
    yield f"through card memory is faster: {sum(faster)} times; told of {right} of {len(said)}"
    off = max(abs(x.planned / x.cycles - 1) for x in moving)
    yield f"planned time: {100 * off:.1f} % off at most"


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation."""
    ranks = [np.argsort(np.argsort(np.array(x))) for x in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


NEAR, SMALL_BYTES = 1.3, 65536


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", type=int, default=0, help="how many random pairs")
    parser.add_argument("--far", action="store_true", help="the patterns with copies far apart too")
    parser.add_argument("--only", nargs="*", default=(), help="names of cases")
    parser.add_argument("--no-room", action="store_true", help="with no room beside the buffers")
    parser.add_argument("--check", action="store_true", help="run with data, look for hazards")
    parser.add_argument("--prove", action="store_true", help="which misses need relays, at least")
    parser.add_argument("--device", default="spyre", help="a name or a .toml file")
    options = parser.parse_args()
    device = load_device(options.device)
    cases = [*patterns(), *(patterns(True) if options.far else ())]
    cases += map(random_case, range(options.random))
    print(
        f"{'case':<5} {'shape':<18} {'bytes':>9} {'segment':>11} {'bound':>8} {'floor':>8} "
        f"{'cycles':>8} {'ratio':>6} {'price':>8} {'memory':>9}"
    )
    lines = []
    for case in cases:
        if not options.only or case.name in options.only:
            line = measure(case, device, not options.no_room)
            lines.append(proved(line, device) if options.prove else line)
            print_line(lines[-1])
            if options.check:
                for fault in faults(case, device):
                    print(f"{case.name}: {fault}")
    for kind, some in (("patterns", "R"), ("random pairs", "#")):
        if chosen := [x for x in lines if x.case.name.startswith(some)]:
            print(f"{kind}:", *summary(chosen, device), sep="\n  ")


if __name__ == "__main__":
    main()
