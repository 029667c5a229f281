"""Writes are whole or not at all; archives are measured before memory is taken."""

from __future__ import annotations

import errno
import io
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spyrec import files
from spyrec.ir.errors import SpyrecError


def test_a_finished_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "out.bin"
    target.write_bytes(b"old")
    files.write_bytes(target, b"new")
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["out.bin"]


def test_the_old_file_stands_until_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "out.bin"
    target.write_bytes(b"old")
    with files.atomic_file(target) as file:
        file.write(b"new")
        file.flush()
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_an_interrupted_write_leaves_the_old_file(
    tmp_path: Path, error: type[BaseException]
) -> None:
    target = tmp_path / "out.bin"
    target.write_bytes(b"old")
    with pytest.raises(error), files.atomic_file(target) as file:
        file.write(b"half")
        raise error
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.bin"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    target = tmp_path / "out.bin"
    target.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        files.write_bytes(target, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(target)
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.bin"]


def test_a_real_write_that_fails_leaves_no_file() -> None:
    """/dev/full is a disk that is always full; it is written to directly, being no regular file."""
    with pytest.raises(OSError, match="No space left on device") as caught:
        files.write_bytes("/dev/full", b"x" * (1 << 21))
    assert caught.value.filename == "/dev/full"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        files.write_text(tmp_path / "absent" / "out.txt", "x")
    assert caught.value.filename == str(tmp_path / "absent" / "out.txt")


def test_permissions_are_kept_and_new_files_follow_the_umask(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("x")
    old.chmod(0o640)
    before = os.umask(0o027)
    try:
        files.write_text(old, "y")
        files.write_text(new, "y")
    finally:
        os.umask(before)
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert stat.S_IMODE(new.stat().st_mode) == 0o640


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    files.write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12),
        st.sampled_from(["float32", "int64", "bool", "uint8"]),
        max_size=4,
    ),
    st.lists(st.integers(0, 4), max_size=3),
)
def test_npz_round_trip_is_exact_and_repeatable(
    tmp_path_factory: pytest.TempPathFactory, kinds: dict[str, str], shape: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("npz")
    rng = np.random.default_rng(0)
    arrays = {name: (rng.normal(size=shape) * 9).astype(kind) for name, kind in kinds.items()}
    files.write_npz(folder / "a.npz", arrays)
    files.write_npz(folder / "b.npz", arrays)
    back = files.read_npz(folder / "a.npz")
    assert (folder / "a.npz").read_bytes() == (folder / "b.npz").read_bytes()
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def test_numpy_reads_what_we_write_and_we_read_what_numpy_writes(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    files.write_npz(tmp_path / "ours.npz", {"/a/b.0": array})
    with np.load(tmp_path / "ours.npz") as loaded:
        np.testing.assert_array_equal(loaded["/a/b.0"], array)
    np.savez_compressed(tmp_path / "theirs.npz", x=array.T)
    np.testing.assert_array_equal(files.read_npz(tmp_path / "theirs.npz")["x"], array.T)


def header(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


def archive(path: Path, members: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name, data in members.items():
            out.writestr(name, data)
    return path


def test_a_claimed_terabyte_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    path = archive(tmp_path / "bomb.npz", {"x.npy": header((1 << 20, 1 << 20)) + b"1234"})
    with pytest.raises(SpyrecError) as caught:
        files.read_npz(path)
    assert str(caught.value) == (
        f"{path}: array 'x' claims shape (1048576, 1048576) of float32 (4398046511104 bytes) "
        "but the archive holds 4 bytes for it"
    )


def test_pickles_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(SpyrecError, match="holds pickled Python objects, which are never loaded"):
        files.read_npz(tmp_path / "p.npz")


def test_every_fault_of_an_archive_is_listed(tmp_path: Path) -> None:
    path = archive(
        tmp_path / "bad.npz",
        {"note.txt": b"hello", "x.npy": b"no header", "y.npy": header((3,)) + b"\0" * 8},
    )
    with pytest.raises(SpyrecError) as caught:
        files.read_npz(path)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path}: member 'note.txt' is not an array; its name must end in .npy"
    assert lines[1].startswith(f"{path}: array 'x' has no readable .npy header: ")
    assert lines[2].startswith(f"{path}: array 'y' claims shape (3,) of float32 (12 bytes)")
    assert len(lines) == 3


def test_the_check_sees_headers_and_can_refuse_before_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3), np.float32))
    seen: dict[str, Any] = {}

    def refuse(headers: Mapping[str, files.ArrayHeader]) -> None:
        seen.update(headers)
        raise SpyrecError("no")

    monkeypatch.setattr(np.lib.format, "read_array", None)
    with pytest.raises(SpyrecError, match=r"^no$"):
        files.read_npz(tmp_path / "a.npz", refuse)
    assert seen == {"x": files.ArrayHeader((2, 3), np.dtype("float32"))}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_archive_is_an_error_or_the_same_arrays(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    array = np.arange(40, dtype=np.float32)
    np.savez_compressed(folder / "a.npz", x=array)
    raw = bytearray((folder / "a.npz").read_bytes())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= data.draw(st.integers(1, 255))
    (folder / "b.npz").write_bytes(raw)
    try:
        back = files.read_npz(folder / "b.npz")
    except (SpyrecError, OSError):
        return
    assert all(b.shape == (40,) and np.array_equal(b, array) for b in back.values())


def test_what_is_held_is_not_overwritten(tmp_path: Path) -> None:
    held = tmp_path / "weights.bin"
    held.write_bytes(b"weights")
    (tmp_path / "link").symlink_to(held)
    files.hold(held)
    for path in (held, tmp_path / "link", tmp_path / "." / "weights.bin"):
        with pytest.raises(SpyrecError, match="holds weights of the model and would be over"):
            files.write_bytes(path, b"program")
    assert held.read_bytes() == b"weights"


def test_a_text_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{}", "utf-8")
    assert files.read_text(path, 2) == "{}"
    with pytest.raises(SpyrecError, match="larger than 0 MiB"):
        files.read_text("/dev/zero", 100)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="there is no /dev/zero")
def test_arrays_are_not_read_from_a_device() -> None:
    with pytest.raises(SpyrecError, match="is a device or pipe, expected a regular file"):
        files.read_npz("/dev/zero")


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="there is no /dev/stdout")
def test_what_goes_to_a_pipe_arrives() -> None:
    program = "from spyrec import files; files.write_bytes('/dev/stdout', b'all of it')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"all of it"
