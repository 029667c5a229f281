"""Reading and writing the user's files: a write is whole or not at all, and an archive is measured
before anything is allocated for it."""

from __future__ import annotations

import lzma
import os
import secrets
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from spyrec.ir.errors import SpyrecError

MAX_HEADER_BYTES = 1 << 16  # of one array in an .npz file

DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, RuntimeError,
    ValueError, LookupError, ArithmeticError, SyntaxError, TypeError, tokenize.TokenError,
)
"""What zipfile and numpy raise over an archive whose bytes are damaged, OSError aside."""


def no_file(path: str | Path) -> str:
    """Why there is no regular file to read, "" when there is one. A device or pipe is none: it
    cannot be read twice, nor be asked how long it is."""
    if os.path.isfile(path):
        return ""
    if os.path.isdir(path):
        return "is a folder, expected a file"
    if os.path.exists(path):
        return "is a device or pipe, expected a regular file"
    return "is a link to what does not exist" if os.path.islink(path) else "does not exist"


def read_text(path: str | Path, most: int) -> str:
    """The UTF-8 text of a file or pipe. SpyrecError when it has over ``most`` bytes; OSError,
    UnicodeDecodeError."""
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise SpyrecError(f"{path} is larger than {most >> 20} MiB")
    return content.decode("utf-8")


_HELD: set[str] = set()


def hold(path: str | Path) -> None:
    """Let no file be written in the place of ``path``: a model's weights are read from there for as
    long as the model is there."""
    _HELD.add(os.path.realpath(path))


@contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file that takes the place of ``path`` only when the block ends without an error.

    It is written beside ``path``, flushed to disk and renamed; on any exception, Ctrl-C included,
    it is removed and what stood at ``path`` stays as it was. A symbolic link is followed and an
    existing file's permissions are kept. A device or pipe is written straight to. Raises OSError
    that names ``path``, SpyrecError where ``path`` is held.
    """
    target = Path(os.path.realpath(path))
    if str(target) in _HELD:
        raise SpyrecError(
            f"{path} holds weights of the model and would be overwritten; give another name"
        )
    if os.path.exists(path) and not target.exists():
        target = Path(path)  # of a pipe the system tells no path, as of /dev/stdout
    try:
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            with open(target, "wb") as plain:
                yield plain
            return
        with _beside(target) as (file, temporary):
            yield file
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            os.fsync(file.fileno())
            os.replace(temporary, target)
        _sync_folder(target.parent)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


@contextmanager
def _beside(target: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file in the target's folder, removed on the way out unless it was renamed."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    file: BinaryIO = open(descriptor, "wb", buffering=1 << 20)  # noqa: SIM115 (closed below)
    try:
        yield file, temporary
    finally:
        try:
            file.close()
        finally:
            temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: str | Path, data: bytes | memoryview) -> None:
    """Replace ``path`` by ``data``, whole or not at all. Raises OSError."""
    with atomic_file(path) as file:
        file.write(data)


def write_text(path: str | Path, text: str) -> None:
    """Replace ``path`` by ``text`` as UTF-8, whole or not at all. Raises OSError."""
    write_bytes(path, text.encode("utf-8"))


def write_npz(path: str | Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Replace ``path`` by an uncompressed .npz of ``arrays``; names may hold any character.

    Equal arrays give equal bytes (no time of day is stored). Raises OSError.
    """
    with atomic_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy")
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


@dataclass(frozen=True)
class ArrayHeader:
    """What an .npz file says of one of its arrays, before the array is read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def read_npz(
    path: str | Path, check: Callable[[Mapping[str, ArrayHeader]], None] | None = None
) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an .npz file by name. Pickled objects are never loaded.

    Each array's header is compared with the size the archive records for it, then ``check`` sees
    all headers and may raise, and only then memory is taken. Raises SpyrecError that lists every
    unreadable array, OSError when the file cannot be opened.
    """
    if os.path.exists(path) and not os.path.isdir(path) and (odd := no_file(path)):
        raise SpyrecError(f"{path} {odd}")
    try:
        with zipfile.ZipFile(path) as archive:
            headers = _headers(archive, path)
            if check is not None:
                check(headers)
            return {name: _read(archive, name) for name in headers}
    except DAMAGED as error:
        raise _unreadable(path, error) from None
    except OSError as error:
        if error.filename is not None:  # it cannot be opened
            raise
        raise _unreadable(path, error) from None


def _unreadable(path: str | Path, error: Exception) -> SpyrecError:
    return SpyrecError(
        f"{path} cannot be read as an .npz archive: {_first_line(error)}; write it with numpy.savez"
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _headers(archive: zipfile.ZipFile, path: str | Path) -> dict[str, ArrayHeader]:
    found: dict[str, ArrayHeader] = {}
    problems: list[str] = []
    for entry in archive.infolist():
        name = entry.filename.removesuffix(".npy")
        if name == entry.filename:
            problems.append(f"{path}: member {name!r} is not an array; its name must end in .npy")
        elif name in found:
            problems.append(f"{path}: two arrays are called {name!r}")
        else:
            header = _header(archive, entry)
            if isinstance(header, str):
                problems.append(f"{path}: array {name!r} {header}")
            else:
                found[name] = header
    if problems:
        raise SpyrecError("\n".join(problems))
    return found


def _header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> ArrayHeader | str:
    """The header of one member, or what is wrong with it."""
    with archive.open(entry) as member:
        try:
            version = np.lib.format.read_magic(member)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }.get(version)
            if read is None:
                return f"has .npy version {version}, expected (1, 0) or (2, 0)"
            shape, _, dtype = read(member, max_header_size=MAX_HEADER_BYTES)
        except DAMAGED as error:
            return f"has no readable .npy header: {_first_line(error)}"
        start = member.tell()
    if not all(isinstance(extent, int) and extent >= 0 for extent in shape):
        return f"claims the shape {str(shape)[:80]}, which no array has"
    if dtype.hasobject:
        return "holds pickled Python objects, which are never loaded; store plain numbers"
    if not dtype.itemsize:
        return f"holds elements of type {dtype}, which take no bytes; store plain numbers"
    expected = dtype.itemsize
    for extent in shape:
        expected *= extent
    if expected != entry.file_size - start:
        return (
            f"claims shape {shape} of {dtype} ({expected} bytes) but the archive holds "
            f"{entry.file_size - start} bytes for it"
        )
    return ArrayHeader(tuple(shape), dtype)


def _read(archive: zipfile.ZipFile, name: str) -> np.ndarray[Any, Any]:
    with archive.open(f"{name}.npy") as member:
        array = np.lib.format.read_array(
            member, allow_pickle=False, max_header_size=MAX_HEADER_BYTES
        )
    return cast("np.ndarray[Any, Any]", array)
