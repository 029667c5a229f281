"""A program on a card: where its buffers are, what it is patched for, how it runs there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from spyrec.ir.errors import SpyrecError
from spyrec.sim.encoding import encode_kernel
from spyrec.sim.isa import STICK, Buffer, Program
from spyrec.sim.memory import Image, end_of, lone_constant, sharing
from spyrec.sim.run import Prepared
from spyrec.sim.stats import Observer, RunResult
from spyrec.sim.wellformed import limits_of

from .binding import Binding, Words, bind
from .memory import Allocation, CardMemory
from .ports import Port, ports, state_of
from .state import Form, State

BINDINGS_KEPT = 8


class Compiled(Protocol):
    """What can be loaded: anything with code for a device."""

    @property
    def code(self) -> Program: ...


@dataclass(frozen=True)
class Kept:
    """A state as one program has it: the input it reads, the output it writes; ``in_place`` when
    both may be one room."""

    state: State
    reads: Port
    writes: Port
    in_place: bool


@dataclass(eq=False)
class Loaded:
    """A program that is on a card. ``pieces``: buffer -> its allocation and the offset in it, of
    all but state. ``region``: where its corrections are copied to, in the program segment.

    ``bindings``: the program patched, by the addresses of its state; all else stays where it is.
    ``fed``: the inputs that hold something. ``ran``: its last run.
    """

    name: str
    prepared: Prepared
    jobs: int
    pieces: Mapping[str, tuple[Allocation, int]]
    region: Allocation
    kept: tuple[Kept, ...]
    bindings: dict[tuple[int, ...], Binding] = field(default_factory=dict)
    fed: set[str] = field(default_factory=set)
    launches: int = 0
    ran: RunResult | None = None
    live: bool = True

    @property
    def code(self) -> Program:
        return self.prepared.program

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        return ports(self.code, "input")

    @cached_property
    def outputs(self) -> tuple[Port, ...]:
        return ports(self.code, "output")

    @property
    def results(self) -> tuple[Port, ...]:
        """The outputs that are not the next value of state."""
        return tuple(p for p in self.outputs if self.state_at(p.buffer.name) is None)

    def use(self) -> None:
        """SpyrecError when it was unloaded."""
        if not self.live:
            raise SpyrecError(
                f"{self.name} was unloaded and its card memory freed; load the program again"
            )

    def port(self, kind: str, name: str) -> Port:
        """SpyrecError when it has no input or output of that name."""
        found = {p.name: p for p in (self.inputs if kind == "input" else self.outputs)}
        if name not in found:
            raise SpyrecError(
                f"{name!r} is no {kind} of {self.name}; it has {', '.join(found) or 'none'}"
            )
        return found[name]

    @cached_property
    def _states(self) -> Mapping[str, State]:
        return {p.buffer.name: k.state for k in self.kept for p in (k.reads, k.writes)}

    def state_at(self, buffer: str) -> State | None:
        """The state that an input or output buffer stands for."""
        return self._states.get(buffer)

    def piece(self, port: Port) -> tuple[Allocation, int]:
        """Where the elements of an input or output are now."""
        state = self.state_at(port.buffer.name)
        return (state.piece, 0) if state is not None else self.pieces[port.buffer.name]

    def bound(self, addresses: Mapping[str, int]) -> tuple[Binding, bool]:
        """The program patched for its state at ``addresses``, and whether that is new."""
        key = tuple(addresses.values())
        known = self.bindings.get(key)
        if known is not None:
            return known, False
        everything = {name: piece.address + at for name, (piece, at) in self.pieces.items()}
        words = sum(len(launch.args) for launch in self.code.launches)
        region: Words = self.region.data[: words * 8].view(np.uint64)
        made = bind(self.code, {**everything, **addresses}, region)
        if len(self.bindings) == BINDINGS_KEPT:
            del self.bindings[next(iter(self.bindings))]
        self.bindings[key] = made
        return made, True

    def run(
        self, memory: CardMemory, binding: Binding, *, timing_only: bool,
        observer: Observer | None = None,
    ) -> RunResult:
        """Step 3: run as patched. A run for time only is not simulated twice: time does not
        depend on data or addresses."""
        if timing_only:
            if self.ran is None or observer is not None:
                self.ran = self.prepared.run(None, observer)
            return self.ran
        images = {
            b.name: self._image(memory, b, binding) for b in self.code.buffers
            if b.name in self.pieces or self.state_at(b.name) is not None
        }
        for buffer in self._unwritten():
            images[buffer.name].valid[:] = False
        self.ran = self.prepared.run(images, observer)
        return self.ran

    def _image(self, memory: CardMemory, buffer: Buffer, binding: Binding) -> Image:
        size = end_of(buffer) - buffer.address
        label = f"{buffer.kind} buffer {buffer.name}"
        address = binding.addresses.get(buffer.name)
        if address is None:  # no launch names it
            state = self.state_at(buffer.name)
            piece, at = (state.piece, 0) if state is not None else self.pieces[buffer.name]
        else:
            piece, at = memory.at(address, size)
        return Image(
            piece.data[at : at + size], piece.valid[at // STICK : (at + size) // STICK], STICK,
            label, piece.constant,
        )

    def _unwritten(self) -> Iterator[Buffer]:
        """Buffers that hold nothing when a run begins."""
        for group in sharing(b for b in self.code.buffers if b.kind != "const"):
            if all(b.kind in ("temp", "output") for b in group):
                yield from (b for b in group if self.state_at(b.name) is None)


def layout_on_card(
    program: Program, name: str, memory: CardMemory, taken: list[Allocation]
) -> dict[str, tuple[Allocation, int]]:
    """Allocations for all buffers but state; equal constants are one, and those that no launch
    reads (what state is at first) are not there. Each is also appended to ``taken``. CapacityError
    when they do not fit, SimulationError when a constant shares addresses."""
    state = {n for kept in state_of(program).items() for n in kept}
    named = {name for launch in program.launches for name, _ in launch.args}
    mine = [
        b for b in program.buffers
        if (b.meta.get("name") not in state if b.kind in ("input", "output")
            else b.kind == "temp" or b.name in named)
    ]  # fmt: skip
    found: dict[str, tuple[Allocation, int]] = {}
    for group in sharing(mine):
        first = group[0]
        what = f"{first.kind} {first.name} of {name}"
        constant = lone_constant(group)
        if constant is not None:
            piece = memory.share(constant.data or b"", what)
        else:
            size = max(map(end_of, group)) - first.address
            piece = memory.allocate(size, what)
        taken.append(piece)
        found |= {b.name: (piece, b.address - first.address) for b in group}
    return found


def program_bytes(program: Program) -> int:
    """What a program takes of the program segment: its kernels' code, and a word for each
    correction."""
    limits = limits_of(program.device)
    code = [encode_kernel(kernel, limits) for kernel in program.kernels]
    words = sum(len(launch.args) for launch in program.launches)
    return sum(c.words.nbytes + c.patches.nbytes for c in code) + 8 * words


def forms(kept: Kept) -> Iterator[tuple[Form, int]]:
    """How many rooms of which form a program needs for a state."""
    reads, writes = Form.of(kept.reads), Form.of(kept.writes)
    if kept.in_place:
        yield reads, 1
    elif reads.place == writes.place:
        yield reads, 2
    else:
        yield reads, 1
        yield writes, 1
