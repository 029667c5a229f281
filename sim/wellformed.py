"""What a well-formed program is. Encoder, loader and assembler all ask here, so a program that
passes may be indexed and looped over without further checks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count as numbering

from .claim_rules import check_claims
from .device import parse_device
from .errors import DeviceError, ObjectError
from .formats import FORMATS
from .isa import (
    JOINTS,
    MAX_DIMS,
    MAX_LOOPS,
    MAX_OPERANDS,
    MICRO_OPS,
    OPCODES,
    SCALARS,
    STICK,
    UNITS,
    Buffer,
    Guard,
    Instr,
    Kernel,
    Launch,
    Limit,
    MicroProgram,
    Note,
    Num,
    Operand,
    Program,
    Stream,
)
from .wellformed_buckets import check_buckets
from .wellformed_holdings import check_holdings

MAX_CORES = 63  # a core mask is the non-negative half of 64 bits
MAX_TOKEN = 0xFFFF
MAX_TOKEN_COUNT = 0x7FFF
MAX_NOTE = 0xFFFFFF
MAX_CONSTANT = 1.7976931348623157e308
MAX_PARAMS = 0xFFF
INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)
COUNT = (0, 2**31 - 1)
KINDS = ("input", "output", "const", "temp")

# Where each operand of an opcode may live, in the order of its table entry (the last may repeat).
SPACES: dict[str, tuple[tuple[str, ...], ...]] = {
    "load": (("lx",), ("hbm",)),
    "gather": (("lx",), ("hbm",), ("lx",)),
    "store": (("hbm",), ("lx",)),
    "send": (("lx",), ("lx",)),
    "psum": (("acc",), ("acc",)),
    "mm": (("acc",), ("lx",), ("lx",)),
    "vec": (("lx", "acc"), ("lx", "acc")),
    "shuf": (("lx",), ("lx",)),
    "fill": (("lx",),),
}


@dataclass(frozen=True)
class Limits:
    """What the machine allows: cores, trips of one counted loop, bytes of card memory."""

    cores: int = MAX_CORES
    loop_max: int = 65535
    hbm_bytes: int = 1 << 48


def limits_of(device: str) -> Limits:
    """The limits of a device (TOML text; "" for the widest). ObjectError if that is broken."""
    if not device:
        return Limits()
    try:
        spec = parse_device(device, "the program's device description")
    except DeviceError as error:
        raise ObjectError(str(error)) from None
    return Limits(min(spec.cores.count, MAX_CORES), spec.launch.loop_max, spec.hbm.bytes)


@dataclass(frozen=True)
class _Place:
    """Where in a kernel a rule is broken; becomes the first half of the sentence."""

    kernel: Kernel
    unit: str = ""
    index: int = 0
    instr: Instr = field(default_factory=lambda: Instr(""))

    def error(self, problem: str) -> ObjectError:
        return ObjectError(f"{self}: {problem}{self._origin()}")

    def __str__(self) -> str:
        if not self.unit:
            return f"kernel @{self.kernel.name}"
        named = f" ({self.instr.op})" if self.instr.op else ""
        return f"kernel @{self.kernel.name}, stream {self.unit}, instruction {self.index}{named}"

    def _origin(self) -> str:
        notes = self.kernel.notes
        known = bool(self.instr.op) and 0 <= self.instr.note < len(notes)
        nodes = notes[self.instr.note].nodes if known else ()
        return f" (from {', '.join(nodes)})" if nodes else ""


def check_program(program: Program, limits: Limits) -> None:
    """ObjectError, naming kernel, instruction and field, at the first rule the program breaks."""
    _unique([k.name for k in program.kernels], "kernel")
    _unique([b.name for b in program.buffers], "buffer")
    for key, value in program.meta.items():
        _text(key, "a key of the program's meta")
        _text(value, f"meta {key!r} of the program")
    _text(program.device, "the device description")
    for kernel in program.kernels:
        check_kernel(kernel, limits)
    for buffer in program.buffers:
        _check_buffer(buffer, limits)
    sizes = {b.name: b.size for b in program.buffers}
    for i, launch in enumerate(program.launches):
        _check_launch(i, launch, program.kernels, sizes)
    if program.buckets:
        check_buckets(program)
    check_claims(program)
    check_holdings(program, limits.cores)


def check_kernel(kernel: Kernel, limits: Limits) -> None:
    """ObjectError, naming instruction and field, at the first rule the kernel breaks."""
    place = _Place(kernel)
    _name(kernel.name, "a kernel")
    if not 1 <= kernel.cores <= limits.cores:
        raise place.error(f"cores is {kernel.cores}; this device runs 1..{limits.cores}")
    _range(place, "lx_bytes", kernel.lx_bytes, COUNT)
    _unique(list(kernel.params), f"parameter of kernel @{kernel.name}")
    for symbol in kernel.params:
        _name(symbol, f"a parameter of kernel @{kernel.name}")
    for what, size, most in (
        ("parameters", len(kernel.params), MAX_PARAMS),
        ("notes", len(kernel.notes), MAX_NOTE),
    ):
        if size > most:
            raise place.error(f"it has {size} {what}; the encoding numbers at most {most}")
    _check_texts(kernel)
    for i, micro in enumerate(kernel.programs):
        _check_micro(place, i, micro)
    for unit, stream in kernel.streams.items():
        if unit not in UNITS:
            raise place.error(f"no unit is called {unit!r}; units: {', '.join(UNITS)}")
        _check_stream(kernel, unit, stream, limits, 0, numbering())


def _check_texts(kernel: Kernel) -> None:
    _check_notes(kernel.notes, f"kernel @{kernel.name}")
    for key, value in kernel.info.items():
        _text(key, f"an info key of kernel @{kernel.name}")
        if isinstance(value, str):
            _text(value, f"info {key!r} of kernel @{kernel.name}")
        else:
            _range(_Place(kernel), f"info {key!r}", value, INT64)


def _check_micro(place: _Place, number: int, micro: MicroProgram) -> None:
    _range(place, f"program p{number}: n_inputs", micro.n_inputs, (0, MAX_OPERANDS - 1))
    _range(place, f"program p{number}: n_scalars", micro.n_scalars, (0, len(SCALARS)))
    known = micro.n_inputs + len(micro.constants) + micro.n_scalars
    for constant in micro.constants:
        if abs(constant) > MAX_CONSTANT and abs(constant) != math.inf:
            raise place.error(f"program p{number}: constant {constant} is not one of 64-bit floats")
    if not micro.steps and not micro.n_inputs:
        raise place.error(f"program p{number} has no step and no input, so no result; add a step")
    for i, step in enumerate(micro.steps):
        what = f"program p{number}, step s{i} ({step.op})"
        if step.op not in MICRO_OPS:
            raise place.error(f"{what} is not a micro-op; see MICRO_OPS")
        if len(step.args) != MICRO_OPS[step.op]:
            raise place.error(f"{what} takes {MICRO_OPS[step.op]} arguments, got {len(step.args)}")
        for arg in step.args:
            if not 0 <= arg < known + i:
                raise place.error(
                    f"{what} reads value {arg}, but only 0..{known + i - 1} precede it"
                )


def _check_stream(
    kernel: Kernel, unit: str, stream: Stream, limits: Limits, depth: int, number: Iterator[int]
) -> None:
    for item in stream:
        if isinstance(item, Instr):
            check_instr(kernel, unit, next(number), item, depth)
            continue
        index = next(number)
        place = _Place(kernel, unit, index)
        if depth == MAX_LOOPS:
            raise place.error(f"loops nest deeper than {MAX_LOOPS}")
        if not item.body:
            raise place.error("a loop has an empty body; drop it")
        check_trips(kernel, unit, index, item.count, limits)
        _check_stream(kernel, unit, item.body, limits, depth + 1, number)


def check_trips(kernel: Kernel, unit: str, index: int, trips: int, limits: Limits) -> None:
    """ObjectError when the device cannot count the trips of a loop."""
    if not 1 <= trips <= limits.loop_max:
        raise _Place(kernel, unit, index).error(
            f"a loop has {trips} trips; this device counts 1..{limits.loop_max}, so split it"
        )


def check_instr(kernel: Kernel, unit: str, index: int, instr: Instr, depth: int) -> None:
    """ObjectError when an instruction breaks a rule: number ``index`` of a stream of ``kernel``, of
    which cores, params, programs and notes matter, inside ``depth`` loops."""
    place = _Place(kernel, unit, index, instr)
    if instr.op not in OPCODES:
        raise place.error(f"no opcode is called {instr.op!r}; see OPCODES")
    rule = OPCODES[instr.op]
    if place.unit not in rule.unit:
        raise place.error(f"this unit cannot run it; {', '.join(rule.unit)} can")
    _check_dims(place, rule.dims)
    repeats = bool(rule.operands) and rule.operands[-1].endswith("*")
    least = len(rule.operands) - repeats
    most = MAX_OPERANDS if repeats else least
    if not least <= len(instr.operands) <= most:
        raise place.error(f"it has {len(instr.operands)} operands, expected {least}..{most}")
    for i, limit in enumerate(instr.limits):
        if limit is not None:
            _check_limit(place, f"limit of dimension {i}", limit, depth)
    for i, operand in enumerate(instr.operands):
        _check_operand(place, i, operand, depth)
    _check_imms(place, rule.imms)
    for wait in instr.waits:
        _range(place, "wait token", wait.token, (0, MAX_TOKEN))
        _range(place, "wait count", wait.n, (0, MAX_TOKEN_COUNT))
    for signal in instr.signals:
        _range(place, "signal token", signal.token, (0, MAX_TOKEN))
        _range(place, "signal count", signal.n, (1, MAX_TOKEN_COUNT))
        _range(place, "signal cores", signal.cores, (0, 2**place.kernel.cores - 1))
    for what, entries in (("waits", instr.waits), ("signals", instr.signals)):
        if len(entries) > 255:
            raise place.error(f"it has {len(entries)} {what}; the encoding counts at most 255")
    _range(place, "where", instr.where, (0, 2**place.kernel.cores - 1))
    if isinstance(instr.where, tuple):
        raise place.error("where is one core mask for all cores, got a number for each")
    _range(place, "note", instr.note, (0, max(len(place.kernel.notes) - 1, 0)))


def _check_dims(place: _Place, named: tuple[str, ...] | None) -> None:
    counts, limits = place.instr.counts, place.instr.limits
    if named is not None and len(counts) != len(named):
        raise place.error(
            f"it has {len(counts)} counts, expected {len(named)} ({', '.join(named)})"
        )
    if len(counts) > MAX_DIMS:
        raise place.error(f"it has {len(counts)} counts; an instruction has at most {MAX_DIMS}")
    if limits and len(limits) != len(counts):
        raise place.error(
            f"it has {len(limits)} limits for {len(counts)} counts; give None for none"
        )
    if place.instr.op == "gather" and not counts:
        raise place.error("it needs a first dimension to index by")
    for i, count in enumerate(counts):
        _range(place, f"count {i}", count, COUNT)


def _check_limit(place: _Place, what: str, limit: Limit, depth: int) -> None:
    _range(place, what, limit.start, INT32)
    _loops(place, what, limit.loops, depth)


def _check_operand(place: _Place, index: int, operand: Operand, depth: int) -> None:
    instr, kernel = place.instr, place.kernel
    names = OPCODES[instr.op].operands
    what = f"operand {index} ({names[min(index, len(names) - 1)].rstrip('*')})"
    spaces = SPACES[instr.op][min(index, len(names) - 1)]
    if operand.space not in spaces:
        raise place.error(f"{what} is in {operand.space!r}, expected {' or '.join(spaces)}")
    if operand.dtype not in FORMATS:
        raise place.error(
            f"{what}: no number format is called {operand.dtype!r}; known: {', '.join(FORMATS)}"
        )
    if operand.symbol and operand.symbol not in kernel.params:
        raise place.error(
            f"{what}: {operand.symbol!r} is not a parameter of the kernel; add it to params"
        )
    if operand.symbol and operand.space != "hbm":
        raise place.error(f"{what}: only an hbm operand has a symbol, got {operand.symbol!r}")
    _range(place, f"{what} base", operand.base, INT32)
    indexes = names[min(index, len(names) - 1)] == "index"  # a list walked by the first dimension
    _strides(place, what, operand.strides, 0 if indexes else len(instr.counts))
    _loops(place, what, operand.loops, depth)
    if operand.rotate is not None:
        _loops(place, f"{what} rotate", operand.rotate.loops, depth)
        _range(place, f"{what} rotate depth", operand.rotate.depth, (1, INT32[1]))
        _range(place, f"{what} rotate stride", operand.rotate.stride, INT32)
    if len(operand.guards) > 15:
        raise place.error(
            f"{what} has {len(operand.guards)} guards; the encoding counts at most 15"
        )
    for guard in operand.guards:
        _check_guard(place, f"{what} guard", guard, depth)


def _check_guard(place: _Place, what: str, guard: Guard, depth: int) -> None:
    _range(place, f"{what} origin", guard.origin, INT32)
    _range(place, f"{what} extent", guard.extent, INT32)
    _strides(place, what, guard.strides, len(place.instr.counts))
    _loops(place, what, guard.loops, depth)


def _check_imms(place: _Place, known: Mapping[str, int]) -> None:
    instr = place.instr
    for name, value in instr.imm.items():
        if name not in known:
            raise place.error(
                f"{name!r} is not one of its immediates: {', '.join(known) or 'it has none'}"
            )
        cores = (0, 2**place.kernel.cores - 1)
        _range(place, name, value, cores if name in ("cores", "far") else INT64)
    if instr.op == "send":
        _check_far(place, instr.imm)
    if instr.op == "psum":
        _check_neighbours(place, instr.imm.get("cores", known["cores"]))
    if instr.op not in ("vec", "prog"):
        return
    programs = place.kernel.programs
    chosen = instr.imm.get("program", known["program"])
    for number in sorted(set(chosen if isinstance(chosen, tuple) else (chosen,))):
        if not 0 <= number < len(programs):
            raise place.error(f"program {number} is not one of the kernel's {len(programs)}")
        if instr.op == "vec" and programs[number].n_inputs < len(instr.operands) - 1:
            raise place.error(
                f"program {number} takes {programs[number].n_inputs} inputs at most, "
                f"the instruction has {len(instr.operands) - 1} sources"
            )


def _check_far(place: _Place, imm: Mapping[str, Num]) -> None:
    cores, far = imm.get("cores", 0), imm.get("far", 0)
    for core in range(place.kernel.cores):
        to, turned = (v if isinstance(v, int) else v[core] for v in (cores, far))
        if turned & ~to:
            raise place.error(
                f"the cores {turned:#x} are to be reached the longer way, the send goes to {to:#x}"
            )


def _check_neighbours(place: _Place, masks: Num) -> None:
    """Partial sums go from core to core in the order of their numbers, and not past memory's
    stop."""
    every = masks if isinstance(masks, tuple) else (masks,) * place.kernel.cores
    for core, mask in enumerate(every):
        runs = not place.instr.where or place.instr.where >> core & 1
        if runs and mask and mask not in (1 << core + 1, 1 << core >> 1):
            raise place.error(
                f"core {core} sends partial sums to the cores of mask {mask:#x}; they go to one "
                f"neighbour, core {core - 1} or {core + 1}"
            )


def _strides(place: _Place, what: str, strides: tuple[int, ...], least: int) -> None:
    dims = len(place.instr.counts)
    if not least <= len(strides) <= dims:
        raise place.error(f"{what} has {len(strides)} strides for {dims} dimensions; give one each")
    for stride in strides:
        _range(place, f"{what} stride", stride, INT32)


def _loops(place: _Place, what: str, loops: tuple[int, ...], depth: int) -> None:
    if len(loops) > depth:
        raise place.error(f"{what} has {len(loops)} loop strides inside {depth} loops")
    for stride in loops:
        _range(place, f"{what} loop stride", stride, INT32)


def _range(place: _Place, what: str, value: Num, bounds: tuple[int, int]) -> None:
    low, high = bounds
    values = value if isinstance(value, tuple) else (value,)
    if isinstance(value, tuple) and len(value) != place.kernel.cores:
        raise place.error(f"{what} has {len(value)} values for {place.kernel.cores} cores")
    for v in values:
        if not hasattr(v, "__index__"):
            raise place.error(f"{what} is {v!r}, expected a whole number")
        if not low <= v <= high:
            raise place.error(f"{what} is {v}, outside {low}..{high}")


def _check_buffer(buffer: Buffer, limits: Limits) -> None:
    _name(buffer.name, "a buffer")
    what = f"buffer %{buffer.name}"
    if buffer.kind not in KINDS:
        raise ObjectError(f"{what}: kind {buffer.kind!r} is not one of {', '.join(KINDS)}")
    if buffer.size < 0 or buffer.address < 0 or buffer.address + buffer.size > limits.hbm_bytes:
        raise ObjectError(
            f"{what}: bytes {buffer.address}..{buffer.address + buffer.size} are not inside the "
            f"{limits.hbm_bytes} bytes of card memory"
        )
    if buffer.address % STICK:
        raise ObjectError(f"{what}: address {buffer.address} is not a multiple of {STICK}")
    held = None if buffer.data is None else memoryview(buffer.data).nbytes
    wanted = buffer.size if buffer.kind == "const" else None
    if held != wanted:
        raise ObjectError(
            f"{what}: a {buffer.kind} buffer of {buffer.size} bytes has {held} bytes of data"
        )
    for key, value in buffer.meta.items():
        _text(key, f"a meta key of {what}")
        _text(value, f"meta {key!r} of {what}")


def _check_notes(notes: tuple[Note, ...], of: str) -> None:
    for note in notes:
        for text in (note.op, *note.nodes):
            _text(text, f"a note of {of}")


def _check_launch(
    number: int, launch: Launch, kernels: tuple[Kernel, ...], sizes: Mapping[str, int]
) -> None:
    what = f"launch {number}"
    if not 0 <= launch.kernel < len(kernels):
        raise ObjectError(
            f"{what}: kernel {launch.kernel} does not exist; the program has {len(kernels)}"
        )
    kernel = kernels[launch.kernel]
    if len(launch.args) != len(kernel.params):
        raise ObjectError(
            f"{what}: kernel @{kernel.name} takes {len(kernel.params)} buffers, "
            f"got {len(launch.args)}"
        )
    if launch.notes and len(launch.notes) != len(kernel.notes):
        raise ObjectError(
            f"{what}: kernel @{kernel.name} has {len(kernel.notes)} notes, the launch replaces "
            f"{len(launch.notes)}; expected all of them or none"
        )
    _check_notes(launch.notes, what)
    for symbol, (name, offset) in zip(kernel.params, launch.args, strict=True):
        if name not in sizes:
            raise ObjectError(
                f"{what}: parameter {symbol} is bound to %{name}, which is not a buffer"
            )
        if not 0 <= offset <= sizes[name] or offset % STICK:
            raise ObjectError(
                f"{what}: parameter {symbol} starts at byte {offset} of %{name}; expected a "
                f"multiple of {STICK} in 0..{sizes[name]}"
            )
    for earlier in launch.after:
        if not 0 <= earlier < number:
            raise ObjectError(f"{what}: it waits for launch {earlier}, which is not an earlier one")
    if launch.joint not in JOINTS:
        raise ObjectError(f"{what}: no joint is called {launch.joint!r}")
    if launch.joint and launch.after != (number - 1,):
        raise ObjectError(
            f"{what}: it goes on from the launch before, so it waits for launch {number - 1} "
            f"alone; it waits for {list(launch.after)}"
        )


def _unique(names: list[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ObjectError(f"the name {name!r} stands for more than one {what}; rename one")
        seen.add(name)


def _name(name: str, what: str) -> None:
    _text(name, f"the name of {what}")
    if not name or "\0" in name:
        raise ObjectError(f"the name of {what} is {name!r}; a name is not empty and holds no NUL")


def _text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ObjectError(f"{what} is not text that UTF-8 can hold: {error}") from None
