"""The memories of a functional run as byte images with a shadow bit per unit: was it ever
written?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .device import DeviceSpec
from .errors import SimulationError
from .isa import LANES, STICK, Buffer, Program

POISON = 0x7FFF  # 16-bit pattern that is NaN in the device's formats
ACC_UNIT = LANES * 4  # bytes of one accumulator group


@dataclass(frozen=True)
class Image:
    """A piece of memory. ``data``: its bytes; ``valid``: one flag per ``unit`` bytes (the unit its
    addresses count); ``label`` names it in errors; ``constant``: may not be written."""

    data: NDArray[np.uint8]
    valid: NDArray[np.bool_]
    unit: int
    label: str
    constant: bool = False

    def check_range(self, low: int, end: int) -> None:
        """SimulationError unless units ``low..end - 1`` exist."""
        if low < 0 or end > len(self.valid):
            raise SimulationError(
                f"{self.label} has {self._units(0, len(self.valid))}, but the access is to "
                f"{self._units(low, end)}, {'before its start' if low < 0 else 'beyond its end'}"
            )

    def check_written(self, flags: NDArray[np.bool_], first: int) -> None:
        """SimulationError unless all ``flags`` (of units read) are set; ``first`` is one that
        is not."""
        if not flags.all():
            raise SimulationError(
                f"{self.label} is read at {self._units(first, first + 1)}, which nothing has "
                "written"
            )

    def check_writable(self) -> None:
        if self.constant:
            raise SimulationError(f"{self.label} is a constant, but it is written")

    def view(
        self, storage: Any, base: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Any:
        """A strided window: ``base`` in bytes, ``strides`` in bytes. The caller checked its
        range."""
        return np.ndarray(shape, storage, self.data, base, strides)

    def flags(
        self, base: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> NDArray[np.bool_]:
        """The same window over the shadow bits, everything counted in units."""
        return np.ndarray(shape, np.bool_, self.valid, base, strides)

    def _units(self, low: int, end: int) -> str:
        word = "stick" if self.unit == STICK else "group"
        return f"{word} {low}" if end == low + 1 else f"{word}s {low}..{end - 1}"


@dataclass(frozen=True)
class Memory:
    """All memories of a run. ``lx``, ``acc``: an image per core; ``hbm``: an image per buffer,
    those that share addresses sharing their bytes."""

    lx: tuple[Image, ...]
    acc: tuple[Image, ...]
    hbm: Mapping[str, Image]
    poison: bool

    def output(self, buffer: Buffer) -> bytes:
        """The bytes of an output after the run; SimulationError when part of it was never
        written."""
        self.check_complete(buffer)
        return self.hbm[buffer.name].data[: buffer.size].tobytes()

    def check_complete(self, buffer: Buffer) -> None:
        """SimulationError when part of an output was never written."""
        image = self.hbm[buffer.name]
        missing = np.flatnonzero(~image.valid)
        if len(missing):
            raise SimulationError(
                f"output buffer {buffer.name} is incomplete: {len(missing)} of "
                f"{len(image.valid)} sticks were never written, the first is {missing[0]}"
            )


def build_memory(
    program: Program, device: DeviceSpec, inputs: Mapping[str, bytes], poison: bool
) -> Memory:
    """Memories before the first launch: constants and inputs in place, the rest never written.

    SimulationError when an input is missing, unknown or of the wrong size, or a constant shares
    addresses with another buffer.
    """
    _check_inputs(program, inputs)
    hbm: dict[str, Image] = {}
    for group in sharing(program.buffers):
        hbm.update(_region(group, poison))
    for name, data in inputs.items():
        _fill(hbm[name], data, poison)
    return around_card(device, hbm, poison)


def around_card(device: DeviceSpec, hbm: Mapping[str, Image], poison: bool = False) -> Memory:
    """Card memory as it is, and the cores' memories before a run: never written."""
    cores = range(device.cores.count)
    lx = [
        _blank(device.lx.usable_bytes, STICK, f"the scratchpad of core {c}", poison) for c in cores
    ]
    acc = [
        _blank(device.pt.acc_groups * ACC_UNIT, ACC_UNIT, f"the accumulator of core {c}", poison)
        for c in cores
    ]
    return Memory(tuple(lx), tuple(acc), hbm, poison)


def _check_inputs(program: Program, inputs: Mapping[str, bytes]) -> None:
    wanted = {b.name: b.size for b in program.buffers if b.kind == "input"}
    problems = [f"input {name} is missing" for name in wanted if name not in inputs]
    problems += [f"{name} is not an input of the program" for name in inputs if name not in wanted]
    problems += [
        f"input {name} has {len(inputs[name])} bytes; the buffer holds {size}"
        for name, size in wanted.items()
        if name in inputs and len(inputs[name]) != size
    ]
    if problems:
        raise SimulationError("; ".join(problems))


def _blank(size: int, unit: int, label: str, poison: bool) -> Image:
    size -= size % unit
    data = np.zeros(size, np.uint8)
    if poison:
        data.view(np.uint16)[:] = POISON
    return Image(data, np.zeros(size // unit, np.bool_), unit, label)


def end_of(buffer: Buffer) -> int:
    """The first byte address behind a buffer's last stick."""
    return buffer.address - (-buffer.size // STICK) * STICK


def sharing(buffers: Iterable[Buffer]) -> list[list[Buffer]]:
    """Buffers in groups that are connected by common addresses."""
    groups: list[list[Buffer]] = []
    end = -1
    for buffer in sorted(buffers, key=lambda b: (b.address, b.name)):
        if groups and buffer.address < end:
            groups[-1].append(buffer)
        else:
            groups.append([buffer])
        end = max(end, end_of(buffer))
    return groups


def lone_constant(group: Sequence[Buffer]) -> Buffer | None:
    """The constant that a group of ``sharing`` is; SimulationError when others are in its place."""
    constants = [b for b in group if b.kind == "const"]
    if constants and len(group) > 1:
        other = next(b for b in group if b is not constants[0])
        raise SimulationError(
            f"constant buffer {constants[0].name} shares card memory with {other.name}; "
            "give them addresses apart"
        )
    return constants[0] if constants else None


def _region(group: list[Buffer], poison: bool) -> dict[str, Image]:
    constant = lone_constant(group)
    if constant is not None:
        return {constant.name: _constant(constant, poison)}
    start = group[0].address
    whole = _blank(max(map(end_of, group)) - start, STICK, "", poison)
    return {b.name: _part(whole, b, start) for b in group}


def _part(whole: Image, buffer: Buffer, start: int) -> Image:
    low, high = buffer.address - start, end_of(buffer) - start
    return Image(
        whole.data[low:high], whole.valid[low // STICK : high // STICK], STICK,
        f"{buffer.kind} buffer {buffer.name}",
    )


def _constant(buffer: Buffer, poison: bool) -> Image:
    label = f"const buffer {buffer.name}"
    sticks = -(-buffer.size // STICK)
    if buffer.size % STICK == 0:
        data = np.frombuffer(buffer.data or b"", np.uint8)
        return Image(data, np.ones(sticks, np.bool_), STICK, label, constant=True)
    image = _blank(sticks * STICK, STICK, label, poison)
    _fill(image, bytes(buffer.data or b""), poison)
    return Image(image.data, image.valid, STICK, label, constant=True)


def _fill(image: Image, data: bytes, poison: bool) -> None:
    """Put a host's bytes in place; what they leave of their last stick is padding."""
    image.data[: len(data)] = np.frombuffer(data, np.uint8)
    image.data[len(data) :] = np.frombuffer(
        POISON.to_bytes(2, "little") * (STICK // 2), np.uint8
    )[len(data) % STICK or STICK :] if poison else 0
    image.valid[:] = True
