"""The object file ``.spx``: a whole Program in an ELF64 container, same program, same bytes.

A checksum over the entire file makes any flipped bit an error; a file with a right checksum is
still checked field by field, so that a forged one is refused as well.

    .text .patches     each kernel's words, and what differs on other cores (see encoding.py)
    .kernels           cores, scratchpad, parameters, info, and their share of the other tables
    .microprograms     what vector instructions compute
    .buffers           kind, HBM address and meta of each buffer
    .launches          kernel, dependencies and address slots of each launch
    .rela.launches     for each slot the buffer and offset its address comes from
    .buckets           sizes, launches, buffers and meta of each bucket; empty without any
    .provenance        IR op and model nodes of each kernel's notes, then of each launch's
    .claims            what each instruction is meant to do, for the checker (see claim_file.py),
                       and who holds what in the scratchpads, for reports
    .note.spyrec       format version and checksum, device description (TOML), meta (JSON)
    .symtab .strtab    kernels (functions in .text), then buffers (objects in the last two)
    .bss.hbm           inputs, outputs and temporaries: a symbol's value is its HBM address
    .rodata.weights    constants, page-aligned, each on a stick boundary
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from . import elf
from .claim_file import pack_claims, with_claims
from .elf import Bytes, Rela, Shape, Symbol
from .encoding import Encoded, decode_kernel, encode_kernel
from .errors import ObjectError
from .isa import (
    JOINTS,
    MICRO_OPS,
    STICK,
    Bucket,
    Buffer,
    Kernel,
    Launch,
    MicroOp,
    MicroProgram,
    Note,
    Program,
)
from .records import Pack, Unpack
from .wellformed import KINDS, Limits, check_program, limits_of

VERSION = 5
PAGE = 4096
OWNER = b"spyrec\0"
NOTE_VERSION, NOTE_DEVICE, NOTE_META = 1, 2, 3  # what readelf calls version, architecture, unknown
VERSION_BYTES = VERSION.to_bytes(4, "little")
DIGEST_BYTES = 32

SECTIONS: tuple[Shape, ...] = (
    Shape(".text", elf.PROGBITS, elf.ALLOC | elf.EXECUTE),
    Shape(".patches", elf.PROGBITS, elf.ALLOC, entry=12),
    Shape(".kernels", elf.PROGBITS),
    Shape(".microprograms", elf.PROGBITS, elf.ALLOC),
    Shape(".buffers", elf.PROGBITS),
    Shape(".launches", elf.PROGBITS, elf.ALLOC | elf.WRITE),
    Shape(".rela.launches", elf.RELOCS, elf.INFO_LINK, ".symtab", ".launches", entry=24),
    Shape(".buckets", elf.PROGBITS),
    Shape(".provenance", elf.PROGBITS),
    Shape(".claims", elf.PROGBITS, align=1),
    Shape(".note.spyrec", elf.NOTES, align=4),
    Shape(".symtab", elf.SYMTAB, link=".strtab", locals_=1, entry=24),
    Shape(".strtab", elf.STRTAB, align=1),
    Shape(".bss.hbm", elf.NOBITS, elf.ALLOC | elf.WRITE, align=STICK),
    Shape(".rodata.weights", elf.PROGBITS, elf.ALLOC, align=PAGE),
    Shape(".shstrtab", elf.STRTAB, align=1),
)

_MICRO_NAMES = tuple(MICRO_OPS)


def save_program(program: Program, target: str | os.PathLike[str] | BinaryIO) -> None:
    """Write the object file to a path, replaced only once all is written, or an open binary file.

    ObjectError: the program is not well formed, or the path cannot be written.
    """
    pieces = _pieces(program)
    if not isinstance(target, (str, os.PathLike)):
        target.writelines(pieces)
        return
    path = Path(target)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.writelines(pieces)
        partial.replace(path)
    except OSError as error:
        raise ObjectError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)


def dump(program: Program) -> bytes:
    """The object file as bytes. ObjectError: the program is not well formed."""
    return b"".join(_pieces(program))


def load_program(path: str | os.PathLike[str]) -> Program:
    """The program of an object file. Constant data stays in the mapped file: nothing is copied.

    ObjectError: the file cannot be read, is truncated, damaged or not a spyrec program.
    """
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise ObjectError(f"{path} is empty, so not a spyrec program")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ObjectError(f"{path} cannot be read: {error}") from None
    try:
        return loads(memoryview(mapped))
    except ObjectError as error:
        raise ObjectError(f"{path}: {error}") from None


def loads(blob: Bytes) -> Program:
    """The program in the bytes of an object file; constant data are views of ``blob``.

    ObjectError: truncated, damaged or not a spyrec program; the sentence says where.
    """
    whole = memoryview(blob).cast("B").toreadonly()
    places = elf.read(whole, SECTIONS)
    sections = {name: whole[place] for name, place in places.items()}
    device, meta = _read_notes(whole, places[".note.spyrec"])
    limits = limits_of(device)
    symbols = elf.unpack_symbols(sections[".symtab"], sections[".strtab"], SECTIONS)
    functions = [s for s in symbols if s.section == ".text"]
    objects = symbols[len(functions) :]
    notes = Unpack(".provenance", sections[".provenance"])
    kernels = _read_kernels(sections, functions, limits, notes)
    buffers = _read_buffers(sections, objects)
    launches = _read_launches(sections, [b.name for b in buffers], len(functions), notes)
    buckets = _read_buckets(sections[".buckets"], buffers)
    program = Program(kernels, buffers, launches, device, meta, buckets)
    program = with_claims(program, sections[".claims"])
    check_program(program, limits)
    return program


def _pieces(program: Program) -> list[Bytes]:
    limits = limits_of(program.device)
    check_program(program, limits)
    encoded = [encode_kernel(kernel, limits) for kernel in program.kernels]
    weights, places = _weights(program.buffers)
    symbols = _symbols(program, encoded, places)
    symtab, strtab = elf.pack_symbols(symbols, SECTIONS)
    launches, relas = _launches(program)
    note = _notes(program)
    contents: dict[str, Sequence[Bytes]] = {
        ".text": [e.words.astype("<u4").tobytes() for e in encoded],
        ".patches": [e.patches.astype("<u4").tobytes() for e in encoded],
        ".kernels": [_kernel_table(program.kernels, encoded)],
        ".microprograms": [_micro_programs(k.programs) for k in program.kernels],
        ".buffers": [_buffer_table(program.buffers)],
        ".launches": [launches],
        ".rela.launches": [elf.pack_relas(relas)],
        ".buckets": [_bucket_table(program)],
        ".provenance": [
            *(_provenance(k.notes) for k in program.kernels),
            *(_provenance(x.notes) for x in program.launches),
        ],
        ".claims": [pack_claims(program)],
        ".note.spyrec": [note],
        ".symtab": [symtab],
        ".strtab": [strtab],
        ".rodata.weights": weights,
    }
    pieces = elf.write(SECTIONS, contents, _hbm_extent(program.buffers))
    signed = note.replace(VERSION_BYTES + bytes(DIGEST_BYTES), VERSION_BYTES + _digest(pieces), 1)
    return [signed if piece is note else piece for piece in pieces]


def _digest(pieces: Sequence[Bytes]) -> bytes:
    """SHA-256 of the file in which the digest itself is zero."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def _notes(program: Program) -> bytes:
    text = json.dumps(dict(program.meta), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return elf.pack_notes(
        OWNER,
        [
            (NOTE_VERSION, VERSION_BYTES + bytes(DIGEST_BYTES)),
            (NOTE_DEVICE, program.device.encode()),
            (NOTE_META, text.encode()),
        ],
    )


def _read_notes(whole: memoryview, place: slice) -> tuple[str, dict[str, str]]:
    """Device text and meta, once the checksum of the whole file is found right."""
    section = whole[place]
    notes = elf.unpack_notes(OWNER, section)
    kinds = [kind for kind, _, _ in notes]
    if kinds != [NOTE_VERSION, NOTE_DEVICE, NOTE_META]:
        raise ObjectError(f"the notes have the types {kinds}, expected version, device and meta")
    (_, start, end), device, meta = notes
    version, start = bytes(section[start : start + 4]), start + 4
    if version != VERSION_BYTES or end - start != DIGEST_BYTES:
        raise ObjectError(
            f"the object file has format {int.from_bytes(version, 'little')}; this version of "
            f"spyrec reads {VERSION}, so compile the model again"
        )
    before, after = whole[: place.start + start], whole[place.start + end :]
    if _digest([before, bytes(DIGEST_BYTES), after]) != bytes(section[start:end]):
        raise ObjectError("the checksum does not match: the file was damaged after it was written")
    return _utf8(section[device[1] : device[2]]), _read_meta(section[meta[1] : meta[2]])


def _read_meta(text: memoryview) -> dict[str, str]:
    try:
        meta = json.loads(_utf8(text))
    except (ValueError, RecursionError):
        raise ObjectError("the meta note is not JSON") from None
    if not isinstance(meta, dict) or not all(isinstance(v, str) for v in meta.values()):
        raise ObjectError("the meta note does not hold a table of texts")
    return meta


def _utf8(text: memoryview) -> str:
    try:
        return bytes(text).decode()
    except UnicodeDecodeError:
        raise ObjectError("a note is not UTF-8 text") from None


def _symbols(program: Program, encoded: Sequence[Encoded], places: Sequence[int]) -> list[Symbol]:
    """Kernels first, then buffers. A constant's value is its place among the weights, any other
    buffer's its HBM address."""
    symbols: list[Symbol] = []
    at = 0
    for kernel, code in zip(program.kernels, encoded, strict=True):
        symbols.append(Symbol(kernel.name, elf.GLOBAL_FUNC, ".text", at, code.words.nbytes))
        at += code.words.nbytes
    for buffer, place in zip(program.buffers, places, strict=True):
        section = ".rodata.weights" if buffer.kind == "const" else ".bss.hbm"
        symbols.append(Symbol(buffer.name, elf.GLOBAL_OBJECT, section, place, buffer.size))
    return symbols


def _hbm_extent(buffers: Sequence[Buffer]) -> int:
    return max((b.address + b.size for b in buffers if b.kind != "const"), default=0)


def _weights(buffers: Sequence[Buffer]) -> tuple[list[Bytes], list[int]]:
    """Constant data with each piece on a stick boundary, and the symbol value of every buffer."""
    pieces: list[Bytes] = []
    places: list[int] = []
    at = 0
    for buffer in buffers:
        if buffer.data is None:
            places.append(buffer.address)
            continue
        gap = -at % STICK
        places.append(at + gap)
        pieces += [bytes(gap), memoryview(buffer.data).cast("B")]
        at += gap + buffer.size
    return pieces, places


def _kernel_table(kernels: Sequence[Kernel], encoded: Sequence[Encoded]) -> bytes:
    out = Pack()
    out.u32(len(kernels))
    for kernel, code in zip(kernels, encoded, strict=True):
        out.u32(kernel.cores, kernel.lx_bytes, len(code.patches))
        out.u32(len(kernel.programs), len(kernel.notes), len(kernel.params))
        for name in kernel.params:
            out.text(name)
        out.facts(kernel.info)
    return bytes(out.out)


def _read_kernels(
    sections: dict[str, memoryview], functions: Sequence[Symbol], limits: Limits, notes: Unpack
) -> tuple[Kernel, ...]:
    table = Unpack(".kernels", sections[".kernels"])
    text = Unpack(".text", sections[".text"])
    patches = Unpack(".patches", sections[".patches"])
    micros = Unpack(".microprograms", sections[".microprograms"])
    if table.count(28) != len(functions):
        raise table.error(f"its count of kernels is not the {len(functions)} function symbols")
    kernels: list[Kernel] = []
    for function in functions:
        cores, lx_bytes, n_patches = table.u32(), table.u32(), table.u32()
        n_programs, n_notes = table.u32(), table.u32()
        params = tuple(table.text() for _ in range(table.count(4)))
        info = table.facts()
        if function.info != elf.GLOBAL_FUNC or function.value != text.at or function.size % 4:
            raise text.error(f"the symbol of kernel @{function.name} does not begin here")
        words = np.frombuffer(text.take(function.size), "<u4")
        rows = np.frombuffer(patches.take(n_patches * 12), "<u4").reshape(-1, 3)
        shell = Kernel(
            name=function.name,
            streams={},
            params=params,
            programs=tuple(_read_micro_program(micros) for _ in range(n_programs)),
            notes=tuple(_read_note(notes) for _ in range(n_notes)),
            cores=cores,
            lx_bytes=lx_bytes,
            info=info,
        )
        kernels.append(decode_kernel(Encoded(words, rows), shell, limits))
    for reader in (table, text, patches, micros):
        reader.finish()
    return tuple(kernels)


def _micro_programs(programs: Sequence[MicroProgram]) -> bytes:
    """For each: inputs, constants, scalars, steps; a step: op, arguments, three places of these."""
    out = Pack()
    for program in programs:
        out.u32(program.n_inputs, len(program.constants), program.n_scalars, len(program.steps))
        for constant in program.constants:
            out.f64(constant)
        for step in program.steps:
            out.u32(_MICRO_NAMES.index(step.op), len(step.args))
            out.u32(*step.args, *[0] * (3 - len(step.args)))
    return bytes(out.out)


def _read_micro_program(source: Unpack) -> MicroProgram:
    n_inputs, n_constants, n_scalars, n_steps = (source.u32() for _ in range(4))
    constants = tuple(source.f64() for _ in range(n_constants))
    steps: list[MicroOp] = []
    for _ in range(n_steps):
        op, n_args, *args = (source.u32() for _ in range(5))
        if op >= len(_MICRO_NAMES) or n_args > 3 or any(args[n_args:]):
            raise source.error(f"no micro-op has the number {op} and {n_args} arguments")
        steps.append(MicroOp(_MICRO_NAMES[op], tuple(args[:n_args])))
    return MicroProgram(n_inputs, constants, tuple(steps), n_scalars)


def _provenance(notes: Sequence[Note]) -> bytes:
    out = Pack()
    for note in notes:
        out.text(note.op)
        out.u32(len(note.nodes))
        for node in note.nodes:
            out.text(node)
    return bytes(out.out)


def _read_note(source: Unpack) -> Note:
    return Note(source.text(), tuple(source.text() for _ in range(source.count(4))))


def _buffer_table(buffers: Sequence[Buffer]) -> bytes:
    out = Pack()
    out.u32(len(buffers))
    for buffer in buffers:
        out.u32(KINDS.index(buffer.kind))
        out.u64(buffer.address)
        out.facts(buffer.meta)
    return bytes(out.out)


def _read_buffers(sections: dict[str, memoryview], objects: Sequence[Symbol]) -> tuple[Buffer, ...]:
    table = Unpack(".buffers", sections[".buffers"])
    weights = Unpack(".rodata.weights", sections[".rodata.weights"])
    if table.count(16) != len(objects):
        raise table.error(f"its count of buffers is not the {len(objects)} object symbols")
    buffers: list[Buffer] = []
    for symbol in objects:
        kind, address, meta = table.u32(), table.u64(), table.texts()
        data: memoryview | None = None
        if kind >= len(KINDS) or symbol.info != elf.GLOBAL_OBJECT:
            raise table.error(f"buffer %{symbol.name} has no known kind or a wrong symbol")
        if KINDS[kind] == "const":
            weights.skip_to(STICK)
            if symbol.section != ".rodata.weights" or symbol.value != weights.at:
                raise weights.error(f"the symbol of constant %{symbol.name} does not begin here")
            data = weights.take(symbol.size)
        elif symbol.section != ".bss.hbm" or symbol.value != address:
            raise table.error(f"the symbol of buffer %{symbol.name} is not at its address")
        buffers.append(Buffer(symbol.name, KINDS[kind], symbol.size, address, data, meta))
    table.finish()
    weights.finish()
    return tuple(buffers)


def _bucket_table(program: Program) -> bytes:
    """Nothing when there is no bucket."""
    number = {b.name: i for i, b in enumerate(program.buffers)}
    out = Pack()
    if program.buckets:
        out.u32(len(program.buckets))
    for bucket in program.buckets:
        out.text(bucket.name)
        out.facts(bucket.sizes)
        out.u32(bucket.launches, len(bucket.buffers), *(number[name] for name in bucket.buffers))
        out.facts(bucket.meta)
    return bytes(out.out)


def _read_buckets(section: memoryview, buffers: Sequence[Buffer]) -> tuple[Bucket, ...]:
    table = Unpack(".buckets", section)
    buckets: list[Bucket] = []
    for _ in range(table.count(20) if len(section) else 0):
        name, sizes, launches = table.text(), table.facts(), table.u32()
        places = [table.u32() for _ in range(table.count(4))]
        numbers = {dim: n for dim, n in sizes.items() if isinstance(n, int)}
        if len(numbers) != len(sizes) or any(i >= len(buffers) for i in places):
            raise table.error(f"bucket {name!r} has a size that is no number, or no such buffer")
        names = tuple(buffers[i].name for i in places)
        buckets.append(Bucket(name, numbers, launches, names, table.texts()))
    table.finish()
    return tuple(buckets)


def _launches(program: Program) -> tuple[bytes, list[Rela]]:
    """Each launch: kernel, flags (bit 0: early, above: the number of its joint), arguments,
    launches to wait for, notes; then a slot of 8 bytes
    for each argument, into which a relocation puts the address."""
    number = {b.name: i for i, b in enumerate(program.buffers, len(program.kernels) + 1)}
    out = Pack()
    relas: list[Rela] = []
    out.u32(len(program.launches))
    for launch in program.launches:
        counts = len(launch.args), len(launch.after), len(launch.notes)
        out.u32(launch.kernel, launch.early | JOINTS.index(launch.joint) << 1, *counts)
        out.u32(*launch.after)
        out.align()
        for name, offset in launch.args:
            relas.append(Rela(len(out.out), number[name], offset))
            out.u64(0)
    return bytes(out.out), relas


def _read_launches(
    sections: dict[str, memoryview], buffers: Sequence[str], kernels: int, notes: Unpack
) -> tuple[Launch, ...]:
    table = Unpack(".launches", sections[".launches"])
    relas = iter(elf.unpack_relas(sections[".rela.launches"]))
    launches: list[Launch] = []
    for _ in range(table.count(20)):
        kernel, flags, n_args, n_after, n_notes = (table.u32() for _ in range(5))
        if flags >> 1 >= len(JOINTS):
            raise table.error(f"flags {flags} are not known")
        after = tuple(table.u32() for _ in range(n_after))
        table.skip_to(8)
        args = tuple(_read_arg(table, relas, buffers, kernels) for _ in range(n_args))
        own = tuple(_read_note(notes) for _ in range(n_notes))
        joint = JOINTS[flags >> 1]
        launches.append(Launch(kernel, args, after, bool(flags & 1), own, joint=joint))
    for reader in (table, notes):
        reader.finish()
    if next(relas, None) is not None:
        raise table.error("a relocation has no slot")
    return tuple(launches)


def _read_arg(
    table: Unpack, relas: Iterator[Rela], buffers: Sequence[str], kernels: int
) -> tuple[str, int]:
    rela = next(relas, None)
    if rela is None or rela.offset != table.at or table.u64():
        raise table.error("an address slot is not zero or has no relocation of its own")
    number = rela.symbol - kernels - 1
    if not 0 <= number < len(buffers):
        raise table.error(f"a relocation names symbol {rela.symbol}, which is not a buffer")
    return buffers[number], rela.addend
