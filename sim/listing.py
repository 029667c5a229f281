"""The assembler listing of a program: ``disassemble`` prints it, ``assemble`` reads it back to the
same object bytes. The grammar stands in listing.lark."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np

from .assembler import LISTING_VERSION, assemble
from .claim_file import pack_claims
from .isa import (
    GO,
    OPCODES,
    SCALARS,
    UNITS,
    Bucket,
    Buffer,
    Guard,
    Instr,
    Kernel,
    Launch,
    Limit,
    Loop,
    MicroProgram,
    Note,
    Num,
    Operand,
    Program,
    Signal,
    Stream,
    Wait,
)

__all__ = ["assemble", "disassemble", "kernel_listing"]

SETS = ("cores", "far", "axes", "acc_levels")  # immediates that are bit sets
HEXES = ("fill", "value", *SCALARS)  # immediates that are bit patterns
_BARE = re.compile(r"[A-Za-z0-9_./:-]+")
_BASE64_BYTES = 66  # of compressed data on one line


def disassemble(program: Program, *, data: bool = True) -> str:
    """The listing. Without ``data`` the bytes of constants are left out: not to be assembled."""
    return "".join(line + "\n" for line in _program(program, data))


def kernel_listing(kernel: Kernel) -> str:
    """The part of a listing that is one kernel."""
    return "".join(line + "\n" for line in _kernel(kernel))


def _program(program: Program, data: bool) -> Iterator[str]:
    yield f"spyrec {LISTING_VERSION}"
    for key, value in sorted(program.meta.items()):
        yield f"meta {_quoted(key)} = {_quoted(value)}"
    yield from _device(program.device)
    for buffer in program.buffers:
        yield from _buffer(buffer, data)
    for kernel in program.kernels:
        yield ""
        yield from _kernel(kernel)
    if program.launches:
        yield ""
    for launch in program.launches:
        yield from _launch(launch, program.kernels)
    for bucket in program.buckets:
        yield from _bucket(bucket)
    if claims := pack_claims(program):
        yield ""
        yield "claims"
        yield from _packed(claims)


def _device(text: str) -> Iterator[str]:
    if not text:
        return
    if "\r" in text:  # would not survive a text file
        yield f"device {_quoted(text)}"
        return
    yield "device"
    for line in text.split("\n"):
        yield f"  | {line}" if line else "  |"


def _buffer(buffer: Buffer, data: bool) -> Iterator[str]:
    head = f"buffer {buffer.kind} {_name('%', buffer.name)} size {buffer.size} at {buffer.address}"
    inside = [f"meta {_quoted(k)} = {_quoted(v)}" for k, v in sorted(buffer.meta.items())]
    if buffer.data is not None and buffer.size:
        inside += _data(buffer.data) if data else ["# data left out"]
    if not inside:
        yield head
        return
    yield head + " {"
    for line in inside:
        yield "  " + line
    yield "}"


def _data(data: bytes | memoryview) -> Iterator[str]:
    """A repeated unit of 1, 2 or 4 bytes, else zlib in base64."""
    array = np.frombuffer(data, np.uint8)
    for period in (1, 2, 4):
        if array.size % period == 0 and (array[period:] == array[:-period]).all():
            yield f"splat 0x{array[:period].tobytes().hex()}"
            return
    yield "zlib"
    yield from _packed(data)


def _packed(data: bytes | memoryview) -> Iterator[str]:
    packed = zlib.compress(data)
    for i in range(0, len(packed), _BASE64_BYTES):
        yield "  | " + base64.b64encode(packed[i : i + _BASE64_BYTES]).decode()


def _launch(launch: Launch, kernels: Sequence[Kernel]) -> Iterator[str]:
    kernel = kernels[launch.kernel]
    args = ", ".join(
        f"{_name('$', symbol)}={_name('%', buffer)} + {offset}"
        for symbol, (buffer, offset) in zip(kernel.params, launch.args, strict=True)
    )
    after = f" after {_comma(launch.after)}" if launch.after else ""
    how = (" early" if launch.early else "") + (f" {launch.joint}" if launch.joint else "")
    yield f"launch {_name('@', kernel.name)} ({args}){after}{how}{' {' if launch.notes else ''}"
    if launch.notes:
        yield from _notes(launch.notes)
        yield "}"


def _bucket(bucket: Bucket) -> Iterator[str]:
    yield f"bucket {_quoted(bucket.name)} launches {bucket.launches} {{"
    for dim, size in sorted(bucket.sizes.items()):
        yield f"  size {_quoted(dim)} = {size}"
    for key, value in sorted(bucket.meta.items()):
        yield f"  meta {_quoted(key)} = {_quoted(value)}"
    for name in bucket.buffers:
        yield f"  holds {_name('%', name)}"
    yield "}"


def _notes(notes: Sequence[Note]) -> Iterator[str]:
    for i, note in enumerate(notes):
        nodes = f" from {', '.join(map(_quoted, note.nodes))}" if note.nodes else ""
        yield f"  note {i} {_quoted(note.op)}{nodes}"


def _kernel(kernel: Kernel) -> Iterator[str]:
    params = ", ".join(_name("$", p) for p in kernel.params)
    yield (
        f"kernel {_name('@', kernel.name)} cores {kernel.cores} lx {kernel.lx_bytes} ({params}) {{"
    )
    for key, fact in sorted(kernel.info.items()):
        yield f"  info {_quoted(key)} = {_quoted(fact) if isinstance(fact, str) else fact}"
    for i, program in enumerate(kernel.programs):
        yield f"  program {i} {_micro_program(program)}"
    yield from _notes(kernel.notes)
    for unit in UNITS:
        if unit in kernel.streams:
            yield f"  stream {unit} {{"
            yield from _stream(kernel.streams[unit], "    ")
            yield "  }"
    yield "}"


def _micro_program(program: MicroProgram) -> str:
    inputs, constants = program.n_inputs, len(program.constants)
    names = [f"x{i}" for i in range(inputs)] + [f"c{i}" for i in range(constants)]
    scalars = SCALARS[: program.n_scalars]
    names += [*scalars, *(f"s{i}" for i in range(len(program.steps)))]
    given = ", ".join(f"c{i} = {_float(c)}" for i, c in enumerate(program.constants))
    steps = "; ".join(
        " ".join([f"s{i} = {step.op}", *(names[arg] for arg in step.args)])
        for i, step in enumerate(program.steps)
    )
    const = f" const {given}" if given else ""
    body = f"{{ {steps} }}" if steps else "{ }"
    taken = f"; {', '.join(scalars)}" if scalars else ""
    return f"({', '.join(names[:inputs])}{taken}){const} {body}"


def _stream(stream: Stream, indent: str) -> Iterator[str]:
    for item in stream:
        if isinstance(item, Loop):
            yield f"{indent}loop {item.count} {{"
            yield from _stream(item.body, indent + "  ")
            yield f"{indent}}}"
        else:
            yield indent + " ".join(_parts(item))


def _parts(instr: Instr) -> Iterator[str]:
    yield instr.op
    if instr.where:
        yield f"on {_set(instr.where)}"
    if instr.counts:
        limits = instr.limits or (None,) * len(instr.counts)
        dims = (_dim(c, limit) for c, limit in zip(instr.counts, limits, strict=True))
        yield f"i({', '.join(dims)})"
    names = OPCODES[instr.op].operands
    for i, operand in enumerate(instr.operands):
        yield f"{names[min(i, len(names) - 1)].rstrip('*')}={_operand(operand)}"
    for name in OPCODES[instr.op].imms:
        if name in instr.imm:
            yield f"{name}={_imm(name, instr.imm[name])}"
    if instr.waits:
        yield "wait " + ", ".join(map(_wait, instr.waits))
    if instr.signals:
        yield "signal " + ", ".join(map(_signal, instr.signals))
    if instr.note:
        yield f"note {instr.note}"


def _dim(count: Num, limit: Limit | None) -> str:
    if limit is None:
        return _num(count)
    trips = f" - t({_comma(limit.loops)})" if limit.loops else ""
    return f"{_num(count)} upto {_num(limit.start)}{trips}"


def _operand(operand: Operand) -> str:
    symbol = _name("$", operand.symbol) + " + " if operand.symbol else ""
    address = symbol + _affine(operand.base, operand.strides, operand.loops)
    if operand.rotate is not None:
        rotate = operand.rotate
        trips = f"t({_comma(rotate.loops)}) " if rotate.loops else ""
        address += f" + {rotate.stride}*({trips}mod {rotate.depth})"
    splat = " splat" if operand.splat else ""
    guards = "".join(map(_guard, operand.guards))
    return f"{operand.space}[{address}]:{operand.dtype}{splat}{guards}"


def _guard(guard: Guard) -> str:
    return f" if {_affine(guard.origin, guard.strides, guard.loops)} in 0..{_num(guard.extent)}"


def _affine(base: Num, strides: tuple[int, ...], loops: tuple[int, ...]) -> str:
    steps = f" + i({_comma(strides)})" if strides else ""
    trips = f" + t({_comma(loops)})" if loops else ""
    return f"{_num(base)}{steps}{trips}"


def _wait(wait: Wait) -> str:
    if wait.n == 0:
        return "go" if wait.token == GO else f"t{wait.token} level"
    return f"t{wait.token}{_times(wait.n)}"


def _signal(signal: Signal) -> str:
    cores = f" -> {_each(signal.cores, _set)}" if signal.cores != 0 else ""
    each = isinstance(signal.token, tuple)
    token = f"token {_num(signal.token)}" if each else f"t{signal.token}"
    return f"{token}{_times(signal.n)}{cores}"


def _times(n: int) -> str:
    return "" if n == 1 else f"*{n}"


def _imm(name: str, value: Num) -> str:
    if name in SETS:
        return _each(value, _set)
    return _each(value, _hex) if name in HEXES else _num(value)


def _num(value: Num) -> str:
    if isinstance(value, tuple) and len(list(groupby(value))) > 2:
        for fold in range(len(value), 1, -1):
            if steps := _steps(value, fold):
                return f"{{{value[0]} + {steps}}}"
    return _each(value, str)


def _steps(value: tuple[int, ...], fold: int) -> str:
    """How the number follows from the place of a core in a grid ``fold`` wide; "" if not at all."""
    within = value[1] - value[0]
    across = value[fold] - value[0] if fold < len(value) else 0
    if any(v != value[0] + within * (c % fold) + across * (c // fold) for c, v in enumerate(value)):
        return ""
    if fold == len(value):
        return f"{within}*c"
    parts = [f"{within}*(c mod {fold})"] * (within != 0) + [f"{across}*(c div {fold})"] * (
        across != 0
    )
    return " + ".join(parts)


def _each(value: Num, show: Callable[[int], str]) -> str:
    """The number, or runs of equal ones over the cores."""
    if not isinstance(value, tuple):
        return show(value)
    runs = [(v, len(list(same))) for v, same in groupby(value)]
    if len(runs) == 1:
        return show(value[0])
    return "{" + ", ".join(f"{n}*{show(v)}" if n > 1 else show(v) for v, n in runs) + "}"


def _set(mask: int) -> str:
    """A bit set as ``<0-3,7>``."""
    if mask < 0:
        return str(mask)
    bits = [i for i in range(mask.bit_length()) if mask >> i & 1]
    runs = [[b for _, b in run] for _, run in groupby(enumerate(bits), lambda p: p[1] - p[0])]
    return "<" + ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs) + ">"


def _hex(pattern: int) -> str:
    return str(pattern) if pattern < 10 else hex(pattern)


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan:" + struct.pack(">d", value).hex()
    return repr(float(value))


def _name(sigil: str, name: str) -> str:
    return sigil + (name if _BARE.fullmatch(name) else _quoted(name))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _comma(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
