"""The assembler listing: what it looks like, that it reads back, and what it says of mistakes."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spx_strategies import bucketed, programs

from spyrec.sim.device import load_device
from spyrec.sim.errors import AsmError
from spyrec.sim.isa import (
    GO,
    Buffer,
    Guard,
    Instr,
    Kernel,
    Launch,
    Limit,
    Loop,
    MicroOp,
    MicroProgram,
    Note,
    Operand,
    Program,
    Rotate,
    Signal,
    Wait,
)
from spyrec.sim.listing import assemble, disassemble
from spyrec.sim.objfile import dump


def example() -> Program:
    load = Instr(
        "load",
        (3, 8),
        (Limit(67, (8,)), None),
        (
            Operand("lx", 0, (8, 1), rotate=Rotate((1,), 2, 24)),
            Operand("hbm", (0, 8, 16, 24), (32, 1), symbol="w", loops=(256,)),
        ),
        {"cores": 7},
        (Wait(GO, 0), Wait(3)),
        (Signal(1, 1, 7), Signal(2, 4)),
        1,
        where=9,
    )
    mm = Instr(
        "mm",
        (2, 1, 1, 1, 4, 1),
        (),
        (
            Operand("acc", 0, (1, 0, 0, 0, 0, 1), "f32"),
            Operand(
                "lx",
                (5, 5, 5, 6),
                (1, 0, 0, 0, 2, 0),
                guards=(Guard(-1, 28, (1, 0, 0, 0, 0, 0), (8,)),),
            ),
            Operand("lx", 64, (0, 0, 0, 0, 64, 0)),
        ),
        {"acc_levels": 1, "k_valid": 250},
        (Wait(1), Wait(2, 4), Wait(9, 0)),
        (Signal(4, 1, (2, 4, 8, 1)),),
    )
    vec = Instr(
        "vec",
        (4,),
        (),
        (
            Operand("lx", 128, (1,)),
            Operand("acc", 0, (1,), "f32"),
            Operand("lx", 9, (0,), splat=True),
        ),
        {"program": 0, "axes": 1, "fill": 0xFF800000},
    )
    kernel = Kernel(
        "k3_matmul",
        {"pt": (Loop(4, (mm,)),), "ml": (Loop(9, (load,)), Instr("sync")), "sfp": (vec,)},
        ("w", "a b"),
        (MicroProgram(2, (0.5, float("-inf")), (MicroOp("mul", (0, 2)), MicroOp("add", (4, 1)))),),
        (Note("kernel"), Note("matmul", ("MatMul_7", "Add_8"))),
        4,
        65536,
        {"macs": 1024, "ops": "matmul"},
    )
    return Program(
        (kernel,),
        (
            Buffer("w", "const", 256, 0, bytes([0, 62]) * 128, {"dtype": "dl16"}),
            Buffer("ids", "const", 12, 256, bytes([1, 2, 3, 4]) * 3),
            Buffer("x", "input", 256, 384),
        ),
        (Launch(0, (("w", 0), ("x", 128))), Launch(0, (("x", 0), ("x", 0)), (0,), True)),
        "",
        {"model": "m"},
    )


LISTING = """\
spyrec 1
meta "model" = "m"
buffer const %w size 256 at 0 {
  meta "dtype" = "dl16"
  splat 0x003e
}
buffer const %ids size 12 at 256 {
  splat 0x01020304
}
buffer input %x size 256 at 384

kernel @k3_matmul cores 4 lx 65536 ($w, $"a b") {
  info "macs" = 1024
  info "ops" = "matmul"
  program 0 (x0, x1) const c0 = 0.5, c1 = -inf { s0 = mul x0 c0; s1 = add s0 x1 }
  note 0 "kernel"
  note 1 "matmul" from "MatMul_7", "Add_8"
  stream ml {
    loop 9 {
      load on <0,3> i(3 upto 67 - t(8), 8) dst=lx[0 + i(8, 1) + 24*(t(1) mod 2)]:dl16 \
src=hbm[$w + {0 + 8*c} + i(32, 1) + t(256)]:dl16 cores=<0-2> wait go, t3 \
signal t1 -> <0-2>, t2*4 note 1
    }
    sync
  }
  stream pt {
    loop 4 {
      mm i(2, 1, 1, 1, 4, 1) acc=acc[0 + i(1, 0, 0, 0, 0, 1)]:f32 \
a=lx[{3*5, 6} + i(1, 0, 0, 0, 2, 0)]:dl16 if -1 + i(1, 0, 0, 0, 0, 0) + t(8) in 0..28 \
b=lx[64 + i(0, 0, 0, 0, 64, 0)]:dl16 k_valid=250 acc_levels=<0> wait t1, t2*4, t9 level \
signal t4 -> {<1>, <2>, <3>, <0>}
    }
  }
  stream sfp {
    vec i(4) dst=lx[128 + i(1)]:dl16 src=acc[0 + i(1)]:f32 src=lx[9 + i(0)]:dl16 splat \
program=0 axes=<0> fill=0xff800000
  }
}

launch @k3_matmul ($w=%w + 0, $"a b"=%x + 128)
launch @k3_matmul ($w=%x + 0, $"a b"=%x + 0) after 0 early
"""


def test_what_it_looks_like() -> None:
    assert disassemble(example()) == LISTING


def test_it_reads_back() -> None:
    assert assemble(LISTING) == example()


@given(st.one_of(programs(), bucketed()))
@settings(max_examples=50, deadline=None)
def test_assembling_a_listing_gives_the_same_object(program: Program) -> None:
    text = disassemble(program)
    again = assemble(text)
    assert dump(again) == dump(program)
    assert disassemble(again) == text


def test_the_device_stands_in_the_listing() -> None:
    program = replace(example(), device=load_device("spyre").text)
    text = disassemble(program)
    assert '  | name = "spyre"\n' in text
    assert assemble(text) == program
    windows = replace(example(), device=load_device("spyre").text.replace("\n", "\r\n"))
    assert assemble(disassemble(windows)) == windows


def test_a_broken_device_is_an_error_of_the_listing() -> None:
    with pytest.raises(AsmError, match=r"description, line 1: .*not valid TOML: "):
        assemble("spyrec 1\ndevice\n| [")


def test_layout_and_comments_do_not_matter() -> None:
    loose = LISTING.replace("\n", "  # note\n").replace(" + ", "\n  +\n").replace("{ ", "{\n")
    assert assemble(loose) == example()


def test_without_data_it_is_for_reading() -> None:
    text = disassemble(example(), data=False)
    assert "splat 0x" not in text
    with pytest.raises(AsmError) as caught:
        assemble(text)
    assert str(caught.value) == "line 3: constant %w has no data; give splat or zlib"


NUMBERS = [
    ((0, 8, 16, 24, 32, 40), "{0 + 8*c}"),
    ((5, 7, 9, 5, 7, 9), "{5 + 2*(c mod 3)}"),
    ((1, 1, 4, 4, 7, 7), "{1 + 3*(c div 2)}"),
    ((1, 0, 101, 100, 201, 200), "{1 + -1*(c mod 2) + 100*(c div 2)}"),
    ((7, 7, 7, 7, 7, 8), "{5*7, 8}"),
    ((3, 1, 4, 1, 5, 5), "{3, 1, 4, 1, 2*5}"),
]


@pytest.mark.parametrize(("number", "text"), NUMBERS)
def test_numbers_that_differ_from_core_to_core(number: tuple[int, ...], text: str) -> None:
    instr = Instr("fill", operands=(Operand("lx", number, ()),))
    program = Program((Kernel("k", {"sfp": (instr,)}, cores=6),), (), ())
    assert f"fill dst=lx[{text}]:dl16\n" in disassemble(program)
    assert assemble(disassemble(program)) == program


def test_nan_constants_keep_their_bits() -> None:
    nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000123))[0]
    kernel = Kernel("k", {}, programs=(MicroProgram(1, (nan, -0.0)),), cores=1)
    program = Program((kernel,), (), ())
    assert "const c0 = nan:fff8000000000123, c1 = -0.0 { }" in disassemble(program)
    assert dump(assemble(disassemble(program))) == dump(program)


def test_big_constants_take_several_lines() -> None:
    data = b"".join(hashlib.sha256(bytes([i])).digest() for i in range(50))
    program = Program((), (Buffer("w", "const", len(data), 0, data),), ())
    text = disassemble(program)
    assert max(map(len, text.splitlines())) <= 100
    assert assemble(text) == program


def one(instr: str) -> str:
    return f"spyrec 1\nkernel @k cores 4 lx 0 ($w) {{\n  stream ml {{\n    {instr}\n  }}\n}}\n"


MISTAKES = [
    ("spyrec 2\n", "line 1: the listing has version 2; this spyrec reads 1"),
    ("kernel", "line 1: expected spyrec; got 'kernel'"),
    ("spyrec 1\nkernel k", "line 2: expected @kernel; got 'k'"),
    ("spyrec 1\nkernel @k cores 1", "line 2: expected lx; the listing ends"),
    (
        "spyrec 1\n\n!",
        "line 3: expected bucket or buffer or claims or device or kernel or launch or meta; got "
        "'!'",
    ),
    (
        'spyrec 1\ndevice ""\ndevice ""',
        "line 3: the device is described twice; drop one description",
    ),
    (
        one("nop"),
        "line 4: no opcode is called 'nop'; known: sync, load, gather, store, send, recv, mm, vec, "
        "shuf, fill, prog, psum",
    ),
    (
        one("recv"),
        "line 4: kernel @k, stream ml, instruction 0 (recv): this unit cannot run it; rr can",
    ),
    (
        one("sync\n    load i(3) dst=lx[0 + i(1)]:dl16"),
        "line 5: kernel @k, stream ml, instruction 1 (load): it has 1 operands, expected 2..2",
    ),
    (
        one("load i(3) src=lx[0 + i(1)]:dl16"),
        "line 4: operand 0 of load is called src, expected dst, src in order",
    ),
    (
        one("load i({1, 2, 3}) dst=lx[0]:dl16"),
        "line 4: 3 numbers are given for 4 cores",
    ),
    (
        one("load i({9*3}) dst=lx[0]:dl16"),
        "line 4: the runs give more or less than one number for each of 4 cores",
    ),
    (
        one("load i({0 + 1*(c mod 0)}) dst=lx[0]:dl16"),
        "line 4: cores cannot be folded by 0; expected 1 or more",
    ),
    (one("sync wait t1 wait t2"), "line 4: waits is given twice"),
    (one("load cores=1 cores=2"), "line 4: cores is given twice"),
    (one("load cores=<99>"), "line 4: <99> is not a set of numbers 0..63"),
    (
        one("sync on <5>"),
        "line 4: kernel @k, stream ml, instruction 0 (sync): where is 32, outside 0..15",
    ),
    (one("sync signal t99999"), None),
    (one(f"sync note {'9' * 5000}"), "line 4: a whole number of 5000 digits is too long"),
    (
        one("loop 70000 { sync }"),
        "line 4: kernel @k, stream ml, instruction 0: a loop has 70000 trips; "
        "this device counts 1..65535, so split it",
    ),
    (one("loop 2 { " * 3000 + "}" * 3000), "line 4: loops nest deeper than 6"),
    (
        one("loop 2 { }"),
        "line 3: kernel @k, stream ml, instruction 0: a loop has an empty body; drop it",
    ),
    (
        "spyrec 1\nbuffer const %w size 3 at 0 {\n  splat 0x0011\n}\n",
        "line 3: 0x0011 cannot be repeated to fill 3 bytes (at most 1073741824)",
    ),
    (
        "spyrec 1\nbuffer const %w size 3 at 0 {\n  zlib\n  | eJx!\n}\n",
        "line 3: the data are not zlib in base64: Only base64 data is allowed",
    ),
    (
        "spyrec 1\nbuffer const %w size 3 at 0 {\n  zlib\n  | eJxLTEoGAAJNASc=\n}\n"
        "buffer const %v size 2 at 128 {\n  zlib\n  | eJxLTEoGAAJNASc=\n}\n",
        "line 7: the data hold more bytes, the buffer 2",
    ),
    (
        "spyrec 1\nbuffer input %w size 1 at 0 { splat 0x00 }",
        "line 2: %w has data, but only a const buffer has",
    ),
    ("spyrec 1\nbuffer temp %w size 1 at 7", "buffer %w: address 7 is not a multiple of 128"),
    ("spyrec 1\nlaunch @k ()", "line 2: no kernel is called 'k'; define it in the listing"),
    (
        "spyrec 1\nkernel @k cores 1 lx 0 ($w) { }\nlaunch @k ($x=%y + 0)",
        "line 3: the launch binds (x), kernel @k has the parameters (w)",
    ),
    (
        "spyrec 1\nkernel @k cores 1 lx 0 () {\nprogram 0 (x0) { s0 = neg x1 }\n}",
        "line 3: s0 reads x1, which is not defined yet",
    ),
    (
        "spyrec 1\nkernel @k cores 1 lx 0 () {\nprogram 0 (x0) { s1 = neg x0 }\n}",
        "line 3: s1 stands in the place of s0; number them in order",
    ),
    (
        "spyrec 1\nkernel @k cores 99 lx 0 () { }",
        "line 2: kernel @k: cores is 99; this device runs 1..63",
    ),
    ('spyrec 1\nmeta "\\x" = ""', 'line 2: "\\x" is not a JSON string'),
    ('spyrec 1\nmeta "a" = "1"\nmeta "a" = "2"', "line 3: meta 'a' is given twice"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_mistakes_have_a_line_and_a_sentence(text: str, message: str | None) -> None:
    with pytest.raises(AsmError) as caught:
        assemble(text)
    if message is not None:
        assert str(caught.value) == message
    if str(caught.value).startswith("line "):
        assert str(caught.value).startswith(f"line {caught.value.line}: ")


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_listings_are_refused_or_read(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(LISTING) - 1))
    cut = data.draw(st.integers(0, 5))
    put = data.draw(
        st.sampled_from(["", "0", "-1", "{", "}", "(", '"', "<", "t1", " i(1)", "99999999999"])
    )
    try:
        program = assemble(LISTING[:at] + put + LISTING[at + cut :])
    except AsmError as error:
        assert str(error)
    else:
        assert dump(assemble(disassemble(program))) == dump(program)
