"""The object file: round trips, what readelf says of it, and damage of every kind."""

from __future__ import annotations

import hashlib
import io
import mmap
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spx_strategies import bucketed, programs

from spyrec.sim import elf
from spyrec.sim.device import load_device
from spyrec.sim.errors import ObjectError
from spyrec.sim.isa import (
    Buffer,
    Instr,
    Kernel,
    Launch,
    Loop,
    MicroOp,
    MicroProgram,
    Note,
    Operand,
    Program,
    Wait,
)
from spyrec.sim.objfile import (
    DIGEST_BYTES,
    PAGE,
    SECTIONS,
    dump,
    load_program,
    loads,
    save_program,
)

READELF = shutil.which("readelf")


def small() -> Program:
    load = Instr(
        "load",
        (3,),
        operands=(Operand("lx", 0, (1,)), Operand("hbm", (0, 4), (1,), symbol="w")),
        imm={"cores": 3},
    )
    double = MicroProgram(1, (2.0,), (MicroOp("mul", (0, 1)),))
    vec = Instr("vec", (), operands=(Operand("lx", 0, ()), Operand("lx", 0, ())))
    kernel = Kernel(
        "k0_matmul",
        {"ml": (load,), "sfp": (vec,), "pt": (Loop(4, (Instr("sync", waits=(Wait(3),)),)),)},
        ("w",),
        (double,),
        (Note("kernel", ("MatMul_7",)),),
        cores=2,
        lx_bytes=4096,
        info={"macs": 12, "ops": "matmul"},
    )
    return Program(
        (kernel, replace(kernel, name="k1_mul")),
        (
            Buffer("weights.0", "const", 300, 4096, b"abc" * 100, {"dtype": "dl16"}),
            Buffer("x", "input", 256, 128),
            Buffer("scratch", "temp", 1 << 30, 1 << 32),
            Buffer("bias", "const", 128, 8192, bytes(128)),
        ),
        (
            Launch(0, (("x", 0),)),
            Launch(1, (("weights.0", 128),), (0,), True),
            Launch(1, (("bias", 0),), (0, 1)),
        ),
        load_device("spyre").text,
        {"model": "m", "numerics": "dl16"},
    )


SMALL = dump(small())
PLACES = elf.read(memoryview(SMALL), SECTIONS)


@given(st.one_of(programs(), bucketed()))
@settings(max_examples=50, deadline=None)
def test_loads_of_dump_is_the_program(program: Program) -> None:
    blob = dump(program)
    assert loads(blob) == program
    assert dump(loads(blob)) == blob


def test_same_program_same_bytes_whatever_the_order_of_its_tables() -> None:
    program = small()
    turned = replace(
        program,
        meta=dict(reversed(program.meta.items())),
        kernels=tuple(
            replace(
                k,
                streams=dict(reversed(k.streams.items())),
                info=dict(reversed(k.info.items())),
            )
            for k in program.kernels
        ),
    )
    assert dump(turned) == SMALL


def test_files_and_paths(tmp_path: Path) -> None:
    path = tmp_path / "m.spx"
    save_program(small(), path)
    assert path.read_bytes() == SMALL
    assert [p.name for p in tmp_path.iterdir()] == ["m.spx"]
    file = io.BytesIO()
    save_program(small(), file)
    assert file.getvalue() == SMALL
    loaded = load_program(path)
    assert loaded == small()
    save_program(loaded, path)  # over the file its constants are mapped from
    assert load_program(str(path)) == small()


def test_weights_are_mapped_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "m.spx"
    save_program(small(), path)
    data = load_program(path).buffers[0].data
    assert isinstance(data, memoryview)
    assert data.readonly
    assert isinstance(data.obj, mmap.mmap)
    assert PLACES[".rodata.weights"].start % PAGE == 0


def test_weights_stand_on_stick_boundaries() -> None:
    weights = SMALL[PLACES[".rodata.weights"]]
    assert weights[:300] == b"abc" * 100
    assert weights[300:384] == bytes(84)
    assert len(weights) == 384 + 128


@pytest.mark.skipif(READELF is None, reason="binutils is not installed")
def test_readelf_reads_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "m.spx"
    path.write_bytes(SMALL)
    run = subprocess.run(
        [READELF or "", "-aW", str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stderr == ""
    for word in ("warning", "unrecognized", "corrupt", "error"):
        assert word not in run.stdout.lower()
    for shape in SECTIONS:
        assert f"] {shape.name} " in run.stdout
    lines = [line.split() for line in run.stdout.splitlines()]
    symbols = {line[7]: (line[1], line[3], line[6]) for line in lines if line[4:5] == ["GLOBAL"]}
    text_size = len(SMALL[PLACES[".text"]]) // 2
    number = {shape.name: str(i) for i, shape in enumerate(SECTIONS, 1)}
    assert symbols == {
        "k0_matmul": (f"{0:016x}", "FUNC", number[".text"]),
        "k1_mul": (f"{text_size:016x}", "FUNC", number[".text"]),
        "weights.0": (f"{0:016x}", "OBJECT", number[".rodata.weights"]),
        "x": (f"{128:016x}", "OBJECT", number[".bss.hbm"]),
        "scratch": (f"{1 << 32:016x}", "OBJECT", number[".bss.hbm"]),
        "bias": (f"{384:016x}", "OBJECT", number[".rodata.weights"]),
    }
    relocations = [line[2:3] + line[4:] for line in lines if line[2:3] == ["R_BPF_DATA_64"]]
    assert relocations == [
        ["R_BPF_DATA_64", "x", "+", "0"],
        ["R_BPF_DATA_64", "weights.0", "+", "80"],
        ["R_BPF_DATA_64", "bias", "+", "0"],
    ]
    assert run.stdout.count("  spyrec  ") == 3


def refused(blob: bytes) -> str:
    with pytest.raises(ObjectError) as caught:
        loads(blob)
    return str(caught.value)


def test_every_single_bit_counts() -> None:
    """One bit of each byte, a different one from byte to byte."""
    for i in range(len(SMALL)):
        blob = bytearray(SMALL)
        blob[i] ^= 1 << i % 8
        with pytest.raises(ObjectError):
            loads(blob)


@given(st.integers(0, len(SMALL) - 1))
def test_truncated_files_are_refused(size: int) -> None:
    assert refused(SMALL[:size])


def test_something_appended_is_refused() -> None:
    assert refused(SMALL + b"\0" * 64) == (
        f"the section headers do not end where the file does, at byte {len(SMALL) + 64}; "
        "the file is truncated or has something appended"
    )


def sign(blob: bytearray) -> bytes:
    """The blob with the checksum a forger would compute."""
    at = PLACES[".note.spyrec"].start + 12 + 8 + 4
    blob[at : at + DIGEST_BYTES] = bytes(DIGEST_BYTES)
    blob[at : at + DIGEST_BYTES] = hashlib.sha256(blob).digest()
    return bytes(blob)


def test_signing_is_what_the_writer_does() -> None:
    assert sign(bytearray(SMALL)) == SMALL


FORGED_PLACES = [
    place
    for name, place in PLACES.items()
    if name not in (".bss.hbm", ".rodata.weights") and place.stop > place.start
] + [slice(len(SMALL) - 64 * 15, len(SMALL)), slice(0, 64)]


@given(st.data())
@settings(max_examples=250, deadline=None)
def test_forged_files_are_refused_or_well_formed(data: st.DataObject) -> None:
    blob = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(FORGED_PLACES))
        i = data.draw(st.integers(place.start, place.stop - 1))
        blob[i] = data.draw(st.sampled_from([0, 1, 255, 127]) | st.integers(0, 255))
    try:
        program = loads(sign(blob))
    except ObjectError as error:
        assert str(error)
    else:
        assert loads(dump(program)) == program


def forge(section: str, offset: int, code: str, value: int) -> str:
    """What a file with a right checksum and one field changed is refused for."""
    blob = bytearray(SMALL)
    struct.pack_into(code, blob, PLACES[section].start + offset, value)
    return refused(sign(blob))


LAUNCH_SLOT = 4 + 16 + 4  # of the first launch: count, its four words, padding
FORGERIES = [
    (
        (".kernels", 0, "<I", 2**32 - 1),
        "section .kernels, byte 4: 4294967295 entries cannot fit into the 148 bytes left; "
        "the file is damaged",
    ),
    (
        (".kernels", 4, "<I", 2**31),
        "kernel @k0_matmul: cores is 2147483648; this device runs 1..32",
    ),
    ((".kernels", 16, "<I", 2**32 - 1), None),  # micro-programs
    ((".kernels", 20, "<I", 2**32 - 1), None),  # notes
    (
        (".launches", 4, "<I", 7),
        "launch 0: kernel 7 does not exist; the program has 2",
    ),
    (
        (".launches", 8, "<I", 4),
        "section .launches, byte 24: flags 4 are not known; the file is damaged",
    ),
    ((".launches", 12, "<I", 2**32 - 1), None),  # arguments
    ((".launches", 16, "<I", 2**32 - 1), None),  # dependencies
    (
        (".launches", LAUNCH_SLOT, "<Q", 4096),
        "section .launches, byte 32: an address slot is not zero or has no relocation of its own; "
        "the file is damaged",
    ),
    (
        (".rela.launches", 12, "<I", 1),
        "section .launches, byte 32: a relocation names symbol 1, which is not a buffer; "
        "the file is damaged",
    ),
    (
        (".rela.launches", 16, "<q", 64),
        "launch 0: parameter w starts at byte 64 of %x; expected a multiple of 128 in 0..256",
    ),
    ((".rela.launches", 8, "<I", 3), "relocation 0 has type 3, not 12"),
    (
        (".symtab", 24 + 8, "<Q", 4),
        "section .text, byte 0: the symbol of kernel @k0_matmul does not begin here; "
        "the file is damaged",
    ),
    (
        (".symtab", 3 * 24 + 16, "<Q", 1 << 60),
        "section .rodata.weights, byte 0: 1152921504606846976 bytes are needed, 512 are left; "
        "the file is damaged",
    ),
    (
        (".symtab", 4 * 24 + 16, "<Q", 1 << 60),
        "buffer %x: bytes 128..1152921504606847104 are not inside the 120259084288 bytes of card "
        "memory",
    ),
    ((".symtab", 24, "<I", 5), "symbol 1 has a name, section or visibility of no use"),
    ((".strtab", 1, "<B", 0xFF), "the name b'\\xff0_matmul' is not UTF-8 text"),
    (
        (".text", 8, "<I", 0),
        "kernel @k0_matmul, word 3: no opcode has the code 0; the text is damaged",
    ),
    (
        (".note.spyrec", 20, "<I", 2),
        "the object file has format 2; this version of spyrec reads 5, so compile the model again",
    ),
    ((".note.spyrec", 4, "<I", 2**31), "the note at byte 0 runs past the end of its section"),
    (
        (".rodata.weights", 301, "<B", 1),
        "section .rodata.weights, byte 384: the padding is not zero; the file is damaged",
    ),
]


@pytest.mark.parametrize(("field", "message"), FORGERIES)
def test_forged_fields_are_named(field: tuple[str, int, str, int], message: str | None) -> None:
    said = forge(*field)
    assert message is None or said == message


def test_sections_may_not_overlap() -> None:
    blob = bytearray(SMALL)
    header = len(SMALL) - 64 * (len(SECTIONS) + 1) + 64 * 2
    text = PLACES[".text"]
    struct.pack_into("<Q", blob, header + 24, text.start)
    assert refused(sign(blob)) == (
        f"section .patches: bytes {text.start}..{text.start + 24} overlap another section, "
        f"leave a gap or run past the end of the file at {len(SMALL)}; the file is damaged or "
        "truncated"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty, so not a spyrec program"),
        (b"[device]\nname = 1\n" * 20, "this is not an ELF file, so not a spyrec program"),
        (b"\x7fELF", "this is not an ELF file, so not a spyrec program"),
    ],
)
def test_foreign_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.spx"
    path.write_bytes(content)
    with pytest.raises(ObjectError) as caught:
        load_program(path)
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).endswith(message)


def test_another_elf_file_is_not_ours(tmp_path: Path) -> None:
    path = Path("/bin/ls")
    if not path.is_file() or path.read_bytes()[:4] != b"\x7fELF":
        pytest.skip("this system has no ELF program at /bin/ls to take for ours")
    with pytest.raises(ObjectError) as caught:
        load_program(path)
    assert str(caught.value) == (
        "/bin/ls: this is an ELF file, but not a spyrec program: the file header differs"
    )


def test_paths_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(ObjectError, match=r"cannot be read: .*No such file"):
        load_program(tmp_path / "none.spx")
    with pytest.raises(ObjectError, match=r"cannot be read: .*directory"):
        load_program(tmp_path)
    with pytest.raises(ObjectError, match="cannot be written: No such file or directory"):
        save_program(small(), tmp_path / "none" / "m.spx")


MALFORMED = [
    (
        {"launches": (Launch(0, ()),)},
        "launch 0: kernel @k0_matmul takes 1 buffers, got 0",
    ),
    (
        {"launches": (Launch(0, (("y", 0),)),)},
        "launch 0: parameter w is bound to %y, which is not a buffer",
    ),
    (
        {"launches": (Launch(0, (("x", 0),), notes=(Note("again"),) * 9),)},
        "launch 0: kernel @k0_matmul has 1 notes, the launch replaces 9; expected all of them or "
        "none",
    ),
    (
        {"launches": (Launch(0, (("x", 0),), (0,)),)},
        "launch 0: it waits for launch 0, which is not an earlier one",
    ),
    (
        {"buffers": (Buffer("x", "const", 5, 0, b"abc"),), "launches": ()},
        "buffer %x: a const buffer of 5 bytes has 3 bytes of data",
    ),
    (
        {"buffers": (Buffer("x", "input", 5, 64),), "launches": ()},
        "buffer %x: address 64 is not a multiple of 128",
    ),
    (
        {"buffers": (Buffer("x", "input", 5), Buffer("x", "temp", 5)), "launches": ()},
        "the name 'x' stands for more than one buffer; rename one",
    ),
    (
        {"buffers": (Buffer("", "input", 5),), "launches": ()},
        "the name of a buffer is ''; a name is not empty and holds no NUL",
    ),
    (
        {"meta": {"a": "\ud800"}},
        "meta 'a' of the program is not text that UTF-8 can hold: 'utf-8' codec can't encode "
        "character '\\ud800' in position 0: surrogates not allowed",
    ),
]


@pytest.mark.parametrize(("changes", "message"), MALFORMED)
def test_malformed_programs_are_not_written(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ObjectError) as caught:
        dump(replace(small(), **changes))  # type: ignore[arg-type]
    assert str(caught.value) == message
