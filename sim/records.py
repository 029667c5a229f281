"""Little-endian fields one after the other: the tables inside an object file. The reader checks
every length and count against the bytes that are left before it uses them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import ObjectError

_U32, _I64, _U64, _F64 = (struct.Struct(code) for code in ("<I", "<q", "<Q", "<d"))
_NUMBER, _TEXT = 0, 1


@dataclass
class Pack:
    """Bytes so far."""

    out: bytearray = field(default_factory=bytearray)

    def u32(self, *values: int) -> None:
        for value in values:
            self.out += _U32.pack(value)

    def u64(self, value: int) -> None:
        self.out += _U64.pack(value)

    def f64(self, value: float) -> None:
        self.out += _F64.pack(value)

    def text(self, text: str) -> None:
        raw = text.encode()
        self.u32(len(raw))
        self.out += raw

    def facts(self, facts: Mapping[str, int | str]) -> None:
        """A table of whole numbers and texts, sorted by key."""
        self.u32(len(facts))
        for key, value in sorted(facts.items()):
            self.text(key)
            if isinstance(value, str):
                self.u32(_TEXT)
                self.text(value)
            else:
                self.u32(_NUMBER)
                self.out += _I64.pack(value)

    def align(self) -> None:
        self.out += bytes(-len(self.out) % 8)


@dataclass
class Unpack:
    """A place in a section. Whatever does not fit is an ObjectError that names the section."""

    section: str
    data: memoryview
    at: int = 0

    def error(self, problem: str) -> ObjectError:
        return ObjectError(
            f"section {self.section}, byte {self.at}: {problem}; the file is damaged"
        )

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def f64(self) -> float:
        return float(_F64.unpack(self.take(8))[0])

    def count(self, each: int) -> int:
        """A count of things that take at least ``each`` bytes."""
        n = self.u32()
        if n * each > len(self.data) - self.at:
            raise self.error(
                f"{n} entries cannot fit into the {len(self.data) - self.at} bytes left"
            )
        return n

    def text(self) -> str:
        raw = bytes(self.take(self.u32()))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.error(f"{raw[:40]!r} is not UTF-8 text") from None

    def facts(self) -> dict[str, int | str]:
        facts: dict[str, int | str] = {}
        for _ in range(self.count(12)):
            key, tag = self.text(), self.u32()
            if tag not in (_NUMBER, _TEXT) or key in facts:
                raise self.error(f"{key!r} has an unknown tag or is given twice")
            facts[key] = self.text() if tag == _TEXT else int(_I64.unpack(self.take(8))[0])
        return facts

    def texts(self) -> dict[str, str]:
        """A table all of whose values are texts."""
        facts = self.facts()
        texts = {key: value for key, value in facts.items() if isinstance(value, str)}
        if len(texts) != len(facts):
            raise self.error("a table of texts holds a number")
        return texts

    def finish(self) -> None:
        if self.at != len(self.data):
            raise self.error(f"{len(self.data) - self.at} bytes are left over")

    def skip_to(self, align: int) -> None:
        """Move on to the next multiple of ``align``; only zeros may be skipped."""
        if any(self.take(-self.at % align)):
            raise self.error("the padding is not zero")

    def take(self, size: int) -> memoryview:
        """The next ``size`` bytes, not copied."""
        if size > len(self.data) - self.at:
            raise self.error(f"{size} bytes are needed, {len(self.data) - self.at} are left")
        self.at += size
        return self.data[self.at - size : self.at]
