"""A card: memory that outlives runs, programs loaded into it, streams of work on one clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from spyrec.ir.errors import SpyrecError
from spyrec.sim.device import DeviceSpec, load_device
from spyrec.sim.host import HostLaunch
from spyrec.sim.in_place import overwritable
from spyrec.sim.isa import STICK, Program
from spyrec.sim.run import prepare
from spyrec.sim.stats import Observer

from .jobs import Lanes, Span, checked_mode, cut, jobs_of, launch_steps
from .loaded import Compiled, Kept, Loaded, forms, layout_on_card, program_bytes
from .memory import Allocation, CardMemory, data_segments, program_segment
from .ports import Array, Port, check, first_state, pack, ports, state_of, unpack
from .state import Form, State, agreed
from .stream import Command, Event, Fetched, Stream, drain


class Card:
    """A simulated card. Programs are loaded once and launched any number of times; those that are
    loaded as one ``model`` share their state by name.

    ``host_launch``: what the host does on each launch (see sim/host.py); ``jobs``: the device jobs
    of a program, by default what the device file says. ``timeline``: what occupied host, link and
    device so far, on one clock of core cycles. ``notes``: sentences on conversions of state.

    >>> card = Card()
    >>> len(card.timeline), card.memory.used_bytes
    (0, 0)
    """

    def __init__(
        self, device: str | DeviceSpec = "spyre", *, host_launch: str = "bound",
        jobs: int | None = None,
    ) -> None:
        self.device = load_device(device) if isinstance(device, str) else device
        self.host_launch = checked_mode(host_launch)
        self.jobs = self.device.host.jobs if jobs is None else jobs
        self.memory = CardMemory("card memory", data_segments(self.device))
        self.program_memory = CardMemory("program segment", [program_segment(self.device)])
        self.timeline: list[Span] = []
        self.notes: list[str] = []
        self._states: dict[tuple[str, str], State] = {}
        self._streams: dict[str, Stream] = {}
        self._lanes = Lanes()
        self._number = count()
        self._now = 0

    # Programs -----------------------------------------------------------------------------------

    def load(self, program: Compiled, model: str = "") -> Loaded:
        """Put a program, its constants and its state on the card. A constant that is there already
        is shared; state that another program of ``model`` has is shared too.

        CapacityError when there is no room, SpyrecError when a state of that name is another
        tensor, ObjectError when the program is malformed.
        """
        code = cut(program.code, self.jobs) if self.jobs > 1 else program.code
        name = code.meta.get("model") or "the program"
        prepared = prepare(code, self.device)
        taken: list[Allocation] = []
        kept: list[Kept] = []
        try:
            pieces = layout_on_card(code, name, self.memory, taken)
            for one in self._kept(code, name, model):
                kept.append(one)
                one.state.users += 1
                self._make_room(one)
            region = self.program_memory.allocate(program_bytes(code), f"code of {name}")
        except Exception:
            self._give_back(taken, kept)
            raise
        return Loaded(name, prepared, self.jobs, pieces, region, tuple(kept))

    def unload(self, loaded: Loaded) -> None:
        """Free what only this program needs. SpyrecError when it was unloaded before."""
        loaded.use()
        loaded.live = False
        self._give_back([*dict.fromkeys(p for p, _ in loaded.pieces.values())], loaded.kept)
        self.program_memory.free(loaded.region)

    def _kept(self, code: Program, name: str, model: str) -> Iterator[Kept]:
        inputs = {p.name: p for p in ports(code, "input")}
        outputs = {p.name: p for p in ports(code, "output")}
        first = first_state(code)
        pairs = [(inputs[before], outputs[after]) for before, after in state_of(code).items()]
        alike = [(r.buffer.name, w.buffer.name) for r, w in pairs if Form.of(r).reads(Form.of(w))]
        in_place = overwritable(code, self.device, alike)
        for reads, writes in pairs:
            before = reads.name
            state = self._states.get((model, before))
            if state is not None:
                agreed(state, reads, name)
            else:
                state = State(before, first[before], Form.of(reads))
                self._states[model, before] = state
            proven = (reads.buffer.name, writes.buffer.name) in in_place
            yield Kept(state, reads, writes, proven)

    def _make_room(self, kept: Kept) -> None:
        empty = not kept.state.rooms
        for form, rooms in forms(kept):
            kept.state.claim(self.memory, form, rooms)
        if empty:
            kept.state.put(kept.reads, kept.state.first, 0)

    def _give_back(self, pieces: list[Allocation], kept: tuple[Kept, ...] | list[Kept]) -> None:
        for piece in pieces:
            self.memory.free(piece)
        for one in kept:
            one.state.users -= 1
            if not one.state.users:
                one.state.free(self.memory)
                self._states = {k: s for k, s in self._states.items() if s is not one.state}

    def mode(self, loaded: Loaded) -> HostLaunch:
        """How its next launch goes: the first constructs everything, whatever is kept then."""
        return self.host_launch if loaded.launches else "graph"

    # State --------------------------------------------------------------------------------------

    def state(self, loaded: Loaded) -> dict[str, Array]:
        """What the state of a program holds when all work is done, by the names of its inputs."""
        loaded.use()
        self.synchronize()
        return {k.state.name: k.state.get(k.reads) for k in loaded.kept}

    def reset(self, loaded: Loaded) -> None:
        """Put its state back to what the model was exported with, when all work is done."""
        loaded.use()
        self.synchronize()
        for one in loaded.kept:
            room = next(i for i, (form, _) in enumerate(one.state.rooms)
                        if form == Form.of(one.reads).place)  # fmt: skip
            one.state.put(one.reads, one.state.first, room)

    # Streams ------------------------------------------------------------------------------------

    def stream(self, name: str = "main") -> Stream:
        """The stream of that name."""
        return self._streams.setdefault(name, Stream(name))

    def put(self, stream: Stream, loaded: Loaded, name: str, array: Array) -> None:
        """Copy an array into an input. SpyrecError when there is no such input, or the array is
        not of its shape and element type."""
        loaded.use()
        port = loaded.port("input", name)
        check([port], {name: array}, loaded.name)
        data = pack(port, array)
        self._enqueue(stream, lambda cycle: self._put(stream, cycle, loaded, port, data))

    def launch(
        self, stream: Stream, loaded: Loaded, *, timing_only: bool = False,
        observer: Observer | None = None,
    ) -> None:
        """Run a program. ``timing_only``: count cycles and touch no data, so inputs and state may
        hold anything and stay as they are."""
        loaded.use()
        self._enqueue(
            stream, lambda cycle: self._launch(stream, cycle, loaded, timing_only, observer)
        )

    def get(self, stream: Stream, loaded: Loaded, name: str) -> Fetched:
        """Copy an output to the host."""
        loaded.use()
        port = loaded.port("output", name)
        fetched = Fetched(f"output {name!r} of {loaded.name}")
        self._enqueue(stream, lambda cycle: self._get(stream, cycle, loaded, port, fetched))
        return fetched

    def record(self, stream: Stream, name: str = "") -> Event:
        """An event that is reached when all that ``stream`` was given so far is done."""
        event = Event(name or f"event {next(self._number)}")
        self.record_event(stream, event)
        return event

    def record_event(self, stream: Stream, event: Event) -> None:
        """The same for an event that others may wait for already. SpyrecError when it was
        recorded before."""
        if event.recorded_by:
            raise SpyrecError(
                f"event {event.name} is already recorded by stream {event.recorded_by}; an event "
                "is recorded once, make another"
            )
        event.recorded_by = stream.name
        self._enqueue(stream, lambda cycle: cycle, records=event)

    def wait(self, stream: Stream, event: Event) -> None:
        """What ``stream`` is given from now on begins when the event is reached."""
        self._enqueue(stream, lambda cycle: cycle, waits=event)

    def synchronize(self) -> int:
        """Carry out all work of all streams; the cycle in which the last of it was done.

        SpyrecError when streams wait for one another, or when an input holds nothing;
        SimulationError when a program breaks a rule of the machine: what was handed in behind it is
        dropped. Streams that only wait keep what they were given.
        """
        streams = [*self._streams.values()]
        drain(streams)
        self._now = max([self._now, *(s.free_cycle for s in streams)])
        for stream in streams:
            stream.free_cycle = self._now
        return self._now

    def _enqueue(self, stream: Stream, run: Any, **events: Event) -> None:
        if self._streams.get(stream.name) is not stream:
            raise SpyrecError(f"stream {stream.name} is none of this card; ask it for one")
        stream.commands.append(Command(next(self._number), run, **events))

    # What commands do ---------------------------------------------------------------------------

    def _put(
        self, stream: Stream, cycle: int, loaded: Loaded, port: Port, data: bytes
    ) -> int:
        loaded.use()
        piece, at = loaded.piece(port)
        state = loaded.state_at(port.buffer.name)
        if state is not None:
            state.put(port, unpack(port, data), self._room(state, port))
        else:
            _fill(piece, at, data)
        loaded.fed.add(port.name)
        return self._copy("up", f"{port.name} of {loaded.name}", stream, cycle, len(data))

    def _room(self, state: State, port: Port) -> int:
        """Where a state is put as ``port`` wants it."""
        form = Form.of(port).place
        same = state.rooms[state.current][0] == form
        return state.current if same else state.other(form)

    def _get(
        self, stream: Stream, cycle: int, loaded: Loaded, port: Port, fetched: Fetched
    ) -> int:
        loaded.use()
        state = loaded.state_at(port.buffer.name)
        piece, at = loaded.piece(port)
        if state is not None:
            fetched.array = state.get(port)
        else:
            fetched.array = unpack(port, piece.data[at : at + port.buffer.size].tobytes())
        what = f"{port.name} of {loaded.name}"
        return self._copy("down", what, stream, cycle, port.buffer.size)

    def _launch(
        self, stream: Stream, cycle: int, loaded: Loaded, timing_only: bool,
        observer: Observer | None,
    ) -> int:
        loaded.use()
        addresses: dict[str, int] = {}
        targets: list[int] = []
        for kept in loaded.kept:
            state = kept.state
            if not timing_only:
                cycle = self._converted(stream, cycle, loaded, kept)
            room = state.current if kept.in_place else self._target(kept)
            addresses[kept.reads.buffer.name] = state.piece.address
            addresses[kept.writes.buffer.name] = state.rooms[room][1].address
            targets.append(room)
        if not timing_only:
            self._check_fed(loaded)
        binding, new = loaded.bound(addresses)
        ran = loaded.run(self.memory, binding, timing_only=timing_only, observer=observer)
        if not timing_only:
            for kept, room in zip(loaded.kept, targets, strict=True):
                kept.state.current, kept.state.form = room, Form.of(kept.writes)
        jobs = jobs_of(loaded.code, loaded.jobs, ran.launches)
        spans, self._lanes = launch_steps(
            self.device, self.mode(loaded), jobs, self._lanes, host_from=self._now,
            device_from=cycle, what=loaded.name, stream=stream.name,
            correct=True if new else None,
        )
        loaded.launches += 1
        self.timeline += spans
        return max([cycle, *(s.end_cycle for s in spans)])

    def _target(self, kept: Kept) -> int:
        return kept.state.other(Form.of(kept.writes).place)

    def _converted(self, stream: Stream, cycle: int, loaded: Loaded, kept: Kept) -> int:
        """The state in the layout in which the program reads it, and when that is so."""
        before = kept.state.form
        moved = kept.state.convert(kept.reads)
        if not moved:
            return cycle
        what = f"{kept.state.name} for {loaded.name}"
        there = moved - kept.reads.buffer.size
        done = self._copy("down", what, stream, cycle, there)
        done = self._copy("up", what, stream, done, kept.reads.buffer.size)
        self.notes.append(
            f"state {kept.state.name!r} lies as {before}, {loaded.name} reads it as "
            f"{kept.state.form}: laid out anew by the host, {moved} bytes over the link, "
            f"{self.device.us(done - cycle):.1f} us"
        )
        return done

    def _check_fed(self, loaded: Loaded) -> None:
        state = {k.reads.name for k in loaded.kept}
        missing = [
            p.name for p in loaded.inputs if p.name not in state and p.name not in loaded.fed
        ]
        if missing:
            raise SpyrecError(
                f"{loaded.name} was launched before anything was put into its input "
                f"{', '.join(map(repr, missing))}"
            )

    def _copy(self, lane: str, what: str, stream: Stream, cycle: int, nbytes: int) -> int:
        """Occupy one way of the link."""
        free = self._lanes.up if lane == "up" else self._lanes.down
        start = max(cycle, self._now, free)
        end = start + self.device.host_cycles(self.device.host.link_ns(nbytes))
        lanes = self._lanes
        self._lanes = replace(lanes, up=end) if lane == "up" else replace(lanes, down=end)
        self.timeline.append(Span(lane, what, start, end, stream.name))
        return end


def _fill(piece: Allocation, at: int, data: bytes) -> None:
    """Put a host's bytes into a piece; what they leave of their last stick is padding."""
    end = at + len(data)
    whole = -(-end // STICK) * STICK
    piece.data[at:end] = np.frombuffer(data, np.uint8)
    piece.data[end:whole] = 0
    piece.valid[at // STICK : whole // STICK] = True
