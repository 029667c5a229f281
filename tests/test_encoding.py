"""Kernel streams to words and back, and what is refused on either way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spx_strategies import kernels

from spyrec.sim.encoding import Encoded, canonical, decode_kernel, encode_kernel
from spyrec.sim.errors import ObjectError
from spyrec.sim.isa import (
    Guard,
    Instr,
    Kernel,
    Limit,
    Loop,
    MicroOp,
    MicroProgram,
    Note,
    Operand,
    Signal,
    Wait,
)
from spyrec.sim.wellformed import Limits, limits_of

LIMITS = Limits()


def shell(kernel: Kernel) -> Kernel:
    return replace(kernel, streams={})


def one(instr: Instr, unit: str = "ml", cores: int = 4) -> Kernel:
    return Kernel("k", {unit: (instr,)}, ("w",), notes=(Note("op", ("MatMul_7",)),), cores=cores)


LOAD = Instr(
    "load",
    (3,),
    operands=(Operand("lx", 0, (1,)), Operand("hbm", (0, 8, 16, 99), (1,), symbol="w")),
    waits=(Wait(0, 0),),
    signals=(Signal(5, 2),),
)


@given(kernels())
@settings(max_examples=60, deadline=None)
def test_decode_of_encode_is_the_kernel(kernel: Kernel) -> None:
    encoded = encode_kernel(kernel, LIMITS)
    assert decode_kernel(encoded, shell(kernel), LIMITS) == kernel
    again = encode_kernel(kernel, LIMITS)
    assert encoded.words.tolist() == again.words.tolist()
    assert encoded.patches.tolist() == again.patches.tolist()


def test_words_of_a_load() -> None:
    encoded = encode_kernel(one(LOAD), LIMITS)
    lx, hbm = 1 | 1 << 2 | 1 << 13, 0 | 1 << 2 | 1 << 13 | 1 << 19
    assert encoded.words.tolist() == [
        1, 0 | 12 << 8,  # one stream, unit ml, 12 words
        2 | 1 << 8 | 2 << 12 | 1 << 16 | 1 << 24, 12, 0,
        3,
        lx, 0, 1,
        hbm, 0, 1,
        0 | 0 << 16,
        5 | 2 << 16,
    ]  # fmt: skip
    assert encoded.patches.tolist() == [[1, 10, 8], [2, 10, 16], [3, 10, 99]]


def test_equal_numbers_and_empty_limits_are_folded() -> None:
    loose = replace(LOAD, counts=((3, 3, 3, 3),), limits=(None,), imm={"cores": (5, 5, 5, 5)})
    kernel = one(loose)
    tight = one(replace(LOAD, imm={"cores": 5}))
    assert canonical(kernel) == tight
    assert decode_kernel(encode_kernel(kernel, LIMITS), shell(kernel), LIMITS) == tight


def test_a_64_bit_immediate_that_differs_in_either_half() -> None:
    for values in [(1, 2**40, -1, 0), (0, 2**40, 2**41, 0), (1, 2, 3, 4)]:
        kernel = one(
            Instr("fill", (), operands=(Operand("lx", 0, ()),), imm={"value": values}), "sfp"
        )
        back = decode_kernel(encode_kernel(kernel, LIMITS), shell(kernel), LIMITS)
        assert back == kernel


BROKEN = [
    (replace(LOAD, counts=(2**31,)), "count 0 is 2147483648, outside 0..2147483647"),
    (replace(LOAD, counts=(1.5,)), "count 0 is 1.5, expected a whole number"),  # type: ignore[arg-type]
    (replace(LOAD, counts=((1, 2),)), "count 0 has 2 values for 4 cores"),
    (replace(LOAD, imm={"cores": 16}), "cores is 16, outside 0..15"),
    (replace(LOAD, imm={"init": 1}), "'init' is not one of its immediates: cores"),
    (replace(LOAD, note=1), "note is 1, outside 0..0"),
    (replace(LOAD, where=16), "where is 16, outside 0..15"),
    (replace(LOAD, waits=(Wait(70000),)), "wait token is 70000, outside 0..65535"),
    (replace(LOAD, signals=(Signal(1, 0),)), "signal count is 0, outside 1..32767"),
    (replace(LOAD, operands=LOAD.operands[:1]), "it has 1 operands, expected 2..2"),
    (
        replace(LOAD, limits=(Limit(3, (1,)),)),
        "limit of dimension 0 has 1 loop strides inside 0 loops",
    ),
    (
        replace(LOAD, operands=(Operand("acc", 0, (1,)), LOAD.operands[1])),
        "operand 0 (dst) is in 'acc', expected lx",
    ),
    (
        replace(LOAD, operands=(LOAD.operands[0], Operand("hbm", 0, (1,), symbol="x"))),
        "operand 1 (src): 'x' is not a parameter of the kernel; add it to params",
    ),
    (
        replace(LOAD, operands=(Operand("lx", 0, (1,), "f17"), LOAD.operands[1])),
        "operand 0 (dst): no number format is called 'f17'; "
        "known: dl16, f16, bf16, f32, i32, f8e4m3, i8, i4",
    ),
    (
        replace(LOAD, operands=(Operand("lx", 0, ()), LOAD.operands[1])),
        "operand 0 (dst) has 0 strides for 1 dimensions; give one each",
    ),
    (
        replace(LOAD, operands=(Operand("lx", 2**31, (1,)), LOAD.operands[1])),
        "operand 0 (dst) base is 2147483648, outside -2147483648..2147483647",
    ),
    (Instr("mm"), "this unit cannot run it; pt can"),
]


@pytest.mark.parametrize(("instr", "problem"), BROKEN)
def test_errors_name_instruction_field_and_origin(instr: Instr, problem: str) -> None:
    with pytest.raises(ObjectError) as caught:
        encode_kernel(one(instr), LIMITS)
    origin = " (from MatMul_7)" if instr.note == 0 else ""
    assert (
        str(caught.value) == f"kernel @k, stream ml, instruction 0 ({instr.op}): {problem}{origin}"
    )


def test_loops_are_bounded_by_the_device() -> None:
    kernel = Kernel("k", {"pt": (Loop(70000, (Instr("sync"),)),)}, cores=1)
    with pytest.raises(ObjectError) as caught:
        encode_kernel(kernel, LIMITS)
    assert str(caught.value) == (
        "kernel @k, stream pt, instruction 0: a loop has 70000 trips; "
        "this device counts 1..65535, so split it"
    )
    encode_kernel(kernel, Limits(loop_max=70000))
    deep: Instr | Loop = Instr("sync")
    for _ in range(7):
        deep = Loop(2, (deep,))
    with pytest.raises(ObjectError, match="loops nest deeper than 6"):
        encode_kernel(Kernel("k", {"pt": (deep,)}, cores=1), LIMITS)
    with pytest.raises(ObjectError, match="a loop has an empty body; drop it"):
        encode_kernel(Kernel("k", {"pt": (Loop(2, ()),)}, cores=1), LIMITS)


def test_a_vector_instruction_agrees_with_its_program() -> None:
    instr = Instr("vec", (2,), operands=(Operand("lx", 0, (1,)), Operand("lx", 0, (1,))))
    constant = MicroProgram(0, (1.0,), (MicroOp("copy", (0,)),))
    kernel = replace(one(instr, "sfp"), programs=(constant,))
    with pytest.raises(
        ObjectError, match="program 0 takes 0 inputs at most, the instruction has 1 sources"
    ):
        encode_kernel(kernel, LIMITS)
    encode_kernel(replace(kernel, programs=(MicroProgram(2),)), LIMITS)  # the second one is 0
    with pytest.raises(ObjectError, match="program 0 is not one of the kernel's 0"):
        encode_kernel(one(instr, "sfp"), LIMITS)


def test_limits_come_from_the_device_text() -> None:
    from spyrec.sim.device import load_device

    assert limits_of(load_device("spyre").text) == Limits(32, 65535, 120259084288)
    with pytest.raises(ObjectError, match=r"description, line 1: .*not valid TOML"):
        limits_of("[")


def damaged(kernel: Kernel, words: list[int], patches: list[list[int]]) -> Kernel | None:
    """The kernel the damaged words spell, None when they were refused."""
    encoded = Encoded(np.array(words, np.uint32), np.array(patches, np.uint32).reshape(-1, 3))
    try:
        return decode_kernel(encoded, shell(kernel), LIMITS)
    except ObjectError:
        return None


WORD = st.integers(0, 2**32 - 1) | st.integers(0, 300)


@given(kernels(), st.data())
@settings(max_examples=60, deadline=None)
def test_damage_is_refused_or_gives_a_well_formed_kernel(
    kernel: Kernel, data: st.DataObject
) -> None:
    encoded = encode_kernel(kernel, LIMITS)
    words, patches = encoded.words.tolist(), encoded.patches.tolist()
    for _ in range(data.draw(st.integers(1, 3))):
        i = data.draw(st.integers(0, len(words) - 1))
        words[i] = data.draw(WORD | st.integers(0, 31).map(lambda bit, i=i: words[i] ^ 1 << bit))
    if patches and data.draw(st.booleans()):
        row = patches[data.draw(st.integers(0, len(patches) - 1))]
        row[data.draw(st.integers(0, 2))] = data.draw(WORD)
    read = damaged(kernel, words, patches)
    if read is not None:  # what the decoder lets through, the encoder writes
        assert decode_kernel(encode_kernel(read, LIMITS), shell(read), LIMITS) == canonical(read)


@given(st.lists(WORD, max_size=40), st.lists(st.tuples(WORD, WORD, WORD), max_size=3))
def test_arbitrary_words_never_crash(words: list[int], patches: list[tuple[int, int, int]]) -> None:
    kernel = Kernel("k", {}, cores=2)
    read = damaged(kernel, words, [list(p) for p in patches])
    assert read is None or set(read.streams) <= {"ml", "ms", "rs", "rr", "pt", "sfp"}


@given(kernels(), st.data())
@settings(max_examples=20, deadline=None)
def test_truncated_text_is_refused(kernel: Kernel, data: st.DataObject) -> None:
    encoded = encode_kernel(kernel, LIMITS)
    cut = data.draw(st.integers(0, len(encoded.words) - 1))
    assert damaged(kernel, encoded.words.tolist()[:cut], []) is None


PATCH_FAULTS = [
    ([[0, 10, 5]], "kernel @k: a patch is for a core outside 1..3"),
    ([[4, 10, 5]], "kernel @k: a patch is for a core outside 1..3"),
    ([[1, 99, 5]], "kernel @k: a patch is for word 99 of 14"),
    (
        [[2, 10, 5], [1, 10, 5]],
        "kernel @k: a patch is out of order; patches are sorted by core, then word",
    ),
    (
        [[1, 10, 5], [1, 10, 6]],
        "kernel @k: a patch is out of order; patches are sorted by core, then word",
    ),
    ([[1, 10, 0]], "kernel @k: a patch writes what core 0 has there already"),
    (
        [[1, 2, 5]],
        "kernel @k, word 2: an instruction is patched, but must be the same on all cores; "
        "the text is damaged",
    ),
]


@pytest.mark.parametrize(("patches", "message"), PATCH_FAULTS)
def test_patches_touch_only_what_may_differ(patches: list[list[int]], message: str) -> None:
    kernel = one(LOAD)
    words = encode_kernel(kernel, LIMITS).words
    with pytest.raises(ObjectError) as caught:
        decode_kernel(Encoded(words, np.array(patches, np.uint32)), shell(kernel), LIMITS)
    assert str(caught.value) == message


def test_guards_and_limits_may_differ_from_core_to_core() -> None:
    guard = Guard((0, 1, 2, 3), (9, 9, 9, 8), (1,), ())
    instr = replace(
        LOAD,
        limits=(Limit((1, 2, 3, 4)),),
        operands=(replace(LOAD.operands[0], guards=(guard,)), LOAD.operands[1]),
        signals=(Signal(3, 1, (2, 4, 8, 1)),),
    )
    kernel = one(instr)
    encoded = encode_kernel(kernel, LIMITS)
    assert decode_kernel(encoded, shell(kernel), LIMITS) == kernel
    assert len(encoded.patches) == 3 + 3 + 1 + 3 + 3
