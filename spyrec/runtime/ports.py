"""Host arrays to device bytes and back: what a user's inputs must be, how they are laid out in card
memory, and how outputs are read from it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from spyrec.ir.errors import SpyrecError
from spyrec.ir.layout import Layout, parse_layout
from spyrec.ir.rounding import round_to
from spyrec.ir.types import DType, dtype
from spyrec.passes.legalize_dtypes import float_limits
from spyrec.sim.errors import ObjectError
from spyrec.sim.formats import decode, encode, format_of, quantize
from spyrec.sim.isa import STICK, Buffer, Program

Array = np.ndarray[Any, Any]

RANGES = {"i32": (-(2**31), 2**31 - 1), "i8": (-128, 127), "i4": (-8, 7)}
"""Least and greatest number of each whole-number device format."""


class Described(Protocol):
    """What has a shape and an element type: an array, or its header in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...


@dataclass(frozen=True)
class Port:
    """A model input or output.

    ``name``, ``dtype`` and ``shape`` are the model's own; ``stored`` is the device format of its
    elements, ``layout`` where each lies in ``buffer`` (None when the shape holds no element).
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    stored: str
    layout: Layout | None
    buffer: Buffer

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{'x'.join(map(str, self.shape))}]"


def ports(program: Program, kind: str) -> tuple[Port, ...]:
    """The buffers of ``kind`` ("input" or "output") as the model sees them, in order.

    ObjectError when a buffer lacks what the host must know of it.
    """
    return tuple(port_of(b) for b in program.buffers if b.kind == kind)


def state_of(program: Program) -> dict[str, str]:
    """Input -> the output that is its value in the next run, of inputs that are state."""
    return {
        b.meta["name"]: b.meta["state"]
        for b in program.buffers if b.kind == "input" and {"name", "state"} <= b.meta.keys()
    }


def first_state(program: Program) -> dict[str, Array]:
    """What the state of a program is before its first run."""
    data = {b.name: b.data for b in program.buffers if b.kind == "const"}
    found = {}
    for port in ports(program, "input"):
        if "state" in port.buffer.meta:
            first = data.get(port.buffer.meta.get("first", ""))
            found[port.name] = (
                np.zeros(port.shape, port.dtype.np_dtype) if first is None
                else unpack(port, bytes(first))
            )
    return found


def port_of(buffer: Buffer) -> Port:
    """A buffer as the model sees it. ObjectError when it lacks what the host must know of it."""
    needed = ("name", "dtype", "shape", "device_dtype", "layout")
    missing = [key for key in needed if key not in buffer.meta]
    if missing:
        raise ObjectError(
            f"{buffer.kind} buffer {buffer.name} does not say its {', '.join(missing)}, so no "
            "array can be put into or read from it; compile the model again"
        )
    meta = buffer.meta
    shape, host = _shape(buffer), dtype(meta["dtype"])
    layout = None if 0 in shape else parse_layout(meta["layout"])
    width = format_of(meta["device_dtype"]).bits
    if layout is not None and (layout.shape != (shape or (1,)) or layout.bits != width):
        raise ObjectError(
            f"buffer {buffer.name} holds {meta['device_dtype']} elements in the shape "
            f"{list(shape)}, but its layout is {layout}; compile the model again"
        )
    return Port(meta["name"], host, shape, meta["device_dtype"], layout, buffer)


def _shape(buffer: Buffer) -> tuple[int, ...]:
    """The shape in a buffer's meta, "2x3" or "" of a scalar."""
    text = buffer.meta["shape"]
    if not re.fullmatch(r"([0-9]{1,15}(x[0-9]{1,15}){0,31})?", text):
        raise ObjectError(
            f"{buffer.kind} buffer {buffer.name} has the shape {text[:80]!r}, expected numbers as "
            "in '2x3'; compile the model again"
        )
    return tuple(int(d) for d in text.split("x")) if text else ()


def check(wanted: Sequence[Port], given: Mapping[str, Described], origin: str = "inputs") -> None:
    """SpyrecError that lists every missing, unknown, wrongly typed or wrongly shaped input at once.
    State may be missing: it is then as in a first run.

    Element types must be the model's own; int widths and float widths are not converted silently.
    """
    problems = []
    for port in wanted:
        want = f"{port.dtype.np_dtype}{list(port.shape)}"
        if port.name not in given:
            if "state" in port.buffer.meta:
                continue
            problems.append(f"input {port.name!r} is missing; expected {want}")
            continue
        array = given[port.name]
        if array.dtype != port.dtype.np_dtype or tuple(array.shape) != port.shape:
            got = f"{array.dtype}{list(array.shape)}"
            problems.append(f"input {port.name!r}: expected {want}, got {got}")
    known = {port.name for port in wanted}
    names = ", ".join(sorted(known)) or "none"
    problems += [
        f"{name!r} is not an input of the model; its inputs are: {names}"
        for name in given if name not in known
    ]
    if problems:
        raise SpyrecError("\n".join(f"{origin}: {p}" for p in problems))


def random_inputs(wanted: Sequence[Port], seed: int) -> dict[str, Array]:
    """Seeded inputs: floats normal, ints uniform in 0..9, truth values and masks 0 or 1.

    An input's values depend on the seed and its name only, not on the other inputs.
    """
    return {port.name: _random(port, seed) for port in wanted}


def _random(port: Port, seed: int) -> Array:
    rng = np.random.default_rng([seed, zlib.crc32(port.name.encode("utf-8"))])
    host = port.dtype.np_dtype
    called = port.name.lower()
    if port.dtype.kind == "bool" or "mask" in called:
        return rng.integers(0, 2, port.shape).astype(host)
    if port.dtype.kind == "float":
        return round_to(rng.standard_normal(port.shape), port.dtype)
    high = 2 if "token_type" in called or "segment" in called else 10
    return rng.integers(0, high, port.shape).astype(host)


def pack(port: Port, array: Array, poison: bool = False) -> bytes:
    """The bytes of the port's buffer for ``array`` (the model's own shape and element type).

    ``poison``: slots whose content the layout calls undefined get all bits set, not 0, so that a
    kernel that reads them shows it. In a 16-bit format infinities, and what is beyond its range,
    become its largest numbers, as in constants: a mask of -inf hides. SpyrecError when whole
    numbers do not fit the device's format.
    """
    if port.layout is None:
        return b""
    _check_size(port, port.layout)
    _check_range(port, array)
    return stored_bytes(_within(port, array), port.layout, port.stored, _pad_bits(port, poison))


def _within(port: Port, array: Array) -> Array:
    if array.dtype.kind != "f" or port.stored == "f32" or format_of(port.stored).bits != 16:
        return array
    largest, _ = float_limits(dtype(port.stored))
    wide = array.astype(np.promote_types(array.dtype, np.float32), copy=False)
    return np.asarray(np.clip(wide, -largest, largest))


def stored_bytes(array: Array, layout: Layout, fmt: str, pad: int = 0) -> bytes:
    """An array's bytes in a device format and layout; slots that hold no element get the bits
    ``pad``."""
    if format_of(fmt).bits < 8:  # two elements share a byte: place the elements first
        return encode(layout.pack(array.astype(np.int8), pad), fmt).tobytes()
    return layout.pack(encode(array, fmt), pad).tobytes()


def _check_range(port: Port, array: Array) -> None:
    if port.stored not in RANGES or array.dtype.kind not in "iu" or not array.size:
        return
    least, most = RANGES[port.stored]
    low, high = int(array.min()), int(array.max())
    if low < least or high > most:
        raise SpyrecError(
            f"input {port.name!r} holds whole numbers from {low} to {high}; the device keeps them "
            f"as {port.stored}, so they must lie in {least}..{most}"
        )


def _check_size(port: Port, layout: Layout) -> None:
    nbytes = layout.cores * layout.loops * layout.sticks * STICK
    if nbytes != port.buffer.size:
        raise ObjectError(
            f"buffer {port.buffer.name} has {port.buffer.size} bytes but its layout {layout} "
            f"takes {nbytes}; compile the model again"
        )


def _pad_bits(port: Port, poison: bool) -> int:
    """The storage bits of slots that hold no element."""
    assert port.layout is not None
    match port.layout.pad:
        case "zero":
            return 0
        case "undefined":
            return 2 ** format_of(port.stored).bits - 1 if poison else 0
        case state:
            raise ObjectError(
                f"buffer {port.buffer.name} wants {state} in its padding; the host writes only "
                "zero or undefined padding, a kernel must make the rest"
            )


def unpack(port: Port, data: bytes) -> Array:
    """The model's array out of the bytes of the port's buffer."""
    host = port.dtype.np_dtype
    if port.layout is None:
        return np.empty(port.shape, host)
    _check_size(port, port.layout)
    fmt = format_of(port.stored)
    bits = np.frombuffer(data, fmt.storage)
    slots = (port.layout.cores, port.layout.loops * port.layout.sticks, port.layout.lanes)
    if fmt.bits < 8:
        values = port.layout.unpack(decode(bits, port.stored).astype(np.int8).reshape(slots))
    else:
        values = decode(port.layout.unpack(bits.reshape(slots)), port.stored)
    values = values.reshape(port.shape)
    if port.dtype.kind == "int" and values.dtype.kind == "f":
        values = np.rint(values)
    array: Array = values.astype(host) if port.dtype.kind != "bool" else values != 0
    return array


def overflow_warnings(given: Iterable[tuple[Port, Array]]) -> list[str]:
    """One sentence for each input whose finite values leave the range of its device format."""
    found = []
    for port, array in given:
        if port.dtype.kind == "float" and port.stored != "f32":
            kept = quantize(array, port.stored)
            lost = int(np.count_nonzero(np.isfinite(array) & ~np.isfinite(kept)))
            if lost:
                found.append(
                    f"input {port.name!r}: {lost} of {array.size} values are beyond the range of "
                    f"{port.stored} and become its largest"
                )
    return found


def nan_warnings(outputs: Iterable[tuple[Port, Array]]) -> list[str]:
    """One sentence for each output that holds NaN or infinity."""
    found = []
    for port, array in outputs:
        bad = int(np.count_nonzero(~np.isfinite(array))) if port.dtype.kind == "float" else 0
        if bad:
            found.append(
                f"output {port.name!r}: {bad} of {array.size} values are NaN or infinite: "
                f"something overflowed {port.stored}, or an input held such values"
            )
    return found
