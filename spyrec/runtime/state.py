"""State on a card: a tensor that programs read and write in turn, and the rooms it lives in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from spyrec.ir.errors import SpyrecError
from spyrec.ir.layout import Layout

from .memory import Allocation, CardMemory
from .ports import Array, Port, pack, unpack


@dataclass(frozen=True)
class Form:
    """How a program lays a tensor out: format of the elements, where each lies, bytes."""

    stored: str
    layout: Layout | None
    size: int

    @staticmethod
    def of(port: Port) -> Form:
        return Form(port.stored, port.layout, port.buffer.size)

    @property
    def place(self) -> Form:
        """The same with nothing said about padding: forms alike in it lie in the same bytes."""
        layout = self.layout
        return replace(self, layout=layout and replace(layout, pad="undefined"))

    def reads(self, there: Form) -> bool:
        """Whether who wants this form may read bytes in the other as they are."""
        wants = self.layout is not None and self.layout.pad != "undefined"
        return self == there if wants else self.place == there.place

    def __str__(self) -> str:
        return f"{self.stored} {self.layout}"


@dataclass(eq=False)
class State:
    """A tensor called ``name`` whose elements are in room number ``current``, in ``form``.

    A program that does not surely read each element before it writes it (see sim/in_place.py)
    gets another room to write to; then that one is current. Nothing is copied.
    """

    name: str
    first: Array
    form: Form
    rooms: list[tuple[Form, Allocation]] = field(default_factory=list)
    current: int = 0
    users: int = 0

    @property
    def piece(self) -> Allocation:
        return self.rooms[self.current][1]

    def claim(self, memory: CardMemory, form: Form, count: int) -> None:
        """See to it that there are ``count`` rooms for the form. CapacityError without space."""
        there = sum(known == form.place for known, _ in self.rooms)
        for _ in range(there, count):
            what = f"state {self.name}, room {len(self.rooms) + 1}"
            self.rooms.append((form.place, memory.allocate(form.size, what)))

    def other(self, form: Form) -> int:
        """A room for the form that is not the current one."""
        return next(
            i for i, (known, _) in enumerate(self.rooms)
            if known == form.place and i != self.current
        )

    def put(self, port: Port, array: Array, room: int) -> None:
        """Its elements from the host, into a room as ``port`` wants them."""
        self.current, self.form = room, Form.of(port)
        data = pack(port, array)
        piece = self.piece
        piece.data[: len(data)] = np.frombuffer(data, np.uint8)
        piece.data[len(data) :] = 0
        piece.valid[:] = True

    def get(self, port: Port) -> Array:
        """Its elements; ``port`` tells shape and element type, the state's form how they lie."""
        there = replace(
            port, stored=self.form.stored, layout=self.form.layout,
            buffer=replace(port.buffer, size=self.form.size),
        )
        return unpack(there, self.piece.data[: self.form.size].tobytes())

    def convert(self, port: Port) -> int:
        """Lay it out as ``port`` reads it, by way of the host: the bytes that cross the link."""
        wanted = Form.of(port)
        if wanted.reads(self.form):
            return 0
        moved = self.form.size + wanted.size
        array = self.get(port)
        # same bytes, other padding: in the room it is in
        same = self.rooms[self.current][0] == wanted.place
        self.put(port, array, self.current if same else self.other(wanted))
        return moved

    def free(self, memory: CardMemory) -> None:
        for _, piece in self.rooms:
            memory.free(piece)
        self.rooms = []


def agreed(state: State, port: Port, program: str) -> None:
    """SpyrecError when a program keeps something else by the name of a state."""
    shape, dtype = state.first.shape, state.first.dtype
    if shape != port.shape or dtype != port.dtype.np_dtype:
        raise SpyrecError(
            f"two programs keep {state.name!r}, one as {dtype}{list(shape)}, the other as "
            f"{port.dtype.np_dtype}{list(port.shape)} ({program})"
        )
