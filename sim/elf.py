"""The ELF64 container: sections, symbols, relocations and notes to little-endian bytes and back.

Written so that ``readelf -a`` reads it. The machine number is BPF's, a bytecode machine whose plain
64-bit relocation readelf can name; the note says whose file it really is. Field layouts follow the
System V ABI (ELF-64 object file format, version 1.5).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .errors import ObjectError

Bytes = bytes | memoryview

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELA = struct.Struct("<QQq")
NOTE = struct.Struct("<III")

IDENT = b"\x7fELF\x02\x01\x01" + bytes(9)  # 64-bit, little-endian, version 1, no particular OS
ET_REL = 1
EM_BPF = 247
R_DATA_64 = 12
PROGBITS, SYMTAB, STRTAB, RELOCS, NOTES, NOBITS = 1, 2, 3, 4, 7, 8
WRITE, ALLOC, EXECUTE, INFO_LINK = 1, 2, 4, 0x40
GLOBAL_OBJECT, GLOBAL_FUNC = 1 << 4 | 1, 1 << 4 | 2


@dataclass(frozen=True)
class Shape:
    """What is fixed about a section: its header but for place and size. ``link`` and ``info`` name
    other sections, "" for none; ``locals_`` counts a symbol table's local symbols."""

    name: str
    kind: int
    flags: int = 0
    link: str = ""
    info: str = ""
    locals_: int = 0
    align: int = 8
    entry: int = 0


@dataclass(frozen=True)
class Symbol:
    """``section`` is the section's name; ``value`` counts bytes from its start."""

    name: str
    info: int
    section: str
    value: int
    size: int


@dataclass(frozen=True)
class Rela:
    """Put the address of symbol number ``symbol``, plus ``addend``, into 8 bytes at ``offset``."""

    offset: int
    symbol: int
    addend: int


def write(
    shapes: Sequence[Shape], contents: dict[str, Sequence[Bytes]], nobits: int
) -> list[Bytes]:
    """The file as pieces to be written one after the other. ``contents``: section name -> pieces;
    ``nobits``: size of the NOBITS section. The last of ``shapes``, the table of section names, is
    filled in here."""
    names, name_at = _string_table([s.name for s in shapes])
    contents = {**contents, shapes[-1].name: [names]}
    index = _numbers(shapes)
    pieces: list[Bytes] = [b""]
    at = HEADER.size
    headers = [bytes(SECTION.size)]
    for shape, name in zip(shapes, name_at, strict=True):
        body = contents.get(shape.name, [])
        size = nobits if shape.kind == NOBITS else sum(len(piece) for piece in body)
        start = _aligned(at, shape.align)
        pieces += [bytes(start - at), *body]
        at = start if shape.kind == NOBITS else start + size
        links = _links(shape, index)
        headers.append(
            SECTION.pack(
                name, shape.kind, shape.flags, 0, start, size, *links, shape.align, shape.entry
            )
        )
    table = _aligned(at, 8)
    pieces += [bytes(table - at), *headers]
    pieces[0] = HEADER.pack(
        IDENT, ET_REL, EM_BPF, 1, 0, 0, table, 0, HEADER.size, 0, 0, SECTION.size, len(headers),
        len(shapes),
    )  # fmt: skip
    return pieces


def read(blob: memoryview, shapes: Sequence[Shape]) -> dict[str, slice]:
    """Where the bytes of each section stand (a NOBITS one has none). ObjectError unless the file
    has exactly the sections ``shapes``, each inside the file and none over another."""
    headers = _section_headers(blob, len(shapes) + 1)
    index = _numbers(shapes)
    names, name_at = _string_table([s.name for s in shapes])
    found: dict[str, slice] = {}
    end = HEADER.size
    for shape, header, name in zip(shapes, headers[1:], name_at, strict=True):
        at, kind, flags, _, start, size, link, info, align, entry = header
        fixed = (at, kind, flags, link, info, align, entry)
        wanted = (name, shape.kind, shape.flags, *_links(shape, index), shape.align, shape.entry)
        if fixed != wanted:
            raise ObjectError(f"section {shape.name}: its header is {fixed}, expected {wanted}")
        stop = start if kind == NOBITS else start + size
        if start != _aligned(end, align) or stop > len(blob):
            raise ObjectError(
                f"section {shape.name}: bytes {start}..{stop} overlap another section, leave a gap "
                f"or run past the end of the file at {len(blob)}; the file is damaged or truncated"
            )
        found[shape.name] = slice(start, stop)
        end = stop
    if bytes(blob[found[shapes[-1].name]]) != names:
        raise ObjectError("the section names are not those of a spyrec program")
    return found


def _section_headers(blob: memoryview, count: int) -> list[tuple[int, ...]]:
    if len(blob) < HEADER.size or blob[:4] != IDENT[:4]:
        raise ObjectError("this is not an ELF file, so not a spyrec program")
    header = HEADER.unpack_from(blob)
    table = header[6]
    wanted = (
        IDENT, ET_REL, EM_BPF, 1, 0, 0, table, 0, HEADER.size, 0, 0, SECTION.size, count, count - 1,
    )  # fmt: skip
    if header != wanted:
        raise ObjectError("this is an ELF file, but not a spyrec program: the file header differs")
    if table % 8 or table + count * SECTION.size != len(blob):
        raise ObjectError(
            f"the section headers do not end where the file does, at byte {len(blob)}; the file is "
            "truncated or has something appended"
        )
    return [SECTION.unpack_from(blob, table + i * SECTION.size) for i in range(count)]


def pack_symbols(symbols: Sequence[Symbol], shapes: Sequence[Shape]) -> tuple[bytes, bytes]:
    """The symbol table (its first entry is the empty one) and the string table of its names."""
    index = _numbers(shapes)
    names, name_at = _string_table([s.name for s in symbols])
    rows = [bytes(SYMBOL.size)]
    for symbol, at in zip(symbols, name_at, strict=True):
        place = index[symbol.section]
        rows.append(SYMBOL.pack(at, symbol.info, 0, place, symbol.value, symbol.size))
    return b"".join(rows), names


def unpack_symbols(table: memoryview, names: memoryview, shapes: Sequence[Shape]) -> list[Symbol]:
    """The inverse of ``pack_symbols``. ObjectError unless names follow each other in order."""
    if not len(table) or len(table) % SYMBOL.size or any(table[: SYMBOL.size]):
        raise ObjectError(f"the symbol table of {len(table)} bytes is not one")
    texts = bytes(names)
    if texts[:1] != b"\0" or texts[-1:] != b"\0":
        raise ObjectError("the symbol names do not begin and end with a NUL")
    at = 1
    symbols: list[Symbol] = []
    for name, info, other, place, value, size in SYMBOL.iter_unpack(table[SYMBOL.size :]):
        end = texts.find(b"\0", at)
        if name != at or end < 0 or other or not 1 <= place <= len(shapes):
            raise ObjectError(
                f"symbol {len(symbols) + 1} has a name, section or visibility of no use"
            )
        symbols.append(Symbol(_utf8(texts[at:end]), info, shapes[place - 1].name, value, size))
        at = end + 1
    if at != len(texts):
        raise ObjectError(f"{len(texts) - at} bytes of symbol names belong to no symbol")
    return symbols


def pack_relas(relas: Sequence[Rela]) -> bytes:
    return b"".join(RELA.pack(r.offset, r.symbol << 32 | R_DATA_64, r.addend) for r in relas)


def unpack_relas(table: memoryview) -> list[Rela]:
    """ObjectError for a size or a type no writer of ours makes."""
    if len(table) % RELA.size:
        raise ObjectError(f"the relocations take {len(table)} bytes, no multiple of {RELA.size}")
    relas: list[Rela] = []
    for offset, info, addend in RELA.iter_unpack(table):
        if info & 0xFFFFFFFF != R_DATA_64:
            raise ObjectError(
                f"relocation {len(relas)} has type {info & 0xFFFFFFFF}, not {R_DATA_64}"
            )
        relas.append(Rela(offset, info >> 32, addend))
    return relas


def pack_notes(owner: bytes, notes: Sequence[tuple[int, bytes]]) -> bytes:
    """Note entries (type, description), each padded to 4 bytes. ``owner`` ends in NUL."""
    parts: list[bytes] = []
    for kind, text in notes:
        parts += [NOTE.pack(len(owner), len(text), kind), _padded(owner), _padded(text)]
    return b"".join(parts)


def unpack_notes(owner: bytes, section: memoryview) -> list[tuple[int, int, int]]:
    """(type, start, end) of each description within the section."""
    return list(_notes(owner, section))


def _notes(owner: bytes, section: memoryview) -> Iterator[tuple[int, int, int]]:
    at = 0
    while at < len(section):
        if len(section) - at < NOTE.size:
            raise ObjectError(f"the notes end in the middle of an entry at byte {at}")
        name_size, size, kind = NOTE.unpack_from(section, at)
        start = at + NOTE.size + len(_padded(owner))
        if name_size != len(owner) or section[at + NOTE.size : start] != _padded(owner):
            raise ObjectError(f"the note at byte {at} does not belong to spyrec")
        if size > len(section) - start:
            raise ObjectError(f"the note at byte {at} runs past the end of its section")
        yield kind, start, start + size
        at = _aligned(start + size, 4)


def _links(shape: Shape, index: dict[str, int]) -> tuple[int, int]:
    return index[shape.link], index[shape.info] or shape.locals_


def _numbers(shapes: Sequence[Shape]) -> dict[str, int]:
    """Section name -> number; "" is section 0, which stands for none."""
    return {"": 0, **{shape.name: i for i, shape in enumerate(shapes, 1)}}


def _string_table(names: Sequence[str]) -> tuple[bytes, list[int]]:
    parts, at, places = [b"\0"], 1, []
    for name in names:
        part = name.encode() + b"\0"
        parts.append(part)
        places.append(at)
        at += len(part)
    return b"".join(parts), places


def _utf8(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise ObjectError(f"the name {text[:40]!r} is not UTF-8 text") from None


def _aligned(at: int, align: int) -> int:
    return -(-at // align) * align


def _padded(text: bytes) -> bytes:
    return text + bytes(-len(text) % 4)
